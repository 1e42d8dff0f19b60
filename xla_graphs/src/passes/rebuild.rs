//! What passes are written with: a graph recorded anew, node by node.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::trace::{Tensor, Trace};

impl Graph {
    /// The graph as a fresh deduplicating trace plus the tensors of its nodes, for passes that
    /// rebuild it: `node` records what becomes of a node (never an input) over its operands'
    /// replacements. Outputs keep their element types.
    pub(super) fn rebuild(
        &self,
        mut node: impl FnMut(&Trace, NodeId, &[Tensor]) -> Result<Tensor>,
    ) -> Result<Graph> {
        let trace = Trace::deduplicating();
        let mut tensors: Vec<Tensor> = Vec::with_capacity(self.nodes.len());
        for (id, n) in self.nodes.iter().enumerate() {
            let _context = trace.resume(&self.scopes[n.scope as usize], n.provenance);
            let tensor = match n.op {
                Op::Input(index) => {
                    let spec = &self.inputs[index as usize];
                    trace.input(spec.name.clone(), spec.shape.clone(), spec.role)
                }
                _ => {
                    let operands: Vec<_> = n
                        .operands
                        .iter()
                        .map(|&o| tensors[o as usize].clone())
                        .collect();
                    node(&trace, id as NodeId, &operands)?
                }
            };
            tensors.push(tensor);
        }
        for output in &self.outputs {
            let (tensor, node) = (
                &tensors[output.node as usize],
                &self.nodes[output.node as usize],
            );
            let _context = trace.resume(&self.scopes[node.scope as usize], node.provenance);
            trace.output(output.name.clone(), &tensor.convert(node.shape.dtype)?);
        }
        Ok(Graph {
            stage: self.stage,
            ..trace.finish(&self.name)?
        })
    }
}
