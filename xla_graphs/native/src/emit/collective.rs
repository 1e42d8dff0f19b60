//! Collectives, which XlaBuilder can emit only without groups or not at all: from markers,
//! all-reduces side by side to one instruction.

use super::ids::{Ids, local, only_computation};
use crate::proto::xla as pb;
use xtrain_graphs::op::ReplicaGroups;

/// Markers; the attribute of each is [`attribute`].
pub(super) const ALL_REDUCE: &str = "xt.all-reduce";
pub(super) const ALL_REDUCE_MAX: &str = "xt.all-max";
pub(super) const ALL_GATHER: &str = "xt.all-gather";
pub(super) const REDUCE_SCATTER: &str = "xt.reduce-scatter";

/// Marker, HLO opcode, what two values become where the replicas' are folded, whether it works
/// along a dimension.
const KINDS: [(&str, &str, Option<&str>, bool); 4] = [
    (ALL_REDUCE, "all-reduce", Some("add"), false),
    (ALL_REDUCE_MAX, "all-reduce", Some("maximum"), false),
    (ALL_GATHER, "all-gather", None, true),
    (REDUCE_SCATTER, "reduce-scatter", Some("add"), true),
];

/// An exchange as a marker's attribute: little-endian words, the bucket, the dimension, the group
/// size, the members of all groups.
pub(super) fn attribute(exchange: &ReplicaGroups, dim: usize) -> Vec<u8> {
    let words = [exchange.bucket, dim as u32, exchange.group_size() as u32];
    words
        .into_iter()
        .chain(exchange.groups.iter().flatten().copied())
        .flat_map(u32::to_le_bytes)
        .collect()
}

fn words(attribute: &[u8]) -> impl Iterator<Item = i64> {
    attribute
        .chunks_exact(4)
        .map(|word| i64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
}

/// The groups of an [`attribute`].
fn groups(attribute: &[u8]) -> Result<Vec<pb::ReplicaGroup>, String> {
    let mut words = words(attribute);
    let size = words
        .nth(2)
        .filter(|size| *size > 0)
        .ok_or("a collective without groups")?;
    let members: Vec<i64> = words.collect();
    Ok(members
        .chunks(size as usize)
        .map(|group| pb::ReplicaGroup {
            replica_ids: group.to_vec(),
        })
        .collect())
}

/// Turns every run of markers with one attribute and element type into one all-reduce of as many
/// operands. What a marker was becomes the result's element, under the marker's id, so that its
/// users need not change.
pub(super) fn merge(module: &mut pb::HloModuleProto) -> Result<(), String> {
    let entry = module.entry_computation_id;
    let position = module
        .computations
        .iter()
        .position(|c| c.id == entry)
        .ok_or("it has no entry computation")?;
    if !module.computations[position]
        .instructions
        .iter()
        .any(is_marker)
    {
        return Ok(());
    }
    let mut ids = Ids::after(module);
    let mut folds: Vec<pb::HloComputationProto> = Vec::new();
    let instructions = std::mem::take(&mut module.computations[position].instructions);
    let mut merged = Vec::with_capacity(instructions.len());
    let mut run: Vec<pb::HloInstructionProto> = Vec::new();
    for instruction in instructions {
        if run.first().is_some_and(|first| !joins(first, &instruction)) {
            finish_run(std::mem::take(&mut run), &mut merged, &mut folds, &mut ids)?;
        }
        if is_marker(&instruction) {
            run.push(instruction)
        } else {
            merged.push(instruction)
        }
    }
    finish_run(run, &mut merged, &mut folds, &mut ids)?;
    module.computations[position].instructions = merged;
    // A computation stands before those that call it.
    module.computations.splice(0..0, folds);
    Ok(())
}

/// Whether an instruction is one of this file's markers.
pub(super) fn is_marker(instruction: &pb::HloInstructionProto) -> bool {
    KINDS
        .iter()
        .any(|(marker, ..)| instruction.custom_call_target == *marker)
}

fn joins(first: &pb::HloInstructionProto, next: &pb::HloInstructionProto) -> bool {
    first.custom_call_target == ALL_REDUCE
        && next.custom_call_target == ALL_REDUCE
        && first.backend_config == next.backend_config
        && element_type(first) == element_type(next)
}

fn element_type(instruction: &pb::HloInstructionProto) -> i32 {
    instruction
        .shape
        .as_ref()
        .map_or(0, |shape| shape.element_type)
}

fn finish_run(
    run: Vec<pb::HloInstructionProto>,
    merged: &mut Vec<pb::HloInstructionProto>,
    folds: &mut Vec<pb::HloComputationProto>,
    ids: &mut Ids,
) -> Result<(), String> {
    let Some(first) = run.first() else {
        return Ok(());
    };
    let kind = KINDS
        .iter()
        .find(|(marker, ..)| first.custom_call_target == *marker);
    let (_, opcode, fold, has_dim) = *kind.ok_or("a marker of no kind")?;
    let mut all = pb::HloInstructionProto {
        opcode: opcode.into(),
        #[expect(
            deprecated,
            reason = "the newer field is not read by every plugin; this one is"
        )]
        replica_groups: groups(&first.backend_config)?,
        dimensions: if has_dim {
            words(&first.backend_config).skip(1).take(1).collect()
        } else {
            Vec::new()
        },
        called_computation_ids: fold
            .map(|fold| computation(fold, element_type(first), folds, ids))
            .into_iter()
            .collect(),
        operand_ids: run
            .iter()
            .flat_map(|marker| marker.operand_ids.iter().copied())
            .collect(),
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
        tuple_shapes: run
            .iter()
            .map(|marker| marker.shape.clone().unwrap_or_default())
            .collect(),
        ..Default::default()
    });
    let tuple = all.id;
    merged.push(all);
    merged.extend(
        run.into_iter()
            .enumerate()
            .map(|(index, marker)| pb::HloInstructionProto {
                name: marker.name,
                id: marker.id,
                opcode: "get-tuple-element".into(),
                shape: marker.shape,
                metadata: marker.metadata,
                operand_ids: vec![tuple],
                tuple_index: index as i64,
                ..Default::default()
            }),
    );
    Ok(())
}

