//! The graphs of a run, compiled without data: what `--dry_run` reports on, and what `xtrain compile` makes.

use super::error::Result;
use super::parameters::parameter_shape;
use super::session::{Recording, Session};
use super::step::{Phase, Stepper, abstract_batch};
use super::{ceiling, evaluate};
use crate::cache::CompiledGraph;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::{Graph, Precision, Shape};
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

/// Compiles every graph that the run will use, in the order of use; `ready` hears of each as it is done.
pub fn compile_all(
    session: &mut Session,
    model: &dyn Model,
    stepper: &Stepper,
    shapes: RunShapes,
    ready: &mut dyn FnMut(&CompiledGraph),
) -> Result<Vec<Arc<CompiledGraph>>> {
    let mut compiled: Vec<Arc<CompiledGraph>> = Vec::new();
    for_each_graph(session, model, stepper, shapes, &mut |recording, name| {
        let graph = recording.compile(name)?;
        ready(&graph);
        compiled.push(graph);
        Ok(())
    })?;
    Ok(compiled)
}

/// Every graph that the run will use with its precision, in the order of use, compiled for nothing.
pub fn record_all(
    session: &mut Session,
    model: &dyn Model,
    stepper: &Stepper,
    shapes: RunShapes,
) -> Result<Vec<(Graph, Precision)>> {
    let mut graphs = Vec::new();
    for_each_graph(session, model, stepper, shapes, &mut |recording, name| {
        graphs.push((recording.cut(name)?, recording.precision()));
        Ok(())
    })?;
    Ok(graphs)
}

fn for_each_graph(
    session: &mut Session,
    model: &dyn Model,
    stepper: &Stepper,
    shapes: RunShapes,
    act: &mut dyn FnMut(Recording, &str) -> Result<()>,
) -> Result<()> {
    let accumulates = shapes.accumulation > 1;
    let parameters = stepper.parameters().iter().map(|p| (p.name.clone(), parameter_shape(p)));
    let extra = stepper.extra_state(accumulates).into_iter().map(|state| (state.name, state.shape));
    let state: Arc<HashMap<String, Shape>> = Arc::new(parameters.chain(extra).collect());
    let mut phases = Vec::new();
    if shapes.trains {
        let mut recording = session.begin_abstract(state.clone());
        ceiling::record_abstract(&mut recording, stepper.precision())?;
        act(recording, ceiling::GRAPH_NAME)?;
        if accumulates {
            phases.push(Phase::Accumulate);
        }
        phases.push(Phase::Update { accumulated: accumulates });
    }
    for phase in phases {
        let mut recording = session.begin_abstract(state.clone());
        let inputs = abstract_batch(&mut recording, shapes.train_batch, shapes.block_size);
        stepper.record(&mut recording, &inputs, phase, 0, 0)?;
        act(recording, phase.graph_name())?;
    }
    if shapes.evaluates {
        let mut recording = session.begin_abstract(state);
        let inputs = abstract_batch(&mut recording, shapes.eval_batch, shapes.block_size);
        evaluate::record(&mut recording, model, stepper.parameters(), &inputs)?;
        act(recording, evaluate::GRAPH_NAME)?;
    }
    Ok(())
}
