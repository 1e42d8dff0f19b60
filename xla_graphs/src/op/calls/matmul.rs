//! A matmul by a kernel of the CPU plugin's own (`native/cpp/kernels/gemm.h`).

use super::cpu_kernel::CpuKernel;
use super::spec::{CallSpec, Emission, array};
use crate::dtype::DType;
use crate::op::checks::{arity, expect};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// What the sums of a [`KernelMatmul`] begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatmulStart {
    /// 0.
    Zero,
    /// A third operand, f32 and of the result's shape, in whose place the result comes.
    Result,
    /// A third operand, `f32[n]`: the same for every row.
    Bias,
}

impl MatmulStart {
    /// As the call has it.
    fn number(self) -> i64 {
        match self {
            MatmulStart::Zero => 0,
            MatmulStart::Result => 1,
            MatmulStart::Bias => 2,
        }
    }
}

/// An operand of a [`KernelMatmul`] whose sums along k are its second result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatmulSums {
    /// `f32[m]`, of A's rows.
    Rows,
    /// `f32[n]`, of B's columns.
    Columns,
}

impl MatmulSums {
    /// As the call has it; 0 for none.
    fn number(self) -> i64 {
        match self {
            MatmulSums::Rows => 1,
            MatmulSums::Columns => 2,
        }
    }
}

/// `C[p, q, m, n]`, the sum over k of `A[p, q, m, k] * B[p, q, k, n]`, accumulated in f32 in the
/// order of k. Operands A and B are f32 or bf16 arrays of any shape in which strides find the
/// elements, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelMatmul {
    /// What multiplies, and the type it multiplies in.
    pub kernel: CpuKernel,
    /// p, q, m, n, k.
    pub sizes: [usize; 5],
    /// p, q, m, k.
    pub a_strides: [usize; 4],
    /// p, q, k, n.
    pub b_strides: [usize; 4],
    /// p, q, m, n.
    pub c_strides: [usize; 4],
    /// What the sums begin with.
    pub start: MatmulStart,
    /// Of which operand it gives the sums along k besides: a bias's gradient with a weight's. There is one
    /// batch, and the operand does not lie along k.
    pub sums: Option<MatmulSums>,
    /// The result's.
    pub shape: Shape,
}

impl KernelMatmul {
    /// Whether each operand is contiguous along one of its own two dimensions, and the result along
    /// n, as kernels need it.
    pub fn is_contiguous(&self) -> bool {
        self.a_strides[2..].contains(&1)
            && self.b_strides[2..].contains(&1)
            && self.c_strides[3] == 1
    }
}

impl CallSpec for KernelMatmul {
    fn name(&self) -> &'static str {
        "kernel_matmul"
    }

    /// A kernel reads and writes by strides, so they must stay inside; a result has every element once.
    fn results(&self, x: &[&Shape]) -> Result<Vec<Shape>, String> {
        arity(x, 2 + usize::from(self.start != MatmulStart::Zero))?;
        let [p, q, m, n, k] = self.sizes;
        let types = [DType::F32, self.kernel.dtype()];
        let operands = [
            (x[0], [p, q, m, k], self.a_strides),
            (x[1], [p, q, k, n], self.b_strides),
            (&self.shape, [p, q, m, n], self.c_strides),
        ];
        for (shape, sizes, strides) in operands {
            if !types.contains(&shape.dtype) {
                return Err(format!("{} takes no {shape}", self.kernel.name()));
            }
            let last = sizes
                .iter()
                .zip(strides)
                .map(|(&size, stride)| size.checked_sub(1)?.checked_mul(stride))
                .try_fold(0usize, |sum, offset| sum.checked_add(offset?));
            if last.is_none_or(|last| last >= shape.elements()) {
                return Err(format!("strides {strides:?} over {sizes:?} leave {shape}"));
            }
        }
        if !self.is_contiguous() || self.shape.elements() != p * q * m * n {
            return Err("strides are not those of a matmul".into());
        }
        let is_summed = match self.sums {
            None => true,
            Some(MatmulSums::Rows) => [p, q, self.a_strides[2]] == [1; 3],
            Some(MatmulSums::Columns) => [p, q, self.b_strides[3]] == [1; 3],
        };
        if !is_summed || (self.sums.is_some() && self.start == MatmulStart::Result) {
            return Err("gives no sums along k".into());
        }
        match self.start {
            MatmulStart::Zero => {}
            MatmulStart::Result => {
                let dims = &self.shape.dims;
                expect("what the sums begin with", x[2], DType::F32, dims)?;
                expect("the result", &self.shape, DType::F32, dims)?;
            }
            MatmulStart::Bias => expect("the bias", x[2], DType::F32, &[n])?,
        }
        let sums = self.sums.map(|of| match of {
            MatmulSums::Rows => Shape::new(DType::F32, [m]),
            MatmulSums::Columns => Shape::new(DType::F32, [n]),
        });
        Ok([self.shape.clone()].into_iter().chain(sums).collect())
    }

    fn is_tuple(&self) -> bool {
        self.sums.is_some()
    }

    fn flops(&self, _operands: &[&Shape]) -> Option<(f64, DType)> {
        let pairs: f64 = self.sizes.iter().map(|&size| size as f64).product();
        Some((2.0 * pairs, self.kernel.dtype()))
    }

    fn aliases(&self) -> Vec<(usize, usize)> {
        match self.start {
            MatmulStart::Result => vec![(0, 2)],
            MatmulStart::Zero | MatmulStart::Bias => Vec::new(),
        }
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        let config = format!(
            "{{kernel = {} : i64, start = {} : i64, sums = {} : i64, sizes = {}, a_strides = {}, b_strides = {}, c_strides = {}}}",
            self.kernel.number(),
            self.start.number(),
            self.sums.map_or(0, MatmulSums::number),
            array(&self.sizes),
            array(&self.a_strides),
            array(&self.b_strides),
            array(&self.c_strides),
        );
        Ok(Emission::new("xtrain.matmul", config))
    }
}
