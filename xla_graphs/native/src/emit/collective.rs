//! Collectives, which XlaBuilder can emit only without groups: from markers side by side to one instruction.

use crate::proto::xla as pb;
use xtrain_graphs::op::Exchange;

/// Marker of a sum over replicas; its attribute is [`attribute`].
pub(super) const ALL_REDUCE: &str = "xt.all-reduce";

/// An exchange as a marker's attribute: little-endian words, the bucket, the group size, the members of all groups.
pub(super) fn attribute(exchange: &Exchange) -> Vec<u8> {
    let size = exchange.groups.first().map_or(0, Vec::len) as u32;
    let words = [exchange.bucket, size].into_iter().chain(exchange.groups.iter().flatten().copied());
    words.flat_map(u32::to_le_bytes).collect()
}

/// The groups of an [`attribute`].
fn groups(attribute: &[u8]) -> Result<Vec<pb::ReplicaGroup>, String> {
    let mut words = attribute.chunks_exact(4).map(|word| i64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
    let size = words.nth(1).filter(|size| *size > 0).ok_or("a collective without groups")?;
    let members: Vec<i64> = words.collect();
    Ok(members.chunks(size as usize).map(|group| pb::ReplicaGroup { replica_ids: group.to_vec() }).collect())
}

/// Turns every run of markers with one attribute and element type into one all-reduce of as many operands. What a marker was
/// becomes the result's element, under the marker's id, so that its users need not change.
pub(super) fn merge(module: &mut pb::HloModuleProto) -> Result<(), String> {
    let entry = module.entry_computation_id;
    let position = module.computations.iter().position(|c| c.id == entry).ok_or("it has no entry computation")?;
    if !module.computations[position].instructions.iter().any(is_marker) {
        return Ok(());
    }
    let mut ids = Ids::after(module);
    let mut sums: Vec<pb::HloComputationProto> = Vec::new();
    let instructions = std::mem::take(&mut module.computations[position].instructions);
    let mut merged = Vec::with_capacity(instructions.len());
    let mut run: Vec<pb::HloInstructionProto> = Vec::new();
    for instruction in instructions {
        if run.first().is_some_and(|first| !joins(first, &instruction)) {
            finish_run(std::mem::take(&mut run), &mut merged, &mut sums, &mut ids)?;
        }
        if is_marker(&instruction) { run.push(instruction) } else { merged.push(instruction) }
    }
    finish_run(run, &mut merged, &mut sums, &mut ids)?;
    module.computations[position].instructions = merged;
    // A computation stands before those that call it.
    module.computations.splice(0..0, sums);
    Ok(())
}

fn is_marker(instruction: &pb::HloInstructionProto) -> bool {
    instruction.custom_call_target == ALL_REDUCE
}

fn joins(first: &pb::HloInstructionProto, next: &pb::HloInstructionProto) -> bool {
    is_marker(next) && first.backend_config == next.backend_config && element_type(first) == element_type(next)
}

fn element_type(instruction: &pb::HloInstructionProto) -> i32 {
    instruction.shape.as_ref().map_or(0, |shape| shape.element_type)
}

fn finish_run(
    run: Vec<pb::HloInstructionProto>,
    merged: &mut Vec<pb::HloInstructionProto>,
    sums: &mut Vec<pb::HloComputationProto>,
    ids: &mut Ids,
) -> Result<(), String> {
    let Some(first) = run.first() else { return Ok(()) };
    let sum =
        match sums.iter().find(|sum| sum.instructions[0].shape.as_ref().map(|s| s.element_type) == Some(element_type(first))) {
            Some(sum) => sum.id,
            None => {
                sums.push(sum_of(element_type(first), ids));
                sums[sums.len() - 1].id
            }
        };
    let mut all = pb::HloInstructionProto {
        opcode: "all-reduce".into(),
        #[expect(deprecated, reason = "the newer field is not read by every plugin; this one is")]
        replica_groups: groups(&first.backend_config)?,
        called_computation_ids: vec![sum],
        operand_ids: run.iter().flat_map(|marker| marker.operand_ids.iter().copied()).collect(),
        metadata: first.metadata.clone(),
        ..Default::default()
    };
    if let [only] = &run[..] {
        (all.name, all.id, all.shape) = (only.name.clone(), only.id, only.shape.clone());
        merged.push(all);
        return Ok(());
    }
    all.id = ids.within(only_computation(first.id));
    all.name = format!("all-reduce.{}", local(all.id));
    all.shape = Some(pb::ShapeProto {
        element_type: pb::PrimitiveType::Tuple as i32,
        tuple_shapes: run.iter().map(|marker| marker.shape.clone().unwrap_or_default()).collect(),
        ..Default::default()
    });
    let tuple = all.id;
    merged.push(all);
    merged.extend(run.into_iter().enumerate().map(|(index, marker)| pb::HloInstructionProto {
        name: marker.name,
        id: marker.id,
        opcode: "get-tuple-element".into(),
        shape: marker.shape,
        metadata: marker.metadata,
        operand_ids: vec![tuple],
        tuple_index: index as i64,
        ..Default::default()
    }));
    Ok(())
}

/// The computation `a + b` of two scalars.
fn sum_of(element_type: i32, ids: &mut Ids) -> pb::HloComputationProto {
    let scalar = pb::ShapeProto { element_type, layout: Some(Default::default()), ..Default::default() };
    let id = ids.within(0);
    let [a, b, sum] = [(); 3].map(|()| ids.within(id));
    let instruction = |opcode: &str, id: i64| pb::HloInstructionProto {
        name: format!("{opcode}.{}", local(id)),
        opcode: opcode.into(),
        shape: Some(scalar.clone()),
        id,
        ..Default::default()
    };
    pb::HloComputationProto {
        name: format!("sum.{id}"),
        instructions: vec![
            instruction("parameter", a),
            pb::HloInstructionProto { parameter_number: 1, ..instruction("parameter", b) },
            pb::HloInstructionProto { operand_ids: vec![a, b], ..instruction("add", sum) },
        ],
        program_shape: Some(pb::ProgramShapeProto {
            parameters: vec![scalar.clone(), scalar.clone()],
            result: Some(scalar.clone()),
            parameter_names: vec!["a".into(), "b".into()],
        }),
        id,
        root_id: sum,
        ..Default::default()
    }
}

/// An instruction's id has its computation's in the upper half; XLA tells computations and instructions apart by the lower half.
fn local(id: i64) -> i64 {
    id & i64::from(u32::MAX)
}

/// The computation's part of an instruction's id.
fn only_computation(id: i64) -> i64 {
    id >> 32
}

/// Ids that the module does not use yet.
struct Ids(i64);

impl Ids {
    fn after(module: &pb::HloModuleProto) -> Self {
        let of = |c: &pb::HloComputationProto| c.instructions.iter().map(|i| local(i.id)).chain([local(c.id)]).max();
        Ids(module.computations.iter().filter_map(of).max().unwrap_or(0))
    }

    /// For an instruction of a computation, or with 0 for a computation.
    fn within(&mut self, computation: i64) -> i64 {
        self.0 += 1;
        computation << 32 | self.0
    }
}
