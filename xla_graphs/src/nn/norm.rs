//! Normalization over the last dimension: LayerNorm (Ba et al. 2016; biased variance, as torch's
//! `layer_norm`) and RMSNorm (Zhang and Sennrich 2019).
//!
//! LayerNorm: xhat = (x - mean) / sqrt(var + eps), y = xhat * gamma + beta. With g = dy * gamma:
//! dx = (g - mean(g) - xhat * mean(g * xhat)) / sqrt(var + eps), dgamma = sum(dy * xhat), dbeta =
//! sum(dy). RMSNorm has mean(x^2) for the variance, and neither a mean nor a beta.
//!
//! On the CPU both passes are calls (`native/cpp/kernels/norm.h`): XLA writes arrays of x's size
//! for sums that it takes of each row, and for both gradients of parameters.

use super::call_result;
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Composite, F64, KernelNorm, KernelNormPart, Norm, NormKind, NormOperand, Op};
use crate::ops::rule::Vjp;
use crate::target::Target;
use crate::trace::Tensor;

pub(crate) fn vjp(v: &Vjp, of: Norm) -> Result<Vec<Option<Tensor>>> {
    let (x, gamma) = (&v.operands[0], &v.operands[1]);
    let parts = [NormOperand::Input, NormOperand::Scale, NormOperand::Shift];
    let gradients = parts.into_iter().zip(0..v.operands.len());
    let gradients = gradients.map(|(operand, index)| {
        v.when(index, || {
            x.apply(
                Op::Composite(Composite::NormGrad { of, operand }),
                &[gamma, v.dy],
            )
        })
    });
    gradients.collect()
}

/// Records the call that computes this part; `None` where it is better off as operations.
fn kernel(
    of: Norm,
    part: KernelNormPart,
    operands: &[Tensor],
    target: Target,
) -> Option<Result<Tensor>> {
    let Target::Cpu(kernels) = target else {
        return None;
    };
    let shape = operands[0].shape();
    let pays = CostModel::of(kernels).norm_pays(shape.elements(), *shape.dims.last()?);
    if !kernels.calls.has::<KernelNorm>() || !pays || shape.dtype != DType::F32 {
        return None;
    }
    let call = KernelNorm {
        of,
        part,
        dims: shape.dims.to_vec(),
        adds: false,
        narrows: false,
    };
    let operands: Vec<&Tensor> = operands.iter().collect();
    let trace = operands[0].trace();
    Some(trace.call(call, &operands))
}

/// `(xhat, 1 / sqrt(variance + eps))`, the second with a last dimension of 1.
fn normalized(of: Norm, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let centered = match of.kind {
        NormKind::Layer => x.sub(&x.mean_last_keep()?)?,
        NormKind::Rms => x.clone(),
    };
    let rstd = centered
        .mul(&centered)?
        .mean_last_keep()?
        .add_scalar(of.eps.get())?
        .rsqrt()?;
    Ok((centered.mul(&rstd)?, rstd))
}

/// `wanted`: the type that all who read the result convert it to, if there is one.
pub(crate) fn expand(
    of: Norm,
    operands: &[Tensor],
    wanted: Option<DType>,
    target: Target,
) -> Result<Tensor> {
    let dtype = wanted.filter(|dtype| *dtype == DType::BF16);
    let part = KernelNormPart::Forward(dtype.unwrap_or(DType::F32));
    if let Some(call) = kernel(of, part, operands, target) {
        return call;
    }
    let (xhat, _) = normalized(of, &operands[0])?;
    let scaled = xhat.mul(&operands[1])?;
    match operands.get(2) {
        Some(beta) => scaled.add(beta),
        None => Ok(scaled),
    }
}

/// Recorded for each operand, a call is one.
pub(crate) fn expand_grad(
    of: Norm,
    operand: NormOperand,
    operands: &[Tensor],
    target: Target,
) -> Result<Tensor> {
    if let Some(call) = kernel(of, KernelNormPart::Backward, operands, target) {
        return call_result(&call?, operand as usize);
    }
    let (x, gamma, dy) = (&operands[0], &operands[1], &operands[2]);
    let rows: Vec<usize> = (0..x.rank() - 1).collect();
    if operand == NormOperand::Shift {
        return dy.sum(&rows);
    }
    let (xhat, rstd) = normalized(of, x)?;
    if operand == NormOperand::Scale {
        return dy.mul(&xhat)?.sum(&rows);
    }
    let g = dy.mul(gamma)?;
    let projected = xhat.mul(&g.mul(&xhat)?.mean_last_keep()?)?;
    let centered = match of.kind {
        NormKind::Layer => g.sub(&g.mean_last_keep()?)?,
        NormKind::Rms => g,
    };
    centered.sub(&projected)?.mul(&rstd)
}

impl Tensor {
    /// Normalizes the last dimension, then scales by `gamma` and shifts by `beta`, both of that
    /// dimension's size.
    ///
    /// # Errors
    /// If `gamma` or `beta` has other dimensions, or another element type.
    #[track_caller]
    pub fn layer_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> Result<Tensor> {
        let (kind, eps) = (NormKind::Layer, F64::new(eps));
        self.apply(
            Op::Composite(Composite::Norm(Norm { kind, eps })),
            &[gamma, beta],
        )
    }

    /// Divides the last dimension by its root mean square, then scales by `gamma` of that
    /// dimension's size.
    ///
    /// # Errors
    /// If the element type is no float or `gamma` has another size.
    #[track_caller]
    pub fn rms_norm(&self, gamma: &Tensor, eps: f64) -> Result<Tensor> {
        let (kind, eps) = (NormKind::Rms, F64::new(eps));
        self.apply(Op::Composite(Composite::Norm(Norm { kind, eps })), &[gamma])
    }
}
