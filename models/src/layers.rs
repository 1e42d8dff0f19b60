//! Layers that several models call. Each asks for its weights where it uses them; the caller names
//! the module, and the axes of what goes in and comes out.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, K key/value heads, D head
//! dimension, V vocabulary. Activations are `[N, C]` between layers.

use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::Result;
use crate::kv_cache::Visible;
use crate::weights::Weights;
use xtrain_graphs::op::{Attention, Comparison, DotDims, F64, KeyMask};
use xtrain_graphs::{DType, DropoutRng, Tensor};

/// LayerNorm (Ba et al. 2016) of `x` `[N, C]` over C.
pub(crate) fn layer_norm(weights: &Weights, name: &str, x: &Tensor, eps: f64) -> Result<Tensor> {
    let (weights, _scope) = weights.enter(name);
    let dim = (Axis::Embed, x.dims()[1]);
    let (scale, bias) = (weights.scale("weight", dim)?, weights.bias("bias", dim)?);
    Ok(x.layer_norm(&scale, &bias, eps)?)
}

/// LayerNorm without a bias.
pub(crate) fn layer_norm_without_bias(
    weights: &Weights,
    name: &str,
    x: &Tensor,
    eps: f64,
) -> Result<Tensor> {
    let (weights, _scope) = weights.enter(name);
    let scale = weights.scale("weight", (Axis::Embed, x.dims()[1]))?;
    let bias = x.trace().full(0.0, scale.shape())?;
    Ok(x.layer_norm(&scale, &bias, eps)?)
}

/// RMSNorm (Zhang and Sennrich 2019) of `x` over its last dimension, which is `axis`. With
/// `from_zero` the weight, which starts at zero, is what is added to a factor of one (Gemma).
pub(crate) fn rms_norm(
    weights: &Weights,
    name: &str,
    x: &Tensor,
    axis: Axis,
    eps: f64,
    from_zero: bool,
) -> Result<Tensor> {
    let (weights, _scope) = weights.enter(name);
    let dim = (axis, x.dims()[x.rank() - 1]);
    let scale = if from_zero {
        weights.bias("weight", dim)?.add_scalar(1.0)?
    } else {
        weights.scale("weight", dim)?
    };
    Ok(x.rms_norm(&scale, eps)?)
}

/// Rows `[N, C]` of an embedding table for `ids` `[B, T]`. The lookup of `padding_idx` sends the
/// table no gradient (torch's `padding_idx`); other uses of that row, as in a tied head, still do.
pub(crate) fn embedding(
    table: &Tensor,
    ids: &Tensor,
    padding_idx: Option<usize>,
) -> Result<Tensor> {
    let ids = ids.reshape(&[ids.shape().elements()])?;
    let rows = table.take_rows(&ids)?;
    let Some(padding_idx) = padding_idx else {
        return Ok(rows);
    };
    let learns = ids
        .compare_scalar(Comparison::Ne, padding_idx as f64)?
        .broadcast_in(rows.dims(), &[0])?;
    Ok(learns.select(&rows, &rows.stop_gradient()?)?)
}

/// The row of a position table for every token of the batch, `[N, C]`.
pub(crate) fn learned_positions(table: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
    let [b, t] = batch.size();
    if let Some(positions) = batch.positions()? {
        return Ok(table.take_rows(&positions.reshape(&[b * t])?)?);
    }
    let hidden_size = table.dims()[1];
    Ok(table
        .slice_dim(0, 0, t)?
        .broadcast_in(&[b, t, hidden_size], &[1, 2])?
        .reshape(&[b * t, hidden_size])?)
}

/// `[N, H * D]` as `[B, T, H, D]`.
pub(crate) fn split_heads(x: &Tensor, batch: &TokenBatch, heads: usize) -> Result<Tensor> {
    let [b, t] = batch.size();
    Ok(x.reshape(&[b, t, heads, x.dims()[1] / heads])?)
}

/// Which keys a query sees besides those of the attention mask, and how scores are scaled.
pub(crate) struct AttentionKind {
    pub scale: f64,
    pub causal: bool,
    /// See [`Attention::window`].
    pub window: Option<u32>,
    /// See [`Attention::soft_cap`].
    pub soft_cap: Option<f64>,
    /// Share of the probabilities that is dropped.
    pub dropout: f64,
}

/// Attention over q `[B, T, H, D]`, k and v `[B, T, K, D]`, where K divides H and each key and value
/// head serves H / K query heads (Ainslie et al. 2023); gives `[N, H * D]`.
pub(crate) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    batch: &TokenBatch,
    rng: &DropoutRng,
    kind: AttentionKind,
) -> Result<Tensor> {
    let [b, t, h, d] = [q.dims()[0], q.dims()[1], q.dims()[2], q.dims()[3]];
    let [q, k, v] = [q, k, v].map(|x| x.transpose(&[0, 2, 1, 3])); // [B, H or K, T, D]
    let (q, mut k, mut v) = (q?, k?, v?);
    let (dropout, random_key) = rng.of_attention(kind.dropout).unzip();
    let mut key_mask = batch.key_mask()?;
    let (mut causal, mut window) = (kind.causal, kind.window);
    if let Some(cache) = &batch.cache {
        let extended = cache.extend(&k, &v, window)?;
        [k, v] = extended.kv;
        key_mask = Some(match extended.visible {
            Visible::Text(is_text) => is_text,
            Visible::Columns(visible) if t == 1 => {
                (causal, window) = (false, None);
                visible.reshape(&[b, k.dims()[2]])?
            }
            Visible::Columns(visible) => return attend_to_columns(&q, [&k, &v], &visible, &kind),
        });
    }
    let attributes = Attention {
        scale: F64::new(kind.scale),
        causal,
        window,
        key_mask: KeyMask::None,
        dropout,
        soft_cap: kind.soft_cap.map(F64::new),
    };
    let out = q.attention(&k, &v, key_mask.as_ref(), random_key.as_ref(), attributes)?;
    Ok(out.transpose(&[0, 2, 1, 3])?.reshape(&[b * t, h * d])?)
}

