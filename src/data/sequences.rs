//! Texts and pairs to sequences as encoders take them: with special tokens, cut to a length, each
//! token with its flags.

use std::sync::Arc;

use rayon::prelude::*;
use tokenizers::{
    Encoding, PostProcessorWrapper, PreTokenizerWrapper, TruncationDirection, TruncationParams,
    TruncationStrategy, truncate_encodings,
};

use super::error::{Error, Result};
use super::label::Label;
use super::rows::{Row, flag};
use super::tokenizer::{Tokenizer, encoding, pieces};

/// Pieces of a long text that are encoded at once, while their encodings are kept.
const GROUP: usize = 8;

/// One sequence: ids with their [`flag`] bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    pub ids: Vec<u32>,
    pub flags: Vec<u8>,
    /// Something did not fit and was cut off.
    pub truncated: bool,
}

impl Sequence {
    /// The sequence as a row of a set.
    pub fn into_row(self, label: Option<Label>) -> Row {
        Row {
            ids: self.ids.into(),
            flags: self.flags.into(),
            label,
            token_labels: [].into(),
        }
    }
}

/// Encodes as `tokenizer(a, b, truncation=True, max_length=...)` does: the longer text of a pair is
/// cut first.
///
/// Truncation is done here between the crate's two steps, because its own stops reading a text once
/// that alone is too long, and then takes texts for equally long that are not (0.23.2; Python's
/// 0.23.3 does not).
#[derive(Clone, Debug)]
pub struct SequenceEncoder {
    /// Texts to tokens, nothing else.
    texts: Arc<tokenizers::Tokenizer>,
    /// Adds special tokens.
    whole: Arc<tokenizers::Tokenizer>,
    max_length: Option<usize>,
    direction: TruncationDirection,
    special: [usize; 2],
}

impl SequenceEncoder {
    /// An encoder with special tokens, which cuts each sequence to `max_length` tokens if one is
    /// given.
    ///
    /// # Errors
    /// The length leaves no room beside a text's special tokens.
    pub fn new(tokenizer: &Tokenizer, max_length: Option<usize>) -> Result<SequenceEncoder> {
        let special = [
            tokenizer.special_tokens(false),
            tokenizer.special_tokens(true),
        ];
        room(max_length, special[0])?;
        let direction = if tokenizer.truncates_left {
            TruncationDirection::Left
        } else {
            TruncationDirection::Right
        };
        let mut texts = (*tokenizer.inner).clone();
        texts.with_post_processor(None::<PostProcessorWrapper>);
        Ok(SequenceEncoder {
            texts: Arc::new(texts),
            whole: tokenizer.inner.clone(),
            max_length,
            direction,
            special,
        })
    }

    /// Whether there are special tokens around a text.
    pub fn adds_tokens(&self) -> bool {
        self.special[0] > 0
    }

