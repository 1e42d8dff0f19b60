//! What BERT, RoBERTa and ALBERT are made of: [`Embeddings`], [`Layer`], [`MaskedLmHead`], and
//! [`Encoder`], which holds them.
//!
//! Letters: B batch, T tokens, N = B * T, C width, E embedding width (C but in ALBERT), H heads, D
//! = C / H, V vocabulary, F inner width, P positions, S segments, L labels. Activations stay
//! `[N, C]` between attention blocks.

use crate::activation::Activation;
use crate::config::Config;
use crate::error::Result;
use crate::layers::{self, AttentionKind, layer_norm, linear, split_heads};
use crate::names::Specs;
use crate::tensor_parallel::{Cuts, along};
use crate::weights::Weights;
use crate::{About, HeadKind, TokenBatch};
use xtrain_graphs::{Randomness, Tensor};

/// Refuses what changes an encoder's numbers and is not implemented.
pub(crate) fn refuse_unbuilt(config: &Config) -> Result<()> {
    config.refuse_unbuilt()?;
    config.only(
        "is_decoder",
        false,
        "encoders are not trained as decoders here",
    )?;
    config.only(
        "position_embedding_type",
        "absolute",
        "only absolute positions are implemented",
    )?;
    config.only(
        "tie_word_embeddings",
        true,
        "an untied masked-LM decoder is not implemented",
    )
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
            return Err(config.unsupported(
                "pad_token_id",
                format!("must be below vocab_size ({vocab})"),
            ));
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

    /// The input of the first layer, `[N, E]`; `positions` `[N, E]` are the rows of the position
    /// table.
    pub fn apply(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        positions: &Tensor,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let tokens = layers::embedding(
            &weights.get("word_embeddings.weight")?,
            &batch.input_ids,
            self.padding,
        )?;
        let table = &weights.get("token_type_embeddings.weight")?;
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

/// How tensor parallelism divides layers with BERT's names.
pub(crate) const CUTS: Cuts = &[
    ("attention.self.query.weight", along(0)),
    ("attention.self.query.bias", along(0)),
    ("attention.self.key.weight", along(0)),
    ("attention.self.key.bias", along(0)),
    ("attention.self.value.weight", along(0)),
    ("attention.self.value.bias", along(0)),
    ("attention.output.dense.weight", along(1)),
    ("intermediate.dense.weight", along(0)),
    ("intermediate.dense.bias", along(0)),
    ("output.dense.weight", along(1)),
    ("word_embeddings.weight", along(0)),
    ("predictions.bias", along(0)),
    ("lm_head.bias", along(0)),
];

/// An encoder layer: attention, then an inner layer, each added to its input and normalized
/// afterwards.
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
        let kind = AttentionKind {
            scale,
            causal: false,
            window: None,
            dropout: self.attention_dropout,
        };
        let attended = layers::attention(
            &part(names.query)?,
            &part(names.key)?,
            &part(names.value)?,
            batch,
            randomness,
            kind,
        )?;
        let projected = linear(weights, names.attention_output, &attended)?;
        let projected = randomness.dropout(&projected, self.projection_dropout)?;
        let x = layer_norm(weights, names.attention_norm, &x.add(&projected)?, self.eps)?;
        let inner = self.activation.apply(&linear(weights, names.inner, &x)?)?; // [N, F]
        let output =
            randomness.dropout(&linear(weights, names.output, &inner)?, self.output_dropout)?;
        layer_norm(weights, names.output_norm, &x.add(&output)?, self.eps)
    }

    /// Weights that each token meets in a matrix product.
    pub fn matrix_weights(&self) -> f64 {
        (4 * self.width * self.width + 2 * self.width * self.inner) as f64
    }

    /// [`crate::Model::step_flops`] of `layers` such layers and `other` weights that each token
    /// meets besides.
    pub fn step_flops(&self, layers: usize, other: f64, batch: usize, tokens: usize) -> f64 {
        let attention = 12.0 * (layers * self.width * tokens) as f64;
        (batch * tokens) as f64
            * (6.0 * (layers as f64 * self.matrix_weights() + other) + attention)
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
        let (weights, _scope) = weights.enter_layer(&format!("encoder.layer.{i}"), &x);
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
        let transformed = self
            .activation
            .apply(&linear(weights, self.dense, hidden)?)?; // [N, E]
        let normed = layer_norm(weights, self.norm, &transformed, self.eps)?;
        let _scope = weights.trace().scope("decoder");
        Ok(normed
            .matmul_transposed(&weights.get(self.table)?)?
            .add(&weights.get(self.bias)?)?)
    }
}

