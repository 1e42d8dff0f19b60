//! Models whose linear layers are held in 4 or 8 bits: which of them are, in which arrays, and how values
//! become codes. Numbers are bitsandbytes', those of transformers' `load_in_4bit` and `load_in_8bit`.
//!
//! Quantization is a value of a model's configuration ([`Config::quantized`](crate::Config::quantized)), and what
//! is held in few bits a value of a parameter ([`ParameterSpec::quantized`](crate::ParameterSpec::quantized)). The
//! only place that computes with it is [`Weight`](crate::Weight), which gives layers a matrix.

mod host;

use std::fmt;
use xtrain_graphs::op::{CodeBook, Dequantize};
use xtrain_graphs::{DType, Result, Shape, Tensor};

/// Values of a matrix that have one factor, in 4 bits.
pub const BLOCK: usize = 64;
/// Factors that have one factor themselves.
const NESTED_BLOCK: usize = 256;
/// What a nested array holds before those: what is added to each factor, and the values of 256 codes.
const NESTED_START: usize = 257;

/// How the matrices of a model's linear layers are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// What codes stand for.
    pub book: CodeBook,
    /// The factors of blocks are quantized themselves (bitsandbytes' double or nested quantization); of 4
    /// bits only.
    pub is_nested: bool,
}

/// As plans and messages have it.
impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.book {
            CodeBook::Int8 => f.write_str("8 bits (int8)"),
            book => {
                let nested = if self.is_nested {
                    ", double quantization"
                } else {
                    ""
                };
                write!(f, "4 bits ({}{nested})", book.name())
            }
        }
    }
}

/// An array in which a device holds a parameter, or what belongs to its values.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldArray {
    /// The parameter's name, or one that begins with it.
    pub name: String,
    /// All of it.
    pub shape: Shape,
    /// For each of its dimensions, but for the last where there are fewer: the parameter's dimension that it
    /// goes along.
    pub along: Vec<usize>,
}

/// How one matrix is held: in bitsandbytes' order, a row for each output, whatever its own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedMatrix {
    /// As all of the model's.
    pub of: Quantization,
    /// Its own order is `[in, out]`.
    pub is_conv1d: bool,
}

impl QuantizedMatrix {
    /// The dimensions of outputs and of inputs.
    fn order(self) -> [usize; 2] {
        if self.is_conv1d { [1, 0] } else { [0, 1] }
    }

    /// Outputs and inputs of a matrix of these dimensions.
    fn sizes(self, dims: &[usize]) -> [usize; 2] {
        self.order().map(|dim| dims[dim])
    }

    /// Values in a run that has one factor.
    fn run(self, inputs: usize) -> usize {
        match self.of.book {
            CodeBook::Int8 => inputs,
            CodeBook::Nf4 | CodeBook::Fp4 => BLOCK,
        }
    }

    /// Whether a row is a number of whole runs. Else runs go on from row to row, the last one filled up, and
    /// no device can hold a part of them.
    fn has_whole_rows(self, inputs: usize) -> bool {
        inputs.is_multiple_of(self.run(inputs).max(1))
    }

    /// The dimensions of the runs' factors.
    fn runs(self, dims: &[usize]) -> Vec<usize> {
        let [outputs, inputs] = self.sizes(dims);
        match self.of.book {
            CodeBook::Int8 => vec![outputs],
            _ if self.has_whole_rows(inputs) => vec![outputs, inputs / BLOCK],
            _ => vec![(outputs * inputs).div_ceil(BLOCK)],
        }
    }

    /// What each dimension of a matrix consists of, of which devices can hold parts; nothing where none can.
    pub(crate) fn units(self, dims: &[usize]) -> Vec<usize> {
        let [_, inputs] = self.sizes(dims);
        if !self.has_whole_rows(inputs) {
            return Vec::new();
        }
        let mut units = dims.to_vec();
        if self.of.book != CodeBook::Int8 {
            units[self.order()[1]] /= BLOCK;
        }
        units
    }

    /// The arrays that hold the matrix `name`, its codes first and by its own name.
    pub(crate) fn arrays(self, name: &str, dims: &[usize]) -> Vec<HeldArray> {
        let runs = self.runs(dims);
        let [_, inputs] = self.sizes(dims);
        let along = if self.has_whole_rows(inputs) {
            self.order().to_vec()
        } else {
            Vec::new()
        };
        let codes = match self.of.book {
            CodeBook::Int8 => vec![runs[0], inputs],
            _ => [&runs[..], &[BLOCK / 2]].concat(),
        };
        let array = |name: String, dtype, dims: &[usize], along: &[usize]| HeldArray {
            name,
            shape: Shape::new(dtype, dims),
            along: along.to_vec(),
        };
        let factors = &along[..runs.len().min(along.len())];
        let dtype = if self.of.is_nested {
            DType::U8
        } else {
            DType::F32
        };
        let mut arrays = vec![
            array(name.to_string(), self.of.book.dtype(), &codes, &along),
            array(format!("{name}.absmax"), dtype, &runs, factors),
        ];
        if self.of.is_nested {
            let blocks = runs.iter().product::<usize>().div_ceil(NESTED_BLOCK);
            let dims = [NESTED_START + blocks];
            arrays.push(array(
                format!("{name}.nested_absmax"),
                DType::F32,
                &dims,
                &[],
            ));
        }
        arrays
    }

    /// The matrix, in its own order, as a layer multiplies with it: of the codes and the other arrays, rounded
    /// to the type that values have.
    pub(crate) fn matrix(
        self,
        dims: &[usize],
        codes: &Tensor,
        others: &[Tensor],
        dtype: DType,
    ) -> Result<Tensor> {
        let of = Dequantize {
            book: self.of.book,
            rounded: (dtype != DType::F32).then_some(dtype),
        };
        let values = codes.dequantize(of, &others.iter().collect::<Vec<_>>())?;
        let [outputs, inputs] = self.sizes(dims);
        let values = if self.has_whole_rows(inputs) {
            values
        } else {
            let all = values.reshape(&[values.shape().elements()])?;
            all.slice_dim(0, 0, outputs * inputs)?
        };
        let matrix = values.reshape(&[outputs, inputs])?;
        if self.is_conv1d {
            matrix.transpose(&[1, 0])
        } else {
            Ok(matrix)
        }
    }
}

#[cfg(test)]
mod tests;
