//! Optimizers, clipping and learning-rate schedules. What changes from step to step enters the
//! graph as one small feed ([`StepFeed`]), never as a constant, so that a run compiles its step
//! once.

mod adamw;
mod clip;
mod loss_scale;
mod schedule;
mod sgd;

pub use adamw::AdamW;
pub use clip::{clip_factor, global_norm, sum_of_squares};
pub use loss_scale::{BiasCorrections, GROWTH_INTERVAL, INITIAL_SCALE, LossScale};
pub use schedule::{Schedule, ScheduleKind};
pub use sgd::Sgd;

use crate::error::Result;
use crate::trace::Tensor;

/// The numbers of one optimizer step that the host knows: fed as `f32[3]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFeed {
    pub learning_rate: f64,
    /// `learning_rate / (1 - beta1^k)` with k the 1-based step.
    pub step_size: f64,
    /// `1 / sqrt(1 - beta2^k)`
    pub second_moment_scale: f64,
}

impl StepFeed {
    /// The powers are taken in f64 on the host, as torch does: in f32, `1 - 0.999` alone is off by
    /// 4e-5.
    pub fn adamw(learning_rate: f64, adamw: &AdamW, step: u64) -> Self {
        let power = |beta: f64| 1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX));
        StepFeed {
            learning_rate,
            step_size: learning_rate / power(adamw.beta1),
            second_moment_scale: 1.0 / power(adamw.beta2).sqrt(),
        }
    }

    pub fn plain(learning_rate: f64) -> Self {
        StepFeed {
            learning_rate,
            step_size: learning_rate,
            second_moment_scale: 1.0,
        }
    }

    pub fn to_array(self) -> [f32; 3] {
        [
            self.learning_rate as f32,
            self.step_size as f32,
            self.second_moment_scale as f32,
        ]
    }
}

/// The scalars of [`StepFeed`] inside the graph.
#[derive(Clone)]
pub struct StepScalars {
    pub learning_rate: Tensor,
    pub step_size: Tensor,
    pub second_moment_scale: Tensor,
}

impl StepScalars {
    /// Takes the feed apart: `f32[3]` as [`StepFeed::to_array`] gives it.
    pub fn of(feed: &Tensor) -> Result<Self> {
        let scalar = |i: usize| feed.slice(&[i], &[i + 1])?.reshape(&[]);
        Ok(StepScalars {
            learning_rate: scalar(0)?,
            step_size: scalar(1)?,
            second_moment_scale: scalar(2)?,
        })
    }
}
