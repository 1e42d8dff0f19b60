//! Optimizers, clipping, loss scaling and learning-rate schedules, as pieces of a graph.
//!
//! An optimizer is one file that implements [`Optimizer`] and one entry of [`OPTIMIZERS`]. The
//! training step, placements, checkpoints, memory estimates and `--optim` read these two. What
//! changes from step to step enters the graph as one small feed ([`step_feed`]), never as a
//! constant, so that a run compiles its step once.

mod adafactor;
mod adagrad;
mod adamw;
mod arguments;
mod clip;
mod eight_bit;
mod lamb;
mod lion;
mod loss_scale;
mod master_weights;
mod moments;
mod muon;
mod plateau;
mod rmsprop;
mod schedule;
mod sgd;
mod stable_adamw;

pub use adafactor::ADAFACTOR;
pub use adagrad::ADAGRAD;
pub use adamw::ADAMW;
use arguments::ArgumentReader;
pub use arguments::{Argument, ArgumentError, Arguments};
use clip::rows_first;
pub use clip::{clip_factor, global_norm, sum_of_squares};
pub use eight_bit::{ADAMW_8BIT, ADAMW_TORCH_8BIT, LION_8BIT};
pub use lamb::LAMB;
pub use lion::LION;
pub use loss_scale::{GROWTH_INTERVAL, INITIAL_SCALE, LossScale};
pub use master_weights::{MASTER_WEIGHT, MasterWeights};
pub use muon::MUON;
pub use plateau::{Plateau, PlateauRule};
pub use rmsprop::RMSPROP;
pub use schedule::{Schedule, ScheduleKind, ScheduleType};
pub use sgd::SGD;
pub use stable_adamw::STABLE_ADAMW;

use crate::block_codes::BLOCK;
use crate::dtype::DType;
use crate::error::Result;
use crate::trace::Tensor;
use std::fmt;

/// Every optimizer that a run can choose.
pub const OPTIMIZERS: &[OptimizerKind] = &[
    ADAMW,
    SGD,
    LION,
    ADAGRAD,
    RMSPROP,
    ADAFACTOR,
    LAMB,
    MUON,
    STABLE_ADAMW,
    ADAMW_8BIT,
    ADAMW_TORCH_8BIT,
    LION_8BIT,
];

/// An optimizer, or why its arguments are refused.
pub type Built = std::result::Result<Box<dyn Optimizer>, ArgumentError>;

/// An optimizer that `--optim` can name.
#[derive(Clone, Copy)]
pub struct OptimizerKind {
    /// Its name in reports and in the cache's records.
    pub name: &'static str,
    /// The values of `--optim` that choose it, TrainingArguments' names.
    pub choices: &'static [&'static str],
    new: fn(&Hyperparameters, &mut ArgumentReader) -> Box<dyn Optimizer>,
}

impl OptimizerKind {
    /// Every value of `--optim` with the optimizer that it chooses, in the order of
    /// [`OPTIMIZERS`].
    pub const WORDS: &'static [(&'static str, Self)] = &WORDS;

    /// The optimizer with a run's hyperparameters and arguments of its own, by the names of
    /// `--optim_args`.
    ///
    /// # Errors
    /// If it does not take one of the arguments, or a value is out of range.
    pub fn with(self, hyper: &Hyperparameters, given: &Arguments) -> Built {
        let mut reader = ArgumentReader::new(self.name, given);
        let made = (self.new)(hyper, &mut reader);
        reader.finish(made)
    }

    /// The names of its own arguments, which `--optim_args` takes.
    pub fn arguments(self) -> Vec<&'static str> {
        let hyper = Hyperparameters {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
        };
        let given = Arguments::default();
        let mut reader = ArgumentReader::new(self.name, &given);
        (self.new)(&hyper, &mut reader);
        reader.known()
    }

    /// The same with the defaults of its own arguments.
    pub fn build(self, hyper: &Hyperparameters) -> Box<dyn Optimizer> {
        let built = self.with(hyper, &Arguments::default());
        built.expect("no optimizer needs an argument")
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
    /// Decay of the first moment, or momentum's factor.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the divisor of the update.
    pub eps: f64,
}

/// What an optimizer knows of a parameter, whatever part of it a replica holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterInfo<'a> {
    /// Of the whole parameter.
    pub dims: &'a [usize],
    /// Whether it is a matrix between hidden states: no embedding, no head.
    pub is_hidden_matrix: bool,
    /// Whether it is the table of an embedding.
    pub is_embedding: bool,
}

/// A tensor that an optimizer keeps for a parameter; floats are f32 in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// The state `exp_avg` of the parameter `wte` is called `exp_avg.wte` in checkpoints.
    pub name: &'static str,
    /// Sizes, those of the whole parameter along [`StateSpec::along`].
    pub dims: Vec<usize>,
    /// Which of the parameter's dimensions these are, in order. The state is sharded as the
    /// parameter is along those that it has.
    pub along: Vec<usize>,
    /// What it is held in between steps; `None`: in what the run holds its state in.
    pub dtype: Option<DType>,
    /// It has an element for each block of the parameter in row-major order, as
    /// [`block_dims`](crate::block_codes::block_dims) has it: shards hold whole blocks.
    pub per_block: bool,
    /// The value of every element before the first step; `None`: the parameter's.
    pub initial: Option<f32>,
}

