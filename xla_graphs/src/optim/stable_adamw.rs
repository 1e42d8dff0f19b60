//! StableAdamW (Wortsman et al. 2023): AdamW with Adafactor's clipping, which slows the step of a
//! parameter down where its gradients outgrow their second moment, as `StableAdamW` of
//! torch-optimi, which is what TrainingArguments' name means.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, moments,
};
use crate::error::Result;
use crate::trace::Tensor;

/// `--optim stable_adamw`; its betas and eps are those of the `--adam_` flags.
pub const STABLE_ADAMW: OptimizerKind = OptimizerKind {
    name: "stable_adamw",
    choices: &["stable_adamw"],
    new: StableAdamW::boxed,
};

#[derive(Debug)]
struct StableAdamW {
    hyper: Hyperparameters,
    /// Weight decay is multiplied with the rate's share of this, not with the rate.
    max_lr: Option<f64>,
}

impl StableAdamW {
    fn boxed(hyper: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
        let above_zero = f64::MIN_POSITIVE..=f64::MAX;
        let is_decoupled = args.flag("decouple_lr", false);
        let max_lr = args.optional_number("max_lr", above_zero, "a number above 0");
        if is_decoupled && max_lr.is_none() {
            args.refuse("decouple_lr needs max_lr, the peak of the learning rate");
        }
        Box::new(StableAdamW {
            hyper: *hyper,
            max_lr: max_lr.filter(|_| is_decoupled),
        })
    }

    /// What `1 - beta^k` of both betas stand with in the update.
    fn fresh(&self) -> [f64; 2] {
        [1.0 - self.hyper.beta1, 1.0 - self.hyper.beta2]
    }
}

impl Optimizer for StableAdamW {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        moments::state(parameter.dims)
    }

    /// The share of the new in each moment, `(1 - beta) / (1 - beta^k)`, so that the moments need no
    /// correction.
    fn scalars(&self, _learning_rate: f64, step: u64) -> Vec<f64> {
        let corrections = moments::corrections(&self.hyper, step);
        let shares = self.fresh().into_iter().zip(corrections);
        shares
            .map(|(fresh, correction)| fresh / correction)
            .collect()
    }

    /// The bias corrections `1 - beta^k`.
    fn counters(&self) -> &'static [&'static str] {
        &["stable_adamw.correction1", "stable_adamw.correction2"]
    }

    fn next_counters(&self, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        moments::next_corrections(&self.hyper, corrections)
    }

    fn counted_scalars(&self, _: &Tensor, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        let share = |(fresh, correction): (f64, &Tensor)| {
            let fresh = correction.trace().full(fresh, correction.shape())?;
            fresh.div(correction)
        };
        self.fresh()
            .into_iter()
            .zip(corrections)
            .map(share)
            .collect()
    }

    /// `m' = m + s1 (g - m)`, `v' = v + s2 (g g - v)`, `rate = lr / max(1, rms)` with the root of the
    /// mean of `g g / max(v', eps^2)` over the parameter, and
    /// `w' = w (1 - rate wd) - rate m' / (sqrt(v') + eps)`.
    fn update(&self, update: &Update) -> Result<Updated> {
        let (gradient, eps) = (update.scaled()?, self.hyper.eps);
        let square = gradient.mul(&gradient)?;
        let moved =
            |old: &Tensor, new: &Tensor, share: &Tensor| old.add(&new.sub(old)?.mul(share)?);
        let m = moved(&update.state[0], &gradient, &update.scalars.own[0])?;
        let v = moved(&update.state[1], &square, &update.scalars.own[1])?;
        let count = update.info.dims.iter().product::<usize>() as f64;
        let ratio = square.div(&v.max_scalar(eps * eps)?)?;
        let rms = update.sum_all(&ratio)?.mul_scalar(1.0 / count)?.sqrt()?;
        let rate = update.scalars.learning_rate.div(&rms.max_scalar(1.0)?)?;
        let mut w = update.parameter.clone();
        if update.weight_decay != 0.0 {
            let decay = update.weight_decay / self.max_lr.unwrap_or(1.0);
            w = w.mul(&rate.mul_scalar(-decay)?.add_scalar(1.0)?)?;
        }
        let step = m.div(&v.sqrt()?.add_scalar(eps)?)?.mul(&rate)?;
        Ok(Updated {
            parameter: w.sub(&step)?,
            state: vec![m, v],
        })
    }
}
