//! Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"):
//! what a layer computed is not kept for the backward pass but recomputed from the layer's
//! inputs when the sweep reaches it.
//!
//! A *region* is a set of nodes that are computed twice. Its inputs are all that its nodes read
//! from outside. The copies read those inputs [`Tensor::after`] the gradient that arrives at the
//! region: the compiler can then neither take the copies for the originals, which would keep these
//! alive, nor compute them early.
//!
//! Three things are never kept, whatever is kept of other activations: parameters that are sharded
//! over replicas (ZeRO-3) are gathered again, and those that are held in few bits dequantized again,
//! since keeping them would keep the whole model; and what a model recorded under [`Trace::cheap`] is
//! computed again.

use crate::error::Result;
use crate::graph::{InputRole, NodeId};
use crate::op::{Composite, Op};
use crate::provenance::{Phase, Provenance};
use crate::trace::{Inner, Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Stands in front of the model path of what is recomputed: `recompute/h.3.attn`.
const RECOMPUTE: &str = "recompute";

/// What the backward pass recomputes instead of keeping it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Checkpointing {
    /// Every activation that the backward pass reads is kept.
    #[default]
    Off,
    /// Each layer on its own: the layers' inputs are kept.
    Full,
    /// N layers together: the inputs of every n-th layer are kept.
    Every(usize),
    /// N layers together, whose inputs wait in the host's memory meanwhile.
    Offloaded(usize),
    /// The inside of attention, its scores, probabilities and dropout mask: what grows with the
    /// square of the tokens (Korthikanti et al. 2022, "selective activation recomputation").
    Attention,
}

/// As `--gradient_checkpointing` has it.
impl std::fmt::Display for Checkpointing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Checkpointing::Off => f.write_str("off"),
            Checkpointing::Full => f.write_str("full"),
            Checkpointing::Every(layers) => write!(f, "every:{layers}"),
            Checkpointing::Offloaded(1) => f.write_str("full, inputs in host memory"),
            Checkpointing::Offloaded(layers) => write!(f, "every:{layers}, inputs in host memory"),
            Checkpointing::Attention => f.write_str("attention"),
        }
    }
}

/// What is smaller than this many bytes, such as a mask, is not worth a copy of its own to the
/// host.
const LEAST_OFFLOADED: usize = 64 << 10;

/// The regions of a trace, and the copies made so far.
pub(super) struct Regions {
    /// Region of each node up to the loss.
    region_of: Vec<Option<u32>>,
    /// Whether a node depends on data of the step, so that what is made of it would be kept.
    /// Parameters are there anyway, and a copy of what is made of them alone is worth no second
    /// computation.
    is_activation: Vec<bool>,
    /// Regions' inputs wait in the host's memory.
    offloads: bool,
    /// From this number on regions hold parameters that are all-gathered for a layer, and what is
    /// cheap; the backward pass of other nodes uses their copies, too.
    first_shared: u32,
    /// The region of each node that makes the values of a parameter held in few bits: a region for each
    /// such parameter, besides any of `region_of`, in which a layer's are recomputed with it.
    dequantized: Vec<Option<u32>>,
    /// From this number on regions are those of `dequantized`.
    first_dequantized: u32,
    /// By region, once the sweep has come to it: its nodes' copies, and its inputs as the copies
    /// read them.
    copies: HashMap<u32, HashMap<NodeId, Tensor>>,
}

impl Regions {
    /// The regions that `checkpointing` makes of the trace's first `end` nodes, those up to the
    /// loss.
    pub fn of(trace: &Trace, checkpointing: Checkpointing, end: usize) -> Self {
        let inner = trace.inner();
        let mut region_of = vec![None; end];
        match checkpointing {
            Checkpointing::Off => {}
            Checkpointing::Full => mark_layers(&inner, 1, &mut region_of),
            Checkpointing::Every(layers) | Checkpointing::Offloaded(layers) => {
                mark_layers(&inner, layers.max(1), &mut region_of)
            }
            Checkpointing::Attention => mark_attentions(&inner, &mut region_of),
        }
        let first_shared = next_region(&region_of);
        mark_gathered(&inner, first_shared, &mut region_of);
        mark_cheap(&inner, &mut region_of);
        let first_dequantized = next_region(&region_of);
        let dequantized = mark_dequantized(&inner, first_dequantized, end);
        let offloads = matches!(checkpointing, Checkpointing::Offloaded(_));
        Regions {
            region_of,
            is_activation: activations(&inner, end),
            offloads,
            first_shared,
            dequantized,
            first_dequantized,
            copies: HashMap::new(),
        }
    }

