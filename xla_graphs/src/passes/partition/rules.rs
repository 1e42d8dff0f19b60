//! What becomes of each operation. An operation without a rule of its own takes replicated operands.

use super::partitioner::Partitioner;
use super::rows::narrows;
use super::shapes::{Resize, padded, reshaped, sliced};
use super::shard::{Placement, Recorded, Shard, ShardSpec, shard};
use crate::dtype::DType;
use crate::error::Result;
use crate::nn::block_codes::BLOCK;
use crate::nn::dequantize;
use crate::nn::dropout::attention_mask;
use crate::nn::fused_attention::{repeat_heads, sum_heads};
use crate::op::{
    Attention, AttentionDropout, AttentionOperand, AttentionOperands, Binary, BlockCodes,
    Comparison, Composite, Dequantize, DotDims, NormOperand, Op, Reduction, Unary,
};
use crate::shape::Shape;
use crate::trace::Tensor;

/// A whole value of at most this many elements is made partial, rather than a partial one whole,
/// where the two add up.
const FEW: usize = 1024;

fn replicated(local: Tensor) -> Option<Shard> {
    Some(Shard::replicated(local))
}

fn sharded(local: Tensor, spec: ShardSpec) -> Option<Shard> {
    Some(Shard::sharded(local, spec))
}

fn partial(local: Tensor) -> Option<Shard> {
    Some(Shard::partial(local))
}

