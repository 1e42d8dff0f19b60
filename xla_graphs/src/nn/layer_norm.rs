//! Layer normalization over the last dimension (Ba et al. 2016; biased variance, as torch's
//! `layer_norm`).
//!
//! With xhat = (x - mean) / sqrt(var + eps) and g = dy * gamma: dx = (g - mean(g) - xhat * mean(g *
//! xhat)) / sqrt(var + eps), dgamma = sum(dy * xhat), dbeta = sum(dy).

use crate::error::Result;
use crate::op::{Composite, F64, Op};
use crate::ops::rule::{Inferred, Vjp, expect, float};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn width(x: &Shape) -> std::result::Result<usize, String> {
    float(x)?;
    x.dims
        .last()
        .copied()
        .ok_or_else(|| "needs at least one dimension".into())
}

pub(crate) fn infer(operands: &[&Shape]) -> Inferred {
    let x = operands[0];
    let width = width(x)?;
    expect("the weight", operands[1], x.dtype, &[width])?;
    expect("the bias", operands[2], x.dtype, &[width])?;
    Ok(x.clone())
}

pub(crate) fn infer_grad(operands: &[&Shape]) -> Inferred {
    let x = operands[0];
    expect("the weight", operands[1], x.dtype, &[width(x)?])?;
    expect("the gradient", operands[2], x.dtype, &x.dims)?;
    Ok(x.clone())
}

pub(crate) fn infer_scale_grad(operands: &[&Shape]) -> Inferred {
    let x = operands[0];
    expect("the gradient", operands[1], x.dtype, &x.dims)?;
    Ok(Shape::new(x.dtype, [width(x)?]))
}

pub(crate) fn vjp(v: &Vjp, eps: F64) -> Result<Vec<Option<Tensor>>> {
    let (x, gamma) = (&v.operands[0], &v.operands[1]);
    let rows: Vec<usize> = (0..x.rank() - 1).collect();
    Ok(vec![
        v.when(0, || {
            x.apply(
                Op::Composite(Composite::LayerNormGrad { eps }),
                &[gamma, v.dy],
            )
        })?,
        v.when(1, || {
            x.apply(
                Op::Composite(Composite::LayerNormScaleGrad { eps }),
                &[v.dy],
            )
        })?,
        v.when(2, || v.dy.sum(&rows))?,
    ])
}

/// `(xhat, 1 / sqrt(var + eps))`, the second with a last dimension of 1.
fn normalized(x: &Tensor, eps: F64) -> Result<(Tensor, Tensor)> {
    let centered = x.sub(&x.mean_last_keep()?)?;
    let rstd = centered
        .mul(&centered)?
        .mean_last_keep()?
        .add_scalar(eps.get())?
        .rsqrt()?;
    Ok((centered.mul(&rstd)?, rstd))
}

pub(crate) fn expand(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, _) = normalized(&operands[0], eps)?;
    xhat.mul(&operands[1])?.add(&operands[2])
}

pub(crate) fn expand_grad(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, rstd) = normalized(&operands[0], eps)?;
    let g = operands[2].mul(&operands[1])?;
    let projected = xhat.mul(&g.mul(&xhat)?.mean_last_keep()?)?;
    g.sub(&g.mean_last_keep()?)?.sub(&projected)?.mul(&rstd)
}

pub(crate) fn expand_scale_grad(eps: F64, operands: &[Tensor]) -> Result<Tensor> {
    let (xhat, _) = normalized(&operands[0], eps)?;
    let rows: Vec<usize> = (0..xhat.rank() - 1).collect();
    operands[1].mul(&xhat)?.sum(&rows)
}

impl Tensor {
    /// Normalizes the last dimension, then scales by `gamma` and shifts by `beta`, both of that
    /// dimension's size.
    ///
    /// # Errors
    /// If `gamma` or `beta` has other dimensions, or another element type.
    #[track_caller]
    pub fn layer_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> Result<Tensor> {
        self.apply(
            Op::Composite(Composite::LayerNorm { eps: F64::new(eps) }),
            &[gamma, beta],
        )
    }
}