    /// What stands for `node` in the gradient rule of `user`: its copy, if `user` is recomputed and
    /// this is not a parameter or a constant, or if this is cheap or a parameter that was gathered
    /// for the layer. `dy` is the gradient that has arrived at `user`.
    pub fn replacement(
        &mut self,
        trace: &Trace,
        user: NodeId,
        node: NodeId,
        dy: &Tensor,
    ) -> Result<Tensor> {
        let shared = self.region_of[node as usize].filter(|region| *region >= self.first_shared);
        let recomputed = self.region_of[user as usize].or(shared);
        let Some(region) = self.dequantized[node as usize].or(recomputed) else {
            return Ok(trace.tensor(node));
        };
        if !self.copies.contains_key(&region) {
            let copies = self.copy(trace, region, dy)?;
            self.copies.insert(region, copies);
        }
        Ok(self.copies[&region]
            .get(&node)
            .cloned()
            .unwrap_or_else(|| trace.tensor(node)))
    }

    /// Whether an input waits in the host's memory: what was computed, and is large.
    fn offloads(&self, trace: &Trace, node: NodeId) -> bool {
        let tensor = trace.tensor(node);
        let is_input = matches!(tensor.node().op, Op::Input(_));
        self.offloads
            && !is_input
            && tensor.dtype().is_float()
            && tensor.shape().bytes() >= LEAST_OFFLOADED
    }

    /// A region's input where it is kept.
    fn kept(&self, trace: &Trace, node: NodeId) -> Result<Tensor> {
        let tensor = trace.tensor(node);
        if self.offloads(trace, node) {
            tensor.to_host()
        } else {
            Ok(tensor)
        }
    }

    /// Records the region's nodes a second time.
    fn copy(&self, trace: &Trace, region: u32, dy: &Tensor) -> Result<HashMap<NodeId, Tensor>> {
        let is_dequantized = region >= self.first_dequantized;
        let region_of = if is_dequantized {
            &self.dequantized
        } else {
            &self.region_of
        };
        let members: Vec<NodeId> = (0..region_of.len() as NodeId)
            .filter(|&id| region_of[id as usize] == Some(region))
            .collect();
        let mut copies: HashMap<NodeId, Tensor> = HashMap::new();
        for id in members {
            let (node, scope) = {
                let inner = trace.inner();
                let node = inner.nodes[id as usize].clone();
                let scope = inner.scopes[node.scope as usize].clone();
                (node, scope)
            };
            let provenance = Provenance {
                phase: Phase::Recompute,
                ..node.provenance
            };
            let _context = trace.resume(&format!("{RECOMPUTE}/{scope}"), provenance);
            if is_dequantized && node.op == Op::BarrierAfter {
                // What it waited for may be gone.
                let held = copies.get(&node.operands[0]).cloned();
                let held = held.unwrap_or_else(|| trace.tensor(node.operands[0]));
                copies.insert(id, held.after(dy)?);
                continue;
            }
            let mut operands = Vec::with_capacity(node.operands.len());
            for &operand in &node.operands {
                if !copies.contains_key(&operand) && self.is_activation[operand as usize] {
                    copies.insert(operand, self.kept(trace, operand)?.after(dy)?);
                    if self.offloads(trace, operand) {
                        copies.insert(operand, copies[&operand].to_device()?);
                    }
                }
                operands.push(
                    copies
                        .get(&operand)
                        .cloned()
                        .unwrap_or_else(|| trace.tensor(operand)),
                );
            }
            if is_dequantized
                && matches!(node.op, Op::Composite(Composite::Dequantize(_)))
                && region_of[node.operands[0] as usize] != Some(region)
            {
                operands[0] = operands[0].after(dy)?;
            }
            copies.insert(
                id,
                trace.record(node.op, &operands.iter().collect::<Vec<_>>())?,
            );
        }
        Ok(copies)
    }
}

fn activations(inner: &Inner, end: usize) -> Vec<bool> {
    let mut marks = vec![false; end];
    for id in 0..end {
        let node = &inner.nodes[id];
        marks[id] = match node.op {
            Op::Input(index) => inner.inputs[index as usize].role == InputRole::Feed,
            _ => node.operands.iter().any(|&operand| marks[operand as usize]),
        };
    }
    marks
}

/// The number of the next region.
fn next_region(region_of: &[Option<u32>]) -> u32 {
    region_of.iter().flatten().max().map_or(0, |last| last + 1)
}

fn mark_layers(inner: &Inner, together: usize, region_of: &mut [Option<u32>]) {
    for (region, node) in region_of.iter_mut().zip(&inner.nodes) {
        *region = node.provenance.layer.map(|layer| layer / together as u32);
    }
}

