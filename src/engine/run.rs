//! A run put together from its plan: tokenizer, model, task, data, session, step.

use super::batches::BatchForm;
use super::device::open_device;
use super::error::{Error, failed};
use super::model::{LoadedModel, origin};
use super::task::{Purpose, TaskData, load_task};
use crate::config::{Device, TrainPlan, nearest};
use crate::data::sampler::{BatchPlan, Order};
use crate::data::stream::StreamSpec;
use crate::data::{Collator, Tokenizer};
use crate::trainer::ahead::RunShapes;
use crate::trainer::evaluate::metric_names;
use crate::trainer::hooks::SavedModel;
use crate::trainer::parameters::Head;
use crate::trainer::run_loop::RunLength;
use crate::trainer::session::Session;
use crate::trainer::settings::TrainSettings;
use crate::trainer::step::{Stepper, placements};
use std::sync::Arc;
use xtrain_graphs::optim::{Schedule, ScheduleKind};
use xtrain_models::Model;

/// Everything that a run needs before it touches a weight.
pub struct Prepared {
    pub tokenizer: Tokenizer,
    pub loaded: LoadedModel,
    pub task: TaskData,
    pub train: Option<Collator>,
    /// In the place of `train`, a set that is read while the run goes on.
    pub stream: Option<Arc<StreamSpec>>,
    pub validation: Option<Collator>,
    pub test: Option<Collator>,
    pub session: Session,
}

impl Prepared {
    /// Opens and checks everything else before tokenizing, which can take hours and which a run
    /// that only compiles does without.
    pub fn new(plan: &TrainPlan, reads_data: bool) -> Result<Self, Error> {
        let head = if plan.ignore_mismatched_sizes {
            Head::NewIfDifferent
        } else {
            Head::NewIfMissing
        };
        let purpose = if plan.do_train {
            Purpose::Train
        } else {
            Purpose::Use
        };
        let (loaded, mut task, tokenizer) = load_task(
            &plan.task,
            &plan.model,
            &plan.tokenizer,
            purpose,
            if plan.do_train { head } else { Head::Saved },
            plan.quiet(),
        )?;
        check_best(&plan.train, &*loaded.model, &task)?;
        let session = session(plan, &*loaded.model, &task)?;
        let streams = plan.task.source().streaming.is_some();
        let stream = if streams && plan.do_train && reads_data {
            task.stream()?.map(Arc::new)
        } else {
            None
        };
        let set = |wanted: bool, set: &dyn Fn() -> Result<Collator, Error>| {
            (wanted && reads_data).then(set).transpose()
        };
        let train = set(plan.do_train && !streams, &|| task.train())?;
        let validation = set(plan.do_eval, &|| task.validation())?;
        let test = set(plan.do_predict, &|| task.test())?;
        Ok(Prepared {
            tokenizer,
            loaded,
            task,
            train,
            stream,
            validation,
            test,
            session,
        })
    }

    /// What the run's batches look like.
    pub fn form(&self) -> BatchForm {
        // A stream may have rows of any length, whatever the other sets have.
        let sets = if self.stream.is_some() {
            [&None, &None, &None]
        } else {
            [&self.train, &self.validation, &self.test]
        };
        let sets: Vec<&Collator> = sets.into_iter().flatten().collect();
        self.task.form(&sets).sharded(self.session.mesh())
    }

    /// The shapes of the run's graphs.
    pub fn shapes(&self, plan: &TrainPlan) -> RunShapes {
        let sets = (self.train.as_ref(), self.validation.as_ref());
        run_shapes(
            plan,
            &self.task,
            sets,
            plan.train.per_device_train_batch_size,
        )
    }

    pub fn saved_model(&self, max_shard_size: u64) -> SavedModel {
        SavedModel {
            config: self.loaded.model.config().values().clone(),
            generation_config: self.loaded.generation_config(),
            tokenizer_files: self.tokenizer.files().to_vec(),
            parameters: self
                .loaded
                .model
                .parameters()
                .into_iter()
                .map(|p| p.name)
                .collect(),
            max_shard_size,
        }
    }
}

/// The plan's device, arranged for a run.
pub fn session(plan: &TrainPlan, model: &dyn Model, task: &TaskData) -> Result<Session, Error> {
    let settings = &plan.train;
    let placements = placements(
        model,
        settings.optimizer.kind,
        settings.mesh,
        settings.shard_optimizer_state,
    );
    let placements = placements.map_err(failed("laying out the model"))?;
    let mut session = open_device(&plan.device, settings.mesh, &plan.cache)?;
    session.set_eval_precision(settings.eval_precision);
    session.set_placements(placements);
    session.set_schedule(settings.pipeline_schedule);
    session.set_sequence_parallel(settings.sequence_parallel);
    session.set_scan_layers(settings.scan_layers);
    let command = format!("train {}", plan.task.word());
    session
        .cache_mut()
        .set_origin(origin(&command, model, &graph_settings(plan, task)));
    Ok(session)
}

/// The shapes of a run's graphs with so many training examples in a batch; `train` and `validation`
/// are the sets, if they are read.
pub fn run_shapes(
    plan: &TrainPlan,
    task: &TaskData,
    (train, validation): (Option<&Collator>, Option<&Collator>),
    batch: usize,
) -> RunShapes {
    let shapes = |does: bool, set: Option<&Collator>, rows: usize| match does {
        true => task.form(set.as_slice()).shapes(rows),
        false => Vec::new(),
    };
    RunShapes {
        train: shapes(plan.do_train, train, batch),
        eval: shapes(
            plan.do_eval,
            validation,
            plan.train.per_device_eval_batch_size,
        ),
        accumulation: plan.train.gradient_accumulation_steps,
    }
}

