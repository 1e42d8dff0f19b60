//! AWS Neuron without one of its chips: every module that a run can hand to its compiler is one
//! that the compiler is known to take, and the whole path (find, set up, lower, compile, store,
//! run, save, resume, fail) goes through the same calls with our CPU plugin in the place of AWS's.

use crate::support::{
    Command, Run, copy_tokenizer, data_text, json_lines, objective_of, small_config, xtrain,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
use xtrain_graphs::optim::{ADAMW, SGD, Schedule, ScheduleKind};
use xtrain_graphs::{Checkpointing, NeuronChip, Precision, Target, Tensor};
use xtrain_models::{Config, HeadKind, MaskedToken, Objective, Predictions};

/// The CPU plugin's file.
pub fn stand_in() -> PathBuf {
    Library::open().unwrap().path().canonicalize().unwrap()
}

/// Builds the wrapper that misbehaves.
pub fn misbehaving(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in/misbehaving_plugin.rs");
    let library = dir.join("libmisbehaving.so");
    let built = std::process::Command::new("rustc")
        .env_remove("RUSTC_BOOTSTRAP")
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "-C",
            "panic=abort",
            "-A",
            "warnings",
            "-o",
        ])
        .arg(&library)
        .arg(source)
        .status()
        .unwrap();
    assert!(built.success(), "the wrapper does not build");
    library
}

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

