//! Long texts in pieces: while it encodes, the `tokenizers` crate takes some sixty bytes of memory
//! for each byte of text.

use crate::error::{Error, Result};

/// Bytes of a piece. Texts that are shorter are one.
pub(super) const PIECE: usize = 1 << 18;
/// Bytes that are encoded as one where there is no border.
const LONGEST: usize = 16 << 20;
/// Bytes on either side of a border that are encoded to check it.
const CONTEXT: usize = 256;
/// White space that is tried as a border before the rest of a text stays whole.
const TRIES: usize = 64;

/// The text in pieces whose ids, one after the other, are those of the whole. A border stands
/// before white space, where nearly all tokenizers split; that this one does is checked with the
/// text on both sides. What has no such border stays whole.
///
/// # Errors
/// As `encode`, which gives a text's ids.
pub fn pieces(text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<&str>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE {
        let at = border(rest, &encode)?;
        if at.unwrap_or(rest.len()) > LONGEST {
            return Err(Error::Tokenize {
                place: format!("{:?}", rest.chars().take(60).collect::<String>()),
                reason: format!(
                    "there is no white space to split at for more than {} MB; is this text?",
                    LONGEST >> 20
                ),
            });
        }
        let Some(at) = at else {
            break;
        };
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    Ok(pieces)
}

/// Where the first piece of a long text ends.
fn border(text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Option<usize>> {
    let begin = boundary(text, PIECE);
    let spaces = text[begin..].match_indices(char::is_whitespace);
    for (offset, _) in spaces.take(TRIES) {
        let at = begin + offset;
        if text[..at].ends_with(char::is_whitespace) {
            continue;
        }
        let left = &text[boundary(text, at - CONTEXT)..at];
        let right = &text[at..boundary(text, at + CONTEXT)];
        let mut apart = encode(left)?;
        apart.extend(encode(right)?);
        if apart == encode(&format!("{left}{right}"))? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The first place from `at` on where a character begins, or the end.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One id a character; `joined` makes a pair of characters one id.
    fn ids(text: &str, joined: Option<(char, char)>) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = Vec::new();
        let mut last = None;
        for c in text.chars() {
            match last {
                Some(before) if joined == Some((before, c)) => *ids.last_mut().unwrap() += 1 << 24,
                _ => ids.push(c as u32),
            }
            last = Some(c);
        }
        Ok(ids)
    }

    #[test]
    fn pieces_have_the_ids_of_the_whole() {
        let text = "caf\u{e9} \u{1F600}  of\n".repeat(60_000);
        for joined in [None, Some(('\u{e9}', ' ')), Some(('x', 'y'))] {
            let parts = pieces(&text, |part| ids(part, joined)).unwrap();
            assert!(parts.len() > 2 && parts.iter().all(|part| part.len() < PIECE + 100));
            let apart: Vec<u32> = parts
                .iter()
                .flat_map(|part| ids(part, joined).unwrap())
                .collect();
            assert!(apart == ids(&text, joined).unwrap(), "{joined:?}");
        }
    }

    #[test]
    fn a_text_without_a_border_stays_whole() {
        let word = "x".repeat(3 * PIECE);
        assert_eq!(pieces(&word, |part| ids(part, None)).unwrap(), [&word[..]]);
        let word = "x".repeat(LONGEST + 1);
        let error = pieces(&word, |part| ids(part, None))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no white space"), "{error}");
        let joined = "x ".repeat(2 * PIECE);
        let parts = pieces(&joined, |part| ids(part, Some(('x', ' ')))).unwrap();
        assert_eq!(parts.len(), 1);
    }
}
