//! Lazy tensors: operations on a [`Tensor`] are recorded as nodes of a [`Trace`]; nothing is
//! computed.
//!
//! One trace covers what lies between two `mark_step`s. [`Trace::finish`] turns the recorded nodes
//! into a canonical [`Graph`](crate::Graph). The methods that record each operation stand with its
//! rules in `ops/` and `nn/`.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{InputRole, NodeId, OutputSpec};
use crate::op::{CallKind, F64, Op, Scalar};
use crate::provenance::{Phase, Provenance, Stage};
use crate::shape::Shape;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

/// One recorded operation.
#[derive(Clone, Debug)]
pub(crate) struct TraceNode {
    /// What the node computes.
    pub op: Op,
    /// Ids of the operands, each less than the node's own.
    pub operands: Vec<NodeId>,
    /// The result's, as the shape rule infers it.
    pub shape: Rc<Shape>,
    /// Index into the trace's model paths.
    pub scope: u32,
    /// Phase, stage and layer around the recording.
    pub provenance: Provenance,
    /// The caller's line, for errors.
    pub location: &'static Location<'static>,
}

#[derive(Clone, Debug)]
pub(crate) struct TraceInput {
    /// As [`InputSpec::name`](crate::InputSpec).
    pub name: String,
    /// State or feed.
    pub role: InputRole,
    /// The node that stands for the input.
    pub node: NodeId,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// In recording order.
    pub nodes: Vec<TraceNode>,
    /// In the order in which they were asked for.
    pub inputs: Vec<TraceInput>,
    /// In the order in which they were named.
    pub outputs: Vec<OutputSpec>,
    /// Model paths; index 0 is the empty path.
    pub scopes: Vec<String>,
    scope_ids: HashMap<String, u32>,
    contexts: Vec<Context>,
    /// Set by passes: a node equal to an earlier one is not recorded twice.
    known: Option<HashMap<(Op, Vec<NodeId>), NodeId>>,
    streams: u32,
    layers_entered: usize,
    stage: StageOf,
}

/// What recorded nodes get from the scopes around them.
#[derive(Clone, Copy, Default)]
struct Context {
    /// Index into the trace's model paths.
    scope: u32,
    provenance: Provenance,
}

/// Which stage of a pipeline recorded nodes belong to.
#[derive(Clone, Default)]
enum StageOf {
    /// None: there is no pipeline, or their operands say.
    #[default]
    Operands,
    One(usize),
    /// Each that uses them.
    Every,
    /// That of the layer that was entered last; each stage's first layer.
    Layers(Rc<[usize]>),
}

/// The recording of one step. Cheap to clone; all clones are one recording.
#[derive(Clone)]
pub struct Trace(Rc<RefCell<Inner>>);

/// A value that the device will compute.
#[derive(Clone)]
pub struct Tensor {
    trace: Trace,
    id: NodeId,
    shape: Rc<Shape>,
}

/// Leaves what [`Trace::scope`], [`Trace::layer`], [`Trace::update_scope`] or [`Trace::in_f32`]
/// entered.
pub struct ScopeGuard(Trace);

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.0.0.borrow_mut().contexts.pop();
    }
}

/// Ends what [`Trace::stages_by_layer`] or [`Trace::at_stage`] began.
pub struct StageGuard(Trace, StageOf);

