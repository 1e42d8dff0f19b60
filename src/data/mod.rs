//! Text to tokens to batches, for any task: a task says by a [`Recipe`] how its files become rows
//! and its rows batches.
//!
//! Reading order, from files to batches:
//!
//! 1. Files: `formats` (lines of text, rows of tables; `remote`: behind a URL); out of those
//!    `samples`, such as the `texts` of language models or the `tokens` that come ready made; a
//!    `mixture` of files draws them by weights.
//! 2. Tokens: `tokenizer`, `sequences` (special tokens, truncation), `chat_template` (conversations),
//!    `packing` (several examples in a row).
//! 3. Sets, made once and kept on disk (`prepare`, all of their files or a `share`): `rows`, with
//!    their `labels`; a `survey` looks at one and keeps nothing.
//! 4. Batches: `sampler` (which rows, in which order), `set` (rows to a `batch`; `padding` serves
//!    it), `loader` (threads that prepare batches ahead of the step, through a `queue` each).
//!
//! `stream` is the other way from files to batches: read while the model trains, and never kept.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod batch;
pub mod chat_template;
mod error;
pub mod features;
pub mod formats;
#[cfg(test)]
mod fuzz;
mod label;
pub mod labels;
pub mod loader;
pub mod mixture;
pub mod packing;
pub mod padding;
pub mod prepare;
mod queue;
pub mod remote;
pub mod rows;
pub mod sampler;
pub mod samples;
pub mod sequences;
pub mod set;
pub mod settings;
pub mod share;
pub mod stream;
pub mod survey;
pub mod texts;
pub mod tokenizer;
pub mod tokens;
pub mod whitespace;

pub use batch::{Batch, BatchRows, HostLabels};
pub use error::{Error, MissingColumn, Place, Result, other_rows};
pub use label::Label;
pub use labels::LabelMap;
pub use loader::{Loader, LoaderError};
pub use rows::{Row, Rows};
pub use sampler::{BatchPlan, Order, Position};
pub use samples::{EncodedGroup, Recipe, Sample, SampleFile, Samples};
pub use set::Set;
pub use tokenizer::Tokenizer;
