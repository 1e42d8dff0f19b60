//! Model definitions. They know no device, no precision and no sharding: they name their weights as Hugging Face does and
//! record tensor operations.
//!
//! Reading order: [`Model`] (what a trainer needs of a model), [`Weights`] (how a model reaches its parameters), `gpt2`.

mod activation;
mod config;
mod error;
pub mod gpt2;
mod weights;

pub use activation::Activation;
pub use config::Config;
pub use error::{Error, Result};
pub use weights::{Init, ParameterSpec, StoredName, Weights};

use xtrain_graphs::{Randomness, Tensor};

/// The architectures that [`build`] knows, by `model_type`.
pub const MODEL_TYPES: &[&str] = &["gpt2"];

/// Token ids and what goes with them, on the device. Letters: B batch, T tokens.
#[derive(Clone)]
pub struct TokenBatch {
    /// `s32[B, T]`
    pub input_ids: Tensor,
    /// `pred[B, T]`, true = attended; `None` when every token is.
    pub attention_mask: Option<Tensor>,
}

/// A causal language model.
pub trait Model {
    /// The configuration as it will be saved: every key that was read, known to this model or not.
    fn config(&self) -> &Config;

    /// Number of token ids that the embedding has rows for.
    fn vocab_size(&self) -> usize;

    /// Longest sequence that the positions allow.
    fn max_positions(&self) -> usize;

    /// Every trainable tensor, tied ones once, in the order in which Hugging Face registers them.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// What a tensor of a checkpoint is to this model.
    fn stored_name(&self, name: &str) -> StoredName;

    /// Hidden states `[B * T, C]` that the head turns into logits.
    fn hidden(&self, weights: &Weights, batch: &TokenBatch, randomness: &Randomness) -> Result<Tensor>;

    /// Logits `[N, V]` of hidden states `[N, C]`.
    fn head(&self, weights: &Weights, hidden: &Tensor) -> Result<Tensor>;

    /// Floating-point operations of one training step's matrix products: 6 per weight and token that takes part in one, and
    /// attention counted without its mask (the convention of nanoGPT and PaLM's appendix B).
    fn step_flops(&self, batch: usize, tokens: usize) -> f64;
}

/// The sum of the token losses and the number of tokens that have one.
pub struct LossSum {
    /// `f32[]`
    pub sum: Tensor,
    /// `f32[]`, exact below 2^24 labels.
    pub count: Tensor,
}

/// The label that takes no part in the loss, as in transformers.
pub const IGNORED_LABEL: i64 = -100;

/// Causal language-model loss: the logits at t predict `labels` (`s32[B, T]`) at t + 1.
pub fn causal_loss(
    model: &dyn Model,
    weights: &Weights,
    batch: &TokenBatch,
    labels: &Tensor,
    randomness: &Randomness,
) -> Result<LossSum> {
    let hidden = model.hidden(weights, batch, randomness)?;
    let logits = model.head(weights, &hidden)?;
    let trace = logits.trace().clone();
    let _scope = trace.scope("loss");
    let (rows, tokens) = (labels.dims()[0], labels.dims()[1]);
    // The labels move instead of the logits, which would have to be copied.
    let last = trace.constant(IGNORED_LABEL as f64, labels.dtype())?.broadcast_to(&[rows, 1])?;
    let shifted = match tokens {
        1 => last,
        _ => Tensor::concat(&[&labels.slice_dim(1, 1, tokens)?, &last], 1)?,
    };
    let shifted = shifted.reshape(&[rows * tokens])?;
    let losses = logits.cross_entropy(&shifted, IGNORED_LABEL)?;
    let counted = shifted.compare_scalar(xtrain_graphs::op::Comparison::Ne, IGNORED_LABEL as f64)?;
    let count = counted.convert(losses.dtype())?.sum_all()?;
    Ok(LossSum { sum: losses.sum_all()?, count })
}

/// The model that a configuration describes, by its `model_type`.
pub fn build(config: Config) -> Result<Box<dyn Model>> {
    match config.text("model_type")?.as_str() {
        "gpt2" => Ok(Box::new(gpt2::Gpt2::new(config)?)),
        _ => Err(config.unsupported("model_type", format!("xtrain does not train this one; known: {}", MODEL_TYPES.join(", ")))),
    }
}

/// A preset's configuration (`gpt2`, `gpt2-medium`, ...), or `None` if there is no such preset.
pub fn preset(name: &str) -> Option<Config> {
    gpt2::preset(name)
}

/// The configuration that a new model of this type starts from, before overrides.
pub fn default_config(model_type: &str) -> Result<Config> {
    match model_type {
        "gpt2" => Ok(gpt2::default_config()),
        other => Err(Error::UnknownModelType { found: other.to_string(), known: MODEL_TYPES.join(", ") }),
    }
}
