//! Models, tokenizers and data sets by their names on the Hub, as a user gives them; the Hub is one
//! on the loopback interface that serves the files of `tests/data`.

#[path = "../src/hub/test_server.rs"]
#[allow(dead_code, reason = "the unit tests use all of it")]
pub mod test_server;

use std::fs;
use std::path::Path;

use serde_json::Value;
use test_server::{Fault, TestHub};

use crate::support::{Command, data_dir, xtrain};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn start(data: &Path) -> TestHub {
    let hub = TestHub::start();
    let read = |path: &str| fs::read(data.join(path)).unwrap();
    hub.add(
        "models/org/tokenizer",
        "main",
        COMMIT,
        &[("tokenizer.json", read("gpt2/tokenizer.json"))],
    );
    let pages = [
        ("README.md", b"Pages".to_vec()),
        (
            "data/train-00000-of-00001.parquet",
            read("pages/train-00000-of-00001.parquet"),
        ),
        (
            "data/validation-00000-of-00001.parquet",
            read("pages/validation-00000-of-00001.parquet"),
        ),
    ];
    hub.add("datasets/org/pages", "main", COMMIT, &pages);
    hub
}

/// The program with this Hub and a cache of its own.
pub fn with_hub(hub: &TestHub, home: &Path) -> Command {
    let mut command = xtrain();
    command
        .env("HF_ENDPOINT", &hub.url)
        .env("HF_HOME", home)
        .env("HF_TOKEN", "")
        .env("HF_HUB_OFFLINE", "0")
        .dir(home);
    for variable in ["HF_HUB_CACHE", "HF_TOKEN_PATH", "TRANSFORMERS_OFFLINE"] {
        command.env(variable, "");
    }
    command
}

#[test]
fn a_run_takes_everything_from_the_hub_and_then_from_its_cache() {
    let data = data_dir();
    let hub = start(&data);
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    // Half of the data set arrives at the first attempt.
    hub.fault("data/train-00000-of-00001.parquet", Fault::BreaksOff(1));
    let train = [
        "train",
        "clm",
        "--model_type",
        "gpt2",
        "--config_overrides",
        "n_layer=1,n_head=1,n_embd=8,n_positions=32",
        "--tokenizer_name",
        "org/tokenizer",
        "--dataset_name",
        "org/pages",
        "--max_train_samples",
        "8",
        "--max_eval_samples",
        "4",
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "2",
        "--block_size",
        "16",
        "--output_dir",
        "out",
    ];
    let run = with_hub(&hub, home).args(train).run();
    run.succeeded();
    let out = home.join("out");
    let mut files = vec![];
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        files.push((name, fs::read(out.join(name)).unwrap()));
    }
    hub.add("models/org/trained", "main", COMMIT, &files);
    hub.protect("models/org/trained", "hf_token");
    let eval = |change: &dyn Fn(&mut Command)| {
        let mut command = with_hub(&hub, home);
        command.args([
            "eval",
            "clm",
            "--model_name_or_path",
            "org/trained",
            "--dataset_name",
            "org/pages",
            "--block_size",
            "16",
        ]);
        command.args(["--max_eval_samples", "4", "--json"]);
        change(&mut command);
        command.run()
    };
    let refused = eval(&|_| {});
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("without a token") && refused.stderr.contains("HF_TOKEN"),
        "{}",
        refused.stderr
    );
    let fetched = eval(&|command| {
        command.args(["--token", "hf_token"]);
    });
    fetched.succeeded();
    let asked = hub.requests().len();
    let offline = eval(&|command| {
        command.env("HF_HUB_OFFLINE", "1");
    });
    offline.succeeded();
    let local_only = eval(&|command| {
        command.args(["--local_files_only"]);
    });
    local_only.succeeded();
    let not_cached = eval(&|command| {
        command.args(["--tokenizer_name", "org/none", "--local_files_only"]);
    });
    assert_eq!(not_cached.code, Some(1), "{}", not_cached.stderr);
    assert!(
        not_cached.stderr.contains("org/none") && not_cached.stderr.contains("local_files_only"),
        "{}",
        not_cached.stderr
    );
    assert_eq!(
        hub.requests().len(),
        asked,
        "offline means that nothing is asked"
    );
    let loss = |text: &str| {
        serde_json::from_str::<Value>(text.trim()).unwrap()["eval_loss"]
            .as_f64()
            .unwrap()
    };
    assert_eq!(loss(&fetched.stdout), loss(&offline.stdout));
    assert_eq!(loss(&fetched.stdout), loss(&local_only.stdout));
    // The same numbers as from the directory itself.
    let local = eval(&|command| {
        command.args(["--model_name_or_path", out.to_str().unwrap()]);
    });
    local.succeeded();
    assert_eq!(loss(&local.stdout), loss(&fetched.stdout));
}

