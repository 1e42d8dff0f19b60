//! ModernBERT (Warner et al. 2024) as transformers' `modeling_modernbert.py` computes it: an encoder
//! with rotary positions, gated MLPs, norms before the blocks, and layers of which two in three see
//! their neighbourhood only.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, H heads, D = C / H, V vocabulary, F
//! intermediate size. Activations stay `[N, C]` between attention blocks. Linear weights are
//! `[out, in]`.

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers::{self, AttentionKind, layer_norm, layer_norm_without_bias, split_heads};
use crate::linear::Linear;
use crate::model::{Model, ModelInfo, Pooling};
use crate::names::StoredNames;
use crate::rotary::{ROTARY, Rotary, RotaryKeys, RotaryTable};
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "ModernBERT",
    model_type: "modernbert",
    // `ModernBertConfig`'s defaults: the released base model but for its classifier's pooling.
    defaults: &[r#"{
      "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert",
      "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152,
      "num_hidden_layers": 22, "num_attention_heads": 12, "hidden_activation": "gelu",
      "max_position_embeddings": 8192, "initializer_range": 0.02,
      "initializer_cutoff_factor": 2.0, "norm_eps": 1e-05, "norm_bias": false,
      "pad_token_id": 50283, "eos_token_id": 50282, "bos_token_id": 50281,
      "cls_token_id": 50281, "sep_token_id": 50282, "attention_bias": false,
      "attention_dropout": 0.0, "local_attention": 128, "embedding_dropout": 0.0,
      "mlp_bias": false, "mlp_dropout": 0.0, "decoder_bias": true, "classifier_pooling": "cls",
      "classifier_dropout": 0.0, "classifier_bias": false, "classifier_activation": "gelu",
      "sparse_prediction": false, "sparse_pred_ignore_index": -100, "tie_word_embeddings": true,
      "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
      "global_attn_every_n_layers": 3, "torch_dtype": "float32"
    }"#],
    organization: "answerdotai",
    class_prefix: "ModernBert",
    kind: Kind::Encoder,
    lora_targets: None,
    is_adapted_by_vllm: false,
    presets: || {
        let large = json!({
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "intermediate_size": 2624,
            "classifier_pooling": "mean",
        });
        vec![
            ("ModernBERT-base", json!({"classifier_pooling": "mean"})),
            ("ModernBERT-large", large),
        ]
    },
    names: &[],
    build: |config, read, head| Ok(Box::new(ModernBert::new(config, read, head)?)),
    stored_names: StoredNames {
        base: "model",
        buffers: &[],
        not_needed: &["decoder.weight"],
        heads: &["head.", "decoder.", "classifier."],
    },
};

const FULL: RotaryKeys = RotaryKeys {
    layer_type: Some("full_attention"),
    theta: "global_rope_theta",
    ..ROTARY
};

const LOCAL: RotaryKeys = RotaryKeys {
    layer_type: Some("sliding_attention"),
    theta: "local_rope_theta",
    ..ROTARY
};

/// A ModernBERT for masked words or as a classifier of sequences or tokens.
struct ModernBert {
    info: ModelInfo,
    hidden_size: usize,
    intermediate_size: usize,
    activation: Activation,
    classifier_activation: Activation,
    eps: f64,
    norm_bias: bool,
    attention_bias: bool,
    mlp_bias: bool,
    classifier_bias: bool,
    decoder_bias: bool,
    /// Whether the decoder's weight is the embedding's.
    tied_decoder: bool,
    padding_idx: Option<usize>,
    /// Of each layer whether it sees its neighbourhood only.
    is_local: Vec<bool>,
    /// Such a layer sees tokens less than this far away.
    window: u32,
    /// Of layers that see everything, and of local ones.
    rotaries: [Rotary; 2],
    embedding_dropout: f64,
    attention_dropout: f64,
    mlp_dropout: f64,
    classifier_dropout: f64,
}

