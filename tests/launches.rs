//! How launches, sweeps and single runs end: by signals, by failures that a restart cannot mend, and
//! with processes that outlive them.

use crate::processes::{Launched, bench, has_gloo, start};
use crate::support::{copy_tokenizer, data_text, xtrain};
use crate::tasks::Bench;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const GPT2: &str = "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                    --train_file articles.txt --block_size 32 --per_device_train_batch_size 2 --logging_steps 1 --disable_tqdm \
                    --seed 3 --do_train";

/// The library that makes trouble for training processes.
fn preloaded(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in/preloaded.c");
    let library = dir.join("preloaded.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success());
    library
}

/// Living processes with this in their environment.
fn living(sign: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let is_zombie = String::from_utf8_lossy(&read("stat")).contains(") Z");
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        environment.contains(sign) && !is_zombie
    })
    .collect()
}

/// A launcher that has lost a rank does not wait for what that rank has started, and nothing of it
/// is left.
#[test]
fn what_a_rank_leaves_behind_keeps_no_launch_waiting() {
    let Some(bench) = bench() else { return };
    let library = preloaded(&bench.path(""));
    let sign = format!("XTRAIN_TEST_MARK=launch-{}", std::process::id());
    let line = format!(
        "launch --nproc_per_node 2 --max_restarts 1 -- {GPT2} --data_parallel 2 --max_steps 60 --save_steps 5 --output_dir out"
    );
    let mut process = bench.command(&line).process();
    process
        .env("LD_PRELOAD", library)
        .env("XTRAIN_TEST_BEHIND", "stubborn")
        .env("XTRAIN_TEST_MARK", sign.split_once('=').unwrap().1);
    let mut run = start(process);
    run.wait_for(&["[rank 0] saved out/checkpoint-"]);
    assert!(run.signal(1, libc::SIGKILL));
    let killed = Instant::now();
    let note = run.wait_for(&["launch: rank 1 was killed by signal 9", "restart 1 of 1"]);
    assert!(
        killed.elapsed() < Duration::from_secs(12),
        "{:?}",
        killed.elapsed()
    );
    // The step that it names is one that was saved.
    let step = note.split_once("starting again from step ").unwrap().1;
    let step: u64 = step.split(',').next().unwrap().parse().unwrap();
    let end = run.finish();
    assert_eq!(end.code, Some(0), "{}", end.stdout);
    let resumed = format!("resuming from out/checkpoint-{step} ");
    assert!(
        step > 0 && end.stdout.contains(&resumed),
        "{step}: {}",
        end.stdout
    );
    assert_eq!(living(&sign), Vec::<i32>::new(), "{}", end.stdout);
}

/// A sweep's run ends with its own process too.
#[test]
fn what_a_run_leaves_behind_keeps_no_sweep_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("articles.txt"), &data_text("play.txt")[..20_000]).unwrap();
    copy_tokenizer("byte_bpe", &dir.join("byte_bpe"));
    let sign = format!("XTRAIN_TEST_MARK=sweep-{}", std::process::id());
    let began = Instant::now();
    let run = xtrain()
        .dir(dir)
        .args("sweep --grid seed=1 --output_dir grid --".split(' '))
        .args(GPT2.replace("--seed 3", "").split_whitespace())
        .args("--max_steps 2 --cache_dir cache".split(' '))
        .env("LD_PRELOAD", preloaded(dir))
        .env("XTRAIN_TEST_BEHIND", "stubborn")
        .env("XTRAIN_TEST_MARK", sign.split_once('=').unwrap().1)
        .run();
    run.succeeded();
    assert!(began.elapsed() < Duration::from_secs(60), "{}", run.stderr);
    assert_eq!(living(&sign), Vec::<i32>::new(), "{}", run.stderr);
}

fn saved_checkpoints(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let is_one = |name: String| name.starts_with("checkpoint-");
    entries
        .filter(|entry| is_one(entry.file_name().to_string_lossy().into_owned()))
        .count()
}

