//! Scaled dot-product attention (Vaswani et al. 2017) over `[B, H, T, D]` queries and
//! `[B, K, S, D]` keys and values, where K divides H: H / K consecutive query heads share a key and
//! value head (Ainslie et al. 2023, "GQA"), in the matmuls as more rows of that head's queries.
//!
//! P = softmax(scale * q k^T, masked), out = dropout(P) v; a soft cap bends the scores before they
//! are masked. Blocked scores become the type's lowest
//! finite value, as in transformers, so a row with no visible key is uniform instead of NaN; there
//! too a key counts for nothing if both the window and the key mask block it (transformers adds the
//! two lowest values up). In the backward pass sum(dP * P) over the keys is taken as sum(dy * out)
//! over D, which is the same number read from a smaller array (Dao et al. 2022).
//!
//! Over 16-bit operands the four matmuls take 16-bit operands and sum up in f32; scores, softmax
//! and everything between the matmuls is f32.

use super::fused_attention;
use super::kernel_attention::{self, MaskSource};
use super::window_blocks::Blocks;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Attention, AttentionOperand, Comparison, Composite, KeyMask, Op};
use crate::ops::rule::{Inferred, Vjp, expect, float};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

impl Attention {
    fn operand_count(&self) -> usize {
        3 + usize::from(self.key_mask.is_some()) + usize::from(self.dropout.is_some())
    }
}

pub(crate) fn infer(attention: &Attention, operands: &[&Shape]) -> Inferred {
    if operands.len() != attention.operand_count() {
        return Err(format!(
            "takes {} operands, got {}",
            attention.operand_count(),
            operands.len()
        ));
    }
    let (q, k, v) = (operands[0], operands[1], operands[2]);
    float(q)?;
    if q.rank() != 4 || k.rank() != 4 {
        return Err(format!(
            "needs q, k and v of [B, H, T, D], got {q}, {k} and {v}"
        ));
    }
    let [b, h, t, d] = [q.dims[0], q.dims[1], q.dims[2], q.dims[3]];
    let [kv_heads, s] = [k.dims[1], k.dims[2]];
    if kv_heads == 0 || !h.is_multiple_of(kv_heads) {
        return Err(format!(
            "{h} query heads do not divide between {kv_heads} key and value heads"
        ));
    }
    expect("the keys", k, q.dtype, &[b, kv_heads, s, d])?;
    expect("the values", v, q.dtype, &[b, kv_heads, s, d])?;
    attention.check_key_mask(operands.get(3).copied(), [b, t, s])?;
    if attention.dropout.is_some() {
        expect(
            "the dropout mask",
            operands[operands.len() - 1],
            DType::Pred,
            &[b, h, t, s],
        )?;
    }
    Ok(q.clone())
}

pub(crate) fn infer_grad(
    attention: &Attention,
    operand: AttentionOperand,
    operands: &[&Shape],
) -> Inferred {
    let (dy, rest) = operands
        .split_last()
        .ok_or("takes the attention's operands and dy")?;
    let out = infer(attention, rest)?;
    expect("the gradient", dy, out.dtype, &out.dims)?;
    Ok(rest[operand as usize].clone())
}

pub(crate) fn vjp(v: &Vjp, attention: &Attention) -> Result<Vec<Option<Tensor>>> {
    let mut grads = vec![None; v.operands.len()];
    for (i, operand) in [
        AttentionOperand::Query,
        AttentionOperand::Key,
        AttentionOperand::Value,
    ]
    .into_iter()
    .enumerate()
    {
        grads[i] = v.when(i, || {
            let others: Vec<&Tensor> = v.operands[1..].iter().chain([v.dy]).collect();
            v.operands[0].apply(
                Op::Composite(Composite::AttentionGrad {
                    of: *attention,
                    operand,
                }),
                &others,
            )
        })?;
    }
    Ok(grads)
}

