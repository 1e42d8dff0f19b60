//! A set of rows, and the batches that are made of it: ids, attention mask and segments, the same
//! for every task; the labels are the recipe's.

use std::sync::Arc;

use super::batch::{Batch, BatchRows};
use super::error::Result;
use super::rows::{Row, Rows, flag};
use super::sampler::Position;
use super::samples::Recipe;

/// A set, which makes batches. Cheap to clone, shared between the loader's threads; a batch is a
/// function of its arguments alone.
#[derive(Clone, Debug)]
pub struct Set {
    pub rows: Rows,
    recipe: Arc<dyn Recipe>,
    /// Batches have segments.
    segments: bool,
}

impl Set {
    /// A set whose rows are all pairs of texts if the first one is.
    pub fn new(rows: Rows, recipe: Arc<dyn Recipe>) -> Set {
        let segments = recipe.has_segments() && rows.has_pairs();
        Set {
            rows,
            recipe,
            segments,
        }
    }

    /// A set in memory: what one batch of a stream is made of.
    pub(super) fn in_memory(rows: &[Row], recipe: Arc<dyn Recipe>) -> super::Result<Set> {
        let block_size = recipe.packed().then(|| recipe.length());
        let stored = Rows::in_memory(block_size, |stored| {
            let written = rows.iter().try_for_each(|row| stored.push(row));
            written.map_err(super::Error::io("collate", "the stream".as_ref()))
        })?;
        let is_pair = |row: &Row| row.flags.iter().any(|flags| flags & flag::SECOND != 0);
        Ok(Set {
            rows: stored,
            segments: recipe.has_segments() && rows.iter().any(is_pair),
            recipe,
        })
    }

    /// Rows in the set.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Every T that a batch can have, from short to long: a graph each.
    pub fn lengths(&self) -> Vec<usize> {
        let longest = self.rows.longest();
        match self.recipe.padding() {
            Some(padding) => padding.lengths_for(longest),
            None => vec![longest],
        }
    }

    /// Whether rows hold several examples, whose tokens have places of their own.
    pub fn joins_examples(&self) -> bool {
        self.recipe.joins_examples()
    }

    /// Whether batches have segments.
    pub fn has_token_type_ids(&self) -> bool {
        self.segments
    }

    /// The batch of these rows. Rows missing to `batch_size` have no labels.
    ///
    /// # Errors
    /// The rows cannot be read any more.
    pub fn batch(&self, rows: &[u32], batch_size: usize, at: Position) -> Result<Batch> {
        assert!(
            rows.len() <= batch_size,
            "{} rows in a batch of {batch_size}",
            rows.len()
        );
        assert!(!rows.is_empty(), "a batch has at least one row");
        let rows = BatchRows::read(&self.rows, self.recipe.padding(), rows)?;
        let mut batch = rows.fill(batch_size, at);
        batch.token_type_ids = self.segments.then(|| rows.token_types(&batch.input_ids));
        if self.recipe.joins_examples() {
            batch.position_ids = Some(rows.positions(&batch.input_ids));
            batch.attention_mask = None;
        }
        self.recipe.label(&rows, &mut batch);
        Ok(batch)
    }
}
