//! What the training loop needs to know, fully resolved: `config` makes these from what the user
//! typed.

use std::path::PathBuf;
use xtrain_graphs::DType;
use xtrain_graphs::optim::{Arguments, Hyperparameters, MasterWeights, Optimizer};
pub use xtrain_graphs::optim::{OptimizerKind, ScheduleKind};
pub use xtrain_graphs::{Checkpointing, Precision};
use xtrain_models::{ParameterSet, ParameterSpec};

/// When something periodic happens (TrainingArguments' `*_strategy` with `*_steps`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cadence {
    /// `no`.
    Never,
    /// Every N optimizer steps, at least 1.
    Steps(u64),
    /// Every share of all steps, above 0 and below 1; [`Cadence::in_steps`] before it is used.
    Share(f64),
    /// At the end of every epoch.
    Epoch,
    /// With every evaluation that is the best so far; for checkpoints only.
    Best,
}

impl Cadence {
    /// The same in a run of `max_steps` steps, where a share is a number of them, rounded up.
    pub fn in_steps(self, max_steps: u64) -> Cadence {
        match self {
            Cadence::Share(share) => {
                Cadence::Steps((share * max_steps as f64).ceil().max(1.0) as u64)
            }
            other => other,
        }
    }
}

/// The element types that weights and the optimizer's state have between steps. A step computes in
/// f32, but for its matmuls, and rounds what it stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightStorage {
    /// Both f32.
    #[default]
    F32,
    /// bf16 weights; the optimizer's state is f32 and has f32 master copies, which it updates.
    Bf16WithMasters,
    /// Both bf16, as torch trains a bf16 model.
    Bf16,
}

impl WeightStorage {
    /// The element type of weights.
    pub fn weights(self) -> DType {
        match self {
            WeightStorage::F32 => DType::F32,
            WeightStorage::Bf16WithMasters | WeightStorage::Bf16 => DType::BF16,
        }
    }

    /// The element type of a parameter: an adapter's are f32, as PEFT keeps them.
    pub fn of(self, parameter: &ParameterSpec) -> DType {
        match parameter.set {
            ParameterSet::Adapter => DType::F32,
            ParameterSet::Policy | ParameterSet::Reference => self.weights(),
        }
    }

    /// The element type of the optimizer's state.
    pub fn optimizer_state(self) -> DType {
        match self {
            WeightStorage::F32 | WeightStorage::Bf16WithMasters => DType::F32,
            WeightStorage::Bf16 => DType::BF16,
        }
    }
}

/// The optimizer of a run, its hyperparameters and its learning-rate schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerSettings {
    /// Which update rule.
    pub kind: OptimizerKind,
    /// Of the weights that it updates, and of its own state.
    pub storage: WeightStorage,
    /// Arguments of this optimizer.
    pub arguments: Arguments,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// AdamW's decoupled decay; biases and norms have none.
    pub weight_decay: f64,
    /// Decay of the first moment.
    pub adam_beta1: f64,
    /// Decay of the second moment.
    pub adam_beta2: f64,
    /// Added to the divisor of the update.
    pub adam_epsilon: f64,
    /// Global-norm clip; 0 means no clipping, as TrainingArguments has it.
    pub max_grad_norm: f64,
    /// How the rate goes from step to step.
    pub schedule: ScheduleKind,
    /// `--lr_scheduler_kwargs` as given; `schedule` has what they mean.
    pub schedule_arguments: Arguments,
    /// Linear warm-up in steps; when `None`, `warmup_ratio` of all steps, rounded up.
    pub warmup_steps: Option<u64>,
    /// Share of all steps that warm up, where `warmup_steps` is `None`.
    pub warmup_ratio: f64,
}

impl OptimizerSettings {
    /// A constant rate, TrainingArguments' betas and clipping, some decay: for measuring and
    /// comparing single steps.
    pub fn constant(kind: OptimizerKind, learning_rate: f64) -> Self {
        OptimizerSettings {
            kind,
            storage: WeightStorage::F32,
            arguments: Arguments::default(),
            learning_rate,
            weight_decay: 0.01,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            schedule: ScheduleKind::Constant,
            schedule_arguments: Arguments::default(),
            warmup_steps: Some(0),
            warmup_ratio: 0.0,
        }
    }

    /// The optimizer with these hyperparameters.
    ///
    /// # Panics
    /// If the optimizer does not take the arguments, which a rule on the command line has checked.
    pub fn build(&self) -> Box<dyn Optimizer> {
        let hyper = Hyperparameters {
            beta1: self.adam_beta1,
            beta2: self.adam_beta2,
            eps: self.adam_epsilon,
        };
        let built = self.kind.with(&hyper, &self.arguments);
        let built = built.unwrap_or_else(|error| panic!("{error}"));
        match self.storage {
            WeightStorage::Bf16WithMasters => Box::new(MasterWeights(built)),
            WeightStorage::F32 | WeightStorage::Bf16 => built,
        }
    }
}

/// When a run evaluates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluationTimes {
    /// How often.
    pub cadence: Cadence,
    /// Epochs or, at a cadence in steps, steps before the first evaluation.
    pub delay: f64,
    /// Evaluate before the first step.
    pub on_start: bool,
}

/// The order of training examples (`--train_sampling_strategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleOrder {
    /// Shuffled anew in each epoch.
    Random,
    /// As in the files.
    Sequential,
    /// Shuffled, with those of about the same length together.
    GroupByLength,
}

/// Which input tokens are counted (`--include_num_input_tokens_seen`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensSeen {
    /// None are counted.
    No,
    /// With padding.
    All,
    /// Without padding.
    NonPadding,
}

/// Which evaluation of a run is its best, and what follows from that.
#[derive(Clone, Debug, PartialEq)]
pub struct BestRule {
    /// A metric's name without `eval_`.
    pub metric: String,
    /// Whether a larger value of the metric is better.
    pub greater_is_better: bool,
    /// End with the weights of the best checkpoint rather than the last ones.
    pub load_at_end: bool,
    /// When to give up; `None`: never.
    pub early_stopping: Option<EarlyStopping>,
}

/// Ends a run whose evaluations stop getting better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStopping {
    /// Evaluations in a row without progress.
    pub patience: u64,
    /// By how much a value has to be better than the best one to be progress.
    pub threshold: f64,
}

/// `--resume_from_checkpoint`: nothing, the newest in the output directory, or a given one.
#[derive(Clone, Debug, PartialEq)]
pub enum Resume {
    /// Start anew.
    No,
    /// The newest complete `checkpoint-N` of the output directory.
    Latest,
    /// The same if there is one; else start anew.
    IfAny,
    /// The checkpoint in this directory.
    From(PathBuf),
}
