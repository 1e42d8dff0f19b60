//! Attention and its gradients by the CPU plugin (`native/cpp/kernels/attention.h`).

use super::cpu_kernel::CpuKernel;
use super::spec::{CallSpec, Emission, array};
use crate::dtype::DType;
use crate::op::attention::{Attention, keep_threshold};
use crate::op::checks::{expect, random_key};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Attention as one call of the CPU plugin's: forward with operands q, k, v, backward with dy and both
/// results of forward besides; behind them the operand of the key mask and the key of the dropout
/// (`u32[2]` or `u32[3]`), if the attention has them. Gives `[B, T, H, D]` and of each query the highest
/// score and what divides its exponentials (`f32[2, B, H, T]`, as `native/cpp/kernels/attention.h` has
/// them), backward the gradients of q, k and v.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelAttention {
    /// The kernel of its two matmuls.
    pub kernel: CpuKernel,
    /// The attention; a mask of dropout is drawn.
    pub of: Attention,
    /// B, H, K, T, S, D.
    pub sizes: [usize; 6],
    /// Of all arrays: f32 or bf16.
    pub dtype: DType,
    /// Of q, k, v, and backward dy and the output: where `[B, H, T, D]` lies in the operand.
    pub operands: Vec<HeadLayout>,
    /// Backward: it gives one array, in which dq, dk and dv lie as q, k and v do in theirs.
    pub joins_gradients: bool,
}

/// Where the elements of `[B, H, T, D]` lie in an array, D contiguous; in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeadLayout {
    /// Of the element `[0, 0, 0, 0]`.
    pub offset: usize,
    /// Of B, H and T.
    pub strides: [usize; 3],
}

impl HeadLayout {
    /// Of an array of these dimensions itself.
    pub(crate) fn plain(dims: &[usize]) -> Self {
        HeadLayout {
            offset: 0,
            strides: [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3]],
        }
    }
}

impl KernelAttention {
    /// Whether it computes the gradients.
    pub fn is_backward(&self) -> bool {
        self.operands.len() > 3
    }

    /// The shape of what forward leaves for backward.
    fn statistics(&self) -> Shape {
        let [b, h, _, t, ..] = self.sizes;
        Shape::new(DType::F32, [2, b, h, t])
    }
}

impl CallSpec for KernelAttention {
    fn name(&self) -> &'static str {
        if self.is_backward() {
            "kernel_attention_grad"
        } else {
            "kernel_attention"
        }
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let [b, h, kv_heads, t, s, d] = self.sizes;
        let is_dropping = self.of.dropout.is_some();
        let arrays = self.operands.len();
        let behind = arrays + usize::from(self.is_backward());
        let count = behind + usize::from(self.of.key_mask.is_some()) + usize::from(is_dropping);
        if !matches!(arrays, 3 | 5) || operands.len() != count {
            return Err(format!("takes {count} operands, got {}", operands.len()));
        }
        if kv_heads == 0 || !h.is_multiple_of(kv_heads) || [b, t, s, d].contains(&0) {
            return Err(format!("has no heads of sizes {:?}", self.sizes));
        }
        let (of_q, of_kv) = ([b, h, t], [b, kv_heads, s]);
        let dims = [of_q, of_kv, of_kv, of_q, of_q];
        for ((layout, dims), operand) in self.operands.iter().zip(dims).zip(operands) {
            let last: usize = (dims.iter().zip(layout.strides))
                .map(|(&size, stride)| (size - 1) * stride)
                .sum();
            if operand.dtype != self.dtype || layout.offset + last + d > operand.elements() {
                return Err(format!("{operand} does not hold {dims:?} heads of {d}"));
            }
        }
        if self.is_backward() {
            let dims = self.statistics().dims;
            expect("the statistics", operands[arrays], DType::F32, &dims)?;
        }
        let key_mask = operands.get(behind).copied();
        self.of.check_key_mask(key_mask, [b, t, s])?;
        if is_dropping {
            random_key(operands[count - 1])?;
        }
        let of_q = Shape::new(self.dtype, [b, t, h, d]);
        if !self.is_backward() {
            return Ok(vec![of_q, self.statistics()]);
        }
        if self.joins_gradients {
            let joined = [b * t, self.operands[0].strides[2]];
            return Ok(vec![Shape::new(self.dtype, joined)]);
        }
        let of_kv = Shape::new(self.dtype, [b, s, kv_heads, d]);
        Ok(vec![of_q, of_kv.clone(), of_kv])
    }

    fn is_tuple(&self) -> bool {
        !self.joins_gradients
    }

    /// Backward recomputes the scores, and has two matmuls for each of the two of forward.
    fn flops(&self, _operands: &[&Shape]) -> Option<(f64, DType)> {
        let [b, h, _, t, s, d] = self.sizes;
        let matmuls = if self.is_backward() { 5.0 } else { 2.0 };
        let pairs: f64 = [b, h, t, s, d].iter().map(|&size| size as f64).product();
        let all = 2.0 * matmuls * pairs;
        Some((if self.of.causal { all / 2.0 } else { all }, self.dtype))
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        let bits = |value: f64| (value as f32).to_bits();
        let layouts = self.operands.iter().flat_map(|layout| {
            let [b, h, t] = layout.strides;
            [layout.offset, b, h, t]
        });
        let of = &self.of;
        let dropout = of.dropout.map_or([0; 3], |dropout| {
            [1, keep_threshold(dropout.rate.get()), dropout.stream]
        });
        let config = format!(
            "{{kernel = {} : i64, sizes = {}, layouts = {}, masks = {}, dropout = {}, numbers = {}}}",
            self.kernel.number(),
            array(&self.sizes),
            array(&layouts.collect::<Vec<usize>>()),
            array(&[
                u32::from(of.causal),
                of.window.unwrap_or(0),
                of.key_mask.number()
            ]),
            array(&dropout),
            array(&[
                bits(of.scale.get()),
                bits(of.soft_cap.map_or(0.0, |cap| cap.get())),
                bits(of.dropout.map_or(1.0, |it| 1.0 / (1.0 - it.rate.get()))),
            ]),
        );
        Ok(Emission::new("xtrain.attention", config))
    }
}
