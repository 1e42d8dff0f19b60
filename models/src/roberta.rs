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
    name: "RoBERTa",
    model_type: "roberta",
    // The released base model. `RobertaConfig`'s own defaults are BERT's sizes, which nobody trains.
    defaults: &[
        r#"{
          "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": 50265,
          "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
          "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2
        }"#,
        bert::FAMILY.defaults[0],
    ],
    organization: "FacebookAI",
    class_prefix: "Roberta",
    kind: Kind::Encoder,
    lora_targets: Some(&["query", "value"]),
    is_adapted_by_vllm: false,
    presets,
    names: bert::NAMES,
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
    Config::literal(values, "").over(bert::FAMILY.defaults())
}

/// `RobertaForMaskedLM`, `RobertaForSequenceClassification` or `RobertaForTokenClassification`. What
/// would change numbers and is not implemented is refused by name.
fn build(config: Config, _: Config, head: HeadKind) -> Result<Box<dyn Model>> {
    // Not with the released model's values.
    let read = config.over(missing_keys()).named(bert::NAMES);
    let form = Form {
        base: "roberta",
        layers: "encoder.layer",
        layer: &BERT_LAYER,
        lm_head: MaskedLmHead::new(
            [
                "lm_head.dense",
                "lm_head.layer_norm",
                "lm_head.decoder",
                "lm_head.bias",
            ],
            // Whatever hidden_act says.
            Activation::Gelu(Gelu::Erf),
        ),
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
    encoder.info.spaces_words = true;
    encoder.positions = Positions::AfterPadding(padding_idx);
    Ok(Box::new(encoder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;

    #[test]
    fn positions_count_from_the_row_after_padding() {
        let model = build(FAMILY.defaults(), HeadKind::MaskedLm).unwrap();
        assert_eq!(model.max_positions(), 512);
    }

    #[test]
    fn positions_need_a_padding_token() {
        let mut config = FAMILY.defaults();
        config.set("pad_token_id", serde_json::Value::Null);
        let message = build(config, HeadKind::MaskedLm).err().unwrap().to_string();
        assert!(message.contains("pad_token_id"), "{message}");
    }
}
