//! Loops, which XlaBuilder has no call for: the body and the condition are lowered as modules of
//! their own, whose computations then become the outer module's.

use super::ids::{Ids, local};
use super::shapes::{row_major, shape_proto, tuple};
use super::{Root, module};
use crate::proto::xla as pb;
use std::collections::HashMap;
use xtrain_graphs::op::{Comparison, Op};
use xtrain_graphs::{Graph, Shape, Trace};

/// The instruction that reads a result of a loop.
pub(super) fn part(
    body: &Graph,
    index: usize,
    shape: &Shape,
) -> Result<pb::HloInstructionProto, String> {
    match body.inputs.get(index) {
        Some(input) if input.shape == *shape => {}
        found => {
            let found = found.map_or("nothing".to_string(), |input| input.shape.to_string());
            return Err(format!("result {index} of `loop` is {found}, not {shape}"));
        }
    }
    Ok(pb::HloInstructionProto {
        opcode: "get-tuple-element".into(),
        tuple_index: index as i64,
        shape: Some(dense(shape)),
        ..Default::default()
    })
}

fn dense(shape: &Shape) -> pb::ShapeProto {
    shape_proto(shape, &row_major(shape.rank()))
}

/// Makes the `while` of a loop's marker, which is in the module's entry computation.
pub(super) fn finish(op: &Op, marker: i64, outer: &mut pb::HloModuleProto) -> Result<(), String> {
    let Op::Loop { body, trips } = op else {
        return Err("a loop's marker at a node that is none".into());
    };
    let condition = condition(body, *trips).map_err(|error| error.to_string())?;
    let state = tuple(
        body.inputs
            .iter()
            .map(|input| dense(&input.shape))
            .collect(),
    );
    let mut called = Vec::with_capacity(2);
    for (graph, root) in [(&**body, Root::Results), (&condition, Root::First)] {
        let inner = module(graph, root).map_err(|error| error.to_string())?;
        called.push(take_in(outer, inner, &state)?);
    }
    let entry = outer.entry_computation_id;
    let entry = outer
        .computations
        .iter_mut()
        .find(|c| c.id == entry)
        .ok_or("it has no entry computation")?;
    let marker = entry
        .instructions
        .iter_mut()
        .find(|i| i.id == marker)
        .ok_or("a loop's marker is gone")?;
    *marker = pb::HloInstructionProto {
        name: std::mem::take(&mut marker.name),
        opcode: "while".into(),
        shape: Some(state),
        metadata: marker.metadata.take(),
        id: marker.id,
        operand_ids: std::mem::take(&mut marker.operand_ids),
        called_computation_ids: called,
        ..Default::default()
    };
    Ok(())
}

/// Whether there is another iteration: the counter, the body's first input, is below the number of
/// them.
fn condition(body: &Graph, trips: u32) -> xtrain_graphs::Result<Graph> {
    let trace = Trace::new();
    let state: Vec<_> = body
        .inputs
        .iter()
        .map(|input| trace.input(input.name.clone(), input.shape.clone(), input.role))
        .collect();
    trace.output(
        "goes_on",
        &state[0].compare_scalar(Comparison::Lt, f64::from(trips))?,
    );
    trace.cut(&body.name)
}

/// Moves a module's computations into another, its entry as one of a single parameter, the tuple
/// `state`. Returns the entry's id.
fn take_in(
    outer: &mut pb::HloModuleProto,
    inner: pb::HloModuleProto,
    state: &pb::ShapeProto,
) -> Result<i64, String> {
    let mut ids = Ids::after(outer);
    let computations: HashMap<i64, i64> = inner
        .computations
        .iter()
        .map(|c| (local(c.id), ids.within(0)))
        .collect();
    let entry = inner.entry_computation_id;
    let mut moved = inner.computations;
    for computation in &mut moved {
        let id = computations[&local(computation.id)];
        let is_entry = computation.id == entry;
        let instructions: HashMap<i64, i64> = computation
            .instructions
            .iter()
            .map(|i| (local(i.id), ids.within(id)))
            .collect();
        for instruction in &mut computation.instructions {
            instruction.id = instructions[&local(instruction.id)];
            // Names are of one module, and only people read them.
            instruction.name = format!("{}.{}", instruction.opcode, local(instruction.id));
            for id in instruction
                .operand_ids
                .iter_mut()
                .chain(&mut instruction.control_predecessor_ids)
            {
                *id = instructions[&local(*id)];
            }
            for id in &mut instruction.called_computation_ids {
                *id = computations[&local(*id)];
            }
        }
        computation.id = id;
        computation.root_id = instructions[&local(computation.root_id)];
        computation.name = format!("{}.{id}", if is_entry { "loop" } else { "fold" });
        if is_entry {
            take_tuple(computation, ids.within(id), state)?;
        }
    }
    // A computation stands before those that call it.
    outer.computations.splice(0..0, moved);
    Ok(computations[&local(entry)])
}

/// Makes one parameter of many.
fn take_tuple(
    computation: &mut pb::HloComputationProto,
    parameter: i64,
    state: &pb::ShapeProto,
) -> Result<(), String> {
    for instruction in computation
        .instructions
        .iter_mut()
        .filter(|instruction| instruction.opcode == "parameter")
    {
        instruction.opcode = "get-tuple-element".into();
        instruction.tuple_index = std::mem::take(&mut instruction.parameter_number);
        instruction.operand_ids = vec![parameter];
    }
    let whole = pb::HloInstructionProto {
        name: format!("parameter.{}", local(parameter)),
        opcode: "parameter".into(),
        shape: Some(state.clone()),
        id: parameter,
        ..Default::default()
    };
    computation.instructions.insert(0, whole);
    let program = computation
        .program_shape
        .as_mut()
        .ok_or("a computation without a shape")?;
    (program.parameters, program.parameter_names) = (vec![state.clone()], vec!["state".into()]);
    Ok(())
}
