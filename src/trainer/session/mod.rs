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

mod buffers;
pub mod parameters;
mod recording;
pub mod replicas;

use super::error::{Error, Result};
use super::pipeline::{Microbatch, Parts};
use super::settings::WeightStorage;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use xtrain_cache::GraphCache;
use xtrain_graphs::{DType, Fingerprint, Graph, Precision, Shape};
use xtrain_parallel::schedule::Task;
use xtrain_parallel::{Axis, Mesh, PipelineSchedule, Placements};
use xtrain_runtime::{Buffer, Client, Event, PendingDownload};

pub use buffers::Buffers;
pub use recording::{EachReplica, Recording, StepOutputs};

/// Where the host's time of one step went; the rest of the step is the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Recording the model and looking the graph up.
    pub trace: Duration,
    /// Lowering and compiling or loading, the first time.
    pub compile: Duration,
    /// Handing the executable to the device.
    pub execute: Duration,
}

impl std::ops::AddAssign for HostTime {
    fn add_assign(&mut self, other: Self) {
        self.trace += other.trace;
        self.compile += other.compile;
        self.execute += other.execute;
    }
}

/// Device state by name, and the compiled graphs that work on it.
pub struct Session {
    pub(super) client: Client,
    pub(super) cache: GraphCache,
    pub(super) mesh: Mesh,
    /// What is not whole on every replica.
    placements: Placements,
    /// The devices of the mesh that live in this process.
    local: Range<usize>,
    /// What each stage has under way; `None` where the device takes steps in as they come.
    pub(super) running: Option<Vec<Vec<Event>>>,
    /// By name and stage.
    pub(super) state: BTreeMap<String, BTreeMap<usize, Buffers>>,
    /// What a replica holds of each state.
    shapes: HashMap<String, Shape>,
    /// Microbatches that wait for the one that updates, with which they go through the stages.
    waiting: Vec<Microbatch>,
    pub(super) schedule: PipelineSchedule,
    sequence_parallel: bool,
    /// The order in which the last step's pieces ran.
    pub(super) order: Option<(Vec<Parts>, Arc<[Task]>)>,
    /// What the receiving end of a transfer between processes puts in, by shape.
    pub(super) fillers: HashMap<(usize, Shape), Buffers>,
    eval_precision: Precision,
    storage: WeightStorage,
    /// Graphs in other precisions than f32, and divided ones, by what was recorded: a step makes
    /// each once.
    made: RefCell<HashMap<(Fingerprint, Precision), Parts>>,
}

impl Session {
    /// The replicas are dealt out to the client's processes in order, and in each to its devices;
    /// `cache` compiles for all of them.
    pub fn new(client: Client, cache: GraphCache, mesh: Mesh) -> Self {
        Session {
            placements: Placements::default(),
            local: local_devices(&client, mesh.devices()),
            client,
            cache,
            mesh,
            running: None,
            state: BTreeMap::new(),
            shapes: HashMap::new(),
            waiting: Vec::new(),
            schedule: PipelineSchedule::default(),
            sequence_parallel: false,
            order: None,
            fillers: HashMap::new(),
            eval_precision: Precision::F32,
            storage: WeightStorage::F32,
            made: RefCell::default(),
        }
    }

    /// The same, but a step is handed over only when the one before is done.
    pub fn one_step_at_a_time(self) -> Self {
        let running = (0..self.mesh.stage).map(|_| Vec::new()).collect();
        Session {
            running: Some(running),
            ..self
        }
    }

    /// Sets the order in which the stages of a pipeline take microbatches.
    pub fn set_schedule(&mut self, schedule: PipelineSchedule) {
        self.schedule = schedule;
        self.order = None;
    }

    /// Whether activations between divided layers' products are sharded along the tensor axis.
    pub fn set_sequence_parallel(&mut self, wanted: bool) {
        self.sequence_parallel = wanted;
    }

    /// Sizes of the axes over which the session's devices are laid out.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// The same with some of the state in parts, before any of it is set.
    pub fn set_placements(&mut self, placements: Placements) {
        self.placements = placements;
    }

    /// How the state is sharded.
    pub fn placements(&self) -> &Placements {
        &self.placements
    }

    /// The PJRT client of the devices.
    pub fn client(&self) -> &Client {
        &self.client
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
    }

    /// Sets what weights are held in from when they are placed, f32 unless set.
    pub fn set_storage(&mut self, storage: WeightStorage) {
        self.storage = storage;
    }

