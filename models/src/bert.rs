//! BERT (Devlin et al. 2018) as transformers' `modeling_bert.py` computes it, with the masked-LM
//! head, a classifier on the pooled first token or one on each token. Its parts are in `encoder`.

use crate::activation::Activation;
use crate::config::{AttributeMap, Config};
use crate::encoder::{BERT_LAYER, Encoder, Form, MaskedLmHead, SequenceHead, sizes};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::model::Model;
use crate::names::StoredNames;
use serde_json::Value;

pub(crate) const FAMILY: Family = Family {
    name: "BERT",
    model_type: "bert",
    // `BertConfig`'s defaults: the base model.
    defaults: &[r#"{
      "architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 30522,
      "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
      "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
      "attention_probs_dropout_prob": 0.1, "classifier_dropout": null,
      "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02,
      "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "is_decoder": false,
      "add_cross_attention": false, "tie_word_embeddings": true, "use_cache": true,
      "pad_token_id": 0, "torch_dtype": "float32"
    }"#],
    organization: "google-bert",
    class_prefix: "Bert",
    kind: Kind::Encoder,
    lora_targets: Some(&["query", "value"]),
    is_adapted_by_vllm: false,
    presets,
    names: NAMES,
    build,
    stored_names: StoredNames {
        base: "bert",
        buffers: &[],
        not_needed: &[
            "embeddings.position_ids",
            "embeddings.token_type_ids",
            "cls.predictions.decoder.",
        ],
        heads: &["pooler.", "cls.", "classifier."],
    },
};

/// The embeddings are as wide as the hidden states; RoBERTa's too.
pub(crate) const NAMES: AttributeMap = &[("embedding_size", "hidden_size")];

/// The released sizes; tiny to medium are those of Turc et al. 2019.
fn presets() -> Vec<(&'static str, Value)> {
    let cased = |vocab_size: usize, mut sizes: Value| {
        sizes["vocab_size"] = vocab_size.into();
        sizes
    };
    let (base, large) = (sizes(768, 12, 12), sizes(1024, 24, 16));
    vec![
        ("bert-tiny", sizes(128, 2, 2)),
        ("bert-mini", sizes(256, 4, 4)),
        ("bert-small", sizes(512, 4, 8)),
        ("bert-medium", sizes(512, 8, 8)),
        ("bert-base-uncased", base.clone()),
        ("bert-base-cased", cased(28996, base.clone())),
        (
            "bert-base-multilingual-uncased",
            cased(105_879, base.clone()),
        ),
        ("bert-base-multilingual-cased", cased(119_547, base)),
        ("bert-large-uncased", large.clone()),
        ("bert-large-uncased-whole-word-masking", large.clone()),
        ("bert-large-cased", cased(28996, large.clone())),
        ("bert-large-cased-whole-word-masking", cased(28996, large)),
    ]
}

/// `BertForMaskedLM`, `BertForSequenceClassification` or `BertForTokenClassification`. What would
/// change numbers and is not implemented is refused by name.
fn build(config: Config, read: Config, head: HeadKind) -> Result<Box<dyn Model>> {
    let form = Form {
        base: "bert",
        layers: "encoder.layer",
        layer: &BERT_LAYER,
        lm_head: MaskedLmHead::new(
            [
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions.decoder",
                "cls.predictions.bias",
            ],
            Activation::from_config(&read, "hidden_act", "gelu")?,
        ),
        sequence_head: SequenceHead::pooler("bert.pooler.dense"),
    };
    Ok(Box::new(Encoder::read(config, &read, head, form)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoredName, build, stored_name};
    use serde_json::json;

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
            let mut config = FAMILY.defaults();
            config.set(key, value);
            let message = build(config, HeadKind::MaskedLm).err().unwrap().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn variants_of_stored_names_are_understood() {
        let model = build(FAMILY.defaults(), HeadKind::MaskedLm).unwrap();
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
            assert_eq!(stored_name(&*model, stored), expected, "{stored}");
        }
    }
}
