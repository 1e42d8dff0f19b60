//! AdamW (Loshchilov and Hutter 2019, decoupled weight decay) in the operation order of
//! `torch.optim.AdamW`.

use super::{Hyperparameters, Optimizer, OptimizerKind, StateSpec, Update, Updated};
use crate::error::Result;
use crate::trace::Tensor;

/// `--optim adamw_torch` and its aliases.
pub const ADAMW: OptimizerKind = OptimizerKind {
    name: "adamw",
    choices: &["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"],
    new: |hyper| Box::new(AdamW(*hyper)),
};

#[derive(Debug)]
struct AdamW(Hyperparameters);

impl Optimizer for AdamW {
    fn state(&self, dims: &[usize]) -> Vec<StateSpec> {
        ["exp_avg", "exp_avg_sq"]
            .map(|name| StateSpec::zeros(name, dims))
            .into()
    }

    /// `step_size = lr / (1 - beta1^k)` and `second_moment_scale = 1 / sqrt(1 - beta2^k)`. The
    /// powers are taken in f64 on the host, as torch does: in f32, `1 - 0.999` alone is off by
    /// 4e-5.
    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let power = |beta: f64| 1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX));
        vec![
            learning_rate / power(self.0.beta1),
            1.0 / power(self.0.beta2).sqrt(),
        ]
    }

    /// The bias corrections `1 - beta^k`.
    fn counters(&self) -> &'static [&'static str] {
        &["adamw.correction1", "adamw.correction2"]
    }

    /// `1 - beta^(k+1) = beta (1 - beta^k) + (1 - beta)`, which in f32 keeps all its digits, where
    /// a power that is close to 1 would lose them in the subtraction.
    fn next_counters(&self, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        [self.0.beta1, self.0.beta2]
            .iter()
            .zip(corrections)
            .map(|(beta, x)| x.mul_scalar(*beta)?.add_scalar(1.0 - beta))
            .collect()
    }

    fn counted_scalars(
        &self,
        learning_rate: &Tensor,
        corrections: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let (first, second) = (&corrections[0], &corrections[1]);
        let one = second.trace().full(1.0, second.shape())?;
        Ok(vec![learning_rate.div(first)?, one.div(&second.sqrt()?)?])
    }

    /// `w' = w (1 - lr wd) - step_size m' / (sqrt(v') second_moment_scale + eps)`
    ///
    /// The two uses of the scaled gradient are spelled differently on purpose: were they one value,
    /// XLA would write it to memory and read it twice, and the optimizer's time is the time of its
    /// memory traffic.
    fn update(&self, update: &Update) -> Result<Updated> {
        let Hyperparameters { beta1, beta2, eps } = self.0;
        let (gradient, scale) = (update.gradient, update.scale);
        let (exp_avg, exp_avg_sq) = (&update.state[0], &update.state[1]);
        let (step_size, second_moment_scale) = (&update.scalars.own[0], &update.scalars.own[1]);
        let m = exp_avg
            .mul_scalar(beta1)?
            .add(&gradient.mul(&scale.mul_scalar(1.0 - beta1)?)?)?;
        let scaled = gradient.mul(scale)?;
        let v = exp_avg_sq
            .mul_scalar(beta2)?
            .add(&scaled.mul(&scaled)?.mul_scalar(1.0 - beta2)?)?;
        let denominator = v.sqrt()?.mul(second_moment_scale)?.add_scalar(eps)?;
        let w = update.decayed()?;
        Ok(Updated {
            parameter: w.sub(&m.div(&denominator)?.mul(step_size)?)?,
            state: vec![m, v],
        })
    }
}
