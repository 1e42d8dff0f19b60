//! The finishing pass over XlaBuilder's module: what xla-rs cannot say.
//!
//! Markers are custom calls with a name of ours ([`marker`]); each is rewritten in place as the
//! table [`REWRITES`] says, but for collectives, several of which may become one instruction
//! (`collective.rs`). To add an instruction: its name in `marker`, a line in the table, and, if it
//! needs more than an opcode, a function there that reads its attributes from the marker's
//! `backend_config` and sets the typed fields.
//!
//! Before: one [`NODE_MARKER`] precedes the instructions of each node. After: no marker is left,
//! each instruction's metadata names its operation and model path (`train/h.3.attn/dot`).

use super::collective;
use crate::proto::xla::{
    CustomCallApiVersion, FrontendAttributes, HloInstructionProto, HloModuleProto, OpMetadata,
    PrecisionConfig, precision_config,
};
use prost::Message;
use xtrain_graphs::Graph;
use xtrain_graphs::op::Op;

/// What tells our markers from custom calls that a compiler is to see (cuDNN's attention, for
/// example).
const PREFIX: &str = "xt.";

/// Stands in front of the instructions of a node; `backend_config` is its index (the number of
/// nodes for the root tuple).
pub(super) const NODE_MARKER: &str = "xt.node";

/// Targets of the marker custom calls.
pub(super) mod marker {
    pub const OPT_BARRIER: &str = "xt.opt-barrier";
    pub const BITCAST_CONVERT: &str = "xt.bitcast-convert";
    pub const TO_HOST: &str = "xt.to-host";
    pub const TO_DEVICE: &str = "xt.to-device";
    pub const SHIFT_LEFT: &str = "xt.shift-left";
    pub const SHIFT_RIGHT_LOGICAL: &str = "xt.shift-right-logical";
    /// Carries a whole instruction, encoded, in its `backend_config`; only the place in the graph
    /// is the marker's own.
    pub const INSTRUCTION: &str = "xt.instruction";
}

/// What a marker becomes: the opcode, and what else must be set from the marker's attributes.
type Rewrite = (
    &'static str,
    &'static str,
    fn(&mut HloInstructionProto) -> Result<(), String>,
);

/// Marker target, HLO opcode, attributes.
const REWRITES: &[Rewrite] = &[
    (marker::OPT_BARRIER, "opt-barrier", no_attributes),
    (marker::TO_HOST, "custom-call", in_host_memory),
    (marker::TO_DEVICE, "custom-call", in_device_memory),
    (marker::BITCAST_CONVERT, "bitcast-convert", no_attributes),
    (marker::SHIFT_LEFT, "shift-left", no_attributes),
    (
        marker::SHIFT_RIGHT_LOGICAL,
        "shift-right-logical",
        no_attributes,
    ),
];

fn no_attributes(_: &mut HloInstructionProto) -> Result<(), String> {
    Ok(())
}

fn in_host_memory(instruction: &mut HloInstructionProto) -> Result<(), String> {
    place(instruction, "pinned_host")
}

fn in_device_memory(instruction: &mut HloInstructionProto) -> Result<(), String> {
    place(instruction, "device")
}

/// The call by which JAX says where a value is kept; XLA makes copies of it.
fn place(instruction: &mut HloInstructionProto, memory: &str) -> Result<(), String> {
    instruction.custom_call_target = "annotate_device_placement".into();
    instruction.custom_call_api_version = CustomCallApiVersion::ApiVersionOriginal as i32;
    instruction.custom_call_has_side_effect = true;
    let attributes = instruction
        .frontend_attributes
        .get_or_insert_with(FrontendAttributes::default);
    attributes
        .map
        .insert("_xla_buffer_placement".into(), memory.into());
    Ok(())
}

/// Rewrites the markers and writes the metadata of a module that `builder` made from `graph`.
pub(super) fn finish(graph: &Graph, module: &[u8]) -> Result<HloModuleProto, String> {
    let mut module = HloModuleProto::decode(module)
        .map_err(|e| format!("XLA's own module cannot be decoded: {e}"))?;
    let entry = module.entry_computation_id;
    let entry = module
        .computations
        .iter_mut()
        .find(|c| c.id == entry)
        .ok_or("it has no entry computation")?;
    let mut op_name = String::new();
    let mut is_exact = false;
    let mut problem = None;
    // In place: the generated type takes kilobytes, and a module has thousands.
    entry.instructions.retain_mut(|instruction| {
        if instruction.custom_call_target == NODE_MARKER {
            let node = node_index(&instruction.backend_config);
            op_name = op_path(graph, node);
            is_exact = graph
                .nodes
                .get(node)
                .is_some_and(|node| matches!(node.op, Op::Dot { exact: true, .. }));
            return false;
        }
        if is_exact && instruction.opcode == "dot" {
            let highest = precision_config::Precision::Highest as i32;
            instruction.precision_config = Some(PrecisionConfig {
                operand_precision: vec![highest; 2],
                ..Default::default()
            });
        }
        if instruction.custom_call_target == marker::INSTRUCTION {
            if let Err(message) = unwrap(instruction) {
                problem.get_or_insert(format!("{op_name}: {message}"));
            }
        } else if instruction.custom_call_target.starts_with(PREFIX)
            && !collective::is_marker(instruction)
            && let Err(message) = rewrite(instruction)
        {
            problem.get_or_insert(format!("{op_name}: {message}"));
        }
        instruction
            .metadata
            .get_or_insert_with(OpMetadata::default)
            .op_name
            .clone_from(&op_name);
        true
    });
    if let Some(message) = problem {
        return Err(message);
    }
    collective::merge(&mut module)?;
    Ok(module)
}

/// The attribute of a node marker, which only `builder` writes.
fn node_index(attribute: &[u8]) -> usize {
    u32::from_le_bytes(attribute.try_into().expect("a node marker carries a u32")) as usize
}

fn rewrite(instruction: &mut HloInstructionProto) -> Result<(), String> {
    let target = instruction.custom_call_target.as_str();
    let Some((_, opcode, attributes)) = REWRITES.iter().find(|(name, ..)| *name == target) else {
        return Err(format!("custom call `{target}` is no known marker"));
    };
    instruction.opcode = opcode.to_string();
    // What only a custom call may carry.
    instruction.custom_call_target.clear();
    instruction.custom_call_api_version = 0;
    instruction.custom_call_schedule = 0;
    instruction.backend_config.clear();
    attributes(instruction)
}

/// Puts the instruction that a marker carries in its place.
fn unwrap(marker: &mut HloInstructionProto) -> Result<(), String> {
    let carried = HloInstructionProto::decode(&marker.backend_config[..])
        .map_err(|e| format!("the marker carries no instruction: {e}"))?;
    let outer = std::mem::replace(marker, carried);
    (marker.id, marker.name, marker.operand_ids) = (outer.id, outer.name, outer.operand_ids);
    (marker.metadata, marker.control_predecessor_ids) =
        (outer.metadata, outer.control_predecessor_ids);
    Ok(())
}

/// `graph/model.path/operation`; for an input its name.
fn op_path(graph: &Graph, node: usize) -> String {
    let Some(node) = graph.nodes.get(node) else {
        return format!("{}/outputs", graph.name);
    };
    if let Op::Input(index) = node.op {
        return format!("{}/{}", graph.name, graph.inputs[index as usize].name);
    }
    match graph.scopes[node.scope as usize].as_str() {
        "" => format!("{}/{}", graph.name, node.op.name()),
        scope => format!("{}/{scope}/{}", graph.name, node.op.name()),
    }
}
