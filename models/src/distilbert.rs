//! DistilBERT (Sanh et al. 2019) as transformers' `modeling_distilbert.py` computes it: BERT's
//! layers without segments and pooler, and heads of its own.

use crate::activation::Activation;
use crate::config::{AttributeMap, Config};
use crate::encoder::{Encoder, Form, LayerNames, MaskedLmHead, SequenceHead};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::model::Model;
use crate::names::StoredNames;
use serde_json::json;

pub(crate) const FAMILY: Family = Family {
    name: "DistilBERT",
    model_type: "distilbert",
    // `DistilBertConfig`'s defaults: the released base model.
    defaults: &[r#"{
      "architectures": ["DistilBertForMaskedLM"], "model_type": "distilbert",
      "vocab_size": 30522, "max_position_embeddings": 512, "sinusoidal_pos_embds": false,
      "n_layers": 6, "n_heads": 12, "dim": 768, "hidden_dim": 3072, "dropout": 0.1,
      "attention_dropout": 0.1, "activation": "gelu", "initializer_range": 0.02,
      "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "tie_word_embeddings": true,
      "pad_token_id": 0, "torch_dtype": "float32"
    }"#],
    organization: "distilbert",
    class_prefix: "DistilBert",
    kind: Kind::Encoder,
    lora_targets: None,
    is_adapted_by_vllm: false,
    presets: || {
        vec![
            ("distilbert-base-uncased", json!({})),
            ("distilbert-base-cased", json!({"vocab_size": 28996})),
            (
                "distilbert-base-multilingual-cased",
                json!({"vocab_size": 119_547}),
            ),
        ]
    },
    names: NAMES,
    build,
    stored_names: StoredNames {
        base: "distilbert",
        buffers: &[],
        not_needed: &["embeddings.position_ids", "vocab_projector.weight"],
        heads: &[
            "vocab_transform.",
            "vocab_layer_norm.",
            "vocab_projector.",
            "pre_classifier.",
            "classifier.",
        ],
    },
};

/// What `DistilBertConfig` calls settings.
const NAMES: AttributeMap = &[
    ("hidden_size", "dim"),
    ("embedding_size", "dim"),
    ("intermediate_size", "hidden_dim"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("hidden_act", "activation"),
    ("hidden_dropout_prob", "dropout"),
    ("attention_probs_dropout_prob", "attention_dropout"),
    ("classifier_dropout", "seq_classif_dropout"),
];

const LAYER: LayerNames = LayerNames {
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    intermediate: "ffn.lin1",
    output: "ffn.lin2",
    output_norm: "output_layer_norm",
};

/// `DistilBertForMaskedLM`, `DistilBertForSequenceClassification` or
/// `DistilBertForTokenClassification`. What would change numbers and is not implemented is refused
/// by name.
fn build(config: Config, read: Config, head: HeadKind) -> Result<Box<dyn Model>> {
    // A saved table counts as it is stored, and is trained like a learned one.
    let is_sinusoidal = read.flag_or("sinusoidal_pos_embds", false)?;
    let read = read.without(&["layer_norm_eps", "type_vocab_size"]);
    let form = Form {
        base: "distilbert",
        layers: "transformer.layer",
        layer: &LAYER,
        lm_head: MaskedLmHead::new(
            [
                "vocab_transform",
                "vocab_layer_norm",
                "vocab_projector",
                "vocab_projector.bias",
            ],
            Activation::from_config(&read, "hidden_act", "gelu")?,
        ),
        sequence_head: SequenceHead {
            dense: "pre_classifier",
            activation: Activation::Relu,
            classifier: "classifier",
            drops_input: false,
        },
    };
    let mut encoder = Encoder::read(config, &read, head, form)?;
    // Nothing is dropped of what attention adds, unlike in BERT.
    encoder.layer.projection_dropout = 0.0;
    encoder.embeddings.is_sinusoidal = is_sinusoidal;
    if let HeadKind::TokenClassification { .. } = head {
        encoder.classifier_dropout = read.rate_or("hidden_dropout_prob", 0.1)?;
    }
    Ok(Box::new(encoder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::parameter::Init;
    use crate::testing::elements;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        // The published 66 M are the bare model's 66,362,880.
        let heads = |labels: usize| 768 * labels + labels;
        for (head, count) in [
            (
                HeadKind::MaskedLm,
                66_362_880 + 768 * 768 + 768 + 2 * 768 + 30522,
            ),
            (
                HeadKind::SequenceClassification { labels: 2 },
                66_362_880 + 768 * 768 + 768 + heads(2),
            ),
            (
                HeadKind::TokenClassification { labels: 9 },
                66_362_880 + heads(9),
            ),
        ] {
            assert_eq!(elements("distilbert-base-uncased", head), count, "{head}");
        }
    }

    #[test]
    fn sinusoidal_positions_are_a_table_that_starts_otherwise() {
        let mut config = FAMILY.defaults();
        config.set("sinusoidal_pos_embds", true);
        let model = build(config, HeadKind::MaskedLm).unwrap();
        let parameters = model.parameters();
        let table = parameters
            .iter()
            .find(|parameter| parameter.name.ends_with("position_embeddings.weight"))
            .unwrap();
        assert_eq!(
            (&table.init, &table.dims[..]),
            (&Init::Sinusoids, &[512, 768][..])
        );
    }
}