/// The metric that the best model is judged by is one that the task has.
fn check_best(settings: &TrainSettings, model: &dyn Model, task: &TaskData) -> Result<(), Error> {
    let Some(rule) = &settings.best else {
        return Ok(());
    };
    let known = metric_names(model.head_kind(), &task.label_names());
    if known.contains(&rule.metric) {
        return Ok(());
    }
    let fix = match nearest(&rule.metric, known.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("the metrics of this task are {}", known.join(", ")),
    };
    Err(Error::usage(
        format!(
            "--metric_for_best_model: there is no metric `{}`",
            rule.metric
        ),
        fix,
    ))
}

/// The settings that shape a run's graphs, by the names that the user knows. What is fed (learning
/// rate, seed) is not among them.
fn graph_settings(plan: &TrainPlan, task: &TaskData) -> Vec<(&'static str, String)> {
    let (train, optimizer) = (&plan.train, &plan.train.optimizer);
    let mut settings = task.settings();
    settings.extend([
        (
            "per_device_train_batch_size",
            train.per_device_train_batch_size.to_string(),
        ),
        (
            "per_device_eval_batch_size",
            train.per_device_eval_batch_size.to_string(),
        ),
        (
            "gradient_accumulation_steps",
            train.gradient_accumulation_steps.to_string(),
        ),
        ("precision", train.precision.to_string()),
        ("eval_precision", train.eval_precision.to_string()),
        ("optim", format!("{:?}", optimizer.kind).to_lowercase()),
        ("weight_decay", optimizer.weight_decay.to_string()),
        ("adam_beta1", optimizer.adam_beta1.to_string()),
        ("adam_beta2", optimizer.adam_beta2.to_string()),
        ("adam_epsilon", optimizer.adam_epsilon.to_string()),
        ("max_grad_norm", optimizer.max_grad_norm.to_string()),
        ("gradient_checkpointing", train.checkpointing.to_string()),
        ("scan_layers", train.scan_layers.to_string()),
        ("data_parallel", train.mesh.data.to_string()),
        ("shard_parallel", train.mesh.shard.to_string()),
        ("tensor_parallel", train.mesh.tensor.to_string()),
        ("sequence_parallel", train.sequence_parallel.to_string()),
        ("pipeline_parallel", train.mesh.stage.to_string()),
        (
            "shard_optimizer_state",
            train.shard_optimizer_state.to_string(),
        ),
    ]);
    if plan.device.kind == Device::Cuda {
        let device = &plan.device.settings;
        settings.push(("tf32", device.tf32.to_string()));
        settings.push((
            "attention_dropout_kernel",
            if device.fused_attention_dropout {
                "cudnn"
            } else {
                "xtrain"
            }
            .to_string(),
        ));
    }
    if train.mesh.devices() > 1 {
        settings.push((
            "gradient_bucket_mb",
            (train.gradient_bucket_bytes >> 20).to_string(),
        ));
    }
    settings
}

/// How the training rows become batches and steps.
pub fn layout(plan: &TrainPlan, set: &Collator) -> Result<(BatchPlan, RunLength, Schedule), Error> {
    let settings = &plan.train;
    let order = Order::Shuffled {
        seed: plan.task.source().seed,
    };
    let batches = BatchPlan::new(
        set.len(),
        settings.batch_rows(),
        settings.dataloader_drop_last,
        order,
    )
    .map_err(|error| {
        Error::usage(
            error.to_string(),
            "lower --per_device_train_batch_size, or leave --dataloader_drop_last out",
        )
    })?;
    let length = RunLength::new(
        batches.batches_per_epoch() as u64,
        settings.gradient_accumulation_steps as u64,
        settings.num_train_epochs,
        settings.max_steps,
    );
    let schedule = schedule(plan, &length);
    Ok((batches, length, schedule))
}

/// The steps of a run that reads a stream: as the Trainer has it, one epoch that ends with the run.
pub fn stream_length(plan: &TrainPlan) -> (RunLength, Schedule) {
    let settings = &plan.train;
    let (steps, accumulation) = (
        settings.max_steps.unwrap_or(1),
        settings.gradient_accumulation_steps as u64,
    );
    let length = RunLength::new(steps * accumulation, accumulation, 1.0, Some(steps));
    (length, schedule(plan, &length))
}

fn schedule(plan: &TrainPlan, length: &RunLength) -> Schedule {
    let optimizer = &plan.train.optimizer;
    let ratio = (length.max_steps as f64 * optimizer.warmup_ratio).ceil() as u64;
    Schedule {
        kind: optimizer.schedule,
        peak: optimizer.learning_rate,
        warmup: optimizer.warmup_steps.unwrap_or(ratio),
        total: length.max_steps,
    }
}

/// The run's steps, for recording its graphs ahead.
pub fn stepper<'m>(plan: &TrainPlan, model: &'m dyn Model) -> Stepper<'m> {
    // The learning rate is fed at each step, so that no graph knows the schedule.
    let schedule = Schedule {
        kind: ScheduleKind::Constant,
        peak: 0.0,
        warmup: 0,
        total: 0,
    };
    Stepper::new(
        model,
        plan.train.optimizer.clone(),
        schedule,
        plan.train.seed,
    )
    .with_precision(plan.train.precision)
    .with_buckets(plan.train.gradient_bucket_bytes)
    .with_checkpointing(plan.train.checkpointing)
}
