//! Attention as one call of NVIDIA's cuDNN, forward and backward, that never writes the scores to
//! memory (Dao et al. 2022). `op/calls/fused_attention.rs` is the call; here stands when it is used.
//!
//! The calls read `[B, T, H, D]`, as the projections before them write it, so the turn to
//! `[B, H, T, D]` that the models record is turned back and costs nothing. Dropout is only for
//! targets that ask for it (`CudaTarget::fused_dropout`): the library draws masks that are neither
//! ours nor the same after a resume. A key mask becomes a bias of very negative numbers: any mask
//! is right, and a row that sees no key is uniform, as in the plain form (with fp16 operands it is
//! as if unmasked: fp16 has no numbers so low). Grouped queries need no copies of keys and values: the
//! calls take fewer heads of them, and give gradients of as many.

use super::call_result;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Graph;
use crate::op::{
    Attention, AttentionOperand, AttentionOperands, Comparison, Composite, FusedAttention,
    FusedDropout, KeyMask, Op,
};
use crate::provenance::Phase;
use crate::shape::Shape;
use crate::target::Target;
use crate::trace::Tensor;

/// Between `[B, H, T, D]` and `[B, T, H, D]`.
const TURN: [usize; 4] = [0, 2, 1, 3];

/// Keys or values `[B, K, S, D]` with a copy of its own for each of `heads` query heads.
pub(crate) fn repeat_heads(kv: &Tensor, heads: usize) -> Result<Tensor> {
    let [b, kv_heads, s, d] = [0, 1, 2, 3].map(|dim| kv.dims()[dim]);
    if kv_heads == heads {
        return Ok(kv.clone());
    }
    kv.broadcast_in(&[b, kv_heads, heads / kv_heads, s, d], &[0, 1, 3, 4])?
        .reshape(&[b, heads, s, d])
}

/// The gradient of [`repeat_heads`]: sums `[B, H, S, D]` over the copies of each of `kv_heads`, in
/// f32.
pub(crate) fn sum_heads(grad: &Tensor, kv_heads: usize) -> Result<Tensor> {
    let [b, heads, s, d] = [0, 1, 2, 3].map(|dim| grad.dims()[dim]);
    if kv_heads == heads {
        return Ok(grad.clone());
    }
    let low = grad.dtype();
    grad.reshape(&[b, kv_heads, heads / kv_heads, s, d])?
        .convert(DType::F32)?
        .sum(&[2])?
        .convert(low)
}

/// Whether the target has a call for this attention over `q` and `k` (`[B, H, T, D]`,
/// `[B, K, S, D]`).
pub(crate) fn applies(attention: &Attention, q: &Shape, k: &Shape, target: Target) -> bool {
    let Some(largest_head) = target.fused_attention_head() else {
        return false;
    };
    let [t, d, s] = [q.dims[2], q.dims[3], k.dims[2]];
    matches!(q.dtype, DType::BF16 | DType::F16)
        && (attention.dropout.is_none() || target.fuses_dropout())
        && takes_window(attention, s)
        // There is no soft cap.
        && attention.soft_cap.is_none()
        && d.is_multiple_of(8)
        && d <= largest_head
        && (!attention.causal || t == s)
        // Backward with a bias is there for even lengths only.
        && (!attention.key_mask.is_some() || (t.is_multiple_of(2) && s.is_multiple_of(2)))
        && q.elements() > 0
        && k.elements() > 0
}

/// The attentions of a graph that are written out for their dropout alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfusedDropout {
    /// How many there are.
    pub attentions: usize,
    /// Bytes of the scores of all of them in f32, which a call would not write.
    pub score_bytes: u64,
}

