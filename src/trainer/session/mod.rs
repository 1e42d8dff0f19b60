//! The lazy session: state that lives on the device, and `mark_step`, which cuts a recording, finds
//! or compiles its executable and runs it with the state donated.
//!
//! A [`Recording`] covers one step. Its tensors name state ([`Recording::state`]), this step's data
//! ([`Recording::feed`]), values to store back ([`Recording::assign`]) and values to read
//! ([`Recording::fetch`]). Nothing here waits for the device.
//!
//! Every replica of the mesh runs the same graph: state is there once for each of them and stays
//! equal, or each holds its part; feeds may differ. In a pipeline the recorded graph is split into
//! pieces, which the stages' replicas run (`pipeline`).

mod initial;
pub mod parameters;
mod recording;
mod repeated;
pub mod replicas;

use super::error::{Error, Result};
use super::mesh_devices::{Buffers, MeshDevices};
use super::pipeline::{Executor, Parts, State};
use super::settings::WeightStorage;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xtrain_cache::GraphCache;
use xtrain_graphs::{Fingerprint, Graph, Precision, Shape};
use xtrain_parallel::{Mesh, PipelineSchedule, Placements};
use xtrain_runtime::{Buffer, Client, PendingDownload};

pub use recording::{EachReplica, Recording, StepOutputs};
pub use repeated::{Feeds, RecordedSteps};

/// Device state by name, and the compiled graphs that work on it.
pub struct Session {
    devices: MeshDevices,
    cache: GraphCache,
    /// What is not whole on every replica.
    placements: Placements,
    executor: Executor,
    state: State,
    /// What a replica holds of each state.
    shapes: HashMap<String, Shape>,
    sequence_parallel: bool,
    eval_precision: Precision,
    storage: WeightStorage,
    /// Graphs in other precisions than f32, and divided ones, by what was recorded: a step makes
    /// each once.
    made: RefCell<HashMap<(Fingerprint, Precision), Parts>>,
    /// Another number, of no other session, whenever something changes that a recording depends on.
    layout: u64,
    /// Graphs of another device are recorded.
    stands_in: bool,
    /// Steps that repeat are recorded each time, and compared with the first.
    records_again: bool,
}

/// Whether the environment asks for recording each step again and comparing it with the first of its kind.
fn records_again() -> bool {
    std::env::var_os("XTRAIN_RECORD_AGAIN").is_some_and(|value| !value.is_empty())
}

