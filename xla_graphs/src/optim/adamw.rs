//! AdamW (Loshchilov and Hutter 2019, decoupled weight decay) in the operation order of
//! `torch.optim.AdamW`.

use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated, moments,
};
use crate::error::Result;
use crate::trace::Tensor;

/// `--optim adamw_torch` and its aliases.
pub const ADAMW: OptimizerKind = OptimizerKind {
    name: "adamw",
    choices: &[
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "adamw_apex_fused",
        "adamw_hf",
        "adamw",
        "paged_adamw_32bit",
        "paged_adamw",
    ],
    new: AdamW::boxed,
};

#[derive(Debug)]
pub(super) struct AdamW(pub(super) Hyperparameters);

impl AdamW {
    fn boxed(hyper: &Hyperparameters, _: &mut ArgumentReader) -> Box<dyn Optimizer> {
        Box::new(AdamW(*hyper))
    }
}

impl Optimizer for AdamW {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        moments::state(parameter.dims)
    }

    /// `step_size = lr / (1 - beta1^k)` and `second_moment_scale = 1 / sqrt(1 - beta2^k)`.
    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let [first, second] = moments::corrections(&self.0, step);
        vec![learning_rate / first, 1.0 / second.sqrt()]
    }

    /// The bias corrections `1 - beta^k`.
    fn counters(&self) -> &'static [&'static str] {
        &["adamw.correction1", "adamw.correction2"]
    }

    fn next_counters(&self, corrections: &[Tensor]) -> Result<Vec<Tensor>> {
        moments::next_corrections(&self.0, corrections)
    }

    fn counted_scalars(
        &self,
        learning_rate: &Tensor,
        corrections: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        let (first, second) = (&corrections[0], &corrections[1]);
        let one = second.trace().full(1.0, second.shape())?;
        Ok(vec![learning_rate.div(first)?, one.div(&second.sqrt()?)?])
    }

    /// `w' = w (1 - lr wd) - step_size m' / (sqrt(v') second_moment_scale + eps)`
    fn update(&self, update: &Update) -> Result<Updated> {
        let (step_size, second_moment_scale) = (&update.scalars.own[0], &update.scalars.own[1]);
        let (m, v) = moments::next(&self.0, update)?;
        let denominator = v.sqrt()?.mul(second_moment_scale)?.add_scalar(self.0.eps)?;
        let w = update.decayed()?;
        Ok(Updated {
            parameter: w.sub(&m.div(&denominator)?.mul(step_size)?)?,
            state: vec![m, v],
        })
    }
}
