//! The lazy session: state that lives on the device, and `mark_step`, which cuts a recording, finds or compiles its executable
//! and runs it with the state donated.
//!
//! A [`Recording`] covers one step. Its tensors name state ([`Recording::state`]), this step's data ([`Recording::feed`]),
//! values to store back ([`Recording::assign`]) and values to read ([`Recording::fetch`]). Nothing here waits for the device.

use super::error::{Error, Result};
use crate::cache::{CompiledGraph, GraphCache};
use crate::runtime::{Buffer, Client};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::{Fingerprint, Graph, InputRole, Precision, Shape, Tensor, Trace, passes};

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
    client: Client,
    cache: GraphCache,
    state: BTreeMap<String, Arc<Buffer>>,
    eval_precision: Precision,
    /// Graphs in other precisions than f32, by what was recorded: a step makes each once.
    mixed: RefCell<HashMap<(Fingerprint, Precision), Arc<Graph>>>,
}

impl Session {
    pub fn new(client: Client, cache: GraphCache) -> Self {
        Session { client, cache, state: BTreeMap::new(), eval_precision: Precision::F32, mixed: RefCell::default() }
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

    /// Puts a value on the device under a name.
    pub fn set_state(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<()> {
        let buffer = self.client.upload(bytes, shape, 0)?;
        self.state.insert(name.to_string(), Arc::new(buffer));
        Ok(())
    }

    pub fn state(&self, name: &str) -> Option<&Arc<Buffer>> {
        self.state.get(name)
    }

    /// Starts recording a step.
    pub fn begin(&mut self) -> Recording<'_> {
        let trace = Trace::new();
        let shapes = Shapes::Held;
        let (arguments, known, precision) = (Vec::new(), HashMap::new(), Precision::F32);
        Recording { session: self, trace, shapes, arguments, known, precision, started: Instant::now() }
    }

    /// Starts recording a step whose state need not exist yet: for compiling ahead. Shapes come from `shapes`.
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

enum Argument {
    State(String),
    Feed(Arc<Buffer>),
    /// Declared for compiling only.
    Abstract,
}

/// One step while it is being recorded.
pub struct Recording<'s> {
    session: &'s mut Session,
    trace: Trace,
    shapes: Shapes,
    arguments: Vec<Argument>,
    known: HashMap<String, Tensor>,
    precision: Precision,
    started: Instant,
}

/// What a step left to read, and where its time went.
pub struct Marked {
    pub fetched: BTreeMap<String, Buffer>,
    pub host_time: HostTime,
}

impl Recording<'_> {
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The precision of this step's matrix products, f32 unless set; what is recorded stays the same.
    pub fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
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
            Shapes::Held => self.session.state.get(name).map(|b| b.shape().clone()),
            Shapes::Given(shapes) => shapes.get(name).cloned(),
        };
        let shape = shape.ok_or_else(|| Error::NoState { name: name.to_string() })?;
        let tensor = self.trace.input(name, shape, InputRole::State);
        self.arguments.push(Argument::State(name.to_string()));
        self.known.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }

    /// Data of this step that is already on the device.
    pub fn feed(&mut self, name: &str, buffer: Arc<Buffer>) -> Tensor {
        let tensor = self.trace.input(name, buffer.shape().clone(), InputRole::Feed);
        self.arguments.push(Argument::Feed(buffer));
        tensor
    }

    /// A small host value of this step.
    pub fn feed_host(&mut self, name: &str, bytes: &[u8], shape: &Shape) -> Result<Tensor> {
        if matches!(self.shapes, Shapes::Given(_)) {
            return Ok(self.feed_abstract(name, shape));
        }
        let buffer = self.session.client.upload(bytes, shape, 0)?;
        Ok(self.feed(name, Arc::new(buffer)))
    }

    /// A feed of which only the shape is known, for compiling ahead.
    pub fn feed_abstract(&mut self, name: &str, shape: &Shape) -> Tensor {
        self.arguments.push(Argument::Abstract);
        self.trace.input(name, shape.clone(), InputRole::Feed)
    }

    /// Stores `tensor` as the state of this name when the step ends. The old value must be part of the step, so that its
    /// memory is donated to the new one.
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

    /// Cuts the recording into a graph in its precision, without running it.
    pub fn cut(&self, name: &str) -> Result<Graph> {
        Ok(self.graph(name)?.as_ref().clone())
    }

    fn graph(&self, name: &str) -> Result<Arc<Graph>> {
        let recorded = self.trace.cut(name)?;
        if self.precision == Precision::F32 {
            return Ok(Arc::new(recorded));
        }
        let key = (recorded.fingerprint(), self.precision);
        if let Some(known) = self.session.mixed.borrow().get(&key) {
            return Ok(known.clone());
        }
        let mixed = Arc::new(passes::mix(&recorded, self.precision)?);
        self.session.mixed.borrow_mut().insert(key, mixed.clone());
        Ok(mixed)
    }

    /// Cuts the recording and compiles its graph if it is new, without running it.
    pub fn compile(self, name: &str) -> Result<Arc<CompiledGraph>> {
        let graph = self.graph(name)?;
        Ok(self.session.cache.get(&graph)?)
    }

    /// Cuts the recording, compiles its graph if it is new, and starts it on the device. Returns at once; assigned state
    /// takes its new value, fetched values become readable when the device gets there.
    pub fn mark_step(self, name: &str) -> Result<Marked> {
        let graph = self.graph(name)?;
        let ready_before = self.session.cache.stats().ready_time();
        let compiled = self.session.cache.get(&graph)?;
        let compile = self.session.cache.stats().ready_time() - ready_before;
        let trace = self.started.elapsed().saturating_sub(compile);

        let dispatched = Instant::now();
        let mut arguments: Vec<&Buffer> = Vec::with_capacity(self.arguments.len());
        for (argument, (input, _)) in self.arguments.iter().zip(&compiled.inputs) {
            arguments.push(match argument {
                Argument::State(name) => self.session.state.get(name).ok_or_else(|| Error::NoState { name: name.clone() })?,
                Argument::Feed(buffer) => buffer,
                Argument::Abstract => return Err(Error::AbstractFeed { name: input.clone() }),
            });
        }
        let outputs = compiled.executable.execute(&arguments)?;
        drop(arguments);
        let mut fetched = BTreeMap::new();
        for (name, buffer) in compiled.outputs.iter().zip(outputs) {
            match self.session.state.get_mut(name) {
                Some(state) => *state = Arc::new(buffer),
                None => {
                    fetched.insert(name.clone(), buffer);
                }
            }
        }
        Ok(Marked { fetched, host_time: HostTime { trace, compile, execute: dispatched.elapsed() } })
    }
}
