//! GPT-J (Wang and Komatsuzaki 2021) as transformers' `modeling_gptj.py` computes it: rotary
//! positions on part of each head, and attention and MLP side by side on one LayerNorm.
//!
//! Letters: B batch, T tokens, N = B * T, C width, H heads, D = C / H, R rotated values of each
//! head, V vocabulary, F inner width. Activations stay `[N, C]` between attention blocks. Linear
//! weights are `[out, in]`.

use crate::config::Config;
use crate::decoder::{Decoder, GPT_KEYS};
use crate::error::Result;
use crate::layers::{self, AttentionKind, layer_norm, linear, linear_without_bias, split_heads};
use crate::names::{OtherTensors, Specs, stored_name};
use crate::tensor_parallel::{Cuts, along};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::json;
use xtrain_graphs::{DType, Randomness, Tensor, Trace};

pub(crate) const FAMILY: Family = Family {
    model_type: "gptj",
    classes: Classes::Decoder {
        causal_lm: "GPTJForCausalLM",
        classification: "GPTJForSequenceClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(GptJ::new(config, task)?)),
    cuts: CUTS,
};

const CUTS: Cuts = &[
    ("attn.q_proj.weight", along(0)),
    ("attn.k_proj.weight", along(0)),
    ("attn.v_proj.weight", along(0)),
    ("attn.out_proj.weight", along(1)),
    ("mlp.fc_in.weight", along(0)),
    ("mlp.fc_in.bias", along(0)),
    ("mlp.fc_out.weight", along(1)),
    ("wte.weight", along(0)),
    ("lm_head.weight", along(0)),
    ("lm_head.bias", along(0)),
];

/// A GPT-J with a language-model head (`GPTJForCausalLM`) or a classifier on each sequence's last
/// token.
pub struct GptJ {
    about: About,
    decoder: Decoder,
    layers: usize,
    /// R
    rotary: usize,
}

/// `GPTJConfig`'s defaults: the 6B model.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
        "n_inner": null,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": false,
        "use_cache": true,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": "float32",
    });
    Config::literal(values, "GPT-J's default configuration")
}

/// The released size.
pub fn preset(name: &str) -> Option<Config> {
    matches!(name, "gpt-j-6b" | "gpt-j-6B").then(|| default_config().preset(name, json!({})))
}

