//! RoBERTa (Liu et al. 2019) as transformers' `modeling_roberta.py` computes it: BERT's layers, positions that count the tokens
//! that are not padding, and heads of its own.
//!
//! Letters: B batch, T tokens, N = B * T, C width, V vocabulary.

use crate::activation::Activation;
use crate::bert::{self, Embeddings, Layer, MaskedLmHead};
use crate::config::Config;
use crate::error::Result;
use crate::layers::{self, linear};
use crate::names::{Specs, stored_name};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{Family, Model, Task, TokenBatch};
use serde_json::json;
use xtrain_graphs::op::{Comparison, Gelu};
use xtrain_graphs::{DType, Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "roberta",
    usual_task: Task::MaskedLm,
    class: |task| match task {
        Task::MaskedLm => Some("RobertaForMaskedLM"),
        Task::Classification { .. } => Some("RobertaForSequenceClassification"),
        Task::CausalLm => None,
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Roberta::new(config, task)?)),
};

/// A RoBERTa with a masked-LM head (`RobertaForMaskedLM`) or a classifier (`RobertaForSequenceClassification`).
pub struct Roberta {
    config: Config,
    task: Task,
    embeddings: Embeddings,
    /// The padding token; positions are counted from the row after it.
    padding: usize,
    layer: Layer,
    layers: usize,
    lm_head: MaskedLmHead,
    classifier_dropout: f64,
    initializer_range: f64,
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
    /// Reads the configuration; what would change numbers and is not implemented is refused by name.
    pub fn new(config: Config, task: Task) -> Result<Self> {
        let read = config.over(missing_keys());
        bert::refuse_unbuilt(&read)?;
        let embeddings = Embeddings::read(&read, "hidden_size")?;
        let Some(padding) = embeddings.padding else {
            return Err(config.unsupported("pad_token_id", "positions are counted from the padding token, so there must be one"));
        };
        if embeddings.positions <= padding + 1 {
            return Err(config.unsupported("max_position_embeddings", "leaves no position after that of the padding token"));
        }
        Ok(Roberta {
            task,
            embeddings,
            padding,
            layer: Layer::read(&read)?,
            layers: read.size("num_hidden_layers")?,
            lm_head: MaskedLmHead {
                dense: "lm_head.dense",
                norm: "lm_head.layer_norm",
                bias: "lm_head.bias",
                table: "roberta.embeddings.word_embeddings.weight",
                // Whatever hidden_act says.
                activation: Activation::Gelu(Gelu::Erf),
                eps: read.float_or("layer_norm_eps", 1e-12)?,
            },
            classifier_dropout: bert::classifier_dropout(&read)?,
            initializer_range: read.float_or("initializer_range", 0.02)?,
            config,
        })
    }

    /// Position ids `s32[B, T]`: tokens that are not padding count up from `padding + 1`, padding stays at `padding`. Summed in
    /// integers over a triangle, which is exact at any length and in any precision.
    fn position_ids(&self, ids: &Tensor) -> Result<Tensor> {
        let trace = ids.trace();
        let (b, t) = (ids.dims()[0], ids.dims()[1]);
        let counts = ids.compare_scalar(Comparison::Ne, self.padding as f64)?.convert(DType::S32)?; // [B, T]
        let cube = [b, t, t];
        let (place, earlier) = (trace.iota(DType::S32, &cube, 1)?, trace.iota(DType::S32, &cube, 2)?);
        let reached = earlier.compare(Comparison::Le, &place)?.convert(DType::S32)?;
        let running = counts.broadcast_in(&cube, &[0, 2])?.mul(&reached)?.sum(&[2])?; // [B, T]
        Ok(running.mul(&counts)?.add_scalar(self.padding as f64)?)
    }
}

impl Model for Roberta {
    fn config(&self) -> &Config {
        &self.config
    }

    fn task(&self) -> Task {
        self.task
    }

    fn vocab_size(&self) -> usize {
        self.embeddings.vocab
    }

    fn max_positions(&self) -> usize {
        self.embeddings.positions - self.padding - 1
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let (e, c) = (&self.embeddings, self.layer.width);
        let mut specs = Specs::new(self.initializer_range);
        specs.table("roberta.embeddings.word_embeddings", [e.vocab, c], e.padding);
        specs.table("roberta.embeddings.token_type_embeddings", [e.segments, c], None);
        specs.layer_norm("roberta.embeddings.LayerNorm", c);
        specs.table("roberta.embeddings.position_embeddings", [e.positions, c], e.padding);
        bert::encoder_parameters(&mut specs, "roberta", &self.layer, self.layers);
        match self.task {
            Task::Classification { labels } => {
                specs.linear("classifier.dense", [c, c]);
                specs.linear("classifier.out_proj", [labels, c]);
            }
            _ => {
                specs.add(self.lm_head.bias, &[e.vocab], Init::Zeros);
                specs.linear(self.lm_head.dense, [c, c]);
                specs.layer_norm(self.lm_head.norm, c);
            }
        }
        specs.finish()
    }

    fn stored_name(&self, name: &str) -> StoredName {
        let not_needed = ["embeddings.position_ids", "embeddings.token_type_ids", "pooler.", "lm_head.", "classifier."];
        stored_name(name, "roberta", &self.parameters(), &not_needed)
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, randomness: &Randomness) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("roberta");
        let x = {
            let (weights, _scope) = weights.enter("embeddings");
            let table = weights.get("position_embeddings.weight")?;
            // The row of padding learns no more here than in the word embeddings.
            let positions = layers::embedding(table, &self.position_ids(&batch.input_ids)?, Some(self.padding))?;
            self.embeddings.apply(&weights, batch, &positions, randomness)?
        };
        bert::encode(&self.layer, self.layers, &weights, x, batch, randomness)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::first_rows(hidden, batch)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, randomness: &Randomness) -> Result<Tensor> {
        let Task::Classification { .. } = self.task else { return self.lm_head.apply(weights, hidden) };
        let first = randomness.dropout(hidden, self.classifier_dropout)?; // [B, C]
        let dense = linear(weights, "classifier.dense", &first)?.tanh()?;
        linear(weights, "classifier.out_proj", &randomness.dropout(&dense, self.classifier_dropout)?)
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let head = match self.task {
            Task::Classification { .. } => 0,
            _ => self.layer.width * (self.layer.width + self.embeddings.vocab),
        };
        self.layer.step_flops(self.layers, head as f64, batch, tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        for (name, count) in [("distilroberta-base", 82_170_201), ("roberta-base", 124_697_433)] {
            let model = Roberta::new(preset(name).unwrap(), Task::MaskedLm).unwrap();
            let total: usize = model.parameters().iter().map(|p| p.dims.iter().product::<usize>()).sum();
            assert_eq!(total, count, "{name}");
            assert_eq!(model.max_positions(), 512);
        }
    }

    #[test]
    fn positions_need_a_padding_token() {
        let mut config = default_config();
        config.set("pad_token_id", serde_json::Value::Null);
        let message = Roberta::new(config, Task::MaskedLm).err().unwrap().to_string();
        assert!(message.contains("pad_token_id"), "{message}");
    }
}
