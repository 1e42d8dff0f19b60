//! Where the elements of a node lie in an array that is in memory: through slices, transpositions,
//! broadcasts and reshapes, which need no copy where strides say them, and through conversions from bf16, of
//! which a pass makes f32 as it reads.

use crate::dtype::DType;
use crate::graph::{Graph, NodeId};
use crate::op::{Op, PassView};

/// What a pass reads to have a node: the node itself where the view is `None`.
pub(super) fn find(graph: &Graph, id: NodeId) -> (NodeId, Option<PassView>) {
    let node = &graph.nodes[id as usize];
    let (base, view) = walk(graph, id);
    let array = &graph.nodes[base as usize].shape;
    let is_float = matches!(array.dtype, DType::F32 | DType::BF16);
    if base == id || !is_float || view.strides.last() != Some(&1) {
        return (id, None);
    }
    let is_whole = array.dims == node.shape.dims && view == PassView::plain(&array.dims);
    (base, (!is_whole).then_some(view))
}

/// The farthest array of which the node is a view.
fn walk(graph: &Graph, id: NodeId) -> (NodeId, PassView) {
    let node = &graph.nodes[id as usize];
    let plain = || (id, PassView::plain(&node.shape.dims));
    let Some(&operand) = node.operands.first() else {
        return plain();
    };
    let dims = &graph.nodes[operand as usize].shape.dims;
    let strided =
        |strides: Vec<usize>, base: NodeId, offset: usize| (base, PassView { offset, strides });
    match &node.op {
        Op::Convert(_) if is_widened(graph, id) => walk(graph, operand),
        Op::Slice { starts, .. } => {
            let (base, view) = walk(graph, operand);
            let skipped = starts.iter().zip(&view.strides);
            let skipped: usize = skipped.map(|(start, stride)| start * stride).sum();
            strided(view.strides, base, view.offset + skipped)
        }
        Op::Transpose(perm) => {
            let (base, view) = walk(graph, operand);
            let strides = perm.iter().map(|&dim| view.strides[dim]).collect();
            strided(strides, base, view.offset)
        }
        Op::Broadcast { dims: to, map } => {
            let (base, view) = walk(graph, operand);
            let mut strides = vec![0; to.len()];
            for (dim, &mapped) in map.iter().enumerate() {
                if dims[dim] == to[mapped] {
                    strides[mapped] = view.strides[dim];
                }
            }
            strided(strides, base, view.offset)
        }
        Op::Reshape(to) => {
            let (base, view) = walk(graph, operand);
            match reshaped(&view.strides, dims, to) {
                Some(strides) => strided(strides, base, view.offset),
                None => plain(),
            }
        }
        _ => plain(),
    }
}

/// The strides of what has `dims` in other dimensions; `None` where there are none such. Dimensions of one
/// element have any: 1.
fn reshaped(strides: &[usize], dims: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let longer = |dims: &[usize]| -> Vec<usize> {
        let all = 0..dims.len();
        all.filter(|&dim| dims[dim] != 1).collect()
    };
    let (old, new) = (longer(dims), longer(to));
    let mut result = vec![1; to.len()];
    let (mut i, mut j) = (0, 0);
    while i < old.len() {
        // Neighbours among the new dimensions that are as many elements as neighbours among the old ones.
        let first = (i, j);
        let (mut before, mut after) = (1, 1);
        while before != after || i == first.0 {
            if before <= after {
                before *= dims[*old.get(i)?];
                i += 1;
            } else {
                after *= to[*new.get(j)?];
                j += 1;
            }
        }
        let merged = &old[first.0..i];
        let is_one = |pair: &[usize]| strides[pair[0]] == strides[pair[1]] * dims[pair[1]];
        if !merged.windows(2).all(is_one) {
            return None;
        }
        let mut stride = strides[*merged.last()?];
        for &dim in new[first.1..j].iter().rev() {
            result[dim] = stride;
            stride *= to[dim];
        }
    }
    Some(result)
}

/// Whether a node is bf16 in f32.
pub(super) fn is_widened(graph: &Graph, id: NodeId) -> bool {
    let node = &graph.nodes[id as usize];
    let from = |&operand: &NodeId| graph.nodes[operand as usize].shape.dtype;
    node.op == Op::Convert(DType::F32) && node.operands.first().map(from) == Some(DType::BF16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_split_and_merge_what_lies_so() {
        // Columns of a wider matrix as heads, and back.
        let of = |strides: &[usize], dims: &[usize], to: &[usize]| reshaped(strides, dims, to);
        assert_eq!(
            of(&[30, 1], &[6, 12], &[2, 3, 4, 3]),
            Some(vec![90, 30, 3, 1])
        );
        assert_eq!(
            of(&[90, 30, 3, 1], &[2, 3, 4, 3], &[6, 12]),
            Some(vec![30, 1])
        );
        assert_eq!(of(&[30, 1], &[6, 12], &[72]), None);
        assert_eq!(of(&[12, 1], &[6, 12], &[72]), Some(vec![1]));
        assert_eq!(of(&[12, 1], &[6, 12], &[3, 8, 3]), Some(vec![24, 3, 1]));
        assert_eq!(
            of(&[12, 1], &[6, 12], &[1, 6, 1, 12, 1]),
            Some(vec![1, 12, 1, 1, 1])
        );
        // Transposed.
        assert_eq!(of(&[1, 6], &[6, 12], &[72]), None);
        assert_eq!(of(&[1, 6], &[6, 12], &[6, 3, 4]), Some(vec![1, 24, 6]));
    }
}
