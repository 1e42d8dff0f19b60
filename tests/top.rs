//! `xtrain top` on the directory of a real run, and what a run writes for it.

use crate::support::{Command, data_dir, data_text, json_lines, xtrain};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn train(dir: &Path, output: &str, more: &[&str]) -> Command {
    let text = data_text("play.txt");
    fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    let mut command = xtrain();
    command
        .dir(dir)
        .args([
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
            "n_layer=2,n_head=2,n_embd=32,n_positions=32",
            "--per_device_train_batch_size",
            "4",
        ])
        .args([
            "--train_file",
            "train.txt",
            "--eval_strategy",
            "steps",
            "--eval_steps",
            "3",
            "--save_steps",
            "3",
            "--tokenizer_name",
        ])
        .arg(data_dir().join("gpt2"))
        .args(["--output_dir", output])
        .args(more);
    command
}

fn top(dir: &Path, output: &str, more: &[&str]) -> crate::support::Run {
    xtrain().dir(dir).args(["top", output]).args(more).run()
}

fn json(dir: &Path, output: &str, more: &[&str]) -> Value {
    let run = top(dir, output, &[&["--once", "--json"], more].concat());
    run.succeeded();
    serde_json::from_str(run.stdout.trim()).unwrap()
}

#[test]
fn a_finished_run_is_told_as_text_and_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--cache_dir",
        "cache",
        "--max_steps",
        "6",
        "--eval_strategy",
        "steps",
        "--eval_steps",
        "3",
        "--save_strategy",
        "no",
    ];
    train(dir.path(), "out", &args).run().succeeded();
    let told = json(dir.path(), "out", &[]);
    assert_eq!(
        (
            told["state"].as_str(),
            told["step"].as_u64(),
            told["total_steps"].as_u64()
        ),
        (Some("finished"), Some(6), Some(6))
    );
    for key in [
        "loss",
        "learning_rate",
        "tokens_per_second",
        "step_seconds",
        "trace_seconds",
        "execute_seconds",
        "seconds_silent",
    ] {
        assert!(told[key].is_number(), "{key}: {told}");
    }
    assert!(told["tokens_per_second"].as_f64().unwrap() > 0.0);
    // The step and the evaluation: both new in this cache.
    assert_eq!(
        (
            told["graphs"]["compiled"].as_u64(),
            told["graphs"]["loaded"].as_u64()
        ),
        (Some(2), Some(0)),
        "{told}"
    );
    assert!(
        told["graphs"]["events"][0]
            .as_str()
            .unwrap()
            .starts_with("compiled train in "),
        "{told}"
    );
    assert_eq!(told["eval"]["step"].as_u64(), Some(6));
    let last = json_lines(&dir.path().join("out/log.jsonl"))
        .into_iter()
        .rfind(|record| record["eval_loss"].is_number())
        .unwrap();
    assert_eq!(told["eval"], last);

    let evaluated: Vec<(f64, u64)> = json_lines(&dir.path().join("out/log.jsonl"))
        .iter()
        .filter_map(|record| Some((record["eval_loss"].as_f64()?, record["step"].as_u64()?)))
        .collect();
    let best = evaluated.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert_eq!(told["best_eval"]["loss"].as_f64(), Some(best.0));

    let text = top(dir.path(), "out", &["--once"]);
    text.succeeded();
    let by_flag = xtrain()
        .dir(dir.path())
        .args(["top", "--output_dir", "out", "--once"])
        .run();
    assert_eq!(by_flag.stdout.lines().next(), text.stdout.lines().next());
    for part in [
        "finished",
        "6 of 6",
        "tokens/s",
        "recording",
        "device",
        "2 compiled in",
        "evaluation",
    ] {
        assert!(
            text.stdout.contains(part),
            "`{part}` is missing in {}",
            text.stdout
        );
    }

    // A second start loads what the first one compiled, and says so.
    train(dir.path(), "again", &args).run().succeeded();
    let both = top(dir.path(), "out", &["again", "--once", "--json"]);
    both.succeeded();
    let both: Value = serde_json::from_str(both.stdout.trim()).unwrap();
    let dirs: Vec<_> = both
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["output_dir"])
        .collect();
    assert_eq!(dirs, ["out", "again"]);
    let told = json(dir.path(), "again", &[]);
    assert_eq!(
        (
            told["graphs"]["compiled"].as_u64(),
            told["graphs"]["loaded"].as_u64()
        ),
        (Some(0), Some(2)),
        "{told}"
    );
}

