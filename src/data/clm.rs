//! Causal LM, as run_clm prepares it: lines to ids, 1000 lines at a time joined and cut into rows
//! of `block_size`.
//!
//! What is left over after cutting is dropped once per 1000 lines, so no row crosses such a group
//! and rows do not depend on how many threads tokenize. The rows are kept on disk under a key made
//! of everything that decides them, so the work is done once.

use serde_json::json;

use super::dataset::{Dataset, RowsFile, Totals, io_error};
use super::error::{Error, Result};
use super::prepare::{Job, Progress, Share, percentage, tell_skipped};
use super::settings::{ClmDataSettings, SourceSettings};
use super::texts::Texts;
use super::tokenizer::Tokenizer;

/// Lines that are joined before cutting: `datasets.map`'s batch size, on which the rows of run_clm
/// and run_mlm depend.
pub(super) const GROUP: usize = 1000;

/// The block size to use, and what should be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSize {
    pub size: usize,
    pub note: Option<String>,
}

/// run_clm's rule. Asked for: that, but at most the tokenizer's own limit. Not asked for: the
/// tokenizer's limit or, where that exceeds the model's positions, min(1024, positions).
pub fn block_size(
    requested: Option<usize>,
    tokenizer_limit: Option<usize>,
    positions: usize,
) -> Result<BlockSize> {
    let limit = tokenizer_limit.unwrap_or(usize::MAX);
    let (size, note) = match requested {
        Some(size) if size > positions => {
            return Err(Error::TooLong {
                flag: "block_size",
                length: size,
                positions,
            });
        }
        Some(size) if size > limit => (
            limit,
            Some(format!(
                "block_size {size} is more than the tokenizer's model_max_length; using {limit}"
            )),
        ),
        Some(size) => (size, None),
        None if limit > positions => {
            let size = positions.min(1024);
            (
                size,
                Some(format!(
                    "block_size is not set; using {size} of the model's {positions} positions"
                )),
            )
        }
        None => (limit, None),
    };
    if size < 2 {
        Err(Error::BlockTooShort { block_size: size })
    } else {
        Ok(BlockSize { size, note })
    }
}

/// The rows to train on: all of `train_files`, less the share that validates when there is no
/// validation file.
pub fn train_dataset(
    settings: &ClmDataSettings,
    tokenizer: &Tokenizer,
    block_size: usize,
    quiet: bool,
) -> Result<Dataset> {
    let data = prepare(&train_job(&settings.source, tokenizer, quiet), block_size)?;
    Ok(data.take(settings.source.max_train_samples.unwrap_or(usize::MAX)))
}

/// The rows to validate on: `validation_files`, or the first lines of `train_files`.
pub fn validation_dataset(
    settings: &ClmDataSettings,
    tokenizer: &Tokenizer,
    block_size: usize,
    quiet: bool,
) -> Result<Dataset> {
    let data = prepare(
        &validation_job(&settings.source, tokenizer, quiet),
        block_size,
    )?;
    Ok(data.take(settings.source.max_eval_samples.unwrap_or(usize::MAX)))
}

/// The texts that a language model trains on.
pub(super) fn train_job<'a>(
    source: &'a SourceSettings,
    tokenizer: &'a Tokenizer,
    quiet: bool,
) -> Job<'a> {
    let apart = source.validation_files.is_empty() && percentage(source) > 0.0;
    let share = if apart {
        Share::After(percentage(source))
    } else {
        Share::All
    };
    Job {
        task: "clm",
        what: "train",
        files: &source.train_files,
        share,
        source,
        tokenizer,
        key: json!(null),
        quiet,
    }
}

