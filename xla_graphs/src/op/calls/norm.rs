//! Normalizations and their gradients by the CPU plugin (`native/cpp/kernels/norm.h`).

use super::spec::{CallSpec, Emission};
use crate::dtype::DType;
use crate::op::checks::expect;
use crate::op::norm::{Norm, NormKind, NormOperand};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// A normalization of f32, or its gradients, as a call of the CPU plugin's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelNorm {
    /// What is computed.
    pub of: Norm,
    /// Forward, or which gradients.
    pub part: KernelNormPart,
    /// The dimensions of x.
    pub dims: Vec<usize>,
    /// Whether there is one operand more, of x's shape: forward x is the sum of the first operand and
    /// this, f32 or bf16, which is the second result; backward this, f32, is added to dx.
    pub adds: bool,
    /// Backward: whether there is one result more, dx in bf16.
    pub narrows: bool,
}

/// A part of a [`KernelNorm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KernelNormPart {
    /// The operands of [`Composite::Norm`](crate::op::Composite::Norm); gives f32 or bf16.
    Forward(DType),
    /// Operands x, gamma, dy; gives dx, dgamma and, of a LayerNorm, dbeta.
    Backward,
}

impl CallSpec for KernelNorm {
    fn name(&self) -> &'static str {
        match self.part {
            KernelNormPart::Forward(_) => "kernel_norm",
            KernelNormPart::Backward => "kernel_norm_grad",
        }
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let behind = operands.len().checked_sub(usize::from(self.adds));
        let (operands, addend) = operands.split_at(behind.ok_or("takes rows")?);
        let found = match self.part {
            KernelNormPart::Forward(_) => self.of.infer(operands)?,
            KernelNormPart::Backward => self.of.infer_grad(NormOperand::Input, operands)?,
        };
        for addend in addend {
            let is_narrow = addend.dtype == DType::BF16 && self.part != KernelNormPart::Backward;
            let dtype = if is_narrow { DType::BF16 } else { DType::F32 };
            expect("the other summand", addend, dtype, &self.dims)?;
        }
        expect("the rows", &found, DType::F32, &self.dims)?;
        let (x, width) = (&self.dims[..], &self.dims[self.dims.len() - 1..]);
        let wide = |dims: &[usize]| Shape::new(DType::F32, dims);
        match self.part {
            KernelNormPart::Forward(dtype @ (DType::F32 | DType::BF16)) => {
                let sum = self.adds.then(|| wide(x));
                Ok([Shape::new(dtype, x)].into_iter().chain(sum).collect())
            }
            KernelNormPart::Forward(dtype) => Err(format!("gives f32 or bf16, not {dtype}")),
            KernelNormPart::Backward => {
                let shift = (self.of.kind == NormKind::Layer).then(|| wide(width));
                let narrow = self.narrows.then(|| Shape::new(DType::BF16, x));
                let all = [wide(x), wide(width)].into_iter().chain(shift);
                Ok(all.chain(narrow).collect())
            }
        }
    }

    fn is_tuple(&self) -> bool {
        self.adds || self.part == KernelNormPart::Backward
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        let (target, switch, is_on) = match self.part {
            KernelNormPart::Forward(_) => ("xtrain.norm", "adds", self.adds),
            KernelNormPart::Backward => ("xtrain.norm_grad", "narrows", self.narrows),
        };
        let config = format!(
            "{{subtracts_mean = {} : i64, eps = {} : i64, {switch} = {} : i64}}",
            i64::from(self.of.kind == NormKind::Layer),
            (self.of.eps.get() as f32).to_bits(),
            i64::from(is_on),
        );
        Ok(Emission::new(target, config))
    }
}