impl Partitioner<'_> {
    /// The shard of a node's result.
    pub(super) fn node(&self, node: &Recorded, operands: Vec<Shard>) -> Result<Shard> {
        let (op, shapes) = (node.op, node.shapes);
        // Also of what has been summed up and widened, so that one sum is exchanged in the place of
        // two.
        if let (Op::Binary(Binary::Add), [a, b]) = (op, &operands[..])
            && let (Some(a), Some(b)) = (self.summand(a)?, self.summand(b)?)
        {
            return Ok(Shard::partial(a.add(&b)?));
        }
        let operands = &self.by_rows(node, operands)?[..];
        if operands.iter().all(|part| part.is_replicated()) && !node.is_row_shards_gradient {
            return self.on_replicated(op, operands);
        }
        let divided = match op {
            Op::Unary(Unary::Neg) => self.linear(op, operands, shapes)?,
            Op::Binary(kind) => self.binary(*kind, op, operands, shapes)?,
            Op::Convert(dtype) if operands[0].is_partial() && narrows(*dtype, shapes[0].dtype) => {
                partial(self.record(op, &[operands[0].local.clone()])?)
            }
            Op::Composite(Composite::MasterGradient) if operands[0].is_partial() => {
                replicated(self.sum_with_gradients(&operands[0].local)?)
            }
            Op::Unary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert(_)
            | Op::Bitcast(_)
            | Op::Barrier
            | Op::ToHost
            | Op::ToDevice
            | Op::Composite(
                Composite::StopGradient
                | Composite::MasterGradient
                | Composite::Gelu(_)
                | Composite::GeluGrad(_),
            )
            | Op::AllReduce(_)
            | Op::AllReduceMax(_) => self.elementwise(op, operands, shapes)?,
            Op::Concat { dim }
                if operands
                    .iter()
                    .find_map(Shard::spec)
                    .is_some_and(|found| found.dim != *dim) =>
            {
                self.elementwise(op, operands, shapes)?
            }
            Op::BarrierAfter => self.after(operands)?,
            Op::AllGather { dim, .. }
            | Op::ReduceScatter { dim, .. }
            | Op::DynamicSlice { dim, .. } => self.along(op, *dim, operands)?,
            Op::DynamicUpdateSlice { dim } => self.update(op, *dim, operands)?,
            Op::Reshape(dims) => self.reshape(dims, &operands[0], shapes[0])?,
            Op::Broadcast { dims, map } => self.broadcast(dims, map, &operands[0])?,
            Op::Transpose(perm) => self.transpose(perm, &operands[0])?,
            Op::Slice { starts, limits } => {
                let bounds = [&starts[..], &limits[..]];
                self.resize(&operands[0], shapes[0], bounds, sliced, Tensor::slice)?
            }
            Op::Pad { low, high } => {
                let amounts = [&low[..], &high[..]];
                self.resize(&operands[0], shapes[0], amounts, padded, Tensor::pad)?
            }
            Op::Reduce { kind, dims } => self.reduce(*kind, dims, &operands[0])?,
            Op::Dot { dims, dtype, .. } => self.dot(dims, *dtype, operands, shapes)?,
            Op::TakeRows => self.take_rows(operands, shapes)?,
            Op::ScatterAddRows => self.scatter_add_rows(node, operands)?,
            Op::Composite(Composite::Attention(of)) => {
                self.attention(of, None, operands, shapes)?
            }
            Op::Composite(Composite::AttentionGrad { of, operand }) => {
                self.attention(of, Some(*operand), operands, shapes)?
            }
            Op::Composite(Composite::CrossEntropy { ignore }) => {
                self.cross_entropy(*ignore, operands)?
            }
            Op::Composite(Composite::CrossEntropyGrad { ignore }) => {
                self.cross_entropy_grad(*ignore, operands)?
            }
            Op::Composite(Composite::Norm(_) | Composite::NormGrad { .. }) => {
                self.norm(op, operands, shapes)?
            }
            Op::Composite(Composite::Dequantize(of)) => self.dequantize(*of, operands, shapes)?,
            Op::Composite(Composite::BlockCodes(part)) => {
                self.block_codes(part, operands, shapes)?
            }
            _ => None,
        };
        match divided {
            Some(part) => Ok(part),
            None => self.on_replicated(op, operands),
        }
    }

    /// An array with a scale for each block, where shards hold whole blocks.
    fn block_codes(
        &self,
        part: &BlockCodes,
        operands: &[Shard],
        shapes: &[&Shape],
    ) -> Result<Option<Shard>> {
        let Some(found) = operands[0].spec() else {
            return Ok(None);
        };
        let parts = self.replicas * found.blocks;
        let run = shapes[0].dims[found.dim..].iter().product::<usize>() / parts;
        let blocks = match part {
            BlockCodes::Scales { dims, .. } => dims,
            BlockCodes::Decode(_) | BlockCodes::Encode(_) => &shapes[1].dims,
        };
        let divides = |size: &usize| size.is_multiple_of(parts);
        if !run.is_multiple_of(BLOCK) || !blocks.get(found.dim).is_some_and(divides) {
            return Ok(None);
        }
        let mut local = part.clone();
        if let BlockCodes::Scales { dims, .. } = &mut local {
            dims[found.dim] /= self.replicas;
        }
        self.elementwise(
            &Op::Composite(Composite::BlockCodes(local)),
            operands,
            shapes,
        )
    }

    fn record(&self, op: &Op, operands: &[Tensor]) -> Result<Tensor> {
        self.trace
            .record(op.clone(), &operands.iter().collect::<Vec<_>>())
    }

    fn on_replicated(&self, op: &Op, operands: &[Shard]) -> Result<Shard> {
        let whole = operands
            .iter()
            .map(|part| self.to_replicated(part))
            .collect::<Result<Vec<_>>>()?;
        Ok(Shard::replicated(self.record(op, &whole)?))
    }

    /// An operation of one operand that may go in front of the sum.
    fn linear(&self, op: &Op, operands: &[Shard], shapes: &[&Shape]) -> Result<Option<Shard>> {
        match operands[0].placement {
            Placement::Partial => Ok(partial(self.record(op, &[operands[0].local.clone()])?)),
            _ => self.elementwise(op, operands, shapes),
        }
    }

    /// Operands of one shape, sharded as the first one that is.
    fn elementwise(&self, op: &Op, operands: &[Shard], shapes: &[&Shape]) -> Result<Option<Shard>> {
        let Some(found) = operands.iter().find_map(Shard::spec) else {
            return Ok(None);
        };
        let parts = operands
            .iter()
            .zip(shapes)
            .map(|(part, shape)| self.to_sharded(part, found, shape))
            .collect::<Result<Vec<_>>>()?;
        Ok(sharded(self.record(op, &parts)?, found))
    }

    fn binary(
        &self,
        kind: Binary,
        op: &Op,
        operands: &[Shard],
        shapes: &[&Shape],
    ) -> Result<Option<Shard>> {
        let (a, b) = (&operands[0], &operands[1]);
        let local = |a: &Tensor, b: &Tensor| self.record(op, &[a.clone(), b.clone()]);
        let few = shapes[0].elements() <= FEW;
        match (kind, a.placement, b.placement) {
            (Binary::Sub, Placement::Partial, Placement::Partial) => {
                Ok(partial(local(&a.local, &b.local)?))
            }
            (Binary::Add | Binary::Sub, Placement::Partial, Placement::Replicated) if few => {
                Ok(partial(local(&a.local, &self.to_partial(&b.local)?)?))
            }
            (Binary::Add | Binary::Sub, Placement::Replicated, Placement::Partial) if few => {
                Ok(partial(local(&self.to_partial(&a.local)?, &b.local)?))
            }
            (Binary::Mul | Binary::Div, Placement::Partial, Placement::Replicated)
            | (Binary::Mul, Placement::Replicated, Placement::Partial) => {
                Ok(partial(local(&a.local, &b.local)?))
            }
            _ => self.elementwise(op, operands, shapes),
        }
    }

    /// What is waited for may have any placement.
    fn after(&self, operands: &[Shard]) -> Result<Option<Shard>> {
        let local = operands[0].local.after(&operands[1].local)?;
        Ok(Some(Shard {
            local,
            placement: operands[0].placement,
        }))
    }

    /// Operations along a dimension of the first operand, where it is not the sharded one.
    fn along(&self, op: &Op, dim: usize, operands: &[Shard]) -> Result<Option<Shard>> {
        let Some(found) = operands[0].spec().filter(|found| found.dim != dim) else {
            return Ok(None);
        };
        let mut locals = vec![operands[0].local.clone()];
        for other in &operands[1..] {
            locals.push(self.to_replicated(other)?);
        }
        Ok(sharded(self.record(op, &locals)?, found))
    }

    /// An update of a part of each shard, where the part is sharded as the whole is, and not along
    /// the dimension of the update.
    fn update(&self, op: &Op, dim: usize, operands: &[Shard]) -> Result<Option<Shard>> {
        let (x, part) = (&operands[0], &operands[1]);
        let Some(found) = x.spec().filter(|found| found.dim != dim) else {
            return Ok(None);
        };
        if part.spec() != Some(found) {
            return Ok(None);
        }
        let start = self.to_replicated(&operands[2])?;
        let locals = [x.local.clone(), part.local.clone(), start];
        Ok(sharded(self.record(op, &locals)?, found))
    }

    fn reshape(&self, dims: &[usize], x: &Shard, shape: &Shape) -> Result<Option<Shard>> {
        if x.is_partial() {
            return Ok(partial(x.local.reshape(dims)?));
        }
        let Some(found) = x.spec() else {
            return Ok(None);
        };
        let Some(new) = reshaped(found, &shape.dims, dims, self.replicas) else {
            return Ok(None);
        };
        let mut local = dims.to_vec();
        local[new.dim] /= self.replicas;
        Ok(sharded(x.local.reshape(&local)?, new))
    }

    fn broadcast(&self, dims: &[usize], map: &[usize], x: &Shard) -> Result<Option<Shard>> {
        match x.placement {
            Placement::Partial => Ok(partial(x.local.broadcast_in(dims, map)?)),
            Placement::Sharded(found) => {
                let new = found.along(map[found.dim]);
                let mut local = dims.to_vec();
                local[new.dim] /= self.replicas;
                Ok(sharded(x.local.broadcast_in(&local, map)?, new))
            }
            Placement::Replicated => Ok(None),
        }
    }

    fn transpose(&self, perm: &[usize], x: &Shard) -> Result<Option<Shard>> {
        let local = x.local.transpose(perm)?;
        Ok(match x.placement {
            Placement::Partial => partial(local),
            Placement::Sharded(found) => perm
                .iter()
                .position(|from| *from == found.dim)
                .and_then(|dim| sharded(local, found.along(dim))),
            Placement::Replicated => None,
        })
    }

    /// Slices and pads, which have two attributes for each dimension.
    fn resize(
        &self,
        x: &Shard,
        shape: &Shape,
        attributes: [&[usize]; 2],
        along: Resize,
        record: fn(&Tensor, &[usize], &[usize]) -> Result<Tensor>,
    ) -> Result<Option<Shard>> {
        if x.is_partial() {
            return Ok(partial(record(&x.local, attributes[0], attributes[1])?));
        }
        let Some(found) = x.spec() else {
            return Ok(None);
        };
        let dim = found.dim;
        let whole = attributes.map(|attribute| attribute[dim]);
        let Some((new, local)) = along(found, shape.dims[dim], whole, self.replicas) else {
            return Ok(None);
        };
        let [mut first, mut second] = attributes.map(<[usize]>::to_vec);
        [first[dim], second[dim]] = local;
        Ok(sharded(record(&x.local, &first, &second)?, new))
    }

    fn reduce(&self, kind: Reduction, dims: &[usize], x: &Shard) -> Result<Option<Shard>> {
        let op = Op::Reduce {
            kind,
            dims: dims.to_vec(),
        };
        let local = || self.record(&op, std::slice::from_ref(&x.local));
        let is_float = x.local.dtype().is_float();
        Ok(match (x.placement, kind) {
            (Placement::Sharded(found), _) if !dims.contains(&found.dim) => {
                let dim = found.dim - dims.iter().filter(|gone| **gone < found.dim).count();
                sharded(local()?, found.along(dim))
            }
            (Placement::Sharded(_), Reduction::Sum) if is_float => partial(local()?),
            // What is large is an activation's gradient, which is made whole for its other uses
            // anyway.
            (Placement::Partial, Reduction::Sum)
                if is_float && x.local.shape().elements() <= FEW =>
            {
                partial(local()?)
            }
            (Placement::Sharded(_), Reduction::Max) if is_float => {
                replicated(local()?.all_reduce_max(self.groups())?)
            }
            (Placement::Sharded(_), Reduction::Min) if is_float => {
                replicated(local()?.neg()?.all_reduce_max(self.groups())?.neg()?)
            }
            // Places along a dimension, which floats hold exactly up to 2^24; integers are not
            // exchanged on every device.
            (Placement::Sharded(found), Reduction::Min)
                if x.local.dtype() == DType::S32
                    && self.replicas * x.local.dims()[found.dim] < 1 << 24 =>
            {
                let least = local()?
                    .convert(DType::F32)?
                    .neg()?
                    .all_reduce_max(self.groups())?
                    .neg()?;
                replicated(least.convert(DType::S32)?)
            }
            _ => None,
        })
    }

    fn dot(
        &self,
        dims: &DotDims,
        dtype: DType,
        operands: &[Shard],
        shapes: &[&Shape],
    ) -> Result<Option<Shard>> {
        // Summands first: a product of two sums is not the sum of products.
        let mut sides = operands.to_vec();
        for side in &mut sides {
            if side.is_partial() {
                *side = Shard::replicated(self.to_replicated(side)?);
            }
        }
        let own = [
            (&dims.lhs_batch, &dims.lhs_contracting),
            (&dims.rhs_batch, &dims.rhs_contracting),
        ];
        let rank = |side: usize| shapes[side].rank();
        let free = |side: usize| -> Vec<usize> {
            (0..rank(side))
                .filter(|dim| !own[side].0.contains(dim) && !own[side].1.contains(dim))
                .collect()
        };
        for (side, other) in [(0, 1), (1, 0)] {
            let Some(found) = sides[side].spec() else {
                continue;
            };
            let index_in = |list: &[usize]| list.iter().position(|dim| *dim == found.dim);
            let with = |mine: Tensor, theirs: Tensor| match side {
                0 => mine.dot_general(&theirs, dims.clone(), dtype),
                _ => theirs.dot_general(&mine, dims.clone(), dtype),
            };
            let mine = sides[side].local.clone();
            if let Some(index) = index_in(own[side].1) {
                let theirs = found.along(own[other].1[index]);
                return Ok(partial(with(
                    mine,
                    self.to_sharded(&sides[other], theirs, shapes[other])?,
                )?));
            }
            if let Some(index) = index_in(own[side].0) {
                let theirs = found.along(own[other].0[index]);
                return Ok(sharded(
                    with(mine, self.to_sharded(&sides[other], theirs, shapes[other])?)?,
                    found.along(index),
                ));
            }
            let index = index_in(&free(side)).expect("a dimension is contracted, batched or free");
            let contracted = sides[other]
                .spec()
                .is_some_and(|theirs| own[other].1.contains(&theirs.dim));
            if contracted && side == 0 {
                // The other side's sharding gives a sum; this side is sharded along the same dimension
                // instead.
                continue;
            }
            let before = own[0].0.len() + if side == 0 { 0 } else { free(0).len() };
            let local = with(mine, self.to_replicated(&sides[other])?)?;
            return Ok(sharded(local, found.along(before + index)));
        }
        let whole = sides
            .iter()
            .map(|side| self.to_replicated(side))
            .collect::<Result<Vec<_>>>()?;
        Ok(replicated(whole[0].dot_general(
            &whole[1],
            dims.clone(),
            dtype,
        )?))
    }

    /// Values where codes are sharded; factors then lie as codes do, but along a run.
    fn dequantize(
        &self,
        of: Dequantize,
        operands: &[Shard],
        shapes: &[&Shape],
    ) -> Result<Option<Shard>> {
        let Some(found) = operands[0].spec() else {
            return Ok(None);
        };
        let factors = shapes[1];
        let is_within_runs = found.dim == factors.rank();
        let local = match operands.get(2) {
            None if is_within_runs => self.to_replicated(&operands[1])?,
            None => self.to_sharded(&operands[1], found, factors)?,
            Some(nested) => {
                let nested = self.to_replicated(nested)?;
                let own = dequantize::nested_factors(&nested, &factors.dims)?;
                let wide = factors.with_dtype(DType::F32);
                let own = self.to_sharded(&Shard::replicated(own), found, &wide)?;
                let codes = self.to_sharded(&operands[1], found, factors)?;
                dequantize::factors(&codes, &own, &nested)?
            }
        };
        Ok(sharded(operands[0].local.dequantize(of, &[&local])?, found))
    }

    fn take_rows(&self, operands: &[Shard], shapes: &[&Shape]) -> Result<Option<Shard>> {
        let Some(found) = operands[0].spec() else {
            return Ok(None);
        };
        let (table, ids) = (&operands[0].local, self.to_replicated(&operands[1])?);
        if found.dim > 0 {
            return Ok(sharded(
                table.take_rows(&ids)?,
                found.along(shapes[1].rank() + found.dim - 1),
            ));
        }
        if found.blocks > 1 {
            return Ok(None);
        }
        let rows = table.dims()[0];
        let own = self.own_ids(&ids, rows)?;
        let is_own = own
            .compare_scalar(Comparison::Ge, 0.0)?
            .and(&own.compare_scalar(Comparison::Lt, rows as f64)?)?;
        let safe = is_own.select(&own, &self.trace.full(0.0, own.shape())?)?;
        let taken = table.take_rows(&safe)?;
        let map: Vec<usize> = (0..ids.rank()).collect();
        let kept = is_own
            .broadcast_in(taken.dims(), &map)?
            .select(&taken, &self.trace.full(0.0, taken.shape())?)?;
        Ok(partial(kept))
    }

    fn scatter_add_rows(&self, node: &Recorded, operands: &[Shard]) -> Result<Option<Shard>> {
        let (shapes, rows) = (node.shapes, shard(0));
        let wanted = match operands[0].spec() {
            Some(found) => found,
            None if node.is_row_shards_gradient => rows,
            None => return Ok(None),
        };
        let ids = self.to_replicated(&operands[1])?;
        let base = self.to_sharded(&operands[0], wanted, shapes[0])?;
        if wanted == rows {
            // Ids of other replicas' rows fall outside and are not added.
            let updates = self.to_replicated(&operands[2])?;
            return Ok(sharded(
                base.scatter_add_rows(&self.own_ids(&ids, base.dims()[0])?, &updates)?,
                rows,
            ));
        }
        if wanted.dim == 1 {
            let updates = self.to_sharded(&operands[2], wanted, shapes[2])?;
            return Ok(sharded(base.scatter_add_rows(&ids, &updates)?, wanted));
        }
        Ok(None)
    }

    /// By heads, which every operand has in dimension 1 but for the mask over keys. Where replicas
    /// outnumber the key and value heads, several of them have copies of one.
    fn attention(
        &self,
        of: &Attention,
        gradient: Option<AttentionOperand>,
        operands: &[Shard],
        shapes: &[&Shape],
    ) -> Result<Option<Shard>> {
        let heads = shard(1);
        let by_heads = operands
            .iter()
            .any(|part| part.placement == Placement::Sharded(heads));
        let kv_heads = shapes[1].dims[1];
        // How many replicas share a key and value head.
        let copies = if kv_heads.is_multiple_of(self.replicas) {
            1
        } else if self.replicas.is_multiple_of(kv_heads) {
            self.replicas / kv_heads
        } else {
            return Ok(None);
        };
        if !by_heads || !self.divides(shapes[0], heads) {
            return Ok(None);
        }
        let pairs: Vec<(&Shard, &Shape)> = operands.iter().zip(shapes.iter().copied()).collect();
        let x = of.operands(&pairs, gradient.is_some());
        let x = x.expect("the shape rule has seen the operands");
        let by_head = |(part, shape): (&Shard, &Shape)| self.to_sharded(part, heads, shape);
        let of_whole = |whole: Tensor| {
            let shape = whole.shape().clone();
            self.to_sharded(&Shard::replicated(whole), heads, &shape)
        };
        let of_kv_head = |kv: (&Shard, &Shape)| match copies {
            1 => by_head(kv),
            _ => of_whole(repeat_heads(&self.to_replicated(kv.0)?, self.replicas)?),
        };
        let [q, k] = [x.q.1, x.k.1].map(|shape| &shape.dims);
        // Replicas draw the mask of all heads, of which each has its own.
        let dropped = |operand: (&Shard, &Shape)| match of.dropout {
            Some(dropout) if dropout.is_drawn => {
                let (key, dims) = (self.to_replicated(operand.0)?, [q[0], q[1], q[2], k[2]]);
                of_whole(attention_mask(&key, &dims, dropout)?)
            }
            _ => by_head(operand),
        };
        let locals = AttentionOperands {
            q: by_head(x.q)?,
            k: of_kv_head(x.k)?,
            v: of_kv_head(x.v)?,
            key_mask: x
                .key_mask
                .map(|mask| self.to_replicated(mask.0))
                .transpose()?,
            dropout: x.dropout.map(dropped).transpose()?,
            dy: x.dy.map(by_head).transpose()?,
        };
        let is_drawn = false;
        let of = Attention {
            dropout: of.dropout.map(|dropout| AttentionDropout {
                is_drawn,
                ..dropout
            }),
            ..*of
        };
        let op = match gradient {
            None => Composite::Attention(of),
            Some(operand) => Composite::AttentionGrad { of, operand },
        };
        let local = self.record(&Op::Composite(op), &locals.list())?;
        let of_kv = matches!(
            gradient,
            Some(AttentionOperand::Key | AttentionOperand::Value)
        );
        if copies > 1 && of_kv {
            let all = local.all_gather(self.groups(), 1)?;
            return Ok(replicated(sum_heads(&all, kv_heads)?));
        }
        Ok(sharded(local, shard(1)))
    }

    /// By rows, where these are sharded: `x` and gradients have them, weights do not.
    fn norm(&self, op: &Op, operands: &[Shard], shapes: &[&Shape]) -> Result<Option<Shard>> {
        let last = shapes[0].rank() - 1;
        let Some(found) = operands
            .iter()
            .find_map(Shard::spec)
            .filter(|found| found.dim < last)
        else {
            return Ok(None);
        };
        let locals = operands.iter().zip(shapes).map(|(part, shape)| {
            if shape.dims == shapes[0].dims {
                self.to_sharded(part, found, shape)
            } else {
                self.to_replicated(part)
            }
        });
        let local = self.record(op, &locals.collect::<Result<Vec<_>>>()?)?;
        Ok(match op {
            Op::Composite(Composite::NormGrad {
                operand: NormOperand::Scale | NormOperand::Shift,
                ..
            }) => partial(local),
            _ => sharded(local, found),
        })
    }
}
