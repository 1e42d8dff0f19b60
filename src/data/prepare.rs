//! What preparing a set has in common for every task: which part of the files it is, finding it on
//! disk or making it, tokenizing in parallel, telling how far it is.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use xtrain_report::errln;

use indicatif::ProgressBar;
use rayon::prelude::*;
use serde_json::{Value, json};
use xtrain_report::progress;

use super::error::{Error, Result};
use super::formats::{input, table};
use super::mixture::Mixed;
use super::rows::{Origin, Rows, RowsWriter, Totals};
use super::samples::{EncodedGroup, Recipe, Sample, Samples};
use super::settings::{Mixture, SourceSettings};
use super::share::Share;
use super::tokenizer::Tokenizer;
use xtrain_checkpoint::lock::Lock;
use xtrain_checkpoint::{atomic, hash};

/// Groups that each thread gets per round: enough to even out long and short texts, few enough to
/// keep memory small.
const GROUPS_PER_THREAD: usize = 8;

/// Counts the ways in which files were read: one more whenever a file gives other rows than before, so
/// that sets of earlier versions are made again.
const READING: u32 = 3;

/// How often a set that is damaged as soon as it is written is made again before that is an error.
const MOST_MADE: usize = 3;

/// Bytes of text that a round takes before it takes no further group.
const ROUND_BYTES: usize = 64 << 20;

/// The share of the training examples that validates where no validation file is given, in percent.
pub fn percentage(source: &SourceSettings) -> f64 {
    source.validation_split_percentage.clamp(0.0, 100.0)
}

/// Whether files can be made in a directory, which is made if it is missing.
fn writable(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    tempfile::tempfile_in(dir).map(drop)
}

