//! How the graphs of a step run: one graph on all replicas or, in a pipeline, a piece for each stage and direction, with the values
//! between them copied from stage to stage, microbatch by microbatch in the order of the schedule.

use super::error::{Error, Result};
use super::session::{Buffers, HostTime, Session};
use crate::cache::CompiledGraph;
use crate::parallel::schedule::{PieceShape, order};
use crate::parallel::{Mesh, PipelineSchedule, Placements};
use crate::runtime::{Buffer, RunOptions};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use xtrain_graphs::passes::partition::PLACE_INPUT;
use xtrain_graphs::passes::stages::{self, is_value};
use xtrain_graphs::{Graph, InputRole, Shape, Trace};

/// A graph that one stage runs.
pub(super) struct Part {
    pub graph: Graph,
    shape: PieceShape,
    /// Stages that take each value that it hands on, other than its own.
    sends: Vec<(String, Vec<usize>)>,
    compiled: OnceLock<Arc<CompiledGraph>>,
}

/// What a recorded graph runs as: one graph, or the pieces that stages run.
pub(super) type Parts = Arc<[Part]>;

impl Part {
    /// A graph that all replicas run.
    pub fn whole(graph: Graph) -> Self {
        let shape = PieceShape { stage: 0, level: 0, after: Vec::new() };
        Part { graph, shape, sends: Vec::new(), compiled: OnceLock::new() }
    }
}

/// A recorded graph as the stages of a pipeline run it.
pub(super) fn split(graph: &Graph, count: usize, placements: &Placements) -> Result<Vec<Part>> {
    // The forward pass of a microbatch is the same whether it ends a step or not.
    let (what, variant) =
        graph.name.split_once('.').map_or((&*graph.name, String::new()), |(what, rest)| (what, format!(".{rest}")));
    let forward = match what {
        "accumulate" | "update" | "train" => format!("forward{variant}"),
        _ => graph.name.clone(),
    };
    let pieces = stages::split(graph, count, &|name| placements.home(name), &forward)?;
    let names = |piece: &stages::Piece| piece.graph.inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
    let takes: Vec<Vec<String>> = pieces.iter().map(names).collect();
    let stage_of: Vec<usize> = pieces.iter().map(|piece| piece.graph.stage as usize).collect();
    let gives: HashMap<String, usize> = pieces
        .iter()
        .enumerate()
        .flat_map(|(index, piece)| piece.graph.outputs.iter().map(move |output| (output.name.clone(), index)))
        .filter(|(name, _)| is_value(name))
        .collect();
    let part = |(index, piece): (usize, stages::Piece)| {
        let mut after: Vec<usize> = takes[index].iter().filter_map(|name| gives.get(name).copied()).collect();
        after.sort_unstable();
        after.dedup();
        let handed = piece.graph.outputs.iter().map(|output| &output.name).filter(|name| is_value(name));
        let to = |name: &String| {
            let takers = (0..takes.len()).filter(|&other| takes[other].contains(name)).map(|other| stage_of[other]);
            let mut takers: Vec<usize> = takers.filter(|stage| *stage != stage_of[index]).collect();
            takers.sort_unstable();
            takers.dedup();
            (name.clone(), takers)
        };
        let sends = handed.map(to).collect();
        let shape = PieceShape { stage: stage_of[index], level: piece.level, after };
        Part { graph: piece.graph, shape, sends, compiled: OnceLock::new() }
    };
    Ok(pieces.into_iter().enumerate().map(part).collect())
}

/// Bytes that the graphs of one step hand to other stages, from each replica of a stage to its like in another.
pub fn sent(graphs: &[Graph]) -> u64 {
    let mut seen = HashSet::new();
    let stage_of = |name: &str| {
        let gives = |graph: &&Graph| graph.outputs.iter().any(|output| output.name == name);
        graphs.iter().find(gives).map(|graph| graph.stage)
    };
    let taken = graphs.iter().flat_map(|graph| graph.inputs.iter().map(move |input| (graph.stage, input)));
    let from_others = taken.filter(|(stage, input)| is_value(&input.name) && stage_of(&input.name) != Some(*stage));
    let mut bytes = 0;
    for (stage, input) in from_others {
        if seen.insert((stage, &input.name)) {
            bytes += input.shape.bytes() as u64;
        }
    }
    bytes
}

/// The share of a step that stages wait for each other, if all layers took equally long.
pub fn bubble(stages: usize, microbatches: usize, schedule: PipelineSchedule) -> f64 {
    let levels = 0..2 * stages - 1;
    let piece = |level: usize| PieceShape {
        stage: if level < stages { level } else { 2 * stages - 2 - level },
        level,
        after: level.checked_sub(1).into_iter().collect(),
    };
    order(&vec![levels.map(piece).collect(); microbatches], stages, schedule).bubble
}