/// The plain form's parts that the forward and the backward pass share; equal nodes are recorded
/// once.
struct Plain<'a> {
    attention: &'a Attention,
    operands: &'a [Tensor],
    /// The operands' type, which the matmuls' operands have.
    low: DType,
    /// The type of everything else.
    wide: DType,
    scaled_q: Tensor,
    /// tanh of the scores over the soft cap, `[B, H, T, S]`; `None` without one.
    tanh: Option<Tensor>,
    /// `pred[B, H, T, S]`; `None` when every query sees every key.
    visible: Option<Tensor>,
    /// Whether some query may see no key at all.
    rows_may_be_blind: bool,
    /// exp(score - the row's highest): P without its division, which costs less on the smaller
    /// `[T, D]` side of the matmuls.
    exponentials: Tensor,
    /// `[B, H, T, 1]`: what the exponentials have to be multiplied with to give P.
    normalizer: Tensor,
}

/// Which scores count.
struct Mask {
    /// Which keys each query sees, `pred[B, H, T, S]`; `None` when all.
    visible: Option<Tensor>,
    /// See [`blocked_once`].
    blocked_once: Option<Tensor>,
    /// Whether some query may see no key at all.
    rows_may_be_blind: bool,
}

impl Mask {
    /// Of whole sequences. A query may be blind by the key mask, or by a window that lies beyond the
    /// last key.
    fn new(attention: &Attention, operands: &[Tensor]) -> Result<Self> {
        let [b, h, t] = [0, 1, 2].map(|dim| operands[0].dims()[dim]);
        let keys = operands[1].dims()[2];
        let dims = [b, h, t, keys];
        let is_beyond = |window: u32| window == 0 || t > keys;
        Ok(Mask {
            visible: visible(attention, operands, &dims)?,
            blocked_once: blocked_once(attention, operands, &dims)?,
            rows_may_be_blind: attention.key_mask == KeyMask::Keys
                || attention.window.is_some_and(is_beyond),
        })
    }
}

impl<'a> Plain<'a> {
    fn new(attention: &'a Attention, operands: &'a [Tensor]) -> Result<Self> {
        let mask = Mask::new(attention, operands)?;
        Plain::masked(attention, operands, mask)
    }

    fn masked(attention: &'a Attention, operands: &'a [Tensor], mask: Mask) -> Result<Self> {
        let low = operands[0].dtype();
        let wide = if matches!(low, DType::F16 | DType::BF16) {
            DType::F32
        } else {
            low
        };
        let scaled_q = operands[0]
            .convert(wide)?
            .mul_scalar(attention.scale.get())?
            .convert(low)?;
        let mut scores = each_head(
            &by_kv_head(&scaled_q, &operands[1])?.batched(&operands[1], 3, 3, wide)?,
            &scaled_q,
        )?;
        let tanh = match attention.soft_cap {
            Some(cap) => Some(scores.mul_scalar(1.0 / cap.get())?.tanh()?),
            None => None,
        };
        if let (Some(cap), Some(tanh)) = (attention.soft_cap, &tanh) {
            scores = tanh.mul_scalar(cap.get())?;
        }
        if let Some(visible) = &mask.visible {
            let full = |value: f64| scores.trace().full(value, scores.shape());
            let mut blocked = full(lowest(scores.dtype()))?;
            if let Some(once) = &mask.blocked_once {
                // Half of the lowest is as far below every score, and as far above the lowest, as
                // it takes to weigh 0.
                blocked = once.select(&full(lowest(scores.dtype()) / 2.0)?, &blocked)?;
            }
            scores = visible.select(&scores, &blocked)?;
        }
        let exponentials = scores.sub(&scores.max(&[3])?.keep_last()?)?.exp()?;
        let sum = exponentials.sum(&[3])?.keep_last()?;
        let normalizer = sum.trace().full(1.0, sum.shape())?.div(&sum)?;
        Ok(Plain {
            attention,
            operands,
            low,
            wide,
            scaled_q,
            tanh,
            visible: mask.visible,
            rows_may_be_blind: mask.rows_may_be_blind,
            exponentials,
            normalizer,
        })
    }

