//! Calls of targets' own libraries (`Op::Call`) as custom calls, from what each says of itself.

use super::shapes::{row_major, shape_proto, tuple};
use crate::proto::xla::{
    CustomCallApiVersion, HloInstructionProto, OutputOperandAliasing, ShapeProto,
};
use xtrain_graphs::op::{Call, CallSpec, Library};
use xtrain_graphs::{DType, Shape};

/// A result in its layout.
fn laid_out(call: &dyn CallSpec, result: &Shape) -> ShapeProto {
    let layout: Vec<i64> = call.layout(result).iter().map(|&dim| dim as i64).collect();
    shape_proto(result, &layout)
}

/// The instruction of a call over operands of these shapes, complete but for its id, name, operands and
/// metadata.
pub(super) fn instruction(call: &Call, operands: &[&Shape]) -> Result<HloInstructionProto, String> {
    let (call, library) = (call.spec(), call.library());
    let emission = call.emission(operands)?;
    let results = call.results(operands)?;
    let results = results.iter().map(|result| laid_out(call, result));
    let (workspace, version) = match library {
        Library::Plugin => (None, CustomCallApiVersion::ApiVersionTypedFfi as i32),
        Library::Cudnn => (Some(shape_proto(&Shape::new(DType::U8, [0]), &[0])), 0),
    };
    let mut results: Vec<ShapeProto> = results.chain(workspace).collect();
    let shape = if call.is_tuple() {
        tuple(results)
    } else {
        results.swap_remove(0)
    };
    let alias = |(result, operand): (usize, usize)| OutputOperandAliasing {
        output_shape_index: call
            .is_tuple()
            .then_some(result as i64)
            .into_iter()
            .collect(),
        operand_index: operand as i64,
        operand_shape_index: Vec::new(),
    };
    let dense = |shape: &&Shape| shape_proto(shape, &row_major(shape.rank()));
    Ok(HloInstructionProto {
        opcode: "custom-call".into(),
        shape: Some(shape),
        custom_call_target: emission.target,
        custom_call_api_version: version,
        backend_config: emission.config.into_bytes(),
        // Or layout assignment could turn what the library reads.
        constrain_layout: true,
        operand_shapes_with_layout: operands.iter().map(dense).collect(),
        output_operand_aliasing: call.aliases().into_iter().map(alias).collect(),
        ..Default::default()
    })
}

/// The instruction that reads a result of a call. A shape that is not the call's own is refused: nothing
/// else would see it.
pub(super) fn result(
    call: &dyn CallSpec,
    operands: &[&Shape],
    index: usize,
    shape: &Shape,
) -> Result<HloInstructionProto, String> {
    let all = call.results(operands)?;
    if !call.is_tuple() {
        return Err(format!("`{}` has no parts", call.name()));
    }
    if all.get(index) != Some(shape) {
        let found = all
            .get(index)
            .map_or("nothing".to_string(), Shape::to_string);
        return Err(format!(
            "result {index} of `{}` is {found}, not {shape}",
            call.name()
        ));
    }
    Ok(HloInstructionProto {
        opcode: "get-tuple-element".into(),
        tuple_index: index as i64,
        shape: Some(laid_out(call, shape)),
        ..Default::default()
    })
}
