//! The step, the loop and everything that hangs on it.
//!
//! Reading order: `step` (one training step, top to bottom), `run_loop` (many), `session` (what `mark_step` does),
//! `evaluate`, `generate`, `ahead` (a run's graphs without its data), `fit` (the largest batch), `parameters` (weights to the device and back), `interrupt`.

pub mod ahead;
pub mod ceiling;
pub mod device;
mod error;
pub mod evaluate;
pub mod fit;
pub mod generate;
pub mod hooks;
pub mod interrupt;
pub mod parameters;
pub mod run_loop;
pub mod session;
pub mod settings;
pub mod step;

pub use error::{Error, Result, error_in_batch};
