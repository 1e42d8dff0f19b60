//! General dot products (XLA's DotGeneral): batch dimensions lead the result, then the free ones of
//! each side.

use super::rule::{Inferred, Vjp, float};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{DotDims, Op};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn infer(a: &Shape, b: &Shape, d: &DotDims, dtype: DType) -> Inferred {
    float(a)?;
    if a.dtype != b.dtype {
        return Err(format!("element types differ: {} and {}", a.dtype, b.dtype));
    }
    let pairs = [
        (&d.lhs_contracting, &d.rhs_contracting, "contracting"),
        (&d.lhs_batch, &d.rhs_batch, "batch"),
    ];
    for (left, right, what) in pairs {
        if left.len() != right.len() {
            return Err(format!("{what} dimensions differ in number"));
        }
        for (&l, &r) in left.iter().zip(right) {
            if l >= a.rank() || r >= b.rank() {
                return Err(format!("{what} dimension {l} or {r} does not exist"));
            }
            if a.dims[l] != b.dims[r] {
                return Err(format!(
                    "{what} dimensions differ: {} and {}",
                    a.dims[l], b.dims[r]
                ));
            }
        }
    }
    let mut dims: Vec<usize> = d.lhs_batch.iter().map(|&i| a.dims[i]).collect();
    dims.extend(
        free(a.rank(), &d.lhs_contracting, &d.lhs_batch)
            .iter()
            .map(|&i| a.dims[i]),
    );
    dims.extend(
        free(b.rank(), &d.rhs_contracting, &d.rhs_batch)
            .iter()
            .map(|&i| b.dims[i]),
    );
    Ok(Shape::new(dtype, dims))
}

fn free(rank: usize, contracting: &[usize], batch: &[usize]) -> Vec<usize> {
    (0..rank)
        .filter(|i| !contracting.contains(i) && !batch.contains(i))
        .collect()
}

pub(super) fn vjp(v: &Vjp, d: &DotDims) -> Result<Vec<Option<Tensor>>> {
    let (a, b) = (&v.operands[0], &v.operands[1]);
    let a_free = free(a.rank(), &d.lhs_contracting, &d.lhs_batch);
    let b_free = free(b.rank(), &d.rhs_contracting, &d.rhs_batch);
    let batch = d.lhs_batch.len();
    // The result may be wider than the operands (bf16 products accumulated in f32); their gradients
    // are of their own type.
    let dy = &v.dy.convert(a.dtype())?;
    // In dy: batch dimensions first, then those of a, then those of b.
    let dy_batch: Vec<usize> = (0..batch).collect();
    let dy_a: Vec<usize> = (batch..batch + a_free.len()).collect();
    let dy_b: Vec<usize> = (batch + a_free.len()..dy.rank()).collect();
    let grad_a = v.when(0, || {
        let dims = DotDims {
            lhs_contracting: dy_b.clone(),
            rhs_contracting: b_free.clone(),
            lhs_batch: dy_batch.clone(),
            rhs_batch: d.rhs_batch.clone(),
        };
        // The product has a's batch, a's free, then b's contracting dimensions in increasing order
        // of b.
        let product = dy.dot_general(b, dims, a.dtype())?;
        let mut order: Vec<(usize, usize)> = d
            .rhs_contracting
            .iter()
            .copied()
            .zip(d.lhs_contracting.iter().copied())
            .collect();
        order.sort();
        let sources = d
            .lhs_batch
            .iter()
            .chain(&a_free)
            .copied()
            .chain(order.iter().map(|&(_, l)| l));
        product.arrange(sources)
    })?;
    let grad_b = v.when(1, || {
        let dims = DotDims {
            lhs_contracting: a_free.clone(),
            rhs_contracting: dy_a.clone(),
            lhs_batch: d.lhs_batch.clone(),
            rhs_batch: dy_batch.clone(),
        };
        // a first, so that the contracted weight gradient comes out in the weight's own
        // orientation.
        let product = a.dot_general(dy, dims, b.dtype())?;
        let mut order: Vec<(usize, usize)> = d
            .lhs_contracting
            .iter()
            .copied()
            .zip(d.rhs_contracting.iter().copied())
            .collect();
        order.sort();
        let sources = d
            .rhs_batch
            .iter()
            .copied()
            .chain(order.iter().map(|&(_, r)| r))
            .chain(b_free.iter().copied());
        product.arrange(sources)
    })?;
    Ok(vec![grad_a, grad_b])
}

impl Tensor {
    /// A product with explicit dimensions, accumulated and returned in `dtype`.
    ///
    /// # Errors
    /// If the element types differ or are no floats, or paired dimensions differ in size or number.
    #[track_caller]
    pub fn dot_general(&self, other: &Tensor, dims: DotDims, dtype: DType) -> Result<Tensor> {
        self.apply(
            Op::Dot {
                dims,
                dtype,
                exact: false,
            },
            &[other],
        )
    }

    /// `[..., K] x [K, N] -> [..., N]`.
    ///
    /// # Errors
    /// As [`Tensor::dot_general`].
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let dims = DotDims {
            lhs_contracting: vec![self.rank().saturating_sub(1)],
            rhs_contracting: vec![0],
            ..Default::default()
        };
        self.dot_general(other, dims, self.dtype())
    }

    /// `[..., K] x [N, K] -> [..., N]`: the layout of torch's linear weights and of tied heads.
    ///
    /// # Errors
    /// As [`Tensor::dot_general`].
    #[track_caller]
    pub fn matmul_transposed(&self, other: &Tensor) -> Result<Tensor> {
        let dims = DotDims {
            lhs_contracting: vec![self.rank().saturating_sub(1)],
            rhs_contracting: vec![1],
            ..Default::default()
        };
        self.dot_general(other, dims, self.dtype())
    }

    /// `[B, H, M, K] x [B, H, K, N]`, or with the second transposed (`[B, H, N, K]`), contracting
    /// the inner dimension.
    #[track_caller]
    pub(crate) fn batched(
        &self,
        other: &Tensor,
        lhs: usize,
        rhs: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        let dims = DotDims {
            lhs_contracting: vec![lhs],
            rhs_contracting: vec![rhs],
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
        };
        self.dot_general(other, dims, dtype)
    }

    /// Transposes so that dimension i of this tensor becomes dimension `targets[i]`.
    fn arrange(&self, targets: impl Iterator<Item = usize>) -> Result<Tensor> {
        let mut perm = vec![0; self.rank()];
        for (i, target) in targets.enumerate() {
            perm[target] = i;
        }
        self.transpose(&perm)
    }
}
