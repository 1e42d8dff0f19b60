//! What decides a run's graphs besides its model and its data, from whichever plan.
//!
//! Sessions and training steps are built here and nowhere else, so that what is compiled ahead is
//! what runs.

use super::device::open_device;
use super::error::{Error, failed};
use crate::cache::{CacheSettings, Origin};
use crate::config::{BenchPlan, Device, DevicePlan, EvalPlan, TrainPlan};
use crate::parallel::{Mesh, PipelineSchedule};
use crate::trainer::device::DeviceSettings;
use crate::trainer::session::Session;
use crate::trainer::settings::{Checkpointing, OptimizerSettings, Precision};
use crate::trainer::step::{TrainStep, placements};
use xtrain_graphs::optim::{ADAMW, SGD, Schedule, ScheduleKind};
use xtrain_models::Model;

/// The devices of a run, and how its graphs are made for them.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Which device, and how it is opened.
    pub device: DevicePlan,
    /// The compiled-graph cache.
    pub cache: CacheSettings,
    /// The device mesh: data, shard, tensor and pipeline axes.
    pub mesh: Mesh,
    /// The order in which pipeline stages take microbatches.
    pub pipeline_schedule: PipelineSchedule,
    /// Activations between tensor-parallel layers are sharded by tokens.
    pub sequence_parallel: bool,
    /// Optimizer state is sharded along the data axis (ZeRO-1).
    pub shard_optimizer_state: bool,
    /// Gradients that replicas exchange in one collective, in bytes.
    pub gradient_bucket_bytes: usize,
    /// Activations that the backward pass recomputes.
    pub checkpointing: Checkpointing,
    /// Of the matmuls of training steps.
    pub precision: Precision,
    /// Of those of evaluations.
    pub eval_precision: Precision,
    /// The optimizer and its hyperparameters.
    pub optimizer: OptimizerSettings,
    /// Keys dropout.
    pub seed: u64,
}

impl From<&TrainPlan> for Execution {
    fn from(plan: &TrainPlan) -> Execution {
        let settings = &plan.train;
        Execution {
            device: plan.device.clone(),
            cache: plan.cache.clone(),
            mesh: settings.mesh,
            pipeline_schedule: settings.pipeline_schedule,
            sequence_parallel: settings.sequence_parallel,
            shard_optimizer_state: settings.shard_optimizer_state,
            gradient_bucket_bytes: settings.gradient_bucket_bytes,
            checkpointing: settings.checkpointing,
            precision: settings.precision,
            eval_precision: settings.eval_precision,
            optimizer: settings.optimizer.clone(),
            seed: settings.seed,
        }
    }
}

impl From<&BenchPlan> for Execution {
    /// With the peers' settings (`bench/peers.py`): constant rate, decay, clipping.
    fn from(plan: &BenchPlan) -> Execution {
        Execution {
            mesh: plan.mesh,
            sequence_parallel: plan.sequence_parallel,
            shard_optimizer_state: plan.shard_optimizer_state,
            gradient_bucket_bytes: plan.gradient_bucket_bytes,
            checkpointing: plan.checkpointing,
            precision: plan.precision,
            optimizer: OptimizerSettings::constant(ADAMW, 1e-4),
            seed: plan.seed,
            ..Execution::inference(&plan.device, &plan.cache)
        }
    }
}

impl From<&EvalPlan> for Execution {
    fn from(plan: &EvalPlan) -> Execution {
        Execution {
            mesh: plan.mesh,
            eval_precision: plan.precision,
            seed: plan.seed,
            ..Execution::inference(&plan.device, &plan.cache)
        }
    }
}

impl Execution {
    /// One device that computes in f32 and trains nothing.
    pub fn inference(device: &DevicePlan, cache: &CacheSettings) -> Execution {
        Execution {
            device: device.clone(),
            cache: cache.clone(),
            mesh: Mesh::single(),
            pipeline_schedule: PipelineSchedule::default(),
            sequence_parallel: false,
            shard_optimizer_state: false,
            gradient_bucket_bytes: 0,
            checkpointing: Checkpointing::Off,
            precision: Precision::F32,
            eval_precision: Precision::F32,
            // Has no state that would have to be placed.
            optimizer: OptimizerSettings::constant(SGD, 0.0),
            seed: 0,
        }
    }

    /// The same on the CPU, whose session records graphs for any device.
    pub fn recording(self) -> Execution {
        let device = DevicePlan {
            kind: Device::Cpu,
            settings: DeviceSettings::default(),
        };
        Execution { device, ..self }
    }

    /// Opens the devices and lays the model out on them.
    ///
    /// # Errors
    /// If the model cannot be sharded over the mesh, or a device cannot be opened.
    pub fn session(&self, model: &dyn Model, origin: Origin) -> Result<Session, Error> {
        let optimizer = self.optimizer.build();
        let placements = placements(model, &*optimizer, self.mesh, self.shard_optimizer_state)
            .map_err(failed("laying out the model"))?;
        let mut session = open_device(&self.device, self.mesh, &self.cache)?;
        session.set_eval_precision(self.eval_precision);
        session.set_placements(placements);
        session.set_schedule(self.pipeline_schedule);
        session.set_sequence_parallel(self.sequence_parallel);
        session.cache_mut().set_origin(origin);
        Ok(session)
    }

    /// The training step of a model.
    pub fn step<'m>(&self, model: &'m dyn Model, schedule: Schedule) -> TrainStep<'m> {
        TrainStep::new(model, self.optimizer.clone(), schedule, self.seed)
            .with_precision(self.precision)
            .with_buckets(self.gradient_bucket_bytes)
            .with_checkpointing(self.checkpointing)
    }

    /// The same for recording its graphs only: the learning rate is fed at each step, so that no
    /// graph knows the schedule.
    pub fn recorded_step<'m>(&self, model: &'m dyn Model) -> TrainStep<'m> {
        let schedule = Schedule {
            kind: ScheduleKind::Constant,
            peak: 0.0,
            warmup: 0,
            total: 0,
        };
        self.step(model, schedule)
    }
}
