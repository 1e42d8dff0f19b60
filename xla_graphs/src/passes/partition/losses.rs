//! Cross-entropy over a vocabulary whose columns are sharded.

use super::partitioner::Partitioner;
use super::shard::{Placement, Shard, shard};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::Comparison;
use crate::trace::Tensor;

impl Partitioner<'_> {
    /// The columns of `[N, V]` logits that this replica has, and log(sum(exp)) of each whole row.
    fn columns(&self, logits: &Shard) -> Option<Tensor> {
        (logits.placement == Placement::Sharded(shard(1))).then(|| logits.local.clone())
    }

    fn log_sum_exp(&self, columns: &Tensor) -> Result<Tensor> {
        let max = columns.max(&[1])?.all_reduce_max(self.groups())?;
        self.sum(&columns.sub(&max.keep_last()?)?.exp()?.sum(&[1])?)?
            .log()?
            .add(&max)
    }

    /// Where a column of this replica's is the row's label.
    fn hits(&self, columns: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let own = self.own_ids(labels, columns.dims()[1])?;
        self.trace
            .iota(DType::S32, columns.dims(), 1)?
            .compare(Comparison::Eq, &own.keep_last()?)
    }

    /// Megatron's vocabulary-parallel cross-entropy: two numbers for each row are exchanged, not
    /// the logits.
    pub(super) fn cross_entropy(&self, ignore: i64, operands: &[Shard]) -> Result<Option<Shard>> {
        let Some(columns) = self.columns(&operands[0]) else {
            return Ok(None);
        };
        let labels = self.to_replicated(&operands[1])?;
        let zeros = self.trace.full(0.0, columns.shape())?;
        let picked = self.sum(
            &self
                .hits(&columns, &labels)?
                .select(&columns, &zeros)?
                .sum(&[1])?,
        )?;
        let loss = self.log_sum_exp(&columns)?.sub(&picked)?;
        let kept = labels.compare_scalar(Comparison::Ne, ignore as f64)?;
        let local = kept.select(&loss, &self.trace.full(0.0, loss.shape())?)?;
        Ok(Some(Shard::replicated(local)))
    }

    pub(super) fn cross_entropy_grad(
        &self,
        ignore: i64,
        operands: &[Shard],
    ) -> Result<Option<Shard>> {
        let Some(columns) = self.columns(&operands[0]) else {
            return Ok(None);
        };
        let (labels, dloss) = (
            self.to_replicated(&operands[1])?,
            self.to_replicated(&operands[2])?,
        );
        let softmax = columns
            .sub(&self.log_sum_exp(&columns)?.keep_last()?)?
            .exp()?;
        let kept = labels.compare_scalar(Comparison::Ne, ignore as f64)?;
        let dloss = kept
            .select(&dloss, &self.trace.full(0.0, dloss.shape())?)?
            .keep_last()?;
        let one_hot = self.hits(&columns, &labels)?.convert(columns.dtype())?;
        let local = softmax.sub(&one_hot)?.mul(&dloss)?;
        Ok(Some(Shard::sharded(local, shard(1))))
    }
}
