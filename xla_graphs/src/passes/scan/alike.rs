//! What iterations have in common: a walk from what they hand on to what they read, in all of them
//! at once.

use super::Origin;
use super::layers::Groups;
use crate::graph::Graph;
use crate::liveness::{is_expensive, is_loop};
use crate::op::Op;
use crate::trace::NodeId;
use std::collections::{BTreeSet, HashMap};

/// Layers are some hundred nodes deep; a walk that goes much further has left them.
const DEEPEST: usize = 3000;

/// Number of a value in its loop. Operands precede their users.
pub(super) type ValueId = usize;

/// One node of each iteration, seen as one value of the body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// What the iteration before handed on; in the first one what the loop begins with.
    Carried(usize),
    /// The same node in all iterations.
    Same(NodeId),
    /// A row of a stack: in iteration i the row `from + step * i`.
    Row { of: Stack, from: i64, step: i64 },
    /// Computed by the body as this node of the first iteration is.
    Computed {
        like: NodeId,
        operands: Vec<ValueId>,
    },
}

/// What a stack is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stack {
    /// Nodes outside of loops: parameters.
    Nodes(Vec<NodeId>),
    /// A value of an earlier loop, by the loop's number: one row an iteration.
    Kept(usize, ValueId),
}

/// A loop.
pub(super) struct Loop {
    pub path: String,
    pub iterations: usize,
    pub values: Vec<Value>,
    /// What is handed on, by its number.
    pub carried: Vec<Carried>,
    /// Values that are cheaper computed again than kept.
    is_cheap: Vec<bool>,
}

pub(super) struct Carried {
    /// What the first iteration reads; `None` if nobody reads what was handed on.
    pub first: Option<NodeId>,
    /// What each iteration hands on.
    pub nodes: Vec<NodeId>,
    pub value: ValueId,
}

/// The loops of a graph.
pub(super) struct Plan<'g> {
    pub graph: &'g Graph,
    pub origins: &'g [Origin],
    pub loops: Vec<Loop>,
    /// Of each node, the values that it is in an iteration of a loop: loop, value, iteration.
    places: HashMap<NodeId, Vec<(usize, ValueId, usize)>>,
}

