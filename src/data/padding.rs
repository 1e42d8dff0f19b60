//! To which length the rows of a batch are filled up. Every length in use is a graph to compile, so
//! there are few of them.

use super::error::{Error, Result};
use super::settings::PaddingSettings;
use super::tokenizer::Tokenizer;

/// The shortest length that is padded to when nobody chose the lengths.
const SHORTEST: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub struct Padding {
    /// Lengths that a batch may have, from short to long; the last one is the maximum length.
    lengths: Vec<usize>,
    pub pad_id: u32,
    /// Padding stands before the text (`padding_side` of the tokenizer).
    pub left: bool,
}

impl Padding {
    /// Resolves what was asked for. `max_length` is what examples are truncated to.
    pub fn new(
        settings: &PaddingSettings,
        max_length: usize,
        pad_id: u32,
        left: bool,
    ) -> Result<Padding> {
        let mut lengths = match (
            settings.pad_to_max_length,
            settings.pad_to_bucket.as_slice(),
        ) {
            (true, _) => Vec::new(),
            (false, []) => (0..)
                .map(|n| SHORTEST << n)
                .take_while(|length| *length < max_length)
                .collect(),
            (false, buckets) => buckets.to_vec(),
        };
        if let Some(bucket) = lengths
            .iter()
            .find(|length| **length == 0 || **length > max_length)
        {
            return Err(Error::Bucket {
                bucket: *bucket,
                max_length,
            });
        }
        lengths.push(max_length);
        lengths.sort_unstable();
        lengths.dedup();
        Ok(Padding {
            lengths,
            pad_id,
            left,
        })
    }

    /// [`Padding::new`] with a tokenizer's padding token, on its side.
    ///
    /// # Errors
    /// The tokenizer has no padding token, or a bucket is out of range.
    pub fn of(
        settings: &PaddingSettings,
        max_length: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Padding> {
        let pad_id = tokenizer.pad_id().ok_or(Error::NoPadToken)?;
        Padding::new(settings, max_length, pad_id, tokenizer.pads_left())
    }

    /// Every T, from short to long.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The shortest length that has room for this many tokens.
    pub(super) fn fitting(&self, tokens: usize) -> usize {
        let length = self.lengths.iter().find(|length| **length >= tokens);
        *length.expect("examples are truncated to the last length")
    }

    /// The lengths that batches of a set can have whose longest example has `longest` tokens.
    pub fn lengths_for(&self, longest: usize) -> Vec<usize> {
        let largest = self.fitting(longest);
        self.lengths
            .iter()
            .copied()
            .filter(|length| *length <= largest)
            .collect()
    }
}