#[test]
fn names_that_lead_nowhere_are_told() {
    let data = data_dir();
    let hub = start(&data);
    let home = tempfile::tempdir().unwrap();
    let base = [
        "train",
        "clm",
        "--model_type",
        "gpt2",
        "--output_dir",
        "out",
    ];
    let cases: [(&[&str], i32, &[&str]); 8] = [
        (
            &[
                "--tokenizer_name",
                "org/none",
                "--dataset_name",
                "org/pages",
            ],
            1,
            &["no model org/none at revision main", "give a path"],
        ),
        (
            &[
                "--tokenizer_name",
                "org/tokenizer",
                "--dataset_name",
                "org/none",
            ],
            1,
            &["no data set org/none"],
        ),
        (
            &[
                "--tokenizer_name",
                "org/tokenizer",
                "--dataset_name",
                "org/pages",
                "--dataset_config_name",
                "de",
            ],
            1,
            &["no configuration \"de\"", "default"],
        ),
        (
            &[
                "--tokenizer_name",
                "org/tokenizer",
                "--dataset_name",
                "org/pages",
                "--model_revision",
                "v9",
            ],
            1,
            &["revision v9"],
        ),
        (
            &[
                "--tokenizer_name",
                "org/tokenizer",
                "--dataset_config_name",
                "de",
                "--train_file",
                "x.txt",
            ],
            2,
            &["x.txt does not exist"],
        ),
        (
            &[
                "--tokenizer_name",
                "org/tokenizer",
                "--dataset_name",
                "../c4",
            ],
            1,
            &["nor a name on the Hub"],
        ),
        (
            &[
                "--tokenizer_name",
                "./org/tokenizer",
                "--dataset_name",
                "org/pages",
            ],
            2,
            &["--tokenizer_name: ./org/tokenizer does not exist here"],
        ),
        (
            &[
                "--model_name_or_path",
                "org/tokenizer",
                "--config_overrides",
                "n_layer=1",
                "--dataset_name",
                "org/pages",
            ],
            2,
            &["--config_overrides does not go with"],
        ),
    ];
    for (args, code, parts) in cases {
        let run = with_hub(&hub, home.path()).args(base).args(args).run();
        assert_eq!(run.code, Some(code), "{args:?}: {}", run.stderr);
        assert!(
            parts.iter().all(|part| run.stderr.contains(part)),
            "{parts:?} in {}",
            run.stderr
        );
    }
    assert!(!home.path().join("out").exists());
}