/// One set to make.
pub struct Job<'a> {
    /// Of the task; part of the file's name.
    pub task: &'static str,
    /// Which set, in the user's words: train, validation, test.
    pub what: &'static str,
    pub files: &'a [PathBuf],
    /// How the files are mixed; `None`: one after the other.
    pub mixture: Option<&'a Mixture>,
    pub share: Share,
    pub source: &'a SourceSettings,
    pub tokenizer: &'a Tokenizer,
    /// No id reaches it.
    pub id_bound: usize,
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
        let mut key = json!({
            "task": self.task,
            // Another version may bring another tokenizers crate.
            "xtrain": env!("CARGO_PKG_VERSION"),
            "reading": READING,
            "files": files,
            "table": format!("{:?}", self.source.table),
            "share": format!("{:?}", self.share),
            "tokenizer": self.tokenizer.fingerprint(),
            "key": self.key,
        });
        if let Some(mixture) = self.mixture {
            key["mixture"] = json!(format!("{mixture:?} {}", self.source.seed));
        }
        let digest = hash::sha256(key.to_string().as_bytes());
        Ok(self
            .source
            .cache_dir
            .join(format!("{}-{}.rows", self.task, &digest[..32])))
    }

    /// The set's rows, found on disk or made.
    ///
    /// # Errors
    /// A file cannot be read or has a bad row, or there is not one row.
    pub fn prepare(&self, recipe: &dyn Recipe) -> Result<Rows> {
        let block_size = recipe.packed().then(|| recipe.length());
        self.find_or_make(|path, wide| {
            Rows::write(path, block_size, wide, |rows| self.fill(recipe, path, rows))
        })
    }

    /// The set from disk or, if it is missing or damaged, made by `write`, which gets the path
    /// and whether ids need 32 bits. Of the processes that share a cache directory one makes it; the
    /// others wait.
    fn find_or_make(&self, write: impl Fn(&Path, bool) -> Result<()>) -> Result<Rows> {
        if self.files.is_empty() {
            return Err(Error::NoFile { what: self.what });
        }
        let path = self.cache_path()?;
        let (asked, outdates) = (SystemTime::now(), self.source.overwrite_cache);
        let is_outdated = || {
            let time = path.metadata().and_then(|data| data.modified());
            outdates && time.is_ok_and(|time| time < asked)
        };
        if path.exists()
            && !is_outdated()
            && let Ok(set) = Rows::open(&path)
        {
            return Ok(set);
        }
        if let Err(error) = writable(&self.source.cache_dir) {
            return self.make_for_this_run(&error, write);
        }
        atomic::clean_leftovers(&self.source.cache_dir)?;
        let doing = format!("tokenizing the same {} text", self.what);
        let _lock = Lock::wait(&path.with_extension("lock"), &doing);
        let (mut made, mut origin) = (0, Origin::Tokenized);
        loop {
            if path.exists() && (made > 0 || !is_outdated()) {
                match Rows::open(&path) {
                    Ok(set) if made == 0 => return Ok(set),
                    Ok(set) => return Ok(set.with_origin(origin)),
                    Err(reason) if made == MOST_MADE => {
                        let source = std::io::Error::other(reason);
                        return Err(Error::io("read back", &path)(source));
                    }
                    Err(reason) => {
                        errln!(
                            "warning: tokenized file {} is not used: {reason}; tokenizing again",
                            path.display()
                        );
                        origin = Origin::Remade(reason);
                    }
                }
            }
            // A whole one is never replaced: others may read it.
            let _ = std::fs::remove_file(&path);
            write(&path, self.id_bound > 1 << 16)?;
            made += 1;
        }
    }

    /// Makes the set where only this process sees it, because the cache directory cannot be written.
    /// An open file stays when the directory goes.
    fn make_for_this_run(
        &self,
        error: &std::io::Error,
        write: impl Fn(&Path, bool) -> Result<()>,
    ) -> Result<Rows> {
        let cache_dir = self.source.cache_dir.display();
        errln!(
            "warning: --cache_dir: {cache_dir} cannot be written ({error}): the tokenized {} text is not kept",
            self.what
        );
        let temporary = std::env::temp_dir();
        let dir = tempfile::tempdir().map_err(Error::io("create a directory in", &temporary))?;
        let path = dir.path().join("set.rows");
        write(&path, self.id_bound > 1 << 16)?;
        let read = Rows::open(&path).map(|set| set.with_origin(Origin::Tokenized));
        read.map_err(|reason| Error::io("read back", &path)(std::io::Error::other(reason)))
    }

    /// All samples of its files.
    fn samples<'s>(&'s self, recipe: &'s dyn Recipe) -> Result<FileSamples<'s>> {
        let on_bad_row = self.source.table.on_bad_row;
        Ok(match self.mixture {
            Some(mixture) => {
                let seed = self.source.seed;
                let mixed = Mixed::new(self.files, mixture, seed, recipe, on_bad_row)?;
                FileSamples::Mixed(Box::new(mixed))
            }
            None => FileSamples::InOrder(Samples::new(self.files, recipe, on_bad_row)),
        })
    }

    /// Reads and encodes the job's share of the samples, group by group in their order, and gives each with
    /// the number of its samples to `done`. Returns how many bad rows were left out, and the shares of the
    /// files. Errors are not left out with the samples that are.
    pub(super) fn each_group(
        &self,
        recipe: &dyn Recipe,
        mut done: impl FnMut(u64, EncodedGroup) -> Result<Totals>,
    ) -> Result<(u64, FileShares)> {
        let count = || {
            let mut all = self.samples(recipe)?;
            all.try_fold(0, |count, sample| sample.map(|_| count + 1))
        };
        let kept = self.share.kept(count)?;
        let mut samples = self.samples(recipe)?;
        let progress = Progress::start(self, samples.bytes_read());
        let chosen = samples
            .by_ref()
            .enumerate()
            .filter(|(i, sample)| kept.contains(*i) || sample.is_err())
            .map(|(_, sample)| sample);
        let work = |group: &[Sample]| {
            let encoded = recipe.encode(group)?;
            let shares = FileShares::of(group, &encoded.lengths, self.files.len());
            Ok((group.len() as u64, encoded, shares))
        };
        let size = |sample: &Sample| {
            let ids = sample.row.as_ref().map_or(0, |row| 4 * row.ids.len());
            ids + sample.texts.iter().map(String::len).sum::<usize>()
        };
        let (mut totals, mut of_files) = (
            Totals::default(),
            FileShares::of(&[], &[], self.files.len()),
        );
        self.in_groups(
            recipe.group(),
            chosen,
            size,
            work,
            |(read, group, shares)| {
                of_files.add(&shares);
                totals = done(read, group)?;
                progress.update(totals);
                Ok(())
            },
        )?;
        progress.finish(totals);
        Ok((samples.skipped(), of_files))
    }

    /// Reads and encodes the job's share of the samples.
    fn fill(&self, recipe: &dyn Recipe, path: &Path, out: &mut RowsWriter<'_>) -> Result<()> {
        let (mut largest, mut truncated, mut doubled) = (0, 0, 0);
        let (mut dropped, mut unlearned) = (0, Vec::new());
        let (skipped, of_files) = self.each_group(recipe, |read, group| {
            let written = group.rows.iter().try_for_each(|row| out.push(row));
            written.map_err(Error::io("write", path))?;
            out.count(read, group.tokens, 0);
            largest = largest.max(group.tokens);
            truncated += group.truncated;
            dropped += group.dropped;
            doubled += group.doubled;
            unlearned.extend(group.unlearned);
            Ok(out.totals())
        })?;
        let totals = out.totals();
        report_skipped(self, skipped);
        out.count(0, 0, skipped);
        if self.mixture.is_some() && !self.quiet {
            errln!("note: {}", of_files.line(self.files));
        }
        if truncated > 0 && !self.quiet {
            errln!(
                "note: {truncated} of {} sequences of {} are cut to {} tokens",
                totals.lines,
                self.name(),
                recipe.length()
            );
        }
        if dropped > 0 && !self.quiet {
            errln!(
                "note: {dropped} of {} examples of {} are left out: {}",
                totals.lines,
                self.name(),
                recipe.why_dropped()
            );
        }
        if doubled > 0 && !self.quiet {
            errln!(
                "note: {doubled} of {} sequences of {} begin with two tokens that begin a text: the second is removed",
                totals.lines,
                self.name()
            );
        }
        if out.is_empty() {
            let name = if unlearned.is_empty() {
                self.name()
            } else {
                format!("{} ({})", self.name(), row_numbers(&unlearned))
            };
            return Err(recipe.empty(name, self.share, totals, largest));
        }
        if !unlearned.is_empty() && !self.quiet {
            errln!(
                "note: {} of {} sequences of {} have nothing to learn within {} tokens{}: {}",
                unlearned.len(),
                totals.lines,
                self.name(),
                recipe.length(),
                if recipe.joins_examples() {
                    ""
                } else {
                    " and are left out"
                },
                row_numbers(&unlearned)
            );
        }
        Ok(())
    }

    /// Takes `items` in groups, works on groups in parallel, and hands the results on in order. The
    /// result does not depend on the number of threads.
    fn in_groups<T: Send + Sync, R: Send>(
        &self,
        group: usize,
        mut items: impl Iterator<Item = Result<T>>,
        size: impl Fn(&T) -> usize,
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
            let mut room = ROUND_BYTES;
            let mut round = Vec::new();
            while room > 0 && round.len() < threads * GROUPS_PER_THREAD {
                let group = items.by_ref().take(group).collect::<Result<Vec<T>>>()?;
                if group.is_empty() {
                    break;
                }
                room = room.saturating_sub(group.iter().map(&size).sum());
                round.push(group);
            }
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

/// Samples of several files, in the order that a set has them.
enum FileSamples<'a> {
    InOrder(Samples<'a>),
    Mixed(Box<Mixed<'a>>),
}

impl FileSamples<'_> {
    fn bytes_read(&self) -> Arc<AtomicU64> {
        match self {
            FileSamples::InOrder(samples) => samples.bytes_read(),
            FileSamples::Mixed(samples) => samples.bytes_read(),
        }
    }

    fn skipped(&self) -> u64 {
        match self {
            FileSamples::InOrder(samples) => samples.skipped(),
            FileSamples::Mixed(samples) => samples.skipped(),
        }
    }
}

impl Iterator for FileSamples<'_> {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
        match self {
            FileSamples::InOrder(samples) => samples.next(),
            FileSamples::Mixed(samples) => samples.next(),
        }
    }
}