/// Every model, task, precision, kind of parallelism, chip and graph: no instruction that is
/// emitted breaks a rule, and donated state is promised.
#[test]
fn everything_that_is_emitted_is_known_to_compile() {
    let library = Library::open().unwrap();
    let schedule = Schedule {
        kind: ScheduleKind::Constant,
        peak: 1e-3,
        warmup: 0,
        total: 1,
    };
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
                let shapes = RunShapes {
                    train: vec![batch(&**objective)],
                    eval: vec![batch(&**objective)],
                    accumulation,
                    of_reference: false,
                };
                // What replicas exchange does not depend on the products' precision but for fp16's
                // search for overflows.
                let on = |data, shard, tensor| Mesh {
                    data,
                    shard,
                    tensor,
                    ..Mesh::single()
                };
                // Mesh, moments in parts, tokens divided, what is computed twice.
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
                let mut graphs = Vec::new();
                for (mesh, moments_in_parts, sequence_parallel, checkpointing) in plans {
                    let replicas = mesh.replicas();
                    let mut session = device::open_cpu(mesh, CacheSettings::in_memory()).unwrap();
                    session.set_eval_precision(precision);
                    let settings = OptimizerSettings::constant(kind, 1e-3);
                    let optimizer = settings.build();
                    let placements =
                        placements(&*model, &*optimizer, mesh, moments_in_parts).unwrap();
                    session.set_placements(placements);
                    session.set_sequence_parallel(sequence_parallel);
                    let train_step =
                        TrainStep::new(&*model, objective.clone(), settings, schedule, 1)
                            .with_precision(precision);
                    let train_step = train_step.with_checkpointing(checkpointing);
                    let recorded = Ahead {
                        session: &mut session,
                        step: &train_step,
                        shapes: &shapes,
                        metrics: Some(&Recorded(task)),
                    }
                    .graphs()
                    .unwrap();
                    if mesh.stage > 1 {
                        assert!(recorded.len() > 6, "{}", recorded.len());
                        graphs.extend(recorded);
                        continue;
                    }
                    let names: Vec<&str> =
                        recorded.iter().map(|graph| graph.name.as_str()).collect();
                    let check = if replicas == 1 {
                        &[][..]
                    } else {
                        &["check_replicas"]
                    };
                    let expected = if accumulation == 1 {
                        &["train"][..]
                    } else {
                        &["accumulate", "update"]
                    };
                    assert_eq!(names[1..], [check, expected, &["eval"]].concat());
                    graphs.extend(recorded);
                }
                for (graph, chip) in graphs
                    .iter()
                    .flat_map(|graph| [(graph, NeuronChip::Trn1), (graph, NeuronChip::Trn2)])
                {
                    let target = Target::Neuron(chip);
                    let module = emit(library, graph, target).unwrap();
                    let report = conformance::check(&module, target).unwrap();
                    let place = format!(
                        "{family} {task:?} {precision} {kind:?} {} {chip}",
                        graph.name
                    );
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
                    (modules, instructions) = (modules + 1, instructions + report.instructions);
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
    let schedule = Schedule {
        kind: ScheduleKind::Constant,
        peak: 1e-3,
        warmup: 0,
        total: 1,
    };
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

/// Pieces of the shared data, small tokenizers, the stand-in.
struct Bench {
    dir: tempfile::TempDir,
    plugin: PathBuf,
}

const GPT2: &str = "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                    --train_file train.txt --validation_file valid.txt --block_size 16";
const BERT: &str = "--model_type bert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=2,\
                    intermediate_size=64,max_position_embeddings=64 --tokenizer_name wordpiece";
const RUN: &str = "--disable_tqdm --per_device_train_batch_size 4 --learning_rate 1e-3 --max_steps 6 --logging_steps 1 --do_train \
                   --do_eval";

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["wordpiece", "byte_bpe"] {
            copy_tokenizer(name, &dir.path().join(name));
        }
        let text = data_text("play.txt");
        fs::write(dir.path().join("train.txt"), &text[..30_000]).unwrap();
        fs::write(dir.path().join("valid.txt"), &text[30_000..33_000]).unwrap();
        let rows = (0..64).map(|i| {
            if i % 3 == 0 {
                "a good day,yes\n"
            } else {
                "a long bad night,no\n"
            }
        });
        fs::write(
            dir.path().join("train.csv"),
            format!("text,label\n{}", rows.collect::<String>()),
        )
        .unwrap();
        Bench {
            dir,
            plugin: stand_in(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = xtrain();
        command
            .dir(self.dir.path())
            .args(line.split_whitespace())
            .args(["--cache_dir", "cache"])
            .env("NEURON_LIBRARY_PATH", &self.plugin)
            .env("XTRAIN_CUDA_PLUGIN", &self.plugin);
        command
    }

    fn run(&self, line: &str) -> Run {
        self.command(line).run()
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn losses(&self, output: &str) -> Vec<f64> {
        json_lines(&self.path(output).join("log.jsonl"))
            .iter()
            .filter_map(|r| r["loss"].as_f64())
            .collect()
    }
}

/// Train, evaluate, save; stop and resume to the same bits; start again without compiling anything.
fn whole_path(device: &str, task: &str, model: &str) {
    let bench = Bench::new();
    let line = |output: &str| {
        format!("--device {device} train {model} {RUN} --save_steps 3 --output_dir {output}")
    };
    let first = bench.run(&line("whole"));
    first.succeeded();
    assert!(
        first.stderr.contains("drives `cpu`") && first.stderr.contains("rehearsal"),
        "{}",
        first.stderr
    );
    assert_eq!(
        first.stderr.contains("takes the graphs as StableHLO"),
        device == "neuron",
        "{}",
        first.stderr
    );
    assert!(!first.stderr.contains("warning"), "{}", first.stderr);
    assert_eq!(bench.losses("whole").len(), 6);

    let second = bench.run(&format!("{} --fail_on_recompile", line("stopped")));
    second.succeeded();
    assert!(second.stderr.contains("compiled 0,"), "{}", second.stderr);
    fs::remove_dir_all(bench.path("stopped/checkpoint-6")).unwrap();
    bench
        .run(&format!(
            "{} --fail_on_recompile --resume_from_checkpoint",
            line("stopped")
        ))
        .succeeded();
    assert!(
        bench.bytes("whole/model.safetensors") == bench.bytes("stopped/model.safetensors"),
        "final weights differ"
    );
    assert_eq!(bench.losses("whole"), bench.losses("stopped"));

    let data = model
        .split_whitespace()
        .skip_while(|word| *word != "--train_file")
        .collect::<Vec<_>>()
        .join(" ");
    let eval = bench.run(&format!(
        "--device {device} eval {task} --disable_tqdm --json --model_name_or_path whole {data}"
    ));
    eval.succeeded();
    let again: serde_json::Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    let during: serde_json::Value =
        serde_json::from_slice(&bench.bytes("whole/eval_results.json")).unwrap();
    let (again, during) = (
        again["eval_loss"].as_f64().unwrap(),
        during["eval_loss"].as_f64().unwrap(),
    );
    assert!((again - during).abs() < 1e-5, "{again} {during}");
}

#[test]
fn gpt2_goes_the_whole_path_on_neurons_stand_in() {
    whole_path("neuron", "clm", GPT2);
}

#[test]
fn bert_goes_the_whole_path_on_neurons_stand_in() {
    whole_path(
        "neuron",
        "mlm",
        &format!(
            "mlm {BERT} --train_file train.txt --validation_file valid.txt --max_seq_length 16"
        ),
    );
}

#[test]
fn a_classifier_goes_the_whole_path_on_neurons_stand_in() {
    whole_path(
        "neuron",
        "cls",
        &format!(
            "cls {BERT} --train_file train.csv --max_seq_length 16 --validation_split_percentage 20"
        ),
    );
}

#[test]
fn gpt2_goes_the_whole_path_on_cudas_stand_in() {
    whole_path("cuda", "clm", GPT2);
}

#[test]
fn bert_goes_the_whole_path_on_cudas_stand_in() {
    whole_path(
        "cuda",
        "mlm",
        &format!(
            "mlm {BERT} --train_file train.txt --validation_file valid.txt --max_seq_length 16"
        ),
    );
}

#[test]
fn a_classifier_goes_the_whole_path_on_cudas_stand_in() {
    whole_path(
        "cuda",
        "cls",
        &format!(
            "cls {BERT} --train_file train.csv --max_seq_length 16 --validation_split_percentage 20"
        ),
    );
}

const NO_DROPOUT_GPT2: &str = "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32,attn_pdrop=0,\
    resid_pdrop=0,embd_pdrop=0 --tokenizer_name byte_bpe --train_file train.txt --validation_file valid.txt --block_size 16";
const NO_DROPOUT_BERT: &str = "mlm --model_type bert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=2,\
    intermediate_size=64,max_position_embeddings=64,hidden_dropout_prob=0,attention_probs_dropout_prob=0 --tokenizer_name wordpiece \
    --train_file train.txt --validation_file valid.txt --max_seq_length 16";

/// Losses as the CPU's at the same global batch, on 1, 2 and 8 cores; replicas that stay equal; a
/// run that goes on bit for bit. Without dropout, since the two draw different masks; `whole_path`
/// has it.
fn replicas_path(model: &str) {
    let bench = Bench::new();
    let line = |device: &str, replicas: usize, output: &str| {
        format!(
            "--device {device} train {model} --disable_tqdm --data_parallel {replicas} --per_device_train_batch_size {rows} \
             --per_device_eval_batch_size {rows} --learning_rate 1e-3 --adam_epsilon 1e-4 --max_steps 6 --logging_steps 1 --do_train \
             --do_eval --gradient_accumulation_steps 2 --save_steps 3 --output_dir {output}",
            rows = 8 / replicas
        )
    };
    bench.run(&line("cpu", 1, "cpu")).succeeded();
    let eval = |output: &str| -> f64 {
        let results: serde_json::Value =
            serde_json::from_slice(&bench.bytes(&format!("{output}/eval_results.json"))).unwrap();
        results["eval_loss"].as_f64().unwrap()
    };
    for replicas in [1, 2, 8] {
        let (whole, stopped) = (format!("whole{replicas}"), format!("stopped{replicas}"));
        let first = bench.run(&format!(
            "{} --replica_check_steps 2",
            line("neuron", replicas, &whole)
        ));
        first.succeeded();
        assert!(
            first.stderr.contains("rehearsal")
                && first.stderr.contains("takes the graphs as StableHLO"),
            "{}",
            first.stderr
        );
        let pairs: Vec<(f64, f64)> = bench
            .losses("cpu")
            .into_iter()
            .zip(bench.losses(&whole))
            .collect();
        assert_eq!(pairs.len(), 6);
        for (step, (cpu, neuron)) in pairs.into_iter().enumerate() {
            assert!(
                (cpu - neuron).abs() < 1e-4 * cpu,
                "step {step} on {replicas} cores: {neuron}, on the CPU {cpu}"
            );
        }
        assert!(
            (eval("cpu") - eval(&whole)).abs() < 1e-3,
            "{replicas} cores: {} {}",
            eval("cpu"),
            eval(&whole)
        );

        bench
            .run(&format!(
                "{} --fail_on_recompile",
                line("neuron", replicas, &stopped)
            ))
            .succeeded();
        fs::remove_dir_all(bench.path(&format!("{stopped}/checkpoint-6"))).unwrap();
        let resumed = bench.run(&format!(
            "{} --fail_on_recompile --resume_from_checkpoint",
            line("neuron", replicas, &stopped)
        ));
        resumed.succeeded();
        assert!(resumed.stderr.contains("compiled 0,"), "{}", resumed.stderr);
        let [one, other] =
            [&whole, &stopped].map(|output| bench.bytes(&format!("{output}/model.safetensors")));
        assert!(
            one == other,
            "{replicas} cores: final weights differ after a resume"
        );
    }
    let three = bench.run(&line("neuron", 3, "never"));
    assert_eq!(three.code, Some(1), "{}", three.stderr);
    assert!(
        three.stderr.contains("--data_parallel=3") && three.stderr.contains("1, 2, 8, 16"),
        "{}",
        three.stderr
    );
    let run = bench
        .command(&line("neuron", 8, "never"))
        .env("NEURON_RT_NUM_CORES", "2")
        .run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr
            .contains("NEURON_RT_NUM_CORES=2 leaves 2 to a run that needs 8"),
        "{}",
        run.stderr
    );
}

#[test]
fn gpt2_trains_on_neurons_replicas_as_on_the_cpu() {
    replicas_path(NO_DROPOUT_GPT2);
}

#[test]
fn bert_trains_on_neurons_replicas_as_on_the_cpu() {
    replicas_path(NO_DROPOUT_BERT);
}

/// Dropout for neuron is drawn by the row's place in the whole batch, so that replicas draw what
/// one core would.
#[test]
fn neurons_dropout_does_not_depend_on_the_number_of_cores() {
    let bench = Bench::new();
    for replicas in [1, 2] {
        let line = format!(
            "--device neuron train {GPT2} --disable_tqdm --max_steps 6 --logging_steps 1 --save_strategy no"
        );
        let rows = 4 / replicas;
        let run = format!(
            "{line} --data_parallel {replicas} --per_device_train_batch_size {rows} --output_dir cores{replicas}"
        );
        bench.run(&run).succeeded();
    }
    let (one, two) = (bench.losses("cores1"), bench.losses("cores2"));
    assert_eq!(one.len(), 6);
    assert!(
        one.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-4 * a),
        "{one:?} {two:?}"
    );
}

/// What a plugin does, and what the user reads; `None` where the run goes on.
#[test]
fn each_misbehaviour_of_a_plugin_ends_in_its_message() {
    let bench = Bench::new();
    let wrapper = misbehaving(bench.dir.path());
    let run = |fault: &str, more: &str| {
        let output = fault.replace(' ', "-");
        let line = format!(
            "--device neuron train {GPT2} {RUN} --compile_cache false --output_dir {output} {more}"
        );
        let mut command = bench.command(&line);
        command
            .env("NEURON_LIBRARY_PATH", &wrapper)
            .env("XTRAIN_TEST_REAL_PLUGIN", &bench.plugin)
            .env("XTRAIN_TEST_FAULT", fault)
            .env("XTRAIN_TEST_COMPILES", bench.path("compiles"))
            .env(
                "XTRAIN_COMPILE_TIMEOUT",
                if fault == "hanging compile" {
                    "2"
                } else {
                    "60"
                },
            )
            .env("XTRAIN_EVENT_TIMEOUT", "3");
        command.run()
    };
    for (fault, parts) in [
        ("none", &["takes the graphs as StableHLO"][..]),
        (
            "no stablehlo",
            &[
                "takes the graphs as HLO; it refused StableHLO",
                "PJRT_Client_Compile failed",
            ],
        ),
        ("unimplemented", &["takes the graphs as StableHLO"]),
    ] {
        let run = run(fault, "");
        run.succeeded();
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "{fault}: `{part}` is missing in: {}",
                run.stderr
            );
        }
    }
    for (fault, parts) in [
        ("null table", &["GetPjrtApi returned null", "unusable"][..]),
        (
            "other major",
            &["PJRT C API 1.", "install another version of the plugin"],
        ),
        (
            "old minor",
            &["PJRT C API 0.30", "install another version of the plugin"],
        ),
        (
            "other struct sizes",
            &["PJRT_Client_Create failed", "creating a client"],
        ),
        (
            "no compile",
            &[
                "does not have the call PJRT_Client_Compile",
                "newer version",
            ],
        ),
        (
            "failing compile",
            &[
                "StableHLO was refused",
                "and so was HLO",
                "PJRT_Client_Compile failed",
            ],
        ),
        (
            "hanging compile",
            &[
                "has not compiled a graph within 2 s",
                "its compiler hangs",
                "XTRAIN_COMPILE_TIMEOUT",
            ],
        ),
        (
            "hanging client",
            &[
                "has not opened its devices within 3 s",
                "XTRAIN_EVENT_TIMEOUT",
            ],
        ),
        (
            "failing execute",
            &["PJRT_LoadedExecutable_Execute failed", "INVALID_ARGUMENT"],
        ),
        ("no outputs", &["PJRT_LoadedExecutable_Execute", "gave no "]),
        ("failing event", &["PJRT_Event_Await failed"]),
        (
            "hanging event",
            &[
                "has not finished",
                "within 3 s",
                "--resume_from_checkpoint",
                "XTRAIN_EVENT_TIMEOUT",
            ],
        ),
    ] {
        let run = run(fault, "");
        assert_eq!(run.code, Some(1), "{fault}: {}", run.stderr);
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "{fault}: `{part}` is missing in: {}",
                run.stderr
            );
        }
        assert!(!run.stderr.contains("panicked"), "{fault}: {}", run.stderr);
    }
    // The compiler of the one device fails once in each form, in the background, and is not asked
    // again for the same graph, nor for the others.
    let compiles = fs::read_to_string(bench.path("compiles")).unwrap();
    assert_eq!(compiles.lines().count(), 2);
}

