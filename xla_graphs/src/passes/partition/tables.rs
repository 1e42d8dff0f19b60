//! Which scatters add up the gradient of a table that is sharded along its rows: by the lookup whose
//! gradient they are, not by their shapes, which another table or a batch's activations may share.

use super::shard::{Partition, shard};
use crate::graph::{Graph, InputRole, NodeId};
use crate::op::{Composite, Op};
use std::collections::{HashMap, HashSet};

/// The scatters of a graph that are gradients of tables sharded along their rows. A gradient has the
/// ids of its lookup. Two tables of one shape that are read at the same ids count as one: whichever
/// way the gradient of the other is computed, its value is the same.
pub(super) fn gradients_of_row_shards(graph: &Graph, partition: &Partition) -> HashSet<NodeId> {
    let ids = Ids::of(graph);
    let shape = |id: NodeId| &graph.nodes[id as usize].shape;
    let is_table = |id: NodeId| match graph.nodes[unchanged(graph, id) as usize].op {
        Op::Input(index) => {
            let input = &graph.inputs[index as usize];
            input.role == InputRole::State
                && input.shape.rank() == 2
                && partition.inputs.get(&input.name) == Some(&shard(0))
        }
        _ => false,
    };
    let lookups: HashSet<(NodeId, &[usize])> = graph
        .nodes
        .iter()
        .filter(|node| node.op == Op::TakeRows && is_table(node.operands[0]))
        .map(|node| {
            (
                ids.value(node.operands[1]),
                &shape(node.operands[0]).dims[..],
            )
        })
        .collect();
    let scatters = (0..).zip(&graph.nodes);
    scatters
        .filter(|(_, node)| {
            node.op == Op::ScatterAddRows
                && lookups.contains(&(ids.value(node.operands[1]), &node.shape.dims[..]))
        })
        .map(|(id, _)| id)
        .collect()
}

/// The node whose elements these are, in another type or behind a barrier.
fn unchanged(graph: &Graph, mut id: NodeId) -> NodeId {
    loop {
        let node = &graph.nodes[id as usize];
        match node.op {
            Op::Convert(_)
            | Op::Barrier
            | Op::BarrierAfter
            | Op::Composite(Composite::StopGradient) => id = node.operands[0],
            _ => return id,
        }
    }
}

/// Integer values of a graph, each by the first node that has it: ids that the backward pass
/// recomputes are those of the forward pass.
struct Ids(Vec<NodeId>);

impl Ids {
    fn of(graph: &Graph) -> Ids {
        let mut values: Vec<NodeId> = Vec::with_capacity(graph.nodes.len());
        let mut known: HashMap<(&Op, Vec<NodeId>), NodeId> = HashMap::new();
        for (id, node) in (0..).zip(&graph.nodes) {
            let operands = node.operands.iter().map(|&id| values[id as usize]);
            let value = match node.op {
                _ if node.shape.dtype.is_float() => id,
                // The gradient of a lookup takes its ids as a list.
                Op::Reshape(_) | Op::Barrier | Op::BarrierAfter => {
                    values[node.operands[0] as usize]
                }
                _ => *known.entry((&node.op, operands.collect())).or_insert(id),
            };
            values.push(value);
        }
        Ids(values)
    }

    fn value(&self, id: NodeId) -> NodeId {
        self.0[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::partition;
    use super::*;
    use crate::dtype::DType;
    use crate::shape::Shape;
    use crate::trace::Trace;
    use crate::{Checkpointing, backward_with};

    /// The shapes of the scatters of a partitioned graph in which two tables and the activations
    /// have the shape `[8, 4]`; only the table `words` is sharded, between two replicas.
    fn scatters(checkpointing: Checkpointing) -> Vec<Vec<usize>> {
        let trace = Trace::new();
        let table =
            |name: &str| trace.input(name, Shape::new(DType::F32, [8, 4]), InputRole::State);
        let ids = |name: &str| {
            let ids = trace.input(name, Shape::new(DType::S32, [2, 4]), InputRole::Feed);
            ids.reshape(&[8]).unwrap()
        };
        let (words, kinds) = (table("words"), table("kinds"));
        let (word_ids, kind_ids, positions) = (ids("word_ids"), ids("kind_ids"), ids("positions"));
        let hidden = {
            let _layer = trace.layer("h.0");
            // Inside of the layer, so that the backward pass may recompute them.
            let word_ids = word_ids.add_scalar(1.0).unwrap();
            let hidden = words.take_rows(&word_ids).unwrap();
            hidden
                .mul(&kinds.take_rows(&kind_ids).unwrap())
                .unwrap()
                .tanh()
                .unwrap()
        };
        let loss = hidden
            .take_rows(&positions)
            .unwrap()
            .exp()
            .unwrap()
            .sum_all()
            .unwrap();
        let parameters = [words, kinds];
        let gradients = backward_with(&loss, &parameters, checkpointing).unwrap();
        for (name, gradient) in ["dwords", "dkinds"].iter().zip(&gradients) {
            trace.output(*name, gradient);
        }
        let division = Partition {
            groups: vec![vec![0, 1]],
            inputs: HashMap::from([("words".to_string(), shard(0))]),
            tokens: None,
        };
        let graph = partition(&trace.finish("step").unwrap(), &division).unwrap();
        graph.check().unwrap();
        let scatters = graph
            .nodes
            .iter()
            .filter(|node| node.op == Op::ScatterAddRows);
        scatters.map(|node| node.shape.dims.clone()).collect()
    }

    #[test]
    fn a_sharded_table_is_known_by_its_lookup_and_not_by_its_shape() {
        for checkpointing in [Checkpointing::Off, Checkpointing::Full] {
            let mut found = scatters(checkpointing);
            // Of the activations and of the replicated table whole, of the sharded one its rows.
            found.sort();
            assert_eq!(found, [[4, 4], [8, 4], [8, 4]], "{checkpointing}");
        }
    }
}