/// What an input of a recorded graph is given.
pub(super) enum Argument {
    State,
    Feed(Buffers),
    /// Declared for compiling only.
    Abstract,
}

/// A recorded graph with its data.
pub(super) struct Microbatch {
    pub parts: Parts,
    pub arguments: HashMap<String, Argument>,
}

/// Values that pieces of a microbatch hand on, by name and the stage they are at, with the number of pieces that still take each.
type Values = HashMap<(String, usize), (Buffers, usize)>;

/// Starts everything on the devices, in the order of the schedule. Returns what the last microbatch fetched.
pub(super) fn run(session: &mut Session, microbatches: Vec<Microbatch>) -> Result<(BTreeMap<String, Buffers>, HostTime)> {
    let mut time = HostTime::default();
    let shapes: Vec<Vec<PieceShape>> =
        microbatches.iter().map(|microbatch| microbatch.parts.iter().map(|part| part.shape.clone()).collect()).collect();
    let order = order(&shapes, session.mesh.stage, session.schedule);
    let mut values: Vec<Values> = microbatches.iter().map(|_| Values::new()).collect();
    let mut fetched: BTreeMap<String, BTreeMap<usize, Vec<Buffer>>> = BTreeMap::new();
    let last = microbatches.len() - 1;
    for task in order.tasks {
        let microbatch = &microbatches[task.microbatch];
        let part = &microbatch.parts[task.piece];
        let stage = part.shape.stage;
        let own = &mut values[task.microbatch];
        if session.places(stage).next().is_none() {
            // Another process runs it; what it sends comes here all the same.
            let begun = Instant::now();
            for (name, _) in &part.sends {
                hand_on(session, (name, stage), part, microbatch, (Vec::new(), &mut *own))?;
            }
            time.execute += begun.elapsed();
            continue;
        }
        let compiled = compiled(session, part, &mut time)?;
        let begun = Instant::now();
        let outputs = execute(session, &compiled, stage, microbatch, own)?;
        for name in compiled.inputs.iter().map(|(name, _)| name).filter(|name| is_value(name)) {
            let key = (name.clone(), stage);
            if let Some((_, left)) = own.get_mut(&key) {
                *left -= 1;
                if *left == 0 {
                    own.remove(&key);
                }
            }
        }
        for (name, buffers) in compiled.outputs.iter().zip(outputs) {
            if is_value(name) {
                hand_on(session, (name, stage), part, microbatch, (buffers, &mut *own))?;
            } else if let Some(held) = session.state.get_mut(name) {
                held.insert(stage, buffers.into());
            } else if task.microbatch == last {
                fetched.entry(name.clone()).or_default().insert(stage, buffers);
            }
        }
        time.execute += begun.elapsed();
    }
    let joined = |by_stage: BTreeMap<usize, Vec<Buffer>>| by_stage.into_values().flatten().collect();
    Ok((fetched.into_iter().map(|(name, by_stage)| (name, joined(by_stage))).collect(), time))
}

