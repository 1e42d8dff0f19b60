//! What a trainer needs of a model, and what a family writes.

use crate::batch::TokenBatch;
use crate::config::Config;
use crate::declaration::{Declaration, LayerDeclaration};
use crate::error::Result;
use crate::head::HeadKind;
use crate::layers;
use crate::lora::Adapter;
use crate::parameter::ParameterSpec;
use crate::weights::Weights;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use xtrain_graphs::{DropoutRng, Tensor};

/// What readers need to know of a model besides its forward pass.
pub struct ModelInfo {
    /// As it will be saved.
    pub config: Config,
    /// The head that it was built with.
    pub head: HeadKind,
    /// Number of token ids that the embedding has rows for.
    pub vocab_size: usize,
    /// Longest sequence that the positions allow.
    pub max_positions: usize,
    /// Whether tokens belong to segments (`token_type_ids`) that have embeddings.
    pub has_segments: bool,
    /// Query heads of each attention.
    pub heads: usize,
    /// Key and value heads of each attention; they divide `heads`.
    pub kv_heads: usize,
    /// Values of each head.
    pub head_dim: usize,
    /// What a sequence classifier reads.
    pub pooling: Pooling,
    /// Whether its byte-level tokenizer puts a space before each word of a sentence that comes as words:
    /// what run_ner asks of RoBERTa's alone.
    pub spaces_words: bool,
    /// Standard deviation of new matrices.
    pub initializer_range: f64,
    pub(crate) declaration: OnceLock<Declaration>,
    /// Names of the parameters that are not trained; see [`freeze`](crate::freeze).
    pub(crate) frozen: OnceLock<BTreeSet<String>>,
}

/// What stands for a sequence of hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's, as encoders have it.
    FirstToken,
    /// The last that is not `pad_token_id`, as decoders have it.
    LastToken {
        /// That token, if the family or the configuration has one.
        padding: Option<usize>,
    },
    /// The mean over the attended tokens.
    Mean,
}

impl Pooling {
    /// What decoders do by a configuration that lacks no key.
    pub(crate) fn last_token(read: &Config) -> Result<Pooling> {
        let padding = read.token_id_or("pad_token_id", None)?;
        Ok(Pooling::LastToken { padding })
    }
}

impl ModelInfo {
    /// Reads a configuration that lacks no key (`read`) for a model that will be saved with
    /// `config`: keys as BERT and Llama have them. Where `num_key_value_heads` and `head_dim` are
    /// missing, there are as many key/value heads as query heads, and these divide the hidden size.
    /// The first token is pooled.
    ///
    /// # Errors
    /// If a size is missing or does not divide.
    pub fn read(config: Config, read: &Config, head: HeadKind) -> Result<Self> {
        let heads = read.size("num_attention_heads")?;
        let kv_heads = read.size_or("num_key_value_heads", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("must divide num_attention_heads ({heads})");
            return Err(read.unsupported("num_key_value_heads", reason));
        }
        let head_dim = match read.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None => read.head_dim()?,
        };
        Ok(ModelInfo {
            config,
            head,
            vocab_size: read.size("vocab_size")?,
            max_positions: read.size("max_position_embeddings")?,
            has_segments: read.size_or("type_vocab_size", 1)? > 1,
            heads,
            kv_heads,
            head_dim,
            pooling: Pooling::FirstToken,
            spaces_words: false,
            initializer_range: read.float_or("initializer_range", 0.02)?,
            declaration: OnceLock::new(),
            frozen: OnceLock::new(),
        })
    }

    /// The same of a model whose forward pass is recorded anew.
    pub(crate) fn undeclared(&self) -> ModelInfo {
        ModelInfo {
            config: self.config.clone(),
            declaration: OnceLock::new(),
            frozen: OnceLock::new(),
            ..*self
        }
    }

    pub(crate) fn declaration(&self) -> &Declaration {
        let declaration = self.declaration.get();
        declaration.expect("build and declare record the forward pass before others see the model")
    }
}

/// A language model or classifier. A family writes its forward pass ([`Model::hidden`],
/// [`Model::head`]); everything else follows from that and from [`Model::info`].
pub trait Model {
    /// What was read from its configuration, and what [`declare`](crate::declare) found.
    fn info(&self) -> &ModelInfo;

    /// Hidden states `[B * T, C]` that the head turns into logits.
    ///
    /// # Errors
    /// If the step has not the weights that it asks for, or if shapes do not go together.
    fn hidden(&self, weights: &Weights, batch: &TokenBatch, rng: &DropoutRng) -> Result<Tensor>;

    /// The hidden states `[B, C]`, one of each sequence, that a sequence classifier's head reads.
    ///
    /// # Errors
    /// If the last token is meant and the configuration has no `pad_token_id` to find it by.
    fn pool(&self, hidden: &Tensor, batch: &TokenBatch) -> Result<Tensor> {
        match self.info().pooling {
            Pooling::FirstToken => layers::first_rows(hidden, batch),
            Pooling::Mean => layers::mean_rows(hidden, batch),
            Pooling::LastToken { padding } => {
                layers::last_rows(hidden, batch, self.config(), padding)
            }
        }
    }

    /// Logits of hidden states, row by row: `[N, V]` of a language model, `[N, L]` of a token
    /// classifier, `[B, L]` of a sequence classifier.
    ///
    /// # Errors
    /// As [`Model::hidden`].
    fn head(&self, weights: &Weights, hidden: &Tensor, rng: &DropoutRng) -> Result<Tensor>;

    /// What is added to its layers, if something is: a model's own weights are not trained then.
    fn adapter(&self) -> Option<&Adapter> {
        None
    }

    /// The configuration as it will be saved: every key that was read, known to this model or not.
    fn config(&self) -> &Config {
        &self.info().config
    }

    /// The head that the model was built with.
    fn head_kind(&self) -> HeadKind {
        self.info().head
    }

    /// Number of token ids that the embedding has rows for.
    fn vocab_size(&self) -> usize {
        self.info().vocab_size
    }

    /// Longest sequence that the positions allow.
    fn max_positions(&self) -> usize {
        self.info().max_positions
    }

    /// Whether tokens belong to segments (`token_type_ids`) that its embeddings tell apart.
    fn has_segments(&self) -> bool {
        self.info().has_segments
    }

    /// Every parameter, tied ones once, in the order in which Hugging Face registers them.
    fn parameters(&self) -> Vec<ParameterSpec> {
        let info = self.info();
        let mut parameters = info.declaration().parameters.clone();
        if let Some(frozen) = info.frozen.get() {
            for parameter in &mut parameters {
                parameter.trained &= !frozen.contains(&parameter.name);
            }
        }
        parameters
    }

    /// What each of the layers computes and uses.
    fn layers(&self) -> &[LayerDeclaration] {
        &self.info().declaration().layers
    }

    /// Floating-point operations of one training step's matmuls: 6 per weight and token that takes
    /// part in one, and attention counted without its mask (the convention of nanoGPT and PaLM's
    /// appendix B).
    fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        self.info().declaration().step_flops(batch, tokens)
    }

    /// The part of [`Model::step_flops`] that is the head's, when it is computed for `rows` rows. A
    /// sequence classifier's one row for each sequence counts for nothing.
    fn head_flops(&self, rows: usize) -> f64 {
        self.info().declaration().head_flops(rows)
    }
}
