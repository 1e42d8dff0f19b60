//! What updates a parameter as one call of the CPU plugin's (`native/cpp/kernels/one_pass.h`).
//!
//! XLA's CPU writes one array a loop, so that AdamW's moments and weight are three loops, each of
//! which reads the gradient again, and a sum of squares is a loop that writes the squares and
//! another that reads them. The optimizer's time is the time of its memory traffic: a call reads
//! and writes each array once. Whatever optimizer recorded them, all element-wise nodes of an
//! update that hang together are one call, with a result for each value that is needed outside and
//! for each sum over all elements.
//!
//! A barrier behind an element-wise operation in f32 is a call too, one that copies: XLA's CPU drops
//! barriers before it fuses, and would compute what stands before one again for every element that
//! reads it (the sines and cosines of rotary positions for each head of each layer).
//!
//! Before: primitives. After: the same operations, but that XLA contracts multiplications and
//! additions, and sums in another order.

use super::rebuild::{record, together};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphNode, NodeId};
use crate::nn::call_result;
use crate::op::{
    Binary, BlockCodes, F64, OnePass, Op, PassForm, PassResult, Reduction, Scalar, Step, Unary,
};
use crate::provenance::Phase;
use crate::target::Target;
use crate::trace::{Tensor, Trace};
use std::collections::{BTreeMap, HashMap};

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    if !target.has_passes() {
        return Ok(graph.clone());
    }
    let groups = groups(graph);
    if groups.is_empty() && !graph.nodes.iter().any(|node| is_kept(graph, node)) {
        return Ok(graph.clone());
    }
    let mut group_of = vec![None; graph.nodes.len()];
    for (index, group) in groups.iter().enumerate() {
        for &node in group.nodes.iter().chain(&group.reductions) {
            group_of[node as usize] = Some(index);
        }
    }
    let states = replaced_states(graph);
    // The results of each group by their nodes, once its first node was met.
    let mut parts: Vec<HashMap<NodeId, Tensor>> = vec![HashMap::new(); groups.len()];
    graph.rebuild_in(&together(graph, &group_of), |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        let operands = || node.operands.iter().map(|&operand| replaced.get(operand));
        let Some(index) = group_of[id as usize] else {
            let x: Vec<Tensor> = operands().collect();
            return if is_kept(graph, node) {
                copy(trace, &x[0])
            } else {
                record(trace, &node.op, &x)
            };
        };
        if parts[index].is_empty() {
            let program = Program::of(graph, &groups[index], &states);
            let all = program.operands.iter().map(|&operand| {
                let x = replaced.get(operand);
                match x.dtype() {
                    DType::Pred => x.convert(DType::F32),
                    _ => Ok(x),
                }
            });
            let all = all.collect::<Result<Vec<Tensor>>>()?;
            let call = trace.call(program.pass, &all.iter().collect::<Vec<&Tensor>>())?;
            for (place, &result) in program.results.iter().enumerate() {
                parts[index].insert(result, call_result(&call, place)?);
            }
        }
        // What the call keeps to itself nobody reads.
        Ok(parts[index].get(&id).cloned().unwrap_or_else(|| {
            let mut results = parts[index].values();
            results.next().expect("a group has a result").clone()
        }))
    })
}

/// Whether a node's value has to be there once, for all that read it.
fn is_kept(graph: &Graph, node: &GraphNode) -> bool {
    let is_computed = |&id: &NodeId| {
        let op = &graph.nodes[id as usize].op;
        matches!(op, Op::Unary(_) | Op::Binary(_))
    };
    node.op == Op::Barrier
        && node.shape.dtype == DType::F32
        && node.operands.first().is_some_and(is_computed)
}

