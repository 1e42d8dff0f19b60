//! One training step. [`Stepper::microbatch`] is the whole of it, in order: feed the batch, model
//! and loss, backward, then `optimizer_step` (or adding to the accumulated gradients), `mark_step`.

use super::error::Result;
use super::exchange::{self, UpdateParts};
use super::feed::{BatchInputs, DeviceBatch, feed_batch, graph_name};
use super::parameters::{ExtraState, parameter_shape};
use super::pipeline::layer_costs;
use super::session::{Marked, Recording, Session};
use super::settings::{OptimizerKind, OptimizerSettings};
use crate::checkpoint::state::{exp_avg, exp_avg_sq};
use crate::parallel::{Axis, Mesh, Placements};
use crate::runtime::PendingDownload;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::optim::{
    self, AdamW, BiasCorrections, LossScale, Schedule, Sgd, StepFeed, StepScalars,
};
use xtrain_graphs::{Checkpointing, DType, Precision, Randomness, Shape, Tensor, backward_with};
use xtrain_models::{LossSum, Model, ParameterSpec, Weight, Weights, loss, tensor_cuts};

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

/// What a step measured, once the device is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMetrics {
    /// Mean loss per token over the whole accumulation.
    pub loss: f32,
    /// Norm of the mean gradient before clipping.
    pub grad_norm: f32,
    /// Tokens that had a loss.
    pub tokens: f32,
    /// `None` where the loss is not scaled.
    pub scaling: Option<Scaling>,
}

/// What loss scaling did in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The factor on the step's loss.
    pub scale: f32,
    /// Gradients overflowed, so the step changed nothing but the scale.
    pub skipped: bool,
}

impl StepMetrics {
    /// Whether the step left weights and moments as they were.
    pub fn is_skipped(&self) -> bool {
        self.scaling.is_some_and(|scaling| scaling.skipped)
    }
}

/// Metrics on their way from the device.
pub struct PendingMetrics(PendingDownload<f32>);

impl PendingMetrics {
    /// Waits for the device.
    pub fn wait(self) -> Result<StepMetrics> {
        let values = self.0.wait()?;
        let scaling = (values.len() > 3).then(|| Scaling {
            scale: values[3],
            skipped: values[4] == 0.0,
        });
        Ok(StepMetrics {
            loss: values[0],
            grad_norm: values[1],
            tokens: values[2],
            scaling,
        })
    }
}

/// Names of accumulated values in the session.
const ACCUMULATED_LOSS: &str = "accumulated.loss";
const ACCUMULATED_COUNT: &str = "accumulated.count";

/// Names of the loss scale's state in the session and in checkpoints; all are `f32[]`.
const LOSS_SCALE: &str = "loss_scale";
const GOOD_STEPS: &str = "loss_scale.good_steps";
const CORRECTION1: &str = "adamw.correction1";
const CORRECTION2: &str = "adamw.correction2";

fn accumulated(parameter: &str) -> String {
    format!("accumulated.{parameter}")
}

/// Records training steps of one model.
pub struct Stepper<'m> {
    model: &'m dyn Model,
    parameters: Vec<ParameterSpec>,
    optimizer: OptimizerSettings,
    schedule: Schedule,
    seed: u64,
    precision: Precision,
    /// Bytes of gradients that replicas exchange in one collective.
    bucket_bytes: usize,
    checkpointing: Checkpointing,
}

impl<'m> Stepper<'m> {
    pub fn new(
        model: &'m dyn Model,
        optimizer: OptimizerSettings,
        schedule: Schedule,
        seed: u64,
    ) -> Self {
        let (parameters, precision, bucket_bytes) = (model.parameters(), Precision::F32, 0);
        Stepper {
            model,
            parameters,
            optimizer,
            schedule,
            seed,
            precision,
            bucket_bytes,
            checkpointing: Checkpointing::Off,
        }
    }

    /// The same with gradients exchanged in buckets of so many bytes, which matters where there are
    /// several replicas.
    pub fn with_buckets(self, bucket_bytes: usize) -> Self {
        Stepper {
            bucket_bytes,
            ..self
        }
    }

    /// The same with activations computed once more instead of being kept.
    pub fn with_checkpointing(self, checkpointing: Checkpointing) -> Self {
        Stepper {
            checkpointing,
            ..self
        }
    }

