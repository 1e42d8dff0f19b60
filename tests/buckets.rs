//! `--output_dir` in a bucket, against an S3 store on the loopback interface. A directory of the cache stands for a
//! machine: another one has nothing of the run but what the bucket has.

use crate::streaming::test_server::{Fault, TestStore};
use crate::support::{Run, data_dir, data_text, snapshot, xtrain};
use std::fs;
use std::path::{Path, PathBuf};

const URL: &str = "s3://runs/play/one";
const INSIDE: &str = "/runs/play/one/";

struct Place {
    store: TestStore,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("train.txt"),
            &data_text("play.txt")[..20_000],
        )
        .unwrap();
        Place {
            store: TestStore::start(),
            dir,
        }
    }

    /// A run of six steps on a machine.
    fn train(&self, machine: &str, output_dir: &str, more: &str) -> Run {
        let line = "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --logging_steps 1 --max_steps 6 \
                    --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --save_steps 2 --do_train \
                    --per_device_train_batch_size 4";
        xtrain()
            .dir(self.dir.path())
            .args(line.split_whitespace())
            .args([
                "--tokenizer_name",
                &data_dir().join("gpt2").display().to_string(),
            ])
            .args(["--cache_dir", machine, "--output_dir", output_dir])
            .args(more.split_whitespace())
            .env("AWS_ENDPOINT", &self.store.url)
            .env("AWS_ACCESS_KEY_ID", "id")
            .env("AWS_SECRET_ACCESS_KEY", "key")
            .env("AWS_REGION", "eu-west-1")
            .run()
    }

    /// The run's directory on a machine.
    fn local(&self, machine: &str) -> PathBuf {
        self.dir
            .path()
            .join(machine)
            .join("outputs/s3/runs/play/one")
    }

    fn checkpoints(&self) -> Vec<String> {
        let names = self.store.names();
        let whole = names.iter().filter_map(|name| {
            let inside = name.strip_prefix(INSIDE)?;
            Some(inside.strip_suffix("/training_state.json")?.to_string())
        });
        whole.collect()
    }
}

/// The files of a directory but what is hidden, and logs, which say when they were written.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let named = snapshot(dir).into_iter().filter_map(|(path, bytes)| {
        let name = path
            .strip_prefix(dir)
            .unwrap_or(&path)
            .to_str()?
            .to_string();
        (!name.starts_with('.') && !name.contains("telemetry")).then_some((name, bytes))
    });
    named.collect()
}

#[test]
fn a_run_is_in_the_bucket_and_goes_on_on_another_machine() {
    let place = Place::new();
    let reference = place.train("here", "reference", "");
    reference.succeeded();
    let first = place.train("first", URL, "--save_total_limit 2");
    first.succeeded();
    assert!(
        first.stdout.contains(&format!("to {URL}")),
        "{}",
        first.stdout
    );
    assert_eq!(place.checkpoints(), ["checkpoint-4", "checkpoint-6"]);
    for (name, bytes) in files(&place.local("first")) {
        let there = place.store.bytes(&format!("{INSIDE}{name}"));
        assert!(there == bytes, "{name} differs in the bucket");
    }

    // As if it had been killed while it uploaded its last checkpoint.
    place
        .store
        .remove(&format!("{INSIDE}checkpoint-6/training_state.json"));
    place.store.remove(&format!("{INSIDE}model.safetensors"));
    let second = place.train(
        "second",
        URL,
        "--resume_from_checkpoint --save_total_limit 2",
    );
    second.succeeded();
    assert!(
        second.stderr.contains("fetched checkpoint-4"),
        "{}",
        second.stderr
    );
    assert_eq!(place.checkpoints(), ["checkpoint-4", "checkpoint-6"]);
    let model = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
    let expected = model(&place.dir.path().join("reference"));
    assert!(model(&place.local("second")) == expected);
    assert!(place.store.bytes(&format!("{INSIDE}model.safetensors")) == expected);
}

#[test]
fn another_runs_files_are_kept_until_they_are_given_up() {
    let place = Place::new();
    place.train("first", URL, "").succeeded();
    assert_eq!(
        place.checkpoints(),
        ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    );
    let before = place.store.names();
    let elsewhere = place.local("first").join("checkpoint-2");
    let from_elsewhere = format!("--resume_from_checkpoint {}", elsewhere.display());
    for more in ["", &from_elsewhere] {
        let refused = place.train("second", URL, more);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(
            refused.stderr.contains(&format!("{URL} is not empty")),
            "{}",
            refused.stderr
        );
        assert_eq!(place.store.names(), before);
    }
    let shorter = "--overwrite_output_dir --max_steps 3 --seed 7 --save_steps 3";
    place.train("second", URL, shorter).succeeded();
    assert_eq!(place.checkpoints(), ["checkpoint-3"]);

    // The first machine is further, in the run that was given up: it goes on with the last one, and sends nothing else.
    let model = format!("{INSIDE}model.safetensors");
    let sent_models = || {
        let requests = place.store.requests();
        let sent = format!("PUT {model} ");
        requests.iter().filter(|it| it.starts_with(&sent)).count()
    };
    let before = sent_models();
    let resumed = place.train(
        "first",
        URL,
        "--resume_from_checkpoint --seed 7 --save_steps 3",
    );
    resumed.succeeded();
    assert!(
        resumed.stderr.contains("fetched checkpoint-3"),
        "{}",
        resumed.stderr
    );
    assert_eq!(place.checkpoints(), ["checkpoint-3", "checkpoint-6"]);
    let state = place
        .store
        .bytes(&format!("{INSIDE}checkpoint-6/training_state.json"));
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(state["state"]["run"], 1);
    assert_eq!(sent_models(), before + 1);
}

