//! A run that was stopped and resumed ends as one that was not, to the bit.

use crate::support::{data_dir, data_text, json_lines, xtrain};
use crate::train::{Bench, bytes, records};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Logs its first step, so that a test sees when training has begun.
const SHORT_RUN: [&str; 7] = [
    "--max_steps",
    "24",
    "--logging_steps",
    "4",
    "--save_steps",
    "12",
    "--logging_first_step",
];

/// Runs to the end, and the same run stopped and resumed, must agree bit for bit.
fn check_resume(extra: &[&str], stop: impl Fn(&Bench)) {
    let bench = Bench::new();
    let mut words = SHORT_RUN.to_vec();
    words.extend(extra);
    bench.train("whole", &words).succeeded();
    stop(&bench);
    let mut again = words.clone();
    again.push("--resume_from_checkpoint");
    bench.train("stopped", &again).succeeded();
    let (whole, stopped) = (bench.path("whole"), bench.path("stopped"));
    assert!(
        bytes(whole.join("model.safetensors")) == bytes(stopped.join("model.safetensors")),
        "final weights differ"
    );
    assert_eq!(
        records(&whole)
            .iter()
            .filter(|r| r.get("loss").is_some())
            .collect::<Vec<_>>(),
        records(&stopped)
            .iter()
            .filter(|r| r.get("loss").is_some())
            .collect::<Vec<_>>()
    );
    let state = |dir: &Path| -> serde_json::Value {
        serde_json::from_slice(&bytes(dir.join("checkpoint-24/training_state.json"))).unwrap()
    };
    assert_eq!(state(&whole)["state"], state(&stopped)["state"]);
}

#[test]
fn resuming_from_a_checkpoint_is_bit_exact_with_dropout_and_accumulation() {
    check_resume(&["--gradient_accumulation_steps", "3"], |bench| {
        // What a crash after step 12 leaves: the first half's checkpoint and a log that goes on for
        // a while.
        let words = [&SHORT_RUN[..], &["--gradient_accumulation_steps", "3"]].concat();
        bench.train("stopped", &words).succeeded();
        fs::remove_dir_all(bench.path("stopped/checkpoint-24")).unwrap();
        fs::remove_file(bench.path("stopped/model.safetensors")).unwrap();
    });
}

#[test]
fn resuming_in_16_bit_is_bit_exact_too() {
    let held = ["--torch_dtype", "bfloat16", "--no_master_weights"];
    for precision in [&["--bf16"][..], &["--fp16"], &held[..2], &held] {
        check_resume(precision, |bench| {
            bench
                .train("stopped", &[&SHORT_RUN[..], precision].concat())
                .succeeded();
            fs::remove_dir_all(bench.path("stopped/checkpoint-24")).unwrap();
            fs::remove_file(bench.path("stopped/model.safetensors")).unwrap();
        });
    }
}

#[test]
fn resuming_after_sigterm_is_bit_exact() {
    // Anywhere in the run, another place each time; a failure prints it.
    for delay in [0, rand::random_range(1..60), rand::random_range(60..250)] {
        println!("SIGTERM {delay} ms after the first record");
        check_resume(&[], |bench| {
            let run = bench
                .command("stopped", &SHORT_RUN)
                .run_and_signal("{'loss'", Duration::from_millis(delay));
            match run.code {
                Some(143) => assert!(
                    run.stderr.contains("--resume_from_checkpoint"),
                    "{}",
                    run.stderr
                ),
                // The signal came after the last step.
                code => assert_eq!(code, Some(0), "{}", run.stderr),
            }
        });
    }
}