    /// The same with its matrix products in another precision and, where that needs it, with a
    /// scaled loss.
    pub fn with_precision(self, precision: Precision) -> Self {
        Stepper { precision, ..self }
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub fn parameters(&self) -> &[ParameterSpec] {
        &self.parameters
    }

    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// State besides the parameters: optimizer moments, sums when gradients accumulate, and the
    /// loss scale where there is one.
    pub fn extra_state(&self, accumulates: bool) -> Vec<ExtraState> {
        let saved = |name: String, shape: &Shape, initial: f32| ExtraState {
            name,
            shape: shape.clone(),
            initial,
            saved: true,
        };
        let sum = |name: String, shape: &Shape| ExtraState {
            saved: false,
            ..saved(name, shape, 0.0)
        };
        let is_adamw = self.optimizer.kind == OptimizerKind::AdamW;
        let mut state = Vec::new();
        for parameter in &self.parameters {
            let shape = Shape::new(DType::F32, parameter.dims.clone());
            if is_adamw {
                state.push(saved(exp_avg(&parameter.name), &shape, 0.0));
                state.push(saved(exp_avg_sq(&parameter.name), &shape, 0.0));
            }
            if accumulates {
                state.push(sum(accumulated(&parameter.name), &shape));
            }
        }
        let scalar = Shape::scalar(DType::F32);
        if accumulates {
            state.push(sum(ACCUMULATED_LOSS.into(), &scalar));
            state.push(sum(ACCUMULATED_COUNT.into(), &scalar));
        }
        if self.precision.needs_loss_scale() {
            state.push(saved(LOSS_SCALE.into(), &scalar, optim::INITIAL_SCALE));
            state.push(saved(GOOD_STEPS.into(), &scalar, 0.0));
            if is_adamw {
                state.push(saved(CORRECTION1.into(), &scalar, 0.0));
                state.push(saved(CORRECTION2.into(), &scalar, 0.0));
            }
        }
        state
    }

    /// Bytes of the parameters on one replica of a stage.
    pub fn weight_bytes(&self, placements: &Placements, stage: usize) -> u64 {
        self.parameters
            .iter()
            .map(|p| placements.held_bytes(&p.name, &parameter_shape(p), stage))
            .sum()
    }

    /// Bytes of the parameters and of [`Stepper::extra_state`] on one replica of a stage.
    pub fn state_bytes(&self, accumulates: bool, placements: &Placements, stage: usize) -> u64 {
        let extra = self.extra_state(accumulates);
        let extra = extra
            .iter()
            .map(|state| placements.held_bytes(&state.name, &state.shape, stage));
        self.weight_bytes(placements, stage) + extra.sum::<u64>()
    }

    /// Runs one microbatch of 0-based optimizer step `step`; `microstep` counts microbatches over
    /// the whole run and keys dropout. Metrics come with the microbatch that updates.
    pub fn microbatch(
        &self,
        session: &mut Session,
        batch: &DeviceBatch,
        phase: Phase,
        step: u64,
        microstep: u64,
    ) -> Result<Marked> {
        let mut recording = session.begin();
        let inputs = feed_batch(&mut recording, batch);
        self.record(&mut recording, &inputs, phase, step, microstep)?;
        let name = graph_name(phase.graph_name(), batch.variant.as_deref());
        match phase {
            Phase::Accumulate => recording.mark_microbatch(&name),
            Phase::Update { .. } => recording.mark_step(&name),
        }
    }

    /// Floating-point operations of one microbatch on all replicas, as [`Model::step_flops`] counts
    /// them.
    pub fn flops(&self, batch: &DeviceBatch) -> f64 {
        let [rows, tokens] = batch.size();
        let skipped = rows * tokens - batch.head_rows();
        batch.shards as f64 * (self.model.step_flops(rows, tokens) - self.model.head_flops(skipped))
    }

    /// The step itself, on inputs that may be real or abstract.
    pub fn record(
        &self,
        recording: &mut Recording,
        inputs: &BatchInputs,
        phase: Phase,
        step: u64,
        microstep: u64,
    ) -> Result<()> {
        recording.set_precision(self.precision);
        let randomness = feed_randomness(recording, self.seed, microstep)?;
        let weights = parameter_tensors(recording, &self.parameters)?;
        let trace = recording.trace().clone();
        let loss = {
            let _stages = recording.stages_by_layer();
            loss(
                self.model,
                &Weights::new(&trace, &weights),
                &inputs.tokens,
                &inputs.labels,
                &randomness,
            )?
        };
        let leaves: Vec<Tensor> = self
            .parameters
            .iter()
            .flat_map(|p| weights[&p.name].held())
            .cloned()
            .collect();
        let places = inputs.labels.ids.shape().elements() as f64;
        let gradients = backward_with(
            &self.scaled(recording, &loss.sum, places)?,
            &leaves,
            self.checkpointing,
        )?;
        match phase {
            Phase::Accumulate => {
                self.accumulate(recording, &loss, &self.of_sum(gradients, places)?)
            }
            Phase::Update { accumulated: true } => {
                let gradients = self.of_sum(gradients, places)?;
                let (loss, gradients) = self.take_accumulated(recording, loss, gradients)?;
                self.optimizer_step(recording, &leaves, &loss, &gradients, step, 1.0)
            }
            Phase::Update { accumulated: false } => {
                self.optimizer_step(recording, &leaves, &loss, &gradients, step, places)
            }
        }
    }

    /// What is differentiated: the loss or, in fp16, the mean over all `places` of labels times the
    /// loss scale (a sum over thousands of tokens would use up the range that the scale is there
    /// for).
    fn scaled(&self, recording: &mut Recording, loss: &Tensor, places: f64) -> Result<Tensor> {
        if !self.precision.needs_loss_scale() {
            return Ok(loss.clone());
        }
        let _scope = recording.trace().clone().scope("loss");
        let factor = recording.state(LOSS_SCALE)?.mul_scalar(1.0 / places)?;
        Ok(loss.mul(&factor)?)
    }

    /// Gradients of a mean over `places` as those of the sum, still times the loss scale:
    /// microbatches of other shapes have other numbers of places, and only sums add up.
    fn of_sum(&self, gradients: Vec<Tensor>, places: f64) -> Result<Vec<Tensor>> {
        match self.precision.needs_loss_scale() {
            true => gradients
                .iter()
                .map(|gradient| Ok(gradient.mul_scalar(places)?))
                .collect(),
            false => Ok(gradients),
        }
    }

    /// Adds this microbatch's sums to the accumulated ones.
    fn accumulate(
        &self,
        recording: &mut Recording,
        loss: &LossSum,
        gradients: &[Tensor],
    ) -> Result<()> {
        let _scope = recording.trace().clone().update_scope("accumulate");
        let held = exchange::held(recording.placements(), &self.parameters).into_owned();
        let mut add = |name: &str, value: &Tensor| -> Result<()> {
            let sum = recording.state(name)?.add(value)?;
            recording.assign(name, &sum)
        };
        for (parameter, gradient) in held.iter().zip(gradients) {
            add(&accumulated(&parameter.name), gradient)?;
        }
        add(ACCUMULATED_LOSS, &loss.sum)?;
        add(ACCUMULATED_COUNT, &loss.count)
    }

    /// The sums of all microbatches including this one; what was accumulated starts again at zero.
    fn take_accumulated(
        &self,
        recording: &mut Recording,
        loss: LossSum,
        gradients: Vec<Tensor>,
    ) -> Result<(LossSum, Vec<Tensor>)> {
        let _scope = recording.trace().clone().update_scope("accumulate");
        let held = exchange::held(recording.placements(), &self.parameters).into_owned();
        let mut take = |name: &str, value: &Tensor| -> Result<Tensor> {
            let sum = recording.state(name)?.add(value)?;
            let zero = recording.trace().full(0.0, value.shape())?;
            recording.assign(name, &zero)?;
            Ok(sum)
        };
        let gradients = held
            .iter()
            .zip(gradients)
            .map(|(parameter, gradient)| take(&accumulated(&parameter.name), &gradient))
            .collect::<Result<Vec<_>>>()?;
        let loss = LossSum {
            sum: take(ACCUMULATED_LOSS, &loss.sum)?,
            count: take(ACCUMULATED_COUNT, &loss.count)?,
        };
        Ok((loss, gradients))
    }

    /// The exchange between replicas, mean over the true token count, clipping by the global norm,
    /// the scale check, the optimizer's update of every parameter; fetches the metrics. In fp16,
    /// `gradients` are those of the sum times the loss scale over `places`.
    fn optimizer_step(
        &self,
        recording: &mut Recording,
        leaves: &[Tensor],
        loss: &LossSum,
        gradients: &[Tensor],
        step: u64,
        places: f64,
    ) -> Result<()> {
        let trace = recording.trace().clone();
        let _scope = trace.update_scope("optimizer");
        let held = exchange::held(recording.placements(), &self.parameters).into_owned();
        let feed = self.step_feed(step).to_array();
        let feed = recording.feed_host(
            "optimizer",
            bytemuck::bytes_of(&feed),
            &Shape::new(DType::F32, [feed.len()]),
        )?;
        let mut scalars = StepScalars::of(&feed)?;
        let (loss, gradients) =
            &exchange::sum(recording, &held, loss, gradients, self.bucket_bytes)?;
        let one = trace.constant(1.0, DType::F32)?;
        let per_token = one.div(&loss.count.max_scalar(1.0)?)?;
        let mut factor = per_token.clone();
        if self.precision.needs_loss_scale() {
            factor = factor.div(&recording.state(LOSS_SCALE)?.mul_scalar(1.0 / places)?)?;
        }
        let norm = exchange::norm(recording, &held, gradients)?.mul(&factor)?;
        let check = match self.precision.needs_loss_scale() {
            true => Some(self.check_scale(recording, &norm, &mut scalars)?),
            false => None,
        };
        // The new value or, when gradients overflowed, the old one.
        let kept = |new: Tensor, old: &Tensor| match &check {
            Some(check) => check.finite.select(&new, old),
            None => Ok(new),
        };
        if self.optimizer.max_grad_norm > 0.0 {
            factor = factor.mul(&optim::clip_factor(&norm, self.optimizer.max_grad_norm)?)?;
        }
        let parts = UpdateParts::of(recording, &held)?;
        for ((parameter, leaf), gradient) in held.iter().zip(leaves).zip(gradients) {
            let _scope = trace.scope(&parameter.name);
            let leaf = &parts.cut(recording, parameter, leaf)?;
            match self.optimizer.kind {
                OptimizerKind::AdamW => {
                    let (m, v) = (exp_avg(&parameter.name), exp_avg_sq(&parameter.name));
                    let (old_m, old_v) = (recording.state(&m)?, recording.state(&v)?);
                    let new = self.adamw().update(
                        &scalars,
                        leaf,
                        gradient,
                        &factor,
                        &old_m,
                        &old_v,
                        parameter.decay,
                    )?;
                    let new_leaf = parts.join(recording, parameter, kept(new.parameter, leaf)?)?;
                    recording.assign(&parameter.name, &new_leaf)?;
                    recording.assign(&m, &kept(new.exp_avg, &old_m)?)?;
                    recording.assign(&v, &kept(new.exp_avg_sq, &old_v)?)?;
                }
                OptimizerKind::Sgd => {
                    let sgd = Sgd {
                        weight_decay: self.optimizer.weight_decay,
                    };
                    let new =
                        sgd.update(&scalars, leaf, &gradient.mul(&factor)?, parameter.decay)?;
                    recording.assign(&parameter.name, &kept(new, leaf)?)?;
                }
            }
        }
        let mean_loss = loss.sum.mul(&per_token)?;
        let mut metrics = vec![mean_loss, norm, loss.count.clone()];
        if let Some(check) = check {
            metrics.extend([check.scale, check.finite.convert(DType::F32)?]);
        }
        let metrics = metrics
            .iter()
            .map(|t| t.reshape(&[1]))
            .collect::<xtrain_graphs::Result<Vec<_>>>()?;
        recording.fetch(
            METRICS,
            &Tensor::concat(&metrics.iter().collect::<Vec<_>>(), 0)?,
        );
        Ok(())
    }

    /// Decides whether the step counts, moves the loss scale on, and takes AdamW's bias corrections
    /// from the device, where the steps that counted are known.
    fn check_scale(
        &self,
        recording: &mut Recording,
        norm: &Tensor,
        scalars: &mut StepScalars,
    ) -> Result<ScaleCheck> {
        // The squares of finite gradients could only add up to infinity if their norm were above
        // 1e19: an overflow as well.
        let finite = norm.is_finite()?;
        let old = LossScale {
            scale: recording.state(LOSS_SCALE)?,
            good_steps: recording.state(GOOD_STEPS)?,
        };
        let new = old.next(&finite)?;
        recording.assign(LOSS_SCALE, &new.scale)?;
        recording.assign(GOOD_STEPS, &new.good_steps)?;
        if self.optimizer.kind == OptimizerKind::AdamW {
            let old = BiasCorrections {
                first: recording.state(CORRECTION1)?,
                second: recording.state(CORRECTION2)?,
            };
            let new = old.next(&self.adamw())?;
            recording.assign(CORRECTION1, &finite.select(&new.first, &old.first)?)?;
            recording.assign(CORRECTION2, &finite.select(&new.second, &old.second)?)?;
            *scalars = new.apply(scalars.clone())?;
        }
        Ok(ScaleCheck {
            scale: old.scale,
            finite,
        })
    }

    fn adamw(&self) -> AdamW {
        AdamW {
            beta1: self.optimizer.adam_beta1,
            beta2: self.optimizer.adam_beta2,
            eps: self.optimizer.adam_epsilon,
            weight_decay: self.optimizer.weight_decay,
        }
    }

    fn step_feed(&self, step: u64) -> StepFeed {
        let learning_rate = self.schedule.learning_rate(step);
        match self.optimizer.kind {
            OptimizerKind::AdamW => StepFeed::adamw(learning_rate, &self.adamw(), step + 1),
            OptimizerKind::Sgd => StepFeed::plain(learning_rate),
        }
    }
}

/// What loss scaling found in a step.
struct ScaleCheck {
    /// That the step used, `f32[]`.
    scale: Tensor,
    /// Whether all gradients are finite, `pred[]`.
    finite: Tensor,
}

/// The fetched `f32[3]`: mean loss, gradient norm, token count; in fp16 `f32[5]` with the loss
/// scale and whether (1) or not (0) all gradients were finite.
const METRICS: &str = "metrics";

/// Starts reading the metrics of a step that updated.
pub fn read_metrics(marked: &Marked) -> Result<PendingMetrics> {
    Ok(PendingMetrics(marked.fetched(METRICS).start_download_to()?))
}

/// The random key of one microbatch: (seed, microstep) and, where the batch is cut for several
/// replicas, the number of the shard.
fn feed_randomness(recording: &mut Recording, seed: u64, microstep: u64) -> Result<Randomness> {
    let mesh = recording.mesh();
    let shards = mesh.batch_shards();
    let keys: Vec<[u32; 3]> = (0..shards as u32)
        .map(|shard| [(seed ^ (seed >> 32)) as u32, microstep as u32, shard])
        .collect();
    let words = if shards == 1 { 2 } else { 3 };
    let shape = Shape::new(DType::U32, [words]);
    let key = recording.feed_host_each("random_key", &shape, |replica| {
        bytemuck::cast_slice(&keys[mesh.batch_shard(replica)][..words])
    })?;
    Ok(Randomness::keyed(key))
}

/// Every parameter of the model, as the recording's replica holds it.
pub fn parameter_tensors(
    recording: &mut Recording,
    parameters: &[ParameterSpec],
) -> Result<HashMap<String, Weight>> {
    let groups: Option<Arc<[Vec<u32>]>> = recording.mesh().groups(&[Axis::Shard]).map(Arc::from);
    let stages = recording.placements().stages().cloned();
    let mut weight = |name: &str| -> Result<Weight> {
        let held = recording.state(name)?;
        Ok(match (recording.placements().of(name), &groups) {
            (Some(split), Some(groups)) => Weight::Part {
                part: held,
                dim: split.dim,
                groups: groups.clone(),
            },
            _ => Weight::Whole(held),
        })
    };
    let of_stages = |parameter: &ParameterSpec| -> Result<(String, Weight)> {
        let name = &parameter.name;
        let weight = match &stages {
            None => weight(name)?,
            Some(stages) => {
                let held =
                    |stage: &usize| Ok((*stage, weight(&stages.held_name(name, name, *stage))?));
                Weight::OfStages(stages.users(name).iter().map(held).collect::<Result<_>>()?)
            }
        };
        Ok((name.clone(), weight))
    };
    parameters.iter().map(of_stages).collect()
}

/// Where the state of a run lies on its mesh.
///
/// # Errors
/// If the tensor axis cannot divide the model's layers.
pub fn placements(
    model: &dyn Model,
    optimizer: OptimizerKind,
    mesh: Mesh,
    shard_optimizer_state: bool,
) -> Result<Placements> {
    let cuts = tensor_cuts(model, mesh.tensor)?;
    let stages = layer_costs::plan(model, mesh.stage)?;
    let mut placements = exchange::placements(
        &model.parameters(),
        mesh,
        &cuts,
        shard_optimizer_state,
        stages.as_ref(),
        |name| {
            let moments = match optimizer {
                OptimizerKind::AdamW => vec![exp_avg(name), exp_avg_sq(name)],
                OptimizerKind::Sgd => Vec::new(),
            };
            (moments, vec![accumulated(name)])
        },
    );
    if let Some(stages) = stages {
        [ACCUMULATED_LOSS, ACCUMULATED_COUNT]
            .into_iter()
            .for_each(|name| placements.set_home(name.into(), stages.last()));
    }
    Ok(placements)
}
