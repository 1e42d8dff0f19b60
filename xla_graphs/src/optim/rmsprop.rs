//! RMSprop (Tieleman and Hinton 2012) with coupled weight decay, centred (Graves 2013) and with
//! momentum if asked, as `torch.optim.RMSprop`.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated,
};
use crate::error::Result;

/// `--optim rmsprop`.
pub const RMSPROP: OptimizerKind = OptimizerKind {
    name: "rmsprop",
    choices: &["rmsprop"],
    new: RmsProp::boxed,
};

#[derive(Debug)]
struct RmsProp {
    alpha: f64,
    eps: f64,
    momentum: f64,
    centered: bool,
}

impl RmsProp {
    fn boxed(_: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        Box::new(RmsProp {
            alpha: args.below_one("alpha", 0.99),
            eps: args.not_negative("eps", 1e-8),
            momentum: args.not_negative("momentum", 0.0),
            centered: args.flag("centered", false),
        })
    }
}

impl Optimizer for RmsProp {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        let names = [
            ("square_avg", true),
            ("grad_avg", self.centered),
            ("momentum_buffer", self.momentum > 0.0),
        ];
        let kept = names.into_iter().filter(|(_, is_kept)| *is_kept);
        kept.map(|(name, _)| StateSpec::zeros(name, parameter.dims))
            .collect()
    }

    /// `g = g + wd w`, `v' = alpha v + (1 - alpha) g g`, centred `a' = a + (1 - alpha) (g - a)`;
    /// `d = g / (sqrt(v' - a' a') + eps)`, with momentum `d = m' = momentum m + d`; `w' = w - lr d`.
    fn update(&self, update: &Update) -> Result<Updated> {
        let mut old = update.state.iter();
        let mut next = || old.next().expect("the state of this optimizer");
        let gradient = update.coupled()?;
        let new = 1.0 - self.alpha;
        let square = gradient.mul(&gradient)?.mul_scalar(new)?;
        let square_avg = next().mul_scalar(self.alpha)?.add(&square)?;
        let mut state = vec![square_avg.clone()];
        let mut variance = square_avg;
        if self.centered {
            let mean = next();
            let mean = mean.add(&gradient.sub(mean)?.mul_scalar(new)?)?;
            // Rounding may take the difference of two equal numbers below 0.
            variance = variance.sub(&mean.mul(&mean)?)?.max_scalar(0.0)?;
            state.push(mean);
        }
        let mut direction = gradient.div(&variance.sqrt()?.add_scalar(self.eps)?)?;
        if self.momentum > 0.0 {
            direction = next().mul_scalar(self.momentum)?.add(&direction)?;
            state.push(direction.clone());
        }
        let step = direction.mul(&update.scalars.learning_rate)?;
        Ok(Updated {
            parameter: update.parameter.sub(&step)?,
            state,
        })
    }
}