#[test]
fn checkpoints_that_an_outage_stopped_follow_later() {
    let place = Place::new();
    // The log and checkpoint-2 fail at the first save, checkpoint-4 at the second, and checkpoint-2 again at the third.
    let refused = [
        ("log.jsonl", 1),
        ("checkpoint-4/training_state.json", 1),
        ("checkpoint-2/training_state.json", 2),
    ];
    for (name, times) in refused {
        let fault = Fault::Status("403 Forbidden", times);
        place.store.fault(&format!("{INSIDE}{name}"), fault);
    }
    let run = place.train("first", URL, "");
    run.succeeded();
    for (name, _) in refused {
        let warning = format!("warning: not uploaded: {name}: ");
        assert!(run.stderr.contains(&warning), "{}", run.stderr);
    }
    for (name, bytes) in files(&place.local("first")) {
        let there = place.store.bytes(&format!("{INSIDE}{name}"));
        assert!(there == bytes, "{name} differs in the bucket");
    }
}

#[test]
fn a_model_without_checkpoints_is_not_replaced() {
    let place = Place::new();
    // A run that was killed before it began has left this, which is nobody's work.
    place
        .store
        .put(&format!("{INSIDE}.xtrain-trial"), Vec::new());
    place.train("first", URL, "--save_strategy no").succeeded();
    let before = place.store.names();
    assert!(before.contains(&format!("{INSIDE}model.safetensors")));
    for (flag, problem) in [
        ("--resume_from_checkpoint auto", "is not empty"),
        ("--resume_from_checkpoint", "has no checkpoint"),
    ] {
        let refused = place.train("second", URL, flag);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let problem = format!("{URL} {problem}");
        assert!(refused.stderr.contains(&problem), "{}", refused.stderr);
    }
    assert_eq!(place.store.names(), before);
}

#[test]
fn a_bucket_that_takes_nothing_costs_no_steps_and_no_files() {
    let place = Place::new();
    let trial = format!("{INSIDE}.xtrain-trial");
    place
        .store
        .fault(&trial, Fault::Status("403 Forbidden", usize::MAX));
    let refused = place.train("first", URL, "");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains(URL) && refused.stderr.contains("credentials"),
        "{}",
        refused.stderr
    );
    assert!(!place.local("first").join("log.jsonl").exists());

    let model = format!("{INSIDE}model.safetensors");
    place.store.fault(&trial, Fault::Status("403 Forbidden", 0));
    place
        .store
        .fault(&model, Fault::Status("403 Forbidden", usize::MAX));
    let state = format!("{INSIDE}checkpoint-4/training_state.json");
    place
        .store
        .fault(&state, Fault::Status("403 Forbidden", usize::MAX));
    let failed = place.train("first", URL, "");
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("model.safetensors")
            && failed.stderr.contains("the run has ended well"),
        "{}",
        failed.stderr
    );
    assert!(place.local("first").join("model.safetensors").exists());
    assert_eq!(place.checkpoints(), ["checkpoint-2", "checkpoint-6"]);
    for name in [&model, &state] {
        place.store.fault(name, Fault::Status("403 Forbidden", 0));
    }
    place
        .train("first", URL, "--resume_from_checkpoint")
        .succeeded();
    assert!(place.store.names().contains(&model));
    assert_eq!(place.checkpoints().len(), 3);
}

#[test]
fn only_training_writes_into_a_bucket() {
    let place = Place::new();
    for (line, expected) in [
        (
            "merge --model_name_or_path m --adapter_name_or_path a --output_dir s3://b/c",
            "only `xtrain train`",
        ),
        (
            "train clm --do_train false --do_eval --output_dir s3://b/c",
            "only `xtrain train`",
        ),
        (
            "train clm --output_dir hdfs://b/c",
            "hdfs:// is not supported",
        ),
        ("train clm --output_dir s3:///c", "names no folder"),
    ] {
        let run = xtrain()
            .dir(place.dir.path())
            .args(line.split_whitespace())
            .run();
        assert_eq!(run.code, Some(2), "{line}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{line}: {}", run.stderr);
    }
}
