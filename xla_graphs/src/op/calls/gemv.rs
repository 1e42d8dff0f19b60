//! Products of a few rows with a matrix by the CPU plugin (`native/cpp/kernels/gemv.h`).

use super::spec::{CallSpec, Emission, array};
use crate::dtype::DType;
use crate::op::checks::arity;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// `y[m, n] = x[m, k] W` as a call of the CPU plugin's, accumulated in f32. Operands x, of any shape that ends in k, and
/// W, each f32 or bf16. A sum's order depends on nothing but k.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelGemv {
    /// Whether W is `[n, k]` instead of `[k, n]`.
    pub by_columns: bool,
    /// Whether W, an f32 array, is rounded to bf16 as it is read.
    pub rounds: bool,
    /// The result's, `[..., n]`, f32 or bf16.
    pub shape: Shape,
}

impl KernelGemv {
    /// Rows of x that the plugin takes.
    pub const MOST_ROWS: usize = 4;

    /// m, n and k over a W of these dimensions.
    fn sizes(&self, w: &Shape) -> Option<[usize; 3]> {
        let &[first, second] = &w.dims[..] else {
            return None;
        };
        let (k, n) = if self.by_columns {
            (second, first)
        } else {
            (first, second)
        };
        (n > 0 && k > 0).then_some([self.shape.elements() / n, n, k])
    }
}

impl CallSpec for KernelGemv {
    fn name(&self) -> &'static str {
        "kernel_gemv"
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        arity(operands, 2)?;
        let [x, w] = [operands[0], operands[1]];
        for shape in [x, w, &self.shape] {
            if !matches!(shape.dtype, DType::F32 | DType::BF16) {
                return Err(format!("is for f32 and bf16, not {shape}"));
            }
        }
        let sizes = self.sizes(w).ok_or_else(|| format!("takes no {w}"))?;
        let [m, n, k] = sizes;
        let fits = x.elements() == m * k && self.shape.elements() == m * n;
        if !fits || !(1..=Self::MOST_ROWS).contains(&m) || (self.rounds && w.dtype != DType::F32) {
            return Err(format!("takes no {x} with {w}"));
        }
        Ok(vec![self.shape.clone()])
    }

    fn flops(&self, operands: &[&Shape]) -> Option<(f64, DType)> {
        let sizes = self.sizes(operands[1])?;
        let pairs: f64 = sizes.iter().map(|&size| size as f64).product();
        Some((2.0 * pairs, DType::F32))
    }

    fn emission(&self, operands: &[&Shape]) -> Result<Emission, String> {
        let sizes = self.sizes(operands[1]).ok_or("takes no such matrix")?;
        let config = format!(
            "{{sizes = {}, by_columns = {} : i64, rounds = {} : i64}}",
            array(&sizes),
            i64::from(self.by_columns),
            i64::from(self.rounds),
        );
        Ok(Emission::new("xtrain.gemv", config))
    }
}
