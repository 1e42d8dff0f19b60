//! Peak memory: what is alive at once, where that is most ([`peak`]), and how long each buffer of a
//! graph will live once it is compiled.
//!
//! A buffer lives from the node that writes it to the last that reads it. Arguments are the caller's
//! and results live in arguments where they are donated, so neither counts. There is one way to find
//! the peak of given lifetimes, and there are two sources of lifetimes, because they answer different
//! questions. Before a compile, [`temporaries`] *predicts* them from a prepared graph, in
//! milliseconds where a compiler takes half a minute, so that every mesh can be compared. After it,
//! `live_buffers` in xtrain *reads* them from the schedule that the compiler wrote into the module, and
//! can name what is alive; it predicts nothing.
//!
//! The prediction is one walk over the graph in the order in which it was recorded. A node is
//! *written* to a buffer of its own, only *renames* its operand's
//! (a reshape), or is *fused*: computed by each of its readers while they run, so that its operands
//! live on until then. What is fused follows XLA's rules for loop fusion (`instruction_fusion.cc`):
//! operations on single elements all of whose readers are such too, and nothing expensive twice. A
//! result that is as large as an operand that is not read again takes the operand's place.
//! XLA's CPU compiler writes what depends on no input before all else, and copies at once what is
//! read from memory that such a constant takes over, as sums of gradients are; what is scattered along
//! another dimension than its first is turned for it.
//! A compiler orders and fuses a little otherwise; docs/parallelism.md says how far off this is.

use crate::graph::{Graph, GraphNode, NodeId};
use crate::op::{Binary, CallSpec, Op, Unary};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A buffer and when it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Positions in a schedule: from that of the node that writes it to that behind its last reader.
    pub alive: Range<usize>,
    /// Its size.
    pub bytes: u64,
}

/// The position in a schedule at which most bytes are alive, the first of several, and these bytes;
/// `None` where there never are any. `inside` gives what the node at a position holds by itself
/// while it runs.
pub fn peak(lifetimes: &[Lifetime], inside: &HashMap<usize, u64>) -> Option<(usize, u64)> {
    let ends = lifetimes.iter().map(|one| one.alive.end);
    let behind = ends.chain(inside.keys().map(|at| at + 1)).max()?;
    let (mut begin, mut end) = (vec![0; behind + 1], vec![0; behind + 1]);
    for Lifetime { alive, bytes } in lifetimes.iter().filter(|one| !one.alive.is_empty()) {
        begin[alive.start] += bytes;
        end[alive.end] += bytes;
    }
    let (mut held, mut most) = (0, None);
    for position in 0..behind {
        held = held - end[position] + begin[position];
        let here = held + inside.get(&position).copied().unwrap_or(0);
        if here > most.map_or(0, |(_, bytes)| bytes) {
            most = Some((position, here));
        }
    }
    most
}

/// Bytes of a prepared graph's temporaries where they are most.
pub fn temporaries(graph: &Graph) -> u64 {
    let lifetimes = Walk::of(graph).lifetimes();
    peak(&lifetimes, &HashMap::new()).map_or(0, |(_, bytes)| bytes)
}

/// What becomes of a node's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Written,
    Renamed,
    Fused,
}

struct Walk<'g> {
    graph: &'g Graph,
    forms: Vec<Form>,
    is_output: Vec<bool>,
    is_read_twice: Vec<bool>,
    /// The position of each node in the order of the walk.
    positions: Vec<NodeId>,
    /// Of each input, whether it is read from a copy.
    is_copied: Vec<bool>,
}

impl<'g> Walk<'g> {
    fn of(graph: &'g Graph) -> Self {
        let mut is_output = vec![false; graph.nodes.len()];
        graph
            .outputs
            .iter()
            .for_each(|output| is_output[output.node as usize] = true);
        // Who reads each node, through what only renames it.
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes.len()];
        let mut forms = vec![Form::Written; graph.nodes.len()];
        let mut is_read_twice = vec![false; graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate().rev() {
            is_read_twice[id] = readers[id].len() > 1;
            forms[id] = match &node.op {
                op if renames(op) => Form::Renamed,
                _ if is_output[id] => Form::Written,
                op if is_loop(op) => {
                    let fuses = |reader: &NodeId| is_loop(&graph.nodes[*reader as usize].op);
                    if !(is_read_twice[id] && is_expensive(op)) && readers[id].iter().all(fuses) {
                        Form::Fused
                    } else {
                        Form::Written
                    }
                }
                _ => Form::Written,
            };
            let through = match forms[id] {
                Form::Renamed => {
                    // A result that is a renamed value is that value.
                    let operand = node.operands[0] as usize;
                    is_output[operand] |= is_output[id];
                    std::mem::take(&mut readers[id])
                }
                _ => vec![id as NodeId],
            };
            for &operand in &node.operands {
                readers[operand as usize].extend(&through);
                readers[operand as usize].sort_unstable();
                readers[operand as usize].dedup();
            }
        }
        let is_copied = copied(graph);
        let mut positions = positions(graph);
        let mut is_constant = vec![false; graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            is_constant[id] = match node.op {
                Op::Input(_) => false,
                _ => node
                    .operands
                    .iter()
                    .all(|&operand| is_constant[operand as usize]),
            };
            let is_copy = matches!(node.op, Op::Input(index) if is_copied[index as usize]);
            if is_copy || is_constant[id] {
                positions[id] = 0;
            }
        }
        Walk {
            graph,
            forms,
            is_output,
            is_read_twice,
            positions,
            is_copied,
        }
    }

