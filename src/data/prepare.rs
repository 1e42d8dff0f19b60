//! What preparing a set has in common for every task: which part of the files it is, finding it on
//! disk or making it, tokenizing in parallel, telling how far it is.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::dataset::{Dataset, Origin, Totals};
use super::error::{Error, Result};
use super::examples::Examples;
use super::formats::{input, table};
use super::sampler::Order;
use super::settings::SourceSettings;
use super::tokenizer::Tokenizer;
use crate::checkpoint::{atomic, hash};

/// Groups that each thread gets per round: enough to even out long and short texts, few enough to
/// keep memory small.
const GROUPS_PER_THREAD: usize = 8;

/// Which of the files' examples, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Share {
    All,
    /// The first ones.
    First(f64),
    After(f64),
    /// A random choice by this seed.
    Chosen(f64, u64),
    NotChosen(f64, u64),
}

/// The examples of a share, by their numbers.
pub(super) enum Kept {
    /// From the first number up to, not including, the second.
    Range(usize, usize),
    /// Those that are true.
    Marked(Vec<bool>),
}

impl Kept {
    pub fn contains(&self, index: usize) -> bool {
        match self {
            Kept::Range(start, end) => (*start..*end).contains(&index),
            Kept::Marked(marked) => marked.get(index).copied().unwrap_or(false),
        }
    }
}

impl Share {
    /// The examples to use; `count` finds how many there are, and is called only if it matters.
    pub fn kept(self, count: impl FnOnce() -> Result<u64>) -> Result<Kept> {
        // `datasets` rounds a percentage of lines as Python does: to nearest, halves to even.
        let border = |percent: f64, examples: u64| {
            (percent * examples as f64 / 100.0).round_ties_even() as usize
        };
        Ok(match self {
            Share::All => Kept::Range(0, usize::MAX),
            Share::First(percent) => Kept::Range(0, border(percent, count()?)),
            Share::After(percent) => Kept::Range(border(percent, count()?), usize::MAX),
            Share::Chosen(percent, seed) | Share::NotChosen(percent, seed) => {
                let examples = count()?;
                let chosen = matches!(self, Share::Chosen(..));
                let mut marked = vec![!chosen; examples as usize];
                // An epoch's order that no epoch has: the choice must not be the first batches of
                // the first epoch.
                let order = Order::Shuffled { seed }.epoch(examples as usize, u64::MAX);
                for index in &order[..border(percent, examples)] {
                    marked[*index as usize] = chosen;
                }
                Kept::Marked(marked)
            }
        })
    }
}

/// The share to train on when so many percent are set aside for validation unless there are files
/// for that.
pub(super) fn percentage(source: &SourceSettings) -> f64 {
    source.validation_split_percentage.clamp(0.0, 100.0)
}

/// One set to make.
pub(super) struct Job<'a> {
    /// Of the task; part of the file's name.
    pub task: &'static str,
    /// Which set, in the user's words: train, validation, test.
    pub what: &'static str,
    pub files: &'a [PathBuf],
    pub share: Share,
    pub source: &'a SourceSettings,
    pub tokenizer: &'a Tokenizer,
    /// All else that decides the result.
    pub key: Value,
    pub quiet: bool,
}