    /// Applies the dropout mask to the exponentials or to the gradient of P.
    fn drop(&self, x: &Tensor) -> Result<Tensor> {
        let Some(rate) = self.attention.dropout else {
            return Ok(x.clone());
        };
        let keep = &self.operands[self.attention.operand_count() - 1];
        let zero = x.trace().full(0.0, x.shape())?;
        keep.select(&x.mul_scalar(1.0 / (1.0 - rate.get()))?, &zero)
    }

    /// `[B, H, T, D]` in the wide type.
    fn output(&self) -> Result<Tensor> {
        let values = &self.operands[2];
        let sums = by_kv_head(&self.weights()?, values)?.batched(values, 3, 2, self.wide)?;
        each_head(&sums, &self.scaled_q)?.mul(&self.normalizer)
    }

    /// P before its division, with dropout, as an operand of matmuls.
    fn weights(&self) -> Result<Tensor> {
        self.drop(&self.exponentials)?.convert(self.low)
    }

    /// The gradient of the scores, as an operand of matmuls.
    fn score_grad(&self, dy: &Tensor) -> Result<Tensor> {
        let values = &self.operands[2];
        let dp = by_kv_head(dy, values)?.batched(values, 3, 3, self.wide)?;
        let dp = self.drop(&each_head(&dp, dy)?)?;
        let projected = dy
            .convert(self.wide)?
            .mul(&self.output()?)?
            .sum(&[3])?
            .keep_last()?;
        let probabilities = self.exponentials.mul(&self.normalizer)?;
        let mut grad = probabilities.mul(&dp.sub(&projected)?)?;
        if let Some(tanh) = &self.tanh {
            grad = grad.mul(&tanh.mul(tanh)?.neg()?.add_scalar(1.0)?)?;
        }
        let grad = match &self.visible {
            // A row with no visible key is uniform whatever its scores are. Elsewhere P is 0 where
            // a score is blocked.
            Some(visible) if self.rows_may_be_blind => {
                visible.select(&grad, &grad.trace().full(0.0, grad.shape())?)?
            }
            _ => grad,
        };
        grad.convert(self.low)
    }

    /// The gradient of one operand, given that of the output.
    fn grad(&self, operand: AttentionOperand, dy: &Tensor, target: Target) -> Result<Tensor> {
        let (attention, operands, low, wide) = (self.attention, self.operands, self.low, self.wide);
        let grad = match operand {
            AttentionOperand::Query => {
                let keys = &operands[1];
                let sums = by_kv_head(&self.score_grad(dy)?, keys)?.batched(keys, 3, 2, wide)?;
                each_head(&sums, dy)?.mul_scalar(attention.scale.get())?
            }
            AttentionOperand::Key => contract_queries(
                &by_kv_head(&self.score_grad(dy)?, &operands[1])?,
                &by_kv_head(&self.scaled_q, &operands[1])?,
                wide,
                target,
            )?,
            AttentionOperand::Value => {
                let normalized = dy.convert(wide)?.mul(&self.normalizer)?.convert(low)?;
                contract_queries(
                    &by_kv_head(&self.weights()?, &operands[2])?,
                    &by_kv_head(&normalized, &operands[2])?,
                    wide,
                    target,
                )?
            }
        };
        grad.convert(low)
    }
}

/// `[B, H, T, X]` as `[B, K, H / K * T, X]`: the queries of each head of `kv`, `[B, K, S, D]`.
fn by_kv_head(x: &Tensor, kv: &Tensor) -> Result<Tensor> {
    let [b, h, t, width] = [0, 1, 2, 3].map(|dim| x.dims()[dim]);
    let kv_heads = kv.dims()[1];
    x.reshape(&[b, kv_heads, h / kv_heads * t, width])
}

/// Back from [`by_kv_head`]: with the heads and queries of `q`, `[B, H, T, D]`.
fn each_head(x: &Tensor, q: &Tensor) -> Result<Tensor> {
    x.reshape(&[q.dims()[0], q.dims()[1], q.dims()[2], x.dims()[3]])
}

