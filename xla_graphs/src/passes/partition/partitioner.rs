//! From one placement to another: gathering what is sharded, sharding what is replicated, summing
//! what is partial.

use super::shard::{Partition, Placement, Shard, ShardSpec};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::NodeId;
use crate::op::{Comparison, Composite, Op};
use crate::shape::Shape;
use crate::trace::{Tensor, Trace};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// What the rules need besides the operands.
pub(super) struct Partitioner<'a> {
    /// What the partitioned graph is recorded in.
    pub trace: Trace,
    /// Groups, and how the inputs are sharded.
    pub partition: &'a Partition,
    /// Replicas of a group.
    pub replicas: usize,
    /// The replica's rank in its group, `s32[]`.
    rank: Tensor,
    rank_is_used: Cell<bool>,
    /// Counts collectives from 1, so that no two become one instruction that waits for both.
    collectives: Cell<u32>,
    /// Sums made so far, by what they are of.
    sums: RefCell<HashMap<NodeId, Tensor>>,
    /// Activations that were gathered again for the backward pass, by their shards.
    pub gathered_again: RefCell<HashMap<NodeId, Tensor>>,
}

/// The number of the collective that sums up gradients.
const GRADIENTS: u32 = 0;

impl<'a> Partitioner<'a> {
    /// `rank`: the replica's in its group, `s32[]`.
    pub(super) fn new(trace: Trace, partition: &'a Partition, rank: Tensor) -> Self {
        Partitioner {
            trace,
            partition,
            replicas: partition.replicas(),
            rank,
            rank_is_used: Cell::new(false),
            collectives: Cell::new(1),
            sums: RefCell::default(),
            gathered_again: RefCell::default(),
        }
    }

    pub(super) fn groups(&self) -> &[Vec<u32>] {
        &self.partition.groups
    }

    /// The replica's rank in its group; asking for it makes it an input.
    pub(super) fn rank(&self) -> &Tensor {
        self.rank_is_used.set(true);
        &self.rank
    }

    /// Whether some node has asked for the rank.
    pub(super) fn rank_is_used(&self) -> bool {
        self.rank_is_used.get()
    }

