//! What shape rules are written with: what they give, and the checks in them.

use crate::dtype::DType;
use crate::shape::Shape;

/// What a shape rule gives: the result's shape, or a sentence that says what is wrong with the
/// operands.
pub(crate) type Inferred = Result<Shape, String>;

/// Refuses another number of operands.
pub(crate) fn arity(operands: &[&Shape], n: usize) -> Result<(), String> {
    match operands.len() {
        found if found == n => Ok(()),
        found => Err(format!("takes {n} operands, got {found}")),
    }
}

/// Refuses anything but a float type.
pub(crate) fn float(shape: &Shape) -> Result<(), String> {
    if shape.dtype.is_float() {
        Ok(())
    } else {
        Err(format!("needs a float type, got {}", shape.dtype))
    }
}

/// Refuses anything but an integer type.
pub(crate) fn integer(shape: &Shape) -> Result<(), String> {
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
) -> Result<(), String> {
    let expected = Shape::new(dtype, dims);
    if *found == expected {
        Ok(())
    } else {
        Err(format!("{what} must be {expected}, got {found}"))
    }
}

/// Refuses anything but a key of random words, `u32[2]` or `u32[3]`.
pub(crate) fn random_key(key: &Shape) -> Result<(), String> {
    let words = if key.elements() == 3 { 3 } else { 2 };
    expect("the key", key, DType::U32, &[words])
}
