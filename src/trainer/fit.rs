//! The largest batch that fits into a memory budget, from the compiler's memory statistics alone:
//! nothing is run.

use super::ahead::{Ahead, Step, Steps};
use super::error::{Error, Result};
use super::session::Session;
use super::step::Phase;
use std::collections::BTreeMap;
use xtrain_cache::{AotCache, Memory};
use xtrain_graphs::passes::stages::is_value;
use xtrain_graphs::{Graph, InputRole, Shape, liveness};

/// More examples than this on one device are no batch that anybody trains with.
const LARGEST_BATCH: usize = 1 << 16;

/// What a run holds on a device at most, in bytes, and in which of its graphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub batch: usize,
    /// Of a pipeline.
    pub stage: usize,
    pub peak: u64,
    pub graph: String,
    /// Weights, moments and accumulated gradients: there in every graph, used or not.
    pub state: u64,
    /// The deciding graph's batch and results.
    pub data: u64,
    /// What the deciding graph needs while it runs.
    pub temporaries: u64,
}

impl Footprint {
    /// The largest of the stages'.
    ///
    /// # Panics
    /// If there is none.
    pub fn largest(stages: Vec<Footprint>) -> Self {
        let largest = stages.into_iter().max_by_key(|one| one.peak);
        largest.expect("a run that trains has graphs")
    }
}

/// The footprint of each stage of a run, one where there is no pipeline. Compiles its graphs, unless
/// their statistics are stored: on the session's device, or for the target, if one is
/// given.
///
/// # Errors
/// A graph cannot be recorded or compiled, or the compiler says nothing of its memory.
pub fn footprints(ahead: &mut Ahead, mut absent: Option<&mut AotCache>) -> Result<Vec<Footprint>> {
    let steps = ahead.steps()?;
    footprints_of(&steps, ahead, |session, graph| match &mut absent {
        Some(target) => Ok(target.memory(graph)?),
        None => by_compiler(session, graph),
    })
}

/// What the compiler of the session's device says of a graph.
///
/// # Errors
/// The graph cannot be compiled, or the compiler says nothing of its memory.
pub fn by_compiler(session: &mut Session, graph: &Graph) -> Result<Memory> {
    let memory = session.cache_mut().memory(graph)?;
    memory.ok_or(Error::NoMemoryStatistics)
}

/// The same of graphs that have been recorded (or prepared, for an estimate) already, by whatever
/// knows their memory.
///
/// # Errors
/// What `memory` gives.
pub fn footprints_of(
    steps: &Steps,
    ahead: &mut Ahead,
    mut memory: impl FnMut(&mut Session, &Graph) -> Result<Memory>,
) -> Result<Vec<Footprint>> {
    let mut largest: BTreeMap<u32, Footprint> = BTreeMap::new();
    for (step, graph) in each(steps) {
        let memory = memory(ahead.session, graph)?;
        let one = of_graph(ahead, step, graph, memory);
        match largest.get_mut(&graph.stage) {
            Some(known) if known.peak >= one.peak => {}
            _ => drop(largest.insert(graph.stage, one)),
        }
    }
    Ok(largest.into_values().collect())
}

/// The graphs, each with the step that it is of.
pub fn each(steps: &[Step]) -> impl Iterator<Item = (&Step, &Graph)> {
    steps
        .iter()
        .flat_map(|step| step.1.iter().map(move |graph| (step, graph)))
}

/// An estimate of what a compiler would say of a prepared graph, in a hundredth of the time.
pub fn estimated(prepared: &Graph) -> Memory {
    let bytes = |shape: &Shape| shape.bytes() as i64;
    Memory {
        arguments: prepared
            .inputs
            .iter()
            .map(|input| bytes(&input.shape))
            .sum(),
        outputs: (0..prepared.outputs.len())
            .map(|index| bytes(prepared.output_shape(index)))
            .sum(),
        donated: prepared
            .aliases()
            .map(|(_, input, _)| bytes(&prepared.inputs[input].shape))
            .sum(),
        temporaries: liveness::temporaries(prepared) as i64,
        ..Memory::default()
    }
}

/// Bytes of the microbatches that a stage has under way besides the one that it works on: what
/// their forward pass left for the backward pass. When the last microbatch of a step goes backward,
/// there is no other.
fn waiting((name, graphs): &Step, session: &Session, stage: usize, microbatches: usize) -> u64 {
    if !name.starts_with(Phase::Accumulate.graph_name()) {
        return 0;
    }
    let values = |graph: &Graph| {
        graph
            .inputs
            .iter()
            .filter(|input| is_value(&input.name))
            .map(|input| input.shape.bytes() as u64)
            .sum()
    };
    graphs
        .iter()
        .filter(|graph| graph.stage as usize == stage)
        .map(values)
        .max()
        .unwrap_or(0)
        * (session.most_under_way(stage, microbatches) - 1) as u64
}

