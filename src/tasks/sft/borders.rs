//! Where pieces of a text begin among the tokens of the whole.
//!
//! A piece begins with the first token that the text before it does not have on its own: where a
//! token reaches over the border, it is the later piece's. Tokenizing the text before each of many
//! pieces takes time that grows with the square of their number. Tokens depend on the text nearby, so
//! a border among many is looked for with the tokens around it, if these are found to be those of the
//! whole.

use xtrain_data::{Result, Tokenizer};

/// Of so few pieces each is looked for with all of the text before it.
const FEW: usize = 16;

/// Tokens before a border and behind it that are tokenized for it, and those of them that may differ
/// from the whole's because the text is cut there.
const BEFORE: usize = 96;
const BEHIND: usize = 16;
const CUT: usize = 32;

/// Tokens before a border that the text before it may have otherwise on its own.
const OPEN: usize = 32;

/// Tokens of a text, and for each the byte that it begins at.
struct Tokens {
    ids: Vec<u32>,
    starts: Vec<usize>,
}

impl Tokens {
    fn of(tokenizer: &Tokenizer, text: &str) -> Result<Tokens> {
        let (ids, offsets) = tokenizer.encode_with_offsets(text)?;
        let starts = offsets.into_iter().map(|token| token.start).collect();
        Ok(Tokens { ids, starts })
    }

    /// The first token that begins at a byte, if the one before begins earlier.
    fn at(&self, start: usize) -> Option<usize> {
        let token = self.starts.partition_point(|other| *other < start);
        (self.starts.get(token) == Some(&start)).then_some(token)
    }
}

/// The tokens of a text, and the first token of each of its pieces. `encode` gives the tokens of a
/// text that begins as it does; `tokenizer` does so of any part if the text has `many` pieces.
pub(super) fn borders(
    tokenizer: &Tokenizer,
    pieces: &[String],
    encode: impl Fn(&str) -> Result<Vec<u32>>,
) -> Result<(Vec<u32>, Vec<usize>)> {
    let text = pieces.concat();
    let ids = encode(&text)?;
    let tokens = if pieces.len() > FEW {
        // Starts that go back are none to look for.
        let tokens = Tokens::of(tokenizer, &text)?;
        (tokens.ids == ids && tokens.starts.is_sorted()).then_some(tokens)
    } else {
        None
    };
    let (mut byte, mut end) = (text.len(), ids.len());
    let mut starts = vec![0; pieces.len()];
    for (start, piece) in starts.iter_mut().zip(pieces).rev() {
        byte -= piece.len();
        if byte > 0 {
            let near = tokens.as_ref().map(|all| near(tokenizer, &text, all, byte));
            let found = match near.transpose()?.flatten() {
                Some(found) => found,
                None => common(&ids, &encode(&text[..byte])?),
            };
            *start = found.min(end);
        }
        end = *start;
    }
    Ok((ids, starts))
}

/// How many tokens two texts begin with.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The first token that the text up to a byte does not have on its own, by the tokens around it;
/// `None` if they do not show it.
fn near(tokenizer: &Tokenizer, text: &str, all: &Tokens, byte: usize) -> Result<Option<usize>> {
    let border = all.starts.partition_point(|start| *start < byte);
    let Some(first) = border.checked_sub(BEFORE) else {
        return Ok(None);
    };
    let from = all.starts[first];
    let to = all.starts.get(border + BEHIND);
    let to = to.copied().unwrap_or(text.len());
    let (Some(around), Some(before)) = (text.get(from..to), text.get(from..byte)) else {
        return Ok(None);
    };
    let around = Tokens::of(tokenizer, around)?;
    let before = Tokens::of(tokenizer, before)?;
    // From a token on that stands in all three, they must agree up to the last ones.
    let agreed = (first + CUT..border - OPEN).find_map(|token| {
        let start = all.starts[token];
        (all.at(start)? == token).then_some(())?;
        Some((token, around.at(start - from)?, before.at(start - from)?))
    });
    let Some((token, in_around, in_before)) = agreed else {
        return Ok(None);
    };
    let same = common(&all.ids[token..], &around.ids[in_around..]);
    let found = token + common(&all.ids[token..], &before.ids[in_before..]);
    Ok((token + same >= border && found >= border - OPEN).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::path::Path;

    /// Many pieces begin where each begins by itself, for tokenizers of every kind, and few of them
    /// are looked for in all of the text.
    #[test]
    fn many_pieces_begin_where_each_of_them_does() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("tests/data/golden/tokenizers");
        let words = [
            "the",
            "of and",
            " a\n\n",
            "in  is",
            "ünïcode",
            "🙂 ",
            "to,",
            "\"quoted\"",
            "1234567",
            "x",
        ];
        for name in [
            "byte_bpe",
            "qwen",
            "llama2",
            "llama3",
            "gemma",
            "mistral",
            "wordpiece",
        ] {
            let tokenizer = Tokenizer::load(&root.join(name)).unwrap();
            let mut state = 1_u32;
            let mut next = |below: usize| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) as usize % below
            };
            let pieces: Vec<String> = (0..200)
                .map(|_| {
                    let count = 1 + next(12);
                    let texts: Vec<_> = (0..count).map(|_| words[next(words.len())]).collect();
                    texts.join([" ", "", "\n"][next(3)])
                })
                .collect();
            let calls = Cell::new(0);
            let encode = |text: &str| {
                calls.set(calls.get() + 1);
                tokenizer.encode(text)
            };
            let (ids, starts) = borders(&tokenizer, &pieces, encode).unwrap();
            let text = pieces.concat();
            assert_eq!(ids, tokenizer.encode(&text).unwrap());
            let (mut byte, mut end) = (text.len(), ids.len());
            for (piece, start) in pieces.iter().zip(&starts).rev() {
                byte -= piece.len();
                let before = tokenizer.encode(&text[..byte]).unwrap();
                let wanted = common(&ids, &before).min(end);
                assert_eq!(*start, wanted, "{name}: byte {byte}");
                end = wanted;
            }
            assert!(calls.get() < 40, "{name}: {} of 200", calls.get());
        }
    }
}
