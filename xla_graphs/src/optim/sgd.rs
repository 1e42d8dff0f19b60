//! Stochastic gradient descent without momentum, with torch's coupled weight decay:
//! `w' = w - lr (g + wd w)`.

use super::{Optimizer, OptimizerKind, StateSpec, Update, Updated};
use crate::error::Result;

/// `--optim sgd`.
pub const SGD: OptimizerKind = OptimizerKind {
    name: "sgd",
    choices: &["sgd"],
    new: |_| Box::new(Sgd),
};

#[derive(Debug)]
struct Sgd;

impl Optimizer for Sgd {
    fn state(&self, _dims: &[usize]) -> Vec<StateSpec> {
        Vec::new()
    }

    fn update(&self, update: &Update) -> Result<Updated> {
        let mut direction = update.gradient.mul(update.scale)?;
        if update.weight_decay != 0.0 {
            direction = direction.add(&update.parameter.mul_scalar(update.weight_decay)?)?;
        }
        let step = direction.mul(&update.scalars.learning_rate)?;
        Ok(Updated {
            parameter: update.parameter.sub(&step)?,
            state: Vec::new(),
        })
    }
}
