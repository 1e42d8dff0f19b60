//! BERT (Devlin et al. 2018) as transformers' `modeling_bert.py` computes it, with the masked-LM head or a classifier on the
//! pooled first token. RoBERTa and ALBERT call its parts: [`Embeddings`], [`Layer`], [`MaskedLmHead`].
//!
//! Letters: B batch, T tokens, N = B * T, C width, E embedding width (C but in ALBERT), H heads, D = C / H, V vocabulary,
//! F inner width, P positions, S segments. Activations stay `[N, C]` between attention blocks.

use crate::activation::Activation;
use crate::config::Config;
use crate::error::Result;
use crate::layers::{self, AttentionKind, layer_norm, linear, split_heads};
use crate::names::{Specs, stored_name};
use crate::weights::{Init, ParameterSpec, StoredName, Weights};
use crate::{Family, Model, Task, TokenBatch};
use serde_json::json;
use xtrain_graphs::{Randomness, Tensor};

pub(crate) const FAMILY: Family = Family {
    model_type: "bert",
    usual_task: Task::MaskedLm,
    class: |task| match task {
        Task::MaskedLm => Some("BertForMaskedLM"),
        Task::Classification { .. } => Some("BertForSequenceClassification"),
        Task::CausalLm => None,
    },
    default_config,
    preset,
    build: |config, task| Ok(Box::new(Bert::new(config, task)?)),
};

/// A BERT with a masked-LM head (`BertForMaskedLM`) or a pooler and classifier (`BertForSequenceClassification`).
pub struct Bert {
    config: Config,
    task: Task,
    embeddings: Embeddings,
    layer: Layer,
    layers: usize,
    lm_head: MaskedLmHead,
    classifier_dropout: f64,
    initializer_range: f64,
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

/// Refuses what changes an encoder's numbers and is not implemented.
pub(crate) fn refuse_unbuilt(config: &Config) -> Result<()> {
    config.refuse_unbuilt()?;
    config.only("is_decoder", false, "encoders are not trained as decoders here")?;
    config.only("position_embedding_type", "absolute", "only absolute positions are implemented")?;
    config.only("tie_word_embeddings", true, "an untied masked-LM decoder is not implemented")
}

/// Rows per token, segment and position, added up and normalized.
pub(crate) struct Embeddings {
    pub vocab: usize,
    pub positions: usize,
    pub segments: usize,
    /// E
    pub width: usize,
    /// The token whose look-up teaches the table nothing.
    pub padding: Option<usize>,
    eps: f64,
    dropout: f64,
}

impl Embeddings {
    /// `width_key` is `hidden_size`, but in ALBERT.
    pub fn read(config: &Config, width_key: &str) -> Result<Self> {
        let vocab = config.size("vocab_size")?;
        let padding = config.token_id_or("pad_token_id", None)?;
        if padding.is_some_and(|id| id >= vocab) {
            return Err(config.unsupported("pad_token_id", format!("must be below vocab_size ({vocab})")));
        }
        Ok(Embeddings {
            vocab,
            positions: config.size("max_position_embeddings")?,
            segments: config.size("type_vocab_size")?,
            width: config.size(width_key)?,
            padding,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
            dropout: config.rate_or("hidden_dropout_prob", 0.1)?,
        })
    }

    /// The input of the first layer, `[N, E]`; `positions` `[N, E]` are the rows of the position table.
    pub fn apply(&self, weights: &Weights, batch: &TokenBatch, positions: &Tensor, randomness: &Randomness) -> Result<Tensor> {
        let tokens = layers::embedding(weights.get("word_embeddings.weight")?, &batch.input_ids, self.padding)?;
        let table = weights.get("token_type_embeddings.weight")?;
        let segments = match &batch.token_type_ids {
            Some(ids) => layers::embedding(table, ids, None)?,
            None => table.slice_dim(0, 0, 1)?.broadcast_to(tokens.dims())?,
        };
        let sum = tokens.add(&segments)?.add(positions)?;
        let normed = layer_norm(weights, "LayerNorm", &sum, self.eps)?;
        Ok(randomness.dropout(&normed, self.dropout)?)
    }
}

/// What a layer calls its weights.
pub(crate) struct LayerNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
    pub inner: &'static str,
    pub output: &'static str,
    pub output_norm: &'static str,
}

/// In the order in which they are registered.
const NAMES: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    inner: "intermediate.dense",
    output: "output.dense",
    output_norm: "output.LayerNorm",
};