/// Samples and tokens of each of several files.
#[derive(Debug, PartialEq)]
pub(super) struct FileShares {
    samples: Vec<u64>,
    tokens: Vec<u64>,
}

impl FileShares {
    /// Those of a group; `lengths` has the tokens of each sample, or nothing.
    fn of(group: &[Sample], lengths: &[u64], files: usize) -> FileShares {
        let mut shares = FileShares {
            samples: vec![0; files],
            tokens: vec![0; files],
        };
        for (position, sample) in group.iter().enumerate() {
            shares.samples[sample.file] += 1;
            shares.tokens[sample.file] += lengths.get(position).copied().unwrap_or(0);
        }
        shares
    }

    fn add(&mut self, other: &FileShares) {
        let add = |own: &mut Vec<u64>, more: &[u64]| {
            own.iter_mut()
                .zip(more)
                .for_each(|(own, more)| *own += more);
        };
        add(&mut self.samples, &other.samples);
        add(&mut self.tokens, &other.tokens);
    }

    /// The share of each file, in a user's words.
    pub fn line(&self, files: &[PathBuf]) -> String {
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        let (samples, tokens) = (sum(&self.samples), sum(&self.tokens));
        let percent = |count: u64, all: u64| 100.0 * count as f64 / all.max(1) as f64;
        let parts = files.iter().enumerate().map(|(file, path)| {
            let of_samples = percent(self.samples[file], samples);
            let of_tokens = match tokens {
                0 => String::new(),
                all => format!(
                    " and {:.1} % of the tokens",
                    percent(self.tokens[file], all)
                ),
            };
            let path = path.display();
            format!("{path} gives {of_samples:.1} % of the examples{of_tokens}")
        });
        let parts = parts.collect::<Vec<_>>().join(", ");
        format!("a mixture of {samples} examples: {parts}")
    }
}