/// The texts that a language model is validated on.
pub(super) fn validation_job<'a>(
    source: &'a SourceSettings,
    tokenizer: &'a Tokenizer,
    quiet: bool,
) -> Job<'a> {
    let (files, share) = match source.validation_files.is_empty() {
        true => (&source.train_files, Share::First(percentage(source))),
        false => (&source.validation_files, Share::All),
    };
    Job {
        task: "clm",
        what: "validation",
        files,
        share,
        source,
        tokenizer,
        key: json!(null),
        quiet,
    }
}

/// The texts of a job's share. Errors are not left out with the texts that are.
pub(super) fn shared_texts<'a>(
    job: &Job<'_>,
    texts: &'a mut Texts<'_>,
    line_breaks: bool,
) -> Result<impl Iterator<Item = Result<String>> + 'a> {
    let count = || {
        Texts::new(job.files, &job.source.table, line_breaks)
            .try_fold(0, |count, text| text.map(|_| count + 1))
    };
    let kept = job.share.kept(count)?;
    Ok(texts
        .enumerate()
        .filter(move |(i, text)| kept.contains(*i) || text.is_err())
        .map(|(_, text)| text))
}

fn prepare(job: &Job<'_>, block_size: usize) -> Result<Dataset> {
    let job = &Job {
        key: json!({"block_size": block_size, "group": GROUP}),
        ..*job
    };
    job.find_or_make(|path, wide| {
        RowsFile::write(path, block_size, wide, |rows| {
            let mut texts = Texts::new(job.files, &job.source.table, true);
            let progress = Progress::start(job, texts.bytes_read());
            let mut largest = 0;
            let work = |lines: &[String]| cut(job.tokenizer, lines, block_size);
            job.in_groups(GROUP, shared_texts(job, &mut texts, true)?, work, |group| {
                rows.push(&group.ids).map_err(io_error(path))?;
                rows.totals.lines += group.totals.lines;
                rows.totals.tokens += group.totals.tokens;
                largest = largest.max(group.totals.tokens);
                progress.update(rows.totals);
                Ok(())
            })?;
            progress.finish(rows.totals);
            tell_skipped(job, texts.skipped());
            match rows.is_empty() {
                true => Err(too_short(
                    job,
                    rows.totals,
                    block_size,
                    largest,
                    "block_size",
                )),
                false => Ok(()),
            }
        })
    })
}

/// A group of lines, joined and cut.
struct Group {
    ids: Vec<u32>,
    totals: Totals,
}

fn cut(tokenizer: &Tokenizer, lines: &[String], block_size: usize) -> Result<Group> {
    let mut ids = joined(tokenizer, lines.iter().map(String::as_str))?;
    let totals = Totals {
        lines: lines.len() as u64,
        tokens: ids.len() as u64,
    };
    ids.truncate(ids.len() / block_size * block_size);
    Ok(Group { ids, totals })
}

/// The ids of a group of lines, one after the other.
pub(super) fn joined<'a>(
    tokenizer: &Tokenizer,
    lines: impl Iterator<Item = &'a str>,
) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for line in lines {
        ids.extend(tokenizer.encode(line)?);
    }
    Ok(ids)
}

/// Not one row of `length` came out; `flag` sets that length, and no group had more than `largest`
/// tokens.
pub(super) fn too_short(
    job: &Job<'_>,
    totals: Totals,
    length: usize,
    largest: u64,
    flag: &'static str,
) -> Error {
    let mut advice = Vec::new();
    if largest >= 2 {
        advice.push(format!("set --{flag} {largest} or less"));
    }
    match job.share {
        Share::First(_) => advice
            .push("give a --validation_file, or raise --validation_split_percentage".to_string()),
        Share::After(_) => advice.push("lower --validation_split_percentage".to_string()),
        _ => {}
    }
    advice.push("bring more text".to_string());
    let what = job.name();
    let (tokens, lines) = (totals.tokens, totals.lines);
    Error::TooShort {
        what,
        tokens,
        lines,
        length,
        largest,
        advice: advice.join(", or "),
    }
}

#[cfg(test)]
#[path = "clm_tests.rs"]
mod tests;
