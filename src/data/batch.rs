//! A batch on the host, in the layout that the step's graph takes. B rows of T tokens, always all
//! of them: a graph has one shape.

use ndarray::Array2;

pub use crate::trainer::feed::HostLabels;

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
    /// Real rows; the others, at the end, have no labels.
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
