//! Scaled dot-product attention: its attributes, and what its key mask has to be.

use super::attributes::F64;
use super::checks;
use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention of queries `[B, H, T, D]` over keys and values `[B, K, S, D]`.
///
/// Operands in order: q, k, v, then the operand of `key_mask` if it has one, then
/// `keep` (`pred[B, H, T, S]`) if `dropout` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// Factor on the scores before the softmax.
    pub scale: F64,
    /// Query t sees keys 0..=t only.
    pub causal: bool,
    /// Query t sees only keys less than this far from it: with `causal` this many last keys, itself
    /// included (GPT-Neo's local layers), else as many to each side (ModernBERT's).
    pub window: Option<u32>,
    /// What an operand hides.
    pub key_mask: KeyMask,
    /// Share of the probabilities that is dropped; the kept ones are divided by `1 - dropout`.
    pub dropout: Option<F64>,
    /// Scaled scores s become `cap * tanh(s / cap)` before they are masked (Gemma 2).
    pub soft_cap: Option<F64>,
}

/// What an operand of an [`Attention`] hides from queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyMask {
    /// Nothing; there is no such operand.
    #[default]
    None,
    /// `pred[B, S]`: from every query the keys where it is false, such as padding.
    Keys,
    /// `s32[B, T]`: from each query the keys before this one, which is at most its own: those of the
    /// examples that are packed before its own into the row. Only with `causal`, where T is S.
    Before,
}

impl KeyMask {
    /// Whether there is such an operand.
    pub fn is_some(self) -> bool {
        self != KeyMask::None
    }

    /// As calls of the CPU plugin have it.
    pub fn number(self) -> u32 {
        match self {
            KeyMask::None => 0,
            KeyMask::Keys => 1,
            KeyMask::Before => 2,
        }
    }
}

/// Which operand of an attention a gradient node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttentionOperand {
    /// Gives dq, `[B, H, T, D]`.
    Query,
    /// Gives dk, `[B, K, S, D]`.
    Key,
    /// Gives dv, `[B, K, S, D]`.
    Value,
}

impl Attention {
    /// Checks the operand of the key mask, if there is one, over B, T and S.
    pub(crate) fn check_key_mask(
        &self,
        operand: Option<&Shape>,
        [b, t, s]: [usize; 3],
    ) -> Result<(), String> {
        match (self.key_mask, operand) {
            (KeyMask::None, _) => Ok(()),
            (KeyMask::Keys, Some(mask)) => checks::expect("the key mask", mask, DType::Pred, &[b, s]),
            (KeyMask::Before, Some(first)) if self.causal && t == s => {
                checks::expect("the first keys", first, DType::S32, &[b, t])
            }
            (KeyMask::Before, _) => Err(format!(
                "has a first key for each query, which only causal attention over its own tokens has (causal: {}, {t} queries, {s} keys)",
                self.causal
            )),
            (KeyMask::Keys, None) => Err("lacks its key mask".into()),
        }
    }
}
