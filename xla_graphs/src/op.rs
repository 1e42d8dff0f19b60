//! The operations that a graph is made of, with their attributes.
//!
//! *Primitives* have a direct HLO counterpart. [`Composite`]s keep a whole formula as one node until
//! `passes::decompose`; the emitter refuses them. Shape rules, gradient
//! rules and the `Tensor` methods that record an operation stand together by family in `ops/`
//! (primitives) and `nn/` (composites). The enum's order is part of the canonical format: append, never
//! reorder.
//!
//! What a target computes by a library of its own is one operation, [`Op::Call`]: which calls there are
//! and what is known of each stands in `calls/`.

mod attention;
mod attributes;
mod block_codes;
mod calls;
pub(crate) mod checks;
mod few_bits;
mod norm;

use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

pub use attention::*;
pub use attributes::*;
pub use block_codes::*;
pub use calls::*;
pub use few_bits::*;
pub use norm::*;

/// An operation without an HLO instruction: a whole formula as one node, with a hand-derived
/// gradient, until `passes::decompose` writes it in primitives in the form that the target compiles
/// best.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Composite {
    /// Uniform 32-bit words keyed by an operand `u32[2]` (seed, step) or `u32[3]` (seed, step,
    /// rows' shard) and the number of its random stream.
    RandomBits {
        /// Of the words, `u32[dims]`.
        dims: Vec<usize>,
        /// Tells the draws of one step apart: calls with equal streams and keys give equal words.
        stream: u32,
    },

    /// Operands x `[.., C]`, gamma and, of a LayerNorm, beta, both `[C]`; gives x's shape.
    Norm(Norm),
    /// Operands x, gamma, dy; gives the gradient of one operand.
    NormGrad {
        /// The normalization whose gradient it is.
        of: Norm,
        /// The operand whose gradient it is.
        operand: NormOperand,
    },
    /// The Gaussian error linear unit of each element (Hendrycks and Gimpel 2016).
    Gelu(Gelu),
    /// Operands x, dy.
    GeluGrad(Gelu),
    /// Operands logits `[N, V]`, labels `[N]`; gives `[N]` losses, 0 where the label is `ignore`.
    CrossEntropy {
        /// The label whose rows have no loss: -100.
        ignore: i64,
    },
    /// Operands logits, labels, dloss `[N]`; gives dlogits.
    CrossEntropyGrad {
        /// As [`Composite::CrossEntropy`]'s.
        ignore: i64,
    },
    /// The operands of [`Attention`]; gives `[B, H, T, D]`.
    Attention(Attention),
    /// The operands of the attention, then dy `[B, H, T, D]`; gives the gradient of one operand.
    AttentionGrad {
        /// The attention whose gradient it is.
        of: Attention,
        /// The operand whose gradient it is.
        operand: AttentionOperand,
    },
    /// The identity; no gradient goes back through it.
    StopGradient,
    /// The identity, over the whole gradient of a parameter (`grad`).
    MasterGradient,
    /// The operands of [`BlockCodes`].
    BlockCodes(BlockCodes),
    /// Operands as [`Dequantize`] lists them; gives values in f32.
    Dequantize(Dequantize),
}

