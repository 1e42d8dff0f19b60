//! Devices, through the PJRT C API: the only foreign-function code in xtrain.
//!
//! A [`Plugin`] is a shared library that drives one kind of device (ours for the CPU, jax's for
//! CUDA, AWS's for Neuron). A [`Client`] is a plugin at work on this process's devices. It turns
//! modules into [`Executable`]s and bytes into [`Buffer`]s; executing turns buffers into buffers.
//! [`Library`] is our own `libxtrain_xla.so`, which holds XLA: the emitter from graphs to HLO, and
//! the CPU plugin. A [`Topology`] stands for devices that are not there: modules can be compiled
//! for it, and asked about.
//!
//! `hlo` and `conformance` read emitted modules, `neuron` is what AWS's plugin needs around it.
//!
//! Nothing here knows graphs, models or training. Reading order: `ffi` (the C structs and the
//! table), `plugin` (open, call), `client`, `buffer`, `executable`, `topology`. Every C handle is
//! owned by one type that destroys it, and keeps the client alive meanwhile.

mod buffer;
mod client;
pub mod conformance;
pub mod cuda_tools;
mod description;
mod device;
pub mod discover;
mod error;
mod event;
mod executable;
mod ffi;
pub mod hlo;
pub mod hlo_facts;
mod kv;
mod layout;
mod library;
pub mod neuron;
pub mod nvidia_libraries;
mod options;
mod patience;
mod plugin;
mod signature;
#[cfg(test)]
mod tests;
pub mod thunks;
mod topology;
mod traffic;
pub mod visible;

pub use buffer::{Buffer, HostBytes, PendingDownload};
pub use client::Client;
pub use description::CompiledMemory;
pub use device::{Device, DeviceMemory};
pub use error::{Code, Error, Result};
pub use event::Event;
pub use executable::{Executable, Execution, RunOptions};
pub use kv::{KeyValueStore, StoreError};
pub use library::Library;
pub use options::{CompileOptions, OptionValue, OverrideValue};
pub use plugin::{Plugin, set_environment};
pub use signature::Signature;
pub use topology::{CompiledModule, Topology};
