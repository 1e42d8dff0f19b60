//! AWS's accelerators beyond their plugin: the compiler's options, what the host has, what an error
//! means. Nothing here makes a call to the plugin; `trainer/device.rs` puts it to use before
//! the plugin is loaded.
//!
//! `compiler` composes neuronx-cc's options, `environment` is all that is read and set before the
//! plugin opens, `host` finds chips, drivers and packages, `releases` knows what was wrong in which, `status`
//! explains errors.

pub mod compiler;
pub mod environment;
pub mod host;
pub mod releases;
pub mod status;

pub use compiler::{Compiler, NeuronSettings};
