//! What decides a run's graphs besides its model and its data, from whichever plan.
//!
//! Sessions and training steps are built here and nowhere else, so that what is compiled ahead is
//! what runs.

use super::device::open_device;
use super::error::{Error, failed};
use std::sync::Arc;
use xtrain_cache::{CacheSettings, Origin};
use xtrain_config::{Device, DevicePlan, TrainSettings};
use xtrain_graphs::optim::Schedule;
use xtrain_models::{Model, Objective};
use xtrain_parallel::Mesh;
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::session::Session;
use xtrain_trainer::step::{TrainStep, placements};

/// The devices of a run, and how its graphs are made for them.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Which device, and how it is opened.
    pub device: DevicePlan,
    /// The compiled-graph cache.
    pub cache: CacheSettings,
    /// Mesh, precision, optimizer, what is sharded and recomputed, the seed of dropout.
    pub train: TrainSettings,
    /// The device is the CPU, on which the graphs of another are recorded.
    stands_in: bool,
}

impl Execution {
    /// As a plan has it.
    pub fn new(device: &DevicePlan, cache: &CacheSettings, train: &TrainSettings) -> Execution {
        Execution {
            device: device.clone(),
            cache: cache.clone(),
            train: train.clone(),
            stands_in: false,
        }
    }

    /// The same on another mesh.
    pub fn on(mut self, mesh: Mesh, shard_optimizer_state: bool) -> Execution {
        self.train.mesh = mesh;
        self.train.shard_optimizer_state = shard_optimizer_state;
        self
    }

    /// The same on the CPU, whose session records graphs for any device.
    pub fn recording(self) -> Execution {
        let stands_in = self.device.kind != Device::Cpu;
        let device = DevicePlan {
            kind: Device::Cpu,
            settings: DeviceSettings::default(),
        };
        Execution {
            device,
            stands_in,
            ..self
        }
    }

    /// Opens the devices and lays the model out on them.
    ///
    /// # Errors
    /// If the model cannot be sharded over the mesh, or a device cannot be opened.
    pub fn session(&self, model: &dyn Model, origin: Origin) -> Result<Session, Error> {
        let train = &self.train;
        let optimizer = train.optimizer.build();
        let placements = placements(model, &*optimizer, train.mesh, train.shard_optimizer_state)
            .map_err(failed("laying out the model"))?;
        let mut session = open_device(&self.device, train.mesh, &self.cache)?;
        session.set_eval_precision(train.eval_precision);
        session.set_storage(train.optimizer.storage);
        session.set_placements(placements);
        session.set_schedule(*train.flags.pipeline_schedule);
        session.set_sequence_parallel(*train.flags.sequence_parallel);
        session.set_stands_in(self.stands_in);
        session.cache_mut().set_origin(origin);
        Ok(session)
    }

    /// The training step of a model.
    pub fn step<'m>(
        &self,
        model: &'m dyn Model,
        objective: &Arc<dyn Objective>,
        schedule: Schedule,
    ) -> TrainStep<'m> {
        let (train, flags) = (&self.train, &self.train.flags);
        let (objective, optimizer) = (objective.clone(), train.optimizer.clone());
        TrainStep::new(model, objective, optimizer, schedule, *flags.seed)
            .with_precision(train.precision)
            .with_buckets(*flags.gradient_bucket_mb << 20)
            .with_checkpointing(train.checkpointing)
            .with_embedding_noise(flags.neftune_noise_alpha.unwrap_or(0.0))
    }

    /// The same for recording its graphs only: the learning rate is fed at each step, so that no
    /// graph knows the schedule.
    pub fn recorded_step<'m>(
        &self,
        model: &'m dyn Model,
        objective: &Arc<dyn Objective>,
    ) -> TrainStep<'m> {
        let schedule = Schedule::constant(0.0);
        self.step(model, objective, schedule)
    }
}
