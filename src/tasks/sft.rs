//! Supervised fine-tuning, as TRL's SFTTrainer prepares it: examples that stand alone, each a text,
//! a prompt with its completion, or a conversation that the model's chat template makes a text of.

mod borders;
mod encoder;
mod ends;
mod piece;
mod turns;

pub(crate) use borders::common;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ndarray::s;
use serde_json::{Value, json};
use xtrain_models::{HeadKind, IGNORED_LABEL, NextToken, Objective};

use super::language::TokenAccuracy;
use super::{Context, Length, Task};
use encoder::Encoder;
use turns::Conversation;
use xtrain_data::chat_template::{ChatTemplate, Message, Variables};
use xtrain_data::formats::cell::Cell;
use xtrain_data::formats::input::Bookmark;
use xtrain_data::formats::table::{Row as TableRow, Table};
use xtrain_data::packing::PackingStrategy;
use xtrain_data::padding::Padding;
use xtrain_data::rows::{Totals, flag};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::texts::not_text;
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, Label, LabelMap, Place, Recipe, Result,
    Sample, SampleFile, Set,
};
use xtrain_trainer::evaluate::Metrics;

/// The columns of whole examples, in the order they are looked for; a file with both a prompt and
/// a completion has those instead.
const EXAMPLES: [&str; 3] = ["messages", "conversations", "text"];
/// Those of conversations.
const CONVERSATIONS: [&str; 2] = ["messages", "conversations"];
const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";
/// Those that a template reads besides the messages.
const VARIABLES: [&str; 3] = ["tools", "documents", "chat_template_kwargs"];

/// Supervised fine-tuning.
#[derive(Clone, Debug, PartialEq)]
pub struct SftDataSettings {
    /// Files or Hub data set, and the column of texts or conversations.
    pub source: SourceSettings,
    /// Longer examples are cut at their end. `None`: the tokenizer's maximum length, at most 1024
    /// and at most the model's positions.
    pub max_seq_length: Option<usize>,
    /// To which length rows are padded, behind the text.
    pub padding: PaddingSettings,
    /// Of a prompt with its completion, the loss is the completion's alone.
    pub completion_only_loss: bool,
    /// Of a conversation, the loss is that of the assistant's turns alone.
    pub assistant_only_loss: bool,
    /// How examples are packed into rows; `None`: each is a row of its own.
    pub packing: Option<PackingStrategy>,
    /// The same of sets to evaluate on.
    pub eval_packing: Option<PackingStrategy>,
    /// The loss of each token is multiplied with its probability (see
    /// [`NextToken::weighs_by_probability`]).
    pub weighs_by_probability: bool,
}

/// Packed rows are as long as they may be.
static FULL_LENGTH: PaddingSettings = PaddingSettings {
    pad_to_max_length: true,
    pad_to_bucket: Vec::new(),
};

impl Task for SftDataSettings {
    fn name(&self) -> &'static str {
        "sft"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-generation"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, _needs_labels: bool) -> Result<()> {
        self.open(path, Arc::default()).map(drop)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 1024, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(match self.packing {
            Some(_) => &FULL_LENGTH,
            None => &self.padding,
        })
    }

    fn joins_examples(&self) -> bool {
        self.packing.is_some()
    }

    fn leaves_labels_out(&self) -> bool {
        true
    }

    fn of_evaluation(&self) -> Option<Box<dyn Task>> {
        let evaluates = SftDataSettings {
            packing: self.eval_packing,
            ..self.clone()
        };
        (self.packing != self.eval_packing).then(|| Box::new(evaluates) as Box<dyn Task>)
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::CausalLm
    }

    fn objective(&self, _labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(NextToken {
            smoothing,
            weighs_by_probability: self.weighs_by_probability,
            ..NextToken::default()
        })
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        let pad_id = context.tokenizer.pad_id().ok_or(Error::NoPadToken)?;
        Ok(Arc::new(Examples {
            padding: Padding::new(
                self.padding().unwrap_or(&self.padding),
                context.length,
                pad_id,
                false,
            )?,
            encoder: Encoder {
                begin: context.tokenizer.bos_id(),
                tokenizer: context.tokenizer.clone(),
                length: context.length,
                packing: self.packing,
            },
            settings: self.clone(),
        }))
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        json!({
            "max_length": context.length,
            "completion_only": self.completion_only_loss,
            "assistant_only": self.assistant_only_loss,
            "packing": self.packing.map(PackingStrategy::name),
            "end": context.tokenizer.eos_id(),
            // One that is damaged is an error where files are opened.
            "templates": ChatTemplate::key(&context.tokenizer),
        })
    }

    fn stream_key(&self, context: &Context) -> String {
        format!("sft {} {:?}", self.set_key(context, true), self.padding())
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn note(&self, context: &Context) -> Option<String> {
        let has_tags = ChatTemplate::has_generation_tags(&context.tokenizer)?;
        let note = "the chat template has no {% generation %} tags: the assistant's turns count \
                    as the texts before and after them show";
        (self.assistant_only_loss && !has_tags).then(|| note.to_string())
    }

    fn check_set(&self, context: &Context, set: &Set) -> Result<()> {
        match context.tokenizer.eos_id() {
            Some(end) => ends::check(&context.tokenizer, end, &set.rows),
            None => Ok(()),
        }
    }

    fn summary(&self, set: &Set) -> Option<String> {
        let strategy = self.packing?;
        let (rows, tokens) = (set.len(), set.rows.tokens());
        let length = set.lengths().last().copied().unwrap_or(1);
        let waste = 1.0 - tokens as f64 / (rows * length) as f64;
        Some(format!(
            "{} examples of {tokens} tokens are packed ({}) into {rows} rows of {length}, of which {:.1} % is padding",
            set.rows.totals().lines,
            strategy.name(),
            100.0 * waste
        ))
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(TokenAccuracy::new(!self.weighs_by_probability))
    }
}

