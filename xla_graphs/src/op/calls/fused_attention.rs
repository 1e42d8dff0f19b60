//! Attention and its gradients by cuDNN, under XLA:GPU's names and attributes for it
//! (`__cudnn$fmha...`), as its compiler reads them: `backend_config` is a `GpuBackendConfig` in JSON. XLA
//! builds cuDNN's graph from it when it compiles.
//!
//! Arrays are `[B, T, H, D]` going in, and coming out `[B, H, T, D]` laid out as `[B, T, H, D]`.

use super::spec::{CallSpec, Emission};
use crate::dtype::DType;
use crate::op::attributes::F64;
use crate::op::checks::{arity, expect};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Attention as a vendor's library computes it in one call. Operands q `[B, T, H, D]`, k and v
/// `[B, S, K, D]`, where H is a multiple of K (grouped queries: H / K query heads share a head of keys), and,
/// if there is one, the bias `[B, 1, T, S]`; gives `[B, H, T, D]` and statistics `f32[B, H, T]`. Backward
/// operands q, k, v, statistics, dy, bias, output, dy and output as q; gives the gradients of q
/// `[B, H, T, D]`, of k and v `[B, K, S, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedAttention {
    /// Whether it computes the gradients.
    pub is_backward: bool,
    /// As [`crate::op::Attention::scale`].
    pub scale: F64,
    /// As [`crate::op::Attention::causal`].
    pub causal: bool,
    /// As [`crate::op::Attention::window`], shorter than the keys; only with `causal`.
    pub window: Option<u32>,
    /// Something is added to the scores: a mask, in numbers.
    pub bias: bool,
    /// `None`: nothing is dropped.
    pub dropout: Option<FusedDropout>,
}

/// Dropout inside of a vendor's call, with masks of the library's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedDropout {
    /// Share of the probabilities that is dropped.
    pub rate: F64,
    /// Tells the attentions of a graph apart; forward and backward call of one have the same.
    pub seed: u32,
}

/// Between `[B, H, T, D]` and `[B, T, H, D]`.
const TURN: [usize; 4] = [0, 2, 1, 3];

impl CallSpec for FusedAttention {
    fn name(&self) -> &'static str {
        if self.is_backward {
            "fused_attention_grad"
        } else {
            "fused_attention"
        }
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let of_backward = if self.is_backward { 3 } else { 0 };
        arity(operands, 3 + usize::from(self.bias) + of_backward)?;
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        if !matches!(q.dtype, DType::BF16 | DType::F16) || q.rank() != 4 || k.rank() != 4 {
            return Err(format!(
                "needs q, k and v of [B, T, H, D] in bf16 or f16, got {q}, {k} and {v}"
            ));
        }
        let [b, t, h, d] = [0, 1, 2, 3].map(|dim| q.dims[dim]);
        let (s, kv_heads) = (k.dims[1], k.dims[2]);
        if kv_heads == 0 || !h.is_multiple_of(kv_heads) {
            return Err(format!(
                "needs query heads that are a multiple of the heads of keys, got {h} and {kv_heads}"
            ));
        }
        expect("the keys", k, q.dtype, &[b, s, kv_heads, d])?;
        expect("the values", v, q.dtype, &[b, s, kv_heads, d])?;
        let statistics = Shape::new(DType::F32, [b, h, t]);
        let bias = if self.is_backward {
            expect("the statistics", operands[3], DType::F32, &statistics.dims)?;
            expect("the gradient", operands[4], q.dtype, &q.dims)?;
            let output = operands[operands.len() - 1];
            expect("the output", output, q.dtype, &q.dims)?;
            5
        } else {
            3
        };
        if self.bias {
            expect("the bias", operands[bias], q.dtype, &[b, 1, t, s])?;
        }
        let turned = |x: &Shape| Shape::new(x.dtype, TURN.map(|d| x.dims[d]));
        Ok(if self.is_backward {
            [q, k, v].map(turned).to_vec()
        } else {
            vec![turned(q), statistics]
        })
    }

    fn is_tuple(&self) -> bool {
        true
    }

    /// A causal mask leaves half of the scores, and a window W keys for each query but the first W: the
    /// kernels skip the rest. Backward recomputes the scores, and has two matmuls for each of the two of
    /// forward.
    fn flops(&self, operands: &[&Shape]) -> Option<(f64, DType)> {
        let (q, k) = (operands[0], operands[1]);
        let keys = k.dims[1] as f64;
        let seen = match self.window {
            Some(window) => f64::from(window) * (1.0 - f64::from(window) / keys / 2.0),
            None if self.causal => keys / 2.0,
            None => keys,
        };
        let matmuls = if self.is_backward { 5.0 } else { 2.0 };
        Some((2.0 * matmuls * q.elements() as f64 * seen, q.dtype))
    }

    fn layout(&self, result: &Shape) -> Vec<usize> {
        match result.rank() {
            4 => vec![3, 1, 2, 0],
            rank => (0..rank).rev().collect(),
        }
    }

    fn emission(&self, operands: &[&Shape]) -> Result<Emission, String> {
        let bias = if self.bias { "ScaleBias" } else { "" };
        let dropout = if self.dropout.is_some() {
            "Dropout"
        } else {
            ""
        };
        let backward = if self.is_backward { "Backward" } else { "" };
        let target = format!("__cudnn$fmha{bias}Softmax{dropout}{backward}");
        Ok(Emission::new(
            target,
            config(self, operands[0], operands[1]),
        ))
    }
}

/// A product's dimensions as JSON: contracted ones, batch ones.
fn product(lhs: u8, rhs: u8, lhs_batch: [u8; 2], rhs_batch: [u8; 2]) -> String {
    let pair = |[a, b]: [u8; 2]| format!(r#"["{a}","{b}"]"#);
    format!(
        r#"{{"lhs_contracting_dimensions":["{lhs}"],"rhs_contracting_dimensions":["{rhs}"],"lhs_batch_dimensions":{},"rhs_batch_dimensions":{}}}"#,
        pair(lhs_batch),
        pair(rhs_batch)
    )
}

fn config(of: &FusedAttention, q: &Shape, k: &Shape) -> String {
    let [b, t, h, s] = [q.dims[0], q.dims[1], q.dims[2], k.dims[1]];
    let element = if q.dtype == DType::F16 { "F16" } else { "BF16" };
    let mask = if of.causal { "CAUSAL" } else { "NO_MASK" };
    // P is [B, H, T, S]; everything else has its heads in dimension 2.
    let (heads, p) = ([0, 2], [0, 1]);
    let products = if of.is_backward {
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
