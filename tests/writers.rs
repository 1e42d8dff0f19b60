//! What several processes write at once, with the real program: each of them gets what it needs,
//! whoever is killed, late or of the same number.

use crate::support::{Command, Run, xtrain};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use xtrain::checkpoint::atomic::clean_leftovers;
use xtrain::data::tokenizer::train_byte_bpe;
use xtrain_test_groups::Group;

/// A folder with a text, a tokenizer and a cache directory of its own.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let words = [
            "red", "green", "blue", "sky", "sea", "hill", "under", "above",
        ];
        let line = |n: usize| {
            let word = |k: usize| words[(n * 7 + k * n + k) % words.len()];
            (0..12).map(word).collect::<Vec<_>>().join(" ")
        };
        let lines: Vec<String> = (0..2000).map(line).collect();
        fs::write(place.path("text.txt"), lines.join("\n")).unwrap();
        let tokenizer = train_byte_bpe(&lines, 300).unwrap();
        fs::create_dir(place.path("tokenizer")).unwrap();
        for (name, bytes) in tokenizer.files() {
            fs::write(place.path("tokenizer").join(name), bytes).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The words of a short run that has everything here but its caches of graphs.
    fn words(&self, extra: &str) -> Vec<String> {
        let line = format!(
            "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=1,n_embd=16,n_positions=16 --tokenizer_name tokenizer \
             --train_file text.txt --block_size 16 --per_device_train_batch_size 1 --disable_tqdm --logging_steps 1 {extra}"
        );
        line.split_whitespace().map(str::to_string).collect()
    }

    fn command(&self, extra: &str) -> Command {
        let mut command = xtrain();
        command.dir(self.0.path()).args(self.words(extra));
        command
    }

    fn run(&self, extra: &str) -> Run {
        self.command(extra).run()
    }

    /// The same through another program that starts it.
    fn under(&self, starter: &str, extra: &str) -> std::process::Command {
        let mut starter = starter.split_whitespace();
        let mut command = std::process::Command::new(starter.next().unwrap());
        command
            .args(starter)
            .arg(env!("CARGO_BIN_EXE_xtrain"))
            .args(self.words(extra))
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Whether a starter can be had; recorded as skipped if not.
fn can(starter: &str) -> bool {
    let mut words = starter.split_whitespace();
    let mut command = std::process::Command::new(words.next().unwrap());
    let can = command
        .args(words)
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        Group::Namespaces.skip(format!("`{starter}` does not work here"));
    }
    can
}

#[track_caller]
fn succeeded(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

const NAMESPACE: &str = "unshare -pf --mount-proc";

/// `XTRAIN_TEST_ROUNDS=50` for a long run.
fn rounds() -> u32 {
    let rounds = std::env::var("XTRAIN_TEST_ROUNDS").ok();
    rounds.and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// Four processes of one number on one cold cache directory, which all end well.
fn four_of_one_number(
    place: &Place,
    round: u32,
    extra: impl Fn(usize) -> String,
    environment: impl Fn(usize) -> Vec<(&'static str, String)>,
) {
    let cache = format!("cache-{round}");
    let children: Vec<_> = (0..4)
        .map(|process| {
            let extra = extra(process);
            let extra = format!("--max_steps 2 --save_steps 1 --cache_dir {cache} {extra}");
            let mut command = place.under(NAMESPACE, &extra);
            command.envs(environment(process)).spawn().unwrap()
        })
        .collect();
    let ends: Vec<Output> = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    ends.iter().for_each(succeeded);
    let left = names(&place.path(&cache).join("data"));
    assert_eq!(left.len(), 1, "one set and nothing else: {left:?}");
}

#[test]
fn processes_of_one_number_share_a_cold_cache() {
    if !can(NAMESPACE) {
        return;
    }
    let place = Place::new();
    for round in 0..rounds() {
        let out = |process: usize| format!("out-{round}-{process}");
        let extra = |process| format!("--output_dir {}", out(process));
        four_of_one_number(&place, round, extra, |_| Vec::new());
        let model =
            |process| fs::read(place.path(&out(process)).join("model.safetensors")).unwrap();
        assert!((1..4).all(|process| model(process) == model(0)));
    }
}

#[test]
fn ranks_of_one_number_are_one_writer() {
    let engine = Path::new(env!("CARGO_BIN_EXE_xtrain")).with_file_name("libxtrain_gloo.so");
    if !engine.exists() {
        Group::Gloo.skip("libxtrain_gloo.so was not built");
        return;
    }
    if !can(NAMESPACE) {
        return;
    }
    let place = Place::new();
    for round in 0..rounds() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let environment = |rank: usize| {
            let variables = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "4".into()),
                ("LOCAL_RANK", rank.to_string()),
                ("LOCAL_WORLD_SIZE", "4".into()),
                ("MASTER_ADDR", "127.0.0.1".into()),
                ("MASTER_PORT", port.clone()),
                ("XTRAIN_RDZV_SECRET", "of these four processes".into()),
            ];
            variables.into()
        };
        let extra = |_| format!("--data_parallel 4 --output_dir out-{round}");
        four_of_one_number(&place, round, extra, environment);
        let out = place.path(&format!("out-{round}"));
        let saved = xtrain::checkpoint::load_checkpoint(&out.join("checkpoint-2"));
        assert_eq!(saved.unwrap().state.global_step, 2);
        assert!(!names(&out).iter().any(|name| name.starts_with('.')));
    }
}

/// A cleaner that comes between the making of a file and its lock.
#[test]
fn a_file_that_is_cleaned_before_it_is_locked_is_made_again() {
    let strace = "strace -f -qq -o /dev/null -e trace=flock -e inject=flock:delay_enter=200000";
    if !can(strace) {
        return;
    }
    let place = Place::new();
    let data = place.path("cache/data");
    let child = place
        .under(strace, "--dry_run --cache_dir cache --output_dir out")
        .spawn()
        .unwrap();
    let done = AtomicBool::new(false);
    let (output, cleaned) = std::thread::scope(|scope| {
        let cleaner = scope.spawn(|| {
            let mut cleaned = 0;
            // Not for ever: it would win each time.
            while cleaned < 2 && !done.load(Ordering::Relaxed) {
                cleaned += clean_leftovers(&data).unwrap().len();
            }
            cleaned
        });
        let output = child.wait_with_output().unwrap();
        done.store(true, Ordering::Relaxed);
        (output, cleaner.join().unwrap())
    });
    succeeded(&output);
    assert_eq!(cleaned, 2, "the cleaner was never faster");
    assert_eq!(names(&data).len(), 1);
}

#[test]
fn an_output_directory_has_one_writer() {
    let place = Place::new();
    let busy = "--max_steps 100000 --save_strategy no --output_dir out --overwrite_output_dir";
    let mut first = place.command(busy).start();
    let lock = place.path("out/.xtrain.lock");
    let log = place.path("out/log.jsonl");
    while fs::read(&log).unwrap_or_default().is_empty() {
        assert!(first.try_wait().unwrap().is_none(), "the first run ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let second = place.run(busy);
    let holder = format!("process {} on host ", first.id());
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(
        second.stderr.contains(&holder) && second.stderr.contains("is writing to out"),
        "{}",
        second.stderr
    );
    // A killed run's lock stays, and is no obstacle on this host.
    first.kill().unwrap();
    first.wait().unwrap();
    let left = fs::read_to_string(&lock).unwrap();
    let short = "--max_steps 1 --save_strategy no --output_dir out --overwrite_output_dir";
    place.run(short).succeeded();
    assert!(!lock.exists());
    // Another host's is.
    let mut elsewhere: Value = serde_json::from_str(&left).unwrap();
    elsewhere["host"] = "elsewhere".into();
    fs::write(&lock, elsewhere.to_string()).unwrap();
    let refused = place.run(short);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("on host elsewhere")
            && refused.stderr.contains("--take_over_output_dir"),
        "{}",
        refused.stderr
    );
    place
        .run(&format!("{short} --take_over_output_dir"))
        .succeeded();
}

#[test]
fn what_a_resumed_run_does_otherwise_is_said() {
    let place = Place::new();
    let saved = "--max_steps 2 --save_steps 2 --output_dir out";
    place.run(saved).succeeded();
    let again = place.run("--max_steps 4 --output_dir out --resume_from_checkpoint");
    again.succeeded();
    for flag in ["optim", "learning_rate", "lr_scheduler_type"] {
        assert!(
            !again.stderr.contains(&format!("note: {flag}")),
            "{}",
            again.stderr
        );
    }
    let other = place.run(
        "--max_steps 6 --output_dir out --resume_from_checkpoint out/checkpoint-2 --optim lion --learning_rate 1e-3 \
         --lr_scheduler_type cosine --config_overrides n_layer=1,n_head=1,n_embd=16,n_positions=16,resid_pdrop=0.0",
    );
    other.succeeded();
    for difference in [
        "note: optim was \"adamw\" when the checkpoint was saved and is \"lion\" now",
        "note: state that both optimizers have",
        "note: learning_rate was 0.00005 when",
        "note: lr_scheduler_type was \"linear\" when the checkpoint was saved and is \"cosine\" now",
        "note: resid_pdrop was 0.1 when the checkpoint was saved and is 0.0 now",
    ] {
        assert!(
            other.stderr.contains(difference),
            "{difference}:\n{}",
            other.stderr
        );
    }
}

/// A log that outgrows what the disk has room for is missed less than the steps. The model has room; what
/// `trainer_state.json` then repeats of the log has none.
#[test]
fn a_full_log_does_not_end_the_run() {
    let place = Place::new();
    let line = "--save_strategy no --report none --output_dir out --overwrite_output_dir";
    place.run(&format!("--max_steps 1 {line}")).succeeded();
    let weights = fs::metadata(place.path("out/model.safetensors")).unwrap();
    let mut command = place.command(&format!("--max_steps 600 {line}"));
    let run = command.limit_files(weights.len() + 8000).run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for part in [
        "warning: out/log.jsonl is not written any more: File too large",
        "cannot write out/trainer_state.json",
    ] {
        assert!(run.stderr.contains(part), "{part}:\n{}", run.stderr);
    }
}

#[test]
fn a_checkpoint_of_another_trainer_is_named_where_none_can_be_resumed() {
    let place = Place::new();
    let line = "--max_steps 6 --save_steps 2 --output_dir out --resume_from_checkpoint";
    place
        .run("--max_steps 4 --save_steps 2 --output_dir out")
        .succeeded();
    // The newest, which the run would replace; then the only one.
    for (step, hint) in [
        (4, "--resume_from_checkpoint out/checkpoint-2"),
        (2, "--model_name_or_path out/checkpoint-4"),
    ] {
        let state = format!("out/checkpoint-{step}/training_state.json");
        std::fs::remove_file(place.path(&state)).unwrap();
        let run = place.run(line);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        for part in ["out/checkpoint-4 holds no training state", hint] {
            assert!(run.stderr.contains(part), "{part}:\n{}", run.stderr);
        }
    }
}

#[test]
fn checkpoints_of_an_overwritten_run_are_not_taken() {
    let place = Place::new();
    let resumed_from = |extra: &str| {
        let run = place.run(&format!(
            "--max_steps 9 --output_dir out --resume_from_checkpoint {extra}"
        ));
        let line = run
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("resuming from "));
        line.map_or(run.stderr.clone(), str::to_string)
    };
    place
        .run("--max_steps 6 --save_steps 3 --output_dir out")
        .succeeded();
    for step in [3, 6] {
        let name = format!("checkpoint-{step}");
        copy(
            &place.path(&format!("out/{name}")),
            &place.path(&format!("kept/{name}")),
        );
    }
    // One that began anew and saved nothing has nothing to continue.
    place
        .run("--max_steps 2 --save_strategy no --output_dir out --overwrite_output_dir")
        .succeeded();
    copy(
        &place.path("kept/checkpoint-6"),
        &place.path("out/checkpoint-6"),
    );
    assert!(resumed_from("").contains("has saved no checkpoint"));
    // One that has saved goes on from its own, whatever else is there.
    place.run("--max_steps 4 --save_steps 2 --save_total_limit 1 --output_dir out --overwrite_output_dir").succeeded();
    copy(
        &place.path("kept/checkpoint-6"),
        &place.path("out/checkpoint-6"),
    );
    assert_eq!(resumed_from(""), "out/checkpoint-4 (step 4)");
    // One that was named is continued until there is a newer one of the run that began with it.
    let named = "--max_steps 8 --save_strategy no --output_dir kept --resume_from_checkpoint kept/checkpoint-3";
    place.run(named).succeeded();
    let again = place.run("--max_steps 9 --output_dir kept --resume_from_checkpoint");
    assert!(
        again.stderr.contains("resuming from kept/checkpoint-3 "),
        "{}",
        again.stderr
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Starts a run, sends SIGTERM as soon as `ready` and again after each of `pauses`; its end and
/// standard error.
fn signalled(
    place: &Place,
    extra: &str,
    ready: impl Fn() -> bool,
    pauses: &[Duration],
) -> (Option<i32>, String) {
    let mut command = place.command(extra).process();
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !ready() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(10));
    }
    for pause in [Duration::ZERO].iter().chain(pauses) {
        std::thread::sleep(*pause);
        // SAFETY: the child has not been waited for, so its number is still its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    }
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into(),
    )
}

#[test]
fn a_signal_before_training_ends_a_run_that_has_nothing_to_save() {
    let place = Place::new();
    let text = fs::read_to_string(place.path("text.txt")).unwrap();
    fs::write(place.path("text.txt"), text.repeat(100)).unwrap();
    let data = place.path("cache/data");
    let is_writing = || data.is_dir() && names(&data).iter().any(|name| name.starts_with(".tmp"));
    let extra = "--max_steps 1 --cache_dir cache --output_dir out";
    let (code, stderr) = signalled(&place, extra, is_writing, &[]);
    assert_eq!(code, Some(143), "{stderr}");
    assert!(
        stderr.contains("before training: there is nothing to save"),
        "{stderr}"
    );
    assert!(!names(&data).iter().any(|name| name.starts_with(".tmp")));
    assert!(names(&place.path("out")).is_empty());
}

#[test]
fn a_second_signal_ends_a_run_at_once() {
    let place = Place::new();
    // Steps of enough microbatches that none ends between the two signals.
    let extra = "--max_steps 1000 --gradient_accumulation_steps 500 --output_dir out \
                 --config_overrides n_layer=8,n_head=4,n_embd=256,n_positions=16";
    let log = place.path("out/log.jsonl");
    let is_stepping = || fs::metadata(&log).is_ok_and(|file| file.len() > 0);
    let (code, stderr) = signalled(&place, extra, is_stepping, &[Duration::from_millis(200)]);
    assert!(stderr.contains("stopping after this step"), "{stderr}");
    assert_eq!(code, Some(3), "{stderr}");
    assert!(!place.path("out/.xtrain.lock").exists());
}
