//! A batch on the host, in the layout that the step's graph takes. B rows of T tokens, always all
//! of them: a graph has one shape.

use std::ops::Range;

use ndarray::{Array1, Array2, s};
use xtrain_models::IGNORED_LABEL;

use super::error::Result;
use super::padding::Padding;
use super::rows::{Row, Rows, flag};
use super::sampler::Position;

pub use xtrain_models::HostLabels;

/// A batch of token ids, with the masks and labels that the model takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[B, T]`
    pub input_ids: Array2<i32>,
    /// None in rows that are only there to fill the batch.
    pub labels: HostLabels,
    /// `[B, T]`, true = attended; `None` where every token is.
    pub attention_mask: Option<Array2<bool>>,
    /// `[B, T]`, the segment of each token; `None` where all are in segment 0.
    pub token_type_ids: Option<Array2<i32>>,
    /// `[B, T]`, the place of each token in its own example, 0 of padding; `None` where a row is one
    /// example. Then there is no attention mask.
    pub position_ids: Option<Array2<i32>>,
    /// Numbers of the rows besides, by name.
    pub numbers: Vec<(&'static str, Array1<f32>)>,
    /// Real examples; the rows of others, at the end, have no labels.
    pub examples: usize,
    /// Ids in the real rows, padding not counted.
    pub tokens: usize,
    /// Labels that count in the loss (of a causal one, which predicts from the second column on,
    /// those after the first).
    pub targets: usize,
    /// The epoch that it belongs to, from 0.
    pub epoch: u64,
    /// Its number in the epoch, from 0.
    pub index_in_epoch: usize,
}

/// The rows that a batch is made of.
pub struct BatchRows<'a> {
    padding: Option<&'a Padding>,
    /// By their numbers in the set.
    pub rows: &'a [u32],
    /// The rows themselves, in order: those of each example one after the other.
    pub examples: Vec<Row>,
    /// Rows of an example.
    each: usize,
    is_packed: bool,
}

impl<'a> BatchRows<'a> {
    /// Reads rows of a set, at least one, `each` of them an example's.
    ///
    /// # Errors
    /// As [`Rows::row`].
    pub(super) fn read(
        set: &Rows,
        padding: Option<&'a Padding>,
        rows: &'a [u32],
        each: usize,
    ) -> Result<BatchRows<'a>> {
        Ok(BatchRows {
            padding,
            rows,
            examples: set.rows(rows)?,
            each,
            is_packed: set.is_packed(),
        })
    }

    /// The columns that a row of `tokens` tokens takes in a batch of `length` columns.
    pub fn columns(&self, length: usize, tokens: usize) -> Range<usize> {
        columns(self.padding, length, tokens)
    }

    /// T: the length that is padded to, or that all rows have.
    fn length(&self) -> usize {
        let tokens = self.examples.iter().map(|row| row.ids.len());
        let longest = tokens.max().unwrap_or(0);
        self.padding
            .map_or(longest, |padding| padding.fitting(longest))
    }

    /// The row in a position of the batch. Examples missing to the batch size repeat the first one: a
    /// row without any token to attend to would be a special case for every model.
    fn at(&self, position: usize) -> &Row {
        let own = self.examples.get(position);
        own.unwrap_or(&self.examples[position % self.each])
    }

    /// Ids and attention mask, no label yet. Examples missing to `batch_size` of a packed set are
    /// zeros.
    pub(super) fn fill(&self, batch_size: usize, at: Position) -> Batch {
        let (length, batch_size) = (self.length(), batch_size * self.each);
        let pad_id = self.padding.map_or(0, |padding| padding.pad_id as i32);
        let mut input_ids = Array2::from_elem((batch_size, length), pad_id);
        let mut attention_mask = self
            .padding
            .map(|_| Array2::from_elem((batch_size, length), false));
        let filled = if self.is_packed {
            self.rows.len()
        } else {
            batch_size
        };
        let mut tokens = 0;
        for position in 0..filled {
            let example = self.at(position);
            let columns = self.columns(length, example.ids.len());
            let mut row = input_ids.row_mut(position);
            let row = row
                .as_slice_mut()
                .expect("rows of a fresh array are contiguous");
            // Ids fit i32, since no vocabulary reaches 2^31.
            for (out, id) in row[columns.clone()].iter_mut().zip(&*example.ids) {
                *out = *id as i32;
            }
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
            position_ids: None,
            numbers: Vec::new(),
            examples: self.rows.len() / self.each,
            tokens,
            targets: 0,
            epoch: at.epoch,
            index_in_epoch: at.batch,
        }
    }

    /// The place of each token in its own example; padding is an example of its own.
    pub(super) fn positions(&self, ids: &Array2<i32>) -> Array2<i32> {
        let mut positions = Array2::zeros(ids.raw_dim());
        for (position, mut out) in positions.outer_iter_mut().enumerate() {
            let flags = &self.at(position).flags;
            let columns = self.columns(ids.ncols(), flags.len());
            let mut place = 0;
            for (out, flags) in out.slice_mut(s![columns]).iter_mut().zip(&**flags) {
                place = if flags & flag::STARTS != 0 { 0 } else { place };
                *out = place;
                place += 1;
            }
        }
        positions
    }

    pub(super) fn token_types(&self, ids: &Array2<i32>) -> Array2<i32> {
        let mut types = Array2::zeros(ids.raw_dim());
        for (position, mut out) in types.outer_iter_mut().enumerate() {
            let flags = &self.at(position).flags;
            let columns = self.columns(ids.ncols(), flags.len());
            for (out, flags) in out.slice_mut(s![columns]).iter_mut().zip(&**flags) {
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
