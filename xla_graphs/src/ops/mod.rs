//! Shape rules and gradient rules of every operation, by family.
//!
//! To add an operation: a variant in `op.rs`, then in one family file its shape rule, its gradient
//! rule and the `Tensor` method that records it; primitives also need a line in the emitter,
//! composites one in `passes/decompose.rs`. A call of a target's library is another matter
//! (`op/calls/spec.rs`).

mod collective;
mod dot;
mod elementwise;
mod index;
mod reduce;
mod reshape;
pub(crate) mod rule;

use crate::dtype::DType;
use crate::error::Result;
use crate::nn;
use crate::op::checks::random_key;
use crate::op::{Composite, Op, PassStep};
use crate::shape::Shape;
use crate::trace::Tensor;
use rule::{Inferred, Vjp, arity, float};

impl Op {
    /// Shape rule: the result's shape, or a sentence that says what is wrong with the operands.
    pub(crate) fn infer(&self, operands: &[&Shape]) -> Inferred {
        let arity = |n| arity(operands, n);
        match self {
            Op::Input(_) => Err("inputs are declared, not recorded".into()),
            Op::Constant { dtype, .. } => Ok(Shape::scalar(*dtype)),
            Op::Iota { dims, dim, dtype } => {
                if *dim < dims.len() {
                    Ok(Shape::new(*dtype, dims.clone()))
                } else {
                    Err(format!("dimension {dim} of a rank {} result", dims.len()))
                }
            }
            Op::Unary(op) => arity(1).and_then(|()| elementwise::infer_unary(*op, operands[0])),
            Op::Binary(op) => {
                arity(2).and_then(|()| elementwise::infer_binary(*op, operands[0], operands[1]))
            }
            Op::Compare(_) => {
                arity(2).and_then(|()| elementwise::infer_compare(operands[0], operands[1]))
            }
            Op::Select => arity(3)
                .and_then(|()| elementwise::infer_select(operands[0], operands[1], operands[2])),
            Op::Convert(dtype) => arity(1).map(|()| operands[0].with_dtype(*dtype)),
            Op::Bitcast(dtype) => {
                arity(1).and_then(|()| elementwise::infer_bitcast(operands[0], *dtype))
            }
            Op::Reshape(dims) => arity(1).and_then(|()| reshape::infer_reshape(operands[0], dims)),
            Op::Broadcast { dims, map } => {
                arity(1).and_then(|()| reshape::infer_broadcast(operands[0], dims, map))
            }
            Op::Transpose(perm) => {
                arity(1).and_then(|()| reshape::infer_transpose(operands[0], perm))
            }
            Op::Slice { starts, limits } => {
                arity(1).and_then(|()| reshape::infer_slice(operands[0], starts, limits))
            }
            Op::Concat { dim } => reshape::infer_concat(operands, *dim),
            Op::Pad { low, high } => {
                arity(1).and_then(|()| reshape::infer_pad(operands[0], low, high))
            }
            Op::Reduce { kind, dims } => {
                arity(1).and_then(|()| reduce::infer(operands[0], *kind, dims))
            }
            Op::Dot { dims, dtype, .. } => {
                arity(2).and_then(|()| dot::infer(operands[0], operands[1], dims, *dtype))
            }
            Op::TakeRows => arity(2).and_then(|()| index::infer_take(operands[0], operands[1])),
            Op::ScatterAddRows => {
                arity(3).and_then(|()| index::infer_scatter(operands[0], operands[1], operands[2]))
            }
            Op::Barrier | Op::ToHost | Op::ToDevice => arity(1).map(|()| operands[0].clone()),
            Op::AllReduce(exchange) | Op::AllReduceMax(exchange) => {
                arity(1).and_then(|()| collective::infer_all_reduce(operands[0], exchange))
            }
            // The first result stands for the call.
            Op::Call(call) => call
                .spec()
                .results(operands)
                .map(|mut all| all.swap_remove(0)),
            // The emitter compares it with the call's.
            Op::GetTupleElement { shape, .. } => arity(1).map(|()| shape.clone()),
            Op::BarrierAfter => arity(2).map(|()| operands[0].clone()),
            Op::AllGather { dim, exchange } => {
                arity(1).and_then(|()| collective::infer_all_gather(operands[0], *dim, exchange))
            }
            Op::ReduceScatter { dim, exchange } => arity(1)
                .and_then(|()| collective::infer_reduce_scatter(operands[0], *dim, exchange)),
            Op::DynamicSlice { dim, size } => {
                arity(2).and_then(|()| index::infer_dynamic_slice(operands, *dim, *size))
            }
            Op::DynamicUpdateSlice { dim } => {
                arity(3).and_then(|()| index::infer_dynamic_update_slice(operands, *dim))
            }
            Op::PassStep(step) => match &**step {
                PassStep::Codes(part) => nn::block_codes::infer(part, operands),
                PassStep::Gelu(_) | PassStep::GeluSlope(_) => {
                    arity(1).map(|()| operands[0].clone())
                }
            },
            Op::Composite(op) => infer_composite(op, operands),
        }
    }
}

