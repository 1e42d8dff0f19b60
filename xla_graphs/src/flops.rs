//! How much a prepared graph computes and exchanges, counted on the graph itself: compilers hide
//! matmuls in library calls.

use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{Composite, DotDims, Op};
use crate::shape::Shape;
use crate::trace::Trace;
use std::ops::Range;

/// Floating-point operations of a graph's matmuls: two for each pair of numbers that is
/// multiplied and added. Everything else is at most a few operations a number, which no device
/// waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatmulFlops {
    /// Of matmuls with bf16 or f16 operands.
    pub low: f64,
    /// Of all others.
    pub wide: f64,
}

/// Counts the matmuls of a graph; those inside of composites only once these have been written out
/// (`passes::lower`).
pub fn matmuls(graph: &Graph) -> MatmulFlops {
    let mut work = MatmulFlops::default();
    for node in &graph.nodes {
        let operand = |index: usize| &graph.nodes[node.operands[index] as usize].shape;
        let (flops, dtype) = match &node.op {
            Op::Dot { dims, .. } => (dot(dims, operand(0), &node.shape), operand(0).dtype),
            Op::Call(call) => {
                let operands: Vec<&Shape> = (0..node.operands.len()).map(operand).collect();
                match call.spec().flops(&operands) {
                    Some(flops) => flops,
                    None => continue,
                }
            }
            _ => continue,
        };
        match dtype {
            DType::BF16 | DType::F16 => work.low += flops,
            _ => work.wide += flops,
        }
    }
    work
}

/// Operations of a matmul with this left operand and output.
fn dot(dims: &DotDims, left: &Shape, out: &Shape) -> f64 {
    let contracted: usize = dims.lhs_contracting.iter().map(|&d| left.dims[d]).product();
    2.0 * out.elements() as f64 * contracted as f64
}

/// Floating-point operations of recorded matmuls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecordedFlops {
    /// Of plain matmuls.
    pub matmuls: f64,
    /// Of attention's two matmuls, counted without masks.
    pub attention: f64,
}

impl RecordedFlops {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.matmuls + self.attention
    }
}

/// Counts the matmuls among `nodes` of a trace, numbered in the order of recording
/// ([`Trace::node_count`]), used or not.
pub fn recorded(trace: &Trace, nodes: Range<usize>) -> RecordedFlops {
    let inner = trace.inner();
    let mut flops = RecordedFlops::default();
    for node in &inner.nodes[nodes] {
        let operand = |index: usize| &inner.nodes[node.operands[index] as usize].shape;
        match &node.op {
            Op::Dot { dims, .. } => flops.matmuls += dot(dims, operand(0), &node.shape),
            // [B, H, T, D] and [B, K, S, D]
            Op::Composite(Composite::Attention(_)) => {
                flops.attention += 4.0 * operand(0).elements() as f64 * operand(1).dims[2] as f64
            }
            _ => {}
        }
    }
    flops
}

/// What replicas hand each other in one kind of collective over one set of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// As HLO names it: `all-reduce`, `all-gather`, `reduce-scatter`.
    pub kind: &'static str,
    /// Replica numbers of each group, as
    /// [`ReplicaGroups::groups`](crate::op::ReplicaGroups::groups).
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
            Op::AllReduce(exchange) | Op::AllReduceMax(exchange) => {
                ("all-reduce", exchange, into())
            }
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
    use crate::op::{Attention, F64, KeyMask};
    use crate::target::CudaTarget;
    use crate::{InputRole, Precision, Shape, Target, Trace, passes};

    #[test]
    fn recorded_matmuls_count_by_their_place() {
        let trace = Trace::new();
        let a = trace.input("a", Shape::new(DType::F32, [5, 7]), InputRole::Feed);
        let b = trace.input("b", Shape::new(DType::F32, [7, 11]), InputRole::Feed);
        a.matmul(&b).unwrap();
        let (begin, matmuls) = (trace.node_count(), 2.0 * (5 * 7 * 11) as f64);
        let q = trace.input("q", Shape::new(DType::F32, [2, 4, 3, 6]), InputRole::Feed);
        let attention = Attention {
            scale: F64::new(1.0),
            causal: true,
            window: None,
            key_mask: KeyMask::None,
            dropout: None,
            soft_cap: None,
        };
        q.attention(&q, &q, None, None, attention).unwrap();
        assert_eq!(recorded(&trace, 0..begin).matmuls, matmuls);
        let all = recorded(&trace, 0..trace.node_count());
        assert_eq!(all.attention, 4.0 * (2 * 4 * 3 * 3 * 6) as f64);
        assert_eq!(all.total(), matmuls + all.attention);
    }

    #[test]
    fn matmuls_count_by_their_operands_type() {
        let trace = Trace::new();
        let a = trace.input("a", Shape::new(DType::F32, [5, 7]), InputRole::Feed);
        let b = trace.input("b", Shape::new(DType::F32, [7, 11]), InputRole::Feed);
        trace.output("product", &a.matmul(&b).unwrap());
        let graph = trace.finish("test").unwrap();
        let flops = 2.0 * (5 * 7 * 11) as f64;
        assert_eq!(
            matmuls(&graph),
            MatmulFlops {
                low: 0.0,
                wide: flops
            }
        );
        let mixed = {
            let execution = passes::Execution {
                precision: Precision::Bf16,
                ..Default::default()
            };
            passes::specialize(&graph, &execution)
                .unwrap()
                .remove(0)
                .graph
        };
        let mixed = passes::lower(
            &mixed,
            Target::Cuda(CudaTarget {
                capability: 90,
                ..CudaTarget::default()
            }),
        )
        .unwrap();
        assert_eq!(
            matmuls(&mixed),
            MatmulFlops {
                low: flops,
                wide: 0.0
            }
        );
    }
}
