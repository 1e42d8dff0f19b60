//! What numbers stand for in a matrix that is held in few bits.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// What the numbers of a quantized matrix stand for, before they are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CodeBook {
    /// 4 bits: quantiles of a normal distribution, with a 0 (Dettmers et al. 2023, "QLoRA", NormalFloat).
    Nf4,
    /// 4 bits: a sign, two bits of exponent and one of mantissa, the largest being 1.
    Fp4,
    /// 8 bits: the integers from -127 to 127 (Dettmers et al. 2022, "LLM.int8()").
    Int8,
}

/// QLoRA's appendix E.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Of the codes from 0 to 7; the others are the same with the opposite sign. bitsandbytes has 0.0625,
/// 8, 12, 4, 6, 2 and 3 in this order, divided by 12.
const FP4: [f32; 8] = [
    0.0,
    0.062_5 / 12.0,
    8.0 / 12.0,
    1.0,
    4.0 / 12.0,
    6.0 / 12.0,
    2.0 / 12.0,
    3.0 / 12.0,
];

impl CodeBook {
    /// Of one with 4 bits, what each code stands for.
    pub fn values(self) -> Option<[f32; 16]> {
        match self {
            CodeBook::Nf4 => Some(NF4),
            CodeBook::Fp4 => Some(std::array::from_fn(|code| match FP4.get(code) {
                Some(value) => *value,
                // Not -0.
                None => 0.0 - FP4[code - FP4.len()],
            })),
            CodeBook::Int8 => None,
        }
    }

    /// The element type of the arrays that hold codes.
    pub fn dtype(self) -> DType {
        match self {
            // Two in each.
            CodeBook::Nf4 | CodeBook::Fp4 => DType::U8,
            CodeBook::Int8 => DType::S8,
        }
    }

    /// bitsandbytes' name.
    pub fn name(self) -> &'static str {
        match self {
            CodeBook::Nf4 => "nf4",
            CodeBook::Fp4 => "fp4",
            CodeBook::Int8 => "int8",
        }
    }
}

/// The values of a matrix that is held in few bits.
///
/// Operands: codes, and the factor of each run of them, `f32[..]`. Of 4 bits, codes are `u8[.., n]`, the
/// lower half of each byte the first n values of a run and the upper half the others, and the result is
/// `f32[.., 2n]`; of 8 bits `s8[.., n]` and `f32[.., n]`. With a third operand factors are quantized
/// themselves: `u8[..]`, and the third, `f32[257 + m]`, has the value that is added to each, the 256 values
/// of their codes, and the factor of each 256 of them in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dequantize {
    /// What codes stand for.
    pub book: CodeBook,
    /// The type that values are rounded to, where it is not f32.
    pub rounded: Option<DType>,
}
