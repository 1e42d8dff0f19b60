//! How the graphs of a step run: one graph on all replicas or, in a pipeline, a piece for each
//! stage and direction, with the values between them copied from stage to stage, microbatch by
//! microbatch in the order of the schedule.

pub(super) mod layer_costs;
mod parts;
mod running;
mod transfer;

pub use parts::sent;
pub(super) use parts::{Microbatch, Parts, Recorded, Source, connect, forward_name};

use super::error::{Error, Result};
use super::mesh_devices::{Buffers, MeshDevices};
use parts::{Part, Values};
use running::{Running, Stages};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer::Transfers;
use xtrain_cache::{CompiledGraph, GraphCache};
use xtrain_graphs::passes::partition::TP_RANK;
use xtrain_graphs::passes::stages::is_value;
use xtrain_parallel::PipelineSchedule;
use xtrain_parallel::schedule::{PieceShape, Task, order};
use xtrain_runtime::{Buffer, RunOptions};

/// Where the host's time of one step went; the rest of the step is the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Recording the model and looking the graph up.
    pub trace: Duration,
    /// Lowering and compiling or loading, the first time.
    pub compile: Duration,
    /// Handing the executable to the device.
    pub execute: Duration,
}

impl std::ops::AddAssign for HostTime {
    fn add_assign(&mut self, other: Self) {
        self.trace += other.trace;
        self.compile += other.compile;
        self.execute += other.execute;
    }
}

/// What the devices hold from step to step, by name and stage.
pub(super) type State = BTreeMap<String, BTreeMap<usize, Buffers>>;

/// Runs a session's steps.
#[derive(Default)]
pub(super) struct Executor {
    schedule: PipelineSchedule,
    /// Microbatches that wait for the one that updates, with which they go through the stages.
    waiting: Vec<Microbatch>,
    /// The order in which the last step's pieces ran.
    order: Option<(Vec<Parts>, Arc<[Task]>)>,
    running: Running,
    transfers: Transfers,
}

impl Executor {
    /// From now on hands a step over only when the one before is done.
    pub fn run_one_at_a_time(&mut self, stages: usize) {
        self.running = Running::one_at_a_time(stages);
    }

    /// Sets the order in which the stages of a pipeline take microbatches.
    pub fn set_schedule(&mut self, schedule: PipelineSchedule) {
        self.schedule = schedule;
        self.order = None;
    }

    /// Microbatches of a step that one of `stages` has under way at most: forward, and not yet backward.
    pub fn most_under_way(&self, stages: usize, stage: usize, microbatches: usize) -> usize {
        let limit = match self.schedule {
            _ if stage + 1 == stages => 1,
            PipelineSchedule::Simple => microbatches,
            PipelineSchedule::Interleaved => stages - stage,
        };
        limit.min(microbatches).max(1)
    }

    /// Keeps a microbatch for the one that ends the step.
    pub fn wait(&mut self, microbatch: Microbatch) {
        self.waiting.push(microbatch);
    }

    /// Starts a step on the devices, of the microbatches that wait and of this, the last, in the order of
    /// the schedule. Returns what the last microbatch fetched.
    pub fn run(
        &mut self,
        devices: &MeshDevices,
        cache: &mut GraphCache,
        state: &mut State,
        microbatch: Microbatch,
    ) -> Result<(BTreeMap<String, Buffers>, HostTime)> {
        let mut microbatches = std::mem::take(&mut self.waiting);
        microbatches.push(microbatch);
        let mut time = HostTime::default();
        let tasks = self.tasks(devices.mesh.stage, &microbatches);
        let mut stages = Stages {
            devices,
            cache,
            running: &mut self.running,
        };
        let mut values: Vec<Values> = microbatches.iter().map(|_| Values::new()).collect();
        let mut fetched: BTreeMap<String, BTreeMap<usize, Vec<Buffer>>> = BTreeMap::new();
        let last = microbatches.len() - 1;
        for task in tasks.iter() {
            let microbatch = &microbatches[task.microbatch];
            let part = &microbatch.recorded.parts[task.piece];
            let stage = part.shape.stage;
            let own = &mut values[task.microbatch];
            let transfers = &mut self.transfers;
            if devices.places(stage).next().is_none() {
                // Another process runs it; what it sends comes here all the same.
                let begun = Instant::now();
                for handed in &part.handed {
                    transfers.hand_on(&mut stages, handed, stage, Vec::new(), own)?;
                }
                time.execute += begun.elapsed();
                continue;
            }
            let compiled = compiled(stages.cache, part, &mut time)?;
            let begun = Instant::now();
            let outputs = execute(&mut stages, &compiled, stage, state, microbatch, own)?;
            forget_taken(own, &compiled, stage);
            let mut handed = part.handed.iter().peekable();
            for (name, buffers) in compiled.outputs.iter().zip(outputs) {
                if let Some(handed) = handed.next_if(|handed| handed.name == *name) {
                    transfers.hand_on(&mut stages, handed, stage, buffers, own)?;
                } else if let Some(held) = state.get_mut(name) {
                    held.insert(stage, buffers.into());
                } else if task.microbatch == last {
                    let of_stages = fetched.entry(name.clone()).or_default();
                    of_stages.insert(stage, buffers);
                }
            }
            time.execute += begun.elapsed();
        }
        let joined =
            |by_stage: BTreeMap<usize, Vec<Buffer>>| by_stage.into_values().flatten().collect();
        let fetched = fetched.into_iter();
        let fetched = fetched.map(|(name, by_stage)| (name, joined(by_stage)));
        Ok((fetched.collect(), time))
    }

