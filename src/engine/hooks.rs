//! The hooks of a training run's own: its log, telemetry, checks, evaluations and checkpoints.

use super::batches::BatchForm;
use super::error::{Error, failed};
use super::process;
use super::task::TaskData;
use xtrain_checkpoint::TrainingState;
use xtrain_checkpoint::hf::TrainerState;
use xtrain_config::{RunPlan, TrainSettings};
use xtrain_data::Set;
use xtrain_distributed::ProcessGroup;
use xtrain_models::Model;
use xtrain_report::telemetry::Telemetry;
use xtrain_trainer::hooks::{
    EvaluateHook, LogHook, ReplicaCheckHook, SaveHook, SaveSettings, SavedModel, TelemetryHook,
    graph_listener,
};
use xtrain_trainer::interrupt::Interrupt;
use xtrain_trainer::run_loop::{Hook, Progress};
use xtrain_trainer::session::Session;
use xtrain_trainer::settings::EvaluationTimes;
use xtrain_trainer::{matmul_peak, replicas};

/// What the hooks of a run's own are made of.
pub(super) struct OwnHooks<'h> {
    pub plan: &'h RunPlan,
    pub model: &'h dyn Model,
    pub task: &'h TaskData,
    pub validation: Option<&'h Set>,
    pub form: &'h BatchForm,
    pub saved_model: &'h SavedModel,
    /// Names of the optimizer's state that checkpoints hold.
    pub optimizer_state: Vec<String>,
    /// What `trainer_state.json` says at every step.
    pub trainer_state: TrainerState,
    /// The position-independent part of the training state.
    pub state: TrainingState,
    pub interrupt: Option<&'h Interrupt>,
}

impl<'h> OwnHooks<'h> {
    /// In the order in which they are called.
    pub(super) fn make(
        self,
        session: &mut Session,
        start: &Progress,
    ) -> Result<Vec<Box<dyn Hook + 'h>>, Error> {
        let (plan, model, task) = (self.plan, self.model, self.task);
        let settings = &plan.train;
        let flags = &settings.flags;
        let telemetry = telemetry_hook(plan, session, start);
        let peak = matmul_peak::tflops(session, settings.precision, &plan.cache)
            .map_err(failed("measuring the matmul peak"))?;
        if ProcessGroup::this_writes() {
            telemetry.describe(process::describe(plan, session, model, peak));
        }
        let log = LogHook::new(
            settings.logging,
            *flags.logging_first_step,
            *flags.include_num_input_tokens_seen,
            Some(peak),
            task.objective.measures(),
        );
        let mut all = vec![boxed(log), boxed(telemetry)];
        if replicas::have_equals(settings.mesh, session.placements()) {
            all.push(boxed(ReplicaCheckHook {
                parameters: model.parameters(),
                cadence: settings.replica_check,
            }));
        }
        if let Some(set) = self.validation.cloned() {
            let (client, workers) = (session.client().clone(), task.workers());
            let form = self.form.clone();
            let rows = *flags.per_device_eval_batch_size;
            all.push(boxed(EvaluateHook {
                model,
                objective: &*task.objective,
                metrics: Box::new(move || task.metrics()),
                batches: Box::new(move || form.one_pass(&client, &set, rows, workers)),
                times: evaluation_times(settings),
            }));
        }
        all.push(boxed(SaveHook {
            settings: SaveSettings {
                output_dir: settings.output_dir.clone(),
                cadence: settings.save,
                total_limit: *flags.save_total_limit,
                in_background: *flags.async_save,
                only_model: *flags.save_only_model,
            },
            evaluations: evaluation_times(settings),
            trainer_state: self.trainer_state,
            model: self.saved_model,
            optimizer_state: self.optimizer_state,
            state: self.state,
            interrupt: self.interrupt.cloned(),
            writes: ProcessGroup::this_writes(),
            background: None,
        }));
        Ok(all)
    }
}

fn boxed<'h>(hook: impl Hook + 'h) -> Box<dyn Hook + 'h> {
    Box::new(hook)
}

fn evaluation_times(settings: &TrainSettings) -> EvaluationTimes {
    EvaluationTimes {
        cadence: settings.eval,
        delay: *settings.flags.eval_delay,
        on_start: *settings.flags.eval_on_start,
    }
}

/// Telemetry of steps and, from the process that writes, of graphs.
fn telemetry_hook(plan: &RunPlan, session: &mut Session, start: &Progress) -> TelemetryHook {
    let member = plan.device.settings.member.as_ref();
    let rank = member.map_or(0, |member| member.rank);
    let telemetry = Telemetry::append_of_rank(&plan.train.output_dir, rank);
    if ProcessGroup::this_writes() {
        session.cache_mut().on_ready(graph_listener(&telemetry));
    }
    let (client, device) = (session.client().clone(), plan.device.kind.to_string());
    TelemetryHook::new(telemetry, client, &device, start)
}
