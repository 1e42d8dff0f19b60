//! Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), with the rules and numbers of
//! `torch.amp.GradScaler`: the loss is multiplied up so that small gradients do not vanish in fp16;
//! a step whose gradients overflow is skipped and halves the scale, and many good steps in a row
//! double it.

use crate::error::Result;
use crate::op::Comparison;
use crate::trace::Tensor;

/// The scale of the first step.
pub const INITIAL_SCALE: f32 = 65536.0;
/// Good steps in a row after which the scale doubles.
pub const GROWTH_INTERVAL: f64 = 2000.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;

/// The scale and what decides about its growth, all `f32[]`.
pub struct LossScale {
    /// The factor on the loss.
    pub scale: Tensor,
    /// Steps since the scale last changed.
    pub good_steps: Tensor,
}

impl LossScale {
    /// What the next step uses; `finite` (`pred[]`) says whether all gradients of this one are.
    ///
    /// # Errors
    /// If `finite` is no `pred[]`.
    pub fn next(&self, finite: &Tensor) -> Result<LossScale> {
        let zero = self.good_steps.trace().full(0.0, self.good_steps.shape())?;
        let good_steps = self.good_steps.add_scalar(1.0)?;
        let is_due = good_steps.compare_scalar(Comparison::Ge, GROWTH_INTERVAL)?;
        let doubled = self.scale.mul_scalar(GROWTH)?;
        let grows = is_due.and(&doubled.is_finite()?)?;
        let after_good = grows.select(&doubled, &self.scale)?;
        Ok(LossScale {
            scale: finite.select(&after_good, &self.scale.mul_scalar(BACKOFF)?)?,
            good_steps: finite.select(&is_due.select(&zero, &good_steps)?, &zero)?,
        })
    }
}
