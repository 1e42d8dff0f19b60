//! Files of examples: what each row's text is made of, before it is tokenized.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::Value;

use super::known::Rule;
use super::piece;
use super::settings::SftDataSettings;
use super::shape::{CONVERSATIONS, Columns, Shape};
use super::turns::Conversation;
use crate::chats::{self, Writer, messages};
use crate::table_file::{RowReader, TableFile};
use xtrain_data::chat_template::{ChatTemplate, Message, Variables};
use xtrain_data::formats::cell::Cell;
use xtrain_data::formats::table::{Row as TableRow, Table};
use xtrain_data::texts::not_text;
use xtrain_data::{Error, Label, Place, Result, Sample, Tokenizer};

/// Opens a table of examples; raw bytes read are added to `count`.
///
/// # Errors
/// The file cannot be read, is no table, or has none of the columns.
pub(super) fn open(
    settings: &SftDataSettings,
    path: &Path,
    count: Arc<AtomicU64>,
) -> Result<(Table, Columns)> {
    let mut table = chats::open(path, &settings.source.table, count)?;
    let columns = Columns::of(&table, settings.source.table.text_column.as_deref())?;
    table.choose(columns.chosen())?;
    Ok((table, columns))
}

/// What an example is before it is tokenized: the pieces of its text one after the other.
#[derive(Default)]
struct Pieces {
    texts: Vec<String>,
    labels: Vec<Option<Label>>,
}

impl Pieces {
    fn push(&mut self, text: &str, kind: u32) {
        if !text.is_empty() {
            self.texts.push(text.to_string());
            self.labels.push(Some(Label::class(kind)));
        }
    }
}

/// What makes an example of a row.
pub(super) struct Examples {
    columns: Columns,
    writer: Writer,
    rule: Rule,
    settings: SftDataSettings,
    /// Ids that the model has.
    vocabulary: usize,
}

/// Opens a file whose conversations the tokenizer's template writes.
///
/// # Errors
/// As [`open`]; or the template is damaged.
pub(super) fn examples(
    settings: &SftDataSettings,
    tokenizer: &Tokenizer,
    vocabulary: usize,
    path: &Path,
    count: Arc<AtomicU64>,
) -> Result<TableFile<Examples>> {
    let (table, columns) = open(settings, path, count)?;
    let writer = Writer::of(tokenizer)?;
    let digest = writer.template.as_ref().and_then(ChatTemplate::digest);
    let reader = Examples {
        columns,
        rule: Rule::of(digest.as_deref()),
        writer,
        settings: settings.clone(),
        vocabulary,
    };
    Ok(TableFile { table, reader })
}

