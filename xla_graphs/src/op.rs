//! The operations that a graph is made of, with their attributes.
//!
//! *Primitives* have a direct HLO counterpart. [`Composite`]s keep a whole formula as one node until
//! `passes::decompose`; the emitter takes graphs of `Op<Never>`, which have none. Shape rules, gradient
//! rules and the `Tensor` methods that record an operation stand together by family in `ops/`
//! (primitives) and `nn/` (composites). The enum's order is part of the canonical format: append, never
//! reorder.

mod few_bits;
mod kernel_calls;

use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

pub use few_bits::*;
pub use kernel_calls::*;

/// An `f64` attribute that compares and hashes by its bits, so that it can be part of a
/// fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct F64(u64);

impl F64 {
    /// The attribute of this value.
    pub fn new(value: f64) -> Self {
        F64(value.to_bits())
    }

    /// Its value.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for F64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Element-wise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unary {
    /// `-x`, of integers and floats.
    Neg,
    /// `e^x`, of floats.
    Exp,
    /// Natural logarithm, of floats; NaN below 0.
    Log,
    /// `log(1 + x)`, exact near 0, of floats.
    Log1p,
    /// Hyperbolic tangent, of floats.
    Tanh,
    /// Square root, of floats.
    Sqrt,
    /// `1 / sqrt(x)`, of floats.
    Rsqrt,
    /// Error function, of floats.
    Erf,
    /// `1 / (1 + e^-x)`, of floats: sigmoid.
    Logistic,
    /// Sine of radians, of floats.
    Sin,
    /// Cosine of radians, of floats.
    Cos,
    /// `|x|`, of integers and floats.
    Abs,
    /// -1, 0 or 1 by the sign of `x`; the gradient is 0.
    Sign,
    /// Rounds floats towards minus infinity; the gradient is 0.
    Floor,
    /// Logical negation of `pred`, bitwise of integers.
    Not,
    /// Neither infinite nor NaN: floats to `pred`.
    IsFinite,
}

/// Element-wise functions of two operands of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Binary {
    /// `a + b`, of integers and floats; integers wrap.
    Add,
    /// `a - b`, of integers and floats; integers wrap.
    Sub,
    /// `a * b`, of integers and floats; integers wrap.
    Mul,
    /// `a / b`; integers round towards 0.
    Div,
    /// The larger of two; NaN if one is NaN. The gradient of a tie goes to the first operand.
    Max,
    /// The smaller of two; NaN if one is NaN. The gradient of a tie goes to the first operand.
    Min,
    /// `a^b`, of floats.
    Pow,
    /// The remainder of `a / b`, with the sign of `a`; it has no gradient rule.
    Rem,
    /// Logical and of `pred`, bitwise of integers.
    And,
    /// Logical or of `pred`, bitwise of integers.
    Or,
    /// Logical exclusive or of `pred`, bitwise of integers.
    Xor,
    /// `a << b`, of integers; 0 from a shift by the word's size on.
    ShiftLeft,
    /// `a >> b` with zeros shifted in, of integers; 0 from a shift by the word's size on.
    ShiftRightLogical,
}

/// Orders of two operands of one shape; the result is `pred`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Comparison {
    /// `a == b`; false if one is NaN.
    Eq,
    /// `a != b`; true if one is NaN.
    Ne,
    /// `a < b`; false if one is NaN.
    Lt,
    /// `a <= b`; false if one is NaN.
    Le,
    /// `a > b`; false if one is NaN.
    Gt,
    /// `a >= b`; false if one is NaN.
    Ge,
}

/// How elements along the reduced dimensions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Added up; 0 of no elements.
    Sum,
    /// The largest; minus infinity (or the least integer) of no elements.
    Max,
    /// The smallest; infinity (or the largest integer) of no elements.
    Min,
}

/// A scalar constant's value; the element type is the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scalar {
    /// Of the float types; rounded to the node's.
    Float(F64),
    /// Of the integer types.
    Int(i64),
    /// Of `pred`.
    Bool(bool),
}

