//! Every module that a run can hand to Neuron's compiler is one that it is known to take.

use crate::neuron::{BERT, Bench, GPT2};
use crate::support::{objective_of, small_config};
use std::fs;
use std::sync::Arc;
use xtrain::cache::{CacheSettings, emit};
use xtrain::data::HostLabels;
use xtrain::parallel::Mesh;
use xtrain::runtime::{Library, conformance, hlo};
use xtrain::trainer::ahead::{Ahead, RunShapes};
use xtrain::trainer::device;
use xtrain::trainer::evaluate::Metrics;
use xtrain::trainer::feed::BatchShape;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{TrainStep, placements};
use xtrain_graphs::optim::{ADAMW, OptimizerKind, SGD, Schedule};
use xtrain_graphs::{Checkpointing, Graph, NeuronChip, Precision, Target, Tensor};
use xtrain_models::{Config, HeadKind, MaskedToken, Model, Objective, Predictions};

/// What an evaluation records besides the loss, as tasks have it: of words the number that is
/// right, of a sequence classifier its logits.
struct Recorded(HeadKind);

impl Metrics for Recorded {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        let logits = &predictions.logits;
        Ok(Some(match self.0 {
            HeadKind::SequenceClassification { .. } => {
                logits.reshape(&[logits.shape().elements()])?
            }
            _ => predictions.correct()?.reshape(&[1])?,
        }))
    }

    fn add(&mut self, _outputs: &[f32], _labels: &HostLabels, _examples: usize) {}

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        Vec::new()
    }
}

/// A small model of each family, with dropout everywhere.
fn families() -> Vec<(&'static str, Config, HeadKind)> {
    let small = |model_type: &&'static str| {
        let head = match xtrain_models::is_encoder(model_type) {
            Some(true) => HeadKind::MaskedLm,
            _ => HeadKind::CausalLm,
        };
        (*model_type, small_config(model_type), head)
    };
    xtrain_models::MODEL_TYPES.iter().map(small).collect()
}

/// A mesh, whether its moments are sharded and its tokens divided, and what is computed twice.
type Plan = (Mesh, bool, bool, Checkpointing);

/// What replicas exchange does not depend on the products' precision but for fp16's search for overflows.
fn plans(precision: Precision) -> Vec<Plan> {
    let on = |data, shard, tensor| Mesh {
        data,
        shard,
        tensor,
        ..Mesh::single()
    };
    let mut plans = vec![
        (on(1, 1, 1), false, false, Checkpointing::Off),
        (on(1, 1, 2), false, false, Checkpointing::Attention),
        (on(1, 1, 2), false, true, Checkpointing::Off),
    ];
    if precision != Precision::Bf16 {
        plans.extend([
            (on(2, 1, 1), true, false, Checkpointing::Off),
            (on(8, 1, 1), false, false, Checkpointing::Off),
            (on(1, 2, 1), false, false, Checkpointing::Full),
            (
                Mesh {
                    stage: 2,
                    ..Mesh::single()
                },
                false,
                false,
                Checkpointing::Off,
            ),
        ]);
    }
    plans
}

/// A training to record: what is trained for what, how, and on which batches.
struct Training<'a> {
    model: &'a dyn Model,
    task: HeadKind,
    objective: &'a Arc<dyn Objective>,
    precision: Precision,
    kind: OptimizerKind,
    shapes: RunShapes,
}

/// The graphs of a training on every mesh.
fn recorded(training: &Training<'_>) -> Vec<Graph> {
    let Training {
        model,
        task,
        objective,
        precision,
        kind,
        shapes,
    } = training;
    let schedule = Schedule::constant(1e-3);
    let mut graphs = Vec::new();
    for (mesh, moments_in_parts, sequence_parallel, checkpointing) in plans(*precision) {
        let replicas = mesh.replicas();
        let mut session = device::open_cpu(mesh, CacheSettings::in_memory()).unwrap();
        session.set_eval_precision(*precision);
        session.set_stands_in(true);
        let settings = OptimizerSettings::constant(*kind, 1e-3);
        let optimizer = settings.build();
        let placements = placements(*model, &*optimizer, mesh, moments_in_parts).unwrap();
        session.set_placements(placements);
        session.set_sequence_parallel(sequence_parallel);
        let train_step = TrainStep::new(*model, Arc::clone(objective), settings, schedule, 1)
            .with_precision(*precision);
        let train_step = train_step.with_checkpointing(checkpointing);
        let recorded = Ahead {
            session: &mut session,
            step: &train_step,
            shapes,
            metrics: Some(&Recorded(*task)),
        }
        .graphs()
        .unwrap();
        if mesh.stage > 1 {
            assert!(recorded.len() > 6, "{}", recorded.len());
            graphs.extend(recorded);
            continue;
        }
        let names: Vec<&str> = recorded.iter().map(|graph| graph.name.as_str()).collect();
        let check = if replicas == 1 {
            &[][..]
        } else {
            &["check_replicas"]
        };
        let expected = if shapes.accumulation == 1 {
            &["train"][..]
        } else {
            &["accumulate", "update"]
        };
        assert_eq!(names[1..], [check, expected, &["eval"]].concat());
        graphs.extend(recorded);
    }
    graphs
}

