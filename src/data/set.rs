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
    /// Numbers of batch rows by name: those of an example one after the other.
    numbers: Vec<(&'static str, Arc<[f32]>)>,
}

impl Set {
    /// A set whose rows are all pairs of texts if the first one is.
    pub fn new(rows: Rows, recipe: Arc<dyn Recipe>) -> Set {
        let segments = recipe.has_segments() && rows.has_pairs();
        Set {
            rows,
            recipe,
            segments,
            numbers: Vec::new(),
        }
    }

    /// The same, whose batches have a number of each row under this name.
    ///
    /// # Panics
    /// If there are not as many numbers as rows of all examples.
    pub fn with_numbers(mut self, name: &'static str, numbers: Arc<[f32]>) -> Set {
        assert_eq!(
            numbers.len(),
            self.len() * self.rows_of_example(),
            "each row of an example has its number"
        );
        self.numbers.push((name, numbers));
        self
    }

    /// Whether batches have numbers under this name.
    pub fn has_numbers(&self, name: &str) -> bool {
        self.numbers.iter().any(|(known, _)| *known == name)
    }

    /// Rows of a batch that make up an example.
    pub fn rows_of_example(&self) -> usize {
        self.recipe.parts(0, 1).len()
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
            numbers: Vec::new(),
        })
    }

    /// Examples in the set.
    pub fn len(&self) -> usize {
        self.rows.len() / self.recipe.kept_rows()
    }

    /// Whether there is no example.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of an example: of the longest of the rows that it is kept as.
    pub(super) fn length(&self, example: usize) -> usize {
        let kept = self.recipe.kept_rows();
        let rows = example * kept..(example + 1) * kept;
        rows.map(|row| self.rows.length(row)).max().unwrap_or(0)
    }

    /// Every T that a batch can have, from short to long: a graph each.
    pub fn lengths(&self) -> Vec<usize> {
        let longest = self.recipe.longest(self.rows.longest());
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

    /// The batch of these examples. Rows of examples missing to `batch_size` have no labels.
    ///
    /// # Errors
    /// The rows cannot be read any more.
    pub fn batch(&self, examples: &[u32], batch_size: usize, at: Position) -> Result<Batch> {
        let (count, each) = (examples.len(), self.rows_of_example());
        assert!(
            count <= batch_size,
            "{count} examples in a batch of {batch_size}"
        );
        assert!(count > 0, "a batch has at least one example");
        let all = self.len() as u32;
        let parts = examples.iter();
        let parts = parts.flat_map(|example| self.recipe.parts(*example, all));
        let numbers: Vec<u32> = parts.collect();
        let mut rows = BatchRows::read(&self.rows, self.recipe.padding(), &numbers, each)?;
        let joined = rows.examples.chunks_mut(each);
        joined.for_each(|example| self.recipe.join(example));
        let mut batch = rows.fill(batch_size, at);
        for (name, numbers) in &self.numbers {
            let of_example = |example: &u32| {
                let first = *example as usize * each;
                &numbers[first..first + each]
            };
            let mut own: Vec<f32> = examples.iter().flat_map(of_example).copied().collect();
            own.resize(batch_size * each, 0.0);
            batch.numbers.push((*name, own.into()));
        }
        batch.token_type_ids = self.segments.then(|| rows.token_types(&batch.input_ids));
        if self.recipe.joins_examples() {
            batch.position_ids = Some(rows.positions(&batch.input_ids));
            batch.attention_mask = None;
        }
        self.recipe.label(&rows, &mut batch);
        Ok(batch)
    }
}
