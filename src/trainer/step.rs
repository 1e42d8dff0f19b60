//! One training step. [`TrainStep::record`] is the whole of it, in order: model and loss, backward,
//! then `optimizer_step` or, for a microbatch that another follows, adding to the accumulated
//! gradients. [`TrainStep::microbatch`] takes a batch, records that and calls `mark_step`.
//!
//! In `step/`: `gradients` (what backward leaves, accumulation), `optimizer_step`, `loss_scale`
//! (fp16), `metrics` (what a step measures), `state` (what it keeps beside the parameters, and
//! where).

mod gradients;
mod loss_scale;
mod metrics;
pub(super) mod optimizer_step;
mod state;

pub(super) use metrics::means;
pub use metrics::{MetricsReader, PendingMetrics, Scaling, StepMetrics, read_metrics};
pub use state::placements;

use super::error::Result;
use super::feed::{DeviceBatch, feed_batch, graph_name};
use super::mesh_devices::Buffers;
use super::session::parameters::ExtraState;
use super::session::{RecordedSteps, Recording, Session, StepOutputs};
use super::settings::{OptimizerSettings, WeightStorage};
use gradients::Gradients;
use optimizer_step::OptimizerStep;
use state::StateOptions;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use xtrain_graphs::optim::Schedule;
use xtrain_graphs::{
    Checkpointing, DType, DropoutRng, Precision, Shape, Tensor, backward_with, step_key,
};
use xtrain_models::{Forward, HeldArray, Inputs, Model, Objective, ParameterSpec, Weight, Weights};
use xtrain_parallel::{Axis, Mesh, Placements};

/// Whether a microbatch ends an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gradients are added to the accumulated ones.
    Accumulate,
    /// Its gradients (with the accumulated ones, if there are any) update the weights.
    Update { accumulated: bool },
}

impl Phase {
    /// The graph's name in plans, logs and the cache, but for its batches' variant.
    pub fn graph_name(self) -> &'static str {
        match self {
            Phase::Accumulate => "accumulate",
            Phase::Update { accumulated: true } => "update",
            Phase::Update { accumulated: false } => "train",
        }
    }
}

/// Records training steps of one model.
pub struct TrainStep<'m> {
    model: &'m dyn Model,
    objective: Arc<dyn Objective>,
    parameters: Vec<ParameterSpec>,
    /// Those of them that have a gradient.
    trained: Vec<ParameterSpec>,
    optimizer_step: OptimizerStep,
    seed: u64,
    precision: Precision,
    checkpointing: Checkpointing,
    embedding_noise: f64,
    recorded: Mutex<RecordedSteps>,
}

impl<'m> TrainStep<'m> {
    /// A step in f32 that exchanges each gradient by itself and keeps all activations.
    pub fn new(
        model: &'m dyn Model,
        objective: Arc<dyn Objective>,
        optimizer: OptimizerSettings,
        schedule: Schedule,
        seed: u64,
    ) -> Self {
        let parameters = model.parameters();
        let trained = parameters.iter().filter(|parameter| parameter.trained);
        TrainStep {
            model,
            objective,
            trained: trained.cloned().collect(),
            parameters,
            optimizer_step: OptimizerStep {
                optimizer: optimizer.build(),
                settings: optimizer,
                schedule,
                bucket_bytes: 0,
                rate_by_evaluations: Default::default(),
            },
            seed,
            precision: Precision::F32,
            checkpointing: Checkpointing::Off,
            embedding_noise: 0.0,
            recorded: Mutex::default(),
        }
    }

    /// The same with noise on token embeddings, as NEFTune has it.
    pub fn with_embedding_noise(self, alpha: f64) -> Self {
        TrainStep {
            embedding_noise: alpha,
            recorded: Mutex::default(),
            ..self
        }
    }

    /// The same with gradients exchanged in buckets of this many bytes, which matters where there
    /// are several replicas.
    pub fn with_buckets(mut self, bucket_bytes: usize) -> Self {
        self.optimizer_step.bucket_bytes = bucket_bytes;
        self.recorded = Mutex::default();
        self
    }

    /// The same with activations recomputed instead of kept.
    pub fn with_checkpointing(self, checkpointing: Checkpointing) -> Self {
        TrainStep {
            checkpointing,
            recorded: Mutex::default(),
            ..self
        }
    }

