//! What becomes of a sharding when dimensions are joined, taken apart, sliced and padded.

use super::shard::ShardSpec;

/// The sharding of `from` as one of `to`, another shape of the same elements, for this many replicas;
/// `None` where it is none there.
pub(super) fn reshaped(
    spec: ShardSpec,
    from: &[usize],
    to: &[usize],
    replicas: usize,
) -> Option<ShardSpec> {
    let before: usize = from[..spec.dim].iter().product();
    let size = from[spec.dim];
    if size == 0 {
        return None;
    }
    // The dimension of `to` in which the sharded dimension begins.
    let (mut dim, mut outer) = (0, 1);
    while dim < to.len() && outer * to[dim] <= before {
        outer *= to[dim];
        dim += 1;
    }
    if dim == to.len() || !before.is_multiple_of(outer) {
        return None;
    }
    // This many runs of the sharded dimension are in one element of what is before `dim`.
    let repeats = before / outer;
    let mut blocks = repeats * spec.blocks;
    let mut sharded_size = size * repeats;
    if to[dim].is_multiple_of(sharded_size) {
        return Some(ShardSpec { dim, blocks });
    }
    // Taken apart: the blocks first, then what is sharded.
    while dim < to.len() && sharded_size.is_multiple_of(to[dim]) && blocks.is_multiple_of(to[dim]) {
        blocks /= to[dim];
        sharded_size /= to[dim];
        dim += 1;
    }
    let fits = dim < to.len()
        && sharded_size.is_multiple_of(to[dim])
        && to[dim].is_multiple_of(blocks * replicas);
    fits.then_some(ShardSpec { dim, blocks })
}

/// What becomes of a sharded dimension of some size, and of the two attributes that a slice or a pad
/// has for it, given the number of replicas.
pub(super) type Resize = fn(ShardSpec, usize, [usize; 2], usize) -> Option<(ShardSpec, [usize; 2])>;

/// The sharding of what a slice keeps of a dimension of this size, and its bounds in a shard; `None`
/// where the slice goes through a block.
pub(super) fn sliced(
    spec: ShardSpec,
    size: usize,
    [start, limit]: [usize; 2],
    replicas: usize,
) -> Option<(ShardSpec, [usize; 2])> {
    let block = size / spec.blocks;
    let whole_blocks = start.is_multiple_of(block) && limit.is_multiple_of(block) && limit > start;
    whole_blocks.then(|| {
        let blocks = (limit - start) / block;
        let local = [start, limit].map(|bound| bound / replicas);
        (ShardSpec { blocks, ..spec }, local)
    })
}

/// The sharding of what padding makes of a dimension of this size, and a shard's padding; `None` where
/// the padding is no number of blocks.
pub(super) fn padded(
    spec: ShardSpec,
    size: usize,
    [low, high]: [usize; 2],
    replicas: usize,
) -> Option<(ShardSpec, [usize; 2])> {
    let block = size / spec.blocks;
    let whole_blocks = low.is_multiple_of(block) && high.is_multiple_of(block);
    whole_blocks.then(|| {
        let blocks = (size + low + high) / block;
        let local = [low, high].map(|amount| amount / replicas);
        (ShardSpec { blocks, ..spec }, local)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_apart_and_together() {
        let spec = |dim, blocks| ShardSpec { dim, blocks };
        // [N, H * D] as [B, T, H, D] and back.
        assert_eq!(
            reshaped(spec(1, 1), &[6, 16], &[2, 3, 4, 4], 2),
            Some(spec(2, 1))
        );
        assert_eq!(
            reshaped(spec(2, 1), &[2, 3, 4, 4], &[6, 16], 2),
            Some(spec(1, 1))
        );
        // Three blocks that become a dimension of their own.
        assert_eq!(
            reshaped(spec(1, 3), &[6, 48], &[6, 3, 16], 2),
            Some(spec(2, 1))
        );
        assert_eq!(
            reshaped(spec(2, 1), &[6, 3, 16], &[6, 48], 2),
            Some(spec(1, 3))
        );
        // Ones come and go.
        assert_eq!(reshaped(spec(0, 1), &[8], &[1, 8], 2), Some(spec(1, 1)));
        assert_eq!(reshaped(spec(1, 1), &[1, 8], &[8], 2), Some(spec(0, 1)));
        // Two heads for four replicas.
        assert_eq!(reshaped(spec(1, 1), &[6, 16], &[6, 2, 8], 4), None);
    }

    #[test]
    fn slices_and_padding_keep_whole_blocks() {
        let spec = |blocks| ShardSpec { dim: 1, blocks };
        assert_eq!(sliced(spec(3), 48, [16, 32], 2), Some((spec(1), [8, 16])));
        assert_eq!(sliced(spec(3), 48, [8, 32], 2), None);
        assert_eq!(padded(spec(1), 16, [16, 16], 2), Some((spec(3), [8, 8])));
        assert_eq!(padded(spec(1), 16, [8, 0], 2), None);
    }
}
