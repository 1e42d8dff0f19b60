//! Functions that some compilers lack, written with those that all have.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::Comparison;
use crate::shape::Shape;
use crate::trace::Tensor;

/// Coefficients of Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: absolute
/// error below 1.5e-7.
const P: f64 = 0.327_591_1;
const A: [f64; 5] = [
    0.254_829_592,
    -0.284_496_736,
    1.421_413_741,
    -1.453_152_027,
    1.061_405_429,
];

/// The error function: `sign(x) (1 - (a1 t + ... + a5 t^5) exp(-x^2))` with `t = 1 / (1 + p |x|)`.
pub(crate) fn erf(x: &Tensor) -> Result<Tensor> {
    let one = x.trace().full(1.0, x.shape())?;
    let t = one.div(&x.abs()?.mul_scalar(P)?.add_scalar(1.0)?)?;
    let mut sum = t.mul_scalar(A[4])?;
    for a in A[..4].iter().rev() {
        sum = sum.add_scalar(*a)?.mul(&t)?;
    }
    let tail = sum.mul(&x.mul(x)?.neg()?.exp()?)?;
    x.sign()?.mul(&one.sub(&tail)?)
}

/// Infinity is above the largest number, and NaN compares with nothing.
pub(crate) fn is_finite(x: &Tensor) -> Result<Tensor> {
    x.abs()?.compare_scalar(Comparison::Lt, f64::INFINITY)
}

/// [`Tensor::after`] without a barrier: `x`, unless an element of `other` is above infinity. None
/// is, but no compiler knows.
pub(crate) fn after(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    if !other.dtype().is_float() || other.shape().elements() == 0 {
        return Ok(x.clone());
    }
    let element = other
        .slice(&vec![0; other.rank()], &vec![1; other.rank()])?
        .reshape(&[])?;
    let never = element.compare_scalar(Comparison::Gt, f64::INFINITY)?;
    never.select(&x.trace().full(0.0, x.shape())?, x)
}

/// [`Tensor::dynamic_slice`] of one of the equal parts of a dimension without indices: all parts
/// but that one become zeros, and the sum over the parts is it. What is no float or predicate, or
/// does not divide, is sliced as it is.
pub(crate) fn dynamic_slice(x: &Tensor, start: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
    let is_predicate = x.dtype() == DType::Pred;
    if !(x.dtype().is_float() || is_predicate) || size == 0 || !x.dims()[dim].is_multiple_of(size) {
        return x.dynamic_slice(start, dim, size);
    }
    let values = if is_predicate {
        x.convert(DType::F32)?
    } else {
        x.clone()
    };
    let mut apart = x.dims()[..dim].to_vec();
    apart.extend([x.dims()[dim] / size, size]);
    apart.extend(&x.dims()[dim + 1..]);
    let starts = x
        .trace()
        .iota(DType::S32, &apart, dim)?
        .mul_scalar(size as f64)?;
    let is_wanted = starts.compare(Comparison::Eq, &start.broadcast_to(&apart)?)?;
    let zeros = x
        .trace()
        .full(0.0, &Shape::new(values.dtype(), apart.clone()))?;
    let part = is_wanted
        .select(&values.reshape(&apart)?, &zeros)?
        .sum(&[dim])?;
    if is_predicate {
        part.compare_scalar(Comparison::Gt, 0.5)
    } else {
        Ok(part)
    }
}

/// [`Tensor::dynamic_update_slice`] of one element along `dim` without indices: a choice between
/// old and new everywhere. More elements are updated as they are.
pub(crate) fn dynamic_update_slice(
    x: &Tensor,
    update: &Tensor,
    start: &Tensor,
    dim: usize,
) -> Result<Tensor> {
    if update.dims()[dim] != 1 {
        return x.dynamic_update_slice(update, start, dim);
    }
    let bound = |value: f64| x.trace().constant(value, DType::S32);
    let (first, last) = (bound(0.0)?, bound((x.dims()[dim] - 1) as f64)?);
    let start = start.compare(Comparison::Gt, &last)?.select(&last, start)?;
    let start = start
        .compare(Comparison::Lt, &first)?
        .select(&first, &start)?;
    let is_there = x
        .trace()
        .iota(DType::S32, x.dims(), dim)?
        .compare(Comparison::Eq, &start.broadcast_to(x.dims())?)?;
    let dims: Vec<usize> = (0..x.rank()).collect();
    is_there.select(&update.broadcast_in(x.dims(), &dims)?, x)
}
