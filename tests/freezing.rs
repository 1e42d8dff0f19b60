//! Parameters that are not trained: what a step's graph has of them, and runs that freeze some.

use crate::parallel::{OPTIMIZER, assert_same_run};
use crate::processes::{self, Launched};
use crate::support::objective_of;
use crate::tasks::Bench;
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::device;
use xtrain::trainer::feed::{BatchShape, abstract_batch};
use xtrain::trainer::settings::{OptimizerSettings, WeightStorage};
use xtrain::trainer::step::{Phase, TrainStep, placements};
use xtrain_graphs::op::Op;
use xtrain_graphs::optim::{ADAMW, MASTER_WEIGHT, Schedule};
use xtrain_graphs::{Graph, InputRole, Precision, Shape};
use xtrain_models::{HeadKind, Model, build, freeze};

pub(crate) fn small_gpt2() -> Box<dyn Model> {
    let config = crate::support::small_config("gpt2");
    build(config, HeadKind::CausalLm).unwrap()
}

/// The graphs of a step's microbatches on this mesh: one that adds up and one that updates, for each
/// stage.
pub(crate) fn graphs(model: &dyn Model, mesh: Mesh, shards_moments: bool) -> Vec<Graph> {
    let settings = OptimizerSettings {
        storage: WeightStorage::Bf16WithMasters,
        ..OptimizerSettings::constant(ADAMW, 0.1)
    };
    let schedule = Schedule::constant(0.1);
    let mut session = device::open_cpu(mesh, CacheSettings::in_memory()).unwrap();
    session.set_storage(settings.storage);
    let placed = placements(model, &*settings.build(), mesh, shards_moments).unwrap();
    session.set_placements(placed);
    let step = TrainStep::new(
        model,
        objective_of(model.head_kind(), 0.0),
        settings,
        schedule,
        0,
    )
    .with_precision(Precision::Bf16);
    let parameters = step.parameters().iter();
    let parameters = parameters
        .flat_map(|p| p.arrays(step.storage().weights()))
        .map(|array| (array.name, array.shape));
    let extra = step.extra_state(true).into_iter();
    let state: HashMap<String, Shape> = parameters
        .chain(extra.map(|state| (state.name, state.shape)))
        .collect();
    let state = Arc::new(state);
    let shape = BatchShape::of(step.objective(), 2, 8);
    let mut all = Vec::new();
    for phase in [Phase::Accumulate, Phase::Update { accumulated: true }] {
        let mut recording = session.begin_abstract(state.clone());
        let inputs = abstract_batch(&mut recording, &shape);
        step.record(&mut recording, &inputs, phase).unwrap();
        all.extend(recording.cut(phase.graph_name()).unwrap());
    }
    all
}

/// Names of the state that graphs read, and of what they assign. In a pipeline that may be another
/// graph's.
pub(crate) fn state(graphs: &[Graph]) -> [BTreeSet<&str>; 2] {
    let inputs = graphs.iter().flat_map(|graph| &graph.inputs);
    let read: BTreeSet<&str> = inputs
        .filter(|input| input.role == InputRole::State)
        .map(|input| input.name.as_str())
        .collect();
    let outputs = graphs.iter().flat_map(|graph| &graph.outputs);
    let outputs = outputs.map(|output| output.name.as_str());
    let assigned = outputs.filter(|name| read.contains(name)).collect();
    [read, assigned]
}

