//! What can go wrong while a model is built, trained or evaluated.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the step uses state `{name}`, which was never set: a defect of xtrain")]
    NoState { name: String },
    #[error("feed `{name}` was declared for compiling only and has no value: a defect of xtrain")]
    AbstractFeed { name: String },
    #[error(
        "the loss became {value} at step {step} (learning rate {learning_rate:e}, gradient norm {grad_norm}); {kept}. \
         Lower --learning_rate, add --warmup_steps or check the data around that step"
    )]
    NotFinite { value: f64, step: u64, learning_rate: f64, grad_norm: f64, kept: String },
    #[error("block_size {block_size} is over the model's {positions} positions (n_positions); lower --block_size")]
    BlockTooLong { block_size: usize, positions: usize },
    #[error(
        "the tokenizer has ids up to {largest_id}, but the model's embedding has {vocab_size} rows (vocab_size); use the \
         model's own tokenizer or --config_overrides vocab_size={needed}"
    )]
    Vocabulary { largest_id: usize, vocab_size: usize, needed: usize },
    #[error("{path}: this checkpoint cannot continue the run: {reason}")]
    Resume { path: PathBuf, reason: String },
    #[error("the prompt has no tokens: generation needs at least one to start from")]
    EmptyPrompt,
    #[error("there is nothing to train on: {reason}")]
    NothingToTrain { reason: String },
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
    #[error(transparent)]
    Model(#[from] xtrain_models::Error),
    #[error(transparent)]
    Cache(#[from] crate::cache::Error),
    #[error(transparent)]
    Runtime(#[from] crate::runtime::Error),
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// An error that arrived in place of a batch.
    #[error(transparent)]
    Batch(Box<dyn std::error::Error + Send + Sync>),
}

pub type Result<T> = std::result::Result<T, Error>;

/// Wraps an error of whatever makes the batches.
pub fn error_in_batch(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Batch(Box::new(error))
}
