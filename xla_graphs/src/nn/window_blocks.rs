//! Attention in a window, block by block: queries are cut into blocks, and each block is multiplied
//! with the keys of its own and of the neighbouring blocks only, which hold all that its window
//! reaches. Over T tokens and a window of W that is T times 1.5 W scores instead of T times T (to
//! both sides 2.5 W; of short windows 2 W and 3 W).
//!
//! Blocks become entries of the batch, so that what computes attention over whole sequences computes
//! this one too, given which keys each query sees.
//!
//! Letters: B batch, H query heads, K key/value heads, T tokens, D values of a head, N blocks, L
//! tokens of a block, S keys that a block is multiplied with.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Attention, Comparison, KeyMask};
use crate::shape::Shape;
use crate::trace::{Tensor, Trace};

/// Lengths of blocks are multiples of this.
const GRAIN: usize = 8;

/// A window that reaches this far is covered by two blocks, not by one: fewer keys beyond its end are
/// multiplied, and blocks are still long enough for fast matmuls.
const TWO_BLOCKS: usize = 128;

/// How the sequences of an attention are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// T
    tokens: usize,
    /// L
    length: usize,
    /// N
    count: usize,
    /// Blocks before its own that a block is multiplied with.
    before: usize,
    /// Blocks after its own: none if attention is causal.
    after: usize,
}

impl Blocks {
    /// The blocks of an attention over these queries and keys; `None` where whole rows of scores
    /// cost little more or are needed, as by dropout, whose mask has them.
    pub fn of(attention: &Attention, q: &Shape, k: &Shape) -> Option<Blocks> {
        let (tokens, keys) = (q.dims[2], k.dims[2]);
        let window = attention.window.filter(|window| *window > 0)? as usize;
        if attention.dropout.is_some() || tokens != keys {
            return None;
        }
        let reach = (window - 1).max(1);
        let before = if reach < TWO_BLOCKS { 1 } else { 2 };
        let length = reach.div_ceil(before).next_multiple_of(GRAIN);
        let blocks = Blocks {
            tokens,
            length,
            count: tokens.div_ceil(length),
            before,
            after: if attention.causal { 0 } else { before },
        };
        (2 * blocks.keys() <= tokens).then_some(blocks)
    }

    /// Whether the last block has queries that are none.
    pub fn has_padding(&self) -> bool {
        self.count * self.length > self.tokens
    }

    /// Blocks that a block is multiplied with.
    fn span(&self) -> usize {
        self.before + 1 + self.after
    }

    /// S
    fn keys(&self) -> usize {
        self.span() * self.length
    }

    /// `[B, H, T, D]` as `[B * N, H, L, D]`.
    pub fn queries(&self, x: &Tensor) -> Result<Tensor> {
        let [b, h, d] = [0, 1, 3].map(|dim| x.dims()[dim]);
        let missing = self.count * self.length - self.tokens;
        x.pad(&[0; 4], &[0, 0, missing, 0])?
            .reshape(&[b, h, self.count, self.length, d])?
            .transpose(&[0, 2, 1, 3, 4])?
            .reshape(&[b * self.count, h, self.length, d])
    }

    /// Back from [`Blocks::queries`].
    pub fn sequences(&self, x: &Tensor) -> Result<Tensor> {
        let [entries, h, d] = [0, 1, 3].map(|dim| x.dims()[dim]);
        let b = entries / self.count;
        x.reshape(&[b, self.count, h, self.length, d])?
            .transpose(&[0, 2, 1, 3, 4])?
            .reshape(&[b, h, self.count * self.length, d])?
            .slice_dim(2, 0, self.tokens)
    }

    /// Rows of padding before and after T rows, so that the blocks next to the first and the last
    /// are there.
    fn margins(&self) -> [usize; 2] {
        let after = (self.count + self.after) * self.length - self.tokens;
        [self.before * self.length, after]
    }

    /// Keys or values `[B, K, T, D]` as `[B * N, K, S, D]`.
    pub fn neighbours(&self, x: &Tensor) -> Result<Tensor> {
        let [b, k, d] = [0, 1, 3].map(|dim| x.dims()[dim]);
        let [before, after] = self.margins();
        let padded = x.pad(&[0, 0, before, 0], &[0, 0, after, 0])?;
        let blocks = (0..self.span())
            .map(|block| {
                let start = block * self.length;
                padded
                    .slice_dim(2, start, start + self.count * self.length)?
                    .reshape(&[b, k, self.count, self.length, d])
            })
            .collect::<Result<Vec<_>>>()?;
        Tensor::concat(&blocks.iter().collect::<Vec<_>>(), 3)?
            .transpose(&[0, 2, 1, 3, 4])?
            .reshape(&[b * self.count, k, self.keys(), d])
    }

