//! Clipping by the global norm, as `torch.nn.utils.clip_grad_norm_`.

use crate::dtype::DType;
use crate::error::Result;
use crate::trace::Tensor;

/// The L2 norm of all gradients together, `f32[]`.
///
/// # Errors
/// If the graph refuses an operation.
pub fn global_norm(grads: &[Tensor]) -> Result<Tensor> {
    sum_of_squares(grads)?
        .expect("a model has at least one parameter")
        .sqrt()
}

/// The sum of the squares of all elements, `f32[]`; `None` of nothing.
///
/// # Errors
/// If the graph refuses an operation.
pub fn sum_of_squares(grads: &[Tensor]) -> Result<Option<Tensor>> {
    let mut total: Option<Tensor> = None;
    for grad in grads {
        let grad = grad.convert(DType::F32)?;
        let sum = rows_first(&grad.mul(&grad)?)?;
        total = Some(match total {
            Some(total) => total.add(&sum)?,
            None => sum,
        });
    }
    Ok(total)
}

/// The sum of all elements. Rows first: the partial sums are short, which keeps them exact and lets
/// XLA's CPU share the rows between threads.
pub(super) fn rows_first(x: &Tensor) -> Result<Tensor> {
    match x.rank() {
        0 | 1 => x.sum_all(),
        rank => x.sum(&[rank - 1])?.sum_all(),
    }
}

/// `min(1, max_norm / (norm + 1e-6))`: the factor on every gradient.
///
/// # Errors
/// If the graph refuses an operation.
pub fn clip_factor(norm: &Tensor, max_norm: f64) -> Result<Tensor> {
    let limit = norm.trace().constant(max_norm, norm.dtype())?;
    limit.div(&norm.add_scalar(1e-6)?)?.min_scalar(1.0)
}