impl Job<'_> {
    /// What the user would call these examples.
    pub fn name(&self) -> String {
        let files = self
            .files
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        match self.share {
            Share::All => files,
            Share::First(percent) => {
                format!("the first {percent}% of {files} (set aside for validation)")
            }
            Share::After(percent) => {
                format!("{files} without its first {percent}% (set aside for validation)")
            }
            Share::Chosen(percent, _) => {
                format!("{percent}% of {files}, chosen at random (set aside for validation)")
            }
            Share::NotChosen(percent, _) => {
                format!("{files} without {percent}%, chosen at random (set aside for validation)")
            }
        }
    }

    /// Where the set is kept: the name holds a digest of all that decides it.
    pub fn cache_path(&self) -> Result<PathBuf> {
        let mut files = Vec::new();
        for path in self.files {
            files.push(json!([
                input::content(path)?,
                format!("{:?}", table::Format::of(path))
            ]));
        }
        let key = json!({
            "task": self.task,
            // Another version may bring another tokenizers crate.
            "xtrain": env!("CARGO_PKG_VERSION"),
            "files": files,
            "table": format!("{:?}", self.source.table),
            "share": format!("{:?}", self.share),
            "tokenizer": self.tokenizer.fingerprint(),
            "key": self.key,
        });
        let digest = hash::sha256(key.to_string().as_bytes());
        Ok(self
            .source
            .cache_dir
            .join(format!("{}-{}.rows", self.task, &digest[..32])))
    }

    /// The set from disk or, if it is not there or damaged, made by `write`, which gets the path
    /// and whether ids need 32 bits.
    pub fn find_or_make<S: Stored>(
        &self,
        write: impl FnOnce(&Path, bool) -> Result<()>,
    ) -> Result<S> {
        if self.files.is_empty() {
            return Err(Error::NoFile { what: self.what });
        }
        let path = self.cache_path()?;
        let mut origin = Origin::Tokenized;
        if path.exists() && !self.source.overwrite_cache {
            match S::open(&path) {
                Ok(set) => return Ok(set),
                Err(reason) => {
                    eprintln!(
                        "warning: tokenized file {} is not used: {reason}; tokenizing again",
                        path.display()
                    );
                    origin = Origin::Remade(reason);
                }
            }
        }
        let cache_dir = &self.source.cache_dir;
        std::fs::create_dir_all(cache_dir).map_err(Error::io("create", cache_dir))?;
        atomic::clean_leftovers(cache_dir)?;
        write(&path, self.tokenizer.id_bound() > 1 << 16)?;
        let set = S::open(&path).map_err(|reason| Error::Io {
            doing: "read back",
            path: path.clone(),
            source: std::io::Error::other(reason),
        })?;
        Ok(set.with_origin(origin))
    }

    /// Takes `items` in groups, works on groups in parallel, and hands the results on in order. The
    /// result does not depend on the number of threads.
    pub fn in_groups<T: Send + Sync, R: Send>(
        &self,
        group: usize,
        mut items: impl Iterator<Item = Result<T>>,
        work: impl Fn(&[T]) -> Result<R> + Sync,
        mut done: impl FnMut(R) -> Result<()>,
    ) -> Result<()> {
        let threads = self
            .source
            .preprocessing_num_workers
            .map_or_else(rayon::current_num_threads, |n| n.max(1));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("tokenize-{i}"))
            .build()
            .map_err(|error| {
                Error::io("start threads for", &self.source.cache_dir)(std::io::Error::other(error))
            })?;
        loop {
            let round = (0..threads * GROUPS_PER_THREAD)
                .map(|_| items.by_ref().take(group).collect::<Result<Vec<T>>>())
                .take_while(|group| !matches!(group, Ok(items) if items.is_empty()))
                .collect::<Result<Vec<_>>>()?;
            if round.is_empty() {
                return Ok(());
            }
            let results = pool.install(|| {
                round
                    .par_iter()
                    .map(|items| work(items))
                    .collect::<Result<Vec<_>>>()
            })?;
            results.into_iter().try_for_each(&mut done)?;
        }
    }
}

/// A set that is kept on disk.
pub(super) trait Stored: Sized {
    fn open(path: &Path) -> Result<Self, String>;
    fn with_origin(self, origin: Origin) -> Self;
}

impl Stored for Dataset {
    fn open(path: &Path) -> Result<Self, String> {
        Dataset::open(path)
    }

    fn with_origin(self, origin: Origin) -> Self {
        Dataset::with_origin(self, origin)
    }
}

impl Stored for Examples {
    fn open(path: &Path) -> Result<Self, String> {
        Examples::open(path)
    }

    fn with_origin(self, origin: Origin) -> Self {
        Examples::with_origin(self, origin)
    }
}

/// A bar on a terminal; elsewhere one line at the end. Nothing for a file that takes no time
/// anyway.
pub(super) struct Progress {
    bar: ProgressBar,
    bytes_read: Arc<AtomicU64>,
    start: Instant,
    plain: bool,
    name: String,
}

impl Progress {
    pub fn start(job: &Job<'_>, bytes_read: Arc<AtomicU64>) -> Progress {
        let total = job
            .files
            .iter()
            .filter_map(|path| path.metadata().ok())
            .map(|m| m.len())
            .sum();
        let terminal = std::io::stderr().is_terminal();
        let bar = if job.quiet || !terminal {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(total)
        };
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:30}] {bytes}/{total_bytes} {msg} {elapsed}, {eta} left",
        );
        bar.set_style(
            style
                .expect("the template above is valid")
                .progress_chars("=> "),
        );
        bar.set_prefix(format!("tokenizing {} text", job.what));
        Progress {
            bar,
            bytes_read,
            start: Instant::now(),
            plain: !job.quiet && !terminal,
            name: job.name(),
        }
    }

    pub fn update(&self, totals: Totals) {
        self.bar
            .set_position(self.bytes_read.load(Ordering::Relaxed));
        self.bar.set_message(format!("{} tokens", totals.tokens));
    }

    pub fn finish(&self, totals: Totals) {
        self.bar.finish_and_clear();
        let seconds = self.start.elapsed();
        if self.plain && seconds > Duration::from_secs(1) {
            let (tokens, lines) = (totals.tokens, totals.lines);
            eprintln!(
                "tokenized {}: {tokens} tokens in {lines} lines, {:.1} s",
                self.name,
                seconds.as_secs_f64()
            );
        }
    }
}

/// Tells of bad rows that were left out; quiet when there are none.
pub(super) fn tell_skipped(job: &Job<'_>, skipped: u64) {
    if skipped > 0 {
        let rows = if skipped == 1 { "row was" } else { "rows were" };
        eprintln!(
            "warning: {skipped} bad {rows} left out of {} (--on_bad_row skip)",
            job.name()
        );
    }
}
