//! Parts of cross-entropy by the CPU plugin (`native/cpp/kernels/cross_entropy.h`).

use super::spec::{CallSpec, Emission};
use crate::dtype::DType;
use crate::op::checks::expect;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// A part of cross-entropy over the rows of logits, `f32[N, V]`, as a call of the CPU plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KernelCrossEntropy {
    /// Of the logits: the logarithm of the sum of each row's exponentials, `f32[N]`.
    LogSumExp,
    /// Of the logits, these logarithms, the labels (`s32[N]`) and the gradient of each row's loss
    /// (`f32[N]`): the gradient of the logits, f32 or bf16.
    Gradient(DType),
}

impl CallSpec for KernelCrossEntropy {
    fn name(&self) -> &'static str {
        match self {
            KernelCrossEntropy::LogSumExp => "kernel_log_sum_exp",
            KernelCrossEntropy::Gradient(_) => "kernel_cross_entropy_grad",
        }
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let dtype = match *self {
            KernelCrossEntropy::LogSumExp => DType::F32,
            KernelCrossEntropy::Gradient(dtype) => dtype,
        };
        let (logits, others) = operands.split_first().ok_or("takes logits")?;
        if logits.dtype != DType::F32 || logits.rank() != 2 {
            return Err(format!("needs logits f32[N, V], got {logits}"));
        }
        if !matches!(dtype, DType::F32 | DType::BF16) {
            return Err(format!("gives f32 or bf16, not {dtype}"));
        }
        let rows = &logits.dims[..1];
        match (*self, others) {
            (KernelCrossEntropy::LogSumExp, []) => Ok(vec![Shape::new(dtype, rows)]),
            (KernelCrossEntropy::Gradient(_), [sums, labels, dloss]) => {
                expect("the logarithms", sums, DType::F32, rows)?;
                expect("the labels", labels, DType::S32, rows)?;
                expect("the gradient", dloss, DType::F32, rows)?;
                Ok(vec![logits.with_dtype(dtype)])
            }
            _ => Err(format!("does not take {} operands", operands.len())),
        }
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        let target = match self {
            KernelCrossEntropy::LogSumExp => "xtrain.log_sum_exp",
            KernelCrossEntropy::Gradient(_) => "xtrain.cross_entropy_grad",
        };
        Ok(Emission::new(target, String::new()))
    }
}
