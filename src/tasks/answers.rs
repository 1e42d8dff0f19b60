//! Answers to prompts, as TRL 1.16's trainers read them: pairs of a chosen and a rejected answer, or
//! single ones that are good or bad; texts, or conversations that the model's chat template makes texts
//! of. What is learned from them is the business of `preferences`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ndarray::{Array1, s};
use serde_json::{Value, json};
use xtrain_models::{DESIRABLE, IGNORED_LABEL, IGNORED_NUMBER, PAIR};

use super::chats::{self, Writer, messages};
use super::table_file::{RowReader, TableFile};
use super::{Context, Length};
use xtrain_data::chat_template::{ChatTemplate, Message, Variables};
use xtrain_data::formats::cell::Cell;
use xtrain_data::formats::table::{Row as TableRow, Table};
use xtrain_data::padding::Padding;
use xtrain_data::rows::{Totals, flag};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::texts::not_text;
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, Label, Place, Recipe, Result, Row, Sample,
    SampleFile, Tokenizer,
};

const PROMPT: &str = "prompt";
const CHOSEN: &str = "chosen";
const REJECTED: &str = "rejected";
const COMPLETION: &str = "completion";
const LABEL: &str = "label";
const MARGIN: &str = "margin";
/// The columns of texts that stand alone, in the order they are looked for.
const ALONE: [&str; 4] = ["text", "messages", "conversations", COMPLETION];
/// Those that a template reads besides the messages.
const VARIABLES: [&str; 2] = ["tools", "chat_template_kwargs"];

/// Examples that a thread takes at a time.
const GROUP: usize = 256;

/// What an example is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A chosen and a rejected answer to a prompt that is given, or what both begin with.
    Pairs,
    /// Two texts, of which a model is to score the first higher, by a margin where one is given.
    Scored,
    /// An answer with what it is to be: good, or bad.
    Judged {
        /// Examples of a batch, each of which is compared with its prompt's answer by the example before
        /// it; `None`: none is.
        compared: Option<usize>,
    },
    /// A text that a model is to score.
    Alone,
}

/// Which end of a longer example is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncationMode {
    /// The end; examples whose prompt alone is as long as the longest row are left out.
    KeepStart,
    /// The beginning.
    KeepEnd,
}

/// Where answers come from, and how they become rows.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerSettings {
    /// Files or Hub data set.
    pub source: SourceSettings,
    /// The length of the longest row. `None`: the tokenizer's maximum length, at most 1024 and at most
    /// the model's positions.
    pub max_seq_length: Option<usize>,
    /// Which end of a longer row is cut off.
    pub truncation: TruncationMode,
    /// To which length rows are padded, behind the text.
    pub padding: PaddingSettings,
    /// What an example is.
    pub form: Form,
}

impl AnswerSettings {
    /// Looks for the columns in the head of a file.
    ///
    /// # Errors
    /// The file cannot be read, is no table, or lacks a column.
    pub fn check_file(&self, path: &Path) -> Result<()> {
        self.open(path, Arc::default()).map(drop)
    }

