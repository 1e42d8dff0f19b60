//! Matmuls as calls of the CPU plugin's own kernels (`native/cpp/kernels`), where the processor has
//! one and the matmul is large enough to gain.
//!
//! XLA fuses nothing into a call and folds no transposition into its operands, and a kernel needs
//! neither: it reads operands by strides, rounds f32 to bf16 while it packs, and writes bf16 or f32
//! in any order of dimensions whose last stays contiguous. So what stood around the dot goes: the
//! transpositions of its operands and of its result, the conversion of a weight to bf16, the
//! conversion of a result that is written in f32 otherwise, the addition of a bias, with which the sums
//! begin, and the addition to another matmul's result, whose sums go on.
//!
//! Before: primitives. After: the same, sums in another order; what is not taken stays a dot.

use super::rebuild::{Readers, record};
use crate::cost_model::CostModel;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::op::{Binary, CpuKernel, DotDims, KernelMatmul, MatmulStart, Op};
use crate::shape::Shape;
use crate::target::{CpuKernels, Target};
use crate::trace::Tensor;
use std::collections::HashMap;

pub(super) fn rewrite(graph: &Graph, target: Target) -> Result<Graph> {
    let Target::Cpu(kernels) = target else {
        return Ok(graph.clone());
    };
    if (kernels.bf16, kernels.f32) == (None, None) {
        return Ok(graph.clone());
    }
    let readers = Readers::of(graph);
    // What calls have done already, by the node that would do it: the call's result.
    let mut done: HashMap<NodeId, Tensor> = HashMap::new();
    let order: Vec<NodeId> = (0..graph.nodes.len() as NodeId).collect();
    graph.rebuild_in(&order, |trace, id, replaced| {
        if let Some(result) = done.remove(&id) {
            return Ok(result);
        }
        let node = &graph.nodes[id as usize];
        let operands = node.operands.iter().map(|&operand| replaced.get(operand));
        let x: Vec<Tensor> = operands.collect();
        match &node.op {
            Op::Dot { dims, dtype, .. } => {
                let after = readers.after(graph, id, *dtype);
                let Some((mut call, operands, is_turned)) = matmul(kernels, &x, dims, &after)
                else {
                    return x[0].dot_general(&x[1], dims.clone(), *dtype);
                };
                let mut operands = operands.to_vec();
                let turn = is_turned.then_some(after.turn).flatten();
                if let Some(bias) = readers.bias(graph, id, &call) {
                    call.start = MatmulStart::Bias;
                    call.shape.dtype = bias.dtype;
                    operands.push(replaced.get(bias.operand));
                    let operands: Vec<&Tensor> = operands.iter().collect();
                    let result = trace.call(call, &operands)?;
                    done.extend(bias.nodes.into_iter().map(|node| (node, result.clone())));
                    return Ok(result);
                }
                let sum = readers.sum(graph, turn.unwrap_or(id));
                let sum = sum.filter(|_| is_turned || after.turn.is_none());
                let sum = sum.map(|(addition, other)| (addition, replaced.get(other)));
                let sum = sum.filter(|(_, other)| {
                    other.node().op.call::<KernelMatmul>().is_some() && *other.shape() == call.shape
                });
                if let Some((_, other)) = &sum {
                    call.start = MatmulStart::Result;
                    operands.push(other.clone());
                }
                let operands: Vec<&Tensor> = operands.iter().collect();
                let result = trace.call(call, &operands)?;
                let by_the_call = turn.into_iter().chain(sum.map(|(addition, _)| addition));
                done.extend(by_the_call.map(|node| (node, result.clone())));
                Ok(result)
            }
            op => record(trace, op, &x),
        }
    })
}

/// What becomes of a dot's result.
struct After {
    /// It is transposed so, and not read otherwise.
    perm: Option<Vec<usize>>,
    /// The node that transposes it.
    turn: Option<NodeId>,
    /// The type in which it is wanted.
    dtype: DType,
}

/// A bias that is added to a dot's result.
struct Bias {
    /// The bias, `f32[n]`.
    operand: NodeId,
    /// The addition, and the conversion of what it gives, if nothing else reads that.
    nodes: Vec<NodeId>,
    /// The type in which the sum is wanted.
    dtype: DType,
}

impl Readers {
    /// Whether XLA converts a node to f32 where it is read, for nothing.
    fn is_fused(&self, graph: &Graph, id: NodeId) -> bool {
        let is_fused = |&reader: &NodeId| match graph.nodes[reader as usize].op {
            // Of two matmuls' results a call makes the sum, in f32.
            Op::Binary(op) => op != Binary::Add,
            Op::Unary(_) | Op::PassStep(_) => true,
            _ => false,
        };
        !self.is_output(id) && self.all(id).iter().all(is_fused)
    }

    fn after(&self, graph: &Graph, id: NodeId, dtype: DType) -> After {
        let sole = |id: NodeId| {
            self.sole(id)
                .map(|reader| (reader, &graph.nodes[reader as usize].op))
        };
        let (perm, at) = match sole(id) {
            Some((reader, Op::Transpose(perm))) => (Some(perm.clone()), reader),
            _ => (None, id),
        };
        let dtype = match sole(at) {
            Some((wide, Op::Convert(DType::F32))) if !self.is_fused(graph, wide) => DType::F32,
            _ => dtype,
        };
        let turn = perm.is_some().then_some(at);
        After { perm, turn, dtype }
    }

