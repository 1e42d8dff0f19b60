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

pub mod parameters;
pub mod replicas;

use super::error::{Error, Result};
use super::feed::INPUT_IDS;
use super::pipeline::{self, Argument, Microbatch, Parts};
use crate::cache::GraphCache;
use crate::parallel::schedule::Task;
use crate::parallel::{Axis, Mesh, PipelineSchedule, Placements, stages};
use crate::runtime::{Buffer, Client, Event, PendingDownload};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::op::Comparison;
use xtrain_graphs::passes::partition::{Cut, Partition};
use xtrain_graphs::passes::stages::{Pipeline, StageGraph};
use xtrain_graphs::{
    DType, Fingerprint, Graph, InputRole, Precision, Shape, StageGuard, Tensor, Trace, passes,
};

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

/// A value on the devices: one buffer for each device of this process, or each that belongs to one
/// stage, in their order, all of one shape.
pub type Buffers = Arc<[Buffer]>;

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

    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// The same with some of the state in parts, before any of it is set.
    pub fn set_placements(&mut self, placements: Placements) {
        self.placements = placements;
    }

    pub fn placements(&self) -> &Placements {
        &self.placements
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn cache(&self) -> &GraphCache {
        &self.cache
    }

    pub fn cache_mut(&mut self) -> &mut GraphCache {
        &mut self.cache
    }

    /// The precision of evaluation's products; f32 unless set.
    pub fn eval_precision(&self) -> Precision {
        self.eval_precision
    }

    pub fn set_eval_precision(&mut self, precision: Precision) {
        self.eval_precision = precision;
    }

    /// Puts a value on every replica's device under a name, or on each its part; in a pipeline on
    /// those of the stages that hold it.
    pub fn set_state(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<()> {
        let (mesh, placements) = (self.mesh, &self.placements);
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); placements.count(name)];
        if parts.len() > 1 {
            for replica in 0..mesh.replicas() {
                let part = &mut parts[placements.part(name, mesh, replica)];
                if part.is_empty() {
                    *part = placements.cut(name, bytes, shape, mesh, replica);
                }
            }
        }
        let part = |replica: usize| match parts.len() {
            1 => bytes,
            _ => &parts[placements.part(name, mesh, replica)],
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
    fn is_elsewhere(&self, name: &str) -> bool {
        let (home, replicas) = (self.placements.home(name), self.mesh.replicas());
        let lacks = |part: usize, devices: Range<usize>| {
            let own = devices
                .filter(|device| home.is_none_or(|home| device / replicas == home))
                .map(|device| device % replicas);
            !own.into_iter()
                .any(|replica| self.placements.part(name, self.mesh, replica) == part)
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

    /// Puts those values together on the devices of which other processes hold parts, all of which
    /// have to do the same; `None` if there are none.
    pub fn gather(&mut self, names: &[&str]) -> Result<Option<StepOutputs>> {
        let elsewhere: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| self.is_elsewhere(name))
            .collect();
        let Some(first) = elsewhere.first() else {
            return Ok(None);
        };
        let graph_name = format!("gather.{first}");
        let mut recording = self.begin();
        for name in elsewhere {
            let held = recording.state(name)?;
            let split = recording.placements().of(name);
            let whole = match split
                .and_then(|split| Some((split.dim, recording.mesh().groups(&[split.axis])?)))
            {
                Some((dim, groups)) => held.all_gather(&groups, dim)?,
                None => held,
            };
            let whole = recording.at_every_stage(&whole)?;
            recording.fetch(&gathered(name), &whole);
        }
        recording.mark_step(&graph_name).map(Some)
    }

    /// The bytes and shape of a whole value, gathered from its shards; waits for the devices.
    pub fn download(&self, name: &str) -> Result<(Vec<u8>, Shape)> {
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
                .find(|(replica, _)| self.placements.part(name, self.mesh, *replica) == part)
        };
        let parts = (0..self.placements.count(name))
            .map(|part| match holder(part) {
                Some((_, buffer)) => Ok(buffer.download()?),
                None => Err(Error::PartElsewhere {
                    name: name.to_string(),
                }),
            })
            .collect::<Result<Vec<Vec<u8>>>>()?;
        Ok((
            self.placements.join(name, parts, held),
            self.placements.whole(name, held),
        ))
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

    /// How recorded graphs are divided along the tensor axis.
    fn partition(&self, recorded: &Graph) -> Option<Partition> {
        let groups = self.mesh.groups(&[Axis::Tensor])?;
        let splits = self.placements.tensor_splits();
        let inputs = splits
            .map(|(name, split)| {
                (
                    name.to_string(),
                    Cut {
                        dim: split.dim,
                        blocks: split.blocks,
                    },
                )
            })
            .collect();
        let tokens = recorded
            .inputs
            .iter()
            .find(|input| self.sequence_parallel && input.name == INPUT_IDS);
        Some(Partition {
            groups,
            inputs,
            rows: tokens.map(|input| input.shape.elements()),
        })
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

    /// Starts recording a step.
    pub fn begin(&mut self) -> Recording<'_> {
        let trace = Trace::new();
        let shapes = Shapes::Held;
        let (arguments, known, precision) = (Vec::new(), HashMap::new(), Precision::F32);
        Recording {
            session: self,
            trace,
            shapes,
            arguments,
            known,
            precision,
            divided: true,
            started: Instant::now(),
        }
    }

    /// Starts recording a step whose state need not exist yet: for compiling ahead. Shapes come
    /// from `shapes`.
    pub fn begin_abstract(&mut self, shapes: Arc<HashMap<String, Shape>>) -> Recording<'_> {
        let mut recording = self.begin();
        recording.shapes = Shapes::Given(shapes);
        recording
    }
}

/// Which of a mesh's devices live in the client's process.
pub fn local_devices(client: &Client, devices: usize) -> Range<usize> {
    let each = devices / client.processes();
    let first = client.process_index().max(0) as usize * each;
    first..first + each
}

enum Shapes {
    /// Those of the buffers that the session holds.
    Held,
    Given(Arc<HashMap<String, Shape>>),
}

/// One step while it is being recorded.
pub struct Recording<'s> {
    session: &'s mut Session,
    trace: Trace,
    shapes: Shapes,
    arguments: Vec<(String, Argument)>,
    known: HashMap<String, Tensor>,
    precision: Precision,
    /// Whether the graph is divided along the tensor axis.
    divided: bool,
    started: Instant,
}

