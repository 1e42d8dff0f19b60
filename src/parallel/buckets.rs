//! Which gradients are exchanged together.

/// Splits tensors of these sizes (bytes) into buckets of at most `cap` bytes: indices by bucket,
/// from the last tensor to the first, since the backward pass finishes the last layer's gradients
/// first. A tensor beyond the cap has a bucket of its own. As torch_xla's `reduce_gradients` fills
/// its buckets.
pub fn buckets(sizes: &[usize], cap: usize) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for (index, &size) in sizes.iter().enumerate().rev() {
        match buckets.last_mut() {
            Some(bucket) if filled + size <= cap => {
                bucket.push(index);
                filled += size;
            }
            _ => {
                buckets.push(vec![index]);
                filled = size;
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_fill_from_the_last_tensor() {
        assert_eq!(buckets(&[4, 4, 2, 9, 1], 10), [vec![4, 3], vec![2, 1, 0]]);
        assert_eq!(buckets(&[20, 1], 10), [vec![1], vec![0]]);
        assert_eq!(buckets(&[1, 20, 1], 0), [vec![2], vec![1], vec![0]]);
        assert!(buckets(&[], 10).is_empty());
    }
}
