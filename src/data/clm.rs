//! Causal LM, as run_clm prepares it: lines to ids, 1000 lines at a time joined and cut into rows of `block_size`.
//!
//! What is left over after cutting is dropped once per 1000 lines, so no row crosses such a group and rows do not depend on how
//! many threads tokenize. The rows are kept on disk under a key made of everything that decides them, so the work is done once.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use serde_json::json;

use super::dataset::{Dataset, Origin, RowsFile, Totals, io_error};
use super::error::{Error, Result};
use super::settings::ClmDataSettings;
use super::text::{Lines, lines_of};
use super::tokenizer::Tokenizer;
use crate::checkpoint::{atomic, hash};

/// Lines that are joined before cutting: `datasets.map`'s batch size, on which run_clm's rows depend.
const GROUP: usize = 1000;

/// Groups that each thread gets per round: enough to even out long and short lines, few enough to keep memory small.
const GROUPS_PER_THREAD: usize = 8;

/// The block size to use, and what should be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSize {
    pub size: usize,
    pub note: Option<String>,
}

/// run_clm's rule. Asked for: that, but at most the tokenizer's own limit. Not asked for: the tokenizer's limit or, where that
/// exceeds the model's positions, min(1024, positions).
pub fn block_size(requested: Option<usize>, tokenizer_limit: Option<usize>, positions: usize) -> Result<BlockSize> {
    let limit = tokenizer_limit.unwrap_or(usize::MAX);
    let (size, note) = match requested {
        Some(size) if size > positions => return Err(Error::BlockTooLong { block_size: size, positions }),
        Some(size) if size > limit => {
            (limit, Some(format!("block_size {size} is more than the tokenizer's model_max_length; using {limit}")))
        }
        Some(size) => (size, None),
        None if limit > positions => {
            let size = positions.min(1024);
            (size, Some(format!("block_size is not set; using {size} of the model's {positions} positions")))
        }
        None => (limit, None),
    };
    if size < 2 { Err(Error::BlockTooShort { block_size: size }) } else { Ok(BlockSize { size, note }) }
}

/// The rows to train on: all of `train_files`, less the share that validates when there is no validation file.
pub fn train_dataset(settings: &ClmDataSettings, tokenizer: &Tokenizer, block_size: usize, quiet: bool) -> Result<Dataset> {
    let apart = settings.source.validation_files.is_empty() && percentage(settings) > 0.0;
    let share = if apart { Share::After(percentage(settings)) } else { Share::All };
    let data =
        prepare(&Job { what: "train", files: &settings.source.train_files, share, settings, tokenizer, block_size, quiet })?;
    Ok(data.take(settings.source.max_train_samples.unwrap_or(usize::MAX)))
}

/// The rows to validate on: `validation_files`, or the first lines of `train_files`.
pub fn validation_dataset(settings: &ClmDataSettings, tokenizer: &Tokenizer, block_size: usize, quiet: bool) -> Result<Dataset> {
    let (files, share) = match settings.source.validation_files.is_empty() {
        true => (&settings.source.train_files, Share::First(percentage(settings))),
        false => (&settings.source.validation_files, Share::All),
    };
    let data = prepare(&Job { what: "validation", files, share, settings, tokenizer, block_size, quiet })?;
    Ok(data.take(settings.source.max_eval_samples.unwrap_or(usize::MAX)))
}

fn percentage(settings: &ClmDataSettings) -> f64 {
    settings.source.validation_split_percentage.clamp(0.0, 100.0)
}

/// Which lines of the files, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    All,
    First(f64),
    After(f64),
}

impl Share {
    /// Lines to leave out at the start and to take then; `count` finds how many there are, and is called only if it matters.
    fn lines(self, count: impl FnOnce() -> Result<u64>) -> Result<(usize, usize)> {
        // `datasets` rounds a percentage of lines as Python does: to nearest, halves to even.
        let border = |percent: f64, lines: u64| (percent * lines as f64 / 100.0).round_ties_even() as usize;
        Ok(match self {
            Share::All => (0, usize::MAX),
            Share::First(percent) => (0, border(percent, count()?)),
            Share::After(percent) => (border(percent, count()?), usize::MAX),
        })
    }
}

