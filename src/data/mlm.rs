//! Masked LM, as run_mlm prepares it: lines with their special tokens, 1000 lines at a time joined
//! and cut into rows of one length, or each line a sequence of its own. Masking comes later, in
//! `masking`, anew for every epoch.

use serde_json::json;

use super::clm::{BlockSize, GROUP, shared_texts, too_short, train_job, validation_job};
use super::collator::Collator;
use super::dataset::io_error;
use super::error::{Error, Result};
use super::examples::{Examples, ExamplesWriter, flag};
use super::masking::Masking;
use super::padding::Padding;
use super::prepare::{Job, Progress, tell_skipped};
use super::sequences::{Sequence, SequenceEncoder};
use super::settings::MlmDataSettings;
use super::texts::Texts;
use super::tokenizer::Tokenizer;

/// What run_mlm takes at most when nobody says a length.
const USUAL_LENGTH: usize = 1024;

/// run_mlm's rule. Asked for: that, but at most the tokenizer's own limit. Not asked for: the
/// tokenizer's limit, at most 1024. In both cases at most the model's positions, which an explicit
/// length may not exceed.
pub fn max_seq_length(
    requested: Option<usize>,
    tokenizer_limit: Option<usize>,
    positions: usize,
) -> Result<BlockSize> {
    let limit = tokenizer_limit.unwrap_or(usize::MAX);
    Ok(match requested {
        Some(length) if length > positions => {
            return Err(Error::TooLong {
                flag: "max_seq_length",
                length,
                positions,
            });
        }
        Some(length) if length > limit => {
            let note = format!(
                "max_seq_length {length} is more than the tokenizer's model_max_length; using {limit}"
            );
            BlockSize {
                size: limit,
                note: Some(note),
            }
        }
        Some(0) => {
            return Err(Error::Zero {
                what: "max_seq_length",
            });
        }
        Some(length) => BlockSize {
            size: length,
            note: None,
        },
        None => {
            let size = limit.min(USUAL_LENGTH).min(positions);
            let note = (size != limit).then(|| {
                format!(
                    "max_seq_length is not set; using {size} of the model's {positions} positions"
                )
            });
            BlockSize { size, note }
        }
    })
}

/// The examples to train on: all of `train_files`, less the share that validates when there is no
/// validation file.
pub fn train_examples(
    settings: &MlmDataSettings,
    tokenizer: &Tokenizer,
    max_seq_length: usize,
    quiet: bool,
) -> Result<Examples> {
    let examples = prepare(
        &train_job(&settings.source, tokenizer, quiet),
        settings,
        max_seq_length,
    )?;
    Ok(examples.take(settings.source.max_train_samples.unwrap_or(usize::MAX)))
}

/// The examples to validate on: `validation_files`, or the first lines of `train_files`.
pub fn validation_examples(
    settings: &MlmDataSettings,
    tokenizer: &Tokenizer,
    max_seq_length: usize,
    quiet: bool,
) -> Result<Examples> {
    let examples = prepare(
        &validation_job(&settings.source, tokenizer, quiet),
        settings,
        max_seq_length,
    )?;
    Ok(examples.take(settings.source.max_eval_samples.unwrap_or(usize::MAX)))
}

/// Batches of examples. Refuses a tokenizer without a mask token, or without a pad token where one
/// is needed.
pub fn collator(
    settings: &MlmDataSettings,
    tokenizer: &Tokenizer,
    max_seq_length: usize,
    examples: Examples,
) -> Result<Collator> {
    let probability = settings.mlm_probability;
    if !(probability > 0.0 && probability <= 1.0) {
        return Err(Error::MaskingShare(probability));
    }
    let masking = Masking {
        probability,
        whole_words: settings.whole_word_mask,
        mask_id: tokenizer.mask_id().ok_or(Error::NoMaskToken)?,
        vocab_size: tokenizer.vocab_size(),
        seed: settings.source.seed,
    };
    let padding = match settings.line_by_line {
        true => {
            let pad_id = tokenizer.pad_id().ok_or(Error::NoPadToken)?;
            Some(Padding::new(
                &settings.padding,
                max_seq_length,
                pad_id,
                tokenizer.pads_left(),
            )?)
        }
        false => None,
    };
    Ok(Collator::Masked {
        examples,
        masking,
        padding,
    })
}