/// The parts that all three have, and the numbers that say how a model is put together from them.
pub(crate) struct Encoder {
    pub about: About,
    pub embeddings: Embeddings,
    pub layer: Layer,
    pub layers: usize,
    pub lm_head: MaskedLmHead,
    pub classifier_dropout: f64,
    pub initializer_range: f64,
}

impl Encoder {
    /// Reads a configuration that lacks no key (`read`) for a model that will be saved with
    /// `config`; what would change numbers and is not implemented is refused by name. `width_key`
    /// is that of the embeddings, `dropout_key` that of the classifier.
    pub fn read(
        config: Config,
        read: &Config,
        task: HeadKind,
        (width_key, dropout_key): (&str, &str),
        lm_head: MaskedLmHead,
    ) -> Result<Self> {
        refuse_unbuilt(read)?;
        let embeddings = Embeddings::read(read, width_key)?;
        // The classifier's own rate, or that of the hidden states where it has none.
        let classifier_dropout = match read.get(dropout_key) {
            Some(_) => read.rate_or(dropout_key, 0.0)?,
            None => read.rate_or("hidden_dropout_prob", 0.1)?,
        };
        Ok(Encoder {
            layer: Layer::read(read)?,
            layers: read.size("num_hidden_layers")?,
            lm_head,
            classifier_dropout,
            initializer_range: read.float_or("initializer_range", 0.02)?,
            about: About {
                config,
                task,
                vocab_size: embeddings.vocab,
                max_positions: embeddings.positions,
                has_segments: embeddings.segments > 1,
                heads: read.size("num_attention_heads")?,
            },
            embeddings,
        })
    }

    /// Logits `[B, L]` of `[B, C]`: a dense layer with tanh, dropout, the classifier's matrix.
    pub fn classify(
        &self,
        weights: &Weights,
        rows: &Tensor,
        (dense, classifier): (&str, &str),
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let pooled = linear(weights, dense, rows)?.tanh()?;
        linear(
            weights,
            classifier,
            &randomness.dropout(&pooled, self.classifier_dropout)?,
        )
    }

    /// Logits `[N, L]` of `[N, C]`: dropout, the classifier's matrix.
    pub fn classify_tokens(
        &self,
        weights: &Weights,
        hidden: &Tensor,
        randomness: &Randomness,
    ) -> Result<Tensor> {
        let hidden = randomness.dropout(hidden, self.classifier_dropout)?;
        linear(weights, "classifier", &hidden)
    }

    /// [`crate::Model::head_flops`].
    pub fn head_flops(&self, rows: usize) -> f64 {
        match self.about.task {
            HeadKind::SequenceClassification { .. } => 0.0,
            HeadKind::TokenClassification { labels } => {
                6.0 * (rows * self.layer.width * labels) as f64
            }
            _ => {
                6.0 * (rows * self.embeddings.width * (self.layer.width + self.embeddings.vocab))
                    as f64
            }
        }
    }

    /// [`crate::Model::step_flops`], when each token meets `layers` layers and `other` weights
    /// besides those of the head.
    pub fn step_flops(&self, layers: usize, other: usize, batch: usize, tokens: usize) -> f64 {
        self.layer.step_flops(layers, other as f64, batch, tokens) + self.head_flops(batch * tokens)
    }
}
