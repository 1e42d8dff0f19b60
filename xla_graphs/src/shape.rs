//! Dense, static, row-major shapes.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// Dimensions and element type of a tensor. A scalar has no dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Sizes, the slowest-varying (outermost) first.
    pub dims: Vec<usize>,
    /// Of every element.
    pub dtype: DType,
}

impl Shape {
    /// The shape of these dimensions.
    pub fn new(dtype: DType, dims: impl Into<Vec<usize>>) -> Self {
        Shape {
            dims: dims.into(),
            dtype,
        }
    }

    /// The shape without dimensions.
    pub fn scalar(dtype: DType) -> Self {
        Shape {
            dims: Vec::new(),
            dtype,
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; 1 for a scalar. Saturates: sizes of decoded graphs are checked only
    /// after inference.
    pub fn elements(&self) -> usize {
        self.dims.iter().copied().fold(1, usize::saturating_mul)
    }

    /// Bytes of the dense array.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.size())
    }

    /// [`Shape::bytes`], or `None` when the product of the dimensions fits no signed 64-bit number,
    /// XLA's limit.
    pub fn checked_bytes(&self) -> Option<u64> {
        // Dimensions of 0 do not count: XLA multiplies in any order.
        let sizes = self.dims.iter().map(|&d| d.max(1) as u64);
        sizes
            .chain([self.dtype.size() as u64])
            .try_fold(1u64, u64::checked_mul)
            .filter(|&bytes| i64::try_from(bytes).is_ok())
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Shape {
            dims: self.dims.clone(),
            dtype,
        }
    }
}

/// HLO's notation without layout: `f32[4,128]`.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
