//! Text to tokens to batches, for any task: a task says by a [`Recipe`] how its files become rows
//! and its rows batches.
//!
//! Reading order, from files to batches:
//!
//! 1. Files: `formats` (lines of text, rows of tables; `remote`: behind a URL); out of those
//!    `samples`, such as the `texts` of language models.
//! 2. Tokens: `tokenizer`, `sequences` (special tokens, truncation).
//! 3. Sets, made once and kept on disk (`prepare`): packed rows (`dataset`) or `examples`, with
//!    their `labels`.
//! 4. Batches: `sampler` (which rows, in which order), `set` (rows to a `batch`; `padding` serves
//!    it), `loader` (threads that prepare batches ahead of the step, through a `queue` each).
//!
//! `stream` is the other way from files to batches: read while the model trains, and never kept.

pub mod batch;
pub mod dataset;
mod error;
pub mod examples;
pub mod formats;
mod label;
pub mod labels;
pub mod loader;
pub mod padding;
pub mod prepare;
mod queue;
pub mod remote;
pub mod sampler;
pub mod samples;
pub mod sequences;
pub mod set;
pub mod settings;
pub mod stream;
pub mod texts;
pub mod tokenizer;

pub use batch::{Batch, HostLabels};
pub use dataset::Dataset;
pub use error::{Error, Place, Result};
pub use examples::Examples;
pub use label::Label;
pub use labels::LabelMap;
pub use loader::{Loader, LoaderError};
pub use sampler::{BatchPlan, Order, Position};
pub use samples::{EncodedGroup, Recipe, Row, Sample, SampleFile, Samples};
pub use set::{BatchRows, Rows, Set};
pub use tokenizer::Tokenizer;
