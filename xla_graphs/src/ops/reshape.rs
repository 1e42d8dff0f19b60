//! Operations that move or repeat elements without changing them.

use super::rule::{Inferred, Vjp};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn infer_reshape(x: &Shape, dims: &[usize]) -> Inferred {
    let result = Shape::new(x.dtype, dims);
    if result.elements() == x.elements() {
        Ok(result)
    } else {
        Err(format!(
            "{x} has {} elements, {result} has {}",
            x.elements(),
            result.elements()
        ))
    }
}

pub(super) fn infer_broadcast(x: &Shape, dims: &[usize], map: &[usize]) -> Inferred {
    let increasing = map.windows(2).all(|w| w[0] < w[1]);
    if map.len() != x.rank() || !increasing || map.iter().any(|&d| d >= dims.len()) {
        return Err(format!(
            "dimension map {map:?} does not place {x} in {dims:?}"
        ));
    }
    for (i, &d) in map.iter().enumerate() {
        if x.dims[i] != 1 && x.dims[i] != dims[d] {
            return Err(format!(
                "dimension {i} of {x} cannot become {} of {dims:?}",
                dims[d]
            ));
        }
    }
    Ok(Shape::new(x.dtype, dims))
}

pub(super) fn infer_transpose(x: &Shape, perm: &[usize]) -> Inferred {
    let mut seen = vec![false; x.rank()];
    for &p in perm {
        match seen.get_mut(p) {
            Some(seen) if !*seen => *seen = true,
            _ => {
                return Err(format!(
                    "{perm:?} is not a permutation of {} dimensions",
                    x.rank()
                ));
            }
        }
    }
    if perm.len() != x.rank() {
        return Err(format!(
            "{perm:?} is not a permutation of {} dimensions",
            x.rank()
        ));
    }
    Ok(Shape::new(
        x.dtype,
        perm.iter().map(|&p| x.dims[p]).collect::<Vec<_>>(),
    ))
}

pub(super) fn infer_slice(x: &Shape, starts: &[usize], limits: &[usize]) -> Inferred {
    if starts.len() != x.rank() || limits.len() != x.rank() {
        return Err(format!("needs {} starts and limits", x.rank()));
    }
    for i in 0..x.rank() {
        if starts[i] > limits[i] || limits[i] > x.dims[i] {
            return Err(format!(
                "{}..{} is outside dimension {i} of {x}",
                starts[i], limits[i]
            ));
        }
    }
    Ok(Shape::new(
        x.dtype,
        (0..x.rank())
            .map(|i| limits[i] - starts[i])
            .collect::<Vec<_>>(),
    ))
}

pub(super) fn infer_concat(operands: &[&Shape], dim: usize) -> Inferred {
    let first = operands.first().ok_or("needs at least one operand")?;
    if dim >= first.rank() {
        return Err(format!("dimension {dim} of rank {}", first.rank()));
    }
    let mut result = (*first).clone();
    for x in &operands[1..] {
        let fits = x.dtype == first.dtype
            && x.rank() == first.rank()
            && (0..x.rank()).all(|i| i == dim || x.dims[i] == first.dims[i]);
        if !fits {
            return Err(format!("{x} does not fit {first} outside dimension {dim}"));
        }
        result.dims[dim] += x.dims[dim];
    }
    Ok(result)
}

pub(super) fn infer_pad(x: &Shape, low: &[usize], high: &[usize]) -> Inferred {
    if low.len() == x.rank() && high.len() == x.rank() {
        Ok(Shape::new(
            x.dtype,
            (0..x.rank())
                .map(|i| low[i] + x.dims[i] + high[i])
                .collect::<Vec<_>>(),
        ))
    } else {
        Err(format!("needs {} low and high amounts", x.rank()))
    }
}

pub(super) fn vjp_reshape(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![Some(v.dy.reshape(v.operands[0].dims())?)])
}

pub(super) fn vjp_broadcast(v: &Vjp, map: &[usize]) -> Result<Vec<Option<Tensor>>> {
    let x = &v.operands[0];
    // Every result dimension that repeats an element is summed over.
    let summed: Vec<usize> = (0..v.dy.rank())
        .filter(|d| match map.iter().position(|m| m == d) {
            Some(i) => x.dims()[i] == 1 && v.dy.dims()[*d] != 1,
            None => true,
        })
        .collect();
    Ok(vec![Some(v.dy.sum(&summed)?.reshape(x.dims())?)])
}

pub(super) fn vjp_transpose(v: &Vjp, perm: &[usize]) -> Result<Vec<Option<Tensor>>> {
    let mut inverse = vec![0; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        inverse[p] = i;
    }
    Ok(vec![Some(v.dy.transpose(&inverse)?)])
}

pub(super) fn vjp_slice(
    v: &Vjp,
    starts: &[usize],
    limits: &[usize],
) -> Result<Vec<Option<Tensor>>> {
    let high: Vec<usize> = v.operands[0]
        .dims()
        .iter()
        .zip(limits)
        .map(|(d, l)| d - l)
        .collect();
    Ok(vec![Some(v.dy.pad(starts, &high)?)])
}

