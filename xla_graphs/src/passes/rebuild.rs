//! What passes are written with: a graph recorded anew, node by node.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::trace::{Tensor, Trace};

/// What nodes became that were recorded anew.
pub(super) struct Replaced(Vec<Option<Tensor>>);

impl Replaced {
    /// What became of a node, which stands earlier in the order.
    pub(super) fn get(&self, id: NodeId) -> Tensor {
        let tensor = self.0[id as usize].as_ref();
        tensor.expect("operands precede their users").clone()
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
    /// precede their users.
    pub(super) fn rebuild_in(
        &self,
        order: &[NodeId],
        mut node: impl FnMut(&Trace, NodeId, &Replaced) -> Result<Tensor>,
    ) -> Result<Graph> {
        let trace = Trace::deduplicating();
        let mut tensors = Replaced(vec![None; self.nodes.len()]);
        for &id in order {
            let n = &self.nodes[id as usize];
            let _context = trace.resume(&self.scopes[n.scope as usize], n.provenance);
            let tensor = match n.op {
                Op::Input(index) => {
                    let spec = &self.inputs[index as usize];
                    trace.input(spec.name.clone(), spec.shape.clone(), spec.role)
                }
                _ => node(&trace, id, &tensors)?,
            };
            tensors.0[id as usize] = Some(tensor);
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
