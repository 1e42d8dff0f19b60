//! A batch on the host, in the layout that the step's graph takes.

use ndarray::{Array2, s};
use xtrain_models::IGNORED_LABEL;

use super::dataset::Dataset;
use super::sampler::Position;

/// `[batch_size, block_size]` arrays, always of full size: a graph has one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub input_ids: Array2<i32>,
    /// Labels before the shift: the ids themselves, or -100 in rows that are only there to fill the batch.
    pub labels: Array2<i32>,
    /// `None` where nothing is masked within a row, as in packed causal LM.
    pub attention_mask: Option<Array2<i32>>,
    /// Real rows; the others, at the end, are masked out.
    pub examples: usize,
    /// Ids in the real rows.
    pub tokens: usize,
    /// Labels that count in a causal loss, which predicts from the second column on.
    pub targets: usize,
    pub epoch: u64,
    pub index_in_epoch: usize,
}

/// Packed causal LM: labels equal ids. Rows missing to `batch_size` are zeros with every label -100.
pub fn causal(dataset: &Dataset, rows: &[u32], batch_size: usize, at: Position) -> Batch {
    assert!(rows.len() <= batch_size, "{} rows in a batch of {batch_size}", rows.len());
    let block_size = dataset.block_size();
    let mut input_ids = Array2::zeros((batch_size, block_size));
    for (mut out, row) in input_ids.outer_iter_mut().zip(rows) {
        let out = out.as_slice_mut().expect("rows of a fresh array are contiguous");
        dataset.row(*row as usize).copy_to(out);
    }
    let mut labels = input_ids.clone();
    labels.slice_mut(s![rows.len().., ..]).fill(IGNORED_LABEL as i32);
    Batch {
        input_ids,
        labels,
        attention_mask: None,
        examples: rows.len(),
        tokens: rows.len() * block_size,
        targets: rows.len() * (block_size - 1),
        epoch: at.epoch,
        index_in_epoch: at.batch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_batch_is_padded_with_rows_that_do_not_count() {
        let dataset = Dataset::from_ids(3, (0..12).collect());
        let batch = causal(&dataset, &[3, 1], 4, Position { epoch: 2, batch: 5 });
        assert_eq!(batch.input_ids, ndarray::arr2(&[[9, 10, 11], [3, 4, 5], [0, 0, 0], [0, 0, 0]]));
        assert_eq!(batch.labels, ndarray::arr2(&[[9, 10, 11], [3, 4, 5], [-100; 3], [-100; 3]]));
        assert_eq!((batch.examples, batch.tokens, batch.targets), (2, 6, 4));
        assert_eq!((batch.epoch, batch.index_in_epoch), (2, 5));
    }
}