    /// The length of the longest row.
    ///
    /// # Errors
    /// As [`super::Task::length`].
    pub fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 1024, tokenizer_limit, positions)
    }

    /// How files become rows and rows batches.
    ///
    /// # Errors
    /// The tokenizer has no padding token, or a bucket is out of range.
    pub fn recipe(&self, context: &Context) -> Result<Arc<dyn Recipe>> {
        let pad_id = context.tokenizer.pad_id().ok_or(Error::NoPadToken)?;
        Ok(Arc::new(Answers {
            padding: Padding::new(&self.padding, context.length, pad_id, false)?,
            tokenizer: context.tokenizer.clone(),
            length: context.length,
            settings: self.clone(),
        }))
    }

    /// What decides a cached set besides its files, the tokenizer and how tables are read.
    pub fn set_key(&self, context: &Context) -> Value {
        let form = match self.form {
            // Which answers are compared follows when batches are made.
            Form::Judged { .. } => "judged".to_string(),
            form => format!("{form:?}"),
        };
        json!({
            "form": form,
            "max_length": context.length,
            "truncation": format!("{:?}", self.truncation),
            "end": context.tokenizer.eos_id(),
            "templates": ChatTemplate::key(&context.tokenizer),
        })
    }

    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<(Table, Columns)> {
        let mut table = chats::open(path, &self.source.table, count)?;
        let answers: &[&str] = match self.form {
            Form::Pairs | Form::Scored => &[CHOSEN, REJECTED],
            Form::Judged { .. } => &[COMPLETION],
            Form::Alone => &[],
        };
        let find = |name: &str| table.find(None, &[name]);
        if matches!(self.form, Form::Judged { .. })
            && find(COMPLETION).is_none()
            && find(CHOSEN).is_some()
        {
            return Err(Error::BadTable {
                path: path.to_path_buf(),
                reason: "it has pairs, and kto learns from single answers, columns prompt, completion and label: \
                         use `xtrain train dpo`, or write each answer as a row of its own"
                    .to_string(),
            });
        }
        let named = self.source.table.text_column.as_deref();
        let alone =
            (self.form == Form::Alone).then(|| table.column("text_column_name", named, &ALONE));
        let found = answers.iter().map(|name| table.column("", None, &[name]));
        let found: Vec<_> = found.chain(alone).collect();
        let label = match self.form {
            Form::Pairs | Form::Alone => None,
            Form::Scored => find(MARGIN),
            Form::Judged { .. } => Some(LABEL).and_then(find),
        };
        let mut missing: Vec<_> = found.iter().filter_map(|it| it.clone().err()).collect();
        if matches!(self.form, Form::Judged { .. }) {
            let needed = [(PROMPT, find(PROMPT)), (LABEL, label)];
            let lacking = needed.into_iter().filter(|(_, found)| found.is_none());
            missing.extend(lacking.filter_map(|(name, _)| table.column("", None, &[name]).err()));
        }
        if !missing.is_empty() {
            return Err(table.no_column(missing));
        }
        let answers: Vec<usize> = found.into_iter().flatten().collect();
        // A text that stands alone has no prompt, unless it completes one.
        let completes = answers.iter().any(|it| table.columns()[*it] == COMPLETION);
        let columns = Columns {
            prompt: find(PROMPT).filter(|_| self.form != Form::Alone || completes),
            answers,
            label,
            variables: VARIABLES.map(find),
        };
        let variables = columns.variables.into_iter().flatten();
        let chosen = columns.prompt.into_iter().chain(columns.answers.clone());
        table.choose(chosen.chain(columns.label).chain(variables).collect())?;
        Ok((table, columns))
    }
}

/// Which columns hold an example.
#[derive(Clone)]
struct Columns {
    prompt: Option<usize>,
    answers: Vec<usize>,
    /// A margin, or whether an answer is good.
    label: Option<usize>,
    /// In the order of [`VARIABLES`].
    variables: [Option<usize>; 2],
}

/// What makes an example of a row.
struct Examples {
    columns: Columns,
    writer: Writer,
    form: Form,
}

/// A prompt, and texts that begin with it.
struct Texts {
    prompt: String,
    whole: Vec<String>,
    /// The chat template wrote them, with all special tokens.
    rendered: bool,
}

impl RowReader for Examples {
    fn sample(&self, names: &[String], row: TableRow) -> Result<Sample> {
        let place = row.place.clone();
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        let name = |column: usize| names[column].as_str();
        let mut cells = row.cells.into_iter();
        let mut cell = || cells.next().unwrap_or(Cell::Missing);
        let prompt = self.columns.prompt.map(|_| cell());
        let answers = self.columns.answers.iter();
        let answers: Vec<_> = answers.map(|column| (name(*column), cell())).collect();
        let label = self.columns.label.map(|_| cell());
        let [tools, more] = self.columns.variables.map(|column| match column {
            Some(_) => cell().into_json(),
            None => Value::Null,
        });
        let is_conversation = answers.iter().all(|(_, it)| matches!(it, Cell::List(_)));
        let texts = if is_conversation {
            let variables = Variables::of(tools, Value::Null, more).map_err(bad)?;
            self.conversations(prompt, answers, &variables, &place)?
        } else {
            let mut texts = Vec::new();
            for (column, answer) in answers {
                match answer {
                    Cell::Text(text) => texts.push(text),
                    other => return Err(not_text(place.clone(), column, &other)),
                }
            }
            let prompt = match prompt {
                None => None,
                Some(Cell::Text(prompt)) => Some(prompt),
                Some(Cell::List(_)) => return Err(bad(mixed())),
                Some(other) => return Err(not_text(place.clone(), PROMPT, &other)),
            };
            self.texts(prompt, texts).map_err(bad)?
        };
        let rendered = Label::class(u32::from(texts.rendered));
        let label = match (self.form, label) {
            (Form::Pairs | Form::Alone, _) => None,
            (Form::Scored, None | Some(Cell::Missing)) => Label::number(0.0),
            (Form::Scored, Some(cell)) => Some(margin(&cell).map_err(bad)?),
            (Form::Judged { .. }, cell) => {
                Some(judgement(&cell.unwrap_or(Cell::Missing)).map_err(bad)?)
            }
        };
        Ok(Sample {
            texts: std::iter::once(texts.prompt).chain(texts.whole).collect(),
            labels: vec![Some(rendered), label],
            ..Sample::default()
        })
    }
}