#[test]
fn a_checkpoint_written_in_the_background_is_the_one_written_while_training_waits() {
    let bench = Bench::new();
    let run = |output: &str, more: &[&str]| {
        let steps = ["--max_steps", "6", "--save_steps", "2"];
        let run = bench.train(output, &[&steps, more].concat());
        run.succeeded();
        run.stderr
    };
    let background = run("background", &["--async_save", "true"]);
    for name in ["checkpoint-2", "checkpoint-4"] {
        let said = background
            .lines()
            .any(|line| line.contains(name) && line.contains("in the background, steps waited"));
        assert!(said, "{name}: {background}");
    }
    let waiting = run("waiting", &["--async_save", "false"]);
    assert!(!waiting.contains("background"), "{waiting}");
    // A run that goes on from a checkpoint of the background ends as one that was not stopped.
    let copy = bench.path("resumed/checkpoint-4");
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(bench.path("background/checkpoint-4")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    run("resumed", &["--resume_from_checkpoint"]);
    for name in [
        "checkpoint-2/model.safetensors",
        "checkpoint-2/optimizer.safetensors",
        "checkpoint-4/model.safetensors",
        "checkpoint-4/optimizer.safetensors",
        "checkpoint-6/optimizer.safetensors",
        "model.safetensors",
    ] {
        let expected = bytes(bench.path("waiting").join(name));
        assert!(
            bytes(bench.path("background").join(name)) == expected,
            "{name}"
        );
        if !name.starts_with("checkpoint-2") {
            assert!(
                bytes(bench.path("resumed").join(name)) == expected,
                "{name}"
            );
        }
    }
}

/// A run that was killed after its last save, before it removed what exceeds the limit.
#[test]
fn a_resumed_run_with_nothing_left_to_train_keeps_as_many_checkpoints_as_it_may() {
    let bench = Bench::new();
    let train = |more: &[&str]| {
        let line = "--max_steps 6 --save_steps 2 --save_total_limit 2";
        let words: Vec<&str> = line.split(' ').chain(more.iter().copied()).collect();
        bench.train("out", &words).succeeded();
    };
    let saved = || {
        let entries = fs::read_dir(bench.path("out")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut checkpoints: Vec<String> = names
            .filter(|name| name.starts_with("checkpoint-"))
            .collect();
        checkpoints.sort();
        checkpoints
    };
    train(&[]);
    assert_eq!(saved(), ["checkpoint-4", "checkpoint-6"]);
    let again = bench.path("out/checkpoint-2");
    fs::create_dir(&again).unwrap();
    for entry in fs::read_dir(bench.path("out/checkpoint-4")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), again.join(entry.file_name())).unwrap();
    }
    train(&["--resume_from_checkpoint"]);
    assert_eq!(saved(), ["checkpoint-4", "checkpoint-6"]);
}

/// A resumed run that is to forget its place in the data begins with the epoch's first batch, of
/// other data if that is what it is given.
#[test]
fn a_resumed_run_may_begin_its_epoch_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = data_text("play.txt");
    std::fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    std::fs::write(dir.join("other.txt"), &text[20_000..40_000]).unwrap();
    let train = |more: &str| {
        xtrain()
            .dir(dir)
            .args(
                "train clm --disable_tqdm --block_size 16 --train_sampling_strategy sequential --logging_steps 1 \
                 --report none --tokenizer_name"
                    .split_whitespace(),
            )
            .arg(data_dir().join("gpt2"))
            .args(more.split_whitespace())
            .run()
    };
    let sizes =
        "n_layer=1,n_head=2,n_embd=32,n_positions=32,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0";
    train(&format!(
        "--model_type gpt2 --config_overrides {sizes} --train_file train.txt --max_steps 3 --output_dir out"
    ))
    .succeeded();
    // Of the step after the checkpoint's, or of the first step of a run from its weights.
    let loss = |output: &str, more: &str, step: u64| -> f64 {
        train(&format!(
            "{more} --output_dir {output} --max_steps {step} --overwrite_output_dir"
        ))
        .succeeded();
        let records = json_lines(&dir.join(output).join("log.jsonl"));
        let found = records
            .iter()
            .rev()
            .find(|record| record["step"] == step && record.get("loss").is_some());
        found.unwrap()["loss"].as_f64().unwrap()
    };
    let first = |file: &str| {
        let more = format!("--model_name_or_path out/checkpoint-3 --train_file {file}");
        loss("first", &more, 1)
    };
    let model = format!(
        "--model_type gpt2 --config_overrides {sizes} --resume_from_checkpoint out/checkpoint-3"
    );
    let on =
        |file: &str, more: &str| loss("resumed", &format!("{model} --train_file {file} {more}"), 4);
    assert_eq!(on("train.txt", "--ignore_data_skip"), first("train.txt"));
    assert!(on("train.txt", "") != first("train.txt"));
    assert_eq!(on("other.txt", "--ignore_data_skip"), first("other.txt"));
    let refused = train(&format!(
        "{model} --train_file other.txt --output_dir refused --max_steps 4"
    ));
    assert!(
        refused.stderr.contains("training data"),
        "{}",
        refused.stderr
    );
}
