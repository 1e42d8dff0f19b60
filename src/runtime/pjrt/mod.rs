//! The PJRT C API as Rust types.
//!
//! A [`Plugin`] is a shared library that drives one kind of device (ours for the CPU, jax's for
//! CUDA, AWS's for Neuron). A [`Client`] opens a plugin's devices for this process. It turns
//! modules into [`Executable`]s and bytes into [`Buffer`]s; executing turns buffers into buffers.
//!
//! Reading order: `bindings` (the C structs and the table, generated), `call` (which struct goes with
//! which call), `plugin` (open, call), `handle` (every C handle is owned by one, which destroys it and
//! keeps the client alive meanwhile), `client`, `buffer`, `executable`, `topology`.

mod bindings;
mod buffer;
mod call;
mod client;
mod compiled_module;
mod device;
mod early_log;
mod environment;
mod event;
mod executable;
pub mod flags_server;
mod flags_trial;
mod handle;
mod kernels;
mod kv;
mod library;
mod memory;
mod options;
mod plugin;
mod signature;
mod stall_timeout;
#[cfg(test)]
mod tests;
mod topology;

pub use buffer::{Buffer, PendingDownload};
pub use client::Client;
pub use compiled_module::{CompiledMemory, CompiledModule};
pub use device::{Device, DeviceMemory};
pub use environment::{set_environment, split_xla_flags, xla_flags};
pub use event::Event;
pub use executable::{Executable, Execution, RunOptions};
pub use kernels::{KernelSpeed, of_target};
pub use kv::{KeyValueStore, StoreError};
pub use library::{Library, ProfileEvent};
pub use options::{CompileOptions, OptionValue, OverrideValue};
pub use plugin::Plugin;
pub(super) use plugin::reason;
pub use signature::Signature;
pub use topology::Topology;
