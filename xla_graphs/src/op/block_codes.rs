//! Numbers in 8 bits: which parts of coding them there are, and the maps of their codes.

use super::attributes::F64;
use serde::{Deserialize, Serialize};

/// Numbers in 8 bits: blocks of 256 elements in row-major order, the last one as long as is left, each with
/// a scale, and for every element the number of an entry of a map (Dettmers et al. 2021, arXiv:2110.02861).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BlockCodes {
    /// Operands codes `u8[..]` and scales; gives `f32[..]`, the entry of each code times its block's scale.
    Decode(DynamicMap),
    /// Operand x, f32; gives of each block the largest absolute value.
    Scales {
        /// Of the result, which has an element for each block.
        dims: Vec<usize>,
        /// The least scale.
        floor: F64,
    },
    /// Operands x `f32[..]` and scales; gives `u8[..]`, the entry nearest to each element over its scale.
    Encode(DynamicMap),
}

/// 256 numbers up to 1, more of them where numbers are small: dynamic tree quantization (Dettmers 2015,
/// arXiv:1511.04561). Codes count the entries in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DynamicMap {
    /// Of both signs; code 127 is 0.
    Signed,
    /// From 0, which code 0 is.
    Unsigned,
}

impl BlockCodes {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            BlockCodes::Decode(_) => "decode_blocks",
            BlockCodes::Scales { .. } => "block_scales",
            BlockCodes::Encode(_) => "encode_blocks",
        }
    }
}