impl StateSpec {
    /// Zeros in the shape of the parameter.
    pub fn zeros(name: &'static str, dims: &[usize]) -> Self {
        Self::zeros_along(name, dims, (0..dims.len()).collect())
    }

    /// Zeros in the dimensions `along` of a parameter of the sizes `dims`.
    pub fn zeros_along(name: &'static str, dims: &[usize], along: Vec<usize>) -> Self {
        StateSpec {
            name,
            dims: along.iter().map(|dim| dims[*dim]).collect(),
            along,
            dtype: None,
            per_block: false,
            initial: Some(0.0),
        }
    }

    /// Whether a parameter of the sizes `dims` with this state can be sharded along `dim`, in `parts` parts of equal
    /// size.
    pub fn can_shard(&self, dims: &[usize], dim: usize, parts: usize) -> bool {
        let run = dims[dim..].iter().product::<usize>() / parts;
        !self.per_block || (self.along.contains(&dim) && run.is_multiple_of(BLOCK))
    }
}

/// What an optimizer is: the state it keeps, the scalars it is fed, its update rule.
///
/// ZeRO-1 and ZeRO-3 call the update rule on shards of the parameter, gradient and state. What is
/// not elementwise goes through `Update::sum` and the like, which reach the other shards.
pub trait Optimizer: fmt::Debug + Send + Sync {
    /// The state of a parameter.
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec>;

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

    /// Whether some update needs the whole of what is sharded (`Update::shard_of_whole`).
    fn gathers_shards(&self) -> bool {
        false
    }

    /// One step of one parameter.
    ///
    /// # Errors
    /// If the graph refuses an operation.
    fn update(&self, update: &Update) -> Result<Updated>;
}

/// What an update rule reads. Tensors are f32, but for state that is no float.
pub struct Update<'a> {
    /// The learning rate and the optimizer's own scalars of this step.
    pub scalars: &'a StepScalars,
    /// What is known of the whole parameter.
    pub info: ParameterInfo<'a>,
    /// The parameter or a shard of it; the gradient has its shape. Along a tensor axis it may be
    /// padded with zeros, beyond the sizes in `info`.
    pub parameter: &'a Tensor,
    /// The gradient before `scale`.
    pub gradient: &'a Tensor,
    /// `f32[]`: the factor on the gradient (mean over tokens, clipping, the loss scale's inverse).
    pub scale: &'a Tensor,
    /// In the order of [`Optimizer::state`].
    pub state: &'a [Tensor],
    /// 0 for parameters without decay: biases and LayerNorm weights.
    pub weight_decay: f64,
    /// How the other shards are reached; `None`: the parameter is whole here.
    pub shard: Option<&'a UpdateShard>,
}

/// The place of a shard in a parameter.
pub struct UpdateShard {
    /// The dimension that is sharded.
    pub dim: usize,
    /// The replicas that hold the shards, in order.
    pub groups: Vec<Vec<u32>>,
    /// Which shard this replica holds, `s32[]`; there if [`Optimizer::gathers_shards`].
    pub index: Option<Tensor>,
}

impl Update<'_> {
    /// The gradient with its factor.
    fn scaled(&self) -> Result<Tensor> {
        self.gradient.mul(self.scale)
    }

    /// The gradient with its factor and coupled weight decay: `g + wd w`.
    fn coupled(&self) -> Result<Tensor> {
        let gradient = self.scaled()?;
        if self.weight_decay == 0.0 {
            Ok(gradient)
        } else {
            gradient.add(&self.parameter.mul_scalar(self.weight_decay)?)
        }
    }

    /// The sum over dimension `dim` of the parameter, all shards together. The dimensions before it
    /// must be those of the parameter.
    fn sum(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let sum = x.sum(&[dim])?;
        match self.shard {
            Some(shard) if shard.dim == dim => sum.all_reduce(&shard.groups, 0),
            _ => Ok(sum),
        }
    }

    /// The mean over dimension `dim`, as [`Update::sum`]; padding counts as nothing.
    fn mean(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        self.sum(x, dim)?
            .mul_scalar(1.0 / self.info.dims[dim] as f64)
    }

    /// The sum of all elements of what has the parameter's shape, all shards together.
    fn sum_all(&self, x: &Tensor) -> Result<Tensor> {
        let sum = rows_first(x)?;
        match self.shard {
            Some(shard) => sum.all_reduce(&shard.groups, 0),
            None => Ok(sum),
        }
    }

    /// This replica's shard of what `make` gives for the whole of `x`, which has the parameter's
    /// shape.
    fn shard_of_whole(
        &self,
        x: &Tensor,
        make: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let Some(shard) = self.shard else {
            return make(x);
        };
        let index = shard.index.as_ref();
        let index = index.expect("an optimizer that gathers shards is given their index");
        let size = x.dims()[shard.dim];
        make(&x.all_gather(&shard.groups, shard.dim)?)?.dynamic_slice(
            &index.mul_scalar(size as f64)?,
            shard.dim,
            size,
        )
    }

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

/// A count of steps, the only counter of several optimizers, after one more.
fn next_step(steps: &[Tensor]) -> Result<Vec<Tensor>> {
    steps.iter().map(|step| step.add_scalar(1.0)).collect()
}

/// A parameter and its state after a step.
pub struct Updated {
    /// Of the shape that [`Update::parameter`] has.
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
    /// This step's, after the schedule.
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
