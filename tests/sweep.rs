//! `xtrain sweep` as a user runs it.

use crate::support::{Command, Run, data_dir, data_text, xtrain};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn sweep(dir: &Path, words: &str) -> Command {
    let text = data_text("play.txt");
    fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    let mut command = xtrain();
    command
        .dir(dir)
        .args(["sweep", "--output_dir", "grid"])
        .args(words.split_whitespace())
        .args(
            "-- train clm --model_type gpt2 --block_size 16 --train_file train.txt --max_steps 4 --logging_steps 1 \
             --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --do_train --do_eval --eval_strategy steps \
             --eval_steps 2 --save_steps 2 --per_device_train_batch_size 4 --cache_dir cache --tokenizer_name"
                .split_whitespace(),
        )
        .arg(data_dir().join("gpt2"));
    command
}

fn run(dir: &Path, words: &str) -> Run {
    sweep(dir, words).run()
}

#[test]
fn a_grid_is_run_once_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let grid = "--grid learning_rate=1e-4,1e-2 --grid weight-decay=0,0.1";
    let first = run(dir, &format!("{grid} --jobs 2"));
    first.succeeded();
    let rows: Vec<&str> = first.stdout.lines().collect();
    assert_eq!(rows.len(), 5, "{}", first.stdout);
    assert!(
        rows[0].starts_with("run ") && rows[0].contains("best eval_loss"),
        "{}",
        rows[0]
    );
    // The best comes first; four steps at 1e-4 learn next to nothing.
    assert!(
        rows[1].starts_with("learning_rate=1e-2,"),
        "{}",
        first.stdout
    );
    let page = fs::read_to_string(dir.join("grid/report.html")).unwrap();
    for name in [
        "learning_rate=1e-4,weight_decay=0",
        "learning_rate=1e-2,weight_decay=0.1",
    ] {
        assert!(
            page.contains(name)
                && dir
                    .join("grid")
                    .join(name)
                    .join("model.safetensors")
                    .exists()
        );
    }
    // Graphs: two of training (the decay is part of it) and one of evaluation, each compiled once.
    let compiled = |name: &str| -> usize {
        let text = fs::read_to_string(dir.join("grid").join(name).join("telemetry.jsonl")).unwrap();
        let events = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        events
            .filter(|event| event["event"] == "graph" && event["loaded"] == false)
            .count()
    };
    let names = [
        "learning_rate=1e-4,weight_decay=0",
        "learning_rate=1e-4,weight_decay=0.1",
        "learning_rate=1e-2,weight_decay=0",
        "learning_rate=1e-2,weight_decay=0.1",
    ];
    let all: usize = names.iter().map(|name| compiled(name)).sum();
    assert!(all <= 4, "{all} graphs were compiled");

    // Started again, with one value more: only that is run.
    let again = run(
        dir,
        "--grid learning_rate=1e-4,1e-2,1e-3 --grid weight-decay=0,0.1",
    );
    again.succeeded();
    assert!(
        again.stderr.contains("4 of 6 runs are done"),
        "{}",
        again.stderr
    );
    assert_eq!(
        again.stderr.matches("] learning_rate=1e-3,").count(),
        2,
        "{}",
        again.stderr
    );
    assert_eq!(again.stdout.lines().count(), 7);

    // Its directory stands for its runs.
    for words in ["report grid --format markdown", "top grid --once"] {
        let run = xtrain().dir(dir).args(words.split_whitespace()).run();
        run.succeeded();
        let shown = run.stdout;
        for rate in ["1e-4", "1e-3", "1e-2"] {
            for decay in ["0", "0.1"] {
                let name = format!("learning_rate={rate},weight_decay={decay}");
                assert!(
                    shown.contains(&name),
                    "{words}: {name} is missing in {shown}"
                );
            }
        }
    }
}

