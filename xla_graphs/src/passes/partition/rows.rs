//! Sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
//! Transformer Models", section 4.2.2): between one sharded matmul and the next, activations
//! `[N, C]` are sharded along their rows, so that each replica computes and keeps norms, dropout and
//! residuals of its own tokens only.
//!
//! Where a partial sum would be all-reduced, it is reduce-scattered, so that each replica gets its
//! own rows of the sum; where a matmul with a sharded matrix needs all rows, they are all-gathered.
//! The two exchange as many bytes as the sum did. What was gathered in
//! the forward pass is not kept for the backward pass but gathered again there: one
//! all-gather more for each matmul.

use super::partitioner::Partitioner;
use super::shard::{Placement, Recorded, Shard, ShardSpec, shard};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Binary, Op, Unary};
use crate::provenance::Phase;
use crate::trace::Tensor;

const ROWS: ShardSpec = shard(0);

impl Partitioner<'_> {
    /// The operands as sequence parallelism has them for this node; without it, as they are.
    pub(super) fn by_rows(&self, node: &Recorded, mut operands: Vec<Shard>) -> Result<Vec<Shard>> {
        if needs_sums(node.op, &operands) {
            let each = operands
                .iter_mut()
                .zip(node.shapes)
                .zip(node.has_token_rows);
            for ((part, shape), has_rows) in each {
                if part.is_partial() && *has_rows {
                    *part = Shard::sharded(self.to_sharded(part, ROWS, shape)?, ROWS);
                }
            }
        }
        if let Op::Dot { .. } = node.op {
            let is_sharded_by_rows = [0, 1].map(|side| {
                operands[side].placement == Placement::Sharded(ROWS) && node.has_token_rows[side]
            });
            for (side, other) in [(0, 1), (1, 0)] {
                if is_sharded_by_rows[side]
                    && !is_sharded_by_rows[other]
                    && operands[other].spec().is_some()
                {
                    let local =
                        self.all_rows(&operands[side], &operands[other].local, node.phase)?;
                    operands[side] = Shard::replicated(local);
                }
            }
        }
        Ok(operands)
    }

    /// All rows of a value, for a matmul of `phase`; in the backward pass, if the forward pass had
    /// them, gathered again, once `factor` is there.
    fn all_rows(&self, part: &Shard, factor: &Tensor, phase: Phase) -> Result<Tensor> {
        let of_forward = !part.local.node().provenance.phase.is_backward();
        if !(of_forward && phase.is_backward()) {
            return self.to_replicated(part);
        }
        let id = part.local.id();
        if let Some(known) = self.gathered_again.borrow().get(&id) {
            return Ok(known.clone());
        }
        let again = part
            .local
            .after(factor)?
            .all_gather(self.groups(), ROWS.dim)?;
        self.gathered_again.borrow_mut().insert(id, again.clone());
        Ok(again)
    }
}

/// Whether a conversion to `to` rounds. Of a sum each summand is rounded then, as a product in 16
/// bits rounds its own, and fewer bytes are exchanged.
pub(super) fn narrows(to: DType, from: DType) -> bool {
    to.is_float() && from.is_float() && to.size() < from.size()
}

/// Whether an operation needs what its operands are summands of; sums, factors and what only moves
/// elements do not.
fn needs_sums(op: &Op, operands: &[Shard]) -> bool {
    let placements = || operands.iter().map(|part| part.placement);
    match op {
        Op::Unary(Unary::Neg)
        | Op::Reshape(_)
        | Op::Broadcast { .. }
        | Op::Transpose(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::BarrierAfter => false,
        Op::Convert(dtype) => !narrows(*dtype, operands[0].local.dtype()),
        Op::Binary(Binary::Add | Binary::Sub) => {
            placements().any(|placement| placement != Placement::Partial)
        }
        Op::Binary(Binary::Mul | Binary::Div) => {
            placements().any(|placement| matches!(placement, Placement::Sharded(_)))
        }
        _ => true,
    }
}
