//! `--device neuron` and `--device cuda` without either: our CPU plugin stands in as the vendor's
//! library, so that discovery, environment, lowering for the device, running, saving and resuming
//! go the same way. More of Neuron's in `neuron.rs`.

use crate::neuron::stand_in;
use crate::support::{Command, Run, data_dir, data_text, json_lines, xtrain};
use std::fs;
use std::path::{Path, PathBuf};

struct Bench {
    dir: tempfile::TempDir,
    tokenizer: PathBuf,
    plugin: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = data_text("play.txt");
        fs::write(dir.path().join("train.txt"), &text[..40_000]).unwrap();
        Bench {
            dir,
            tokenizer: data_dir().join("gpt2"),
            plugin: stand_in(),
        }
    }

    fn command(&self, device: &str, output: &str, dropout: f64, extra: &[&str]) -> Command {
        let dropouts = ["embd_pdrop", "attn_pdrop", "resid_pdrop"]
            .map(|key| format!("{key}={dropout}"))
            .join(",");
        let mut command = xtrain();
        command
            .args([
                "--device",
                device,
                "train",
                "clm",
                "--model_type",
                "gpt2",
                "--disable_tqdm",
                "--block_size",
                "16",
            ])
            .args([
                "--config_overrides",
                &format!("n_layer=2,n_head=2,n_embd=32,n_positions=32,{dropouts}"),
            ])
            .args([
                "--per_device_train_batch_size",
                "4",
                "--learning_rate",
                "1e-3",
                "--max_steps",
                "6",
                "--logging_steps",
                "1",
            ])
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
        json_lines(&self.dir.path().join(output).join("log.jsonl"))
            .iter()
            .filter_map(|r| r["loss"].as_f64())
            .collect()
    }

    fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.dir.path().join(file)).unwrap()
    }
}

/// The forms that are lowered for the accelerators compute what the CPU's do: without dropout,
/// whose masks are Neuron's own.
#[test]
fn the_accelerators_lowering_trains_as_the_cpu_does_on_a_stand_in() {
    let bench = Bench::new();
    bench.train("cpu", "cpu", 0.0, &[]).succeeded();
    let wide = bench.losses("cpu");
    for device in ["neuron", "cuda"] {
        let run = bench.train(device, device, 0.0, &[]);
        run.succeeded();
        assert!(
            run.stderr.contains("drives `cpu`") && run.stderr.contains("rehearsal"),
            "{}",
            run.stderr
        );
        let losses = bench.losses(device);
        assert_eq!(losses.len(), 6);
        for (a, b) in wide.iter().zip(&losses) {
            assert!(
                (a - b).abs() < 1e-4,
                "{device}: {losses:?}, on the CPU {wide:?}"
            );
        }
    }
}

#[test]
fn a_run_on_a_stand_in_saves_and_resumes_exactly() {
    let bench = Bench::new();
    bench
        .train("neuron", "whole", 0.1, &["--save_steps", "3"])
        .succeeded();
    bench
        .train("neuron", "stopped", 0.1, &["--save_steps", "3"])
        .succeeded();
    fs::remove_dir_all(bench.dir.path().join("stopped/checkpoint-6")).unwrap();
    bench
        .train(
            "neuron",
            "stopped",
            0.1,
            &["--save_steps", "3", "--resume_from_checkpoint"],
        )
        .succeeded();
    assert!(
        bench.bytes("whole/model.safetensors") == bench.bytes("stopped/model.safetensors"),
        "final weights differ"
    );
    assert_eq!(bench.losses("whole"), bench.losses("stopped"));
}