/// The number of a layout.
fn new_layout() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Session {
    /// The replicas are dealt out to the client's processes in order, and in each to its devices;
    /// `cache` compiles for all of them.
    pub fn new(client: Client, cache: GraphCache, mesh: Mesh) -> Self {
        Session {
            placements: Placements::default(),
            devices: MeshDevices::new(client, mesh),
            cache,
            executor: Executor::default(),
            state: State::new(),
            shapes: HashMap::new(),
            sequence_parallel: false,
            eval_precision: Precision::F32,
            storage: WeightStorage::F32,
            made: RefCell::default(),
            layout: new_layout(),
            stands_in: false,
            records_again: records_again(),
        }
    }

    /// The same, but a step is handed over only when the one before is done.
    pub fn one_step_at_a_time(mut self) -> Self {
        self.executor.run_one_at_a_time(self.mesh().stage);
        self
    }

    /// Whether graphs are recorded for another device than this.
    pub fn stands_in(&self) -> bool {
        self.stands_in
    }

    /// Sets that, false unless set.
    pub fn set_stands_in(&mut self, wanted: bool) {
        self.stands_in = wanted;
    }

    /// Sets whether steps that repeat are recorded each time and compared with what was recorded first, as
    /// the environment's `XTRAIN_RECORD_AGAIN` asks for: a check of xtrain itself.
    pub fn set_records_again(&mut self, wanted: bool) {
        self.records_again = wanted;
    }

    /// Sets the order in which the stages of a pipeline take microbatches.
    pub fn set_schedule(&mut self, schedule: PipelineSchedule) {
        self.executor.set_schedule(schedule);
    }

    /// Whether activations between divided layers' products are sharded along the tensor axis.
    pub fn set_sequence_parallel(&mut self, wanted: bool) {
        self.sequence_parallel = wanted;
        self.layout = new_layout();
    }

    /// Sizes of the axes over which the session's devices are laid out.
    pub fn mesh(&self) -> Mesh {
        self.devices.mesh
    }

    /// The same with some of the state in parts, before any of it is set.
    pub fn set_placements(&mut self, placements: Placements) {
        self.placements = placements;
        self.layout = new_layout();
    }

    /// How the state is sharded.
    pub fn placements(&self) -> &Placements {
        &self.placements
    }

    /// The PJRT client of the devices.
    pub fn client(&self) -> &Client {
        &self.devices.client
    }

    /// The cache of compiled graphs.
    pub fn cache(&self) -> &GraphCache {
        &self.cache
    }

    /// The cache of compiled graphs, to look up and compile.
    pub fn cache_mut(&mut self) -> &mut GraphCache {
        &mut self.cache
    }

    /// The precision of matmuls in evaluations.
    pub fn eval_precision(&self) -> Precision {
        self.eval_precision
    }

    /// Sets the precision of matmuls in evaluations, f32 unless set.
    pub fn set_eval_precision(&mut self, precision: Precision) {
        self.eval_precision = precision;
        self.layout = new_layout();
    }

    /// Sets what weights are held in from when they are placed, f32 unless set.
    pub fn set_storage(&mut self, storage: WeightStorage) {
        self.storage = storage;
        self.layout = new_layout();
    }

    /// Puts a value on every replica's device under a name, or on each its part; in a pipeline on
    /// those of the stages that hold it.
    ///
    /// # Errors
    /// If `bytes` are not the shape's, or the devices' memory is full.
    pub fn set_state(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<()> {
        let (mesh, placements) = (self.mesh(), &self.placements);
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); placements.count(name)];
        if parts.len() > 1 {
            for replica in 0..mesh.replicas() {
                let part = &mut parts[placements.shard_index(name, mesh, replica)];
                if part.is_empty() {
                    *part = placements.shard(name, bytes, shape, mesh, replica);
                }
            }
        }
        let part = |replica: usize| match parts.len() {
            1 => bytes,
            _ => &parts[placements.shard_index(name, mesh, replica)],
        };
        let local = placements.local(name, shape);
        let mut placed = Vec::new();
        for held in std::iter::once(name.to_string()).chain(placements.copies(name)) {
            let stages = placements
                .home(&held)
                .map_or(0..mesh.stage, |home| home..home + 1);
            let buffers = stages
                .map(|stage| Ok((stage, self.devices.upload_at(stage, &local, part)?)))
                .collect::<Result<_>>()?;
            placed.push((held, buffers));
        }
        for (held, buffers) in placed {
            if self.shapes.get(&held) != Some(&local) {
                self.shapes.insert(held.clone(), local.clone());
                self.layout = new_layout();
            }
            self.state.insert(held, buffers);
        }
        Ok(())
    }

    /// Whether some replicas live in other processes.
    pub fn is_spread(&self) -> bool {
        self.devices.local.len() < self.mesh().devices()
    }

    /// Microbatches of a step that a stage has under way at most: forward, and not yet backward.
    pub fn most_under_way(&self, stage: usize, microbatches: usize) -> usize {
        (self.executor).most_under_way(self.mesh().stage, stage, microbatches)
    }

    /// Whether this process has devices of a graph's stage.
    pub fn runs(&self, graph: &Graph) -> bool {
        self.devices.places(graph.stage as usize).next().is_some()
    }

    /// The shape that a replica holds of a state.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        self.shapes.get(name)
    }

    /// Whether some process does not hold every part of a value: the same answer in each.
    pub(super) fn is_elsewhere(&self, name: &str) -> bool {
        let (home, replicas) = (self.placements.home(name), self.mesh().replicas());
        let lacks = |part: usize, devices: Range<usize>| {
            let own = devices
                .filter(|device| home.is_none_or(|home| device / replicas == home))
                .map(|device| device % replicas);
            !own.into_iter()
                .any(|replica| self.placements.shard_index(name, self.mesh(), replica) == part)
        };
        let each = self.devices.local.len().max(1);
        let mut processes =
            (0..self.mesh().devices() / each).map(|process| process * each..(process + 1) * each);
        processes.any(|devices| {
            (0..self.placements.count(name)).any(|part| lacks(part, devices.clone()))
        })
    }

    /// Starts to read a whole value from its shards.
    ///
    /// # Errors
    /// If there is no state of this name, or a shard of it is in another process.
    pub fn start_download(&self, name: &str) -> Result<StateDownload> {
        let no_state = || Error::NoState {
            name: name.to_string(),
        };
        let (buffers, held) = (
            self.replicas(name).ok_or_else(no_state)?,
            self.shape(name).ok_or_else(no_state)?,
        );
        let stage = self.placements.home(name).unwrap_or(0);
        let own = (self.devices)
            .places(stage)
            .map(|(_, replica)| replica)
            .zip(buffers.iter());
        let holder = |part: usize| {
            own.clone().find(|(replica, _)| {
                self.placements.shard_index(name, self.mesh(), *replica) == part
            })
        };
        let parts = (0..self.placements.count(name))
            .map(|part| match holder(part) {
                Some((_, buffer)) => Ok(buffer),
                None => Err(Error::PartElsewhere {
                    name: name.to_string(),
                }),
            })
            .collect::<Result<Vec<&Buffer>>>()?;
        Ok(StateDownload {
            name: name.to_string(),
            held: held.clone(),
            shards: Buffer::start_download_all(&parts)?,
        })
    }

    /// The bytes and shape of a whole value; waits for the devices.
    ///
    /// # Errors
    /// As [`Session::start_download`], or if the step that computes it failed.
    pub fn download(&self, name: &str) -> Result<(Vec<u8>, Shape)> {
        self.start_download(name)?.wait(self)
    }

    /// The value of this process' first replica that has any; the others' are equal, or other
    /// parts.
    pub fn state(&self, name: &str) -> Option<&Buffer> {
        self.replicas(name)?.first()
    }

    /// The value of every replica of this process; of what several stages hold, the first's.
    pub fn replicas(&self, name: &str) -> Option<&Buffers> {
        self.state.get(name)?.values().next()
    }

    /// The same value for every device.
    ///
    /// # Errors
    /// If `bytes` are not the shape's, or the devices' memory is full.
    pub fn upload(&self, bytes: &[u8], shape: &Shape) -> Result<Buffers> {
        self.upload_each(shape, |_| bytes)
    }

    /// A value for each replica, by its number.
    ///
    /// # Errors
    /// As [`Session::upload`].
    pub fn upload_each<'b>(
        &self,
        shape: &Shape,
        bytes: impl Fn(usize) -> &'b [u8],
    ) -> Result<Buffers> {
        self.devices.upload(shape, bytes)
    }
}

/// A whole value on its way to the host.
pub struct StateDownload {
    name: String,
    /// The shape of a shard.
    held: Shape,
    shards: PendingDownload,
}

impl StateDownload {
    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.shards.bytes()
    }

    /// Its bytes and shape; `session` is the one that started it.
    ///
    /// # Errors
    /// If the step that computes it failed.
    pub fn wait(self, session: &Session) -> Result<(Vec<u8>, Shape)> {
        let StateDownload { name, held, shards } = self;
        let placements = session.placements();
        Ok((
            placements.join(&name, shards.wait()?, &held),
            placements.whole(&name, &held),
        ))
    }
}
