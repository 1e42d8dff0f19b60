//! What is known of a call: its name, results, FLOPs, aliases, and how it is emitted.

use crate::dtype::DType;
use crate::shape::Shape;

/// A call of a library of a target's. A new one is a file beside this with its attributes and this
/// trait, a line of the table in `op/calls/mod.rs`, and the place that records it ([`crate::passes`], or
/// `nn/` where it computes a composite).
pub trait CallSpec {
    /// Its name in messages, descriptions and HLO metadata.
    fn name(&self) -> &'static str;

    /// The shapes of its results over operands of these shapes.
    ///
    /// # Errors
    /// If it does not take them: a sentence that says why.
    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String>;

    /// Whether it gives a tuple. The result of another is its value.
    fn is_tuple(&self) -> bool {
        false
    }

    /// The floating-point operations of its matmuls, and the type of the numbers that these multiply.
    fn flops(&self, _operands: &[&Shape]) -> Option<(f64, DType)> {
        None
    }

    /// Results that come in the place of an operand, which nothing else may need any more: result and
    /// operand.
    fn aliases(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// The layout of a result of this shape, minor to major.
    fn layout(&self, result: &Shape) -> Vec<usize> {
        (0..result.rank()).rev().collect()
    }

    /// The custom call by which its compiler knows it.
    ///
    /// # Errors
    /// If the library cannot compute it: a sentence that says why.
    fn emission(&self, operands: &[&Shape]) -> Result<Emission, String>;
}

/// A custom call as HLO has it. Operands are row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Its target: the name under which the compiler or the plugin looks it up.
    pub target: String,
    /// Its `backend_config`.
    pub config: String,
}

impl Emission {
    pub(super) fn new(target: impl Into<String>, config: String) -> Self {
        Emission {
            target: target.into(),
            config,
        }
    }
}

/// Whose calls they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Kernels of the CPU plugin's own, which it registers as typed FFI handlers
    /// (`native/cpp/kernels/calls.cc`).
    Plugin,
    /// cuDNN, whose calls XLA:GPU rewrites. They have one result more, a workspace that it gives its size.
    Cudnn,
}

/// Numbers as an attribute of a typed FFI call, as MLIR writes it.
pub(super) fn array<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
