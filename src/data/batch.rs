//! A batch on the host, in the layout that the step's graph takes. B rows of T tokens, always all
//! of them: a graph has one shape.

use ndarray::{Array1, Array2};
#[cfg(doc)]
use xtrain_models::IGNORED_NUMBER;

/// What is to be predicted; -100 where nothing is, among numbers [`IGNORED_NUMBER`].
#[derive(Clone, Debug, PartialEq)]
pub enum Labels {
    /// `[B, T]`: a language model's, before the causal shift.
    Tokens(Array2<i32>),
    /// `[B]`: a classifier's.
    Classes(Array1<i32>),
    /// `[B]`: a regression's.
    Numbers(Array1<f32>),
}

impl Labels {
    /// The labels of a language model.
    pub fn tokens(&self) -> Option<&Array2<i32>> {
        match self {
            Labels::Tokens(labels) => Some(labels),
            Labels::Classes(_) | Labels::Numbers(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[B, T]`
    pub input_ids: Array2<i32>,
    /// None in rows that are only there to fill the batch.
    pub labels: Labels,
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
    pub epoch: u64,
    pub index_in_epoch: usize,
}
