//! ALBERT (Lan et al. 2019) as transformers' `modeling_albert.py` computes it: BERT's layers with
//! embeddings of their own, smaller size, and one set of weights that serves every layer (of a
//! group), so that its gradients add up.
//!
//! Letters: N = B * T tokens of a batch, C hidden size, E embedding size.

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::{AttributeMap, Config};
use crate::encoder::{Encoder, Form, LayerNames, MaskedLmHead, SequenceHead, sizes};
use crate::error::Result;
use crate::family::{Family, Kind};
use crate::head::HeadKind;
use crate::linear::Linear;
use crate::model::{Model, ModelInfo};
use crate::names::StoredNames;
use crate::weights::Weights;
use xtrain_graphs::{DropoutRng, Tensor};

pub(crate) const FAMILY: Family = Family {
    name: "ALBERT",
    model_type: "albert",
    // `AlbertConfig`'s defaults: the xxlarge model.
    defaults: &[r#"{
      "architectures": ["AlbertForMaskedLM"], "model_type": "albert", "vocab_size": 30000,
      "embedding_size": 128, "hidden_size": 4096, "num_hidden_layers": 12,
      "num_hidden_groups": 1, "num_attention_heads": 64, "intermediate_size": 16384,
      "inner_group_num": 1, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
      "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1,
      "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02,
      "layer_norm_eps": 1e-12, "position_embedding_type": "absolute",
      "tie_word_embeddings": true, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
      "torch_dtype": "float32"
    }"#],
    organization: "albert",
    class_prefix: "Albert",
    kind: Kind::Encoder,
    // The released sizes of version 2.
    lora_targets: None,
    is_adapted_by_vllm: false,
    presets: || {
        vec![
            ("albert-base-v2", sizes(768, 12, 12)),
            ("albert-large-v2", sizes(1024, 24, 16)),
            ("albert-xlarge-v2", sizes(2048, 24, 16)),
            ("albert-xxlarge-v2", sizes(4096, 12, 64)),
        ]
    },
    names: NAMES,
    build: |config, read, head| Ok(Box::new(Albert::new(config, read, head)?)),
    stored_names: StoredNames {
        base: "albert",
        buffers: &[],
        not_needed: &[
            "embeddings.position_ids",
            "embeddings.token_type_ids",
            "predictions.decoder.",
        ],
        heads: &["pooler.", "predictions.", "sop_classifier.", "classifier."],
    },
};

/// What `AlbertConfig` calls settings.
const NAMES: AttributeMap = &[("classifier_dropout", "classifier_dropout_prob")];

const LAYER: LayerNames = LayerNames {
    query: "attention.query",
    key: "attention.key",
    value: "attention.value",
    attention_output: "attention.dense",
    attention_norm: "attention.LayerNorm",
    intermediate: "ffn",
    output: "ffn_output",
    output_norm: "full_layer_layer_norm",
};

/// `AlbertForMaskedLM`, `AlbertForSequenceClassification` or `AlbertForTokenClassification`.
struct Albert {
    encoder: Encoder,
    /// Sets of weights; consecutive layers share one.
    groups: usize,
    /// Layers with weights of their own inside a group.
    inner_layers: usize,
}

impl Albert {
    fn new(config: Config, read: Config, head: HeadKind) -> Result<Self> {
        let activation = Activation::from_config(&read, "hidden_act", "gelu_new")?;
        let form = Form {
            base: "albert",
            layers: "encoder.albert_layer_groups",
            layer: &LAYER,
            lm_head: MaskedLmHead::new(
                [
                    "predictions.dense",
                    "predictions.LayerNorm",
                    "predictions.decoder",
                    "predictions.bias",
                ],
                activation,
            ),
            sequence_head: SequenceHead::pooler("albert.pooler"),
        };
        let mut encoder = Encoder::read(config, &read, head, form)?;
        // Nothing is dropped of what the MLP adds, unlike in BERT.
        encoder.layer.output_dropout = 0.0;
        let (layers, groups) = (encoder.layers, read.size("num_hidden_groups")?);
        if groups > layers {
            return Err(read.unsupported(
                "num_hidden_groups",
                format!("must not exceed num_hidden_layers ({layers})"),
            ));
        }
        Ok(Albert {
            encoder,
            groups,
            inner_layers: read.size("inner_group_num")?,
        })
    }
}

impl Model for Albert {
    fn info(&self) -> &ModelInfo {
        &self.encoder.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let encoder = &self.encoder;
        let (weights, _scope) = weights.enter("albert");
        let embedded = encoder.embed(&weights, batch, rng)?; // [N, E]
        let (weights, _scope) = weights.enter("encoder");
        let to = (Axis::Embed, encoder.layer.hidden_size);
        let name = "embedding_hidden_mapping_in";
        let mut x = weights.linear(name, &embedded, Linear::new(Axis::Embed, to))?; // [N, C]
        for layer in 0..encoder.layers {
            // Layers per group need not be whole; transformers truncates here too.
            let group = layer * self.groups / encoder.layers;
            for inner in 0..self.inner_layers {
                let path = format!("layer.{}", layer * self.inner_layers + inner);
                let shared = format!("albert_layer_groups.{group}.albert_layers.{inner}");
                let (weights, _scope) = weights.enter_layer_with(&path, &shared, &x);
                weights.registers_first(&["full_layer_layer_norm"]);
                x = encoder.layer(&weights, &x, batch, rng)?;
            }
        }
        Ok(x)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        weights
            .enter("predictions")
            .0
            .registers_first(&["LayerNorm"]);
        self.encoder.head(weights, hidden, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::elements;
    use crate::{build, preset};

    #[test]
    fn presets_have_the_published_parameter_counts() {
        // The published 11.7 M of the base model are 11,683,584 with the pooler and without the
        // masked-LM head.
        let count = |head| elements("albert-base-v2", head);
        assert_eq!(
            count(HeadKind::SequenceClassification { labels: 2 }),
            11_683_584 + 2 * 768 + 2
        );
        assert_eq!(
            count(HeadKind::MaskedLm),
            11_683_584 - (768 * 768 + 768) + 768 * 128 + 3 * 128 + 30000
        );
    }

    #[test]
    fn more_groups_than_layers_are_refused() {
        let mut config = preset("albert-base-v2").unwrap();
        config.set("num_hidden_groups", 13);
        let message = build(config, HeadKind::MaskedLm).err().unwrap().to_string();
        assert!(message.contains("num_hidden_layers (12)"), "{message}");
    }
}
