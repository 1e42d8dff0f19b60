//! Examples to rows: encoded, with what counts in the loss marked, cut or packed.

use std::ops::Range;

use super::{borders, piece};
use xtrain_data::packing::{self, PackingStrategy};
use xtrain_data::rows::flag;
use xtrain_data::{EncodedGroup, Error, Result, Row, Sample, Tokenizer};

/// Examples that a thread takes at a time, unless they are packed.
const GROUP: usize = 256;

/// The places between generation tags, as the text of a [`piece::TAGS`] has them.
fn read_tag_places(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.split(' ').filter_map(|place| {
        let (start, end) = place.split_once('-')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    })
}

/// Turns examples into rows.
#[derive(Debug)]
pub(super) struct Encoder {
    pub tokenizer: Tokenizer,
    /// The token that begins a text, if there is one.
    pub begin: Option<u32>,
    /// Tokens of the longest row.
    pub length: usize,
    /// `None`: each example is a row of its own.
    pub packing: Option<PackingStrategy>,
}

impl Encoder {
    /// The ids of a text, with the special tokens that the tokenizer adds unless the template has
    /// written them.
    fn ids(&self, text: &str, is_rendered: bool) -> Result<Vec<u32>> {
        if is_rendered {
            self.tokenizer.encode(text)
        } else {
            self.tokenizer.encode_with_special_tokens(text)
        }
    }

    /// An example's row before it is cut, and whether a second token that begins a text was removed.
    fn row(&self, sample: &Sample) -> Result<(Row, bool)> {
        if let Some(row) = &sample.row {
            return Ok((row.clone(), false));
        }
        let kinds = sample.labels.iter().flatten();
        let kinds = kinds.map(|label| label.as_class() as u32);
        let (mut texts, mut pieces) = (Vec::new(), Vec::new());
        let (mut prompt, mut tags) = (None, None);
        for (text, kind) in sample.texts.iter().zip(kinds) {
            match kind {
                piece::PROMPT => prompt = Some(text),
                piece::TAGS => tags = Some(text),
                kind => {
                    texts.push(text.clone());
                    pieces.push(kind);
                }
            }
        }
        let is_rendered = pieces.iter().any(|kind| kind & piece::RENDERED != 0);
        let encode = |text: &str| self.ids(text, is_rendered);
        let (mut ids, starts) = borders::borders(&self.tokenizer, &texts, encode)?;
        let mut flags = vec![0; ids.len()];
        let mut end = ids.len();
        for (start, kind) in starts.into_iter().zip(&pieces).rev() {
            if kind & piece::COUNTED != 0 {
                flags[start..end].fill(flag::COUNTED);
            }
            end = start;
        }
        if let Some(tags) = tags {
            let is_marked = self.marked(&texts.concat(), &ids, tags)?;
            for (flags, is_marked) in flags.iter_mut().zip(is_marked) {
                *flags = if is_marked { *flags } else { 0 };
            }
        }
        if let Some(prompt) = prompt {
            let shared = borders::common(&ids, &encode(prompt)?);
            flags[..shared].fill(0);
        }
        let is_doubled = self.begins_twice(&ids);
        if is_doubled {
            ids.remove(1);
            flags.remove(1);
        }
        let row = Row {
            flags: flags.into(),
            ..Row::of_ids(&ids)
        };
        Ok((row, is_doubled))
    }

    /// Whether a text begins with two tokens that begin one, as where the template or the data write
    /// it and the tokenizer adds its own. A token that also ends texts may stand there twice.
    fn begins_twice(&self, ids: &[u32]) -> bool {
        let begin = self.begin.filter(|id| Some(*id) != self.tokenizer.eos_id());
        matches!((ids, begin), ([first, second, ..], Some(id)) if *first == id && *second == id)
    }

    /// The rows of examples, one each: cut to the length, and those left out in which nothing that
    /// counts is left.
    fn apart(&self, examples: Vec<(u64, Row)>, group: &mut EncodedGroup) {
        for (index, example) in examples {
            let kept = example.ids.len().min(self.length);
            let mut flags = example.flags[..kept].to_vec();
            // Nothing comes before the first token that could predict it.
            if let Some(first) = flags.first_mut() {
                *first = 0;
            }
            if flags.contains(&flag::COUNTED) {
                group.rows.push(Row {
                    flags: flags.into(),
                    ..Row::of_ids(&example.ids[..kept])
                });
            } else {
                group.unlearned.push(index);
            }
        }
    }

    /// Which tokens stand between generation tags, as `return_assistant_tokens_mask` has them: from
    /// the first that has the first character, up to the first that has the last one.
    fn marked(&self, text: &str, ids: &[u32], places: &str) -> Result<Vec<bool>> {
        let (found, offsets) = self.tokenizer.encode_with_offsets(text)?;
        let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let token = |character: usize| {
            let at = bytes.get(character)?;
            offsets.iter().position(|token| token.contains(at))
        };
        let mut marked = vec![false; ids.len()];
        for place in read_tag_places(places) {
            let Some(start) = token(place.start) else {
                break;
            };
            let end = match token(place.end - 1) {
                None | Some(0) => ids.len(),
                Some(last) => last + 1,
            };
            if start < end {
                marked[start..end].fill(true);
            }
        }
        if found != ids || !marked.contains(&true) {
            return Err(Error::ChatTemplate {
                place: format!("{:?}", text.chars().take(60).collect::<String>()),
                reason: "no token stands between {% generation %} and {% endgeneration %}"
                    .to_string(),
            });
        }
        Ok(marked)
    }

    /// Samples that are encoded together.
    pub fn group(&self) -> usize {
        match self.packing {
            Some(_) => packing::GROUP,
            None => GROUP,
        }
    }

    /// The rows of a group of samples.
    ///
    /// # Errors
    /// The tokenizer refuses a text.
    pub fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let mut group = EncodedGroup::default();
        let mut examples = Vec::with_capacity(samples.len());
        let cuts = matches!(self.packing, None | Some(PackingStrategy::Bfd));
        for sample in samples {
            let (row, is_doubled) = self.row(sample)?;
            group.tokens += row.ids.len() as u64;
            group.lengths.push(row.ids.len() as u64);
            group.truncated += u64::from(cuts && row.ids.len() > self.length);
            group.doubled += u64::from(is_doubled);
            examples.push((sample.index, row));
        }
        let Some(strategy) = self.packing else {
            self.apart(examples, &mut group);
            return Ok(group);
        };
        let kept = |row: &Row| if cuts { self.length } else { row.ids.len() };
        let nothing = examples.iter().filter(|(_, row)| {
            let mut flags = row.flags.iter().take(kept(row)).skip(1);
            !flags.any(|flags| flags & flag::COUNTED != 0)
        });
        group.unlearned = nothing.map(|(index, _)| *index).collect();
        let rows: Vec<Row> = examples.into_iter().map(|(_, row)| row).collect();
        group.rows = packing::pack(&rows, self.length, strategy);
        Ok(group)
    }
}