/// An encoder layer: attention, then an inner layer, each added to its input and normalized afterwards.
pub(crate) struct Layer {
    pub width: usize,
    pub heads: usize,
    pub inner: usize,
    activation: Activation,
    eps: f64,
    attention_dropout: f64,
    /// On what attention adds.
    projection_dropout: f64,
    /// On what the inner layer adds.
    pub output_dropout: f64,
}

impl Layer {
    pub fn read(config: &Config) -> Result<Self> {
        config.head_width("hidden_size", "num_attention_heads")?;
        let dropout = config.rate_or("hidden_dropout_prob", 0.1)?;
        Ok(Layer {
            width: config.size("hidden_size")?,
            heads: config.size("num_attention_heads")?,
            inner: config.size("intermediate_size")?,
            activation: Activation::from_config(config, "hidden_act", "gelu")?,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
            attention_dropout: config.rate_or("attention_probs_dropout_prob", 0.1)?,
            projection_dropout: dropout,
            output_dropout: dropout,
        })
    }

    pub fn apply(
        &self,
        names: &LayerNames,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let part = |name| split_heads(&linear(weights, name, x)?, batch, self.heads); // [B, T, H, D]
        let scale = 1.0 / ((self.width / self.heads) as f64).sqrt();
        let kind = AttentionKind { scale, causal: false, window: None, dropout: self.attention_dropout };
        let attended = layers::attention(&part(names.query)?, &part(names.key)?, &part(names.value)?, batch, randomness, kind)?;
        let projected = linear(weights, names.attention_output, &attended)?;
        let projected = randomness.dropout(&projected, self.projection_dropout)?;
        let x = layer_norm(weights, names.attention_norm, &x.add(&projected)?, self.eps)?;
        let inner = self.activation.apply(&linear(weights, names.inner, &x)?)?; // [N, F]
        let output = randomness.dropout(&linear(weights, names.output, &inner)?, self.output_dropout)?;
        layer_norm(weights, names.output_norm, &x.add(&output)?, self.eps)
    }

    /// Weights that each token meets in a matrix product.
    pub fn matrix_weights(&self) -> f64 {
        (4 * self.width * self.width + 2 * self.width * self.inner) as f64
    }

    /// [`Model::step_flops`] of `layers` such layers and `other` weights of heads.
    pub fn step_flops(&self, layers: usize, other: f64, batch: usize, tokens: usize) -> f64 {
        let attention = 12.0 * (layers * self.width * tokens) as f64;
        (batch * tokens) as f64 * (6.0 * (layers as f64 * self.matrix_weights() + other) + attention)
    }
}

/// `layers` layers with BERT's names, one after the other.
pub(crate) fn encode(
    layer: &Layer,
    layers: usize,
    weights: &Weights,
    mut x: Tensor,
    batch: &TokenBatch,
    randomness: &Randomness,
) -> Result<Tensor> {
    for i in 0..layers {
        let (weights, _scope) = weights.enter(&format!("encoder.layer.{i}"));
        x = layer.apply(&NAMES, &weights, &x, batch, randomness)?;
    }
    Ok(x)
}

/// The weights of [`encode`].
pub(crate) fn encoder_parameters(specs: &mut Specs, base: &str, layer: &Layer, layers: usize) {
    let (c, f) = (layer.width, layer.inner);
    for i in 0..layers {
        let name = |rest: &str| format!("{base}.encoder.layer.{i}.{rest}");
        for dense in [NAMES.query, NAMES.key, NAMES.value, NAMES.attention_output] {
            specs.linear(&name(dense), [c, c]);
        }
        specs.layer_norm(&name(NAMES.attention_norm), c);
        specs.linear(&name(NAMES.inner), [f, c]);
        specs.linear(&name(NAMES.output), [c, f]);
        specs.layer_norm(&name(NAMES.output_norm), c);
    }
}

/// Dense, activation, LayerNorm, then the word embeddings as the decoder, with a bias of its own.
pub(crate) struct MaskedLmHead {
    pub dense: &'static str,
    pub norm: &'static str,
    pub bias: &'static str,
    /// The word embeddings `[V, E]`.
    pub table: &'static str,
    pub activation: Activation,
    pub eps: f64,
}

impl MaskedLmHead {
    pub fn apply(&self, weights: &Weights, hidden: &Tensor) -> Result<Tensor> {
        let transformed = self.activation.apply(&linear(weights, self.dense, hidden)?)?; // [N, E]
        let normed = layer_norm(weights, self.norm, &transformed, self.eps)?;
        let _scope = weights.trace().scope("decoder");
        Ok(normed.matmul_transposed(weights.get(self.table)?)?.add(weights.get(self.bias)?)?)
    }
}

