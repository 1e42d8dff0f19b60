//! Evaluating and labelling a set.

use super::batches::BatchForm;
use super::error::{Error, failed};
use super::execution::Execution;
use super::model::origin;
use super::run::Run;
use super::task::{Purpose, TaskData, load_task};
use crate::config::{EvalPlan, PredictPlan};
use crate::data::Set;
use crate::report::records::Record;
use crate::tasks::Split;
use crate::trainer::evaluate::{Evaluation, evaluate as evaluate_batches};
use crate::trainer::parameters::Head;
use crate::trainer::session::Session;
use xtrain_models::Model;

/// One pass over a set, in order.
struct Pass<'a> {
    form: BatchForm,
    set: &'a Set,
    /// Rows on each device.
    batch_size: usize,
    task: &'a TaskData,
}

impl Pass<'_> {
    /// Loss and scores of the set; half of it if `stopped` becomes true.
    fn run(
        &self,
        session: &mut Session,
        model: &dyn Model,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Evaluation, Error> {
        let batches = self
            .form
            .one_pass(
                session.client(),
                self.set,
                self.batch_size,
                self.task.workers(),
            )
            .map_err(failed("preparing the batches"))?;
        let mut batches = batches.take_while(|_| !stopped());
        let parameters = model.parameters();
        evaluate_batches(
            session,
            model,
            &parameters,
            &mut batches,
            self.task.metrics(),
        )
        .map_err(failed("evaluating"))
    }
}

impl Run {
    /// Loss and metrics of the validation set with the weights as they are.
    ///
    /// # Errors
    /// If a batch cannot be read or run.
    ///
    /// # Panics
    /// If the plan does not evaluate (`do_eval`).
    pub fn evaluate(&mut self) -> Result<Evaluation, Error> {
        self.evaluate_until(&|| false)
    }

    /// The same, but ends before the set does once `stopped` is true.
    ///
    /// # Errors
    /// As [`Run::evaluate`].
    ///
    /// # Panics
    /// As [`Run::evaluate`].
    pub fn evaluate_until(&mut self, stopped: &dyn Fn() -> bool) -> Result<Evaluation, Error> {
        self.place_weights()?;
        let set = self.validation.as_ref();
        let pass = Pass {
            form: self.form(),
            set: set.expect("a run that evaluates has validation data"),
            batch_size: self.plan.train.per_device_eval_batch_size,
            task: &self.task,
        };
        pass.run(&mut self.session, &*self.loaded.model, stopped)
    }

    /// What the model predicts of each row of the test set, as the task's metrics keep it: the
    /// logits of a classifier, the estimate of a regression.
    ///
    /// # Errors
    /// If a batch cannot be read or run.
    ///
    /// # Panics
    /// If the plan does not predict (`do_predict`).
    pub fn predict(&mut self) -> Result<Vec<Vec<f32>>, Error> {
        self.place_weights()?;
        let set = self.test.as_ref();
        let pass = Pass {
            form: self.form(),
            set: set.expect("a run that predicts has test data"),
            batch_size: self.plan.train.per_device_eval_batch_size,
            task: &self.task,
        };
        let evaluation = pass.run(&mut self.session, &*self.loaded.model, &|| false)?;
        Ok(evaluation.predictions)
    }
}

/// Loss and metrics of a saved model on a task's validation set.
///
/// # Errors
/// If something that the plan names cannot be read, or a batch cannot be run.
pub fn evaluate(plan: &EvalPlan) -> Result<Record, Error> {
    let (loaded, task, _) = load_task(
        &plan.task,
        &plan.model,
        &plan.tokenizer,
        Purpose::Use,
        Head::Saved,
        plan.disable_tqdm,
    )?;
    let model = &*loaded.model;
    let command = format!("eval {}", plan.task.name());
    let settings = settings(&task, plan.per_device_eval_batch_size);
    let mut session = Execution::from(plan).session(model, origin(&command, model, &settings))?;
    let set = task.set(Split::Validation)?;
    loaded.place(&mut session, plan.seed)?;
    let pass = Pass {
        form: task.form(&[&set]).sharded(plan.mesh),
        set: &set,
        batch_size: plan.per_device_eval_batch_size,
        task: &task,
    };
    let evaluation = pass.run(&mut session, model, &|| false)?;
    Ok(evaluation.record(None))
}

/// What the model predicts of each row of a task's test set, as [`Run::predict`], with the task.
///
/// # Errors
/// If something that the plan names cannot be read, or a batch cannot be run.
pub fn predict(plan: &PredictPlan) -> Result<(TaskData, Vec<Vec<f32>>), Error> {
    let (loaded, task, _) = load_task(
        &plan.task,
        &plan.model,
        &plan.tokenizer,
        Purpose::Use,
        Head::Saved,
        plan.disable_tqdm,
    )?;
    let model = &*loaded.model;
    let command = format!("predict {}", plan.task.name());
    let settings = settings(&task, plan.per_device_eval_batch_size);
    let mut session = Execution::inference(&plan.device, &plan.cache)
        .session(model, origin(&command, model, &settings))?;
    let set = task.set(Split::Test)?;
    loaded.place(&mut session, 0)?;
    let pass = Pass {
        form: task.form(&[&set]),
        set: &set,
        batch_size: plan.per_device_eval_batch_size,
        task: &task,
    };
    let evaluation = pass.run(&mut session, model, &|| false)?;
    Ok((task, evaluation.predictions))
}

/// The settings that shape an evaluation's graphs, by the names that the user knows.
fn settings(task: &TaskData, batch_size: usize) -> Vec<(&'static str, String)> {
    let mut settings = task.settings();
    settings.push(("per_device_eval_batch_size", batch_size.to_string()));
    settings
}
