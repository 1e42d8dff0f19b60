//! Which dimension of each value runs over the batch's tokens, by where the value comes from: the
//! feed of tokens has one, and each operation hands it on.

use super::shapes::reshaped;
use super::shard::shard;
use crate::graph::{Graph, InputSpec};
use crate::op::{DotDims, Op};
use crate::shape::Shape;

/// The tokens of a microbatch, followed through a graph.
pub(super) struct TokenRows {
    /// Tokens of the batch, B * T.
    pub count: usize,
    /// Of each node, the dimension that counts the batch's examples or, where examples and positions
    /// are one dimension, its tokens.
    dims: Vec<Option<usize>>,
}

impl TokenRows {
    /// Follows the feed `tokens`; `None` if the graph has none such.
    pub(super) fn of(graph: &Graph, tokens: &str) -> Option<Self> {
        let is_feed = |input: &&InputSpec| input.name == tokens;
        let count = graph.inputs.iter().find(is_feed)?.shape.elements();
        let mut dims: Vec<Option<usize>> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let operands: Vec<(Option<usize>, &Shape)> = node
                .operands
                .iter()
                .map(|&id| (dims[id as usize], &graph.nodes[id as usize].shape))
                .collect();
            dims.push(match node.op {
                Op::Input(index) => (graph.inputs[index as usize].name == tokens).then_some(0),
                _ => handed_on(&node.op, &operands, &node.shape),
            });
        }
        Some(TokenRows { count, dims })
    }

    /// Whether node `id` of this shape is `[N, C]` with a row for each token.
    pub(super) fn are_rows_of(&self, id: usize, shape: &Shape) -> bool {
        // A batch's examples, as a classifier pools them, are not its tokens.
        self.dims[id] == Some(0) && shape.rank() == 2 && shape.dims[0] == self.count
    }
}

/// The dimension of a result that runs over the batch, given those of the operands. An operation
/// without a rule, such as one that picks rows, hands none on: its result then stays replicated.
fn handed_on(op: &Op, operands: &[(Option<usize>, &Shape)], result: &Shape) -> Option<usize> {
    let (first, shape) = *operands.first()?;
    match op {
        Op::Reshape(dims) => {
            let new = reshaped(shard(first?), &shape.dims, dims, 1)?;
            (new.blocks == 1).then_some(new.dim)
        }
        Op::Transpose(perm) => perm.iter().position(|from| Some(*from) == first),
        Op::Broadcast { map, .. } => first.map(|dim| map[dim]),
        Op::Reduce { dims, .. } => {
            let dim = first.filter(|dim| !dims.contains(dim))?;
            Some(dim - dims.iter().filter(|gone| **gone < dim).count())
        }
        Op::Dot { dims, .. } => of_dot(dims, operands),
        Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice { .. } => first,
        // The ids' dimensions come first.
        Op::TakeRows => operands[1].0,
        Op::ScatterAddRows => first,
        // Element by element, row by row, head by head: as an operand of the result's shape has it.
        _ => {
            let mut same = operands
                .iter()
                .filter(|(_, shape)| shape.dims == result.dims);
            same.find_map(|(dim, _)| *dim)
        }
    }
}

/// Batch dimensions come first in the result, then the free ones of either side.
fn of_dot(dims: &DotDims, operands: &[(Option<usize>, &Shape)]) -> Option<usize> {
    let sides = [
        (&dims.lhs_batch, &dims.lhs_contracting),
        (&dims.rhs_batch, &dims.rhs_contracting),
    ];
    let mut before = dims.lhs_batch.len();
    for ((batch, contracted), (of_tokens, shape)) in sides.into_iter().zip(operands) {
        let index = |list: &[usize]| list.iter().position(|dim| Some(*dim) == *of_tokens);
        if let Some(index) = index(batch) {
            return Some(index);
        }
        let free: Vec<usize> = (0..shape.rank())
            .filter(|dim| !batch.contains(dim) && !contracted.contains(dim))
            .collect();
        if let Some(index) = index(&free) {
            return Some(before + index);
        }
        before += free.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward;
    use crate::dtype::DType;
    use crate::graph::InputRole;
    use crate::trace::Trace;

    /// A weight may have as many rows as the batch has tokens: only activations and their gradients
    /// are recognized.
    #[test]
    fn rows_of_tokens_are_told_from_a_weight_of_their_shape() {
        let trace = Trace::new();
        let ids = trace.input("ids", Shape::new(DType::S32, [2, 3]), InputRole::Feed);
        let weight = |name, dims: [usize; 2]| {
            trace.input(name, Shape::new(DType::F32, dims), InputRole::State)
        };
        let (table, square) = (weight("table", [6, 6]), weight("square", [6, 6]));
        let x = table.take_rows(&ids).unwrap().reshape(&[6, 6]).unwrap();
        let hidden = x.matmul(&square).unwrap().tanh().unwrap();
        // As heads, and back.
        let heads = hidden.reshape(&[2, 3, 2, 3]).unwrap();
        let heads = heads.transpose(&[0, 2, 1, 3]).unwrap();
        let merged = heads.exp().unwrap().transpose(&[0, 2, 1, 3]).unwrap();
        let merged = merged.reshape(&[6, 6]).unwrap();
        let loss = merged.mul(&x).unwrap().sum_all().unwrap();
        let gradients = backward(&loss, &[square.clone(), hidden.clone(), table.clone()]).unwrap();
        let named = [
            ("x", &x),
            ("hidden", &hidden),
            ("heads", &heads),
            ("merged", &merged),
            ("dsquare", &gradients[0]),
            ("dhidden", &gradients[1]),
            ("dtable", &gradients[2]),
        ];
        for (name, value) in named {
            trace.output(name, value);
        }
        let graph = trace.finish("step").unwrap();
        let rows = TokenRows::of(&graph, "ids").unwrap();
        assert_eq!(rows.count, 6);
        let found: Vec<&str> = graph
            .outputs
            .iter()
            .filter(|output| {
                let node = output.node as usize;
                rows.are_rows_of(node, &graph.nodes[node].shape)
            })
            .map(|output| output.name.as_str())
            .collect();
        assert_eq!(found, ["x", "hidden", "merged", "dhidden"]);
        assert!(TokenRows::of(&graph, "none").is_none());
    }
}
