//! Biases in the type of the matmul before them, where the target's libraries add them in the same kernel.
//!
//! Before: `convert(convert(dot) + bias)`, a matmul in 16 bits whose bias is added in f32 and the sum rounded.
//! After: `dot + convert(bias)`, all of it in 16 bits: the form that XLA's rewriter makes a call of cuBLASLt with
//! an epilogue of, and that torch's autocast has (`F.linear` with a 16-bit bias). The library adds to the f32
//! sum and rounds once. Where another kernel takes the matmul, its result is rounded before as well as after.

use super::rebuild::{Readers, record};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::{Binary, Op};
use crate::target::Target;
use crate::trace::Tensor;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    if !target.has_bias_epilogues() {
        return Ok(graph.clone());
    }
    let readers = Readers::of(graph);
    let order: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        if let Some(found) = Biased::of(graph, &readers, id) {
            let product = replaced.get(found.product);
            let bias = replaced.get(found.bias).convert(product.dtype())?;
            return product.add(&bias.broadcast_in(found.dims, found.map)?);
        }
        let operands = node.operands.iter().map(|&operand| replaced.get(operand));
        record(trace, &node.op, &operands.collect::<Vec<Tensor>>())
    })
}

/// A matmul with its bias, rounded.
struct Biased<'g> {
    product: NodeId,
    bias: NodeId,
    /// How the bias is broadcast.
    dims: &'g [usize],
    map: &'g [usize],
}

impl<'g> Biased<'g> {
    fn of(graph: &'g Graph, readers: &Readers, id: NodeId) -> Option<Biased<'g>> {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let Op::Convert(low @ (DType::BF16 | DType::F16)) = node(id).op else {
            return None;
        };
        let sum = node(id).operands[0];
        if node(sum).op != Op::Binary(Binary::Add) || readers.sole(sum) != Some(id) {
            return None;
        }
        let [a, b] = node(sum).operands[..] else {
            return None;
        };
        [(a, b), (b, a)].into_iter().find_map(|(wide, spread)| {
            let product = (node(wide).op == Op::Convert(DType::F32))
                .then(|| node(wide).operands[0])
                .filter(
                    |&product| matches!(node(product).op, Op::Dot { dtype, .. } if dtype == low),
                )
                .filter(|&product| {
                    readers.sole(product) == Some(wide) && readers.sole(wide) == Some(sum)
                })?;
            let Op::Broadcast { dims, map } = &node(spread).op else {
                return None;
            };
            // One number for each column of the product: what a library takes as a bias.
            let bias = node(spread).operands[0];
            let is_vector = node(bias).shape.dtype == DType::F32 && map[..] == [dims.len() - 1];
            is_vector.then_some(Biased {
                product,
                bias,
                dims,
                map,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::CudaTarget;
    use crate::{InputRole, Precision, Shape, Trace, passes};

    /// A linear layer in bf16 with a residual behind it, as a run on a target executes it.
    fn lowered(target: Target) -> Graph {
        let trace = Trace::new();
        let input = |name: &str, dims: &[usize]| {
            trace.input(name, Shape::new(DType::F32, dims), InputRole::State)
        };
        let (x, w, b) = (input("x", &[8, 4]), input("w", &[4, 6]), input("b", &[6]));
        let y = x.matmul(&w).unwrap();
        let y = y.add(&b.broadcast_in(&[8, 6], &[1]).unwrap()).unwrap();
        trace.output("y", &y.mul(&y).unwrap());
        let execution = passes::Execution {
            precision: Precision::Bf16,
            ..passes::Execution::default()
        };
        let recorded = trace.finish("test").unwrap();
        let graphs = passes::specialize(&recorded, &execution).unwrap();
        let lowered = passes::lower(&graphs[0].graph, target).unwrap();
        lowered.check().unwrap();
        lowered
    }

    #[test]
    fn a_bias_is_added_in_the_type_of_its_product() {
        let types = |graph: &Graph| -> Vec<DType> {
            let adds = graph.nodes.iter();
            adds.filter(|node| node.op == Op::Binary(Binary::Add))
                .map(|node| node.shape.dtype)
                .collect()
        };
        let card = Target::Cuda(CudaTarget {
            capability: 90,
            ..CudaTarget::default()
        });
        assert_eq!(types(&lowered(card)), [DType::BF16]);
        assert_eq!(types(&lowered(Target::CPU)), [DType::F32]);
    }
}
