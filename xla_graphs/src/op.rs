//! The operations that a graph is made of, with their attributes.
//!
//! *Primitives* have a direct HLO counterpart. [`Composite`]s keep a whole formula as one node until
//! `passes::decompose`; the emitter takes graphs of `Op<Never>`, which have none. Shape rules, gradient rules and the `Tensor` methods that record an
//! operation stand together by family in `ops/` (primitives) and `nn/` (composites). The enum's
//! order is part of the canonical format: append, never reorder.

use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

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
/// Operands in order: q, k, v, then `key_mask` (`pred[B, S]`, true = visible) if `key_mask`, then
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
    /// An operand `pred[B, S]` hides the keys where it is false.
    pub key_mask: bool,
    /// Share of the probabilities that is dropped; the kept ones are divided by `1 - dropout`.
    pub dropout: Option<F64>,
    /// Scaled scores s become `cap * tanh(s / cap)` before they are masked (Gemma 2).
    pub soft_cap: Option<F64>,
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

/// A kernel of the CPU plugin's own (`native/cpp/kernels`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CpuKernel {
    /// Products of bf16 on AMX's tiles; f32 operands are rounded.
    AmxBf16,
    /// Products of f32 on AMX's tiles, each as products of the three bf16 that add up to it. What is too
    /// small for tiles, and attention, has [`CpuKernel::Avx512F32`].
    AmxF32,
    /// Products of f32 on AVX-512.
    Avx512F32,
    /// Products of pairs of bf16 on AVX-512; f32 operands are rounded.
    Avx512Bf16,
    /// Products of f32 on AVX2.
    Avx2F32,
}

impl CpuKernel {
    /// All of them; of one type the best first.
    pub const ALL: [CpuKernel; 5] = [
        CpuKernel::AmxBf16,
        CpuKernel::Avx512Bf16,
        CpuKernel::AmxF32,
        CpuKernel::Avx512F32,
        CpuKernel::Avx2F32,
    ];

    /// The type of the products: bf16 or f32. A kernel for bf16 takes and gives f32 too.
    pub fn dtype(self) -> DType {
        match self {
            CpuKernel::AmxBf16 | CpuKernel::Avx512Bf16 => DType::BF16,
            CpuKernel::AmxF32 | CpuKernel::Avx512F32 | CpuKernel::Avx2F32 => DType::F32,
        }
    }

    /// As the plugin's calls number it.
    pub fn number(self) -> i64 {
        match self {
            CpuKernel::AmxBf16 => 0,
            CpuKernel::Avx512F32 => 1,
            CpuKernel::Avx512Bf16 => 2,
            CpuKernel::Avx2F32 => 3,
            CpuKernel::AmxF32 => 4,
        }
    }

    /// Its name with the version of its results, for keys of compiled graphs: raise it when bits
    /// change.
    pub fn name(self) -> &'static str {
        match self {
            CpuKernel::AmxBf16 => "amx-bf16-2",
            CpuKernel::AmxF32 => "amx-f32-1",
            CpuKernel::Avx512F32 => "avx512-f32-2",
            CpuKernel::Avx512Bf16 => "avx512-bf16-2",
            CpuKernel::Avx2F32 => "avx2-f32-2",
        }
    }

    /// What stands in for it where its tiles are of no use; of others themselves.
    pub fn without_tiles(self) -> CpuKernel {
        match self {
            CpuKernel::AmxF32 => CpuKernel::Avx512F32,
            other => other,
        }
    }

    /// What attention of its type is built on.
    pub fn of_attention(self) -> Option<CpuKernel> {
        match self.without_tiles() {
            CpuKernel::Avx2F32 => None,
            kernel => Some(kernel),
        }
    }
}

/// What the sums of a [`KernelMatmul`] begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatmulStart {
    /// 0.
    Zero,
    /// A third operand, f32 and of the result's shape, in whose place the result comes.
    Result,
    /// A third operand, `f32[n]`: the same for every row.
    Bias,
}

impl MatmulStart {
    /// As calls have it.
    pub fn number(self) -> i64 {
        match self {
            MatmulStart::Zero => 0,
            MatmulStart::Result => 1,
            MatmulStart::Bias => 2,
        }
    }
}

/// An operand of a [`KernelMatmul`] whose sums along k are its second result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatmulSums {
    /// `f32[m]`, of A's rows.
    Rows,
    /// `f32[n]`, of B's columns.
    Columns,
}

impl MatmulSums {
    /// As calls have it; 0 for none.
    pub fn number(self) -> i64 {
        match self {
            MatmulSums::Rows => 1,
            MatmulSums::Columns => 2,
        }
    }
}

