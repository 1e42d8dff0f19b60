//! LAMB (You et al. 2020): Adam's step with bias correction and decay, scaled for each parameter by
//! the trust ratio, the norm of the parameter over that of the step.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, moments,
};
use crate::error::Result;
use crate::op::Comparison;
use crate::trace::Tensor;

/// `--optim lamb`; its betas are `--adam_beta1` and `--adam_beta2`, its eps is in `--optim_args`.
pub const LAMB: OptimizerKind = OptimizerKind {
    name: "lamb",
    choices: &["lamb"],
    new: Lamb::boxed,
};

/// The hyperparameters with LAMB's own eps.
#[derive(Debug)]
struct Lamb(Hyperparameters);

impl Lamb {
    fn boxed(hyper: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        let eps = args.not_negative("eps", 1e-6);
        Box::new(Lamb(Hyperparameters { eps, ..*hyper }))
    }
}

impl Optimizer for Lamb {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        moments::state(parameter.dims)
    }

    /// `1 / (1 - beta1^k)` and `1 / sqrt(1 - beta2^k)`.
    fn scalars(&self, _learning_rate: f64, step: u64) -> Vec<f64> {
        let [first, second] = moments::corrections(&self.0, step);
        vec![1.0 / first, 1.0 / second.sqrt()]
    }

    /// The bias corrections `1 - beta^k`.
    fn counters(&self) -> &'static [&'static str] {
        &["lamb.correction1", "lamb.correction2"]
    }

    fn next_counters(&self, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        moments::next_corrections(&self.0, corrections)
    }

    fn counted_scalars(&self, _: &Tensor, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        let (first, second) = (&corrections[0], &corrections[1]);
        let one = second.trace().full(1.0, second.shape())?;
        Ok(vec![one.div(first)?, one.div(&second.sqrt()?)?])
    }

    /// `r = m^ / (sqrt(v^) + eps) + wd w` and `w' = w - lr |w| / |r| r`, or `w - lr r` if one of the
    /// norms is 0.
    fn update(&self, update: &Update) -> Result<Updated> {
        let (first, second) = (&update.scalars.own[0], &update.scalars.own[1]);
        let (m, v) = moments::next(&self.0, update)?;
        let denominator = v.sqrt()?.mul(second)?.add_scalar(self.0.eps)?;
        let w = update.parameter;
        let mut direction = m.mul(first)?.div(&denominator)?;
        if update.weight_decay != 0.0 {
            direction = direction.add(&w.mul_scalar(update.weight_decay)?)?;
        }
        let norm = |x: &Tensor| update.sum_all(&x.mul(x)?)?.sqrt();
        let (weight, step) = (norm(w)?, norm(&direction)?);
        let is_positive = |x: &Tensor| x.compare_scalar(Comparison::Gt, 0.0);
        let one = step.trace().full(1.0, step.shape())?;
        let has_ratio = is_positive(&weight)?.and(&is_positive(&step)?)?;
        let trust = has_ratio.select(&weight.div(&step)?, &one)?;
        let rate = update.scalars.learning_rate.mul(&trust)?;
        Ok(Updated {
            parameter: w.sub(&direction.mul(&rate)?)?,
            state: vec![m, v],
        })
    }
}
