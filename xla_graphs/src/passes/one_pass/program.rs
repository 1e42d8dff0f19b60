//! A group of nodes as a call.

use super::groups::{Group, is_scales, scalar};
use super::views;
use crate::dtype::DType;
use crate::graph::{Graph, NodeId};
use crate::op::{
    Binary, BlockCodes, F64, OnePass, Op, PassForm, PassResult, PassStep, PassView, Scalar, Step,
};
use std::collections::HashMap;

/// A group as a call.
pub(super) struct Program {
    pub pass: OnePass,
    pub operands: Vec<NodeId>,
    /// The nodes that the call's results are.
    pub results: Vec<NodeId>,
}

/// A group while its nodes become steps.
struct Steps<'a> {
    graph: &'a Graph,
    operands: Vec<(NodeId, Option<PassView>)>,
    steps: Vec<Step>,
    /// Of each node, and of what it reads: the number of its value.
    values: HashMap<NodeId, u32>,
}

impl Steps<'_> {
    fn of<'a>(graph: &'a Graph, group: &Group) -> Steps<'a> {
        let mut steps = Steps {
            graph,
            operands: Vec::new(),
            steps: Vec::new(),
            values: HashMap::new(),
        };
        let node = |id: NodeId| &graph.nodes[id as usize];
        // A constant is a step, any other scalar an operand in place of its broadcast.
        let constant = |id: NodeId| match scalar(graph, id).map(|of| &node(of).op) {
            Some(Op::Constant {
                value: Scalar::Float(value),
                ..
            }) => Some(*value),
            _ => None,
        };
        let outside = || {
            let all = group.nodes.iter().flat_map(|&id| &node(id).operands);
            all.filter(|id| group.nodes.binary_search(id).is_err())
                .copied()
        };
        for id in outside().filter(|&id| constant(id).is_none()) {
            let operand = match scalar(graph, id) {
                Some(scalar) => (scalar, None),
                None if group.is_layers() => views::find(graph, id),
                None => (id, None),
            };
            let known = steps.operands.iter().position(|known| *known == operand);
            let place = known.unwrap_or_else(|| {
                steps.operands.push(operand);
                steps.operands.len() - 1
            });
            steps.values.insert(id, place as u32);
        }
        for id in outside() {
            if let Some(value) = constant(id) {
                let value = steps.add(Step::Constant(F64::new(value.get())));
                steps.values.insert(id, value);
            }
        }
        for &id in &group.nodes {
            let value = steps.value(id, group.is_layers());
            steps.values.insert(id, value);
        }
        steps
    }

    /// The number of a step's value.
    fn add(&mut self, step: Step) -> u32 {
        let known = self.steps.iter().position(|known| *known == step);
        let place = known.unwrap_or_else(|| {
            self.steps.push(step);
            self.steps.len() - 1
        });
        (self.operands.len() + place) as u32
    }

    /// The number of a node's value. `is_exact_inside`: it is rounded where it is written only.
    fn value(&mut self, id: NodeId, is_exact_inside: bool) -> u32 {
        let node = &self.graph.nodes[id as usize];
        let x = |index: usize| self.values[&node.operands[index]];
        let step = match &node.op {
            Op::PassStep(step) => match **step {
                PassStep::Codes(BlockCodes::Decode(map)) => Step::Decode(map, x(0), x(1)),
                PassStep::Codes(BlockCodes::Scales { floor, .. }) => Step::Scales(floor, x(0)),
                PassStep::Codes(BlockCodes::Encode(map)) => Step::Encode(map, x(0), x(1)),
                PassStep::Gelu(of) => Step::Gelu(of, x(0)),
                PassStep::GeluSlope(of) => Step::GeluSlope(of, x(0)),
            },
            Op::Unary(op) => Step::Unary(*op, x(0)),
            Op::Binary(op) => Step::Binary(*op, x(0), x(1)),
            Op::Select => Step::Select(x(0), x(1), x(2)),
            Op::Convert(DType::BF16) if !is_exact_inside => Step::Round(x(0)),
            // From bf16: the same number.
            _ => return x(0),
        };
        self.add(step)
    }

    /// The value of a result: an operand is copied by a step.
    fn written(&mut self, id: NodeId) -> u32 {
        let value = self.values[&id];
        let is_f32 = |(operand, _): &(NodeId, _)| {
            self.graph.nodes[*operand as usize].shape.dtype == DType::F32
        };
        match self.operands.get(value as usize).filter(|x| is_f32(x)) {
            Some(_) => {
                let one = self.add(Step::Constant(F64::new(1.0)));
                self.add(Step::Binary(Binary::Mul, one, value))
            }
            None => value,
        }
    }
}

impl Program {
    pub fn of(graph: &Graph, group: &Group, states: &HashMap<NodeId, NodeId>) -> Program {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let mut made = Steps::of(graph, group);
        let mut donated = Vec::new();
        let mut results = Vec::new();
        for &id in &group.arrays {
            // Nothing else of the state may be read after it was written.
            let operand = states.get(&id).and_then(|&state| {
                let all = || made.operands.iter();
                let is_alone = all().filter(|(base, _)| *base == state).count() == 1;
                let place = all().position(|operand| *operand == (state, None));
                place.filter(|_| is_alone)
            });
            let operand = operand.filter(|operand| !donated.contains(operand));
            donated.extend(operand);
            let operand = operand.map(|index| index as u32);
            let form = if is_scales(node(id)) {
                PassForm::Blocks(operand)
            } else {
                PassForm::Array(node(id).shape.dtype, operand)
            };
            results.push((id, made.written(id), form));
        }
        for (&sum, id) in &group.sums {
            results.push((sum, made.values[id], PassForm::Sum));
        }
        let mut nodes: Vec<NodeId> = results.iter().map(|(id, ..)| *id).collect();
        let mut joined: Vec<NodeId> = Vec::new();
        for (id, whole, view) in &group.parts {
            let known = joined.iter().position(|joined| joined == whole);
            let index = known.unwrap_or_else(|| {
                joined.push(*whole);
                joined.len() - 1
            });
            let form = PassForm::Part(index as u32, view.clone());
            results.push((*id, made.written(*id), form));
        }
        nodes.extend(&joined);
        let mut inside = group.nodes.iter().map(|&id| node(id));
        let array = inside.clone().find(|node| !is_scales(node));
        let dims = array.map_or_else(
            || node(node(group.nodes[0]).operands[0]).shape.dims.to_vec(),
            |array| array.shape.dims.to_vec(),
        );
        let blocks = inside.find_map(|node| {
            let scales = match &node.op {
                Op::PassStep(step) => match **step {
                    PassStep::Codes(BlockCodes::Scales { .. }) => &node.shape,
                    PassStep::Codes(_) => &graph.nodes[node.operands[1] as usize].shape,
                    _ => return None,
                },
                _ => return None,
            };
            Some(scales.dims.to_vec())
        });
        let results = results.into_iter();
        let (operands, views) = made.operands.into_iter().unzip();
        Program {
            pass: OnePass {
                dims,
                blocks: blocks.unwrap_or_default(),
                views,
                steps: made.steps,
                results: results
                    .map(|(_, value, form)| PassResult { value, form })
                    .collect(),
                arrays: joined.iter().map(|&id| node(id).shape.clone()).collect(),
            },
            operands,
            results: nodes,
        }
    }
}
