//! GPT-2 (Radford et al. 2019) as transformers' `modeling_gpt2.py` computes it.
//!
//! Letters: B batch, T tokens, N = B * T, C width, H heads, D = C / H, V vocabulary, F inner width.
//! Activations stay `[N, C]` between attention blocks. Linear weights have the Conv1D layout
//! `[in, out]`.

use crate::config::Config;
use crate::decoder::{Decoder, GPT_KEYS};
use crate::error::Result;
use crate::layers::{self, AttentionKind, layer_norm, split_heads};
use crate::names::{OtherTensors, Specs, stored_name};
use crate::tensor_parallel::{Cuts, along, blocks};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::json;
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "gpt2",
    classes: Classes::Decoder {
        causal_lm: "GPT2LMHeadModel",
        classification: "GPT2ForSequenceClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Gpt2::new(config, task)?)),
    cuts: CUTS,
};

const CUTS: Cuts = &[
    ("attn.c_attn.weight", blocks(1, 3)),
    ("attn.c_attn.bias", blocks(0, 3)),
    ("attn.c_proj.weight", along(0)),
    ("mlp.c_fc.weight", along(1)),
    ("mlp.c_fc.bias", along(0)),
    ("mlp.c_proj.weight", along(0)),
    ("wte.weight", along(0)),
    ("lm_head.weight", along(0)),
];

/// A GPT-2 with a language-model head (`GPT2LMHeadModel`) or a classifier on each sequence's last
/// token.
pub struct Gpt2 {
    about: About,
    decoder: Decoder,
    layers: usize,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
}

/// `GPT2Config`'s defaults: the small model.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": null,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "add_cross_attention": false,
        "tie_word_embeddings": true,
        "use_cache": true,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": "float32",
    });
    Config::literal(values, "GPT-2's default configuration")
}

/// The released sizes.
pub fn preset(name: &str) -> Option<Config> {
    let (width, layers, heads) = match name {
        "gpt2" => (768, 12, 12),
        "gpt2-medium" => (1024, 24, 16),
        "gpt2-large" => (1280, 36, 20),
        "gpt2-xl" => (1600, 48, 25),
        _ => return None,
    };
    Some(default_config().preset(
        name,
        json!({"n_embd": width, "n_layer": layers, "n_head": heads}),
    ))
}

impl Gpt2 {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let mut read = config.over(default_config());
        if let (None, Some(positions)) = (config.get("n_positions"), config.get("n_ctx")) {
            // Old checkpoints say n_ctx where new ones say n_positions.
            read.set("n_positions", positions.clone());
        }
        // reorder_and_upcast_attn only changes where half-precision attention is computed in f32;
        // softmax statistics are f32 here either way, so both values give these numbers.
        read.flag_or("reorder_and_upcast_attn", false)?;
        let decoder = Decoder::read(&read, &GPT_KEYS)?;
        let about = About {
            config,
            task,
            vocab_size: decoder.vocab,
            max_positions: decoder.positions,
            has_segments: false,
            heads: decoder.heads,
        };
        Ok(Gpt2 {
            about,
            decoder,
            layers: read.size("n_layer")?,
            scale_attn_weights: read.flag_or("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: read
                .flag_or("scale_attn_by_inverse_layer_idx", false)?,
        })
    }

    fn block(
        &self,
        layer: usize,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let decoder = &self.decoder;
        let normed = layer_norm(weights, "ln_1", x, decoder.eps)?;
        let x = x.add(&self.attention(layer, weights, &normed, batch, randomness)?)?;
        let normed = layer_norm(weights, "ln_2", &x, decoder.eps)?;
        let (mlp, _scope) = weights.enter("mlp");
        let inner = decoder.activation.apply(&conv1d(&mlp, "c_fc", &normed)?)?; // [N, F]
        let projected = conv1d(&mlp, "c_proj", &inner)?; // [N, C]
        Ok(x.add(&randomness.dropout(&projected, decoder.residual_dropout)?)?)
    }

