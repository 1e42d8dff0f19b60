//! The graphs of one process: each is loaded or compiled once, and counted.

use super::compiler::{Compiler, Made};
use super::entry::{Memory, Origin};
use super::key::Key;
use super::{CacheSettings, Error};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use xtrain_graphs::{Fingerprint, Graph, InputRole, Target};
use xtrain_report::accounting::{self, Part};
use xtrain_runtime::{Client, CompileOptions, CompiledMemory, Executable};

/// A graph and what the device's compiler made of it.
pub struct CompiledGraph {
    pub name: String,
    pub fingerprint: Fingerprint,
    /// The entry that it has, or would have, on disk.
    pub id: String,
    /// Names of the graph's inputs and whether each is state.
    pub inputs: Vec<(String, InputRole)>,
    /// Names of the outputs, in the executable's order.
    pub outputs: Vec<String>,
    pub executable: Executable,
    /// It came from disk.
    pub loaded: bool,
    /// Time that lowering and compiling, or else loading, took.
    pub ready_time: Duration,
    /// Why it was compiled though another version of it had been.
    pub reason: Option<String>,
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
    /// Lookups that found a graph that this process had.
    pub hits: u64,
    /// Graphs that came from disk.
    pub loaded: u64,
    pub load_time: Duration,
    pub compiled: u64,
    pub compile_time: Duration,
    /// What compiling the loaded graphs took when they were stored, less what loading took.
    pub saved: Duration,
}

impl CacheStats {
    /// Time until graphs were ready, loaded or compiled.
    pub fn ready_time(&self) -> Duration {
        self.compile_time + self.load_time
    }
}

/// One line for the end of a run.
impl std::fmt::Display for CacheStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |d: Duration| d.as_secs_f64();
        write!(
            f,
            "graphs used {}, cache hits {}, compiled {}, seconds compiling {:.1}, seconds saved {:.1}",
            self.loaded + self.compiled,
            self.loaded,
            self.compiled,
            seconds(self.compile_time),
            seconds(self.saved)
        )
    }
}

type Listener = Box<dyn Fn(&CompiledGraph) + Send>;

/// The graphs of one process, compiled or loaded once each.
pub struct GraphCache {
    compiler: Arc<Compiler>,
    /// What the graphs belong to.
    origin: Origin,
    ahead: Option<Ahead>,
    compiled: HashMap<Fingerprint, Arc<CompiledGraph>>,
    /// Why graphs could not be made in the background, until they are asked for.
    failed: HashMap<Fingerprint, Error>,
    /// The latest graph of each name, to explain a second one of the same name.
    latest: HashMap<String, (Key, Graph)>,
    stats: CacheStats,
    /// Hears of each graph that was loaded or compiled.
    listener: Option<Listener>,
}

impl GraphCache {
    pub fn new(
        client: Client,
        target: Target,
        options: CompileOptions,
        settings: CacheSettings,
    ) -> Result<Self, Error> {
        Ok(GraphCache {
            compiler: Arc::new(Compiler::new(client, target, options, settings)?),
            origin: Origin::default(),
            ahead: None,
            compiled: HashMap::new(),
            failed: HashMap::new(),
            latest: HashMap::new(),
            stats: CacheStats::default(),
            listener: None,
        })
    }

    /// Calls `listener` with each graph that is loaded or compiled from now on.
    pub fn on_ready(&mut self, listener: impl Fn(&CompiledGraph) + Send + 'static) {
        self.listener = Some(Box::new(listener));
    }

