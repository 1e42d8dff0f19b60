//! The graphs of a run, compiled without data: what `--dry_run` reports on, and what `xtrain compile` makes.

use super::error::Result;
use super::parameters::parameter_shape;
use super::session::Session;
use super::step::{Phase, Stepper, abstract_batch};
use super::{ceiling, evaluate};
use crate::cache::CompiledGraph;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::{Graph, Shape};
use xtrain_models::Model;

/// The shapes that decide a run's graphs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunShapes {
    pub train_batch: usize,
    pub eval_batch: usize,
    pub block_size: usize,
    pub accumulation: usize,
    pub trains: bool,
    pub evaluates: bool,
}

/// Compiles every graph that the run will use, `jobs` at a time; `ready` hears of each as it is done. In the order of use.
pub fn compile_all(
    session: &mut Session,
    model: &dyn Model,
    stepper: &Stepper,
    shapes: RunShapes,
    jobs: usize,
    ready: &mut dyn FnMut(&CompiledGraph),
) -> Result<Vec<Arc<CompiledGraph>>> {
    let graphs = record_all(session, model, stepper, shapes)?;
    Ok(session.cache_mut().get_all(&graphs, jobs, ready)?)
}

/// Every graph of the run, in the order of use, in the run's precision.
pub fn record_all(session: &mut Session, model: &dyn Model, stepper: &Stepper, shapes: RunShapes) -> Result<Vec<Graph>> {
    let accumulates = shapes.accumulation > 1;
    let parameters = stepper.parameters().iter().map(|p| (p.name.clone(), parameter_shape(p)));
    let extra = stepper.extra_state(accumulates).into_iter().map(|state| (state.name, state.shape));
    let state: HashMap<String, Shape> = parameters.chain(extra).collect();
    let state = Arc::new(state);
    let mut graphs = Vec::new();
    if shapes.trains {
        let mut recording = session.begin_abstract(state.clone());
        ceiling::record_abstract(&mut recording, stepper.precision())?;
        graphs.push(recording.cut(ceiling::GRAPH_NAME)?);
        let accumulate = accumulates.then_some(Phase::Accumulate);
        for phase in accumulate.into_iter().chain([Phase::Update { accumulated: accumulates }]) {
            let mut recording = session.begin_abstract(state.clone());
            let inputs = abstract_batch(&mut recording, shapes.train_batch, shapes.block_size);
            stepper.record(&mut recording, &inputs, phase, 0, 0)?;
            graphs.push(recording.cut(phase.graph_name())?);
        }
    }
    if shapes.evaluates {
        let mut recording = session.begin_abstract(state);
        let inputs = abstract_batch(&mut recording, shapes.eval_batch, shapes.block_size);
        evaluate::record(&mut recording, model, stepper.parameters(), &inputs)?;
        graphs.push(recording.cut(evaluate::GRAPH_NAME)?);
    }
    Ok(graphs)
}
