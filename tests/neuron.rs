//! AWS Neuron without one of its chips: the whole path (find, set up, lower, compile, store, run,
//! save, resume, fail) goes through the same calls with our CPU plugin in the place of AWS's.

use crate::support::{Command, Run, copy_tokenizer, data_text, json_lines, xtrain};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use xtrain::runtime::Library;

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

/// Pieces of the shared data, small tokenizers, the stand-in.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    plugin: PathBuf,
}

pub(crate) const GPT2: &str = "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                    --train_file train.txt --validation_file valid.txt --block_size 16";
pub(crate) const BERT: &str = "--model_type bert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=2,\
                    intermediate_size=64,max_position_embeddings=64 --tokenizer_name wordpiece";
const RUN: &str = "--disable_tqdm --per_device_train_batch_size 4 --learning_rate 1e-3 --max_steps 6 --logging_steps 1 --do_train \
                   --do_eval";

impl Bench {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = xtrain();
        command
            .dir(self.dir.path())
            .args(line.split_whitespace())
            .args(["--cache_dir", "cache"])
            .env("NEURON_LIBRARY_PATH", &self.plugin)
            .env("XTRAIN_CUDA_PLUGIN", &self.plugin);
        command
    }

    pub(crate) fn run(&self, line: &str) -> Run {
        self.command(line).run()
    }

    pub(crate) fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub(crate) fn losses(&self, output: &str) -> Vec<f64> {
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

/// What a plugin does that ends a run, and what the user reads.
const MISBEHAVIOURS: &[(&str, &[&str])] = &[
    ("null table", &["GetPjrtApi returned null", "unusable"]),
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
        "stalled upload",
        &[
            "has not finished an upload within 3 s",
            "XTRAIN_EVENT_TIMEOUT",
        ],
    ),
    (
        "stalled execution",
        &["has not finished the start of an execution within 3 s"],
    ),
    (
        "failing allocation",
        &[
            "PJRT_LoadedExecutable_Execute failed",
            "RESOURCE_EXHAUSTED",
            "17179869184 bytes",
        ],
    ),
    ("lost device", &["ECC_UNCORRECTABLE"]),
    (
        "hanging event",
        &[
            "has not finished",
            "within 3 s",
            "--resume_from_checkpoint",
            "XTRAIN_EVENT_TIMEOUT",
        ],
    ),
];

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
    for (fault, parts) in MISBEHAVIOURS {
        let run = run(fault, "");
        assert_eq!(run.code, Some(1), "{fault}: {}", run.stderr);
        for part in *parts {
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
