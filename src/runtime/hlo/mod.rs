//! HLO modules as they leave the emitter and the compiler: the fields of XLA's protobufs that are
//! read here, under their numbers in `xla/service/hlo.proto` and `xla/xla_data.proto`, and the one
//! change that is made to a finished module.

pub mod launch_stats;
mod memory_traffic;
pub mod stats;

use crate::runtime::error::{Error, Result};
use prost::Message;
use std::collections::HashSet;

#[derive(Clone, PartialEq, Message)]
pub struct Module {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    pub entry_computation_id: i64,
    #[prost(message, optional, tag = "8")]
    pub input_output_alias: Option<Aliases>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Computation {
    #[prost(message, repeated, tag = "2")]
    pub instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    pub id: i64,
    #[prost(int64, tag = "6")]
    pub root_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Instruction {
    #[prost(string, tag = "2")]
    pub opcode: String,
    #[prost(message, optional, tag = "3")]
    pub shape: Option<Shape>,
    #[prost(message, optional, tag = "7")]
    pub metadata: Option<Metadata>,
    #[prost(int64, tag = "9")]
    pub parameter_number: i64,
    #[prost(message, optional, tag = "8")]
    pub literal: Option<Literal>,
    #[prost(int64, repeated, tag = "14")]
    pub dimensions: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    pub window: Option<Window>,
    #[prost(string, tag = "28")]
    pub custom_call_target: String,
    #[prost(message, optional, tag = "33")]
    pub gather_dimension_numbers: Option<GatherDimensions>,
    #[prost(int64, repeated, tag = "34")]
    pub gather_slice_sizes: Vec<i64>,
    #[prost(int64, tag = "35")]
    pub id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub called_computation_ids: Vec<i64>,
    #[prost(message, optional, tag = "48")]
    pub scatter_dimension_numbers: Option<ScatterDimensions>,
    /// A target's own attributes; for XLA:GPU JSON.
    #[prost(bytes = "vec", tag = "43")]
    pub backend_config: Vec<u8>,
    #[prost(message, repeated, tag = "49")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(message, optional, tag = "51")]
    pub precision_config: Option<PrecisionConfig>,
    #[prost(message, repeated, tag = "52")]
    pub source_target_pairs: Vec<SourceTarget>,
    #[prost(string, tag = "63")]
    pub comparison_direction: String,
    /// 0: the compiler's own; 1: Threefry, 2: Philox.
    #[prost(int32, tag = "70")]
    pub rng_algorithm: i32,
    #[prost(message, optional, tag = "87")]
    pub collective_device_list: Option<DeviceList>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(int32, tag = "2")]
    pub element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub tuple_shapes: Vec<Shape>,
    #[prost(bool, repeated, tag = "6")]
    pub is_dynamic_dimension: Vec<bool>,
}

/// What a module says of itself from outside, which is all that is decoded of it.
#[derive(Clone, PartialEq, Message)]
pub struct Interface {
    #[prost(message, optional, tag = "4")]
    pub program_shape: Option<ProgramShape>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProgramShape {
    #[prost(message, repeated, tag = "1")]
    pub parameters: Vec<Shape>,
    #[prost(message, optional, tag = "2")]
    pub result: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PrecisionConfig {
    /// Of each operand; 0 lets the compiler round it, 2 does not.
    #[prost(int32, repeated, tag = "1")]
    pub operand_precision: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// `graph/model.path/operation`, as the emitter writes it.
    #[prost(string, tag = "2")]
    pub op_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Literal {
    #[prost(int32, repeated, tag = "4")]
    pub s32s: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    pub s64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "6")]
    pub u32s: Vec<u32>,
    #[prost(uint64, repeated, tag = "7")]
    pub u64s: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Window {
    #[prost(message, repeated, tag = "1")]
    pub dimensions: Vec<WindowDimension>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct WindowDimension {
    #[prost(int64, tag = "5")]
    pub window_dilation: i64,
    #[prost(int64, tag = "6")]
    pub base_dilation: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct GatherDimensions {
    #[prost(int64, repeated, tag = "1")]
    pub offset_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    pub start_index_map: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScatterDimensions {
    #[prost(int64, repeated, tag = "3")]
    pub scatter_dims_to_operand_dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReplicaGroup {
    #[prost(int64, repeated, tag = "1")]
    pub replica_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub replica_groups: Vec<ReplicaGroup>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SourceTarget {
    #[prost(int64, tag = "1")]
    pub source: i64,
    #[prost(int64, tag = "2")]
    pub target: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Aliases {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Alias>,
}

/// An output that is written into the memory of an input.
#[derive(Clone, PartialEq, Message)]
pub struct Alias {
    #[prost(int64, repeated, tag = "1")]
    pub output_shape_index: Vec<i64>,
    #[prost(int64, tag = "2")]
    pub parameter_number: i64,
    #[prost(int64, repeated, tag = "3")]
    pub parameter_shape_index: Vec<i64>,
    /// [`MAY_ALIAS`] or [`MUST_ALIAS`].
    #[prost(int32, tag = "4")]
    pub kind: i32,
}

pub const MAY_ALIAS: i32 = 1;
pub const MUST_ALIAS: i32 = 2;

impl Module {
    /// Decodes a module and makes sure that its instructions find their operands.
    pub fn read(bytes: &[u8]) -> Result<Module> {
        let mut module = Module::decode(bytes).map_err(|e| Error::ModuleBytes {
            reason: e.to_string(),
        })?;
        for computation in &mut module.computations {
            computation.use_local_ids();
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

    pub fn entry(&self) -> Option<&Computation> {
        self.computations
            .iter()
            .find(|computation| computation.id == self.entry_computation_id)
    }

    pub fn computation(&self, id: i64) -> Option<&Computation> {
        self.computations
            .iter()
            .find(|computation| computation.id == id)
    }
}

impl Computation {
    /// An instruction's own id has its computation's in the upper half, the ids of its operands
    /// have not.
    fn use_local_ids(&mut self) {
        let local = |id: &mut i64| *id &= 0xffff_ffff;
        local(&mut self.root_id);
        for instruction in &mut self.instructions {
            local(&mut instruction.id);
            instruction.operand_ids.iter_mut().for_each(local);
        }
    }
}

impl Instruction {
    /// The groups of a collective, in whichever of the two forms.
    pub fn groups(&self) -> &[ReplicaGroup] {
        match &self.collective_device_list {
            Some(list) if self.replica_groups.is_empty() => &list.replica_groups,
            _ => &self.replica_groups,
        }
    }
}

/// The same serialized module whose donations are promises instead of wishes: its compiler has to
/// reuse the memory or to refuse.
///
/// Fields that are not known here must survive, so the bytes are copied field by field and only the
/// aliases are written anew.
pub fn with_required_aliases(module: &[u8]) -> Result<Vec<u8>> {
    const ALIASES: u64 = 8;
    let broken = || Error::ModuleBytes {
        reason: "a field is cut off".into(),
    };
    let mut out = Vec::with_capacity(module.len() + 64);
    let mut rest = module;
    while !rest.is_empty() {
        let field = rest;
        let key = varint(&mut rest).ok_or_else(broken)?;
        let mut body: &[u8] = &[];
        match key & 7 {
            0 => drop(varint(&mut rest).ok_or_else(broken)?),
            1 => drop(take(&mut rest, 8).ok_or_else(broken)?),
            2 => {
                let length = varint(&mut rest)
                    .and_then(|n| usize::try_from(n).ok())
                    .ok_or_else(broken)?;
                body = take(&mut rest, length).ok_or_else(broken)?;
            }
            5 => drop(take(&mut rest, 4).ok_or_else(broken)?),
            _ => {
                return Err(Error::ModuleBytes {
                    reason: "a field has an unknown wire type".into(),
                });
            }
        }
        if key >> 3 != ALIASES {
            out.extend_from_slice(&field[..field.len() - rest.len()]);
            continue;
        }
        let mut aliases = Aliases::decode(body).map_err(|e| Error::ModuleBytes {
            reason: e.to_string(),
        })?;
        aliases
            .entries
            .iter_mut()
            .for_each(|alias| alias.kind = MUST_ALIAS);
        prost::encoding::message::encode(ALIASES as u32, &aliases, &mut out);
    }
    Ok(out)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_become_promises_and_nothing_else_changes() {
        let alias = |kind| Alias {
            output_shape_index: vec![2],
            parameter_number: 3,
            parameter_shape_index: vec![],
            kind,
        };
        let module = |kind| Module {
            name: "train".into(),
            entry_computation_id: 7,
            input_output_alias: Some(Aliases {
                entries: vec![alias(kind), alias(kind)],
            }),
            ..Default::default()
        };
        // A field that this file does not know, of each wire type.
        let foreign = [
            0x98, 0x06, 0x01, 0x99, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0x9a, 0x06, 2, 9, 9, 0x9d, 0x06,
            1, 2, 3, 4,
        ];
        let bytes = [&module(MAY_ALIAS).encode_to_vec()[..], &foreign].concat();
        let expected = [&module(MUST_ALIAS).encode_to_vec()[..], &foreign].concat();
        assert_eq!(with_required_aliases(&bytes).unwrap(), expected);
        for end in 1..bytes.len() {
            // Cut anywhere, it is an error or a shorter module, never a panic.
            let _ = with_required_aliases(&bytes[..end]);
        }
        assert!(
            with_required_aliases(&[0x0a, 200, 1])
                .unwrap_err()
                .to_string()
                .contains("cut off")
        );
    }
}