impl UnfusedDropout {
    /// Those of a graph as a run executes it; `None` where dropout turns no call off.
    pub fn of(graph: &Graph, target: Target) -> Option<UnfusedDropout> {
        let mut found = UnfusedDropout {
            attentions: 0,
            score_bytes: 0,
        };
        for node in &graph.nodes {
            let Op::Composite(Composite::Attention(attention)) = &node.op else {
                continue;
            };
            // A recomputed attention is the same one again.
            if node.provenance.phase != Phase::Forward {
                continue;
            }
            let [q, k] = [0, 1].map(|place| &graph.nodes[node.operands[place] as usize].shape);
            let without = Attention {
                dropout: None,
                ..*attention
            };
            if !applies(attention, q, k, target) && applies(&without, q, k, target) {
                let scores = q.dims[..3].iter().product::<usize>() * k.dims[2];
                found.attentions += 1;
                found.score_bytes += (scores * DType::F32.size()) as u64;
            }
        }
        (found.attentions > 0).then_some(found)
    }
}

/// Whether the call leaves the keys out that the window does. It looks back from causal attention
/// only. With a key mask beside it, rows that see no key would not be uniform over the keys that
/// transformers has.
fn takes_window(attention: &Attention, keys: usize) -> bool {
    match window(attention, keys) {
        None => true,
        Some(window) => window > 0 && attention.causal && attention.key_mask != KeyMask::Keys,
    }
}

/// A window that some key lies outside of.
fn window(attention: &Attention, keys: usize) -> Option<u32> {
    attention
        .window
        .filter(|&window| (window as usize) < keys || !attention.causal)
}

/// Results of the forward call by their index.
const OUT: usize = 0;
const STATISTICS: usize = 1;

/// The forward call with its operands, which the backward call takes too.
struct Call {
    of: FusedAttention,
    /// q, k, v in `[B, T, H, D]`.
    turned: Vec<Tensor>,
    bias: Option<Tensor>,
    call: Tensor,
}

impl Call {
    /// Records the forward call; recorded twice, it is one. Its dropout draws a mask of its own.
    fn new(attention: &Attention, x: &AttentionOperands<Tensor>) -> Result<Call> {
        let turned = [&x.q, &x.k, &x.v]
            .into_iter()
            .map(|x| x.transpose(&TURN))
            .collect::<Result<Vec<_>>>()?;
        let keys = x.k.dims()[2];
        let mut window = window(attention, keys);
        let bias = match (attention.key_mask, &x.key_mask) {
            (KeyMask::None, _) | (_, None) => None,
            (KeyMask::Keys, Some(mask)) => {
                let dims = [x.q.dims()[0], 1, x.q.dims()[2], keys];
                Some(bias(&x.q, &mask.broadcast_in(&dims, &[0, 3])?)?)
            }
            // One mask for both: the window as well counts in an example's own tokens.
            (KeyMask::Before, Some(first)) => {
                let visible = of_examples(first, window.take())?;
                Some(bias(&x.q, &visible)?)
            }
        };
        let dropout = attention.dropout.map(|dropout| FusedDropout {
            rate: dropout.rate,
            seed: dropout.stream,
        });
        let of = FusedAttention {
            is_backward: false,
            scale: attention.scale,
            causal: attention.causal,
            window,
            bias: bias.is_some(),
            dropout,
        };
        let all: Vec<&Tensor> = turned.iter().chain(&bias).collect();
        let call = all[0].trace().call(of, &all)?;
        Ok(Call {
            of,
            turned,
            bias,
            call,
        })
    }
}

/// `[B, 1, T, S]`: 0 where `mask` (`pred[B, S]`) is true, else so low that it weighs nothing. Half
/// of the lowest number, since the kernel may multiply by log2(e) before it takes the exponential.
fn bias(q: &Tensor, visible: &Tensor) -> Result<Tensor> {
    let low = if q.dtype() == DType::F16 {
        -65504.0
    } else {
        half::bf16::MIN.to_f64()
    } / 2.0;
    let shape = Shape::new(q.dtype(), visible.dims());
    let trace = q.trace();
    visible.select(&trace.full(0.0, &shape)?, &trace.full(low, &shape)?)
}