/// A directory's results are thrown away only if the command says so.
#[test]
fn a_sweep_replaces_runs_of_another_command_only_when_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let with = |more: &[&str]| {
        let mut command = sweep(dir, "--grid learning_rate=1e-4");
        command.args(more.iter().copied());
        command.run()
    };
    with(&[]).succeeded();
    let model = dir.join("grid/learning_rate=1e-4/model.safetensors");
    let made = fs::read(&model).unwrap();
    let run = with(&["--seed", "7"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains(
            "error: grid/learning_rate=1e-4 was created with different flags\nhint: name another --output_dir, or add --overwrite_output_dir"
        ),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read(&model).unwrap(), made);
    with(&["--seed", "7", "--overwrite_output_dir"]).succeeded();
    assert_ne!(fs::read(&model).unwrap(), made);
}

#[test]
fn what_cannot_run_is_said_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (words, problem) in [
        (
            "--grid learning_rate=1e-4,fast",
            "must be a number that is 0 or more, found `fast`",
        ),
        ("--grid lerning_rate=1", "unknown flag --lerning_rate"),
        ("--grid seed", "a flag and its values"),
        ("--grid seed=1,2,1", "seed has the value 1 twice"),
        (
            "--grid output_dir=a,b",
            "--grid output_dir: sweep gives each run a directory of its own",
        ),
        ("--grid dry-run=true", "a sweep needs runs that train"),
        (
            "--grid seed=1,2 --max_steps 3",
            "--max_steps belongs to the command that is swept",
        ),
        ("", "sweep: nothing to vary"),
    ] {
        let run = run(dir, words);
        assert_eq!(run.code, Some(2), "{words}: {}", run.stderr);
        assert!(run.stderr.contains(problem), "{words}: {}", run.stderr);
        assert!(!dir.join("grid").exists());
    }
}

#[test]
fn a_failed_run_does_not_end_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // The second batch is larger than the training set, whose incomplete batch is dropped.
    let run = run(
        dir,
        "--grid per_device_train_batch_size=4,100000 --grid dataloader_drop_last=true",
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("error: 1 of 2 runs failed"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stdout.lines().count(), 2, "{}", run.stdout);
    let log = "grid/per_device_train_batch_size=100000,dataloader_drop_last=true.log";
    assert!(
        fs::read_to_string(dir.join(log))
            .unwrap()
            .contains("error: ")
    );
}

/// A run's directory is its own whatever its values are, and what is done is not taken for absent.
#[test]
fn runs_do_not_share_directories_and_the_record_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let grid = "--grid run_name=a/b,a_b";
    run(dir, grid).succeeded();
    let runs = fs::read_dir(dir.join("grid")).unwrap().flatten();
    let saved = runs.filter(|entry| entry.path().join("model.safetensors").exists());
    assert_eq!(saved.count(), 2);
    assert!(dir.join("grid/run_name=a_b/model.safetensors").exists());
    let again = run(dir, grid);
    again.succeeded();
    assert!(
        again.stderr.contains("2 of 2 runs are done"),
        "{}",
        again.stderr
    );

    // A log that is a pipe without a reader.
    let log = dir.join("grid/run_name=c.log");
    let made = std::process::Command::new("mkfifo").arg(log).status();
    assert!(made.unwrap().success());
    let piped = run(dir, "--grid run_name=c");
    assert_eq!(piped.code, Some(1), "{}", piped.stderr);
    let problem = "error: starting run_name=c: ";
    assert!(piped.stderr.contains(problem), "{}", piped.stderr);

    let record = dir.join("grid/sweep.json");
    let refused = |change: &dyn Fn(), sign: &str| {
        change();
        let run = run(dir, grid);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        let problem = "error: reading grid/sweep.json: ";
        assert!(
            run.stderr.contains(problem) && run.stderr.contains(sign),
            "{}",
            run.stderr
        );
        assert_eq!(run.stderr.matches("hint: ").count(), 1, "{}", run.stderr);
    };
    refused(&|| fs::write(&record, "{\"a\":").unwrap(), "EOF");
    let pipe = || {
        fs::remove_file(&record).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&record).status();
        assert!(made.unwrap().success());
    };
    refused(&pipe, "not a regular file");
    let folder = || {
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
    };
    refused(&folder, "not a regular file");
}