/// Which layers see their neighbourhood only, by `layer_types` or `global_attn_every_n_layers`.
fn local_layers(config: &Config, layers: usize) -> Result<Vec<bool>> {
    let Some(types) = config.get("layer_types") else {
        let interval = config.size_or("global_attn_every_n_layers", 3)?;
        return Ok((0..layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect());
    };
    let types = types.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_local = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        _ => None,
    };
    let read: Option<Vec<bool>> = types.iter().map(is_local).collect();
    read.filter(|read| read.len() == layers).ok_or_else(|| {
        let reason = format!(
            "must be a list with full_attention or sliding_attention for each of the {layers} layers"
        );
        config.unsupported("layer_types", reason)
    })
}

impl ModernBert {
    fn new(config: Config, read: Config, head: HeadKind) -> Result<Self> {
        read.refuse_unbuilt()?;
        let pooling = match read.text_or("classifier_pooling", "cls")?.as_str() {
            "cls" => Pooling::FirstToken,
            "mean" => Pooling::Mean,
            _ => return Err(read.unsupported("classifier_pooling", "must be cls or mean")),
        };
        let info = ModelInfo {
            pooling,
            ..ModelInfo::read(config, &read, head)?
        };
        Ok(ModernBert {
            hidden_size: read.size("hidden_size")?,
            intermediate_size: read.size("intermediate_size")?,
            activation: Activation::from_config(&read, "hidden_activation", "gelu")?,
            classifier_activation: Activation::from_config(&read, "classifier_activation", "gelu")?,
            eps: read.float_or("norm_eps", 1e-5)?,
            norm_bias: read.flag_or("norm_bias", false)?,
            attention_bias: read.flag_or("attention_bias", false)?,
            mlp_bias: read.flag_or("mlp_bias", false)?,
            classifier_bias: read.flag_or("classifier_bias", false)?,
            decoder_bias: read.flag_or("decoder_bias", true)?,
            tied_decoder: read.flag_or("tie_word_embeddings", true)?,
            padding_idx: read.padding_idx()?,
            is_local: local_layers(&read, read.layers()?)?,
            // Sizes are below 2^31.
            window: (match read.optional_size("sliding_window")? {
                // A property of transformers' configuration, which sets the other one.
                Some(to_one_side) => to_one_side,
                None => read.size("local_attention")? / 2,
            } + 1) as u32,
            rotaries: [
                Rotary::read(&read, info.head_dim, &FULL)?,
                Rotary::read(&read, info.head_dim, &LOCAL)?,
            ],
            embedding_dropout: read.rate_or("embedding_dropout", 0.0)?,
            attention_dropout: read.rate_or("attention_dropout", 0.0)?,
            mlp_dropout: read.rate_or("mlp_dropout", 0.0)?,
            classifier_dropout: read.rate_or("classifier_dropout", 0.0)?,
            info,
        })
    }

    fn norm(&self, weights: &Weights, name: &str, x: &Tensor) -> Result<Tensor> {
        let norm = if self.norm_bias {
            layer_norm
        } else {
            layer_norm_without_bias
        };
        norm(weights, name, x, self.eps)
    }

    /// What attention adds to the residual stream, `[N, C]` of `x` `[N, C]`.
    fn attention(
        &self,
        is_local: bool,
        table: &RotaryTable,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let c = self.hidden_size;
        let to = (Axis::Qkv { group: 1 }, 3 * c);
        let bias = self.attention_bias;
        let qkv = weights.linear("Wqkv", x, Linear::new(Axis::Embed, to).with_bias_if(bias))?; // [N, 3C]
        let part = |i: usize| {
            split_heads(
                &qkv.slice_dim(1, i * c, (i + 1) * c)?,
                batch,
                self.info.heads,
            )
        }; // [B, T, H, D]
        let (q, k) = (table.turn_halves(&part(0)?)?, table.turn_halves(&part(1)?)?);
        let kind = AttentionKind {
            scale: 1.0 / (self.info.head_dim as f64).sqrt(),
            causal: false,
            window: is_local.then_some(self.window),
            soft_cap: None,
            dropout: self.attention_dropout,
        };
        let out = layers::attention(&q, &k, &part(2)?, batch, rng, kind)?;
        let to = (Axis::Embed, c);
        let projected =
            weights.linear("Wo", &out, Linear::new(Axis::Heads, to).with_bias_if(bias))?;
        Ok(rng.dropout(&projected, self.attention_dropout)?)
    }

