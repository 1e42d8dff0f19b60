//! Softmax over the last dimension, shifted by the maximum. dx = y * (dy - sum(dy * y)).

use crate::error::Result;
use crate::op::Op;
use crate::ops::{Vjp, float};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(crate) fn infer(x: &Shape) -> std::result::Result<Shape, String> {
    float(x)?;
    if x.rank() == 0 {
        Err("needs at least one dimension".into())
    } else {
        Ok(x.clone())
    }
}

pub(crate) fn vjp(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![
        v.when(0, || v.output.apply(Op::SoftmaxGrad, &[v.dy]))?,
    ])
}

pub(crate) fn expand(x: &Tensor) -> Result<Tensor> {
    let last = [x.rank() - 1];
    let exp = x.sub(&x.max(&last)?.keep_last()?)?.exp()?;
    exp.div(&exp.sum(&last)?.keep_last()?)
}

pub(crate) fn expand_grad(y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let projected = dy.mul(y)?.sum(&[y.rank() - 1])?.keep_last()?;
    y.mul(&dy.sub(&projected)?)
}

impl Tensor {
    #[track_caller]
    pub fn softmax(&self) -> Result<Tensor> {
        self.apply(Op::Softmax, &[])
    }
}
