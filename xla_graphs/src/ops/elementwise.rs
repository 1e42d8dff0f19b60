//! Element-wise operations: one result element from the operands' elements at the same place.

use super::rule::{Inferred, Vjp, expect, float, integer};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Binary, Comparison, Composite, Op, Unary};
use crate::shape::Shape;
use crate::trace::Tensor;

pub(super) fn infer_unary(op: Unary, x: &Shape) -> Inferred {
    match op {
        Unary::Neg | Unary::Abs | Unary::Sign if x.dtype == DType::Pred => {
            Err("not defined for pred".into())
        }
        Unary::Neg | Unary::Abs | Unary::Sign => Ok(x.clone()),
        Unary::Not if x.dtype.is_float() => Err("needs pred or integers".into()),
        Unary::Not => Ok(x.clone()),
        Unary::IsFinite => float(x).map(|()| x.with_dtype(DType::Pred)),
        _ => float(x).map(|()| x.clone()),
    }
}

pub(super) fn infer_binary(op: Binary, a: &Shape, b: &Shape) -> Inferred {
    same(a, b)?;
    match op {
        Binary::And | Binary::Or | Binary::Xor if a.dtype.is_float() => {
            Err("needs pred or integers".into())
        }
        Binary::ShiftLeft | Binary::ShiftRightLogical => integer(a).map(|()| a.clone()),
        Binary::And | Binary::Or | Binary::Xor => Ok(a.clone()),
        _ if a.dtype == DType::Pred => Err("not defined for pred".into()),
        _ => Ok(a.clone()),
    }
}

pub(super) fn infer_compare(a: &Shape, b: &Shape) -> Inferred {
    same(a, b).map(|()| a.with_dtype(DType::Pred))
}

pub(super) fn infer_select(pred: &Shape, on_true: &Shape, on_false: &Shape) -> Inferred {
    same(on_true, on_false)?;
    expect("the predicate", pred, DType::Pred, &on_true.dims)?;
    Ok(on_true.clone())
}

pub(super) fn infer_bitcast(x: &Shape, dtype: DType) -> Inferred {
    if x.dtype.size() == dtype.size() {
        Ok(x.with_dtype(dtype))
    } else {
        Err(format!("{} and {dtype} differ in size", x.dtype))
    }
}

pub(super) fn same_floats(a: &Shape, b: &Shape) -> Inferred {
    same(a, b)?;
    float(a).map(|()| a.clone())
}

fn same(a: &Shape, b: &Shape) -> std::result::Result<(), String> {
    if a == b {
        Ok(())
    } else {
        Err(format!("operands must have one shape, got {a} and {b}"))
    }
}

pub(super) fn vjp_unary(op: Unary, v: &Vjp) -> Result<Option<Vec<Option<Tensor>>>> {
    let (x, y, dy) = (&v.operands[0], v.output, v.dy);
    let dx = match op {
        Unary::Neg => dy.neg()?,
        Unary::Exp => dy.mul(y)?,
        Unary::Log => dy.div(x)?,
        Unary::Log1p => dy.div(&x.add_scalar(1.0)?)?,
        Unary::Tanh => dy.mul(&y.mul(y)?.neg()?.add_scalar(1.0)?)?,
        Unary::Sqrt => dy.div(&y.mul_scalar(2.0)?)?,
        // d x^(-1/2) = -1/2 y^3
        Unary::Rsqrt => dy.mul(&y.mul(y)?.mul(y)?.mul_scalar(-0.5)?)?,
        Unary::Erf => dy.mul(
            &x.mul(x)?
                .neg()?
                .exp()?
                .mul_scalar(std::f64::consts::FRAC_2_SQRT_PI)?,
        )?,
        Unary::Logistic => dy.mul(&y.mul(&y.neg()?.add_scalar(1.0)?)?)?,
        Unary::Sin => dy.mul(&x.cos()?)?,
        Unary::Cos => dy.mul(&x.sin()?)?.neg()?,
        Unary::Abs => dy.mul(&x.sign()?)?,
        // Piecewise constant.
        Unary::Sign | Unary::Floor => v.trace_zero(x)?,
        Unary::Not | Unary::IsFinite => return Ok(Some(vec![None])),
    };
    Ok(Some(vec![Some(dx)]))
}

