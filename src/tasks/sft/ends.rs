//! Whether a training set teaches a model to stop: examples whose last words count in the loss, but not
//! the token after them, give a model that never ends what it writes.

use std::collections::BTreeSet;

use xtrain_data::rows::flag;
use xtrain_data::{Error, Result, Row, Rows, Tokenizer};

/// Rows that are read at a time.
const AT_ONCE: usize = 256;

/// Counted tokens from the last one back among which the end is looked for: templates write a line break
/// behind it.
const LAST: usize = 3;

/// Examples that an error names.
const NAMED: usize = 3;

/// Looks for an example in which a token that ends texts counts in the loss: `end`, or another special
/// token but for the one that begins texts, since templates end turns by tokens of their own.
///
/// # Errors
/// There is none, or the rows cannot be read.
pub(super) fn check(tokenizer: &Tokenizer, end: u32, rows: &Rows) -> Result<()> {
    let begin = tokenizer.bos_id().filter(|id| *id != end);
    let mut ends: BTreeSet<u32> = tokenizer.special_ids();
    ends.retain(|id| Some(*id) != begin);
    ends.insert(end);
    let mut named = Vec::new();
    let numbers: Vec<u32> = (0..rows.len() as u32).collect();
    for numbers in numbers.chunks(AT_ONCE) {
        for (number, row) in numbers.iter().zip(rows.rows(numbers)?) {
            for example in examples(&row) {
                let ids: Vec<u32> = counted(&row, example).collect();
                let last = &ids[ids.len().saturating_sub(LAST)..];
                if last.iter().any(|id| ends.contains(id)) {
                    return Ok(());
                }
                if named.len() < NAMED && !last.is_empty() {
                    let text = tokenizer.decode(&ids[ids.len().saturating_sub(8)..], false)?;
                    named.push(format!("row {} ends with {text:?}", number + 1));
                }
            }
        }
    }
    Err(Error::EndNotLearned {
        end: tokenizer.token(end).unwrap_or_default(),
        rows: named.join(", "),
    })
}

/// Where the examples of a row are.
fn examples(row: &Row) -> Vec<std::ops::Range<usize>> {
    let starts = row.flags.iter().enumerate().skip(1);
    let starts = starts.filter(|(_, flags)| **flags & flag::STARTS != 0);
    let mut bounds: Vec<usize> = std::iter::once(0).chain(starts.map(|(at, _)| at)).collect();
    bounds.push(row.flags.len());
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The tokens of an example that count in the loss.
fn counted(row: &Row, example: std::ops::Range<usize>) -> impl Iterator<Item = u32> {
    let tokens = row.ids[example.clone()].iter().zip(&row.flags[example]);
    let counted = tokens.filter(|(_, flags)| **flags & flag::COUNTED != 0);
    counted.map(|(id, _)| *id)
}
