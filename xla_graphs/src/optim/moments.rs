//! The two moments of Adam (Kingma and Ba 2015), which AdamW and LAMB share.

use super::{Hyperparameters, StateSpec, Update};
use crate::error::Result;
use crate::trace::Tensor;

/// The state of a parameter.
pub(super) fn state(dims: &[usize]) -> Vec<StateSpec> {
    ["exp_avg", "exp_avg_sq"]
        .map(|name| StateSpec::zeros(name, dims))
        .into()
}

/// `1 - beta^k` of both betas. The powers are taken in f64 on the host, as torch does: in f32,
/// `1 - 0.999` alone is off by 4e-5.
pub(super) fn corrections(hyper: &Hyperparameters, step: u64) -> [f64; 2] {
    let power = |beta: f64| 1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX));
    [power(hyper.beta1), power(hyper.beta2)]
}

/// `1 - beta^(k+1) = beta (1 - beta^k) + (1 - beta)`, which in f32 keeps all its digits, where a
/// power that is close to 1 would lose them in the subtraction.
pub(super) fn next_corrections(
    hyper: &Hyperparameters,
    corrections: &[Tensor],
) -> Result<Vec<Tensor>> {
    [hyper.beta1, hyper.beta2]
        .iter()
        .zip(corrections)
        .map(|(beta, x)| x.mul_scalar(*beta)?.add_scalar(1.0 - beta))
        .collect()
}

/// `m'` and `v'`.
///
/// The two uses of the scaled gradient are spelled differently on purpose: were they one value, XLA
/// would write it to memory and read it twice, and the optimizer's time is the time of its memory
/// traffic.
pub(super) fn next(hyper: &Hyperparameters, update: &Update) -> Result<(Tensor, Tensor)> {
    let Hyperparameters { beta1, beta2, .. } = *hyper;
    let (gradient, scale) = (update.gradient, update.scale);
    let (exp_avg, exp_avg_sq) = (&update.state[0], &update.state[1]);
    let m = exp_avg
        .mul_scalar(beta1)?
        .add(&gradient.mul(&scale.mul_scalar(1.0 - beta1)?)?)?;
    let scaled = gradient.mul(scale)?;
    let v = exp_avg_sq
        .mul_scalar(beta2)?
        .add(&scaled.mul(&scaled)?.mul_scalar(1.0 - beta2)?)?;
    Ok((m, v))
}
