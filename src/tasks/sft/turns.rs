//! Where the assistant's turns are in the text of a conversation.
//!
//! A turn begins where the text of the messages before it ends once it asks for an answer, and ends
//! where the text of the messages up to it ends. Writing all of these takes time that grows with the
//! square of the messages. In a long conversation a turn is therefore looked for with few messages
//! before it: what the template writes around it there must stand in the text of the whole, behind
//! the turn before. A template for which it doesn't, or for which the last turn and one in the middle
//! are elsewhere in truth, is asked about every turn.

use std::ops::Range;

use xtrain_data::chat_template::Message;
use xtrain_data::{Error, Result};

/// Conversations of at most this many messages are asked about every turn.
const SHORT: usize = 32;

/// Answers that are asked about in any case: where conversations begin, templates have exceptions.
const FIRST: usize = 6;

/// Messages that few messages begin with, which are those of the whole: a system's, and a turn each.
const HEAD: usize = 3;

/// Messages between those and an answer, at least and at most.
const CLOSEST: usize = 3;
const FARTHEST: usize = 32;

/// Writes messages by the template, with or without what asks for an answer.
pub(super) type Write<'a> = &'a dyn Fn(&[Message], bool) -> Result<String>;

/// A conversation and its text.
pub(super) struct Conversation<'a> {
    pub turns: &'a [Message],
    pub whole: &'a str,
    pub write: Write<'a>,
    /// An error of the row.
    pub bad: &'a dyn Fn(String) -> Error,
}

impl Conversation<'_> {
    /// The assistant's turns from a message on, as bytes of the text.
    ///
    /// # Errors
    /// The template fails, or writes a turn otherwise once others follow.
    pub fn answers(&self, from: usize) -> Result<Vec<Range<usize>>> {
        let is_answer = |turn: &usize| self.turns[*turn].role() == "assistant";
        let answers: Vec<usize> = (from..self.turns.len()).filter(is_answer).collect();
        let chained = if self.turns.len() > SHORT {
            self.chained(&answers)?
        } else {
            None
        };
        let found = match chained {
            Some(found) => found,
            None => (answers.iter().map(|turn| self.answer(*turn))).collect::<Result<_>>()?,
        };
        let overlap = found.windows(2).position(|two| two[1].start < two[0].end);
        match overlap {
            Some(first) => Err(self.rewritten(answers[first + 1])),
            None => Ok(found),
        }
    }

    /// Where a turn begins.
    ///
    /// # Errors
    /// As [`Conversation::answers`].
    fn start(&self, turn: usize) -> Result<usize> {
        let asks = self.turns[turn].role() == "assistant";
        let before = (self.write)(&self.turns[..turn], asks)?;
        let start = self.whole.starts_with(&before).then_some(before.len());
        start.ok_or_else(|| self.rewritten(turn))
    }

    /// An answer's place, found with all messages before it.
    fn answer(&self, turn: usize) -> Result<Range<usize>> {
        let start = self.start(turn)?;
        let with_it = (self.write)(&self.turns[..=turn], false)?;
        // What stands between turns belongs to none.
        let end = with_it.trim_end().len();
        if self.whole.starts_with(&with_it) && end >= start {
            Ok(start..end)
        } else {
            Err(self.rewritten(turn))
        }
    }

    /// The places of answers, each found behind the one before; `None` if that does not work.
    fn chained(&self, answers: &[usize]) -> Result<Option<Vec<Range<usize>>>> {
        let mut found: Vec<Range<usize>> = Vec::with_capacity(answers.len());
        for (position, turn) in answers.iter().enumerate() {
            let place = match position.checked_sub(1) {
                Some(before) if position >= FIRST => {
                    match self.behind(*turn, answers[before], found[before].end) {
                        Some(place) => place,
                        None => return Ok(None),
                    }
                }
                _ => self.answer(*turn)?,
            };
            found.push(place);
        }
        let checked = [answers.len() / 2, answers.len().saturating_sub(1)];
        let is_right = |position: usize| {
            let turn = answers.get(position)?;
            (self.answer(*turn).ok()? == found[position]).then_some(())
        };
        let are_right = checked.iter().all(|position| is_right(*position).is_some());
        Ok(are_right.then_some(found))
    }

    /// An answer's place, found with few messages before it, by the answer before and its end.
    fn behind(&self, turn: usize, before: usize, end: usize) -> Option<Range<usize>> {
        let seam = self.seam(before)?;
        let mut few = [&self.turns[..HEAD], &self.turns[seam..turn]].concat();
        let messages_to_before = HEAD + before - seam + 1;
        let write = |messages: &[Message], asks: bool| (self.write)(messages, asks).ok();
        let to_before = write(&few[..messages_to_before], false)?.trim_end().len();
        let asks = write(&few, true)?;
        few.push(self.turns[turn].clone());
        let with_it = write(&few, false)?;
        let rest = &self.whole[end..];
        let fits =
            rest.starts_with(asks.get(to_before..)?) && rest.starts_with(with_it.get(to_before..)?);
        let length = |bytes: usize| bytes.checked_sub(to_before);
        let place = end + length(asks.len())?..end + length(with_it.trim_end().len())?;
        (fits && place.start <= place.end).then_some(place)
    }

    /// The message that follows the head among few messages: roles follow one another there as in
    /// the whole, and as many messages as in the whole, or fewer by an even number, stand before it.
    fn seam(&self, before: usize) -> Option<usize> {
        let role = |turn: usize| self.turns[turn].role();
        let last = before.checked_sub(CLOSEST)?;
        let first = last.saturating_sub(FARTHEST).max(HEAD);
        (first..=last).rev().find(|seam| {
            (seam - HEAD).is_multiple_of(2)
                && role(*seam) == role(HEAD)
                && role(seam - 1) == role(HEAD - 1)
        })
    }

    /// Why the place of a turn in a conversation's text is not known.
    fn rewritten(&self, turn: usize) -> Error {
        (self.bad)(format!(
            "the chat template writes the conversation up to message {turn} otherwise once others follow; make a row of \
             each answer, with what comes before it as prompt and the answer as completion"
        ))
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
