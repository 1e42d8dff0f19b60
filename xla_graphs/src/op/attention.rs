//! Scaled dot-product attention: its attributes, and what its key mask has to be.

use super::attributes::F64;
use super::checks;
use crate::dtype::DType;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention of queries `[B, H, T, D]` over keys and values `[B, K, S, D]`.
///
/// Operands in order: q, k, v, then those of `key_mask` and of `dropout`, if it has them.
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
    /// What is dropped of the probabilities.
    pub dropout: Option<AttentionDropout>,
    /// Scaled scores s become `cap * tanh(s / cap)` before they are masked (Gemma 2).
    pub soft_cap: Option<F64>,
}

/// Dropout of the probabilities of an [`Attention`]; the kept ones are divided by `1 - rate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionDropout {
    /// Share of the probabilities that is dropped.
    pub rate: F64,
    /// The random stream of the mask, each attention's own.
    pub stream: u32,
    /// Whether the operand is the key by which the mask is drawn, `u32[2]` or `u32[3]`
    /// ([`DropoutRng`](crate::DropoutRng)); else it is the mask, `pred[B, H, T, S]`, true where a
    /// probability is kept.
    pub is_drawn: bool,
}

/// A value without commas, as explanations of misses show it.
impl std::fmt::Debug for AttentionDropout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = if self.is_drawn { "" } else { " by a mask" };
        write!(f, "{:?} of stream {}{by}", self.rate, self.stream)
    }
}

impl AttentionDropout {
    /// By a mask that is an operand.
    pub fn by_mask(rate: f64) -> Self {
        AttentionDropout {
            rate: F64::new(rate),
            stream: 0,
            is_drawn: false,
        }
    }
}

/// The least random word that keeps its element at this rate of dropout.
pub(crate) fn keep_threshold(rate: f64) -> u32 {
    (rate * 2f64.powi(32)) as u32
}

/// The operands of an [`Attention`], or of its gradient, by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionOperands<T> {
    /// `[B, H, T, D]`.
    pub q: T,
    /// `[B, K, S, D]`.
    pub k: T,
    /// `[B, K, S, D]`.
    pub v: T,
    /// What [`Attention::key_mask`] says of it.
    pub key_mask: Option<T>,
    /// What [`Attention::dropout`] says of it.
    pub dropout: Option<T>,
    /// Of a gradient: that of the result, `[B, H, T, D]`.
    pub dy: Option<T>,
}

impl<T> AttentionOperands<T> {
    /// One of those that have gradients.
    pub(crate) fn get(&self, operand: AttentionOperand) -> &T {
        match operand {
            AttentionOperand::Query => &self.q,
            AttentionOperand::Key => &self.k,
            AttentionOperand::Value => &self.v,
        }
    }

    /// In the order in which nodes have them.
    pub(crate) fn list(self) -> Vec<T> {
        let more = [self.key_mask, self.dropout, self.dy];
        let all = [self.q, self.k, self.v].into_iter();
        all.chain(more.into_iter().flatten()).collect()
    }
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
    /// The operands of a node by name.
    ///
    /// # Errors
    /// If they are more or fewer: a sentence that says how many there have to be.
    pub(crate) fn operands<T: Clone>(
        &self,
        all: &[T],
        is_gradient: bool,
    ) -> Result<AttentionOperands<T>, String> {
        let has = [self.key_mask.is_some(), self.dropout.is_some(), is_gradient];
        let count = 3 + has.iter().filter(|has| **has).count();
        if all.len() != count {
            return Err(format!("takes {count} operands, got {}", all.len()));
        }
        let mut behind = all[3..].iter().cloned();
        let [key_mask, dropout, dy] = has.map(|has| has.then(|| behind.next()).flatten());
        let [q, k, v] = [0, 1, 2].map(|index: usize| all[index].clone());
        Ok(AttentionOperands {
            q,
            k,
            v,
            key_mask,
            dropout,
            dy,
        })
    }

    /// Checks the operand of the key mask, if there is one, over B, T and S.
    pub(crate) fn check_key_mask(
        &self,
        operand: Option<&Shape>,
        [b, t, s]: [usize; 3],
    ) -> Result<(), String> {
        match (self.key_mask, operand) {
            (KeyMask::None, _) => Ok(()),
            (KeyMask::Keys, Some(mask)) => {
                checks::expect("the key mask", mask, DType::Pred, &[b, s])
            }
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
