//! Texts and pairs to sequences as encoders take them: with special tokens, cut to a length, each token with its flags.

use std::sync::Arc;

use tokenizers::{TruncationDirection, TruncationParams, TruncationStrategy};

use super::error::{Error, Result};
use super::examples::flag;
use super::tokenizer::Tokenizer;

/// One sequence: ids with their [`flag`] bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    pub ids: Vec<u32>,
    pub flags: Vec<u8>,
    /// Something did not fit and was cut off.
    pub truncated: bool,
}

/// Encodes as `tokenizer(a, b, truncation=True, max_length=...)` does: the longer text of a pair is cut first.
#[derive(Clone, Debug)]
pub struct SequenceEncoder {
    inner: Arc<tokenizers::Tokenizer>,
}

impl SequenceEncoder {
    pub(super) fn new(tokenizer: &Tokenizer, max_length: Option<usize>) -> Result<SequenceEncoder> {
        let Some(max_length) = max_length else { return Ok(SequenceEncoder { inner: tokenizer.inner.clone() }) };
        let special = tokenizer.special_tokens(true);
        if max_length <= special {
            return Err(Error::NoRoom { length: max_length, special });
        }
        let direction = match tokenizer.truncates_left {
            true => TruncationDirection::Left,
            false => TruncationDirection::Right,
        };
        let truncation = TruncationParams { direction, max_length, strategy: TruncationStrategy::LongestFirst, stride: 0 };
        let mut inner = (*tokenizer.inner).clone();
        inner
            .with_truncation(Some(truncation))
            .map_err(|error| Error::Tokenize { place: "with truncation".to_string(), reason: error.to_string() })?;
        Ok(SequenceEncoder { inner: Arc::new(inner) })
    }

    /// A text, or a pair of them.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<Sequence> {
        let encoding = match pair {
            Some(pair) => self.inner.encode((text, pair), true),
            None => self.inner.encode(text, true),
        };
        let encoding = encoding.map_err(|error| Error::Tokenize {
            place: format!("{:?}", text.chars().take(60).collect::<String>()),
            reason: error.to_string(),
        })?;
        let special = encoding.get_special_tokens_mask();
        let offsets = encoding.get_offsets();
        let flags = (0..special.len()).map(|i| {
            let mut flags = 0;
            if special[i] != 0 {
                flags |= flag::SPECIAL;
            } else if i > 0 && special[i - 1] == 0 && offsets[i].0 == offsets[i - 1].1 {
                // No gap in the text: as transformers tells words apart for whole-word masking.
                flags |= flag::CONTINUES;
            }
            if encoding.get_type_ids()[i] == 1 {
                flags |= flag::SECOND;
            }
            flags
        });
        let truncated = !encoding.get_overflowing().is_empty();
        Ok(Sequence { flags: flags.collect(), ids: encoding.get_ids().to_vec(), truncated })
    }
}
