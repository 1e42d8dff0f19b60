//! GPT-Neo (Black et al. 2021) as transformers' `modeling_gpt_neo.py` computes it: GPT-2 with
//! unscaled attention, of which every other layer sees the last few tokens only.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, D = C / H, V vocabulary, F
//! intermediate size. Activations stay `[N, C]` between attention blocks. Linear weights are
//! `[out, in]`.

use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::{AttributeMap, Config};
use crate::decoder::Decoder;
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::layer_norm;
use crate::linear::Linear;
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "GPT-Neo",
    model_type: "gpt_neo",
    // `GPTNeoConfig`'s defaults: the 1.3B model.
    defaults: &[r#"{
      "architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "vocab_size": 50257,
      "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24,
      "attention_types": [[["global", "local"], 12]], "num_heads": 16,
      "intermediate_size": null, "window_size": 256, "activation_function": "gelu_new",
      "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0,
      "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true,
      "use_cache": true, "bos_token_id": 50256, "eos_token_id": 50256, "torch_dtype": "float32"
    }"#],
    organization: "EleutherAI",
    class_prefix: "GPTNeo",
    kind: Kind::DECODER,
    lora_targets: Some(&["q_proj", "v_proj"]),
    is_adapted_by_vllm: false,
    presets,
    names: NAMES,
    build: |config, read, head| Ok(Box::new(GptNeo::new(config, read, head)?)),
    stored_names: StoredNames::decoder(&[".attn.attention.bias", ".attn.attention.masked_bias"]),
};

/// What `GPTNeoConfig` calls settings.
const NAMES: AttributeMap = &[
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "num_layers"),
];

/// A GPT-Neo with a language-model head (`GPTNeoForCausalLM`) or a classifier on each sequence's
/// last token.
struct GptNeo {
    decoder: Decoder,
    /// One entry for each layer: the tokens that it sees, or `None` for all.
    windows: Vec<Option<u32>>,
}

/// The released sizes.
fn presets() -> Vec<(&'static str, Value)> {
    let sizes = |hidden_size: usize, layers: usize, heads: usize| {
        json!({
            "hidden_size": hidden_size,
            "num_layers": layers,
            "attention_types": [[["global", "local"], layers / 2]],
            "num_heads": heads,
        })
    };
    vec![
        ("gpt-neo-125m", sizes(768, 12, 12)),
        ("gpt-neo-125M", sizes(768, 12, 12)),
        ("gpt-neo-1.3B", sizes(2048, 24, 16)),
        ("gpt-neo-2.7B", sizes(2560, 32, 20)),
    ]
}

impl GptNeo {
    fn new(config: Config, read: Config, head: HeadKind) -> Result<Self> {
        Ok(GptNeo {
            decoder: Decoder::read(config, &read, head)?,
            windows: windows(&read)?,
        })
    }

    fn block(
        &self,
        window: Option<u32>,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let decoder = &self.decoder;
        let normed = layer_norm(weights, "ln_1", x, decoder.eps)?;
        let attended = {
            let (weights, _scope) = weights.enter("attn.attention");
            let qkv = decoder.qkv(&weights, &normed, batch, Ok)?;
            let out = decoder.attend(&qkv, batch, rng, 1.0, window)?;
            let to = (Axis::Embed, decoder.hidden_size);
            let projected = weights.linear("out_proj", &out, Linear::new(Axis::Heads, to))?;
            rng.dropout(&projected, decoder.residual_dropout)?
        };
        let x = x.add(&attended)?;
        let normed = layer_norm(weights, "ln_2", &x, decoder.eps)?;
        let (weights, _scope) = weights.enter("mlp");
        let output = decoder.mlp(&weights, ["c_fc", "c_proj"], &normed, rng)?;
        Ok(x.add(&output)?)
    }
}

/// How many tokens each layer sees, from `attention_types`: kinds of layers and how often they
/// repeat.
fn windows(config: &Config) -> Result<Vec<Option<u32>>> {
    let key = "attention_types";
    let bad = |reason: &str| config.unsupported(key, reason);
    let form = "must be a list like [[[\"global\", \"local\"], 12]]";
    let window = u32::try_from(config.size("window_size")?)
        .map_err(|_| config.unsupported("window_size", "is too large"))?;
    let mut windows = Vec::new();
    for entry in config
        .get(key)
        .and_then(Value::as_array)
        .ok_or_else(|| bad(form))?
    {
        let kinds = entry
            .get(0)
            .and_then(Value::as_array)
            .ok_or_else(|| bad(form))?;
        let repeats = entry
            .get(1)
            .and_then(Value::as_u64)
            .ok_or_else(|| bad(form))?;
        for _ in 0..repeats {
            for kind in kinds {
                windows.push(match kind.as_str() {
                    Some("global") => None,
                    Some("local") => Some(window),
                    _ => return Err(bad("knows the kinds global and local only")),
                });
            }
        }
    }
    match config.size("num_layers")? {
        layers if layers == windows.len() => Ok(windows),
        layers => Err(bad(&format!(
            "describes {} layers where num_layers is {layers}; change both together",
            windows.len()
        ))),
    }
}

impl Model for GptNeo {
    fn head(&self, weights: &Weights, hidden: &Tensor, _rng: &DropoutRng) -> Result<Tensor> {
        self.decoder.head(weights, hidden)
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let windows = &self.windows;
        self.decoder
            .hidden(weights, batch, rng, |layer, weights, x| {
                self.block(windows[layer], weights, x, batch, rng)
            })
    }

    fn info(&self) -> &ModelInfo {
        &self.decoder.info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset;

    #[test]
    fn attention_types_are_read_or_refused() {
        let with = |types: Value| {
            let mut config = preset("gpt-neo-125m").unwrap();
            config.set("num_layers", 3);
            config.set("attention_types", types);
            let read = config.over(FAMILY.defaults()).named(NAMES);
            GptNeo::new(config, read, HeadKind::CausalLm).map(|model| model.windows)
        };
        let local = Some(256);
        assert_eq!(
            with(json!([[["global", "local"], 1], [["local"], 1]])).unwrap(),
            [None, local, local]
        );
        for (types, word) in [
            (json!([[["global", "local"], 6]]), "num_layers is 3"),
            (
                json!([[["global", "sparse", "local"], 1]]),
                "global and local",
            ),
            (json!("global"), "list like"),
        ] {
            let message = with(types).unwrap_err().to_string();
            assert!(
                message.contains(word) && message.contains("attention_types"),
                "{message}"
            );
        }
    }
}
