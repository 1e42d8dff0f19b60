//! GPT-2 (Radford et al. 2019) as transformers' `modeling_gpt2.py` computes it.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, D = C / H, V vocabulary, F
//! intermediate size. Activations stay `[N, C]` between attention blocks. Linear weights have the
//! Conv1D layout `[in, out]`.

use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::decoder::{Decoder, GPT_NAMES};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::{layer_norm, split_heads};
use crate::linear::Linear;
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "GPT-2",
    model_type: "gpt2",
    // `GPT2Config`'s defaults: the small model.
    defaults: &[r#"{
      "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257,
      "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": null,
      "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1,
      "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
      "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
      "reorder_and_upcast_attn": false, "add_cross_attention": false,
      "tie_word_embeddings": true, "use_cache": true, "bos_token_id": 50256,
      "eos_token_id": 50256, "torch_dtype": "float32"
    }"#],
    organization: "openai-community",
    class_prefix: "GPT2",
    kind: Kind::Decoder {
        causal_lm: "LMHeadModel",
        sequence: Some("ForSequenceClassification"),
        token: None,
    },
    lora_targets: Some(&["c_attn"]),
    is_adapted_by_vllm: false,
    presets,
    names: GPT_NAMES,
    build: |config, read, head| Ok(Box::new(Gpt2::new(config, read, head)?)),
    stored_names: StoredNames::decoder(&[".attn.bias", ".attn.masked_bias"]),
};

/// A GPT-2 with a language-model head (`GPT2LMHeadModel`) or a classifier on each sequence's last
/// token.
struct Gpt2 {
    decoder: Decoder,
    /// Standard deviation of the weights that write to the residual stream.
    residual_std: f64,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
}

/// The released sizes.
fn presets() -> Vec<(&'static str, Value)> {
    let sizes = |hidden_size, layers, heads| json!({"n_embd": hidden_size, "n_layer": layers, "n_head": heads});
    vec![
        ("gpt2", sizes(768, 12, 12)),
        ("gpt2-medium", sizes(1024, 24, 16)),
        ("gpt2-large", sizes(1280, 36, 20)),
        ("gpt2-xl", sizes(1600, 48, 25)),
    ]
}

impl Gpt2 {
    fn new(config: Config, mut read: Config, head: HeadKind) -> Result<Self> {
        if let (None, Some(positions)) = (config.get("n_positions"), config.get("n_ctx")) {
            // Old checkpoints say n_ctx where new ones say n_positions.
            read.set("n_positions", positions.clone());
        }
        // reorder_and_upcast_attn only changes where half-precision attention is computed in f32;
        // softmax statistics are f32 here either way, so both values give these numbers.
        read.flag_or("reorder_and_upcast_attn", false)?;
        let decoder = Decoder::read(config, &read, head)?;
        Ok(Gpt2 {
            // Scaled by the number of writes.
            residual_std: decoder.info.initializer_range / ((2 * decoder.layers) as f64).sqrt(),
            decoder,
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
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let decoder = &self.decoder;
        let normed = layer_norm(weights, "ln_1", x, decoder.eps)?;
        let x = x.add(&self.attention(layer, weights, &normed, batch, rng)?)?;
        let normed = layer_norm(weights, "ln_2", &x, decoder.eps)?;
        let (mlp, _scope) = weights.enter("mlp");
        let to = (Axis::Mlp, decoder.intermediate_size);
        let inner = mlp.linear("c_fc", &normed, Linear::new(Axis::Embed, to).conv1d())?;
        let inner = decoder.activation.apply(&inner)?; // [N, F]
        let projected = self.project(&mlp, &inner, Axis::Mlp)?; // [N, C]
        Ok(x.add(&rng.dropout(&projected, decoder.residual_dropout)?)?)
    }

    fn attention(
        &self,
        layer: usize,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("attn");
        let decoder = &self.decoder;
        let c = decoder.hidden_size;
        let to = (Axis::Qkv { group: 1 }, 3 * c);
        let qkv = weights.linear("c_attn", x, Linear::new(Axis::Embed, to).conv1d())?; // [N, 3C]
        let part = |i: usize| {
            split_heads(
                &qkv.slice_dim(1, i * c, (i + 1) * c)?,
                batch,
                decoder.info.heads,
            )
        }; // [B, T, H, D]
        let mut scale = if self.scale_attn_weights {
            1.0 / (decoder.info.head_dim as f64).sqrt()
        } else {
            1.0
        };
        if self.scale_attn_by_inverse_layer_idx {
            scale /= (layer + 1) as f64;
        }
        let qkv = [part(0)?, part(1)?, part(2)?];
        let merged = decoder.attend(&qkv, batch, rng, scale, None)?;
        let projected = self.project(&weights, &merged, Axis::Heads)?;
        Ok(rng.dropout(&projected, decoder.residual_dropout)?)
    }

    /// What an attention block or an MLP writes to the residual stream, `[N, C]`.
    fn project(&self, weights: &Weights, x: &Tensor, from: Axis) -> Result<Tensor> {
        let to = (Axis::Embed, self.decoder.hidden_size);
        let layer = Linear::new(from, to).conv1d().with_std(self.residual_std);
        weights.linear("c_proj", x, layer)
    }
}

impl Model for Gpt2 {
    fn info(&self) -> &ModelInfo {
        &self.decoder.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        self.decoder
            .hidden(weights, batch, rng, |layer, weights, x| {
                self.block(layer, weights, x, batch, rng)
            })
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, _rng: &DropoutRng) -> Result<Tensor> {
        self.decoder.head(weights, hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;

    #[test]
    fn what_changes_numbers_is_honoured_or_refused() {
        let set = |key: &str, value: Value| [(key.to_string(), value)];
        let refuse = |key: &str, value: Value, word: &str| {
            let mut config = FAMILY.defaults();
            config.apply_overrides(&set(key, value)).unwrap();
            let message = build(config, HeadKind::CausalLm).err().unwrap().to_string();
            assert!(message.contains(word), "{message}");
        };
        refuse("add_cross_attention", true.into(), "cross-attention");
        refuse("activation_function", "mish".into(), "gelu_new");
        refuse("n_head", 7.into(), "n_head");
        refuse("resid_pdrop", 1.5.into(), "between 0 and 1");
        assert!(
            FAMILY
                .defaults()
                .apply_overrides(&set("no_such", 1.into()))
                .is_err()
        );
        assert!(
            FAMILY
                .defaults()
                .apply_overrides(&set("n_layer", "four".into()))
                .is_err()
        );
        assert!(
            FAMILY
                .defaults()
                .apply_overrides(&set("n_layer", 1.5.into()))
                .is_err()
        );
    }
}
