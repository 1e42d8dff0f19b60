//! Composite operations: whole formulas kept as one node, each with a hand-derived gradient and the
//! plain form that `passes::decompose` writes out for targets that have nothing better.

pub(crate) mod attention;
pub(crate) mod dropout;
pub mod fused_attention;
pub(crate) mod gelu;
pub(crate) mod kernel_attention;
pub(crate) mod layer_norm;
pub(crate) mod loss;
pub(crate) mod rms_norm;
pub(crate) mod rows;
pub(crate) mod special;
mod window_blocks;
