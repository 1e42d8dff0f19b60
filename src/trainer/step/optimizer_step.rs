//! `optimizer_step`: the exchange between replicas, mean over the true token count, the loss
//! scale's check, clipping by the global norm, the optimizer's update of every parameter.

use super::gradients::Gradients;
use super::loss_scale::{self, ScaleCheck};
use super::metrics;
use crate::error::Result;
use crate::exchange::{self, ShardedUpdates};
use crate::session::Recording;
use crate::settings::OptimizerSettings;
use std::sync::atomic::{AtomicU64, Ordering};
use xtrain_graphs::optim::{
    Optimizer, ParameterInfo, Schedule, StateSpec, StepScalars, Update, clip_factor, step_feed,
};
use xtrain_graphs::{DType, Shape, Tensor};
use xtrain_models::ParameterSpec;

/// Records the optimizer's part of a step.
pub(super) struct OptimizerStep {
    pub optimizer: Box<dyn Optimizer>,
    pub settings: OptimizerSettings,
    pub schedule: Schedule,
    /// Bytes of gradients that replicas exchange in one collective.
    pub bucket_bytes: usize,
    /// Bits of the learning rate where evaluations decide about it; 0: the schedule does.
    pub rate_by_evaluations: AtomicU64,
}

/// Name in the session and in checkpoints of what the optimizer keeps for a parameter.
pub fn state_name(state: &StateSpec, parameter: &str) -> String {
    format!("{}.{parameter}", state.name)
}

/// What the optimizer keeps for a parameter, as it is when the step begins, with its names.
///
/// # Errors
/// If it is not in the session.
pub fn state_tensors(
    recording: &mut Recording,
    optimizer: &dyn Optimizer,
    parameter: &str,
    info: ParameterInfo,
) -> Result<(Vec<String>, Vec<Tensor>)> {
    let state = optimizer.state(info);
    let named = state.iter().map(|state| {
        let name = state_name(state, parameter);
        let tensor = recording.state(&name)?;
        Ok((name, tensor))
    });
    named.collect()
}

/// The feed of a step's scalars.
pub const SCALARS: &str = "optimizer";

impl OptimizerStep {
    pub fn learning_rate(&self, step: u64) -> f64 {
        match self.rate_by_evaluations.load(Ordering::Relaxed) {
            0 => self.schedule.learning_rate(step),
            bits => f64::from_bits(bits),
        }
    }

    pub fn set_learning_rate(&self, rate: f64) {
        let bits = rate.to_bits();
        self.rate_by_evaluations.store(bits, Ordering::Relaxed);
    }

    /// What 0-based step `step` feeds as [`SCALARS`].
    pub fn scalars(&self, step: u64) -> Vec<f32> {
        step_feed(&*self.optimizer, self.learning_rate(step), step + 1)
    }

    /// Its shape.
    pub fn scalars_shape(&self) -> Shape {
        Shape::new(DType::F32, [self.scalars(0).len()])
    }

    /// Records a step of `parameters`, whose tensors are `weights`, and fetches the metrics.
    pub fn record(
        &self,
        recording: &mut Recording,
        parameters: &[ParameterSpec],
        weights: &[Tensor],
        gradients: Gradients,
    ) -> Result<()> {
        let trace = recording.trace().clone();
        let _scope = trace.update_scope("optimizer");
        let held = exchange::held(recording.placements(), parameters).into_owned();
        let optimizer = &*self.optimizer;
        let scalars = recording.given(SCALARS, &self.scalars_shape());
        let mut scalars = StepScalars::of(&scalars)?;
        let (loss, sums) = exchange::sum(
            recording,
            &held,
            &gradients.loss,
            &gradients.gradients,
            self.bucket_bytes,
        )?;
        let one = trace.constant(1.0, DType::F32)?;
        let per_token = one.div(&loss.count.max_scalar(1.0)?)?;
        let mut factor = per_token.clone();
        if gradients.is_scaled {
            factor = factor.div(&loss_scale::factor(recording, gradients.divisor)?)?;
        }
        let norm = exchange::norm(recording, &held, &sums)?.mul(&factor)?;
        let mut check = None;
        if gradients.is_scaled {
            let found = ScaleCheck::new(recording, &norm)?;
            scalars.own = self.count(recording, &found, &scalars.learning_rate)?;
            check = Some(found);
        }
        if self.settings.max_grad_norm > 0.0 {
            factor = factor.mul(&clip_factor(&norm, self.settings.max_grad_norm)?)?;
        }
        let updates = ShardedUpdates::new(recording, &held, optimizer)?;
        for ((parameter, weight), gradient) in held.iter().zip(weights).zip(&sums) {
            let _scope = trace.scope(&parameter.name);
            let weight = &updates.shard(recording, parameter, weight)?;
            let info = parameter.info();
            let (names, state) = state_tensors(recording, optimizer, &parameter.name, info)?;
            let others = updates.others(recording, parameter);
            let new = optimizer.update(&Update {
                scalars: &scalars,
                info,
                parameter: weight,
                gradient,
                scale: &factor,
                state: &state,
                weight_decay: if parameter.decay {
                    self.settings.weight_decay
                } else {
                    0.0
                },
                shard: others.as_ref(),
            })?;
            let new_weight = unless_skipped(check.as_ref(), new.parameter, weight)?;
            // Rounded first: what replicas exchange is as small as what they keep.
            let new_weight = recording.as_held(&parameter.name, &new_weight)?;
            let new_weight = updates.gather(recording, parameter, new_weight)?;
            recording.assign(&parameter.name, &new_weight)?;
            for ((name, new), old) in names.iter().zip(new.state).zip(&state) {
                recording.assign(name, &unless_skipped(check.as_ref(), new, old)?)?;
            }
        }
        let mut measured = vec![loss.sum.mul(&per_token)?, norm, loss.count.clone()];
        if let Some(check) = check {
            measured.extend([check.scale, check.finite.convert(DType::F32)?]);
        }
        metrics::fetch(recording, &measured)?;
        let Some(sums) = &loss.measured else {
            return Ok(());
        };
        metrics::fetch_measured(recording, sums)
    }

    /// Counts the step on the device unless it is skipped; gives the optimizer's scalars.
    fn count(
        &self,
        recording: &mut Recording,
        check: &ScaleCheck,
        learning_rate: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let names = self.optimizer.counters();
        let old = names
            .iter()
            .map(|name| recording.state(name))
            .collect::<Result<Vec<_>>>()?;
        let new = self.optimizer.next_counters(&old)?;
        for ((name, new), old) in names.iter().zip(&new).zip(&old) {
            recording.assign(name, &check.finite.select(new, old)?)?;
        }
        Ok(self.optimizer.counted_scalars(learning_rate, &new)?)
    }
}

/// The new value or, when gradients overflowed, the old one.
fn unless_skipped(check: Option<&ScaleCheck>, new: Tensor, old: &Tensor) -> Result<Tensor> {
    match check {
        Some(check) => Ok(check.finite.select(&new, old)?),
        None => Ok(new),
    }
}
