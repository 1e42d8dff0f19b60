//! ALBERT (Lan et al. 2019) as transformers' `modeling_albert.py` computes it: BERT's layers with
//! embeddings of their own, smaller width, and one set of weights that serves every layer (of a
//! group), so that its gradients add up.
//!
//! Letters: B batch, T tokens, N = B * T, C width, E embedding width, V vocabulary, F inner width.

use crate::activation::Activation;
use crate::config::Config;
use crate::encoder::{Encoder, LayerNames, MaskedLmHead};
use crate::error::Result;
use crate::layers::{self, linear};
use crate::names::{OtherTensors, Specs, stored_name};
use crate::tensor_parallel::{Cuts, along};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{About, Classes, Family, HeadKind, Model, TokenBatch};
use serde_json::json;
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "albert",
    classes: Classes::Encoder {
        masked_lm: "AlbertForMaskedLM",
        classification: "AlbertForSequenceClassification",
        token_classification: "AlbertForTokenClassification",
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Albert::new(config, task)?)),
    cuts: CUTS,
};

const CUTS: Cuts = &[
    ("attention.query.weight", along(0)),
    ("attention.query.bias", along(0)),
    ("attention.key.weight", along(0)),
    ("attention.key.bias", along(0)),
    ("attention.value.weight", along(0)),
    ("attention.value.bias", along(0)),
    ("attention.dense.weight", along(1)),
    (".ffn.weight", along(0)),
    (".ffn.bias", along(0)),
    (".ffn_output.weight", along(1)),
    ("word_embeddings.weight", along(0)),
    ("predictions.bias", along(0)),
];

/// An ALBERT with a masked-LM head (`AlbertForMaskedLM`) or a pooler and classifier
/// (`AlbertForSequenceClassification`).
pub struct Albert {
    encoder: Encoder,
    /// Sets of weights; consecutive layers share one.
    groups: usize,
    /// Layers with weights of their own inside a group.
    inner_layers: usize,
}

/// `AlbertConfig`'s defaults: the xxlarge model.
pub fn default_config() -> Config {
    let values = json!({
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": true,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "torch_dtype": "float32",
    });
    Config::literal(values, "ALBERT's default configuration")
}

