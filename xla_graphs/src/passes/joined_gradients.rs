//! The gradients of queries, keys and values that are the columns of one array, as one linear layer
//! writes them. Each is padded to the columns of all and the three are added up; a call of the CPU
//! plugin's writes that array itself.
//!
//! Before: primitives. After: the same, without the padding and the sums.

use super::rebuild::{Readers, record};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::{Binary, CallKind, KernelAttention, Op};
use crate::trace::Tensor;
use std::collections::HashMap;

pub(super) fn rewrite(graph: &Graph) -> Result<Graph> {
    let is_backward = |op: &Op| (op.call()).is_some_and(KernelAttention::is_backward);
    if !graph.nodes.iter().any(|node| is_backward(&node.op)) {
        return Ok(graph.clone());
    }
    let readers = Readers::of(graph);
    // The call whose array a node is, or becomes a part of.
    let mut joined: HashMap<NodeId, NodeId> = HashMap::new();
    for id in 0..graph.nodes.len() as NodeId {
        let mut sum = Sum::default();
        let is_sum = graph.nodes[id as usize].op == Op::Binary(Binary::Add);
        if is_sum && sum.collect(graph, &readers, id).is_some() && sum.parts == 0b111 {
            let call = sum.call;
            joined.extend(sum.nodes.into_iter().chain([call]).map(|node| (node, call)));
        }
    }
    let order: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        let x = (node.operands.iter()).map(|&operand| replaced.get(operand));
        match (joined.get(&id), &node.op) {
            (Some(_), Op::Call(call)) => {
                let of = KernelAttention::of(call).expect("gradients of attention are joined");
                let of = KernelAttention {
                    joins_gradients: true,
                    ..of.clone()
                };
                let x: Vec<Tensor> = x.collect();
                trace.call(of, &x.iter().collect::<Vec<&Tensor>>())
            }
            (Some(&call), Op::Binary(_)) => replaced.get(call).convert(node.shape.dtype),
            (None, Op::Convert(dtype)) => match joined.get(&node.operands[0]) {
                // The sum in f32 is what the call gives in bf16.
                Some(&call) => replaced.get(call).convert(*dtype),
                None => replaced.get(node.operands[0]).convert(*dtype),
            },
            // Nothing reads these but the sum.
            (Some(&call), _) => Ok(replaced.get(call)),
            (None, op) => record(trace, op, &x.collect::<Vec<_>>()),
        }
    })
}

/// A sum of gradients of one call, each in the columns of what it is the gradient of.
#[derive(Default)]
struct Sum {
    call: NodeId,
    /// A bit for each gradient that is in it.
    parts: u32,
    nodes: Vec<NodeId>,
}

impl Sum {
    /// Adds node `id` and all that it is made of.
    fn collect(&mut self, graph: &Graph, readers: &Readers, id: NodeId) -> Option<()> {
        let node = &graph.nodes[id as usize];
        self.nodes.push(id);
        match &node.op {
            // Of bf16 a sum is taken in f32.
            Op::Binary(Binary::Add) | Op::Convert(_) => {
                for &operand in &node.operands {
                    readers.sole(operand)?;
                    self.collect(graph, readers, operand)?;
                }
                Some(())
            }
            Op::Pad { low, .. } => {
                let (index, heads) = self.part(graph, readers, node.operands[0])?;
                let of = graph.nodes[self.call as usize]
                    .op
                    .call::<KernelAttention>()?;
                let [b, h, kv_heads, t, s, d] = of.sizes;
                let layout = of.operands[index];
                let columns = layout.strides[2];
                let lies_so = layout.strides == [t * columns, d, columns];
                let is_own =
                    node.shape.dims[..] == [b * t, columns] && low[..] == [0, layout.offset];
                let is_whole = (h, t) == (kv_heads, s) && columns == 3 * h * d;
                (lies_so && is_own && is_whole && heads == [b * t, h * d]).then_some(())
            }
            _ => None,
        }
    }

    /// Of a gradient as a matrix: which, and its dimensions.
    fn part<'a>(
        &mut self,
        graph: &'a Graph,
        readers: &Readers,
        mut id: NodeId,
    ) -> Option<(usize, &'a [usize])> {
        let matrix = &graph.nodes[id as usize];
        if !matches!(matrix.op, Op::Reshape(_)) {
            return None;
        }
        // Dimension i of the matrix's heads is dimension map[i] of what `id` is.
        let mut map = vec![0, 1, 2, 3];
        loop {
            readers.sole(id)?;
            self.nodes.push(id);
            id = graph.nodes[id as usize].operands[0];
            match &graph.nodes[id as usize].op {
                Op::Transpose(perm) if perm.len() == map.len() => {
                    map.iter_mut().for_each(|dim| *dim = perm[*dim]);
                }
                Op::GetTupleElement { index, .. } => {
                    readers.sole(id)?;
                    let call = graph.nodes[id as usize].operands[0];
                    let is_first = self.parts == 0;
                    let is_new = self.parts & 1 << index == 0;
                    if map != [0, 1, 2, 3] || !is_new || !(is_first || call == self.call) {
                        return None;
                    }
                    self.nodes.push(id);
                    (self.call, self.parts) = (call, self.parts | 1 << index);
                    return Some((*index, &matrix.shape.dims));
                }
                _ => return None,
            }
        }
    }
}