/// Emits a graph for a chip; gives back how many instructions that are.
fn assert_known(library: &Library, graph: &Graph, chip: NeuronChip, place: &str) -> usize {
    let target = Target::Neuron(chip);
    let module = emit(library, graph, target).unwrap();
    let report = conformance::check(&module, target).unwrap();
    assert!(report.instructions > 0, "{place}");
    if let Some(first) = report.violations.first() {
        panic!(
            "{place}: {} of {} such as {first}",
            report.violations.len(),
            report.instructions
        );
    }
    let aliases = hlo::read(&module)
        .unwrap()
        .input_output_alias
        .map(|a| a.entries)
        .unwrap_or_default();
    assert_eq!(aliases.len(), graph.aliases().count(), "{place}");
    assert!(
        aliases
            .iter()
            .all(|alias| alias.kind() == hlo::AliasKind::MustAlias),
        "{place}"
    );
    report.instructions
}

/// Every model, task, precision, kind of parallelism, chip and graph: no instruction that is
/// emitted breaks a rule, and donated state is promised.
#[test]
fn everything_that_is_emitted_is_known_to_compile() {
    let library = Library::open().unwrap();
    let (mut modules, mut instructions) = (0, 0);
    for (family, config, own) in families() {
        for task in [own, HeadKind::SequenceClassification { labels: 3 }] {
            let model = match xtrain_models::build(config.clone(), task) {
                Err(error) if task != own && error.to_string().contains("is not for") => continue,
                built => built.unwrap(),
            };
            // With room for 8 labels of 32, and for all.
            let few = Arc::new(MaskedToken {
                share: Some(0.05),
                ..Default::default()
            });
            let all = objective_of(task, 0.0);
            let objectives = match task {
                HeadKind::MaskedLm => vec![few as Arc<dyn Objective>, all],
                _ => vec![all],
            };
            let batch = |objective: &dyn Objective| {
                let mut shape = BatchShape::of(objective, 2, 16);
                if task != HeadKind::CausalLm {
                    shape = shape.with_attention_mask();
                }
                if own == HeadKind::MaskedLm {
                    shape = shape.with_token_type_ids();
                }
                shape
            };
            for (precision, kind, accumulation, objective) in
                [Precision::F32, Precision::Bf16, Precision::Fp16]
                    .into_iter()
                    .flat_map(|precision| [(precision, ADAMW), (precision, SGD)])
                    .flat_map(|(precision, kind)| [(precision, kind, 1), (precision, kind, 2)])
                    .flat_map(|(precision, kind, n)| {
                        objectives
                            .iter()
                            .map(move |objective| (precision, kind, n, objective))
                    })
            {
                // Two optimizers of one precision do not differ in models, nor two accumulations in
                // optimizers; and neither accumulation nor the scale of fp16's loss looks into a
                // model.
                if kind == SGD
                    && (precision == Precision::Bf16 || accumulation == 2 || family != "gpt2")
                    || (precision == Precision::Fp16 || accumulation == 2)
                        && !["gpt2", "bert", "llama"].contains(&family)
                {
                    continue;
                }
                let training = Training {
                    model: &*model,
                    task,
                    objective,
                    precision,
                    kind,
                    shapes: RunShapes {
                        train: vec![batch(&**objective)],
                        eval: vec![batch(&**objective)],
                        accumulation,
                        of_reference: false,
                    },
                };
                // Chips differ in 8-bit floats and 64-bit integers, which no precision of these has.
                let plain = precision == Precision::F32 && kind == ADAMW && accumulation == 1;
                let second = plain.then_some(NeuronChip::Trn2);
                for graph in recorded(&training) {
                    for chip in [NeuronChip::Trn1].into_iter().chain(second) {
                        let name = &graph.name;
                        let place = format!("{family} {task:?} {precision} {kind:?} {name} {chip}");
                        instructions += assert_known(library, &graph, chip, &place);
                        modules += 1;
                    }
                }
            }
        }
    }
    println!("{modules} modules, {instructions} instructions");
    assert!(modules > 600, "{modules}");
}

