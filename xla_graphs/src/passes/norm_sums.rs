//! What stands around a normalization of the CPU plugin's as part of its call, which has each row in
//! L1: the addition of a layer's result to its input, which is then normalized; of its gradient to the
//! gradient that went past the layer; and that sum in bf16, for matmuls.
//!
//! Only what is in memory anyway is taken as an operand: XLA fuses into an addition what else computes
//! its summands.
//!
//! Before: primitives. After: the same values.

use super::rebuild::{Readers, moved_behind, record};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::nn::call_result;
use crate::op::{Binary, KernelMatmul, KernelNorm, KernelNormPart, NormKind, Op};
use crate::trace::Tensor;
use std::collections::HashMap;

pub(super) fn rewrite(graph: &Graph) -> Result<Graph> {
    let found = Found::of(graph);
    if found.calls.is_empty() {
        return Ok(graph.clone());
    }
    // A sum comes behind the call that gives it.
    let sums = found.calls.iter();
    let sums = sums.filter_map(|(&id, call)| call.sum.map(|sum| (sum, id)));
    let order = moved_behind(graph, sums);
    let mut calls: HashMap<NodeId, Tensor> = HashMap::new();
    graph.rebuild_in(&order, |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        if let Some((call, index)) = found.results.get(&id) {
            return call_result(&calls[call], *index);
        }
        let Some(call) = found.calls.get(&id) else {
            let x = (node.operands.iter()).map(|&operand| replaced.get(operand));
            return record(trace, &node.op, &x.collect::<Vec<_>>());
        };
        let operands = call.operands.iter().map(|&operand| replaced.get(operand));
        let operands = operands.collect::<Vec<_>>();
        let tensor = trace.call(call.of.clone(), &operands.iter().collect::<Vec<&Tensor>>())?;
        calls.insert(id, tensor.clone());
        match call.sum {
            Some(_) => call_result(&tensor, 0),
            None => Ok(tensor),
        }
    })
}

/// A call that does more than it did.
struct Call {
    of: KernelNorm,
    operands: Vec<NodeId>,
    /// Forward: the addition that it takes over.
    sum: Option<NodeId>,
}

#[derive(Default)]
struct Found {
    calls: HashMap<NodeId, Call>,
    /// The nodes that a call's result stands for: the call, and which result.
    results: HashMap<NodeId, (NodeId, usize)>,
}

impl Found {
    fn of(graph: &Graph) -> Self {
        let mut found = Found::default();
        let readers = Readers::of(graph);
        for (id, node) in graph.nodes.iter().enumerate() {
            let id = id as NodeId;
            match node.op.call::<KernelNorm>() {
                Some(of) if of.part == KernelNormPart::Backward => {
                    found.backward(graph, &readers, id, of);
                }
                Some(of) => found.forward(graph, &readers, id, of),
                None => {}
            }
        }
        found
    }

    /// Whether a node is in memory whatever else reads it: a call gives it, or reads it.
    fn is_in_memory(&self, graph: &Graph, readers: &Readers, id: NodeId) -> bool {
        let is_call = |id: NodeId| {
            let op = &graph.nodes[id as usize].op;
            op.call::<KernelMatmul>().is_some()
                || matches!(op, Op::PassStep(_))
                || op.call::<KernelNorm>().is_some()
        };
        let node = &graph.nodes[id as usize];
        match &node.op {
            _ if self.results.contains_key(&id) => true,
            Op::Input(_) | Op::GetTupleElement { .. } => true,
            Op::Reshape(_) => self.is_in_memory(graph, readers, node.operands[0]),
            _ => is_call(id) || readers.all(id).iter().any(|&reader| is_call(reader)),
        }
    }

    /// The two summands of a sum in f32, if they are in memory and have these dimensions, and the second,
    /// if it may be, before its conversion from bf16.
    fn summands(
        &self,
        graph: &Graph,
        readers: &Readers,
        id: NodeId,
        dims: &[usize],
    ) -> Option<[NodeId; 2]> {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let sum = node(id);
        if sum.op != Op::Binary(Binary::Add) || sum.shape.dtype != DType::F32 {
            return None;
        }
        let [a, b] = sum.operands[..] else {
            return None;
        };
        let fits =
            |id: NodeId| self.is_in_memory(graph, readers, id) && node(id).shape.dims[..] == *dims;
        [[a, b], [b, a]].into_iter().find_map(|[wide, other]| {
            let is_converted = node(other).op == Op::Convert(DType::F32);
            let narrow = is_converted.then(|| node(other).operands[0]);
            let narrow = narrow.filter(|&narrow| node(narrow).shape.dtype == DType::BF16);
            let other = narrow.unwrap_or(other);
            (fits(wide) && fits(other)).then_some([wide, other])
        })
    }

    fn forward(&mut self, graph: &Graph, readers: &Readers, id: NodeId, of: &KernelNorm) {
        let operands = &graph.nodes[id as usize].operands;
        let sum = operands[0];
        let is_first = |&reader: &NodeId| reader >= id;
        if self.results.contains_key(&sum) || !readers.all(sum).iter().all(is_first) {
            return;
        }
        let Some([wide, other]) = self.summands(graph, readers, sum, &of.dims) else {
            return;
        };
        let of = KernelNorm {
            adds: true,
            ..of.clone()
        };
        let rest = operands[1..].iter().copied();
        let operands = [wide].into_iter().chain(rest).chain([other]).collect();
        let sum_of = (id, 1);
        self.results.insert(sum, sum_of);
        let call = Call {
            of,
            operands,
            sum: Some(sum),
        };
        self.calls.insert(id, call);
    }

    fn backward(&mut self, graph: &Graph, readers: &Readers, id: NodeId, of: &KernelNorm) {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let dx =
            |reader: &&NodeId| matches!(node(**reader).op, Op::GetTupleElement { index: 0, .. });
        let Some(&dx) = readers.all(id).iter().find(dx) else {
            return;
        };
        let mut of = of.clone();
        let mut operands = node(id).operands.to_vec();
        let mut result = dx;
        let sum = readers.sole(dx).filter(|&sum| {
            let node = node(sum);
            node.op == Op::Binary(Binary::Add) && node.shape.dtype == DType::F32
        });
        if let Some(sum) = sum {
            let other = node(sum)
                .operands
                .iter()
                .copied()
                .find(|&other| other != dx);
            let other =
                other.filter(|&other| other < id && self.is_in_memory(graph, readers, other));
            if let Some(other) = other {
                of.adds = true;
                operands.push(other);
                result = sum;
                self.results.insert(sum, (id, 0));
            }
        }
        // The result behind dx, dgamma and, of a LayerNorm, dbeta.
        let last = if of.of.kind == NormKind::Layer { 3 } else { 2 };
        for &reader in readers.all(result) {
            if node(reader).op == Op::Convert(DType::BF16) {
                of.narrows = true;
                self.results.insert(reader, (id, last));
            }
        }
        if of.adds || of.narrows {
            let sum = None;
            self.calls.insert(id, Call { of, operands, sum });
        }
    }
}