impl RowReader for Examples {
    fn sample(&self, names: &[String], row: TableRow) -> Result<Sample> {
        let place = row.place.clone();
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        if let Shape::Tokens(columns) = &self.columns.shape {
            return Ok(Sample {
                row: Some(columns.row(&place, row.cells, self.vocabulary)?),
                ..Sample::default()
            });
        }
        let name = |column: usize| names[column].as_str();
        let mut cells = row.cells.into_iter();
        let mut cell = || cells.next().unwrap_or(Cell::Missing);
        let given = (cell(), self.second(&mut cell), self.more(&mut cell));
        let variables = self.columns.variables.map(|column| match column {
            Some(_) => cell().into_json(),
            None => Value::Null,
        });
        let variables = || {
            let [tools, documents, more] = variables.clone();
            Variables::of(tools, documents, more).map_err(bad)
        };
        let pieces = match (&self.columns.shape, given) {
            (Shape::Whole(column), (Cell::List(turns), ..)) => {
                let turns = messages(name(*column), turns).map_err(bad)?;
                self.conversation(&turns, None, &variables()?, &place)?
            }
            // A table of text alone may hold a list as JSON, which is no text to learn.
            (Shape::Whole(column), (Cell::Text(_), ..))
                if CONVERSATIONS.contains(&name(*column)) =>
            {
                return Err(bad(format!(
                    "column {:?} holds text where a list of messages is expected; write the rows as JSON lines or parquet",
                    name(*column)
                )));
            }
            (Shape::Whole(_), (Cell::Text(text), ..)) => self.text("", text).map_err(bad)?,
            (Shape::Whole(column), (other, ..)) => {
                return Err(not_text(place, name(*column), &other));
            }
            (Shape::Pair { prompt, completion }, (before, Some(after), _)) => {
                let [first, last] = [*prompt, *completion].map(name);
                match (before, after) {
                    (Cell::List(before), Cell::List(turns)) => {
                        let mut conversation = messages(first, before).map_err(bad)?;
                        let answers_from = Some(conversation.len());
                        conversation.extend(messages(last, turns).map_err(bad)?);
                        self.conversation(&conversation, answers_from, &variables()?, &place)?
                    }
                    (Cell::Text(prompt), Cell::Text(completion)) => {
                        self.text(&prompt, completion).map_err(bad)?
                    }
                    (other, Cell::List(_) | Cell::Text(_)) => {
                        return Err(bad(format!(
                            "{first:?} and {last:?} are not both texts or both lists of messages ({})",
                            not_text(place.clone(), first, &other)
                        )));
                    }
                    (_, other) => return Err(not_text(place, last, &other)),
                }
            }
            (Shape::Instruction { .. }, (instruction, output, more)) => {
                let turns = self.instructed(instruction, output, more, &place)?;
                let asked = turns.len() - 1;
                self.conversation(&turns, Some(asked), &variables()?, &place)?
            }
            (Shape::Tokens(_) | Shape::Pair { .. }, _) => {
                unreachable!("tokens are read above, and a pair has two cells")
            }
        };
        Ok(Sample {
            texts: pieces.texts,
            labels: pieces.labels,
            ..Sample::default()
        })
    }
}

impl Examples {
    /// The second of a shape's cells, where it has one.
    fn second(&self, cell: &mut impl FnMut() -> Cell) -> Option<Cell> {
        match self.columns.shape {
            Shape::Pair { .. } | Shape::Instruction { .. } => Some(cell()),
            Shape::Whole(_) | Shape::Tokens(_) => None,
        }
    }

    /// Input and system's message of an instruction, where there are such columns.
    fn more(&self, cell: &mut impl FnMut() -> Cell) -> [Option<Cell>; 2] {
        match self.columns.shape {
            Shape::Instruction { input, system, .. } => {
                [input, system].map(|column| column.map(|_| cell()))
            }
            _ => [None, None],
        }
    }

    /// The turns of an instruction, the last of them the answer.
    fn instructed(
        &self,
        instruction: Cell,
        output: Option<Cell>,
        more: [Option<Cell>; 2],
        place: &Place,
    ) -> Result<Vec<Message>> {
        let text = |name: &str, cell: Cell| match cell {
            Cell::Text(text) => Ok(text),
            other => Err(not_text(place.clone(), name, &other)),
        };
        let optional = |name: &str, cell: Option<Cell>| match cell {
            None | Some(Cell::Missing) => Ok(String::new()),
            Some(cell) => text(name, cell),
        };
        let [input, system] = more;
        let mut asked = text("instruction", instruction)?;
        let input = optional("input", input)?;
        if !input.is_empty() {
            asked.push('\n');
            asked.push_str(&input);
        }
        let system = optional("system", system)?;
        let answer = text("output", output.unwrap_or(Cell::Missing))?;
        let system = (!system.is_empty()).then(|| Message::new("system", system));
        let turns = [
            Message::new("user", asked),
            Message::new("assistant", answer),
        ];
        Ok(system.into_iter().chain(turns).collect())
    }

    /// A text, or a prompt with what completes it, up to the token that ends a text.
    fn text(&self, prompt: &str, mut completion: String) -> Result<Pieces, String> {
        if self.settings.assistant_only_loss {
            return Err(
                "--assistant_only_loss needs conversations, lists of messages with role and content, and this is text: set it to false"
                    .to_string(),
            );
        }
        if completion.is_empty() {
            return Err("the text to learn is empty".to_string());
        }
        if !completion.ends_with(&self.writer.end) {
            completion.push_str(&self.writer.end);
        }
        let mut pieces = Pieces::default();
        let of_prompt = if self.settings.completion_only_loss {
            0
        } else {
            piece::COUNTED
        };
        pieces.push(prompt, of_prompt);
        pieces.push(&completion, piece::COUNTED);
        Ok(pieces)
    }

