//! The canonical graph: what a cut trace becomes, what is fingerprinted, stored, explained and lowered.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::{Inner, NodeId, Trace};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Changes whenever the bytes of an unchanged model would: old cache entries then say so instead of failing to decode.
pub const FORMAT_VERSION: u32 = 1;

/// Where an input's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InputRole {
    /// Lives on the device from step to step; donated when the graph assigns it.
    State,
    /// Fresh for each step: a batch, a learning rate, a random key.
    Feed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputSpec {
    pub name: String,
    pub role: InputRole,
    pub shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputSpec {
    pub name: String,
    pub node: NodeId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNode {
    pub op: Op,
    pub operands: Vec<NodeId>,
    pub shape: Shape,
    /// Index into [`Graph::scopes`].
    pub scope: u32,
}

/// A dead-code-free list of nodes in recording order, so that equal programs give equal bytes in any process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    pub format: u32,
    pub name: String,
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
    pub nodes: Vec<GraphNode>,
    /// Model paths; index 0 is the empty path.
    pub scopes: Vec<String>,
}

impl Graph {
    pub(crate) fn from_trace(name: &str, trace: &Inner) -> Result<Graph> {
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
        // Inputs stay even when unused: the caller's argument list must not depend on what the model happened to read.
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
                operands: node.operands.iter().map(|&o| renumbered[o as usize]).collect(),
                shape: (*node.shape).clone(),
                scope: *scope,
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
            .map(|output| OutputSpec { name: output.name.clone(), node: renumbered[output.node as usize] })
            .collect::<Vec<_>>();
        let graph = Graph { format: FORMAT_VERSION, name: name.to_string(), inputs, outputs, nodes, scopes };
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

    /// The graph as a fresh deduplicating trace plus the tensors of its nodes, for passes that rebuild it.
    pub(crate) fn rebuild(
        &self,
        mut node: impl FnMut(&Trace, &GraphNode, &[crate::Tensor]) -> Result<crate::Tensor>,
    ) -> Result<Graph> {
        let trace = Trace::deduplicating();
        let mut tensors: Vec<crate::Tensor> = Vec::with_capacity(self.nodes.len());
        for n in &self.nodes {
            let _scope = trace.absolute_scope(&self.scopes[n.scope as usize]);
            let tensor = match n.op {
                Op::Input(index) => {
                    let spec = &self.inputs[index as usize];
                    trace.input(spec.name.clone(), spec.shape.clone(), spec.role)
                }
                _ => {
                    let operands: Vec<_> = n.operands.iter().map(|&o| tensors[o as usize].clone()).collect();
                    node(&trace, n, &operands)?
                }
            };
            tensors.push(tensor);
        }
        for output in &self.outputs {
            trace.output(output.name.clone(), &tensors[output.node as usize]);
        }
        trace.cut(&self.name)
    }

    pub fn output_shape(&self, index: usize) -> &Shape {
        &self.nodes[self.outputs[index].node as usize].shape
    }

    /// State that the graph assigns: `(name, input index, output index)`. Such an input is donated to its output.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        let outputs: std::collections::HashMap<&str, usize> =
            self.outputs.iter().enumerate().map(|(i, o)| (o.name.as_str(), i)).collect();
        self.inputs.iter().enumerate().filter_map(move |(i, input)| {
            let output = *outputs.get(input.name.as_str())?;
            (input.role == InputRole::State).then_some((input.name.as_str(), i, output))
        })
    }

    /// The canonical bytes (postcard, a fixed little-endian varint format).
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a graph holds only plain data, and a Vec always has room")
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Graph> {
        let graph: Graph = postcard::from_bytes(bytes).map_err(|e| Error::Decode { message: e.to_string() })?;
        if graph.format != FORMAT_VERSION {
            let message = format!("format {} where this program reads {FORMAT_VERSION}", graph.format);
            return Err(Error::Decode { message });
        }
        Ok(graph)
    }

    /// Hash of the canonical bytes: equal in every process for the same program.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.to_bytes()).into())
    }
}

/// SHA-256 of a graph's canonical bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