    pub(super) fn divides(&self, shape: &Shape, spec: ShardSpec) -> bool {
        spec.shape_of(shape, self.replicas).is_some()
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
    /// such as the gradients of three matmuls with one input, is exchanged once that way.
    pub(super) fn summand(&self, part: &Shard) -> Result<Option<Tensor>> {
        if part.is_partial() {
            return Ok(Some(part.local.clone()));
        }
        let node = part.local.node();
        let Op::Convert(wide) = node.op else {
            return Ok(None);
        };
        let sum = self.trace.tensor(node.operands[0]).node();
        let partial = match &sum.op {
            Op::AllReduce(exchange) if part.is_replicated() && exchange.groups == self.groups() => {
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
    pub(super) fn to_replicated(&self, part: &Shard) -> Result<Tensor> {
        match part.placement {
            Placement::Replicated => Ok(part.local.clone()),
            Placement::Partial => self.sum(&part.local),
            Placement::Sharded(ShardSpec { dim, blocks: 1 }) => {
                part.local.all_gather(self.groups(), dim)
            }
            Placement::Sharded(ShardSpec { dim, blocks }) => {
                let gathered = part.local.all_gather(self.groups(), dim)?;
                // [.., rank, block, width, ..] as [.., block, rank, width, ..]
                let whole = gathered.dims().to_vec();
                let width = whole[dim] / (blocks * self.replicas);
                let mut apart = whole[..dim].to_vec();
                apart.extend([self.replicas, blocks, width]);
                apart.extend(&whole[dim + 1..]);
                let mut order: Vec<usize> = (0..apart.len()).collect();
                order.swap(dim, dim + 1);
                gathered.reshape(&apart)?.transpose(&order)?.reshape(&whole)
            }
        }
    }

    /// This replica's shard of a value of this whole shape.
    pub(super) fn to_sharded(
        &self,
        part: &Shard,
        spec: ShardSpec,
        shape: &Shape,
    ) -> Result<Tensor> {
        match part.placement {
            Placement::Sharded(found) if found == spec => Ok(part.local.clone()),
            Placement::Partial if spec.blocks == 1 => {
                part.local.reduce_scatter(self.groups(), spec.dim)
            }
            _ => self.shard_replicated(&self.to_replicated(part)?, spec, shape),
        }
    }

    /// As [`Partitioner::to_sharded`], of a replicated value. A broadcast or an iota is recorded at the
    /// shard's size.
    fn shard_replicated(&self, whole: &Tensor, spec: ShardSpec, shape: &Shape) -> Result<Tensor> {
        let node = whole.node();
        let operand = |index: usize| self.trace.tensor(node.operands[index]);
        let size = shape.dims[spec.dim] / self.replicas;
        if let Op::Broadcast { dims, map } = &node.op {
            let mut dims = dims.clone();
            dims[spec.dim] = size;
            let Some(from) = map.iter().position(|to| *to == spec.dim) else {
                return operand(0).broadcast_in(&dims, map);
            };
            let source = operand(0);
            return match source.dims()[from] {
                1 => source.broadcast_in(&dims, map),
                _ => self
                    .shard_replicated(&source, spec.along(from), source.shape())?
                    .broadcast_in(&dims, map),
            };
        }
        if let Op::Iota { dims, dim, dtype } = &node.op {
            let mut dims = dims.clone();
            dims[spec.dim] = size;
            if *dim != spec.dim {
                return self.trace.iota(*dtype, &dims, *dim);
            }
            if spec.blocks == 1 {
                let start = self.rank().mul_scalar(size as f64)?.convert(*dtype)?;
                return self.trace.iota(*dtype, &dims, *dim)?.add(&start);
            }
        }
        if let (Op::Compare(_), 0, 1) = (&node.op, spec.dim, spec.blocks)
            && let Op::Composite(Composite::RandomBits { dims, stream }) = operand(0).node().op
        {
            let bits = self.random_rows(&operand(0), &dims, stream)?;
            let threshold = self.shard_replicated(&operand(1), spec, shape)?;
            return self.trace.record(node.op, &[&bits, &threshold]);
        }
        if spec.blocks == 1 {
            return whole.dynamic_slice(&self.rank().mul_scalar(size as f64)?, spec.dim, size);
        }
        let width = size / spec.blocks;
        let mut apart = shape.dims[..spec.dim].to_vec();
        apart.extend([spec.blocks, width * self.replicas]);
        apart.extend(&shape.dims[spec.dim + 1..]);
        let mut dims = shape.dims.clone();
        dims[spec.dim] = size;
        let start = self.rank().mul_scalar(width as f64)?;
        whole
            .reshape(&apart)?
            .dynamic_slice(&start, spec.dim + 1, width)?
            .reshape(&dims)
    }

    /// Random words of this replica's rows, those that the whole would have there: the rows are
    /// counted through all shards of the batch, and the replicas divide each of these between them
    /// (`nn/dropout.rs`).
    fn random_rows(&self, bits: &Tensor, dims: &[usize], stream: u32) -> Result<Tensor> {
        let key = self.trace.tensor(bits.node().operands[0]);
        let mut dims = dims.to_vec();
        dims[0] /= self.replicas;
        let rank = self.rank().convert(DType::U32)?.reshape(&[1])?;
        let shard = match key.dims() {
            [3] => key
                .slice(&[2], &[3])?
                .mul_scalar(self.replicas as f64)?
                .add(&rank)?,
            _ => rank,
        };
        let key = Tensor::concat(&[&key.slice(&[0], &[2])?, &shard], 0)?;
        self.trace.record(
            Op::Composite(Composite::RandomBits { dims, stream }),
            &[&key],
        )
    }

    /// A replicated value as a partial one: the first replica has it, the others have zeros.
    pub(super) fn to_partial(&self, whole: &Tensor) -> Result<Tensor> {
        let zero = self.trace.constant(0.0, DType::S32)?;
        let is_first = self.rank().compare(Comparison::Eq, &zero)?;
        is_first.select(whole, &self.trace.full(0.0, whole.shape())?)
    }

    /// Ids as those of this replica's rows: what is another's lies outside of them.
    pub(super) fn own_ids(&self, ids: &Tensor, rows: usize) -> Result<Tensor> {
        let start = self.rank().mul_scalar(rows as f64)?.convert(ids.dtype())?;
        ids.sub(&start.broadcast_to(ids.dims())?)
    }
}
