//! Devices, through the PJRT C API: the only foreign-function code in xtrain.
//!
//! - `pjrt`: plugins, clients, buffers and executables over the C API. [`Library`] is our own
//!   `libxtrain_xla.so`, which holds XLA: the emitter from graphs to HLO, and the CPU plugin. A
//!   [`Topology`] describes devices that are not attached: modules can be compiled for it.
//! - [`hlo`]: reads HLO modules as the emitter and the compiler write them.
//! - `vendors`: what single vendors need beyond the API: finding plugins, NVIDIA's libraries and
//!   tools, Neuron's environment and compiler, and the rules that Neuron's compiler sets
//!   ([`conformance`]).
//!
//! Nothing here knows graphs, models or training.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod error;
#[cfg(test)]
mod fuzz;
pub mod hlo;
mod pjrt;
mod vendors;

pub use error::{Code, Error, Result};
pub use pjrt::*;
pub use vendors::{conformance, cuda_tools, discover, neuron, nvidia_libraries, visible};
