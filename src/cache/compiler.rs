//! From one graph to its executable: the stored one, else under the key's lock what another process
//! stored meanwhile, else the compiler. Nothing here changes but the store, so that threads may
//! compile at the same time.

use super::entry::{Content, Damage, Entry, Header, Memory, Origin};
use super::explain::{Explanation, is_version, nearest};
use super::key::{self, CompileEnvironment, Key};
use super::program::{Form, stored_or_emitted};
use super::store::{EntryStore, now};
use super::{CacheSettings, Error};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use xtrain_checkpoint::lock::Lock;
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::process_group::Work;
use xtrain_graphs::{Graph, InputRole, Target};
use xtrain_report::notice::{Place, while_busy};
use xtrain_report::progress::{clock, say};
use xtrain_report::units::duration;
use xtrain_runtime::{Client, CompileOptions, Executable, Signature};

/// What compiles for one client, and where it keeps what it made.
pub(super) struct Compiler {
    client: Client,
    target: Target,
    options: CompileOptions,
    environment: CompileEnvironment,
    form: Form,
    store: Option<Box<dyn EntryStore>>,
    settings: CacheSettings,
    /// Changes of settings that were printed, so that each is printed once.
    printed: Mutex<HashSet<String>>,
}

/// An executable and how it came.
pub(super) struct Made {
    pub key: Key,
    pub executable: Executable,
    /// For one that was stored: the time that compiling it took.
    pub compiled_in: Option<Duration>,
    /// Time that lowering and compiling, or else loading, took.
    pub took: Duration,
    /// Why it was compiled though another version of it had been.
    pub reason: Option<String>,
}

/// An executable, with the time that compiling a stored one took, and why one that had been
/// compiled in another version was compiled again.
type Found = (Executable, Option<Duration>, Option<String>);

/// Why a graph that is stored is compiled again.
const UNUSABLE: &str = "the stored one is damaged or has no executable";

impl Compiler {
    pub fn new(
        client: Client,
        target: Target,
        options: CompileOptions,
        settings: CacheSettings,
    ) -> Result<Self, Error> {
        Ok(Compiler {
            environment: CompileEnvironment::of(&client, &options, target)?,
            form: Form::of(target),
            client,
            target,
            options,
            store: settings.store(),
            settings,
            printed: Mutex::default(),
        })
    }

    /// The processor that graphs are lowered for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// `origin` is what the graph belongs to; `earlier` the graph of the same name that this
    /// process used before, if there is one: it explains a miss best.
    pub fn make(
        &self,
        graph: &Graph,
        origin: &Origin,
        earlier: Option<&(Key, Graph)>,
    ) -> Result<Made, Error> {
        let start = Instant::now();
        let key = self.environment.key(graph);
        let (executable, compiled_in, reason) = match self.load(graph, &key)? {
            Some((executable, compiled_in)) => (executable, Some(compiled_in), None),
            None => self.load_or_compile(graph, &key, &origin.of(&graph.name), earlier)?,
        };
        Ok(Made {
            key,
            executable,
            compiled_in,
            took: start.elapsed(),
            reason,
        })
    }

    /// What a graph needs, with the time that compiling took if it was not stored. A question, not
    /// a run: asking for many versions of a graph explains nothing and fails nothing.
    pub fn memory(
        &self,
        graph: &Graph,
        origin: &Origin,
    ) -> Result<(Option<Memory>, Option<Duration>), Error> {
        let key = self.environment.key(graph);
        let stored = self
            .store
            .as_deref()
            .and_then(|store| store.find(&key).ok().flatten());
        if let Some(memory) = stored.and_then(|entry| entry.header.memory) {
            return Ok((Some(memory), None));
        }
        let start = Instant::now();
        let executable = self.compile(graph, &key, &origin.of(&graph.name))?;
        Ok((memory(&executable), Some(start.elapsed())))
    }

    /// Compiles and stores.
    fn compile(&self, graph: &Graph, key: &Key, origin: &Origin) -> Result<Executable, Error> {
        let start = Instant::now();
        let module = stored_or_emitted(self.store.as_deref(), key, graph, self.target)?;
        let options = self.options.of_stage(graph.stage as usize);
        let compile = || {
            let _compiling = ProcessGroup::at_work(Work::Compiling);
            self.form
                .compile(&self.client, &module, signature(graph), &options)
        };
        let mut last = None;
        let line = |so_far, place| {
            let last = last.get_or_insert_with(|| self.last_time(graph, key, origin));
            if place == Place::BehindBar {
                let usual = last.map(|last| format!(", usually {}", clock(last)));
                let usual = usual.unwrap_or_default();
                return format!("compiling {} {}{usual}", graph.name, clock(so_far));
            }
            let last = match last {
                Some(last) => format!("one like it took {} before", duration(*last)),
                None => "none like it was compiled here before".into(),
            };
            format!(
                "compiling `{}` for {} so far; {last}",
                graph.name,
                duration(so_far)
            )
        };
        let executable = while_busy(line, compile)?;
        self.save(graph, key, origin, &module, &executable, start.elapsed());
        Ok(executable)
    }

