//! Runs of several processes, as a user launches them: the same numbers as one process, whatever
//! happens to a process on the way.

use crate::parallel::{OPTIMIZER, assert_close, weights};
use crate::support::{Run, max_difference};
use crate::tasks::{BERT, Bench, POSTS, numbers};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use xtrain_test_groups::Group;

pub(crate) const STEPS: usize = 20;

/// Examples of a microbatch on all devices together.
const ROWS: usize = 8;

pub(crate) const GPT2: &str = "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                    --train_file articles.txt --block_size 32 --gradient_accumulation_steps 2";

/// No test waits longer than this for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Whether several processes can be launched: where Gloo was not there when this was built, they
/// cannot, which is recorded as skipped.
pub(crate) fn has_gloo() -> bool {
    let engine = Path::new(env!("CARGO_BIN_EXE_xtrain")).with_file_name("libxtrain_gloo.so");
    if !engine.exists() {
        let engine = engine.display();
        Group::Gloo.skip(format!(
            "{engine} was not built; bin/bootstrap fetches libgloo-dev"
        ));
        return false;
    }
    true
}

/// A folder for runs of several processes.
pub(crate) fn bench() -> Option<Bench> {
    has_gloo().then(Bench::new)
}

/// The training command of `devices` devices.
pub(crate) fn train(what: &str, devices: usize, extra: &str) -> String {
    let rows = ROWS / devices;
    format!(
        "train {what} {OPTIMIZER} --max_steps {STEPS} --logging_steps 1 --disable_tqdm --data_parallel {devices} \
         --per_device_train_batch_size {rows} --per_device_eval_batch_size {rows} --do_train {extra}"
    )
}

/// A launcher that runs, with what it prints.
pub(crate) struct Launched {
    pub(crate) child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    seen: Vec<String>,
}

pub(crate) fn start(mut command: std::process::Command) -> Launched {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    for source in [
        Box::new(child.stdout.take().unwrap()) as Box<dyn Read + Send>,
        Box::new(child.stderr.take().unwrap()),
    ] {
        let sender = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(source)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| drop(sender.send(line)))
        });
    }
    Launched {
        child,
        lines,
        seen: Vec::new(),
    }
}

impl Launched {
    pub(crate) fn of(bench: &Bench, line: &str) -> Self {
        start(bench.command(line).process())
    }

