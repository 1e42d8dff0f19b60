//! Evaluation during training, at its cadence, and what follows from it: which one is the best, and
//! whether to go on.

use super::best::Best;
use crate::error::{Error, Result};
use crate::evaluate::{Evaluation, Metrics, evaluate};
use crate::feed::DeviceBatch;
use crate::run_loop::{Control, Hook, Progress, StepContext};
use crate::settings::EvaluationTimes;
use xtrain_models::{Model, Objective};
use xtrain_report::accounting::{self, Part};
use xtrain_report::records::{EvalRecord, Record};

/// Gives the batches of one pass over the validation set.
pub type EvalBatches<'a> =
    dyn FnMut() -> Result<Box<dyn Iterator<Item = Result<DeviceBatch>>>> + 'a;

/// Evaluates at its cadence; stops the run where early stopping asks for that.
pub struct EvaluateHook<'a> {
    /// What is evaluated, with the session's current weights.
    pub model: &'a dyn Model,
    /// What it is trained for.
    pub objective: &'a dyn Objective,
    /// Begins the metrics of an evaluation.
    pub metrics: Box<dyn Fn() -> Box<dyn Metrics> + 'a>,
    /// Starts a pass over the validation set.
    pub batches: Box<EvalBatches<'a>>,
    /// The cadence, and the delay before it.
    pub times: EvaluationTimes,
}

impl Evaluation {
    /// The record to log; `progress` is `None` outside training, and `tokens_seen` where tokens are not
    /// counted.
    pub fn record(&self, progress: Option<&Progress>, tokens_seen: Option<u64>) -> Record {
        Record::Eval(EvalRecord {
            suffix: self.suffix,
            loss: self.loss,
            metrics: self.metrics.clone(),
            perplexity: self.perplexity,
            runtime: self.runtime.as_secs_f64(),
            samples: self.examples as u64,
            steps: self.batches as u64,
            epoch: progress.map(|p| p.epoch),
            tokens_seen,
            step: progress.map_or(0, |p| p.step),
        })
    }
}

impl EvaluateHook<'_> {
    /// Evaluates and logs the result.
    fn evaluate(&mut self, context: &mut StepContext) -> Result<Evaluation> {
        let _evaluating = accounting::enter(Part::Evaluation);
        let evaluation = evaluate(
            context.session,
            self.model,
            self.objective,
            &mut *(self.batches)()?,
            (self.metrics)(),
        )?;
        let log = &mut context.run.log;
        let record = evaluation.record(Some(&context.progress), log.tokens_seen);
        log.record(&record);
        if evaluation.labels == 0.0 {
            let step = context.progress.step;
            log.note(&format!(
                "note: the evaluation at step {step} has no loss, since no label of the set has one; it decides nothing"
            ));
        }
        context.run.evaluated = Some(record);
        Ok(evaluation)
    }
}

impl Hook for EvaluateHook<'_> {
    fn wants(&mut self, progress: &Progress) -> bool {
        self.times.include(progress)
    }

    // As in transformers, this one is never the best, nor one without progress.
    fn at_start(&mut self, context: &mut StepContext) -> Result<()> {
        if self.times.on_start {
            self.evaluate(context)?;
        }
        Ok(())
    }

    fn at_step(&mut self, context: &mut StepContext) -> Result<Control> {
        let evaluation = self.evaluate(context)?;
        let StepContext { progress, run, .. } = context;
        let decides = |best: &Best| best.rule().metric.clone();
        let name = run.best.as_ref().map_or("loss".to_string(), decides);
        let value = evaluation.metric(&name).ok_or_else(|| Error::NoMetric {
            name: name.clone(),
            known: evaluation.names().join(", "),
        })?;
        if evaluation.labels == 0.0 {
            return Ok(Control::Continue);
        }
        if let Some(plateau) = &mut run.plateau {
            plateau.observe(value);
        }
        let Some(best) = run.best.as_mut() else {
            return Ok(Control::Continue);
        };
        best.observe(value, progress.step);
        if !best.should_stop() {
            return Ok(Control::Continue);
        }
        if let (Some((value, step)), false) = (best.found(), progress.is_last()) {
            run.log.note(&format!(
                "stopping early: no better {name} than {value} at step {step}"
            ));
        }
        Ok(Control::Stop)
    }
}
