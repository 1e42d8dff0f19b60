//! What the rules of every operation are written with: the result of a shape rule and the checks in
//! it (`op/checks.rs`), and what a gradient rule is given.

use crate::error::Result;
use crate::op::Op;
use crate::trace::Tensor;

pub(crate) use crate::op::checks::{Inferred, arity, expect, float, integer};

/// One step of the reverse sweep: what a node computed and the gradient that arrives at its result.
pub(crate) struct Vjp<'a> {
    /// What the node computes.
    pub op: &'a Op,
    /// The node's operands.
    pub operands: &'a [Tensor],
    /// The node's result.
    pub output: &'a Tensor,
    /// The gradient of the loss with respect to `output`, of its shape.
    pub dy: &'a Tensor,
    /// Which operands lead to something that gradients are wanted for.
    pub wanted: &'a [bool],
}

impl Vjp<'_> {
    /// The rule's result for one operand, computed only if it is wanted.
    pub fn when(
        &self,
        operand: usize,
        rule: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        if self.wanted[operand] {
            rule().map(Some)
        } else {
            Ok(None)
        }
    }
}
