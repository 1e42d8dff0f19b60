//! Normalizations over the last dimension: their attributes and shape rules.

use super::attributes::F64;
use super::checks::{Inferred, expect, float};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// A normalization over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Norm {
    /// What it divides by.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: F64,
}

/// What a [`Norm`] divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormKind {
    /// The standard deviation, after the mean is subtracted (Ba et al. 2016, "Layer normalization").
    Layer,
    /// The root mean square (Zhang and Sennrich 2019).
    Rms,
}

/// Which operand of a [`Norm`] a gradient node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormOperand {
    /// Gives dx.
    Input,
    /// Gives dgamma, `[C]`.
    Scale,
    /// Gives dbeta, `[C]`; of a LayerNorm only.
    Shift,
}

fn width(x: &Shape) -> Result<usize, String> {
    float(x)?;
    x.dims
        .last()
        .copied()
        .ok_or_else(|| "needs at least one dimension".into())
}

impl Norm {
    /// Shape rule of [`Composite::Norm`](super::Composite::Norm).
    pub(crate) fn infer(self, operands: &[&Shape]) -> Inferred {
        match (self.kind, operands) {
            (NormKind::Layer, [x, gamma, beta]) => {
                let width = width(x)?;
                expect("the weight", gamma, x.dtype, &[width])?;
                expect("the bias", beta, x.dtype, &[width])?;
                Ok((*x).clone())
            }
            (NormKind::Rms, [x, gamma]) => {
                expect("the weight", gamma, x.dtype, &[width(x)?])?;
                Ok((*x).clone())
            }
            _ => Err(format!("does not take {} operands", operands.len())),
        }
    }

    /// Shape rule of [`Composite::NormGrad`](super::Composite::NormGrad).
    pub(crate) fn infer_grad(self, operand: NormOperand, operands: &[&Shape]) -> Inferred {
        let [x, gamma, dy] = operands else {
            return Err(format!("takes 3 operands, got {}", operands.len()));
        };
        let width = width(x)?;
        expect("the weight", gamma, x.dtype, &[width])?;
        expect("the gradient", dy, x.dtype, &x.dims)?;
        match (self.kind, operand) {
            (_, NormOperand::Input) => Ok((*x).clone()),
            (_, NormOperand::Scale) | (NormKind::Layer, NormOperand::Shift) => {
                Ok(Shape::new(x.dtype, [width]))
            }
            (NormKind::Rms, NormOperand::Shift) => Err("has no bias".into()),
        }
    }
}
