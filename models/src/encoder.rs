//! What BERT and its relatives are made of: [`Embeddings`], [`Layer`], their heads, and
//! [`Encoder`], which holds them.
//!
//! Letters: B batch, T tokens, N = B * T, C hidden size, E embedding size (C but in ALBERT), H
//! heads, D = C / H, V vocabulary, F intermediate size, L labels. Activations stay `[N, C]` between
//! attention blocks.

use crate::activation::Activation;
use crate::axis::Axis;
use crate::batch::TokenBatch;
use crate::config::Config;
use crate::error::Result;
use crate::head::HeadKind;
use crate::layers::{self, AttentionKind, layer_norm, split_heads};
use crate::linear::Linear;
use crate::model::{Model, ModelInfo};
use crate::weights::Weights;
use serde_json::{Value, json};
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, DropoutRng, Tensor};

/// A released size, as changes to a default configuration.
pub(crate) fn sizes(hidden_size: usize, layers: usize, heads: usize) -> Value {
    json!({
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden_size,
    })
}

/// Rows per token, segment and position, added up and normalized.
pub(crate) struct Embeddings {
    pub vocab_size: usize,
    /// Rows of the position table.
    pub positions: usize,
    /// Rows of the segment table; 0: there is none.
    pub segments: usize,
    /// E
    pub size: usize,
    /// The padding token: its embedding row gets no gradient from lookups.
    pub padding_idx: Option<usize>,
    /// The position table starts as sines and cosines.
    pub is_sinusoidal: bool,
    eps: f64,
    dropout: f64,
}

impl Embeddings {
    fn read(config: &Config) -> Result<Self> {
        Ok(Embeddings {
            vocab_size: config.size("vocab_size")?,
            positions: config.size("max_position_embeddings")?,
            segments: config.size_or("type_vocab_size", 0)?,
            size: config.size("embedding_size")?,
            padding_idx: config.padding_idx()?,
            is_sinusoidal: false,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
            dropout: config.rate_or("hidden_dropout_prob", 0.1)?,
        })
    }

    /// The position table `[P, E]`; the row of `padding_idx` starts at zero.
    pub fn position_table(&self, weights: &Weights, padding_idx: Option<usize>) -> Result<Tensor> {
        let dims = [(Axis::Positions, self.positions), (Axis::Embed, self.size)];
        if self.is_sinusoidal {
            return weights.sinusoids("position_embeddings.weight", dims);
        }
        weights.table("position_embeddings.weight", dims, padding_idx)
    }

    /// The input of the first layer, `[N, E]`; `positions` `[N, E]` are the rows of the position
    /// table.
    pub fn apply(
        &self,
        weights: &Weights,
        batch: &TokenBatch,
        positions: &Tensor,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        let dims = [(Axis::Vocab, self.vocab_size), (Axis::Embed, self.size)];
        let ids = &batch.input_ids;
        let sum = weights.embedding("word_embeddings", ids, dims, self.padding_idx)?;
        let mut sum = rng.add_embedding_noise(&sum, batch.size()[1])?;
        if self.segments > 0 {
            let dims = [(Axis::Segments, self.segments), (Axis::Embed, self.size)];
            let table = &weights.table("token_type_embeddings.weight", dims, None)?;
            let segments = match &batch.token_type_ids {
                Some(ids) => layers::embedding(table, ids, None)?,
                None => table.slice_dim(0, 0, 1)?.broadcast_to(sum.dims())?,
            };
            sum = sum.add(&segments)?;
        }
        let normed = layer_norm(weights, "LayerNorm", &sum.add(positions)?, self.eps)?;
        Ok(rng.dropout(&normed, self.dropout)?)
    }
}

/// What a layer calls its weights.
pub(crate) struct LayerNames {
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
    pub intermediate: &'static str,
    pub output: &'static str,
    pub output_norm: &'static str,
}

/// BERT's names.
pub(crate) const BERT_LAYER: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    intermediate: "intermediate.dense",
    output: "output.dense",
    output_norm: "output.LayerNorm",
};

/// An encoder layer: attention, then an MLP, each added to its input and normalized afterwards.
pub(crate) struct Layer {
    pub hidden_size: usize,
    heads: usize,
    intermediate_size: usize,
    activation: Activation,
    eps: f64,
    attention_dropout: f64,
    /// On what attention adds.
    pub projection_dropout: f64,
    /// On what the MLP adds.
    pub output_dropout: f64,
}

impl Layer {
    fn read(config: &Config) -> Result<Self> {
        let dropout = config.rate_or("hidden_dropout_prob", 0.1)?;
        Ok(Layer {
            hidden_size: config.size("hidden_size")?,
            heads: config.size("num_attention_heads")?,
            intermediate_size: config.size("intermediate_size")?,
            activation: Activation::from_config(config, "hidden_act", "gelu")?,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
            attention_dropout: config.rate_or("attention_probs_dropout_prob", 0.1)?,
            projection_dropout: dropout,
            output_dropout: dropout,
        })
    }

