//! The step, the loop and everything that hangs on it.
//!
//! Reading order: `step` (one training step, top to bottom), `feed` (its inputs), `run_loop` (many
//! steps), `trained` (which parameters), `session` (what `mark_step` does, `parameters` to the device and back, whether
//! `replicas` are still equal), `pipeline` (how a step runs, in stages or whole),
//! `mesh_devices` (this process' devices), `hooks` (logging,
//! evaluating, saving), `evaluate`, `generate`,
//! `ahead` (a run's graphs without its data), `fit` (the largest batch), `devices` (opening one, or
//! compiling for one that is not attached), `interrupt`.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod ahead;
mod devices;
mod error;
pub mod evaluate;
pub mod exchange;
pub mod feed;
pub mod fit;
pub mod generate;
pub mod hooks;
pub mod interrupt;
pub mod mesh_devices;
pub mod own_loop;
pub mod pipeline;
pub mod run_loop;
pub mod run_state;
pub mod sample_logits;
mod sampling;
pub mod session;
pub mod settings;
pub mod step;
pub mod trained;

pub use devices::{cuda, device, gpu, matmul_peak};
pub use error::{Error, Result, error_in_batch};
pub use session::{parameters, replicas};
