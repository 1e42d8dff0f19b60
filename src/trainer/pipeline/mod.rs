//! How the graphs of a step run: one graph on all replicas or, in a pipeline, a piece for each
//! stage and direction, with the values between them copied from stage to stage, microbatch by
//! microbatch in the order of the schedule.

pub(super) mod layer_costs;
mod parts;
mod transfer;

pub use parts::sent;
pub(super) use parts::{Argument, Microbatch, Parts, connect, forward_name};

use super::error::{Error, Result};
use super::session::{Buffers, HostTime, Session};
use parts::{Part, Values};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use transfer::hand_on;
use xtrain_cache::CompiledGraph;
use xtrain_graphs::passes::partition::TP_RANK;
use xtrain_graphs::passes::stages::is_value;
use xtrain_parallel::schedule::{PieceShape, Task, order};
use xtrain_runtime::{Buffer, RunOptions};

/// Starts everything on the devices, in the order of the schedule. Returns what the last microbatch
/// fetched.
pub(super) fn run(
    session: &mut Session,
    microbatches: Vec<Microbatch>,
) -> Result<(BTreeMap<String, Buffers>, HostTime)> {
    let mut time = HostTime::default();
    let tasks = tasks(session, &microbatches);
    let mut values: Vec<Values> = microbatches.iter().map(|_| Values::new()).collect();
    let mut fetched: BTreeMap<String, BTreeMap<usize, Vec<Buffer>>> = BTreeMap::new();
    let last = microbatches.len() - 1;
    for task in tasks.iter() {
        let microbatch = &microbatches[task.microbatch];
        let part = &microbatch.parts[task.piece];
        let stage = part.shape.stage;
        let own = &mut values[task.microbatch];
        if session.places(stage).next().is_none() {
            // Another process runs it; what it sends comes here all the same.
            let begun = Instant::now();
            part.handed
                .iter()
                .try_for_each(|handed| hand_on(session, handed, stage, Vec::new(), own))?;
            time.execute += begun.elapsed();
            continue;
        }
        let compiled = compiled(session, part, &mut time)?;
        let begun = Instant::now();
        let outputs = execute(session, &compiled, stage, microbatch, own)?;
        for name in compiled
            .inputs
            .iter()
            .map(|(name, _)| name)
            .filter(|name| is_value(name))
        {
            let key = (name.clone(), stage);
            if let Some((_, left)) = own.get_mut(&key) {
                *left -= 1;
                if *left == 0 {
                    own.remove(&key);
                }
            }
        }
        let mut handed = part.handed.iter().peekable();
        for (name, buffers) in compiled.outputs.iter().zip(outputs) {
            if let Some(handed) = handed.next_if(|handed| handed.name == *name) {
                hand_on(session, handed, stage, buffers, own)?;
            } else if let Some(held) = session.state.get_mut(name) {
                held.insert(stage, buffers.into());
            } else if task.microbatch == last {
                fetched
                    .entry(name.clone())
                    .or_default()
                    .insert(stage, buffers);
            }
        }
        time.execute += begun.elapsed();
    }
    let joined =
        |by_stage: BTreeMap<usize, Vec<Buffer>>| by_stage.into_values().flatten().collect();
    Ok((
        fetched
            .into_iter()
            .map(|(name, by_stage)| (name, joined(by_stage)))
            .collect(),
        time,
    ))
}

/// The order of a step's pieces; steps are alike, so that of the last one is kept.
fn tasks(session: &mut Session, microbatches: &[Microbatch]) -> Arc<[Task]> {
    let is_same = |parts: &[Parts]| {
        parts.len() == microbatches.len()
            && parts
                .iter()
                .zip(microbatches)
                .all(|(parts, other)| Arc::ptr_eq(parts, &other.parts))
    };
    if let Some((_, tasks)) = session.order.as_ref().filter(|(parts, _)| is_same(parts)) {
        return tasks.clone();
    }
    let shapes: Vec<Vec<PieceShape>> = microbatches
        .iter()
        .map(|microbatch| {
            microbatch
                .parts
                .iter()
                .map(|part| part.shape.clone())
                .collect()
        })
        .collect();
    let tasks: Arc<[Task]> = order(&shapes, session.mesh.stage, session.schedule)
        .tasks
        .into();
    if session.mesh.stage > 1 {
        session.order = Some((
            microbatches
                .iter()
                .map(|microbatch| microbatch.parts.clone())
                .collect(),
            tasks.clone(),
        ));
    }
    tasks
}

fn compiled(session: &mut Session, part: &Part, time: &mut HostTime) -> Result<Arc<CompiledGraph>> {
    if let Some(known) = part.compiled.get() {
        return Ok(known.clone());
    }
    let (asked, hits_before) = (Instant::now(), session.cache.stats().hits);
    let compiled = session.cache.get(&part.graph)?;
    if session.cache.stats().hits > hits_before {
        time.trace += asked.elapsed()
    } else {
        time.compile += asked.elapsed()
    }
    Ok(part.compiled.get_or_init(|| compiled).clone())
}

/// Hands a graph to its stage's devices; the buffers of each output.
fn execute(
    session: &mut Session,
    compiled: &CompiledGraph,
    stage: usize,
    microbatch: &Microbatch,
    values: &Values,
) -> Result<Vec<Vec<Buffer>>> {
    let devices: Vec<usize> = session.places(stage).map(|(device, _)| device).collect();
    let (first, count) = (devices.first().copied().unwrap_or(0), devices.len());
    // Dividing a graph adds an input to it.
    let is_divided = compiled.inputs.iter().any(|(name, _)| name == TP_RANK);
    let places = is_divided.then(|| session.tensor_places()).transpose()?;
    let mut arguments: Vec<Vec<&Buffer>> = vec![Vec::with_capacity(compiled.inputs.len()); count];
    for (name, _) in &compiled.inputs {
        let no_state = || Error::NoState { name: name.clone() };
        let buffers: &[Buffer] = match microbatch.arguments.get(name) {
            Some(Argument::State) => session
                .state
                .get(name)
                .and_then(|held| held.get(&stage))
                .ok_or_else(no_state)?,
            Some(Argument::Feed(buffers)) => &buffers[first..first + count],
            Some(Argument::Abstract) => return Err(Error::AbstractFeed { name: name.clone() }),
            None if name == TP_RANK => &places.as_ref().ok_or_else(no_state)?[first..first + count],
            None => &values.get(&(name.clone(), stage)).ok_or_else(no_state)?.0,
        };
        arguments
            .iter_mut()
            .zip(buffers)
            .for_each(|(list, buffer)| list.push(buffer));
    }
    for step in session
        .running
        .iter_mut()
        .flat_map(|running| running[stage].drain(..))
    {
        step.wait()?;
    }
    let execution = compiled.executable.run(&arguments, RunOptions::default())?;
    drop(arguments);
    if let Some(running) = &mut session.running {
        running[stage] = execution.done;
    }
    let mut outputs: Vec<_> = execution.outputs.into_iter().map(Vec::into_iter).collect();
    Ok(compiled
        .outputs
        .iter()
        .map(|_| outputs.iter_mut().filter_map(Iterator::next).collect())
        .collect())
}
