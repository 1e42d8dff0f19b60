//! What a model reads.

use crate::error::Result;
use crate::kv_cache::KvCache;
use std::rc::Rc;
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
    /// Of a decoder that generates: what it keeps of the tokens before, and which columns of this
    /// batch are padding, whatever `attention_mask` says.
    pub cache: Option<Rc<KvCache>>,
}

impl TokenBatch {
    /// Token ids `s32[B, T]` that are all attended and in segment 0.
    pub fn new(input_ids: Tensor) -> Self {
        TokenBatch {
            input_ids,
            attention_mask: None,
            token_type_ids: None,
            cache: None,
        }
    }

    /// The position of each token in its text, `s32[B, T]`; `None` where they count from 0 in every
    /// row.
    pub(crate) fn positions(&self) -> Result<Option<Tensor>> {
        let cache = self.cache.as_ref();
        cache.map(|cache| cache.positions(self.size())).transpose()
    }

    /// `[B, T]`
    pub fn size(&self) -> [usize; 2] {
        [self.input_ids.dims()[0], self.input_ids.dims()[1]]
    }
}
