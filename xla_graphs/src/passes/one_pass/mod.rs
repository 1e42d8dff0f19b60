//! Makes element-wise operations calls of the CPU plugin (`native/cpp/kernels/one_pass.h`): the update of a
//! parameter, and the operations between a layer's matmuls, such as activations, gates, rotations and their
//! gradients.
//!
//! XLA's CPU writes one array a loop, so that AdamW's moments and weight are three loops, each of
//! which reads the gradient again, and a sum of squares is a loop that writes the squares and
//! another that reads them. The time is that of the memory's traffic: a call reads
//! and writes each array once. Whatever recorded them, all element-wise nodes
//! that hang together are one call, with a result for each value that is needed outside and, of an update,
//! for each sum over all elements. Of a layer's nodes those are taken that gain: a function that each of
//! XLA's loops would compute again, or results that are parts of one array.
//!
//! Slices, transpositions and broadcasts of what a call reads are strides (`views.rs`), and so are
//! concatenations of what it writes (`joins.rs`).
//!
//! A barrier behind an element-wise operation in f32 is a call too, one that copies: XLA's CPU drops
//! barriers before it fuses, and would compute what stands before one again for every element that
//! reads it (the sines and cosines of rotary positions for each head of each layer).
//!
//! Before: primitives. After: the same operations, but that XLA contracts multiplications and
//! additions, sums in another order, and of a layer's nodes in bf16 that values inside of a call are not
//! rounded.

mod groups;
mod joins;
mod program;
mod views;

use super::rebuild::{record, together};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, GraphNode, NodeId};
use crate::nn::call_result;
use crate::op::{Binary, F64, OnePass, Op, PassForm, PassResult, Step};
use crate::target::Target;
use crate::trace::{Tensor, Trace};
use groups::{Group, Groups};
use program::Program;
use std::collections::HashMap;
use views::is_widened;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    let Target::Cpu(kernels) = target else {
        return Ok(graph.clone());
    };
    if !target.has_passes() {
        return Ok(graph.clone());
    }
    let graph = &joins::rewrite(graph)?;
    let states = replaced_states(graph);
    let groups = Groups::of(graph, kernels).gaining();
    let programs = groups
        .iter()
        .map(|group| Program::of(graph, group, &states));
    let (groups, programs): (Vec<&Group>, Vec<Program>) = groups
        .iter()
        .zip(programs)
        .filter(|(_, program)| program.pass.is_possible())
        .unzip();
    if groups.is_empty() && !graph.nodes.iter().any(|node| is_kept(graph, node)) {
        return Ok(graph.clone());
    }
    let mut group_of = vec![None; graph.nodes.len()];
    for (index, group) in groups.iter().enumerate() {
        for node in group.all() {
            group_of[node as usize] = Some(index);
        }
    }
    // The results of each group by their nodes, once its first node was met.
    let mut parts: Vec<HashMap<NodeId, Tensor>> = vec![HashMap::new(); groups.len()];
    graph.rebuild_in(&together(graph, &group_of), |trace, id, replaced| {
        let node = &graph.nodes[id as usize];
        let operands = || node.operands.iter().map(|&operand| replaced.get(operand));
        let Some(index) = group_of[id as usize] else {
            let x: Vec<Tensor> = operands().collect();
            let made = if is_kept(graph, node) {
                copy(trace, &x[0])
            } else {
                record(trace, &node.op, &x)
            };
            return made.map(Some);
        };
        if parts[index].is_empty() {
            let program = &programs[index];
            let all = program.operands.iter().map(|&operand| {
                let x = replaced.get(operand);
                match x.dtype() {
                    DType::BF16 if x.rank() == 0 => x.convert(DType::F32),
                    DType::Pred => x.convert(DType::F32),
                    _ => Ok(x),
                }
            });
            let all = all.collect::<Result<Vec<Tensor>>>()?;
            let call = trace.call(program.pass.clone(), &all.iter().collect::<Vec<&Tensor>>())?;
            for (place, &result) in program.results.iter().enumerate() {
                parts[index].insert(result, call_result(&call, place)?);
            }
        }
        let known = |id: NodeId| parts[index].get(&id).cloned();
        if let Some(result) = known(id) {
            return Ok(Some(result));
        }
        if !is_widened(graph, id) {
            return Ok(None);
        }
        let from = node.operands[0];
        let narrow = if group_of[from as usize] == Some(index) {
            known(from)
        } else {
            Some(replaced.get(from))
        };
        narrow.map(|x| x.convert(DType::F32)).transpose()
    })
}

/// Whether a node's value has to be there once, for all that read it.
fn is_kept(graph: &Graph, node: &GraphNode) -> bool {
    let is_computed = |&id: &NodeId| {
        let op = &graph.nodes[id as usize].op;
        matches!(op, Op::Unary(_) | Op::Binary(_))
    };
    node.op == Op::Barrier
        && node.shape.rank() > 0
        && node.shape.dtype == DType::F32
        && node.operands.first().is_some_and(is_computed)
}

/// A copy by a call.
fn copy(trace: &Trace, x: &Tensor) -> Result<Tensor> {
    let form = PassForm::Array(x.dtype(), None);
    let pass = OnePass {
        dims: x.dims().to_vec(),
        // An operand as it is can be no result.
        steps: vec![
            Step::Constant(F64::new(1.0)),
            Step::Binary(Binary::Mul, 0, 1),
        ],
        results: vec![PassResult { value: 2, form }],
        ..OnePass::default()
    };
    let call = trace.call(pass, &[x])?;
    call_result(&call, 0)
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
