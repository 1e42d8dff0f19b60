//! The barrier over two values, which XlaBuilder cannot emit: neither result is there before both
//! operands are.

use super::shapes::{row_major, shape_proto, tuple};
use crate::proto::xla::{HloInstructionProto, ShapeProto};
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