#[test]
fn a_long_compile_says_how_long_it_took_before() {
    let bench = Bench::new();
    let wrapper = misbehaving(bench.dir.path());
    let run = |batch: usize| {
        let line = format!(
            "--device neuron train {GPT2} --disable_tqdm --max_steps 1 --save_strategy no --per_device_train_batch_size {batch} \
             --output_dir out{batch}"
        );
        let mut command = bench.command(&line);
        command
            .env("NEURON_LIBRARY_PATH", &wrapper)
            .env("XTRAIN_TEST_REAL_PLUGIN", &bench.plugin)
            .env("XTRAIN_TEST_FAULT", "slow compile")
            .env("XTRAIN_COMPILE_NOTICE", "0.3");
        let run = command.run();
        run.succeeded();
        run.stderr
    };
    let first = run(2);
    assert!(
        first.contains("compiling `train` for")
            && first.contains("so far; none like it was compiled here"),
        "{first}"
    );
    let second = run(3);
    let line = second
        .lines()
        .find(|line| line.contains("compiling `train` for"))
        .unwrap_or_else(|| panic!("{second}"));
    assert!(
        line.contains("so far; one like it took") && line.ends_with(" before"),
        "{line}"
    );
}

/// A compiler that only knows its version, on a PATH of its own.
fn fake_compiler(bench: &Bench, version: &str) -> String {
    let folder = bench.path(&format!("compiler-{version}"));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("neuronx-cc");
    fs::write(
        &program,
        format!("#!/bin/sh\necho 'NeuronX Compiler version {version}'\n"),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    )
}