pub(super) fn vjp_binary(op: Binary, v: &Vjp) -> Result<Option<Vec<Option<Tensor>>>> {
    let (a, b, y, dy) = (&v.operands[0], &v.operands[1], v.output, v.dy);
    let grads = match op {
        Binary::Add => vec![Some(dy.clone()), Some(dy.clone())],
        Binary::Sub => vec![Some(dy.clone()), v.when(1, || dy.neg())?],
        Binary::Mul => vec![v.when(0, || dy.mul(b))?, v.when(1, || dy.mul(a))?],
        Binary::Div => vec![
            v.when(0, || dy.div(b))?,
            v.when(1, || dy.mul(y)?.div(b)?.neg())?,
        ],
        Binary::Max | Binary::Min => {
            let order = if op == Binary::Max {
                Comparison::Ge
            } else {
                Comparison::Le
            };
            // A tie is the first operand's.
            let first = a.compare(order, b)?;
            let zero = v.trace_zero(a)?;
            vec![
                v.when(0, || first.select(dy, &zero))?,
                v.when(1, || first.select(&zero, dy))?,
            ]
        }
        Binary::Pow => {
            vec![
                v.when(0, || dy.mul(b)?.mul(&a.pow(&b.add_scalar(-1.0)?)?))?,
                v.when(1, || dy.mul(y)?.mul(&a.log()?))?,
            ]
        }
        Binary::And | Binary::Or | Binary::Xor | Binary::ShiftLeft | Binary::ShiftRightLogical => {
            vec![None, None]
        }
        Binary::Rem => return Ok(None),
    };
    Ok(Some(grads))
}

pub(super) fn vjp_select(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    let pred = &v.operands[0];
    let zero = v.trace_zero(v.dy)?;
    Ok(vec![
        None,
        v.when(1, || pred.select(v.dy, &zero))?,
        v.when(2, || pred.select(&zero, v.dy))?,
    ])
}

pub(super) fn vjp_convert(v: &Vjp) -> Result<Vec<Option<Tensor>>> {
    let from = v.operands[0].dtype();
    Ok(vec![if from.is_float() {
        Some(v.dy.convert(from)?)
    } else {
        None
    }])
}

impl Vjp<'_> {
    fn trace_zero(&self, like: &Tensor) -> Result<Tensor> {
        like.trace().full(0.0, like.shape())
    }
}

/// Element-wise methods. Two-operand methods broadcast as NumPy does; element types must already
/// agree.
impl Tensor {
    #[track_caller]
    fn unary(&self, op: Unary) -> Result<Tensor> {
        self.apply(Op::Unary(op), &[])
    }

    #[track_caller]
    fn binary(&self, op: Binary, other: &Tensor) -> Result<Tensor> {
        let (a, b) = self.broadcast_pair(other)?;
        a.apply(Op::Binary(op), &[&b])
    }

    #[track_caller]
    fn broadcast_pair(&self, other: &Tensor) -> Result<(Tensor, Tensor)> {
        if self.dims() == other.dims() {
            return Ok((self.clone(), other.clone()));
        }
        let rank = self.rank().max(other.rank());
        let dim =
            |t: &Tensor, i: usize| (i + t.rank()).checked_sub(rank).map_or(1, |j| t.dims()[j]);
        let dims: Vec<usize> = (0..rank)
            .map(|i| match (dim(self, i), dim(other, i)) {
                (1, b) => b,
                (a, _) => a,
            })
            .collect();
        Ok((self.broadcast_to(&dims)?, other.broadcast_to(&dims)?))
    }

    /// This tensor combined with a scalar constant of its own element type.
    #[track_caller]
    fn with_scalar(&self, op: Binary, value: f64) -> Result<Tensor> {
        let scalar = self.trace().full(value, self.shape())?;
        self.apply(Op::Binary(op), &[&scalar])
    }

    /// `pred`, true where this and `other` are in that order; size-1 dimensions repeat.
    ///
    /// # Errors
    /// If the types differ or the shapes do not broadcast.
    #[track_caller]
    pub fn compare(&self, order: Comparison, other: &Tensor) -> Result<Tensor> {
        let (a, b) = self.broadcast_pair(other)?;
        a.apply(Op::Compare(order), &[&b])
    }

    /// `pred`, true where this is in that order to `value`.
    ///
    /// # Errors
    /// As [`Trace::constant`](crate::Trace::constant).
    #[track_caller]
    pub fn compare_scalar(&self, order: Comparison, value: f64) -> Result<Tensor> {
        let scalar = self.trace().full(value, self.shape())?;
        self.apply(Op::Compare(order), &[&scalar])
    }