/// A terminal that closes is no reason to lose a run; `nohup` lets it go on.
#[test]
fn sighup_saves_unless_it_was_ignored() {
    let bench = Bench::new();
    let endless =
        |dir: &str| format!("{GPT2} --max_steps 100000 --save_strategy no --output_dir {dir}");
    let hang_up = |run: &Launched| {
        // SAFETY: the process has not been waited for.
        unsafe { libc::kill(run.id(), libc::SIGHUP) };
    };
    // Whoever runs the tests may ignore the signal, as nohup does.
    let begin = |words: &str, disposition: libc::sighandler_t| {
        let mut command = bench.command(words).process();
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGHUP, disposition);
                Ok(())
            })
        };
        start(command)
    };
    let mut run = begin(&endless("alone"), libc::SIG_DFL);
    run.wait_for(&["'loss'"]);
    hang_up(&run);
    let end = run.finish();
    assert_eq!(end.code, Some(129), "{}", end.stdout);
    assert_eq!(saved_checkpoints(&bench.path("alone")), 1, "{}", end.stdout);

    let mut run = begin(&endless("nohup"), libc::SIG_IGN);
    run.wait_for(&["'loss'"]);
    hang_up(&run);
    for _ in 0..3 {
        run.wait_for(&["'loss'"]);
    }
    // SAFETY: as above.
    unsafe { libc::kill(run.id(), libc::SIGTERM) };
    assert_eq!(run.finish().code, Some(143));

    if has_gloo() {
        let line = endless("launched").replace("--do_train", "--do_train --data_parallel 2");
        let line = format!("launch --nproc_per_node 2 --max_restarts 3 -- {line}");
        let mut run = begin(&line, libc::SIG_DFL);
        run.wait_for(&["[rank 0] {'loss'"]);
        hang_up(&run);
        let end = run.finish();
        assert_eq!(end.code, Some(129), "{}", end.stdout);
        assert_eq!(
            saved_checkpoints(&bench.path("launched")),
            1,
            "{}",
            end.stdout
        );
    }
}

/// Neither a damaged checkpoint nor a full disk is better after a restart.
#[test]
fn restarts_are_not_spent_on_what_they_cannot_mend() {
    let Some(bench) = bench() else { return };
    let launch = |dir: &str, more: &str| {
        let line = format!("{GPT2} --max_steps 8 --save_steps 4 --output_dir {dir} {more}");
        bench.command(&format!(
            "launch --nproc_per_node 1 --max_restarts 3 -- {line}"
        ))
    };
    let refused = |mut command: crate::support::Command, sign: &str| {
        let run = start(command.process()).finish();
        assert_eq!(run.code, Some(1), "{}", run.stdout);
        assert!(!run.stdout.contains("starting again"), "{}", run.stdout);
        assert!(run.stdout.contains(sign), "{}", run.stdout);
        let hint = "hint: a restart would end the same way";
        assert!(run.stdout.contains(hint), "{}", run.stdout);
    };
    let mut full = launch("full", "");
    full.limit_files(30_000);
    refused(full, "File too large");

    launch("out", "").run().succeeded();
    fs::remove_dir_all(bench.path("out/checkpoint-8")).unwrap();
    let state = bench.path("out/checkpoint-4/optimizer.safetensors");
    let mut bytes = fs::read(&state).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&state, bytes).unwrap();
    refused(launch("out", "--resume_from_checkpoint"), "is damaged");
}

/// Rank 1 waits for the devices as long as rank 0 saves, which is longer than a device may hang.
#[test]
fn a_rank_that_waits_for_a_slow_save_does_not_blame_the_device() {
    let Some(bench) = bench() else { return };
    let line = format!(
        "launch --nproc_per_node 2 --heartbeat_timeout 3 -- {GPT2} --data_parallel 2 --max_steps 6 --save_steps 3 \
         --async_save false --output_dir out"
    );
    let mut process = bench.command(&line).process();
    process
        .env("LD_PRELOAD", preloaded(&bench.path("")))
        .env("XTRAIN_TEST_SLOW_SAVE", "8")
        .env("XTRAIN_EVENT_TIMEOUT", "4");
    let began = Instant::now();
    let end = start(process).finish();
    assert_eq!(end.code, Some(0), "{}", end.stdout);
    assert!(
        began.elapsed() > Duration::from_secs(8),
        "the save was not slow"
    );
}
