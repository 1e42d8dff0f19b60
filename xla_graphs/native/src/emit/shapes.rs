//! Shapes of the graph as XLA's protobufs have them.

use crate::proto::xla::{LayoutProto, PrimitiveType, ShapeProto};
use xtrain_graphs::{DType, Shape};

/// The dimensions from the fastest changing one on, in the usual order.
pub(super) fn row_major(rank: usize) -> Vec<i64> {
    (0..rank as i64).rev().collect()
}

/// A dense array in a layout.
pub(super) fn shape_proto(shape: &Shape, minor_to_major: &[i64]) -> ShapeProto {
    let layout = LayoutProto {
        minor_to_major: minor_to_major.to_vec(),
        ..Default::default()
    };
    let mut proto = ShapeProto {
        dimensions: shape.dims.iter().map(|&d| d as i64).collect(),
        is_dynamic_dimension: vec![false; shape.rank()],
        layout: Some(Box::new(layout)),
        ..Default::default()
    };
    proto.set_element_type(match shape.dtype {
        DType::Pred => PrimitiveType::Pred,
        DType::S8 => PrimitiveType::S8,
        DType::S32 => PrimitiveType::S32,
        DType::S64 => PrimitiveType::S64,
        DType::U8 => PrimitiveType::U8,
        DType::U32 => PrimitiveType::U32,
        DType::U64 => PrimitiveType::U64,
        DType::F16 => PrimitiveType::F16,
        DType::BF16 => PrimitiveType::Bf16,
        DType::F32 => PrimitiveType::F32,
        DType::F64 => PrimitiveType::F64,
    });
    proto
}

/// A tuple of shapes.
pub(super) fn tuple(shapes: Vec<ShapeProto>) -> ShapeProto {
    let mut proto = ShapeProto {
        tuple_shapes: shapes,
        ..Default::default()
    };
    proto.set_element_type(PrimitiveType::Tuple);
    proto
}
