//! RoBERTa (Liu et al. 2019) as transformers' `modeling_roberta.py` computes it: BERT's layers,
//! positions that count the tokens that are not padding, and heads of its own.
//!
//! Letters: B batch, T tokens, N = B * T, C width, V vocabulary.

use crate::activation::Activation;
use crate::bert;
use crate::config::Config;
use crate::encoder::{self, Encoder, MaskedLmHead, encode, encoder_parameters};
use crate::error::Result;
use crate::layers;
use crate::names::{OtherTensors, Specs, stored_name};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::json;
use xtrain_graphs::op::{Comparison, Gelu};
use xtrain_graphs::{DType, Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "roberta",
    classes: Classes::Encoder {
        masked_lm: "RobertaForMaskedLM",
        classification: "RobertaForSequenceClassification",
        token_classification: "RobertaForTokenClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Roberta::new(config, task)?)),
    cuts: encoder::CUTS,
};

/// A RoBERTa with a masked-LM head (`RobertaForMaskedLM`) or a classifier
/// (`RobertaForSequenceClassification`).
pub struct Roberta {
    encoder: Encoder,
    /// The padding token; positions are counted from the row after it.
    padding: usize,
}

/// The released base model. `RobertaConfig`'s own defaults are BERT's sizes, which nobody trains.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    });
    let own = Config::literal(values, "RoBERTa's default configuration");
    own.over(bert::default_config())
}

/// The released sizes.
pub fn preset(name: &str) -> Option<Config> {
    let (width, layers, heads) = match name {
        "distilroberta-base" => (768, 6, 12),
        "roberta-base" => (768, 12, 12),
        "roberta-large" => (1024, 24, 16),
        _ => return None,
    };
    let sizes = json!({
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    });
    Some(default_config().preset(name, sizes))
}

/// What `RobertaConfig` takes for the keys that a `config.json` lacks.
fn missing_keys() -> Config {
    let values = json!({
        "vocab_size": 50265,
        "pad_token_id": 1,
    });
    Config::literal(values, "").over(bert::default_config())
}

impl Roberta {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let read = config.over(missing_keys());
        let lm_head = MaskedLmHead {
            dense: "lm_head.dense",
            norm: "lm_head.layer_norm",
            bias: "lm_head.bias",
            table: "roberta.embeddings.word_embeddings.weight",
            // Whatever hidden_act says.
            activation: Activation::Gelu(Gelu::Erf),
            eps: read.float_or("layer_norm_eps", 1e-12)?,
        };
        let mut encoder = Encoder::read(
            config,
            &read,
            task,
            ("hidden_size", "classifier_dropout"),
            lm_head,
        )?;
        let Some(padding) = encoder.embeddings.padding else {
            return Err(read.unsupported(
                "pad_token_id",
                "positions are counted from the padding token, so there must be one",
            ));
        };
        let Some(positions) = encoder
            .embeddings
            .positions
            .checked_sub(padding + 1)
            .filter(|n| *n > 0)
        else {
            return Err(read.unsupported(
                "max_position_embeddings",
                "leaves no position after that of the padding token",
            ));
        };
        encoder.about.max_positions = positions;
        Ok(Roberta { encoder, padding })
    }

    /// Position ids `s32[B, T]`: tokens that are not padding count up from `padding + 1`, padding
    /// stays at `padding`. Summed in integers over a triangle, which is exact at any length and in
    /// any precision.
    fn position_ids(&self, ids: &Tensor) -> Result<Tensor> {
        let trace = ids.trace();
        let (b, t) = (ids.dims()[0], ids.dims()[1]);
        let counts = ids
            .compare_scalar(Comparison::Ne, self.padding as f64)?
            .convert(DType::S32)?; // [B, T]
        let cube = [b, t, t];
        let (place, earlier) = (
            trace.iota(DType::S32, &cube, 1)?,
            trace.iota(DType::S32, &cube, 2)?,
        );
        let reached = earlier
            .compare(Comparison::Le, &place)?
            .convert(DType::S32)?;
        let running = counts
            .broadcast_in(&cube, &[0, 2])?
            .mul(&reached)?
            .sum(&[2])?; // [B, T]
        Ok(running.mul(&counts)?.add_scalar(self.padding as f64)?)
    }
}

