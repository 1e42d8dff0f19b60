//! Element types of tensors, with the names that XLA and safetensors know.

use serde::{Deserialize, Serialize};

/// The element type of a tensor. Order and discriminants are part of the canonical format: append,
/// never reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DType {
    /// XLA's `pred`: false or true, one byte each.
    Pred,
    /// Signed 8-bit integer; safetensors' `I8`.
    S8,
    /// Signed 32-bit integer: token ids, labels, ranks.
    S32,
    /// Signed 64-bit integer: torch's default for indices.
    S64,
    /// Unsigned 8-bit integer; safetensors' `U8`.
    U8,
    /// Unsigned 32-bit integer: random words and their keys.
    U32,
    /// Unsigned 64-bit integer; safetensors' `U64`.
    U64,
    /// IEEE 754 half precision: 5 bits of exponent, 10 of mantissa.
    F16,
    /// bfloat16: the 8 bits of exponent of f32, 7 of mantissa.
    BF16,
    /// IEEE 754 single precision; master weights, losses and optimizer state.
    F32,
    /// IEEE 754 double precision; safetensors' `F64`.
    F64,
}

impl DType {
    /// Bytes that one element takes in a dense host or device array.
    pub fn size(self) -> usize {
        match self {
            DType::Pred | DType::S8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::S32 | DType::U32 | DType::F32 => 4,
            DType::S64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Whether it is one of f16, bf16, f32 and f64.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Whether it is an integer type, signed or not; `pred` is none.
    pub fn is_integer(self) -> bool {
        !self.is_float() && self != DType::Pred
    }

    /// The name that HLO text uses.
    pub fn name(self) -> &'static str {
        match self {
            DType::Pred => "pred",
            DType::S8 => "s8",
            DType::S32 => "s32",
            DType::S64 => "s64",
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