#[test]
fn the_test_split_of_a_data_set_is_labelled() {
    let data = data_dir();
    let hub = start(&data);
    let rows = data.join("reviews/validation-00000-of-00001.parquet");
    let files = [
        (
            "data/train-00000-of-00001.parquet",
            fs::read(&rows).unwrap(),
        ),
        ("data/test-00000-of-00001.parquet", fs::read(&rows).unwrap()),
    ];
    hub.add("datasets/org/reviews", "main", COMMIT, &files);
    let home = tempfile::tempdir().unwrap();
    let run = with_hub(&hub, home.path())
        .args([
            "train",
            "cls",
            "--model_type",
            "bert",
            "--max_steps",
            "2",
            "--max_train_samples",
            "16",
            "--output_dir",
            "out",
        ])
        .args([
            "--config_overrides",
            "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32",
        ])
        .args([
            "--max_seq_length",
            "16",
            "--disable_tqdm",
            "--tokenizer_name",
        ])
        .arg(data.join("bert-uncased"))
        .arg("--train_file")
        .arg(&rows)
        .run();
    run.succeeded();
    let predict = |args: &[&str]| {
        let mut command = with_hub(&hub, home.path());
        command.args([
            "predict",
            "cls",
            "--model_name_or_path",
            "out",
            "--max_seq_length",
            "16",
            "--max_predict_samples",
            "20",
        ]);
        command.args(args).run()
    };
    let named = predict(&["--dataset_name", "org/reviews"]);
    named.succeeded();
    let local = predict(&["--test_file", rows.to_str().unwrap()]);
    local.succeeded();
    assert_eq!(named.stdout, local.stdout);
    assert_eq!(named.stdout.lines().count(), 21, "{}", named.stdout);
    let train = hub
        .requests()
        .into_iter()
        .filter(|line| line.contains("train-00000"))
        .count();
    assert_eq!(train, 0, "only the test split is fetched");
    let none = predict(&["--dataset_name", "org/pages"]);
    assert!(
        none.code == Some(2) && none.stderr.contains("org/pages has no test split"),
        "{}",
        none.stderr
    );
    let both = predict(&[
        "--dataset_name",
        "org/reviews",
        "--test_file",
        rows.to_str().unwrap(),
    ]);
    assert!(
        both.code == Some(2) && both.stderr.contains("leave one of them out"),
        "{}",
        both.stderr
    );
}

/// A mirror that lies: the run ends with one message, writes nothing outside of the cache, and the
/// token stays with the mirror's own host.
#[test]
fn a_hostile_hub_gets_neither_files_nor_the_token() {
    let data = data_dir();
    let foreign = TestHub::start();
    let tag = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let victim = home.join("victim.json");
    fs::write(&victim, "a victim").unwrap();
    let first = format!("ETag: \"{tag}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: 2\r\n");
    let of = |etag: &str, commit: &str| {
        format!("ETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\nContent-Length: 2\r\n\r\n{{}}")
    };
    let path = victim.display().to_string();
    let away = format!("Location: {}/x\r\nX-Repo-Commit: {COMMIT}\r\n", foreign.url);
    for (status, second, part) in [
        ("200 OK", of(&path, COMMIT), "is no digest"),
        ("200 OK", of(tag, "../../../victim.json"), "is of commit"),
        ("302 Found", away.clone(), "status 404 where tokenizer.json"),
        (
            "302 Found",
            String::new(),
            "a redirect (302) without an address",
        ),
        ("304 Not Modified", String::new(), "status 304"),
    ] {
        let hub = start(&data);
        let head = "Connection: close\r\n";
        let asked = "HEAD /org/tokenizer/resolve";
        hub.reply(asked, 1, format!("HTTP/1.1 200 OK\r\n{head}{first}\r\n"));
        let answer = format!("HTTP/1.1 {status}\r\n{head}{second}\r\n\r\n");
        hub.reply("GET /org/tokenizer/resolve", 1, answer);
        let words = "train clm --model_type gpt2 --tokenizer_name org/tokenizer --dataset_name org/pages --output_dir out";
        let run = with_hub(&hub, home)
            .env("HF_TOKEN", "hf_secret")
            .args(words.split(' '))
            .run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert_eq!(run.stderr.matches("error:").count(), 1, "{}", run.stderr);
        assert!(run.stderr.contains(part), "{part} in {}", run.stderr);
        assert!(!run.stderr.contains("hf_secret"), "{}", run.stderr);
        assert_eq!(fs::read(&victim).unwrap(), b"a victim");
        assert!(hub.tokens().iter().any(|line| line.starts_with("GET /org")));
        fs::remove_dir_all(home.join("hub")).unwrap();
    }
    assert!(!foreign.requests().is_empty());
    assert_eq!(foreign.tokens(), [""; 0]);
}
