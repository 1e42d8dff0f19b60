//! Calls of the CPU plugin's own kernels: typed FFI custom calls, by the name and with the attributes
//! that `native/cpp/kernels/calls.cc` registers.

use super::shapes::{row_major, shape_proto, tuple};
use crate::proto::xla::{
    CustomCallApiVersion, HloInstructionProto, OutputOperandAliasing, ShapeProto,
};
use xtrain_graphs::Shape;
use xtrain_graphs::op::{
    Binary, DynamicMap, Gelu, KernelAttention, KernelCrossEntropy, KernelGelu, KernelMatmul,
    KernelNorm, KernelNormPart, MatmulStart, MatmulSums, NormKind, OnePass, PassForm, Step, Unary,
};

/// The targets with their versions: raise one with the meaning of operands or attributes.
const MATMUL: &str = "xtrain.matmul.3";
const ATTENTION: &str = "xtrain.attention.3";
const ONE_PASS: &str = "xtrain.one_pass.1";
const LOG_SUM_EXP: &str = "xtrain.log_sum_exp.1";
const CROSS_ENTROPY_GRAD: &str = "xtrain.cross_entropy_grad.1";
const GELU: &str = "xtrain.gelu.1";
const NORM: &str = "xtrain.norm.2";
const NORM_GRAD: &str = "xtrain.norm_grad.2";

fn dense(shape: &Shape) -> ShapeProto {
    shape_proto(shape, &row_major(shape.rank()))
}

/// What a call gives; `is_tuple`: it has several results.
fn results(shapes: &[Shape], is_tuple: bool) -> ShapeProto {
    if is_tuple {
        tuple(shapes.iter().map(dense).collect())
    } else {
        dense(&shapes[0])
    }
}

/// What all calls have in common.
fn call_of(
    target: &str,
    shape: ShapeProto,
    operands: &[&Shape],
    config: String,
) -> HloInstructionProto {
    HloInstructionProto {
        opcode: "custom-call".into(),
        shape: Some(shape),
        custom_call_target: target.into(),
        custom_call_api_version: CustomCallApiVersion::ApiVersionTypedFfi as i32,
        backend_config: config.into_bytes(),
        // Or layout assignment could turn what the kernel reads.
        constrain_layout: true,
        operand_shapes_with_layout: operands.iter().map(|shape| dense(shape)).collect(),
        ..Default::default()
    }
}

/// The instruction of a matmul, complete but for its id, name, operands and metadata.
pub(super) fn matmul(call: &KernelMatmul, operands: &[&Shape]) -> HloInstructionProto {
    let continues = call.start == MatmulStart::Result;
    let sums = continues.then(|| OutputOperandAliasing {
        operand_index: 2,
        ..Default::default()
    });
    let sums = sums.into_iter();
    let config = format!(
        "{{kernel = {} : i64, start = {} : i64, sums = {} : i64, sizes = {}, a_strides = {}, b_strides = {}, c_strides = {}}}",
        call.kernel.number(),
        call.start.number(),
        call.sums.map_or(0, MatmulSums::number),
        array(&call.sizes),
        array(&call.a_strides),
        array(&call.b_strides),
        array(&call.c_strides),
    );
    HloInstructionProto {
        output_operand_aliasing: sums.collect(),
        ..call_of(
            MATMUL,
            results(&call.result_shapes(), call.sums.is_some()),
            operands,
            config,
        )
    }
}

/// The instruction of an attention or of its gradients, complete but for its id, name, operands and
/// metadata.
pub(super) fn attention(call: &KernelAttention, operands: &[&Shape]) -> HloInstructionProto {
    let bits = |value: f64| (value as f32).to_bits();
    let layouts = call.operands.iter().flat_map(|layout| {
        let [b, h, t] = layout.strides;
        [layout.offset, b, h, t]
    });
    let of = &call.of;
    let config = format!(
        "{{kernel = {} : i64, sizes = {}, layouts = {}, masks = {}, dropout = {}, numbers = {}}}",
        call.kernel.number(),
        array(&call.sizes),
        array(&layouts.collect::<Vec<usize>>()),
        array(&[
            u32::from(of.causal),
            of.window.unwrap_or(0),
            of.key_mask.number()
        ]),
        array(&[u32::from(of.dropout.is_some()), call.threshold, call.stream]),
        array(&[
            bits(of.scale.get()),
            bits(of.soft_cap.map_or(0.0, |cap| cap.get())),
            bits(of.dropout.map_or(1.0, |rate| 1.0 / (1.0 - rate.get()))),
        ]),
    );
    call_of(
        ATTENTION,
        results(&call.result_shapes(), !call.joins_gradients),
        operands,
        config,
    )
}

/// The instruction of a part of cross-entropy, complete but for its id, name, operands and metadata.
pub(super) fn cross_entropy(
    part: KernelCrossEntropy,
    result: &Shape,
    operands: &[&Shape],
) -> HloInstructionProto {
    let target = match part {
        KernelCrossEntropy::LogSumExp => LOG_SUM_EXP,
        KernelCrossEntropy::Gradient(_) => CROSS_ENTROPY_GRAD,
    };
    call_of(target, dense(result), operands, String::new())
}