impl Bert {
    /// Reads the configuration; what would change numbers and is not implemented is refused by name.
    pub fn new(config: Config, task: Task) -> Result<Self> {
        let read = config.over(default_config());
        refuse_unbuilt(&read)?;
        Ok(Bert {
            task,
            embeddings: Embeddings::read(&read, "hidden_size")?,
            layer: Layer::read(&read)?,
            layers: read.size("num_hidden_layers")?,
            lm_head: MaskedLmHead {
                dense: "cls.predictions.transform.dense",
                norm: "cls.predictions.transform.LayerNorm",
                bias: "cls.predictions.bias",
                table: "bert.embeddings.word_embeddings.weight",
                activation: Activation::from_config(&read, "hidden_act", "gelu")?,
                eps: read.float_or("layer_norm_eps", 1e-12)?,
            },
            classifier_dropout: classifier_dropout(&read)?,
            initializer_range: read.float_or("initializer_range", 0.02)?,
            config,
        })
    }
}

/// The classifier's own rate, or that of the hidden states where it has none.
pub(crate) fn classifier_dropout(config: &Config) -> Result<f64> {
    match config.get("classifier_dropout") {
        Some(_) => config.rate_or("classifier_dropout", 0.0),
        None => config.rate_or("hidden_dropout_prob", 0.1),
    }
}

impl Model for Bert {
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
        self.embeddings.positions
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let (e, c) = (&self.embeddings, self.layer.width);
        let mut specs = Specs::new(self.initializer_range);
        specs.table("bert.embeddings.word_embeddings", [e.vocab, c], e.padding);
        specs.table("bert.embeddings.position_embeddings", [e.positions, c], None);
        specs.table("bert.embeddings.token_type_embeddings", [e.segments, c], None);
        specs.layer_norm("bert.embeddings.LayerNorm", c);
        encoder_parameters(&mut specs, "bert", &self.layer, self.layers);
        match self.task {
            Task::Classification { labels } => {
                specs.linear("bert.pooler.dense", [c, c]);
                specs.linear("classifier", [labels, c]);
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
        let not_needed = ["embeddings.position_ids", "embeddings.token_type_ids", "pooler.", "cls.", "classifier."];
        stored_name(name, "bert", &self.parameters(), &not_needed)
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, randomness: &Randomness) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("bert");
        let x = {
            let (weights, _scope) = weights.enter("embeddings");
            let positions = layers::learned_positions(weights.get("position_embeddings.weight")?, batch)?;
            self.embeddings.apply(&weights, batch, &positions, randomness)?
        };
        encode(&self.layer, self.layers, &weights, x, batch, randomness)
    }

    fn sequence_rows(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        layers::first_rows(hidden, batch)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, randomness: &Randomness) -> Result<Tensor> {
        let Task::Classification { .. } = self.task else { return self.lm_head.apply(weights, hidden) };
        let pooled = linear(weights, "bert.pooler.dense", hidden)?.tanh()?; // [B, C]
        linear(weights, "classifier", &randomness.dropout(&pooled, self.classifier_dropout)?)
    }

    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let head = match self.task {
            // One token of each sequence: nothing beside the layers.
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
        for (name, count) in [("bert-base-uncased", 109_514_298), ("bert-large-uncased", 335_174_458)] {
            let model = Bert::new(preset(name).unwrap(), Task::MaskedLm).unwrap();
            let total: usize = model.parameters().iter().map(|p| p.dims.iter().product::<usize>()).sum();
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
            let message = Bert::new(config, Task::MaskedLm).err().unwrap().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn variants_of_stored_names_are_understood() {
        let model = Bert::new(default_config(), Task::MaskedLm).unwrap();
        let parameter = |name: &str| StoredName::Parameter(name.into());
        for (stored, expected) in [
            ("embeddings.LayerNorm.gamma", parameter("bert.embeddings.LayerNorm.weight")),
            ("bert.encoder.layer.3.output.LayerNorm.beta", parameter("bert.encoder.layer.3.output.LayerNorm.bias")),
            ("cls.predictions.bias", parameter("cls.predictions.bias")),
            ("cls.predictions.decoder.weight", StoredName::NotNeeded),
            ("cls.predictions.decoder.bias", StoredName::NotNeeded),
            ("cls.seq_relationship.weight", StoredName::NotNeeded),
            ("bert.pooler.dense.bias", StoredName::NotNeeded),
            ("bert.embeddings.position_ids", StoredName::NotNeeded),
            ("bert.encoder.layer.99.output.dense.bias", StoredName::Unknown),
        ] {
            assert_eq!(model.stored_name(stored), expected, "{stored}");
        }
    }
}