    /// `self ? on_true : on_false`; the predicate broadcasts to the branches.
    ///
    /// # Errors
    /// If the predicate is not `pred`, the branches differ in type, or the shapes do not broadcast.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
        let (on_true, on_false) = on_true.broadcast_pair(on_false)?;
        self.broadcast_to(on_true.dims())?
            .apply(Op::Select, &[&on_true, &on_false])
    }

    /// The same values in another element type; recorded only if it differs.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn convert(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            Ok(self.clone())
        } else {
            self.apply(Op::Convert(dtype), &[])
        }
    }

    /// The same bits as an element type of the same size.
    ///
    /// # Errors
    /// If the sizes differ.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        self.apply(Op::Bitcast(dtype), &[])
    }

    /// The identity, which XLA neither moves work across nor merges with its copies.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn barrier(&self) -> Result<Tensor> {
        self.apply(Op::Barrier, &[])
    }

    /// A copy in the host's memory, until [`Tensor::to_device`] brings it back. On targets that
    /// have such a memory.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn to_host(&self) -> Result<Tensor> {
        self.apply(Op::ToHost, &[])
    }

    /// What [`Tensor::to_host`] put away.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn to_device(&self) -> Result<Tensor> {
        self.apply(Op::ToDevice, &[])
    }

    /// This tensor, but nothing that uses the result runs before `other` is there, and the compiler
    /// takes it for another value than this one: what is computed from it is computed anew.
    ///
    /// # Errors
    /// If `other` is of another trace.
    #[track_caller]
    pub fn after(&self, other: &Tensor) -> Result<Tensor> {
        self.apply(Op::BarrierAfter, &[other])
    }

    /// `max(0, x)`, with gradient 0 at 0 as in torch and JAX. The zero is the first operand because
    /// the gradient of `maximum` goes to the first operand of a tie.
    ///
    /// # Errors
    /// If the element type is `pred`.
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        self.trace().full(0.0, self.shape())?.maximum(self)
    }

    /// The identity, through which no gradient goes back.
    ///
    /// # Errors
    /// None of its own; every method that records gives a `Result`.
    #[track_caller]
    pub fn stop_gradient(&self) -> Result<Tensor> {
        self.apply(Op::Composite(Composite::StopGradient), &[])
    }
}

macro_rules! unary_methods {
    ($($name:ident $op:ident),* $(,)?) => {
        impl Tensor {
            $(#[doc = concat!("`", stringify!($op), "` of each element ([`Unary`]).")]
            ///
            /// # Errors
            /// If the element type is not one that the function is defined for ([`Unary`]).
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                self.unary(Unary::$op)
            })*
        }
    };
}

macro_rules! binary_methods {
    ($($name:ident $op:ident),* $(,)?) => {
        impl Tensor {
            $(#[doc = concat!("`", stringify!($op), "` of each pair of elements ([`Binary`]); size-1 dimensions repeat.")]
            ///
            /// # Errors
            /// If the element types differ or are not ones that the function is defined for
            /// ([`Binary`]), or the shapes do not broadcast.
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                self.binary(Binary::$op, other)
            })*
        }
    };
}

macro_rules! scalar_methods {
    ($($name:ident $op:ident),* $(,)?) => {
        impl Tensor {
            $(#[doc = concat!("`", stringify!($op), "` of each element and `value` ([`Binary`]).")]
            ///
            /// # Errors
            /// If the element type is not one that the function is defined for ([`Binary`]).
            #[track_caller]
            pub fn $name(&self, value: f64) -> Result<Tensor> {
                self.with_scalar(Binary::$op, value)
            })*
        }
    };
}

unary_methods! {
    neg Neg, exp Exp, log Log, log1p Log1p, tanh Tanh, sqrt Sqrt, rsqrt Rsqrt, erf Erf, logistic Logistic, sin Sin,
    cos Cos, abs Abs, sign Sign, floor Floor, not Not, is_finite IsFinite,
}

binary_methods! {
    add Add, sub Sub, mul Mul, div Div, maximum Max, minimum Min, pow Pow, rem Rem, and And, or Or, xor Xor,
    shift_left ShiftLeft, shift_right_logical ShiftRightLogical,
}

scalar_methods! { add_scalar Add, mul_scalar Mul, max_scalar Max, min_scalar Min }