/// `C[p, q, m, n]`, the sum over k of `A[p, q, m, k] * B[p, q, k, n]`, accumulated in f32 in the
/// order of k. Operands A and B are f32 or bf16 arrays of any shape in which strides find the
/// elements, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelMatmul {
    /// What multiplies, and the type it multiplies in.
    pub kernel: CpuKernel,
    /// p, q, m, n, k.
    pub sizes: [usize; 5],
    /// p, q, m, k.
    pub a_strides: [usize; 4],
    /// p, q, k, n.
    pub b_strides: [usize; 4],
    /// p, q, m, n.
    pub c_strides: [usize; 4],
    /// What the sums begin with.
    pub start: MatmulStart,
    /// Of which operand it gives the sums along k besides: a bias's gradient with a weight's. There is one
    /// batch, and the operand does not lie along k.
    pub sums: Option<MatmulSums>,
    /// The result's.
    pub shape: Shape,
}

impl KernelMatmul {
    /// Whether each operand is contiguous along one of its own two dimensions, and the result along
    /// n, as kernels need it.
    pub fn is_contiguous(&self) -> bool {
        self.a_strides[2..].contains(&1)
            && self.b_strides[2..].contains(&1)
            && self.c_strides[3] == 1
    }

    /// The shapes of the results.
    pub fn result_shapes(&self) -> Vec<Shape> {
        let [_, _, m, n, _] = self.sizes;
        let sums = self.sums.map(|of| match of {
            MatmulSums::Rows => Shape::new(DType::F32, [m]),
            MatmulSums::Columns => Shape::new(DType::F32, [n]),
        });
        [self.shape.clone()].into_iter().chain(sums).collect()
    }
}

/// Attention as one call of the CPU plugin's: forward with operands q, k, v, backward with dy and both
/// results of forward besides; behind them the key mask (`pred[B, S]`) and the key of the dropout
/// (`u32[2]` or `u32[3]`), if the attention has them. Gives `[B, T, H, D]` and of each query the highest
/// score and what divides its exponentials (`f32[2, B, H, T]`, as `native/cpp/kernels/attention.h` has
/// them), backward the gradients of q, k and v.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelAttention {
    /// The kernel of its two matmuls.
    pub kernel: CpuKernel,
    /// Scale, mask, window, soft cap and rate of dropout.
    pub of: Attention,
    /// The random stream of its dropout.
    pub stream: u32,
    /// Random words from here on keep their probability.
    pub threshold: u32,
    /// B, H, K, T, S, D.
    pub sizes: [usize; 6],
    /// Of all arrays: f32 or bf16.
    pub dtype: DType,
    /// Of q, k, v, and backward dy and the output: where `[B, H, T, D]` lies in the operand.
    pub operands: Vec<HeadLayout>,
    /// Backward: it gives one array, in which dq, dk and dv lie as q, k and v do in theirs.
    pub joins_gradients: bool,
}

/// Where the elements of `[B, H, T, D]` lie in an array, D contiguous; in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeadLayout {
    /// Of the element `[0, 0, 0, 0]`.
    pub offset: usize,
    /// Of B, H and T.
    pub strides: [usize; 3],
}

impl HeadLayout {
    /// Of an array of these dimensions itself.
    pub(crate) fn plain(dims: &[usize]) -> Self {
        HeadLayout {
            offset: 0,
            strides: [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3]],
        }
    }
}

impl KernelAttention {
    /// The version of its results, for keys of compiled graphs: raise it when bits change.
    pub const NAME: &'static str = "attention-2";

    /// Whether it computes the gradients.
    pub fn is_backward(&self) -> bool {
        self.operands.len() > 3
    }

    /// The shape of what forward leaves for backward.
    pub(crate) fn statistics(&self) -> Shape {
        let [b, h, _, t, ..] = self.sizes;
        Shape::new(DType::F32, [2, b, h, t])
    }

    /// The shapes of the results.
    pub fn result_shapes(&self) -> Vec<Shape> {
        let [b, h, kv_heads, t, s, d] = self.sizes;
        let of_q = Shape::new(self.dtype, [b, t, h, d]);
        if !self.is_backward() {
            return vec![of_q, self.statistics()];
        }
        if self.joins_gradients {
            return vec![Shape::new(self.dtype, [b * t, self.operands[0].strides[2]])];
        }
        let of_kv = Shape::new(self.dtype, [b, s, kv_heads, d]);
        vec![of_q, of_kv.clone(), of_kv]
    }
}

