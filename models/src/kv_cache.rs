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
/// shorter texts have padding on their left. A forward pass of their beginnings (prefill) attends to
/// its own tokens, which lie in the columns from 0 on. A later one, of a token (decode) or of several,
/// attends to what the cache holds as well.
pub struct KvCache {
    /// Keys and values of each layer, `[B * K, S, D]`.
    layers: Vec<[Tensor; 2]>,
    /// `s32[B]`
    first: Tensor,
    /// `s32[]`; `None` of a pass of the beginnings.
    start: Option<Tensor>,
    extended: RefCell<Vec<[Tensor; 2]>>,
}

/// What a layer attends to.
pub(crate) struct Extended {
    /// Keys and values, `[B, K, T or S, D]`.
    pub kv: [Tensor; 2],
    pub visible: Visible,
}

/// Which keys count.
pub(crate) enum Visible {
    /// Those that are text, `pred[B, T]`, of which causal attention and the layer's window leave some.
    Text(Tensor),
    /// For each query those of the cache, `pred[B, T, S]`.
    Columns(Tensor),
}

impl KvCache {
    /// Over the keys and values `[B * K, S, D]` that each layer has so far, in the dimensions of
    /// attention's matmuls: XLA writes a column in place only if it need not reshape what both the
    /// matmul and the next step read. `first` (`s32[B]`) is the column of each text's first token,
    /// `start` (`s32[]`) that of this pass' first; `None` if the pass is of the texts' beginnings.
    pub fn new(layers: Vec<[Tensor; 2]>, first: Tensor, start: Option<Tensor>) -> KvCache {
        KvCache {
            layers,
            first,
            start,
            extended: RefCell::default(),
        }
    }

    /// S
    pub(crate) fn columns(&self) -> usize {
        self.layers.first().map_or(0, |[keys, _]| keys.dims()[1])
    }

    /// Keys and values of each layer with those of this pass, once the model has recorded it.
    pub fn take_extended(&self) -> Vec<[Tensor; 2]> {
        self.extended.take()
    }

    fn trace(&self) -> &Trace {
        self.first.trace()
    }

    /// The column of this pass' first token, `s32[]`.
    fn start(&self) -> Result<Tensor> {
        match &self.start {
            Some(start) => Ok(start.clone()),
            None => Ok(self.trace().constant(0.0, DType::S32)?),
        }
    }

    /// The position in its text of each of T tokens, `s32[B, T]`; 0 of padding.
    pub(crate) fn positions(&self, [b, t]: [usize; 2]) -> Result<Tensor> {
        let column = self
            .trace()
            .iota(DType::S32, &[b, t], 1)?
            .add(&self.start()?.broadcast_to(&[b, t])?)?;
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
        let start = self.start()?;
        let write = |held: &Tensor, new: &Tensor| {
            held.dynamic_update_slice(&new.reshape(&[b * heads, t, d])?, &start, 1)
        };
        let held = [write(keys, k)?, write(values, v)?];
        extended.push(held.clone());
        if self.start.is_none() {
            let plane = [b, t];
            let column = self.trace().iota(DType::S32, &plane, 1)?;
            let first = self.first.broadcast_in(&plane, &[0])?;
            return Ok(Extended {
                kv: [k.clone(), v.clone()],
                visible: Visible::Text(column.compare(Comparison::Ge, &first)?),
            });
        }
        let columns = keys.dims()[1];
        let cube = [b, t, columns];
        let key = self.trace().iota(DType::S32, &cube, 2)?;
        let query = self
            .trace()
            .iota(DType::S32, &cube, 1)?
            .add(&start.broadcast_to(&cube)?)?;
        let is_text = key.compare(Comparison::Ge, &self.first.broadcast_in(&cube, &[0])?)?;
        let mut visible = is_text.and(&key.compare(Comparison::Le, &query)?)?;
        if let Some(window) = window {
            let oldest = query.add_scalar(-f64::from(window))?;
            visible = visible.and(&key.compare(Comparison::Gt, &oldest)?)?;
        }
        let [keys, values] = held.map(|held| held.reshape(&[b, heads, columns, d]));
        Ok(Extended {
            kv: [keys?, values?],
            visible: Visible::Columns(visible),
        })
    }
}