/// Which keys a query sees of those up to its own, `pred[B, 1, T, T]`, given the first key of its
/// example, `s32[B, T]`.
fn of_examples(first: &Tensor, window: Option<u32>) -> Result<Tensor> {
    let [b, t] = [first.dims()[0], first.dims()[1]];
    let trace = first.trace();
    let dims = [b, 1, t, t];
    let key = trace.iota(DType::S32, &dims, 3)?;
    let visible = key.compare(Comparison::Ge, &first.broadcast_in(&dims, &[0, 2])?)?;
    let Some(window) = window else {
        return Ok(visible);
    };
    let oldest = trace
        .iota(DType::S32, &dims, 2)?
        .add_scalar(-f64::from(window))?;
    visible.and(&key.compare(Comparison::Gt, &oldest)?)
}

pub(crate) fn expand(attention: &Attention, x: &AttentionOperands<Tensor>) -> Result<Tensor> {
    call_result(&Call::new(attention, x)?.call, OUT)
}

pub(crate) fn expand_grad(
    attention: &Attention,
    operand: AttentionOperand,
    x: &AttentionOperands<Tensor>,
    dy: &Tensor,
) -> Result<Tensor> {
    let forward = Call::new(attention, x)?;
    let out = call_result(&forward.call, OUT)?.transpose(&TURN)?;
    let (statistics, dy) = (
        call_result(&forward.call, STATISTICS)?,
        dy.transpose(&TURN)?,
    );
    let all: Vec<&Tensor> = forward
        .turned
        .iter()
        .chain([&statistics, &dy])
        .chain(&forward.bias)
        .chain([&out])
        .collect();
    let of = FusedAttention {
        is_backward: true,
        ..forward.of
    };
    let call = all[0].trace().call(of, &all)?;
    call_result(&call, operand as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{AttentionDropout, F64};
    use crate::target::CudaTarget;
    use crate::{DropoutRng, InputRole, Trace, backward, passes};

    const CARD: CudaTarget = CudaTarget {
        capability: 90,
        fused_attention: true,
        fused_dropout: false,
        tf32: false,
    };
    const H200: Target = Target::Cuda(CARD);

    fn attention() -> Attention {
        Attention {
            scale: F64::new(0.125),
            causal: true,
            window: None,
            key_mask: KeyMask::None,
            dropout: None,
            soft_cap: None,
        }
    }

    /// Attention of `[2, 3, 8, 64]` with the gradients of all three operands, prepared for a
    /// target.
    fn step(of: Attention, dtype: DType, target: Target) -> Graph {
        let trace = Trace::new();
        let shape = Shape::new(dtype, [2, 3, 8, 64]);
        let [q, k, v] =
            ["q", "k", "v"].map(|name| trace.input(name, shape.clone(), InputRole::State));
        let masks = |dtype| trace.input("mask", Shape::new(dtype, [2, 8]), InputRole::Feed);
        let mask = match of.key_mask {
            KeyMask::None => None,
            KeyMask::Keys => Some(masks(DType::Pred)),
            KeyMask::Before => Some(masks(DType::S32)),
        };
        let key = trace.input("key", Shape::new(DType::U32, [2]), InputRole::Feed);
        let rate = of.dropout.map_or(0.0, |dropout| dropout.rate.get());
        let (dropout, key) = DropoutRng::keyed(key).of_attention(rate).unzip();
        let of = Attention { dropout, ..of };
        let out = q
            .attention(&k, &v, mask.as_ref(), key.as_ref(), of)
            .unwrap();
        let loss = out.convert(DType::F32).unwrap().sum_all().unwrap();
        for (name, grad) in ["q", "k", "v"]
            .iter()
            .zip(backward(&loss, &[q, k, v]).unwrap())
        {
            trace.output(*name, &grad.convert(dtype).unwrap());
        }
        trace.output("loss", &loss);
        let prepared = passes::lower(&trace.finish("test").unwrap(), target).unwrap();
        prepared.check().unwrap();
        prepared
    }

    fn calls(graph: &Graph) -> (usize, usize) {
        let all = graph
            .nodes
            .iter()
            .filter_map(|node| node.op.call::<FusedAttention>());
        let (backward, forward): (Vec<&_>, Vec<&_>) = all.partition(|of| of.is_backward);
        (forward.len(), backward.len())
    }

    #[test]
    fn one_call_each_way_serves_all_three_gradients() {
        for dtype in [DType::BF16, DType::F16] {
            assert_eq!(calls(&step(attention(), dtype, H200)), (1, 1));
            assert_eq!(
                calls(&step(
                    Attention {
                        key_mask: KeyMask::Keys,
                        ..attention()
                    },
                    dtype,
                    H200
                )),
                (1, 1)
            );
        }
        // The turn that the models record and the one here are the other's undoing.
        assert!(
            step(attention(), DType::BF16, H200)
                .nodes
                .iter()
                .all(|n| !matches!(n.op, Op::Dot { .. }))
        );
    }

    /// On request; then nothing is left of our own mask, and the calls of one attention have one
    /// seed.
    #[test]
    fn dropout_is_cudnns_where_that_is_asked_for() {
        let dropped = Attention {
            dropout: Some(AttentionDropout::by_mask(0.1)),
            ..attention()
        };
        assert_eq!(calls(&step(dropped, DType::BF16, H200)), (0, 0));
        let graph = step(
            dropped,
            DType::BF16,
            Target::Cuda(CudaTarget {
                fused_dropout: true,
                ..CARD
            }),
        );
        assert_eq!(calls(&graph), (1, 1));
        assert!(
            graph
                .nodes
                .iter()
                .all(|node| !matches!(node.op, Op::Binary(_) | Op::Compare(_)))
        );
        let seeds: Vec<Option<FusedDropout>> = graph
            .nodes
            .iter()
            .filter_map(|node| Some(node.op.call::<FusedAttention>()?.dropout))
            .collect();
        assert!(
            seeds[0].is_some_and(|dropout| dropout.rate == F64::new(0.1)) && seeds[0] == seeds[1],
            "{seeds:?}"
        );
    }

    /// Two layers' scores of [2, 3, 8, 8] in f32, of a graph before it is lowered.
    #[test]
    fn the_price_of_dropout_is_known() {
        let recorded = |rate: f64, dtype| {
            let trace = Trace::new();
            let shape = Shape::new(dtype, [2, 3, 8, 64]);
            let [q, k, v] =
                ["q", "k", "v"].map(|name| trace.input(name, shape.clone(), InputRole::State));
            let key = trace.input("key", Shape::new(DType::U32, [2]), InputRole::Feed);
            let rng = DropoutRng::keyed(key);
            let mut x = q;
            for _ in 0..2 {
                let (dropout, key) = rng.of_attention(rate).unzip();
                let of = Attention {
                    dropout,
                    ..attention()
                };
                x = x.attention(&k, &v, None, key.as_ref(), of).unwrap();
            }
            trace.output("out", &x);
            trace.finish("test").unwrap()
        };
        let dropped = recorded(0.1, DType::BF16);
        let price = UnfusedDropout {
            attentions: 2,
            score_bytes: 2 * 2 * 3 * 8 * 8 * 4,
        };
        assert_eq!(UnfusedDropout::of(&dropped, H200), Some(price));
        let by_cudnn = Target::Cuda(CudaTarget {
            fused_dropout: true,
            ..CARD
        });
        assert_eq!(UnfusedDropout::of(&dropped, by_cudnn), None);
        assert_eq!(UnfusedDropout::of(&dropped, Target::CPU), None);
        // Without dropout there is a call, and in f32 there is none anyway.
        for fused_or_not in [recorded(0.0, DType::BF16), recorded(0.1, DType::F32)] {
            assert_eq!(UnfusedDropout::of(&fused_or_not, H200), None);
        }
    }

    /// Four query heads on two of keys and values: the calls read them without copies, and give their
    /// gradients as they are.
    #[test]
    fn grouped_queries_need_no_copies_of_their_keys() {
        let trace = Trace::new();
        let input = |name, heads| {
            trace.input(
                name,
                Shape::new(DType::BF16, [2, heads, 8, 64]),
                InputRole::State,
            )
        };
        let (q, k, v) = (input("q", 4), input("k", 2), input("v", 2));
        let out = q.attention(&k, &v, None, None, attention()).unwrap();
        let loss = out.convert(DType::F32).unwrap().sum_all().unwrap();
        for (name, grad) in ["q", "k", "v"]
            .iter()
            .zip(backward(&loss, &[q, k, v]).unwrap())
        {
            trace.output(*name, &grad);
        }
        let graph = passes::lower(&trace.finish("test").unwrap(), H200).unwrap();
        graph.check().unwrap();
        assert_eq!(calls(&graph), (1, 1));
        for node in &graph.nodes {
            if node.op.call::<FusedAttention>().is_some() {
                let heads = |place: usize| graph.nodes[node.operands[place] as usize].shape.dims[2];
                assert_eq!([0, 1, 2].map(heads), [4, 2, 2]);
            }
            // Nothing is copied for several heads, and no gradient summed over copies.
            let copies = match &node.op {
                Op::Broadcast { dims, .. } => dims.len() > 4,
                Op::Reduce { dims, .. } => dims.len() == 1,
                _ => false,
            };
            assert!(!copies, "{node:?}");
        }
        let shapes = (0..graph.outputs.len()).map(|i| graph.output_shape(i).dims[1]);
        assert_eq!(shapes.collect::<Vec<_>>()[..3], [4, 2, 2]);
    }

    #[test]
    fn windows_look_back_from_causal_attention() {
        let windows = |of: Attention| -> Vec<Option<u32>> {
            let graph = step(of, DType::BF16, H200);
            let calls = graph
                .nodes
                .iter()
                .filter_map(|node| node.op.call::<FusedAttention>());
            calls.map(|of| of.window).collect()
        };
        let in_window = |window| Attention {
            window: Some(window),
            ..attention()
        };
        assert_eq!(windows(in_window(4)), [Some(4), Some(4)]);
        // Every key is in it.
        assert_eq!(windows(in_window(8)), [None, None]);
        let key_mask = Attention {
            key_mask: KeyMask::Keys,
            ..in_window(4)
        };
        let to_both_sides = Attention {
            causal: false,
            ..in_window(4)
        };
        for of in [key_mask, to_both_sides, in_window(0)] {
            assert_eq!(windows(of), []);
        }
        // With packed examples the mask has it.
        let packed = Attention {
            key_mask: KeyMask::Before,
            ..in_window(4)
        };
        assert_eq!(windows(packed), [None, None]);
    }

    #[test]
    fn what_cudnn_does_not_take_is_written_out() {
        assert_eq!(calls(&step(attention(), DType::F32, H200)), (0, 0));
        assert_eq!(calls(&step(attention(), DType::BF16, Target::CPU)), (0, 0));
        let plain = Target::Cuda(CudaTarget {
            fused_attention: false,
            ..CARD
        });
        assert_eq!(calls(&step(attention(), DType::BF16, plain)), (0, 0));
        let shape = |dims: [usize; 4]| Shape::new(DType::BF16, dims);
        let takes = |of: Attention, q: [usize; 4], s: usize, capability| {
            let k = shape([q[0], q[1], s, q[3]]);
            applies(
                &of,
                &shape(q),
                &k,
                Target::Cuda(CudaTarget { capability, ..CARD }),
            )
        };
        assert!(
            takes(attention(), [1, 1, 8, 256], 8, 90) && !takes(attention(), [1, 1, 8, 256], 8, 80)
        );
        assert!(
            takes(attention(), [1, 1, 8, 128], 8, 80) && !takes(attention(), [1, 1, 8, 128], 8, 75)
        );
        assert!(
            !takes(attention(), [1, 1, 8, 65], 8, 90) && !takes(attention(), [1, 1, 8, 64], 9, 90)
        );
        let dropout = Attention {
            dropout: Some(AttentionDropout::by_mask(0.1)),
            ..attention()
        };
        assert!(!takes(dropout, [1, 1, 8, 64], 8, 90));
        let masked = Attention {
            key_mask: KeyMask::Keys,
            causal: false,
            ..attention()
        };
        assert!(takes(masked, [1, 1, 8, 64], 6, 90) && !takes(masked, [1, 1, 7, 64], 6, 90));
    }
}
