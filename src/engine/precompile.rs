//! A run's graphs without running them: recorded, compiled, measured.

use super::error::{Error, failed};
use super::exchanged::{Steps, exchanged};
use super::run::Run;
use crate::cache::CompiledGraph;
use crate::report::scaling::Exchange;
use crate::trainer::ahead::{compile_all, record_steps};
use crate::trainer::fit::{Footprint, footprints};
use std::sync::Arc;

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
        let (shapes, execution) = (self.shapes(), self.execution());
        let model = &*self.loaded.model;
        let step = execution.recorded_step(model);
        compile_all(&mut self.session, model, &step, &shapes, jobs, ready)
            .map_err(failed("compiling the graphs"))
    }

    /// Every graph of the run in the order of use, by what is recorded as one: a name, and a graph
    /// or those of a pipeline's stages.
    ///
    /// # Errors
    /// If a graph cannot be recorded.
    pub fn record(&mut self) -> Result<Steps, Error> {
        let (shapes, execution) = (self.shapes(), self.execution());
        let model = &*self.loaded.model;
        let step = execution.recorded_step(model);
        record_steps(&mut self.session, model, &step, &shapes)
            .map_err(failed("recording the graphs"))
    }

    /// What the replicas exchange in one optimizer step.
    ///
    /// # Errors
    /// If a graph cannot be recorded.
    pub fn exchanged(&mut self) -> Result<Vec<Exchange>, Error> {
        let (shapes, execution) = (self.shapes(), self.execution());
        let model = &*self.loaded.model;
        let step = execution.recorded_step(model);
        exchanged(&mut self.session, model, &step, &shapes)
    }

    /// What a device of each stage holds at most, by the compiler's statistics.
    ///
    /// # Errors
    /// If a graph cannot be compiled, or the compiler says nothing of its memory.
    pub fn footprints(&mut self) -> Result<Vec<Footprint>, Error> {
        let (shapes, execution) = (self.shapes(), self.execution());
        let batch = self.plan.train.per_device_train_batch_size;
        let model = &*self.loaded.model;
        let step = execution.recorded_step(model);
        footprints(&mut self.session, None, model, &step, &shapes, batch)
            .map_err(failed("reading the memory"))
    }
}