/// A copy by a call.
fn copy(trace: &Trace, x: &Tensor) -> Result<Tensor> {
    let form = PassForm::Array(x.dtype(), None);
    let pass = OnePass {
        dims: x.dims().to_vec(),
        blocks: Vec::new(),
        // An operand as it is can be no result.
        steps: vec![
            Step::Constant(F64::new(1.0)),
            Step::Binary(Binary::Mul, 0, 1),
        ],
        results: vec![PassResult { value: 2, form }],
    };
    let call = trace.call(pass, &[x])?;
    call_result(&call, 0)
}

/// Nodes that become one call.
struct Group {
    /// In their order.
    nodes: Vec<NodeId>,
    /// Those of `nodes` that others need as arrays.
    arrays: Vec<NodeId>,
    /// The values that are summed, by the node that is the sum.
    sums: BTreeMap<NodeId, NodeId>,
    /// The nodes that make the sums.
    reductions: Vec<NodeId>,
}

/// Whether a call can compute the node: an element-wise operation of an update over arrays.
fn is_candidate(graph: &Graph, node: NodeId) -> bool {
    let node = &graph.nodes[node as usize];
    if matches!(node.op, Op::KernelCodes(_)) {
        return true;
    }
    let is_scale = |id: &NodeId| is_scales(&graph.nodes[*id as usize]);
    if node.provenance.phase != Phase::Update
        || node.shape.rank() == 0
        || node.operands.iter().any(is_scale)
    {
        return false;
    }
    let is_f32 = |id: &NodeId| graph.nodes[*id as usize].shape.dtype == DType::F32;
    let all_f32 = node.shape.dtype == DType::F32 && node.operands.iter().all(is_f32);
    match &node.op {
        Op::Unary(Unary::Neg | Unary::Abs | Unary::Sign | Unary::Sqrt | Unary::Rsqrt) => all_f32,
        Op::Binary(
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min,
        ) => all_f32,
        Op::Select => {
            let condition = scalar(graph, node.operands[0]);
            condition.is_some() && node.shape.dtype == DType::F32
        }
        Op::Convert(DType::F32) => {
            graph.nodes[node.operands[0] as usize].shape.dtype == DType::BF16
        }
        Op::Convert(DType::BF16) => is_f32(&node.operands[0]),
        _ => false,
    }
}

/// Whether a node gives a number for each block of an array.
fn is_scales(node: &GraphNode) -> bool {
    matches!(&node.op, Op::KernelCodes(part) if matches!(**part, BlockCodes::Scales { .. }))
}

/// The scalar that a node broadcasts.
fn scalar(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let node = &graph.nodes[node as usize];
    let of = *node.operands.first()?;
    let is_scalar = graph.nodes[of as usize].shape.rank() == 0;
    (matches!(node.op, Op::Broadcast { .. }) && is_scalar).then_some(of)
}

/// How many times each value has left candidates and come back to others: what differs in this cannot
/// be one call, which would wait for itself. As late as its readers allow, so that what is made of the
/// state alone waits for what needs the norm of all gradients.
fn depths(graph: &Graph, candidates: &[bool], readers: &[Vec<NodeId>]) -> Vec<u32> {
    let count = graph.nodes.len();
    let mut depths = vec![0u32; count];
    for (id, node) in graph.nodes.iter().enumerate() {
        let least = |&operand: &NodeId| {
            let operand = operand as usize;
            depths[operand] + u32::from(candidates[operand] && !candidates[id])
        };
        depths[id] = node.operands.iter().map(least).max().unwrap_or(0);
    }
    for id in (0..count).rev().filter(|&id| candidates[id]) {
        let most = |&reader: &NodeId| {
            let reader = reader as usize;
            depths[reader] - u32::from(!candidates[reader])
        };
        depths[id] = readers[id].iter().map(most).min().unwrap_or(depths[id]);
    }
    depths
}

