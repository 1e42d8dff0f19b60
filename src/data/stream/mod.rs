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

use std::sync::Arc;

use serde_json::Value;

use super::Batch;
use super::error::{Error, Result};
use super::rows::Row;
use super::sampler::Position;
use super::samples::Recipe;
use super::set::Set;
use super::settings::SourceSettings;
use super::tokenizer::Tokenizer;

pub use loader::{StreamError, StreamLoader};
pub use shuffle::Stream;
pub use state::{BUFFER_FILE, StreamPosition};

/// All that decides a stream.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    pub recipe: Arc<dyn Recipe>,
    pub source: SourceSettings,
    /// The task with those of its settings that decide rows and batches, as text.
    pub settings: String,
    pub tokenizer: Tokenizer,
    /// Rows that wait to be drawn from; 0: in the order of the files.
    pub buffer: usize,
}

impl StreamSpec {
    /// Opens the first file, so that what is wrong with it shows before anything is compiled.
    /// Returns whether its rows are pairs.
    ///
    /// # Errors
    /// There is no file, or the first one cannot be used.
    pub fn check(&self) -> Result<bool> {
        let Some(first) = self.source.train_files.first() else {
            return Err(Error::NoFile { what: "train" });
        };
        Ok(self.recipe.open(first, Arc::default())?.has_pairs())
    }

    /// Identifies the stream but for the content of its files, each of which is looked at when it
    /// is opened again.
    pub fn fingerprint(&self) -> String {
        let source = &self.source;
        format!(
            "stream of {} files, {}, {:?}, tokenizer {}, {} tokens, buffer {}, seed {}, at most {:?}",
            source.train_files.len(),
            self.settings,
            source.table,
            self.tokenizer.fingerprint(),
            self.recipe.length(),
            self.buffer,
            source.seed,
            source.max_train_samples
        )
    }

    /// The batch of these rows. `number` is its place in the run, by which masks are drawn.
    ///
    /// # Errors
    /// The rows cannot be collated.
    pub fn batch(&self, rows: &[Row], number: u64) -> Result<Batch> {
        let set = Set::in_memory(rows, self.recipe.clone())?;
        let numbers: Vec<u32> = (0..rows.len() as u32).collect();
        // A stream has no epochs; the batch's number takes their part in the draws.
        let at = Position {
            epoch: number,
            batch: 0,
        };
        let mut batch = set.batch(&numbers, rows.len(), at)?;
        (batch.epoch, batch.index_in_epoch) = (0, number as usize);
        Ok(batch)
    }
}

/// A position that can be saved: what goes into a checkpoint's state, and the buffer as a file
/// beside it.
pub struct SavedPosition {
    pub state: Value,
    pub buffer: Vec<u8>,
}
