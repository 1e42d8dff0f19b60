//! Text to tokens to device batches.
//!
//! Reading order: `text` (lines), `tokenizer` (and `bpe`, which trains one), `clm` (lines to rows of ids, once, kept on disk),
//! `dataset` (those rows, memory-mapped), `sampler` (which rows, in which order), `batch`, `loader` (threads that prepare
//! batches ahead of the step). Other formats join at `text`, other tasks beside `clm`; the rest is theirs too.

pub mod batch;
mod bpe;
pub mod clm;
pub mod dataset;
mod error;
pub mod loader;
pub mod sampler;
pub mod settings;
pub mod text;
pub mod tokenizer;

pub use batch::Batch;
pub use dataset::Dataset;
pub use error::{Error, Result};
pub use loader::{Loader, LoaderError};
pub use sampler::{BatchPlan, Order, Position};
pub use tokenizer::Tokenizer;
