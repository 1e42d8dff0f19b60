//! Reductions over chosen dimensions.

use super::rule::{Inferred, Vjp};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, Op, Reduction};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn infer(x: &Shape, kind: Reduction, dims: &[usize]) -> Inferred {
    if x.dtype == DType::Pred && kind == Reduction::Sum {
        return Err("pred has no sum; convert to an integer type first".into());
    }
    if !dims.windows(2).all(|w| w[0] < w[1]) || dims.iter().any(|&d| d >= x.rank()) {
        return Err(format!("{dims:?} are not increasing dimensions of {x}"));
    }
    let kept: Vec<usize> = (0..x.rank())
        .filter(|d| !dims.contains(d))
        .map(|d| x.dims[d])
        .collect();
    Ok(Shape::new(x.dtype, kept))
}

pub(super) fn vjp(v: &Vjp, kind: Reduction, dims: &[usize]) -> Result<Vec<Option<Tensor>>> {
    let x = &v.operands[0];
    let spread = |t: &Tensor| t.broadcast_in(x.dims(), &kept_dims(x.rank(), dims));
    let dx = match kind {
        Reduction::Sum => spread(v.dy)?,
        // The gradient goes to the extreme elements, shared equally among ties.
        Reduction::Max | Reduction::Min => {
            let chosen = x.compare(Comparison::Eq, &spread(v.output)?)?;
            let zero = x.trace().full(0.0, x.shape())?;
            let one = x.trace().full(1.0, x.shape())?;
            let ties = chosen.select(&one, &zero)?.sum(dims)?;
            chosen.select(&spread(&v.dy.div(&ties)?)?, &zero)?
        }
    };
    Ok(vec![Some(dx)])
}

fn kept_dims(rank: usize, reduced: &[usize]) -> Vec<usize> {
    (0..rank).filter(|d| !reduced.contains(d)).collect()
}

/// Reductions over `dims`, in increasing order; the result has no such dimensions unless the name
/// says `keep`. No dimensions: the tensor itself.
impl Tensor {
    #[track_caller]
    fn reduce(&self, kind: Reduction, dims: &[usize]) -> Result<Tensor> {
        if dims.is_empty() {
            Ok(self.clone())
        } else {
            self.apply(
                Op::Reduce {
                    kind,
                    dims: dims.to_vec(),
                },
                &[],
            )
        }
    }

    /// The sum over `dims`.
    ///
    /// # Errors
    /// If `dims` do not rise, or one does not exist.
    #[track_caller]
    pub fn sum(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Sum, dims)
    }

    /// The largest element over `dims`.
    ///
    /// # Errors
    /// If `dims` do not rise, or one does not exist.
    #[track_caller]
    pub fn max(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Max, dims)
    }

    /// The smallest element over `dims`.
    ///
    /// # Errors
    /// If `dims` do not rise, or one does not exist.
    #[track_caller]
    pub fn min(&self, dims: &[usize]) -> Result<Tensor> {
        self.reduce(Reduction::Min, dims)
    }

    /// The sum of all elements.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    #[track_caller]
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// The mean over the last dimension, which stays with size 1.
    ///
    /// # Errors
    /// If this is a scalar.
    #[track_caller]
    pub fn mean_last_keep(&self) -> Result<Tensor> {
        // The shape rule refuses dimension 0 of a scalar.
        let last = self.rank().saturating_sub(1);
        let sum = self.sum(&[last])?;
        sum.mul_scalar(1.0 / self.dims()[last] as f64)?.keep_last()
    }

    /// A size-1 dimension at the end.
    ///
    /// # Errors
    /// As [`Tensor::reshape`].
    #[track_caller]
    pub fn keep_last(&self) -> Result<Tensor> {
        let mut dims = self.dims().to_vec();
        dims.push(1);
        self.reshape(&dims)
    }
}