    /// A text, or a pair of them.
    ///
    /// # Errors
    /// The tokenizer gives up, or the length leaves no room beside a pair's special tokens.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<Sequence> {
        if pair.is_some() {
            room(self.max_length, self.special[1])?;
        } else {
            let ids = |piece: &str| {
                let encoding = encoding(piece, |piece| self.texts.encode_fast(piece, false))?;
                Ok(encoding.get_ids().to_vec())
            };
            let pieces = pieces::pieces(text, ids)?;
            if pieces.len() > 1 {
                return self.encode_pieces(&pieces);
            }
        }
        self.encode_whole(text, pair)
    }

    fn encode_whole(&self, text: &str, pair: Option<&str>) -> Result<Sequence> {
        let (encoding, truncated) = encoding(text, |text| self.tokens(text, pair))?;
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
        Ok(Sequence {
            flags: flags.collect(),
            ids: encoding.get_ids().to_vec(),
            truncated,
        })
    }

    /// The sequence of a text that comes in pieces, of which only ids and flags are kept.
    fn encode_pieces(&self, pieces: &[&str]) -> Result<Sequence> {
        let room = room(self.max_length, self.special[0])?;
        let mut sequence = Sequence::default();
        // Whether the last token reaches up to the end of its piece.
        let mut touches = false;
        // Post-processors may trim white space off the offsets, which tell words apart.
        let encode = |piece: &&str| {
            encoding(piece, |piece| {
                let encoding = self.texts.encode(piece, false)?;
                self.whole.post_process(encoding, None, false)
            })
        };
        for group in pieces.chunks(GROUP) {
            let encodings = group.par_iter().map(encode).collect::<Result<Vec<_>>>()?;
            for (piece, encoding) in group.iter().zip(encodings) {
                let mut end = if touches { 0 } else { usize::MAX };
                for &(start, next) in encoding.get_offsets() {
                    let continues = !sequence.flags.is_empty() && start == end;
                    sequence
                        .flags
                        .push(if continues { flag::CONTINUES } else { 0 });
                    end = next;
                }
                touches = end == piece.len();
                sequence.ids.extend_from_slice(encoding.get_ids());
            }
            if self.direction == TruncationDirection::Right && sequence.ids.len() > room {
                break;
            }
        }
        let tokens = sequence.ids.len();
        sequence.truncated = tokens > room;
        if sequence.truncated {
            let kept = match self.direction {
                TruncationDirection::Right => 0..room,
                TruncationDirection::Left => tokens - room..tokens,
            };
            sequence.ids = sequence.ids[kept.clone()].to_vec();
            sequence.flags = sequence.flags[kept].to_vec();
            // The first token continues nothing that is there.
            sequence
                .flags
                .iter_mut()
                .take(1)
                .for_each(|flags| *flags = 0);
        }
        // What surrounds one word surrounds all of them.
        let (around, _) = encoding(pieces[0], |_| self.tokens("a", None))?;
        let is_text = |mask: &u32| *mask == 0;
        let mask = around.get_special_tokens_mask();
        let before = mask.iter().position(is_text).unwrap_or(mask.len());
        let after = mask
            .iter()
            .rposition(is_text)
            .map_or(mask.len(), |at| at + 1);
        let ids = around.get_ids();
        let special = |count: usize| vec![flag::SPECIAL; count];
        Ok(Sequence {
            ids: [&ids[..before], &sequence.ids, &ids[after..]].concat(),
            flags: [special(before), sequence.flags, special(ids.len() - after)].concat(),
            truncated: sequence.truncated,
        })
    }

    /// Tokens with special ones, and whether some were cut off.
    fn tokens(&self, text: &str, pair: Option<&str>) -> tokenizers::Result<(Encoding, bool)> {
        let first = self.texts.encode(text, false)?;
        let second = pair
            .map(|pair| self.texts.encode(pair, false))
            .transpose()?;
        self.whole(first, second)
    }

    /// Truncates and adds special tokens.
    fn whole(
        &self,
        mut first: Encoding,
        mut second: Option<Encoding>,
    ) -> tokenizers::Result<(Encoding, bool)> {
        if let Some(second) = &mut second {
            second.set_type_ids(vec![1; second.len()]);
        }
        let tokens = first.len() + second.as_ref().map_or(0, Encoding::len);
        let room = self.max_length.map_or(usize::MAX, |length| {
            length - self.special[usize::from(second.is_some())]
        });
        if tokens > room {
            let strategy = TruncationStrategy::LongestFirst;
            let truncation = TruncationParams {
                direction: self.direction,
                max_length: room,
                strategy,
                stride: 0,
            };
            (first, second) = truncate_encodings(first, second, &truncation)?;
            // What was cut off is not wanted, and would be processed too.
            first.take_overflowing();
            second.as_mut().map(Encoding::take_overflowing);
        }
        Ok((self.whole.post_process(first, second, true)?, tokens > room))
    }
}

/// Encodes sentences that come as words, as `tokenizer(words, is_split_into_words=True,
/// truncation=True)` does.
#[derive(Clone, Debug)]
pub struct WordEncoder(SequenceEncoder);