    /// Says what the graphs that follow belong to.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// The processor that graphs are lowered for.
    pub fn target(&self) -> Target {
        self.compiler.target()
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
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

    /// Makes these graphs in the background, in their order, while the caller does something else;
    /// [`GraphCache::get`] waits for one that is on its way.
    pub fn make_ahead(&mut self, graphs: Vec<Graph>) {
        self.settle();
        let (sender, results) = mpsc::channel();
        let (compiler, origin) = (self.compiler.clone(), self.origin.clone());
        let new = |graph: &Graph| !self.compiled.contains_key(&graph.fingerprint());
        let graphs: Vec<Graph> = graphs.into_iter().filter(new).collect();
        let awaited = graphs.iter().map(Graph::fingerprint).collect();
        let worker = std::thread::spawn(move || {
            for graph in graphs {
                let made = compiler.make(&graph, &origin, None);
                // A run that lacks a graph ends with that error; it does not wait for others.
                let is_last = made.is_err();
                if sender.send((graph, made)).is_err() || is_last {
                    break;
                }
            }
        });
        self.ahead = Some(Ahead {
            awaited,
            results,
            worker,
        });
    }

    /// Waits for everything that is being made in the background.
    pub fn settle(&mut self) {
        if self.ahead.is_none() {
            return;
        }
        let compiling = accounting::enter(Part::CompilingCold);
        let before = self.stats.compiled;
        while self.ahead.is_some() {
            self.receive();
        }
        if self.stats.compiled == before {
            compiling.was(Part::CompilingCached);
        }
    }

    /// Takes over the next graph that was made in the background. Why one could not be made is left
    /// for [`GraphCache::get`] to report, if it is needed at all.
    fn receive(&mut self) {
        let Some(ahead) = &mut self.ahead else { return };
        match ahead.results.recv() {
            Ok((graph, made)) => {
                ahead.awaited.remove(&graph.fingerprint());
                match made {
                    Ok(made) => {
                        let (made, compiled_in, key) = compiled(&graph, made);
                        self.keep(&graph, made, compiled_in, key);
                    }
                    Err(error) => drop(self.failed.insert(graph.fingerprint(), error)),
                }
            }
            Err(mpsc::RecvError) => self.ahead = None,
        }
    }

    /// The executable of a graph: had, loaded or compiled now.
    pub fn get(&mut self, graph: &Graph) -> Result<Arc<CompiledGraph>, Error> {
        let fingerprint = graph.fingerprint();
        if let Some(found) = self.compiled.get(&fingerprint) {
            self.stats.hits += 1;
            return Ok(found.clone());
        }
        let compiling = accounting::enter(Part::CompilingCold);
        let made = self.make_or_await(graph, fingerprint)?;
        if made.loaded {
            compiling.was(Part::CompilingCached);
        }
        Ok(made)
    }

    /// The executable of a graph that this process does not have yet.
    fn make_or_await(
        &mut self,
        graph: &Graph,
        fingerprint: Fingerprint,
    ) -> Result<Arc<CompiledGraph>, Error> {
        while self
            .ahead
            .as_ref()
            .is_some_and(|ahead| ahead.awaited.contains(&fingerprint))
        {
            self.receive();
        }
        if let Some(made) = self.compiled.get(&fingerprint) {
            return Ok(made.clone());
        }
        // A compiler that took an hour to fail would take another one.
        if let Some(error) = self.failed.remove(&fingerprint) {
            return Err(error);
        }
        let made = self
            .compiler
            .make(graph, &self.origin, self.latest.get(&graph.name))?;
        let (made, compiled_in, key) = compiled(graph, made);
        Ok(self.keep(graph, made, compiled_in, key))
    }

    /// The executables of graphs in their order, `jobs` of them made at a time; `ready` hears of
    /// each new one as it is done. The first error is returned once what was begun is done.
    pub fn get_all(
        &mut self,
        graphs: &[Graph],
        jobs: usize,
        ready: &mut dyn FnMut(&CompiledGraph),
    ) -> Result<Vec<Arc<CompiledGraph>>, Error> {
        let failed = |graph: &Graph| self.failed.remove(&graph.fingerprint());
        if let Some(error) = graphs.iter().find_map(failed) {
            return Err(error);
        }
        let mut seen = HashSet::new();
        let new = |graph: &&Graph| {
            let fingerprint = graph.fingerprint();
            !self.compiled.contains_key(&fingerprint) && seen.insert(fingerprint)
        };
        let wanted: Vec<&Graph> = graphs.iter().filter(new).collect();
        let (compiler, origin, latest, next) = (
            &self.compiler,
            &self.origin,
            &self.latest,
            AtomicUsize::new(0),
        );
        let (sender, results) = mpsc::channel();
        let work = |sender: mpsc::Sender<_>| {
            while let Some(graph) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let made = compiler.make(graph, origin, latest.get(&graph.name));
                if made.is_err() {
                    next.store(wanted.len(), Ordering::Relaxed); // Nobody takes up more work.
                }
                // Received below for as long as anybody sends.
                let _ = sender.send((*graph, made));
            }
        };
        let (mut done, mut failure) = (Vec::new(), None);
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, wanted.len().max(1)) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            for (graph, made) in results {
                match made {
                    Ok(made) => {
                        let (compiled, compiled_in, key) = compiled(graph, made);
                        ready(&compiled);
                        done.push((graph, compiled, compiled_in, key));
                    }
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        });
        for (graph, compiled, compiled_in, key) in done {
            self.keep(graph, compiled, compiled_in, key);
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(graphs
                .iter()
                .map(|graph| self.compiled[&graph.fingerprint()].clone())
                .collect()),
        }
    }

    /// The memory that a graph needs, from its stored header; a graph that is not stored is
    /// compiled, and stored for the next question. `None` where the compiler does not say.
    pub fn memory(&mut self, graph: &Graph) -> Result<Option<Memory>, Error> {
        let (memory, compile_time) = self.compiler.memory(graph, &self.origin)?;
        if let Some(took) = compile_time {
            self.stats.compiled += 1;
            self.stats.compile_time += took;
        }
        Ok(memory)
    }

    /// Remembers and counts what was made.
    fn keep(
        &mut self,
        graph: &Graph,
        compiled: CompiledGraph,
        compiled_in: Option<Duration>,
        key: Key,
    ) -> Arc<CompiledGraph> {
        let took = compiled.ready_time;
        match compiled_in {
            Some(compiled_in) => {
                self.stats.loaded += 1;
                self.stats.load_time += took;
                self.stats.saved += compiled_in.saturating_sub(took);
            }
            None => {
                self.stats.compiled += 1;
                self.stats.compile_time += took;
            }
        }
        let compiled = Arc::new(compiled);
        if let Some(listener) = &self.listener {
            listener(&compiled);
        }
        self.compiled.insert(compiled.fingerprint, compiled.clone());
        self.latest.insert(graph.name.clone(), (key, graph.clone()));
        compiled
    }
}

