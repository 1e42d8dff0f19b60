//! From a graph to its executable: what this process has, else what is stored, else the compiler.

use super::entry::{Content, Damage, Entry, Header, Memory, Origin};
use super::explain::{Explanation, nearest};
use super::key::{Key, Surroundings};
use super::store::{Store, now};
use super::{CacheSettings, Error};
use crate::runtime::{Client, CompileOptions, CompiledMemory, Executable, Library, Signature};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::{Fingerprint, Graph, InputRole, Precision, Target, passes};

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
    /// Look-ups that found a graph that this process had.
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

/// Lowers and compiles graphs for one client, once each.
pub struct GraphCache {
    library: &'static Library,
    client: Client,
    target: Target,
    options: CompileOptions,
    surroundings: Surroundings,
    store: Option<Store>,
    settings: CacheSettings,
    origin: Origin,
    compiled: HashMap<(Fingerprint, Precision), Arc<CompiledGraph>>,
    /// The latest graph of each name, to explain a second one of the same name.
    latest: HashMap<String, (Key, Graph)>,
    /// What has been warned of, so that it is not said twice.
    warned: HashSet<String>,
    stats: CacheStats,
}

impl GraphCache {
    pub fn new(
        library: &'static Library,
        client: Client,
        target: Target,
        options: CompileOptions,
        settings: CacheSettings,
    ) -> Result<Self, Error> {
        Ok(GraphCache {
            surroundings: Surroundings::of(library, &client, &options)?,
            library,
            client,
            target,
            options,
            store: settings.dir.as_ref().map(Store::new),
            settings,
            origin: Origin::default(),
            compiled: HashMap::new(),
            latest: HashMap::new(),
            warned: HashSet::new(),
            stats: CacheStats::default(),
        })
    }

    /// Says what the graphs that follow belong to.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
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

    /// The executable of a graph with its products in this precision: had, loaded or compiled now.
    pub fn get(&mut self, graph: &Graph, precision: Precision) -> Result<Arc<CompiledGraph>, Error> {
        let fingerprint = graph.fingerprint();
        if let Some(found) = self.compiled.get(&(fingerprint, precision)) {
            self.stats.hits += 1;
            return Ok(found.clone());
        }
        let start = Instant::now();
        let prepared = passes::prepare(graph, self.target, precision)?;
        let module = self.library.lower(&prepared.to_bytes())?;
        let key = self.surroundings.key(graph, precision, &module);
        let id = key.id();
        let (executable, compiled_in) = match self.load(graph, &key)? {
            Some((executable, compiled_in)) => (executable, Some(compiled_in)),
            None => self.load_or_compile(graph, &key, &module, start)?,
        };
        let ready_time = start.elapsed();
        match compiled_in {
            Some(compiled_in) => {
                self.stats.loaded += 1;
                self.stats.load_time += ready_time;
                self.stats.saved += compiled_in.saturating_sub(ready_time);
            }
            None => {
                self.stats.compiled += 1;
                self.stats.compile_time += ready_time;
            }
        }
        let compiled = Arc::new(CompiledGraph {
            name: graph.name.clone(),
            fingerprint,
            id,
            inputs: graph.inputs.iter().map(|i| (i.name.clone(), i.role)).collect(),
            outputs: graph.outputs.iter().map(|o| o.name.clone()).collect(),
            executable,
            loaded: compiled_in.is_some(),
            ready_time,
        });
        self.compiled.insert((fingerprint, precision), compiled.clone());
        self.latest.insert(graph.name.clone(), (key, graph.clone()));
        Ok(compiled)
    }

    /// After a miss: under the key's lock, what another process stored meanwhile, else the compiler. With the time that the
    /// stored one took to compile.
    fn load_or_compile(
        &mut self,
        graph: &Graph,
        key: &Key,
        module: &[u8],
        start: Instant,
    ) -> Result<(Executable, Option<Duration>), Error> {
        let lock = self.store.as_ref().and_then(|store| {
            store.lock(&key.id(), |holder| {
                let holder = holder.map_or("another process".to_string(), |pid| format!("process {pid}"));
                eprintln!("waiting for {holder}, which is compiling the same `{}` graph", graph.name);
            })
        });
        if lock.is_some()
            && let Some((executable, compiled_in)) = self.load(graph, key)?
        {
            return Ok((executable, Some(compiled_in)));
        }
        if let Some(reason) = self.explain(graph, key) {
            if self.settings.fail_on_recompile {
                return Err(Error::Recompile { phase: graph.name.clone(), reason });
            }
            eprintln!("compiling `{}` again: {reason}", graph.name);
        }
        let executable = self.client.compile(module, signature(graph), &self.options)?;
        let took = start.elapsed();
        self.save(graph, key, module, &executable, took);
        Ok((executable, None))
    }

