//! Composite operations: whole formulas kept as one node, each with a hand-derived gradient and the
//! plain form that `passes::decompose` writes out for targets that have nothing better.

pub(crate) mod attention;
pub(crate) mod dequantize;
pub(crate) mod dropout;
pub mod fused_attention;
pub(crate) mod gelu;
pub(crate) mod kernel_attention;
mod key_mask;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod rows;
pub(crate) mod special;
mod window_blocks;

use crate::error::Result;
use crate::op::Op;
use crate::trace::Tensor;

/// Result `index` of a call of the CPU plugin's that has several.
pub(crate) fn call_result(call: &Tensor, index: usize) -> Result<Tensor> {
    let shapes = call.node().op.call_results();
    let shape = shapes.expect("a call with several results")[index].clone();
    let part = Op::GetTupleElement { index, shape };
    call.trace().record(part, &[call])
}
