//! Classification of single texts or pairs, as run_glue prepares it: special tokens, truncation
//! longest first, labels to classes or numbers.

use serde_json::json;

use super::collator::Collator;
use super::dataset::io_error;
use super::error::{Error, Result};
use super::examples::{Examples, flag};
use super::labels::LabelMap;
use super::padding::Padding;
use super::prepare::{Job, Progress, Share, percentage, tell_skipped};
use super::samples::{LabelUse, Sample, Samples, labels_of};
use super::sequences::Sequence;
use super::settings::ClsDataSettings;
use super::tokenizer::Tokenizer;

/// Samples that a thread takes at a time.
pub(super) const GROUP: usize = 256;

/// Which examples of a classification task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    /// `validation_files` or, without them, the share of the training rows that was set aside.
    Validation,
    /// `test_files`; their rows need no label.
    Test,
}

/// The labels: those of the settings or, without them, those that occur in the training files. A
/// parquet file that names its classes (`datasets`' ClassLabel) decides their order.
pub fn labels(settings: &ClsDataSettings) -> Result<LabelMap> {
    match &settings.labels {
        Some(labels) => Ok(labels.clone()),
        None if settings.source.train_files.is_empty() => Err(Error::NoFile { what: "train" }),
        None => labels_of(&settings.source.train_files, settings),
    }
}

/// The tokenized examples of one split, with their labels. `max_length` is
/// `settings.max_seq_length` or less.
pub fn examples(
    settings: &ClsDataSettings,
    split: Split,
    tokenizer: &Tokenizer,
    labels: &LabelMap,
    max_length: usize,
    quiet: bool,
) -> Result<Examples> {
    let source = &settings.source;
    let apart = percentage(source);
    let (what, files, share, most) = match split {
        Split::Train if source.validation_files.is_empty() && apart > 0.0 => (
            "train",
            &source.train_files,
            Share::NotChosen(apart, source.seed),
            source.max_train_samples,
        ),
        Split::Train => (
            "train",
            &source.train_files,
            Share::All,
            source.max_train_samples,
        ),
        Split::Validation if source.validation_files.is_empty() => (
            "validation",
            &source.train_files,
            Share::Chosen(apart, source.seed),
            source.max_eval_samples,
        ),
        Split::Validation => (
            "validation",
            &source.validation_files,
            Share::All,
            source.max_eval_samples,
        ),
        Split::Test => (
            "test",
            &source.test_files,
            Share::All,
            source.max_predict_samples,
        ),
    };
    let labels = LabelUse {
        map: labels,
        needed: split != Split::Test,
        numbers: settings.labels.is_some(),
    };
    let key = json!({
        "max_length": max_length,
        "pair": settings.text_pair_column,
        "label": settings.label_column,
        "labels": labels.map.key(),
        "numbers": labels.numbers,
        "needed": labels.needed,
        "left": tokenizer.truncates_left,
    });
    let job = Job {
        task: "cls",
        what,
        files,
        share,
        source,
        tokenizer,
        key,
        quiet,
    };
    let examples = prepare(&job, settings, labels, max_length)?;
    Ok(examples.take(most.unwrap_or(usize::MAX)))
}

fn prepare(
    job: &Job<'_>,
    settings: &ClsDataSettings,
    labels: LabelUse<'_>,
    max_length: usize,
) -> Result<Examples> {
    let encoder = job.tokenizer.sequences(Some(max_length))?;
    job.find_or_make(|path, wide| {
        Examples::write(path, wide, |examples| {
            let count = || {
                Samples::new(job.files, settings, labels)
                    .try_fold(0, |count, sample| sample.map(|_| count + 1))
            };
            let kept = job.share.kept(count)?;
            let mut samples = Samples::new(job.files, settings, labels);
            let progress = Progress::start(job, samples.bytes_read());
            // Errors are not left out with the samples that are.
            let chosen = samples
                .by_ref()
                .enumerate()
                .filter(|(i, sample)| kept.contains(*i) || sample.is_err());
            let work = |samples: &[Sample]| {
                let encode = |sample: &Sample| {
                    Ok((
                        encoder.encode(&sample.text, sample.pair.as_deref())?,
                        sample.label,
                    ))
                };
                samples
                    .iter()
                    .map(encode)
                    .collect::<Result<Vec<(Sequence, _)>>>()
            };
            let mut truncated = 0u64;
            job.in_groups(GROUP, chosen.map(|(_, sample)| sample), work, |group| {
                for (sequence, label) in group {
                    examples
                        .push(&sequence.ids, &sequence.flags, label)
                        .map_err(io_error(path))?;
                    examples.count(1, sequence.ids.len() as u64, 0);
                    truncated += u64::from(sequence.truncated);
                }
                progress.update(examples.totals());
                Ok(())
            })?;
            progress.finish(examples.totals());
            tell_skipped(job, samples.skipped());
            examples.count(0, 0, samples.skipped());
            if truncated > 0 && !job.quiet {
                let rows = examples.totals().lines;
                eprintln!(
                    "note: {truncated} of {rows} sequences of {} are cut to {max_length} tokens",
                    job.name()
                );
            }
            match examples.is_empty() {
                true => Err(Error::NoRows { what: job.name() }),
                false => Ok(()),
            }
        })
    })
}

/// A row to label, as it stands in its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TestRow {
    /// Place among all rows of the test files, those that are left out too.
    pub index: u64,
    pub text: String,
    pub pair: Option<String>,
}

/// The rows that the examples of [`Split::Test`] come from, in their order.
pub fn test_rows(settings: &ClsDataSettings, labels: &LabelMap) -> Result<Vec<TestRow>> {
    let source = &settings.source;
    let labels = LabelUse {
        map: labels,
        needed: false,
        numbers: settings.labels.is_some(),
    };
    Samples::new(&source.test_files, settings, labels)
        .take(source.max_predict_samples.unwrap_or(usize::MAX))
        .map(|sample| {
            sample.map(
                |Sample {
                     index, text, pair, ..
                 }| TestRow { index, text, pair },
            )
        })
        .collect()
}

/// Batches of examples. Refuses a tokenizer without a pad token.
pub fn collator(
    settings: &ClsDataSettings,
    tokenizer: &Tokenizer,
    labels: &LabelMap,
    max_length: usize,
    examples: Examples,
) -> Result<Collator> {
    let pad_id = tokenizer.pad_id().ok_or(Error::NoPadToken)?;
    let padding = Padding::new(&settings.padding, max_length, pad_id, tokenizer.pads_left())?;
    // Where the first example is a pair, all are.
    let pairs = !examples.is_empty()
        && examples
            .example(0)
            .flags
            .iter()
            .any(|flags| flags & flag::SECOND != 0);
    let segments = pairs && tokenizer.has_segments();
    Ok(Collator::Labelled {
        examples,
        padding,
        segments,
        numbers: labels.are_numbers(),
    })
}

#[cfg(test)]
#[path = "cls_tests.rs"]
mod tests;
