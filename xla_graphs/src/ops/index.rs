//! Rows chosen by integer ids: embedding lookups and their gradient. Ids outside the table are
//! clamped to it when read and ignored when added, as XLA's gather and scatter do; callers check
//! ids on the host.

use super::rule::{Inferred, Vjp, expect, integer};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::Op;
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn infer_take(table: &Shape, ids: &Shape) -> Inferred {
    integer(ids)?;
    if table.rank() == 0 {
        return Err("the table has no rows".into());
    }
    let mut dims = ids.dims.clone();
    dims.extend(&table.dims[1..]);
    Ok(Shape::new(table.dtype, dims))
}

pub(super) fn infer_scatter(base: &Shape, ids: &Shape, updates: &Shape) -> Inferred {
    integer(ids)?;
    if base.rank() != 2 || ids.rank() != 1 {
        return Err(format!(
            "needs a base [V, C] and ids [N], got {base} and {ids}"
        ));
    }
    expect(
        "the updates",
        updates,
        base.dtype,
        &[ids.dims[0], base.dims[1]],
    )?;
    Ok(base.clone())
}

pub(super) fn infer_dynamic_slice(operands: &[&Shape], dim: usize, size: usize) -> Inferred {
    let (x, start) = (operands[0], operands[1]);
    expect("the start", start, DType::S32, &[])?;
    let mut dims = x.dims.clone();
    match dims.get_mut(dim) {
        Some(whole) if size <= *whole => *whole = size,
        _ => return Err(format!("{size} elements along dimension {dim} of {x}")),
    }
    Ok(Shape::new(x.dtype, dims))
}

pub(super) fn infer_dynamic_update_slice(operands: &[&Shape], dim: usize) -> Inferred {
    let (x, update, start) = (operands[0], operands[1], operands[2]);
    expect("the start", start, DType::S32, &[])?;
    let size = match (x.dims.get(dim), update.dims.get(dim)) {
        (Some(whole), Some(size)) if size <= whole => *size,
        _ => {
            return Err(format!(
                "{update} has no place along dimension {dim} of {x}"
            ));
        }
    };
    let mut dims = x.dims.clone();
    dims[dim] = size;
    expect("the update", update, x.dtype, &dims)?;
    Ok(x.clone())
}

pub(super) fn vjp_take(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    let (table, ids) = (&v.operands[0], &v.operands[1]);
    let dtable = v.when(0, || {
        let rows = ids.shape().elements();
        let width: usize = table.dims()[1..].iter().product();
        let zero = table
            .trace()
            .full(0.0, &Shape::new(table.dtype(), [table.dims()[0], width]))?;
        zero.scatter_add_rows(&ids.reshape(&[rows])?, &v.dy.reshape(&[rows, width])?)?
            .reshape(table.dims())
    })?;
    Ok(vec![dtable, None])
}

pub(super) fn vjp_scatter(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    let ids = &v.operands[1];
    Ok(vec![
        Some(v.dy.clone()),
        None,
        v.when(2, || v.dy.take_rows(ids))?,
    ])
}

impl Tensor {
    /// `size` elements along `dim`, starting at `start` (`s32[]`, clamped).
    ///
    /// # Errors
    /// If there is no dimension `dim`, it is shorter than `size`, or `start` is no `s32[]`.
    #[track_caller]
    pub fn dynamic_slice(&self, start: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
        self.apply(Op::DynamicSlice { dim, size }, &[start])
    }

    /// This tensor with `update`, which is as large but for `dim`, in the place of its elements
    /// along `dim` from `start` on (`s32[]`, clamped). Has no gradient.
    ///
    /// # Errors
    /// If the shapes or types do not match.
    #[track_caller]
    pub fn dynamic_update_slice(
        &self,
        update: &Tensor,
        start: &Tensor,
        dim: usize,
    ) -> Result<Tensor> {
        self.apply(Op::DynamicUpdateSlice { dim }, &[update, start])
    }

    /// The rows of this table `[V, ...]` that `ids` `[...]` name: `[ids..., ...]`.
    ///
    /// # Errors
    /// If `ids` are no integers, or the table has no dimensions.
    #[track_caller]
    pub fn take_rows(&self, ids: &Tensor) -> Result<Tensor> {
        self.apply(Op::TakeRows, &[ids])
    }

    /// This tensor `[V, C]` with `updates` `[N, C]` added to the rows `ids` `[N]`; equal ids add
    /// up.
    ///
    /// # Errors
    /// If the shapes are others, `ids` are no integers, or the element types differ.
    #[track_caller]
    pub fn scatter_add_rows(&self, ids: &Tensor, updates: &Tensor) -> Result<Tensor> {
        self.apply(Op::ScatterAddRows, &[ids, updates])
    }
}