impl<'g> Plan<'g> {
    pub fn new(graph: &'g Graph, origins: &'g [Origin]) -> Self {
        Plan {
            graph,
            origins,
            loops: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds the loop that these groups make, if their iterations are alike.
    pub fn add(&mut self, groups: &Groups) -> bool {
        let mut walk = Walk {
            plan: self,
            groups,
            values: Vec::new(),
            known: HashMap::new(),
            first: vec![None; groups.carried.len()],
        };
        let mut carried = Vec::with_capacity(groups.carried.len());
        for nodes in &groups.carried {
            match walk.computed(nodes) {
                Some(value) => carried.push(value),
                None => return false,
            }
        }
        for nodes in &groups.wanted {
            walk.computed(nodes);
        }
        if !walk.can_run() {
            return false;
        }
        let Walk {
            values,
            known,
            first,
            ..
        } = walk;
        let carried = (carried.into_iter().zip(first).zip(&groups.carried))
            .map(|((value, first), nodes)| Carried {
                first,
                nodes: nodes.clone(),
                value,
            })
            .collect();
        let is_cheap = cheap(self.graph, &values);
        let number = self.loops.len();
        let mut places: Vec<(&Vec<NodeId>, ValueId)> = known
            .iter()
            .filter_map(|(nodes, value)| value.map(|value| (nodes, value)))
            .collect();
        places.sort_unstable();
        for (nodes, value) in places
            .into_iter()
            .filter(|(_, value)| !matches!(values[*value], Value::Same(_)))
        {
            for (iteration, node) in nodes.iter().enumerate() {
                self.places
                    .entry(*node)
                    .or_default()
                    .push((number, value, iteration));
            }
        }
        let iterations = groups.carried[0].len();
        self.loops.push(Loop {
            path: groups.path.clone(),
            iterations,
            values,
            carried,
            is_cheap,
        });
        true
    }

    /// The loop that computes a node, as which value and in which iteration. What depends on feeds
    /// alone is never taken from a loop.
    pub fn computed_by(&self, node: NodeId) -> Option<(usize, ValueId, usize)> {
        let places = self
            .places
            .get(&node)
            .filter(|_| !self.origins[node as usize].is_free())?;
        places
            .iter()
            .copied()
            .find(|(of, value, _)| matches!(self.loops[*of].values[*value], Value::Computed { .. }))
    }

    /// The stack of an earlier loop that has these nodes as its rows.
    fn row(&self, nodes: &[NodeId]) -> Option<Value> {
        let mut places = self.places.get(&nodes[0])?.clone();
        // What is handed on is kept as what it is to the next iteration.
        places.sort_by_key(|(of, value, _)| {
            !matches!(self.loops[*of].values[*value], Value::Carried(_))
        });
        places.iter().find_map(|&(of, value, first)| {
            let at = |node: &NodeId| -> Option<i64> {
                let here = self
                    .places
                    .get(node)?
                    .iter()
                    .find(|place| (place.0, place.1) == (of, value))?;
                Some(here.2 as i64)
            };
            let step = at(&nodes[1])? - first as i64;
            let is_row =
                |(i, node): (usize, &NodeId)| at(node) == Some(first as i64 + step * i as i64);
            if !nodes.iter().enumerate().all(is_row) {
                return None;
            }
            match &self.loops[of].values[value] {
                Value::Same(_) => None,
                Value::Computed { .. } if self.loops[of].is_cheap[value] => None,
                Value::Computed { .. } | Value::Carried(_) => Some(Value::Row {
                    of: Stack::Kept(of, value),
                    from: first as i64,
                    step,
                }),
                Value::Row {
                    of,
                    from,
                    step: rows,
                } => Some(Value::Row {
                    of: of.clone(),
                    from: from + rows * first as i64,
                    step: rows * step,
                }),
            }
        })
    }
}

struct Walk<'p, 'g> {
    plan: &'p Plan<'g>,
    groups: &'p Groups,
    values: Vec<Value>,
    /// `None`: not alike, and not to be stacked either.
    known: HashMap<Vec<NodeId>, Option<ValueId>>,
    /// What the first iteration reads of what is handed on.
    first: Vec<Option<NodeId>>,
}

impl Walk<'_, '_> {
    /// The value of nodes that the body is to compute.
    fn computed(&mut self, nodes: &[NodeId]) -> Option<ValueId> {
        let value = self.value(nodes, 0)?;
        matches!(self.values[value], Value::Computed { .. }).then_some(value)
    }

    /// One node of each iteration as one value; `None` where they cannot be.
    fn value(&mut self, nodes: &[NodeId], depth: usize) -> Option<ValueId> {
        if let Some(known) = self.known.get(nodes) {
            return *known;
        }
        let value = self.found(nodes, depth);
        let number = value.map(|value| {
            self.values.push(value);
            self.values.len() - 1
        });
        self.known.insert(nodes.to_vec(), number);
        number
    }

    fn found(&mut self, nodes: &[NodeId], depth: usize) -> Option<Value> {
        let graph = self.plan.graph;
        let node = |id: NodeId| &graph.nodes[id as usize];
        let first = node(nodes[0]);
        if nodes.iter().all(|id| *id == nodes[0]) {
            return Some(Value::Same(nodes[0]));
        }
        if nodes.iter().any(|id| node(*id).shape != first.shape) {
            return None;
        }
        if let Some(number) = self.handed_on(nodes) {
            self.first[number] = Some(nodes[0]);
            return Some(Value::Carried(number));
        }
        if let Some(row) = self.plan.row(nodes) {
            return Some(row);
        }
        let is_alike = |id: &NodeId| {
            does_the_same(&node(*id).op, &first.op)
                && node(*id).operands.len() == first.operands.len()
        };
        if !matches!(first.op, Op::Input(_)) && nodes.iter().all(is_alike) && depth < DEEPEST {
            let operand = |n: usize| {
                nodes
                    .iter()
                    .map(|id| node(*id).operands[n])
                    .collect::<Vec<NodeId>>()
            };
            let operands: Option<Vec<ValueId>> = (0..first.operands.len())
                .map(|n| self.value(&operand(n), depth + 1))
                .collect();
            if let Some(operands) = operands {
                return Some(Value::Computed {
                    like: nodes[0],
                    operands,
                });
            }
        }
        // Results of a call are taken one by one.
        let is_call = matches!(first.op, Op::FusedAttention(_) | Op::FusedAttentionGrad(_));
        (!is_call).then(|| Value::Row {
            of: Stack::Nodes(nodes.to_vec()),
            from: 0,
            step: 1,
        })
    }

    /// What is handed on, if these nodes read it: each but the first what the iteration before
    /// gives.
    fn handed_on(&self, nodes: &[NodeId]) -> Option<usize> {
        let is_read = |(number, given): (usize, &Vec<NodeId>)| {
            let first = self.first[number];
            nodes[1..] == given[..given.len() - 1] && first.is_none_or(|first| first == nodes[0])
        };
        self.groups.carried.iter().enumerate().position(is_read)
    }

    /// Whether a stack of such nodes costs what it seems to: parameters do, and what another stage
    /// of a pipeline kept. Activations that are computed outside of loops, for all layers before
    /// the loop begins, would have to be there at once.
    fn is_for_stacks(&self, id: NodeId) -> bool {
        let is_input = matches!(self.plan.graph.nodes[id as usize].op, Op::Input(_));
        is_input || !self.plan.origins[id as usize].is_activation()
    }

    /// Whether nothing that the loop begins with depends on what it computes. What an earlier loop
    /// computes, or what depends on feeds alone, is there without it.
    fn can_run(&self) -> bool {
        let graph = self.plan.graph;
        let mut depends = vec![false; graph.nodes.len()];
        for (nodes, value) in &self.known {
            if value.is_some_and(|value| matches!(self.values[value], Value::Computed { .. })) {
                let is_elsewhere = |id: NodeId| {
                    self.plan.origins[id as usize].is_free() || self.plan.computed_by(id).is_some()
                };
                nodes
                    .iter()
                    .filter(|id| !is_elsewhere(**id))
                    .for_each(|id| depends[*id as usize] = true);
            }
        }
        for (id, node) in graph.nodes.iter().enumerate() {
            depends[id] |= node
                .operands
                .iter()
                .any(|&operand| depends[operand as usize]);
        }
        let begins = |id: &NodeId| !depends[*id as usize];
        self.first.iter().flatten().all(begins)
            && self.values.iter().all(|value| match value {
                Value::Same(node) => begins(node),
                Value::Row {
                    of: Stack::Nodes(nodes),
                    ..
                } => nodes.iter().all(|id| begins(id) && self.is_for_stacks(*id)),
                _ => true,
            })
    }
}

/// Whether two operations are one. Which bucket a sum travels in does not matter.
fn does_the_same(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::AllReduce(a), Op::AllReduce(b)) => a.groups == b.groups,
        _ => a == b,
    }
}