/// The instruction of a GELU or of its gradient, complete but for its id, name, operands and metadata.
pub(super) fn gelu(call: &KernelGelu, operands: &[&Shape]) -> HloInstructionProto {
    let config = format!("{{is_tanh = {} : i64}}", i64::from(call.of == Gelu::Tanh));
    call_of(GELU, dense(&call.shape), operands, config)
}

/// The instruction of a normalization or of its gradients, complete but for its id, name, operands
/// and metadata.
pub(super) fn norm(call: &KernelNorm, operands: &[&Shape]) -> HloInstructionProto {
    let (target, switch, is_on) = match call.part {
        KernelNormPart::Forward(_) => (NORM, "adds", call.adds),
        KernelNormPart::Backward => (NORM_GRAD, "narrows", call.narrows),
    };
    let config = format!(
        "{{subtracts_mean = {} : i64, eps = {} : i64, {switch} = {} : i64}}",
        i64::from(call.of.kind == NormKind::Layer),
        (call.of.eps.get() as f32).to_bits(),
        i64::from(is_on),
    );
    call_of(
        target,
        results(&call.result_shapes(), call.is_tuple()),
        operands,
        config,
    )
}

/// The instruction of a pass, complete but for its id, name, operands and metadata.
/// An operation that a call cannot compute is named.
pub(super) fn one_pass(pass: &OnePass, operands: &[&Shape]) -> Result<HloInstructionProto, String> {
    let steps = pass.steps.iter().map(step);
    let steps = steps.collect::<Result<Vec<[i64; 4]>, String>>()?.concat();
    let of_results = pass.results.iter().flat_map(|result| {
        let form = match result.form {
            PassForm::Array(..) => 0,
            PassForm::Sum => 1,
            PassForm::Blocks(_) => 2,
        };
        [i64::from(result.value), form]
    });
    let replaced =
        (pass.results.iter().enumerate()).filter_map(|(index, result)| match result.form {
            PassForm::Array(_, Some(operand)) | PassForm::Blocks(Some(operand)) => {
                Some(OutputOperandAliasing {
                    output_shape_index: vec![index as i64],
                    operand_index: operand.into(),
                    operand_shape_index: Vec::new(),
                })
            }
            _ => None,
        });
    let config = format!(
        "{{elements = {} : i64, steps = {}, results = {}}}",
        pass.dims.iter().product::<usize>(),
        array(&steps),
        array(&of_results.collect::<Vec<i64>>()),
    );
    Ok(HloInstructionProto {
        output_operand_aliasing: replaced.collect(),
        ..call_of(
            ONE_PASS,
            results(&pass.result_shapes(), true),
            operands,
            config,
        )
    })
}

/// The steps' kinds, as `native/cpp/kernels/one_pass.h` numbers them; `passes/one_pass.rs` takes no
/// other operations.
const UNARY: [(Unary, i64); 5] = [
    (Unary::Neg, 3),
    (Unary::Abs, 4),
    (Unary::Sign, 5),
    (Unary::Sqrt, 6),
    (Unary::Rsqrt, 7),
];
const BINARY: [(Binary, i64); 6] = [
    (Binary::Add, 8),
    (Binary::Sub, 9),
    (Binary::Mul, 10),
    (Binary::Div, 11),
    (Binary::Max, 12),
    (Binary::Min, 13),
];

/// A step's kind and its three attributes.
fn step(step: &Step) -> Result<[i64; 4], String> {
    let (kind, [a, b, c]) = match *step {
        Step::Constant(value) => (Some(0), [(value.get() as f32).to_bits(), 0, 0]),
        Step::Round(a) => (Some(1), [a, 0, 0]),
        Step::Select(a, b, c) => (Some(2), [a, b, c]),
        Step::Unary(op, a) => (number(&UNARY, op), [a, 0, 0]),
        Step::Binary(op, a, b) => (number(&BINARY, op), [a, b, 0]),
        Step::Decode(DynamicMap::Signed, a, b) => (Some(14), [a, b, 0]),
        Step::Decode(DynamicMap::Unsigned, a, b) => (Some(15), [a, b, 0]),
        Step::Encode(DynamicMap::Signed, a, b) => (Some(16), [a, b, 0]),
        Step::Encode(DynamicMap::Unsigned, a, b) => (Some(17), [a, b, 0]),
        Step::Scales(floor, a) => (Some(18), [a, (floor.get() as f32).to_bits(), 0]),
    };
    let kind = kind.ok_or_else(|| format!("{step:?} is no step of a pass"))?;
    Ok([kind, a.into(), b.into(), c.into()])
}

fn number<T: PartialEq>(table: &[(T, i64)], op: T) -> Option<i64> {
    let entry = table.iter().find(|(known, _)| *known == op);
    entry.map(|(_, number)| *number)
}

/// As MLIR writes an attribute.
fn array<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
