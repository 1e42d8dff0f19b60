//! Evaluation during training, at its cadence.

use super::log::RunLog;
use crate::report::records::{EvalRecord, Record};
use crate::trainer::error::Result;
use crate::trainer::evaluate::{Evaluation, evaluate};
use crate::trainer::run_loop::{Control, Hook, Progress};
use crate::trainer::session::Session;
use crate::trainer::settings::Cadence;
use crate::trainer::step::DeviceBatch;
use std::cell::RefCell;
use std::rc::Rc;
use xtrain_models::{Model, ParameterSpec};

/// Gives the batches of one pass over the validation set.
pub type EvalBatches<'a> = dyn FnMut() -> Result<Box<dyn Iterator<Item = Result<DeviceBatch>>>> + 'a;

pub struct Evaluator<'a> {
    pub model: &'a dyn Model,
    pub parameters: Vec<ParameterSpec>,
    pub batches: Box<EvalBatches<'a>>,
    pub cadence: Cadence,
    pub log: Rc<RefCell<RunLog>>,
}

impl Evaluation {
    /// The record to log; `progress` is `None` outside training.
    pub fn record(&self, progress: Option<&Progress>) -> Record {
        Record::Eval(EvalRecord {
            loss: self.loss,
            perplexity: self.perplexity(),
            runtime: self.runtime.as_secs_f64(),
            samples: self.examples as u64,
            steps: self.batches as u64,
            epoch: progress.map(|p| p.epoch),
            step: progress.map_or(0, |p| p.step),
        })
    }
}

impl Hook for Evaluator<'_> {
    fn wants(&mut self, progress: &Progress) -> bool {
        self.cadence.is_due(progress)
    }

    fn at_step(&mut self, progress: &Progress, session: &mut Session) -> Result<Control> {
        let evaluation = evaluate(session, self.model, &self.parameters, &mut *(self.batches)()?)?;
        self.log.borrow_mut().record(&evaluation.record(Some(progress)))?;
        Ok(Control::Continue)
    }
}