pub(super) fn vjp_concat(v: &Vjp, dim: usize) -> Result<Vec<Option<Tensor>>> {
    let mut start = 0;
    let mut grads = Vec::with_capacity(v.operands.len());
    for (i, x) in v.operands.iter().enumerate() {
        let limit = start + x.dims()[dim];
        grads.push(v.when(i, || v.dy.slice_dim(dim, start, limit))?);
        start = limit;
    }
    Ok(grads)
}

pub(super) fn vjp_pad(v: &Vjp, low: &[usize]) -> Result<Vec<Option<Tensor>>> {
    let limits: Vec<usize> = low
        .iter()
        .zip(v.operands[0].dims())
        .map(|(l, d)| l + d)
        .collect();
    Ok(vec![Some(v.dy.slice(low, &limits)?)])
}

impl Tensor {
    /// The same elements in row-major order, in another shape.
    ///
    /// # Errors
    /// If `dims` has another number of elements.
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        if self.dims() == dims {
            Ok(self.clone())
        } else {
            self.apply(Op::Reshape(dims.to_vec()), &[])
        }
    }

    /// NumPy's broadcast: missing leading dimensions are added, size-1 dimensions repeat.
    ///
    /// # Errors
    /// If a dimension is neither 1 nor the wanted one, or there are more than wanted.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Result<Tensor> {
        if self.dims() == dims {
            return Ok(self.clone());
        }
        // A rank that is too high leaves the map out of range, which the shape rule reports.
        let offset = dims.len().saturating_sub(self.rank());
        self.broadcast_in(
            dims,
            &(0..self.rank()).map(|i| i + offset).collect::<Vec<_>>(),
        )
    }

    /// Dimension i becomes dimension `map[i]` of the result.
    ///
    /// # Errors
    /// If `map` does not rise or names no dimension of the result, or a dimension is neither 1 nor
    /// the result's.
    #[track_caller]
    pub fn broadcast_in(&self, dims: &[usize], map: &[usize]) -> Result<Tensor> {
        self.apply(
            Op::Broadcast {
                dims: dims.to_vec(),
                map: map.to_vec(),
            },
            &[],
        )
    }

    /// Dimension i of the result is dimension `perm[i]` of this tensor.
    ///
    /// # Errors
    /// If `perm` is no permutation of the dimensions.
    #[track_caller]
    pub fn transpose(&self, perm: &[usize]) -> Result<Tensor> {
        if perm.iter().enumerate().all(|(i, &p)| i == p) && perm.len() == self.rank() {
            return Ok(self.clone());
        }
        self.apply(Op::Transpose(perm.to_vec()), &[])
    }

    /// `starts[i]..limits[i]` of each dimension i.
    ///
    /// # Errors
    /// If a range is outside of its dimension.
    #[track_caller]
    pub fn slice(&self, starts: &[usize], limits: &[usize]) -> Result<Tensor> {
        self.apply(
            Op::Slice {
                starts: starts.to_vec(),
                limits: limits.to_vec(),
            },
            &[],
        )
    }

    /// `start..limit` of one dimension, all of the others.
    ///
    /// # Errors
    /// If there is no dimension `dim`, or the range is outside of it.
    #[track_caller]
    pub fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> Result<Tensor> {
        if dim >= self.rank() {
            let message = format!("there is no dimension {dim}");
            return Err(Error::shape("slice", "", &[self.shape()], message));
        }
        let mut starts = vec![0; self.rank()];
        let mut limits = self.dims().to_vec();
        starts[dim] = start;
        limits[dim] = limit;
        self.slice(&starts, &limits)
    }

    /// The tensors one after the other along `dim`.
    ///
    /// # Errors
    /// If there is none, or their types or other dimensions differ.
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
        match tensors {
            [first, rest @ ..] => first.apply(Op::Concat { dim }, rest),
            [] => Err(Error::shape(
                "concat",
                "",
                &[],
                "needs at least one operand".into(),
            )),
        }
    }

    /// Zeros around the tensor.
    ///
    /// # Errors
    /// If `low` or `high` has not one number for each dimension.
    #[track_caller]
    pub fn pad(&self, low: &[usize], high: &[usize]) -> Result<Tensor> {
        self.apply(
            Op::Pad {
                low: low.to_vec(),
                high: high.to_vec(),
            },
            &[],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Trace};

    #[test]
    fn what_does_not_exist_is_an_error() {
        let x = Trace::new()
            .full(1.0, &Shape::new(DType::F32, [2, 3]))
            .unwrap();
        let message = |result: Result<Tensor>| result.unwrap_err().to_string();
        let nothing = message(Tensor::concat(&[], 0));
        assert!(
            nothing.starts_with("concat in the step: needs at least one operand; operands none")
                && nothing.contains("reshape.rs"),
            "{nothing}"
        );
        let no_dimension = message(x.slice_dim(2, 0, 1));
        assert!(
            no_dimension.contains("there is no dimension 2; operands f32[2,3]"),
            "{no_dimension}"
        );
        let outside = message(x.slice_dim(1, 2, 4));
        assert!(outside.contains("2..4 is outside dimension 1"), "{outside}");
        let scalar = x.sum_all().unwrap();
        let mean = message(scalar.mean_last_keep());
        assert!(
            mean.contains("[0] are not increasing dimensions of f32[]"),
            "{mean}"
        );
    }
}
