//! What a model reads.

use xtrain_graphs::Tensor;

/// Token ids and what goes with them, on the device. Letters: B batch, T tokens.
#[derive(Clone)]
pub struct TokenBatch {
    /// `s32[B, T]`
    pub input_ids: Tensor,
    /// `pred[B, T]`, true = attended; `None` when every token is.
    pub attention_mask: Option<Tensor>,
    /// `s32[B, T]`, the segment of each token; `None` when all are in segment 0. Models without
    /// segments ignore it.
    pub token_type_ids: Option<Tensor>,
}

impl TokenBatch {
    /// `[B, T]`
    pub fn size(&self) -> [usize; 2] {
        [self.input_ids.dims()[0], self.input_ids.dims()[1]]
    }
}
