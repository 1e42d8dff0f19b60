//! A run's graphs without running them: recorded, compiled, measured.

use super::error::{Error, failed};
use super::exchanged::exchanged;
use super::kernels::{self, Compiled};
use super::run::Run;
use super::target::AotTarget;
use std::sync::Arc;
use std::time::Duration;
use xtrain_cache::CompiledGraph;
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::{Fingerprint, Graph, UnfusedDropout};
use xtrain_report::errln;
use xtrain_report::kernels::Bounds;
use xtrain_report::scaling::Exchange;
use xtrain_report::units::bytes;
use xtrain_runtime::CompiledMemory;
use xtrain_trainer::Result as Trained;
use xtrain_trainer::ahead::{Ahead, Steps};
use xtrain_trainer::fit::{Footprint, each, footprints};
use xtrain_trainer::matmul_peak;

/// A graph of a run that was compiled to know what it needs.
pub struct PlannedGraph {
    /// Its name in the run.
    pub name: String,
    /// Of the graph.
    pub fingerprint: Fingerprint,
    /// It was stored already.
    pub loaded: bool,
    /// Time that lowering and compiling, or else loading, took.
    pub ready_time: Duration,
    /// The compiler's account.
    pub memory: CompiledMemory,
    /// The least time of an execution, where the device's rates are known.
    pub bounds: Option<Bounds>,
}

impl PlannedGraph {
    fn compiled(graph: &CompiledGraph) -> Result<PlannedGraph, Error> {
        let memory = graph.memory();
        Ok(PlannedGraph {
            name: graph.name.clone(),
            fingerprint: graph.fingerprint,
            loaded: graph.loaded,
            ready_time: graph.ready_time,
            memory: memory.map_err(failed("reading the compiler's memory statistics"))?,
            bounds: None,
        })
    }

    /// For a card that is only described.
    ///
    /// # Errors
    /// If the graph cannot be compiled or read.
    pub fn described(graph: &Graph, target: &mut AotTarget) -> Result<PlannedGraph, Error> {
        let checked = target.graphs.check(graph);
        let checked = checked.map_err(failed("compiling the graphs"))?;
        let bounds = kernels::bounds(&Compiled {
            title: checked.name.clone(),
            module: &checked.module,
            graph: Some(graph),
            memory: Some(checked.memory),
            launches: checked.launches,
            gpu: Some(target.gpu),
        })?;
        Ok(PlannedGraph {
            name: checked.name,
            fingerprint: checked.fingerprint,
            loaded: checked.loaded,
            ready_time: checked.ready_time,
            memory: CompiledMemory {
                argument_bytes: checked.memory.arguments,
                output_bytes: checked.memory.outputs,
                alias_bytes: checked.memory.donated,
                temp_bytes: checked.memory.temporaries,
                generated_code_bytes: checked.memory.code,
            },
            bounds,
        })
    }
}

/// Prints that attention is written out for its dropout, and what that costs.
pub(super) fn note_unfused(unfused: Option<UnfusedDropout>) {
    if let Some(unfused) = unfused.filter(|_| ProcessGroup::this_writes()) {
        errln!(
            "note: attention dropout disables cuDNN's attention: {} attentions write {} of scores in float32 a step, and read them again; \
             set the dropout to 0 (GPT-2: --config_overrides attn_pdrop=0) or add --attention_dropout_kernel cudnn",
            unfused.attentions,
            bytes(unfused.score_bytes)
        );
    }
}

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

    /// What a device of each stage holds at most, by the compiler's statistics; of a target that is not
    /// attached, if one is given.
    ///
    /// # Errors
    /// If a graph cannot be compiled, or the compiler says nothing of its memory.
    pub fn footprints(&mut self, target: Option<&mut AotTarget>) -> Result<Vec<Footprint>, Error> {
        let graphs = target.map(|target| &mut target.graphs);
        self.ahead("reading the memory", |ahead| footprints(ahead, graphs))
    }

    /// Compiles every graph of the run, for a target that is not attached if one is given, with what is
    /// then known of each.
    ///
    /// # Errors
    /// If a graph cannot be compiled or read.
    pub fn planned(&mut self, target: Option<&mut AotTarget>) -> Result<Vec<PlannedGraph>, Error> {
        let Some(target) = target else {
            let graphs = self.compile(1, &mut |_| ())?;
            return graphs
                .iter()
                .map(|graph| PlannedGraph::compiled(graph))
                .collect();
        };
        let steps = self.record()?;
        let graphs = each(&steps).filter(|(step, _)| step.0 != matmul_peak::GRAPH_NAME);
        graphs
            .map(|(_, graph)| PlannedGraph::described(graph, target))
            .collect()
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
