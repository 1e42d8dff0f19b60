//! What can go wrong while a graph is recorded, differentiated or encoded.

use crate::shape::Shape;
use std::panic::Location;

/// Errors of the graph layer. Shape errors carry the operation, the operands, the model path and
/// the source line.
#[allow(missing_docs, reason = "each message says what its fields are")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{op} in {scope}: {message}; operands {operands} (recorded at {location})")]
    Shape {
        op: String,
        scope: String,
        operands: String,
        message: String,
        location: String,
    },
    #[error(
        "{op} in {scope} has no gradient, but one is needed on the way to the loss (recorded at {location})"
    )]
    NoGradient {
        op: String,
        scope: String,
        location: String,
    },
    #[error(
        "the gradient rule of {op} in {scope} gave {found} for an operand of shape {expected}: a defect of that rule"
    )]
    GradientShape {
        op: String,
        scope: String,
        expected: String,
        found: String,
    },
    #[error("backward needs a scalar loss of a float type, got {shape}")]
    Loss { shape: String },
    #[error(
        "two tensors of different traces meet in {op}: a tensor does not outlive its step's mark_step"
    )]
    ForeignTensor { op: String },
    #[error("state `{name}` is assigned {found}, but holds {expected}")]
    StateShape {
        name: String,
        expected: String,
        found: String,
    },
    #[error(
        "the {rows} tokens of a microbatch (examples x length) do not divide between the {parts} devices of a tensor group, as \
             sequence_parallel needs: make the examples or the length a multiple of {parts}"
    )]
    Rows { rows: usize, parts: usize },
    #[error("graph bytes cannot be decoded: {message}")]
    Decode { message: String },
    #[error("{op} in {scope} of a decoded graph: {message}; operands {operands}")]
    Invalid {
        op: String,
        scope: String,
        operands: String,
        message: String,
    },
}

impl Error {
    /// An operation that cannot be recorded, where its caller stands. `scope` is a model path.
    #[track_caller]
    pub(crate) fn shape(op: &str, scope: &str, operands: &[&Shape], message: String) -> Error {
        let operands: Vec<String> = operands.iter().map(|shape| shape.to_string()).collect();
        Error::Shape {
            op: op.into(),
            scope: if scope.is_empty() { "the step" } else { scope }.into(),
            operands: if operands.is_empty() {
                "none".into()
            } else {
                operands.join(", ")
            },
            message,
            location: Location::caller().to_string(),
        }
    }
}

/// What the graph layer's functions return.
pub type Result<T> = std::result::Result<T, Error>;
