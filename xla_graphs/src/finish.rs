//! A trace becomes a graph: what its outputs do not need is left out, and the nodes that stay are
//! numbered anew.

use crate::error::{Error, Result};
use crate::graph::{FORMAT_VERSION, Graph, GraphNode, InputSpec, NodeId, OutputSpec};
use crate::trace::Trace;

impl Trace {
    /// Ends the trace: the nodes that its outputs need become a graph. `name` says what the graph is
    /// for (`train`, `eval`).
    ///
    /// # Errors
    /// If an output of the name of a state has not its shape.
    pub fn finish(&self, name: &str) -> Result<Graph> {
        let trace = self.inner();
        let mut live = vec![false; trace.nodes.len()];
        for output in &trace.outputs {
            live[output.node as usize] = true;
        }
        // Operands precede their users, so one backward walk finds everything that an output needs.
        for id in (0..trace.nodes.len()).rev() {
            if live[id] {
                for &operand in &trace.nodes[id].operands {
                    live[operand as usize] = true;
                }
            }
        }
        // Inputs stay even when unused: the caller's argument list must not depend on what the
        // model happened to read.
        for input in &trace.inputs {
            live[input.node as usize] = true;
        }
        let mut renumbered = vec![NodeId::MAX; trace.nodes.len()];
        let mut scopes = vec![String::new()];
        let mut scope_map = vec![u32::MAX; trace.scopes.len()];
        scope_map[0] = 0;
        let mut nodes = Vec::with_capacity(trace.nodes.len());
        for (id, node) in trace.nodes.iter().enumerate().filter(|(id, _)| live[*id]) {
            renumbered[id] = nodes.len() as NodeId;
            let scope = &mut scope_map[node.scope as usize];
            if *scope == u32::MAX {
                *scope = scopes.len() as u32;
                scopes.push(trace.scopes[node.scope as usize].clone());
            }
            nodes.push(GraphNode {
                op: node.op.clone(),
                operands: node
                    .operands
                    .iter()
                    .map(|&o| renumbered[o as usize])
                    .collect(),
                shape: (*node.shape).clone(),
                scope: *scope,
                provenance: node.provenance,
            });
        }
        let inputs = trace
            .inputs
            .iter()
            .map(|input| InputSpec {
                name: input.name.clone(),
                role: input.role,
                shape: (*trace.nodes[input.node as usize].shape).clone(),
            })
            .collect::<Vec<_>>();
        let outputs = trace
            .outputs
            .iter()
            .map(|output| OutputSpec {
                name: output.name.clone(),
                node: renumbered[output.node as usize],
            })
            .collect::<Vec<_>>();
        let graph = Graph {
            format: FORMAT_VERSION,
            name: name.to_string(),
            stage: 0,
            inputs,
            outputs,
            nodes,
            scopes,
        };
        for (_, input, output) in graph.aliases() {
            let (expected, found) = (&graph.inputs[input].shape, graph.output_shape(output));
            if expected != found {
                return Err(Error::StateShape {
                    name: graph.inputs[input].name.clone(),
                    expected: expected.to_string(),
                    found: found.to_string(),
                });
            }
        }
        Ok(graph)
    }
}
