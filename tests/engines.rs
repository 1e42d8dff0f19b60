//! Runs as the engines start them that people have: their variables and files, and nothing else.
//! docs/where-to-run.md has the recipes.

use crate::processes::{Launched, bench, start};
use crate::rendezvous::free_port;
use crate::support::Run;
use crate::tasks::Bench;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const SECRET: &str = "a secret of the tests";
const MODEL: &str = "--model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                     --train_file articles.txt --block_size 32 --per_device_train_batch_size 2 --disable_tqdm";

type Variables = Vec<(&'static str, String)>;

/// A process with variables of an engine.
fn process(bench: &Bench, line: &str, variables: &Variables) -> Launched {
    let mut command = bench.command(line).process();
    for (name, value) in variables {
        command.env(name, value);
    }
    start(command)
}

/// Two processes of a job train together; `variables` are what the engine sets for each.
fn train_together(bench: &Bench, engine: &str, variables: impl Fn(usize) -> Variables) -> [Run; 2] {
    let line = |rank: usize| {
        format!(
            "train clm {MODEL} --max_steps 2 --logging_steps 1 --save_strategy no --data_parallel 2 --output_dir {engine}-{rank}"
        )
    };
    let runs = [0, 1].map(|rank| process(bench, &line(rank), &variables(rank)));
    let runs = runs.map(Launched::finish);
    for run in &runs {
        assert_eq!(run.code, Some(0), "{engine}: {}", run.stdout);
    }
    runs
}

/// Each engine's two processes end with the weights of one process with two devices.
#[test]
fn two_processes_join_under_every_engine() {
    let Some(bench) = bench() else { return };
    bench
        .run(&format!(
            "train clm {MODEL} --max_steps 2 --logging_steps 1 --save_strategy no --data_parallel 2 --output_dir alone"
        ))
        .succeeded();
    let alone = bench.records("alone");
    let check = |engine: &str, runs: [Run; 2]| {
        let records = bench.records(&format!("{engine}-0"));
        assert_eq!(records.len(), alone.len(), "{engine}: {}", runs[0].stdout);
        for (one, other) in records.iter().zip(&alone) {
            for key in ["loss", "train_loss"] {
                let [one, other] = [one, other].map(|record| record[key].as_f64().unwrap_or(0.0));
                assert!((one - other).abs() < 1e-4, "{engine}: {one} and {other}");
            }
        }
        assert!(
            !bench
                .path(&format!("{engine}-1/model.safetensors"))
                .exists()
        );
    };
    type Engine = (&'static str, fn(usize, u16) -> Variables);
    let engines: [Engine; 7] = [
        ("slurm", |rank, port| {
            vec![
                ("SLURM_PROCID", rank.to_string()),
                ("SLURM_LOCALID", rank.to_string()),
                ("SLURM_NTASKS", "2".into()),
                ("SLURM_JOB_NODELIST", "localhost".into()),
                ("SLURM_JOB_ID", "77".into()),
                ("MASTER_PORT", port.to_string()),
            ]
        }),
        ("mpi", |rank, port| {
            vec![
                ("OMPI_COMM_WORLD_RANK", rank.to_string()),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
                ("OMPI_COMM_WORLD_SIZE", "2".into()),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".into()),
                ("MASTER_PORT", port.to_string()),
            ]
        }),
        ("jax", |rank, port| {
            vec![
                ("JAX_NUM_PROCESSES", "2".into()),
                ("JAX_PROCESS_ID", rank.to_string()),
                ("JAX_COORDINATOR_ADDRESS", format!("localhost:{port}")),
                ("JOB_COMPLETION_INDEX", rank.to_string()),
            ]
        }),
        ("pet", |rank, port| {
            vec![
                ("PET_NNODES", "2".into()),
                ("PET_NPROC_PER_NODE", "auto".into()),
                ("PET_NODE_RANK", rank.to_string()),
                ("PET_MASTER_ADDR", "localhost".into()),
                ("PET_MASTER_PORT", port.to_string()),
            ]
        }),
        ("jobset", |rank, port| {
            vec![
                ("JOB_COMPLETION_INDEX", rank.to_string()),
                ("WORLD_SIZE", "2".into()),
                ("MASTER_ADDR", "localhost".into()),
                ("MASTER_PORT", port.to_string()),
            ]
        }),
        ("skypilot", |rank, port| {
            vec![
                ("SKYPILOT_NODE_RANK", rank.to_string()),
                ("SKYPILOT_NUM_NODES", "2".into()),
                ("SKYPILOT_NODE_IPS", "127.0.0.1\n127.0.0.2\n".into()),
                ("SKYPILOT_NUM_GPUS_PER_NODE", "0".into()),
                ("MASTER_PORT", port.to_string()),
            ]
        }),
        ("dstack", |rank, port| {
            vec![
                ("DSTACK_NODE_RANK", rank.to_string()),
                ("DSTACK_NODES_NUM", "2".into()),
                ("DSTACK_MASTER_NODE_IP", "127.0.0.1".into()),
                ("DSTACK_NODES_IPS", "127.0.0.1\n127.0.0.2".into()),
                ("MASTER_PORT", port.to_string()),
            ]
        }),
    ];
    for (engine, variables) in engines {
        let port = free_port();
        let with_secret = |rank| {
            let mut all = variables(rank, port);
            all.push(("XTRAIN_RDZV_SECRET", SECRET.into()));
            all
        };
        check(engine, train_together(&bench, engine, with_secret));
    }
}

/// Where machines share no home, a secret of the user's own on each would only differ.
#[test]
fn an_engine_without_a_shared_home_asks_for_a_secret() {
    let Some(bench) = bench() else { return };
    let variables = vec![
        ("JAX_NUM_PROCESSES", "2".into()),
        ("JAX_PROCESS_ID", "0".into()),
        ("JAX_COORDINATOR_ADDRESS", "localhost:29500".into()),
    ];
    let line = format!("train clm {MODEL} --max_steps 2 --data_parallel 2 --output_dir out");
    let run = process(&bench, &line, &variables).finish();
    assert!(run.code != Some(0), "{}", run.stdout);
    assert!(
        run.stdout.contains("XTRAIN_RDZV_SECRET is not set")
            && run.stdout.contains("Kubernetes Secret"),
        "{}",
        run.stdout
    );
}

/// SageMaker's files of one container, as `/opt/ml` has them.
struct Container(PathBuf);

impl Container {
    /// Host `host` of `hosts`, with the channels of the bench's data.
    fn new(bench: &Bench, name: &str, host: &str, hosts: &[&str]) -> Container {
        let container = Container(bench.path(name));
        container.write(
            "input/config/resourceconfig.json",
            &json!({"current_host": host, "current_instance_type": "ml.c7i.large", "current_group_name": "homogeneousCluster",
                    "hosts": hosts, "network_interface_name": "eth0",
                    "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.c7i.large", "hosts": hosts}]})
            .to_string(),
        );
        let channel = json!({"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"});
        container.write(
            "input/config/inputdataconfig.json",
            &json!({"train": channel, "validation": channel, "tokenizer": channel, "notes": channel}).to_string(),
        );
        for (from, to) in [
            ("articles.txt", "input/data/train/part-0.txt"),
            ("articles-valid.txt", "input/data/validation/valid.txt"),
            (
                "byte_bpe/tokenizer.json",
                "input/data/tokenizer/tokenizer.json",
            ),
        ] {
            container.write(to, &fs::read_to_string(bench.path(from)).unwrap());
        }
        container
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Hyperparameters as the Python SDK writes them: JSON in strings.
    fn hyperparameters(&self, more: &[(&str, &str)]) {
        let mut all = json!({
            "task": "\"clm\"", "model_type": "\"gpt2\"", "config_overrides": "\"n_layer=1,n_head=2,n_embd=32,n_positions=32\"",
            "block_size": "32", "per_device_train_batch_size": "2", "learning_rate": "0.001", "do_train": "true", "do_eval": "true",
            "logging_steps": "1", "max_steps": "4", "report": "\"none\"",
            "sagemaker_job_name": "\"job\"", "sagemaker_region": "\"eu-west-1\"",
        });
        for (name, value) in more {
            all[name] = json!(value);
        }
        self.write("input/config/hyperparameters.json", &all.to_string());
    }

    /// What `docker run IMAGE train` starts.
    fn start(&self, bench: &Bench, variables: &[(&'static str, String)]) -> Launched {
        let mut all = vec![("SAGEMAKER_BASE_DIR", self.0.display().to_string())];
        all.extend_from_slice(variables);
        process(bench, "train", &all)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// A job from its files alone; its metrics by the expressions of the recipe; stopped, and continued
/// to the same bits.
#[test]
fn sagemaker_starts_stops_and_resumes_a_job() {
    let bench = Bench::new();
    let whole = Container::new(&bench, "whole", "algo-1", &["algo-1"]);
    whole.hyperparameters(&[]);
    let run = whole.start(&bench, &[]).finish();
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    assert!(
        run.stdout
            .contains("note: SageMaker: xtrain train clm --tokenizer_name")
            && run.stdout.contains("no flag of this task takes: notes"),
        "{}",
        run.stdout
    );
    for (metric, lines) in [("'loss': ", 4), ("'eval_loss': ", 1)] {
        let values = run.stdout.lines().filter_map(|line| {
            let after = line.split_once(metric)?.1;
            after.split([',', '}']).next()?.parse::<f64>().ok()
        });
        assert_eq!(values.count(), lines, "{metric}: {}", run.stdout);
    }
    let model = names(&whole.0.join("model"));
    for name in [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "all_results.json",
    ] {
        assert!(model.contains(name), "{model:?}");
    }
    assert!(
        model.iter().all(|name| !name.starts_with("checkpoint")),
        "{model:?}"
    );
    assert!(!whole.0.join("output/failure").exists());

    let stopped = Container::new(&bench, "stopped", "algo-1", &["algo-1"]);
    stopped.hyperparameters(&[("save_strategy", "no"), ("max_steps", "400")]);
    let mut run = stopped.start(&bench, &[]);
    run.wait_for(&["'loss'"]);
    // SAFETY: the process has not been waited for.
    unsafe { libc::kill(run.id(), libc::SIGTERM) };
    let run = run.finish();
    assert_eq!(run.code, Some(143), "{}", run.stdout);
    let saved = names(&stopped.0.join("checkpoints"));
    assert!(
        saved.iter().any(|name| name.starts_with("checkpoint-")),
        "{saved:?}"
    );
    assert!(!stopped.0.join("model").exists());
    let run = stopped.start(&bench, &[]).finish();
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    assert!(run.stdout.contains("resuming from"), "{}", run.stdout);
    let undisturbed = Container::new(&bench, "undisturbed", "algo-1", &["algo-1"]);
    undisturbed.hyperparameters(&[("save_strategy", "no"), ("max_steps", "400")]);
    assert_eq!(undisturbed.start(&bench, &[]).finish().code, Some(0));
    let weights = "model/model.safetensors";
    assert!(stopped.bytes(weights) == undisturbed.bytes(weights));
}

/// What is wrong becomes the job's `FailureReason`.
#[test]
fn sagemaker_gets_the_reason_of_a_failure() {
    let bench = Bench::new();
    let container = Container::new(&bench, "ml", "algo-1", &["algo-1"]);
    for (hyperparameters, reason) in [
        (
            &[("learning_rat", "1e-3")][..],
            "unknown key `learning_rat`",
        ),
        (
            &[("task", "\"clam\"")],
            "`task` is `clam`, which is none of clm,",
        ),
        (&[("learning_rate", "\"fast\"")], "`learning_rate` must be"),
    ] {
        container.hyperparameters(hyperparameters);
        let run = container.start(&bench, &[]).finish();
        assert_eq!(run.code, Some(2), "{}", run.stdout);
        let failure = String::from_utf8(container.bytes("output/failure")).unwrap();
        assert!(failure.contains(reason), "{failure}");
        assert!(run.stdout.contains(reason), "{}", run.stdout);
    }
    container.hyperparameters(&[]);
    fs::remove_file(container.0.join("input/data/train/part-0.txt")).unwrap();
    let run = container.start(&bench, &[]).finish();
    assert_eq!(run.code, Some(2), "{}", run.stdout);
    assert!(
        run.stdout.contains("SageMaker's channel train") && run.stdout.contains("has no file"),
        "{}",
        run.stdout
    );
    // Elsewhere nothing changes.
    let run = bench.run("train");
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("`xtrain train` needs one of: clm"),
        "{}",
        run.stderr
    );
}

#[test]
fn two_hosts_of_sagemaker_train_together() {
    let Some(bench) = bench() else { return };
    let hosts = ["127.0.0.1", "localhost"];
    let port = free_port().to_string();
    let variables = [
        ("MASTER_PORT", port),
        ("XTRAIN_RDZV_SECRET", SECRET.to_string()),
    ];
    let containers = hosts.map(|host| Container::new(&bench, host, host, &hosts));
    let runs: Vec<Launched> = containers
        .iter()
        .map(|container| {
            container.hyperparameters(&[("data_parallel", "2"), ("do_eval", "false")]);
            container.start(&bench, &variables)
        })
        .collect();
    for run in runs {
        let run = run.finish();
        assert_eq!(run.code, Some(0), "{}", run.stdout);
    }
    assert!(names(&containers[0].0.join("model")).contains("model.safetensors"));
    assert!(!containers[1].0.join("model").exists());
}

/// SLURM's `--signal=USR1@120`, and the exit code by which the script requeues the job.
#[test]
fn slurms_warning_saves_and_the_requeued_job_resumes() {
    let bench = Bench::new();
    let line = |dir: &str, more: &str| {
        format!(
            "train clm {MODEL} --max_steps 400 --logging_steps 1 --save_strategy no --output_dir {dir} {more}"
        )
    };
    let variables: Variables = [
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_JOB_ID", "78"),
        ("SLURM_JOB_NODELIST", "localhost"),
    ]
    .map(|(name, value)| (name, value.to_string()))
    .into();
    let mut run = process(&bench, &line("out", ""), &variables);
    run.wait_for(&["'loss'"]);
    // SAFETY: the process has not been waited for.
    unsafe { libc::kill(run.id(), libc::SIGUSR1) };
    let run = run.finish();
    assert_eq!(run.code, Some(138), "{}", run.stdout);
    let mut again = variables;
    again.push(("SLURM_RESTART_COUNT", "1".into()));
    let run = process(&bench, &line("out", "--resume_from_checkpoint"), &again).finish();
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    bench.run(&line("whole", "")).succeeded();
    assert!(bench.bytes("out/model.safetensors") == bench.bytes("whole/model.safetensors"));
}

/// Kubeflow's controller gets what a TrainJob's status shows.
#[test]
fn kubeflow_gets_the_progress_of_a_run() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/status", listener.local_addr().unwrap());
    let posts = Arc::new(Mutex::new(Vec::<serde_json::Value>::new()));
    let kept = posts.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let head: Vec<String> = reader
                .by_ref()
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let head = head.join("\n").to_ascii_lowercase();
            assert!(head.contains("authorization: bearer a-token"), "{head}");
            let length = head.split("content-length: ").nth(1).unwrap();
            let length = length.lines().next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            kept.lock()
                .unwrap()
                .push(serde_json::from_slice(&body).unwrap());
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            { &stream }.write_all(answer).unwrap();
        }
    });
    fs::write(bench.path("token"), "a-token").unwrap();
    let token = bench.path("token").display().to_string();
    let variables = vec![
        ("KUBEFLOW_TRAINER_SERVER_URL", url),
        ("KUBEFLOW_TRAINER_SERVER_TOKEN", token),
    ];
    let line = format!(
        "train clm {MODEL} --max_steps 4 --logging_steps 1 --save_strategy no --report_to kubeflow --output_dir out"
    );
    let run = process(&bench, &line, &variables).finish();
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    let posts = posts.lock().unwrap();
    let status = |post: &serde_json::Value| post["trainerStatus"].clone();
    assert_eq!(status(&posts[0])["progressPercentage"], 0);
    let last = status(posts.last().unwrap());
    assert_eq!(last["progressPercentage"], 100, "{posts:?}");
    assert_eq!(last["estimatedRemainingSeconds"], 0);
    let metrics = last["metrics"].as_array().unwrap();
    assert!(
        metrics.iter().any(|metric| metric["name"] == "train_loss"),
        "{metrics:?}"
    );
}