/// The groups that gain: those with several results, with a sum, or with codes.
fn groups(graph: &Graph) -> Vec<Group> {
    let count = graph.nodes.len();
    let candidates: Vec<bool> = (0..count as NodeId)
        .map(|id| is_candidate(graph, id))
        .collect();
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); count];
    for (id, node) in graph.nodes.iter().enumerate() {
        for &operand in &node.operands {
            readers[operand as usize].push(id as NodeId);
        }
    }
    let depths = depths(graph, &candidates, &readers);
    // Of each candidate the first of its group, where both are at one depth.
    let mut first: Vec<usize> = (0..count).collect();
    fn root(first: &mut [usize], mut id: usize) -> usize {
        while first[id] != id {
            first[id] = first[first[id]];
            id = first[id];
        }
        id
    }
    let mut join = |a: usize, b: usize| {
        let (a, b) = (root(&mut first, a), root(&mut first, b));
        first[a.max(b)] = a.min(b);
    };
    for id in (0..count).filter(|&id| candidates[id]) {
        for &operand in &graph.nodes[id].operands {
            let operand = operand as usize;
            if candidates[operand] && depths[operand] == depths[id] {
                join(operand, id);
            }
        }
    }
    // Those that read one array, too: Lion's moment and its weight have no more in common.
    for (id, readers) in readers.iter().enumerate() {
        if candidates[id] || scalar(graph, id as NodeId).is_some() {
            continue;
        }
        let inside = readers.iter().map(|&reader| reader as usize);
        let mut inside: Vec<usize> = inside.filter(|&reader| candidates[reader]).collect();
        inside.sort_by_key(|&reader| depths[reader]);
        for pair in inside.windows(2) {
            if depths[pair[0]] == depths[pair[1]] {
                join(pair[0], pair[1]);
            }
        }
    }
    let roots: Vec<usize> = (0..count).map(|id| root(&mut first, id)).collect();

    let mut is_output = vec![false; count];
    for output in &graph.outputs {
        is_output[output.node as usize] = true;
    }
    // The reductions, the last of which is the sum of all elements of what `reader` reduces.
    let sum = |reader: NodeId| -> Option<Vec<NodeId>> {
        let mut chain = vec![reader];
        loop {
            let last = *chain.last()?;
            let node = &graph.nodes[last as usize];
            let Op::Reduce {
                kind: Reduction::Sum,
                ..
            } = node.op
            else {
                return None;
            };
            if node.shape.rank() == 0 {
                return Some(chain);
            }
            match readers[last as usize][..] {
                [next] if !is_output[last as usize] => chain.push(next),
                _ => return None,
            }
        }
    };

    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for id in (0..count).filter(|&id| candidates[id]) {
        let group = groups.entry(roots[id]).or_insert_with(|| Group {
            nodes: Vec::new(),
            arrays: Vec::new(),
            sums: BTreeMap::new(),
            reductions: Vec::new(),
        });
        group.nodes.push(id as NodeId);
        let mut is_needed = is_output[id];
        for &reader in &readers[id] {
            let is_inside = candidates[reader as usize] && roots[reader as usize] == roots[id];
            match sum(reader) {
                _ if is_inside => {}
                Some(chain) => {
                    group.sums.insert(chain[chain.len() - 1], id as NodeId);
                    group.reductions.extend(chain);
                }
                None => is_needed = true,
            }
        }
        if is_needed {
            group.arrays.push(id as NodeId);
        }
    }
    let has_codes = |group: &Group| {
        let mut nodes = group.nodes.iter().map(|&id| &graph.nodes[id as usize]);
        nodes.any(|node| matches!(node.op, Op::KernelCodes(_)))
    };
    let gains =
        |group: &Group| group.arrays.len() > 1 || !group.sums.is_empty() || has_codes(group);
    groups.into_values().filter(gains).collect()
}

/// A group as a call.
struct Program {
    pass: OnePass,
    operands: Vec<NodeId>,
    /// The nodes that the call's results are.
    results: Vec<NodeId>,
}