/// Element-wise steps over arrays of one shape and over scalars, and sums over all their elements, in one
/// pass over memory. Operands are f32 or bf16 arrays of `dims` or `f32[]`; every value in between is f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnePass {
    /// The dimensions of every array operand and result.
    pub dims: Vec<usize>,
    /// In the order of computation.
    pub steps: Vec<Step>,
    /// What the call gives, in order.
    pub results: Vec<PassResult>,
}

/// One step of a [`OnePass`]. Values are numbered, the operands first, then the steps in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// The same f32 for every element.
    Constant(F64),
    /// The function of a value.
    Unary(Unary, u32),
    /// Rounds to bf16.
    Round(u32),
    /// The function of two values.
    Binary(Binary, u32, u32),
    /// The second where the first is not 0, else the third.
    Select(u32, u32, u32),
}

/// A result of a [`OnePass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PassResult {
    /// Number of the operand or step.
    pub value: u32,
    /// What the value becomes: an array or its sum.
    pub form: PassForm,
}

/// What a result of a [`OnePass`] is made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PassForm {
    /// An array in f32 or bf16; it takes the place of this operand, if one is named, which nothing
    /// else may need any more.
    Array(DType, Option<u32>),
    /// The sum of all elements, `f32[]`.
    Sum,
}

impl OnePass {
    /// The version of its results, for keys of compiled graphs: raise it when bits change.
    pub const NAME: &'static str = "one-pass-2";

    /// The shapes of the results.
    pub fn result_shapes(&self) -> Vec<Shape> {
        let shape = |result: &PassResult| match result.form {
            PassForm::Array(dtype, _) => Shape::new(dtype, &self.dims[..]),
            PassForm::Sum => Shape::new(DType::F32, []),
        };
        self.results.iter().map(shape).collect()
    }
}

/// A part of cross-entropy over the rows of logits, `f32[N, V]`, as a call of the CPU plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KernelCrossEntropy {
    /// Of the logits: the logarithm of the sum of each row's exponentials, `f32[N]`.
    LogSumExp,
    /// Of the logits, these logarithms, the labels (`s32[N]`) and the gradient of each row's loss
    /// (`f32[N]`): the gradient of the logits, f32 or bf16.
    Gradient(DType),
}

impl KernelCrossEntropy {
    /// The version of its results, for keys of compiled graphs: raise it when bits change.
    pub const NAME: &'static str = "cross-entropy-1";
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

/// A normalization of f32, or its gradients, as a call of the CPU plugin's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelNorm {
    /// What is computed.
    pub of: Norm,
    /// Forward, or which gradients.
    pub part: KernelNormPart,
    /// The dimensions of x.
    pub dims: Vec<usize>,
    /// Whether there is one operand more, of x's shape: forward x is the sum of the first operand and
    /// this, f32 or bf16, which is the second result; backward this, f32, is added to dx.
    pub adds: bool,
    /// Backward: whether there is one result more, dx in bf16.
    pub narrows: bool,
}

/// A part of a [`KernelNorm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KernelNormPart {
    /// The operands of [`Composite::Norm`]; gives f32 or bf16.
    Forward(DType),
    /// Operands x, gamma, dy; gives dx, dgamma and, of a LayerNorm, dbeta.
    Backward,
}

impl KernelNorm {
    /// The version of its results, for keys of compiled graphs: raise it when bits change.
    pub const NAME: &'static str = "norm-2";

    /// The shapes of the results.
    pub fn result_shapes(&self) -> Vec<Shape> {
        let (x, width) = (&self.dims[..], &self.dims[self.dims.len() - 1..]);
        let wide = |dims: &[usize]| Shape::new(DType::F32, dims);
        match self.part {
            KernelNormPart::Forward(dtype) => {
                let sum = self.adds.then(|| wide(x));
                [Shape::new(dtype, x)].into_iter().chain(sum).collect()
            }
            KernelNormPart::Backward => {
                let shift = (self.of.kind == NormKind::Layer).then(|| wide(width));
                let narrow = self.narrows.then(|| Shape::new(DType::BF16, x));
                let all = [wide(x), wide(width)].into_iter().chain(shift);
                all.chain(narrow).collect()
            }
        }
    }

    /// Whether it has several results.
    pub fn is_tuple(&self) -> bool {
        self.adds || self.part == KernelNormPart::Backward
    }
}

/// A GELU or its gradient as a call of the CPU plugin's: operands x and, of the gradient, dy, both f32 or
/// both bf16.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelGelu {
    /// Which form.
    pub of: Gelu,
    /// Whether the gradient is computed.
    pub is_gradient: bool,
    /// What it gives, in f32 or bf16.
    pub shape: Shape,
}

impl KernelGelu {
    /// The version of its results, for keys of compiled graphs: raise it when bits change.
    pub const NAME: &'static str = "gelu-1";
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
