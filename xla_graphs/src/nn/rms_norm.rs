//! Root-mean-square normalization over the last dimension (Zhang and Sennrich 2019).
//!
//! With xhat = x / sqrt(mean(x^2) + eps) and g = dy * gamma: y = xhat * gamma,
//! dx = (g - xhat * mean(g * xhat)) / sqrt(mean(x^2) + eps), dgamma = sum(dy * xhat).

use super::layer_norm::width;
use crate::error::Result;
use crate::op::{Composite, F64, Op};
use crate::ops::rule::{Inferred, Vjp, expect};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(crate) fn infer(operands: &[&Shape]) -> Inferred {
    let x = operands[0];
    expect("the weight", operands[1], x.dtype, &[width(x)?])?;
    Ok(x.clone())
}

pub(crate) fn vjp(v: &Vjp, eps: F64) -> Result<Vec<Option<Tensor>>> {
    let (x, gamma) = (&v.operands[0], &v.operands[1]);
    let gradient = |of, others: &[&Tensor]| x.apply(Op::Composite(of), others);
    Ok(vec![
        v.when(0, || {
            gradient(Composite::RmsNormGrad { eps }, &[gamma, v.dy])
        })?,
        v.when(1, || gradient(Composite::RmsNormScaleGrad { eps }, &[v.dy]))?,
    ])
}

/// `(xhat, 1 / sqrt(mean(x^2) + eps))`, the second with a last dimension of 1.
fn normalized(x: &Tensor, eps: F64) -> Result<(Tensor, Tensor)> {
    let rstd = x.mul(x)?.mean_last_keep()?.add_scalar(eps.get())?.rsqrt()?;
    Ok((x.mul(&rstd)?, rstd))
}

pub(crate) fn expand(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, _) = normalized(&operands[0], eps)?;
    xhat.mul(&operands[1])
}

pub(crate) fn expand_grad(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, rstd) = normalized(&operands[0], eps)?;
    let g = operands[2].mul(&operands[1])?;
    let projected = xhat.mul(&g.mul(&xhat)?.mean_last_keep()?)?;
    g.sub(&projected)?.mul(&rstd)
}

pub(crate) fn expand_scale_grad(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, _) = normalized(&operands[0], eps)?;
    let rows: Vec<usize> = (0..xhat.rank() - 1).collect();
    operands[1].mul(&xhat)?.sum(&rows)
}

impl Tensor {
    /// Divides the last dimension by its root mean square, then scales by `gamma` of that
    /// dimension's size.
    ///
    /// # Errors
    /// If the element type is no float or `gamma` has another size.
    #[track_caller]
    pub fn rms_norm(&self, gamma: &Tensor, eps: f64) -> Result<Tensor> {
        self.apply(
            Op::Composite(Composite::RmsNorm { eps: F64::new(eps) }),
            &[gamma],
        )
    }
}