/// One data set to make.
struct Job<'a> {
    what: &'static str,
    files: &'a [PathBuf],
    share: Share,
    settings: &'a ClmDataSettings,
    tokenizer: &'a Tokenizer,
    block_size: usize,
    quiet: bool,
}

impl Job<'_> {
    /// What the user would call these lines.
    fn name(&self) -> String {
        let files = self.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match self.share {
            Share::All => files,
            Share::First(percent) => format!("the first {percent}% of {files} (set aside for validation)"),
            Share::After(percent) => format!("{files} without its first {percent}% (set aside for validation)"),
        }
    }

    /// Where the rows are kept: the name holds a digest of all that decides them.
    fn cache_path(&self) -> Result<PathBuf> {
        let mut files = Vec::new();
        for path in self.files {
            let (bytes, digest) = hash::sha256_file(path).map_err(Error::io("read", path))?;
            if bytes == 0 {
                return Err(Error::EmptyFile { path: path.clone() });
            }
            files.push(digest);
        }
        let key = json!({
            "task": "clm",
            // Another version may bring another tokenizers crate.
            "xtrain": env!("CARGO_PKG_VERSION"),
            "files": files,
            "share": format!("{:?}", self.share),
            "tokenizer": self.tokenizer.fingerprint(),
            "block_size": self.block_size,
            "group": GROUP,
        });
        let digest = hash::sha256(key.to_string().as_bytes());
        Ok(self.settings.source.cache_dir.join(format!("clm-{}.rows", &digest[..32])))
    }
}

fn prepare(job: &Job<'_>) -> Result<Dataset> {
    if job.files.is_empty() {
        return Err(Error::NoFile { what: job.what });
    }
    let path = job.cache_path()?;
    let mut origin = Origin::Tokenized;
    if path.exists() && !job.settings.source.overwrite_cache {
        match Dataset::open(&path) {
            Ok(dataset) => return Ok(dataset),
            Err(reason) => {
                eprintln!("warning: tokenized file {} is not used: {reason}; tokenizing again", path.display());
                origin = Origin::Remade(reason);
            }
        }
    }
    let cache_dir = &job.settings.source.cache_dir;
    std::fs::create_dir_all(cache_dir).map_err(Error::io("create", cache_dir))?;
    atomic::clean_leftovers(cache_dir)?;
    let wide = job.tokenizer.id_bound() > 1 << 16;
    RowsFile::write(&path, job.block_size, wide, |rows| tokenize(job, rows, &path))?;
    let dataset = Dataset::open(&path).map_err(|reason| Error::Io {
        doing: "read back",
        path: path.clone(),
        source: std::io::Error::other(reason),
    })?;
    Ok(dataset.with_origin(origin))
}

/// A group of lines, joined and cut.
struct Group {
    ids: Vec<u32>,
    totals: Totals,
}