    /// The same with its matmuls in another precision and, where that needs it, with a scaled loss.
    pub fn with_precision(self, precision: Precision) -> Self {
        TrainStep {
            precision,
            recorded: Mutex::default(),
            ..self
        }
    }

    /// The model.
    pub fn model(&self) -> &'m dyn Model {
        self.model
    }

    /// What the model is trained for.
    pub fn objective(&self) -> &dyn Objective {
        &*self.objective
    }

    /// The precision of the step's matmuls.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The model's parameters.
    pub fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    /// The learning rate of 0-based optimizer step `step`.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.optimizer_step.learning_rate(step)
    }

    /// The learning rate from now on, instead of the schedule's: where evaluations decide about it.
    pub fn set_learning_rate(&self, rate: f64) {
        self.optimizer_step.set_learning_rate(rate);
    }

    /// The element types of weights and of the optimizer's state.
    pub fn storage(&self) -> WeightStorage {
        self.optimizer_step.settings.storage
    }

    /// State besides the parameters: the optimizer's, sums when gradients accumulate, and the loss
    /// scale where there is one.
    pub fn extra_state(&self, accumulates: bool) -> Vec<ExtraState> {
        let optimizer = &*self.optimizer_step.optimizer;
        let options = StateOptions {
            accumulates,
            scales_loss: self.precision.needs_loss_scale(),
            measures: self.objective.measures().len(),
            dtype: self.storage().optimizer_state(),
        };
        state::extra_state(optimizer, &self.trained, &options)
    }

    /// Bytes of the parameters on one replica of a stage.
    pub fn weight_bytes(&self, placements: &Placements, stage: usize) -> u64 {
        self.parameters
            .iter()
            .flat_map(|p| p.arrays(self.storage().of(p)))
            .map(|array| placements.held_bytes(&array.name, &array.shape, stage))
            .sum()
    }

    /// Bytes of the parameters and of [`TrainStep::extra_state`] on one replica of a stage.
    pub fn state_bytes(&self, accumulates: bool, placements: &Placements, stage: usize) -> u64 {
        let extra = self.extra_state(accumulates);
        let extra = extra
            .iter()
            .map(|state| placements.held_bytes(&state.name, &state.shape, stage));
        self.weight_bytes(placements, stage) + extra.sum::<u64>()
    }

    /// Floating-point operations of one microbatch on all replicas, as [`Model::step_flops`] counts
    /// them.
    pub fn flops(&self, batch: &DeviceBatch) -> f64 {
        let [rows, tokens] = batch.size();
        let skipped = rows * tokens - batch.head_rows();
        batch.shards as f64 * (self.model.step_flops(rows, tokens) - self.model.head_flops(skipped))
    }

    /// Runs one microbatch of 0-based optimizer step `step`; `microstep` counts microbatches over
    /// the whole run and keys dropout. Metrics come with the microbatch that updates.
    ///
    /// # Errors
    /// If the graph cannot be recorded, compiled or started.
    pub fn microbatch(
        &self,
        session: &mut Session,
        batch: &DeviceBatch,
        phase: Phase,
        step: u64,
        microstep: u64,
    ) -> Result<StepOutputs> {
        let mut feeds = batch.to_feeds();
        feeds.add(RANDOM_KEY, random_key(session, self.seed, microstep)?);
        let ends = matches!(phase, Phase::Update { .. });
        if ends {
            let scalars = self.optimizer_step.scalars(step);
            let shape = self.optimizer_step.scalars_shape();
            let scalars = session.upload(bytemuck::cast_slice(&scalars), &shape)?;
            feeds.add(optimizer_step::SCALARS, scalars);
        }
        let name = graph_name(phase.graph_name(), batch.variant.as_deref());
        let recorded = self.recorded.lock();
        let mut recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        session.step(&mut recorded, &name, feeds, ends, |recording| {
            let inputs = feed_batch(recording, batch);
            self.record(recording, &inputs, phase)
        })
    }

    /// The step itself, on inputs that may be real or abstract.
    ///
    /// # Errors
    /// If the model or the optimizer cannot be recorded.
    pub fn record(&self, recording: &mut Recording, inputs: &Inputs, phase: Phase) -> Result<()> {
        recording.set_precision(self.precision);
        let key = recording.given(RANDOM_KEY, &random_key_shape(recording.mesh()));
        let rng = DropoutRng::keyed(key).with_embedding_noise(self.embedding_noise);
        let weights = parameter_tensors(recording, &self.parameters)?;
        let trace = recording.trace().clone();
        let outcome = {
            let _stages = recording.stages_by_layer();
            self.objective.record(&Forward {
                model: self.model,
                weights: &Weights::new(&trace, &weights),
                inputs,
                rng: &rng,
            })?
        };
        let leaves: Vec<Tensor> = self
            .trained
            .iter()
            .flat_map(|p| weights[&p.name].held())
            .cloned()
            .collect();
        let mut root = outcome.loss.sum.clone();
        let (is_scaled, mut divisor) = (self.precision.needs_loss_scale(), 1.0);
        if is_scaled {
            divisor = outcome.terms as f64;
            root = loss_scale::scaled(recording, &root, divisor)?;
        }
        let gradients = Gradients {
            loss: outcome.loss,
            gradients: backward_with(&root, &leaves, self.checkpointing)?,
            is_scaled,
            divisor,
        };
        let gradients = match phase {
            Phase::Accumulate => return gradients.accumulate(recording, &self.trained),
            Phase::Update { accumulated: true } => {
                gradients.with_accumulated(recording, &self.trained)?
            }
            Phase::Update { accumulated: false } => gradients,
        };
        self.optimizer_step
            .record(recording, &self.trained, &leaves, gradients)
    }
}

