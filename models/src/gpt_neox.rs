//! GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023) as transformers'
//! `modeling_gpt_neox.py` computes them: rotary positions on part of each head, queries, keys and
//! values of a head beside each other in one matrix, and attention and MLP side by side, each on a
//! LayerNorm of its own.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, D values of a head, V vocabulary,
//! F intermediate size. Activations stay `[N, C]` between attention blocks. Linear weights are
//! `[out, in]`.

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::{self, AttentionKind, layer_norm, split_heads};
use crate::linear::Linear;
use crate::model::{Model, ModelInfo, Pooling};
use crate::names::StoredNames;
use crate::rotary::{ROTARY, Rotary, RotaryKeys, RotaryTable};
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "GPT-NeoX",
    model_type: "gpt_neox",
    // `GPTNeoXConfig`'s defaults: the 20B model.
    defaults: &[r#"{
      "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 50432,
      "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
      "intermediate_size": 24576, "hidden_act": "gelu", "rotary_pct": 0.25,
      "rotary_emb_base": 10000, "use_parallel_residual": true, "attention_bias": true,
      "attention_dropout": 0.0, "hidden_dropout": 0.0, "classifier_dropout": 0.1,
      "max_position_embeddings": 2048, "initializer_range": 0.02, "layer_norm_eps": 1e-5,
      "tie_word_embeddings": false, "use_cache": true, "bos_token_id": 0, "eos_token_id": 2,
      "torch_dtype": "float32"
    }"#],
    lora_targets: Some(&["query_key_value"]),
    is_adapted_by_vllm: false,
    presets,
    names: &[
        ("rope_theta", "rotary_emb_base"),
        ("partial_rotary_factor", "rotary_pct"),
    ],
    organization: "EleutherAI",
    class_prefix: "GPTNeoX",
    kind: Kind::Decoder {
        causal_lm: "ForCausalLM",
        sequence: Some("ForSequenceClassification"),
        token: Some("ForTokenClassification"),
    },
    build: |config, read, head| Ok(Box::new(GptNeoX::new(config, read, head)?)),
    stored_names: StoredNames {
        base: "gpt_neox",
        // Causal masks and the rotary table, which old checkpoints carry.
        buffers: &[
            ".attention.bias",
            ".attention.masked_bias",
            ".rotary_emb.inv_freq",
        ],
        not_needed: &[],
        heads: &["embed_out.", "score.", "classifier."],
    },
};

/// Pythia's sizes, which are all of 2048 tokens and a quarter of each head rotated.
fn presets() -> Vec<(&'static str, Value)> {
    let pythia = |hidden: usize, layers: usize, heads: usize, vocab_size: usize| {
        json!({
            "vocab_size": vocab_size,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "bos_token_id": 0,
            "eos_token_id": 0,
        })
    };
    vec![
        (
            "gpt-neox-20b",
            json!({"hidden_act": "gelu_fast", "eos_token_id": 0}),
        ),
        ("pythia-14m", pythia(128, 6, 4, 50304)),
        ("pythia-70m", pythia(512, 6, 8, 50304)),
        ("pythia-160m", pythia(768, 12, 12, 50304)),
        ("pythia-410m", pythia(1024, 24, 16, 50304)),
        ("pythia-1b", pythia(2048, 16, 8, 50304)),
        ("pythia-1.4b", pythia(2048, 24, 16, 50304)),
        ("pythia-2.8b", pythia(2560, 32, 32, 50304)),
        ("pythia-6.9b", pythia(4096, 32, 32, 50432)),
        ("pythia-12b", pythia(5120, 36, 40, 50688)),
    ]
}

/// A GPT-NeoX with a language-model head (`GPTNeoXForCausalLM`), a classifier on each sequence's
/// last token or one on each token.
struct GptNeoX {
    info: ModelInfo,
    layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    activation: Activation,
    eps: f64,
    attention_bias: bool,
    /// Whether attention and MLP read the same hidden states.
    parallel: bool,
    tied_head: bool,
    rotary: Rotary,
    attention_dropout: f64,
    hidden_dropout: f64,
    classifier_dropout: f64,
}

impl GptNeoX {
    fn new(config: Config, read: Config, head: HeadKind) -> Result<Self> {
        read.refuse_unbuilt()?;
        let read = read.without(&["head_dim", "num_key_value_heads"]);
        let info = ModelInfo {
            pooling: Pooling::last_token(&read)?,
            ..ModelInfo::read(config, &read, head)?
        };
        let keys = RotaryKeys {
            may_be_partial: true,
            ..ROTARY
        };
        Ok(GptNeoX {
            layers: read.layers()?,
            hidden_size: read.size("hidden_size")?,
            intermediate_size: read.size("intermediate_size")?,
            activation: Activation::from_config(&read, "hidden_act", "gelu")?,
            eps: read.float_or("layer_norm_eps", 1e-5)?,
            attention_bias: read.flag_or("attention_bias", true)?,
            parallel: read.flag_or("use_parallel_residual", true)?,
            tied_head: read.flag_or("tie_word_embeddings", false)?,
            rotary: Rotary::read(&read, info.head_dim, &keys)?,
            attention_dropout: read.rate_or("attention_dropout", 0.0)?,
            hidden_dropout: read.rate_or("hidden_dropout", 0.0)?,
            classifier_dropout: read.rate_or("classifier_dropout", 0.1)?,
            info,
        })
    }

