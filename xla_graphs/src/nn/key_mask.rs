//! The operand of an attention that hides keys: which shape it has.

use crate::dtype::DType;
use crate::op::{Attention, KeyMask};
use crate::ops::rule;
use crate::shape::Shape;

/// Checks the operand of the key mask, if there is one, of an attention of B, T and S.
pub(crate) fn expect(
    attention: &Attention,
    operand: Option<&Shape>,
    [b, t, s]: [usize; 3],
) -> std::result::Result<(), String> {
    match (attention.key_mask, operand) {
        (KeyMask::None, _) => Ok(()),
        (KeyMask::Keys, Some(mask)) => rule::expect("the key mask", mask, DType::Pred, &[b, s]),
        (KeyMask::Before, Some(first)) if attention.causal && t == s => {
            rule::expect("the first keys", first, DType::S32, &[b, t])
        }
        (KeyMask::Before, _) => Err(format!(
            "has a first key for each query, which only causal attention over its own tokens has (causal: {}, {t} queries, {s} keys)",
            attention.causal
        )),
        (KeyMask::Keys, None) => Err("lacks its key mask".into()),
    }
}
