//! The compiled-graph cache as a user meets it: the real binary on tiny models. What must hit, what
//! must miss and how that is told, `compile` and `--fail_on_recompile`, and every fault that a
//! cache directory can have.

mod faults;
mod key;
mod remote;
mod tool;

use crate::support::{Command, Run, xtrain};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use xtrain::cache::{EntryStore, Listed, Store};

/// A folder with a cache, a text and a tokenizer.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let text: String = xtrain::commands::corpus::TEXT
            .chars()
            .take(20_000)
            .collect();
        std::fs::write(dir.path().join("train.txt"), &text).unwrap();
        std::fs::write(dir.path().join("valid.txt"), &text[..4000]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        xtrain::data::tokenizer::train_byte_bpe(&lines, 300)
            .unwrap()
            .save(&dir.path().join("tokenizer"))
            .unwrap();
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn store(&self) -> Store {
        Store::new(self.path("cache/graphs"))
    }

    fn entries(&self) -> Vec<Listed> {
        self.store().list().unwrap()
    }

    /// A command with the cache of this place.
    fn command(&self, words: &str) -> Command {
        let mut command = xtrain();
        command
            .args(words.split_whitespace())
            .arg("--cache_dir")
            .arg(self.path("cache"));
        command
    }

    /// One step of a tiny model on random tokens: the quickest command that compiles a training
    /// step.
    fn bench(&self) -> Command {
        self.command(
            "bench --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=16,n_positions=32,vocab_size=64 \
             --batch 2 --seq 8 --steps 1 --warmup 0 --json",
        )
    }

    /// `train clm` or `compile clm` on the tiny text; later words win over earlier ones.
    fn clm(&self, verb: &str, more: &str) -> Run {
        let mut command = self.command(&format!(
            "{verb} clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=16,n_positions=64 --block_size 16 \
             --per_device_train_batch_size 2 --disable_tqdm --do_train --max_steps 2 --save_strategy no"
        ));
        command
            .arg("--tokenizer_name")
            .arg(self.path("tokenizer"))
            .arg("--train_file")
            .arg(self.path("train.txt"));
        command
            .arg("--validation_file")
            .arg(self.path("valid.txt"))
            .arg("--output_dir")
            .arg(self.path("out"));
        if verb == "train" {
            command.arg("--overwrite_output_dir");
        }
        command.args(more.split_whitespace()).run()
    }
}

/// What a `bench` run says of itself.
struct Bench {
    compiled: u64,
    loaded: u64,
    loss: f64,
    stderr: String,
}

impl Bench {
    #[track_caller]
    fn of(run: &Run) -> Bench {
        run.succeeded();
        let value: serde_json::Value = serde_json::from_str(run.stdout.trim()).unwrap();
        Bench {
            compiled: value["compiled_graphs"].as_u64().unwrap(),
            loaded: value["loaded_graphs"].as_u64().unwrap(),
            loss: value["loss_last"].as_f64().unwrap(),
            stderr: run.stderr.clone(),
        }
    }

    #[track_caller]
    fn run(place: &Place) -> Bench {
        Bench::of(&place.bench().run())
    }
}

/// The last line of a training run: `(cache hits, compiled)`.
#[track_caller]
fn counts(run: &Run) -> (u64, u64) {
    run.succeeded();
    let line = run
        .stderr
        .lines()
        .find(|line| line.starts_with("graphs used"))
        .unwrap_or_else(|| panic!("{}", run.stderr));
    let number = |after: &str| {
        line.split(after)
            .nth(1)
            .unwrap()
            .split([',', ' '])
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    (number("cache hits "), number("compiled "))
}

/// The entry of a graph's name.
fn entry_of(place: &Place, phase: &str) -> String {
    let entries = place.entries();
    entries
        .iter()
        .find(|e| e.header.as_ref().is_ok_and(|h| h.phase == phase))
        .unwrap()
        .id
        .clone()
}

fn warnings(stderr: &str) -> Vec<&str> {
    stderr
        .lines()
        .filter(|line| line.starts_with("warning:"))
        .collect()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