#[test]
fn what_is_missing_or_misset_is_said_before_anything_runs() {
    let bench = Bench::new();
    let refused = |device: &str, variables: &[(&str, &str)], parts: &[&str]| {
        let mut command = bench.command(device, "never", 0.0, &[]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let run = command.run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "`{part}` is missing in: {}",
                run.stderr
            );
        }
        assert!(!bench.dir.path().join("never/config.json").exists());
    };
    refused(
        "neuron",
        &[("NEURON_LIBRARY_PATH", "/nowhere/libneuronpjrt.so")],
        &["no plugin for neuron", "/nowhere/libneuronpjrt.so", "3.0"],
    );
    refused(
        "cuda",
        &[("XTRAIN_CUDA_PLUGIN", "/nowhere/x.so")],
        &["no plugin for cuda", "/nowhere/x.so", "jax-cuda13-plugin"],
    );
    refused(
        "neuron",
        &[("NEURON_LIBRARY_PATH", ""), ("VIRTUAL_ENV", "/my/venv")],
        &["/my/venv/lib/python3", "libneuronxla/libneuronpjrt.so"],
    );
    refused(
        "neuron",
        &[("NEURON_RT_NUM_CORES", "3")],
        &["NEURON_RT_NUM_CORES=3", "1, 2, 8, 16"],
    );
    refused(
        "cuda",
        &[("XTRAIN_CUDA_PLUGIN", "/etc/hostname")],
        &["cannot open the library", "/etc/hostname"],
    );
    // A package of the generation that needs Python.
    let old = bench.dir.path().join("site-packages");
    fs::create_dir_all(old.join("libneuronxla-2.2.16408.dist-info")).unwrap();
    fs::create_dir_all(old.join("libneuronxla")).unwrap();
    let plugin = old.join("libneuronxla/libneuronpjrt.so");
    fs::write(&plugin, "").unwrap();
    refused(
        "neuron",
        &[("NEURON_LIBRARY_PATH", plugin.to_str().unwrap())],
        &["libneuronxla 2.2.16408", "3.0 or newer"],
    );
}

#[test]
fn the_doctor_goes_from_the_driver_to_a_sum_and_says_what_is_missing() {
    let plugin = stand_in();
    for (device, variable) in [
        ("neuron", "NEURON_LIBRARY_PATH"),
        ("cuda", "XTRAIN_CUDA_PLUGIN"),
    ] {
        let run = xtrain()
            .args(["doctor", "--device", device])
            .env(variable, &plugin)
            .run();
        run.succeeded();
        let version = if device == "neuron" {
            "API version"
        } else {
            "plugin version"
        };
        let order = [
            "driver",
            "device files",
            "plugin ",
            version,
            "compile and run",
        ];
        let places: Vec<usize> = order
            .iter()
            .map(|name| {
                run.stdout
                    .find(name)
                    .unwrap_or_else(|| panic!("{}", run.stdout))
            })
            .collect();
        assert!(places.is_sorted(), "{}", run.stdout);
        assert!(run.stdout.contains("1 + 4 + 9 + 16 = 30"), "{}", run.stdout);
        let numbers = ["ok    random words", "ok    one-hot products"];
        let compared = numbers.iter().all(|line| run.stdout.contains(line));
        assert_eq!(compared, device == "neuron", "{}", run.stdout);
        let run = xtrain()
            .args(["doctor", "--device", device])
            .env(variable, "/nowhere.so")
            .run();
        assert_eq!(run.code, Some(1));
        assert!(
            run.stdout.contains("FAIL  plugin") && run.stdout.contains("/nowhere.so"),
            "{}",
            run.stdout
        );
    }
}

