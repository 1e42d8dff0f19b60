//! Makes concatenations of what a pass can write as parts of one array: of the sums of padded arrays, which
//! are the gradients of slices.
//!
//! Before: primitives. After: the same values; sums of padded arrays that fill one are concatenations, and
//! what is converted behind a concatenation is converted before it.

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::{Binary, Op};
use crate::passes::rebuild::{Readers, record};
use crate::trace::Tensor;

pub(super) fn rewrite(graph: &Graph) -> Result<Graph> {
    let readers = Readers::of(graph);
    let order: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        match &node.op {
            Op::Binary(Binary::Add) => {
                if let Some((dim, parts)) = padded(graph, &readers, id) {
                    let parts = parts.into_iter().map(|part| {
                        let part = replaced.get(part);
                        converted(&part, node.shape.dtype)
                    });
                    let parts = parts.collect::<Result<Vec<Tensor>>>()?;
                    return Tensor::concat(&parts.iter().collect::<Vec<_>>(), dim);
                }
            }
            Op::Convert(dtype) if readers.sole(node.operands[0]).is_some() => {
                let joined = replaced.get(node.operands[0]);
                if let Op::Concat { dim } = joined.node().op
                    && matches!(dtype, DType::F32 | DType::BF16)
                {
                    let parts = joined.node().operands;
                    let parts = parts
                        .iter()
                        .map(|&part| converted(&trace.tensor(part), *dtype));
                    let parts = parts.collect::<Result<Vec<Tensor>>>()?;
                    return Tensor::concat(&parts.iter().collect::<Vec<_>>(), dim);
                }
            }
            _ => {}
        }
        let x = node.operands.iter().map(|&operand| replaced.get(operand));
        record(trace, &node.op, &x.collect::<Vec<Tensor>>())
    })
}

/// `x` in another type; what was bf16 before is taken as it was.
fn converted(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let node = x.node();
    let before = (node.op == Op::Convert(DType::F32)).then(|| x.trace().tensor(node.operands[0]));
    match before.filter(|before| before.dtype() == dtype) {
        Some(before) => Ok(before),
        None => x.convert(dtype),
    }
}

/// Of a sum of arrays that are padded along one dimension and fill it, each element once: the dimension, and
/// the arrays in order.
fn padded(graph: &Graph, readers: &Readers, id: NodeId) -> Option<(usize, Vec<NodeId>)> {
    let sum = &graph.nodes[id as usize];
    let mut open = sum.operands.clone();
    let mut parts: Vec<(usize, NodeId)> = Vec::new();
    let (mut along, mut rounds) = (None, false);
    while let Some(id) = open.pop() {
        let node = &graph.nodes[id as usize];
        readers.sole(id)?;
        match &node.op {
            Op::Binary(Binary::Add) => open.extend(&node.operands),
            Op::Convert(DType::F32 | DType::BF16) => {
                rounds |= node.shape.dtype == DType::BF16;
                open.push(node.operands[0]);
            }
            Op::Pad { low, high } => {
                let mut dims = (0..low.len()).filter(|&dim| low[dim] + high[dim] > 0);
                let dim = dims.next()?;
                if dims.next().is_some() || *along.get_or_insert(dim) != dim {
                    return None;
                }
                matches!(node.shape.dtype, DType::F32 | DType::BF16).then_some(())?;
                parts.push((low[dim], node.operands[0]));
            }
            _ => return None,
        }
    }
    let dim = along?;
    parts.sort_unstable();
    let mut next = 0;
    for &(low, part) in &parts {
        let shape = &graph.nodes[part as usize].shape;
        // What was bf16 before is rounded to itself.
        if low != next || (rounds && shape.dtype != DType::BF16) {
            return None;
        }
        next += shape.dims[dim];
    }
    let is_full = next == sum.shape.dims[dim];
    is_full.then(|| (dim, parts.into_iter().map(|(_, part)| part).collect()))
}
