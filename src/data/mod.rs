//! Text to tokens to device batches.
//!
//! Reading order, from files to batches:
//!
//! 1. Files: `formats` (lines of text, rows of tables; `remote`: behind a URL); out of those
//!    `texts` for language models and `samples` with their `labels` for classifiers.
//! 2. Tokens: `tokenizer`, `sequences` (special tokens, truncation).
//! 3. Sets, made once and kept on disk (`prepare`): `clm` makes the rows of `dataset`, `mlm` and
//!    `cls` make `examples`.
//! 4. Batches: `sampler` (which rows, in which order), `collator` (rows to a `batch`; `masking` and
//!    `padding` serve it), `loader` (threads that prepare batches ahead of the step, through a
//!    `queue` each).
//!
//! `stream` is the other way from files to batches: read while the model trains, and never kept.
//!
//! A new format joins at `formats`, a new task beside `cls`; the rest is theirs too.

pub mod batch;
pub mod clm;
pub mod cls;
pub mod collator;
pub mod dataset;
mod error;
pub mod examples;
pub mod formats;
mod label;
pub mod labels;
pub mod loader;
pub mod masking;
pub mod mlm;
pub mod padding;
mod prepare;
mod queue;
pub mod remote;
pub mod sampler;
mod samples;
pub mod sequences;
pub mod settings;
pub mod stream;
mod texts;
pub mod tokenizer;

pub use batch::{Batch, Labels};
pub use collator::Collator;
pub use dataset::Dataset;
pub use error::{Error, Result};
pub use examples::Examples;
pub use label::Label;
pub use labels::LabelMap;
pub use loader::{Loader, LoaderError};
pub use sampler::{BatchPlan, Order, Position};
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod bad_inputs;
