//! The graphs of a run, compiled without data: what `--dry_run` reports on, and what
//! `xtrain compile` makes.

use super::devices::matmul_peak;
use super::error::Result;
use super::evaluate;
use super::feed::{BatchShape, abstract_batch, graph_name};
use super::session::parameters::parameter_shape;
use super::session::replicas;
use super::session::{Recording, Session};
use super::step::{Phase, TrainStep};
use crate::cache::CompiledGraph;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::{Graph, Shape};
use xtrain_models::Model;

/// The shapes that decide a run's graphs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunShapes {
    /// The kinds of batch that it trains on, none if it does not.
    pub train: Vec<BatchShape>,
    /// The kinds of batch that it evaluates on.
    pub eval: Vec<BatchShape>,
    pub accumulation: usize,
}

/// Compiles every graph that the run will use, `jobs` at a time; `ready` hears of each as it is
/// done. In the order of use.
pub fn compile_all(
    session: &mut Session,
    model: &dyn Model,
    train_step: &TrainStep,
    shapes: &RunShapes,
    jobs: usize,
    ready: &mut dyn FnMut(&CompiledGraph),
) -> Result<Vec<Arc<CompiledGraph>>> {
    let mut graphs = record_all(session, model, train_step, shapes)?;
    graphs.retain(|graph| session.runs(graph));
    Ok(session.cache_mut().get_all(&graphs, jobs, ready)?)
}

/// Starts making the graphs of the run's first step in the background, while weights and data are
/// read.
pub fn start_first_step(
    session: &mut Session,
    model: &dyn Model,
    train_step: &TrainStep,
    shapes: &RunShapes,
) -> Result<()> {
    let mut graphs = record_all(
        session,
        model,
        train_step,
        &RunShapes {
            eval: Vec::new(),
            ..shapes.clone()
        },
    )?;
    graphs.retain(|graph| session.runs(graph));
    session.cache_mut().make_ahead(graphs);
    Ok(())
}

/// Every graph of the run, in the order of use, in the run's precision.
pub fn record_all(
    session: &mut Session,
    model: &dyn Model,
    train_step: &TrainStep,
    shapes: &RunShapes,
) -> Result<Vec<Graph>> {
    Ok(record_steps(session, model, train_step, shapes)?
        .into_iter()
        .flat_map(|(_, graphs)| graphs)
        .collect())
}

/// The same, by what is recorded as one: a name, and a graph or those of a pipeline's stages.
pub fn record_steps(
    session: &mut Session,
    model: &dyn Model,
    train_step: &TrainStep,
    shapes: &RunShapes,
) -> Result<Vec<(String, Vec<Graph>)>> {
    let accumulates = shapes.accumulation > 1;
    let parameters = train_step
        .parameters()
        .iter()
        .map(|p| (p.name.clone(), parameter_shape(p)));
    let extra = train_step
        .extra_state(accumulates)
        .into_iter()
        .map(|state| (state.name, state.shape));
    let state: HashMap<String, Shape> = parameters.chain(extra).collect();
    let state = Arc::new(state);
    let mut phases = vec![Phase::Update {
        accumulated: accumulates,
    }];
    if accumulates {
        phases.insert(0, Phase::Accumulate);
    }
    let mut steps = Vec::new();
    let mut add = |recording: &Recording, name: &str| -> Result<()> {
        steps.push((name.to_string(), recording.cut(name)?));
        Ok(())
    };
    if !shapes.train.is_empty() {
        let mut recording = session.begin_abstract(state.clone());
        matmul_peak::record_abstract(&mut recording, train_step.precision())?;
        add(&recording, matmul_peak::GRAPH_NAME)?;
    }
    if !shapes.train.is_empty() && replicas::have_equals(session.mesh(), session.placements()) {
        let mut recording = session.begin_abstract(state.clone());
        replicas::record(&mut recording, train_step.parameters())?;
        add(&recording, replicas::GRAPH_NAME)?;
    }
    for (shape, phase) in shapes
        .train
        .iter()
        .flat_map(|shape| phases.iter().map(move |phase| (shape, *phase)))
    {
        let mut recording = session.begin_abstract(state.clone());
        let inputs = abstract_batch(&mut recording, shape);
        train_step.record(&mut recording, &inputs, phase, 0, 0)?;
        add(
            &recording,
            &graph_name(phase.graph_name(), shape.variant.as_deref()),
        )?;
    }
    for shape in &shapes.eval {
        let mut recording = session.begin_abstract(state.clone());
        let inputs = abstract_batch(&mut recording, shape);
        evaluate::record(&mut recording, model, train_step.parameters(), &inputs)?;
        add(
            &recording,
            &graph_name(evaluate::GRAPH_NAME, shape.variant.as_deref()),
        )?;
    }
    Ok(steps)
}
