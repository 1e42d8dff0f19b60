//! Text to tokens to device batches.
//!
//! Reading order: `text` (lines), `tokenizer` (`bpe` trains one, `convert` reads older files, `sequences` adds special tokens), then a task: `clm` (lines to rows of ids, once, kept
//! on disk by `dataset`), `mlm` and `cls` (to examples of any length, kept by `examples`; `labels` names the classes). Then
//! `sampler` (which rows, in which order), `collator` (rows to a `batch`; `masking` and `padding` serve it) and `loader` (threads
//! that prepare batches ahead of the step).

pub mod batch;
mod bpe;
pub mod clm;
pub mod cls;
pub mod collator;
mod convert;
mod csv;
pub mod dataset;
mod error;
pub mod examples;
mod input;
mod json;
pub mod labels;
pub mod loader;
pub mod masking;
pub mod mlm;
pub mod padding;
mod parquet;
mod prepare;
pub mod sampler;
mod samples;
pub mod sequences;
pub mod settings;
pub mod table;
pub mod text;
mod texts;
pub mod tokenizer;

pub use batch::{Batch, Labels};
pub use collator::Collator;
pub use dataset::Dataset;
pub use error::{Error, Result};
pub use examples::Examples;
pub use labels::LabelMap;
pub use loader::{Loader, LoaderError};
pub use sampler::{BatchPlan, Order, Position};
pub use tokenizer::Tokenizer;

#[cfg(test)]
mod bad_inputs;