#[test]
fn the_compilers_version_and_flags_decide_about_stored_graphs() {
    let bench = Bench::new();
    let run = |version: &str, flags: &str, output: &str| {
        let line = format!(
            "--device neuron train {GPT2} --disable_tqdm --max_steps 1 --save_strategy no --output_dir {output} {flags}"
        );
        let mut command = bench.command(&line);
        command.env("PATH", fake_compiler(&bench, version));
        let run = command.run();
        run.succeeded();
        run.stderr
    };
    run("2.26.1", "", "a");
    assert!(run("2.26.1", "", "b").contains("compiled 0,"));
    // Why the training step was compiled again.
    let why = |stderr: &str| {
        let line = stderr
            .lines()
            .find(|line| line.starts_with("compiling train "));
        let id = line
            .and_then(|line| line.split_once("cache explain "))
            .unwrap();
        let explained = bench
            .command(&format!("cache explain {}", &id.1[..8]))
            .run();
        explained.succeeded();
        explained.stdout
    };
    let newer = why(&run("2.27.2", "", "c"));
    assert!(
        newer.contains(
            "neuronx-cc: `NeuronX Compiler version 2.27.2` was `NeuronX Compiler version 2.26.1`"
        ),
        "{newer}"
    );
    let faster = why(&run("2.27.2", "--neuron_optlevel 1", "d"));
    assert!(
        faster.contains("--optlevel=1 ") && faster.contains("was `--target=trn1"),
        "{faster}"
    );
    let other = why(&run("2.27.2", "--target trn2", "e"));
    assert!(
        other.contains("--target=trn2") && other.contains("--lnc=2"),
        "{other}"
    );
    // The runtime's, not the compiler's: nothing is compiled again.
    assert!(run("2.27.2", "--neuron_stochastic_rounding", "f").contains("compiled 0,"));
}

