//! HLO modules as they leave the emitter and the compiler, in the types that `xtrain_proto` generates
//! from XLA's descriptors, and the one change that is made to a finished module.
//!
//! `launched` walks over what a compiled module launches. On it stand `stats`, which counts kernels,
//! and `kernels`, which says of each what it is and does, with `memory_traffic` for the bytes that it
//! moves and `matmul_work` for its FLOPs. `live_buffers` lists what a module holds over its schedule,
//! `launch_stats` reads XLA:GPU's dumps.

pub mod kernels;
pub mod launch_stats;
mod launched;
pub mod live_buffers;
mod matmul_work;
mod memory_traffic;
#[cfg(test)]
mod recorded;
pub mod stats;

use crate::error::{Error, Result};
use prost::Message;
use std::collections::{BTreeSet, HashSet};
pub use xtrain_proto::xla::{
    CollectiveDeviceListProto as CollectiveDeviceList, GatherDimensionNumbers,
    HloComputationProto as Computation, HloInputOutputAliasProto as Aliases,
    HloInstructionProto as Instruction, HloModuleProto as Module, Kind as AliasKind,
    LiteralProto as Literal, OpMetadata, PrecisionConfig, PrimitiveType,
    ProgramShapeProto as ProgramShape, ReplicaGroup, ScatterDimensionNumbers, ShapeProto as Shape,
    SourceTarget, Window, WindowDimension, hlo_input_output_alias_proto::AliasEntryProto as Alias,
    hlo_instruction_proto::ReplicaGroupList, precision_config::Precision,
};

/// Decodes a serialized HloModuleProto.
///
/// # Errors
/// The bytes are no module.
pub fn decode(bytes: &[u8]) -> Result<Module> {
    Module::decode(bytes).map_err(|e| Error::ModuleBytes {
        reason: e.to_string(),
    })
}

/// Decodes a serialized HloModuleProto, with instruction ids local to their computation, and makes
/// sure that instructions find their operands.
///
/// # Errors
/// The bytes are no module, or an operand is no instruction of its computation.
pub fn read(bytes: &[u8]) -> Result<Module> {
    let mut module = decode(bytes)?;
    for computation in &mut module.computations {
        use_local_ids(computation);
        let known: HashSet<i64> = computation
            .instructions
            .iter()
            .map(|instruction| instruction.id)
            .collect();
        let mut operands = computation
            .instructions
            .iter()
            .flat_map(|instruction| &instruction.operand_ids);
        if let Some(lost) = operands.find(|id| !known.contains(id)) {
            return Err(Error::ModuleBytes {
                reason: format!("an operand, {lost}, is no instruction of its computation"),
            });
        }
    }
    Ok(module)
}

/// An instruction's own id has its computation's in the upper half, the ids of its operands have
/// not.
fn use_local_ids(computation: &mut Computation) {
    let local = |id: &mut i64| *id = local_id(id);
    local(&mut computation.root_id);
    for instruction in &mut computation.instructions {
        local(&mut instruction.id);
        instruction.operand_ids.iter_mut().for_each(local);
    }
}

fn local_id(id: &i64) -> i64 {
    id & 0xffff_ffff
}

/// A target's own attributes as JSON; null if they are none.
fn config(instruction: &Instruction) -> serde_json::Value {
    serde_json::from_slice(&instruction.backend_config).unwrap_or_default()
}

/// The parameters of a compiled module whose memory becomes a result's: those whose donation the
/// compiler took.
///
/// # Errors
/// The bytes are no module.
pub fn aliased_parameters(module: &[u8]) -> Result<BTreeSet<usize>> {
    let module = decode(module)?;
    let entries = module.input_output_alias.iter().flat_map(|a| &a.entries);
    Ok(entries
        .filter_map(|alias| usize::try_from(alias.parameter_number).ok())
        .collect())
}