    /// The layer's output `[N, C]` of `x` `[N, C]`.
    pub fn apply(
        &self,
        names: &LayerNames,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        use Axis::{Embed, Heads, Mlp};
        let c = self.hidden_size;
        let heads = |name| {
            split_heads(
                &weights.linear(name, x, Linear::new(Embed, (Heads, c)))?,
                batch,
                self.heads,
            )
        }; // [B, T, H, D]
        let kind = AttentionKind {
            scale: 1.0 / ((c / self.heads) as f64).sqrt(),
            causal: false,
            window: None,
            soft_cap: None,
            dropout: self.attention_dropout,
        };
        let attended = layers::attention(
            &heads(names.query)?,
            &heads(names.key)?,
            &heads(names.value)?,
            batch,
            rng,
            kind,
        )?;
        let projected = weights.linear(
            names.attention_output,
            &attended,
            Linear::new(Heads, (Embed, c)),
        )?;
        let projected = rng.dropout(&projected, self.projection_dropout)?;
        let x = layer_norm(weights, names.attention_norm, &x.add(&projected)?, self.eps)?;
        let to = (Mlp, self.intermediate_size);
        let inner = weights.linear(names.intermediate, &x, Linear::new(Embed, to))?;
        let inner = self.activation.apply(&inner)?; // [N, F]
        let output = weights.linear(names.output, &inner, Linear::new(Mlp, (Embed, c)))?;
        let output = rng.dropout(&output, self.output_dropout)?;
        layer_norm(weights, names.output_norm, &x.add(&output)?, self.eps)
    }
}

/// Dense, activation, LayerNorm, then the word embeddings as the decoder, with a bias of its own.
pub(crate) struct MaskedLmHead {
    pub dense: &'static str,
    pub norm: &'static str,
    pub decoder: &'static str,
    pub bias: &'static str,
    pub activation: Activation,
}

impl MaskedLmHead {
    /// With the names of its dense layer, its norm, its decoder and the decoder's bias.
    pub fn new([dense, norm, decoder, bias]: [&'static str; 4], activation: Activation) -> Self {
        MaskedLmHead {
            dense,
            norm,
            decoder,
            bias,
            activation,
        }
    }
}

/// A dense layer with an activation, dropout, the classifier's matrix.
pub(crate) struct SequenceHead {
    pub dense: &'static str,
    pub activation: Activation,
    pub classifier: &'static str,
    /// Whether the dense layer's input is dropped out too.
    pub drops_input: bool,
}

impl SequenceHead {
    /// BERT's pooler with the classifier on it.
    pub fn pooler(dense: &'static str) -> Self {
        SequenceHead {
            dense,
            activation: Activation::Tanh,
            classifier: "classifier",
            drops_input: false,
        }
    }
}

/// What a family calls its parts, and which heads it has.
pub(crate) struct Form {
    /// The module with everything but the heads.
    pub base: &'static str,
    /// The list of layers, each of which has weights of its own.
    pub layers: &'static str,
    pub layer: &'static LayerNames,
    pub lm_head: MaskedLmHead,
    pub sequence_head: SequenceHead,
}

/// Which row of the position table a token has.
pub(crate) enum Positions {
    /// Its place in the row.
    FromStart,
    /// Tokens that are not padding count up from the row after the padding token's, this one.
    AfterPadding(usize),
}

/// The parts that all have, and the numbers that say how a model is built from them: alone a model
/// of BERT's kind (`XForMaskedLM`, `XForSequenceClassification` or `XForTokenClassification`).
pub(crate) struct Encoder {
    pub info: ModelInfo,
    form: Form,
    pub positions: Positions,
    pub embeddings: Embeddings,
    pub layer: Layer,
    pub layers: usize,
    pub classifier_dropout: f64,
    eps: f64,
}

impl Model for Encoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let (weights, _scope) = weights.enter(self.form.base);
        let mut x = self.embed(&weights, batch, rng)?;
        for i in 0..self.layers {
            let path = format!("{}.{i}", self.form.layers);
            let (weights, _scope) = weights.enter_layer(&path, &x);
            x = self.layer(&weights, &x, batch, rng)?;
        }
        Ok(x)
    }

    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
        use Axis::{Embed, Labels};
        let dropout = |x: &Tensor| rng.dropout(x, self.classifier_dropout);
        match self.info.head {
            HeadKind::SequenceClassification { labels } => {
                let SequenceHead {
                    dense,
                    activation,
                    classifier,
                    drops_input,
                } = self.form.sequence_head;
                let rows = if drops_input {
                    &dropout(hidden)?
                } else {
                    hidden
                }; // [B, C]
                let to = (Embed, self.layer.hidden_size);
                let pooled =
                    activation.apply(&weights.linear(dense, rows, Linear::new(Embed, to))?)?;
                let to = (Labels, labels);
                weights.linear(classifier, &dropout(&pooled)?, Linear::new(Embed, to))
            }
            HeadKind::TokenClassification { labels } => {
                let to = (Labels, labels);
                weights.linear("classifier", &dropout(hidden)?, Linear::new(Embed, to))
            }
            HeadKind::MaskedLm | HeadKind::CausalLm => self.predict(weights, hidden),
        }
    }
}

