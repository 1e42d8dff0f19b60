//! Adagrad (Duchi et al. 2011) with coupled weight decay, as `torch.optim.Adagrad`.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, next_step,
};
use crate::error::Result;
use crate::trace::Tensor;

/// `--optim adagrad`.
pub const ADAGRAD: OptimizerKind = OptimizerKind {
    name: "adagrad",
    choices: &["adagrad"],
    new: Adagrad::boxed,
};

#[derive(Debug)]
struct Adagrad {
    lr_decay: f64,
    eps: f64,
}

impl Adagrad {
    fn boxed(_: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        Box::new(Adagrad {
            lr_decay: args.not_negative("lr_decay", 0.0),
            eps: args.not_negative("eps", 1e-10),
        })
    }

    fn decays(&self) -> bool {
        self.lr_decay > 0.0
    }
}

impl Optimizer for Adagrad {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        vec![StateSpec::zeros("sum", parameter.dims)]
    }

    /// With a decay, `lr / (1 + (k - 1) lr_decay)`.
    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        if self.decays() {
            vec![learning_rate / (1.0 + (step as f64 - 1.0) * self.lr_decay)]
        } else {
            Vec::new()
        }
    }

    fn counters(&self) -> &'static [&'static str] {
        if self.decays() {
            &["adagrad.steps"]
        } else {
            &[]
        }
    }

    fn next_counters(&self, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        next_step(steps)
    }

    fn counted_scalars(&self, learning_rate: &Tensor, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        let decayed = |step: &Tensor| {
            let slower = step.add_scalar(-1.0)?.mul_scalar(self.lr_decay)?;
            learning_rate.div(&slower.add_scalar(1.0)?)
        };
        steps.iter().map(decayed).collect()
    }

    /// `g = g + wd w`, `s' = s + g g` and `w' = w - lr g / (sqrt(s') + eps)`.
    fn update(&self, update: &Update) -> Result<Updated> {
        let rate = update.scalars.own.first();
        let rate = rate.unwrap_or(&update.scalars.learning_rate);
        let gradient = update.coupled()?;
        let sum = update.state[0].add(&gradient.mul(&gradient)?)?;
        let step = gradient
            .div(&sum.sqrt()?.add_scalar(self.eps)?)?
            .mul(rate)?;
        Ok(Updated {
            parameter: update.parameter.sub(&step)?,
            state: vec![sum],
        })
    }
}