/// Which keys each query sees, `pred[B, H, T, S]`; `None` when all.
fn visible(attention: &Attention, operands: &[Tensor], dims: &[usize]) -> Result<Option<Tensor>> {
    let trace = operands[0].trace();
    let mut visible: Option<Tensor> = None;
    let mut require = |mask: Tensor| -> Result<()> {
        visible = Some(match visible.take() {
            Some(earlier) => earlier.and(&mask)?,
            None => mask,
        });
        Ok(())
    };
    if attention.causal || attention.window.is_some() {
        let plane = [dims[2], dims[3]];
        let (query, key) = (
            trace.iota(DType::S32, &plane, 0)?,
            trace.iota(DType::S32, &plane, 1)?,
        );
        if attention.causal {
            require(query.compare(Comparison::Ge, &key)?.broadcast_to(dims)?)?;
        }
        if let Some(window) = attention.window {
            let oldest = query.add_scalar(-f64::from(window))?;
            require(key.compare(Comparison::Gt, &oldest)?.broadcast_to(dims)?)?;
            if !attention.causal {
                let beyond = query.add_scalar(f64::from(window))?;
                require(key.compare(Comparison::Lt, &beyond)?.broadcast_to(dims)?)?;
            }
        }
    }
    match attention.key_mask {
        KeyMask::None => {}
        KeyMask::Keys => require(operands[3].broadcast_in(dims, &[0, 3])?)?,
        KeyMask::Before => {
            let of_heads = [dims[0], dims[2], dims[3]];
            let key = trace.iota(DType::S32, &of_heads, 2)?;
            let first = operands[3].broadcast_in(&of_heads, &[0, 1])?;
            let is_own = key.compare(Comparison::Ge, &first)?;
            require(is_own.broadcast_in(dims, &[0, 2, 3])?)?;
        }
    }
    Ok(visible)
}

/// Where the window and the key mask do not both block, `pred[B, H, T, S]`; `None` when only one of
/// them is there. A key after the query is blocked by both: transformers puts the causal mask into
/// each.
fn blocked_once(
    attention: &Attention,
    operands: &[Tensor],
    dims: &[usize],
) -> Result<Option<Tensor>> {
    if attention.window.is_none() || attention.key_mask != KeyMask::Keys {
        return Ok(None);
    }
    let positions = Attention {
        key_mask: KeyMask::None,
        ..*attention
    };
    let keys = Attention {
        window: None,
        ..*attention
    };
    match (
        visible(&positions, operands, dims)?,
        visible(&keys, operands, dims)?,
    ) {
        (Some(a), Some(b)) => a.or(&b).map(Some),
        _ => Ok(None),
    }
}

/// The lowest finite value of a float type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => half::bf16::MIN.to_f64(),
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

/// `mask` is for targets that draw the dropout themselves.
pub(crate) fn expand(
    attention: &Attention,
    operands: &[Tensor],
    target: Target,
    mask: &MaskSource,
) -> Result<Tensor> {
    let (q, k) = (operands[0].shape(), operands[1].shape());
    if fused_attention::applies(attention, q, k, target) {
        return fused_attention::expand(attention, operands, mask.stream);
    }
    if let Some(kernel) = kernel_attention::kernel(attention, q, k, mask, target) {
        return kernel_attention::expand(attention, kernel, operands, mask);
    }
    if let Some(blocks) = Blocks::of(attention, q, k) {
        let cut = cut(&blocks, attention, operands)?;
        let plain = Plain::masked(attention, &cut.operands, cut.mask)?;
        return blocks.sequences(&plain.output()?.convert(plain.low)?);
    }
    let plain = Plain::new(attention, operands)?;
    plain.output()?.convert(plain.low)
}

/// Attention with the blocks of a window as entries of the batch.
struct Cut {
    /// q `[B * N, H, L, D]`, k and v `[B * N, K, S, D]`.
    operands: [Tensor; 3],
    mask: Mask,
}

