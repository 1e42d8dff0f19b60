//! Runs built from a plan: the front door of the library.
//!
//! [`Run::prepare`] opens what a plan names (tokenizer, model, task, data, devices). On it stand
//! [`Run::train`], [`Run::evaluate`], [`Run::predict`], [`Run::compile`] (every graph of the run
//! ahead of it) and [`Run::largest_batch`]. [`Generator`] and [`bench()`] are the runs that need no
//! task. All of them build their session and their training
//! step in [`Execution`], so that what is compiled ahead is what runs.
//!
//! Reading order: `run`, `execution`, `train` (with `training_data` and `resume`), `evaluate`,
//! `uploads` (to the Hub, to a bucket), `precompile`, `fit`, `meshes`, `target` (ahead-of-time targets), `bench`, `bench_generate`.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod adapter;
pub mod batches;
mod bench;
mod bench_generate;
pub mod bucket;
pub mod device;
mod error;
mod evaluate;
pub mod exchanged;
mod execution;
pub mod fit;
mod generate;
mod hooks;
pub mod kernels;
mod merge;
pub mod meshes;
pub mod model;
mod op_path;
pub mod precompile;
mod process;
pub mod profile;
pub mod push;
mod reference;
pub mod resume;
mod run;
mod saved;
pub mod target;
pub mod task;
mod trackers;
mod train;
mod training_data;
pub mod uploads;

pub use bench::bench;
pub use bench_generate::bench_generation;
pub use error::{Error, Outcome, failed};
pub use execution::Execution;
pub use generate::Generator;
pub use merge::{Merged, merge};
pub use run::Run;
