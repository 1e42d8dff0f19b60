//! Gaussian error linear units (Hendrycks and Gimpel 2016) in the exact and the tanh form.
//!
//! XLA keeps a function that both passes compute in memory between them, in f32. On cards, where computing it
//! again costs no time, the gradient computes it in another form ([`Target::recomputes_elements`]). On the CPU both
//! passes are steps of calls with what stands around them (`passes/one_pass`).

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

/// `cdf` in a form of which XLA does not see that it is the same: 1 - erf(-x), of the other half.
fn cdf_again(x: &Tensor) -> Result<Tensor> {
    let erf = x.mul_scalar(-FRAC_1_SQRT_2)?.erf()?;
    erf.neg()?.add_scalar(1.0)?.mul_scalar(0.5)
}

/// The approximation's inner polynomial times `scale`.
fn inner(x: &Tensor, scale: f64) -> Result<Tensor> {
    let cube = x.mul(x)?.mul(x)?;
    x.add(&cube.mul_scalar(CUBIC)?)?
        .mul_scalar(scale * SQRT_2_OVER_PI)
}

/// tanh of the approximation's inner polynomial.
fn inner_tanh(x: &Tensor) -> Result<Tensor> {
    inner(x, 1.0)?.tanh()
}

/// The derivative of the inner polynomial.
fn inner_slope(x: &Tensor) -> Result<Tensor> {
    x.mul(x)?
        .mul_scalar(3.0 * CUBIC)?
        .add_scalar(1.0)?
        .mul_scalar(SQRT_2_OVER_PI)
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
            let cdf = if target.recomputes_elements() {
                cdf_again(x)?
            } else {
                cdf(x, target)?
            };
            cdf.add(&x.mul(&density)?)?
        }
        // (1 + t) / 2 is s = logistic(2 u): s + 2 x * s (1 - s) * u'(x)
        Gelu::Tanh if target.recomputes_elements() => {
            let s = inner(x, 2.0)?.logistic()?;
            let falling = s.mul(&s.neg()?.add_scalar(1.0)?)?;
            let rest = x.mul(&falling)?.mul(&inner_slope(x)?)?;
            s.add(&rest.mul_scalar(2.0)?)?
        }
        // (1 + t) / 2 + x * (1 - t^2) / 2 * u'(x)
        Gelu::Tanh => {
            let t = inner_tanh(x)?;
            let du = inner_slope(x)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Unary;
    use crate::shape::Shape;
    use crate::target::CudaTarget;
    use crate::{Graph, InputRole, Phase, Trace, backward, passes};

    fn lowered(kind: Gelu, target: Target) -> Graph {
        let trace = Trace::new();
        let input = |name| trace.input(name, Shape::new(DType::F32, [8, 16]), InputRole::State);
        let (x, w) = (input("x"), input("w"));
        let loss = x.gelu(kind).unwrap().mul(&w).unwrap().sum_all().unwrap();
        trace.output("loss", &loss);
        let dx = backward(&loss, &[x]).unwrap().remove(0);
        trace.output("dx", &dx);
        passes::lower(&trace.finish("test").unwrap(), target).unwrap()
    }

    /// Whether the backward pass reads what the forward pass makes of a costly function of elements, so that
    /// it is kept between them.
    fn keeps_function(graph: &Graph) -> bool {
        let mut is_costly: Vec<bool> = Vec::new();
        let mut is_kept = false;
        for node in &graph.nodes {
            let functions = [Unary::Tanh, Unary::Erf, Unary::Logistic];
            let mut functions = functions.into_iter();
            let is_function = functions.any(|function| node.op == Op::Unary(function));
            let reads = node.operands.iter().any(|&id| is_costly[id as usize]);
            let is_forward = node.provenance.phase == Phase::Forward;
            is_kept |= reads && !is_forward;
            is_costly.push(is_forward && (is_function || reads));
        }
        is_kept
    }

    #[test]
    fn cards_keep_no_function_of_elements_for_the_backward_pass() {
        let card = Target::Cuda(CudaTarget {
            capability: 90,
            ..CudaTarget::default()
        });
        for kind in [Gelu::Erf, Gelu::Tanh] {
            assert!(!keeps_function(&lowered(kind, card)), "{kind:?}");
            assert!(keeps_function(&lowered(kind, Target::CPU)), "{kind:?}");
        }
    }
}
