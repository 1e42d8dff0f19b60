//! Gaussian error linear units (Hendrycks and Gimpel 2016) in the exact and the tanh form.
//!
//! On the CPU both are steps of calls with what stands around them (`passes/one_pass`): XLA computes what is
//! costly once for both and keeps it in memory between them.

use super::special;
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Composite, Gelu, Op, PassStep};
use crate::ops::rule::Vjp;
use crate::target::Target;
use crate::trace::Tensor;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// sqrt(2 / pi)
const SQRT_2_OVER_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The cubic coefficient of the tanh approximation.
const CUBIC: f64 = 0.044715;

pub(crate) fn vjp(v: &Vjp, kind: Gelu) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![v.when(0, || {
        v.operands[0].apply(Op::Composite(Composite::GeluGrad(kind)), &[v.dy])
    })?])
}

/// The standard normal distribution function, exactly.
fn cdf(x: &Tensor, target: Target) -> Result<Tensor> {
    let x = x.mul_scalar(FRAC_1_SQRT_2)?;
    let erf = if target.has_special_functions() {
        x.erf()?
    } else {
        special::erf(&x)?
    };
    erf.add_scalar(1.0)?.mul_scalar(0.5)
}

/// tanh of the approximation's inner polynomial.
fn inner_tanh(x: &Tensor) -> Result<Tensor> {
    let cube = x.mul(x)?.mul(x)?;
    x.add(&cube.mul_scalar(CUBIC)?)?
        .mul_scalar(SQRT_2_OVER_PI)?
        .tanh()
}

/// Records a step over `x`; `None` where it is better off as operations.
fn step(of: PassStep, x: &Tensor, target: Target) -> Option<Result<Tensor>> {
    let Target::Cpu(kernels) = target else {
        return None;
    };
    let pays = CostModel::of(kernels).elements_pay(x.shape().elements());
    if !target.has_passes() || !pays || x.dtype() != DType::F32 {
        return None;
    }
    Some(x.trace().record(Op::PassStep(Box::new(of)), &[x]))
}

pub(crate) fn expand(kind: Gelu, x: &Tensor, target: Target) -> Result<Tensor> {
    if let Some(step) = step(PassStep::Gelu(kind), x, target) {
        return step;
    }
    match kind {
        Gelu::Erf => x.mul(&cdf(x, target)?),
        Gelu::Tanh => x.mul(&inner_tanh(x)?.add_scalar(1.0)?.mul_scalar(0.5)?),
    }
}

pub(crate) fn expand_grad(kind: Gelu, x: &Tensor, dy: &Tensor, target: Target) -> Result<Tensor> {
    if let Some(slope) = step(PassStep::GeluSlope(kind), x, target) {
        return dy.mul(&slope?);
    }
    let slope = match kind {
        // Phi(x) + x * phi(x)
        Gelu::Erf => {
            let density = x
                .mul(x)?
                .mul_scalar(-0.5)?
                .exp()?
                .mul_scalar(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)?;
            cdf(x, target)?.add(&x.mul(&density)?)?
        }
        // (1 + t) / 2 + x * (1 - t^2) / 2 * u'(x)
        Gelu::Tanh => {
            let t = inner_tanh(x)?;
            let du = x
                .mul(x)?
                .mul_scalar(3.0 * CUBIC)?
                .add_scalar(1.0)?
                .mul_scalar(SQRT_2_OVER_PI)?;
            let falling = t.mul(&t)?.neg()?.add_scalar(1.0)?;
            t.add_scalar(1.0)?
                .add(&x.mul(&falling)?.mul(&du)?)?
                .mul_scalar(0.5)?
        }
    };
    dy.mul(&slope)
}

impl Tensor {
    /// The Gaussian error linear unit of each element (Hendrycks and Gimpel 2016).
    ///
    /// # Errors
    /// If the element type is no float.
    #[track_caller]
    pub fn gelu(&self, kind: Gelu) -> Result<Tensor> {
        self.apply(Op::Composite(Composite::Gelu(kind)), &[])
    }
}
