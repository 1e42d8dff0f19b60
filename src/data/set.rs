//! A set of rows, and the batches that are made of it: ids, attention mask and segments, the same
//! for every task; the labels are the recipe's.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, s};
use xtrain_models::IGNORED_LABEL;

use super::batch::{Batch, HostLabels};
use super::dataset::{Dataset, Origin, Totals};
use super::examples::{Example, Examples, flag};
use super::padding::Padding;
use super::sampler::Position;
use super::samples::{Recipe, Row};

/// Rows as they are kept.
#[derive(Clone, Debug)]
pub enum Rows {
    /// All of one length, ids alone.
    Packed(Dataset),
    /// Of any length, with what is known of each token.
    Examples(Examples),
}

impl Rows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Rows::Packed(rows) => rows.len(),
            Rows::Examples(rows) => rows.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Identifies the rows by content; a resumed run compares it with the one it was saved with.
    pub fn fingerprint(&self) -> String {
        match self {
            Rows::Packed(rows) => rows.fingerprint(),
            Rows::Examples(rows) => rows.fingerprint(),
        }
    }

    /// What went into the rows.
    pub fn totals(&self) -> Totals {
        match self {
            Rows::Packed(rows) => rows.totals(),
            Rows::Examples(rows) => rows.totals(),
        }
    }

    /// Where the rows came from.
    pub fn origin(&self) -> &Origin {
        match self {
            Rows::Packed(rows) => rows.origin(),
            Rows::Examples(rows) => rows.origin(),
        }
    }

    /// The first `rows` rows, or all if there are fewer (`max_train_samples` and its like).
    pub fn take(self, rows: usize) -> Rows {
        match self {
            Rows::Packed(all) => Rows::Packed(all.take(rows)),
            Rows::Examples(all) => Rows::Examples(all.take(rows)),
        }
    }

    /// Row `index`, which must be below [`Rows::len`]; of a packed one, without flags.
    pub fn example(&self, index: usize) -> Example<'_> {
        match self {
            Rows::Packed(rows) => Example {
                ids: rows.row(index),
                flags: &[],
                label: None,
                token_labels: &[],
            },
            Rows::Examples(rows) => rows.example(index),
        }
    }

    /// Tokens of row `index`.
    fn length(&self, index: usize) -> usize {
        match self {
            Rows::Packed(rows) => rows.block_size(),
            Rows::Examples(rows) => rows.length(index),
        }
    }

    /// Tokens of the longest row; 0 if there is none.
    fn longest(&self) -> usize {
        match self {
            Rows::Packed(rows) => rows.block_size(),
            Rows::Examples(rows) => rows.longest(),
        }
    }
}

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
        let is_pair = |row: usize| {
            let flags = rows.example(row).flags;
            flags.iter().any(|flags| flags & flag::SECOND != 0)
        };
        let segments = recipe.has_segments() && !rows.is_empty() && is_pair(0);
        Set {
            rows,
            recipe,
            segments,
        }
    }

    /// A set in memory: what one batch of a stream is made of.
    pub(super) fn in_memory(rows: &[Row], recipe: Arc<dyn Recipe>) -> super::Result<Set> {
        let stored = if recipe.packed() {
            let ids = rows.iter().flat_map(|row| row.ids.iter().copied());
            Rows::Packed(Dataset::from_ids(recipe.length(), ids.collect()))
        } else {
            Rows::Examples(Examples::in_memory(|examples| {
                let written = rows.iter().try_for_each(|row| examples.push(row));
                written.map_err(super::Error::io("collate", "the stream".as_ref()))
            })?)
        };
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

    /// Whether batches have segments.
    pub fn has_token_type_ids(&self) -> bool {
        self.segments
    }

    /// The batch of these rows. Rows missing to `batch_size` have no labels.
    pub fn batch(&self, rows: &[u32], batch_size: usize, at: Position) -> Batch {
        assert!(
            rows.len() <= batch_size,
            "{} rows in a batch of {batch_size}",
            rows.len()
        );
        assert!(!rows.is_empty(), "a batch has at least one row");
        let rows = BatchRows {
            set: &self.rows,
            padding: self.recipe.padding(),
            rows,
        };
        let mut batch = rows.fill(batch_size, at);
        batch.token_type_ids = self.segments.then(|| rows.token_types(&batch.input_ids));
        self.recipe.label(&rows, &mut batch);
        batch
    }
}

