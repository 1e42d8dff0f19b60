//! GPT-J (Wang and Komatsuzaki 2021) as transformers' `modeling_gptj.py` computes it: rotary
//! positions on part of each head, and attention and MLP side by side on one LayerNorm.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, D = C / H, R rotated values of
//! each head, V vocabulary, F intermediate size. Activations stay `[N, C]` between attention
//! blocks. Linear weights are `[out, in]`.

use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::decoder::{Decoder, GPT_NAMES};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::{layer_norm, linear_without_bias};
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::weights::Weights;
use serde_json::json;
use xtrain_graphs::{DType, DropoutRng, Tensor, Trace};

pub(crate) const FAMILY: Family = Family {
    name: "GPT-J",
    model_type: "gptj",
    organization: "EleutherAI",
    class_prefix: "GPTJ",
    kind: Kind::Decoder {
        causal_lm: "ForCausalLM",
    },
    // `GPTJConfig`'s defaults: the 6B model.
    defaults: include_str!("configs/gptj.json"),
    presets: || vec![("gpt-j-6b", json!({})), ("gpt-j-6B", json!({}))],
    names: GPT_NAMES,
    build: |config, read, head| Ok(Box::new(GptJ::new(config, read, head)?)),
    // Buffers that old checkpoints carry: causal masks and the rotary table.
    stored_names: StoredNames::decoder(&[
        ".attn.bias",
        ".attn.masked_bias",
        ".attn.embed_positions",
    ]),
};

/// A GPT-J with a language-model head (`GPTJForCausalLM`) or a classifier on each sequence's last
/// token.
struct GptJ {
    decoder: Decoder,
    /// R
    rotary: usize,
}

impl GptJ {
    fn new(config: Config, read: Config, head: HeadKind) -> Result<Self> {
        let decoder = Decoder {
            learned_positions: false,
            ..Decoder::read(config, &read, head)?
        };
        let head_dim = decoder.info.head_dim;
        let Some(rotary) = read.optional_size("rotary_dim")? else {
            // transformers then makes a table as wide as the hidden states, which fits no head
            // unless there is one.
            return Err(read.unsupported(
                "rotary_dim",
                "must be a number; null fails in transformers too",
            ));
        };
        if rotary > head_dim || !rotary.is_multiple_of(2) {
            return Err(read.unsupported(
                "rotary_dim",
                format!("must be even and at most n_embd / n_head ({head_dim})"),
            ));
        }
        Ok(GptJ { decoder, rotary })
    }

    fn block(
        &self,
        weights: &Weights,
        x: &Tensor,
        rotation: &Rotation,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let decoder = &self.decoder;
        let normed = layer_norm(weights, "ln_1", x, decoder.eps)?;
        let attended = {
            let (weights, _scope) = weights.enter("attn");
            let qkv = decoder.qkv(&weights, &normed, batch, |x| rotation.apply(&x))?;
            let scale = 1.0 / (decoder.info.head_dim as f64).sqrt();
            let out = decoder.attend(&qkv, batch, rng, scale, None)?;
            let to = (Axis::Embed, decoder.hidden_size);
            let projected = linear_without_bias(&weights, "out_proj", &out, Axis::Heads, to)?;
            rng.dropout(&projected, decoder.residual_dropout)?
        };
        let (weights, _scope) = weights.enter("mlp");
        let output = decoder.mlp(&weights, ["fc_in", "fc_out"], &normed, rng)?;
        Ok(attended.add(&output)?.add(x)?)
    }
}

/// Rotary position embedding (Su et al. 2021) of neighbouring pairs: pair i of a head turns by
/// `position * 10000^(-2i / R)`.
struct Rotation {
    /// `[T, R / 2, 1]`
    sin: Tensor,
    cos: Tensor,
    /// R
    rotated: usize,
}

impl Rotation {
    /// The table for positions 0 to `tokens`. Frequencies are rounded to f32 once and angles are
    /// f32 products, as torch has them: a power or exponential on the device would be off by more
    /// than one rounding at the far positions.
    fn new(trace: &Trace, tokens: usize, rotated: usize) -> Result<Self> {
        let _scope = trace.scope("rotary");
        let frequencies = (0..rotated / 2)
            .map(|i| {
                trace
                    .constant(10000f64.powf(-2.0 * i as f64 / rotated as f64), DType::F32)?
                    .reshape(&[1])
            })
            .collect::<xtrain_graphs::Result<Vec<_>>>()?;
        let frequencies = Tensor::concat(&frequencies.iter().collect::<Vec<_>>(), 0)?;
        let table = [tokens, rotated / 2, 1];
        let angles = trace
            .iota(DType::F32, &table, 0)?
            .mul(&frequencies.broadcast_in(&table, &[1])?)?;
        Ok(Rotation {
            sin: angles.sin()?,
            cos: angles.cos()?,
            rotated,
        })
    }

    /// Turns the first R values of each head of `x` `[B, T, H, D]`.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let [b, t, h, d] = [x.dims()[0], x.dims()[1], x.dims()[2], x.dims()[3]];
        let r = self.rotated;
        let pairs = x.slice_dim(3, 0, r)?.reshape(&[b, t, h, r / 2, 2])?;
        let (even, odd) = (pairs.slice_dim(4, 0, 1)?, pairs.slice_dim(4, 1, 2)?);
        let spread = |table: &Tensor| {
            table
                .convert(x.dtype())?
                .broadcast_in(even.dims(), &[1, 3, 4])
        };
        let (sin, cos) = (spread(&self.sin)?, spread(&self.cos)?);
        let turned_even = even.mul(&cos)?.sub(&odd.mul(&sin)?)?;
        let turned_odd = odd.mul(&cos)?.add(&even.mul(&sin)?)?;
        let turned = Tensor::concat(&[&turned_even, &turned_odd], 4)?.reshape(&[b, t, h, r])?;
        match r == d {
            true => Ok(turned),
            false => Ok(Tensor::concat(&[&turned, &x.slice_dim(3, r, d)?], 3)?),
        }
    }
}

impl Model for GptJ {
    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let rotation = Rotation::new(weights.trace(), batch.size()[1], self.rotary)?;
        self.decoder.hidden(weights, batch, rng, |_, weights, x| {
            self.block(weights, x, &rotation, batch, rng)
        })
    }

    fn info(&self) -> &ModelInfo {
        &self.decoder.info
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, _rng: &DropoutRng) -> Result<Tensor> {
        let logits = self.decoder.head(weights, hidden)?;
        if self.decoder.info.head != HeadKind::CausalLm {
            return Ok(logits);
        }
        let bias = weights.bias("lm_head.bias", (Axis::Vocab, self.decoder.info.vocab_size))?;
        Ok(logits.add(&bias)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use serde_json::Value;

    #[test]
    fn rotary_widths_that_fit_no_head_are_refused() {
        for (value, word) in [
            (Value::Null, "null"),
            (json!(7), "even"),
            (json!(258), "at most n_embd / n_head (256)"),
            (json!("8"), "integer"),
        ] {
            let mut config = FAMILY.defaults();
            config.set("rotary_dim", value);
            let message = build(config, HeadKind::CausalLm).err().unwrap().to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