impl Examples {
    /// Texts, up to the token that ends each.
    fn texts(&self, prompt: Option<String>, answers: Vec<String>) -> Result<Texts, String> {
        let (prompt, answers) = match (prompt, self.form) {
            (Some(prompt), _) => (prompt, answers),
            (None, Form::Pairs) => {
                let letters: Vec<Vec<char>> =
                    answers.iter().map(|text| text.chars().collect()).collect();
                let mut shared = shared(&letters)?;
                // A space before the difference is the answers'.
                if shared.differs && shared.length > 0 && letters[0][shared.length - 1] == ' ' {
                    shared.length -= 1;
                }
                let rest = |text: &Vec<char>| text[shared.length..].iter().collect();
                let prompt = letters[0][..shared.length].iter().collect();
                (prompt, letters.iter().map(rest).collect())
            }
            (None, _) => (String::new(), answers),
        };
        let ended = |answer: String| {
            let end = if answer.ends_with(&self.writer.end) {
                ""
            } else {
                self.writer.end.as_str()
            };
            format!("{prompt}{answer}{end}")
        };
        Ok(Texts {
            whole: answers.into_iter().map(ended).collect(),
            prompt,
            rendered: false,
        })
    }

    fn conversations(
        &self,
        prompt: Option<Cell>,
        answers: Vec<(&str, Cell)>,
        variables: &Variables,
        place: &Place,
    ) -> Result<Texts> {
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        let mut turns = Vec::new();
        for (column, answer) in answers {
            if let Cell::List(answer) = answer {
                turns.push(messages(column, answer).map_err(bad)?);
            }
        }
        let prompt = match prompt {
            None => None,
            Some(Cell::List(prompt)) => Some(messages(PROMPT, prompt).map_err(bad)?),
            Some(Cell::Text(_)) => return Err(bad(mixed())),
            Some(other) => return Err(not_text(place.clone(), PROMPT, &other)),
        };
        let (prompt, turns) = match (prompt, self.form) {
            (Some(prompt), _) => (prompt, turns),
            (None, Form::Pairs) => {
                let length = shared(&turns).map_err(bad)?.length;
                let prompt = turns[0][..length].to_vec();
                let rest = |turns: &Vec<Message>| turns[length..].to_vec();
                (prompt, turns.iter().map(rest).collect())
            }
            (None, _) => (Vec::new(), turns),
        };
        let render = |turns: &[Message], asks: bool| {
            let rendered = self.writer.render(turns, asks, variables, place, "")?;
            Ok::<_, Error>(rendered.text)
        };
        let whole = |answer: &Vec<Message>| {
            let turns = [prompt.clone(), answer.clone()].concat();
            render(&turns, false)
        };
        Ok(Texts {
            whole: turns.iter().map(whole).collect::<Result<_>>()?,
            // A text that is scored as a whole has none.
            prompt: match self.form {
                Form::Scored | Form::Alone => String::new(),
                _ => render(&prompt, true)?,
            },
            rendered: true,
        })
    }
}

fn mixed() -> String {
    "prompt and answers are not all texts or all lists of messages; where chosen and rejected hold whole conversations, \
     remove the column prompt: it is found as what both begin with"
        .to_string()
}

/// What two sequences begin with.
struct Shared {
    length: usize,
    /// They differ behind it; otherwise one goes on where the other ends, and its last item is the
    /// answer's.
    differs: bool,
}

fn shared<T: PartialEq>(answers: &[Vec<T>]) -> Result<Shared, String> {
    let least = answers.iter().map(Vec::len).min().unwrap_or(0);
    if least == 0 {
        return Err("chosen or rejected is empty".to_string());
    }
    let [chosen, rejected] = answers else {
        return Err("there are no two answers".to_string());
    };
    let differs = (0..least).find(|at| chosen[*at] != rejected[*at]);
    Ok(Shared {
        length: differs.unwrap_or(least - 1),
        differs: differs.is_some(),
    })
}

