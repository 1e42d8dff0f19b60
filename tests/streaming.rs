//! Streams as a user trains on them: from files and from a store on the loopback interface,
//! stopped, killed, resumed, and refused.

#[allow(dead_code, reason = "several test modules use it")]
pub mod test_server;

use crate::support::{Command, Run, data_dir, data_text, json_lines, xtrain};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use test_server::{Fault, TestStore};

struct Bench {
    dir: TempDir,
    data: PathBuf,
    store: TestStore,
}

impl Bench {
    fn new() -> Self {
        let data = data_dir();
        let (dir, store) = (tempfile::tempdir().unwrap(), TestStore::start());
        let text = data_text("play.txt");
        let (half, whole) = (40_000, 80_000);
        fs::write(dir.path().join("a.txt"), &text[..half]).unwrap();
        let rows = text[half..whole]
            .lines()
            .map(|line| format!("{}\n", serde_json::json!({"text": line})));
        fs::write(dir.path().join("b.jsonl"), rows.collect::<String>()).unwrap();
        fs::copy(
            data.join("pages/train-00000-of-00001.parquet"),
            dir.path().join("c.parquet"),
        )
        .unwrap();
        for name in ["a.txt", "b.jsonl", "c.parquet"] {
            store.put(
                &format!("/bucket/{name}"),
                fs::read(dir.path().join(name)).unwrap(),
            );
        }
        Bench { dir, data, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A stream of these files for a tiny GPT-2. The store needs credentials, patience is short.
    fn command(&self, files: &[&str], output: &str, extra: &[&str]) -> Command {
        let mut command = xtrain();
        command
            .dir(self.dir.path())
            .args([
                "train",
                "clm",
                "--model_type",
                "gpt2",
                "--disable_tqdm",
                "--streaming",
                "--shuffle_buffer_size",
                "40",
            ])
            .args([
                "--config_overrides",
                "n_layer=1,n_head=2,n_embd=16,n_positions=32",
                "--block_size",
                "32",
            ])
            .args([
                "--per_device_train_batch_size",
                "4",
                "--logging_steps",
                "4",
                "--output_dir",
                output,
                "--cache_dir",
                "cache",
            ])
            .arg("--tokenizer_name")
            .arg(self.data.join("gpt2"))
            .arg("--train_file")
            .args(files)
            .args(extra)
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
            .env("AWS_ENDPOINT", &self.store.url)
            .env("AWS_ACCESS_KEY_ID", "id")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    fn weights(&self, output: &str) -> Vec<u8> {
        fs::read(self.path(output).join("model.safetensors")).unwrap()
    }
}

fn losses(dir: &Path) -> Vec<f64> {
    json_lines(&dir.join("log.jsonl"))
        .iter()
        .filter_map(|record| record["loss"].as_f64())
        .collect()
}

/// Runs until so many records were logged, and sends a signal.
fn at_record(command: &mut Command, wanted: usize, signal: i32) -> Run {
    let mut seen = 0;
    command.run_watching(|line, pid| {
        seen += usize::from(line.contains("{'loss'"));
        if seen == wanted && line.contains("{'loss'") {
            // SAFETY: the child has not been waited for, so its number is still its own.
            unsafe { libc::kill(pid as i32, signal) };
        }
    })
}

/// The uninterrupted run, one that is stopped by a signal and goes on, and one that is killed and
/// goes on from its checkpoint: the same weights, byte for byte. More rows are taken than one pass
/// over the files has.
#[test]
fn a_stream_goes_on_bit_for_bit_wherever_it_was_stopped() {
    let bench = Bench::new();
    let files = ["a.txt", "b.jsonl"];
    let steps = [
        "--max_steps",
        "120",
        "--gradient_accumulation_steps",
        "2",
        "--save_steps",
        "20",
    ];
    bench.command(&files, "whole", &steps).run().succeeded();
    let wanted = bench.weights("whole");
    let all = losses(&bench.path("whole"));
    assert!(all.last() < all.first(), "{all:?}");

    let stopped = at_record(
        &mut bench.command(&files, "stopped", &steps),
        6,
        libc::SIGTERM,
    );
    assert_eq!(stopped.code, Some(143), "{}", stopped.stderr);
    let resume = |output: &str| {
        bench
            .command(
                &files,
                output,
                &[&steps[..], &["--resume_from_checkpoint"]].concat(),
            )
            .run()
    };
    resume("stopped").succeeded();
    assert!(bench.weights("stopped") == wanted, "after SIGTERM");
    assert_eq!(losses(&bench.path("stopped")), all);

    // After step 44, so that what came after checkpoint-40 is lost.
    let killed = at_record(
        &mut bench.command(&files, "killed", &steps),
        11,
        libc::SIGKILL,
    );
    assert_eq!(killed.code, None, "{}", killed.stdout);
    resume("killed").succeeded();
    assert!(bench.weights("killed") == wanted, "after SIGKILL");

    // With other settings its position would mean another thing.
    let other = bench
        .command(
            &files,
            "killed",
            &[&steps[..], &["--resume_from_checkpoint", "--seed", "7"]].concat(),
        )
        .run();
    assert!(
        other.code == Some(2) && other.stderr.contains("--seed was"),
        "{}",
        other.stderr
    );
    let fewer = bench
        .command(
            &["a.txt"],
            "killed",
            &[&steps[..], &["--resume_from_checkpoint"]].concat(),
        )
        .run();
    assert!(
        fewer.code == Some(2) && fewer.stderr.contains("training data"),
        "{}",
        fewer.stderr
    );
    // A longer run goes on.
    let longer = [
        "--max_steps",
        "124",
        "--gradient_accumulation_steps",
        "2",
        "--resume_from_checkpoint",
    ];
    bench.command(&files, "killed", &longer).run().succeeded();
}

#[test]
fn objects_of_a_web_server_and_of_s3_are_trained_on_like_files() {
    let bench = Bench::new();
    let steps = ["--max_steps", "12", "--save_strategy", "no"];
    let names = ["a.txt", "b.jsonl", "c.parquet"];
    bench.command(&names, "here", &steps).run().succeeded();
    let file = format!("file://{}", bench.path("a.txt").display());
    bench
        .command(&[&file, "b.jsonl", "c.parquet"], "urls", &steps)
        .run()
        .succeeded();
    assert!(bench.weights("urls") == bench.weights("here"), "file://");

    bench.store.fault("/bucket/a.txt", Fault::BreaksOff(1));
    bench
        .store
        .fault("/bucket/b.jsonl", Fault::Status("503 Slow Down", 2));
    bench.store.fault("/bucket/c.parquet", Fault::BreaksOff(2));
    let web = names.map(|name| format!("{}/bucket/{name}", bench.store.url));
    bench
        .command(&web.each_ref().map(String::as_str), "web", &steps)
        .run()
        .succeeded();
    assert!(bench.weights("web") == bench.weights("here"), "http://");

    bench.store.fault("/bucket/a.txt", Fault::NeedsSignature);
    let s3 = [
        "s3://bucket/a.txt",
        "s3://bucket/b.js*",
        "s3://bucket/c.parquet",
    ];
    bench.command(&s3, "s3", &steps).run().succeeded();
    assert!(bench.weights("s3") == bench.weights("here"), "s3://");
    let refused = bench
        .command(&s3, "denied", &steps)
        .env("AWS_SKIP_SIGNATURE", "true")
        .run();
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("s3://bucket/a.txt may not be read: set AWS_ACCESS_KEY_ID"),
        "{}",
        refused.stderr
    );

    // A resumed run finds its place in a parquet file, which another one by then is refused.
    let rows = ["--max_steps", "12", "--save_steps", "6"];
    bench
        .command(
            &web[2..].iter().map(String::as_str).collect::<Vec<_>>(),
            "rows",
            &rows,
        )
        .run()
        .succeeded();
    let whole = bench.weights("rows");
    fs::remove_dir_all(bench.path("rows/checkpoint-12")).unwrap();
    let resume = || {
        let mut command = bench.command(&[&web[2]], "rows", &rows);
        command.arg("--resume_from_checkpoint").run()
    };
    resume().succeeded();
    assert!(bench.weights("rows") == whole, "parquet, resumed");
    fs::remove_dir_all(bench.path("rows/checkpoint-12")).unwrap();
    bench.store.fault("/bucket/c.parquet", Fault::Retagged);
    let refused = resume();
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("is not the file that the checkpoint was saved with"),
        "{}",
        refused.stderr
    );
}

/// Not streamed, an object is tokenized once, by its ETag.
#[test]
fn an_object_is_tokenized_once() {
    let bench = Bench::new();
    let url = format!("{}/bucket/b.jsonl", bench.store.url);
    let prepared = |output: &str| {
        let mut command = xtrain();
        command
            .dir(bench.dir.path())
            .args([
                "train",
                "clm",
                "--model_type",
                "gpt2",
                "--disable_tqdm",
                "--cache_dir",
                "cache",
                "--output_dir",
                output,
            ])
            .args([
                "--config_overrides",
                "n_layer=1,n_head=2,n_embd=16,n_positions=32",
                "--block_size",
                "32",
                "--max_steps",
                "2",
            ])
            .arg("--tokenizer_name")
            .arg(bench.data.join("gpt2"))
            .args(["--train_file", &url]);
        command
    };
    prepared("prepared").run().succeeded();
    let asked = bench.store.requests().len();
    prepared("again").run().succeeded();
    let again = &bench.store.requests()[asked..];
    assert!(
        !again.is_empty() && again.iter().all(|request| request.starts_with("HEAD ")),
        "{again:?}"
    );
    let refused = prepared("refused")
        .args(["--shuffle_buffer_size", "9"])
        .run();
    assert!(
        refused.code == Some(2)
            && refused
                .stderr
                .contains("--shuffle_buffer_size has no effect without --streaming"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_is_wrong_with_an_object_is_told() {
    let bench = Bench::new();
    let steps = ["--max_steps", "400", "--save_strategy", "no"];
    let run = |name: &str, fault: Option<Fault>| -> Run {
        let path = format!("/bucket/{name}");
        bench
            .store
            .put(&path, fs::read(bench.path("a.txt")).unwrap());
        if let Some(fault) = fault {
            bench.store.fault(&path, fault);
        }
        bench
            .command(&[&format!("{}{path}", bench.store.url)], "out", &steps)
            .run()
    };
    let missing = bench
        .command(&[&format!("{}/none.txt", bench.store.url)], "out", &steps)
        .run();
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    assert!(
        missing
            .stderr
            .contains("none.txt was not found: the server answered 404"),
        "{}",
        missing.stderr
    );
    let cases = [
        (
            "denied.txt",
            Fault::NeedsSignature,
            "may not be read: only files that anybody may read",
        ),
        ("silent.txt", Fault::Silent, "timeout"),
        (
            "failing.txt",
            Fault::Status("500 Internal Server Error", 100),
            "500 Internal Server Error",
        ),
        ("cut.txt", Fault::BreaksOff(100), "cut.txt cannot be read"),
        ("whole.txt", Fault::NoRanges, "its server ignores ranges"),
        // HEAD at the check and at the start of the stream, its first piece, and then another
        // object.
        (
            "changed.txt",
            Fault::ChangesAfter(3),
            "changed while it was read",
        ),
    ];
    for (name, fault, wanted) in cases {
        let run = run(name, Some(fault));
        assert_eq!(run.code, Some(1), "{name}: {}", run.stderr);
        assert!(
            run.stderr.contains(name) && run.stderr.contains(wanted),
            "{name}: {}",
            run.stderr
        );
        assert!(!bench.path("out/model.safetensors").exists(), "{name}");
        let _ = fs::remove_dir_all(bench.path("out"));
    }
}

#[test]
fn settings_that_make_no_stream_are_refused() {
    let bench = Bench::new();
    let cases: [(&str, &[&str], &str); 9] = [
        ("a.txt", &[], "--max_steps"),
        (
            "a.txt",
            &["--max_steps", "2", "--save_strategy", "epoch"],
            "--save_strategy steps",
        ),
        (
            "a.txt",
            &["--max_steps", "2", "--do_train", "--do_eval"],
            "--validation_file",
        ),
        ("none.txt", &["--max_steps", "2"], "none.txt does not exist"),
        (
            "abfs://bucket/a.txt",
            &["--max_steps", "2"],
            "abfs:// is not supported",
        ),
        (
            "s3://bucket/*/a.txt",
            &["--max_steps", "2"],
            "in the last part of the address",
        ),
        ("https://host/a.txt?x=1", &["--max_steps", "2"], "query"),
        (
            "a.txt",
            &["--max_steps", "2", "--shuffle_buffer_size", "many"],
            "0 or more",
        ),
        (
            "a.txt",
            &["--max_steps", "2", "--streaming", "maybe"],
            "true or false",
        ),
    ];
    for (file, extra, wanted) in cases {
        let run = bench.command(&[file], "out", extra).run();
        assert_eq!(run.code, Some(2), "{extra:?}: {}", run.stderr);
        assert!(run.stderr.contains(wanted), "{wanted} in {}", run.stderr);
    }
}

/// Masked models and classifiers, whose labels a stream cannot tell, and the plan of a stream.
#[test]
fn the_other_tasks_stream_too() {
    let bench = Bench::new();
    let reviews = bench.data.join("reviews");
    let train = |task: &str, output: &str, extra: &[&str]| {
        let mut command = xtrain();
        command
            .dir(bench.dir.path())
            .args([
                "train",
                task,
                "--model_type",
                "bert",
                "--disable_tqdm",
                "--streaming",
                "--max_steps",
                "16",
            ])
            .args([
                "--config_overrides",
                "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32",
            ])
            .args([
                "--max_seq_length",
                "32",
                "--output_dir",
                output,
                "--cache_dir",
                "cache",
                "--save_steps",
                "8",
            ])
            .arg("--tokenizer_name")
            .arg(bench.data.join("bert-uncased"))
            .args(extra);
        command.run()
    };
    let table = reviews.join("train.tsv");
    let table = [
        "--train_file",
        table.to_str().unwrap(),
        "--pad_to_bucket",
        "16",
    ];
    let unknown = train("cls", "cls", &table);
    assert!(
        unknown.code != Some(0) && unknown.stderr.contains("--labels no,yes"),
        "{}",
        unknown.stderr
    );
    let labels = [&table[..], &["--labels", "0,1"]].concat();
    let plan = train("cls", "cls", &[&labels[..], &["--dry_run"]].concat());
    plan.succeeded();
    assert!(
        plan.stdout
            .contains("streamed from 1 files, 1,000 rows in the buffer"),
        "{}",
        plan.stdout
    );
    assert!(
        plan.stdout.contains("train.16") && plan.stdout.contains("train.32"),
        "{}",
        plan.stdout
    );
    train("cls", "cls", &labels).succeeded();
    let text = ["--train_file", "a.txt", "b.jsonl"];
    train("mlm", "mlm", &text).succeeded();
    // Masks are drawn by the batch's number, so that a resumed run has the same ones.
    for (task, extra) in [("cls", &labels[..]), ("mlm", &text)] {
        let whole = bench.weights(task);
        fs::remove_dir_all(bench.path(task).join("checkpoint-16")).unwrap();
        train(task, task, &[extra, &["--resume_from_checkpoint"]].concat()).succeeded();
        assert!(bench.weights(task) == whole, "{task}");
    }
}