/// What a step left to read, and where its time went.
pub struct StepOutputs {
    fetched: BTreeMap<String, Buffers>,
    pub host_time: HostTime,
}

impl StepOutputs {
    /// The fetched value of every replica of this process.
    ///
    /// # Panics
    /// If the step fetched nothing of this name.
    pub fn replicas(&self, name: &str) -> &[Buffer] {
        self.fetched
            .get(name)
            .unwrap_or_else(|| panic!("the step fetches no `{name}`"))
    }

    /// The fetched value of the first replica, for values that are equal on all.
    ///
    /// # Panics
    /// As [`StepOutputs::replicas`].
    pub fn fetched(&self, name: &str) -> &Buffer {
        &self.replicas(name)[0]
    }
}

/// The feed that tells each replica its number.
const NUMBER: &str = "replica";

/// What a value is called that [`Session::gather`] gathered.
fn gathered(name: &str) -> String {
    format!("whole.{name}")
}

impl StepOutputs {
    /// A value that [`Session::gather`] gathered.
    pub fn gathered(&self, name: &str) -> Option<&Buffer> {
        Some(&self.fetched.get(&gathered(name))?[0])
    }

    /// Starts reading what [`Recording::fetch_each`] fetched.
    pub fn start_reading_each(&self, name: &str) -> Result<EachReplica> {
        let buffers = self.replicas(name);
        // A table has all the rows, and so has every replica's; otherwise each buffer is a row.
        let parts = match buffers[0].shape().rank() {
            2 => &buffers[..1],
            _ => buffers,
        };
        let row = *buffers[0].shape().dims.last().unwrap_or(&1);
        Ok(EachReplica {
            parts: parts
                .iter()
                .map(|part| Ok(part.start_download_to()?))
                .collect::<Result<_>>()?,
            row,
        })
    }
}

/// A vector of each replica of the mesh, on its way.
pub struct EachReplica {
    parts: Vec<PendingDownload<f32>>,
    row: usize,
}

