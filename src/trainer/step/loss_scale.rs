//! Loss scaling in fp16: the scale as device state, and the check that skips a step whose gradients
//! overflow. The rule is [`LossScale`]'s.

use crate::error::Result;
use crate::session::Recording;
use xtrain_graphs::Tensor;
use xtrain_graphs::optim::{INITIAL_SCALE, LossScale};

const SCALE: &str = "loss_scale";
const GOOD_STEPS: &str = "loss_scale.good_steps";

/// State in the session and in checkpoints, by name, with its value at the start of a run; each
/// `f32[]`.
pub(super) const STATE: [(&str, f32); 2] = [(SCALE, INITIAL_SCALE), (GOOD_STEPS, 0.0)];

/// What is differentiated: the mean of the summed loss over `divisor` times the loss scale. A sum
/// over thousands of tokens would use up the range that the scale is there for.
pub(super) fn scaled(recording: &mut Recording, loss: &Tensor, divisor: f64) -> Result<Tensor> {
    let _scope = recording.trace().clone().scope("loss");
    Ok(loss.mul(&factor(recording, divisor)?)?)
}

/// The factor that [`scaled`] puts on the loss and so on every gradient, `f32[]`.
pub(super) fn factor(recording: &mut Recording, divisor: f64) -> Result<Tensor> {
    Ok(recording.state(SCALE)?.mul_scalar(1.0 / divisor)?)
}

/// What loss scaling found in a step.
pub(super) struct ScaleCheck {
    /// The scale that the step used, `f32[]`.
    pub scale: Tensor,
    /// Whether all gradients are finite, `pred[]`.
    pub finite: Tensor,
}

impl ScaleCheck {
    /// Decides from the gradient norm, `f32[]`, whether the step counts, and updates the scale.
    pub fn new(recording: &mut Recording, norm: &Tensor) -> Result<Self> {
        // The squares of finite gradients could only add up to infinity if their norm were above
        // 1e19: an overflow as well.
        let finite = norm.is_finite()?;
        let old = LossScale {
            scale: recording.state(SCALE)?,
            good_steps: recording.state(GOOD_STEPS)?,
        };
        let new = old.next(&finite)?;
        recording.assign(SCALE, &new.scale)?;
        recording.assign(GOOD_STEPS, &new.good_steps)?;
        Ok(ScaleCheck {
            scale: old.scale,
            finite,
        })
    }
}