/// The parameters of each layer that are gathered for it, where they are in no region yet.
fn mark_gathered(inner: &Inner, first: u32, region_of: &mut [Option<u32>]) {
    for id in 0..region_of.len() {
        let node = &inner.nodes[id];
        let (Op::AllGather { .. }, Some(layer), None) =
            (&node.op, node.provenance.layer, region_of[id])
        else {
            continue;
        };
        region_of[id] = Some(first + layer);
        let held = node.operands[0] as usize;
        if inner.nodes[held].provenance.layer == Some(layer) {
            region_of[held] = Some(first + layer);
        }
    }
}

/// Each parameter in few bits: from the part of each replica to the values that are multiplied.
fn mark_dequantized(inner: &Inner, first: u32, end: usize) -> Vec<Option<u32>> {
    let mut regions = vec![None; end];
    let mut next = first;
    for id in 0..end {
        let node = &inner.nodes[id];
        match node.op {
            Op::Composite(Composite::Dequantize(_)) => {
                regions[id] = Some(next);
                let mut making = node.operands.clone();
                while let Some(id) = making.pop() {
                    match inner.nodes[id as usize].op {
                        Op::BarrierAfter | Op::AllGather { .. } => {
                            regions[id as usize] = Some(next);
                            making.push(inner.nodes[id as usize].operands[0]);
                        }
                        _ => {}
                    }
                }
                next += 1;
            }
            // As its matrix lies.
            Op::Reshape(_) | Op::Slice { .. } | Op::Transpose(_) => {
                regions[id] = regions[node.operands[0] as usize];
            }
            _ => {}
        }
    }
    regions
}

/// Each run of cheap nodes that is in no region yet.
fn mark_cheap(inner: &Inner, region_of: &mut [Option<u32>]) {
    let mut region = next_region(region_of);
    let mut was_cheap = false;
    for (marked, node) in region_of.iter_mut().zip(&inner.nodes) {
        let is_cheap = node.provenance.is_cheap;
        if is_cheap && marked.is_none() {
            *marked = Some(region);
        } else if was_cheap {
            region += 1;
        }
        was_cheap = is_cheap;
    }
}

/// Each attention; its dropout mask is drawn inside.
fn mark_attentions(inner: &Inner, region_of: &mut [Option<u32>]) {
    let mut region = 0;
    for (id, node) in inner.nodes.iter().enumerate().take(region_of.len()) {
        if let Op::Composite(Composite::Attention(_)) = node.op {
            region_of[id] = Some(region);
            region += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad::backward_with;
    use crate::graph::Graph;
    use crate::{DType, Shape, liveness};

    const LAYERS: usize = 6;
    /// With this number activations are most of a step's memory.
    const ROWS: usize = 1024;
    const WIDTH: usize = 64;

    /// Layers of one gated MLP each, whose loss and gradients are the outputs.
    fn step(is_cheap: bool, checkpointing: Checkpointing) -> Graph {
        let trace = Trace::new();
        let input = |name: String, role| {
            let rows = if role == InputRole::Feed { ROWS } else { WIDTH };
            trace.input(name, Shape::new(DType::F32, [rows, WIDTH]), role)
        };
        let mut x = input("x".into(), InputRole::Feed);
        let mut weights = Vec::new();
        for layer in 0..LAYERS {
            for name in ["gate", "up", "down"] {
                weights.push(input(format!("{name}.{layer}"), InputRole::State));
            }
        }
        for (layer, matrices) in weights.chunks(3).enumerate() {
            let _layer = trace.layer(&format!("h.{layer}"));
            let [gate, up] = [0, 1].map(|i| x.matmul(&matrices[i]).unwrap());
            let gated = {
                let _again = is_cheap.then(|| trace.cheap());
                let silu = gate.mul(&gate.logistic().unwrap()).unwrap();
                silu.mul(&up).unwrap()
            };
            x = x.add(&gated.matmul(&matrices[2]).unwrap()).unwrap();
        }
        let loss = x.sum_all().unwrap();
        let gradients = backward_with(&loss, &weights, checkpointing).unwrap();
        for (index, gradient) in gradients.iter().enumerate() {
            trace.output(format!("gradient.{index}"), gradient);
        }
        trace.output("loss", &loss);
        trace.finish("step").unwrap()
    }

    #[test]
    fn what_is_cheap_is_not_kept() {
        let [kept, cheap] = [false, true]
            .map(|is_cheap| liveness::temporaries(&step(is_cheap, Checkpointing::Off)));
        // The logistic and the product of both: the gate times its logistic is never written.
        let value = (ROWS * WIDTH * 4) as u64;
        assert!(
            cheap + (LAYERS as u64 - 1) * 2 * value <= kept,
            "{cheap} bytes with cheap nodes, {kept} without"
        );
    }

    #[test]
    fn a_layer_that_is_computed_again_has_no_cheap_part() {
        let [kept, cheap] = [false, true].map(|is_cheap| step(is_cheap, Checkpointing::Full));
        assert_eq!(kept.nodes.len(), cheap.nodes.len());
    }
}
