//! Attention as one call of the CPU plugin's, forward and backward (`native/cpp/kernels/attention.h`):
//! the scores are never an array, what a causal mask or a window hides is not computed, and
//! dropout is drawn inside, by the same generator as everywhere else (`dropout.rs`), so that masks
//! are the same.
//!
//! The call reads queries, keys and values where a projection wrote them, even the three side by
//! side, and writes `[B, T, H, D]`, which is what the next projection reads.

use super::call_result;
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{
    Attention, AttentionOperand, AttentionOperands, CpuKernel, HeadLayout, KernelAttention, Op,
};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

/// Between `[B, H, T, D]` and `[B, T, H, D]`.
const TURN: [usize; 4] = [0, 2, 1, 3];

/// The kernel that computes this attention over `q` and `k` (`[B, H, T, D]`, `[B, K, S, D]`);
/// `None` where it is better off, or only defined, as operations.
pub(crate) fn kernel(
    attention: &Attention,
    q: &Shape,
    k: &Shape,
    target: Target,
) -> Option<CpuKernel> {
    let Target::Cpu(kernels) = target else {
        return None;
    };
    if !kernels.calls.has::<KernelAttention>() {
        return None;
    }
    let kernel = match q.dtype {
        DType::F32 => kernels.f32?,
        DType::BF16 => kernels.bf16?,
        _ => return None,
    };
    let [b, t, d] = [0, 2, 3].map(|dim| q.dims[dim]);
    let s = k.dims[2];
    let draws = attention.dropout.is_none_or(|dropout| dropout.is_drawn);
    // Elsewhere a query may see no key at all without a mask.
    let sees = attention.window.is_none_or(|window| window > 0 && t <= s);
    let pays = CostModel::of(kernels).attention_pays(t, s) && d > 0 && b > 0;
    kernel.of_attention().filter(|_| draws && sees && pays)
}

/// `x`, `[B, H, T, D]`, as an operand of a call: what it is made from, and how it lies there.
fn strided(x: &Tensor) -> Result<(Tensor, HeadLayout)> {
    let operand = |x: &Tensor| x.trace().tensor(x.node().operands[0]);
    let mut base = x.clone();
    // Dimension i of x is dimension map[i] of the base.
    let mut map = [0, 1, 2, 3];
    loop {
        match base.node().op {
            Op::Transpose(perm) => {
                map = map.map(|dim| perm[dim]);
                base = operand(&base);
            }
            // What is converted behind a transposition is converted before it.
            Op::Convert(dtype) => {
                let turned = operand(&base);
                let Op::Transpose(perm) = turned.node().op else {
                    break;
                };
                map = map.map(|dim| perm[dim]);
                base = operand(&turned).convert(dtype)?;
            }
            _ => break,
        }
    }
    if map[3] != 3 {
        return Ok((x.clone(), HeadLayout::plain(x.dims())));
    }
    // Strides and offset of the base in what it is a part of: columns of a matrix, by rows of
    // B x T.
    let dims = [0, 1, 2, 3].map(|dim| base.dims()[dim]);
    let columns = dims[2] * dims[3];
    let mut strides = [dims[1] * columns, columns, dims[3]];
    let mut offset = 0;
    if let Op::Reshape(_) = base.node().op {
        let matrix = operand(&base);
        if let Op::Slice { starts, .. } = matrix.node().op
            && matrix.dims() == [dims[0] * dims[1], columns]
            && starts[0] == 0
            && operand(&matrix).dims()[0] == matrix.dims()[0]
        {
            base = operand(&matrix);
            strides[0] = dims[1] * base.dims()[1];
            strides[1] = base.dims()[1];
            offset = starts[1];
        }
    }
    let layout = HeadLayout {
        offset,
        strides: [map[0], map[1], map[2]].map(|dim| strides[dim]),
    };
    Ok((base, layout))
}

/// Records a call over the attention's operands, and backward over dy, forward's output
/// (`[B, H, T, D]`) and its statistics.
fn call(
    attention: &Attention,
    kernel: CpuKernel,
    x: &AttentionOperands<Tensor>,
    backward: Option<[&Tensor; 3]>,
) -> Result<Tensor> {
    let (q, k) = (x.q.dims(), x.k.dims());
    let more = backward.iter().flat_map(|[dy, out, _]| [*dy, *out]);
    let arrays = [&x.q, &x.k, &x.v].into_iter().chain(more).map(strided);
    let arrays = arrays.collect::<Result<Vec<_>>>()?;
    let (mut all, layouts): (Vec<Tensor>, Vec<HeadLayout>) = arrays.into_iter().unzip();
    all.extend(backward.map(|[.., statistics]| statistics.clone()));
    all.extend(x.key_mask.clone());
    all.extend(x.dropout.clone());
    let of = KernelAttention {
        kernel,
        of: *attention,
        sizes: [q[0], q[1], k[1], q[2], k[2], q[3]],
        dtype: x.q.dtype(),
        operands: layouts,
        joins_gradients: false,
    };
    let trace = all[0].trace().clone();
    trace.call(of, &all.iter().collect::<Vec<&Tensor>>())
}

pub(crate) fn expand(
    attention: &Attention,
    kernel: CpuKernel,
    x: &AttentionOperands<Tensor>,
) -> Result<Tensor> {
    let call = call(attention, kernel, x, None)?;
    call_result(&call, 0)?.transpose(&TURN)
}

/// Both calls are recorded for each gradient, and are one each.
pub(crate) fn expand_grad(
    attention: &Attention,
    kernel: CpuKernel,
    operand: AttentionOperand,
    x: &AttentionOperands<Tensor>,
    dy: &Tensor,
) -> Result<Tensor> {
    let forward = call(attention, kernel, x, None)?;
    let out = call_result(&forward, 0)?.transpose(&TURN)?;
    let left = [dy, &out, &call_result(&forward, 1)?];
    let call = call(attention, kernel, x, Some(left))?;
    call_result(&call, operand as usize)?.transpose(&TURN)
}
