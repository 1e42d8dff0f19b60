//! RoBERTa (Liu et al. 2019) as transformers' `modeling_roberta.py` computes it: BERT's layers,
//! positions that count the tokens that are not padding, and heads of its own.
//!
//! Letters: B batch, T tokens.

use crate::activation::Activation;
use crate::batch::TokenBatch;
use crate::bert;
use crate::config::Config;
use crate::encoder::{BERT_LAYER, Encoder, MaskedLmHead, SequenceHead, sizes};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::layers;
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::op::{Comparison, Gelu};
use xtrain_graphs::{DType, DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "roberta",
    organization: "FacebookAI",
    class_prefix: "Roberta",
    kind: Kind::Encoder,
    default_config,
    presets,
    build: |config, head| Ok(Box::new(Roberta::new(config, head)?)),
    stored_names: StoredNames {
        base: "roberta",
        buffers: &[],
        not_needed: &[
            "embeddings.position_ids",
            "embeddings.token_type_ids",
            "lm_head.decoder.",
        ],
        heads: &["pooler.", "lm_head.", "classifier."],
    },
};

/// `RobertaForMaskedLM`, `RobertaForSequenceClassification` or `RobertaForTokenClassification`.
struct Roberta {
    encoder: Encoder,
    /// The padding token; positions are counted from the row after it.
    padding_idx: usize,
}

/// The released base model. `RobertaConfig`'s own defaults are BERT's sizes, which nobody trains.
fn default_config() -> Config {
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
fn presets() -> Vec<(&'static str, Value)> {
    vec![
        ("distilroberta-base", sizes(768, 6, 12)),
        ("roberta-base", sizes(768, 12, 12)),
        ("roberta-large", sizes(1024, 24, 16)),
    ]
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
    fn new(config: Config, head: HeadKind) -> Result<Self> {
        let read = config.over(missing_keys()).named(bert::NAMES);
        let lm_head = MaskedLmHead {
            dense: "lm_head.dense",
            norm: "lm_head.layer_norm",
            bias: "lm_head.bias",
            table: "roberta.embeddings.word_embeddings.weight",
            // Whatever hidden_act says.
            activation: Activation::Gelu(Gelu::Erf),
        };
        let sequence_head = SequenceHead {
            dense: "classifier.dense",
            activation: Activation::Tanh,
            classifier: "classifier.out_proj",
            drops_input: true,
        };
        let mut encoder = Encoder::read(config, &read, head, lm_head, sequence_head)?;
        let Some(padding_idx) = encoder.embeddings.padding_idx else {
            return Err(read.unsupported(
                "pad_token_id",
                "positions are counted from the padding token, so there must be one",
            ));
        };
        let Some(positions) = encoder
            .embeddings
            .positions
            .checked_sub(padding_idx + 1)
            .filter(|n| *n > 0)
        else {
            return Err(read.unsupported(
                "max_position_embeddings",
                "leaves no position after that of the padding token",
            ));
        };
        encoder.info.max_positions = positions;
        Ok(Roberta {
            encoder,
            padding_idx,
        })
    }

    /// Position ids `s32[B, T]`: tokens that are not padding count up from `padding_idx + 1`, padding
    /// stays at `padding_idx`. Summed in integers over a triangle, which is exact at any length and in
    /// any precision.
    fn position_ids(&self, ids: &Tensor) -> Result<Tensor> {
        let trace = ids.trace();
        let (b, t) = (ids.dims()[0], ids.dims()[1]);
        let counts = ids
            .compare_scalar(Comparison::Ne, self.padding_idx as f64)?
            .convert(DType::S32)?; // [B, T]
        let cube = [b, t, t];
        let (position, earlier) = (
            trace.iota(DType::S32, &cube, 1)?,
            trace.iota(DType::S32, &cube, 2)?,
        );
        let reached = earlier
            .compare(Comparison::Le, &position)?
            .convert(DType::S32)?;
        let running = counts
            .broadcast_in(&cube, &[0, 2])?
            .mul(&reached)?
            .sum(&[2])?; // [B, T]
        Ok(running.mul(&counts)?.add_scalar(self.padding_idx as f64)?)
    }
}

impl Model for Roberta {
    fn info(&self) -> &ModelInfo {
        &self.encoder.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let encoder = &self.encoder;
        let (weights, _scope) = weights.enter("roberta");
        let x = {
            let (weights, _scope) = weights.enter("embeddings");
            weights.registers_first(&["word_embeddings", "token_type_embeddings", "LayerNorm"]);
            // The row of padding learns no more here than in the word embeddings.
            let padding_idx = Some(self.padding_idx);
            let table = encoder.embeddings.position_table(&weights, padding_idx)?;
            let ids = self.position_ids(&batch.input_ids)?;
            let positions = layers::embedding(&table, &ids, padding_idx)?;
            encoder.embeddings.apply(&weights, batch, &positions, rng)?
        };
        encoder.encode("encoder.layer", &BERT_LAYER, &weights, x, batch, rng)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        self.encoder.head(weights, hidden, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::testing::elements;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, count) in [
            ("distilroberta-base", 82_170_201),
            ("roberta-base", 124_697_433),
        ] {
            assert_eq!(elements(name, HeadKind::MaskedLm), count, "{name}");
        }
    }

    #[test]
    fn positions_count_from_the_row_after_padding() {
        let model = build(default_config(), HeadKind::MaskedLm).unwrap();
        assert_eq!(model.max_positions(), 512);
    }

    #[test]
    fn positions_need_a_padding_token() {
        let mut config = default_config();
        config.set("pad_token_id", serde_json::Value::Null);
        let message = build(config, HeadKind::MaskedLm).err().unwrap().to_string();
        assert!(message.contains("pad_token_id"), "{message}");
    }
}
