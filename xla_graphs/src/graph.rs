//! The canonical graph: what a finished trace becomes, what is fingerprinted, stored, explained and
//! lowered.

use crate::error::{Error, Result};
use crate::op::Op;
use crate::provenance::Provenance;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

/// Changes whenever the bytes of an unchanged model would: old cache entries then say so instead of
/// failing to decode.
pub const FORMAT_VERSION: u32 = 6;

/// Index of a node in its trace or graph. Operands always have smaller ids than their users.
pub type NodeId = u32;

/// Where an input's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InputRole {
    /// Lives on the device from step to step; donated when the graph assigns it.
    State,
    /// Fresh for each step: a batch, a learning rate, a random key.
    Feed,
}

/// An input of a graph; [`Op::Input`] names it by its index in [`Graph::inputs`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputSpec {
    /// A state's name in checkpoints (`wte.weight`, `exp_avg.wte.weight`), or the feed's.
    pub name: String,
    /// Whether the value stays on the device or is fed in each step.
    pub role: InputRole,
    /// Dimensions and element type, on one replica.
    pub shape: Shape,
}

/// A node whose value the graph gives, under a name. One with the name of a state assigns it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OutputSpec {
    /// The name of the state that it assigns, or of a result that the host reads.
    pub name: String,
    /// Index into [`Graph::nodes`].
    pub node: NodeId,
}

/// One operation over nodes before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GraphNode {
    /// What the node computes.
    pub op: Op,
    /// Ids of the operands, in the order of the operation; each less than the node's own.
    pub operands: Vec<NodeId>,
    /// The result's shape: what [`Op`]'s shape rule infers from the operands'.
    pub shape: Shape,
    /// Index into [`Graph::scopes`].
    pub scope: u32,
    /// Phase, stage and layer that recorded the node.
    pub provenance: Provenance,
}

/// A dead-code-free list of nodes in recording order, so that equal programs give equal bytes in
/// any process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Graph {
    /// [`FORMAT_VERSION`] of the program that wrote it.
    pub format: u32,
    /// What the graph is for, as [`Trace::finish`](crate::Trace::finish) was given it.
    pub name: String,
    /// The pipeline stage whose devices run it; 0 where there is no pipeline. What goes from stage
    /// a to stage b of P runs on both, as number P x (1 + a) + b.
    pub stage: u32,
    /// In the order in which the compiled program takes its arguments.
    pub inputs: Vec<InputSpec>,
    /// In the order in which the compiled program gives its results.
    pub outputs: Vec<OutputSpec>,
    /// In recording order: each node's operands stand before it.
    pub nodes: Vec<GraphNode>,
    /// Model paths; index 0 is the empty path.
    pub scopes: Vec<String>,
}

