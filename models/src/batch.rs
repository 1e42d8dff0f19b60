//! What a model reads.

use crate::error::{Error, Result};
use crate::kv_cache::KvCache;
use std::rc::Rc;
use xtrain_graphs::{DType, Tensor};

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
    /// `s32[B, T]`, the place of each token in its own example, where several are packed into a row:
    /// numbers that begin again at 0. An example's tokens see no other example's. Padding is of
    /// examples of one token, so that there is no attention mask beside it. `None` where each row is
    /// one example. For decoders.
    pub position_ids: Option<Tensor>,
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
            position_ids: None,
            cache: None,
        }
    }

    /// The position of each token in its text, `s32[B, T]`; `None` where they count from 0 in every
    /// row.
    pub(crate) fn positions(&self) -> Result<Option<Tensor>> {
        match &self.cache {
            Some(cache) => cache.positions(self.size()).map(Some),
            None => Ok(self.position_ids.clone()),
        }
    }

    /// What hides keys from queries besides causality and windows: the attention mask or, of packed
    /// examples, the first key of each query's example, `s32[B, T]`.
    ///
    /// # Errors
    /// If there are both.
    pub(crate) fn key_mask(&self) -> Result<Option<Tensor>> {
        match (&self.position_ids, &self.attention_mask) {
            (None, mask) => Ok(mask.clone()),
            (Some(_), Some(_)) => Err(Error::MaskedPacking),
            (Some(positions), None) => {
                let column = positions.trace().iota(DType::S32, positions.dims(), 1)?;
                Ok(Some(column.sub(positions)?))
            }
        }
    }

    /// `[B, T]`
    pub fn size(&self) -> [usize; 2] {
        [self.input_ids.dims()[0], self.input_ids.dims()[1]]
    }
}
