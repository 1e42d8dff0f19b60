//! `libxtrain_xla.so`: the emitter over xla-rs and the CPU PJRT plugin. The only thing in xtrain
//! that links XLA.
//!
//! As a shared library it is opened with `dlopen` when a graph must be lowered or a CPU client is
//! wanted, and exports `GetPjrtApi` (so that any PJRT client can use it) and the small C interface
//! in `ffi`. As a Rust library it is used by its own tests only. Set `TF_ENABLE_ONEDNN_OPTS=0`
//! before opening it: the XLA library logs when loaded otherwise.

pub mod emit;
mod ffi;

pub use xtrain_proto as proto;

pub use ffi::{GetPjrtApi, register_kernels, xtrain_xla_has_kernel};

/// Version of the C interface in `ffi`. Raise it with every change that an older caller would
/// notice.
pub const ABI: u32 = 4;

/// What identifies the XLA library that this was built against.
pub const VERSION: &str = env!("XTRAIN_XLA_VERSION");

/// Lowers a canonical graph to a serialized `HloModuleProto`.
pub fn lower(graph: &[u8]) -> Result<Vec<u8>, String> {
    emit::lower(graph)
}

/// The HLO text of a serialized `HloModuleProto`.
pub fn hlo_text(module: &[u8]) -> Result<String, String> {
    ffi::cpp_hlo_text(module)
}

/// The StableHLO text of a serialized `HloModuleProto`.
pub fn stablehlo_text(module: &[u8]) -> Result<String, String> {
    ffi::cpp_stablehlo_text(module)
}