impl EachReplica {
    /// The vectors in the order of replicas; waits for the devices.
    pub fn wait(self) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::new();
        for part in self.parts {
            rows.extend(part.wait()?.chunks(self.row.max(1)).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }
}

impl Recording<'_> {
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The precision of this step's matrix products, f32 unless set; what is recorded stays the
    /// same.
    pub fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
    }

    /// Records over what each replica holds, parts as they are, instead of over what is whole along
    /// the tensor axis.
    pub fn over_parts(&mut self) {
        self.divided = false;
    }

    /// Sets the precision that the session evaluates in.
    pub fn evaluates(&mut self) {
        self.precision = self.session.eval_precision;
    }

    /// The device state of this name, as it is when the step starts.
    #[track_caller]
    pub fn state(&mut self, name: &str) -> Result<Tensor> {
        if let Some(tensor) = self.known.get(name) {
            return Ok(tensor.clone());
        }
        let shape = match &self.shapes {
            Shapes::Held => self.session.shape(name).cloned(),
            Shapes::Given(shapes) => shapes
                .get(stages::original_name(name))
                .map(|shape| self.session.placements.local(name, shape)),
        };
        let shape = shape.map(|held| match self.divided {
            true => self.session.placements.recorded(name, &held),
            false => held,
        });
        let shape = shape.ok_or_else(|| Error::NoState {
            name: name.to_string(),
        })?;
        let tensor = self.trace.input(name, shape, InputRole::State);
        self.arguments.push((name.to_string(), Argument::State));
        self.known.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }

    /// Whether some replicas live in other processes.
    pub fn is_spread(&self) -> bool {
        self.session.is_spread()
    }

    /// The replicas that the step runs on.
    pub fn mesh(&self) -> Mesh {
        self.session.mesh
    }

    /// Until the guard is dropped, what is recorded belongs to the stage of the layer that was
    /// entered last.
    pub fn stages_by_layer(&self) -> Option<StageGuard> {
        let stages = self.session.placements.stages()?;
        Some(self.trace.stages_by_layer(stages.first_layers()))
    }

    /// The same value, on the devices of every stage where some are in other processes.
    fn at_every_stage(&self, tensor: &Tensor) -> Result<Tensor> {
        if self.session.mesh.stage == 1 || !self.session.is_spread() {
            return Ok(tensor.clone());
        }
        let _everywhere = self.trace.at_every_stage();
        Ok(tensor.stop_gradient()?)
    }

    /// What of the state is in parts.
    pub fn placements(&self) -> &Placements {
        &self.session.placements
    }

    /// Data of this step that is already on the devices.
    pub fn feed(&mut self, name: &str, buffers: Buffers) -> Tensor {
        let tensor = self
            .trace
            .input(name, buffers[0].shape().clone(), InputRole::Feed);
        self.arguments
            .push((name.to_string(), Argument::Feed(buffers)));
        tensor
    }

    /// A small host value of this step, the same for every replica.
    pub fn feed_host(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<Tensor> {
        self.feed_host_each(name, shape, |_| bytes)
    }

    /// A small host value of this step for each replica, by its number.
    pub fn feed_host_each<'b>(
        &mut self,
        name: &str,
        shape: &Shape,
        bytes: impl Fn(usize) -> &'b [u8],
    ) -> Result<Tensor> {
        if matches!(self.shapes, Shapes::Given(_)) {
            return Ok(self.feed_abstract(name, shape));
        }
        let buffers = self.session.upload_each(shape, bytes)?;
        Ok(self.feed(name, buffers))
    }

    /// A feed of which only the shape is known, for compiling ahead.
    pub fn feed_abstract(&mut self, name: &str, shape: &Shape) -> Tensor {
        self.arguments.push((name.to_string(), Argument::Abstract));
        self.trace.input(name, shape.clone(), InputRole::Feed)
    }

    /// Stores `tensor` as the state of this name when the step ends. The old value must be part of
    /// the step, so that its memory is donated to the new one.
    #[track_caller]
    pub fn assign(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.state(name)?;
        self.trace.output(name, tensor);
        Ok(())
    }

    /// Makes `tensor` readable after the step.
    pub fn fetch(&mut self, name: &str, tensor: &Tensor) {
        self.trace.output(name, tensor);
    }

    /// Makes the value that each replica has of the vector `tensor`, an `f32[n]`, readable after
    /// the step, on every process ([`StepOutputs::start_reading_each`]). Those of other processes come
    /// through a table in which each replica fills its own row: adding zeros up changes no bit.
    pub fn fetch_each(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if !self.session.is_spread() {
            self.fetch(name, tensor);
            return Ok(());
        }
        let tensor = &self.at_every_stage(tensor)?;
        let replicas = self.session.mesh.replicas();
        let elements = tensor.shape().elements();
        let own: Vec<u32> = (0..replicas as u32).collect();
        let number = match self.known.get(NUMBER) {
            Some(number) => number.clone(),
            None => {
                let shape = Shape::new(DType::U32, [1, 1]);
                let number = self
                    .feed_host_each(NUMBER, &shape, |replica| bytemuck::bytes_of(&own[replica]))?;
                self.known.insert(NUMBER.into(), number.clone());
                number
            }
        };
        let rows = self.trace.iota(DType::U32, &[replicas, 1], 0)?;
        let row = tensor
            .reshape(&[1, elements])?
            .broadcast_to(&[replicas, elements])?;
        let zeros = self.trace.full(0.0, row.shape())?;
        let table = rows
            .compare(Comparison::Eq, &number)?
            .select(&row, &zeros)?
            .all_reduce(&[own], 0)?;
        self.fetch(name, &table);
        Ok(())
    }

    /// Cuts the recording into the graphs that it is made of, in its precision, without running
    /// them: one, or those of each stage of a pipeline in an order in which they can run.
    pub fn cut(&self, name: &str) -> Result<Vec<Graph>> {
        Ok(self
            .parts(name)?
            .iter()
            .map(|part| part.graph.clone())
            .collect())
    }

    fn parts(&self, name: &str) -> Result<Parts> {
        let recorded = self.trace.finish(name)?;
        let session = &*self.session;
        let partition = session.partition(&recorded).filter(|_| self.divided);
        let stages = session.placements.stages();
        if self.precision == Precision::F32 && partition.is_none() && stages.is_none() {
            let whole = StageGraph {
                graph: recorded,
                level: 0,
            };
            return Ok(pipeline::connect(vec![whole]).into());
        }
        let key = (recorded.fingerprint(), self.precision);
        if let Some(known) = session.made.borrow().get(&key) {
            return Ok(known.clone());
        }
        let forward = pipeline::forward_name(&recorded.name);
        let home = |name: &str| session.placements.home(name);
        let execution = passes::Execution {
            precision: self.precision,
            partition: partition.as_ref(),
            pipeline: stages.map(|stages| Pipeline {
                stages: stages.count(),
                home: &home,
                forward: &forward,
            }),
        };
        let parts: Parts = pipeline::connect(passes::specialize(&recorded, &execution)?).into();
        session.made.borrow_mut().insert(key, parts.clone());
        Ok(parts)
    }

    /// Cuts the recording, compiles its graphs if they are new, and starts them on the devices.
    /// Returns at once; assigned state takes its new value, fetched values become readable when the
    /// devices get there.
    pub fn mark_step(self, name: &str) -> Result<StepOutputs> {
        let (session, microbatch, started) = self.microbatch(name)?;
        let mut microbatches = std::mem::take(&mut session.waiting);
        microbatches.push(microbatch);
        let recorded = started.elapsed();
        let (fetched, mut host_time) = pipeline::run(session, microbatches)?;
        host_time.trace += recorded;
        Ok(StepOutputs { fetched, host_time })
    }

    /// The same for a microbatch that another follows. The stages of a pipeline wait until
    /// [`Recording::mark_step`] ends the step, and take its microbatches together.
    pub fn mark_microbatch(self, name: &str) -> Result<StepOutputs> {
        if self.session.mesh.stage == 1 {
            return self.mark_step(name);
        }
        let (session, microbatch, started) = self.microbatch(name)?;
        session.waiting.push(microbatch);
        let host_time = HostTime {
            trace: started.elapsed(),
            ..HostTime::default()
        };
        Ok(StepOutputs {
            fetched: BTreeMap::new(),
            host_time,
        })
    }
}

impl<'s> Recording<'s> {
    fn microbatch(self, name: &str) -> Result<(&'s mut Session, Microbatch, Instant)> {
        let parts = self.parts(name)?;
        let microbatch = Microbatch {
            parts,
            arguments: self.arguments.into_iter().collect(),
        };
        Ok((self.session, microbatch, self.started))
    }
}
