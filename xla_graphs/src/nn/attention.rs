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

use super::window_blocks::Blocks;
use super::{dropout, fused_attention, kernel_attention};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::checks::random_key;
use crate::op::{
    Attention, AttentionDropout, AttentionOperand, AttentionOperands, Comparison, Composite,
    KeyMask, Op,
};
use crate::ops::rule::{Inferred, Vjp, expect, float};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

pub(crate) fn infer(attention: &Attention, operands: &[&Shape]) -> Inferred {
    check(attention, &attention.operands(operands, false)?)
}

/// The result's shape.
fn check(attention: &Attention, x: &AttentionOperands<&Shape>) -> Inferred {
    let (q, k, v) = (x.q, x.k, x.v);
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
    attention.check_key_mask(x.key_mask, [b, t, s])?;
    match (attention.dropout, x.dropout) {
        (Some(dropout), Some(key)) if dropout.is_drawn => random_key(key)?,
        (_, Some(mask)) => expect("the dropout mask", mask, DType::Pred, &[b, h, t, s])?,
        (_, None) => {}
    }
    Ok(q.clone())
}

pub(crate) fn infer_grad(
    attention: &Attention,
    operand: AttentionOperand,
    operands: &[&Shape],
) -> Inferred {
    let x = attention.operands(operands, true)?;
    let out = check(attention, &x)?;
    let dy = x.dy.ok_or("takes the gradient of its result")?;
    expect("the gradient", dy, out.dtype, &out.dims)?;
    Ok((*x.get(operand)).clone())
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
    x: &'a AttentionOperands<Tensor>,
    /// The probabilities that dropout keeps, `pred[B, H, T, S]`.
    keep: Option<Tensor>,
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
    fn new(attention: &Attention, x: &AttentionOperands<Tensor>) -> Result<Self> {
        let [b, h, t] = [0, 1, 2].map(|dim| x.q.dims()[dim]);
        let keys = x.k.dims()[2];
        let dims = [b, h, t, keys];
        let is_beyond = |window: u32| window == 0 || t > keys;
        Ok(Mask {
            visible: visible(attention, x, &dims)?,
            blocked_once: blocked_once(attention, x, &dims)?,
            rows_may_be_blind: attention.key_mask == KeyMask::Keys
                || attention.window.is_some_and(is_beyond),
        })
    }
}

impl<'a> Plain<'a> {
    fn new(
        attention: &'a Attention,
        x: &'a AttentionOperands<Tensor>,
        target: Target,
    ) -> Result<Self> {
        let mask = Mask::new(attention, x)?;
        let keep = keep_mask(attention, x, target)?;
        Ok(Plain {
            keep,
            ..Plain::masked(attention, x, mask)?
        })
    }

