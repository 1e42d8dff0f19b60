//! One step while it is being recorded, and `mark_step`, which ends it.

use super::Session;
use crate::error::{Error, Result};
use crate::mesh_devices::Buffers;
use crate::pipeline::{self, HostTime, Microbatch, Parts, Recorded, Source};
use crate::settings::WeightStorage;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::passes::partition::Partition;
use xtrain_graphs::passes::stages::{Pipeline, StageGraph};
use xtrain_graphs::{DType, Graph, InputRole, Precision, Shape, StageGuard, Tensor, Trace, passes};
use xtrain_models::INPUT_IDS;
use xtrain_parallel::{Axis, Mesh, Placements, stages};
use xtrain_runtime::{Buffer, PendingDownload};

impl Session {
    /// Puts those values together on the devices of which other processes hold parts, all of which
    /// have to do the same; `None` if there are none.
    ///
    /// # Errors
    /// If the collective cannot be compiled or run.
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
            let held = recording.held(name)?;
            let sharding = recording.placements().of(name);
            let whole = match sharding.and_then(|sharding| {
                let groups = recording.mesh().groups(&[sharding.axis])?;
                Some((sharding.dim, groups))
            }) {
                Some((dim, groups)) => held.all_gather(&groups, dim)?,
                None => held,
            };
            let whole = recording.at_every_stage(&whole)?;
            recording.fetch(&gathered(name), &whole);
        }
        recording.mark_step(&graph_name).map(Some)
    }

    /// How recorded graphs are partitioned along the tensor axis.
    fn partition(&self) -> Option<Partition> {
        let groups = self.mesh().groups(&[Axis::Tensor])?;
        let inputs = self
            .placements
            .tensor_shardings()
            .map(|(name, sharding)| (name.to_string(), sharding.spec))
            .collect();
        Some(Partition {
            groups,
            inputs,
            tokens: self.sequence_parallel.then(|| INPUT_IDS.to_string()),
        })
    }

    /// Starts recording a step.
    pub fn begin(&mut self) -> Recording<'_> {
        self.begin_with(Vec::new(), Instant::now())
    }

    /// The same with data that [`Recording::given`] takes.
    pub(super) fn begin_with(
        &mut self,
        given: Vec<(&'static str, Buffers)>,
        started: Instant,
    ) -> Recording<'_> {
        Recording {
            session: self,
            trace: Trace::new(),
            shapes: Shapes::Held,
            sources: HashMap::new(),
            feeds: HashMap::new(),
            given,
            known: HashMap::new(),
            precision: Precision::F32,
            divided: true,
            started,
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
    /// What each input is given, and the data of this run.
    sources: HashMap<String, Source>,
    feeds: HashMap<String, Buffers>,
    /// Data that the recording declares under their names.
    given: Vec<(&'static str, Buffers)>,
    known: HashMap<String, Tensor>,
    precision: Precision,
    /// Whether the graph is divided along the tensor axis.
    divided: bool,
    started: Instant,
}

/// What a step left to read, and where its time went.
pub struct StepOutputs {
    fetched: BTreeMap<String, Buffers>,
    /// What the host spent on recording, looking up, compiling and waiting.
    pub host_time: HostTime,
}

impl StepOutputs {
    pub(super) fn new(fetched: BTreeMap<String, Buffers>, host_time: HostTime) -> Self {
        StepOutputs { fetched, host_time }
    }

    /// The fetched value of every replica of this process.
    ///
    /// # Panics
    /// If the step fetched nothing of this name.
    pub fn replicas(&self, name: &str) -> &[Buffer] {
        self.fetched
            .get(name)
            .unwrap_or_else(|| panic!("the step fetches no `{name}`"))
    }

    /// The fetched value of the first replica, if the step fetches one of this name.
    pub fn find(&self, name: &str) -> Option<&Buffer> {
        self.fetched.get(name)?.first()
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
    ///
    /// # Errors
    /// If the buffer cannot be read.
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
    ///
    /// # Errors
    /// If the step failed.
    pub fn wait(self) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::new();
        for part in self.parts {
            rows.extend(part.wait()?.chunks(self.row.max(1)).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }
}

impl Recording<'_> {
    /// The element types that weights have between steps.
    pub fn storage(&self) -> WeightStorage {
        self.session.storage
    }

    /// What tensors are recorded in, for operations that begin without one.
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

    /// The device state of this name, as it is when the step starts: floats as f32, whatever they
    /// are held in.
    ///
    /// # Errors
    /// If there is no state of this name.
    #[track_caller]
    pub fn state(&mut self, name: &str) -> Result<Tensor> {
        let held = self.held(name)?;
        if held.dtype().is_float() {
            Ok(held.convert(DType::F32)?)
        } else {
            Ok(held)
        }
    }

    /// The same in the element type that it is held in.
    #[track_caller]
    fn held(&mut self, name: &str) -> Result<Tensor> {
        if let Some(tensor) = self.known.get(name) {
            return Ok(tensor.clone());
        }
        let shape = match &self.shapes {
            Shapes::Held => self.session.shape(name).cloned(),
            Shapes::Given(shapes) => shapes
                .get(stages::original_name(name))
                .map(|shape| self.session.placements.local(name, shape)),
        };
        let shape = shape.map(|held| {
            if self.divided {
                self.session.placements.recorded(name, &held)
            } else {
                held
            }
        });
        let shape = shape.ok_or_else(|| Error::NoState {
            name: name.to_string(),
        })?;
        let tensor = self.trace.input(name, shape, InputRole::State);
        self.sources.insert(name.to_string(), Source::State);
        self.known.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }

    /// Whether some replicas live in other processes.
    pub fn is_spread(&self) -> bool {
        self.session.is_spread()
    }

    /// The replicas that the step runs on.
    pub fn mesh(&self) -> Mesh {
        self.session.mesh()
    }

    /// Until the guard is dropped, what is recorded belongs to the stage of the layer that was
    /// entered last.
    pub fn stages_by_layer(&self) -> Option<StageGuard> {
        let stages = self.session.placements.stages()?;
        Some(self.trace.stages_by_layer(stages.first_layers()))
    }

    /// The same value, on the devices of every stage where some are in other processes.
    ///
    /// # Errors
    /// If `tensor` is of another recording.
    pub fn at_every_stage(&self, tensor: &Tensor) -> Result<Tensor> {
        if self.session.mesh().stage == 1 || !self.session.is_spread() {
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
        self.sources.insert(name.to_string(), Source::Feed);
        self.feeds.insert(name.to_string(), buffers);
        tensor
    }

    /// Declares the feed of this name that the step was given; where it is compiled ahead, one of this shape.
    ///
    /// # Panics
    /// If the step was given none.
    #[track_caller]
    pub fn given(&mut self, name: &str, shape: &Shape) -> Tensor {
        if matches!(self.shapes, Shapes::Given(_)) {
            return self.feed_abstract(name, shape);
        }
        let mut given = self.given.iter();
        let given = given.find(|(known, _)| *known == name);
        let (_, buffers) = given.unwrap_or_else(|| panic!("the step is given no `{name}`"));
        let buffers = buffers.clone();
        self.feed(name, buffers)
    }

    /// A small host value of this step, the same for every replica.
    ///
    /// # Errors
    /// If the device refuses the upload.
    pub fn feed_host(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<Tensor> {
        self.feed_host_each(name, shape, |_| bytes)
    }

    /// A small host value of this step for each replica, by its number.
    ///
    /// # Errors
    /// If the device refuses the upload, or a value has not the shape's bytes.
    pub fn feed_host_each<'b>(
        &mut self,
        name: &str,
        shape: &Shape,
        bytes: impl Fn(usize) -> &'b [u8],
    ) -> Result<Tensor> {
        if matches!(self.shapes, Shapes::Given(_)) {
            return Ok(self.feed_abstract(name, shape));
        }
        let buffers = self.session.devices.upload(shape, bytes)?;
        Ok(self.feed(name, buffers))
    }

    /// A feed of which only the shape is known, for compiling ahead.
    pub fn feed_abstract(&mut self, name: &str, shape: &Shape) -> Tensor {
        self.sources.insert(name.to_string(), Source::Abstract);
        self.trace.input(name, shape.clone(), InputRole::Feed)
    }

    /// `tensor` rounded to the element type that the state of this name is held in.
    ///
    /// # Errors
    /// If there is no state of this name.
    #[track_caller]
    pub fn as_held(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        Ok(tensor.convert(self.held(name)?.dtype())?)
    }

    /// Stores `tensor` as the state of this name when the step ends, rounded to what that is held
    /// in. The old value must be part of
    /// the step, so that its memory is donated to the new one.
    ///
    /// # Errors
    /// If there is no state of this name, or `tensor` is of another recording.
    #[track_caller]
    pub fn assign(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let held = self.as_held(name, tensor)?;
        self.trace.output(name, &held);
        Ok(())
    }

    /// Makes `tensor` readable after the step.
    pub fn fetch(&mut self, name: &str, tensor: &Tensor) {
        self.trace.output(name, tensor);
    }

    /// Makes the value that each replica has of the vector `tensor`, an `f32[n]`, readable after
    /// the step, on every process ([`StepOutputs::start_reading_each`]). Those of other processes come
    /// through a table in which each replica fills its own row: adding zeros up changes no bit.
    ///
    /// # Errors
    /// If `tensor` is no vector of f32.
    pub fn fetch_each(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        if !self.session.is_spread() {
            self.fetch(name, tensor);
            return Ok(());
        }
        let tensor = &self.at_every_stage(tensor)?;
        let replicas = self.session.mesh().replicas();
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
    ///
    /// # Errors
    /// If an assigned state has another shape, or the graph cannot be partitioned for the mesh.
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
        let partition = session.partition().filter(|_| self.divided);
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
    ///
    /// # Errors
    /// If a graph cannot be partitioned, lowered, compiled or started. What fails on the devices
    /// later is an error where a value is read.
    pub fn mark_step(self, name: &str) -> Result<StepOutputs> {
        self.end(name, true)
    }

    /// The same for a microbatch that another follows. The stages of a pipeline wait until
    /// [`Recording::mark_step`] ends the step, and take its microbatches together.
    ///
    /// # Errors
    /// As [`Recording::mark_step`].
    pub fn mark_microbatch(self, name: &str) -> Result<StepOutputs> {
        self.end(name, false)
    }
}

/// The session, a recorded step with its data, and those of them that it was not given.
type Finished<'s> = (&'s mut Session, Microbatch, Vec<(String, Buffers)>);

impl<'s> Recording<'s> {
    fn end(self, name: &str, ends: bool) -> Result<StepOutputs> {
        let started = self.started;
        let (session, microbatch, _) = self.finish(name)?;
        session.start(microbatch, ends, started)
    }

    /// Ends the recording without running it.
    pub(super) fn finish(self, name: &str) -> Result<Finished<'s>> {
        let parts = self.parts(name)?;
        let is_given = |name: &str| self.given.iter().any(|(given, _)| *given == name);
        let constants = self.feeds.iter().filter(|(name, _)| !is_given(name));
        let constants = constants.map(|(name, value)| (name.clone(), value.clone()));
        let constants = constants.collect();
        let recorded = Recorded {
            parts,
            sources: self.sources,
        };
        let microbatch = Microbatch {
            recorded: Arc::new(recorded),
            feeds: self.feeds,
        };
        Ok((self.session, microbatch, constants))
    }
}
