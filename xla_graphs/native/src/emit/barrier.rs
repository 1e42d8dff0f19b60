//! Barriers, which XlaBuilder cannot emit: over two values, neither result is there before both
//! operands are; over one, as a dependency on nothing, which XLA keeps to the end.

use super::shapes::{row_major, shape_proto, tuple};
use crate::proto::xla::{HloInstructionProto, PrimitiveType, ShapeProto};
use xtrain_graphs::Shape;

fn dense(shape: &Shape) -> ShapeProto {
    shape_proto(shape, &row_major(shape.rank()))
}

/// The barrier over a tuple of values of these shapes.
pub(super) fn of_tuple(shapes: &[&Shape]) -> HloInstructionProto {
    let shape = Some(tuple(shapes.iter().map(|shape| dense(shape)).collect()));
    HloInstructionProto {
        opcode: "opt-barrier".into(),
        shape,
        ..Default::default()
    }
}

/// The first of its results.
pub(super) fn first(shape: &Shape) -> HloInstructionProto {
    HloInstructionProto {
        opcode: "get-tuple-element".into(),
        shape: Some(dense(shape)),
        ..Default::default()
    }
}

/// A token that waits for nothing.
pub(super) fn no_token() -> HloInstructionProto {
    let mut shape = ShapeProto::default();
    shape.set_element_type(PrimitiveType::Token);
    HloInstructionProto {
        opcode: "after-all".into(),
        shape: Some(shape),
        ..Default::default()
    }
}

/// A value of this shape that waits for a token.
pub(super) fn dependent(shape: &Shape) -> HloInstructionProto {
    HloInstructionProto {
        opcode: "add-dependency".into(),
        shape: Some(dense(shape)),
        ..Default::default()
    }
}