/// The rows that a batch is made of.
pub struct BatchRows<'a> {
    set: &'a Rows,
    padding: Option<&'a Padding>,
    /// By their numbers in the set.
    pub rows: &'a [u32],
}

impl BatchRows<'_> {
    /// The rows themselves, in order.
    pub fn examples(&self) -> impl Iterator<Item = Example<'_>> {
        self.rows.iter().map(|row| self.set.example(*row as usize))
    }

    /// The columns that a row of `tokens` tokens takes in a batch of `length` columns.
    pub fn columns(&self, length: usize, tokens: usize) -> Range<usize> {
        columns(self.padding, length, tokens)
    }

    /// T: the length that is padded to, or that all rows have.
    fn length(&self) -> usize {
        let tokens = self.rows.iter().map(|row| self.set.length(*row as usize));
        let longest = tokens.max().unwrap_or(0);
        self.padding
            .map_or(longest, |padding| padding.fitting(longest))
    }

    /// The row in a position of the batch. Rows missing to the batch size repeat the first one: a
    /// row without any token to attend to would be a special case for every model.
    fn at(&self, position: usize) -> Example<'_> {
        let row = self.rows.get(position).unwrap_or(&self.rows[0]);
        self.set.example(*row as usize)
    }

    /// Ids and attention mask, no label yet. Rows missing to `batch_size` of a packed set are
    /// zeros.
    fn fill(&self, batch_size: usize, at: Position) -> Batch {
        let length = self.length();
        let pad_id = self.padding.map_or(0, |padding| padding.pad_id as i32);
        let mut input_ids = Array2::from_elem((batch_size, length), pad_id);
        let mut attention_mask = self
            .padding
            .map(|_| Array2::from_elem((batch_size, length), false));
        let filled = match self.set {
            Rows::Packed(_) => self.rows.len(),
            Rows::Examples(_) => batch_size,
        };
        let mut tokens = 0;
        for position in 0..filled {
            let example = self.at(position);
            let columns = self.columns(length, example.ids.len());
            let mut row = input_ids.row_mut(position);
            let row = row
                .as_slice_mut()
                .expect("rows of a fresh array are contiguous");
            example.ids.copy_to(&mut row[columns.clone()]);
            if let Some(mask) = &mut attention_mask {
                mask.slice_mut(s![position, columns]).fill(true);
            }
            if position < self.rows.len() {
                tokens += example.ids.len();
            }
        }
        Batch {
            labels: HostLabels::Tokens(Array2::from_elem(
                (batch_size, length),
                IGNORED_LABEL as i32,
            )),
            input_ids,
            attention_mask,
            token_type_ids: None,
            examples: self.rows.len(),
            tokens,
            targets: 0,
            epoch: at.epoch,
            index_in_epoch: at.batch,
        }
    }

    fn token_types(&self, ids: &Array2<i32>) -> Array2<i32> {
        let mut types = Array2::zeros(ids.raw_dim());
        for (position, mut out) in types.outer_iter_mut().enumerate() {
            let flags = self.at(position).flags;
            let columns = self.columns(ids.ncols(), flags.len());
            for (out, flags) in out.slice_mut(s![columns]).iter_mut().zip(flags) {
                *out = i32::from(flags & flag::SECOND != 0);
            }
        }
        types
    }
}

/// The columns of a row that its tokens take.
pub fn columns(padding: Option<&Padding>, length: usize, tokens: usize) -> Range<usize> {
    match padding {
        Some(Padding { left: true, .. }) => length - tokens..length,
        _ => 0..tokens,
    }
}