/// What a node computes: a primitive, which has an HLO instruction, or a composite. Shapes are
/// inferred by `Op::infer` (`ops/mod.rs`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// The graph's n-th input.
    Input(u32),
    /// A scalar.
    Constant {
        /// The value, of the kind of `dtype`.
        value: Scalar,
        /// Of the result, which has no dimensions.
        dtype: DType,
    },
    /// 0, 1, 2, ... along `dim`.
    Iota {
        /// Of the result.
        dims: Vec<usize>,
        /// The dimension along which the numbers rise.
        dim: usize,
        /// Of the result: an integer or float type.
        dtype: DType,
    },
    /// An element-wise function of one operand; the result has its shape ([`Unary::IsFinite`]:
    /// `pred`).
    Unary(Unary),
    /// An element-wise function of two operands of one shape, which is the result's.
    Binary(Binary),
    /// An element-wise comparison of two operands of one shape; gives `pred`.
    Compare(Comparison),
    /// `pred ? on_true : on_false`, all of one shape.
    Select,
    /// Each element in another type; floats round to nearest even, integers from floats towards 0.
    Convert(DType),
    /// Same bits, another element type of the same size.
    Bitcast(DType),
    /// The same elements in row-major order, in these dimensions.
    Reshape(Vec<usize>),
    /// Operand dimension i becomes output dimension `map[i]`; XLA's BroadcastInDim.
    Broadcast {
        /// Of the result.
        dims: Vec<usize>,
        /// Of each operand dimension, the result's; rising.
        map: Vec<usize>,
    },
    /// Output dimension i is operand dimension `perm[i]`.
    Transpose(Vec<usize>),
    /// Elements `starts[i]..limits[i]` of each dimension i.
    Slice {
        /// First kept index, of each dimension.
        starts: Vec<usize>,
        /// One past the last kept index, of each dimension.
        limits: Vec<usize>,
    },
    /// The operands one after the other; XLA's Concatenate.
    Concat {
        /// The dimension along which the operands follow each other; all others are equal.
        dim: usize,
    },
    /// Zero (or false) padding at both ends of each dimension.
    Pad {
        /// Elements added in front, of each dimension.
        low: Vec<usize>,
        /// Elements added behind, of each dimension.
        high: Vec<usize>,
    },
    /// The dimensions `dims` reduced away.
    Reduce {
        /// How elements become one.
        kind: Reduction,
        /// The dimensions that the result no longer has.
        dims: Vec<usize>,
    },
    /// General dot product with the given result type.
    Dot {
        /// What is contracted; the result has batch, left and right dimensions in this order.
        dims: DotDims,
        /// Of the result; operands of 16 bits may give f32.
        dtype: DType,
        /// Operands may not be rounded, where the compiler would otherwise (`passes/dot_layout.rs`).
        exact: bool,
    },
    /// `rows = table[ids]`: table `[V, ...]`, ids `[...]` of an integer type.
    TakeRows,
    /// `base` with `updates[i]` added to row `ids[i]`: base `[V, C]`, ids `[N]`, updates `[N, C]`.
    ScatterAddRows,
    /// Stops XLA from moving or merging work across it; the identity.
    Barrier,
    /// The sum over the replicas of each group.
    AllReduce(ReplicaGroups),

    /// A call of a library of the target's, which passes put into its graphs only. One with several
    /// results stands for its first, and only `GetTupleElement` reads them.
    Call(Box<Call>),
    /// One result of a call.
    GetTupleElement {
        /// Which result, from 0.
        index: usize,
        /// The result's shape.
        shape: Shape,
    },
    /// The first operand, but not before the second is there; no gradient goes to the second.
    BarrierAfter,
    /// What the replicas of each group hold, one after the other along `dim`, in the groups' order.
    AllGather {
        /// The dimension that grows by the size of a group.
        dim: usize,
        /// Who gathers from whom.
        exchange: ReplicaGroups,
    },
    /// The sum over the replicas of each group, of which each keeps its part along `dim`: the n-th
    /// member the n-th.
    ReduceScatter {
        /// The dimension that shrinks by the size of a group.
        dim: usize,
        /// Who adds up with whom.
        exchange: ReplicaGroups,
    },
    /// `size` elements of the first operand along `dim`, starting at the second operand (`s32[]`,
    /// clamped).
    DynamicSlice {
        /// The dimension that is sliced.
        dim: usize,
        /// Elements kept along `dim`.
        size: usize,
    },
    /// The first operand with the second, which is as large but for `dim`, in the place of its
    /// elements along `dim` that start at the third operand (`s32[]`, clamped).
    DynamicUpdateSlice {
        /// The dimension in which the operands differ.
        dim: usize,
    },
    /// The largest of each element over the replicas of each group.
    AllReduceMax(ReplicaGroups),
    /// The operand, in the host's memory: nothing but [`Op::ToDevice`] and [`Op::BarrierAfter`] may read
    /// it.
    ToHost,
    /// The operand, back in the device's own memory.
    ToDevice,
    /// A formula that `passes::decompose` writes in primitives.
    Composite(Composite),
    /// A step of a [`OnePass`] by itself, in the CPU's graphs only and until `passes/one_pass` makes the
    /// pass.
    PassStep(Box<PassStep>),
}