impl Program {
    fn of(graph: &Graph, group: &Group, states: &HashMap<NodeId, NodeId>) -> Program {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let is_inside = |id: &NodeId| group.nodes.binary_search(id).is_ok();
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
            all.filter(|id| !is_inside(id)).copied()
        };
        let mut operands: Vec<NodeId> = Vec::new();
        let mut values: HashMap<NodeId, u32> = HashMap::new();
        for id in outside().filter(|&id| constant(id).is_none()) {
            let operand = scalar(graph, id).unwrap_or(id);
            let known = operands.iter().position(|&known| known == operand);
            let place = known.unwrap_or_else(|| {
                operands.push(operand);
                operands.len() - 1
            });
            values.insert(id, place as u32);
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut add = |step: Step| {
            let known = steps.iter().position(|known| *known == step);
            let place = known.unwrap_or_else(|| {
                steps.push(step);
                steps.len() - 1
            });
            (operands.len() + place) as u32
        };
        for id in outside() {
            if let Some(value) = constant(id) {
                values.insert(id, add(Step::Constant(F64::new(value.get()))));
            }
        }
        for &id in &group.nodes {
            let x = |index: usize| values[&node(id).operands[index]];
            let value = match &node(id).op {
                Op::KernelCodes(part) => add(match **part {
                    BlockCodes::Decode(map) => Step::Decode(map, x(0), x(1)),
                    BlockCodes::Scales { floor, .. } => Step::Scales(floor, x(0)),
                    BlockCodes::Encode(map) => Step::Encode(map, x(0), x(1)),
                }),
                Op::Unary(op) => add(Step::Unary(*op, x(0))),
                Op::Binary(op) => add(Step::Binary(*op, x(0), x(1))),
                Op::Select => add(Step::Select(x(0), x(1), x(2))),
                Op::Convert(DType::BF16) => add(Step::Round(x(0))),
                // From bf16: the same number.
                _ => x(0),
            };
            values.insert(id, value);
        }
        let mut donated = Vec::new();
        let mut results = Vec::new();
        for &id in &group.arrays {
            let operand = states
                .get(&id)
                .and_then(|state| operands.iter().position(|operand| operand == state))
                .filter(|operand| !donated.contains(operand));
            donated.extend(operand);
            let operand = operand.map(|index| index as u32);
            let form = if is_scales(node(id)) {
                PassForm::Blocks(operand)
            } else {
                PassForm::Array(node(id).shape.dtype, operand)
            };
            let value = values[&id];
            results.push((id, PassResult { value, form }));
        }
        for (&sum, id) in &group.sums {
            let (value, form) = (values[id], PassForm::Sum);
            results.push((sum, PassResult { value, form }));
        }
        let (nodes, results): (Vec<NodeId>, Vec<PassResult>) = results.into_iter().unzip();
        let mut inside = group.nodes.iter().map(|&id| node(id));
        let array = inside.clone().find(|node| !is_scales(node));
        let dims = array.map_or_else(
            || node(node(group.nodes[0]).operands[0]).shape.dims.to_vec(),
            |array| array.shape.dims.to_vec(),
        );
        let blocks = inside.find_map(|node| {
            let scales = match &node.op {
                Op::KernelCodes(part) => match **part {
                    BlockCodes::Scales { .. } => Some(&node.shape),
                    _ => Some(&graph.nodes[node.operands[1] as usize].shape),
                },
                _ => None,
            };
            scales.map(|shape| shape.dims.to_vec())
        });
        Program {
            pass: OnePass {
                dims,
                blocks: blocks.unwrap_or_default(),
                steps,
                results,
            },
            operands,
            results: nodes,
        }
    }
}

/// By the nodes whose values replace the graph's states: the inputs that those are.
fn replaced_states(graph: &Graph) -> HashMap<NodeId, NodeId> {
    let mut inputs = vec![0; graph.inputs.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        if let Op::Input(index) = node.op {
            inputs[index as usize] = id as NodeId;
        }
    }
    let aliases = graph.aliases();
    aliases
        .map(|(_, input, output)| (graph.outputs[output].node, inputs[input]))
        .collect()
}