    /// A conversation, whose turns from `answers_from` on complete those before.
    fn conversation(
        &self,
        turns: &[Message],
        answers_from: Option<usize>,
        variables: &Variables,
        place: &Place,
    ) -> Result<Pieces> {
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        // What the template would leave out stands there under another name while it writes.
        let keeps_reasoning = self.settings.assistant_only_loss && self.rule.keeps_reasoning;
        let kept = keeps_reasoning.then(|| kept_reasoning(turns));
        let turns = kept.as_deref().unwrap_or(turns);
        let render = |turns: &[Message], asks: bool| {
            let otherwise = ", or write the rows as prompt and completion";
            self.writer.render(turns, asks, variables, place, otherwise)
        };
        let restored = |text: String| {
            if keeps_reasoning {
                text.replace(KEPT, REASONING_END)
            } else {
                text
            }
        };
        let write = |turns: &[Message], asks: bool| render(turns, asks).map(|it| restored(it.text));
        let rendered = render(turns, false)?;
        let whole = &restored(rendered.text);
        let mut pieces = Pieces::default();
        match rendered.generations {
            Some(places) if self.settings.assistant_only_loss => {
                pieces.push(whole, piece::RENDERED | piece::COUNTED);
                pieces.push(&tag_places(&places).map_err(bad)?, piece::TAGS);
            }
            None if self.settings.assistant_only_loss => {
                let conversation = Conversation {
                    turns,
                    whole,
                    write: &write,
                    rule: self.rule,
                    end: &self.writer.end,
                    bad: &bad,
                };
                // Where texts that count begin and end, in bytes of the whole.
                let from = answers_from.filter(|_| self.settings.completion_only_loss);
                let marked = conversation.marked(from.unwrap_or(0))?;
                if marked.answers.is_empty() {
                    return Err(bad(
                        "no turn of the assistant's is there to learn".to_string()
                    ));
                }
                let (whole, mut at) = (&marked.text, 0);
                for part in marked.answers {
                    pieces.push(&whole[at..part.start], piece::RENDERED);
                    pieces.push(&whole[part.clone()], piece::RENDERED | piece::COUNTED);
                    at = part.end;
                }
                pieces.push(&whole[at..], piece::RENDERED);
            }
            _ => pieces.push(whole, piece::RENDERED | piece::COUNTED),
        }
        if let Some(before) = answers_from.filter(|_| self.settings.completion_only_loss) {
            if before == turns.len() {
                return Err(bad("the completion has no messages".to_string()));
            }
            pieces.push(&write(&turns[..before], true)?, piece::PROMPT);
        }
        Ok(pieces)
    }
}

/// What ends reasoning, and what stands in its place: a character that no text has.
const REASONING_END: &str = "</think>";
const KEPT: &str = "\u{e001}";

/// Messages of which a template that looks for the end of reasoning leaves nothing out.
fn kept_reasoning(turns: &[Message]) -> Vec<Message> {
    let kept = |turn: &Message| match turn.content() {
        Some(content) if turn.role() == "assistant" => {
            turn.with_content(&content.replace(REASONING_END, KEPT))
        }
        _ => turn.clone(),
    };
    turns.iter().map(kept).collect()
}

/// Places between generation tags as a text.
fn tag_places(places: &[Range<usize>]) -> Result<String, String> {
    if places.iter().any(|place| place.end == 0) {
        return Err(
            "{% generation %} of the chat template is empty where the text begins, which transformers refuses"
                .to_string(),
        );
    }
    if places.iter().all(Range::is_empty) {
        return Err(
            "nothing to learn stands between {% generation %} and {% endgeneration %} of the chat template"
                .to_string(),
        );
    }
    let places = places
        .iter()
        .map(|place| format!("{}-{}", place.start, place.end));
    Ok(places.collect::<Vec<_>>().join(" "))
}
