//! Rows of a set to batches, one way for each task.

use ndarray::{Array1, Array2, s};
use xtrain_models::{IGNORED_LABEL, IGNORED_NUMBER};

use super::batch::{Batch, Labels};
use super::dataset::{Dataset, Totals};
use super::examples::{Examples, flag};
use super::label::Label;
use super::masking::Masking;
use super::padding::Padding;
use super::sampler::Position;

const IGNORED: i32 = IGNORED_LABEL as i32;

/// Makes batches out of a set. Cheap to clone, shared between the loader's threads; a batch is a
/// function of its arguments alone.
#[derive(Clone, Debug)]
pub enum Collator {
    /// Packed causal LM: labels equal ids, nothing is masked.
    Causal(Dataset),
    /// Masked LM, masked anew in every epoch. `padding: None` where all examples have one length.
    Masked {
        examples: Examples,
        masking: Masking,
        padding: Option<Padding>,
    },
    /// Classification and regression. `segments`: the model is told which text of a pair a token
    /// belongs to; `numbers`: labels are numbers.
    Labelled {
        examples: Examples,
        padding: Padding,
        segments: bool,
        numbers: bool,
    },
}

impl Collator {
    /// Rows in the set.
    pub fn len(&self) -> usize {
        match self {
            Collator::Causal(rows) => rows.len(),
            Collator::Masked { examples, .. } | Collator::Labelled { examples, .. } => {
                examples.len()
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Identifies the set by content; a resumed run compares it with the one it was saved with.
    pub fn fingerprint(&self) -> String {
        match self {
            Collator::Causal(rows) => rows.fingerprint(),
            Collator::Masked { examples, .. } | Collator::Labelled { examples, .. } => {
                examples.fingerprint()
            }
        }
    }

    /// What went into the set.
    pub fn totals(&self) -> Totals {
        match self {
            Collator::Causal(rows) => rows.totals(),
            Collator::Masked { examples, .. } | Collator::Labelled { examples, .. } => {
                examples.totals()
            }
        }
    }

    /// Every T that a batch can have, from short to long: a graph each.
    pub fn lengths(&self) -> Vec<usize> {
        match self {
            Collator::Causal(rows) => vec![rows.block_size()],
            Collator::Masked {
                examples,
                padding: None,
                ..
            } => vec![examples.longest()],
            Collator::Masked {
                examples,
                padding: Some(padding),
                ..
            }
            | Collator::Labelled {
                examples, padding, ..
            } => padding.lengths_for(examples.longest()),
        }
    }

    /// Whether batches have an attention mask.
    pub fn has_attention_mask(&self) -> bool {
        matches!(
            self,
            Collator::Masked {
                padding: Some(_),
                ..
            } | Collator::Labelled { .. }
        )
    }

    /// Whether batches have segments.
    pub fn has_token_type_ids(&self) -> bool {
        matches!(self, Collator::Labelled { segments: true, .. })
    }

    /// The batch of these rows. Rows missing to `batch_size` have no labels.
    pub fn batch(&self, rows: &[u32], batch_size: usize, at: Position) -> Batch {
        assert!(
            rows.len() <= batch_size,
            "{} rows in a batch of {batch_size}",
            rows.len()
        );
        assert!(!rows.is_empty(), "a batch has at least one row");
        match self {
            Collator::Causal(dataset) => causal(dataset, rows, batch_size, at),
            Collator::Masked {
                examples,
                masking,
                padding,
            } => {
                let length = padding.as_ref().map_or_else(
                    || examples.length(rows[0] as usize),
                    |p| p.length(examples, rows),
                );
                let mut batch = fill(examples, padding.as_ref(), length, rows, batch_size, at);
                batch.targets = mask(&mut batch, examples, masking, padding.as_ref(), rows);
                batch
            }
            Collator::Labelled {
                examples,
                padding,
                segments,
                numbers,
            } => {
                let length = padding.length(examples, rows);
                let mut batch = fill(examples, Some(padding), length, rows, batch_size, at);
                let labels: Vec<_> = rows
                    .iter()
                    .map(|row| examples.example(*row as usize).label)
                    .collect();
                batch.targets = labels.iter().flatten().count();
                batch.labels = match numbers {
                    true => Labels::Numbers(column(
                        &labels,
                        batch_size,
                        Label::as_number,
                        IGNORED_NUMBER,
                    )),
                    false => Labels::Classes(column(&labels, batch_size, Label::as_class, IGNORED)),
                };
                batch.token_type_ids =
                    segments.then(|| token_types(examples, padding, rows, &batch.input_ids));
                batch
            }
        }
    }
}

/// The labels of a batch's rows, `missing` where there is none.
fn column<T: Copy>(
    labels: &[Option<Label>],
    batch_size: usize,
    read: impl Fn(Label) -> T,
    missing: T,
) -> Array1<T> {
    Array1::from_shape_fn(batch_size, |row| {
        labels.get(row).copied().flatten().map_or(missing, &read)
    })
}

/// Packed causal LM. Rows missing to `batch_size` are zeros with every label -100.
fn causal(dataset: &Dataset, rows: &[u32], batch_size: usize, at: Position) -> Batch {
    let block_size = dataset.block_size();
    let mut input_ids = Array2::zeros((batch_size, block_size));
    for (mut out, row) in input_ids.outer_iter_mut().zip(rows) {
        let out = out
            .as_slice_mut()
            .expect("rows of a fresh array are contiguous");
        dataset.row(*row as usize).copy_to(out);
    }
    let mut labels = input_ids.clone();
    labels.slice_mut(s![rows.len().., ..]).fill(IGNORED);
    Batch {
        input_ids,
        labels: Labels::Tokens(labels),
        attention_mask: None,
        token_type_ids: None,
        examples: rows.len(),
        tokens: rows.len() * block_size,
        targets: rows.len() * (block_size - 1),
        epoch: at.epoch,
        index_in_epoch: at.batch,
    }
}

/// Ids and attention mask, no label yet. Rows missing to `batch_size` repeat the first one: a row
/// without any token to attend to would be a special case for every model.
fn fill(
    examples: &Examples,
    padding: Option<&Padding>,
    length: usize,
    rows: &[u32],
    batch_size: usize,
    at: Position,
) -> Batch {
    let pad_id = padding.map_or(0, |padding| padding.pad_id as i32);
    let mut input_ids = Array2::from_elem((batch_size, length), pad_id);
    let mut attention_mask = padding.map(|_| Array2::from_elem((batch_size, length), false));
    let mut tokens = 0;
    for place in 0..batch_size {
        let example = examples.example(rows[if place < rows.len() { place } else { 0 }] as usize);
        let columns = columns(padding, length, example.flags.len());
        let mut row = input_ids.row_mut(place);
        let row = row
            .as_slice_mut()
            .expect("rows of a fresh array are contiguous");
        example.ids.copy_to(&mut row[columns.clone()]);
        if let Some(mask) = &mut attention_mask {
            mask.slice_mut(s![place, columns]).fill(true);
        }
        tokens += if place < rows.len() {
            example.flags.len()
        } else {
            0
        };
    }
    Batch {
        labels: Labels::Tokens(Array2::from_elem((batch_size, length), IGNORED)),
        input_ids,
        attention_mask,
        token_type_ids: None,
        examples: rows.len(),
        tokens,
        targets: 0,
        epoch: at.epoch,
        index_in_epoch: at.batch,
    }
}

/// The columns of a row that its tokens take.
fn columns(padding: Option<&Padding>, length: usize, tokens: usize) -> std::ops::Range<usize> {
    match padding {
        Some(Padding { left: true, .. }) => length - tokens..length,
        _ => 0..tokens,
    }
}

/// Masks the real rows and sets their labels; gives the number of labels.
fn mask(
    batch: &mut Batch,
    examples: &Examples,
    masking: &Masking,
    padding: Option<&Padding>,
    rows: &[u32],
) -> usize {
    let length = batch.input_ids.ncols();
    let Labels::Tokens(labels) = &mut batch.labels else {
        unreachable!("fill() makes token labels")
    };
    let mut targets = 0;
    for ((row, mut ids), mut labels) in rows
        .iter()
        .zip(batch.input_ids.outer_iter_mut())
        .zip(labels.outer_iter_mut())
    {
        let flags = examples.example(*row as usize).flags;
        let columns = columns(padding, length, flags.len());
        let ids = &mut ids.as_slice_mut().expect("contiguous")[columns.clone()];
        let labels = &mut labels.as_slice_mut().expect("contiguous")[columns];
        targets += masking.apply(batch.epoch, *row, flags, ids, labels);
    }
    targets
}

fn token_types(
    examples: &Examples,
    padding: &Padding,
    rows: &[u32],
    ids: &Array2<i32>,
) -> Array2<i32> {
    let mut types = Array2::zeros(ids.raw_dim());
    for (place, mut out) in types.outer_iter_mut().enumerate() {
        let flags = examples
            .example(rows[if place < rows.len() { place } else { 0 }] as usize)
            .flags;
        let columns = columns(Some(padding), ids.ncols(), flags.len());
        for (out, flags) in out.slice_mut(s![columns]).iter_mut().zip(flags) {
            *out = i32::from(flags & flag::SECOND != 0);
        }
    }
    types
}

#[cfg(test)]
#[path = "collator_tests.rs"]
mod tests;