fn compiled(session: &mut Session, part: &Part, time: &mut HostTime) -> Result<Arc<CompiledGraph>> {
    if let Some(known) = part.compiled.get() {
        return Ok(known.clone());
    }
    let (asked, hits_before) = (Instant::now(), session.cache.stats().hits);
    let compiled = session.cache.get(&part.graph)?;
    match session.cache.stats().hits > hits_before {
        true => time.trace += asked.elapsed(),
        false => time.compile += asked.elapsed(),
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
    let is_divided = compiled.inputs.iter().any(|(name, _)| name == PLACE_INPUT);
    let places = is_divided.then(|| session.tensor_places()).transpose()?;
    let mut arguments: Vec<Vec<&Buffer>> = vec![Vec::with_capacity(compiled.inputs.len()); count];
    for (name, _) in &compiled.inputs {
        let no_state = || Error::NoState { name: name.clone() };
        let buffers: &[Buffer] = match microbatch.arguments.get(name) {
            Some(Argument::State) => session.state.get(name).and_then(|held| held.get(&stage)).ok_or_else(no_state)?,
            Some(Argument::Feed(buffers)) => &buffers[first..first + count],
            Some(Argument::Abstract) => return Err(Error::AbstractFeed { name: name.clone() }),
            None if name == PLACE_INPUT => &places.as_ref().ok_or_else(no_state)?[first..first + count],
            None => &values.get(&(name.clone(), stage)).ok_or_else(no_state)?.0,
        };
        arguments.iter_mut().zip(buffers).for_each(|(list, buffer)| list.push(buffer));
    }
    for step in session.running.iter_mut().flat_map(|running| running[stage].drain(..)) {
        step.wait()?;
    }
    let execution = compiled.executable.run(&arguments, RunOptions::default())?;
    drop(arguments);
    if let Some(running) = &mut session.running {
        running[stage] = execution.done;
    }
    let mut outputs: Vec<_> = execution.outputs.into_iter().map(Vec::into_iter).collect();
    Ok(compiled.outputs.iter().map(|_| outputs.iter_mut().filter_map(Iterator::next).collect()).collect())
}

/// Keeps a value for the pieces that take it, copied to their stages.
fn hand_on(
    session: &mut Session,
    (name, stage): (&str, usize),
    part: &Part,
    microbatch: &Microbatch,
    (buffers, values): (Vec<Buffer>, &mut Values),
) -> Result<()> {
    let takers = |at: usize| {
        let takes = |part: &&Part| part.shape.stage == at && part.graph.inputs.iter().any(|input| input.name == name);
        microbatch.parts.iter().filter(takes).count()
    };
    let to = part.sends.iter().find(|(sent, _)| sent == name).map_or(&[][..], |(_, stages)| stages);
    for &other in to {
        let copies: Vec<Buffer> = match session.are_together(stage, other) {
            true => {
                let devices = session.places(other).map(|(device, _)| device);
                buffers.iter().zip(devices).map(|(buffer, device)| Ok(buffer.copy_to(device)?)).collect::<Result<_>>()?
            }
            false => {
                let output = part.graph.outputs.iter().position(|output| output.name == name).expect("a value of this part");
                transfer(session, (stage, other), part.graph.output_shape(output), &buffers)?
            }
        };
        if !copies.is_empty() {
            values.insert((name.to_string(), other), (copies.into(), takers(other)));
        }
    }
    let own = takers(stage);
    if own > 0 && !buffers.is_empty() {
        values.insert((name.to_string(), stage), (buffers.into(), own));
    }
    Ok(())
}

/// Sends a value between processes: a graph on the devices of both stages, in which each pair of replicas puts together what both have
/// (an all-gather, which every device's collectives know; Neuron's libraries send no other way) and the receiver's is not used.
fn transfer(session: &mut Session, (from, to): (usize, usize), shape: &Shape, buffers: &[Buffer]) -> Result<Vec<Buffer>> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (session.places(from).collect(), session.places(to).collect());
    if senders.is_empty() && receivers.is_empty() {
        return Ok(Vec::new());
    }
    let graph = transfer_graph(session.mesh, (from, to), shape)?;
    let compiled = session.cache.get(&graph)?;
    if !receivers.is_empty() && !session.fillers.contains_key(&(to, shape.clone())) {
        let zeros = vec![0; shape.bytes()];
        let filler = session.upload_at(to, shape, |_| &zeros)?;
        session.fillers.insert((to, shape.clone()), filler);
    }
    let filler = session.fillers.get(&(to, shape.clone()));
    let sent = senders.iter().zip(buffers).map(|((device, _), buffer)| (*device, buffer));
    let filled =
        receivers.iter().zip(filler.into_iter().flat_map(|filler| filler.iter())).map(|((device, _), buffer)| (*device, buffer));
    let given: HashMap<usize, &Buffer> = sent.chain(filled).collect();
    let arguments: Vec<Vec<&Buffer>> = compiled.executable.devices().iter().map(|device| vec![given[device]]).collect();
    for stage in [from, to] {
        for step in session.running.iter_mut().flat_map(|running| running[stage].drain(..)) {
            step.wait()?;
        }
    }
    let execution = compiled.executable.run(&arguments, RunOptions::default())?;
    if let Some(running) = &mut session.running {
        // One of the two is enough: whichever goes on here waits for it.
        running[if receivers.is_empty() { from } else { to }] = execution.done;
    }
    let is_receiver = |device: &usize| receivers.iter().any(|(own, _)| own == device);
    let outputs = compiled.executable.devices().iter().zip(execution.outputs);
    Ok(outputs.filter(|(device, _)| is_receiver(device)).flat_map(|(_, outputs)| outputs).collect())
}

fn transfer_graph(mesh: Mesh, (from, to): (usize, usize), shape: &Shape) -> Result<Graph> {
    let replicas = mesh.replicas() as u32;
    let pairs: Vec<Vec<u32>> = (0..replicas).map(|replica| vec![replica, replicas + replica]).collect();
    let trace = Trace::new();
    let value = trace.input("sent", shape.clone(), InputRole::Feed);
    let row = [&[1], value.dims()].concat();
    let both = value.reshape(&row)?.all_gather(&pairs, 0)?;
    trace.output("received", &both.slice_dim(0, 0, 1)?.reshape(value.dims())?);
    let graph = trace.cut(&format!("transfer.stage{from}.stage{to}.{shape}"))?;
    Ok(Graph { stage: (mesh.stage * (1 + from) + to) as u32, ..graph })
}
