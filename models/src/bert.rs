//! BERT (Devlin et al. 2018) as transformers' `modeling_bert.py` computes it, with the masked-LM
//! head or a classifier on the pooled first token. Its parts are in `encoder`.
//!
//! Letters: C width.

use crate::activation::Activation;
use crate::config::Config;
use crate::encoder::{self, Encoder, MaskedLmHead, encode, encoder_parameters};
use crate::error::Result;
use crate::layers;
use crate::names::{OtherTensors, Specs, stored_name};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::json;
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "bert",
    classes: Classes::Encoder {
        masked_lm: "BertForMaskedLM",
        classification: "BertForSequenceClassification",
        token_classification: "BertForTokenClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Bert::new(config, task)?)),
    cuts: encoder::CUTS,
};

/// A BERT with a masked-LM head (`BertForMaskedLM`) or a pooler and classifier
/// (`BertForSequenceClassification`).
pub struct Bert {
    encoder: Encoder,
}

/// `BertConfig`'s defaults: the base model.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "classifier_dropout": null,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "is_decoder": false,
        "add_cross_attention": false,
        "tie_word_embeddings": true,
        "use_cache": true,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    });
    Config::literal(values, "BERT's default configuration")
}

/// The released sizes; tiny to medium are those of Turc et al. 2019.
pub fn preset(name: &str) -> Option<Config> {
    let (vocab, width, layers, heads) = match name {
        "bert-tiny" => (30522, 128, 2, 2),
        "bert-mini" => (30522, 256, 4, 4),
        "bert-small" => (30522, 512, 4, 8),
        "bert-medium" => (30522, 512, 8, 8),
        "bert-base-uncased" => (30522, 768, 12, 12),
        "bert-base-cased" => (28996, 768, 12, 12),
        "bert-base-multilingual-uncased" => (105_879, 768, 12, 12),
        "bert-base-multilingual-cased" => (119_547, 768, 12, 12),
        "bert-large-uncased" | "bert-large-uncased-whole-word-masking" => (30522, 1024, 24, 16),
        "bert-large-cased" | "bert-large-cased-whole-word-masking" => (28996, 1024, 24, 16),
        _ => return None,
    };
    let sizes = json!({
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    });
    Some(default_config().preset(name, sizes))
}

impl Bert {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let read = config.over(default_config());
        let lm_head = MaskedLmHead {
            dense: "cls.predictions.transform.dense",
            norm: "cls.predictions.transform.LayerNorm",
            bias: "cls.predictions.bias",
            table: "bert.embeddings.word_embeddings.weight",
            activation: Activation::from_config(&read, "hidden_act", "gelu")?,
            eps: read.float_or("layer_norm_eps", 1e-12)?,
        };
        Ok(Bert {
            encoder: Encoder::read(
                config,
                &read,
                task,
                ("hidden_size", "classifier_dropout"),
                lm_head,
            )?,
        })
    }
}

impl Model for Bert {
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
        specs.table("bert.embeddings.word_embeddings", [e.vocab, c], e.padding);
        specs.table(
            "bert.embeddings.position_embeddings",
            [e.positions, c],
            None,
        );
        specs.table(
            "bert.embeddings.token_type_embeddings",
            [e.segments, c],
            None,
        );
        specs.layer_norm("bert.embeddings.LayerNorm", c);
        encoder_parameters(&mut specs, "bert", layer, self.encoder.layers);
        specs.begin_head();
        match self.head_kind() {
            HeadKind::SequenceClassification { labels } => {
                specs.linear("bert.pooler.dense", [c, c]);
                specs.linear("classifier", [labels, c]);
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
                "cls.predictions.decoder.",
            ],
            heads: &["pooler.", "cls.", "classifier."],
        };
        stored_name(name, "bert", &self.parameters(), others)
    }

    fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("bert");
        let x = {
            let (weights, _scope) = weights.enter("embeddings");
            let positions =
                layers::learned_positions(&weights.get("position_embeddings.weight")?, batch)?;
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
            HeadKind::SequenceClassification { .. } => self.encoder.classify(
                weights,
                hidden,
                ("bert.pooler.dense", "classifier"),
                randomness,
            ),
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
            ("bert-base-uncased", 109_514_298),
            ("bert-large-uncased", 335_174_458),
        ] {
            let model = Bert::new(preset(name).unwrap(), HeadKind::MaskedLm).unwrap();
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
        for (key, value, word) in [
            ("is_decoder", json!(true), "is_decoder"),
            ("position_embedding_type", json!("relative_key"), "absolute"),
            ("tie_word_embeddings", json!(false), "untied"),
            ("hidden_act", json!("mish"), "gelu_new"),
            ("num_attention_heads", json!(7), "num_attention_heads"),
            ("pad_token_id", json!(30522), "vocab_size"),
            ("add_cross_attention", json!(true), "cross-attention"),
        ] {
            let mut config = default_config();
            config.set(key, value);
            let message = Bert::new(config, HeadKind::MaskedLm)
                .err()
                .unwrap()
                .to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn variants_of_stored_names_are_understood() {
        let model = Bert::new(default_config(), HeadKind::MaskedLm).unwrap();
        let parameter = |name: &str| StoredName::Parameter(name.into());
        for (stored, expected) in [
            (
                "embeddings.LayerNorm.gamma",
                parameter("bert.embeddings.LayerNorm.weight"),
            ),
            (
                "bert.encoder.layer.3.output.LayerNorm.beta",
                parameter("bert.encoder.layer.3.output.LayerNorm.bias"),
            ),
            ("cls.predictions.bias", parameter("cls.predictions.bias")),
            ("cls.predictions.decoder.weight", StoredName::NotNeeded),
            ("cls.predictions.decoder.bias", StoredName::NotNeeded),
            ("cls.seq_relationship.weight", StoredName::OtherHead),
            ("bert.pooler.dense.bias", StoredName::OtherHead),
            ("bert.embeddings.position_ids", StoredName::NotNeeded),
            (
                "bert.encoder.layer.99.output.dense.bias",
                StoredName::Unknown,
            ),
        ] {
            assert_eq!(model.stored_name(stored), expected, "{stored}");
        }
    }
}