/// What a device holds while it runs one graph of a run.
pub fn of_graph(ahead: &Ahead, step: &Step, graph: &Graph, memory: Memory) -> Footprint {
    let Ahead {
        session,
        step: of_run,
        shapes,
        ..
    } = ahead;
    let (stage, accumulation) = (graph.stage as usize, shapes.accumulation);
    let state = of_run.state_bytes(accumulation > 1, session.placements(), stage);
    let used = graph
        .inputs
        .iter()
        .filter(|input| input.role == InputRole::State);
    let used: i64 = used.map(|input| input.shape.bytes() as i64).sum();
    let data = (memory.arguments - used + memory.outputs - memory.donated).max(0) as u64;
    let data = data + waiting(step, session, stage, accumulation);
    let temporaries = memory.temporaries.max(0) as u64;
    Footprint {
        batch: shapes.train.first().map_or(0, |shape| shape.rows),
        stage,
        peak: state + data + temporaries,
        graph: graph.name.clone(),
        state,
        data,
        temporaries,
    }
}

/// The largest batch whose footprint is at most `budget`, with it; the error holds the footprint of
/// a single example, if that is too large. Memory grows almost linearly with the batch, so a line
/// through two known points leads to a few compiles' distance; what is returned fits, and one more
/// example does not.
pub fn largest_batch(
    budget: u64,
    mut footprint: impl FnMut(usize) -> Result<Footprint>,
) -> Result<std::result::Result<Footprint, Footprint>> {
    let mut fits = footprint(1)?;
    if fits.peak > budget {
        return Ok(Err(fits));
    }
    let mut too_large: Option<Footprint> = None;
    let mut before: Option<Footprint> = None;
    // Memory grows in steps here and there, on which a line creeps: strides grow as long as they
    // fit, and after two tries between known ends it is their middle that is tried.
    let (mut stride, mut between) = (1, 0);
    while fits.batch < LARGEST_BATCH
        && too_large
            .as_ref()
            .is_none_or(|over| over.batch > fits.batch + 1)
    {
        let next = match &too_large {
            Some(over) if between > 2 => fits.batch.midpoint(over.batch),
            Some(over) => guess(budget, &fits, Some(over)).clamp(fits.batch + 1, over.batch - 1),
            None => guess(budget, &fits, before.as_ref()).max(fits.batch + stride),
        };
        between += usize::from(too_large.is_some());
        let tried = footprint(next.min(LARGEST_BATCH))?;
        if tried.peak <= budget {
            before = Some(std::mem::replace(&mut fits, tried));
            stride *= 2;
        } else {
            too_large = Some(tried);
        }
    }
    Ok(Ok(fits))
}

/// Where the line through two points meets the budget; without a second point, or on a flat line, a
/// step that doubles.
fn guess(budget: u64, fits: &Footprint, other: Option<&Footprint>) -> usize {
    let (batch, peak) = (fits.batch, fits.peak);
    let doubled = (batch * 2).max(8);
    let Some(other) = other else { return doubled };
    let slope = (peak as f64 - other.peak as f64) / (batch as f64 - other.batch as f64);
    if slope <= 0.0 {
        return doubled;
    }
    // A flat start must not leap to where no compiler can follow.
    batch
        .saturating_add(((budget - peak) as f64 / slope) as usize)
        .min(batch.saturating_mul(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of `fixed` bytes that needs `each` bytes an example, and a little more in steps, as
    /// allocators do.
    fn search(budget: u64, fixed: u64, each: u64, step: u64) -> (Option<usize>, usize) {
        let mut calls = 0;
        let peak = |batch: usize| {
            let exact = fixed + each * batch as u64;
            exact.div_ceil(step) * step
        };
        let found = largest_batch(budget, |batch| {
            calls += 1;
            Ok(Footprint {
                batch,
                stage: 0,
                peak: peak(batch),
                graph: "train".into(),
                state: fixed,
                data: 0,
                temporaries: 0,
            })
        });
        let found = found.unwrap().ok().map(|f| f.batch);
        if let Some(batch) = found {
            assert!(peak(batch) <= budget && (batch == LARGEST_BATCH || peak(batch + 1) > budget));
        }
        (found, calls)
    }

    #[test]
    fn the_largest_is_found_in_few_compiles() {
        for (budget, fixed, each, step) in [
            (1000, 100, 7, 1),
            (1_000_000, 3, 999, 1),
            (5000, 4000, 900, 1),
            (100_000, 10_000, 10, 64),
            (10_000, 0, 3, 70),
        ] {
            let (found, calls) = search(budget, fixed, each, step);
            assert!(found.is_some(), "{budget} {fixed} {each}");
            assert!(
                calls <= 12,
                "{calls} compiles for {budget} {fixed} {each} {step}"
            );
        }
    }

    #[test]
    fn nothing_fits_or_everything() {
        assert_eq!(search(100, 100, 1, 1).0, None);
        assert_eq!(search(1 << 40, 0, 1, 1).0, Some(LARGEST_BATCH));
        assert_eq!(search(103, 100, 1, 1).0, Some(3));
    }
}