/// A margin: a number.
fn margin(cell: &Cell) -> Result<Label, String> {
    let (Cell::Number(text) | Cell::Text(text)) = cell else {
        return Err(format!("column {MARGIN:?} holds no number"));
    };
    let value = text.parse().ok().and_then(Label::number);
    value.ok_or_else(|| format!("column {MARGIN:?} holds {text}, which is no number"))
}

/// Whether an answer is good: a truth value.
fn judgement(cell: &Cell) -> Result<Label, String> {
    let text = match cell {
        Cell::Number(text) | Cell::Text(text) => text.as_str(),
        Cell::Class { number: 0, .. } => "0",
        Cell::Class { number: 1, .. } => "1",
        _ => "",
    };
    match text {
        "true" | "True" | "1" => Ok(Label::class(1)),
        "false" | "False" | "0" => Ok(Label::class(0)),
        _ => Err(format!(
            "column {LABEL:?} must be true (a good answer) or false (a bad one)"
        )),
    }
}

/// Answers as rows: of pairs two an example, the chosen one and the rejected one; of single answers two
/// as well, prompt with answer and the answer alone.
#[derive(Debug)]
struct Answers {
    settings: AnswerSettings,
    tokenizer: Tokenizer,
    length: usize,
    padding: Padding,
}

/// What became of a sample.
struct Encoded {
    /// None of one that is left out.
    rows: Vec<Row>,
    tokens: usize,
    truncated: bool,
}

impl Answers {
    fn encoded(&self, sample: &Sample) -> Result<Encoded> {
        let class = |at: usize| sample.labels.get(at).copied().flatten();
        let rendered = class(0).is_some_and(|label| label.as_class() == 1);
        let ids = |text: &String| {
            if rendered {
                self.tokenizer.encode(text)
            } else {
                self.tokenizer.encode_with_special_tokens(text)
            }
        };
        let whole = sample.texts[1..].iter().map(ids);
        let whole = whole.collect::<Result<Vec<_>>>()?;
        let longest = whole.iter().map(Vec::len).max().unwrap_or(0);
        let mut encoded = Encoded {
            rows: Vec::new(),
            tokens: whole.iter().map(Vec::len).sum(),
            truncated: false,
        };
        if self.settings.form == Form::Alone {
            encoded.truncated = longest > self.length;
            encoded.rows = whole.iter().map(|ids| self.row(ids, 0)).collect();
            return Ok(encoded);
        }
        if self.settings.form == Form::Scored {
            if longest <= self.length {
                let row = |ids: &Vec<u32>| Row {
                    label: class(1),
                    ..self.row(ids, 0)
                };
                encoded.rows = whole.iter().map(row).collect();
            }
            return Ok(encoded);
        }
        // Answers begin where the prompt alone and the whole first differ.
        let prompt = ids(&sample.texts[0])?;
        let shared = whole.iter().map(|whole| super::sft::common(&prompt, whole));
        let prompt = shared.min().unwrap_or(0);
        let keeps_start = self.settings.truncation == TruncationMode::KeepStart;
        let answered = whole.iter().any(|whole| whole.len() > prompt);
        if !answered || (keeps_start && prompt >= self.length) {
            return Ok(encoded);
        }
        encoded.truncated = longest > self.length;
        let mut rows: Vec<Row> = whole.iter().map(|ids| self.row(ids, prompt)).collect();
        if let Form::Judged { .. } = self.settings.form {
            rows[0].label = class(1);
            let answer = &whole[0][prompt..];
            rows.push(self.row(&answer[..answer.len().min(self.length)], 0));
        }
        encoded.rows = rows;
        Ok(encoded)
    }

    /// A row of a prompt of `prompt` tokens with its answer, cut to the length of the longest.
    fn row(&self, ids: &[u32], prompt: usize) -> Row {
        let cut = ids.len().saturating_sub(self.length);
        let range = match self.settings.truncation {
            TruncationMode::KeepStart => 0..ids.len() - cut,
            TruncationMode::KeepEnd => cut..ids.len(),
        };
        let flags = range
            .clone()
            .map(|at| if at < prompt { 0 } else { flag::COUNTED });
        Row {
            flags: flags.collect(),
            ..Row::of_ids(&ids[range])
        }
    }
}