/// Contracting and batch dimensions of a general dot product, as `DotDimensionNumbers` has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct DotDims {
    /// Dimensions of the left operand that are summed over, in pairs with `rhs_contracting`.
    pub lhs_contracting: Vec<usize>,
    /// Dimensions of the right operand that are summed over.
    pub rhs_contracting: Vec<usize>,
    /// Dimensions of the left operand that both have, in pairs with `rhs_batch`; first in the
    /// result.
    pub lhs_batch: Vec<usize>,
    /// Dimensions of the right operand that both have.
    pub rhs_batch: Vec<usize>,
}

/// The two forms of the Gaussian error linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Gelu {
    /// `x * 0.5 * (1 + erf(x / sqrt 2))`: transformers' `gelu`.
    Erf,
    /// The tanh approximation: `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`.
    Tanh,
}

/// Scaled dot-product attention of queries `[B, H, T, D]` over keys and values `[B, K, S, D]`.
///
/// Operands in order: q, k, v, then the operand of `key_mask` if it has one, then
/// `keep` (`pred[B, H, T, S]`) if `dropout` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// Factor on the scores before the softmax.
    pub scale: F64,
    /// Query t sees keys 0..=t only.
    pub causal: bool,
    /// Query t sees only keys less than this far from it: with `causal` this many last keys, itself
    /// included (GPT-Neo's local layers), else as many to each side (ModernBERT's).
    pub window: Option<u32>,
    /// What an operand hides.
    pub key_mask: KeyMask,
    /// Share of the probabilities that is dropped; the kept ones are divided by `1 - dropout`.
    pub dropout: Option<F64>,
    /// Scaled scores s become `cap * tanh(s / cap)` before they are masked (Gemma 2).
    pub soft_cap: Option<F64>,
}

/// What an operand of an [`Attention`] hides from queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyMask {
    /// Nothing; there is no such operand.
    #[default]
    None,
    /// `pred[B, S]`: from every query the keys where it is false, such as padding.
    Keys,
    /// `s32[B, T]`: from each query the keys before this one, which is at most its own: those of the
    /// examples that are packed before its own into the row. Only with `causal`, where T is S.
    Before,
}

impl KeyMask {
    /// Whether there is such an operand.
    pub fn is_some(self) -> bool {
        self != KeyMask::None
    }

    /// As calls of the CPU plugin have it.
    pub fn number(self) -> u32 {
        match self {
            KeyMask::None => 0,
            KeyMask::Keys => 1,
            KeyMask::Before => 2,
        }
    }
}

/// Attention as a vendor's library computes it in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedAttention {
    /// As [`Attention::scale`].
    pub scale: F64,
    /// As [`Attention::causal`].
    pub causal: bool,
    /// As [`Attention::window`], shorter than the keys; only with `causal`.
    pub window: Option<u32>,
    /// Something is added to the scores: a mask, in numbers.
    pub bias: bool,
    /// `None`: nothing is dropped.
    pub dropout: Option<FusedDropout>,
}

/// Dropout inside of a vendor's call, with masks of the library's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedDropout {
    /// Share of the probabilities that is dropped.
    pub rate: F64,
    /// Tells the attentions of a graph apart; forward and backward call of one have the same.
    pub seed: u32,
}

/// A normalization over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Norm {
    /// What it divides by.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: F64,
}

/// What a [`Norm`] divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormKind {
    /// The standard deviation, after the mean is subtracted (Ba et al. 2016, "Layer normalization").
    Layer,
    /// The root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Which operand of a [`Norm`] a gradient node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormOperand {
    /// Gives dx.
    Input,
    /// Gives dgamma, `[C]`.
    Scale,
    /// Gives dbeta, `[C]`; of a LayerNorm only.
    Shift,
}

/// Which operand of an attention a gradient node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttentionOperand {
    /// Gives dq, `[B, H, T, D]`.
    Query,
    /// Gives dk, `[B, K, S, D]`.
    Key,
    /// Gives dv, `[B, K, S, D]`.
    Value,
}

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
    /// Operands as [`Attention`] lists them; gives `[B, H, T, D]`.
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
    /// Operands as [`Dequantize`] lists them; gives values in f32.
    Dequantize(Dequantize),
}

/// No composite: the type of those of a graph that consists of primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Never {}

