//! The attributes of operations: functions, orders, constants, dimensions, groups of replicas.

use serde::{Deserialize, Serialize};

/// An `f64` attribute that compares and hashes by its bits, so that it can be part of a
/// fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct F64(u64);

impl F64 {
    /// The attribute of this value.
    pub fn new(value: f64) -> Self {
        F64(value.to_bits())
    }

    /// Its value.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for F64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Element-wise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unary {
    /// `-x`, of integers and floats.
    Neg,
    /// `e^x`, of floats.
    Exp,
    /// Natural logarithm, of floats; NaN below 0.
    Log,
    /// `log(1 + x)`, exact near 0, of floats.
    Log1p,
    /// Hyperbolic tangent, of floats.
    Tanh,
    /// Square root, of floats.
    Sqrt,
    /// `1 / sqrt(x)`, of floats.
    Rsqrt,
    /// Error function, of floats.
    Erf,
    /// `1 / (1 + e^-x)`, of floats: sigmoid.
    Logistic,
    /// Sine of radians, of floats.
    Sin,
    /// Cosine of radians, of floats.
    Cos,
    /// `|x|`, of integers and floats.
    Abs,
    /// -1, 0 or 1 by the sign of `x`; the gradient is 0.
    Sign,
    /// Rounds floats towards minus infinity; the gradient is 0.
    Floor,
    /// Logical negation of `pred`, bitwise of integers.
    Not,
    /// Neither infinite nor NaN: floats to `pred`.
    IsFinite,
}

/// Element-wise functions of two operands of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Binary {
    /// `a + b`, of integers and floats; integers wrap.
    Add,
    /// `a - b`, of integers and floats; integers wrap.
    Sub,
    /// `a * b`, of integers and floats; integers wrap.
    Mul,
    /// `a / b`; integers round towards 0.
    Div,
    /// The larger of two; NaN if one is NaN. The gradient of a tie goes to the first operand.
    Max,
    /// The smaller of two; NaN if one is NaN. The gradient of a tie goes to the first operand.
    Min,
    /// `a^b`, of floats.
    Pow,
    /// The remainder of `a / b`, with the sign of `a`; it has no gradient rule.
    Rem,
    /// Logical and of `pred`, bitwise of integers.
    And,
    /// Logical or of `pred`, bitwise of integers.
    Or,
    /// Logical exclusive or of `pred`, bitwise of integers.
    Xor,
    /// `a << b`, of integers; 0 from a shift by the word's size on.
    ShiftLeft,
    /// `a >> b` with zeros shifted in, of integers; 0 from a shift by the word's size on.
    ShiftRightLogical,
}

/// Orders of two operands of one shape; the result is `pred`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Comparison {
    /// `a == b`; false if one is NaN.
    Eq,
    /// `a != b`; true if one is NaN.
    Ne,
    /// `a < b`; false if one is NaN.
    Lt,
    /// `a <= b`; false if one is NaN.
    Le,
    /// `a > b`; false if one is NaN.
    Gt,
    /// `a >= b`; false if one is NaN.
    Ge,
}

/// How elements along the reduced dimensions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reduction {
    /// Added up; 0 of no elements.
    Sum,
    /// The largest; minus infinity (or the least integer) of no elements.
    Max,
    /// The smallest; infinity (or the largest integer) of no elements.
    Min,
}

/// A scalar constant's value; the element type is the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scalar {
    /// Of the float types; rounded to the node's.
    Float(F64),
    /// Of the integer types.
    Int(i64),
    /// Of `pred`.
    Bool(bool),
}

/// Contracting and batch dimensions of a general dot product, as `DotDimensionNumbers` has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct DotDims {
    /// Dimensions of the left operand that are summed over, in pairs with `rhs_contracting`.
    pub lhs_contracting: Vec<usize>,
    /// Dimensions of the right operand that are summed over.
    pub rhs_contracting: Vec<usize>,
    /// Dimensions of the left operand that both have, in pairs with `rhs_batch`; first in the
    /// result.
    pub lhs_batch: Vec<usize>,
    /// Dimensions of the right operand that both have.
    pub rhs_batch: Vec<usize>,
}

/// The two forms of the Gaussian error linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Gelu {
    /// `x * 0.5 * (1 + erf(x / sqrt 2))`: transformers' `gelu`.
    Erf,
    /// The tanh approximation: `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`.
    Tanh,
}

/// Which replicas a collective goes between.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicaGroups {
    /// Replica numbers; every replica is in exactly one group, and all groups have one size.
    pub groups: Vec<Vec<u32>>,
    /// Collectives that stand side by side under one number become one instruction, so that small
    /// tensors share its cost.
    pub bucket: u32,
}