    /// Of the buffers that the graph's nodes write.
    fn lifetimes(&self) -> Vec<Lifetime> {
        let nodes = &self.graph.nodes;
        // The written nodes behind each value, which is what its readers read.
        let mut behind: Vec<Vec<NodeId>> = vec![Vec::new(); nodes.len()];
        let mut last_read = self.positions.clone();
        for (id, node) in nodes.iter().enumerate() {
            let mut read: Vec<NodeId> = node
                .operands
                .iter()
                .flat_map(|&operand| &behind[operand as usize])
                .copied()
                .collect();
            read.sort_unstable();
            read.dedup();
            let bytes = |id: NodeId| nodes[id as usize].shape.bytes();
            // Computing it once for each reader must not read, and keep, more than writing it
            // would.
            let is_small = self.is_read_twice[id]
                && bytes(id as NodeId) < read.iter().map(|&read| bytes(read)).sum();
            let form = if self.forms[id] == Form::Fused && is_small {
                Form::Written
            } else {
                self.forms[id]
            };
            behind[id] = match (form, &node.op) {
                (_, Op::Input(index)) if self.is_copied[*index as usize] => vec![id as NodeId],
                (_, Op::Input(_) | Op::Constant { .. }) => Vec::new(),
                (Form::Written, _) => {
                    let position = self.positions[id];
                    read.iter().for_each(|&buffer| {
                        last_read[buffer as usize] = last_read[buffer as usize].max(position)
                    });
                    vec![id as NodeId]
                }
                (Form::Renamed | Form::Fused, _) => read,
            };
        }
        let bytes = |id: NodeId| {
            // Results that count as the parts of a call.
            let has_parts =
                matches!(&nodes[id as usize].op, Op::Call(call) if call.spec().is_tuple());
            if self.is_output[id as usize] || has_parts {
                0
            } else {
                nodes[id as usize].shape.bytes() as u64
            }
        };
        let position = |id: NodeId| self.positions[id as usize] as usize;
        let written: Vec<NodeId> = (0..nodes.len() as NodeId)
            .filter(|id| behind[*id as usize].as_slice() == [*id])
            .collect();
        let turned = self.turned(&behind);
        let mut lifetimes: Vec<Lifetime> = written
            .iter()
            .map(|&id| Lifetime {
                alive: position(id)..last_read[id as usize] as usize + 1,
                bytes: bytes(id),
            })
            .collect();
        // What is written over an operand of its size that nobody reads again: the operand's life ends
        // where the result's begins.
        let mut ending: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, lifetime) in lifetimes.iter().enumerate() {
            ending.entry(lifetime.alive.end).or_default().push(index);
        }
        for (index, &id) in written.iter().enumerate() {
            let node = &nodes[id as usize];
            let is_turned = turned.contains(&id) && is_loop(&node.op);
            if is_turned || !works_in_place(node) {
                continue;
            }
            let Some(old) = ending.get_mut(&(position(id) + 1)) else {
                continue;
            };
            let takes = |other: &usize| {
                *other != index && lifetimes[*other].bytes == lifetimes[index].bytes
            };
            if let Some(found) = old.iter().position(takes) {
                lifetimes[old.swap_remove(found)].alive.end -= 1;
            }
        }
        // What is no loop is turned by a copy of its own.
        for id in turned {
            if !is_loop(&nodes[id as usize].op) {
                lifetimes.push(Lifetime {
                    alive: position(id)..position(id) + 1,
                    bytes: bytes(id),
                });
            }
        }
        lifetimes
    }

    /// What is scattered along another dimension than its first: it is laid out with that one first.
    fn turned(&self, behind: &[Vec<NodeId>]) -> HashSet<NodeId> {
        let scattered = |node: &GraphNode| match node.op {
            Op::ReduceScatter { dim, .. } if dim > 0 => match behind[node.operands[0] as usize][..]
            {
                [id] => Some(id),
                _ => None,
            },
            _ => None,
        };
        self.graph.nodes.iter().filter_map(scattered).collect()
    }
}

