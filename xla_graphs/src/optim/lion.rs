//! Lion (Chen et al. 2023), evolved sign momentum with decoupled weight decay, as `Lion` of
//! bitsandbytes, which is what TrainingArguments' names mean.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated,
};
use crate::error::Result;

/// `--optim lion_32bit` or `lion`; its betas are `--adam_beta1` and `--adam_beta2`.
pub const LION: OptimizerKind = OptimizerKind {
    name: "lion",
    choices: &["lion_32bit", "lion", "paged_lion_32bit"],
    new: Lion::boxed,
};

#[derive(Debug)]
pub(super) struct Lion(pub(super) Hyperparameters);

impl Lion {
    fn boxed(hyper: &Hyperparameters, _: &mut ArgumentReader) -> Box<dyn Optimizer> {
        Box::new(Lion(*hyper))
    }
}

impl Optimizer for Lion {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        vec![StateSpec::zeros("exp_avg", parameter.dims)]
    }

    /// `w' = w (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)` and `m' = beta2 m + (1 - beta2) g`.
    /// The sign of 0 is 0. The gradient is scaled for each use, so that XLA reads it only once, as
    /// in AdamW.
    fn update(&self, update: &Update) -> Result<Updated> {
        let exp_avg = &update.state[0];
        let moved = |beta: f64| {
            let scale = update.scale.mul_scalar(1.0 - beta)?;
            exp_avg.mul_scalar(beta)?.add(&update.gradient.mul(&scale)?)
        };
        let direction = moved(self.0.beta1)?.sign()?;
        let step = direction.mul(&update.scalars.learning_rate)?;
        Ok(Updated {
            parameter: update.decayed()?.sub(&step)?,
            state: vec![moved(self.0.beta2)?],
        })
    }
}
