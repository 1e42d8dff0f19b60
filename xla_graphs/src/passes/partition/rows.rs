//! Sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
//! Transformer Models", section 4.2.2): between one divided product and the next, activations
//! `[N, C]` are cut along their rows, so that each replica computes and keeps norms, dropout and
//! residuals of its own tokens only.
//!
//! Where a partial sum would be made whole (all-reduce), each replica gets the rows of it that are
//! its own (reduce-scatter); where a product with a divided matrix needs all rows, they are put
//! together (all-gather). The two exchange as many bytes as the sum did. What was gathered in
//! the forward pass is not kept for the backward pass but gathered again there: one
//! all-gather more for each product.

use super::rules::narrows;
use super::{Cut, Partitioner, Placement, Recorded, Shard};
use crate::error::Result;
use crate::op::{Binary, Composite, Op, Unary};
use crate::provenance::Phase;
use crate::shape::Shape;
use crate::trace::Tensor;

const ROWS: Cut = Cut { dim: 0, blocks: 1 };

impl Partitioner<'_> {
    /// The operands as sequence parallelism has them for this node; without it, as they are. In an
    /// update, what has as many rows is a weight's by chance.
    pub(super) fn by_rows(&self, node: &Recorded, mut operands: Vec<Shard>) -> Result<Vec<Shard>> {
        let is_activation =
            node.phase != Phase::Update && *node.op != Op::Composite(Composite::MasterGradient);
        let Some(rows) = self.partition.rows.filter(|_| is_activation) else {
            return Ok(operands);
        };
        let has_rows =
            |shape: &Shape| shape.rank() == 2 && shape.dims[0] == rows && shape.dtype.is_float();
        if needs_sums(node.op, &operands) {
            for (part, shape) in operands.iter_mut().zip(node.shapes) {
                if part.placement == Placement::Partial && has_rows(shape) {
                    *part = Shard {
                        local: self.cut(part, ROWS, shape)?,
                        placement: Placement::Sharded(ROWS),
                    };
                }
            }
        }
        if let Op::Dot { .. } = node.op {
            let is_cut_by_rows = [0, 1].map(|side| {
                operands[side].placement == Placement::Sharded(ROWS)
                    && node.of_batch[side]
                    && has_rows(node.shapes[side])
            });
            for (side, other) in [(0, 1), (1, 0)] {
                if is_cut_by_rows[side]
                    && !is_cut_by_rows[other]
                    && operands[other].the_cut().is_some()
                {
                    let local =
                        self.all_rows(&operands[side], &operands[other].local, node.phase)?;
                    operands[side] = Shard {
                        local,
                        placement: Placement::Replicated,
                    };
                }
            }
        }
        Ok(operands)
    }

    /// All rows of a value, for a product of `phase`; in the backward pass, if the forward pass had
    /// them, once more, when `factor` is there.
    fn all_rows(&self, part: &Shard, factor: &Tensor, phase: Phase) -> Result<Tensor> {
        let of_forward = !part.local.node().provenance.phase.is_backward();
        if !(of_forward && phase.is_backward()) {
            return self.whole(part);
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