/// The released sizes of version 2.
pub fn preset(name: &str) -> Option<Config> {
    let (width, layers, heads) = match name {
        "albert-base-v2" => (768, 12, 12),
        "albert-large-v2" => (1024, 24, 16),
        "albert-xlarge-v2" => (2048, 24, 16),
        "albert-xxlarge-v2" => (4096, 12, 64),
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

const NAMES: LayerNames = LayerNames {
    query: "attention.query",
    key: "attention.key",
    value: "attention.value",
    attention_output: "attention.dense",
    attention_norm: "attention.LayerNorm",
    inner: "ffn",
    output: "ffn_output",
    output_norm: "full_layer_layer_norm",
};

impl Albert {
    /// Reads the configuration; what would change numbers and is not implemented is refused by
    /// name.
    pub fn new(config: Config, task: HeadKind) -> Result<Self> {
        let read = config.over(default_config());
        let lm_head = MaskedLmHead {
            dense: "predictions.dense",
            norm: "predictions.LayerNorm",
            bias: "predictions.bias",
            table: "albert.embeddings.word_embeddings.weight",
            activation: Activation::from_config(&read, "hidden_act", "gelu_new")?,
            eps: read.float_or("layer_norm_eps", 1e-12)?,
        };
        let mut encoder = Encoder::read(
            config,
            &read,
            task,
            ("embedding_size", "classifier_dropout_prob"),
            lm_head,
        )?;
        // Nothing is dropped of what the inner layer adds, unlike in BERT.
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

/// The weights of one layer of one group, below `encoder`.
fn shared_layer(group: usize, inner: usize) -> String {
    format!("albert_layer_groups.{group}.albert_layers.{inner}")
}

impl Model for Albert {
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
        let (c, f) = (layer.width, layer.inner);
        let mut specs = Specs::new(self.encoder.initializer_range);
        specs.table(
            "albert.embeddings.word_embeddings",
            [e.vocab, e.width],
            e.padding,
        );
        specs.table(
            "albert.embeddings.position_embeddings",
            [e.positions, e.width],
            None,
        );
        specs.table(
            "albert.embeddings.token_type_embeddings",
            [e.segments, e.width],
            None,
        );
        specs.layer_norm("albert.embeddings.LayerNorm", e.width);
        specs.linear("albert.encoder.embedding_hidden_mapping_in", [c, e.width]);
        for (group, inner) in
            (0..self.groups).flat_map(|g| (0..self.inner_layers).map(move |i| (g, i)))
        {
            let name = |rest: &str| format!("albert.encoder.{}.{rest}", shared_layer(group, inner));
            specs.layer_norm(&name(NAMES.output_norm), c);
            for dense in [NAMES.query, NAMES.key, NAMES.value, NAMES.attention_output] {
                specs.linear(&name(dense), [c, c]);
            }
            specs.layer_norm(&name(NAMES.attention_norm), c);
            specs.linear(&name(NAMES.inner), [f, c]);
            specs.linear(&name(NAMES.output), [c, f]);
        }
        specs.begin_head();
        match self.head_kind() {
            HeadKind::SequenceClassification { labels } => {
                specs.linear("albert.pooler", [c, c]);
                specs.linear("classifier", [labels, c]);
            }
            HeadKind::TokenClassification { labels } => specs.linear("classifier", [labels, c]),
            _ => {
                specs.add(lm_head.bias, &[e.vocab], Init::Zeros);
                specs.layer_norm(lm_head.norm, e.width);
                specs.linear(lm_head.dense, [e.width, c]);
            }
        }
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        let others = OtherTensors {
            not_needed: &[
                "embeddings.position_ids",
                "embeddings.token_type_ids",
                "predictions.decoder.",
            ],
            heads: &["pooler.", "predictions.", "sop_classifier.", "classifier."],
        };
        stored_name(name, "albert", &self.parameters(), others)
    }

    fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("albert");
        let embedded = {
            let (weights, _scope) = weights.enter("embeddings");
            let positions =
                layers::learned_positions(&weights.get("position_embeddings.weight")?, batch)?;
            self.encoder
                .embeddings
                .apply(&weights, batch, &positions, randomness)? // [N, E]
        };
        let (weights, _scope) = weights.enter("encoder");
        let mut x = linear(&weights, "embedding_hidden_mapping_in", &embedded)?; // [N, C]
        for layer in 0..self.encoder.layers {
            // Layers per group need not be whole; transformers truncates here too.
            let group = layer * self.groups / self.encoder.layers;
            for inner in 0..self.inner_layers {
                let path = format!("layer.{}", layer * self.inner_layers + inner);
                let (weights, _scope) =
                    weights.enter_layer_with(&path, &shared_layer(group, inner), &x);
                x = self
                    .encoder
                    .layer
                    .apply(&NAMES, &weights, &x, batch, randomness)?;
            }
        }
        Ok(x)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::first_rows(hidden, batch)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, randomness: &Randomness) -> Result<Tensor> {
        match self.head_kind() {
            HeadKind::SequenceClassification { .. } => {
                self.encoder
                    .classify(weights, hidden, ("albert.pooler", "classifier"), randomness)
            }
            HeadKind::TokenClassification { .. } => {
                self.encoder.classify_tokens(weights, hidden, randomness)
            }
            _ => self.encoder.lm_head.apply(weights, hidden),
        }
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let Encoder {
            layers,
            layer,
            embeddings,
            ..
        } = &self.encoder;
        self.encoder.step_flops(
            layers * self.inner_layers,
            embeddings.width * layer.width,
            batch,
            tokens,
        )
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
        // The published 11.7 M of the base model are 11,683,584 with the pooler and without the
        // masked-LM head.
        let count = |task| {
            let model = Albert::new(preset("albert-base-v2").unwrap(), task).unwrap();
            model
                .parameters()
                .iter()
                .map(|p| p.dims.iter().product::<usize>())
                .sum::<usize>()
        };
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
        let message = Albert::new(config, HeadKind::MaskedLm)
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains("num_hidden_layers (12)"), "{message}");
    }
}