#[test]
fn the_plugin_finds_its_environment_set() {
    let bench = Bench::new();
    let wrapper = misbehaving(bench.dir.path());
    let seen = |flags: &str, variables: &[(&str, &str)]| {
        let file = bench.path("environment");
        let mut command = xtrain();
        command
            .args(["--device", "neuron", "doctor"])
            .args(flags.split_whitespace())
            .env("NEURON_LIBRARY_PATH", &wrapper)
            .env("XTRAIN_TEST_REAL_PLUGIN", &bench.plugin)
            .env("XTRAIN_TEST_ENVIRONMENT", &file);
        for (name, value) in variables {
            command.env(name, value);
        }
        let run = command.run();
        (run, fs::read_to_string(file).unwrap_or_default())
    };
    let (_, plain) = seen(
        "--neuron_stochastic_rounding",
        &[("NEURON_CC_FLAGS", "-O1 --enable-saturate-infinity")],
    );
    for line in [
        "NEURON_CC_FLAGS=--target=trn1 --model-type=transformer --optlevel=1 --auto-cast=none --auto-cast-type=bf16 --enable-saturate-infinity",
        "NEURON_INTERNAL_PJRT_C_API_VERSION=0.90",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN=1",
        "NEURON_RT_STOCHASTIC_ROUNDING_SEED=0",
        "NEURON_RT_ROOT_COMM_ID=127.0.0.1:",
    ] {
        assert!(plain.contains(line), "`{line}` is missing in:\n{plain}");
    }
    let (run, trn2) = seen(
        "--target trn2 --neuron_auto_cast matmult --neuron_auto_cast_type tf32 --neuron_model_type generic",
        &[],
    );
    let expected = "NEURON_CC_FLAGS=--target=trn2 --model-type=generic --optlevel=2 --auto-cast=matmult --auto-cast-type=tf32 --lnc=2";
    assert!(
        trn2.contains(expected) && trn2.contains("NEURON_LOGICAL_NC_CONFIG=2"),
        "{trn2}\n{}",
        run.stdout
    );
}

