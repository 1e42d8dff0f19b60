//! What can go wrong while a model is built, trained or evaluated.

use std::path::PathBuf;
use xtrain_report::units;

/// Why a step, a run or a prediction fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    #[error("the step uses state `{name}`, which was never set: a defect of xtrain")]
    NoState { name: String },
    #[error("feed `{name}` was declared for compiling only and has no value: a defect of xtrain")]
    AbstractFeed { name: String },
    #[error(
        "graph `{name}`, recorded again for feeds of the same shapes, is another: a defect of xtrain"
    )]
    StepChanged { name: String },
    #[error(
        "the {what} became {value} at step {step} (loss {loss}, gradient norm {grad_norm}, learning rate {learning_rate:e}); \
         {kept}. Lower --learning_rate, add --warmup_steps or check the data around that step"
    )]
    NotFinite {
        what: &'static str,
        value: f64,
        step: u64,
        learning_rate: f64,
        loss: f64,
        grad_norm: f64,
        kept: String,
    },
    #[error(
        "the loss scale fell to {scale:e} by step {step}: the gradients of every step overflow fp16, so no scale is small enough; \
         {kept}. Use --bf16, or lower --learning_rate if training had gone well before"
    )]
    LossScaleExhausted { scale: f64, step: u64, kept: String },
    #[error(
        "after step {step}, {tensor} holds values that are not finite, so it was not saved; {kept}. Lower --learning_rate"
    )]
    NotWorthSaving {
        step: u64,
        tensor: String,
        kept: String,
    },
    #[error("{error}; besides, {unsaved}")]
    AlsoUnsaved {
        /// What ended the run.
        error: Box<Error>,
        unsaved: Box<Error>,
    },
    #[error(
        "{path}: {tensor} holds values that are not finite: the model was broken when it was saved; use another one"
    )]
    BrokenWeights { path: PathBuf, tensor: String },
    #[error(
        "{path}: `{tensor}` is another tensor than `{parameter}`, which the configuration ties it to; if it is to be one of its own, set \
         `tie_word_embeddings` to false in config.json, else take it out of the file"
    )]
    NotTied {
        path: PathBuf,
        tensor: String,
        parameter: String,
    },
    #[error("{path}: this checkpoint cannot continue the run: {reason}")]
    Resume { path: PathBuf, reason: String },
    #[error("there is no metric `{name}`; those of this evaluation are {known}")]
    NoMetric { name: String, known: String },
    #[error("a part of `{name}` is in another process, and was not fetched from there")]
    PartElsewhere { name: String },
    #[error("the prompt has no tokens: generation needs at least one to start from")]
    EmptyPrompt,
    #[error(
        "new token {token} of text {text} of {texts} cannot be chosen: the model's logits contain inf or nan, so they give no probabilities. \
         Its weights are broken or overflow; use an earlier checkpoint"
    )]
    LogitsNotFinite {
        token: usize,
        text: usize,
        texts: usize,
    },
    #[error(
        "the prompt of {tokens} tokens leaves none of the model's {positions} positions for another; shorten it"
    )]
    LongPrompt { tokens: usize, positions: usize },
    #[error(
        "{texts} texts side by side are more than {most}; lower --num_return_sequences, or give fewer prompts at once"
    )]
    ManyTexts { texts: usize, most: usize },
    #[error(
        "{texts} texts of up to {columns} tokens, side by side, take {} of keys, values and logits, and there are {}; lower {}",
        units::bytes(*needed),
        units::bytes(*available),
        if *texts > 1 { "--num_return_sequences or --max_new_tokens, or give fewer prompts at once" } else { "--max_new_tokens, or shorten the prompt" }
    )]
    TooManyTexts {
        texts: usize,
        columns: usize,
        needed: u64,
        available: u64,
    },
    #[error(
        "this device's compiler does not report how much memory a graph needs, so no batch size can be found without running"
    )]
    NoMemoryStatistics,
    #[error(
        "after step {step}, {tensor} is not the same on replica {replica} as on replica 0: a device computes wrong numbers, or memory \
         is damaged. Go on from an earlier checkpoint (--resume_from_checkpoint PATH), without that device"
    )]
    Diverged {
        step: u64,
        replica: usize,
        tensor: String,
    },
    #[error(
        "after step {step}, {tensor} on replica {replica} is not what the first of the stages that share it holds: a device computes wrong \
         numbers, or memory is damaged. Go on from an earlier checkpoint (--resume_from_checkpoint PATH), without that device"
    )]
    CopyDiverged {
        step: u64,
        replica: usize,
        tensor: String,
    },
    #[error(
        "the run wants {wanted} {device} devices (--data_parallel) and there are {found} in this process: lower it, or make more devices \
         visible"
    )]
    TooFewDevices {
        wanted: usize,
        found: usize,
        device: &'static str,
    },
    #[error(
        "--pipeline_parallel {stages}: the model has {layers} layers, and each stage needs one: set --pipeline_parallel {layers} or less"
    )]
    TooManyStages { stages: usize, layers: usize },
    #[error("there is nothing to train on: {reason}")]
    NothingToTrain { reason: String },
    #[error(transparent)]
    Graph(#[from] xtrain_graphs::Error),
    #[error(transparent)]
    Model(#[from] xtrain_models::Error),
    #[error(transparent)]
    Cache(#[from] xtrain_cache::Error),
    #[error(transparent)]
    Launch(#[from] xtrain_distributed::Error),
    #[error(transparent)]
    Runtime(#[from] xtrain_runtime::Error),
    #[error(transparent)]
    Checkpoint(#[from] xtrain_checkpoint::Error),
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// An error that arrived in place of a batch.
    #[error(transparent)]
    Batch(Box<dyn std::error::Error + Send + Sync>),
}

/// The result of this module's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Wraps an error of whatever makes the batches.
pub fn error_in_batch(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Batch(Box::new(error))
}
