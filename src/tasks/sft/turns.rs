//! Where the assistant's turns are in the text of a conversation.
//!
//! A turn begins where the text of the messages before it ends once it asks for an answer, and ends
//! where the text of the messages up to it ends. Writing all of these takes time that grows with the
//! square of the messages. In a long conversation a turn is therefore looked for with few messages
//! before it: what the template writes around it there must stand in the text of the whole, behind
//! the turn before. A template for which it doesn't, or for which the last turn and one in the middle
//! are elsewhere in truth, is asked about every turn.
//!
//! A template that writes a turn in another way once others follow (it leaves out the reasoning of all but
//! the last) is written turn by turn, each as it is when it is the last one.

use std::ops::Range;

use super::known::{Begin, Rule};
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
    /// What is the assistant's own of the template's text.
    pub rule: Rule,
    /// The token that ends a text; empty where there is none.
    pub end: &'a str,
    /// An error of the row.
    pub bad: &'a dyn Fn(String) -> Error,
}

/// The text of a conversation, and which bytes of it are the assistant's own.
#[derive(Debug, PartialEq)]
pub(super) struct Marked {
    pub text: String,
    pub answers: Vec<Range<usize>>,
}

/// What stands in the place of a turn's content where its end is looked for: a character that no text has.
const STAND_IN: &str = "\u{e000}";