impl Encoder {
    /// Reads a configuration that lacks no key (`read`) for a model that will be saved with
    /// `config`; what would change numbers and is not implemented is refused by name.
    pub fn read(config: Config, read: &Config, head: HeadKind, form: Form) -> Result<Self> {
        read.refuse_unbuilt()?;
        for (key, built, reason) in [
            (
                "is_decoder",
                json!(false),
                "encoders are not trained as decoders here",
            ),
            (
                "position_embedding_type",
                json!("absolute"),
                "only absolute positions are implemented",
            ),
            (
                "tie_word_embeddings",
                json!(true),
                "an untied masked-LM decoder is not implemented",
            ),
        ] {
            read.only(key, built, reason)?;
        }
        // The classifier's own rate, or that of the hidden states where it has none.
        let hidden_dropout = read.rate_or("hidden_dropout_prob", 0.1)?;
        Ok(Encoder {
            embeddings: Embeddings::read(read)?,
            layer: Layer::read(read)?,
            layers: read.layers()?,
            form,
            positions: Positions::FromStart,
            classifier_dropout: read.rate_or("classifier_dropout", hidden_dropout)?,
            eps: read.float_or("layer_norm_eps", 1e-12)?,
            info: ModelInfo::read(config, read, head)?,
        })
    }

    /// The input of the first layer, `[N, E]`.
    pub fn embed(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor> {
        let (weights, _scope) = weights.enter("embeddings");
        let positions = match self.positions {
            Positions::FromStart => {
                weights.registers_first(&["word_embeddings"]);
                let table = self.embeddings.position_table(&weights, None)?;
                layers::learned_positions(&table, batch)?
            }
            Positions::AfterPadding(padding_idx) => {
                weights.registers_first(&["word_embeddings", "token_type_embeddings", "LayerNorm"]);
                // The row of padding learns no more here than in the word embeddings.
                let table = self
                    .embeddings
                    .position_table(&weights, Some(padding_idx))?;
                let ids = position_ids(&batch.input_ids, padding_idx)?;
                layers::embedding(&table, &ids, Some(padding_idx))?
            }
        };
        self.embeddings.apply(&weights, batch, &positions, rng)
    }

    /// The output `[N, C]` of one layer of `x` `[N, C]`.
    pub fn layer(
        &self,
        weights: &Weights,
        x: &Tensor,
        batch: &TokenBatch,
        rng: &DropoutRng,
    ) -> Result<Tensor> {
        self.layer.apply(self.form.layer, weights, x, batch, rng)
    }

    /// Logits `[N, V]` of hidden states `[N, C]`.
    fn predict(&self, weights: &Weights, hidden: &Tensor) -> Result<Tensor> {
        let (head, base) = (&self.form.lm_head, self.form.base);
        let to = (Axis::Embed, self.embeddings.size);
        let transformed = weights.linear(head.dense, hidden, Linear::new(Axis::Embed, to))?;
        let transformed = head.activation.apply(&transformed)?; // [N, E]
        let normed = layer_norm(weights, head.norm, &transformed, self.eps)?;
        let table = format!("{base}.embeddings.word_embeddings.weight");
        let decoder = Linear::new(Axis::Embed, (Axis::Vocab, self.embeddings.vocab_size))
            .tied_to(&table)
            .with_bias_named(head.bias)
            .at("decoder");
        weights.linear(head.decoder, &normed, decoder)
    }
}

/// Position ids `s32[B, T]`: tokens that are not padding count up from `padding_idx + 1`, padding
/// stays at `padding_idx`. Summed in integers over a triangle, which is exact at any length and in
/// any precision.
fn position_ids(ids: &Tensor, padding_idx: usize) -> Result<Tensor> {
    let trace = ids.trace();
    let (b, t) = (ids.dims()[0], ids.dims()[1]);
    let counts = ids
        .compare_scalar(Comparison::Ne, padding_idx as f64)?
        .convert(DType::S32)?; // [B, T]
    let cube = [b, t, t];
    let (position, earlier) = (
        trace.iota(DType::S32, &cube, 1)?,
        trace.iota(DType::S32, &cube, 2)?,
    );
    let reached = earlier
        .compare(Comparison::Le, &position)?
        .convert(DType::S32)?;
    let running = counts
        .broadcast_in(&cube, &[0, 2])?
        .mul(&reached)?
        .sum(&[2])?; // [B, T]
    Ok(running.mul(&counts)?.add_scalar(padding_idx as f64)?)
}