impl GptJ {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let read = config.over(default_config());
        let decoder = Decoder::read(&read, &GPT_KEYS)?;
        let head_width = read.head_width("n_embd", "n_head")?;
        let Some(rotary) = read.optional_size("rotary_dim")? else {
            // transformers then makes a table as wide as the hidden states, which fits no head
            // unless there is one.
            return Err(read.unsupported(
                "rotary_dim",
                "must be a number; null fails in transformers too",
            ));
        };
        if rotary > head_width || !rotary.is_multiple_of(2) {
            return Err(read.unsupported(
                "rotary_dim",
                format!("must be even and at most n_embd / n_head ({head_width})"),
            ));
        }
        let about = About {
            config,
            task,
            vocab_size: decoder.vocab,
            max_positions: decoder.positions,
            has_segments: false,
            heads: decoder.heads,
        };
        Ok(GptJ {
            about,
            decoder,
            layers: read.size("n_layer")?,
            rotary,
        })
    }

    fn block(
        &self,
        weights: &Weights,
        x: &Tensor,
        rotation: &Rotation,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let normed = layer_norm(weights, "ln_1", x, self.decoder.eps)?;
        let attended = {
            let (weights, _scope) = weights.enter("attn");
            let part = |name| {
                split_heads(
                    &linear_without_bias(&weights, name, &normed)?,
                    batch,
                    self.decoder.heads,
                )
            }; // [B, T, H, D]
            let (q, k) = (
                rotation.apply(&part("q_proj")?)?,
                rotation.apply(&part("k_proj")?)?,
            );
            let scale = 1.0 / ((self.decoder.width / self.decoder.heads) as f64).sqrt();
            let kind = AttentionKind {
                scale,
                causal: true,
                window: None,
                dropout: self.decoder.attention_dropout,
            };
            let out = layers::attention(&q, &k, &part("v_proj")?, batch, randomness, kind)?;
            randomness.dropout(
                &linear_without_bias(&weights, "out_proj", &out)?,
                self.decoder.residual_dropout,
            )?
        };
        let (mlp, _scope) = weights.enter("mlp");
        let inner = self
            .decoder
            .activation
            .apply(&linear(&mlp, "fc_in", &normed)?)?; // [N, F]
        let output = randomness.dropout(
            &linear(&mlp, "fc_out", &inner)?,
            self.decoder.residual_dropout,
        )?;
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
    fn about(&self) -> &About {
        &self.about
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let Decoder {
            width: c,
            inner: f,
            vocab,
            ..
        } = self.decoder;
        let mut specs = Specs::new(self.decoder.initializer_range);
        specs.table("transformer.wte", [vocab, c], None);
        for layer in 0..self.layers {
            let name = |rest: &str| format!("transformer.h.{layer}.{rest}");
            specs.layer_norm(&name("ln_1"), c);
            for projection in ["k_proj", "v_proj", "q_proj", "out_proj"] {
                specs.matrix(&name(&format!("attn.{projection}")), [c, c]);
            }
            specs.linear(&name("mlp.fc_in"), [f, c]);
            specs.linear(&name("mlp.fc_out"), [c, f]);
        }
        specs.layer_norm("transformer.ln_f", c);
        self.decoder.head_parameters(&mut specs, self.head_kind());
        if self.head_kind() == HeadKind::CausalLm {
            specs.add("lm_head.bias", &[vocab], Init::Zeros);
        }
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        // Buffers that old checkpoints carry: causal masks and the rotary table.
        if [".attn.bias", ".attn.masked_bias", ".attn.embed_positions"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            return StoredName::NotNeeded;
        }
        stored_name(
            name,
            "transformer",
            &self.parameters(),
            OtherTensors {
                not_needed: &[],
                heads: &["lm_head.", "score."],
            },
        )
    }

    fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("transformer");
        let tokens = layers::embedding(&weights.get("wte.weight")?, &batch.input_ids, None)?; // [N, C]
        let mut x = randomness.dropout(&tokens, self.decoder.embed_dropout)?;
        let rotation = Rotation::new(weights.trace(), batch.size()[1], self.rotary)?;
        for layer in 0..self.layers {
            let (block, _scope) = weights.enter_layer(&format!("h.{layer}"), &x);
            x = self.block(&block, &x, &rotation, batch, randomness)?;
        }
        layer_norm(&weights, "ln_f", &x, self.decoder.eps)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::last_rows(hidden, batch, self.config())
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, _randomness: &Randomness) -> Result<Tensor> {
        let logits = self.decoder.head(weights, hidden, self.head_kind())?;
        match self.head_kind() {
            HeadKind::SequenceClassification { .. } => Ok(logits),
            _ => Ok(logits.add(&weights.get("lm_head.bias")?)?),
        }
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        self.decoder
            .step_flops(self.layers, self.head_kind(), batch, tokens)
    }

    fn head_flops(&self, rows: usize) -> f64 {
        self.decoder.head_flops(self.head_kind(), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        let model = GptJ::new(preset("gpt-j-6b").unwrap(), HeadKind::CausalLm).unwrap();
        let total: usize = model
            .parameters()
            .iter()
            .map(|p| p.dims.iter().product::<usize>())
            .sum();
        assert_eq!(total, 6_050_882_784);
    }

    #[test]
    fn rotary_widths_that_fit_no_head_are_refused() {
        for (value, word) in [
            (Value::Null, "null"),
            (json!(7), "even"),
            (json!(258), "at most n_embd / n_head (256)"),
            (json!("8"), "integer"),
        ] {
            let mut config = default_config();
            config.set("rotary_dim", value);
            let message = GptJ::new(config, HeadKind::CausalLm)
                .err()
                .unwrap()
                .to_string();
            assert!(message.contains(word), "{message}");
        }
    }
}
