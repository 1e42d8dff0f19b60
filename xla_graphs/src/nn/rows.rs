//! Embedding lookups and their gradients for targets that index badly: indices kept inside the
//! table, sums instead of scatter.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, DotDims};
use crate::trace::Tensor;

/// The rows that `ids` name, with ids outside the table moved to its edge first: an accelerator may
/// stop at one, and XLA's own gather moves them to the same place.
pub(crate) fn take(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let last = table.dims()[0].saturating_sub(1) as f64;
    table.take_rows(&ids.max_scalar(0.0)?.min_scalar(last)?)
}

/// `base` plus the product of the one-hot ids, turned, with `updates`: what a scatter would add, as
/// a matrix product. Ids outside the table match no row.
pub(crate) fn add(base: &Tensor, ids: &Tensor, updates: &Tensor) -> Result<Tensor> {
    let (rows, count) = (base.dims()[0], ids.dims()[0]);
    let row = base.trace().iota(DType::S32, &[count, rows], 1)?;
    let one_hot = row
        .compare(Comparison::Eq, &ids.convert(DType::S32)?.keep_last()?)?
        .convert(updates.dtype())?;
    let dims = DotDims {
        lhs_contracting: vec![0],
        rhs_contracting: vec![0],
        ..Default::default()
    };
    base.add(&one_hot.dot_general(updates, dims, base.dtype())?)
}
