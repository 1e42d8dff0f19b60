//! Parameters that are not trained: what a step's graph has of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::device;
use xtrain::trainer::feed::{BatchShape, LabelShape, abstract_batch};
use xtrain::trainer::parameters::parameter_shape;
use xtrain::trainer::settings::{OptimizerSettings, WeightStorage};
use xtrain::trainer::step::{Phase, TrainStep, placements};
use xtrain_graphs::op::Op;
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_graphs::{Graph, InputRole, Precision, Shape};
use xtrain_models::{HeadKind, Model, build, freeze};

fn small_gpt2() -> Box<dyn Model> {
    let config = crate::support::small_config("gpt2");
    build(config, HeadKind::CausalLm).unwrap()
}

/// The graphs of a step's microbatches on this mesh: one that adds up and one that updates, for each
/// stage.
fn graphs(model: &dyn Model, mesh: Mesh, shards_moments: bool) -> Vec<Graph> {
    let settings = OptimizerSettings {
        storage: WeightStorage::Bf16WithMasters,
        ..OptimizerSettings::constant(ADAMW, 0.1)
    };
    let schedule = Schedule {
        kind: ScheduleKind::Constant,
        peak: 0.1,
        warmup: 0,
        total: 1,
    };
    let mut session = device::open_cpu(mesh, CacheSettings::in_memory()).unwrap();
    session.set_storage(settings.storage);
    let placed = placements(model, &*settings.build(), mesh, shards_moments).unwrap();
    session.set_placements(placed);
    let step = TrainStep::new(model, settings, schedule, 0).with_precision(Precision::Bf16);
    let parameters = step.parameters().iter();
    let parameters =
        parameters.map(|p| (p.name.clone(), parameter_shape(p, step.storage().weights())));
    let extra = step.extra_state(true).into_iter();
    let state: HashMap<String, Shape> = parameters
        .chain(extra.map(|state| (state.name, state.shape)))
        .collect();
    let state = Arc::new(state);
    let shape = BatchShape {
        rows: 2,
        tokens: 8,
        labels: LabelShape::Tokens,
        attention_mask: false,
        token_type_ids: false,
        variant: None,
    };
    let mut all = Vec::new();
    for phase in [Phase::Accumulate, Phase::Update { accumulated: true }] {
        let mut recording = session.begin_abstract(state.clone());
        let inputs = abstract_batch(&mut recording, &shape);
        step.record(&mut recording, &inputs, phase, 0, 0).unwrap();
        all.extend(recording.cut(phase.graph_name()).unwrap());
    }
    all
}

/// Names of the state that graphs read, and of what they assign.
fn state(graphs: &[Graph]) -> [BTreeSet<&str>; 2] {
    let inputs = graphs.iter().flat_map(|graph| &graph.inputs);
    let read = inputs
        .filter(|input| input.role == InputRole::State)
        .map(|input| input.name.as_str());
    let assigned = graphs
        .iter()
        .flat_map(|graph| graph.aliases().map(|(name, ..)| name));
    [read.collect(), assigned.collect()]
}

fn count(graphs: &[Graph], is_counted: impl Fn(&Op) -> bool) -> usize {
    let nodes = graphs.iter().flat_map(|graph| &graph.nodes);
    nodes.filter(|node| is_counted(&node.op)).count()
}

/// A frozen parameter is read and nothing more: it is no result, so that it is not donated either, it
/// has no moments, no sum of gradients and no master copy, and no matmul computes its gradient.
#[test]
fn a_step_reads_what_is_frozen_and_has_nothing_else_of_it() {
    let is_frozen = |name: &str| name.contains("wte") || name.contains("h.0.");
    for (mesh, shards_moments) in [
        (Mesh::single(), false),
        (Mesh::data_parallel(2), true),
        (
            Mesh {
                shard: 2,
                tensor: 2,
                ..Mesh::single()
            },
            false,
        ),
        (
            Mesh {
                stage: 2,
                ..Mesh::single()
            },
            false,
        ),
    ] {
        let (whole, model) = (small_gpt2(), small_gpt2());
        freeze(&*model, |parameter| is_frozen(&parameter.name)).unwrap();
        let (all, some) = (
            graphs(&*whole, mesh, shards_moments),
            graphs(&*model, mesh, shards_moments),
        );
        let [read, assigned] = state(&some);
        let of_frozen = |names: &BTreeSet<&str>| -> BTreeSet<String> {
            let frozen = names.iter().filter(|name| is_frozen(name));
            frozen.map(|name| name.to_string()).collect()
        };
        let parameters = model.parameters();
        let frozen = parameters.iter().filter(|parameter| !parameter.trained);
        // A stage's copy of a parameter has a name of its own.
        let original = |name: &str| parameters.iter().find(|p| name.starts_with(&p.name));
        assert!(of_frozen(&read).iter().all(|name| original(name).is_some()));
        assert!(frozen.clone().all(|p| read.contains(p.name.as_str())));
        assert_eq!(of_frozen(&assigned), BTreeSet::new(), "{mesh:?}");
        let [read, assigned] = state(&all);
        assert_eq!(
            of_frozen(&read).len(),
            of_frozen(&assigned).len(),
            "{mesh:?}"
        );
        for parameter in parameters.iter().filter(|parameter| parameter.trained) {
            for kept in ["exp_avg", "exp_avg_sq", "master_weight", "accumulated"] {
                let name = format!("{kept}.{}", parameter.name);
                assert!(state(&some)[1].contains(name.as_str()), "{mesh:?}: {name}");
            }
        }
        // Of the four matrices of a layer and the head's, in each of the two graphs.
        let is_matmul = |op: &Op| matches!(op, Op::Dot { .. });
        let saved = count(&all, is_matmul) - count(&some, is_matmul);
        assert!(saved >= 2 * 5, "{mesh:?}: {saved} fewer matmuls");
    }
}
