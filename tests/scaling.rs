//! `xtrain scaling` as a user runs it: small models at a few degrees; what cannot be scaled is
//! refused before anything runs.

use crate::processes::has_gloo;
use crate::support::{Run, xtrain};
use serde_json::Value;
use std::path::Path;

const BENCH: &str = "bench --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32,vocab_size=200 --seq 32 --steps 3 --warmup 0";

fn scaling(flags: &str, command: &str) -> Run {
    let mut words = xtrain();
    words
        .arg("scaling")
        .args(flags.split_whitespace())
        .arg("--")
        .args(command.split_whitespace());
    words.run()
}

fn json(run: &Run) -> Value {
    run.succeeded();
    serde_json::from_str(run.stdout.trim()).unwrap_or_else(|_| panic!("{}", run.stdout))
}

/// A training command on the text that comes with the program.
fn train(dir: &Path) -> String {
    let text = &xtrain::commands::corpus::TEXT[..40_000];
    std::fs::write(dir.join("train.txt"), text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    xtrain::data::tokenizer::train_byte_bpe(&lines, 500)
        .unwrap()
        .save(&dir.join("tokenizer"))
        .unwrap();
    format!(
        "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --block_size 32 --max_steps 6 \
         --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --tokenizer_name {0}/tokenizer --train_file {0}/train.txt",
        dir.display()
    )
}

/// As many examples in a step at every degree, and the same gradients exchanged.
fn assert_strong(told: &Value, degrees: &[u64], examples: u64) {
    let of = |name: &str| {
        told["degrees"]
            .as_array()
            .unwrap()
            .iter()
            .map(|at| at[name].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(told["scaling"], "strong");
    assert_eq!(
        of("degree"),
        degrees.iter().map(|n| *n as f64).collect::<Vec<_>>()
    );
    assert_eq!(
        of("examples_per_step"),
        vec![examples as f64; degrees.len()]
    );
    assert!(of("tokens_per_s").iter().all(|rate| *rate > 0.0), "{told}");
    assert_eq!(of("exchanged_bytes_per_step")[0], 0.0);
    // Every device's tokens count, of all processes: 32 an example.
    for (rate, milliseconds) in of("tokens_per_s").iter().zip(of("step_ms")) {
        let tokens = rate * milliseconds / 1e3;
        assert!(
            (tokens / (32 * examples) as f64 - 1.0).abs() < 0.3,
            "{tokens} tokens a step: {told}"
        );
    }
    let first = of("tokens_per_s")[0];
    for (rate, efficiency) in of("tokens_per_s").iter().zip(of("efficiency")) {
        assert!(
            (rate / first - efficiency).abs() < 1e-9,
            "on the CPU devices share a processor: {told}"
        );
    }
}

#[test]
fn a_bench_is_told_as_json_as_a_table_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("plot.svg");
    let told = json(&scaling(
        &format!(
            "--degrees 1,2,4 --repeats 2 --json --plot {}",
            plot.display()
        ),
        &format!("{BENCH} --batch 8"),
    ));
    assert_strong(&told, &[1, 2, 4], 8);
    for at in told["degrees"].as_array().unwrap() {
        assert_eq!(at["tokens_per_s_of_runs"].as_array().unwrap().len(), 2);
    }
    // Data parallelism exchanges every gradient once, whatever the degree.
    let width = 32;
    let layer = 12 * width * width + 13 * width;
    let parameters = 200 * width + 32 * width + 2 * layer + 2 * width;
    for at in &told["degrees"].as_array().unwrap()[1..] {
        let bytes = at["exchanged_bytes_per_step"].as_u64().unwrap();
        assert!(
            (4 * parameters..4 * parameters + 100).contains(&bytes),
            "{bytes} bytes for {parameters} parameters"
        );
        assert_eq!(at["exchanged"][0]["axis"], "data");
    }
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.matches("#4a7ab5").count() == 3,
        "{svg}"
    );

    let run = scaling(
        "--degrees 2,1 --repeats 1 --weak",
        &format!("{BENCH} --batch 2"),
    );
    run.succeeded();
    for sign in [
        "data_parallel",
        "efficiency",
        "█",
        "share this machine's",
        "T(N) / T(1)",
        "in all-reduce over data",
    ] {
        assert!(run.stdout.contains(sign), "{sign}: {}", run.stdout);
    }
    let rows: Vec<Vec<&str>> = run
        .stdout
        .lines()
        .skip(1)
        .take(2)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        (rows[0][..4].to_vec(), rows[1][..4].to_vec()),
        (vec!["1", "1", "2", "2"], vec!["2", "2", "2", "4"])
    );
    assert!(
        run.stderr.contains("data_parallel 2, run 1 of 1"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_training_run_is_scaled_by_parts() {
    let dir = tempfile::tempdir().unwrap();
    let command = train(dir.path());
    let told = json(&scaling(
        "--degrees 1,2 --repeats 1 --json --axis shard_parallel",
        &command,
    ));
    assert_strong(&told, &[1, 2], 8);
    let kinds: Vec<&str> = told["degrees"][1]["exchanged"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["kind"].as_str().unwrap())
        .collect();
    assert!(
        kinds.contains(&"all-gather") && kinds.contains(&"reduce-scatter"),
        "{kinds:?}"
    );
    let tensor = json(&scaling(
        "--degrees 2 --repeats 1 --json --axis tensor_parallel",
        &command,
    ));
    assert_eq!(tensor["degrees"][0]["examples_per_device"], 4);
}

#[test]
fn a_training_run_is_scaled_by_processes() {
    if !has_gloo() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let command = train(dir.path());
    // With a directory of the user's own, which stays as it is.
    let out = dir.path().join("out");
    let command = format!("{command} --output_dir {}", out.display());
    let told = json(&scaling(
        "--degrees 1,2 --repeats 1 --json --axis processes",
        &command,
    ));
    assert_strong(&told, &[1, 2], 8);
    assert!(!out.exists());
}

#[test]
fn what_cannot_be_scaled_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let train = train(dir.path());
    let bench = format!("{BENCH} --batch 8");
    for (flags, command, sign) in [
        ("", &*bench, "no degrees given"),
        ("--degrees 0,1", &bench, "nothing runs on 0 devices"),
        ("--degrees 1,2,1", &bench, "1 stands there twice"),
        ("--degrees 1,two", &bench, "`two` is not a whole number"),
        (
            "--degrees 1,2 --axis data",
            &bench,
            "did you mean `data_parallel`?",
        ),
        ("--degrees 1,3", &bench, "cannot be divided between 3"),
        (
            "--degrees 1,3",
            &bench,
            "set it to 9 (a multiple of 3), or add --weak",
        ),
        (
            "--degrees 1,2 --weak --axis tensor_parallel",
            &bench,
            "takes the same rows",
        ),
        (
            "--degrees 1,2 --axis processes",
            &bench,
            "bench is one process",
        ),
        ("--degrees 1,2 --device cuda", &bench, "write it after --"),
        ("--degrees 1,2", "", "no command given"),
        (
            "--degrees 1,2",
            "eval clm --model_name_or_path x",
            "`eval` runs none",
        ),
        (
            "--degrees 1,2",
            "launch --nproc_per_node 2 -- train clm",
            "--axis processes",
        ),
        (
            "--degrees 1,2",
            &format!("{bench} --data_parallel 2"),
            "is what --axis data_parallel varies",
        ),
        (
            "--degrees 1,3 --axis tensor_parallel",
            &bench,
            "3 devices cannot divide layers of 2 heads",
        ),
        (
            "--degrees 1,2",
            &format!("{bench} --no_such_flag"),
            "unknown flag --no_such_flag for `xtrain bench`",
        ),
        (
            "--degrees 1,2",
            &train.replace("--max_steps 6", ""),
            "each run would train for all epochs",
        ),
        (
            "--degrees 1,2",
            &train.replace("--max_steps 6", "--max_steps 2"),
            "leaves too little to measure",
        ),
        (
            "--degrees 1,2",
            &format!("{train} --dry_run"),
            "leave it out",
        ),
        (
            "--degrees 1,2",
            &format!("{train} --per_device_train_batch_size auto"),
            "another number at each degree",
        ),
        (
            "--degrees 1,2",
            &train.replace("train.txt", "no.txt"),
            "no.txt does not exist",
        ),
    ] {
        let run = scaling(flags, command);
        assert_eq!(run.code, Some(2), "{flags} -- {command}: {}", run.stderr);
        assert!(
            run.stderr.contains(sign),
            "{flags} -- {command}: {}",
            run.stderr
        );
        assert!(run.stdout.is_empty(), "{}", run.stdout);
    }
}

/// A mistake that only shows when a command runs is told with the degree and the command's own last
/// lines.
#[test]
fn a_run_that_fails_is_named_with_its_last_lines() {
    let run = scaling(
        "--degrees 1,2 --repeats 1",
        &format!("{BENCH} --batch 2 --seq 33"),
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for sign in [
        "the command ended with exit code 2",
        "--seq 33 is more than the model's 32 positions",
        "hint: run it by itself: xtrain bench",
    ] {
        assert!(run.stderr.contains(sign), "{sign}: {}", run.stderr);
    }
    let run = scaling(
        "--degrees 1 --plot /nowhere/at/all.svg",
        &format!("{BENCH} --batch 2"),
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr
            .contains("--plot: cannot write /nowhere/at/all.svg: No such file"),
        "{}",
        run.stderr
    );
}

/// A signal ends the run that is under way too, and nothing is told.
#[test]
fn a_signal_ends_the_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = xtrain();
    let long = train(dir.path()).replace("--max_steps 6", "--max_steps 1000000");
    command
        .env("TMPDIR", dir.path())
        .args("scaling --degrees 1,2 --".split(' '))
        .args(long.split_whitespace());
    let child = command
        .process()
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    let telemetry = || {
        let runs = std::fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.path().join("run/telemetry.jsonl"));
        runs.filter_map(|path| std::fs::read_to_string(path).ok())
            .any(|text| text.contains("\"event\":\"step\""))
    };
    while !telemetry() {
        assert!(began.elapsed().as_secs() < 120, "it takes no step");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // SAFETY: the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(143), 0));
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(
        left.len(),
        2,
        "only the tokenizer and the text are left: {left:?}"
    );
}

#[test]
fn a_plan_is_told_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!(
        "{} --data_parallel 2 --dry_run --json --output_dir {}/out",
        train(dir.path()),
        dir.path().display()
    );
    let plan = json(&xtrain().args(words.split_whitespace()).run());
    assert_eq!(
        (&plan["devices"], &plan["examples_per_step"]),
        (&2.into(), &16.into()),
        "{plan}"
    );
    assert_eq!(plan["groups"], serde_json::json!({"data": [[0, 1]]}));
    assert_eq!(plan["exchanged_per_step"][0]["kind"], "all-reduce");
    assert!(
        plan["graphs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|graph| graph["peak_bytes_per_device"].as_u64() > Some(0)),
        "{plan}"
    );
    let run = xtrain()
        .args(train(dir.path()).split_whitespace())
        .args(["--json", "--output_dir", "x"])
        .run();
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("add --dry_run"), "{}", run.stderr);
}

/// The same examples in all, in fewer steps of larger batches; and threads, which are no more of a
/// machine.
#[test]
fn examples_can_be_fixed_and_workers_are_an_axis() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let page = dir.join("page.html");
    let command = train(dir);
    let flags = format!(
        "--degrees 1,2 --repeats 1 --fixed examples --json --html {}",
        page.display()
    );
    let told = json(&scaling(&flags, &command));
    let of = |told: &Value, name: &str| -> Vec<f64> {
        let degrees = told["degrees"].as_array().unwrap().iter();
        degrees.map(|at| at[name].as_f64().unwrap()).collect()
    };
    assert_eq!(of(&told, "max_steps"), [6.0, 3.0]);
    assert_eq!(of(&told, "examples_per_step"), [8.0, 16.0]);
    assert_eq!(of(&told, "examples_per_device"), [4.0, 4.0]);
    for (rate, milliseconds) in of(&told, "samples_per_s").iter().zip(of(&told, "step_ms")) {
        let examples = rate * milliseconds / 1e3;
        assert!((examples - 8.0).abs() < 1e-6 || (examples - 16.0).abs() < 1e-6);
    }
    assert!(of(&told, "train_seconds").iter().all(|time| *time > 0.0));
    assert!(of(&told, "epoch_seconds").iter().all(|time| *time > 0.0));
    let page = std::fs::read_to_string(page).unwrap();
    for sign in [
        "<svg",
        "<th>max_steps</th>",
        "<th>epoch time</th>",
        "</html>",
    ] {
        assert!(page.contains(sign), "{sign}");
    }

    let flags = "--axis dataloader_num_workers --degrees 0,2 --repeats 1 --json";
    let told = json(&scaling(flags, &command));
    assert_eq!(of(&told, "examples_per_step"), [8.0, 8.0]);
    assert_eq!(told["efficiency_is"], "T(N) / T(0)");
    for (flags, problem) in [
        (
            "--axis dataloader_num_workers --degrees 1,2",
            "bench reads no data",
        ),
        ("--fixed examples --degrees 1,2", "bench has none"),
        (
            "--weak --fixed batch --degrees 1,2",
            "--weak and --fixed batch contradict each other",
        ),
    ] {
        let run = scaling(flags, &format!("{BENCH} --batch 8"));
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(problem), "{}", run.stderr);
    }
}
