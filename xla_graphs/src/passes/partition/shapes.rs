//! Where a cut goes when dimensions are joined, taken apart, moved, sliced and padded.

use super::Cut;

/// The cut of `from` as one of `to`, another shape of the same elements, for this many parts; `None`
/// where it is none there.
pub(super) fn reshaped(cut: Cut, from: &[usize], to: &[usize], parts: usize) -> Option<Cut> {
    let before: usize = from[..cut.dim].iter().product();
    let size = from[cut.dim];
    if size == 0 {
        return None;
    }
    // The dimension of `to` in which the cut dimension begins.
    let (mut dim, mut outer) = (0, 1);
    while dim < to.len() && outer * to[dim] <= before {
        outer *= to[dim];
        dim += 1;
    }
    if dim == to.len() || !before.is_multiple_of(outer) {
        return None;
    }
    // This many runs of the cut dimension are in one element of what is before `dim`.
    let repeats = before / outer;
    let mut blocks = repeats * cut.blocks;
    let mut cut_size = size * repeats;
    if to[dim].is_multiple_of(cut_size) {
        return Some(Cut { dim, blocks });
    }
    // Taken apart: the blocks first, then what is cut.
    while dim < to.len() && cut_size.is_multiple_of(to[dim]) && blocks.is_multiple_of(to[dim]) {
        blocks /= to[dim];
        cut_size /= to[dim];
        dim += 1;
    }
    let fits = dim < to.len()
        && cut_size.is_multiple_of(to[dim])
        && to[dim].is_multiple_of(blocks * parts);
    fits.then_some(Cut { dim, blocks })
}

/// The cut of what a slice keeps, and its start and limit in the part; `None` where the slice goes
/// through a block.
pub(super) fn sliced(
    cut: Cut,
    size: usize,
    start: usize,
    limit: usize,
    parts: usize,
) -> Option<(Cut, usize, usize)> {
    let block = size / cut.blocks;
    let whole_blocks = start.is_multiple_of(block) && limit.is_multiple_of(block) && limit > start;
    whole_blocks.then(|| {
        (
            Cut {
                blocks: (limit - start) / block,
                ..cut
            },
            start / parts,
            limit / parts,
        )
    })
}

/// The cut of what padding makes, and the padding of the part; `None` where the padding is no
/// number of blocks.
pub(super) fn padded(
    cut: Cut,
    size: usize,
    low: usize,
    high: usize,
    parts: usize,
) -> Option<(Cut, usize, usize)> {
    let block = size / cut.blocks;
    let whole_blocks = low.is_multiple_of(block) && high.is_multiple_of(block);
    whole_blocks.then(|| {
        (
            Cut {
                blocks: (size + low + high) / block,
                ..cut
            },
            low / parts,
            high / parts,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_apart_and_together() {
        let cut = |dim, blocks| Cut { dim, blocks };
        // [N, H * D] as [B, T, H, D] and back.
        assert_eq!(
            reshaped(cut(1, 1), &[6, 16], &[2, 3, 4, 4], 2),
            Some(cut(2, 1))
        );
        assert_eq!(
            reshaped(cut(2, 1), &[2, 3, 4, 4], &[6, 16], 2),
            Some(cut(1, 1))
        );
        // Three blocks that become a dimension of their own.
        assert_eq!(
            reshaped(cut(1, 3), &[6, 48], &[6, 3, 16], 2),
            Some(cut(2, 1))
        );
        assert_eq!(
            reshaped(cut(2, 1), &[6, 3, 16], &[6, 48], 2),
            Some(cut(1, 3))
        );
        // Ones come and go.
        assert_eq!(reshaped(cut(0, 1), &[8], &[1, 8], 2), Some(cut(1, 1)));
        assert_eq!(reshaped(cut(1, 1), &[1, 8], &[8], 2), Some(cut(0, 1)));
        // Two heads for four parts.
        assert_eq!(reshaped(cut(1, 1), &[6, 16], &[6, 2, 8], 4), None);
    }

    #[test]
    fn slices_and_padding_keep_whole_blocks() {
        let cut = |blocks| Cut { dim: 1, blocks };
        assert_eq!(sliced(cut(3), 48, 16, 32, 2), Some((cut(1), 8, 16)));
        assert_eq!(sliced(cut(3), 48, 8, 32, 2), None);
        assert_eq!(padded(cut(1), 16, 16, 16, 2), Some((cut(3), 8, 8)));
        assert_eq!(padded(cut(1), 16, 8, 0, 2), None);
    }
}
