//! What the rules of every operation are written with: the result of a shape rule and the checks in
//! it, and what a gradient rule is given.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::Tensor;

/// What a shape rule gives: the result's shape, or a sentence that says what is wrong with the
/// operands.
pub(crate) type Inferred = std::result::Result<Shape, String>;

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

/// Refuses another number of operands.
pub(crate) fn arity(operands: &[&Shape], n: usize) -> std::result::Result<(), String> {
    match operands.len() {
        found if found == n => Ok(()),
        found => Err(format!("takes {n} operands, got {found}")),
    }
}

/// Refuses anything but a float type.
pub(crate) fn float(shape: &Shape) -> std::result::Result<(), String> {
    if shape.dtype.is_float() {
        Ok(())
    } else {
        Err(format!("needs a float type, got {}", shape.dtype))
    }
}

/// Refuses anything but an integer type.
pub(crate) fn integer(shape: &Shape) -> std::result::Result<(), String> {
    if shape.dtype.is_integer() {
        Ok(())
    } else {
        Err(format!("needs an integer type, got {}", shape.dtype))
    }
}

/// Refuses anything but the given shape.
pub(crate) fn expect(
    what: &str,
    found: &Shape,
    dtype: DType,
    dims: &[usize],
) -> std::result::Result<(), String> {
    let expected = Shape::new(dtype, dims);
    if *found == expected {
        Ok(())
    } else {
        Err(format!("{what} must be {expected}, got {found}"))
    }
}
