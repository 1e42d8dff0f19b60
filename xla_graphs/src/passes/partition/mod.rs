//! Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM") as a pass: a graph over whole arrays
//! becomes the graph that each replica of a group runs on its part of the weights.
//!
//! Given is how some inputs, the parameters, are cut. Each node's result then lies in one of three
//! ways (`Placement`): whole and equal on all replicas, cut along a dimension, or partial, as summands
//! of which the replicas hold one each. A product that contracts a cut dimension gives a partial
//! sum, which becomes whole (all-reduce) where something other than a sum or a factor needs it.
//! With weights cut as Megatron cuts them (the first matrix of a pair by columns, the second by
//! rows, heads and vocabulary apart), the collectives that appear are Megatron's, forward and
//! backward, because the backward pass is part of the graph.
//!
//! With [`Partition::rows`] activations between the divided products are cut along their rows
//! (`rows.rs`).
//!
//! Before: a recorded graph, composites and all, in its precision. After: the same outputs; inputs
//! that are cut have their part's shape, and where a replica must know its place there is one more
//! input at the end, [`TP_RANK`].

mod place;
mod rows;
mod rules;
mod shapes;

use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, InputRole, InputSpec, NodeId};
use crate::op::Op;
use crate::provenance::Phase;
use crate::shape::Shape;
use crate::trace::{Tensor, Trace};
use place::Place;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The input that tells a replica its place in its group: `s32[]`.
pub const TP_RANK: &str = "tp_rank";

/// A dimension cut into equal parts, in each of `blocks` equal blocks of it: a replica's part is
/// its part of every block. GPT-2's matrix of queries, keys and values has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    pub dim: usize,
    pub blocks: usize,
}

/// How a graph is divided.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The replicas that divide each layer between them; more than one in each group.
    pub groups: Vec<Vec<u32>>,
    /// Inputs, by name, that are cut.
    pub inputs: HashMap<String, Cut>,
    /// Sequence parallelism: the rows N of activations `[N, C]`, one for each token of a
    /// microbatch, which are cut between layers' divided products. `None` leaves those activations
    /// whole.
    pub rows: Option<usize>,
}

/// How a value lies on the replicas of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Whole and equal on all.
    Replicated,
    Sharded(Cut),
    /// The sum over the group is the value.
    Partial,
}

/// A replica's part of a value.
#[derive(Clone)]
struct Shard {
    local: Tensor,
    placement: Placement,
}

/// What the rules need besides the operands.
struct Partitioner<'a> {
    trace: Trace,
    parts: usize,
    partition: &'a Partition,
    /// The replica's place, `s32[]`.
    place: Tensor,
    place_is_used: Cell<bool>,
    /// Counts collectives from 1, so that no two become one instruction that waits for both.
    collectives: Cell<u32>,
    /// Sums made so far, by what they are of.
    sums: RefCell<HashMap<NodeId, Tensor>>,
    /// Activations that were gathered again for the backward pass, by their parts.
    gathered_again: RefCell<HashMap<NodeId, Tensor>>,
    /// Dimensions of the tables that are cut along their rows.
    cut_tables: Vec<Vec<usize>>,
}

/// A node as it was recorded, over whole values.
struct Recorded<'a> {
    op: &'a Op,
    /// The operands' shapes.
    shapes: &'a [&'a Shape],
    /// Of each operand, whether it depends on a feed; weights and what is made of them alone do
    /// not.
    of_batch: &'a [bool],
    shape: &'a Shape,
    phase: Phase,
}

/// Partitions a graph between the replicas of each group.
///
/// # Errors
/// If a cut input's dimension does not divide, by the input's name, or the rows of activations do
/// not.
pub fn partition(graph: &Graph, partition: &Partition) -> Result<Graph> {
    let parts = partition.groups.first().map_or(1, Vec::len);
    if let Some(rows) = partition.rows.filter(|rows| !rows.is_multiple_of(parts)) {
        return Err(crate::Error::Rows { rows, parts });
    }
    if !graph
        .inputs
        .iter()
        .any(|input| partition.inputs.contains_key(&input.name))
    {
        return Ok(graph.clone());
    }
    let divided = partition_with_rank(graph, partition, true)?;
    match divided {
        (graph, true) => Ok(graph),
        // No replica asks for its place, so it is no input.
        (_, false) => Ok(partition_with_rank(graph, partition, false)?.0),
    }
}

