//! Optimizers, clipping, loss scaling and learning-rate schedules, as pieces of a graph.
//!
//! An optimizer is one file that implements [`Optimizer`] and one entry of [`OPTIMIZERS`]. The
//! training step, placements, checkpoints, memory estimates and `--optim` read these two. What
//! changes from step to step enters the graph as one small feed ([`step_feed`]), never as a
//! constant, so that a run compiles its step once.

mod adamw;
mod clip;
mod lion;
mod loss_scale;
mod schedule;
mod sgd;

pub use adamw::ADAMW;
pub use clip::{clip_factor, global_norm, sum_of_squares};
pub use lion::LION;
pub use loss_scale::{GROWTH_INTERVAL, INITIAL_SCALE, LossScale};
pub use schedule::{Schedule, ScheduleKind};
pub use sgd::SGD;

use crate::error::Result;
use crate::trace::Tensor;
use std::fmt;

/// Every optimizer that a run can choose.
pub const OPTIMIZERS: &[OptimizerKind] = &[ADAMW, SGD, LION];

/// An optimizer that `--optim` can name.
#[derive(Clone, Copy)]
pub struct OptimizerKind {
    /// Its name in reports and in the cache's records.
    pub name: &'static str,
    /// The values of `--optim` that choose it, TrainingArguments' names.
    pub choices: &'static [&'static str],
    new: fn(&Hyperparameters) -> Box<dyn Optimizer>,
}

impl OptimizerKind {
    /// Every value of `--optim` with the optimizer that it chooses, in the order of
    /// [`OPTIMIZERS`].
    pub const WORDS: &'static [(&'static str, Self)] = &WORDS;

    /// The optimizer with a run's hyperparameters.
    pub fn build(self, hyper: &Hyperparameters) -> Box<dyn Optimizer> {
        (self.new)(hyper)
    }
}

impl fmt::Debug for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for OptimizerKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn count_words() -> usize {
    let (mut count, mut i) = (0, 0);
    while i < OPTIMIZERS.len() {
        count += OPTIMIZERS[i].choices.len();
        i += 1;
    }
    count
}

const WORDS: [(&str, OptimizerKind); count_words()] = {
    let mut all = [("", OPTIMIZERS[0]); count_words()];
    let (mut count, mut i) = (0, 0);
    while i < OPTIMIZERS.len() {
        let mut j = 0;
        while j < OPTIMIZERS[i].choices.len() {
            all[count] = (OPTIMIZERS[i].choices[j], OPTIMIZERS[i]);
            count += 1;
            j += 1;
        }
        i += 1;
    }
    all
};

/// Hyperparameters that stay fixed for a run; each optimizer reads those of its formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyperparameters {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
}

/// A tensor that an optimizer keeps for a parameter, f32.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// The state `exp_avg` of the parameter `wte` is called `exp_avg.wte` in checkpoints.
    pub name: &'static str,
    pub dims: Vec<usize>,
    /// The value of every element before the first step.
    pub initial: f32,
}

impl StateSpec {
    /// Zeros in the shape of the parameter.
    pub fn zeros(name: &'static str, dims: &[usize]) -> Self {
        StateSpec {
            name,
            dims: dims.to_vec(),
            initial: 0.0,
        }
    }
}

/// What an optimizer is: the state it keeps, the scalars it is fed, its update rule.
///
/// An optimizer whose state all has the parameter's shape must update elementwise: ZeRO-1 and
/// ZeRO-3 call it on shards of the parameter, gradient and state. A parameter with state of any
/// other shape is never sharded along the data or shard axis.
pub trait Optimizer: fmt::Debug + Send + Sync {
    /// The state of a parameter of these dimensions.
    fn state(&self, dims: &[usize]) -> Vec<StateSpec>;

    /// Scalars of 1-based step `step` beside the learning rate; the host feeds them.
    fn scalars(&self, _learning_rate: f64, _step: u64) -> Vec<f64> {
        Vec::new()
    }

    /// Names of the scalars that stand for the number of steps where a loss scale can skip some:
    /// the host does not know in time which, so the device keeps them as state. All are `f32[]`
    /// and 0 before the first step.
    fn counters(&self) -> &'static [&'static str] {
        &[]
    }

    /// The counters after one more step, in the order of [`Optimizer::counters`].
    ///
    /// # Errors
    /// If the graph refuses an operation.
    fn next_counters(&self, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(counters.to_vec())
    }

    /// [`Optimizer::scalars`] from the counters of this step and its learning rate, all `f32[]`.
    ///
    /// # Errors
    /// If the graph refuses an operation.
    fn counted_scalars(
        &self,
        _learning_rate: &Tensor,
        _counters: &[Tensor],
    ) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// One step of one parameter.
    ///
    /// # Errors
    /// If the graph refuses an operation.
    fn update(&self, update: &Update) -> Result<Updated>;
}

/// What an update rule reads. Tensors are f32.
pub struct Update<'a> {
    pub scalars: &'a StepScalars,
    /// The parameter or a shard of it; gradient and state have its shape.
    pub parameter: &'a Tensor,
    /// The gradient before `scale`.
    pub gradient: &'a Tensor,
    /// `f32[]`: the factor on the gradient (mean over tokens, clipping, the loss scale's inverse).
    pub scale: &'a Tensor,
    /// In the order of [`Optimizer::state`].
    pub state: &'a [Tensor],
    /// 0 for parameters without decay: biases and LayerNorm weights.
    pub weight_decay: f64,
}

impl Update<'_> {
    /// Decoupled weight decay: `w (1 - lr wd)`.
    fn decayed(&self) -> Result<Tensor> {
        if self.weight_decay == 0.0 {
            return Ok(self.parameter.clone());
        }
        let rate = &self.scalars.learning_rate;
        self.parameter
            .mul(&rate.mul_scalar(-self.weight_decay)?.add_scalar(1.0)?)
    }
}

/// A parameter and its state after a step.
pub struct Updated {
    pub parameter: Tensor,
    /// In the order of [`Optimizer::state`].
    pub state: Vec<Tensor>,
}

/// What the host feeds of 1-based step `step`, `f32[n]`: the learning rate, then the optimizer's
/// scalars.
pub fn step_feed(optimizer: &dyn Optimizer, learning_rate: f64, step: u64) -> Vec<f32> {
    let scalars = optimizer.scalars(learning_rate, step);
    let all = std::iter::once(learning_rate).chain(scalars);
    all.map(|scalar| scalar as f32).collect()
}

/// The scalars of [`step_feed`] inside the graph, each `f32[]`.
pub struct StepScalars {
    pub learning_rate: Tensor,
    /// In the order of [`Optimizer::scalars`].
    pub own: Vec<Tensor>,
}

impl StepScalars {
    /// Takes the feed apart, `f32[n]` as [`step_feed`] gives it.
    ///
    /// # Errors
    /// If the feed is empty.
    pub fn of(feed: &Tensor) -> Result<Self> {
        let scalar = |i: usize| feed.slice(&[i], &[i + 1])?.reshape(&[]);
        Ok(StepScalars {
            learning_rate: scalar(0)?,
            own: (1..feed.dims()[0]).map(scalar).collect::<Result<_>>()?,
        })
    }
}