fn infer_composite(op: &Composite, operands: &[&Shape]) -> Inferred {
    let arity = |n| arity(operands, n);
    match op {
        Composite::RandomBits { dims, .. } => {
            arity(1)?;
            random_key(operands[0])?;
            Ok(Shape::new(DType::U32, &dims[..]))
        }
        Composite::Norm(of) => of.infer(operands),
        Composite::NormGrad { of, operand } => of.infer_grad(*operand, operands),
        Composite::Gelu(_) => {
            arity(1).and_then(|()| float(operands[0]).map(|()| operands[0].clone()))
        }
        Composite::GeluGrad(_) => {
            arity(2).and_then(|()| elementwise::same_floats(operands[0], operands[1]))
        }
        Composite::CrossEntropy { .. } => {
            arity(2).and_then(|()| nn::loss::infer(operands[0], operands[1]))
        }
        Composite::CrossEntropyGrad { .. } => {
            arity(3).and_then(|()| nn::loss::infer_grad(operands))
        }
        Composite::Attention(attention) => nn::attention::infer(attention, operands),
        Composite::AttentionGrad { of, operand } => {
            nn::attention::infer_grad(of, *operand, operands)
        }
        Composite::StopGradient | Composite::MasterGradient => {
            arity(1).map(|()| operands[0].clone())
        }
        Composite::BlockCodes(part) => nn::block_codes::infer(part, operands),
        Composite::Dequantize(of) => nn::dequantize::infer(*of, operands),
    }
}

/// Gradient rule: the gradients of the operands given the result's; `None` when the operation has
/// no rule at all.
pub(crate) fn vjp(v: &Vjp) -> Result<Option<Vec<Option<Tensor>>>> {
    let grads = match v.op {
        // Operations whose results carry no gradient: constants, integers, predicates, and the one
        // that is there for it.
        Op::Input(_)
        | Op::Constant { .. }
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::Composite(
            Composite::RandomBits { .. } | Composite::StopGradient | Composite::Dequantize(_),
        ) => {
            vec![None; v.operands.len()]
        }
        Op::Unary(op) => match elementwise::vjp_unary(*op, v)? {
            Some(grads) => grads,
            None => return Ok(None),
        },
        Op::Binary(op) => match elementwise::vjp_binary(*op, v)? {
            Some(grads) => grads,
            None => return Ok(None),
        },
        Op::Select => elementwise::vjp_select(v)?,
        Op::Convert(_) => elementwise::vjp_convert(v)?,
        Op::Reshape(_) => reshape::vjp_reshape(v)?,
        Op::Broadcast { map, .. } => reshape::vjp_broadcast(v, map)?,
        Op::Transpose(perm) => reshape::vjp_transpose(v, perm)?,
        Op::Slice { starts, limits } => reshape::vjp_slice(v, starts, limits)?,
        Op::Concat { dim } => reshape::vjp_concat(v, *dim)?,
        Op::Pad { low, .. } => reshape::vjp_pad(v, low)?,
        Op::Reduce { kind, dims } => reduce::vjp(v, *kind, dims)?,
        Op::Dot { dims, .. } => dot::vjp(v, dims)?,
        Op::TakeRows => index::vjp_take(v)?,
        Op::ScatterAddRows => index::vjp_scatter(v)?,
        Op::Barrier | Op::ToHost | Op::ToDevice | Op::Composite(Composite::MasterGradient) => {
            vec![Some(v.dy.clone())]
        }
        Op::BarrierAfter => vec![Some(v.dy.clone()), None],
        Op::AllGather { dim, exchange } => collective::vjp_all_gather(v, *dim, exchange)?,
        Op::ReduceScatter { dim, exchange } => collective::vjp_reduce_scatter(v, *dim, exchange)?,
        Op::AllReduce(exchange) => collective::vjp_all_reduce(v, exchange)?,
        Op::Composite(Composite::Norm(of)) => nn::norm::vjp(v, *of)?,
        Op::Composite(Composite::Gelu(kind)) => nn::gelu::vjp(v, *kind)?,
        Op::Composite(Composite::CrossEntropy { ignore }) => nn::loss::vjp(v, *ignore)?,
        Op::Composite(Composite::Attention(attention)) => nn::attention::vjp(v, attention)?,
        Op::Bitcast(_)
        | Op::Composite(
            Composite::NormGrad { .. }
            | Composite::GeluGrad(_)
            | Composite::CrossEntropyGrad { .. }
            | Composite::AttentionGrad { .. }
            | Composite::BlockCodes(_),
        )
        | Op::Call(_)
        | Op::GetTupleElement { .. }
        | Op::PassStep(_)
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice { .. }
        | Op::AllReduceMax(_) => return Ok(None),
    };
    Ok(Some(grads))
}
