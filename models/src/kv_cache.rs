//! Keys and values that a decoder keeps while it generates, so that a further token attends to them
//! instead of computing them again.
//!
//! Letters: B batch, T tokens, S columns of the cache, K key/value heads, D values of a head.

use crate::error::{Error, Result};
use std::cell::RefCell;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, Tensor, Trace};

/// The cache of each layer of a decoder, as one forward pass finds and leaves it.
///
/// A text's tokens lie in consecutive columns and all texts of a batch end in the same one, so
/// shorter texts have padding on their left. A forward pass of several tokens is their beginning
/// (prefill): they lie in the columns from 0 on and attend to each other. A forward pass of one token
/// (decode) attends to what the cache holds and to itself.
pub struct KvCache {
    /// Keys and values of each layer, `[B * K, S, D]`.
    layers: Vec<[Tensor; 2]>,
    /// `s32[B]`
    first: Tensor,
    /// `s32[]`
    start: Tensor,
    extended: RefCell<Vec<[Tensor; 2]>>,
}

/// What a layer attends to.
pub(crate) struct Extended {
    /// Keys and values, `[B, K, T or S, D]`.
    pub kv: [Tensor; 2],
    /// `pred[B, T or S]`
    pub key_mask: Tensor,
    /// Whether the mask says all: else attention is causal, and the layer's window counts.
    pub is_complete: bool,
}

impl KvCache {
    /// Over the keys and values `[B * K, S, D]` that each layer has so far, in the dimensions of
    /// attention's matmuls: XLA writes a column in place only if it need not reshape what both the
    /// matmul and the next step read. `first` (`s32[B]`) is the
    /// column of each text's first token, `start` (`s32[]`) that of this pass' first.
    pub fn new(layers: Vec<[Tensor; 2]>, first: Tensor, start: Tensor) -> KvCache {
        KvCache {
            layers,
            first,
            start,
            extended: RefCell::default(),
        }
    }

    /// Keys and values of each layer with those of this pass, once the model has recorded it.
    pub fn take_extended(&self) -> Vec<[Tensor; 2]> {
        self.extended.take()
    }

    fn trace(&self) -> &Trace {
        self.first.trace()
    }

    /// The position in its text of each of T tokens, `s32[B, T]`; 0 of padding.
    pub(crate) fn positions(&self, [b, t]: [usize; 2]) -> Result<Tensor> {
        let column = self
            .trace()
            .iota(DType::S32, &[b, t], 1)?
            .add(&self.start.broadcast_to(&[b, t])?)?;
        let position = column.sub(&self.first.broadcast_in(&[b, t], &[0])?)?;
        let zero = self.trace().full(0.0, position.shape())?;
        let is_text = position.compare(Comparison::Ge, &zero)?;
        Ok(is_text.select(&position, &zero)?)
    }

    /// Adds the keys and values `[B, K, T, D]` of the next layer, which sees `window` tokens if that
    /// is given.
    ///
    /// # Errors
    /// If the cache has fewer layers, or their shape is another.
    pub(crate) fn extend(&self, k: &Tensor, v: &Tensor, window: Option<u32>) -> Result<Extended> {
        let mut extended = self.extended.borrow_mut();
        let layers = self.layers.len();
        let Some([keys, values]) = self.layers.get(extended.len()) else {
            return Err(Error::CacheLayers { layers });
        };
        let [b, heads, t, d] = [k.dims()[0], k.dims()[1], k.dims()[2], k.dims()[3]];
        let write = |held: &Tensor, new: &Tensor| {
            held.dynamic_update_slice(&new.reshape(&[b * heads, t, d])?, &self.start, 1)
        };
        let held = [write(keys, k)?, write(values, v)?];
        extended.push(held.clone());
        let is_prefill = t > 1;
        let columns = if is_prefill { t } else { keys.dims()[1] };
        let plane = [b, columns];
        let column = self.trace().iota(DType::S32, &plane, 1)?;
        let is_text = column.compare(Comparison::Ge, &self.first.broadcast_in(&plane, &[0])?)?;
        if is_prefill {
            return Ok(Extended {
                kv: [k.clone(), v.clone()],
                key_mask: is_text,
                is_complete: false,
            });
        }
        let now = self.start.broadcast_to(&plane)?;
        let mut key_mask = is_text.and(&column.compare(Comparison::Le, &now)?)?;
        if let Some(window) = window {
            let oldest = now.add_scalar(-f64::from(window))?;
            key_mask = key_mask.and(&column.compare(Comparison::Gt, &oldest)?)?;
        }
        let [keys, values] = held.map(|held| held.reshape(&[b, heads, columns, d]));
        Ok(Extended {
            kv: [keys?, values?],
            key_mask,
            is_complete: true,
        })
    }
}
