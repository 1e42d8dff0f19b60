//! What passes are written with: a graph recorded anew, node by node.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::trace::{Tensor, Trace};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// What nodes became that were recorded anew.
pub(super) struct Replaced(Vec<Option<Tensor>>);

impl Replaced {
    /// The tensor in place of a node that stands earlier in the order and is not hidden.
    pub(super) fn get(&self, id: NodeId) -> Tensor {
        let tensor = self.0[id as usize].as_ref();
        let tensor = tensor.expect("operands precede their users, and no pass hides what is read");
        tensor.clone()
    }
}

impl Graph {
    /// The graph as a fresh deduplicating trace plus the tensors of its nodes, for passes that
    /// rebuild it: `node` records what becomes of a node (never an input) over its operands'
    /// replacements. Outputs keep their element types.
    pub(super) fn rebuild(
        &self,
        mut node: impl FnMut(&Trace, NodeId, &[Tensor]) -> Result<Tensor>,
    ) -> Result<Graph> {
        let order: Vec<NodeId> = (0..self.nodes.len() as NodeId).collect();
        self.rebuild_in(&order, |trace, id, replaced| {
            let operands = self.nodes[id as usize].operands.iter();
            let operands: Vec<_> = operands.map(|&o| replaced.get(o)).collect();
            node(trace, id, &operands)
        })
    }

    /// As [`Graph::rebuild`], in another order of the nodes, in which inputs keep theirs and operands
    /// precede their users. A node for which `node` gives `None` is hidden: nothing may read it.
    pub(super) fn rebuild_in<T: Into<Option<Tensor>>>(
        &self,
        order: &[NodeId],
        mut node: impl FnMut(&Trace, NodeId, &Replaced) -> Result<T>,
    ) -> Result<Graph> {
        let trace = Trace::deduplicating();
        let mut tensors = Replaced(vec![None; self.nodes.len()]);
        for &id in order {
            let n = &self.nodes[id as usize];
            let _context = trace.resume(&self.scopes[n.scope as usize], n.provenance);
            let tensor = match n.op {
                Op::Input(index) => {
                    let spec = &self.inputs[index as usize];
                    Some(trace.input(spec.name.clone(), spec.shape.clone(), spec.role))
                }
                _ => node(&trace, id, &tensors)?.into(),
            };
            tensors.0[id as usize] = tensor;
        }
        for output in &self.outputs {
            let (tensor, node) = (tensors.get(output.node), &self.nodes[output.node as usize]);
            let _context = trace.resume(&self.scopes[node.scope as usize], node.provenance);
            trace.output(output.name.clone(), &tensor.convert(node.shape.dtype)?);
        }
        Ok(Graph {
            stage: self.stage,
            ..trace.finish(&self.name)?
        })
    }
}

/// Who reads each node.
pub(super) struct Readers {
    readers: Vec<Vec<NodeId>>,
    is_output: Vec<bool>,
}

impl Readers {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            for &operand in &node.operands {
                readers[operand as usize].push(id as NodeId);
            }
        }
        let mut is_output = vec![false; graph.nodes.len()];
        for output in &graph.outputs {
            is_output[output.node as usize] = true;
        }
        Readers { readers, is_output }
    }

    /// The node that reads this one, if there is exactly one.
    pub(super) fn sole(&self, id: NodeId) -> Option<NodeId> {
        match self.readers[id as usize][..] {
            [reader] if !self.is_output[id as usize] => Some(reader),
            _ => None,
        }
    }

    /// All nodes that read this one.
    pub(super) fn all(&self, id: NodeId) -> &[NodeId] {
        &self.readers[id as usize]
    }

    /// Whether the graph gives this node.
    pub(super) fn is_output(&self, id: NodeId) -> bool {
        self.is_output[id as usize]
    }
}

/// The operation over new operands; a conversion to the type that a value has by now is none.
pub(super) fn record(trace: &Trace, op: &Op, x: &[Tensor]) -> Result<Tensor> {
    match op {
        Op::Convert(dtype) => x[0].convert(*dtype),
        op => trace.record(op.clone(), &x.iter().collect::<Vec<&Tensor>>()),
    }
}

/// The nodes in their order, except those that move: `(node, other)`, right behind another each.
pub(super) fn moved_behind(
    graph: &Graph,
    moves: impl Iterator<Item = (NodeId, NodeId)>,
) -> Vec<NodeId> {
    let behind: HashMap<NodeId, NodeId> = moves.map(|(node, other)| (other, node)).collect();
    let moved: HashSet<NodeId> = behind.values().copied().collect();
    let all = 0..graph.nodes.len() as NodeId;
    let stay = all.filter(|id| !moved.contains(id));
    stay.flat_map(|id| [id].into_iter().chain(behind.get(&id).copied()))
        .collect()
}

/// The nodes in an order in which those of a group stand together, otherwise as near to theirs as can
/// be. Those that cannot be ordered so, since a group waits for what waits for it, are left out.
pub(super) fn together(graph: &Graph, group_of: &[Option<usize>]) -> Vec<NodeId> {
    let mut units: Vec<Vec<NodeId>> = Vec::new();
    let mut unit_of = vec![0; group_of.len()];
    let mut unit_of_group = HashMap::new();
    for (id, group) in group_of.iter().enumerate() {
        let new = units.len();
        let unit = group.map_or(new, |group| *unit_of_group.entry(group).or_insert(new));
        if unit == new {
            units.push(Vec::new());
        }
        unit_of[id] = unit;
        units[unit].push(id as NodeId);
    }
    let mut waits_for = vec![0; units.len()];
    let mut then: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        for &operand in &node.operands {
            let (from, to) = (unit_of[operand as usize], unit_of[id]);
            if from != to {
                waits_for[to] += 1;
                then[from].push(to);
            }
        }
    }
    let key = |unit: usize| Reverse((units[unit].last().copied(), unit));
    let mut ready: BinaryHeap<_> = (0..units.len())
        .filter(|&unit| waits_for[unit] == 0)
        .map(key)
        .collect();
    let mut order = Vec::with_capacity(group_of.len());
    while let Some(Reverse((_, unit))) = ready.pop() {
        order.extend(&units[unit]);
        for &next in &then[unit] {
            waits_for[next] -= 1;
            if waits_for[next] == 0 {
                ready.push(key(next));
            }
        }
    }
    order
}