    /// Puts a value on every replica's device under a name, or on each its part; in a pipeline on
    /// those of the stages that hold it.
    ///
    /// # Errors
    /// If `bytes` are not the shape's, or the devices' memory is full.
    pub fn set_state(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<()> {
        let (mesh, placements) = (self.mesh, &self.placements);
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
                .map(|stage| Ok((stage, self.upload_at(stage, &local, part)?)))
                .collect::<Result<_>>()?;
            placed.push((held, buffers));
        }
        for (held, buffers) in placed {
            self.shapes.insert(held.clone(), local.clone());
            self.state.insert(held, buffers);
        }
        Ok(())
    }

    /// Whether some replicas live in other processes.
    pub fn is_spread(&self) -> bool {
        self.local.len() < self.mesh.devices()
    }

    /// The devices of this process that belong to a stage, each with its replica's number there.
    pub(super) fn places(
        &self,
        stage: usize,
    ) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
        let replicas = self.mesh.replicas();
        let of_stage = move |(_, number): &(usize, usize)| number / replicas == stage;
        self.local
            .clone()
            .enumerate()
            .filter(of_stage)
            .map(move |(device, number)| (device, number % replicas))
    }

    /// Microbatches of a step that a stage has under way at most: forward, and not yet backward.
    pub fn most_under_way(&self, stage: usize, microbatches: usize) -> usize {
        let limit = match self.schedule {
            _ if stage + 1 == self.mesh.stage => 1,
            PipelineSchedule::Simple => microbatches,
            PipelineSchedule::Interleaved => self.mesh.stage - stage,
        };
        limit.min(microbatches).max(1)
    }

    /// Whether this process has devices of a graph's stage.
    pub fn runs(&self, graph: &Graph) -> bool {
        self.places(graph.stage as usize).next().is_some()
    }

    /// The shape that a replica holds of a state.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        self.shapes.get(name)
    }

    /// Whether some process does not hold every part of a value: the same answer in each.
    pub(super) fn is_elsewhere(&self, name: &str) -> bool {
        let (home, replicas) = (self.placements.home(name), self.mesh.replicas());
        let lacks = |part: usize, devices: Range<usize>| {
            let own = devices
                .filter(|device| home.is_none_or(|home| device / replicas == home))
                .map(|device| device % replicas);
            !own.into_iter()
                .any(|replica| self.placements.shard_index(name, self.mesh, replica) == part)
        };
        let each = self.local.len().max(1);
        let mut processes =
            (0..self.mesh.devices() / each).map(|process| process * each..(process + 1) * each);
        processes.any(|devices| {
            (0..self.placements.count(name)).any(|part| lacks(part, devices.clone()))
        })
    }

    /// Whether one process has all devices of both stages.
    pub(super) fn are_together(&self, one: usize, other: usize) -> bool {
        let (replicas, each) = (self.mesh.replicas(), self.local.len().max(1));
        let process = |stage: usize| (stage * replicas / each, ((stage + 1) * replicas - 1) / each);
        process(one) == process(other) && process(one).0 == process(one).1
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
        let own = self
            .places(stage)
            .map(|(_, replica)| replica)
            .zip(buffers.iter());
        let holder = |part: usize| {
            own.clone()
                .find(|(replica, _)| self.placements.shard_index(name, self.mesh, *replica) == part)
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

    /// A value for each device of this process, by its replica's number in its stage.
    fn upload_each<'b>(&self, shape: &Shape, bytes: impl Fn(usize) -> &'b [u8]) -> Result<Buffers> {
        let places = (0..self.mesh.stage).flat_map(|stage| self.places(stage));
        places
            .map(|(device, replica)| Ok(self.client.upload(bytes(replica), shape, device)?))
            .collect()
    }

    /// The same for the devices of one stage.
    pub(super) fn upload_at<'b>(
        &self,
        stage: usize,
        shape: &Shape,
        bytes: impl Fn(usize) -> &'b [u8],
    ) -> Result<Buffers> {
        self.places(stage)
            .map(|(device, replica)| Ok(self.client.upload(bytes(replica), shape, device)?))
            .collect()
    }

    /// Each replica's place along the tensor axis.
    pub(super) fn tensor_places(&self) -> Result<Buffers> {
        let mesh = self.mesh;
        let places: Vec<[i32; 1]> = (0..mesh.replicas())
            .map(|replica| [mesh.index(Axis::Tensor, replica) as i32])
            .collect();
        self.upload_each(&Shape::scalar(DType::S32), |replica| {
            bytemuck::cast_slice(&places[replica])
        })
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

/// Which of a mesh's devices live in the client's process.
pub fn local_devices(client: &Client, devices: usize) -> Range<usize> {
    let each = devices / client.processes();
    let first = client.process_index().max(0) as usize * each;
    first..first + each
}
