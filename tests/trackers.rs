//! `--report_to`: what trackers get of a run is what its log has, whatever happens to the run.

use crate::support::{Command, data_dir, data_text, json_lines, xtrain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use xtrain::report::trackers::event::{self, Event, What};

fn train(dir: &Path, more: &str) -> Command {
    let text = data_text("play.txt");
    fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    fs::write(dir.join("valid.txt"), &text[20_000..23_000]).unwrap();
    let mut command = xtrain();
    command
        .dir(dir)
        .args(
            "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --validation_file valid.txt \
             --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --logging_steps 1 --report none \
             --eval_strategy steps --eval_steps 4 --per_device_train_batch_size 4 --output_dir out --tokenizer_name"
                .split_whitespace(),
        )
        .arg(data_dir().join("gpt2"))
        .args(more.split_whitespace());
    command
}

/// The event files below a directory, in the order in which readers take them.
fn event_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(event_files(&path));
        } else if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("events.out.tfevents.")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Values by tag and step, and texts by tag, as TensorBoard has them after all files: a start voids
/// what is there of its step and later ones.
fn read_events(files: &[PathBuf]) -> (BTreeMap<(String, i64), f32>, BTreeMap<String, String>) {
    let (mut values, mut texts) = (BTreeMap::new(), BTreeMap::new());
    for file in files {
        for Event { step, what, .. } in event::read(&fs::read(file).unwrap()).unwrap() {
            match what {
                Some(What::SessionLog(_)) => values.retain(|(_, at), _| *at < step),
                Some(What::Summary(summary)) => {
                    for value in summary.value {
                        if let Some(number) = value.simple_value {
                            // The last evaluation may follow another one of the same step.
                            let evaluates = value.tag.starts_with("eval/");
                            let earlier = values.insert((value.tag, step), number);
                            // The epoch stands in records of training and of evaluation.
                            assert!(evaluates || earlier.is_none_or(|earlier| earlier == number));
                        } else if let Some(text) =
                            value.tensor.and_then(|t| t.string_val.into_iter().next())
                        {
                            texts.insert(value.tag, String::from_utf8(text).unwrap());
                        }
                    }
                }
                _ => {}
            }
        }
    }
    (values, texts)
}

/// The same of `log.jsonl`.
fn logged(records: &[Value]) -> BTreeMap<(String, i64), f32> {
    let mut values = BTreeMap::new();
    for record in records {
        let step = record["step"].as_i64().unwrap();
        for (key, value) in record.as_object().unwrap() {
            let tag = match key.strip_prefix("eval_") {
                Some(name) => format!("eval/{name}"),
                None => format!("train/{key}"),
            };
            if key != "step" {
                // The epoch stands in records of both kinds.
                values.insert((tag, step), value.as_f64().unwrap() as f32);
            }
        }
    }
    values
}

