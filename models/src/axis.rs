//! Logical axes: what the dimensions of weights stand for, and which of them tensor parallelism
//! shards.

/// What one dimension of a weight stands for (flax's and MaxText's logical axes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// The hidden states between layers.
    Embed,
    /// The query heads side by side, each with its values.
    Heads,
    /// The key or value heads, where there may be fewer than query heads.
    KvHeads,
    /// Queries, keys and values of all heads in one matrix.
    Qkv {
        /// Query heads for each key/value head.
        group: usize,
    },
    /// The values of one head, where each has the same weights.
    Head,
    /// The inside of an MLP.
    Mlp,
    /// The gate of a gated MLP and what it is multiplied with, in one matrix.
    GateUp,
    /// Token ids.
    Vocab,
    /// Positions in a sequence.
    Positions,
    /// Segments of a sequence (`token_type_ids`).
    Segments,
    /// A classifier's labels.
    Labels,
    /// The inside of what an adapter adds to a linear layer.
    Rank,
}

impl Axis {
    /// Whether the devices of a tensor-parallel group shard this axis, as Megatron-LM does
    /// (Shoeybi et al. 2019): of each pair of matrices the first by its outputs, the second by its
    /// inputs; attention by heads; embeddings and heads by the vocabulary.
    pub(crate) fn is_tensor_parallel(self) -> bool {
        match self {
            Axis::Heads
            | Axis::KvHeads
            | Axis::Qkv { .. }
            | Axis::Mlp
            | Axis::GateUp
            | Axis::Vocab => true,
            Axis::Embed
            | Axis::Head
            | Axis::Positions
            | Axis::Segments
            | Axis::Labels
            | Axis::Rank => false,
        }
    }

    /// Equal blocks side by side along the axis, each of which is sharded by itself.
    pub(crate) fn blocks(self) -> usize {
        match self {
            // As many of queries as of keys make a block.
            Axis::Qkv { group } => group + 2,
            Axis::GateUp => 2,
            _ => 1,
        }
    }

    /// Whether it holds key/value heads beside more query heads: devices that outnumber them cannot
    /// shard it.
    pub(crate) fn has_grouped_heads(self) -> bool {
        matches!(self, Axis::KvHeads | Axis::Qkv { group: 2.. })
    }
}