/// The first of samples by their index, as people count rows.
fn row_numbers(samples: &[u64]) -> String {
    const NAMED: usize = 5;
    let numbers: Vec<String> = (samples.iter().take(NAMED))
        .map(|index| (index + 1).to_string())
        .collect();
    let rows = if samples.len() == 1 { "row" } else { "rows" };
    let more = match samples.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{rows} {}{more}", numbers.join(", "))
}

/// A bar on a terminal; elsewhere one line at the end. Nothing for a file that takes no time
/// anyway.
pub struct Progress {
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
            let what = format!("tokenizing {} text", job.what);
            progress::bar(what, total, "{bytes}/{total_bytes}, {eta} left")
        };
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
            errln!(
                "tokenized {}: {tokens} tokens in {lines} lines, {:.1} s",
                self.name,
                seconds.as_secs_f64()
            );
        }
    }
}

/// Reports the bad rows that were left out, if there are any.
fn report_skipped(job: &Job<'_>, skipped: u64) {
    if skipped > 0 {
        let rows = if skipped == 1 { "row was" } else { "rows were" };
        errln!(
            "warning: {skipped} bad {rows} left out of {} (--on_bad_row skip)",
            job.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Row;
    use super::super::tokenizer::train_byte_bpe;
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Where a set comes from that several threads want; `after` is called with the file whenever it
    /// was made, and how often it was before.
    fn make(threads: usize, after: impl Fn(&Path, usize) + Sync) -> Vec<Result<Origin>> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.txt");
        std::fs::write(&file, "x").unwrap();
        let source = SourceSettings {
            cache_dir: dir.path().join("data"),
            ..SourceSettings::default()
        };
        let (tokenizer, made) = (train_byte_bpe(&["x"], 300).unwrap(), AtomicUsize::new(0));
        let job = Job {
            task: "clm",
            what: "training",
            files: &[file],
            mixture: None,
            share: Share::All,
            source: &source,
            tokenizer: &tokenizer,
            id_bound: 300,
            key: Value::Null,
            quiet: true,
        };
        let write = |path: &Path, wide| {
            Rows::write(path, Some(2), wide, |rows| {
                rows.push(&Row::of_ids(&[1, 2]))
                    .map_err(Error::io("write", path))
            })?;
            after(path, made.fetch_add(1, Ordering::SeqCst));
            Ok(())
        };
        let origin = || Ok(job.find_or_make(write)?.origin().clone());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(origin)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn one_makes_a_set_and_the_others_take_it() {
        let found = make(4, |_, _| {});
        let tokenized = |found: &&Result<Origin>| matches!(found, Ok(Origin::Tokenized));
        assert_eq!(found.iter().filter(tokenized).count(), 1, "{found:?}");
        assert!(found.iter().all(Result::is_ok), "{found:?}");
    }

    #[test]
    fn a_set_that_is_damaged_before_it_is_read_is_made_again() {
        let damage = |path: &Path| std::fs::write(path, "junk").unwrap();
        let found = make(1, |path, made| {
            if made == 0 {
                damage(path);
            }
        });
        assert!(matches!(&found[0], Ok(Origin::Remade(_))), "{found:?}");
        let error = make(1, |path, _| damage(path)).remove(0).unwrap_err();
        assert!(error.to_string().contains("read back"), "{error}");
    }
}
