//! What several processes write at once, with the real program: each of them gets what it needs,
//! whoever is killed, late or of the same number.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use xtrain::checkpoint::atomic::clean_leftovers;
use xtrain::data::tokenizer::train_byte_bpe;

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
             --train_file text.txt --block_size 16 --per_device_train_batch_size 4 --disable_tqdm --logging_steps 1 {extra}"
        );
        line.split_whitespace().map(str::to_string).collect()
    }

    /// The run through another program that starts it.
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

/// Whether a starter can be had; said loudly if not.
fn can(starter: &str) -> bool {
    let mut words = starter.split_whitespace();
    let mut command = std::process::Command::new(words.next().unwrap());
    let can = command
        .args(words)
        .arg("true")
        .output()
        .is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("SKIPPED: `{starter}` does not work here");
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

#[test]
fn processes_of_one_number_share_a_cold_cache() {
    if !can(NAMESPACE) {
        return;
    }
    let place = Place::new();
    for round in 0..rounds() {
        let cache = format!("cache-{round}");
        let extra =
            format!("--max_steps 1 --save_strategy no --cache_dir {cache} --output_dir out");
        let children: Vec<_> = (0..4)
            .map(|process| {
                let extra = format!("{extra}-{round}-{process}");
                place.under(NAMESPACE, &extra).spawn().unwrap()
            })
            .collect();
        let ends: Vec<Output> = children
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        ends.iter().for_each(succeeded);
        let model = |process: usize| {
            let dir = place.path(&format!("out-{round}-{process}"));
            fs::read(dir.join("model.safetensors")).unwrap()
        };
        assert!((1..4).all(|process| model(process) == model(0)));
        let left = names(&place.path(&cache).join("data"));
        assert_eq!(left.len(), 1, "one set and nothing else: {left:?}");
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