impl Graph {
    /// The canonical bytes (postcard, a fixed little-endian varint format).
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a graph holds only plain data, and a Vec always has room")
    }

    /// Decodes [`Graph::to_bytes`]. What it gives is not checked ([`Graph::check`]).
    ///
    /// # Errors
    /// If the bytes are no graph, or one of another [`FORMAT_VERSION`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Graph> {
        let graph: Graph = postcard::from_bytes(bytes).map_err(|e| Error::Decode {
            message: e.to_string(),
        })?;
        if graph.format != FORMAT_VERSION {
            let message = format!(
                "format {} where this program reads {FORMAT_VERSION}",
                graph.format
            );
            return Err(Error::Decode { message });
        }
        Ok(graph)
    }

    /// Checks a decoded graph as recording would have: bytes may come from a file, and what reaches
    /// XLA's C++ must hold.
    ///
    /// Operands precede their users, every shape is what the shape rule says, inputs and outputs
    /// name existing nodes of the right shape, and names are unique, so that donation pairs are.
    ///
    /// # Errors
    /// If a node, an input or an output is not so; the message names it.
    pub fn check(&self) -> Result<()> {
        let whole = |message: String| Error::Decode { message };
        let mut inputs_seen = vec![false; self.inputs.len()];
        for (id, node) in self.nodes.iter().enumerate() {
            if node.scope as usize >= self.scopes.len() {
                return Err(whole(format!(
                    "node {id} is in model path {} of {}",
                    node.scope,
                    self.scopes.len()
                )));
            }
            if let Some(&operand) = node.operands.iter().find(|&&o| o as usize >= id) {
                return Err(whole(format!(
                    "node {id} reads node {operand}, which does not precede it"
                )));
            }
            let expected = match node.op {
                Op::Input(index) => match self.inputs.get(index as usize) {
                    _ if !node.operands.is_empty() => Err("takes no operands".to_string()),
                    Some(spec) if !std::mem::replace(&mut inputs_seen[index as usize], true) => {
                        Ok(spec.shape.clone())
                    }
                    Some(_) => Err(format!("input {index} is declared twice")),
                    None => Err(format!("there is no input {index}")),
                },
                _ => {
                    let operands: Vec<&Shape> = node
                        .operands
                        .iter()
                        .map(|&o| &self.nodes[o as usize].shape)
                        .collect();
                    node.op.infer(&operands)
                }
            };
            let checked = expected.and_then(|expected| {
                if expected != node.shape {
                    Err(format!("gives {expected}, but {} is recorded", node.shape))
                } else if expected.checked_bytes().is_none() {
                    Err(format!("{expected} is too large"))
                } else {
                    Ok(())
                }
            });
            checked.map_err(|message| self.invalid(node, message))?;
        }
        if let Some(index) = inputs_seen.iter().position(|seen| !seen) {
            return Err(whole(format!("input {index} has no node")));
        }
        if let Some(output) = self
            .outputs
            .iter()
            .find(|o| o.node as usize >= self.nodes.len())
        {
            return Err(whole(format!(
                "output `{}` is node {}, which does not exist",
                output.name, output.node
            )));
        }
        if let Some(name) = repeated(self.inputs.iter().map(|i| i.name.as_str())) {
            return Err(whole(format!("two inputs are named `{name}`")));
        }
        if let Some(name) = repeated(self.outputs.iter().map(|o| o.name.as_str())) {
            return Err(whole(format!("two outputs are named `{name}`")));
        }
        match self
            .aliases()
            .find(|&(_, input, output)| self.inputs[input].shape != *self.output_shape(output))
        {
            Some((name, input, output)) => Err(Error::StateShape {
                name: name.to_string(),
                expected: self.inputs[input].shape.to_string(),
                found: self.output_shape(output).to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that passes have decomposed all composites, for the emitter.
    ///
    /// # Errors
    /// If a composite is left, by its model path.
    pub fn check_primitives(&self) -> Result<()> {
        let mut nodes = self.nodes.iter();
        match nodes.find(|node| matches!(node.op, Op::Composite(_))) {
            Some(node) => {
                let message = "a composite, which passes::lower decomposes before emission";
                Err(self.invalid(node, message.into()))
            }
            None => Ok(()),
        }
    }

    /// Hash of the canonical bytes: equal in every process for the same program.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.to_bytes()).into())
    }

    /// The shape of output `index`.
    pub fn output_shape(&self, index: usize) -> &Shape {
        &self.nodes[self.outputs[index].node as usize].shape
    }

    /// State that the graph assigns: `(name, input index, output index)`. Such an input is donated
    /// to its output.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        let outputs: std::collections::HashMap<&str, usize> = self
            .outputs
            .iter()
            .enumerate()
            .map(|(i, o)| (o.name.as_str(), i))
            .collect();
        self.inputs
            .iter()
            .enumerate()
            .filter_map(move |(i, input)| {
                let output = *outputs.get(input.name.as_str())?;
                (input.role == InputRole::State).then_some((input.name.as_str(), i, output))
            })
    }

    /// An error about one node, with what a reader needs to find it.
    pub fn invalid(&self, node: &GraphNode, message: String) -> Error {
        let operands = node
            .operands
            .iter()
            .filter_map(|&o| self.nodes.get(o as usize))
            .map(|n| n.shape.to_string());
        Error::Invalid {
            op: node.op.name(),
            scope: match self.scopes.get(node.scope as usize).map(String::as_str) {
                None | Some("") => "the step".into(),
                Some(path) => path.into(),
            },
            operands: operands.collect::<Vec<_>>().join(", "),
            message,
        }
    }
}

fn repeated<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = HashSet::new();
    names.find(|name| !seen.insert(*name))
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
