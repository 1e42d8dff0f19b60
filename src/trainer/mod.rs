//! The step, the loop and everything that hangs on it.
//!
//! Reading order: `step` (one training step, top to bottom), `feed` (what it is fed), `run_loop`
//! (many steps), `session` (what `mark_step` does), `evaluate` with `metrics` (of classes) and
//! `estimates` (of numbers), `best` (the best evaluation), `generate`, `ahead` (a run's graphs
//! without its data), `fit` (the largest batch), `device` and `cuda` (opening one), `gpu`
//! (compiling for one that is not there), `parameters` (weights to the device and back), `replicas`
//! (whether they are still equal), `stages` (a pipeline's) and `pipeline` (how a step runs in one),
//! `interrupt`.

pub mod ahead;
pub mod best;
pub mod ceiling;
pub mod cuda;
pub mod device;
mod error;
pub mod estimates;
pub mod evaluate;
pub mod exchange;
pub mod feed;
pub mod fit;
pub mod generate;
pub mod gpu;
pub mod hooks;
pub mod interrupt;
pub mod metrics;
pub mod parameters;
pub mod pipeline;
mod processes;
pub mod replicas;
pub mod run_loop;
pub mod session;
pub mod settings;
pub mod stages;
pub mod step;

pub use error::{Error, Result, error_in_batch};
