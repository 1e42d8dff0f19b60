//! Brings values to the host early. Before: what waits in the host's memory is put there by nodes
//! that the backward pass recorded, so that a compiler is free to keep it on the device until then.
//! After: each is put there as soon as it is made, and the next such value is not used before it
//! is; what is copied has the time in between, and no longer.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::target::Target;
use crate::trace::Tensor;
use std::collections::{BTreeMap, BTreeSet};

/// As it is where nothing goes to the host, or the target has no memory there.
pub(super) fn early(graph: &Graph, target: Target) -> Result<Graph> {
    let kept: BTreeSet<NodeId> = graph
        .nodes
        .iter()
        .filter(|node| node.op == Op::ToHost)
        .map(|node| node.operands[0])
        .collect();
    if kept.is_empty() || !target.has_host_memory() {
        return Ok(graph.clone());
    }
    // By the node that is put away, its copy on the host.
    let mut copies: BTreeMap<NodeId, Tensor> = BTreeMap::new();
    graph.rebuild(|trace, id, x| {
        let node = &graph.nodes[id as usize];
        if let Op::ToHost = node.op {
            if let Some(copy) = copies.get(&node.operands[0]) {
                return Ok(copy.clone());
            }
            // Of an input, which is there from the beginning: as another graph gave it.
            let copy = x[0].to_host()?;
            copies.insert(node.operands[0], copy.clone());
            return Ok(copy);
        }
        let value = trace.record(node.op.clone(), &x.iter().collect::<Vec<&Tensor>>())?;
        if !kept.contains(&id) {
            return Ok(value);
        }
        let value = match copies.last_key_value() {
            Some((_, before)) => value.after(before)?,
            None => value,
        };
        copies.insert(id, value.to_host()?);
        Ok(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad::backward_with;
    use crate::{Checkpointing, CudaTarget, DType, InputRole, Shape, Trace, passes};

    const LAYERS: usize = 4;

    /// Layers of one product each, wide enough that what is between them is worth a copy.
    fn step(checkpointing: Checkpointing) -> Graph {
        let trace = Trace::new();
        let weights: Vec<Tensor> = (0..LAYERS)
            .map(|i| {
                trace.input(
                    format!("w{i}"),
                    Shape::new(DType::F32, [128, 128]),
                    InputRole::State,
                )
            })
            .collect();
        let mut x = trace
            .input("x", Shape::new(DType::F32, [256, 128]), InputRole::Feed)
            .tanh()
            .unwrap();
        for (i, weight) in weights.iter().enumerate() {
            let _layer = trace.layer(&format!("h.{i}"));
            x = x.matmul(weight).unwrap().tanh().unwrap();
        }
        let loss = x.sum_all().unwrap();
        for (i, gradient) in backward_with(&loss, &weights, checkpointing)
            .unwrap()
            .iter()
            .enumerate()
        {
            trace.output(format!("g{i}"), gradient);
        }
        trace.finish("step").unwrap()
    }

    fn card() -> Target {
        Target::Cuda(CudaTarget {
            capability: 90,
            ..CudaTarget::default()
        })
    }

    #[test]
    fn each_layers_input_goes_before_the_next_one_is_used() {
        let graph = passes::lower(&step(Checkpointing::Offloaded(1)), card()).unwrap();
        let away: Vec<usize> = (0..graph.nodes.len())
            .filter(|id| graph.nodes[*id].op == Op::ToHost)
            .collect();
        let back = graph
            .nodes
            .iter()
            .filter(|node| node.op == Op::ToDevice)
            .count();
        assert_eq!((away.len(), back), (LAYERS, LAYERS), "{:?}", graph.nodes);
        for pair in away.windows(2) {
            // What the next copy is of waits for this one.
            let next = &graph.nodes[graph.nodes[pair[1]].operands[0] as usize];
            assert_eq!(
                (&next.op, next.operands[1] as usize),
                (&Op::BarrierAfter, pair[0]),
                "{:?}",
                graph.nodes
            );
            // Nobody passes it by.
            let waiting = graph.nodes[pair[1]].operands[0];
            let made = next.operands[0];
            let users = graph
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| node.operands.contains(&made));
            assert_eq!(
                users.map(|(id, _)| id as NodeId).collect::<Vec<_>>(),
                [waiting],
                "{:?}",
                graph.nodes
            );
        }
    }

    /// What another graph gave, as the pieces of a pipeline do, is put away like what is made here.
    #[test]
    fn inputs_can_be_put_away() {
        let mut graph = step(Checkpointing::Offloaded(1));
        let first = graph.nodes.iter().find(|node| node.op == Op::ToHost);
        let kept = first.unwrap().operands[0];
        graph.inputs.push(crate::graph::InputSpec {
            name: "value.0".into(),
            role: InputRole::Feed,
            shape: graph.nodes[kept as usize].shape.clone(),
        });
        let input = Op::Input(graph.inputs.len() as u32 - 1);
        let node = &mut graph.nodes[kept as usize];
        (node.op, node.operands) = (input, Vec::new());
        let lowered = passes::lower(&graph, card()).unwrap();
        let away = lowered.nodes.iter().filter(|node| node.op == Op::ToHost);
        assert_eq!(away.count(), LAYERS);
    }

    /// Without a memory to go to, it is checkpointing, node by node: the numbers are those.
    #[test]
    fn elsewhere_nothing_moves() {
        for (offloaded, plain) in [(1, Checkpointing::Full), (2, Checkpointing::Every(2))] {
            let [offloaded, plain] = [Checkpointing::Offloaded(offloaded), plain]
                .map(|c| passes::lower(&step(c), Target::CPU).unwrap());
            assert_eq!(offloaded.nodes, plain.nodes);
        }
    }

    #[test]
    fn small_inputs_stay() {
        let trace = Trace::new();
        let w = trace.input("w", Shape::new(DType::F32, [8, 8]), InputRole::State);
        let x = trace
            .input("x", Shape::new(DType::F32, [8, 8]), InputRole::Feed)
            .tanh()
            .unwrap();
        let y = {
            let _layer = trace.layer("h.0");
            x.matmul(&w).unwrap().tanh().unwrap()
        };
        let gradients =
            backward_with(&y.sum_all().unwrap(), &[w], Checkpointing::Offloaded(1)).unwrap();
        trace.output("g", &gradients[0]);
        assert!(
            trace
                .finish("step")
                .unwrap()
                .nodes
                .iter()
                .all(|node| node.op != Op::ToHost)
        );
    }
}