#[test]
fn contradictions_with_the_users_variables_are_refused() {
    let bench = Bench::new();
    let refused = |flags: &str, variable: (&str, &str), parts: &[&str]| {
        let mut command = bench.command(&format!(
            "--device neuron train {GPT2} {RUN} --output_dir never {flags}"
        ));
        let run = command.env(variable.0, variable.1).run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "`{part}` is missing in: {}",
                run.stderr
            );
        }
        assert!(!bench.path("never").exists());
    };
    let generic = ("NEURON_CC_FLAGS", "--model-type=generic");
    refused(
        "--neuron_model_type transformer",
        generic,
        &[
            "NEURON_CC_FLAGS=--model-type=generic",
            "leave one of them out",
        ],
    );
    refused(
        "",
        ("NEURON_EXTRACT_GRAPHS_ONLY", "1"),
        &["makes every result zero", "xtrain compile"],
    );
    refused(
        "",
        ("NEURON_RT_VISIBLE_CORES", "0-2"),
        &["asks for 3 cores", "1, 2, 8, 16"],
    );
    let run = bench.run(&format!(
        "--device cpu train {GPT2} {RUN} --output_dir never --neuron_optlevel 1"
    ));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("--neuron_optlevel") && run.stderr.contains("--device neuron"),
        "{}",
        run.stderr
    );
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
