//! Composite operations: whole formulas kept as one node, each with a hand-derived gradient and the
//! plain form that `passes::decompose` writes out for targets that have nothing better.

pub(crate) mod attention;
pub mod block_codes;
pub(crate) mod dequantize;
pub(crate) mod dropout;
pub(crate) mod fused_attention;
pub(crate) mod gelu;
pub(crate) mod kernel_attention;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod rows;
pub(crate) mod special;
mod window_blocks;

use crate::error::Result;
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::Tensor;

/// Result `index` of a call that has several.
pub(crate) fn call_result(call: &Tensor, index: usize) -> Result<Tensor> {
    let (trace, node) = (call.trace(), call.node());
    let operands: Vec<Tensor> = node.operands.iter().map(|&id| trace.tensor(id)).collect();
    let shapes: Vec<&Shape> = operands.iter().map(Tensor::shape).collect();
    let results = match &node.op {
        Op::Call(call) => call.spec().results(&shapes),
        op => Err(format!("`{}` is no call", op.name())),
    };
    let shape = results
        .expect("a call that was recorded")
        .swap_remove(index);
    trace.record(Op::GetTupleElement { index, shape }, &[call])
}
