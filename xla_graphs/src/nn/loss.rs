//! Softmax cross-entropy with an ignored label, per row.
//!
//! loss = logsumexp(logits) - logits[label]; dlogits = (softmax(logits) - onehot(label)) * dloss.
//! The backward pass starts from the logits again, so that besides them only their gradient takes
//! `[N, V]` space. On the CPU both passes are calls (`native/cpp/kernels/cross_entropy.h`): XLA reads the
//! logits once for each of maximum, sum and gradient.

use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, Composite, KernelCrossEntropy, Op};
use crate::ops::rule::{Inferred, Vjp, expect, float};
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

pub(crate) fn infer(logits: &Shape, labels: &Shape) -> Inferred {
    float(logits)?;
    if logits.rank() != 2 {
        return Err(format!("needs logits [N, V], got {logits}"));
    }
    expect("the labels", labels, DType::S32, &logits.dims[..1])?;
    Ok(Shape::new(logits.dtype, [logits.dims[0]]))
}

pub(crate) fn infer_grad(operands: &[&Shape]) -> Inferred {
    let loss = infer(operands[0], operands[1])?;
    expect("the gradient", operands[2], loss.dtype, &loss.dims)?;
    Ok(operands[0].clone())
}

pub(crate) fn vjp(v: &Vjp, ignore: i64) -> Result<Vec<Option<Tensor>>> {
    let (logits, labels) = (&v.operands[0], &v.operands[1]);
    let dlogits = v.when(0, || {
        logits.apply(
            Op::Composite(Composite::CrossEntropyGrad { ignore }),
            &[labels, v.dy],
        )
    })?;
    Ok(vec![dlogits, None])
}

/// Whether calls compute the loss of these logits: of a few a call costs more than it saves.
fn has_kernel(logits: &Tensor, target: Target) -> bool {
    let Target::Cpu(kernels) = target else {
        return false;
    };
    kernels.calls.has::<KernelCrossEntropy>()
        && logits.dtype() == DType::F32
        && CostModel::of(kernels).cross_entropy_pays(logits.shape().elements())
}

fn log_sum_exp(logits: &Tensor, target: Target) -> Result<Tensor> {
    if has_kernel(logits, target) {
        let part = KernelCrossEntropy::LogSumExp;
        return logits.trace().call(part, &[logits]);
    }
    let max = logits.max(&[1])?;
    logits
        .sub(&max.keep_last()?)?
        .exp()?
        .sum(&[1])?
        .log()?
        .add(&max)
}

/// Where the column is the row's label, `pred[N, V]`.
fn hits(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits
        .trace()
        .iota(DType::S32, logits.dims(), 1)?
        .compare(Comparison::Eq, &labels.keep_last()?)
}

pub(crate) fn expand(ignore: i64, operands: &[Tensor], target: Target) -> Result<Tensor> {
    let (logits, labels) = (&operands[0], &operands[1]);
    let (rows, vocab) = (logits.dims()[0], logits.dims()[1]);
    let trace = logits.trace();
    if !target.indexes() {
        let picked = hits(logits, labels)?
            .select(logits, &trace.full(0.0, logits.shape())?)?
            .sum(&[1])?;
        let kept = labels.compare_scalar(Comparison::Ne, ignore as f64)?;
        return kept.select(
            &log_sum_exp(logits, target)?.sub(&picked)?,
            &trace.full(0.0, picked.shape())?,
        );
    }
    // One element per row is read from the flat array: a gather of N numbers instead of a masked
    // pass over [N, V].
    let index_type = if rows * vocab > i32::MAX as usize {
        DType::S64
    } else {
        DType::S32
    };
    let row_starts = trace
        .iota(index_type, &[rows], 0)?
        .mul_scalar(vocab as f64)?;
    let kept = labels.compare_scalar(Comparison::Ne, ignore as f64)?;
    let safe_label = labels.max_scalar(0.0)?.convert(index_type)?;
    let picked = logits
        .reshape(&[rows * vocab])?
        .take_rows(&row_starts.add(&safe_label)?)?;
    let loss = log_sum_exp(logits, target)?.sub(&picked)?;
    kept.select(&loss, &trace.full(0.0, loss.shape())?)
}

/// `wanted`: the type that all who read the gradient convert it to, if there is one.
pub(crate) fn expand_grad(
    ignore: i64,
    operands: &[Tensor],
    wanted: Option<DType>,
    target: Target,
) -> Result<Tensor> {
    let (logits, labels, dloss) = (&operands[0], &operands[1], &operands[2]);
    let trace = logits.trace();
    let kept = labels.compare_scalar(Comparison::Ne, ignore as f64)?;
    let dloss = kept.select(dloss, &trace.full(0.0, dloss.shape())?)?;
    let sums = log_sum_exp(logits, target)?;
    if has_kernel(logits, target) {
        let dtype = wanted.filter(|dtype| *dtype == DType::BF16);
        let part = KernelCrossEntropy::Gradient(dtype.unwrap_or(DType::F32));
        return trace.call(part, &[logits, &sums, labels, &dloss]);
    }
    let softmax = logits.sub(&sums.keep_last()?)?.exp()?;
    let one_hot = hits(logits, labels)?.convert(logits.dtype())?;
    softmax.sub(&one_hot)?.mul(&dloss.keep_last()?)
}

impl Tensor {
    /// Losses `[N]` of these logits `[N, V]` against `labels` (`s32[N]`), 0 where the label is
    /// `ignore` (-100 in transformers).
    ///
    /// # Errors
    /// If the shapes are others, or the logits are of no float type.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor, ignore: i64) -> Result<Tensor> {
        self.apply(Op::Composite(Composite::CrossEntropy { ignore }), &[labels])
    }
}