/// The id of the computation that folds two scalars by an HLO operation, made if it is not among
/// `folds`.
fn computation(
    fold: &str,
    element_type: i32,
    folds: &mut Vec<pb::HloComputationProto>,
    ids: &mut Ids,
) -> i64 {
    let of_type = |known: &&pb::HloComputationProto| {
        known.instructions[0]
            .shape
            .as_ref()
            .is_some_and(|shape| shape.element_type == element_type)
            && known.instructions[2].opcode == fold
    };
    if let Some(known) = folds.iter().find(of_type) {
        return known.id;
    }
    let made = fold_of(fold, element_type, ids);
    let id = made.id;
    folds.push(made);
    id
}

/// The computation of two scalars.
fn fold_of(fold: &str, element_type: i32, ids: &mut Ids) -> pb::HloComputationProto {
    let scalar = pb::ShapeProto {
        element_type,
        layout: Some(Default::default()),
        ..Default::default()
    };
    let id = ids.within(0);
    let [a, b, result] = [(); 3].map(|()| ids.within(id));
    let instruction = |opcode: &str, id: i64| pb::HloInstructionProto {
        name: format!("{opcode}.{}", local(id)),
        opcode: opcode.into(),
        shape: Some(scalar.clone()),
        id,
        ..Default::default()
    };
    pb::HloComputationProto {
        name: format!("{fold}.computation.{id}"),
        instructions: vec![
            instruction("parameter", a),
            pb::HloInstructionProto {
                parameter_number: 1,
                ..instruction("parameter", b)
            },
            pb::HloInstructionProto {
                operand_ids: vec![a, b],
                ..instruction(fold, result)
            },
        ],
        program_shape: Some(pb::ProgramShapeProto {
            parameters: vec![scalar.clone(), scalar.clone()],
            result: Some(scalar.clone()),
            parameter_names: vec!["a".into(), "b".into()],
        }),
        id,
        root_id: result,
        ..Default::default()
    }
}