fn prepare(job: &Job<'_>, settings: &MlmDataSettings, max_seq_length: usize) -> Result<Examples> {
    let lines = settings.line_by_line;
    let left = job.tokenizer.truncates_left;
    let key = json!({"max_seq_length": max_seq_length, "line_by_line": lines, "group": GROUP, "left": left});
    let job = &Job {
        task: "mlm",
        key,
        ..*job
    };
    let encoder = job.tokenizer.sequences(lines.then_some(max_seq_length))?;
    job.find_or_make(|path, wide| {
        Examples::write(path, wide, |examples| {
            let mut texts = Texts::new(job.files, &job.source.table, false);
            let progress = Progress::start(job, texts.bytes_read());
            let (mut largest, mut totals) = (0, Default::default());
            let work = |lines: &[String]| {
                let (rows, tokens) = rows(
                    &encoder,
                    lines.iter().map(String::as_str),
                    settings.line_by_line,
                    max_seq_length,
                )?;
                Ok(Group {
                    rows,
                    lines: lines.len() as u64,
                    tokens,
                })
            };
            job.in_groups(
                GROUP,
                shared_texts(job, &mut texts, false)?,
                work,
                |group| {
                    push(examples, &group).map_err(io_error(path))?;
                    largest = largest.max(group.tokens);
                    totals = examples.totals();
                    progress.update(totals);
                    Ok(())
                },
            )?;
            progress.finish(totals);
            tell_skipped(job, texts.skipped());
            examples.count(0, 0, texts.skipped());
            match examples.is_empty() {
                true if lines => Err(Error::NoText { what: job.name() }),
                true => Err(too_short(
                    job,
                    totals,
                    max_seq_length,
                    largest,
                    "max_seq_length",
                )),
                false => Ok(()),
            }
        })
    })
}

/// What came out of a group of lines.
struct Group {
    rows: Vec<Sequence>,
    lines: u64,
    /// Before cutting.
    tokens: u64,
}

fn push(examples: &mut ExamplesWriter<'_>, group: &Group) -> std::io::Result<()> {
    examples.count(group.lines, group.tokens, 0);
    group
        .rows
        .iter()
        .try_for_each(|row| examples.push(&row.ids, &row.flags, None))
}

/// The rows of a group of lines, and the tokens that it had before cutting.
pub(super) fn rows<'a>(
    encoder: &SequenceEncoder,
    lines: impl Iterator<Item = &'a str>,
    line_by_line: bool,
    length: usize,
) -> Result<(Vec<Sequence>, u64)> {
    if line_by_line {
        // Each line that is not blank is a sequence.
        let texts = lines.filter(|line| !line.trim().is_empty());
        let rows = texts
            .map(|line| encoder.encode(line, None))
            .collect::<Result<Vec<_>>>()?;
        let tokens = rows.iter().map(|row| row.ids.len() as u64).sum();
        return Ok((rows, tokens));
    }
    // Joined and cut into rows of `length`; what is left over is dropped.
    let mut all = Sequence::default();
    for line in lines {
        let line = encoder.encode(line, None)?;
        all.ids.extend(line.ids);
        all.flags.extend(line.flags);
    }
    let rows = all
        .ids
        .chunks_exact(length)
        .zip(all.flags.chunks_exact(length));
    let rows = rows.map(|(ids, flags)| {
        let (ids, mut flags) = (ids.to_vec(), flags.to_vec());
        // The rest of a word that the row before began is a word of its own here.
        flags[0] &= !flag::CONTINUES;
        Sequence {
            ids,
            flags,
            truncated: false,
        }
    });
    Ok((rows.collect(), all.ids.len() as u64))
}

#[cfg(test)]
#[path = "mlm_tests.rs"]
mod tests;
