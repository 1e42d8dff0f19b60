//! How a value lies on the replicas of a group: the types that every file of the pass is written
//! with.

use crate::op::Op;
use crate::provenance::Phase;
use crate::shape::Shape;
use crate::trace::Tensor;
use std::collections::HashMap;

/// A dimension sharded into equal parts, in each of `blocks` equal blocks of it: a replica's shard
/// is its part of every block. GPT-2's matrix of queries, keys and values has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardSpec {
    /// The dimension that is sharded.
    pub dim: usize,
    /// Equal blocks of the dimension, each of which is divided; 1 for contiguous shards.
    pub blocks: usize,
}

/// Sharded along `dim`, in one block.
pub const fn shard(dim: usize) -> ShardSpec {
    ShardSpec { dim, blocks: 1 }
}

impl ShardSpec {
    /// The same blocks along another dimension.
    pub fn along(self, dim: usize) -> ShardSpec {
        ShardSpec { dim, ..self }
    }

    /// The shape of a shard on one of `replicas`; `None` where the dimension does not divide.
    pub(super) fn shape_of(self, whole: &Shape, replicas: usize) -> Option<Shape> {
        let mut dims = whole.dims.clone();
        let size = dims.get_mut(self.dim)?;
        if *size == 0 || !size.is_multiple_of(self.blocks * replicas) {
            return None;
        }
        *size /= replicas;
        Some(Shape::new(whole.dtype, dims))
    }
}

/// How a graph is partitioned.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The replicas that share each layer; more than one in each group.
    pub groups: Vec<Vec<u32>>,
    /// Inputs, by name, that are sharded.
    pub inputs: HashMap<String, ShardSpec>,
    /// Sequence parallelism: the feed `s32[B, T]` of a microbatch's tokens. Activations `[N, C]`, with
    /// a row for each of these N = B * T, are sharded by rows between layers' sharded matmuls. `None`
    /// leaves them replicated.
    pub tokens: Option<String>,
}

impl Partition {
    /// Replicas of a group.
    pub(super) fn replicas(&self) -> usize {
        self.groups.first().map_or(1, Vec::len)
    }
}

/// How a value lies on the replicas of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Whole and equal on all.
    Replicated,
    Sharded(ShardSpec),
    /// The sum over the group is the value.
    Partial,
}

/// What a replica has of a value.
#[derive(Clone)]
pub(super) struct Shard {
    /// The tensor of this replica, of the whole shape unless it is sharded.
    pub local: Tensor,
    /// How `local` and the other replicas' make the value.
    pub placement: Placement,
}

impl Shard {
    /// Whole and equal on every replica.
    pub fn replicated(local: Tensor) -> Shard {
        Shard {
            local,
            placement: Placement::Replicated,
        }
    }

    /// This replica's part by `spec`.
    pub fn sharded(local: Tensor, spec: ShardSpec) -> Shard {
        Shard {
            local,
            placement: Placement::Sharded(spec),
        }
    }

    /// This replica's summand.
    pub fn partial(local: Tensor) -> Shard {
        Shard {
            local,
            placement: Placement::Partial,
        }
    }

    /// Whether every replica has the whole value.
    pub fn is_replicated(&self) -> bool {
        self.placement == Placement::Replicated
    }

    /// Whether the value is a sum that has yet to be made.
    pub fn is_partial(&self) -> bool {
        self.placement == Placement::Partial
    }

    /// How it is sharded, if it is.
    pub fn spec(&self) -> Option<ShardSpec> {
        match self.placement {
            Placement::Sharded(spec) => Some(spec),
            Placement::Replicated | Placement::Partial => None,
        }
    }
}

/// A node as it was recorded, over whole values.
pub(super) struct Recorded<'a> {
    /// What the node computes.
    pub op: &'a Op,
    /// The operands' shapes.
    pub shapes: &'a [&'a Shape],
    /// Of each operand, whether it has a row for each token.
    pub has_token_rows: &'a [bool],
    /// The part of the step that recorded it.
    pub phase: Phase,
    /// Whether it adds up the gradient of a table that is sharded along its rows.
    pub is_row_shards_gradient: bool,
}
