//! Compiled graphs by fingerprint: a graph that was compiled once is never compiled again in this process.

mod error;

pub use error::Error;

use crate::runtime::{Client, CompileOptions, CompiledMemory, Executable, Library, Signature};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::{Fingerprint, Graph, InputRole, Target, passes};

/// A graph and what the device's compiler made of it.
pub struct CompiledGraph {
    pub name: String,
    pub fingerprint: Fingerprint,
    /// Names of the graph's inputs and whether each is state.
    pub inputs: Vec<(String, InputRole)>,
    /// Names of the outputs, in the executable's order.
    pub outputs: Vec<String>,
    pub executable: Executable,
    /// Time that lowering and compiling took.
    pub compile_time: Duration,
}

impl CompiledGraph {
    /// The compiler's account of memory.
    pub fn memory(&self) -> Result<CompiledMemory, Error> {
        Ok(self.executable.memory_stats()?)
    }
}

/// What the cache did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Look-ups that found a compiled graph.
    pub hits: u64,
    pub compiled: u64,
    pub compile_time: Duration,
}

/// Lowers and compiles graphs for one client, once each.
pub struct GraphCache {
    library: &'static Library,
    client: Client,
    target: Target,
    options: CompileOptions,
    compiled: HashMap<Fingerprint, Arc<CompiledGraph>>,
    stats: CacheStats,
}

impl GraphCache {
    pub fn new(library: &'static Library, client: Client, target: Target, options: CompileOptions) -> Self {
        GraphCache { library, client, target, options, compiled: HashMap::new(), stats: CacheStats::default() }
    }

    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Every graph that was compiled or used, by name.
    pub fn graphs(&self) -> Vec<Arc<CompiledGraph>> {
        let mut graphs: Vec<_> = self.compiled.values().cloned().collect();
        graphs.sort_by(|a, b| (&a.name, a.fingerprint).cmp(&(&b.name, b.fingerprint)));
        graphs
    }

    /// The executable of a graph, compiled now if it is new.
    pub fn get(&mut self, graph: &Graph) -> Result<Arc<CompiledGraph>, Error> {
        let fingerprint = graph.fingerprint();
        if let Some(found) = self.compiled.get(&fingerprint) {
            self.stats.hits += 1;
            return Ok(found.clone());
        }
        let start = Instant::now();
        let prepared = passes::prepare(graph, self.target)?;
        let module = self.library.lower(&prepared.to_bytes())?;
        let signature = Signature::new(
            graph.inputs.iter().map(|i| i.shape.clone()).collect::<Vec<_>>(),
            (0..graph.outputs.len()).map(|i| graph.output_shape(i).clone()).collect::<Vec<_>>(),
        );
        let executable = self.client.compile(&module, signature, &self.options)?;
        let compiled = Arc::new(CompiledGraph {
            name: graph.name.clone(),
            fingerprint,
            inputs: graph.inputs.iter().map(|i| (i.name.clone(), i.role)).collect(),
            outputs: graph.outputs.iter().map(|o| o.name.clone()).collect(),
            executable,
            compile_time: start.elapsed(),
        });
        self.stats.compiled += 1;
        self.stats.compile_time += compiled.compile_time;
        self.compiled.insert(fingerprint, compiled.clone());
        Ok(compiled)
    }
}
