//! Decomposes composites into primitives. Before: any graph. After: no composite is left, equal nodes
//! are merged (which is what lets the separate gradient nodes of one composite share its
//! intermediate values).

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::nn::{attention, block_codes, dequantize, dropout, gelu, loss, norm, rows, special};
use crate::op::{Binary, Composite, Op, Scalar, Unary};
use crate::passes::rebuild::record;
use crate::provenance::Phase;
use crate::target::Target;
use crate::trace::Tensor;
use std::collections::HashSet;

pub(super) fn decompose(graph: &Graph, target: Target) -> Result<Graph> {
    let order: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    let outputs: HashSet<NodeId> = graph.outputs.iter().map(|output| output.node).collect();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        let x: Vec<Tensor> = node.operands.iter().map(|&o| replaced.get(o)).collect();
        match &node.op {
            Op::Composite(Composite::BlockCodes(part)) => {
                // The calls of one pass are of updates.
                let is_step = node.provenance.phase == Phase::Update && target.has_passes();
                block_codes::expand(part, &x, is_step)
            }
            Op::Composite(op) => composite(graph, id, op, &x, target),
            Op::Unary(Unary::Erf) if !target.has_special_functions() => special::erf(&x[0]),
            Op::Unary(Unary::Log1p) if !target.has_special_functions() => {
                x[0].add_scalar(1.0)?.log()
            }
            Op::Unary(Unary::IsFinite) if !target.has_special_functions() => {
                special::is_finite(&x[0])
            }
            Op::TakeRows if !target.indexes() => rows::take(&x[0], &x[1]),
            Op::ScatterAddRows if !target.indexes() => rows::add(&x[0], &x[1], &x[2]),
            // Another stage adds up what this one gives it as it is: the bits have to be the same.
            Op::Binary(Binary::Add)
                if node
                    .operands
                    .iter()
                    .any(|&id| is_given(graph, &outputs, id)) =>
            {
                x[0].add(&x[1])
            }
            Op::Binary(Binary::Add) => add(&x[0], &x[1], target),
            Op::Barrier if !target.takes_barriers() => Ok(x[0].clone()),
            Op::BarrierAfter if !target.keeps_barriers() => special::after(&x[0], &x[1]),
            Op::DynamicSlice { dim, size } if !target.indexes() => {
                special::dynamic_slice(&x[0], &x[1], *dim, *size)
            }
            Op::DynamicUpdateSlice { dim } if !target.indexes() => {
                special::dynamic_update_slice(&x[0], &x[1], &x[2], *dim)
            }
            Op::ToHost | Op::ToDevice if !target.has_host_memory() => Ok(x[0].clone()),
            primitive => record(trace, primitive, &x),
        }
    })
}

/// Node `id` in primitives, over its operands `x`.
fn composite(
    graph: &Graph,
    id: NodeId,
    op: &Composite,
    x: &[Tensor],
    target: Target,
) -> Result<Tensor> {
    match op {
        Composite::RandomBits { dims, stream } => {
            dropout::expand_bits(&x[0], dims, *stream, target)
        }
        Composite::Norm(of) => norm::expand(*of, x, wanted(graph, id), target),
        Composite::NormGrad { of, operand } => norm::expand_grad(*of, *operand, x, target),
        Composite::Gelu(kind) => gelu::expand(*kind, &x[0], target),
        Composite::GeluGrad(kind) => gelu::expand_grad(*kind, &x[0], &x[1], target),
        Composite::CrossEntropy { ignore } => loss::expand(*ignore, x, target),
        Composite::CrossEntropyGrad { ignore } => {
            loss::expand_grad(*ignore, x, wanted(graph, id), target)
        }
        Composite::Attention(of) => attention::expand(of, x, target),
        Composite::AttentionGrad { of, operand } => attention::expand_grad(of, *operand, x, target),
        Composite::BlockCodes(_) => unreachable!("`decompose` expands it itself"),
        // They have done their work.
        Composite::StopGradient | Composite::MasterGradient => Ok(x[0].clone()),
        Composite::Dequantize(of) => dequantize::expand(*of, x),
    }
}

/// The type that all who read a node convert it to, if there is one.
fn wanted(graph: &Graph, id: NodeId) -> Option<DType> {
    let is_output = graph.outputs.iter().any(|output| output.node == id);
    let readers = graph
        .nodes
        .iter()
        .filter(|node| node.operands.contains(&id));
    let mut types = readers.map(|reader| match reader.op {
        Op::Convert(dtype) => Some(dtype),
        _ => None,
    });
    let first = types.next().flatten().filter(|_| !is_output);
    first.filter(|_| types.all(|dtype| dtype == first))
}

/// The sum of two values. Of two that are each summed over replicas and scattered it is taken
/// before, so that they travel as one: a tied embedding's gradient comes from both of its uses.
fn add(a: &Tensor, b: &Tensor, target: Target) -> Result<Tensor> {
    let (first, second) = (a.node(), b.node());
    if let Op::ReduceScatter { .. } = first.op
        && first.op == second.op
    {
        let [a, b] = [&first, &second].map(|node| a.trace().tensor(node.operands[0]));
        return add(&a, &b, target)?.apply(first.op, &[]);
    }
    let sum = if target.indexes() {
        add_into_rows(a, b)?
    } else {
        None
    };
    sum.map_or_else(|| a.add(b), Ok)
}

/// Whether a graph gives a value, or what was exchanged between replicas for it.
fn is_given(graph: &Graph, outputs: &HashSet<NodeId>, mut id: NodeId) -> bool {
    loop {
        if outputs.contains(&id) {
            return true;
        }
        let node = &graph.nodes[id as usize];
        match node.op {
            Op::AllReduce(_)
            | Op::ReduceScatter { .. }
            | Op::Composite(Composite::MasterGradient) => id = node.operands[0],
            _ => return false,
        }
    }
}

/// `dense + (zeros with rows added)` becomes `dense with rows added`: a tied embedding's gradient
/// then needs no table of zeros and no second pass over the vocabulary.
fn add_into_rows(a: &Tensor, b: &Tensor) -> Result<Option<Tensor>> {
    for (dense, rows) in [(a, b), (b, a)] {
        let scatter = rows.node();
        if scatter.op == Op::ScatterAddRows && is_zero(&dense.trace().tensor(scatter.operands[0])) {
            let [ids, updates] = [1, 2].map(|i| dense.trace().tensor(scatter.operands[i]));
            return dense.scatter_add_rows(&ids, &updates).map(Some);
        }
    }
    Ok(None)
}

fn is_zero(x: &Tensor) -> bool {
    let mut node = x.node();
    while let Op::Broadcast { .. } | Op::Reshape(_) = node.op {
        node = x.trace().tensor(node.operands[0]).node();
    }
    matches!(node.op, Op::Constant { value: Scalar::Float(value), .. } if value.get() == 0.0)
}
