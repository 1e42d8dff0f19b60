//! Evaluating and labelling a set.

use super::error::{Error, failed};
use super::run::{Run, TrainedLog};
use xtrain_data::Set;
use xtrain_report::accounting::{self, Part};
use xtrain_report::outln;
use xtrain_report::records::Record;
use xtrain_report::terminal;
use xtrain_tasks::Split;
use xtrain_trainer::evaluate::{Evaluation, evaluate};

impl Run {
    /// Loss and metrics of the validation set with the weights as they are.
    ///
    /// # Errors
    /// If a batch cannot be read or run.
    ///
    /// # Panics
    /// If the plan does not evaluate (`do_eval`).
    pub fn evaluate(&mut self) -> Result<Evaluation, Error> {
        self.evaluate_until(Split::Validation, &|| false)
    }

    /// The same of one of the run's sets to validate on, but ends before the set does once `stopped`
    /// is true.
    ///
    /// # Errors
    /// As [`Run::evaluate`].
    ///
    /// # Panics
    /// As [`Run::evaluate`].
    pub fn evaluate_until(
        &mut self,
        split: Split,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Evaluation, Error> {
        self.add_reference()?;
        let set = self.prepared(split).cloned();
        let set = set.expect("a run that evaluates has validation data");
        let evaluation = self.pass(&set, stopped)?;
        Ok(Evaluation {
            suffix: if split == Split::ValidationMismatched {
                "_mm"
            } else {
                ""
            },
            ..evaluation
        })
    }

    /// What the training that has ended logged of the weights as they are, if it evaluated them at its
    /// last step.
    pub fn last_evaluation(&self) -> Option<&Record> {
        self.evaluated.as_ref()
    }

    /// Prints and keeps what an evaluation found: after a training in that one's log and trackers,
    /// at its last step.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn log_evaluation(&mut self, evaluation: &Evaluation) -> Result<Record, Error> {
        if let Some(TrainedLog { log, progress }) = &mut self.trained {
            let record = evaluation.record(Some(progress), log.tokens_seen);
            log.record(&record);
            return Ok(record);
        }
        let record = evaluation.record(None, None);
        let steps = self.length()?.map_or(0, |(length, _)| length.max_steps);
        let text = self
            .plan
            .log_format
            .text(&record, None, steps, terminal::width());
        outln!("{text}");
        Ok(record)
    }

    /// What the model predicts of each row of a test set, as the task's metrics keep it: the
    /// logits of a classifier, the estimate of a regression.
    ///
    /// # Errors
    /// If a batch cannot be read or run.
    ///
    /// # Panics
    /// If the plan does not predict (`do_predict`).
    pub fn predict(&mut self, split: Split) -> Result<Vec<Vec<f32>>, Error> {
        let set = self.prepared(split).cloned();
        let set = set.expect("a run that predicts has test data");
        Ok(self.pass(&set, &|| false)?.predictions)
    }

    /// One pass over a set, in order; a part of it if `stopped` becomes true.
    fn pass(&mut self, set: &Set, stopped: &dyn Fn() -> bool) -> Result<Evaluation, Error> {
        let _evaluating = accounting::enter(Part::Evaluation);
        self.place_weights()?;
        let rows = *self.plan.train.flags.per_device_eval_batch_size;
        let client = self.session.client();
        let batches = self
            .form()
            .one_pass(client, set, rows, self.task.workers())
            .map_err(failed("preparing the batches"))?;
        let mut batches = batches.take_while(|_| !stopped());
        evaluate(
            &mut self.session,
            &*self.loaded.model,
            &*self.task.objective,
            &mut batches,
            self.task.metrics(),
        )
        .map_err(failed("evaluating"))
    }
}