/// What is lowered for XLA's own CPU is not all known to neuronx-cc, or the check above would see
/// nothing.
#[test]
fn the_cpus_modules_do_break_rules() {
    let library = Library::open().unwrap();
    let found = families().into_iter().find(|(name, ..)| *name == "bert");
    let (_, config, task) = found.unwrap();
    let model = xtrain_models::build(config, task).unwrap();
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    session.set_stands_in(true);
    let schedule = Schedule::constant(1e-3);
    let train_step = TrainStep::new(
        &*model,
        objective_of(model.head_kind(), 0.0),
        OptimizerSettings::constant(ADAMW, 1e-3),
        schedule,
        1,
    );
    let batch = BatchShape::of(train_step.objective(), 2, 16)
        .with_attention_mask()
        .with_token_type_ids();
    let shapes = RunShapes {
        train: vec![batch],
        eval: Vec::new(),
        accumulation: 1,
        of_reference: false,
    };
    let graphs = Ahead {
        session: &mut session,
        step: &train_step,
        shapes: &shapes,
        metrics: None,
    }
    .graphs()
    .unwrap();
    let module = emit(library, &graphs[1], Target::CPU).unwrap();
    let report = conformance::check(&module, Target::Neuron(NeuronChip::Trn1)).unwrap();
    let told: Vec<String> = report
        .violations
        .iter()
        .map(|violation| violation.to_string())
        .collect();
    for part in [
        "erf f32[32,32] in bert.encoder.layer.1",
        "shift-left u32",
        "opt-barrier",
        "clamp indices to 0 to 39",
    ] {
        assert!(
            told.iter().any(|told| told.contains(part)),
            "`{part}` is missing in {told:#?}"
        );
    }
}

#[test]
fn check_and_export_need_no_device() {
    let bench = Bench::new();
    let mlm = format!("mlm {BERT} --max_seq_length 16");
    let cls = format!("cls {BERT} --labels no,yes --max_seq_length 16");
    for (task, graphs) in [(GPT2, 4), (mlm.as_str(), 4), (cls.as_str(), 4)] {
        for chip in ["trn1", "trn2"] {
            let line = format!(
                "compile {task} --device neuron --check --target {chip} --export modules --do_train --do_eval --bf16 \
                 --gradient_accumulation_steps 2"
            );
            let run = bench
                .command(&line)
                .env("NEURON_LIBRARY_PATH", "/nowhere.so")
                .run();
            run.succeeded();
            let fine = format!("instructions, all known to compile for neuron ({chip})");
            assert_eq!(
                run.stdout
                    .lines()
                    .filter(|line| line.contains(&fine))
                    .count(),
                graphs,
                "{}",
                run.stdout
            );
            let readme = fs::read_to_string(bench.path("modules/README.txt")).unwrap();
            for graph in ["ceiling", "accumulate", "update", "eval"] {
                let module =
                    fs::read(bench.path(&format!("modules/{graph}/hlo_module.pb"))).unwrap();
                let read = hlo::read(&module).unwrap();
                assert!(
                    hlo::entry(&read).is_some_and(|entry| !entry.instructions.is_empty()),
                    "{graph}"
                );
                let text =
                    fs::read_to_string(bench.path(&format!("modules/{graph}/stablehlo.mlir")))
                        .unwrap();
                assert!(
                    text.contains("stablehlo.") && text.contains("func.func"),
                    "{graph}"
                );
                let donated = if graph == "update" || graph == "accumulate" {
                    text.contains("kind = \"must_alias\"")
                } else {
                    true
                };
                assert!(donated, "{graph} has lost its donations");
                let command = format!(
                    "neuronx-cc compile {graph}/hlo_module.pb --framework XLA --target={chip} --model-type=transformer"
                );
                assert!(
                    readme.contains(&command) && run.stdout.contains(&command),
                    "{readme}"
                );
            }
        }
    }
    let run = bench.run(&format!("compile {GPT2} --export modules"));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
}