impl SftDataSettings {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<(Table, Columns)> {
        let mut table = Table::open(path, &self.source.table, count)?;
        if let Some(pictures) = table.find(None, &["image", "images"]) {
            return Err(Error::BadTable {
                path: path.to_path_buf(),
                reason: format!(
                    "it has the column {:?}: models of pictures are not supported, remove it to train on the text alone",
                    table.columns()[pictures]
                ),
            });
        }
        let named = self.source.table.text_column.as_deref();
        // A dump of TRL's arguments names it, whatever the file has.
        let named = named.filter(|name| *name != "text" || table.find(named, &[]).is_some());
        let pair = || {
            Some((
                table.find(None, &[PROMPT])?,
                table.find(None, &[COMPLETION])?,
            ))
        };
        let columns = if let (None, Some((prompt, completion))) = (named, pair()) {
            Columns {
                prompt: Some(prompt),
                last: completion,
                variables: [None; 3],
            }
        } else {
            let column = table.column("text_column_name", named, &EXAMPLES);
            Columns {
                prompt: None,
                last: column.map_err(|missing| table.no_column([missing]))?,
                variables: [None; 3],
            }
        };
        let columns = Columns {
            variables: VARIABLES.map(|name| table.find(None, &[name])),
            ..columns
        };
        let chosen = columns.prompt.into_iter().chain([columns.last]);
        let variables = columns.variables.into_iter().flatten();
        table.choose(chosen.chain(variables).collect())?;
        Ok((table, columns))
    }
}

/// Which columns hold an example.
#[derive(Clone, Copy)]
struct Columns {
    /// `None`: the other one is the whole example.
    prompt: Option<usize>,
    last: usize,
    /// In the order of [`VARIABLES`].
    variables: [Option<usize>; 3],
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

/// One open file of examples.
struct ExampleFile {
    table: Table,
    columns: Columns,
    template: Option<ChatTemplate>,
    /// What ends a text; empty where the tokenizer has no such token.
    end: String,
    settings: SftDataSettings,
}

impl SampleFile for ExampleFile {
    fn bookmark(&self) -> Bookmark {
        self.table.bookmark()
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        self.table.resume(bookmark, Arc::default())
    }