    /// Without dropout.
    fn masked(
        attention: &'a Attention,
        x: &'a AttentionOperands<Tensor>,
        mask: Mask,
    ) -> Result<Self> {
        let low = x.q.dtype();
        let wide = if matches!(low, DType::F16 | DType::BF16) {
            DType::F32
        } else {
            low
        };
        let scaled_q = (x.q)
            .convert(wide)?
            .mul_scalar(attention.scale.get())?
            .convert(low)?;
        let mut scores = each_head(
            &by_kv_head(&scaled_q, &x.k)?.batched(&x.k, 3, 3, wide)?,
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
            x,
            keep: None,
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
        let (Some(dropout), Some(keep)) = (self.attention.dropout, &self.keep) else {
            return Ok(x.clone());
        };
        let zero = x.trace().full(0.0, x.shape())?;
        keep.select(&x.mul_scalar(1.0 / (1.0 - dropout.rate.get()))?, &zero)
    }

    /// `[B, H, T, D]` in the wide type.
    fn output(&self) -> Result<Tensor> {
        let values = &self.x.v;
        let sums = by_kv_head(&self.weights()?, values)?.batched(values, 3, 2, self.wide)?;
        each_head(&sums, &self.scaled_q)?.mul(&self.normalizer)
    }

    /// P before its division, with dropout, as an operand of matmuls.
    fn weights(&self) -> Result<Tensor> {
        self.drop(&self.exponentials)?.convert(self.low)
    }

    /// The gradient of the scores, as an operand of matmuls.
    fn score_grad(&self, dy: &Tensor) -> Result<Tensor> {
        let values = &self.x.v;
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
        let (attention, x, low, wide) = (self.attention, self.x, self.low, self.wide);
        let grad = match operand {
            AttentionOperand::Query => {
                let keys = &x.k;
                let sums = by_kv_head(&self.score_grad(dy)?, keys)?.batched(keys, 3, 2, wide)?;
                each_head(&sums, dy)?.mul_scalar(attention.scale.get())?
            }
            AttentionOperand::Key => contract_queries(
                &by_kv_head(&self.score_grad(dy)?, &x.k)?,
                &by_kv_head(&self.scaled_q, &x.k)?,
                wide,
                target,
            )?,
            AttentionOperand::Value => {
                let normalized = dy.convert(wide)?.mul(&self.normalizer)?.convert(low)?;
                contract_queries(
                    &by_kv_head(&self.weights()?, &x.v)?,
                    &by_kv_head(&normalized, &x.v)?,
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
fn visible(
    attention: &Attention,
    x: &AttentionOperands<Tensor>,
    dims: &[usize],
) -> Result<Option<Tensor>> {
    let trace = x.q.trace();
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
    match (attention.key_mask, &x.key_mask) {
        (KeyMask::None, _) | (_, None) => {}
        (KeyMask::Keys, Some(mask)) => require(mask.broadcast_in(dims, &[0, 3])?)?,
        (KeyMask::Before, Some(first)) => {
            let of_heads = [dims[0], dims[2], dims[3]];
            let key = trace.iota(DType::S32, &of_heads, 2)?;
            let first = first.broadcast_in(&of_heads, &[0, 1])?;
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
    x: &AttentionOperands<Tensor>,
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
    match (visible(&positions, x, dims)?, visible(&keys, x, dims)?) {
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

/// The mask of the dropout, `pred[B, H, T, S]`; `None` without one.
fn keep_mask(
    attention: &Attention,
    x: &AttentionOperands<Tensor>,
    target: Target,
) -> Result<Option<Tensor>> {
    let (Some(dropout), Some(operand)) = (attention.dropout, &x.dropout) else {
        return Ok(None);
    };
    if !dropout.is_drawn {
        return Ok(Some(operand.clone()));
    }
    let dims = [x.q.dims()[0], x.q.dims()[1], x.q.dims()[2], x.k.dims()[2]];
    dropout::expand_attention_mask(operand, &dims, dropout, target).map(Some)
}

/// The operands of a node that was recorded.
fn named(
    attention: &Attention,
    operands: &[Tensor],
    is_gradient: bool,
) -> AttentionOperands<Tensor> {
    let named = attention.operands(operands, is_gradient);
    named.expect("the shape rule has seen the operands")
}

pub(crate) fn expand(attention: &Attention, operands: &[Tensor], target: Target) -> Result<Tensor> {
    let x = &named(attention, operands, false);
    let (q, k) = (x.q.shape(), x.k.shape());
    if fused_attention::applies(attention, q, k, target) {
        return fused_attention::expand(attention, x);
    }
    if let Some(kernel) = kernel_attention::kernel(attention, q, k, target) {
        return kernel_attention::expand(attention, kernel, x);
    }
    if let Some(blocks) = Blocks::of(attention, q, k) {
        let cut = cut(&blocks, attention, x)?;
        let plain = Plain::masked(attention, &cut.operands, cut.mask)?;
        return blocks.sequences(&plain.output()?.convert(plain.low)?);
    }
    let plain = Plain::new(attention, x, target)?;
    plain.output()?.convert(plain.low)
}

/// Attention with the blocks of a window as entries of the batch.
struct Cut {
    /// q `[B * N, H, L, D]`, k and v `[B * N, K, S, D]`.
    operands: AttentionOperands<Tensor>,
    mask: Mask,
}

fn cut(blocks: &Blocks, attention: &Attention, x: &AttentionOperands<Tensor>) -> Result<Cut> {
    let (sizes, key_mask) = ([x.q.dims()[0], x.q.dims()[1]], x.key_mask.as_ref());
    let visible = blocks.visible(attention, x.q.trace(), sizes, key_mask)?;
    Ok(Cut {
        operands: AttentionOperands {
            q: blocks.queries(&x.q)?,
            k: blocks.neighbours(&x.k)?,
            v: blocks.neighbours(&x.v)?,
            key_mask: None,
            dropout: None,
            dy: None,
        },
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
) -> Result<Tensor> {
    let x = &named(attention, operands, true);
    let dy = x.dy.as_ref().expect("the shape rule has seen dy");
    let (q, k) = (x.q.shape(), x.k.shape());
    if fused_attention::applies(attention, q, k, target) {
        return fused_attention::expand_grad(attention, operand, x, dy);
    }
    if let Some(kernel) = kernel_attention::kernel(attention, q, k, target) {
        return kernel_attention::expand_grad(attention, kernel, operand, x, dy);
    }
    let Some(blocks) = Blocks::of(attention, q, k) else {
        let plain = Plain::new(attention, x, target)?;
        return plain.grad(operand, dy, target);
    };
    let cut = cut(&blocks, attention, x)?;
    let plain = Plain::masked(attention, &cut.operands, cut.mask)?;
    let grad = plain.grad(operand, &blocks.queries(dy)?, target)?;
    match operand {
        AttentionOperand::Query => blocks.sequences(&grad),
        AttentionOperand::Key | AttentionOperand::Value => blocks.sum_of_neighbours(&grad),
    }
}

impl Tensor {
    /// Attention of these queries `[B, H, T, D]` over `k` and `v` `[B, K, S, D]`, where K divides
    /// H and H / K consecutive query heads share a key and value head. The type of `key_mask` says what it
    /// hides (see [`KeyMask`]), and that of `dropout` whether it is the mask of the dropout or the key by
    /// which it is drawn (see [`AttentionDropout`]).
    ///
    /// # Errors
    /// If the shapes or types do not match.
    #[track_caller]
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        key_mask: Option<&Tensor>,
        dropout: Option<&Tensor>,
        attributes: Attention,
    ) -> Result<Tensor> {
        let attributes = Attention {
            key_mask: match key_mask.map(Tensor::dtype) {
                None => KeyMask::None,
                Some(DType::S32) => KeyMask::Before,
                Some(_) => KeyMask::Keys,
            },
            dropout: attributes.dropout.map(|attribute| AttentionDropout {
                is_drawn: dropout.is_some_and(|operand| operand.dtype() == DType::U32),
                ..attribute
            }),
            ..attributes
        };
        let others: Vec<&Tensor> = [Some(k), Some(v), key_mask, dropout]
            .into_iter()
            .flatten()
            .collect();
        self.apply(Op::Composite(Composite::Attention(attributes)), &others)
    }
}