impl Drop for StageGuard {
    fn drop(&mut self) {
        self.0.0.borrow_mut().stage = std::mem::take(&mut self.1);
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

impl Trace {
    /// An empty trace.
    pub fn new() -> Self {
        let inner = Inner {
            scopes: vec![String::new()],
            ..Default::default()
        };
        Trace(Rc::new(RefCell::new(inner)))
    }

    /// A trace for passes: equal nodes are recorded once.
    pub(crate) fn deduplicating() -> Self {
        let trace = Self::new();
        trace.0.borrow_mut().known = Some(HashMap::new());
        trace
    }

    pub(crate) fn inner(&self) -> std::cell::Ref<'_, Inner> {
        self.0.borrow()
    }

    /// Declares the next graph input.
    #[track_caller]
    pub fn input(&self, name: impl Into<String>, shape: Shape, role: InputRole) -> Tensor {
        let mut inner = self.0.borrow_mut();
        let index = inner.inputs.len() as u32;
        let node = inner.nodes.len() as NodeId;
        let Context { scope, provenance } = inner.context();
        let shape = Rc::new(shape);
        inner.nodes.push(TraceNode {
            op: Op::Input(index),
            operands: Vec::new(),
            shape: shape.clone(),
            scope,
            provenance,
            location: Location::caller(),
        });
        inner.inputs.push(TraceInput {
            name: name.into(),
            role,
            node,
        });
        Tensor {
            trace: self.clone(),
            id: node,
            shape,
        }
    }

    /// Makes a tensor an output of the graph.
    pub fn output(&self, name: impl Into<String>, tensor: &Tensor) {
        self.0.borrow_mut().outputs.push(OutputSpec {
            name: name.into(),
            node: tensor.id,
        });
    }

    /// Enters a part of the model (`h.3`, then `attn`) until the guard is dropped; messages and HLO
    /// metadata show the path.
    pub fn scope(&self, name: &str) -> ScopeGuard {
        self.enter(name, |_| {})
    }

    /// Enters one of the layers that make up most of the model, as [`Trace::scope`] does: what is
    /// recorded until the guard is dropped is what [`Checkpointing`](crate::Checkpointing) may
    /// recompute.
    pub fn layer(&self, name: &str) -> ScopeGuard {
        let layer = {
            let mut inner = self.0.borrow_mut();
            inner.layers_entered += 1;
            inner.layers_entered as u32 - 1
        };
        self.enter(name, |provenance| provenance.layer = Some(layer))
    }

    /// Enters, as [`Trace::scope`] does, what accumulates gradients or applies them
    /// ([`Phase::Update`]).
    pub fn update_scope(&self, name: &str) -> ScopeGuard {
        self.enter(name, |provenance| provenance.phase = Phase::Update)
    }

    /// Until the guard is dropped, what is recorded is computed in f32 in a run of any precision,
    /// and so are its gradients: an RMS norm of 16-bit values would round their squares. Operands
    /// of 16 bits are converted; the results are f32 until a matmul or attention rounds them.
    pub fn in_f32(&self) -> ScopeGuard {
        self.enter("", |provenance| provenance.in_f32 = true)
    }

    /// Until the guard is dropped, what is recorded is cheap to compute from what is kept anyway: the
    /// backward pass computes it again, in every run, so that its results need no memory until then.
    pub fn cheap(&self) -> ScopeGuard {
        self.enter("", |provenance| provenance.is_cheap = true)
    }

    fn enter(&self, name: &str, change: impl FnOnce(&mut Provenance)) -> ScopeGuard {
        let mut inner = self.0.borrow_mut();
        let mut context = inner.contexts.last().copied().unwrap_or_default();
        let outer = &inner.scopes[context.scope as usize];
        let path = match (outer.as_str(), name) {
            (_, "") => None,
            ("", name) => Some(name.to_string()),
            (outer, name) => Some(format!("{outer}.{name}")),
        };
        if let Some(path) = path {
            context.scope = inner.intern(path);
        }
        change(&mut context.provenance);
        inner.contexts.push(context);
        drop(inner);
        ScopeGuard(self.clone())
    }

    /// Records as the node of this full model path and provenance was, until the guard is dropped.
    pub(crate) fn resume(&self, path: &str, provenance: Provenance) -> ScopeGuard {
        let mut inner = self.0.borrow_mut();
        let scope = inner.intern(path.to_string());
        inner.contexts.push(Context { scope, provenance });
        drop(inner);
        ScopeGuard(self.clone())
    }

    /// Until the guard is dropped, what is recorded belongs to the pipeline stage of the layer that
    /// was entered last, before the first layer to stage 0. `first_layers` says where stages begin;
    /// the first of them begins with layer 0. The gradient of a node belongs to the node's stage.
    pub fn stages_by_layer(&self, first_layers: &[usize]) -> StageGuard {
        self.set_stage(StageOf::Layers(first_layers.into()))
    }

    /// Until the guard is dropped, what is recorded belongs to a stage.
    pub fn at_stage(&self, stage: usize) -> StageGuard {
        self.set_stage(StageOf::One(stage))
    }

    fn set_stage(&self, stage: StageOf) -> StageGuard {
        let before = std::mem::replace(&mut self.0.borrow_mut().stage, stage);
        StageGuard(self.clone(), before)
    }

    /// Until the guard is dropped, what is recorded is computed by every stage that uses it, from
    /// values that may be another's.
    pub fn at_every_stage(&self) -> StageGuard {
        self.set_stage(StageOf::Every)
    }

    /// The stage that is recorded for.
    pub fn stage(&self) -> Option<usize> {
        self.0.borrow().current_stage()
    }

    /// Layers entered so far.
    pub fn layers_entered(&self) -> usize {
        self.0.borrow().layers_entered
    }

    /// The number of a random stream that no other caller in this trace gets.
    pub(crate) fn next_stream(&self) -> u32 {
        let mut inner = self.0.borrow_mut();
        inner.streams += 1;
        inner.streams - 1
    }

    /// Nodes recorded so far.
    pub fn node_count(&self) -> usize {
        self.0.borrow().nodes.len()
    }

    /// A scalar constant of a float or integer type.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn constant(&self, value: f64, dtype: DType) -> Result<Tensor> {
        let value = match dtype {
            DType::Pred => Scalar::Bool(value != 0.0),
            dtype if dtype.is_float() => Scalar::Float(F64::new(value)),
            _ => Scalar::Int(value as i64),
        };
        self.record(Op::Constant { value, dtype }, &[])
    }