    /// The stored executable with the time that compiling it took. Anything wrong with it is a miss, told once.
    fn load(&mut self, graph: &Graph, key: &Key) -> Result<Option<(Executable, Duration)>, Error> {
        let Some(store) = self.store.clone() else { return Ok(None) };
        let load = |mut entry: Entry| -> Result<Option<(Executable, Duration)>, Damage> {
            let compiled_in = Duration::try_from_secs_f64(entry.header.compile_seconds).unwrap_or_default();
            let Some(bytes) = entry.check_all()? else { return Ok(None) };
            let executable = self.client.load(&bytes, signature(graph)).map_err(|e| Damage::NotLoadable(e.to_string()))?;
            Ok(Some((executable, compiled_in)))
        };
        match store.find(key).and_then(|entry| entry.map_or(Ok(None), load)) {
            Ok(Some(found)) => {
                store.count_use(&key.id());
                Ok(Some(found))
            }
            Ok(None) => Ok(None),
            Err(damage) => {
                let path = store.path(&key.id());
                self.warn(format!("ignoring the cached graph {}: {damage}", path.display()));
                Ok(None)
            }
        }
    }

    /// Stores what was compiled. A cache that cannot be written costs a compile next time, not this run.
    fn save(&mut self, graph: &Graph, key: &Key, module: &[u8], executable: &Executable, took: Duration) {
        let Some(store) = self.store.clone() else { return };
        let serialized = match executable.serialize() {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.warn(format!("this device's executables cannot be stored: {error}"));
                None
            }
        };
        let memory = executable.memory_stats().ok().map(|m| Memory {
            arguments: m.argument_bytes,
            outputs: m.output_bytes,
            donated: m.alias_bytes,
            temporaries: m.temp_bytes,
            code: m.generated_code_bytes,
            peak: m.peak(),
        });
        let header = Header {
            key: key.clone(),
            phase: graph.name.clone(),
            origin: self.origin.clone(),
            feeds: feeds(graph),
            created: now(),
            compile_seconds: took.as_secs_f64(),
            memory,
            cost: cost(executable),
            parts: Vec::new(),
        };
        let graph_bytes = graph.to_bytes();
        let mut parts: Vec<(Content, &[u8])> = vec![(Content::Graph, &graph_bytes), (Content::Module, module)];
        parts.extend(serialized.as_deref().map(|bytes| (Content::Executable, bytes)));
        match store.insert(header, &parts) {
            // Nothing depends on the old ones going now; the next insertion tries again.
            Ok(()) => drop(store.evict(self.settings.max_bytes, &key.id())),
            Err(error) => self.warn(format!("compiled graphs are not kept: {error}")),
        }
    }

    /// Why a graph that is not stored is not: `None` when nothing of its kind was compiled before, in this run or earlier.
    fn explain(&self, graph: &Graph, key: &Key) -> Option<String> {
        if let Some((old_key, old_graph)) = self.latest.get(&graph.name) {
            let explanation = Explanation::new((old_key, &self.origin), (key, &self.origin), Some((old_graph, graph)));
            return Some(explanation.to_string());
        }
        let store = self.store.as_ref()?;
        let entries = store.list().ok()?;
        let (id, header) = nearest(&entries, key, &graph.name, &self.origin)?;
        if header.key == *key {
            return Some("the stored one is damaged or has no executable".into());
        }
        let stored = store.open(id).and_then(|mut entry| entry.read(Content::Graph)).ok().flatten();
        let stored = stored.and_then(|bytes| Graph::from_bytes(&bytes).ok());
        let graphs = stored.as_ref().map(|stored| (stored, graph));
        let explanation = Explanation::new((&header.key, &header.origin), (key, &self.origin), graphs);
        Some(format!("{explanation}; compared with {}", &id[..8.min(id.len())]))
    }

    fn warn(&mut self, text: String) {
        if self.warned.insert(text.clone()) {
            eprintln!("warning: {text}");
        }
    }
}

fn signature(graph: &Graph) -> Signature {
    Signature::new(
        graph.inputs.iter().map(|i| i.shape.clone()).collect::<Vec<_>>(),
        (0..graph.outputs.len()).map(|i| graph.output_shape(i).clone()).collect::<Vec<_>>(),
    )
}

/// The data of a step with its shapes, the largest rank first.
fn feeds(graph: &Graph) -> Vec<String> {
    let mut feeds: Vec<_> = graph.inputs.iter().filter(|input| input.role == InputRole::Feed).collect();
    feeds.sort_by_key(|input| std::cmp::Reverse(input.shape.rank()));
    feeds.iter().map(|input| format!("{} {}", input.name, input.shape)).collect()
}

/// The compiler's totals. It also tells of every single operand (`bytes accessed3{}`), which would make headers slow to list, and
/// some compilers give numbers that JSON does not have.
fn cost(executable: &Executable) -> BTreeMap<String, f64> {
    let totals = |name: &str| !name.contains(|c: char| c == '{' || c.is_ascii_digit());
    let all = executable.cost_analysis().unwrap_or_default();
    all.into_iter().filter(|(name, value)| totals(name) && value.is_finite()).collect()
}
