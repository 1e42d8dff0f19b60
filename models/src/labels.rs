//! Labels of a batch on the host.

use ndarray::{Array1, Array2};

/// What is to be predicted of a batch, on the host; -100 where nothing is, among numbers
/// [`IGNORED_NUMBER`](crate::IGNORED_NUMBER).
#[derive(Clone, Debug, PartialEq)]
pub enum HostLabels {
    /// `s32[B, T]`: a label for each token; of a causal language model before the shift.
    Tokens(Array2<i32>),
    /// `s32[B]`: a class for each sequence.
    Classes(Array1<i32>),
    /// `f32[B]`: a number for each sequence.
    Numbers(Array1<f32>),
}

impl HostLabels {
    /// The labels of tokens; `None` of sequences.
    pub fn tokens(&self) -> Option<&Array2<i32>> {
        match self {
            HostLabels::Tokens(labels) => Some(labels),
            HostLabels::Classes(_) | HostLabels::Numbers(_) => None,
        }
    }
}