/// The parameters of a module.
///
/// # Errors
/// The bytes are no module.
pub fn parameter_count(module: &[u8]) -> Result<usize> {
    let module = decode(module)?;
    let shape = module
        .host_program_shape
        .map(|shape| shape.parameters.len());
    Ok(shape.unwrap_or_default())
}

/// The model's path of what an instruction computes; empty where the compiler made it up.
fn op_name(instruction: &Instruction) -> String {
    let metadata = instruction.metadata.as_ref();
    metadata
        .map(|metadata| metadata.op_name.clone())
        .unwrap_or_default()
}

/// The computation of a module with this id.
pub fn computation(module: &Module, id: i64) -> Option<&Computation> {
    module.computations.iter().find(|c| c.id == id)
}

/// A module's entry computation.
pub fn entry(module: &Module) -> Option<&Computation> {
    computation(module, module.entry_computation_id)
}

/// The replica groups of a collective, in whichever of the two forms that list them.
pub fn replica_groups(instruction: &Instruction) -> &[ReplicaGroup] {
    if let Some(ReplicaGroupList::CollectiveDeviceList(list)) = &instruction.replica_group_list {
        return &list.replica_groups;
    }
    #[expect(
        deprecated,
        reason = "the form of older emitters, which Neuron's compiler reads"
    )]
    &instruction.replica_groups
}

/// Bytes of an array of this type per element as XLA's CPU and GPU lay it out: no padding, and
/// numbers of under a byte take one. 0 for what is no array.
pub(super) fn element_bytes(element: PrimitiveType) -> u64 {
    match element {
        PrimitiveType::Token
        | PrimitiveType::OpaqueType
        | PrimitiveType::Tuple
        | PrimitiveType::Invalid => 0,
        PrimitiveType::S16 | PrimitiveType::U16 | PrimitiveType::F16 | PrimitiveType::Bf16 => 2,
        PrimitiveType::S32 | PrimitiveType::U32 | PrimitiveType::F32 => 4,
        PrimitiveType::S64 | PrimitiveType::U64 | PrimitiveType::F64 | PrimitiveType::C64 => 8,
        PrimitiveType::C128 => 16,
        // PRED, the 8-bit types and smaller ones.
        _ => 1,
    }
}

/// Bytes of an array; 0 for a tuple.
pub(super) fn array_bytes(shape: &Shape) -> u64 {
    let elements: u64 = shape.dimensions.iter().map(|&d| d.max(0) as u64).product();
    elements * element_bytes(shape.element_type())
}

/// The same serialized module whose donations must be honoured: its compiler has to reuse the
/// memory or to fail.
///
/// # Errors
/// The bytes are no module.
pub fn with_required_aliases(module: &[u8]) -> Result<Vec<u8>> {
    let mut module = decode(module)?;
    for alias in module
        .input_output_alias
        .iter_mut()
        .flat_map(|a| &mut a.entries)
    {
        alias.set_kind(AliasKind::MustAlias);
    }
    Ok(module.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_become_promises_and_nothing_else_changes() {
        let module = |kind: AliasKind| {
            let alias = Alias {
                output_shape_index: vec![2],
                parameter_number: 3,
                parameter_shape_index: vec![],
                kind: kind.into(),
            };
            Module {
                name: "train".into(),
                entry_computation_id: 7,
                is_dynamic: true,
                input_output_alias: Some(Aliases {
                    entries: vec![alias.clone(), alias],
                }),
                ..Default::default()
            }
            .encode_to_vec()
        };
        let bytes = module(AliasKind::MayAlias);
        assert_eq!(
            with_required_aliases(&bytes).unwrap(),
            module(AliasKind::MustAlias)
        );
        for end in 1..bytes.len() {
            // Cut anywhere, it is an error or a shorter module, never a panic.
            let _ = with_required_aliases(&bytes[..end]);
        }
        assert!(with_required_aliases(&[0x0a, 200, 1]).is_err());
    }
}
