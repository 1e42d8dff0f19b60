//! From one way of lying to another: putting together what is cut, cutting what is whole, summing
//! what is partial.

use super::{Cut, Partitioner, Placement, Shard};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, Composite, Op};
use crate::shape::Shape;
use crate::trace::Tensor;

/// A cut into this many parts.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub cut: Cut,
    pub parts: usize,
}

impl Place {
    /// The shape of a part; `None` where the dimension does not divide.
    pub fn part_of(self, shape: &Shape) -> Option<Shape> {
        let mut dims = shape.dims.clone();
        let size = dims.get_mut(self.cut.dim)?;
        if *size == 0 || !size.is_multiple_of(self.cut.blocks * self.parts) {
            return None;
        }
        *size /= self.parts;
        Some(Shape::new(shape.dtype, dims))
    }
}

/// The number of the collective that sums up gradients.
const GRADIENTS: u32 = 0;

impl Partitioner<'_> {
    pub(super) fn groups(&self) -> &[Vec<u32>] {
        &self.partition.groups
    }

    /// The replica's place, which makes it an input.
    pub(super) fn place(&self) -> &Tensor {
        self.place_is_used.set(true);
        &self.place
    }

    pub(super) fn divides(&self, shape: &Shape, cut: Cut) -> bool {
        Place {
            cut,
            parts: self.parts,
        }
        .part_of(shape)
        .is_some()
    }

    /// The sum over the group.
    pub(super) fn sum(&self, partial: &Tensor) -> Result<Tensor> {
        let number = self.collectives.get();
        self.collectives.set(number + 1);
        self.sum_in(partial, number)
    }

    /// The same of a gradient. These stand side by side at the end of the backward pass and become
    /// one collective.
    pub(super) fn sum_with_gradients(&self, partial: &Tensor) -> Result<Tensor> {
        self.sum_in(partial, GRADIENTS)
    }

    fn sum_in(&self, partial: &Tensor, number: u32) -> Result<Tensor> {
        if let Some(known) = self.sums.borrow().get(&partial.id()) {
            return Ok(known.clone());
        }
        let sum = partial.all_reduce(self.groups(), number)?;
        self.sums.borrow_mut().insert(partial.id(), sum.clone());
        Ok(sum)
    }

    /// What this replica adds to the value, where it is a sum over the group and nothing else, or
    /// one that was then widened. What is added up in 16 bits and widened to be added to others,
    /// such as the gradients of three products with one input, is exchanged once that way.
    pub(super) fn summand(&self, part: &Shard) -> Result<Option<Tensor>> {
        if part.placement == Placement::Partial {
            return Ok(Some(part.local.clone()));
        }
        let node = part.local.node();
        let Op::Convert(wide) = node.op else {
            return Ok(None);
        };
        let sum = self.trace.tensor(node.operands[0]).node();
        let partial = match &sum.op {
            Op::AllReduce(exchange)
                if part.placement == Placement::Replicated && exchange.groups == self.groups() =>
            {
                sum.operands[0]
            }
            Op::ReduceScatter { exchange, .. } if exchange.groups == self.groups() => {
                sum.operands[0]
            }
            _ => return Ok(None),
        };
        let partial = self.trace.tensor(partial);
        let widens = partial.dtype().is_float() && wide.size() > partial.dtype().size();
        if widens {
            partial.convert(wide).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The whole value.
    pub(super) fn whole(&self, part: &Shard) -> Result<Tensor> {
        match part.placement {
            Placement::Replicated => Ok(part.local.clone()),
            Placement::Partial => self.sum(&part.local),
            Placement::Sharded(Cut { dim, blocks: 1 }) => part.local.all_gather(self.groups(), dim),
            Placement::Sharded(Cut { dim, blocks }) => {
                let gathered = part.local.all_gather(self.groups(), dim)?;
                // [.., place, block, width, ..] as [.., block, place, width, ..]
                let whole = gathered.dims().to_vec();
                let width = whole[dim] / (blocks * self.parts);
                let mut apart = whole[..dim].to_vec();
                apart.extend([self.parts, blocks, width]);
                apart.extend(&whole[dim + 1..]);
                let mut order: Vec<usize> = (0..apart.len()).collect();
                order.swap(dim, dim + 1);
                gathered.reshape(&apart)?.transpose(&order)?.reshape(&whole)
            }
        }
    }

    /// This replica's part of a value of this whole shape.
    pub(super) fn cut(&self, part: &Shard, cut: Cut, shape: &Shape) -> Result<Tensor> {
        match part.placement {
            Placement::Sharded(found) if found == cut => Ok(part.local.clone()),
            Placement::Partial if cut.blocks == 1 => {
                part.local.reduce_scatter(self.groups(), cut.dim)
            }
            _ => self.cut_whole(&self.whole(part)?, cut, shape),
        }
    }

    /// As [`Partitioner::cut`], of a whole value. What is only spread out or counted up is made at its
    /// part's size.
    fn cut_whole(&self, whole: &Tensor, cut: Cut, shape: &Shape) -> Result<Tensor> {
        let node = whole.node();
        let operand = |index: usize| self.trace.tensor(node.operands[index]);
        let size = shape.dims[cut.dim] / self.parts;
        if let Op::Broadcast { dims, map } = &node.op {
            let mut dims = dims.clone();
            dims[cut.dim] = size;
            let Some(from) = map.iter().position(|to| *to == cut.dim) else {
                return operand(0).broadcast_in(&dims, map);
            };
            let source = operand(0);
            return match source.dims()[from] {
                1 => source.broadcast_in(&dims, map),
                _ => self
                    .cut_whole(&source, Cut { dim: from, ..cut }, source.shape())?
                    .broadcast_in(&dims, map),
            };
        }
        if let Op::Iota { dims, dim, dtype } = &node.op {
            let mut dims = dims.clone();
            dims[cut.dim] = size;
            if *dim != cut.dim {
                return self.trace.iota(*dtype, &dims, *dim);
            }
            if cut.blocks == 1 {
                let start = self.place().mul_scalar(size as f64)?.convert(*dtype)?;
                return self.trace.iota(*dtype, &dims, *dim)?.add(&start);
            }
        }
        if let (Op::Compare(_), 0, 1) = (&node.op, cut.dim, cut.blocks)
            && let Op::Composite(Composite::RandomBits { dims, place }) = operand(0).node().op
        {
            let bits = self.random_rows(&operand(0), &dims, place)?;
            let threshold = self.cut_whole(&operand(1), cut, shape)?;
            return self.trace.record(node.op, &[&bits, &threshold]);
        }
        if cut.blocks == 1 {
            return whole.dynamic_slice(&self.place().mul_scalar(size as f64)?, cut.dim, size);
        }
        let width = size / cut.blocks;
        let mut apart = shape.dims[..cut.dim].to_vec();
        apart.extend([cut.blocks, width * self.parts]);
        apart.extend(&shape.dims[cut.dim + 1..]);
        let mut dims = shape.dims.clone();
        dims[cut.dim] = size;
        let start = self.place().mul_scalar(width as f64)?;
        whole
            .reshape(&apart)?
            .dynamic_slice(&start, cut.dim + 1, width)?
            .reshape(&dims)
    }

    /// Random words of this replica's rows, those that the whole would have there: the rows are
    /// counted through all shards of the batch, and each shard is now cut into this many parts
    /// (`nn/dropout.rs`).
    fn random_rows(&self, bits: &Tensor, dims: &[usize], place: u32) -> Result<Tensor> {
        let key = self.trace.tensor(bits.node().operands[0]);
        let mut dims = dims.to_vec();
        dims[0] /= self.parts;
        let part = self.place().convert(DType::U32)?.reshape(&[1])?;
        let shard = match key.dims() {
            [3] => key
                .slice(&[2], &[3])?
                .mul_scalar(self.parts as f64)?
                .add(&part)?,
            _ => part,
        };
        let key = Tensor::concat(&[&key.slice(&[0], &[2])?, &shard], 0)?;
        self.trace.record(
            Op::Composite(Composite::RandomBits { dims, place }),
            &[&key],
        )
    }

    /// A whole value as a partial one: the first replica has it, the others have zeros.
    pub(super) fn as_partial(&self, whole: &Tensor) -> Result<Tensor> {
        let zero = self.trace.constant(0.0, DType::S32)?;
        let is_first = self.place().compare(Comparison::Eq, &zero)?;
        is_first.select(whole, &self.trace.full(0.0, whole.shape())?)
    }
}