/// Attention of q `[B, H, T, D]` over the columns of a cache, k and v `[B, K, S, D]`, of which each
/// query sees others (`visible`, `pred[B, T, S]`); gives `[N, H * D]`. Nothing is dropped out.
fn attend_to_columns(
    q: &Tensor,
    [k, v]: [&Tensor; 2],
    visible: &Tensor,
    kind: &AttentionKind,
) -> Result<Tensor> {
    let [b, h, t, d] = [q.dims()[0], q.dims()[1], q.dims()[2], q.dims()[3]];
    let [kv_heads, s] = [k.dims()[1], k.dims()[2]];
    let group = h / kv_heads;
    let dims = |contracting: [usize; 2]| DotDims {
        lhs_batch: vec![0, 1],
        rhs_batch: vec![0, 1],
        lhs_contracting: vec![contracting[0]],
        rhs_contracting: vec![contracting[1]],
    };
    // A key and value head's queries are one matrix: [B, K, H / K * T, D].
    let scaled = q
        .mul_scalar(kind.scale)?
        .reshape(&[b, kv_heads, group * t, d])?;
    let mut scores = scaled.dot_general(k, dims([3, 3]), DType::F32)?;
    if let Some(cap) = kind.soft_cap {
        scores = scores.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?;
    }
    let visible = visible
        .broadcast_in(&[b, kv_heads, group, t, s], &[0, 3, 4])?
        .reshape(scores.dims())?;
    let blocked = scores.trace().full(f64::from(f32::MIN), scores.shape())?;
    let scores = visible.select(&scores, &blocked)?;
    let weights = scores.sub(&scores.max(&[3])?.keep_last()?)?.exp()?;
    let out = weights
        .div(&weights.sum(&[3])?.keep_last()?)?
        .convert(v.dtype())?
        .dot_general(v, dims([3, 2]), q.dtype())?
        .reshape(&[b, h, t, d])?;
    Ok(out.transpose(&[0, 2, 1, 3])?.reshape(&[b * t, h * d])?)
}

/// The hidden state `[B, C]` of each sequence's first token, which encoders classify by.
pub(crate) fn first_rows(hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
    let [b, t] = batch.size();
    let hidden_size = hidden.dims()[1];
    Ok(hidden
        .reshape(&[b, t, hidden_size])?
        .slice_dim(1, 0, 1)?
        .reshape(&[b, hidden_size])?)
}

/// The mean `[B, C]` of the hidden states of each sequence's attended tokens.
pub(crate) fn mean_rows(hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
    let [b, t] = batch.size();
    let hidden_size = hidden.dims()[1];
    let rows = hidden.reshape(&[b, t, hidden_size])?;
    let Some(mask) = &batch.attention_mask else {
        return Ok(rows.sum(&[1])?.mul_scalar(1.0 / t as f64)?);
    };
    let mask = mask.convert(hidden.dtype())?;
    let sum = rows
        .mul(&mask.broadcast_in(rows.dims(), &[0, 1])?)?
        .sum(&[1])?;
    let count = mask.sum(&[1])?.broadcast_in(sum.dims(), &[0])?;
    Ok(sum.div(&count)?)
}

/// The hidden state `[B, C]` of each sequence's last token that is not `padding`, which decoders
/// classify by. As in transformers the ids count, not the mask, and a row of nothing but
/// padding is read at 0.
///
/// # Errors
/// If there is no such token and more than one sequence; `config` is named in the message.
pub(crate) fn last_rows(
    hidden: &Tensor,
    batch: &TokenBatch,
    config: &Config,
    padding: Option<usize>,
) -> Result<Tensor> {
    let [b, t] = batch.size();
    let trace = hidden.trace();
    let last = match padding {
        Some(pad) => {
            let position = trace.iota(DType::S32, &[b, t], 1)?;
            let is_text = batch.input_ids.compare_scalar(Comparison::Ne, pad as f64)?;
            is_text
                .select(&position, &trace.full(0.0, position.shape())?)?
                .max(&[1])?
        }
        None if b == 1 => trace
            .constant((t - 1) as f64, DType::S32)?
            .broadcast_to(&[1])?,
        None => {
            return Err(config.unsupported(
                "pad_token_id",
                "classifying more than one sequence at a time needs one",
            ));
        }
    };
    let starts = trace.iota(DType::S32, &[b], 0)?.mul_scalar(t as f64)?;
    Ok(hidden.take_rows(&starts.add(&last)?)?)
}