/// Values that are computed again where another loop wants them: from no more bytes than they are
/// themselves, by cheap operations.
fn cheap(graph: &Graph, values: &[Value]) -> Vec<bool> {
    let mut is_cheap = vec![false; values.len()];
    // What would be kept to compute each value again.
    let mut from: Vec<BTreeSet<ValueId>> = Vec::with_capacity(values.len());
    for (id, value) in values.iter().enumerate() {
        from.push(match value {
            Value::Same(_) | Value::Row { .. } => BTreeSet::new(),
            Value::Carried(_) => BTreeSet::from([id]),
            Value::Computed { like, operands } => {
                let node = &graph.nodes[*like as usize];
                let all: BTreeSet<ValueId> = operands
                    .iter()
                    .flat_map(|operand| &from[*operand])
                    .copied()
                    .collect();
                let bytes = |value: &ValueId| match &values[*value] {
                    Value::Computed { like, .. } => graph.nodes[*like as usize].shape.bytes(),
                    // Kept anyway.
                    _ => 0,
                };
                let is_simple = matches!(node.op, Op::Reshape(_))
                    || is_loop(&node.op) && !is_expensive(&node.op);
                is_cheap[id] =
                    is_simple && all.iter().map(bytes).sum::<usize>() <= node.shape.bytes();
                if is_cheap[id] {
                    all
                } else {
                    BTreeSet::from([id])
                }
            }
        });
    }
    is_cheap
}
