//! Dense, static, row-major shapes.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// Dimensions and element type of a tensor. A scalar has no dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    pub dims: Vec<usize>,
    pub dtype: DType,
}

impl Shape {
    pub fn new(dtype: DType, dims: impl Into<Vec<usize>>) -> Self {
        Shape { dims: dims.into(), dtype }
    }

    pub fn scalar(dtype: DType) -> Self {
        Shape { dims: Vec::new(), dtype }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; 1 for a scalar.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of the dense array.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Shape { dims: self.dims.clone(), dtype }
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
