//! Lazy tensor traces, autodiff, optimizers and passes. Nothing here opens a file, a client or a
//! thread.
//!
//! Reading order: [`Shape`] and [`DType`], the operations ([`op`]), recording ([`Trace`],
//! [`Tensor`]), `ops/` and `nn/` (the rules of each operation), [`backward`], [`optim`], [`Graph`]
//! (what a trace becomes), [`passes`], then the emitter in `native/src/emit`, which lives in the
//! one library that links XLA.

#![warn(missing_docs, clippy::missing_errors_doc)]

mod cost_model;
mod dtype;
mod error;
mod finish;
pub mod flops;
mod grad;
mod graph;
pub mod liveness;
mod nn;
pub mod op;
mod ops;
pub mod optim;
pub mod passes;
mod provenance;
mod shape;
mod target;
mod trace;

pub use dtype::DType;
pub use error::{Error, Result};
pub use grad::remat::Checkpointing;
pub use grad::{BACKWARD, backward, backward_with};
pub use graph::{
    FORMAT_VERSION, Fingerprint, Graph, GraphNode, InputRole, InputSpec, NodeId, OutputSpec,
};
pub use nn::block_codes;
pub use nn::dropout::{DropoutRng, random_words, step_key, words_of};
pub use nn::fused_attention::UnfusedDropout;
pub use passes::Precision;
pub use provenance::{Phase, Provenance, Stage};
pub use shape::Shape;
pub use target::{CpuKernels, CudaTarget, NeuronChip, Target};
pub use trace::{ScopeGuard, StageGuard, Tensor, Trace};

/// Digest of the code that turns a graph into an HLO module: this crate and the emitter. Equal
/// digests lower equal graphs alike.
pub const LOWERING: &str = env!("XTRAIN_LOWERING");