    /// Where nothing else reads a dot than the addition of a bias to what `call` makes of it.
    fn bias(&self, graph: &Graph, id: NodeId, call: &KernelMatmul) -> Option<Bias> {
        let node = |id: NodeId| &graph.nodes[id as usize];
        let converted = self
            .sole(id)
            .filter(|&wide| node(wide).op == Op::Convert(DType::F32));
        let result = converted.unwrap_or(id);
        let addition = self.sole(result)?;
        let wide = node(addition);
        let is_sum = wide.op == Op::Binary(Binary::Add) && wide.shape.dtype == DType::F32;
        let other = *wide.operands.iter().find(|other| **other != result)?;
        let Op::Broadcast { map, .. } = &node(other).op else {
            return None;
        };
        let operand = node(other).operands[0];
        let last = wide.shape.rank() - 1;
        let n = call.sizes[3];
        let is_bias = map[..] == [last] && wide.shape.dims[last] == n;
        let is_plain =
            call.shape == wide.shape && call.sizes[..2] == [1, 1] && call.c_strides[2] == n;
        if !is_sum || !is_bias || !is_plain || operand >= id {
            return None;
        }
        let low = self
            .sole(addition)
            .filter(|&low| node(low).op == Op::Convert(DType::BF16));
        let low = low.filter(|_| call.kernel.dtype() == DType::BF16);
        Some(Bias {
            operand,
            dtype: if low.is_some() {
                DType::BF16
            } else {
                DType::F32
            },
            nodes: converted.into_iter().chain([addition]).chain(low).collect(),
        })
    }

    /// Where nothing else reads a node of f32 than its addition to a node before it, which nothing else
    /// reads either: the addition, and that node.
    fn sum(&self, graph: &Graph, id: NodeId) -> Option<(NodeId, NodeId)> {
        let addition = self.sole(id)?;
        let node = &graph.nodes[addition as usize];
        let other = node.operands.iter().copied().find(|other| *other != id)?;
        let is_sum = matches!(node.op, Op::Binary(Binary::Add))
            && node.shape.dtype == DType::F32
            && other < id
            && self.sole(other) == Some(addition);
        is_sum.then_some((addition, other))
    }
}

/// The call for a dot over `x`, its operands, and whether its result is transposed already; `None`
/// where the dot is better off with XLA.
fn matmul(
    kernels: CpuKernels,
    x: &[Tensor],
    dims: &DotDims,
    after: &After,
) -> Option<(KernelMatmul, [Tensor; 2], bool)> {
    let kernel = match x[0].dtype() {
        DType::BF16 => kernels.bf16?,
        DType::F32 => kernels.f32?,
        _ => return None,
    };
    if !matches!(after.dtype, DType::BF16 | DType::F32) {
        return None;
    }
    // Views need not have the strides that a kernel takes; the operands as they are always do.
    for is_view in [true, false] {
        let [a, b] = [0, 1].map(|i| {
            if is_view {
                View::of(&x[i])
            } else {
                View::plain(&x[i])
            }
        });
        for perm in [after.perm.as_deref(), None] {
            // A transposition that stays outside comes before the conversion.
            let is_turned = perm.is_some();
            let dtype = if is_turned || after.perm.is_none() {
                after.dtype
            } else {
                x[0].dtype()
            };
            if let Some((mut call, is_swapped)) =
                strided(kernel, [&x[0], &x[1]], [&a, &b], dims, perm, dtype)
            {
                let costs = CostModel::of(kernels);
                if !costs.matmul_pays(&call) {
                    return None;
                }
                if !costs.fills_tiles(&call) {
                    call.kernel = call.kernel.without_tiles();
                }
                let (a, b) = (a.base, b.base);
                let operands = if is_swapped { [b, a] } else { [a, b] };
                return Some((call, operands, is_turned));
            }
        }
    }
    None
}

/// An operand as what it is made from lies in memory.
struct View {
    base: Tensor,
    /// In elements of `base`, for each dimension of the operand.
    strides: Vec<usize>,
}

impl View {
    fn plain(x: &Tensor) -> View {
        View {
            base: x.clone(),
            strides: row_major(x.dims()),
        }
    }

    /// Through transpositions, and through the conversion of an input to bf16: what is computed
    /// is converted where it is computed, for less.
    fn of(x: &Tensor) -> View {
        let mut base = x.clone();
        // Dimension i of x is dimension map[i] of the base.
        let mut map: Vec<usize> = (0..x.rank()).collect();
        loop {
            let node = base.node();
            let operand = |i: usize| base.trace().tensor(node.operands[i]);
            match &node.op {
                Op::Transpose(perm) => {
                    map.iter_mut().for_each(|dim| *dim = perm[*dim]);
                    base = operand(0);
                }
                Op::Convert(DType::BF16) if is_f32_input(&operand(0)) => base = operand(0),
                _ => break,
            }
        }
        let strides = row_major(base.dims());
        View {
            strides: map.iter().map(|&dim| strides[dim]).collect(),
            base,
        }
    }
}