/// The script of a first session goes through with the stand-in, and packs what it found.
#[test]
#[ignore = "slow: trains and compiles a dozen times"]
fn the_first_session_on_neuron_is_rehearsed() {
    let bench = Bench::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("bin/neuron-session");
    let out = bench.dir.path().join("session");
    let run = std::process::Command::new(script)
        .arg(&out)
        .arg("--quick")
        .arg("--plugin")
        .arg(&bench.plugin)
        .env("XTRAIN", env!("CARGO_BIN_EXE_xtrain"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && printed.contains("all steps went well"),
        "{printed}"
    );
    assert!(!printed.contains("FAIL"), "{printed}");
    assert!(bench.dir.path().join("session.tar.gz").is_file());
}

/// `auto` is what the other degrees leave of the devices that the environment shows, where a device
/// has such.
#[test]
fn a_degree_that_is_auto_follows_from_the_visible_devices() {
    let bench = Bench::new();
    let auto = |device: &str, variables: &[(&str, &str)], extra: &[&str]| {
        let mut command = bench.command(device, "auto", 0.0, &["--dry_run"]);
        for (name, value) in variables {
            command.env(name, value);
        }
        command.args(extra).run()
    };
    for (device, variable, extra, note, groups) in [
        (
            "cuda",
            ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
            "--tensor_parallel 2 --data_parallel auto",
            "data_parallel is 2, of 4",
            "[[0, 2], [1, 3]]",
        ),
        (
            "cuda",
            ("CUDA_VISIBLE_DEVICES", "2,3"),
            "--tensor_parallel auto",
            "tensor_parallel is 2, of 2",
            "[[0, 1]]",
        ),
        (
            "neuron",
            ("NEURON_RT_NUM_CORES", "2"),
            "--shard_parallel auto",
            "shard_parallel is 2, of 2",
            "[[0, 1]]",
        ),
    ] {
        let run = auto(device, &[variable], &extra.split(' ').collect::<Vec<_>>());
        run.succeeded();
        assert!(
            run.stderr.contains(&format!("note: {note} devices")),
            "{extra}: {}",
            run.stderr
        );
        let axis = note.split('_').next().unwrap();
        let told = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            told.contains(&format!("{axis} groups {groups}")),
            "{extra}: {}",
            run.stdout
        );
    }
    let cards = ("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5");
    for (device, variables, extra, signs) in [
        (
            "cpu",
            &[][..],
            "--data_parallel auto",
            &["CPU devices are virtual", "give the number"][..],
        ),
        (
            "cuda",
            &[cards],
            "--data_parallel auto --tensor_parallel 4",
            &[
                "6 devices cannot be divided by --tensor_parallel 4",
                "set --tensor_parallel to 3 or 6",
            ],
        ),
        (
            "cuda",
            &[cards],
            "--data_parallel auto --tensor_parallel auto",
            &["only one can be what the others leave"],
        ),
        (
            "cuda",
            &[("CUDA_VISIBLE_DEVICES", "")],
            "--data_parallel auto",
            &["no GPU is visible", "xtrain doctor --device cuda"],
        ),
        (
            "cuda",
            &[cards],
            "--data_parallel some",
            &["at least 1, or auto"],
        ),
        // Of several processes on the CPU, each has one device.
        (
            "cpu",
            &[
                ("RANK", "1"),
                ("WORLD_SIZE", "3"),
                ("LOCAL_RANK", "1"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "1"),
            ],
            "--data_parallel auto --shard_parallel 2",
            &[
                "3 devices cannot be divided by --shard_parallel 2",
                "set --shard_parallel to 1 or 3",
            ],
        ),
    ] {
        let run = auto(device, variables, &extra.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, Some(2), "{extra}: {}", run.stderr);
        for sign in signs {
            assert!(run.stderr.contains(sign), "{extra}: {sign}: {}", run.stderr);
        }
    }
}

/// Offloading needs a second memory; where there is none, the refusal says what is missing and what
/// helps instead.
#[test]
fn activations_are_offloaded_only_where_there_is_another_memory() {
    let bench = Bench::new();
    for (device, extra, sign) in [
        (
            "cpu",
            &["--activation_offloading"][..],
            "in host memory already",
        ),
        (
            "neuron",
            &["--activation_offloading"],
            "exposes no host memory",
        ),
        (
            "cuda",
            &[
                "--activation_offloading",
                "--gradient_checkpointing",
                "attention",
            ],
            "full or every:K",
        ),
    ] {
        let run = bench.train(device, "offloaded", 0.0, extra);
        assert_eq!(run.code, Some(2), "{device}: {}", run.stderr);
        assert!(
            run.stderr.contains(sign) && run.stderr.contains("hint: "),
            "{device}: {}",
            run.stderr
        );
    }
    bench
        .train(
            "cpu",
            "kept",
            0.0,
            &["--activation_offloading", "false", "--dry_run"],
        )
        .succeeded();
}