    /// How long compiling the most similar graph for this kind of device took, if one is stored.
    fn last_time(&self, graph: &Graph, key: &Key, origin: &Origin) -> Option<Duration> {
        let mut entries = self.store.as_deref()?.list().ok()?;
        let device = key.value(key::DEVICE);
        entries.retain(|listed| {
            listed
                .header
                .as_ref()
                .is_ok_and(|header| header.key.value(key::DEVICE) == device)
        });
        let (_, header) = nearest(&entries, key, &graph.name, origin)?;
        Duration::try_from_secs_f64(header.compile_seconds).ok()
    }

    fn load_or_compile(
        &self,
        graph: &Graph,
        key: &Key,
        origin: &Origin,
        earlier: Option<&(Key, Graph)>,
    ) -> Result<Found, Error> {
        let doing = format!("compiling the same `{}` graph", graph.name);
        let store = self.store.as_deref();
        let lock = store.and_then(|store| Lock::wait(&store.lock_path(&key.id()), &doing));
        let _claim = store.map(|store| store.claim(&key.id(), &doing));
        if lock.is_some()
            && let Some((executable, compiled_in)) = self.load(graph, key)?
        {
            return Ok((executable, Some(compiled_in), None));
        }
        let Some(Reason { text, change }) = self.explain(graph, key, origin, earlier) else {
            return Ok((self.compile(graph, key, origin)?, None, None));
        };
        if self.settings.fail_on_recompile {
            return Err(Error::Recompile {
                phase: graph.name.clone(),
                reason: text,
            });
        }
        // A changed setting makes all graphs of a run new, in each of its processes: one line is
        // enough.
        if ProcessGroup::this_writes() && self.is_new(change) {
            // Why is a long story; telemetry keeps it, and `cache explain` tells it again.
            let details = match store {
                _ if text == UNUSABLE => format!("({text})"),
                Some(_) => format!(
                    "(new configuration); `xtrain cache explain {:.8}` says what changed",
                    key.id()
                ),
                None => format!("(new configuration): {text}"),
            };
            say(&format!("compiling {} {details}", graph.name));
        }
        Ok((self.compile(graph, key, origin)?, None, Some(text)))
    }

    /// The stored executable with the time that compiling it took. Anything wrong with it is a
    /// miss, reported once.
    fn load(&self, graph: &Graph, key: &Key) -> Result<Option<(Executable, Duration)>, Error> {
        let Some(store) = self.store.as_deref() else {
            return Ok(None);
        };
        let load = |mut entry: Entry| -> Result<Option<(Executable, Duration)>, Damage> {
            let compiled_in =
                Duration::try_from_secs_f64(entry.header.compile_seconds).unwrap_or_default();
            let Some(bytes) = entry.check_all()? else {
                return Ok(None);
            };
            let executable = self
                .client
                .load_stored(&bytes, signature(graph))
                .map_err(|e| Damage::NotLoadable(e.to_string()))?;
            Ok(Some((executable, compiled_in)))
        };
        match store
            .find(key)
            .and_then(|entry| entry.map_or(Ok(None), load))
        {
            Ok(Some(found)) => {
                store.count_use(&key.id());
                Ok(Some(found))
            }
            Ok(None) => Ok(None),
            Err(damage) => {
                let path = store.path(&key.id());
                self.warn(format!(
                    "ignoring the cached graph {}: {damage}",
                    path.display()
                ));
                Ok(None)
            }
        }
    }

