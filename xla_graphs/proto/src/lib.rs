//! XLA's protobufs as Rust types, generated from the descriptors that the pinned XLA library carries:
//! [`xla::HloModuleProto`], [`xla::CompileOptionsProto`] and all that they contain.
//!
//! The emitter in `xla_graphs/native` writes these types; `src/runtime/hlo` reads them. The crate
//! links no XLA.

#![allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/proto.rs"));
