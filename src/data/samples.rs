//! Samples out of files, and what turns them into rows: the seam between the files, which know no
//! task, and the tasks, which know no file.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::batch::{Batch, BatchRows};
use super::error::{Error, Result};
use super::formats::input::Bookmark;
use super::label::Label;
use super::padding::Padding;
use super::rows::{Row, Totals};
use super::settings::OnBadRow;
use super::share::Share;

/// What a task reads at a time: a line, a row of a table, a sentence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Position among all rows of the files, those that are left out too; in a mixture, among its
    /// samples.
    pub index: u64,
    /// Its file, by its number among them.
    pub file: usize,
    /// A text, both texts of a pair, or the words of a sentence.
    pub texts: Vec<String>,
    /// One for the sample or one for each word, `None` where it is unknown; empty where the task
    /// has no labels.
    pub labels: Vec<Option<Label>>,
    /// Its tokens, where they come ready made.
    pub row: Option<Row>,
}

/// One open file of samples.
pub trait SampleFile: Send {
    /// Where the next sample is.
    fn bookmark(&self) -> Bookmark;

    /// Resumes at a bookmark of the same file.
    ///
    /// # Errors
    /// The file cannot be read, or ends before the bookmark.
    fn resume(&mut self, bookmark: &Bookmark) -> Result<()>;

    /// The next sample, whose `index` the caller sets. After a bad row reading can go on.
    fn next(&mut self) -> Option<Result<Sample>>;

    /// Whether its samples are pairs of texts.
    fn has_pairs(&self) -> bool {
        false
    }
}

/// What a group of samples became.
#[derive(Debug, Default)]
pub struct EncodedGroup {
    pub rows: Vec<Row>,
    /// Tokens before cutting into rows of one length.
    pub tokens: u64,
    /// The same of each sample; empty where the task does not count them.
    pub lengths: Vec<u64>,
    /// Rows that did not fit and were truncated.
    pub truncated: u64,
    /// Samples that became no row, though nothing is wrong with them.
    pub dropped: u64,
    /// The samples, by their index, in which nothing that counts in the loss is left: they have no row.
    pub unlearned: Vec<u64>,
    /// Texts of which a second token that begins a text was removed.
    pub doubled: u64,
}

/// How a task's files become rows and its rows batches.
pub trait Recipe: Debug + Send + Sync {
    /// Opens a file; raw bytes read are added to `count`.
    ///
    /// # Errors
    /// The file cannot be read, or lacks what the task needs.
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>>;

    /// Samples that are encoded together.
    fn group(&self) -> usize;

    /// The rows of a group of samples.
    ///
    /// # Errors
    /// The tokenizer refuses a text.
    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup>;

    /// Tokens of the longest row.
    fn length(&self) -> usize;

    /// Whether rows are kept packed: ids alone, all of [`Recipe::length`].
    fn packed(&self) -> bool {
        false
    }

    /// To which lengths batches are padded; `None` where all rows have one length.
    fn padding(&self) -> Option<&Padding> {
        None
    }

    /// Whether a row holds several examples, each of which begins where a token has
    /// [`flag::STARTS`](super::rows::flag::STARTS): batches have the place of each token in its own
    /// example, and no attention mask.
    fn joins_examples(&self) -> bool {
        false
    }

    /// Whether the model is given the segment (first or second text) of each token of a pair.
    fn has_segments(&self) -> bool {
        false
    }

    /// Rows that each example is kept as, one after the other.
    fn kept_rows(&self) -> usize {
        1
    }

    /// The kept rows that an example of `examples` is a batch's rows of, by their numbers; of every
    /// example as many.
    fn parts(&self, example: u32, _examples: u32) -> Vec<u32> {
        vec![example]
    }

    /// Makes the batch rows of one example of the kept rows that [`Recipe::parts`] names.
    fn join(&self, _rows: &mut [Row]) {}

    /// Tokens of the longest row that a batch can have where the longest that is kept has `kept`.
    fn longest(&self, kept: usize) -> usize {
        kept
    }

    /// Writes the labels and the number of targets of a batch whose ids are there; may mask ids.
    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch);

    /// Why samples are left out: completes "they are left out because".
    fn why_dropped(&self) -> String {
        "nothing of them is to be learned".to_string()
    }

    /// The error for a set without a row, `what` in the user's words; no group had more than
    /// `largest` tokens.
    fn empty(&self, what: String, _share: Share, _totals: Totals, _largest: u64) -> Error {
        Error::NoRows { what }
    }
}

/// Samples of several files, as if they were one list. Ends at an error; bad rows are left out and
/// counted where that was asked for. Files are opened as they are reached.
pub struct Samples<'a> {
    files: std::iter::Enumerate<std::slice::Iter<'a, PathBuf>>,
    recipe: &'a dyn Recipe,
    on_bad_row: OnBadRow,
    /// The number of the current file.
    file: usize,
    current: Option<Box<dyn SampleFile>>,
    bytes_read: Arc<AtomicU64>,
    rows: u64,
    skipped: u64,
    done: bool,
}

impl<'a> Samples<'a> {
    pub fn new(files: &'a [PathBuf], recipe: &'a dyn Recipe, on_bad_row: OnBadRow) -> Samples<'a> {
        Samples::counted(files, recipe, on_bad_row, Arc::default())
    }

    /// The same; raw bytes read are added to `bytes_read`.
    pub fn counted(
        files: &'a [PathBuf],
        recipe: &'a dyn Recipe,
        on_bad_row: OnBadRow,
        bytes_read: Arc<AtomicU64>,
    ) -> Samples<'a> {
        Samples {
            files: files.iter().enumerate(),
            recipe,
            on_bad_row,
            file: 0,
            current: None,
            bytes_read,
            rows: 0,
            skipped: 0,
            done: false,
        }
    }

    /// Raw bytes read so far (compressed ones, for gzip).
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        self.bytes_read.clone()
    }

    /// Bad rows left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn read(&mut self) -> Result<Option<Sample>> {
        loop {
            let Some(current) = &mut self.current else {
                let Some((number, path)) = self.files.next() else {
                    return Ok(None);
                };
                self.file = number;
                self.current = Some(self.recipe.open(path, self.bytes_read.clone())?);
                continue;
            };
            let Some(sample) = current.next() else {
                self.current = None;
                continue;
            };
            let index = self.rows;
            self.rows += 1;
            match sample {
                Ok(sample) => {
                    let file = self.file;
                    return Ok(Some(Sample {
                        index,
                        file,
                        ..sample
                    }));
                }
                Err(error) if error.is_bad_row() && self.on_bad_row == OnBadRow::Skip => {
                    self.skipped += 1
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Iterator for Samples<'_> {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        // Nothing after an error: a half-read file must not be followed by the next one.
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Blocks of this many ids without labels, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Blocks(pub usize);

#[cfg(test)]
impl Recipe for Blocks {
    fn open(&self, path: &Path, _count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        Err(Error::EmptyFile {
            path: path.to_path_buf(),
        })
    }

    fn group(&self) -> usize {
        1
    }

    fn encode(&self, _samples: &[Sample]) -> Result<EncodedGroup> {
        Ok(EncodedGroup::default())
    }

    fn length(&self) -> usize {
        self.0
    }

    fn packed(&self) -> bool {
        true
    }

    fn label(&self, _rows: &BatchRows<'_>, _batch: &mut Batch) {}
}
