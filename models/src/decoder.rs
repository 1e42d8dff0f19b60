//! What GPT-2, GPT-Neo and GPT-J have in common besides their layers: settings, embeddings, the
//! stack, the head.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, V vocabulary, L labels.

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::{AttributeMap, Config};
use crate::error::Result;
use crate::head::HeadKind;
use crate::layers::{self, AttentionKind, layer_norm};
use crate::linear::Linear;
use crate::model::{ModelInfo, Pooling};
use crate::weights::Weights;
use xtrain_graphs::{DropoutRng, Tensor};

/// GPT-2's names, which GPT-J took over.
pub(crate) const GPT_NAMES: AttributeMap = &[
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("embed_dropout", "embd_pdrop"),
    ("attention_dropout", "attn_pdrop"),
    ("resid_dropout", "resid_pdrop"),
];

/// Settings that all three have.
pub(crate) struct Decoder {
    pub info: ModelInfo,
    pub layers: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub activation: Activation,
    pub embed_dropout: f64,
    pub attention_dropout: f64,
    pub residual_dropout: f64,
    pub eps: f64,
    /// Whether positions have a table, as in GPT-2; GPT-J rotates queries and keys instead.
    pub learned_positions: bool,
    /// Whether the head's matrix is the token embedding.
    pub tied_head: bool,
}

impl Decoder {
    /// Reads a configuration that lacks no key (`read`) for a model that will be saved with
    /// `config`, and refuses what no model here implements.
    pub fn read(config: Config, read: &Config, head: HeadKind) -> Result<Self> {
        read.refuse_unbuilt()?;
        let read = &read.without(&["head_dim", "num_key_value_heads"]);
        let hidden_size = read.size("hidden_size")?;
        Ok(Decoder {
            info: ModelInfo {
                pooling: Pooling::last_token(read)?,
                ..ModelInfo::read(config, read, head)?
            },
            layers: read.layers()?,
            hidden_size,
            intermediate_size: read.size_or("intermediate_size", 4 * hidden_size)?,
            activation: Activation::from_config(read, "activation_function", "gelu_new")?,
            embed_dropout: read.rate_or("embed_dropout", 0.0)?,
            attention_dropout: read.rate_or("attention_dropout", 0.0)?,
            residual_dropout: read.rate_or("resid_dropout", 0.0)?,
            eps: read.float_or("layer_norm_epsilon", 1e-5)?,
            learned_positions: true,
            tied_head: read.flag_or("tie_word_embeddings", true)?,
        })
    }

    /// Token embeddings, with learned positions added where there are any, `[N, C]`.
    fn embed(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let embed = (Axis::Embed, self.hidden_size);
        let dims = [(Axis::Vocab, self.info.vocab_size), embed];
        let tokens = weights.embedding("wte", &batch.input_ids, dims, None)?;
        let tokens = rng.add_embedding_noise(&tokens, batch.size()[1])?;
        if !self.learned_positions {
            return Ok(tokens);
        }
        let dims = [(Axis::Positions, self.info.max_positions), embed];
        let table = weights.table("wpe.weight", dims, None)?;
        Ok(tokens.add(&layers::learned_positions(&table, batch)?)?)
    }

    /// Hidden states `[N, C]` after all layers; `block` is one of them, given its number and
    /// weights.
    pub fn hidden(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        rng: &DropoutRng,
        block: impl Fn(usize, &Weights, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("transformer");
        let mut x = rng.dropout(&self.embed(&weights, batch, rng)?, self.embed_dropout)?;
        for layer in 0..self.layers {
            let (weights, _scope) = weights.enter_layer(&format!("h.{layer}"), &x);
            x = block(layer, &weights, &x)?;
        }
        layer_norm(&weights, "ln_f", &x, self.eps)
    }

    /// Queries, keys and values `[B, T, H, D]` of `x` `[N, C]`, each projected by a matrix of its
    /// own; what queries and keys go through besides is `turn`.
    pub fn qkv(
        &self,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        turn: impl Fn(Tensor) -> Result<Tensor>,
    ) -> Result<[Tensor; 3]> {
        weights.registers_first(&["k_proj", "v_proj"]);
        let to = (Axis::Heads, self.hidden_size);
        let heads = |name| {
            let projected = weights.linear(name, x, Linear::new(Axis::Embed, to).without_bias())?;
            layers::split_heads(&projected, batch, self.info.heads)
        };
        Ok([
            turn(heads("q_proj")?)?,
            turn(heads("k_proj")?)?,
            heads("v_proj")?,
        ])
    }

    /// Attention of each token to itself and those before it, of `window` tokens if one is given;
    /// gives `[N, C]`.
    pub fn attend(
        &self,
        [q, k, v]: &[Tensor; 3],
        batch: &TokenBatch,
        rng: &DropoutRng,
        scale: f64,
        window: Option<u32>,
    ) -> Result<Tensor> {
        let kind = AttentionKind {
            scale,
            causal: true,
            window,
            soft_cap: None,
            dropout: self.attention_dropout,
        };
        layers::attention(q, k, v, batch, rng, kind)
    }

    /// What an MLP of two linear layers, seen from its `weights`, writes to the residual stream,
    /// `[N, C]` of `x` `[N, C]`.
    pub fn mlp(
        &self,
        weights: &Weights,
        [inner, outer]: [&str; 2],
        x: &Tensor,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let to = (Axis::Mlp, self.intermediate_size);
        let activated =
            self.activation
                .apply(&weights.linear(inner, x, Linear::new(Axis::Embed, to))?)?; // [N, F]
        let to = (Axis::Embed, self.hidden_size);
        let output = weights.linear(outer, &activated, Linear::new(Axis::Mlp, to))?;
        Ok(rng.dropout(&output, self.residual_dropout)?)
    }

    /// Logits of hidden states: `[N, V]`, or `[B, L]` of a classifier.
    pub fn head(&self, weights: &Weights, hidden: &Tensor) -> Result<Tensor> {
        if let HeadKind::SequenceClassification { labels } = self.info.head {
            let to = (Axis::Labels, labels);
            return weights.linear("score", hidden, Linear::new(Axis::Embed, to).without_bias());
        }
        let head = Linear::new(Axis::Embed, (Axis::Vocab, self.info.vocab_size))
            .without_bias()
            .tied_if(self.tied_head, "transformer.wte.weight");
        weights.linear("lm_head", hidden, head)
    }
}