/// Nodes run in the order in which they were recorded, but sums that are scattered as soon as there
/// is something to sum: they are recorded when all gradients are there, and every compiler moves
/// them up, since they make much into little. Sums side by side that are exchanged together are one
/// instruction, which reads the last of them before it has written the first.
fn positions(graph: &Graph) -> Vec<NodeId> {
    let mut positions: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    for (id, node) in graph.nodes.iter().enumerate() {
        if let Op::ReduceScatter { .. } = node.op {
            positions[id] = positions[node.operands[0] as usize];
        }
    }
    let exchange = |id: usize| match &graph.nodes[id].op {
        Op::AllReduce(exchange) => Some((exchange, graph.nodes[id].shape.dtype)),
        _ => None,
    };
    for id in (1..positions.len()).rev() {
        if exchange(id).is_some() && exchange(id - 1) == exchange(id) {
            positions[id - 1] = positions[id];
        }
    }
    positions
}

/// Of each input, whether its memory becomes a constant, as that of sums of gradients does when they are
/// taken. Constants are written first, so that what is read later is copied before.
fn copied(graph: &Graph) -> Vec<bool> {
    let mut is_copied = vec![false; graph.inputs.len()];
    for (_, input, output) in graph.aliases() {
        let mut node = &graph.nodes[graph.outputs[output].node as usize];
        while let Op::Broadcast { .. } | Op::Reshape(_) = node.op {
            node = &graph.nodes[node.operands[0] as usize];
        }
        is_copied[input] = matches!(node.op, Op::Constant { .. });
    }
    is_copied
}

/// Whether a node's value is its first operand's, under another shape or name.
fn renames(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_) | Op::Barrier | Op::BarrierAfter | Op::ToDevice
    )
}

/// Whether an operation can be a part of a loop over its result's elements. Sums have loops of
/// their own.
pub(crate) fn is_loop(op: &Op) -> bool {
    matches!(
        op,
        Op::Iota { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert(_)
            | Op::Bitcast(_)
            | Op::Broadcast { .. }
            | Op::Transpose(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::DynamicSlice { .. }
    )
}

/// What is not computed twice to save memory.
pub(crate) fn is_expensive(op: &Op) -> bool {
    match op {
        Op::Unary(op) => !matches!(
            op,
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Floor | Unary::Not | Unary::IsFinite
        ),
        Op::Binary(op) => matches!(op, Binary::Div | Binary::Pow | Binary::Rem),
        _ => false,
    }
}

/// Whether a result may be written over an operand of the same size.
fn works_in_place(node: &GraphNode) -> bool {
    let moves = matches!(
        node.op,
        Op::Transpose(_)
            | Op::Broadcast { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
    );
    let is_alias = |call: &dyn CallSpec| !call.is_tuple() && !call.aliases().is_empty();
    let continues = matches!(&node.op, Op::Call(call) if is_alias(call.spec()));
    continues || node.op == Op::ScatterAddRows || is_loop(&node.op) && !moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, InputRole, Shape, Tensor, Trace};

    /// Sums of one bucket are all there before and after their exchange; of several only one's are.
    #[test]
    fn what_is_exchanged_together_is_there_twice() {
        let exchanged = |buckets: [u32; 4]| {
            let trace = Trace::new();
            let x = trace.input("x", Shape::new(DType::F32, [64]), InputRole::Feed);
            let terms: Vec<Tensor> = (0..4)
                .map(|i| {
                    let row = trace.constant(f64::from(i), DType::F32).unwrap();
                    let rows = x.add(&row).unwrap().reshape(&[64, 1]).unwrap();
                    rows.matmul(&rows.transpose(&[1, 0]).unwrap()).unwrap()
                })
                .collect();
            let sums: Vec<Tensor> = (terms.iter().zip(buckets))
                .map(|(term, bucket)| term.all_reduce(&[vec![0, 1]], bucket).unwrap())
                .collect();
            for (i, sum) in sums.iter().enumerate() {
                let product = sum.matmul(sum).unwrap();
                trace.output(format!("y{i}"), &product.sum_all().unwrap());
            }
            temporaries(&trace.finish("step").unwrap()) / (4 * 64 * 64)
        };
        assert_eq!(exchanged([0, 0, 0, 0]), 8);
        assert_eq!(exchanged([0, 0, 1, 1]), 6);
        assert_eq!(exchanged([0, 1, 2, 3]), 5);
    }

    #[test]
    fn the_peak_is_where_most_is_alive() {
        let lifetime = |alive, bytes| Lifetime { alive, bytes };
        let lifetimes = [
            lifetime(0..3, 4),
            lifetime(1..2, 2),
            lifetime(2..5, 3),
            // Its place was taken before anything else ran.
            lifetime(2..2, 100),
        ];
        assert_eq!(peak(&lifetimes, &HashMap::new()), Some((2, 7)));
        assert_eq!(peak(&lifetimes, &HashMap::from([(4, 5)])), Some((4, 8)));
        assert_eq!(peak(&[], &HashMap::from([(1, 5)])), Some((1, 5)));
        assert_eq!(peak(&[lifetime(0..3, 0)], &HashMap::new()), None);
    }
}
