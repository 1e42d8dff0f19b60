//! GELU and its gradient by the CPU plugin (`native/cpp/kernels/gelu.h`).

use super::spec::{CallSpec, Emission};
use crate::dtype::DType;
use crate::op::attributes::Gelu;
use crate::op::checks::{arity, expect};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// A GELU or its gradient as a call of the CPU plugin's: operands x and, of the gradient, dy, both f32 or
/// both bf16.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelGelu {
    /// Which form.
    pub of: Gelu,
    /// Whether the gradient is computed.
    pub is_gradient: bool,
    /// What it gives, in f32 or bf16.
    pub shape: Shape,
}

impl CallSpec for KernelGelu {
    fn name(&self) -> &'static str {
        if self.is_gradient {
            "kernel_gelu_grad"
        } else {
            "kernel_gelu"
        }
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        arity(operands, 1 + usize::from(self.is_gradient))?;
        let dtype = operands[0].dtype;
        if let Some(other) = [dtype, self.shape.dtype]
            .into_iter()
            .find(|dtype| !matches!(dtype, DType::F32 | DType::BF16))
        {
            return Err(format!("is for f32 and bf16, not {other}"));
        }
        for operand in operands {
            expect("the operand", operand, dtype, &self.shape.dims)?;
        }
        Ok(vec![self.shape.clone()])
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        Ok(Emission::new(
            "xtrain.gelu",
            format!("{{is_tanh = {} : i64}}", i64::from(self.of == Gelu::Tanh)),
        ))
    }
}