#[test]
fn event_files_have_what_the_log_has_also_of_a_resumed_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    train(dir, "--max_steps 10 --save_steps 4 --report_to tensorboard")
        .run()
        .succeeded();
    let files = event_files(&dir.join("out/runs"));
    assert_eq!(files.len(), 1);
    let parent = files[0]
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    // Nov23_21-04-55_host
    assert_eq!(
        (&parent[5..6], &parent[8..9], &parent[14..15]),
        ("_", "-", "_"),
        "{parent}"
    );
    let (values, texts) = read_events(&files);
    let log = json_lines(&dir.join("out/log.jsonl"));
    assert_eq!(values, logged(&log));
    assert!(
        values.contains_key(&("train/loss".into(), 10))
            && values.contains_key(&("eval/loss".into(), 8))
    );
    // After training, at its last step.
    let results = fs::read(dir.join("out/eval_results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let last = values[&("eval/loss".to_string(), 10)];
    assert_eq!(last, results["eval_loss"].as_f64().unwrap() as f32);
    let args: Value = serde_json::from_str(&texts["args/text_summary"]).unwrap();
    assert_eq!(args["max_steps"], json!(10));
    let model: Value = serde_json::from_str(&texts["model_config/text_summary"]).unwrap();
    assert_eq!(model["n_layer"], json!(1));

    // From step 4: its later steps are made again, and come once.
    train(dir, "--max_steps 12 --save_steps 4 --report_to tensorboard --resume_from_checkpoint out/checkpoint-4")
        .run()
        .succeeded();
    let files = event_files(&dir.join("out/runs"));
    assert_eq!(files.len(), 2);
    assert_eq!(files[0].parent(), files[1].parent());
    let log = json_lines(&dir.join("out/log.jsonl"));
    assert_eq!(read_events(&files).0, logged(&log));
}

#[test]
fn a_killed_run_leaves_events_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let log = dir.join("out/log.jsonl");
    let mut child = train(
        dir,
        "--max_steps 100000 --eval_steps 100000 --report_to tensorboard --logging_dir board",
    )
    .process()
    .stdout(std::process::Stdio::null())
    .stderr(std::process::Stdio::null())
    .spawn()
    .unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(&log).map_or(0, |text| text.lines().count()) < 20 {
        assert!(Instant::now() < until, "the run does not log");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (values, _) = read_events(&event_files(&dir.join("board")));
    let all = logged(&json_lines(&log));
    let last = values.keys().map(|(_, step)| *step).max().unwrap();
    assert!(last >= 19, "{last}");
    // The event follows the line.
    let steps = all.keys().map(|(_, step)| *step).max().unwrap();
    assert!(steps - last <= 1, "{last} of {steps}");
    assert!(values.iter().all(|(key, value)| all[key] == *value));
}

#[test]
fn mlflows_server_gets_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let seen = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = seen.clone();
            std::thread::spawn(move || serve(stream.unwrap(), &seen));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    train(dir, "--max_steps 3 --report_to mlflow")
        .env("MLFLOW_TRACKING_URI", &uri)
        .env("MLFLOW_TRACKING_TOKEN", "secret")
        .run()
        .succeeded();
    let requests = requests.lock().unwrap();
    let of = |path: &str| {
        requests
            .iter()
            .filter(|(line, _)| line.contains(path))
            .map(|(_, body)| body)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("runs/create")[0]["experiment_id"], json!("7"));
    let batches = of("runs/log-batch");
    let losses: Vec<f64> = batches
        .iter()
        .flat_map(|body| body["metrics"].as_array().into_iter().flatten())
        .filter(|metric| metric["key"] == "loss")
        .map(|metric| metric["value"].as_f64().unwrap())
        .collect();
    let records = json_lines(&dir.join("out/log.jsonl"));
    let expected: Vec<f64> = records
        .iter()
        .filter_map(|record| record.get("loss")?.as_f64())
        .collect();
    assert_eq!(losses, expected);
    assert!(batches.iter().all(|body| body["run_id"] == "r1"));
    let parameter = |body: &&&Value| {
        body["params"].as_array().is_some_and(|all| {
            all.iter()
                .any(|p| p["key"] == "max_steps" && p["value"] == "3")
        })
    };
    assert!(batches.iter().any(|body| parameter(&body)));
    assert_eq!(
        of("runs/update").last().unwrap()["status"],
        json!("FINISHED")
    );

    // A server that does not answer, or is none, is reported before the first step.
    for (uri, problem) in [
        ("http://127.0.0.1:9", "http://127.0.0.1:9: "),
        (
            "file:///tmp/mlruns",
            "MLFLOW_TRACKING_URI file:///tmp/mlruns is a file store",
        ),
    ] {
        let run = train(
            dir,
            "--max_steps 3 --overwrite_output_dir --report_to mlflow",
        )
        .env("MLFLOW_TRACKING_URI", uri)
        .run();
        assert_eq!(run.code, Some(1));
        assert!(
            run.stderr
                .contains(&format!("error: --report_to mlflow: {problem}")),
            "{}",
            run.stderr
        );
    }
}

/// Answers requests as MLflow does.
fn serve(mut stream: std::net::TcpStream, seen: &Mutex<Vec<(String, Value)>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut first, mut length, mut authorized) = (String::new(), 0, false);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            authorized |= line == "authorization: bearer secret";
            if line.is_empty() {
                break;
            }
        }
        assert!(authorized, "{first}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer = if first.contains("get-by-name") {
            json!({"experiment": {"experiment_id": "7"}})
        } else if first.contains("runs/create") {
            json!({"run": {"info": {"run_id": "r1"}}})
        } else {
            json!({})
        };
        let body = serde_json::from_slice(&body).unwrap_or_default();
        seen.lock().unwrap().push((first, body));
        let text = answer.to_string();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
        .unwrap();
    }
}
