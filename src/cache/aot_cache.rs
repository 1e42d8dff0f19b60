//! Graphs compiled for a device that is not attached: what they need and what the compiler makes of
//! them, known before there is a device, and stored like other compiled graphs. Nothing here was
//! tuned on the device, so nothing here is for running: the keys say so, and no run's key equals
//! one of them.

use super::compiler::{feeds, signature};
use super::entry::{Content, Damage, Entry, Header, Memory, Origin};
use super::key::{CompileEnvironment, Key};
use super::program::emit;
use super::store::{EntryStore, now};
use super::{CacheSettings, Error};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xtrain_graphs::{Fingerprint, Graph, Target, flops, passes};
use xtrain_report::errln;
use xtrain_runtime::hlo::launch_stats::{self, Launches};
use xtrain_runtime::{CompileOptions, CompiledModule, Library, Signature, Topology};

/// The header's name for the operations of products with 16-bit operands, and for those of all
/// others.
const LOW_FLOPS: &str = "product flops in 16 bits";
const WIDE_FLOPS: &str = "product flops in f32";

/// A device that is not attached, as its plugin's compiler knows it.
pub struct AotDevice {
    pub topology: Topology,
    pub target: Target,
    /// What people call it.
    pub name: String,
    /// Its description for the plugin.
    pub description: String,
    pub options: CompileOptions,
}

/// Compiles for one such device, and keeps what it made.
pub struct AotCache {
    device: AotDevice,
    environment: CompileEnvironment,
    store: Option<Box<dyn EntryStore>>,
    settings: CacheSettings,
    origin: Origin,
    compiled: usize,
    compile_time: Duration,
}

/// A graph that compiles, with what is known of the result.
pub struct CheckedGraph {
    pub name: String,
    pub fingerprint: Fingerprint,
    /// The entry that it has, or would have, on disk.
    pub id: String,
    pub memory: Memory,
    /// Operations of its products.
    pub work: flops::MatmulFlops,
    /// What a step launches, if the compiler reports it.
    pub launches: Option<Launches>,
    /// The optimized module, a serialized HloModuleProto.
    pub module: Vec<u8>,
    /// It came from disk.
    pub loaded: bool,
    /// Time that lowering and compiling, or else reading, took.
    pub ready_time: Duration,
}

/// What the compiler made of a module.
pub struct Compilation {
    compiled: CompiledModule,
    /// The compiler's account.
    pub memory: Memory,
    /// What a step launches, if the compiler reports it.
    pub launches: Option<Launches>,
    /// The optimized module, a serialized HloModuleProto.
    pub module: Vec<u8>,
}

impl CheckedGraph {
    /// As the entry's header keeps it.
    fn cost(&self) -> BTreeMap<String, f64> {
        let work = [(LOW_FLOPS, self.work.low), (WIDE_FLOPS, self.work.wide)]
            .map(|(name, value)| (name.to_string(), value));
        work.into_iter()
            .chain(self.launches.iter().flat_map(Launches::to_cost))
            .collect()
    }
}

impl AotCache {
    pub fn new(device: AotDevice, settings: CacheSettings) -> Result<Self, Error> {
        Ok(AotCache {
            environment: CompileEnvironment::of_topology(
                &device.topology,
                &device.name,
                &device.description,
                &settings.tuning(),
                &device.options,
                device.target,
            )?,
            device,
            store: settings.store(),
            settings,
            origin: Origin::default(),
            compiled: 0,
            compile_time: Duration::ZERO,
        })
    }