impl Model for Roberta {
    fn about(&self) -> &About {
        &self.encoder.about
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let Encoder {
            embeddings: e,
            layer,
            lm_head,
            ..
        } = &self.encoder;
        let c = layer.width;
        let mut specs = Specs::new(self.encoder.initializer_range);
        specs.table(
            "roberta.embeddings.word_embeddings",
            [e.vocab, c],
            e.padding,
        );
        specs.table(
            "roberta.embeddings.token_type_embeddings",
            [e.segments, c],
            None,
        );
        specs.layer_norm("roberta.embeddings.LayerNorm", c);
        specs.table(
            "roberta.embeddings.position_embeddings",
            [e.positions, c],
            e.padding,
        );
        encoder_parameters(&mut specs, "roberta", layer, self.encoder.layers);
        specs.begin_head();
        match self.head_kind() {
            HeadKind::SequenceClassification { labels } => {
                specs.linear("classifier.dense", [c, c]);
                specs.linear("classifier.out_proj", [labels, c]);
            }
            HeadKind::TokenClassification { labels } => specs.linear("classifier", [labels, c]),
            _ => {
                specs.add(lm_head.bias, &[e.vocab], Init::Zeros);
                specs.linear(lm_head.dense, [c, c]);
                specs.layer_norm(lm_head.norm, c);
            }
        }
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        let others = OtherTensors {
            not_needed: &[
                "embeddings.position_ids",
                "embeddings.token_type_ids",
                "lm_head.decoder.",
            ],
            heads: &["pooler.", "lm_head.", "classifier."],
        };
        stored_name(name, "roberta", &self.parameters(), others)
    }

    fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("roberta");
        let x = {
            let (weights, _scope) = weights.enter("embeddings");
            let table = &weights.get("position_embeddings.weight")?;
            // The row of padding learns no more here than in the word embeddings.
            let positions = layers::embedding(
                table,
                &self.position_ids(&batch.input_ids)?,
                Some(self.padding),
            )?;
            self.encoder
                .embeddings
                .apply(&weights, batch, &positions, randomness)?
        };
        encode(
            &self.encoder.layer,
            self.encoder.layers,
            &weights,
            x,
            batch,
            randomness,
        )
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::first_rows(hidden, batch)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, randomness: &Randomness) -> Result<Tensor> {
        match self.head_kind() {
            HeadKind::SequenceClassification { .. } => {
                let first = randomness.dropout(hidden, self.encoder.classifier_dropout)?; // [B, C]
                let names = ("classifier.dense", "classifier.out_proj");
                self.encoder.classify(weights, &first, names, randomness)
            }
            HeadKind::TokenClassification { .. } => {
                self.encoder.classify_tokens(weights, hidden, randomness)
            }
            _ => self.encoder.lm_head.apply(weights, hidden),
        }
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        self.encoder
            .step_flops(self.encoder.layers, 0, batch, tokens)
    }

    fn head_flops(&self, rows: usize) -> f64 {
        self.encoder.head_flops(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, count) in [
            ("distilroberta-base", 82_170_201),
            ("roberta-base", 124_697_433),
        ] {
            let model = Roberta::new(preset(name).unwrap(), HeadKind::MaskedLm).unwrap();
            let total: usize = model
                .parameters()
                .iter()
                .map(|p| p.dims.iter().product::<usize>())
                .sum();
            assert_eq!(total, count, "{name}");
            assert_eq!(model.max_positions(), 512);
        }
    }

    #[test]
    fn positions_need_a_padding_token() {
        let mut config = default_config();
        config.set("pad_token_id", serde_json::Value::Null);
        let message = Roberta::new(config, HeadKind::MaskedLm)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("pad_token_id"), "{message}");
    }
}