fn is_f32_input(x: &Tensor) -> bool {
    let node = x.node();
    match node.op {
        Op::Input(_) => x.dtype() == DType::F32,
        Op::Transpose(_) => is_f32_input(&x.trace().tensor(node.operands[0])),
        _ => false,
    }
}

fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

/// A dimension of a matmul, and its stride in A, B and C: 0 where it does not occur.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    strides: [usize; 3],
}

/// The axes with neighbours merged that are one axis in all operands.
fn merged(mut axes: Vec<Axis>) -> Vec<Axis> {
    axes.retain(|axis| axis.size != 1);
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.strides.iter().sum::<usize>()));
    let mut all: Vec<Axis> = Vec::new();
    for inner in axes {
        match all.last_mut() {
            Some(outer) if (0..3).all(|i| outer.strides[i] == inner.strides[i] * inner.size) => {
                *outer = Axis {
                    size: outer.size * inner.size,
                    ..inner
                }
            }
            _ => all.push(inner),
        }
    }
    all
}

/// The dot as a strided matmul, and whether A and B change places in it; `None` where strides are
/// not those of one.
fn strided(
    kernel: CpuKernel,
    [lhs, rhs]: [&Tensor; 2],
    [a, b]: [&View; 2],
    dims: &DotDims,
    perm: Option<&[usize]>,
    dtype: DType,
) -> Option<(KernelMatmul, bool)> {
    let free = |x: &Tensor, batch: &[usize], contracting: &[usize]| -> Vec<usize> {
        (0..x.rank())
            .filter(|dim| !batch.contains(dim) && !contracting.contains(dim))
            .collect()
    };
    let of_m = free(lhs, &dims.lhs_batch, &dims.lhs_contracting);
    let of_n = free(rhs, &dims.rhs_batch, &dims.rhs_contracting);
    let plain: Vec<usize> = dims
        .lhs_batch
        .iter()
        .chain(&of_m)
        .map(|&dim| lhs.dims()[dim])
        .chain(of_n.iter().map(|&dim| rhs.dims()[dim]))
        .collect();
    let out: Vec<usize> = match perm {
        Some(perm) => perm.iter().map(|&dim| plain[dim]).collect(),
        None => plain.clone(),
    };
    // By the dimensions of the dot's own result.
    let mut c = row_major(&out);
    if let Some(perm) = perm {
        let of_out = c.clone();
        perm.iter()
            .zip(of_out)
            .for_each(|(&dim, stride)| c[dim] = stride);
    }
    let batches = dims.lhs_batch.len();
    let batch = dims.lhs_batch.iter().zip(&dims.rhs_batch).zip(&c);
    let batch = batch.map(|((&l, &r), &c)| Axis {
        size: lhs.dims()[l],
        strides: [a.strides[l], b.strides[r], c],
    });
    let m = of_m.iter().zip(&c[batches..]).map(|(&dim, &c)| Axis {
        size: lhs.dims()[dim],
        strides: [a.strides[dim], 0, c],
    });
    let n = of_n.iter().zip(&c[batches + of_m.len()..]);
    let n = n.map(|(&dim, &c)| Axis {
        size: rhs.dims()[dim],
        strides: [0, b.strides[dim], c],
    });
    let k = dims.lhs_contracting.iter().zip(&dims.rhs_contracting);
    let k = k.map(|(&l, &r)| Axis {
        size: lhs.dims()[l],
        strides: [a.strides[l], b.strides[r], 0],
    });
    // One axis each, of size 1 if there is none.
    let one = |axes: Vec<Axis>| match merged(axes)[..] {
        [] => Some(Axis {
            size: 1,
            strides: [1; 3],
        }),
        [axis] => Some(axis),
        _ => None,
    };
    let (m, n, k) = (one(m.collect())?, one(n.collect())?, one(k.collect())?);
    let none = Axis {
        size: 1,
        strides: [0; 3],
    };
    let (p, q) = match merged(batch.collect())[..] {
        [] => (none, none),
        [q] => (none, q),
        [p, q] => (p, q),
        _ => return None,
    };
    if [p, q, m, n, k].iter().any(|axis| axis.size == 0) {
        return None;
    }
    let is_swapped = n.strides[2] != 1;
    let (m, n, a, b) = if is_swapped {
        (n, m, 1, 0)
    } else {
        (m, n, 0, 1)
    };
    let call = KernelMatmul {
        kernel,
        sizes: [p, q, m, n, k].map(|axis| axis.size),
        a_strides: [p, q, m, k].map(|axis| axis.strides[a]),
        b_strides: [p, q, k, n].map(|axis| axis.strides[b]),
        c_strides: [p, q, m, n].map(|axis| axis.strides[2]),
        start: MatmulStart::Zero,
        sums: None,
        shape: Shape::new(dtype, out),
    };
    call.is_contiguous().then_some((call, is_swapped))
}
