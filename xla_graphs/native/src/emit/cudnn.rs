//! XLA:GPU's names and attributes for cuDNN's fused attention (`__cudnn$fmha...`), as its compiler
//! reads them: a custom call with several results whose `backend_config` is a `GpuBackendConfig` in
//! JSON. XLA builds cuDNN's graph from it when it compiles, and gives the workspace, the last
//! result, its size then.
//!
//! Arrays are `[B, T, H, D]` going in, and coming out `[B, H, T, D]` laid out as `[B, T, H, D]`.

use super::shapes::{row_major, shape_proto, tuple};
use crate::proto::xla::{HloInstructionProto, ShapeProto};
use xtrain_graphs::fused_attention::results;
use xtrain_graphs::op::{FusedAttention, Never, Op};
use xtrain_graphs::{DType, Shape};

/// Minor to major, of the results of rank 4.
const TURNED: [i64; 4] = [3, 1, 2, 0];

/// A product's dimensions as JSON: contracted ones, batch ones.
fn product(lhs: u8, rhs: u8, lhs_batch: [u8; 2], rhs_batch: [u8; 2]) -> String {
    let pair = |[a, b]: [u8; 2]| format!(r#"["{a}","{b}"]"#);
    format!(
        r#"{{"lhs_contracting_dimensions":["{lhs}"],"rhs_contracting_dimensions":["{rhs}"],"lhs_batch_dimensions":{},"rhs_batch_dimensions":{}}}"#,
        pair(lhs_batch),
        pair(rhs_batch)
    )
}

/// The instruction of a node, complete but for its id, name, operands and metadata; `None` for
/// nodes that are no such call.
pub(super) fn instruction(op: &Op<Never>, operands: &[&Shape]) -> Option<HloInstructionProto> {
    let (of, is_backward) = match op {
        Op::FusedAttention(of) => (of, false),
        Op::FusedAttentionGrad(of) => (of, true),
        _ => return None,
    };
    let bias = if of.bias { "ScaleBias" } else { "" };
    let dropout = if of.dropout.is_some() { "Dropout" } else { "" };
    let backward = if is_backward { "Backward" } else { "" };
    let results = results(op, operands)?;
    let workspace = shape_proto(&Shape::new(DType::U8, [0]), &[0]);
    Some(HloInstructionProto {
        opcode: "custom-call".into(),
        shape: Some(tuple(
            results.iter().map(result).chain([workspace]).collect(),
        )),
        custom_call_target: format!("__cudnn$fmha{bias}Softmax{dropout}{backward}"),
        backend_config: config(of, is_backward, operands[0], operands[1]).into_bytes(),
        // Or layout assignment could turn what the kernel reads.
        constrain_layout: true,
        operand_shapes_with_layout: operands
            .iter()
            .map(|shape| shape_proto(shape, &row_major(shape.rank())))
            .collect(),
        ..Default::default()
    })
}

fn config(of: &FusedAttention, is_backward: bool, q: &Shape, k: &Shape) -> String {
    let [b, t, h, s] = [q.dims[0], q.dims[1], q.dims[2], k.dims[1]];
    let element = if q.dtype == DType::F16 { "F16" } else { "BF16" };
    let mask = if of.causal { "CAUSAL" } else { "NO_MASK" };
    // P is [B, H, T, S]; everything else has its heads in dimension 2.
    let (heads, p) = ([0, 2], [0, 1]);
    let products = if is_backward {
        [
            ("bmm1_grad_gemm1", product(2, 1, p, heads)),
            ("bmm1_grad_gemm2", product(3, 1, p, heads)),
            ("bmm2_grad_gemm1", product(2, 1, p, heads)),
            ("bmm2_grad_gemm2", product(3, 3, heads, heads)),
        ]
        .to_vec()
    } else {
        [
            ("bmm1", product(3, 3, heads, heads)),
            ("bmm2", product(3, 1, p, heads)),
        ]
        .to_vec()
    };
    let products: Vec<String> = products
        .iter()
        .map(|(name, dims)| format!(r#""{name}_dot_dimension_numbers":{dims}"#))
        .collect();
    // Those of a position's keys that end with its own, itself among them; 0: all.
    let window = of.window.unwrap_or(0);
    let (rate, seed) = of.dropout.map_or((0.0, 42), |dropout| {
        (dropout.rate.get(), i64::from(dropout.seed))
    });
    format!(
        r#"{{"operation_queue_id":"0","cudnn_fmha_backend_config":{{"algorithm":{{"algo_id":"0","math_type":"TENSOR_OP_MATH","tuning_knobs":{{"17":"1","24":"0"}},"is_cudnn_frontend":true,"workspace_size":"0"}},"fmha_scale":{scale:?},"dropout_rate":{rate:?},"seed":"{seed}","mask_type":"{mask}","is_flash_attention":true,"is_causal_mask":false,"sliding_window_length":{window},"intermediate_tensor_shape":{{"element_type":"{element}","dimensions":["{b}","{h}","{t}","{s}"],"layout":{{"minor_to_major":["3","2","1","0"]}}}},{products}}}}}"#,
        scale = of.scale.get(),
        products = products.join(",")
    )
}

/// A result in its layout.
pub(super) fn result(shape: &Shape) -> ShapeProto {
    match shape.rank() {
        4 => shape_proto(shape, &TURNED),
        rank => shape_proto(shape, &row_major(rank)),
    }
}
