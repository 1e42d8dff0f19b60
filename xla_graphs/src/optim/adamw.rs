//! AdamW (Loshchilov and Hutter 2019, decoupled weight decay) in the operation order of
//! `torch.optim.AdamW`.

use super::StepScalars;
use crate::error::Result;
use crate::trace::Tensor;

/// Hyper-parameters that stay fixed for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

/// A parameter and its moments after the step.
pub struct AdamWUpdate {
    pub parameter: Tensor,
    pub exp_avg: Tensor,
    pub exp_avg_sq: Tensor,
}

impl AdamW {
    /// One step; all tensors have the parameter's shape but `scale`, a scalar that the gradient is
    /// to be multiplied with (clipping, mean over tokens). `decay` is false for biases and
    /// LayerNorm weights.
    ///
    /// w' = w (1 - lr wd) - step_size m' / (sqrt(v') * second_moment_scale + eps)
    ///
    /// The two uses of the scaled gradient are spelled differently on purpose: were they one value,
    /// XLA would write it to memory and read it twice, and the optimizer's time is the time of its
    /// memory traffic.
    #[allow(clippy::too_many_arguments)] // each is a tensor of the formula
    pub fn update(
        &self,
        step: &StepScalars,
        parameter: &Tensor,
        grad: &Tensor,
        scale: &Tensor,
        exp_avg: &Tensor,
        exp_avg_sq: &Tensor,
        decay: bool,
    ) -> Result<AdamWUpdate> {
        let m = exp_avg
            .mul_scalar(self.beta1)?
            .add(&grad.mul(&scale.mul_scalar(1.0 - self.beta1)?)?)?;
        let scaled = grad.mul(scale)?;
        let v = exp_avg_sq
            .mul_scalar(self.beta2)?
            .add(&scaled.mul(&scaled)?.mul_scalar(1.0 - self.beta2)?)?;
        let denominator = v
            .sqrt()?
            .mul(&step.second_moment_scale)?
            .add_scalar(self.eps)?;
        let mut w = parameter.clone();
        if decay && self.weight_decay != 0.0 {
            w = w.mul(
                &step
                    .learning_rate
                    .mul_scalar(-self.weight_decay)?
                    .add_scalar(1.0)?,
            )?;
        }
        let parameter = w.sub(&m.div(&denominator)?.mul(&step.step_size)?)?;
        Ok(AdamWUpdate {
            parameter,
            exp_avg: m,
            exp_avg_sq: v,
        })
    }
}
