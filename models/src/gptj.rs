//! GPT-J (Wang and Komatsuzaki 2021) as transformers' `modeling_gptj.py` computes it: rotary
//! positions on part of each head, and attention and MLP side by side on one LayerNorm.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size. Activations stay `[N, C]` between attention
//! blocks. Linear weights are `[out, in]`.

use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::decoder::{Decoder, GPT_NAMES};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::layer_norm;
use crate::linear::Linear;
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::rotary::{Rotary, RotaryTable};
use crate::weights::Weights;
use serde_json::json;
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "GPT-J",
    model_type: "gptj",
    // `GPTJConfig`'s defaults: the 6B model.
    defaults: &[r#"{
      "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "vocab_size": 50400,
      "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64,
      "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
      "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
      "tie_word_embeddings": false, "use_cache": true, "bos_token_id": 50256,
      "eos_token_id": 50256, "torch_dtype": "float32"
    }"#],
    organization: "EleutherAI",
    class_prefix: "GPTJ",
    kind: Kind::DECODER,
    lora_targets: Some(&["q_proj", "v_proj"]),
    is_adapted_by_vllm: false,
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
    rotary: Rotary,
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
        Ok(GptJ {
            decoder,
            rotary: Rotary::new(10_000.0, rotary),
        })
    }

    fn block(
        &self,
        weights: &Weights,
        x: &Tensor,
        rotation: &RotaryTable,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let decoder = &self.decoder;
        let normed = layer_norm(weights, "ln_1", x, decoder.eps)?;
        let attended = {
            let (weights, _scope) = weights.enter("attn");
            let qkv = decoder.qkv(&weights, &normed, batch, |x| rotation.turn_neighbours(&x))?;
            let scale = 1.0 / (decoder.info.head_dim as f64).sqrt();
            let out = decoder.attend(&qkv, batch, rng, scale, None)?;
            let to = (Axis::Embed, decoder.hidden_size);
            let projected = weights.linear(
                "out_proj",
                &out,
                Linear::new(Axis::Heads, to).without_bias(),
            )?;
            rng.dropout(&projected, decoder.residual_dropout)?
        };
        let (weights, _scope) = weights.enter("mlp");
        let output = decoder.mlp(&weights, ["fc_in", "fc_out"], &normed, rng)?;
        Ok(attended.add(&output)?.add(x)?)
    }
}

impl Model for GptJ {
    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let rotation = self.rotary.table(batch)?;
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