impl Recipe for Answers {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        let (table, columns) = self.settings.open(path, count)?;
        let reader = Examples {
            columns,
            writer: Writer::of(&self.tokenizer)?,
            form: self.settings.form,
        };
        Ok(Box::new(TableFile { table, reader }))
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let mut group = EncodedGroup::default();
        for sample in samples {
            let encoded = self.encoded(sample)?;
            group.tokens += encoded.tokens as u64;
            group.truncated += u64::from(encoded.truncated);
            group.dropped += u64::from(encoded.rows.is_empty());
            group.rows.extend(encoded.rows);
        }
        Ok(group)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn padding(&self) -> Option<&Padding> {
        Some(&self.padding)
    }

    fn kept_rows(&self) -> usize {
        match self.settings.form {
            Form::Pairs | Form::Scored | Form::Judged { .. } => PAIR,
            Form::Alone => 1,
        }
    }

    fn parts(&self, example: u32, examples: u32) -> Vec<u32> {
        let own = PAIR as u32 * example;
        match self.settings.form {
            Form::Alone => vec![example],
            Form::Pairs | Form::Scored => vec![own, own + 1],
            Form::Judged { compared: None } => vec![own],
            Form::Judged {
                compared: Some(batch),
            } => {
                // The example before it in its batch; the last one's is the first's.
                let (batch, at) = (batch as u32, example % batch as u32);
                let first = example - at;
                let last = (first + batch).min(examples) - 1;
                let other = if at == 0 { last } else { example - 1 };
                vec![own, PAIR as u32 * other + 1]
            }
        }
    }

    fn join(&self, rows: &mut [Row]) {
        let (Form::Judged { .. }, [own, other]) = (self.settings.form, rows) else {
            return;
        };
        let prompt = own.flags.iter().take_while(|flags| **flags == 0).count();
        let ids = [&own.ids[..prompt], &other.ids[..]].concat();
        *other = self.row(&ids, prompt);
        other.label = own.label;
    }

    fn longest(&self, kept: usize) -> usize {
        match self.settings.form {
            // A prompt with another one's answer.
            Form::Judged { compared: Some(_) } => self.length,
            _ => kept,
        }
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let count = batch.input_ids.nrows();
        if self.settings.form == Form::Alone {
            batch.labels = HostLabels::Numbers(Array1::from_elem(count, IGNORED_NUMBER));
            return;
        }
        if self.settings.form == Form::Scored {
            let mut margins = Array1::from_elem(count, IGNORED_NUMBER);
            for (margin, row) in margins.iter_mut().zip(&rows.examples) {
                *margin = row.label.map_or(0.0, Label::as_number);
            }
            batch.targets = rows.examples.len() / PAIR;
            batch.labels = HostLabels::Numbers(margins);
            return;
        }
        let mut labels = batch.input_ids.clone();
        labels.fill(IGNORED_LABEL as i32);
        for (position, row) in rows.examples.iter().enumerate() {
            let columns = rows.columns(labels.ncols(), row.flags.len());
            let ids = batch.input_ids.slice(s![position, columns.clone()]);
            let mut own = labels.slice_mut(s![position, columns]);
            for ((label, id), flags) in own.iter_mut().zip(ids).zip(&*row.flags) {
                if flags & flag::COUNTED != 0 {
                    *label = *id;
                    batch.targets += 1;
                }
            }
        }
        if let Form::Judged { .. } = self.settings.form {
            let is_good = |row: &Row| row.label.map_or(0.0, |label| label.as_class() as f32);
            let mut good: Vec<f32> = rows.examples.iter().map(is_good).collect();
            good.resize(count, 0.0);
            batch.numbers.push((DESIRABLE, good.into()));
        }
        batch.labels = HostLabels::Tokens(labels);
    }

    fn why_dropped(&self) -> String {
        let length = self.length;
        match self.settings.form {
            Form::Scored => format!("they are longer than --max_length {length}"),
            _ => format!("the prompt alone takes --max_length {length}, or there is no answer"),
        }
    }

    fn empty(&self, what: String, _share: Share, totals: Totals, _largest: u64) -> Error {
        let what = if totals.lines == 0 {
            what
        } else {
            format!(
                "{what}, of which all are left out because {},",
                self.why_dropped()
            )
        };
        Error::NoRows { what }
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