    /// Stores what was compiled. A cache that cannot be written costs a compile next time, not this
    /// run.
    fn save(
        &self,
        graph: &Graph,
        key: &Key,
        origin: &Origin,
        module: &[u8],
        executable: &Executable,
        took: Duration,
    ) {
        let Some(store) = self.store.as_deref() else {
            return;
        };
        let serialized = match executable.serialize() {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.warn(format!(
                    "this device's executables cannot be stored: {error}"
                ));
                None
            }
        };
        let header = Header {
            key: key.clone(),
            phase: graph.name.clone(),
            origin: origin.clone(),
            feeds: feeds(graph),
            created: now(),
            compile_seconds: took.as_secs_f64(),
            memory: memory(executable),
            cost: cost(executable),
            parts: Vec::new(),
        };
        let graph_bytes = graph.to_bytes();
        let mut parts: Vec<(Content, &[u8])> =
            vec![(Content::Graph, &graph_bytes), (Content::Module, module)];
        parts.extend(
            serialized
                .as_deref()
                .map(|bytes| (Content::Executable, bytes)),
        );
        match store.insert(header, &parts) {
            // Nothing depends on the old ones going now; the next insertion tries again.
            Ok(()) => {
                if let Err(error) = store.evict(self.settings.max_bytes, &key.id()) {
                    self.warn(format!("the cache stays larger than its limit: {error}"));
                }
            }
            Err(error) => self.warn(format!(
                "compiled graphs are not kept: {}",
                error.naming("--cache_dir")
            )),
        }
    }

    /// Why a graph that is not stored is not: `None` when no version of it was compiled before, in this
    /// run or earlier.
    fn explain(
        &self,
        graph: &Graph,
        key: &Key,
        origin: &Origin,
        earlier: Option<&(Key, Graph)>,
    ) -> Option<Reason> {
        if let Some((old_key, old_graph)) = earlier {
            let explanation =
                Explanation::new((old_key, origin), (key, origin), Some((old_graph, graph)));
            return Some(Reason::new(&explanation, String::new()));
        }
        let store = self.store.as_deref()?;
        let mut entries = store.list().ok()?;
        // A compile check, or what was only lowered, is nothing that this run would have used.
        entries.retain(|listed| {
            listed.header.as_ref().is_ok_and(|header| {
                key::is_for_running(&header.key) && is_version(header, key, &graph.name, origin)
            })
        });
        let (id, header) = nearest(&entries, key, &graph.name, origin)?;
        if header.key == *key {
            return Some(Reason {
                text: UNUSABLE.into(),
                change: UNUSABLE.into(),
            });
        }
        let stored = store
            .open(id)
            .and_then(|mut entry| entry.read(Content::Graph))
            .ok()
            .flatten();
        let stored = stored.and_then(|bytes| Graph::from_bytes(&bytes).ok());
        let graphs = stored.as_ref().map(|stored| (stored, graph));
        let explanation = Explanation::new((&header.key, &header.origin), (key, origin), graphs);
        let compared = format!("; compared with {}", &id[..8.min(id.len())]);
        Some(Reason::new(&explanation, compared))
    }

    /// Once in a process: a run, its evaluation and its sample may each have a compiler.
    fn warn(&self, text: String) {
        static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.insert(text.clone()) {
            say(&format!("warning: {text}"));
        }
    }

    /// Whether a text comes here for the first time.
    fn is_new(&self, text: String) -> bool {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        printed.insert(text)
    }
}

/// Why a graph is compiled of which another version is stored.
struct Reason {
    text: String,
    /// The settings that have changed, which may make several graphs new.
    change: String,
}

impl Reason {
    fn new(explanation: &Explanation, compared: String) -> Reason {
        let text = format!("{explanation}{compared}");
        let settings = &explanation.settings;
        let change = if settings.is_empty() {
            text.clone()
        } else {
            format!("{settings:?}")
        };
        Reason { text, change }
    }
}

pub(super) fn signature(graph: &Graph) -> Signature {
    Signature::new(
        graph
            .inputs
            .iter()
            .map(|i| i.shape.clone())
            .collect::<Vec<_>>(),
        (0..graph.outputs.len())
            .map(|i| graph.output_shape(i).clone())
            .collect::<Vec<_>>(),
    )
}

fn memory(executable: &Executable) -> Option<Memory> {
    executable.memory_stats().ok().map(|m| Memory {
        arguments: m.argument_bytes,
        outputs: m.output_bytes,
        donated: m.alias_bytes,
        temporaries: m.temp_bytes,
        code: m.generated_code_bytes,
        peak: m.peak(),
    })
}

/// The data of a step with its shapes, the largest rank first.
pub(super) fn feeds(graph: &Graph) -> Vec<String> {
    let mut feeds: Vec<_> = graph
        .inputs
        .iter()
        .filter(|input| input.role == InputRole::Feed)
        .collect();
    feeds.sort_by_key(|input| std::cmp::Reverse(input.shape.rank()));
    feeds
        .iter()
        .map(|input| format!("{} {}", input.name, input.shape))
        .collect()
}

/// The compiler's totals. It also tells of every single operand (`bytes accessed3{}`), which would
/// make headers slow to list, and some compilers give numbers that JSON does not have.
fn cost(executable: &Executable) -> BTreeMap<String, f64> {
    let totals = |name: &str| !name.contains(|c: char| c == '{' || c.is_ascii_digit());
    let all = executable.cost_analysis().unwrap_or_default();
    all.into_iter()
        .filter(|(name, value)| totals(name) && value.is_finite())
        .collect()
}
