//! Collectives: values that replicas exchange. Every replica runs the same graph, so each of them
//! meets the same collectives in the same order.

use super::rule::{Inferred, Vjp, float};
use crate::error::Result;
use crate::op::{Op, ReplicaGroups};
use crate::shape::Shape;
use crate::trace::Tensor;

/// Floats only: Neuron sums integers through f32, which loses them above 2^24.
pub(super) fn infer_all_reduce(x: &Shape, exchange: &ReplicaGroups) -> Inferred {
    float(x)?;
    check_groups(&exchange.groups)?;
    Ok(x.clone())
}

pub(super) fn infer_all_gather(x: &Shape, dim: usize, exchange: &ReplicaGroups) -> Inferred {
    check_groups(&exchange.groups)?;
    let mut dims = x.dims.clone();
    let size = dims
        .get_mut(dim)
        .ok_or_else(|| format!("dimension {dim} of {x}"))?;
    *size = size
        .checked_mul(exchange.group_size())
        .ok_or("a result beyond all memory")?;
    Ok(Shape::new(x.dtype, dims))
}

pub(super) fn infer_reduce_scatter(x: &Shape, dim: usize, exchange: &ReplicaGroups) -> Inferred {
    float(x)?;
    check_groups(&exchange.groups)?;
    let (mut dims, parts) = (x.dims.clone(), exchange.group_size());
    match dims.get_mut(dim) {
        Some(size) if size.is_multiple_of(parts) => *size /= parts,
        _ => {
            return Err(format!(
                "dimension {dim} of {x} does not divide into {parts} parts"
            ));
        }
    }
    Ok(Shape::new(x.dtype, dims))
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

/// What one replica's operand adds to the sum on every replica of its group comes back from all of
/// them.
pub(super) fn vjp_all_reduce(v: &Vjp, exchange: &ReplicaGroups) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![v.when(0, || {
        v.dy.apply(Op::AllReduce(exchange.clone()), &[])
    })?])
}

/// Every replica of the group computes with the whole; each gets the sum of what they all say of
/// its own part.
pub(super) fn vjp_all_gather(
    v: &Vjp,
    dim: usize,
    exchange: &ReplicaGroups,
) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![v.when(0, || {
        v.dy.apply(
            Op::ReduceScatter {
                dim,
                exchange: exchange.clone(),
            },
            &[],
        )
    })?])
}

pub(super) fn vjp_reduce_scatter(
    v: &Vjp,
    dim: usize,
    exchange: &ReplicaGroups,
) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![v.when(0, || {
        v.dy.apply(
            Op::AllGather {
                dim,
                exchange: exchange.clone(),
            },
            &[],
        )
    })?])
}

impl ReplicaGroups {
    /// In one collective of its own.
    pub fn alone(groups: &[Vec<u32>]) -> Self {
        ReplicaGroups {
            groups: groups.to_vec(),
            bucket: 0,
        }
    }

    /// Replicas of one group.
    pub fn group_size(&self) -> usize {
        self.groups.first().map_or(0, Vec::len)
    }
}

impl Tensor {
    /// The parts of all replicas of the group, joined along `dim` in the group's order.
    ///
    /// # Errors
    /// If there is no dimension `dim`, or the groups differ in size, or do not name every replica
    /// once.
    #[track_caller]
    pub fn all_gather(&self, groups: &[Vec<u32>], dim: usize) -> Result<Tensor> {
        self.apply(
            Op::AllGather {
                dim,
                exchange: ReplicaGroups::alone(groups),
            },
            &[],
        )
    }

    /// The sum over the group, of which this replica keeps its part along `dim`.
    ///
    /// # Errors
    /// As [`Tensor::all_gather`], or if it is of no float type, or `dim` does not divide by the
    /// replicas of a group.
    #[track_caller]
    pub fn reduce_scatter(&self, groups: &[Vec<u32>], dim: usize) -> Result<Tensor> {
        self.apply(
            Op::ReduceScatter {
                dim,
                exchange: ReplicaGroups::alone(groups),
            },
            &[],
        )
    }

    /// The largest of each element over the replicas of each group.
    ///
    /// # Errors
    /// If it is of no float type, or the groups differ in size, or do not name every replica once.
    #[track_caller]
    pub fn all_reduce_max(&self, groups: &[Vec<u32>]) -> Result<Tensor> {
        self.apply(Op::AllReduceMax(ReplicaGroups::alone(groups)), &[])
    }

    /// The sum of this tensor over the replicas of each group.
    ///
    /// # Errors
    /// If it is of no float type, or the groups differ in size, or do not name every replica once.
    #[track_caller]
    pub fn all_reduce(&self, groups: &[Vec<u32>], bucket: u32) -> Result<Tensor> {
        self.apply(
            Op::AllReduce(ReplicaGroups {
                groups: groups.to_vec(),
                bucket,
            }),
            &[],
        )
    }
}
