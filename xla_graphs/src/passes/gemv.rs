//! Products of a few rows with a weight as calls of the CPU plugin's: those of a generated token, which are
//! bound by reading the weights. The call reads a weight as it is held, in f32 or bf16, however it is
//! transposed, and converts it on the way; XLA would write the conversion of the whole weight to memory first.
//!
//! Before: primitives. After: the same, sums in another order; what is not taken stays a dot.

use super::rebuild::record;
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Graph;
use crate::op::{DotDims, KernelGemv, Op};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    let costs = match target {
        Target::Cpu(kernels) if kernels.calls.has::<KernelGemv>() => CostModel::of(kernels),
        _ => return Ok(graph.clone()),
    };
    graph.rebuild(|trace, id, x| {
        let node = &graph.nodes[id as usize];
        if let Op::Dot { dims, dtype, .. } = &node.op
            && let Some((call, operands)) = gemv(costs, [&x[0], &x[1]], dims, *dtype)
        {
            return trace.call(call, &[&operands[0], &operands[1]]);
        }
        record(trace, &node.op, x)
    })
}

/// The call for a dot, with its operands; `None` where it is none of a few rows with a weight.
fn gemv(
    costs: CostModel,
    x: [&Tensor; 2],
    dims: &DotDims,
    dtype: DType,
) -> Option<(KernelGemv, [Tensor; 2])> {
    let (&[lhs], &[rhs]) = (&dims.lhs_contracting[..], &dims.rhs_contracting[..]) else {
        return None;
    };
    if !dims.lhs_batch.is_empty() || !matches!(dtype, DType::F32 | DType::BF16) {
        return None;
    }
    let contracting = [lhs, rhs];
    let found = [(0, 1), (1, 0)].into_iter().find_map(|(rows, weight)| {
        let k = *x[rows].dims().get(contracting[rows])?;
        let m = x[rows].shape().elements().checked_div(k)?;
        let is_last = contracting[rows] + 1 == x[rows].rank();
        // What is left of the other operand comes first in the result: in the order of a single row only.
        let is_in_order = rows == 0 || m == 1;
        let is_float = matches!(x[rows].dtype(), DType::F32 | DType::BF16);
        if !is_last || !is_in_order || !is_float || !(1..=KernelGemv::MOST_ROWS).contains(&m) {
            return None;
        }
        let (held, contracted, rounds) = held(costs, x[weight], contracting[weight])?;
        Some((rows, weight, held, contracted == 1, rounds))
    });
    let (rows, weight, held, by_columns, rounds) = found?;
    let free = |of: usize| {
        let sizes = x[of].dims().iter().enumerate();
        sizes
            .filter(move |(dim, _)| *dim != contracting[of])
            .map(|(_, size)| *size)
    };
    let (first, second) = if rows == 0 {
        (rows, weight)
    } else {
        (weight, rows)
    };
    let shape = Shape::new(dtype, free(first).chain(free(second)).collect::<Vec<_>>());
    let call = KernelGemv {
        by_columns,
        rounds,
        shape,
    };
    Some((call, [x[rows].clone(), held]))
}

/// The weight that an operand is made from, its dimension that is `dim` of the operand, and whether it is to be
/// rounded to bf16; `None` of what is no large matrix that the graph is given.
fn held(costs: CostModel, x: &Tensor, dim: usize) -> Option<(Tensor, usize, bool)> {
    let (mut base, mut dim, mut rounds) = (x.clone(), dim, false);
    loop {
        let node = base.node();
        let operand = || base.trace().tensor(node.operands[0]);
        match &node.op {
            Op::Input(_) => break,
            Op::Transpose(perm) => {
                dim = *perm.get(dim)?;
                base = operand();
            }
            Op::Convert(DType::BF16) if operand().dtype() == DType::F32 => {
                rounds = true;
                base = operand();
            }
            Op::Convert(DType::F32) if operand().dtype() == DType::BF16 => {
                rounds = false;
                base = operand();
            }
            _ => return None,
        }
    }
    let is_taken = base.rank() == 2 && costs.elements_pay(base.shape().elements());
    let rounds = rounds && base.dtype() == DType::F32;
    let is_float = matches!(base.dtype(), DType::F32 | DType::BF16);
    (is_taken && is_float).then_some((base, dim, rounds))
}