    fn attention(
        &self,
        layer: usize,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("attn");
        let Decoder {
            width,
            heads,
            attention_dropout,
            residual_dropout,
            ..
        } = self.decoder;
        let qkv = conv1d(&weights, "c_attn", x)?; // [N, 3C]
        let part =
            |i: usize| split_heads(&qkv.slice_dim(1, i * width, (i + 1) * width)?, batch, heads); // [B, T, H, D]
        let mut scale = if self.scale_attn_weights {
            1.0 / ((width / heads) as f64).sqrt()
        } else {
            1.0
        };
        if self.scale_attn_by_inverse_layer_idx {
            scale /= (layer + 1) as f64;
        }
        let kind = AttentionKind {
            scale,
            causal: true,
            window: None,
            dropout: attention_dropout,
        };
        let merged = layers::attention(&part(0)?, &part(1)?, &part(2)?, batch, randomness, kind)?;
        Ok(randomness.dropout(&conv1d(&weights, "c_proj", &merged)?, residual_dropout)?)
    }
}

/// `x [N, in] W [in, out] + b`
fn conv1d(weights: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weights, _scope) = weights.enter(name);
    Ok(x.matmul(&weights.get("weight")?)?
        .add(&weights.get("bias")?)?)
}

impl Model for Gpt2 {
    fn about(&self) -> &About {
        &self.about
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let Decoder {
            width: c,
            inner: f,
            vocab,
            positions,
            initializer_range: std,
            ..
        } = self.decoder;
        // GPT-2 scales the weights that write to the residual stream by the number of writes.
        let residual = Init::Normal {
            std: std / ((2 * self.layers) as f64).sqrt(),
        };
        let mut specs = Specs::new(std);
        specs.table("transformer.wte", [vocab, c], None);
        specs.table("transformer.wpe", [positions, c], None);
        for layer in 0..self.layers {
            let name = |rest: &str| format!("transformer.h.{layer}.{rest}");
            specs.layer_norm(&name("ln_1"), c);
            specs.conv1d(&name("attn.c_attn"), [c, 3 * c], None);
            specs.conv1d(&name("attn.c_proj"), [c, c], Some(residual));
            specs.layer_norm(&name("ln_2"), c);
            specs.conv1d(&name("mlp.c_fc"), [c, f], None);
            specs.conv1d(&name("mlp.c_proj"), [f, c], Some(residual));
        }
        specs.layer_norm("transformer.ln_f", c);
        self.decoder.head_parameters(&mut specs, self.head_kind());
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        // The causal-mask buffers that old checkpoints carry.
        if name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") {
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
        let mut x = randomness.dropout(
            &self.decoder.embed(&weights, batch)?,
            self.decoder.embed_dropout,
        )?;
        for layer in 0..self.layers {
            let (block, _scope) = weights.enter_layer(&format!("h.{layer}"), &x);
            x = self.block(layer, &block, &x, batch, randomness)?;
        }
        layer_norm(&weights, "ln_f", &x, self.decoder.eps)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::last_rows(hidden, batch, self.config())
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, _randomness: &Randomness) -> Result<Tensor> {
        self.decoder.head(weights, hidden, self.head_kind())
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
        for (name, count) in [
            ("gpt2", 124_439_808),
            ("gpt2-medium", 354_823_168),
            ("gpt2-large", 774_030_080),
            ("gpt2-xl", 1_557_611_200),
        ] {
            let model = Gpt2::new(preset(name).unwrap(), HeadKind::CausalLm).unwrap();
            let total: usize = model
                .parameters()
                .iter()
                .map(|p| p.dims.iter().product::<usize>())
                .sum();
            assert_eq!(total, count, "{name}");
        }
    }

    #[test]
    fn what_changes_numbers_is_honoured_or_refused() {
        let set = |key: &str, value: Value| [(key.to_string(), value)];
        let refuse = |key: &str, value: Value, word: &str| {
            let mut config = default_config();
            config.apply_overrides(&set(key, value)).unwrap();
            let message = Gpt2::new(config, HeadKind::CausalLm)
                .err()
                .unwrap()
                .to_string();
            assert!(message.contains(word), "{message}");
        };
        refuse("add_cross_attention", true.into(), "cross-attention");
        refuse("activation_function", "mish".into(), "gelu_new");
        refuse("n_head", 7.into(), "n_head");
        refuse("resid_pdrop", 1.5.into(), "between 0 and 1");
        assert!(
            default_config()
                .apply_overrides(&set("no_such", 1.into()))
                .is_err()
        );
        assert!(
            default_config()
                .apply_overrides(&set("n_layer", "four".into()))
                .is_err()
        );
        assert!(
            default_config()
                .apply_overrides(&set("n_layer", 1.5.into()))
                .is_err()
        );
    }
}