fn partition_with_rank(
    graph: &Graph,
    partition: &Partition,
    with_place: bool,
) -> Result<(Graph, bool)> {
    let parts = partition.groups.first().map_or(1, Vec::len);
    let trace = Trace::deduplicating();
    // All inputs first, so that they keep their numbers and the place comes last.
    let inputs = graph
        .inputs
        .iter()
        .map(|input| input_part(&trace, input, partition, parts))
        .collect::<Result<Vec<Shard>>>()?;
    let place = match with_place {
        true => trace.input(TP_RANK, Shape::scalar(DType::S32), InputRole::Feed),
        false => trace.constant(0.0, DType::S32)?,
    };
    let is_table = |input: &&InputSpec| {
        input.shape.rank() == 2
            && partition.inputs.get(&input.name) == Some(&Cut { dim: 0, blocks: 1 })
    };
    let divider = Partitioner {
        trace: trace.clone(),
        parts,
        partition,
        place,
        place_is_used: Cell::new(false),
        collectives: Cell::new(1),
        sums: RefCell::default(),
        gathered_again: RefCell::default(),
        cut_tables: graph
            .inputs
            .iter()
            .filter(is_table)
            .map(|input| input.shape.dims.clone())
            .collect(),
    };
    let mut values: Vec<Shard> = Vec::with_capacity(graph.nodes.len());
    let mut of_batch: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let _context = trace.resume(&graph.scopes[node.scope as usize], node.provenance);
        let operands_of_batch: Vec<bool> = node
            .operands
            .iter()
            .map(|&operand| of_batch[operand as usize])
            .collect();
        of_batch.push(match node.op {
            Op::Input(index) => graph.inputs[index as usize].role == InputRole::Feed,
            _ => operands_of_batch.contains(&true),
        });
        let part = match node.op {
            Op::Input(index) => inputs[index as usize].clone(),
            _ => {
                let operands: Vec<Shard> = node
                    .operands
                    .iter()
                    .map(|&operand| values[operand as usize].clone())
                    .collect();
                let shapes: Vec<&Shape> = node
                    .operands
                    .iter()
                    .map(|&operand| &graph.nodes[operand as usize].shape)
                    .collect();
                let (op, shape) = (&node.op, &node.shape);
                let recorded = Recorded {
                    op,
                    shapes: &shapes,
                    of_batch: &operands_of_batch,
                    shape,
                    phase: node.provenance.phase,
                };
                divider.node(&recorded, operands)?
            }
        };
        values.push(part);
    }
    for output in &graph.outputs {
        let node = &graph.nodes[output.node as usize];
        let _context = trace.resume(&graph.scopes[node.scope as usize], node.provenance);
        let is_state = graph
            .inputs
            .iter()
            .any(|input| input.name == output.name && input.role == InputRole::State);
        let part = &values[output.node as usize];
        let local = match partition.inputs.get(&output.name).filter(|_| is_state) {
            Some(cut) => divider.cut(part, *cut, &node.shape)?,
            None => divider.whole(part)?,
        };
        trace.output(output.name.clone(), &local);
    }
    Ok((trace.finish(&graph.name)?, divider.place_is_used.get()))
}

fn input_part(
    trace: &Trace,
    input: &InputSpec,
    partition: &Partition,
    parts: usize,
) -> Result<Shard> {
    let Some(cut) = partition
        .inputs
        .get(&input.name)
        .filter(|_| input.role == InputRole::State)
    else {
        return Ok(Shard {
            local: trace.input(input.name.clone(), input.shape.clone(), input.role),
            placement: Placement::Replicated,
        });
    };
    let place = Place { cut: *cut, parts };
    let shape = place
        .part_of(&input.shape)
        .ok_or_else(|| crate::Error::Invalid {
            op: "input".into(),
            scope: input.name.clone(),
            operands: input.shape.to_string(),
            message: format!(
                "dimension {} in {} blocks does not divide into {parts} parts",
                cut.dim, cut.blocks
            ),
        })?;
    Ok(Shard {
        local: trace.input(input.name.clone(), shape, input.role),
        placement: Placement::Sharded(*cut),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward;
    use crate::op::{Attention, Composite, F64};

    /// Attention of four query heads on two of keys and values, with all gradients, divided between
    /// `parts` replicas: the operands' shapes of each attention, and the results' shapes.
    fn divided(parts: u32) -> (Vec<Vec<usize>>, Vec<Shape>) {
        let trace = Trace::new();
        let input = |name, heads| {
            trace.input(
                name,
                Shape::new(DType::F32, [2, heads, 8, 4]),
                InputRole::State,
            )
        };
        let (q, k, v) = (input("q", 4), input("k", 2), input("v", 2));
        let of = Attention {
            scale: F64::new(0.5),
            causal: true,
            window: None,
            key_mask: false,
            dropout: None,
        };
        let y = q.attention(&k, &v, None, None, of).unwrap();
        trace.output("y", &y);
        let gradients = backward(&y.sum_all().unwrap(), &[q, k, v]).unwrap();
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(&gradients) {
            trace.output(*name, gradient);
        }
        let heads = Cut { dim: 1, blocks: 1 };
        let partition = Partition {
            groups: vec![(0..parts).collect()],
            inputs: [("q", 4), ("k", 2), ("v", 2)]
                .into_iter()
                .filter(|(_, heads)| u32::is_multiple_of(*heads, parts))
                .map(|(name, _)| (name.to_string(), heads))
                .collect(),
            rows: None,
        };
        let graph = super::partition(&trace.finish("step").unwrap(), &partition).unwrap();
        graph.check().unwrap();
        let attentions = graph.nodes.iter().filter(|node| {
            matches!(
                node.op,
                Op::Composite(Composite::Attention(_))
                    | Op::Composite(Composite::AttentionGrad { .. })
            )
        });
        let heads = |node: &crate::GraphNode| {
            let shapes = node
                .operands
                .iter()
                .map(|&id| &graph.nodes[id as usize].shape);
            shapes.map(|shape| shape.dims[1]).collect()
        };
        let results = (0..graph.outputs.len()).map(|i| graph.output_shape(i).clone());
        (attentions.map(heads).collect(), results.collect())
    }

    #[test]
    fn each_replica_has_the_key_heads_of_its_queries() {
        let whole = |heads| Shape::new(DType::F32, [2, heads, 8, 4]);
        let results = [whole(4), whole(4), whole(2), whole(2)];
        // Two replicas: a key head each. Four: two replicas have one each.
        for (parts, q, kv) in [(2, 2, 1), (4, 1, 1)] {
            let (attentions, found) = divided(parts);
            assert_eq!(attentions[0], [q, kv, kv]);
            assert_eq!(attentions[1..], vec![vec![q, kv, kv, q]; 3]);
            assert_eq!(found, results, "{parts} replicas");
        }
    }
}
