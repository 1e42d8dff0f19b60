//! GPT-Neo (Black et al. 2021) as transformers' `modeling_gpt_neo.py` computes it: GPT-2 with
//! unscaled attention, of which every other layer sees the last few tokens only.
//!
//! Letters: B batch, T tokens, N = B * T, C width, H heads, D = C / H, V vocabulary, F inner width.
//! Activations stay `[N, C]` between attention blocks. Linear weights are `[out, in]`.

use crate::config::Config;
use crate::decoder::{Decoder, Keys};
use crate::error::Result;
use crate::layers::{self, AttentionKind, layer_norm, linear, linear_without_bias, split_heads};
use crate::names::{OtherTensors, Specs, stored_name};
use crate::tensor_parallel::{Cuts, along};
use crate::weights::{ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::{Value, json};
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "gpt_neo",
    classes: Classes::Decoder {
        causal_lm: "GPTNeoForCausalLM",
        classification: "GPTNeoForSequenceClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(GptNeo::new(config, task)?)),
    cuts: CUTS,
};

const CUTS: Cuts = &[
    ("attention.q_proj.weight", along(0)),
    ("attention.k_proj.weight", along(0)),
    ("attention.v_proj.weight", along(0)),
    ("attention.out_proj.weight", along(1)),
    ("mlp.c_fc.weight", along(0)),
    ("mlp.c_fc.bias", along(0)),
    ("mlp.c_proj.weight", along(1)),
    ("wte.weight", along(0)),
    ("lm_head.weight", along(0)),
];

/// A GPT-Neo with a language-model head (`GPTNeoForCausalLM`) or a classifier on each sequence's
/// last token.
pub struct GptNeo {
    about: About,
    decoder: Decoder,
    /// One entry for each layer: the tokens that it sees, or `None` for all.
    windows: Vec<Option<u32>>,
}

const KEYS: Keys = Keys {
    positions: "max_position_embeddings",
    width: "hidden_size",
    heads: "num_heads",
    inner: "intermediate_size",
    embed_dropout: "embed_dropout",
    attention_dropout: "attention_dropout",
    residual_dropout: "resid_dropout",
};

/// `GPTNeoConfig`'s defaults: the 1.3B model.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["GPTNeoForCausalLM"],
        "model_type": "gpt_neo",
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "hidden_size": 2048,
        "num_layers": 24,
        "attention_types": [[["global", "local"], 12]],
        "num_heads": 16,
        "intermediate_size": null,
        "window_size": 256,
        "activation_function": "gelu_new",
        "resid_dropout": 0.0,
        "embed_dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": true,
        "use_cache": true,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": "float32",
    });
    Config::literal(values, "GPT-Neo's default configuration")
}

/// The released sizes.
pub fn preset(name: &str) -> Option<Config> {
    let (width, layers, heads) = match name {
        "gpt-neo-125m" | "gpt-neo-125M" => (768, 12, 12),
        "gpt-neo-1.3B" => (2048, 24, 16),
        "gpt-neo-2.7B" => (2560, 32, 20),
        _ => return None,
    };
    let sizes = json!({
        "hidden_size": width,
        "num_layers": layers,
        "attention_types": [[["global", "local"], layers / 2]],
        "num_heads": heads,
    });
    Some(default_config().preset(name, sizes))
}

impl GptNeo {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let read = config.over(default_config());
        let (decoder, windows) = (Decoder::read(&read, &KEYS)?, windows(&read)?);
        let about = About {
            config,
            task,
            vocab_size: decoder.vocab,
            max_positions: decoder.positions,
            has_segments: false,
            heads: decoder.heads,
        };
        Ok(GptNeo {
            about,
            decoder,
            windows,
        })
    }

    fn block(
        &self,
        window: Option<u32>,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let normed = layer_norm(weights, "ln_1", x, self.decoder.eps)?;
        let attended = {
            let (weights, _scope) = weights.enter("attn.attention");
            let part = |name| {
                split_heads(
                    &linear_without_bias(&weights, name, &normed)?,
                    batch,
                    self.decoder.heads,
                )
            }; // [B, T, H, D]
            let kind = AttentionKind {
                scale: 1.0,
                causal: true,
                window,
                dropout: self.decoder.attention_dropout,
            };
            let out = layers::attention(
                &part("q_proj")?,
                &part("k_proj")?,
                &part("v_proj")?,
                batch,
                randomness,
                kind,
            )?;
            randomness.dropout(
                &linear(&weights, "out_proj", &out)?,
                self.decoder.residual_dropout,
            )?
        };
        let x = x.add(&attended)?;
        let normed = layer_norm(weights, "ln_2", &x, self.decoder.eps)?;
        let (mlp, _scope) = weights.enter("mlp");
        let inner = self
            .decoder
            .activation
            .apply(&linear(&mlp, "c_fc", &normed)?)?; // [N, F]
        Ok(x.add(&randomness.dropout(
            &linear(&mlp, "c_proj", &inner)?,
            self.decoder.residual_dropout,
        )?)?)
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
    fn about(&self) -> &About {
        &self.about
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let Decoder {
            width: c,
            inner: f,
            vocab,
            positions,
            ..
        } = self.decoder;
        let mut specs = Specs::new(self.decoder.initializer_range);
        specs.table("transformer.wte", [vocab, c], None);
        specs.table("transformer.wpe", [positions, c], None);
        for layer in 0..self.windows.len() {
            let name = |rest: &str| format!("transformer.h.{layer}.{rest}");
            specs.layer_norm(&name("ln_1"), c);
            for projection in ["k_proj", "v_proj", "q_proj"] {
                specs.matrix(&name(&format!("attn.attention.{projection}")), [c, c]);
            }
            specs.linear(&name("attn.attention.out_proj"), [c, c]);
            specs.layer_norm(&name("ln_2"), c);
            specs.linear(&name("mlp.c_fc"), [f, c]);
            specs.linear(&name("mlp.c_proj"), [c, f]);
        }
        specs.layer_norm("transformer.ln_f", c);
        self.decoder.head_parameters(&mut specs, self.head_kind());
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        // The causal-mask buffers that old checkpoints carry.
        if name.ends_with(".attn.attention.bias") || name.ends_with(".attn.attention.masked_bias") {
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
        for (layer, window) in self.windows.iter().enumerate() {
            let (block, _scope) = weights.enter_layer(&format!("h.{layer}"), &x);
            x = self.block(*window, &block, &x, batch, randomness)?;
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
            .step_flops(self.windows.len(), self.head_kind(), batch, tokens)
    }

    fn head_flops(&self, rows: usize) -> f64 {
        self.decoder.head_flops(self.head_kind(), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, count) in [
            ("gpt-neo-125m", 125_198_592),
            ("gpt-neo-1.3B", 1_315_575_808),
            ("gpt-neo-2.7B", 2_651_307_520),
        ] {
            let model = GptNeo::new(preset(name).unwrap(), HeadKind::CausalLm).unwrap();
            let total: usize = model
                .parameters()
                .iter()
                .map(|p| p.dims.iter().product::<usize>())
                .sum();
            assert_eq!(total, count, "{name}");
        }
    }

    #[test]
    fn attention_types_are_read_or_refused() {
        let with = |types: Value| {
            let mut config = preset("gpt-neo-125m").unwrap();
            config.set("num_layers", 3);
            config.set("attention_types", types);
            GptNeo::new(config, HeadKind::CausalLm).map(|model| model.windows)
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
