//! How much a prepared graph computes and exchanges, counted on the graph itself: compilers hide
//! products in library calls.

use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::Op;
use crate::provenance::Provenance;
use crate::shape::Shape;

/// Floating-point operations of a graph's matrix products: two for each pair of numbers that is
/// multiplied and added. Everything else is at most a few operations a number, which no device
/// waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProductWork {
    /// Of products with bf16 or f16 operands.
    pub low: f64,
    /// Of all others.
    pub wide: f64,
}

/// Counts the products of a graph; those inside of composites only once these have been written out
/// (`passes::prepare`).
pub fn products(graph: &Graph) -> ProductWork {
    products_of(graph, |_| true)
}

/// The same of the nodes whose provenance is wanted.
pub fn products_of(graph: &Graph, wanted: impl Fn(&Provenance) -> bool) -> ProductWork {
    let mut work = ProductWork::default();
    for node in graph.nodes.iter().filter(|node| wanted(&node.provenance)) {
        let operand = |index: usize| &graph.nodes[node.operands[index] as usize].shape;
        let flops = match &node.op {
            Op::Dot { dims, .. } => {
                let contracted: usize = dims
                    .lhs_contracting
                    .iter()
                    .map(|&d| operand(0).dims[d])
                    .product();
                2.0 * node.shape.elements() as f64 * contracted as f64
            }
            Op::FusedAttention(of) => attention(2, of.causal, operand(0), operand(1)),
            // The scores once more, and two products for each of theirs.
            Op::FusedAttentionGrad(of) => attention(5, of.causal, operand(0), operand(1)),
            _ => continue,
        };
        let left = operand(0);
        match left.dtype {
            DType::BF16 | DType::F16 => work.low += flops,
            _ => work.wide += flops,
        }
    }
    work
}

/// So many products of `[T, D]` and `[S, D]` in each head, of which a causal mask leaves half: the
/// kernels skip the rest.
fn attention(products: usize, causal: bool, q: &Shape, k: &Shape) -> f64 {
    let all = 2.0 * products as f64 * q.elements() as f64 * k.dims[1] as f64;
    if causal { all / 2.0 } else { all }
}

/// What replicas hand each other in one kind of collective over one set of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// As HLO names it: `all-reduce`, `all-gather`, `reduce-scatter`.
    pub kind: &'static str,
    pub groups: Vec<Vec<u32>>,
    /// Bytes of the whole values, on each replica: of what goes into a sum, of what comes out of a
    /// gather.
    pub bytes: u64,
}

/// The collectives of a graph, by kind and groups, in the order of their first use.
pub fn exchanged(graph: &Graph) -> Vec<Exchanged> {
    let mut all: Vec<Exchanged> = Vec::new();
    for node in &graph.nodes {
        let into = || graph.nodes[node.operands[0] as usize].shape.bytes() as u64;
        let (kind, exchange, bytes) = match &node.op {
            Op::AllReduce(exchange) | Op::AllMax(exchange) => ("all-reduce", exchange, into()),
            Op::ReduceScatter { exchange, .. } => ("reduce-scatter", exchange, into()),
            Op::AllGather { exchange, .. } => ("all-gather", exchange, node.shape.bytes() as u64),
            _ => continue,
        };
        match all
            .iter_mut()
            .find(|known| known.kind == kind && known.groups == exchange.groups)
        {
            Some(known) => known.bytes += bytes,
            None => all.push(Exchanged {
                kind,
                groups: exchange.groups.clone(),
                bytes,
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::CudaTarget;
    use crate::{InputRole, Precision, Shape, Target, Trace, passes};

    #[test]
    fn products_count_by_their_operands_type() {
        let trace = Trace::new();
        let a = trace.input("a", Shape::new(DType::F32, [5, 7]), InputRole::Feed);
        let b = trace.input("b", Shape::new(DType::F32, [7, 11]), InputRole::Feed);
        trace.output("product", &a.matmul(&b).unwrap());
        let graph = trace.cut("test").unwrap();
        let flops = 2.0 * (5 * 7 * 11) as f64;
        assert_eq!(
            products(&graph),
            ProductWork {
                low: 0.0,
                wide: flops
            }
        );
        let mixed = passes::mix(&graph, Precision::Bf16).unwrap();
        let mixed = passes::prepare(
            &mixed,
            Target::Cuda(CudaTarget {
                capability: 90,
                ..CudaTarget::default()
            }),
        )
        .unwrap();
        assert_eq!(
            products(&mixed),
            ProductWork {
                low: flops,
                wide: 0.0
            }
        );
    }
}
