//! RoBERTa (Liu et al. 2019) as transformers' `modeling_roberta.py` computes it: BERT's layers,
//! positions that count the tokens that are not padding, and heads of its own.
//!
//! Letters: B batch, T tokens.

use crate::activation::Activation;
use crate::bert;
use crate::config::Config;
use crate::encoder::{BERT_LAYER, Encoder, Form, MaskedLmHead, Positions, SequenceHead, sizes};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::model::Model;
use crate::names::StoredNames;
use serde_json::{Value, json};
use xtrain_graphs::op::Gelu;

pub(crate) const FAMILY: Family = Family {
    model_type: "roberta",
    organization: "FacebookAI",
    class_prefix: "Roberta",
    kind: Kind::Encoder,
    default_config,
    presets,
    build,
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

/// `RobertaForMaskedLM`, `RobertaForSequenceClassification` or `RobertaForTokenClassification`. What
/// would change numbers and is not implemented is refused by name.
fn build(config: Config, head: HeadKind) -> Result<Box<dyn Model>> {
    let read = config.over(missing_keys()).named(bert::NAMES);
    let form = Form {
        base: "roberta",
        layers: "encoder.layer",
        layer: &BERT_LAYER,
        lm_head: MaskedLmHead {
            dense: "lm_head.dense",
            norm: "lm_head.layer_norm",
            bias: "lm_head.bias",
            // Whatever hidden_act says.
            activation: Activation::Gelu(Gelu::Erf),
        },
        sequence_head: SequenceHead {
            dense: "classifier.dense",
            activation: Activation::Tanh,
            classifier: "classifier.out_proj",
            drops_input: true,
        },
    };
    let mut encoder = Encoder::read(config, &read, head, form)?;
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
    encoder.positions = Positions::AfterPadding(padding_idx);
    Ok(Box::new(encoder))
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