#[test]
fn a_run_that_was_killed_is_told_from_one_that_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let endless = ["--max_steps", "100000", "--save_strategy", "no"];
    let mut child = train(dir.path(), "out", &endless).start();
    let telemetry = dir.path().join("out/telemetry.jsonl");
    let started = std::time::Instant::now();
    while !fs::read_to_string(&telemetry)
        .unwrap_or_default()
        .contains("\"event\":\"step\"")
    {
        assert!(started.elapsed().as_secs() < 120, "no step was told");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let told = json(dir.path(), "out", &[]);
    assert_eq!(
        (told["state"].as_str(), told["pid"].as_u64()),
        (Some("running"), Some(child.id().into()))
    );
    assert!(told["seconds_left"].as_f64().unwrap() > 0.0);
    let own = &told["ranks"][0];
    assert_eq!(own["pid"], told["pid"]);
    assert!(own["cpu"].as_f64().unwrap() > 0.1, "{own}");
    assert!(own["memory_bytes"].as_u64().unwrap() > 1 << 20, "{own}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(json(dir.path(), "out", &[])["state"], "stopped");
}

#[test]
fn every_rank_of_a_launch_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let plain = train(
        dir.path(),
        "out",
        &["--max_steps", "4", "--data_parallel", "2"],
    )
    .process();
    let words: Vec<_> = plain.get_args().map(|word| word.to_os_string()).collect();
    let run = xtrain()
        .dir(dir.path())
        .args(["launch", "--nproc_per_node", "2", "--"])
        .args(words)
        .run();
    run.succeeded();
    // What a larger job left there is none of this one's.
    fs::copy(
        dir.path().join("out/telemetry.rank-1.jsonl"),
        dir.path().join("out/telemetry.rank-2.jsonl"),
    )
    .unwrap();
    let told = json(dir.path(), "out", &[]);
    let ranks = told["ranks"].as_array().unwrap();
    let shown = |rank: &Value| {
        (
            rank["rank"].as_u64(),
            rank["step"].as_u64(),
            rank["state"].clone(),
        )
    };
    assert_eq!(ranks.len(), 2, "{told}");
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(
            shown(rank),
            (Some(number as u64), Some(4), "finished".into())
        );
    }
    assert_ne!(ranks[0]["pid"], ranks[1]["pid"]);
    let text = top(dir.path(), "out", &["--once"]);
    assert!(text.stdout.contains("rank 1 "), "{}", text.stdout);
}

#[test]
fn devices_come_from_what_neuron_monitor_wrote() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    let start = r#"{"event":"start","time":1.0,"pid":1,"host":"elsewhere","device":"neuron","step":0,"total_steps":9}"#;
    fs::write(dir.path().join("out/telemetry.jsonl"), start).unwrap();
    let report = r#"{"neuron_runtime_data":[{"pid":11,"error":"","report":{"neuroncore_counters":{"neuroncores_in_use":
        {"1":{"neuroncore_utilization":61.5}}},"memory_used":{"neuron_runtime_used_bytes":{"usage_breakdown":
        {"neuroncore_memory_usage":{"1":{"tensors":1048576}}}}}}}]}"#;
    fs::write(dir.path().join("monitor.json"), report.replace('\n', "")).unwrap();
    let told = json(dir.path(), "out", &["--neuron_monitor", "monitor.json"]);
    assert_eq!(told["state"], "unknown", "it runs on another machine");
    let core = &told["hardware"][0];
    assert_eq!(
        (
            core["name"].as_str(),
            core["utilization"].as_f64(),
            core["memory_used"].as_u64()
        ),
        (Some("core 1"), Some(61.5), Some(1 << 20))
    );
}

/// Where neuron-monitor is installed it is started, asked, and ended.
#[test]
fn neuron_monitor_is_started_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    let start = r#"{"event":"start","time":1.0,"pid":1,"host":"elsewhere","device":"neuron","step":0,"total_steps":9}"#;
    fs::write(dir.path().join("out/telemetry.jsonl"), start).unwrap();
    let report = r#"{"neuron_runtime_data":[{"pid":11,"error":"","report":{"neuroncore_counters":{"neuroncores_in_use":{"3":{"neuroncore_utilization":42.25}}},"memory_used":{"neuron_runtime_used_bytes":{"usage_breakdown":{"neuroncore_memory_usage":{"3":{"tensors":2097152,"constants":4}}}}}}}],"neuron_hardware_info":{"neuron_device_memory_size":34359738368,"neuroncore_per_device_count":2}}"#;
    let script = format!("#!/bin/sh\necho $$ > pid\necho '{report}'\nexec sleep 600\n");
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("neuron-monitor"), script).unwrap();
    fs::set_permissions(
        bin.join("neuron-monitor"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let run = xtrain()
        .dir(dir.path())
        .args(["top", "--output_dir", "out", "--once", "--json"])
        .env("PATH", &path)
        .run();
    run.succeeded();
    let told: Value = serde_json::from_str(run.stdout.trim()).unwrap();
    let core = &told["hardware"][0];
    assert_eq!(
        (
            core["name"].as_str(),
            core["utilization"].as_f64(),
            core["memory_used"].as_u64(),
            core["memory_total"].as_u64()
        ),
        (
            Some("core 3"),
            Some(42.25),
            Some((2 << 20) + 4),
            Some(16 << 30)
        )
    );
    assert_eq!(core["source"], "neuron-monitor");
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    assert!(
        !Path::new("/proc").join(pid.trim()).exists(),
        "neuron-monitor outlives its watcher"
    );

    // One that cannot see a device says so and ends: nothing to show, nothing wrong.
    fs::write(bin.join("neuron-monitor"), "#!/bin/sh\nexit 1\n").unwrap();
    let run = xtrain()
        .dir(dir.path())
        .args(["top", "--output_dir", "out", "--once", "--json"])
        .env("PATH", &path)
        .run();
    run.succeeded();
}

#[test]
fn what_top_cannot_do_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], code: i32, parts: &[&str]| {
        let run = xtrain().dir(dir.path()).arg("top").args(args).run();
        assert_eq!(run.code, Some(code), "{}", run.stderr);
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "`{part}` is missing in {}",
                run.stderr
            );
        }
    };
    refused(&[], 2, &["no run given", "xtrain top DIR"]);
    refused(&["--output_dir", "out", "--json"], 2, &["--once"]);
    let once = ["--output_dir", "out", "--once"];
    refused(&once, 2, &["out does not exist"]);
    fs::create_dir(dir.path().join("out")).unwrap();
    refused(&once, 1, &["out holds no telemetry.jsonl", "--output_dir"]);
    fs::write(PathBuf::from(dir.path()).join("out/telemetry.jsonl"), "").unwrap();
    // Standard output is a pipe here.
    refused(&["--output_dir", "out"], 2, &["terminal", "--once"]);
}