    /// The gradient of [`Blocks::neighbours`]: each key's from all blocks that it was multiplied
    /// with.
    pub fn sum_of_neighbours(&self, grad: &Tensor) -> Result<Tensor> {
        let [entries, k, d] = [0, 1, 3].map(|dim| grad.dims()[dim]);
        let b = entries / self.count;
        let apart = grad
            .reshape(&[b, self.count, k, self.keys(), d])?
            .transpose(&[0, 2, 1, 3, 4])?;
        let [before, after] = self.margins();
        let rows = before + self.tokens + after;
        let mut sum: Option<Tensor> = None;
        for block in 0..self.span() {
            let start = block * self.length;
            let of_block = apart.slice_dim(3, start, start + self.length)?.reshape(&[
                b,
                k,
                self.count * self.length,
                d,
            ])?;
            let rest = rows - start - self.count * self.length;
            let placed = of_block.pad(&[0, 0, start, 0], &[0, 0, rest, 0])?;
            sum = Some(match sum {
                Some(sum) => sum.add(&placed)?,
                None => placed,
            });
        }
        let sum = sum.expect("a block is multiplied with itself at least");
        sum.slice_dim(2, before, before + self.tokens)
    }

    /// Which keys each query sees, `pred[B * N, H, L, S]`, given the operand of the key mask, if there
    /// is one.
    pub fn visible(
        &self,
        attention: &Attention,
        trace: &Trace,
        [b, h]: [usize; 2],
        key_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let plane = [self.count, self.length, self.keys()];
        let place = |dim| trace.iota(DType::S32, &plane, dim);
        let start = place(0)?.mul_scalar(self.length as f64)?;
        let query = start.add(&place(1)?)?;
        let key = start
            .add(&place(2)?)?
            .add_scalar(-((self.before * self.length) as f64))?;
        let window = f64::from(attention.window.unwrap_or(0));
        let zero = trace.full(0.0, key.shape())?;
        let bounds = [
            key.compare(Comparison::Ge, &zero)?,
            key.compare_scalar(Comparison::Lt, self.tokens as f64)?,
            key.compare(Comparison::Gt, &query.add_scalar(-window)?)?,
            if attention.causal {
                key.compare(Comparison::Le, &query)?
            } else {
                key.compare(Comparison::Lt, &query.add_scalar(window)?)?
            },
        ];
        let [first, rest @ ..] = &bounds;
        let mut visible = first.clone();
        for bound in rest {
            visible = visible.and(bound)?;
        }
        let all = [b, self.count, h, self.length, self.keys()];
        visible = visible.broadcast_in(&all, &[1, 3, 4])?;
        if let (Some(first), KeyMask::Before) = (key_mask, attention.key_mask) {
            // As a query with one value; the first key of one that is none is 0.
            let first = first.reshape(&[b, 1, self.tokens, 1])?;
            let first = self
                .queries(&first)? // [B * N, 1, L, 1]
                .reshape(&[b, self.count, self.length])?
                .broadcast_in(&all, &[0, 1, 3])?;
            let key = key.broadcast_in(&all, &[1, 3, 4])?;
            visible = visible.and(&key.compare(Comparison::Ge, &first)?)?;
        } else if let Some(mask) = key_mask {
            // As a key with one value. Numbers, since what pads is zero.
            let mask = mask.convert(DType::F32)?.reshape(&[b, 1, self.tokens, 1])?;
            let mask = self.neighbours(&mask)?; // [B * N, 1, S, 1]
            let zero = trace.full(0.0, mask.shape())?;
            let mask = mask
                .compare(Comparison::Ne, &zero)?
                .reshape(&[b, self.count, self.keys()])?
                .broadcast_in(&all, &[0, 1, 4])?;
            visible = visible.and(&mask)?;
        }
        visible.reshape(&[b * self.count, h, self.length, self.keys()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::F64;

    fn blocks(window: u32, causal: bool, tokens: usize) -> Option<Blocks> {
        let attention = Attention {
            scale: F64::new(1.0),
            causal,
            window: Some(window),
            key_mask: KeyMask::None,
            dropout: None,
            soft_cap: None,
        };
        let shape = Shape::new(DType::F32, [2, 4, tokens, 16]);
        Blocks::of(&attention, &shape, &shape)
    }

    #[test]
    fn windows_well_below_the_length_are_cut() {
        let cut = blocks(512, true, 4096).unwrap();
        assert_eq!((cut.length, cut.count, cut.span()), (256, 16, 3));
        let cut = blocks(65, false, 1000).unwrap();
        assert_eq!((cut.length, cut.count, cut.span()), (64, 16, 3));
        assert!(cut.has_padding());
        let cut = blocks(257, false, 4096).unwrap();
        assert_eq!((cut.length, cut.span()), (128, 5));
        assert_eq!(blocks(512, true, 1535), None);
        assert_eq!(blocks(0, true, 4096), None);
    }
}
