//! Calls of the CPU plugin's own kernels (`native/cpp/kernels`), with their attributes and the shapes of
//! their results. The passes and `nn/` record them for [`Target::Cpu`](crate::Target).

use super::{Attention, Binary, DynamicMap, F64, Gelu, Norm, NormKind, Unary};
use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

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
    /// Products of bf16 as f32 on AVX-512, widened where they are packed; f32 operands are rounded.
    Avx512WidenedBf16,
    /// Products of f32 on AVX2.
    Avx2F32,
}

impl CpuKernel {
    /// All of them; of one type the best first.
    pub const ALL: [CpuKernel; 6] = [
        CpuKernel::AmxBf16,
        CpuKernel::Avx512Bf16,
        CpuKernel::Avx512WidenedBf16,
        CpuKernel::AmxF32,
        CpuKernel::Avx512F32,
        CpuKernel::Avx2F32,
    ];

    /// The type of the products: bf16 or f32. A kernel for bf16 takes and gives f32 too.
    pub fn dtype(self) -> DType {
        match self {
            CpuKernel::AmxBf16 | CpuKernel::Avx512Bf16 | CpuKernel::Avx512WidenedBf16 => {
                DType::BF16
            }
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
            CpuKernel::Avx512WidenedBf16 => 5,
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
            CpuKernel::Avx512WidenedBf16 => "avx512-widened-bf16-1",
            CpuKernel::Avx2F32 => "avx2-f32-2",
        }
    }

    /// Its name alone, as people write it.
    pub fn kind(self) -> &'static str {
        let name = self.name();
        name.rsplit_once('-').map_or(name, |(kind, _)| kind)
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
/// results of forward besides; behind them the operand of the key mask and the key of the dropout
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
    pub const NAME: &'static str = "attention-3";

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
/// pass over memory. Operands are f32, bf16 or u8 arrays of `dims`, f32 arrays of `blocks` or `f32[]`; every value in
/// between is f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnePass {
    /// The dimensions of every array operand and result.
    pub dims: Vec<usize>,
    /// The dimensions of operands and results with an element for each block of 256; none: there are no
    /// such.
    pub blocks: Vec<usize>,
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
    /// [`BlockCodes::Decode`] of codes and scales.
    Decode(DynamicMap, u32, u32),
    /// [`BlockCodes::Scales`] with this floor.
    Scales(F64, u32),
    /// [`BlockCodes::Encode`] of values and scales.
    Encode(DynamicMap, u32, u32),
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
    /// An array in f32, bf16 or u8; it takes the place of this operand, if one is named, which nothing
    /// else may need any more.
    Array(DType, Option<u32>),
    /// The same of an f32 array with an element for each block.
    Blocks(Option<u32>),
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
            PassForm::Blocks(_) => Shape::new(DType::F32, &self.blocks[..]),
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
    /// The operands of [`Composite::Norm`](super::Composite::Norm); gives f32 or bf16.
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
