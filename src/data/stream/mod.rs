//! Sets that are read while the model trains, for those that do not fit on the disk or must not be
//! waited for: files are read in order, tokenized in groups, shuffled within a buffer and put into
//! batches, and nothing is kept but what is ahead of the step.
//!
//! Reading order: `feed` (texts, and where in which file they are), `rows` (groups of texts to
//! rows, several at a time), `shuffle` (the buffer, and the stream as a whole), `state` (its
//! position, saved and loaded), `loader` (the thread that prepares batches).
//!
//! Everything is a function of the files, the settings and the seed, and a position holds all that
//! is in between: where in which file the next group begins, how many of its rows are used up, the
//! buffer's rows and how far the random draws are. So a run that was stopped goes on bit for bit.

mod feed;
mod loader;
mod rows;
mod shuffle;
mod state;

use serde_json::Value;

use super::Batch;
use super::collator::Collator;
use super::dataset::Dataset;
use super::error::{Error, Result};
use super::examples::{Examples, flag};
use super::labels::LabelMap;
use super::mlm;
use super::padding::Padding;
use super::sampler::Position;
use super::settings::{ClmDataSettings, ClsDataSettings, MlmDataSettings, SourceSettings};
use super::tokenizer::Tokenizer;

pub use loader::{StreamError, StreamLoader};
pub use rows::Row;
pub use shuffle::Stream;
pub use state::{BUFFER_FILE, StreamPosition};

/// What a stream is made for.
#[derive(Clone, Debug)]
pub enum StreamTask {
    Clm(ClmDataSettings),
    Mlm(MlmDataSettings),
    Cls(ClsDataSettings, LabelMap),
}

/// All that decides a stream.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    pub task: StreamTask,
    pub tokenizer: Tokenizer,
    /// Tokens of the longest row.
    pub length: usize,
    /// Rows that wait to be drawn from; 0: in the order of the files.
    pub buffer: usize,
}

impl StreamSpec {
    pub fn source(&self) -> &SourceSettings {
        match &self.task {
            StreamTask::Clm(data) => &data.source,
            StreamTask::Mlm(data) => &data.source,
            StreamTask::Cls(data, _) => &data.source,
        }
    }

    /// Opens the first file, so that what is wrong with it shows before anything is compiled. Says
    /// whether its rows are pairs.
    pub fn check(&self) -> Result<bool> {
        if self.source().train_files.is_empty() {
            return Err(Error::NoFile { what: "train" });
        }
        feed::Feed::first_has_pairs(self)
    }

    /// Identifies the stream but for the content of its files, each of which is looked at when it
    /// is opened again.
    pub fn fingerprint(&self) -> String {
        let source = self.source();
        let settings = match &self.task {
            StreamTask::Clm(_) => "clm".to_string(),
            StreamTask::Mlm(data) => {
                format!(
                    "mlm {} {} {} {:?}",
                    data.line_by_line, data.mlm_probability, data.whole_word_mask, data.padding
                )
            }
            StreamTask::Cls(data, labels) => {
                let columns = (&data.text_pair_column, &data.label_column);
                format!("cls {columns:?} {:?} {:?}", labels.key(), data.padding)
            }
        };
        format!(
            "stream of {} files, {settings}, {:?}, tokenizer {}, {} tokens, buffer {}, seed {}, at most {:?}",
            source.train_files.len(),
            source.table,
            self.tokenizer.fingerprint(),
            self.length,
            self.buffer,
            source.seed,
            source.max_train_samples
        )
    }

    /// The batch of these rows. `number` is its place in the run, by which masks are drawn.
    pub fn batch(&self, rows: &[Row], number: u64) -> Result<Batch> {
        let set = self.collator(rows)?;
        let places: Vec<u32> = (0..rows.len() as u32).collect();
        // A stream has no epochs; the batch's number takes their part in the draws.
        let mut batch = set.batch(
            &places,
            rows.len(),
            Position {
                epoch: number,
                batch: 0,
            },
        );
        (batch.epoch, batch.index_in_epoch) = (0, number as usize);
        Ok(batch)
    }

    /// The rows of one batch as a set.
    fn collator(&self, rows: &[Row]) -> Result<Collator> {
        let examples = || {
            Examples::in_memory(|examples| {
                for row in rows {
                    examples
                        .push(&row.ids, &row.flags, row.label)
                        .map_err(|source| Error::Io {
                            doing: "put together a batch of",
                            path: "the stream".into(),
                            source,
                        })?;
                }
                Ok(())
            })
        };
        match &self.task {
            StreamTask::Clm(_) => {
                let ids = rows
                    .iter()
                    .flat_map(|row| row.ids.iter().copied())
                    .collect();
                Ok(Collator::Causal(Dataset::from_ids(self.length, ids)))
            }
            StreamTask::Mlm(data) => mlm::collator(data, &self.tokenizer, self.length, examples()?),
            StreamTask::Cls(data, labels) => {
                let pad_id = self.tokenizer.pad_id().ok_or(Error::NoPadToken)?;
                let padding = Padding::new(
                    &data.padding,
                    self.length,
                    pad_id,
                    self.tokenizer.pads_left(),
                )?;
                let pairs = rows
                    .iter()
                    .any(|row| row.flags.iter().any(|flags| flags & flag::SECOND != 0));
                let segments = pairs && self.tokenizer.has_segments();
                Ok(Collator::Labelled {
                    examples: examples()?,
                    padding,
                    segments,
                    numbers: labels.are_numbers(),
                })
            }
        }
    }
}

/// A position that can be saved: what goes into a checkpoint's state, and the buffer as a file
/// beside it.
pub struct SavedPosition {
    pub state: Value,
    pub buffer: Vec<u8>,
}

#[cfg(test)]
mod tests;
