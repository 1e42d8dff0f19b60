//! Biases' gradients: sums over all rows of what the weight's gradient is a matmul of. The plugin's call
//! reads those rows already, to pack them, and gives their sums as a second result.
//!
//! Where no call packs them, the sum of bf16 rows in f32 is a matmul by ones: XLA's CPU writes the rows in
//! f32 first.
//!
//! Before: primitives. After: the same, sums in another order.

use super::rebuild::{Readers, moved_behind, record};
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphNode, NodeId};
use crate::nn::call_result;
use crate::op::{CallKind, KernelMatmul, MatmulStart, MatmulSums, Op, Reduction};
use crate::shape::Shape;
use crate::target::{CpuKernels, Target};
use crate::trace::Tensor;
use std::collections::HashMap;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    let Target::Cpu(kernels) = target else {
        return Ok(graph.clone());
    };
    let found = Found::of(graph);
    // A sum comes behind the call that gives it.
    let sums = found.calls.iter().map(|(&sum, &call)| (sum, call));
    let order = moved_behind(graph, sums);
    let mut calls: HashMap<NodeId, Tensor> = HashMap::new();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        if let Some(call) = found.calls.get(&id) {
            let sums = call_result(&calls[call], 1)?;
            return sums.reshape(&node.shape.dims);
        }
        let x: Vec<Tensor> = node.operands.iter().map(|&o| replaced.get(o)).collect();
        match (&node.op, found.sums.get(&id)) {
            (Op::Call(call), Some((_, sums))) => {
                let of = KernelMatmul::of(call).expect("sums are found of matmuls");
                let of = KernelMatmul {
                    sums: Some(*sums),
                    ..of.clone()
                };
                let call = trace.call(of, &x.iter().collect::<Vec<&Tensor>>())?;
                calls.insert(id, call.clone());
                call_result(&call, 0)
            }
            (
                Op::Reduce {
                    kind: Reduction::Sum,
                    dims,
                },
                _,
            ) => match by_ones(kernels, &x[0], dims) {
                Some((call, rows)) => {
                    let ones = Shape::new(DType::BF16, [call.sizes[4]]);
                    let ones = trace.full(1.0, &ones)?;
                    trace.call(call, &[&ones, &rows])
                }
                None => record(trace, &node.op, &x),
            },
            (op, _) => record(trace, op, &x),
        }
    })
}

#[derive(Default)]
struct Found {
    /// Of a sum: the call that gives it.
    calls: HashMap<NodeId, NodeId>,
    /// Of a call: the sum that it gives, and of which operand.
    sums: HashMap<NodeId, (NodeId, MatmulSums)>,
}

impl Found {
    fn of(graph: &Graph) -> Self {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let mut found = Found::default();
        // Who multiplies an array.
        let mut matmuls: HashMap<NodeId, Vec<(NodeId, usize)>> = HashMap::new();
        for (id, call) in graph.nodes.iter().enumerate() {
            if call.op.call::<KernelMatmul>().is_some() {
                for (index, &operand) in call.operands[..2].iter().enumerate() {
                    let of_array = matmuls.entry(origin(graph, operand)).or_default();
                    of_array.push((id as NodeId, index));
                }
            }
        }
        let readers = Readers::of(graph);
        for (id, sum) in graph.nodes.iter().enumerate() {
            let id = id as NodeId;
            let Some((rows, [k, size])) = summed(graph, sum) else {
                continue;
            };
            let calls = matmuls.get(&origin(graph, rows)).into_iter().flatten();
            for &(call, index) in calls {
                let Some(of) = node(call).op.call::<KernelMatmul>() else {
                    continue;
                };
                let sums = sums_of(of, index, [k, size]);
                let is_free = !found.sums.contains_key(&call);
                let in_time = readers.all(id).iter().all(|&reader| reader > call);
                if let Some(sums) = sums.filter(|_| is_free && in_time) {
                    found.calls.insert(id, call);
                    found.sums.insert(call, (id, sums));
                    break;
                }
            }
        }
        found
    }
}

/// Which sums a call can give of its operand, rows of `[k, size]`.
fn sums_of(of: &KernelMatmul, index: usize, [k, size]: [usize; 2]) -> Option<MatmulSums> {
    let [p, q, m, n, of_k] = of.sizes;
    let fits = match index {
        0 => [m, of.a_strides[2], of.a_strides[3]] == [size, 1, size],
        _ => [n, of.b_strides[3], of.b_strides[2]] == [size, 1, size],
    };
    let is_plain = [p, q, of_k] == [1, 1, k] && of.start != MatmulStart::Result;
    (fits && is_plain && size > 1).then_some(match index {
        0 => MatmulSums::Rows,
        _ => MatmulSums::Columns,
    })
}

/// Of a sum over leading dimensions in f32: what it sums, before its conversion from bf16, and how many
/// rows of which size those are.
fn summed(graph: &Graph, sum: &GraphNode) -> Option<(NodeId, [usize; 2])> {
    let Op::Reduce {
        kind: Reduction::Sum,
        dims,
    } = &sum.op
    else {
        return None;
    };
    let rows = sum.operands[0];
    let node = &graph.nodes[rows as usize];
    let is_leading = dims.iter().copied().eq(0..dims.len());
    if node.shape.dtype != DType::F32 || !is_leading {
        return None;
    }
    let (summed, kept) = node.shape.dims.split_at(dims.len());
    let sizes = [summed, kept].map(|dims| dims.iter().product());
    let narrow = (node.op == Op::Convert(DType::F32)).then(|| node.operands[0]);
    let is_low = |id: &NodeId| graph.nodes[*id as usize].shape.dtype == DType::BF16;
    Some((narrow.filter(is_low).unwrap_or(rows), sizes))
}

/// What a node is made of by reshaping it, and by converting bf16 to f32 and back.
fn origin(graph: &Graph, mut id: NodeId) -> NodeId {
    loop {
        let node = &graph.nodes[id as usize];
        let operand = |node: &GraphNode| node.operands[0];
        id = match node.op {
            Op::Reshape(_) => operand(node),
            Op::Convert(DType::BF16) => {
                let wide = &graph.nodes[operand(node) as usize];
                let narrow = (wide.op == Op::Convert(DType::F32)).then(|| operand(wide));
                match narrow {
                    Some(id) if graph.nodes[id as usize].shape.dtype == DType::BF16 => id,
                    _ => return id,
                }
            }
            _ => return id,
        };
    }
}

/// The sum over the leading dimensions of what is converted from bf16 as a matmul whose first operand
/// is ones, and its second.
fn by_ones(kernels: CpuKernels, x: &Tensor, dims: &[usize]) -> Option<(KernelMatmul, Tensor)> {
    let kernel = kernels.bf16?;
    let is_leading = dims.iter().copied().eq(0..dims.len());
    if x.dtype() != DType::F32 || x.node().op != Op::Convert(DType::F32) || !is_leading {
        return None;
    }
    let rows = x.trace().tensor(x.node().operands[0]);
    let (summed, kept) = x.dims().split_at(dims.len());
    let (k, n) = (summed.iter().product(), kept.iter().product());
    if rows.dtype() != DType::BF16 || !CostModel::of(kernels).sum_by_ones_pays(k, n) {
        return None;
    }
    let call = KernelMatmul {
        kernel,
        sizes: [1, 1, 1, n, k],
        a_strides: [0, 0, k, 1],
        b_strides: [0, 0, n, 1],
        c_strides: [0, 0, n, 1],
        start: MatmulStart::Zero,
        sums: None,
        shape: Shape::new(DType::F32, kept),
    };
    Some((call, rows))
}