    /// A tensor filled with one value.
    ///
    /// # Errors
    /// As [`Trace::constant`].
    #[track_caller]
    pub fn full(&self, value: f64, shape: &Shape) -> Result<Tensor> {
        self.constant(value, shape.dtype)?.broadcast_to(&shape.dims)
    }

    /// 0, 1, 2, ... along `dim`.
    ///
    /// # Errors
    /// If there is no dimension `dim`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[usize], dim: usize) -> Result<Tensor> {
        self.record(
            Op::Iota {
                dims: dims.to_vec(),
                dim,
                dtype,
            },
            &[],
        )
    }

    /// Records a call of a target's own library after checking its operands.
    #[track_caller]
    pub(crate) fn call(&self, call: impl CallKind, operands: &[&Tensor]) -> Result<Tensor> {
        self.record(Op::Call(Box::new(call.into_call())), operands)
    }

    /// Records one operation after checking its operands.
    #[track_caller]
    pub(crate) fn record(&self, op: Op, operands: &[&Tensor]) -> Result<Tensor> {
        let location = Location::caller();
        if operands.iter().any(|t| !Rc::ptr_eq(&t.trace.0, &self.0)) {
            return Err(Error::ForeignTensor { op: op.name() });
        }
        let mut inner = self.0.borrow_mut();
        let shapes: Vec<&Shape> = operands.iter().map(|t| &*t.shape).collect();
        let shape = match op.infer(&shapes) {
            Ok(shape) => shape,
            Err(message) => {
                let scope = &inner.scopes[inner.context().scope as usize];
                return Err(Error::shape(&op.name(), scope, &shapes, message));
            }
        };
        let operands: Vec<NodeId> = operands.iter().map(|t| t.id).collect();
        if let Some(known) = &inner.known
            && let Some(&id) = known.get(&(op.clone(), operands.clone()))
        {
            let shape = inner.nodes[id as usize].shape.clone();
            return Ok(Tensor {
                trace: self.clone(),
                id,
                shape,
            });
        }
        let id = inner.nodes.len() as NodeId;
        let Context { scope, provenance } = inner.context();
        let shape = Rc::new(shape);
        if let Some(known) = &mut inner.known {
            known.insert((op.clone(), operands.clone()), id);
        }
        inner.nodes.push(TraceNode {
            op,
            operands,
            shape: shape.clone(),
            scope,
            provenance,
            location,
        });
        Ok(Tensor {
            trace: self.clone(),
            id,
            shape,
        })
    }

    /// The tensor of an already recorded node.
    pub(crate) fn tensor(&self, id: NodeId) -> Tensor {
        let shape = self.0.borrow().nodes[id as usize].shape.clone();
        Tensor {
            trace: self.clone(),
            id,
            shape,
        }
    }
}

impl Inner {
    fn current_stage(&self) -> Option<usize> {
        match &self.stage {
            StageOf::Operands | StageOf::Every => None,
            StageOf::One(stage) => Some(*stage),
            StageOf::Layers(first) => Some(
                first
                    .iter()
                    .rposition(|first| *first < self.layers_entered)
                    .unwrap_or(0),
            ),
        }
    }

    /// What a node gets that is recorded now.
    fn context(&self) -> Context {
        let mut context = self.contexts.last().copied().unwrap_or_default();
        let stage = match (&self.stage, self.current_stage()) {
            (StageOf::Every, _) => Some(Stage::Every),
            (_, stage) => stage.map(|stage| Stage::One(stage as u32)),
        };
        context.provenance.stage = stage.or(context.provenance.stage);
        context
    }

    fn intern(&mut self, path: String) -> u32 {
        if let Some(&id) = self.scope_ids.get(&path) {
            return id;
        }
        let id = self.scopes.len() as u32;
        self.scopes.push(path.clone());
        self.scope_ids.insert(path, id);
        id
    }
}

impl Tensor {
    /// Dimensions and element type.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The size of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.shape.dims
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The recording that the tensor belongs to.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// A copy of the node that computes this tensor, for passes that look at patterns.
    pub(crate) fn node(&self) -> TraceNode {
        self.trace.0.borrow().nodes[self.id as usize].clone()
    }

    /// Records an operation whose first operand is this tensor.
    #[track_caller]
    pub(crate) fn apply(&self, op: Op, others: &[&Tensor]) -> Result<Tensor> {
        let mut operands = Vec::with_capacity(others.len() + 1);
        operands.push(self);
        operands.extend_from_slice(others);
        self.trace.record(op, &operands)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{} {}", self.id, self.shape)
    }
}
