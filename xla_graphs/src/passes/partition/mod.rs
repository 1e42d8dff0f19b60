//! Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM") as a pass: a graph over whole arrays
//! becomes the graph that each replica of a group runs on its shards of the weights.
//!
//! Given is how some inputs, the parameters, are sharded. Each node's result then has one of three
//! placements (`shard.rs`): replicated, sharded along a dimension, or partial, as summands of which
//! the replicas hold one each. A matmul that contracts a sharded dimension gives a partial sum,
//! which is all-reduced where something other than a sum or a factor needs it. With weights sharded
//! as Megatron shards them (the first matrix of a pair by columns, the second by rows, heads and
//! vocabulary apart), the collectives that appear are Megatron's, forward and backward, because the
//! backward pass is part of the graph.
//!
//! With [`Partition::tokens`] activations between the sharded matmuls are sharded along their rows
//! (`rows.rs`).
//!
//! Before: a recorded graph, composites and all, in its precision. After: the same outputs; inputs
//! that are sharded have their shard's shape, and where a replica must know its rank in the group
//! there is one more input at the end, [`TP_RANK`].
//!
//! Reading order: `shard.rs` (the types), `partitioner.rs` (from one placement to another), `rules.rs`
//! (each operation, with `losses.rs`), `tables.rs`, `tokens.rs` and `rows.rs`, then this file, which walks the graph.

mod losses;
mod partitioner;
mod rows;
mod rules;
mod shapes;
mod shard;
mod tables;
mod tokens;

pub use shard::{Partition, ShardSpec, shard};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, InputRole, InputSpec};
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::Trace;
use partitioner::Partitioner;
use shard::{Recorded, Shard};
use tokens::TokenRows;

/// The input that gives a replica its rank in its group: `s32[]`.
pub const TP_RANK: &str = "tp_rank";

/// Partitions a graph between the replicas of each group.
///
/// # Errors
/// If a sharded input's dimension does not divide, by the input's name, or the rows of activations do
/// not.
pub fn partition(graph: &Graph, partition: &Partition) -> Result<Graph> {
    let parts = partition.replicas();
    let rows = partition.tokens.as_deref();
    let rows = rows.and_then(|tokens| TokenRows::of(graph, tokens));
    if let Some(TokenRows { count, .. }) = &rows
        && !count.is_multiple_of(parts)
    {
        return Err(Error::Rows {
            rows: *count,
            parts,
        });
    }
    if !graph
        .inputs
        .iter()
        .any(|input| partition.inputs.contains_key(&input.name))
    {
        return Ok(graph.clone());
    }
    match partition_with_rank(graph, partition, rows.as_ref(), true)? {
        (graph, true) => Ok(graph),
        // No replica asks for its rank, so it is no input.
        (_, false) => Ok(partition_with_rank(graph, partition, rows.as_ref(), false)?.0),
    }
}

/// The partitioned graph, and whether it uses the rank.
fn partition_with_rank(
    graph: &Graph,
    partition: &Partition,
    rows: Option<&TokenRows>,
    with_rank: bool,
) -> Result<(Graph, bool)> {
    let trace = Trace::deduplicating();
    // All inputs first, so that they keep their numbers and the rank comes last.
    let inputs = graph
        .inputs
        .iter()
        .map(|input| input_shard(&trace, input, partition))
        .collect::<Result<Vec<Shard>>>()?;
    let rank = if with_rank {
        trace.input(TP_RANK, Shape::scalar(DType::S32), InputRole::Feed)
    } else {
        trace.constant(0.0, DType::S32)?
    };
    let gradients = tables::gradients_of_row_shards(graph, partition);
    let partitioner = Partitioner::new(trace.clone(), partition, rank);
    let mut values: Vec<Shard> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in (0..).zip(&graph.nodes) {
        let _context = trace.resume(&graph.scopes[node.scope as usize], node.provenance);
        let shard = match node.op {
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
                let has_token_rows: Vec<bool> = node
                    .operands
                    .iter()
                    .zip(&shapes)
                    .map(|(&operand, shape)| {
                        rows.is_some_and(|rows| rows.are_rows_of(operand as usize, shape))
                    })
                    .collect();
                let recorded = Recorded {
                    op: &node.op,
                    shapes: &shapes,
                    has_token_rows: &has_token_rows,
                    phase: node.provenance.phase,
                    is_row_shards_gradient: gradients.contains(&id),
                };
                partitioner.node(&recorded, operands)?
            }
        };
        values.push(shard);
    }
    for output in &graph.outputs {
        let node = &graph.nodes[output.node as usize];
        let _context = trace.resume(&graph.scopes[node.scope as usize], node.provenance);
        let is_state = graph
            .inputs
            .iter()
            .any(|input| input.name == output.name && input.role == InputRole::State);
        let shard = &values[output.node as usize];
        let local = match partition.inputs.get(&output.name).filter(|_| is_state) {
            Some(spec) => partitioner.to_sharded(shard, *spec, &node.shape)?,
            None => partitioner.to_replicated(shard)?,
        };
        trace.output(output.name.clone(), &local);
    }
    Ok((trace.finish(&graph.name)?, partitioner.rank_is_used()))
}

fn input_shard(trace: &Trace, input: &InputSpec, partition: &Partition) -> Result<Shard> {
    let is_state = input.role == InputRole::State;
    let Some(&spec) = partition.inputs.get(&input.name).filter(|_| is_state) else {
        let whole = trace.input(input.name.clone(), input.shape.clone(), input.role);
        return Ok(Shard::replicated(whole));
    };
    let replicas = partition.replicas();
    let shape = spec
        .shape_of(&input.shape, replicas)
        .ok_or_else(|| Error::Invalid {
            op: "input".into(),
            scope: input.name.clone(),
            operands: input.shape.to_string(),
            message: format!(
                "dimension {} in {} blocks does not divide into {replicas} parts",
                spec.dim, spec.blocks
            ),
        })?;
    let local = trace.input(input.name.clone(), shape, input.role);
    Ok(Shard::sharded(local, spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward;
    use crate::op::{Attention, Composite, F64, KeyMask};

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
            key_mask: KeyMask::None,
            dropout: None,
            soft_cap: None,
        };
        let y = q.attention(&k, &v, None, None, of).unwrap();
        trace.output("y", &y);
        let gradients = backward(&y.sum_all().unwrap(), &[q, k, v]).unwrap();
        for (name, gradient) in ["dq", "dk", "dv"].iter().zip(&gradients) {
            trace.output(*name, gradient);
        }
        let heads = shard(1);
        let partition = Partition {
            groups: vec![(0..parts).collect()],
            inputs: [("q", 4), ("k", 2), ("v", 2)]
                .into_iter()
                .filter(|(_, heads)| u32::is_multiple_of(*heads, parts))
                .map(|(name, _)| (name.to_string(), heads))
                .collect(),
            tokens: None,
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
