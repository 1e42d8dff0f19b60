//! What GPT-2, GPT-Neo and GPT-J have in common besides their layers: sizes under each one's own
//! keys, the head, the count of work.
//!
//! Letters: B batch, T tokens, C width, H heads, V vocabulary, F inner width, L labels.

use crate::activation::Activation;
use crate::config::Config;
use crate::error::Result;
use crate::layers::{self, linear_without_bias};
use crate::names::Specs;
use crate::weights::Weights;
use crate::{HeadKind, TokenBatch};
use xtrain_graphs::Tensor;

/// What a family calls the settings that all three have.
pub(crate) struct Keys {
    pub positions: &'static str,
    pub width: &'static str,
    pub heads: &'static str,
    pub inner: &'static str,
    pub embed_dropout: &'static str,
    pub attention_dropout: &'static str,
    pub residual_dropout: &'static str,
}

/// GPT-2's names, which GPT-J took over.
pub(crate) const GPT_KEYS: Keys = Keys {
    positions: "n_positions",
    width: "n_embd",
    heads: "n_head",
    inner: "n_inner",
    embed_dropout: "embd_pdrop",
    attention_dropout: "attn_pdrop",
    residual_dropout: "resid_pdrop",
};

/// Settings that all three have.
pub(crate) struct Decoder {
    pub vocab: usize,
    pub positions: usize,
    /// C
    pub width: usize,
    pub heads: usize,
    /// F
    pub inner: usize,
    pub activation: Activation,
    pub embed_dropout: f64,
    pub attention_dropout: f64,
    pub residual_dropout: f64,
    pub eps: f64,
    pub initializer_range: f64,
    /// Whether the head's matrix is the token embedding.
    pub tied_head: bool,
}

impl Decoder {
    /// Reads a configuration that lacks no key, and refuses what no model here implements.
    pub fn read(config: &Config, keys: &Keys) -> Result<Self> {
        config.refuse_unbuilt()?;
        config.head_width(keys.width, keys.heads)?;
        let width = config.size(keys.width)?;
        Ok(Decoder {
            vocab: config.size("vocab_size")?,
            positions: config.size(keys.positions)?,
            width,
            heads: config.size(keys.heads)?,
            inner: config.size_or(keys.inner, 4 * width)?,
            activation: Activation::from_config(config, "activation_function", "gelu_new")?,
            embed_dropout: config.rate_or(keys.embed_dropout, 0.0)?,
            attention_dropout: config.rate_or(keys.attention_dropout, 0.0)?,
            residual_dropout: config.rate_or(keys.residual_dropout, 0.0)?,
            eps: config.float_or("layer_norm_epsilon", 1e-5)?,
            initializer_range: config.float_or("initializer_range", 0.02)?,
            tied_head: config.flag_or("tie_word_embeddings", true)?,
        })
    }

    /// Token and learned position embeddings added up, `[N, C]`.
    pub fn embed(&self, weights: &Weights, batch: &TokenBatch) -> Result<Tensor> {
        let tokens = layers::embedding(&weights.get("wte.weight")?, &batch.input_ids, None)?;
        Ok(tokens.add(&layers::learned_positions(
            &weights.get("wpe.weight")?,
            batch,
        )?)?)
    }

    /// The matrix of a language model's head, if it has one of its own, or of a classifier.
    pub fn head_parameters(&self, specs: &mut Specs, task: HeadKind) {
        specs.begin_head();
        match task {
            HeadKind::SequenceClassification { labels } => {
                specs.matrix("score", [labels, self.width])
            }
            _ if self.tied_head => {}
            _ => specs.matrix("lm_head", [self.vocab, self.width]),
        }
    }

    /// Logits of hidden states `[N, C]`: `[N, V]`, or `[N, L]` of a classifier.
    pub fn head(&self, weights: &Weights, hidden: &Tensor, task: HeadKind) -> Result<Tensor> {
        if let HeadKind::SequenceClassification { .. } = task {
            return linear_without_bias(weights, "score", hidden);
        }
        let _scope = weights.trace().scope("lm_head");
        let name = if self.tied_head {
            "transformer.wte.weight"
        } else {
            "lm_head.weight"
        };
        Ok(hidden.matmul_transposed(&weights.get(name)?)?)
    }

    /// [`crate::Model::head_flops`].
    pub fn head_flops(&self, task: HeadKind, rows: usize) -> f64 {
        match task {
            HeadKind::SequenceClassification { .. } => 0.0,
            _ => 6.0 * (rows * self.vocab * self.width) as f64,
        }
    }

    /// [`crate::Model::step_flops`] with `layers` layers. Layers that see the last few tokens only
    /// are counted like the others: their products are computed in full and masked.
    pub fn step_flops(&self, layers: usize, task: HeadKind, batch: usize, tokens: usize) -> f64 {
        let (c, f, layers) = (self.width as f64, self.inner as f64, layers as f64);
        let attention = 12.0 * layers * c * tokens as f64;
        let per_token = 6.0 * layers * (4.0 * c * c + 2.0 * c * f) + attention;
        (batch * tokens) as f64 * per_token + self.head_flops(task, batch * tokens)
    }
}