    /// Says what the graphs that follow belong to.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    pub fn target(&self) -> Target {
        self.device.target
    }

    /// Graphs that were compiled, not read, and the time that it took.
    pub fn compiled(&self) -> (usize, Duration) {
        (self.compiled, self.compile_time)
    }

    /// The memory that a graph needs, from its stored header, or else by compiling it.
    pub fn memory(&mut self, graph: &Graph) -> Result<Memory, Error> {
        let key = self.environment.key(graph);
        let stored = self
            .store
            .as_deref()
            .and_then(|store| store.find(&key).ok().flatten());
        match stored.and_then(|entry| entry.header.memory) {
            Some(memory) => Ok(memory),
            None => Ok(self.compile(graph)?.memory),
        }
    }

    /// Everything about a graph, stored or compiled now.
    pub fn check(&mut self, graph: &Graph) -> Result<CheckedGraph, Error> {
        let start = Instant::now();
        let key = self.environment.key(graph);
        let entry = self
            .store
            .as_deref()
            .and_then(|store| store.find(&key).ok().flatten());
        let read = |mut entry: Entry| -> Result<Option<CheckedGraph>, Damage> {
            let (Some(memory), Some(module)) =
                (entry.header.memory, entry.read(Content::OptimizedModule)?)
            else {
                return Ok(None);
            };
            let flops = |name: &str| entry.header.cost.get(name).copied().unwrap_or_default();
            Ok(Some(CheckedGraph {
                name: graph.name.clone(),
                fingerprint: graph.fingerprint(),
                id: key.id(),
                memory,
                work: flops::MatmulFlops {
                    low: flops(LOW_FLOPS),
                    wide: flops(WIDE_FLOPS),
                },
                launches: Launches::from_cost(&entry.header.cost),
                module,
                loaded: true,
                ready_time: start.elapsed(),
            }))
        };
        // Anything wrong with a stored one is a miss: it is compiled and replaced.
        match entry.and_then(|entry| read(entry).ok().flatten()) {
            Some(found) => {
                self.store
                    .iter()
                    .for_each(|store| store.count_use(&found.id));
                Ok(found)
            }
            None => self.compile(graph),
        }
    }

    /// Stores what a graph is lowered to for a target, which may differ from this device's by what
    /// a run asks for, and compiles nothing: for a host of the device that cannot lower it.
    pub fn lower(&self, graph: &Graph, target: Target) -> Result<(), Error> {
        let Some(store) = self.store.as_deref() else {
            return Ok(());
        };
        let key = self.environment.key(graph).of_module().with_target(target);
        if store.module(&key).is_some() {
            return Ok(());
        }
        let (graph_bytes, module) = (graph.to_bytes(), emit(Library::open()?, graph, target)?);
        self.keep(
            store,
            self.header(graph, key),
            &[(Content::Graph, &graph_bytes), (Content::Module, &module)],
        );
        Ok(())
    }

    /// Of what was not compiled.
    fn header(&self, graph: &Graph, key: Key) -> Header {
        Header {
            key,
            phase: graph.name.clone(),
            origin: self.origin.of(&graph.name),
            feeds: feeds(graph),
            created: now(),
            compile_seconds: 0.0,
            memory: None,
            cost: BTreeMap::new(),
            parts: Vec::new(),
        }
    }

    /// Compiles and stores.
    fn compile(&mut self, graph: &Graph) -> Result<CheckedGraph, Error> {
        let start = Instant::now();
        let prepared = passes::lower(graph, self.device.target)?;
        let module = Library::open()?.lower(&prepared.to_bytes())?;
        let Compilation {
            compiled,
            memory,
            launches,
            module: optimized,
        } = self.compile_lowered(&module, &signature(graph))?;
        let key = self.environment.key(graph);
        let checked = CheckedGraph {
            name: graph.name.clone(),
            fingerprint: graph.fingerprint(),
            id: key.id(),
            memory,
            work: flops::matmuls(&prepared),
            launches,
            module: optimized,
            loaded: false,
            ready_time: start.elapsed(),
        };
        self.compiled += 1;
        self.compile_time += checked.ready_time;
        let header = Header {
            compile_seconds: checked.ready_time.as_secs_f64(),
            memory: Some(memory),
            cost: checked.cost(),
            ..self.header(graph, key)
        };
        self.save(graph, header, &module, &checked.module, &compiled);
        Ok(checked)
    }

    /// Compiles a module that another program has lowered, a serialized HloModuleProto, and stores
    /// nothing.
    ///
    /// # Errors
    /// If the bytes are no module, or it does not compile.
    pub fn compile_module(&self, module: &[u8]) -> Result<Compilation, Error> {
        self.compile_lowered(module, &Signature::of_module(module)?)
    }

    fn compile_lowered(&self, module: &[u8], signature: &Signature) -> Result<Compilation, Error> {
        // Only a dump lists what is launched.
        let dump = tempfile::tempdir().ok();
        let mut options = self.device.options.clone();
        if let Some(dump) = &dump {
            options
                .local
                .extend(launch_stats::dump_options(dump.path()));
        }
        let compiled = self.device.topology.compile(module, signature, &options)?;
        let launches = dump.and_then(|dump| Launches::in_dump(dump.path()));
        let stats = compiled.memory_stats()?;
        let memory = Memory {
            arguments: stats.argument_bytes,
            outputs: stats.output_bytes,
            donated: stats.alias_bytes,
            temporaries: stats.temp_bytes,
            code: stats.generated_code_bytes,
            peak: stats.peak(),
        };
        Ok(Compilation {
            module: compiled.optimized_hlo()?,
            compiled,
            memory,
            launches,
        })
    }

    fn save(
        &self,
        graph: &Graph,
        header: Header,
        module: &[u8],
        optimized: &[u8],
        compiled: &CompiledModule,
    ) {
        let Some(store) = self.store.as_deref() else {
            return;
        };
        let (graph_bytes, executable) = (graph.to_bytes(), compiled.serialize().ok());
        let mut parts: Vec<(Content, &[u8])> =
            vec![(Content::Graph, &graph_bytes), (Content::Module, module)];
        parts.extend(
            executable
                .as_deref()
                .map(|bytes| (Content::Executable, bytes)),
        );
        parts.push((Content::OptimizedModule, optimized));
        self.keep(store, header, &parts);
    }

    /// A cache that cannot be written costs a compile next time.
    fn keep(&self, store: &dyn EntryStore, header: Header, parts: &[(Content, &[u8])]) {
        let id = header.key.id();
        match store.insert(header, parts) {
            // Nothing depends on the old ones going now; the next insertion tries again.
            Ok(()) => {
                if let Err(error) = store.evict(self.settings.max_bytes, &id) {
                    errln!("warning: the cache stays larger than its limit: {error}");
                }
            }
            Err(error) => errln!(
                "warning: compiled graphs are not kept: {}",
                error.naming("--cache_dir")
            ),
        }
    }
}
