//! The graphs of a run, compiled without data: what `--dry_run` reports on, and what
//! `xtrain compile` makes.

use super::devices::matmul_peak;
use super::error::Result;
use super::evaluate::{self, Metrics, RowNumbers, reference_variant};
use super::feed::{BatchShape, abstract_batch, graph_name};
use super::session::replicas;
use super::session::{Recording, Session};
use super::step::{Phase, TrainStep};
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_cache::CompiledGraph;
use xtrain_graphs::{Graph, Shape, UnfusedDropout};

/// The shapes that decide a run's graphs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunShapes {
    /// The kinds of batch that it trains on, none if it does not.
    pub train: Vec<BatchShape>,
    /// The kinds of batch that it evaluates on.
    pub eval: Vec<BatchShape>,
    /// Microbatches of an optimizer step.
    pub accumulation: usize,
    /// What the objective's reference says of the batches is to be computed.
    pub of_reference: bool,
}

impl RunShapes {
    /// Those of training steps alone.
    pub fn of_training(&self) -> RunShapes {
        RunShapes {
            eval: Vec::new(),
            of_reference: false,
            ..self.clone()
        }
    }
}

/// What a name stands for that is recorded as one: a graph, or those of a pipeline's stages.
pub type Step = (String, Vec<Graph>);

/// All that a run records, in the order of use.
pub type Steps = Vec<Step>;

/// What a run's graphs are recorded from, before there are data and weights.
pub struct Ahead<'a, 'm> {
    /// Records the graphs; its state is abstract.
    pub session: &'a mut Session,
    /// The model, the loss and the optimizer.
    pub step: &'a TrainStep<'m>,
    /// The batches that the run has.
    pub shapes: &'a RunShapes,
    /// The task's, as an evaluation begins with them; `None` where nothing is evaluated.
    pub metrics: Option<&'a dyn Metrics>,
}

impl Ahead<'_, '_> {
    /// Compiles every graph that the run will use, `jobs` at a time; `ready` hears of each as it is
    /// done. In the order of use.
    ///
    /// # Errors
    /// A graph cannot be recorded or compiled.
    pub fn compile(
        &mut self,
        jobs: usize,
        ready: &mut dyn FnMut(&CompiledGraph),
    ) -> Result<Vec<Arc<CompiledGraph>>> {
        let mut graphs = self.graphs()?;
        graphs.retain(|graph| self.session.runs(graph));
        Ok(self.session.cache_mut().get_all(&graphs, jobs, ready)?)
    }

    /// Starts making the graphs in the background, while weights and data are read. Gives what of the first
    /// training graph its dropout keeps from being fused.
    ///
    /// # Errors
    /// A graph cannot be recorded.
    pub fn start(&mut self) -> Result<Option<UnfusedDropout>> {
        let mut graphs = self.graphs()?;
        let target = self.session.cache().target();
        let unfused = |graph: &Graph| UnfusedDropout::of(graph, target);
        let unfused = graphs.iter().find_map(unfused);
        graphs.retain(|graph| self.session.runs(graph));
        self.session.cache_mut().make_ahead(graphs);
        Ok(unfused)
    }

    /// Every graph of the run, in the order of use, in the run's precision.
    ///
    /// # Errors
    /// A graph cannot be recorded.
    pub fn graphs(&mut self) -> Result<Vec<Graph>> {
        let steps = self.steps()?.into_iter();
        Ok(steps.flat_map(|(_, graphs)| graphs).collect())
    }

    /// The same, by what is recorded as one.
    ///
    /// # Errors
    /// A graph cannot be recorded.
    pub fn steps(&mut self) -> Result<Steps> {
        let Ahead {
            session,
            step,
            shapes,
            metrics,
        } = self;
        let accumulates = shapes.accumulation > 1;
        let parameters = step
            .parameters()
            .iter()
            .flat_map(|p| p.arrays(step.storage().of(p)))
            .map(|array| (array.name, array.shape));
        let extra = step
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
        let precisions = [step.precision(), session.eval_precision()];
        let mut add = |recording: &Recording, name: &str| -> Result<()> {
            steps.push((name.to_string(), recording.cut(name)?));
            Ok(())
        };
        let target = session.cache().target();
        let measures = session.stands_in() || matmul_peak::is_unknown(target, step.precision());
        if !shapes.train.is_empty() && measures {
            let mut recording = session.begin_abstract(state.clone());
            matmul_peak::record_abstract(&mut recording, step.precision())?;
            add(&recording, matmul_peak::GRAPH_NAME)?;
        }
        if !shapes.train.is_empty() && replicas::have_equals(session.mesh(), session.placements()) {
            let mut recording = session.begin_abstract(state.clone());
            replicas::record(&mut recording, step.parameters())?;
            add(&recording, replicas::GRAPH_NAME)?;
        }
        let reference = step.objective().reference();
        if let Some(reference) = reference.filter(|_| shapes.of_reference) {
            // Computed before training, in the precision of what is compared with it.
            for (shapes, precision) in [&shapes.train, &shapes.eval].into_iter().zip(precisions) {
                session.set_eval_precision(precision);
                for shape in shapes {
                    let shape = shape.fed_to(&*reference);
                    let metrics = RowNumbers::new(reference.rows());
                    let mut recording = session.begin_abstract(state.clone());
                    let inputs = abstract_batch(&mut recording, &shape);
                    let (model, variant) = (step.model(), shape.variant.as_deref());
                    evaluate::record(&mut recording, model, &*reference, &inputs, &metrics)?;
                    let name = graph_name(evaluate::GRAPH_NAME, Some(&reference_variant(variant)));
                    add(&recording, &name)?;
                }
            }
            session.set_eval_precision(precisions[1]);
        }
        for (shape, phase) in shapes
            .train
            .iter()
            .flat_map(|shape| phases.iter().map(move |phase| (shape, *phase)))
        {
            let mut recording = session.begin_abstract(state.clone());
            let inputs = abstract_batch(&mut recording, shape);
            step.record(&mut recording, &inputs, phase)?;
            add(
                &recording,
                &graph_name(phase.graph_name(), shape.variant.as_deref()),
            )?;
        }
        let evaluated =
            metrics.map(|metrics| shapes.eval.iter().map(move |shape| (shape, metrics)));
        for (shape, metrics) in evaluated.into_iter().flatten() {
            let mut recording = session.begin_abstract(state.clone());
            let inputs = abstract_batch(&mut recording, shape);
            let (model, objective) = (step.model(), step.objective());
            evaluate::record(&mut recording, model, objective, &inputs, metrics)?;
            add(
                &recording,
                &graph_name(evaluate::GRAPH_NAME, shape.variant.as_deref()),
            )?;
        }
        Ok(steps)
    }
}
