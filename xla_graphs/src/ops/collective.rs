//! Collectives: values that replicas exchange. Every replica runs the same graph, so each of them meets the same collectives in
//! the same order.

use super::{Vjp, float};
use crate::error::Result;
use crate::op::{Exchange, Op};
use crate::shape::Shape;
use crate::trace::Tensor;

/// Floats only: Neuron sums integers through f32, which loses them above 2^24.
pub(super) fn infer_all_reduce(x: &Shape, exchange: &Exchange) -> std::result::Result<Shape, String> {
    float(x)?;
    check_groups(&exchange.groups)?;
    Ok(x.clone())
}

/// Groups of one size in which every number from 0 occurs once.
fn check_groups(groups: &[Vec<u32>]) -> std::result::Result<(), String> {
    let size = groups.first().map_or(0, Vec::len);
    if size == 0 || groups.iter().any(|group| group.len() != size) {
        return Err(format!("needs groups of one size, got {groups:?}"));
    }
    let mut members: Vec<u32> = groups.iter().flatten().copied().collect();
    members.sort_unstable();
    if !members.iter().copied().eq(0..members.len() as u32) {
        return Err(format!("needs every replica in one group, got {groups:?}"));
    }
    Ok(())
}

/// What one replica's operand adds to the sum on every replica of its group comes back from all of them.
pub(super) fn vjp_all_reduce(v: &Vjp, exchange: &Exchange) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![v.when(0, || v.dy.apply(Op::AllReduce(exchange.clone()), &[]))?])
}

impl Tensor {
    /// The sum of this tensor over the replicas of each group.
    #[track_caller]
    pub fn all_reduce(&self, groups: &[Vec<u32>], bucket: u32) -> Result<Tensor> {
        self.apply(Op::AllReduce(Exchange { groups: groups.to_vec(), bucket }), &[])
    }
}