    fn next(&mut self) -> Option<Result<Sample>> {
        let row = self.table.next()?;
        Some(row.and_then(|row| self.sample(row)))
    }
}

impl ExampleFile {
    fn sample(&self, row: TableRow) -> Result<Sample> {
        let place = row.place.clone();
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        let name = |column: usize| self.table.columns()[column].as_str();
        let last = name(self.columns.last);
        let mut cells = row.cells.into_iter();
        let mut cell = || cells.next().unwrap_or(Cell::Missing);
        let prompt = self.columns.prompt.map(|column| (name(column), cell()));
        let last_cell = cell();
        let variables = self.columns.variables.map(|column| match column {
            Some(_) => cell().into_json(),
            None => Value::Null,
        });
        let variables = || {
            let [tools, documents, more] = variables.clone();
            Variables::of(tools, documents, more).map_err(bad)
        };
        let pieces = match (prompt, last_cell) {
            (None, Cell::List(turns)) => {
                let turns = messages(last, turns).map_err(bad)?;
                self.conversation(&turns, None, &variables()?, &place)?
            }
            (Some((first, Cell::List(before))), Cell::List(turns)) => {
                let mut conversation = messages(first, before).map_err(bad)?;
                let answers_from = Some(conversation.len());
                conversation.extend(messages(last, turns).map_err(bad)?);
                self.conversation(&conversation, answers_from, &variables()?, &place)?
            }
            // A table of text alone may hold a list as JSON, which is no text to learn.
            (None, Cell::Text(_)) if CONVERSATIONS.contains(&last) => {
                return Err(bad(format!(
                    "column {last:?} holds text where a list of messages is expected; write the rows as JSON lines or parquet"
                )));
            }
            (None, Cell::Text(text)) => self.text("", text).map_err(bad)?,
            (Some((_, Cell::Text(prompt))), Cell::Text(completion)) => {
                self.text(&prompt, completion).map_err(bad)?
            }
            (Some((first, other)), Cell::List(_) | Cell::Text(_)) => {
                return Err(bad(format!(
                    "{first:?} and {last:?} are not both texts or both lists of messages ({})",
                    not_text(place.clone(), first, &other)
                )));
            }
            (_, other) => return Err(not_text(place, last, &other)),
        };
        Ok(Sample {
            index: 0,
            texts: pieces.texts,
            labels: pieces.labels,
        })
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
        if !completion.ends_with(&self.end) {
            completion.push_str(&self.end);
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
        let template = self.template.as_ref().ok_or_else(|| bad(
            "it is a conversation, and the tokenizer has no chat template: use a model with chat_template.jinja \
             or a chat_template in tokenizer_config.json".to_string(),
        ))?;
        let render = |turns: &[Message], asks: bool| {
            let text = template.render(turns, asks, variables);
            text.map_err(|error| match error {
                // No row is to blame for it.
                Error::EndlessTemplate {
                    place: template,
                    reason,
                } => Error::EndlessTemplate {
                    place: format!("{place}: {template}"),
                    reason,
                },
                refused => bad(refused.to_string()),
            })
        };
        let write = |turns: &[Message], asks: bool| render(turns, asks).map(|it| it.text);
        let rendered = render(turns, false)?;
        let whole = &rendered.text;
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
                    bad: &bad,
                };
                // Where texts that count begin and end, in bytes of the whole.
                let from = answers_from.filter(|_| self.settings.completion_only_loss);
                let answers = conversation.answers(from.unwrap_or(0))?;
                if answers.is_empty() {
                    return Err(bad(
                        "no turn of the assistant's is there to learn".to_string()
                    ));
                }
                let mut at = 0;
                for part in answers {
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

/// The messages of a cell's list.
pub(super) fn messages(column: &str, turns: Vec<Cell>) -> Result<Vec<Message>, String> {
    if turns.is_empty() {
        return Err(format!("column {column:?} has no messages"));
    }
    let message = |(i, turn): (usize, Cell)| {
        let Value::Object(mut fields) = turn.into_json() else {
            return Err(format!(
                "{column}[{i}] is no message, an object with role and content"
            ));
        };
        // What a table's other rows have is null in this one.
        fields.retain(|_, value| !value.is_null());
        // ShareGPT's names become the usual ones, as in TRL.
        if let Some(role) = fields.shift_remove("from") {
            fields.insert("role".into(), role);
            if let Some(content) = fields.shift_remove("value") {
                fields.insert("content".into(), content);
            }
        }
        match fields.get("role") {
            Some(Value::String(_)) => Ok(Message::of(fields)),
            _ => Err(format!("{column}[{i}] has no role that is text")),
        }
    };
    turns.into_iter().enumerate().map(message).collect()
}

/// Examples as rows, one each or packed.
#[derive(Debug)]
struct Examples {
    settings: SftDataSettings,
    encoder: Encoder,
    padding: Padding,
}

impl Recipe for Examples {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        let (table, columns) = self.settings.open(path, count)?;
        let end = self.encoder.tokenizer.eos_id();
        Ok(Box::new(ExampleFile {
            table,
            columns,
            template: ChatTemplate::of(&self.encoder.tokenizer)?,
            end: end
                .and_then(|id| self.encoder.tokenizer.token(id))
                .unwrap_or_default(),
            settings: self.settings.clone(),
        }))
    }

    fn group(&self) -> usize {
        self.encoder.group()
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        self.encoder.encode(samples)
    }

    fn length(&self) -> usize {
        self.encoder.length
    }

    fn padding(&self) -> Option<&Padding> {
        Some(&self.padding)
    }

    fn joins_examples(&self) -> bool {
        self.encoder.packing.is_some()
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let mut labels = batch.input_ids.clone();
        labels.fill(IGNORED_LABEL as i32);
        for (position, example) in rows.examples.iter().enumerate() {
            let columns = rows.columns(labels.ncols(), example.flags.len());
            let ids = batch.input_ids.slice(s![position, columns.clone()]);
            let mut row = labels.slice_mut(s![position, columns]);
            for ((label, id), flags) in row.iter_mut().zip(ids).zip(&*example.flags) {
                if flags & flag::COUNTED != 0 {
                    *label = *id;
                    batch.targets += 1;
                }
            }
        }
        batch.labels = HostLabels::Tokens(labels);
    }

    fn empty(&self, what: String, _share: Share, totals: Totals, _largest: u64) -> Error {
        let what = if totals.lines == 0 {
            what
        } else {
            format!(
                "{what}, in which nothing to learn begins within --max_seq_length {} (set more, unless the chat template leaves it out),",
                self.encoder.length
            )
        };
        Error::NoRows { what }
    }
}

#[cfg(test)]
#[path = "sft_tests.rs"]
mod tests;
