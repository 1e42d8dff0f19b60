//! Stochastic gradient descent with torch's coupled weight decay, momentum, dampening and
//! Nesterov's momentum (Sutskever et al. 2013), as `torch.optim.SGD`.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, next_step,
};
use crate::error::Result;
use crate::op::Comparison;
use crate::trace::Tensor;

/// `--optim sgd`.
pub const SGD: OptimizerKind = OptimizerKind {
    name: "sgd",
    choices: &["sgd"],
    new: Sgd::boxed,
};

#[derive(Debug)]
struct Sgd {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    fn boxed(_: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        let sgd = Sgd {
            momentum: args.not_negative("momentum", 0.0),
            dampening: args.number("dampening", 0.0, 0.0..=1.0, "a number from 0 to 1"),
            nesterov: args.flag("nesterov", false),
        };
        if sgd.nesterov && (sgd.momentum == 0.0 || sgd.dampening > 0.0) {
            args.refuse("nesterov needs a momentum above 0 and no dampening");
        }
        Box::new(sgd)
    }

    /// Whether the first step differs from the others: it takes the gradient without dampening.
    fn has_first_step(&self) -> bool {
        self.momentum > 0.0 && self.dampening > 0.0
    }
}

impl Optimizer for Sgd {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        if self.momentum > 0.0 {
            vec![StateSpec::zeros("momentum_buffer", parameter.dims)]
        } else {
            Vec::new()
        }
    }

    /// The factor on the gradient that enters the momentum.
    fn scalars(&self, _learning_rate: f64, step: u64) -> Vec<f64> {
        if !self.has_first_step() {
            Vec::new()
        } else if step == 1 {
            vec![1.0]
        } else {
            vec![1.0 - self.dampening]
        }
    }

    fn counters(&self) -> &'static [&'static str] {
        if self.has_first_step() {
            &["sgd.steps"]
        } else {
            &[]
        }
    }

    fn next_counters(&self, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        next_step(steps)
    }

    fn counted_scalars(&self, _learning_rate: &Tensor, steps: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(step) = steps.first() else {
            return Ok(Vec::new());
        };
        let full = |value| step.trace().full(value, step.shape());
        let is_first = step.compare_scalar(Comparison::Le, 1.0)?;
        Ok(vec![
            is_first.select(&full(1.0)?, &full(1.0 - self.dampening)?)?,
        ])
    }

    /// `g = g + wd w`; with momentum `m' = momentum m + (1 - dampening) g`, in the first step `g`;
    /// `w' = w - lr m'`, with Nesterov's momentum `w - lr (g + momentum m')`.
    fn update(&self, update: &Update) -> Result<Updated> {
        let gradient = update.coupled()?;
        let mut state = Vec::new();
        let mut direction = gradient.clone();
        if let [momentum] = update.state {
            let added = match &update.scalars.own[..] {
                [factor] => gradient.mul(factor)?,
                _ => gradient.clone(),
            };
            let moved = momentum.mul_scalar(self.momentum)?.add(&added)?;
            direction = if self.nesterov {
                gradient.add(&moved.mul_scalar(self.momentum)?)?
            } else {
                moved.clone()
            };
            state.push(moved);
        }
        let step = direction.mul(&update.scalars.learning_rate)?;
        Ok(Updated {
            parameter: update.parameter.sub(&step)?,
            state,
        })
    }
}