/// What a node computes: a primitive, which has an HLO instruction, or a composite. Shapes are
/// inferred by `Op::infer` (`ops/mod.rs`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op<C = Composite> {
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

    // Calls have several results and stand for their first; only `GetTupleElement` reads them. They are a
    // target's own (`nn/fused_attention.rs`).
    /// Operands q, k, v `[B, T, H, D]` and, if there is one, the bias `[B, 1, T, S]`; gives
    /// `[B, H, T, D]` and statistics `f32[B, H, T]`.
    FusedAttention(FusedAttention),
    /// Operands q, k, v, statistics, dy, bias, output, all but statistics and bias `[B, T, H, D]`;
    /// gives the gradients of q, k and v as `[B, H, T, D]`.
    FusedAttentionGrad(FusedAttention),
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
    Composite(C),
    /// A matmul by a kernel of the CPU plugin's own (`passes/cpu_kernels.rs`), in its target's
    /// graphs only.
    KernelMatmul(Box<KernelMatmul>),
    /// Attention or its gradients by the CPU plugin (`nn/kernel_attention.rs`), in its target's graphs
    /// only; backward a call with several results.
    KernelAttention(Box<KernelAttention>),
    /// Several element-wise results at once, by the CPU plugin (`passes/one_pass.rs`), in its target's
    /// graphs only; a call with several results.
    OnePass(Box<OnePass>),
    /// Cross-entropy by the CPU plugin (`nn/loss.rs`), in its target's graphs only.
    KernelCrossEntropy(KernelCrossEntropy),
    /// A normalization or its gradients by the CPU plugin (`nn/norm.rs`), in its target's graphs only;
    /// backward a call with several results.
    KernelNorm(Box<KernelNorm>),
    /// A GELU or its gradient by the CPU plugin (`nn/gelu.rs`), in its target's graphs only.
    KernelGelu(Box<KernelGelu>),
}

/// Which replicas a collective goes between.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaGroups {
    /// Replica numbers; every replica is in exactly one group, and all groups have one size.
    pub groups: Vec<Vec<u32>>,
    /// Collectives that stand side by side under one number become one instruction, so that small
    /// tensors share its cost.
    pub bucket: u32,
}

/// The composites of a graph: [`Composite`] or [`Never`].
pub trait Composites {
    /// As [`Op::name`].
    fn name(&self) -> &'static str;
}

impl Composites for Never {
    fn name(&self) -> &'static str {
        match *self {}
    }
}

impl Composites for Composite {
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
        }
    }
}

impl<C: Composites> Op<C> {
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
            Op::FusedAttention(_) => "fused_attention".into(),
            Op::FusedAttentionGrad(_) => "fused_attention_grad".into(),
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
            Op::KernelMatmul(_) => "kernel_matmul".into(),
            Op::KernelAttention(call) if call.is_backward() => "kernel_attention_grad".into(),
            Op::KernelAttention(_) => "kernel_attention".into(),
            Op::OnePass(_) => "one_pass".into(),
            Op::KernelCrossEntropy(KernelCrossEntropy::LogSumExp) => "kernel_log_sum_exp".into(),
            Op::KernelCrossEntropy(KernelCrossEntropy::Gradient(_)) => {
                "kernel_cross_entropy_grad".into()
            }
            Op::KernelNorm(call) => match call.part {
                KernelNormPart::Forward(_) => "kernel_norm".into(),
                KernelNormPart::Backward => "kernel_norm_grad".into(),
            },
            Op::KernelGelu(call) if call.is_gradient => "kernel_gelu_grad".into(),
            Op::KernelGelu(_) => "kernel_gelu".into(),
        }
    }

    /// The shapes of the results of a call of the CPU plugin's that has several.
    pub fn call_results(&self) -> Option<Vec<Shape>> {
        match self {
            Op::OnePass(pass) => Some(pass.result_shapes()),
            Op::KernelMatmul(call) if call.sums.is_some() => Some(call.result_shapes()),
            Op::KernelAttention(call) if !call.joins_gradients => Some(call.result_shapes()),
            Op::KernelNorm(call) if call.is_tuple() => Some(call.result_shapes()),
            _ => None,
        }
    }
}
