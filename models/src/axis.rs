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
    /// Queries, keys and values of all heads in one matrix: three blocks of equal size.
    Qkv,
    /// The inside of an MLP.
    Mlp,
    /// Token ids.
    Vocab,
    /// Positions in a sequence.
    Positions,
    /// Segments of a sequence (`token_type_ids`).
    Segments,
    /// A classifier's labels.
    Labels,
}

impl Axis {
    /// Whether the devices of a tensor-parallel group shard this axis, as Megatron-LM does
    /// (Shoeybi et al. 2019): of each pair of matrices the first by its outputs, the second by its
    /// inputs; attention by heads; embeddings and heads by the vocabulary.
    pub(crate) fn is_tensor_parallel(self) -> bool {
        match self {
            Axis::Heads | Axis::KvHeads | Axis::Qkv | Axis::Mlp | Axis::Vocab => true,
            Axis::Embed | Axis::Positions | Axis::Segments | Axis::Labels => false,
        }
    }

    /// Equal blocks side by side along the axis, each of which is sharded by itself.
    pub(crate) fn blocks(self) -> usize {
        if self == Axis::Qkv { 3 } else { 1 }
    }
}