    /// What attention adds to the residual stream, `[N, C]` of `x` `[N, C]`.
    fn attention(
        &self,
        weights: &Weights,
        x: &Tensor,
        table: &RotaryTable,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("attention");
        let (c, d, bias) = (self.hidden_size, self.info.head_dim, self.attention_bias);
        let to = (Axis::Heads, 3 * c);
        let qkv = weights.linear(
            "query_key_value",
            x,
            Linear::new(Axis::Embed, to).with_bias_if(bias),
        )?;
        let qkv = split_heads(&qkv, batch, self.info.heads)?; // [B, T, H, 3 * D]
        let part = |i: usize| qkv.slice_dim(3, i * d, (i + 1) * d);
        let (q, k) = (table.turn_halves(&part(0)?)?, table.turn_halves(&part(1)?)?);
        let kind = AttentionKind {
            scale: 1.0 / (d as f64).sqrt(),
            causal: true,
            window: None,
            soft_cap: None,
            dropout: self.attention_dropout,
        };
        let out = layers::attention(&q, &k, &part(2)?, batch, rng, kind)?;
        let to = (Axis::Embed, c);
        let added = weights.linear(
            "dense",
            &out,
            Linear::new(Axis::Heads, to).with_bias_if(bias),
        )?;
        Ok(rng.dropout(&added, self.hidden_dropout)?)
    }

    /// What the MLP adds to the residual stream, `[N, C]` of `x` `[N, C]`.
    fn mlp(&self, weights: &Weights, x: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("mlp");
        let to = (Axis::Mlp, self.intermediate_size);
        let inner = weights.linear("dense_h_to_4h", x, Linear::new(Axis::Embed, to))?;
        let activated = self.activation.apply(&inner)?; // [N, F]
        let to = (Axis::Embed, self.hidden_size);
        let added = weights.linear("dense_4h_to_h", &activated, Linear::new(Axis::Mlp, to))?;
        Ok(rng.dropout(&added, self.hidden_dropout)?)
    }

    fn layer(
        &self,
        weights: &Weights,
        x: &Tensor,
        table: &RotaryTable,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        weights.registers_first(&["input_layernorm", "post_attention_layernorm"]);
        let normed = layer_norm(weights, "input_layernorm", x, self.eps)?;
        let attended = self.attention(weights, &normed, table, batch, rng)?;
        let between = x.add(&attended)?;
        let read = if self.parallel { x } else { &between };
        let normed = layer_norm(weights, "post_attention_layernorm", read, self.eps)?;
        Ok(between.add(&self.mlp(weights, &normed, rng)?)?)
    }
}

impl Model for GptNeoX {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let rotation = self.rotary.table(batch)?;
        let (weights, _scope) = weights.enter("gpt_neox");
        let dims = [
            (Axis::Vocab, self.info.vocab_size),
            (Axis::Embed, self.hidden_size),
        ];
        let x = weights.embedding("embed_in", &batch.input_ids, dims, None)?;
        let x = rng.add_embedding_noise(&x, batch.size()[1])?;
        let mut x = rng.dropout(&x, self.hidden_dropout)?;
        for number in 0..self.layers {
            let (weights, _scope) = weights.enter_layer(&format!("layers.{number}"), &x);
            x = self.layer(&weights, &x, &rotation, batch, rng)?;
        }
        layer_norm(&weights, "final_layer_norm", &x, self.eps)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        match self.info.head {
            HeadKind::SequenceClassification { labels } => {
                let to = (Axis::Labels, labels);
                weights.linear("score", hidden, Linear::new(Axis::Embed, to).without_bias())
            }
            HeadKind::TokenClassification { labels } => {
                let dropped = rng.dropout(hidden, self.classifier_dropout)?;
                let to = (Axis::Labels, labels);
                weights.linear("classifier", &dropped, Linear::new(Axis::Embed, to))
            }
            HeadKind::CausalLm | HeadKind::MaskedLm => {
                let to = (Axis::Vocab, self.info.vocab_size);
                let head = Linear::new(Axis::Embed, to)
                    .without_bias()
                    .tied_if(self.tied_head, "gpt_neox.embed_in.weight");
                weights.linear("embed_out", hidden, head)
            }
        }
    }
}
