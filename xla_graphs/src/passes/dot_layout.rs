//! Matmuls of 16-bit floats in the form that the target multiplies fast.
//!
//! XLA's CPU has a fast product of bf16 operands only if the result is f32 and the left operand
//! contracts its last dimension (measured: 175 to 210 GFLOP/s a core where every other form gives
//! 90 to 110, those of f32). So a product gets an f32 result and a conversion after it, and a left
//! operand that contracts anything else is turned first. The barrier keeps XLA from folding the
//! turn back into the product, which would then fail when it runs: its kernels have no such mixed
//! form. A transposed result, which XLA would fold into an exchange of the operands whatever stands
//! between, is written as that exchange, in the same fast form.
//!
//! XLA:GPU rounds the operands of f32 matmuls to TF32 unless each is marked
//! as exact where TF32 was not asked for.
//!
//! Before: primitives. After: the same values; on the CPU every product of 16-bit floats has the
//! form above.

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Graph;
use crate::op::{DotDims, Op};
use crate::target::Target;
use crate::trace::Tensor;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    if target.marks_exact_matmuls() {
        return exact(graph);
    }
    let has_low_product = graph.nodes.iter().any(|n| {
        matches!(n.op, Op::Dot { .. }) && is_low(graph.nodes[n.operands[0] as usize].shape.dtype)
    });
    if !target.transposes_matmuls() || !has_low_product {
        return Ok(graph.clone());
    }
    graph.rebuild(|trace, id, x| match &graph.nodes[id as usize].op {
        Op::Dot { dims, dtype, .. } if is_low(x[0].dtype()) => {
            cpu_product(&x[0], &x[1], dims)?.convert(*dtype)
        }
        Op::Transpose(perm) => match low_product(&x[0]) {
            Some((a, b, dims)) if exchanges(perm, dims.lhs_batch.len()) => {
                let exchanged = DotDims {
                    lhs_contracting: dims.rhs_contracting,
                    rhs_contracting: dims.lhs_contracting,
                    lhs_batch: dims.rhs_batch,
                    rhs_batch: dims.lhs_batch,
                };
                cpu_product(&b, &a, &exchanged)
            }
            _ => x[0].transpose(perm),
        },
        op => trace.record(op.clone(), &x.iter().collect::<Vec<&Tensor>>()),
    })
}

/// Marks the matmuls of f32 as exact.
fn exact(graph: &Graph) -> Result<Graph> {
    graph.rebuild(|trace, id, x| {
        let op = match &graph.nodes[id as usize].op {
            Op::Dot { dims, dtype, .. }
                if x.iter().any(|operand| operand.dtype() == DType::F32) =>
            {
                Op::Dot {
                    dims: dims.clone(),
                    dtype: *dtype,
                    exact: true,
                }
            }
            op => op.clone(),
        };
        trace.record(op, &x.iter().collect::<Vec<&Tensor>>())
    })
}

fn is_low(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Whether a product's transposition is what XLA folds: the last two dimensions exchanged, batch
/// dimensions before them.
fn exchanges(perm: &[usize], batch: usize) -> bool {
    perm.len() == batch + 2
        && perm[..batch].iter().copied().eq(0..batch)
        && perm[batch] == batch + 1
}

/// The operands and dimensions of a product of 16-bit floats.
fn low_product(x: &Tensor) -> Option<(Tensor, Tensor, DotDims)> {
    let node = x.node();
    let operand = |i: usize| x.trace().tensor(node.operands[i]);
    match node.op {
        Op::Dot { dims, .. } if is_low(operand(0).dtype()) => Some((operand(0), operand(1), dims)),
        _ => None,
    }
}

/// The product in f32.
fn cpu_product(a: &Tensor, b: &Tensor, dims: &DotDims) -> Result<Tensor> {
    let free: Vec<usize> = (0..a.rank())
        .filter(|d| !dims.lhs_batch.contains(d) && !dims.lhs_contracting.contains(d))
        .collect();
    let order: Vec<usize> = dims
        .lhs_batch
        .iter()
        .chain(&free)
        .chain(&dims.lhs_contracting)
        .copied()
        .collect();
    if order.iter().copied().eq(0..a.rank()) {
        return a.dot_general(b, dims.clone(), DType::F32);
    }
    let (batch, rank) = (dims.lhs_batch.len(), a.rank());
    let turned = DotDims {
        lhs_batch: (0..batch).collect(),
        lhs_contracting: (batch + free.len()..rank).collect(),
        rhs_batch: dims.rhs_batch.clone(),
        rhs_contracting: dims.rhs_contracting.clone(),
    };
    a.transpose(&order)?
        .barrier()?
        .dot_general(b, turned, DType::F32)
}