impl WordEncoder {
    /// See [`SequenceEncoder::new`]. `spaces`: a byte-level tokenizer puts a space before each word.
    ///
    /// # Errors
    /// The length leaves no room beside special tokens.
    pub fn new(
        tokenizer: &Tokenizer,
        max_length: Option<usize>,
        spaces: bool,
    ) -> Result<WordEncoder> {
        let mut encoder = SequenceEncoder::new(tokenizer, max_length)?;
        if spaces && let Some(mut splitter) = encoder.texts.get_pre_tokenizer().cloned() {
            let mut texts = (*encoder.texts).clone();
            set_prefix_space(&mut splitter);
            texts.with_pre_tokenizer(Some(splitter));
            encoder.texts = Arc::new(texts);
        }
        Ok(WordEncoder(encoder))
    }

    /// The sequence of a sentence, and the number of the word that each token is a piece of; `None`
    /// for special tokens.
    ///
    /// # Errors
    /// The tokenizer refuses a word.
    pub fn encode(&self, words: &[String]) -> Result<(Sequence, Vec<Option<u32>>)> {
        let start = words.iter().take(10).cloned().collect::<Vec<_>>().join(" ");
        let (encoding, truncated) = encoding(&start, |_| {
            let encoding = self.0.texts.encode(words, false)?;
            self.0.whole(encoding, None)
        })?;
        let numbers = encoding.get_word_ids().to_vec();
        let flags = (0..numbers.len()).map(|i| match numbers[i] {
            None => flag::SPECIAL,
            number if i > 0 && numbers[i - 1] == number => flag::CONTINUES,
            Some(_) => 0,
        });
        let sequence = Sequence {
            flags: flags.collect(),
            ids: encoding.get_ids().to_vec(),
            truncated,
        };
        Ok((sequence, numbers))
    }
}

/// The number of tokens of text that a length leaves beside special ones.
fn room(max_length: Option<usize>, special: usize) -> Result<usize> {
    match max_length {
        None => Ok(usize::MAX),
        Some(length) if length <= special => Err(Error::NoRoom { length, special }),
        Some(length) => Ok(length - special),
    }
}

fn set_prefix_space(splitter: &mut PreTokenizerWrapper) {
    match splitter {
        PreTokenizerWrapper::ByteLevel(bytes) => bytes.add_prefix_space = true,
        PreTokenizerWrapper::Sequence(parts) => {
            parts.as_mut().iter_mut().for_each(set_prefix_space)
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A text that comes in pieces is the sequence that it is as a whole: ids, flags, and what is
    /// cut off on either side.
    #[test]
    fn pieces_make_the_sequence_of_the_whole() {
        let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data");
        let article = std::fs::read_to_string(data.join("articles-valid.txt")).unwrap();
        let text = article.repeat(300_000 / article.len() + 1);
        use TruncationDirection::{Left, Right};
        for name in ["gpt2", "bert-uncased", "roberta", "albert"] {
            let tokenizer = Tokenizer::load(&data.join(name)).unwrap();
            for (max_length, direction) in [(None, Right), (Some(64), Right), (Some(64), Left)] {
                let mut encoder = SequenceEncoder::new(&tokenizer, max_length).unwrap();
                encoder.direction = direction;
                let ids = |piece: &str| {
                    let encoding = encoding(piece, |piece| encoder.texts.encode(piece, false));
                    Ok(encoding?.get_ids().to_vec())
                };
                let pieces = pieces::pieces(&text, ids).unwrap();
                assert!(pieces.len() > 1, "{name}: one piece");
                let (whole, apart) = (
                    encoder.encode_whole(&text, None).unwrap(),
                    encoder.encode_pieces(&pieces).unwrap(),
                );
                assert!(
                    whole.ids == apart.ids
                        && whole.flags == apart.flags
                        && whole.truncated == apart.truncated,
                    "{name}, {max_length:?}, {direction:?}: {} and {} tokens",
                    whole.ids.len(),
                    apart.ids.len()
                );
            }
        }
    }
}