/// The feed of a microbatch's random key.
const RANDOM_KEY: &str = "random_key";

/// Two words and, where the batch is cut for several replicas, the number of the shard.
fn random_key_shape(mesh: Mesh) -> Shape {
    let words = if mesh.batch_shards() == 1 { 2 } else { 3 };
    Shape::new(DType::U32, [words])
}

/// The random key of one microbatch, of its number in the run.
fn random_key(session: &Session, seed: u64, microstep: u64) -> Result<Buffers> {
    let mesh = session.mesh();
    let [first, second] = step_key(seed, microstep);
    let keys: Vec<[u32; 3]> = (0..mesh.batch_shards() as u32)
        .map(|shard| [first, second, shard])
        .collect();
    let shape = random_key_shape(mesh);
    session.upload_each(&shape, |replica| {
        let words = &keys[mesh.batch_shard(replica)][..shape.elements()];
        bytemuck::cast_slice(words)
    })
}

/// Every parameter of the model, as the recording's replica holds it.
pub fn parameter_tensors(
    recording: &mut Recording,
    parameters: &[ParameterSpec],
) -> Result<HashMap<String, Weight>> {
    let groups: Option<Arc<[Vec<u32>]>> = recording.mesh().groups(&[Axis::Shard]).map(Arc::from);
    let stages = recording.placements().stages().cloned();
    let storage = recording.storage();
    let mut weight = |name: &str| -> Result<Weight> {
        let held = recording.state(name)?;
        Ok(match (recording.placements().of(name), &groups) {
            (Some(sharding), Some(groups)) => Weight::Sharded {
                shard: held,
                dim: sharding.dim,
                groups: groups.clone(),
            },
            _ => Weight::Whole(held),
        })
    };
    let mut held = |parameter: &ParameterSpec, stage: Option<usize>| -> Result<Weight> {
        let dtype = storage.of(parameter);
        let array = |array: HeldArray| match (&stages, stage) {
            (Some(stages), Some(stage)) => {
                weight(&stages.held_name(&parameter.name, &array.name, stage))
            }
            _ => weight(&array.name),
        };
        let arrays = parameter.arrays(dtype).into_iter().map(array);
        let arrays = arrays.collect::<Result<_>>()?;
        Ok(Weight::of(parameter, arrays, dtype))
    };
    let of_stages = |parameter: &ParameterSpec| -> Result<(String, Weight)> {
        let name = &parameter.name;
        let weight = match &stages {
            None => held(parameter, None)?,
            Some(stages) => {
                let held = |stage: &usize| Ok((*stage, held(parameter, Some(*stage))?));
                Weight::OfStages(stages.users(name).iter().map(held).collect::<Result<_>>()?)
            }
        };
        Ok((name.clone(), weight))
    };
    parameters.iter().map(of_stages).collect()
}