pub(crate) fn count(graphs: &[Graph], is_counted: impl Fn(&Op) -> bool) -> usize {
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
            for kept in ["exp_avg", "exp_avg_sq", MASTER_WEIGHT, "accumulated"] {
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

const GPT2: &str = "clm --tokenizer_name byte_bpe --train_file articles.txt --block_size 32 --gradient_accumulation_steps 2 \
                    --disable_tqdm --logging_steps 1 --max_steps 6";

/// A model in the folder `start` to go on from, its weights of this type.
pub(crate) fn saved_model(bench: &Bench, dtype: &str) {
    let run = bench.run(&format!(
        "train {GPT2} --model_type gpt2 --config_overrides n_layer=2,n_head=8,n_embd=32,n_positions=32,attn_pdrop=0.1 \
         --torch_dtype {dtype} --learning_rate 1e-2 --save_strategy no --output_dir start"
    ));
    run.succeeded();
}

fn finetune(dir: &str, rows: usize, extra: &str) -> String {
    format!(
        "train {GPT2} --model_name_or_path start {OPTIMIZER} --weight_decay 0.1 --per_device_train_batch_size {rows} \
         --output_dir {dir} {extra}"
    )
}

/// The tensors of a saved file, by name.
fn tensors(bench: &Bench, path: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = bench.bytes(path);
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.iter();
    tensors
        .map(|(name, view)| (name.to_string(), view.data().to_vec()))
        .collect()
}

/// Those of `names` and no others differ from the model to go on from.
fn assert_only_these_moved(bench: &Bench, dir: &str, is_trained: fn(&str) -> bool) {
    let start = tensors(bench, "start/model.safetensors");
    let end = tensors(bench, &format!("{dir}/model.safetensors"));
    assert_eq!(start.len(), end.len());
    for (name, bytes) in &end {
        assert_eq!(start[name] != *bytes, is_trained(name), "{dir}: {name}");
    }
}

const FREEZE: &str = r"--freeze lm_head wpe h\.0\.";

fn is_trained(name: &str) -> bool {
    !["wte", "wpe", "h.0."]
        .iter()
        .any(|part| name.contains(part))
}

/// The first of two stages has nothing to train; the tied table is frozen by the head's name.
#[test]
fn meshes_freeze_as_one_device_does() {
    freezes_on(
        &[
            (4, "--data_parallel 2 --shard_optimizer_state"),
            (4, "--shard_parallel 2 --gradient_checkpointing attention"),
            (8, "--tensor_parallel 2 --sequence_parallel"),
            (8, "--pipeline_parallel 2"),
        ],
        &["--shard_parallel 2"],
    );
}

#[test]
#[ignore = "slow: further meshes"]
fn further_meshes_freeze_as_one_device_does() {
    freezes_on(
        &[
            (8, "--gradient_checkpointing"),
            (4, "--data_parallel 2"),
            (
                4,
                "--pipeline_parallel 2 --pipeline_schedule simple --data_parallel 2 --shard_optimizer_state",
            ),
            (
                2,
                "--data_parallel 2 --shard_parallel 2 --tensor_parallel 2",
            ),
        ],
        &["--pipeline_parallel 2"],
    );
}

/// Rows and flags of meshes in one process, and flags of two processes.
fn freezes_on(meshes: &[(usize, &str)], of_processes: &[&str]) {
    let bench = Bench::new();
    saved_model(&bench, "float32");
    let train = |dir: &str, rows: usize, extra: &str| {
        let extra = format!("{FREEZE} --save_strategy no {extra}");
        let run = bench.run(&finetune(dir, rows, &extra));
        run.succeeded();
        assert_only_these_moved(&bench, dir, is_trained);
    };
    train("one", 8, "");
    for (index, (rows, mesh)) in meshes.iter().enumerate() {
        let dir = format!("mesh-{index}");
        train(&dir, *rows, mesh);
        assert_same_run(&bench, &dir, "one");
    }
    train("scaled", 8, "--fp16 --pipeline_parallel 2");
    if processes::has_gloo() {
        for (index, mesh) in of_processes.iter().enumerate() {
            let rows = if mesh.starts_with("--pipeline") { 8 } else { 4 };
            let dir = format!("processes-{index}");
            let extra = format!("{FREEZE} --save_strategy no {mesh}");
            let line = finetune(&dir, rows, &extra);
            let line = format!("launch --nproc_per_node 2 -- {line}");
            Launched::of(&bench, &line).finish().succeeded();
            assert_only_these_moved(&bench, &dir, is_trained);
            assert_same_run(&bench, &dir, "one");
        }
    }
}

/// With master copies, recomputation and dropout: the state of what is frozen is in no checkpoint, and
/// what resumes ends with the same bits. Another choice is refused, the same in other words is not.
#[test]
fn a_frozen_run_resumes_exactly_and_with_the_same_choice_alone() {
    let bench = Bench::new();
    saved_model(&bench, "bfloat16");
    let only = r"--train_only ln_ h\.1\.mlp";
    let extra =
        "--torch_dtype bfloat16 --gradient_checkpointing --save_strategy steps --save_steps 3";
    let train = |dir: &str, more: &str| bench.run(&finetune(dir, 4, &format!("{extra} {more}")));
    train("whole", only).succeeded();
    assert_only_these_moved(&bench, "whole", |name| {
        name.contains("ln_") || name.contains("h.1.mlp")
    });
    let state = tensors(&bench, "whole/checkpoint-3/optimizer.safetensors");
    assert_eq!(
        state.len(),
        3 * 14,
        "moments and a master copy of 14: {:?}",
        state.keys()
    );
    assert!(
        state
            .keys()
            .all(|name| name.contains("ln_") || name.contains("h.1.mlp"))
    );

    std::fs::create_dir(bench.path("resumed")).unwrap();
    let copy = |name: &str| {
        let (from, to) = (
            bench.path("whole/checkpoint-3"),
            bench.path("resumed/checkpoint-3"),
        );
        std::fs::create_dir_all(&to).unwrap();
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    };
    let entries = std::fs::read_dir(bench.path("whole/checkpoint-3")).unwrap();
    entries.for_each(|entry| copy(entry.unwrap().file_name().to_str().unwrap()));
    for (other, now) in [
        (r"--freeze wte", r"--freeze wte"),
        ("", "neither --freeze nor --train_only"),
        (r"--train_only ln_ h\.1\.", r"--train_only ln_ h\.1\."),
    ] {
        let run = train("resumed", &format!("{other} --resume_from_checkpoint"));
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let both = format!(r"it was saved with --train_only ln_ h\.1\.mlp, and this run has {now}");
        assert!(run.stderr.contains(&both), "{}", run.stderr);
    }
    let same = r"--train_only ln_ h.1.mlp.c_fc h.1.mlp.c_proj --resume_from_checkpoint";
    train("resumed", same).succeeded();
    for name in ["model.safetensors", "checkpoint-6/optimizer.safetensors"] {
        let [whole, resumed] =
            ["whole", "resumed"].map(|dir| bench.bytes(&format!("{dir}/{name}")));
        assert!(whole == resumed, "{name} differs");
    }
}

/// Plans show what is trained and what it saves; mistakes are reported together with all others.
#[test]
fn plans_and_mistakes_say_what_is_trained() {
    let bench = Bench::new();
    saved_model(&bench, "float32");
    let plan = |extra: &str| bench.run(&finetune("plan", 8, &format!("--dry_run {extra}")));
    let json = |extra: &str| -> serde_json::Value {
        let run = plan(&format!("--json {extra}"));
        run.succeeded();
        serde_json::from_str(&run.stdout).unwrap()
    };
    let (all, some) = (json(""), json(FREEZE));
    let number = |plan: &serde_json::Value, key: &str| plan[key].as_u64().unwrap();
    assert_eq!(
        number(&all, "trained_parameters"),
        number(&all, "parameters")
    );
    let trained = number(&some, "trained_parameters");
    let frozen = number(&all, "parameters") - trained;
    let arguments = |plan: &serde_json::Value| {
        let graphs = plan["graphs"].as_array().unwrap();
        let update = graphs
            .iter()
            .find(|graph| graph["name"] == "update")
            .unwrap();
        number(update, "argument_bytes")
    };
    let saved = arguments(&all) - arguments(&some);
    // Two moments and the sum of gradients; small tensors are laid out with some padding.
    assert!(
        saved.abs_diff(3 * 4 * frozen) < 4096,
        "{saved} bytes for {frozen}"
    );
    let run = plan(FREEZE);
    let line = |text: &str, sign: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.contains(sign))
            .unwrap_or_default()
            .to_string()
    };
    let shown = line(&run.stdout, "trained ");
    assert!(shown.ends_with(r"(--freeze lm_head wpe h\.0\.)"), "{shown}");

    let run = bench.run(&finetune("out", 8, &format!("{FREEZE} --save_strategy no")));
    let header = line(&run.stderr, "parameters");
    assert!(
        header.contains("parameters (12.8k of them trained)"),
        "{header}"
    );

    let run = plan(r"--freeze wte h\.0\.atn.c_attn --num_train_epochs 0 --max_steps 0");
    assert_eq!(run.code, Some(2));
    for part in [
        r"--freeze h\.0\.atn.c_attn: no parameter of the model has such a name",
        "the nearest names are transformer.h.0.attn.c_attn.weight",
        "--num_train_epochs is 0",
    ] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
    for (flags, part) in [
        (
            "--freeze .",
            "--freeze . leaves none of the model's 28 parameters to train",
        ),
        (
            "--freeze wte --train_only wpe",
            "--freeze and --train_only each say all",
        ),
        (
            "--train_only wte h(.0",
            "--train_only: `h(.0` is no regular expression: unclosed group",
        ),
    ] {
        let run = plan(flags);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
}