fn cut(blocks: &Blocks, attention: &Attention, operands: &[Tensor]) -> Result<Cut> {
    let q = &operands[0];
    let key_mask = attention.key_mask.is_some().then(|| &operands[3]);
    let visible = blocks.visible(attention, q.trace(), [q.dims()[0], q.dims()[1]], key_mask)?;
    Ok(Cut {
        operands: [
            blocks.queries(q)?,
            blocks.neighbours(&operands[1])?,
            blocks.neighbours(&operands[2])?,
        ],
        mask: Mask {
            visible: Some(visible),
            blocked_once: None,
            rows_may_be_blind: attention.key_mask == KeyMask::Keys || blocks.has_padding(),
        },
    })
}

/// `sum over t of p[.., t, s] * x[.., t, d]`: `[B, K, S, D]` from `[B, K, T, S]` and
/// `[B, K, T, D]`.
///
/// XLA's CPU multiplies five times slower when the left side contracts its first dimension. So the
/// small operand is turned, the product taken in the fast orientation and turned back; the barrier
/// keeps XLA from folding the first turn into the product. Where operands are 16-bit floats, the
/// sums (`wide`) are rounded to their type first, which keeps the second turn apart as well.
fn contract_queries(p: &Tensor, x: &Tensor, wide: DType, target: Target) -> Result<Tensor> {
    if target.transposes_matmuls() {
        x.transpose(&[0, 1, 3, 2])?
            .barrier()?
            .batched(p, 3, 2, wide)?
            .convert(x.dtype())?
            .transpose(&[0, 1, 3, 2])
    } else {
        p.batched(x, 2, 2, wide)
    }
}

pub(crate) fn expand_grad(
    attention: &Attention,
    operand: AttentionOperand,
    operands: &[Tensor],
    target: Target,
    mask: &MaskSource,
) -> Result<Tensor> {
    let (q, k) = (operands[0].shape(), operands[1].shape());
    if fused_attention::applies(attention, q, k, target) {
        return fused_attention::expand_grad(attention, operand, operands, mask.stream);
    }
    if let Some(kernel) = kernel_attention::kernel(attention, q, k, mask, target) {
        return kernel_attention::expand_grad(attention, kernel, operand, operands, mask);
    }
    let (dy, operands) = operands.split_last().expect("the shape rule has seen dy");
    let Some(blocks) = Blocks::of(attention, operands[0].shape(), operands[1].shape()) else {
        let plain = Plain::new(attention, operands)?;
        return plain.grad(operand, dy, target);
    };
    let cut = cut(&blocks, attention, operands)?;
    let plain = Plain::masked(attention, &cut.operands, cut.mask)?;
    let grad = plain.grad(operand, &blocks.queries(dy)?, target)?;
    match operand {
        AttentionOperand::Query => blocks.sequences(&grad),
        AttentionOperand::Key | AttentionOperand::Value => blocks.sum_of_neighbours(&grad),
    }
}

impl Tensor {
    /// Attention of these queries `[B, H, T, D]` over `k` and `v` `[B, K, S, D]`, where K divides
    /// H and H / K consecutive query heads share a key and value head; `keep` (`pred[B, H, T, S]`) is
    /// the mask of the dropout. The type of `key_mask` says what it hides (see [`KeyMask`]).
    ///
    /// # Errors
    /// If the shapes or types do not match.
    #[track_caller]
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        key_mask: Option<&Tensor>,
        keep: Option<&Tensor>,
        attributes: Attention,
    ) -> Result<Tensor> {
        let attributes = Attention {
            key_mask: match key_mask.map(Tensor::dtype) {
                None => KeyMask::None,
                Some(DType::S32) => KeyMask::Before,
                Some(_) => KeyMask::Keys,
            },
            ..attributes
        };
        let others: Vec<&Tensor> = [Some(k), Some(v), key_mask, keep]
            .into_iter()
            .flatten()
            .collect();
        self.apply(Op::Composite(Composite::Attention(attributes)), &others)
    }
}
