//! Calls of the CPU plugin's own kernels: typed FFI custom calls, by the name and with the attributes
//! that `native/cpp/kernels/calls.cc` registers.

use super::shapes::{row_major, shape_proto};
use crate::proto::xla::{CustomCallApiVersion, HloInstructionProto};
use xtrain_graphs::Shape;
use xtrain_graphs::op::KernelMatmul;

/// The target with its version: raise it with the meaning of operands or attributes.
const MATMUL: &str = "xtrain.matmul.1";

/// The instruction of a matmul, complete but for its id, name, operands and metadata.
pub(super) fn matmul(call: &KernelMatmul, operands: &[&Shape]) -> HloInstructionProto {
    let dense = |shape: &Shape| shape_proto(shape, &row_major(shape.rank()));
    let config = format!(
        "{{kernel = {} : i64, sizes = {}, a_strides = {}, b_strides = {}, c_strides = {}}}",
        call.kernel.number(),
        array(&call.sizes),
        array(&call.a_strides),
        array(&call.b_strides),
        array(&call.c_strides),
    );
    HloInstructionProto {
        opcode: "custom-call".into(),
        shape: Some(dense(&call.shape)),
        custom_call_target: MATMUL.into(),
        custom_call_api_version: CustomCallApiVersion::ApiVersionTypedFfi as i32,
        backend_config: config.into_bytes(),
        // Or layout assignment could turn what the kernel reads.
        constrain_layout: true,
        operand_shapes_with_layout: operands.iter().map(|shape| dense(shape)).collect(),
        ..Default::default()
    }
}

/// As MLIR writes an attribute.
fn array(values: &[usize]) -> String {
    let values: Vec<String> = values.iter().map(usize::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