impl Drop for GraphCache {
    /// Waits for the graph that is being made: a process that ends while its compiler is at work
    /// does not end well.
    fn drop(&mut self) {
        if let Some(Ahead {
            results, worker, ..
        }) = self.ahead.take()
        {
            drop(results);
            // Whatever went wrong there concerns nobody any more.
            let _ = worker.join();
        }
    }
}

/// Graphs that a thread makes.
struct Ahead {
    awaited: HashSet<Fingerprint>,
    results: mpsc::Receiver<(Graph, Result<Made, Error>)>,
    worker: JoinHandle<()>,
}

/// What the cache keeps of a graph that was made, with the time that a stored one took to compile.
fn compiled(graph: &Graph, made: Made) -> (CompiledGraph, Option<Duration>, Key) {
    let compiled = CompiledGraph {
        name: graph.name.clone(),
        fingerprint: graph.fingerprint(),
        id: made.key.id(),
        inputs: graph
            .inputs
            .iter()
            .map(|i| (i.name.clone(), i.role))
            .collect(),
        outputs: graph.outputs.iter().map(|o| o.name.clone()).collect(),
        executable: made.executable,
        loaded: made.compiled_in.is_some(),
        ready_time: made.took,
        reason: made.reason,
    };
    (compiled, made.compiled_in, made.key)
}