    /// What the gated MLP adds to the residual stream, `[N, C]` of `x` `[N, C]`.
    fn mlp(&self, weights: &Weights, x: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let f = self.intermediate_size;
        let to = (Axis::GateUp, 2 * f);
        let both = weights.linear(
            "Wi",
            x,
            Linear::new(Axis::Embed, to).with_bias_if(self.mlp_bias),
        )?;
        let [input, gate] = [0, f].map(|start| both.slice_dim(1, start, start + f));
        let gated = self.activation.gated(&input?, &gate?)?; // [N, F]
        let gated = rng.dropout(&gated, self.mlp_dropout)?;
        let to = (Axis::Embed, self.hidden_size);
        weights.linear(
            "Wo",
            &gated,
            Linear::new(Axis::Mlp, to).with_bias_if(self.mlp_bias),
        )
    }

    /// Dense, activation, norm: what all heads begin with, row by row.
    fn transform(&self, weights: &Weights, rows: &Tensor) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("head");
        let to = (Axis::Embed, self.hidden_size);
        let dense = weights.linear(
            "dense",
            rows,
            Linear::new(Axis::Embed, to).with_bias_if(self.classifier_bias),
        )?;
        self.norm(&weights, "norm", &self.classifier_activation.apply(&dense)?)
    }
}

impl Model for ModernBert {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let [full, local] = &self.rotaries;
        let [full, local] = [full, local].map(|rotary| rotary.table(batch));
        let (full, local) = (full?, local?);
        let (weights, _scope) = weights.enter("model");
        let mut x = {
            let (weights, _scope) = weights.enter("embeddings");
            let dims = [
                (Axis::Vocab, self.info.vocab_size),
                (Axis::Embed, self.hidden_size),
            ];
            let ids = &batch.input_ids;
            let rows = weights.embedding("tok_embeddings", ids, dims, self.padding_idx)?;
            let rows = rng.add_embedding_noise(&rows, batch.size()[1])?;
            rng.dropout(&self.norm(&weights, "norm", &rows)?, self.embedding_dropout)?
        };
        for (layer, &is_local) in self.is_local.iter().enumerate() {
            let (weights, _scope) = weights.enter_layer(&format!("layers.{layer}"), &x);
            // The first layer's input is normalized already.
            let normed = match layer {
                0 => x.clone(),
                _ => self.norm(&weights, "attn_norm", &x)?,
            };
            let attended = {
                let (weights, _scope) = weights.enter("attn");
                let table = if is_local { &local } else { &full };
                self.attention(is_local, table, &weights, &normed, batch, rng)?
            };
            x = x.add(&attended)?;
            let normed = self.norm(&weights, "mlp_norm", &x)?;
            let (weights, _scope) = weights.enter("mlp");
            x = x.add(&self.mlp(&weights, &normed, rng)?)?;
        }
        self.norm(&weights, "final_norm", &x)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        let rows = self.transform(weights, hidden)?;
        match self.info.head {
            HeadKind::SequenceClassification { labels }
            | HeadKind::TokenClassification { labels } => {
                let dropped = rng.dropout(&rows, self.classifier_dropout)?;
                let to = (Axis::Labels, labels);
                weights.linear("classifier", &dropped, Linear::new(Axis::Embed, to))
            }
            HeadKind::MaskedLm | HeadKind::CausalLm => {
                let to = (Axis::Vocab, self.info.vocab_size);
                let decoder = Linear::new(Axis::Embed, to)
                    .with_bias_if(self.decoder_bias)
                    .tied_if(self.tied_decoder, "model.embeddings.tok_embeddings.weight");
                weights.linear("decoder", &rows, decoder)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_local_but_for_every_third() {
        let of = |values: Value| local_layers(&Config::literal(values, "a test"), 4);
        assert_eq!(of(json!({})).unwrap(), [false, true, true, false]);
        let every_second = json!({"global_attn_every_n_layers": 2});
        assert_eq!(of(every_second).unwrap(), [false, true, false, true]);
        for types in [
            json!(["full_attention"]),
            json!(["a", "b", "c", "d"]),
            json!(3),
        ] {
            let message = of(json!({ "layer_types": types })).unwrap_err().to_string();
            assert!(message.contains("layer_types"), "{message}");
        }
    }
}