    /// Reads until a line contains all of `signs`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, signs: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if signs.iter().all(|sign| line.contains(sign)) {
                        return line;
                    }
                }
                Err(_) => panic!("no line with {signs:?} in:\n{}", self.seen.join("\n")),
            }
        }
    }

    /// The process of a rank, by its environment.
    fn rank(&self, rank: usize) -> Option<i32> {
        let wanted = format!("RANK={rank}").into_bytes();
        let own = self.child.id().to_string();
        let mut children = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| {
                let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.to_string();
                (parent == own).then_some(pid)
            });
        let is_it = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted)
        };
        children.find(is_it)
    }

    pub(crate) fn id(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn signal(&self, rank: usize, signal: i32) -> bool {
        // SAFETY: sends a signal to a process that this test has started.
        self.rank(rank)
            .is_some_and(|pid| unsafe { libc::kill(pid, signal) } == 0)
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Run {
        let until = Instant::now() + PATIENCE;
        let code = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if Instant::now() > until => {
                    let _ = self.child.kill();
                    panic!("it does not end:\n{}", self.seen.join("\n"));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        self.seen.extend(self.lines.iter());
        Run {
            code,
            stdout: self.seen.join("\n"),
            stderr: String::new(),
        }
    }
}

/// Losses, gradient norms, evaluations and final weights of several processes against one, with
/// dropout.
#[test]
fn processes_train_as_one_device_does_on_the_whole_batch() {
    let Some(bench) = bench() else { return };
    let bert = format!("cls {BERT} {POSTS} --tokenizer_name wordpiece");
    // Name, model, validation, processes with devices.
    let cases = [
        ("gpt2", GPT2, "articles-valid.txt", &[(4, 4), (2, 4)][..]),
        ("bert", &bert, "posts-valid.csv", &[(2, 2), (4, 4)]),
    ];
    for (name, what, validation, degrees) in cases {
        let rest = format!("--do_eval --validation_file {validation} --save_strategy no");
        bench
            .run(&train(what, 1, &format!("{rest} --output_dir {name}-1")))
            .succeeded();
        let (one, one_weights) = (
            bench.records(&format!("{name}-1")),
            weights(&bench, &format!("{name}-1")),
        );
        for &(processes, devices) in degrees {
            let dir = format!("{name}-{processes}x{devices}");
            let command = train(
                what,
                devices,
                &format!("{rest} --output_dir {dir} --replica_check_steps 10"),
            );
            let run = Launched::of(
                &bench,
                &format!("launch --nproc_per_node {processes} -- {command}"),
            )
            .finish();
            run.succeeded();
            let records = bench.records(&dir);
            for key in ["loss", "grad_norm", "eval_loss", "eval_accuracy"] {
                assert_close(
                    &format!("{dir}: {key}"),
                    &numbers(&one, key),
                    &numbers(&records, key),
                    1e-4,
                );
            }
            for (tensor, values) in weights(&bench, &dir) {
                let difference = max_difference(&values, &one_weights[&tensor]);
                assert!(difference < 1e-4, "{dir}: {tensor} is off by {difference}");
            }
            let (results, one) = (
                bench.json(&format!("{dir}/all_results.json")),
                bench.json(&format!("{name}-1/all_results.json")),
            );
            assert_eq!(
                results["eval_samples"], one["eval_samples"],
                "{dir}: an example is evaluated once"
            );
            // Rank 0 prints the records; the others only what concerns them.
            let printed = |rank: usize| {
                run.stdout
                    .lines()
                    .filter(|l| l.starts_with(&format!("[rank {rank}] {{'loss'")))
                    .count()
            };
            assert_eq!((printed(0), printed(1)), (STEPS, 0), "{}", run.stdout);
        }
    }
}

/// Parts of one model in several processes: the same numbers, and a checkpoint that one process can
/// go on from.
#[test]
fn parts_of_a_model_live_in_several_processes() {
    let Some(bench) = bench() else { return };
    let run = |dir: &str, launch: &str, shards: usize, extra: &str| {
        let rows = ROWS / shards;
        let command = format!(
            "train {GPT2} {OPTIMIZER} --max_steps {STEPS} --logging_steps 1 --disable_tqdm --per_device_train_batch_size {rows} --do_train \
             --save_strategy steps --save_steps 10 --output_dir {dir} {extra}"
        );
        Launched::of(&bench, &format!("{launch}{command}"))
            .finish()
            .succeeded();
    };
    run("one", "", 1, "");
    let (one, one_weights) = (bench.records("one"), weights(&bench, "one"));
    for (dir, processes, shards, mesh) in [
        ("shards", 2, 2, "--shard_parallel 2"),
        ("divided", 2, 1, "--tensor_parallel 2"),
        ("moments", 2, 2, "--data_parallel 2 --shard_optimizer_state"),
        ("both", 4, 2, "--shard_parallel auto --tensor_parallel 2"),
        ("stages", 2, 1, "--pipeline_parallel 2"),
        ("staged", 4, 2, "--pipeline_parallel auto --data_parallel 2"),
    ] {
        run(
            dir,
            &format!("launch --nproc_per_node {processes} -- "),
            shards,
            mesh,
        );
        std::fs::remove_dir_all(bench.path(&format!("{dir}/checkpoint-20"))).unwrap();
        // Each process has written its part of the optimizer's state.
        let parts = (1..=processes).map(|n| {
            bench.path(&format!(
                "{dir}/checkpoint-10/optimizer-{n:05}-of-{processes:05}.safetensors"
            ))
        });
        let sizes: Vec<u64> = parts
            .map(|part| {
                std::fs::metadata(&part)
                    .unwrap_or_else(|e| panic!("{}: {e}", part.display()))
                    .len()
            })
            .collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*least * 3 > *most, "{dir}: {sizes:?}");
        for key in ["loss", "grad_norm"] {
            assert_close(
                &format!("{dir}: {key}"),
                &numbers(&one, key),
                &numbers(&bench.records(dir), key),
                1e-4,
            );
        }
        for (tensor, values) in weights(&bench, dir) {
            let difference = max_difference(&values, &one_weights[&tensor]);
            assert!(difference < 1e-4, "{dir}: {tensor} is off by {difference}");
        }
        run(dir, "", 1, "--resume_from_checkpoint");
        assert_close(
            dir,
            &numbers(&one, "loss"),
            &numbers(&bench.records(dir), "loss"),
            1e-4,
        );
    }
}

/// Each process writes its share in the background: the files are those that it writes while training
/// waits. Where one of them cannot, the run ends with the reason, and without that checkpoint.
#[test]
fn processes_save_in_the_background_too() {
    let Some(bench) = bench() else { return };
    let line = |dir: &str, in_background: bool| {
        let more = "--data_parallel 2 --shard_optimizer_state --max_shard_size 20KB --save_steps 8";
        let command = train(
            GPT2,
            2,
            &format!("{more} --async_save {in_background} --output_dir {dir}"),
        );
        format!("launch --nproc_per_node 2 -- {command}")
    };
    let [waiting, background] = [("waiting", false), ("background", true)].map(|(dir, is)| {
        let run = Launched::of(&bench, &line(dir, is)).finish();
        run.succeeded();
        run.stdout
    });
    assert!(!waiting.contains("in the background"), "{waiting}");
    for step in [8, 16] {
        let sign = format!("saved background/checkpoint-{step} in");
        let said = |line: &str| line.contains(&sign) && line.contains("in the background");
        assert!(background.lines().any(said), "{background}");
        let files = |dir: &str| -> Vec<(String, Vec<u8>)> {
            let dir = bench.path(&format!("{dir}/checkpoint-{step}"));
            let mut files: Vec<_> = fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.to_string_lossy().contains(".safetensors"))
                .map(|path| {
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    (name, fs::read(path).unwrap())
                })
                .collect();
            files.sort();
            files
        };
        let (found, expected) = (files("background"), files("waiting"));
        let parts = found
            .iter()
            .filter(|(name, _)| name.starts_with("optimizer-"));
        assert_eq!(parts.count(), 2);
        assert!(found == expected, "checkpoint-{step}");
    }
    // Room for each weight, but not for a process's share of the moments.
    let sizes = fs::read_dir(bench.path("waiting/checkpoint-8")).unwrap();
    let largest = sizes
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("model-"))
        .map(|entry| entry.metadata().unwrap().len())
        .max()
        .unwrap();
    let mut limited = bench.command(&line("limited", true));
    limited.limit_files(largest + 1000);
    let run = start(limited.process()).finish();
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stdout.contains("File too large"), "{}", run.stdout);
    let left: Vec<_> = fs::read_dir(bench.path("limited"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("checkpoint"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

/// Ends the run's whole process groups as a user would, and finds the run saved: all ranks stop
/// with the same step.
#[test]
fn a_signal_to_the_launcher_stops_all_processes_at_one_step() {
    let Some(bench) = bench() else { return };
    let command = train(
        GPT2,
        2,
        "--max_steps 100000 --save_strategy no --output_dir out",
    );
    let mut run = Launched::of(&bench, &format!("launch --nproc_per_node 2 -- {command}"));
    run.wait_for(&["[rank 0] {'loss'"]);
    // SAFETY: the launcher has not been waited for.
    unsafe { libc::kill(run.child.id() as i32, libc::SIGTERM) };
    let end = run.finish();
    assert_eq!(end.code, Some(143), "{}", end.stdout);
    assert!(
        end.stdout.contains("[rank 0] stopped after step"),
        "{}",
        end.stdout
    );
    let resumed = train(
        GPT2,
        2,
        "--max_steps 100000 --output_dir out --resume_from_checkpoint",
    );
    let mut run = Launched::of(&bench, &format!("launch --nproc_per_node 2 -- {resumed}"));
    run.wait_for(&["[rank 0] resuming from"]);
    run.wait_for(&["[rank 0] {'loss'"]);
    let _ = run.child.kill();
    let _ = run.child.wait();
}

/// How often [`survives`] kills: `XTRAIN_KILLS`.
fn kills(unless_told: u64) -> u64 {
    std::env::var("XTRAIN_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(unless_told)
}

/// A rank of two, which `mesh` has a device each for, is killed at random moments so many times,
/// and each run ends with the very weights of the undisturbed one.
fn survives(mesh: &str, kills: u64) {
    let Some(bench) = bench() else { return };
    let command = |dir: &str| {
        train(
            GPT2,
            1,
            &format!(
                "{mesh} --save_strategy steps --save_steps 5 --max_steps 40 --output_dir {dir}"
            ),
        )
    };
    Launched::of(
        &bench,
        &format!("launch --nproc_per_node 2 -- {}", command("whole")),
    )
    .finish()
    .succeeded();
    let whole = bench.bytes("whole/model.safetensors");
    // Random, but told, so that a failure can be repeated.
    let mut seed = std::process::id() as u64;
    for kill in 0..kills {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let (step, rank, delay) = (1 + (seed >> 33) % 38, (seed >> 20) % 2, (seed >> 40) % 300);
        let dir = format!("killed-{kill}");
        let mut run = Launched::of(
            &bench,
            &format!(
                "launch --nproc_per_node 2 --max_restarts 2 -- {}",
                command(&dir)
            ),
        );
        for _ in 0..step {
            run.wait_for(&["[rank 0] {'loss'"]);
        }
        std::thread::sleep(Duration::from_millis(delay));
        let hit = run.signal(rank as usize, libc::SIGKILL);
        let end = run.finish();
        let place = format!(
            "{mesh}, kill {kill}: rank {rank} after step {step} and {delay} ms\n{}",
            end.stdout
        );
        assert_eq!(end.code, Some(0), "{place}");
        // A late kill may come when the rank has ended.
        assert!(
            !hit || step > 30
                || end
                    .stdout
                    .contains(&format!("launch: rank {rank} was killed by signal 9")),
            "{place}"
        );
        assert!(
            bench.bytes(&format!("{dir}/model.safetensors")) == whole,
            "other weights: {place}"
        );
    }
}

#[test]
fn a_run_survives_the_death_of_its_processes() {
    survives("--data_parallel 2", kills(2));
}

/// Each rank holds layers that the other does not have.
#[test]
fn a_pipeline_survives_the_death_of_its_processes() {
    survives("--pipeline_parallel 2", kills(1));
}

#[test]
fn a_rank_that_hangs_is_found_and_named() {
    let Some(bench) = bench() else { return };
    let command = train(
        GPT2,
        2,
        "--max_steps 100000 --save_strategy steps --save_steps 5 --output_dir out",
    );
    let mut run = Launched::of(
        &bench,
        &format!("launch --nproc_per_node 2 --heartbeat_timeout 10 -- {command}"),
    );
    run.wait_for(&["[rank 0] {'loss'"]);
    assert!(run.signal(1, libc::SIGSTOP));
    let end = run.finish();
    assert_eq!(end.code, Some(1), "{}", end.stdout);
    assert!(
        end.stdout
            .contains("error: no heartbeat from rank 1 for 10 s"),
        "{}",
        end.stdout
    );
    assert!(end.stdout.contains("it appears hung"), "{}", end.stdout);
}

/// The error of a rank is the launcher's error, and comes once.
#[test]
fn the_first_failure_is_reported_with_its_cause() {
    let Some(bench) = bench() else { return };
    let mistake = train(GPT2, 2, "--output_dir out --warmup_ratio 7");
    let run = Launched::of(&bench, &format!("launch --nproc_per_node 2 -- {mistake}")).finish();
    assert_eq!(run.code, Some(2), "{}", run.stdout);
    assert_eq!(run.stdout.matches("error:").count(), 1, "{}", run.stdout);
    // Only the ranks can know that the devices do not fit the processes.
    let odd = train(GPT2, 4, "--output_dir out");
    let run = Launched::of(
        &bench,
        &format!("launch --nproc_per_node 3 --max_restarts 5 -- {odd}"),
    )
    .finish();
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(
        run.stdout
            .contains("--data_parallel 4 does not divide between 3 processes"),
        "{}",
        run.stdout
    );
    assert!(!run.stdout.contains("restart 1"), "{}", run.stdout);
}

/// Devices that are not here: our CPU plugin stands in, told in the vendors' own way which process
/// it serves.
#[test]
fn accelerators_are_shared_by_processes_too() {
    let Some(bench) = bench() else { return };
    let plugin = crate::neuron::stand_in();
    for device in ["cuda", "neuron"] {
        let command = train(
            GPT2,
            2,
            &format!("--device {device} --max_steps 3 --save_strategy no --output_dir {device}"),
        );
        let mut process = bench
            .command(&format!("launch --nproc_per_node 2 -- {command}"))
            .process();
        process
            .env("NEURON_LIBRARY_PATH", &plugin)
            .env("XTRAIN_CUDA_PLUGIN", &plugin);
        let run = start(process).finish();
        run.succeeded();
        assert!(
            run.stdout.contains(&format!(
                "[rank 1] note: {} drives `cpu`, not {device}",
                plugin.display()
            )),
            "{}",
            run.stdout
        );
        assert_eq!(
            numbers(&bench.records(device), "loss").len(),
            3,
            "{}",
            run.stdout
        );
    }
}