impl Conversation<'_> {
    /// The text with the assistant's turns from a message on.
    ///
    /// # Errors
    /// The template fails, or writes a turn otherwise once others follow and doesn't show where it ends.
    pub fn marked(&self, from: usize) -> Result<Marked> {
        if self.rule.begin == Begin::Elsewhere {
            let reason = "with this chat template TRL counts the next role's mark as the end of an answer, which is not supported; make a row of \
                          each answer, with the text before it as prompt and the answer as completion";
            return Err((self.bad)(reason.to_string()));
        }
        match self.answers(from) {
            Ok(answers) => Ok(Marked {
                text: self.whole.to_string(),
                answers,
            }),
            Err(error) => self.each_as_last(from)?.ok_or(error),
        }
    }

    /// The assistant's turns from a message on, as bytes of the text.
    ///
    /// # Errors
    /// The template fails, or writes a turn otherwise once others follow.
    fn answers(&self, from: usize) -> Result<Vec<Range<usize>>> {
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
        let before = self.opening(&self.turns[..turn])?;
        let start = self.whole.starts_with(&before).then_some(before.len());
        start.ok_or_else(|| self.rewritten(turn))
    }

    /// The text of messages up to where the answer to them begins.
    fn opening(&self, before: &[Message]) -> Result<String> {
        let asks = self.rule.begin != Begin::Message;
        let mut text = (self.write)(before, asks)?;
        let length = match self.rule.begin {
            Begin::Cue => without_reasoning(&text).len(),
            Begin::CueWord => text.trim_end().len(),
            Begin::Message | Begin::Elsewhere => text.len(),
        };
        text.truncate(length);
        Ok(text)
    }

    /// Where a turn ends in the text, of which `with_it` is what the template writes where it is the last.
    fn end(&self, start: usize, with_it: &str) -> Option<usize> {
        if self.whole.starts_with(with_it) {
            return Some(with_it.len());
        }
        let without = self.without_end(with_it);
        if self.whole.starts_with(without) {
            return Some(without.len());
        }
        // The last turn ends with a mark of its own.
        let same = with_it.bytes().zip(self.whole.bytes());
        let same = same.take_while(|(a, b)| a == b).count();
        let open = with_it.as_bytes()[..same]
            .iter()
            .rposition(|byte| *byte == b'<');
        let open = open.filter(|open| *open >= start)?;
        let mark = |text: &str| Some(text.get(open..)?.find('>')? + 1);
        (open + mark(with_it)? == with_it.len()).then_some(open + mark(self.whole)?)
    }

    /// A text without what ends every text.
    fn without_end<'t>(&self, text: &'t str) -> &'t str {
        text.strip_suffix(self.end).unwrap_or(text)
    }

    /// The text in which each of the assistant's turns is as the template writes it where it is the last
    /// one; `None` if the template doesn't show where such a turn ends.
    fn each_as_last(&self, from: usize) -> Result<Option<Marked>> {
        let is_answer = |turn: &usize| self.turns[*turn].role() == "assistant";
        let answers: Vec<usize> = (0..self.turns.len()).filter(is_answer).collect();
        let is_known = self.rule.begin == Begin::Message || self.rule.shortens;
        if is_known || answers.is_empty() {
            return Ok(None);
        }
        let mut marked = Marked {
            text: String::new(),
            answers: Vec::new(),
        };
        let mut before = None;
        for turn in answers {
            let opening = self.opening(&self.turns[..turn])?;
            let with_it = (self.write)(&self.turns[..=turn], false)?;
            let Some(answer) = with_it.strip_prefix(opening.as_str()) else {
                return Ok(None);
            };
            match before {
                None => marked.text.push_str(&opening),
                Some(before) => match self.between(before, turn)? {
                    Some(between) => marked.text.push_str(&between),
                    None => return Ok(None),
                },
            }
            let start = marked.text.len();
            marked.text.push_str(answer);
            if turn >= from {
                marked.answers.push(start..marked.text.len());
            }
            before = Some(turn);
        }
        let all = self.turns.len();
        if let Some(last) = before.filter(|last| last + 1 < all) {
            match self.between(last, all)? {
                Some(rest) => marked.text.push_str(&rest),
                None => return Ok(None),
            }
        }
        Ok(Some(marked))
    }

    /// What the template writes from the end of an answer up to the beginning of the next one, `turn`, or to
    /// the end of the text; `None` if it does not show.
    fn between(&self, answer: usize, turn: usize) -> Result<Option<String>> {
        let mut turns = self.turns[..turn].to_vec();
        turns[answer] = turns[answer].with_content(STAND_IN);
        let alone = (self.write)(&turns[..=answer], false)?;
        let followed = if turn < self.turns.len() {
            self.opening(&turns)?
        } else {
            (self.write)(&turns, false)?
        };
        let behind = |text: &str| {
            let mut parts = text.split(STAND_IN);
            let last = parts.next().and(parts.next()).map(str::to_string);
            last.filter(|_| parts.next().is_none())
        };
        let (Some(alone), Some(followed)) = (behind(&alone), behind(&followed)) else {
            return Ok(None);
        };
        Ok(followed.strip_prefix(alone.as_str()).map(str::to_string))
    }

    /// An answer's place, found with all messages before it.
    fn answer(&self, turn: usize) -> Result<Range<usize>> {
        let start = self.start(turn)?;
        let with_it = (self.write)(&self.turns[..=turn], false)?;
        match self.end(start, &with_it).filter(|end| *end >= start) {
            Some(end) => Ok(start..end),
            None => Err(self.rewritten(turn)),
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
        let before = write(&few[..messages_to_before], false)?;
        let asks = self.opening(&few).ok()?;
        let to_before = if asks.starts_with(&before) {
            before.len()
        } else {
            self.without_end(&before).len()
        };
        few.push(self.turns[turn].clone());
        let with_it = write(&few, false)?;
        let rest = &self.whole[end..];
        let mut tail = with_it.get(to_before..)?;
        if !rest.starts_with(tail) {
            tail = self.without_end(tail);
        }
        let fits = rest.starts_with(asks.get(to_before..)?) && rest.starts_with(tail);
        let place = end + asks.len().checked_sub(to_before)?..end + tail.len();
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

/// A cue without the reasoning that it begins for the assistant, or says to be empty.
fn without_reasoning(cue: &str) -> &str {
    let open = cue.trim_end();
    let open = open.strip_suffix("</think>").map_or(open, str::trim_end);
    open.strip_suffix("<think>").unwrap_or(cue)
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