impl Composite {
    /// As [`Op::name`].
    fn name(&self) -> &'static str {
        match self {
            Composite::RandomBits { .. } => "random_bits",
            Composite::Norm(Norm { kind, .. }) => match kind {
                NormKind::Layer => "layer_norm",
                NormKind::Rms => "rms_norm",
            },
            Composite::NormGrad { of, .. } => match of.kind {
                NormKind::Layer => "layer_norm_grad",
                NormKind::Rms => "rms_norm_grad",
            },
            Composite::Gelu(_) => "gelu",
            Composite::GeluGrad(_) => "gelu_grad",
            Composite::CrossEntropy { .. } => "cross_entropy",
            Composite::CrossEntropyGrad { .. } => "cross_entropy_grad",
            Composite::Attention(_) => "attention",
            Composite::AttentionGrad { .. } => "attention_grad",
            Composite::StopGradient => "stop_gradient",
            Composite::MasterGradient => "master_gradient",
            Composite::Dequantize(_) => "dequantize",
            Composite::BlockCodes(part) => part.name(),
        }
    }
}

impl Op {
    /// The name used in messages, descriptions and HLO metadata.
    pub fn name(&self) -> String {
        match self {
            Op::Input(_) => "input".into(),
            Op::Constant { .. } => "constant".into(),
            Op::Iota { .. } => "iota".into(),
            Op::Unary(op) => format!("{op:?}").to_lowercase(),
            Op::Binary(op) => format!("{op:?}").to_lowercase(),
            Op::Compare(op) => format!("compare_{op:?}").to_lowercase(),
            Op::Select => "select".into(),
            Op::Convert(_) => "convert".into(),
            Op::Bitcast(_) => "bitcast".into(),
            Op::Reshape(_) => "reshape".into(),
            Op::Broadcast { .. } => "broadcast".into(),
            Op::Transpose(_) => "transpose".into(),
            Op::Slice { .. } => "slice".into(),
            Op::Concat { .. } => "concat".into(),
            Op::Pad { .. } => "pad".into(),
            Op::Reduce { kind, .. } => format!("reduce_{kind:?}").to_lowercase(),
            Op::Dot { .. } => "dot".into(),
            Op::TakeRows => "take_rows".into(),
            Op::ScatterAddRows => "scatter_add_rows".into(),
            Op::Barrier => "barrier".into(),
            Op::AllReduce(_) => "all_reduce".into(),
            Op::Call(call) => call.spec().name().into(),
            Op::GetTupleElement { .. } => "get_tuple_element".into(),
            Op::BarrierAfter => "barrier_after".into(),
            Op::AllGather { .. } => "all_gather".into(),
            Op::ReduceScatter { .. } => "reduce_scatter".into(),
            Op::DynamicSlice { .. } => "dynamic_slice".into(),
            Op::DynamicUpdateSlice { .. } => "dynamic_update_slice".into(),
            // The name is in the metadata of modules, and so in their bytes.
            Op::AllReduceMax(_) => "all_max".into(),
            Op::ToHost => "to_host".into(),
            Op::ToDevice => "to_device".into(),
            Op::Composite(composite) => composite.name().into(),
            Op::PassStep(step) => format!("step_{}", step.name()),
        }
    }

    /// The call of this kind that the operation is.
    pub fn call<K: CallKind>(&self) -> Option<&K> {
        match self {
            Op::Call(call) => K::of(call),
            _ => None,
        }
    }
}
