//! Plain stochastic gradient descent with torch's coupled weight decay: w' = w - lr (g + wd w).

use super::StepScalars;
use crate::error::Result;
use crate::trace::Tensor;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub weight_decay: f64,
}

impl Sgd {
    /// The parameter after the step.
    pub fn update(
        &self,
        step: &StepScalars,
        parameter: &Tensor,
        grad: &Tensor,
        decay: bool,
    ) -> Result<Tensor> {
        let mut direction = grad.clone();
        if decay && self.weight_decay != 0.0 {
            direction = direction.add(&parameter.mul_scalar(self.weight_decay)?)?;
        }
        parameter.sub(&direction.mul(&step.learning_rate)?)
    }
}
