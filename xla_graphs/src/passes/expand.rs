//! Writes composites out as primitives. Before: any graph. After: no composite is left, equal nodes are merged (which is what
//! lets the separate gradient nodes of one composite share its intermediate values).

use crate::error::Result;
use crate::graph::Graph;
use crate::nn::{attention, dropout, gelu, layer_norm, loss, softmax};
use crate::op::Op;
use crate::target::Target;
use crate::trace::Tensor;

pub(super) fn expand(graph: &Graph, _target: Target) -> Result<Graph> {
    graph.rebuild(|trace, node, x| match &node.op {
        Op::RandomBits { dims, place } => dropout::expand_bits(trace, &x[0], dims, *place),
        Op::LayerNorm { eps } => layer_norm::expand(*eps, x),
        Op::LayerNormGrad { eps } => layer_norm::expand_grad(*eps, x),
        Op::LayerNormScaleGrad { eps } => layer_norm::expand_scale_grad(*eps, x),
        Op::Gelu(kind) => gelu::expand(*kind, &x[0]),
        Op::GeluGrad(kind) => gelu::expand_grad(*kind, &x[0], &x[1]),
        Op::Softmax => softmax::expand(&x[0]),
        Op::SoftmaxGrad => softmax::expand_grad(&x[0], &x[1]),
        Op::CrossEntropy { ignore } => loss::expand(*ignore, x),
        Op::CrossEntropyGrad { ignore } => loss::expand_grad(*ignore, x),
        Op::Attention(of) => attention::expand(of, x),
        Op::AttentionGrad { of, operand } => attention::expand_grad(of, *operand, x),
        // It has done its work when the gradients were recorded.
        Op::StopGradient => Ok(x[0].clone()),
        primitive => trace.record(primitive.clone(), &x.iter().collect::<Vec<&Tensor>>()),
    })
}