    /// The order of a step's pieces; steps are alike, so that of the last one is kept.
    fn tasks(&mut self, stages: usize, microbatches: &[Microbatch]) -> Arc<[Task]> {
        let is_same = |parts: &[Parts]| {
            parts.len() == microbatches.len()
                && parts
                    .iter()
                    .zip(microbatches)
                    .all(|(parts, other)| Arc::ptr_eq(parts, &other.recorded.parts))
        };
        if let Some((_, tasks)) = self.order.as_ref().filter(|(parts, _)| is_same(parts)) {
            return tasks.clone();
        }
        let shapes_of = |microbatch: &Microbatch| -> Vec<PieceShape> {
            let parts = microbatch.recorded.parts.iter();
            parts.map(|part| part.shape.clone()).collect()
        };
        let shapes: Vec<Vec<PieceShape>> = microbatches.iter().map(shapes_of).collect();
        let tasks: Arc<[Task]> = order(&shapes, stages, self.schedule).tasks.into();
        if stages > 1 {
            let parts = microbatches.iter();
            let parts = parts.map(|microbatch| microbatch.recorded.parts.clone());
            self.order = Some((parts.collect(), tasks.clone()));
        }
        tasks
    }
}

/// Drops the values that a graph of a stage was the last to take.
fn forget_taken(values: &mut Values, compiled: &CompiledGraph, stage: usize) {
    let names = compiled.inputs.iter().map(|(name, _)| name);
    for name in names.filter(|name| is_value(name)) {
        let key = (name.clone(), stage);
        if let Some((_, left)) = values.get_mut(&key) {
            *left -= 1;
            if *left == 0 {
                values.remove(&key);
            }
        }
    }
}

fn compiled(
    cache: &mut GraphCache,
    part: &Part,
    time: &mut HostTime,
) -> Result<Arc<CompiledGraph>> {
    if let Some(known) = part.compiled.get() {
        return Ok(known.clone());
    }
    let (asked, hits_before) = (Instant::now(), cache.stats().hits);
    let compiled = cache.get(&part.graph)?;
    if cache.stats().hits > hits_before {
        time.trace += asked.elapsed()
    } else {
        time.compile += asked.elapsed()
    }
    Ok(part.compiled.get_or_init(|| compiled).clone())
}

/// Hands a graph to its stage's devices; the buffers of each output.
fn execute(
    stages: &mut Stages,
    compiled: &CompiledGraph,
    stage: usize,
    state: &State,
    microbatch: &Microbatch,
    values: &Values,
) -> Result<Vec<Vec<Buffer>>> {
    let devices = stages.devices;
    let own: Vec<usize> = devices.places(stage).map(|(device, _)| device).collect();
    let (first, count) = (own.first().copied().unwrap_or(0), own.len());
    // Dividing a graph adds an input to it.
    let is_divided = compiled.inputs.iter().any(|(name, _)| name == TP_RANK);
    let places = is_divided.then(|| devices.tensor_places()).transpose()?;
    let mut arguments: Vec<Vec<&Buffer>> = vec![Vec::with_capacity(compiled.inputs.len()); count];
    for (name, _) in &compiled.inputs {
        let no_state = || Error::NoState { name: name.clone() };
        let source = microbatch.recorded.sources.get(name);
        let buffers: &[Buffer] = match source {
            Some(Source::State) => state
                .get(name)
                .and_then(|held| held.get(&stage))
                .ok_or_else(no_state)?,
            Some(Source::Feed) => {
                &microbatch.feeds.get(name).ok_or_else(no_state)?[first..first + count]
            }
            Some(Source::Abstract) => return Err(Error::AbstractFeed { name: name.clone() }),
            None if name == TP_RANK => &places.as_ref().ok_or_else(no_state)?[first..first + count],
            None => &values.get(&(name.clone(), stage)).ok_or_else(no_state)?.0,
        };
        arguments
            .iter_mut()
            .zip(buffers)
            .for_each(|(list, buffer)| list.push(buffer));
    }
    stages.finish(stage)?;
    let execution = compiled.executable.run(&arguments, RunOptions::default())?;
    drop(arguments);
    stages.start(stage, execution.done);
    let mut outputs: Vec<_> = execution.outputs.into_iter().map(Vec::into_iter).collect();
    Ok(compiled
        .outputs
        .iter()
        .map(|_| outputs.iter_mut().filter_map(Iterator::next).collect())
        .collect())
}
