//! `--device neuron` and `--device cuda` without either: our CPU plugin stands in as the vendor's library, so that discovery,
//! environment, lowering for the device, running, saving and resuming go the same way; a wrapper around it misbehaves on purpose.
//! Then the conformance table: every model passes, every planted violation is found.

use crate::golden::for_each_case;
use crate::support::{Command, Run, data_dir, json_lines, xtrain};
use std::fs;
use std::path::{Path, PathBuf};
use xtrain::runtime::Library;
use xtrain::trainer::feed::feed_batch;
use xtrain::trainer::settings::{OptimizerKind, OptimizerSettings};
use xtrain::trainer::step::{Phase, Stepper};
use xtrain_graphs::op::{Binary, Op, Unary};
use xtrain_graphs::optim::{Schedule, ScheduleKind};
use xtrain_graphs::{DType, Graph, GraphNode, InputRole, NeuronChip, Precision, Shape, Target, Trace, conformance, passes};

/// The CPU plugin's file, or nothing (said aloud) where it is not built.
fn stand_in() -> Option<PathBuf> {
    match Library::open() {
        Ok(library) => Some(library.path().canonicalize().unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

struct Bench {
    dir: tempfile::TempDir,
    tokenizer: PathBuf,
    plugin: PathBuf,
}

impl Bench {
    fn new() -> Option<Self> {
        let (data, plugin) = (data_dir()?, stand_in()?);
        let dir = tempfile::tempdir().unwrap();
        let text = fs::read_to_string(data.join("tinyshakespeare/input.txt")).unwrap();
        fs::write(dir.path().join("train.txt"), &text[..40_000]).unwrap();
        Some(Bench { dir, tokenizer: data.join("gpt2"), plugin })
    }

    fn command(&self, device: &str, output: &str, dropout: f64, extra: &[&str]) -> Command {
        let dropouts = ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|key| format!("{key}={dropout}")).join(",");
        let mut command = xtrain();
        command
            .args(["--device", device, "train", "clm", "--model_type", "gpt2", "--disable_tqdm", "--block_size", "16"])
            .args(["--config_overrides", &format!("n_layer=2,n_head=2,n_embd=32,n_positions=32,{dropouts}")])
            .args(["--per_device_train_batch_size", "4", "--learning_rate", "1e-3", "--max_steps", "6", "--logging_steps", "1"])
            .arg("--tokenizer_name")
            .arg(&self.tokenizer)
            .arg("--train_file")
            .arg(self.dir.path().join("train.txt"))
            .arg("--output_dir")
            .arg(self.dir.path().join(output))
            .arg("--cache_dir")
            .arg(self.dir.path().join("cache"))
            .env("NEURON_LIBRARY_PATH", &self.plugin)
            .env("XTRAIN_CUDA_PLUGIN", &self.plugin)
            .args(extra);
        command
    }

    fn train(&self, device: &str, output: &str, dropout: f64, extra: &[&str]) -> Run {
        self.command(device, output, dropout, extra).run()
    }

    fn losses(&self, output: &str) -> Vec<f64> {
        json_lines(&self.dir.path().join(output).join("log.jsonl")).iter().filter_map(|r| r["loss"].as_f64()).collect()
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.dir.path().join(file)).unwrap()
    }
}

/// The forms that are lowered for the accelerators compute what the CPU's do: without dropout, whose masks are Neuron's own.
#[test]
fn the_accelerators_lowering_trains_as_the_cpu_does_on_a_stand_in() {
    let Some(bench) = Bench::new() else { return };
    bench.train("cpu", "cpu", 0.0, &[]).succeeded();
    let wide = bench.losses("cpu");
    for device in ["neuron", "cuda"] {
        let run = bench.train(device, device, 0.0, &[]);
        run.succeeded();
        assert!(run.stderr.contains("drives `cpu`") && run.stderr.contains("rehearsal"), "{}", run.stderr);
        let losses = bench.losses(device);
        assert_eq!(losses.len(), 6);
        for (a, b) in wide.iter().zip(&losses) {
            assert!((a - b).abs() < 1e-4, "{device}: {losses:?}, on the CPU {wide:?}");
        }
    }
}

#[test]
fn a_run_on_a_stand_in_saves_and_resumes_exactly() {
    let Some(bench) = Bench::new() else { return };
    bench.train("neuron", "whole", 0.1, &["--save_steps", "3"]).succeeded();
    bench.train("neuron", "stopped", 0.1, &["--save_steps", "3"]).succeeded();
    fs::remove_dir_all(bench.dir.path().join("stopped/checkpoint-6")).unwrap();
    bench.train("neuron", "stopped", 0.1, &["--save_steps", "3", "--resume_from_checkpoint"]).succeeded();
    assert!(bench.bytes("whole/model.safetensors") == bench.bytes("stopped/model.safetensors"), "final weights differ");
    assert_eq!(bench.losses("whole"), bench.losses("stopped"));
}

#[test]
fn what_is_missing_or_misset_is_said_before_anything_runs() {
    let Some(bench) = Bench::new() else { return };
    let refused = |device: &str, variables: &[(&str, &str)], parts: &[&str]| {
        let mut command = bench.command(device, "never", 0.0, &[]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let run = command.run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        for part in parts {
            assert!(run.stderr.contains(part), "`{part}` is missing in: {}", run.stderr);
        }
        assert!(!bench.dir.path().join("never/config.json").exists());
    };
    refused(
        "neuron",
        &[("NEURON_LIBRARY_PATH", "/nowhere/libneuronpjrt.so")],
        &["no plugin for neuron", "/nowhere/libneuronpjrt.so", "3.0"],
    );
    refused("cuda", &[("XTRAIN_CUDA_PLUGIN", "/nowhere/x.so")], &["no plugin for cuda", "/nowhere/x.so", "jax-cuda13-plugin"]);
    refused(
        "neuron",
        &[("NEURON_LIBRARY_PATH", ""), ("VIRTUAL_ENV", "/my/venv")],
        &["/my/venv/lib/python3", "libneuronxla/libneuronpjrt.so"],
    );
    refused("neuron", &[("NEURON_RT_NUM_CORES", "3")], &["NEURON_RT_NUM_CORES=3", "1, 2, 8, 16"]);
    refused("cuda", &[("XTRAIN_CUDA_PLUGIN", "/etc/hostname")], &["cannot open the library", "/etc/hostname"]);
    // A package of the generation that needs Python.
    let old = bench.dir.path().join("site-packages");
    fs::create_dir_all(old.join("libneuronxla-2.2.16408.dist-info")).unwrap();
    fs::create_dir_all(old.join("libneuronxla")).unwrap();
    let plugin = old.join("libneuronxla/libneuronpjrt.so");
    fs::write(&plugin, "").unwrap();
    refused("neuron", &[("NEURON_LIBRARY_PATH", plugin.to_str().unwrap())], &["libneuronxla 2.2.16408", "3.0 or newer"]);
}

/// Builds the wrapper; `None`, said loudly, where there is no rustc.
fn misbehaving(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in/misbehaving_plugin.rs");
    let library = dir.join("libmisbehaving.so");
    let built = std::process::Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-A", "warnings", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    match built {
        Ok(status) => {
            assert!(status.success(), "the wrapper does not build");
            Some(library)
        }
        Err(error) => {
            eprintln!("SKIPPED: rustc: {error}");
            None
        }
    }
}

#[test]
fn every_misbehaviour_of_a_plugin_ends_in_its_message() {
    let Some(bench) = Bench::new() else { return };
    let Some(wrapper) = misbehaving(bench.dir.path()) else { return };
    let run = |fault: &str| {
        let mut command = bench.command("neuron", &fault.replace(' ', "-"), 0.0, &["--compile_cache", "false"]);
        command
            .env("NEURON_LIBRARY_PATH", &wrapper)
            .env("XTRAIN_TEST_REAL_PLUGIN", &bench.plugin)
            .env("XTRAIN_TEST_FAULT", fault);
        command.run()
    };
    for fault in ["none", "slow compile"] {
        run(fault).succeeded();
    }
    for (fault, parts) in [
        ("null table", ["GetPjrtApi returned null", "unusable"]),
        ("other major", ["PJRT C API 1.", "install another version of the plugin"]),
        ("old minor", ["PJRT C API 0.30", "install another version of the plugin"]),
        ("other struct sizes", ["PJRT_Client_Create failed", "creating a client"]),
        ("no compile", ["does not have the call PJRT_Client_Compile", "newer version"]),
        ("failing execute", ["PJRT_LoadedExecutable_Execute failed", "INVALID_ARGUMENT"]),
    ] {
        let run = run(fault);
        assert_eq!(run.code, Some(1), "{fault}: {}", run.stderr);
        for part in parts {
            assert!(run.stderr.contains(part), "{fault}: `{part}` is missing in: {}", run.stderr);
        }
        assert!(!run.stderr.contains("panicked"), "{fault}: {}", run.stderr);
    }
}

const NEURON: Target = Target::Neuron(NeuronChip::Trn1);

#[test]
fn every_model_conforms_in_every_precision() {
    for_each_case(|name, mut case| {
        let batch = case.batch(0);
        for precision in [Precision::F32, Precision::Bf16, Precision::Fp16] {
            for kind in [OptimizerKind::AdamW, OptimizerKind::Sgd] {
                let optimizer = OptimizerSettings {
                    kind,
                    learning_rate: 1e-3,
                    weight_decay: 0.01,
                    adam_beta1: 0.9,
                    adam_beta2: 0.999,
                    adam_epsilon: 1e-8,
                    max_grad_norm: 1.0,
                    schedule: ScheduleKind::Constant,
                    warmup_steps: Some(0),
                    warmup_ratio: 0.0,
                };
                let schedule = Schedule { kind: ScheduleKind::Constant, peak: 1e-3, warmup: 0, total: 1 };
                let stepper = Stepper::new(&*case.model, optimizer, schedule, 1).with_precision(precision);
                let extra = stepper.extra_state(true);
                xtrain::trainer::parameters::set_extra_state(&mut case.session, &extra, None).unwrap();
                for phase in [Phase::Accumulate, Phase::Update { accumulated: true }, Phase::Update { accumulated: false }] {
                    let mut recording = case.session.begin();
                    let inputs = feed_batch(&mut recording, &batch);
                    stepper.record(&mut recording, &inputs, phase, 0, 0).unwrap();
                    let graph = recording.cut(phase.graph_name()).unwrap();
                    let prepared = passes::prepare(&graph, NEURON).unwrap();
                    let found = conformance::check(&prepared, NEURON);
                    assert!(found.is_empty(), "{name} {precision} {phase:?}: {} such as {}", found.len(), found[0]);
                }
            }
        }
    });
}

#[test]
fn the_doctor_goes_from_the_driver_to_a_sum_and_says_what_is_missing() {
    let Some(plugin) = stand_in() else { return };
    for (device, variable) in [("neuron", "NEURON_LIBRARY_PATH"), ("cuda", "XTRAIN_CUDA_PLUGIN")] {
        let run = xtrain().args(["doctor", "--device", device]).env(variable, &plugin).run();
        run.succeeded();
        let order = ["driver", "device files", "plugin ", "plugin version", "compile and run"];
        let places: Vec<usize> =
            order.iter().map(|name| run.stdout.find(name).unwrap_or_else(|| panic!("{}", run.stdout))).collect();
        assert!(places.is_sorted(), "{}", run.stdout);
        assert!(run.stdout.contains("1 + 4 + 9 + 16 = 30"), "{}", run.stdout);
        let run = xtrain().args(["doctor", "--device", device]).env(variable, "/nowhere.so").run();
        assert_eq!(run.code, Some(1));
        assert!(run.stdout.contains("FAIL  plugin") && run.stdout.contains("/nowhere.so"), "{}", run.stdout);
    }
}

#[test]
fn compile_check_needs_no_device() {
    let Some(bench) = Bench::new() else { return };
    let run = xtrain()
        .args(["compile", "clm", "--device", "neuron", "--check", "--model_type", "gpt2", "--do_train", "--do_eval", "--bf16"])
        .args(["--block_size", "16", "--gradient_accumulation_steps", "2", "--tokenizer_name"])
        .arg(&bench.tokenizer)
        .args(["--config_overrides", "n_layer=2,n_head=2,n_embd=32,activation_function=gelu"])
        .run();
    run.succeeded();
    for graph in ["accumulate", "update", "eval"] {
        let line = run.stdout.lines().find(|line| line.starts_with(graph)).unwrap_or_else(|| panic!("{}", run.stdout));
        assert!(line.contains("operations, all known to compile for neuron"), "{line}");
    }
}

/// One operation over feeds of the given shapes, in layer `h.7.attn`.
fn planted(op: Op, operands: &[Shape], result: Shape, state: bool) -> Graph {
    let trace = Trace::new();
    for (i, shape) in operands.iter().enumerate() {
        let role = if state { InputRole::State } else { InputRole::Feed };
        trace.output(format!("in{i}"), &trace.input(format!("in{i}"), shape.clone(), role));
    }
    let mut graph = trace.cut("planted").unwrap();
    graph.scopes.push("h.7.attn".into());
    graph.nodes.push(GraphNode { op, operands: (0..operands.len() as u32).collect(), shape: result, scope: 1 });
    graph
}

#[test]
fn planted_violations_are_found_with_their_layer() {
    let f32s = |dims: &[usize]| Shape::new(DType::F32, dims);
    let of = |dtype: DType| Shape::new(dtype, [4]);
    let unary = |op| Op::Unary(op);
    let plain = |op: Op, operands: &[Shape], result: Shape| planted(op, operands, result, false);
    let dims = xtrain_graphs::op::DotDims { lhs_contracting: vec![0], rhs_contracting: vec![0], ..Default::default() };
    let dot = |dtype| Op::Dot { dims: dims.clone(), dtype };
    let big = Op::Constant { value: xtrain_graphs::op::Scalar::Int(1 << 33), dtype: DType::S32 };
    for (graph, part) in [
        (plain(unary(Unary::Erf), &[f32s(&[4])], f32s(&[4])), "erf is not among"),
        (plain(unary(Unary::IsFinite), &[f32s(&[4])], of(DType::Pred)), "is-finite is not among"),
        (plain(unary(Unary::Log1p), &[f32s(&[4])], f32s(&[4])), "log-plus-one is not among"),
        (plain(Op::Binary(Binary::ShiftLeft), &[of(DType::U32), of(DType::U32)], of(DType::U32)), "shift-left is not among"),
        (plain(Op::Binary(Binary::Rem), &[f32s(&[4]), f32s(&[4])], f32s(&[4])), "remainder is not among"),
        (plain(Op::Bitcast(DType::U32), &[f32s(&[4])], of(DType::U32)), "bitcast-convert is not among"),
        (plain(unary(Unary::Tanh), &[of(DType::F64)], of(DType::F64)), "not known to take f64"),
        (plain(unary(Unary::Neg), &[of(DType::S64)], of(DType::S64)), "not known to take s64"),
        (plain(dot(DType::S32), &[of(DType::S32), of(DType::S32)], Shape::scalar(DType::S32)), "dot is not known to take s32"),
        (plain(dot(DType::F32), &[f32s(&[4, 1, 1, 1, 1]), f32s(&[4])], f32s(&[1, 1, 1, 1])), "rank 5"),
        (plain(big, &[], Shape::scalar(DType::S32)), "beyond 2^32"),
        (plain(Op::TakeRows, &[f32s(&[9, 2]), of(DType::S32)], f32s(&[4, 2])), "clamp indices"),
        (planted(Op::Barrier, &[f32s(&[4])], f32s(&[4]), true), "read after write"),
        (
            plain(
                Op::ScatterAddRows,
                &[Shape::new(DType::S32, [9, 2]), of(DType::S32), Shape::new(DType::S32, [4, 2])],
                Shape::new(DType::S32, [9, 2]),
            ),
            "scatter is not known to take s32",
        ),
    ] {
        let found = conformance::check(&graph, NEURON);
        let told = found.iter().map(|v| v.to_string()).collect::<Vec<_>>();
        assert!(told.iter().any(|v| v.contains(part) && v.contains("in h.7.attn")), "`{part}` is missing in {told:?}");
    }
    // Every row of a graph that conforms stays silent, and the CPU takes everything.
    let fine = plain(unary(Unary::Tanh), &[f32s(&[4])], f32s(&[4]));
    assert!(conformance::check(&fine, NEURON).is_empty());
    assert!(conformance::check(&plain(unary(Unary::Erf), &[f32s(&[4])], f32s(&[4])), Target::Cpu).is_empty());
    let bf16 = plain(dot(DType::F32), &[of(DType::BF16), of(DType::BF16)], f32s(&[]));
    assert!(conformance::check(&bf16, Target::Cuda { capability: 90, fused_attention: true }).is_empty());
    let found = conformance::check(&bf16, Target::Cuda { capability: 75, fused_attention: true });
    assert!(found[0].to_string().contains("compute capability 8.0, this card has 7.5"), "{}", found[0]);
}