fn tokenize(job: &Job<'_>, rows: &mut RowsFile<'_>, path: &Path) -> Result<()> {
    let threads = job.settings.source.preprocessing_num_workers.map_or_else(rayon::current_num_threads, |n| n.max(1));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("tokenize-{i}"))
        .build()
        .map_err(|error| Error::io("start threads for", path)(std::io::Error::other(error)))?;
    let (skip, take) = job.share.lines(|| count_lines(job.files))?;
    let (lines, bytes_read) = lines_of(job.files.to_vec());
    // Errors must not be skipped with the lines that are.
    let mut lines = lines.enumerate().filter(|(i, line)| *i >= skip || line.is_err()).map(|(_, line)| line).take(take);
    let progress = Progress::start(job, bytes_read);
    let mut largest = 0;
    loop {
        let round = (0..threads * GROUPS_PER_THREAD)
            .map(|_| lines.by_ref().take(GROUP).collect::<Result<Vec<String>>>())
            .take_while(|group| !matches!(group, Ok(lines) if lines.is_empty()))
            .collect::<Result<Vec<_>>>()?;
        if round.is_empty() {
            break;
        }
        let groups = pool.install(|| round.par_iter().map(|lines| cut(job, lines)).collect::<Result<Vec<_>>>())?;
        for group in groups {
            rows.push(&group.ids).map_err(io_error(path))?;
            rows.totals.lines += group.totals.lines;
            rows.totals.tokens += group.totals.tokens;
            largest = largest.max(group.totals.tokens);
        }
        progress.update(&rows.totals);
    }
    progress.finish(&rows.totals);
    if rows.is_empty() {
        return Err(too_short(job, rows.totals, largest));
    }
    Ok(())
}

fn cut(job: &Job<'_>, lines: &[String]) -> Result<Group> {
    let mut ids = Vec::new();
    for line in lines {
        ids.extend(job.tokenizer.encode(line)?);
    }
    let totals = Totals { lines: lines.len() as u64, tokens: ids.len() as u64 };
    ids.truncate(ids.len() / job.block_size * job.block_size);
    Ok(Group { ids, totals })
}

fn count_lines(files: &[PathBuf]) -> Result<u64> {
    let mut count = 0;
    for path in files {
        for line in Lines::open(path)? {
            line?;
            count += 1;
        }
    }
    Ok(count)
}

fn too_short(job: &Job<'_>, totals: Totals, largest: u64) -> Error {
    let mut advice = Vec::new();
    if largest >= 2 {
        advice.push(format!("set --block_size {largest} or less"));
    }
    match job.share {
        Share::All => {}
        Share::First(_) => advice.push("give a --validation_file, or raise --validation_split_percentage".to_string()),
        Share::After(_) => advice.push("lower --validation_split_percentage".to_string()),
    }
    advice.push("bring more text".to_string());
    let what = job.name();
    let (tokens, lines, block_size) = (totals.tokens, totals.lines, job.block_size);
    Error::TooShort { what, tokens, lines, block_size, largest, advice: advice.join(", or ") }
}

/// A bar on a terminal; elsewhere one line at the end. Nothing for a file that takes no time anyway.
struct Progress {
    bar: ProgressBar,
    bytes_read: Arc<AtomicU64>,
    start: Instant,
    plain: bool,
    name: String,
}

impl Progress {
    fn start(job: &Job<'_>, bytes_read: Arc<AtomicU64>) -> Progress {
        let total = job.files.iter().filter_map(|path| path.metadata().ok()).map(|m| m.len()).sum();
        let terminal = std::io::stderr().is_terminal();
        let bar = if job.quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(total) };
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {bytes}/{total_bytes} {msg} {elapsed}, {eta} left");
        bar.set_style(style.expect("the template above is valid").progress_chars("=> "));
        bar.set_prefix(format!("tokenizing {} text", job.what));
        Progress { bar, bytes_read, start: Instant::now(), plain: !job.quiet && !terminal, name: job.name() }
    }

    fn update(&self, totals: &Totals) {
        self.bar.set_position(self.bytes_read.load(Ordering::Relaxed));
        self.bar.set_message(format!("{} tokens", totals.tokens));
    }

    fn finish(&self, totals: &Totals) {
        self.bar.finish_and_clear();
        let seconds = self.start.elapsed();
        if self.plain && seconds > Duration::from_secs(1) {
            let (tokens, lines) = (totals.tokens, totals.lines);
            eprintln!("tokenized {}: {tokens} tokens in {lines} lines, {:.1} s", self.name, seconds.as_secs_f64());
        }
    }
}

#[cfg(test)]
#[path = "clm_tests.rs"]
mod tests;
