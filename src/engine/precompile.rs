//! A run's graphs without running them: recorded, compiled, measured.

use super::error::{Error, failed};
use super::exchanged::exchanged;
use super::run::Run;
use std::sync::Arc;
use xtrain_cache::CompiledGraph;
use xtrain_report::scaling::Exchange;
use xtrain_trainer::Result as Trained;
use xtrain_trainer::ahead::{Ahead, Steps};
use xtrain_trainer::fit::{Footprint, footprints};

impl Run {
    /// Compiles every graph that the run will use, `jobs` at a time, and stores them; `ready` gets
    /// each as it is done. They are returned in the order of use.
    ///
    /// # Errors
    /// If a graph cannot be recorded or compiled.
    pub fn compile(
        &mut self,
        jobs: usize,
        ready: &mut dyn FnMut(&CompiledGraph),
    ) -> Result<Vec<Arc<CompiledGraph>>, Error> {
        self.ahead("compiling the graphs", |ahead| ahead.compile(jobs, ready))
    }

    /// Every graph of the run in the order of use, by what is recorded as one.
    ///
    /// # Errors
    /// If a graph cannot be recorded.
    pub fn record(&mut self) -> Result<Steps, Error> {
        self.ahead("recording the graphs", |ahead| ahead.steps())
    }

    /// What the replicas exchange in one optimizer step.
    ///
    /// # Errors
    /// If a graph cannot be recorded.
    pub fn exchanged(&mut self) -> Result<Vec<Exchange>, Error> {
        self.ahead("recording the graphs", exchanged)
    }

    /// What a device of each stage holds at most, by the compiler's statistics.
    ///
    /// # Errors
    /// If a graph cannot be compiled, or the compiler says nothing of its memory.
    pub fn footprints(&mut self) -> Result<Vec<Footprint>, Error> {
        self.ahead("reading the memory", |ahead| footprints(ahead, None))
    }

    /// Works on the graphs of the run; `doing` names the work in an error.
    fn ahead<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&mut Ahead) -> Trained<T>,
    ) -> Result<T, Error> {
        let (shapes, execution) = (self.shapes(), self.execution());
        let step = execution.recorded_step(&*self.loaded.model, &self.task.objective);
        let mut ahead = Ahead {
            session: &mut self.session,
            step: &step,
            shapes: &shapes,
            metrics: Some(&*self.task.metrics()),
        };
        work(&mut ahead).map_err(failed(doing))
    }
}
