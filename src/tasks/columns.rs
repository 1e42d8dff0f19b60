//! Labelled texts out of tables: the settings, which columns they are in, and what makes a row
//! unusable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::RunLabels;
use super::glue::Glue;
use super::table_file::{RowReader, TableFile};
use xtrain_data::formats::cell::{Cell, IGNORED};
use xtrain_data::formats::table::{Row, Table};
use xtrain_data::settings::{OnBadRow, PaddingSettings, SourceSettings};
use xtrain_data::texts::not_text;
use xtrain_data::whitespace;
use xtrain_data::{Error, Label, LabelMap, Result, Sample};

/// Classification and regression of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct ClsDataSettings {
    /// Files or Hub data set, and the columns or keys of the text.
    pub source: SourceSettings,
    /// The second text of a pair. `None`: single texts, unless no text column is named either and
    /// the file has one of the usual pairs, such as `sentence1` and `sentence2`.
    pub text_pair_column: Option<String>,
    /// `None`: `label` or `labels`.
    pub label_column: Option<String>,
    /// Longer sequences are truncated, the longest of a pair first. `None`: the least of the
    /// tokenizer's maximum, run_glue's 128 and the model's positions.
    pub max_seq_length: Option<usize>,
    /// To which length rows are padded.
    pub padding: PaddingSettings,
    /// The labels in order, if the user named them. `None`: those of the model or of the training
    /// set, sorted.
    pub labels: Option<LabelMap>,
    /// Where the training set decides, floating point numbers make a regression.
    /// Otherwise fractions are refused, and whole ones are classes.
    pub finds_regression: bool,
    /// The task of GLUE that was named: F1 is the second class's then, and the mean of several
    /// metrics is `combined_score`.
    pub glue: Option<Glue>,
}

/// GLUE's columns for pairs, in the order they are looked for, and for single texts.
const PAIRS: [(&str, &str); 4] = [
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
];
const SINGLES: [&str; 3] = ["text", "sentence", "sentence1"];
const LABELS: [&str; 2] = ["label", "labels"];

/// More different labels than this are no labels: the column is another one, such as an id or the
/// text.
const MOST_LABELS: usize = 10_000;

/// Where a file has what; cells come in this order: text, pair, label.
#[derive(Clone, Debug)]
struct Columns {
    text: usize,
    pair: Option<usize>,
    label: Option<usize>,
}

impl Columns {
    fn of(table: &Table, settings: &ClsDataSettings, needs_label: bool) -> Result<Columns> {
        let named_label = settings.label_column.as_deref();
        let mut missing = Vec::new();
        let label = table.column("label_column_name", named_label, &LABELS);
        let label = label.map_err(|label| missing.extend(needs_label.then_some(label)));
        let label = label.ok();
        let named = settings.source.table.text_column.as_deref();
        let usual_pair = PAIRS
            .iter()
            .find_map(|(a, b)| Some((table.find(Some(*a), &[])?, table.find(Some(*b), &[])?)));
        let (text, usual_pair) = match (named, usual_pair) {
            (None, Some((text, pair))) => (Some(text), Some(pair)),
            _ => {
                let text = table.column("text_column_name", named, &SINGLES);
                let text = text.or_else(|text| only_text(table, named, label).ok_or(text));
                (text.map_err(|text| missing.push(text)).ok(), None)
            }
        };
        let pair = match settings.text_pair_column.as_deref() {
            Some(name) => {
                let pair = table.column("text_pair_column_name", Some(name), &[]);
                pair.map_err(|pair| missing.push(pair)).ok()
            }
            None => usual_pair,
        };
        match text {
            Some(text) if missing.is_empty() => Ok(Columns { text, pair, label }),
            _ => Err(table.no_column(missing)),
        }
    }

    fn chosen(&self) -> Vec<usize> {
        [Some(self.text), self.pair, self.label]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The one column besides the label, if there is just one.
fn only_text(table: &Table, named: Option<&str>, label: Option<usize>) -> Option<usize> {
    let mut others = (0..table.columns().len()).filter(|column| Some(*column) != label);
    let first = others.next()?;
    (named.is_none() && others.next().is_none()).then_some(first)
}

/// Looks for the columns of texts and, if `needs_label`, of labels in a file's head.
///
/// # Errors
/// The file cannot be read, is no table, or lacks one.
pub fn check_columns(path: &Path, settings: &ClsDataSettings, needs_label: bool) -> Result<()> {
    let table = Table::open(path, &settings.source.table, Arc::default())?;
    Columns::of(&table, settings, needs_label).map(drop)
}

/// What is done with the labels of a split.
#[derive(Clone, Debug)]
pub struct LabelUse {
    pub labels: RunLabels,
    /// Whose classes go by their numbers where the labels have other names.
    pub glue: Option<Glue>,
    /// Every row must have one; otherwise a missing one is no error.
    pub needed: bool,
}

impl LabelUse {
    /// The label of a name, if it is one: `None` for what stands where none is needed; else why it
    /// is none.
    pub fn find(&self, name: &str) -> Result<Option<Label>, String> {
        let RunLabels { map, given } = &self.labels;
        let by_task = || {
            let id = self.glue?.id_in(map, name)?;
            Some(Label::class(id as u32))
        };
        match map.label(name, *given).or_else(by_task) {
            Some(label) => Ok(Some(label)),
            // What has no label in published test sets says -1.
            None if !self.needed && ["-1", IGNORED].contains(&name) => Ok(None),
            None if name == IGNORED => Err(ignored()),
            None if map.are_numbers() => Err(format!("label {name:?} is not a finite number")),
            None => Err(format!(
                "label {name:?} is not among the labels: {}",
                list(map.names())
            )),
        }
    }
}

/// What makes a labelled sample of a row.
pub(super) struct LabelledTexts {
    columns: Columns,
    labels: LabelUse,
    /// The tokenizer puts tokens around a text, so that an empty one has some, too.
    empties_have_tokens: bool,
}

/// Opens a table; raw bytes read are added to `count`. `empties_have_tokens`: the tokenizer puts some
/// around a text.
///
/// # Errors
/// The file cannot be read, or has no column for the texts or the labels that are needed.
pub(super) fn open(
    path: &Path,
    settings: &ClsDataSettings,
    labels: LabelUse,
    empties_have_tokens: bool,
    count: Arc<AtomicU64>,
) -> Result<TableFile<LabelledTexts>> {
    let mut table = Table::open(path, &settings.source.table, count)?;
    let columns = Columns::of(&table, settings, labels.needed)?;
    table.choose(columns.chosen())?;
    let reader = LabelledTexts {
        columns,
        labels,
        empties_have_tokens,
    };
    Ok(TableFile { table, reader })
}

impl RowReader for LabelledTexts {
    fn sample(&self, names: &[String], row: Row) -> Result<Sample> {
        sample(
            row,
            names,
            &self.columns,
            &self.labels,
            self.empties_have_tokens,
        )
    }

    fn has_pairs(&self) -> bool {
        self.columns.pair.is_some()
    }
}

fn sample(
    row: Row,
    names: &[String],
    columns: &Columns,
    labels: &LabelUse,
    empties_have_tokens: bool,
) -> Result<Sample> {
    let place = &row.place;
    let bad = |reason: String| Error::BadRow {
        place: place.clone(),
        reason,
    };
    let mut cells = row.cells.into_iter();
    let mut text = |column: usize| match cells.next() {
        Some(Cell::Text(text)) => Ok(text),
        other => Err(not_text(
            place.clone(),
            &names[column],
            &other.unwrap_or(Cell::Missing),
        )),
    };
    let (a, b) = (
        text(columns.text)?,
        columns.pair.map(&mut text).transpose()?,
    );
    let is_empty = whitespace::is_blank;
    if !empties_have_tokens && is_empty(&a) && b.as_deref().is_none_or(is_empty) {
        return Err(bad(format!(
            "the text in column {:?} is empty, and the tokenizer puts no tokens around it",
            names[columns.text]
        )));
    }
    let label = match columns.label {
        None => None,
        Some(column) => {
            let cell = cells.next().unwrap_or(Cell::Missing);
            // Another file of the same set may have the numbers alone, and the labels be made of
            // those.
            let by_number = || match &cell {
                Cell::Class { number, .. } => labels.labels.map.label(&number.to_string(), false),
                _ => None,
            };
            match name(&cell) {
                Ok(name) => labels
                    .find(&name)
                    .or_else(|reason| by_number().map(Some).ok_or(bad(reason)))?,
                Err(_) if !labels.needed => None,
                Err(what) => return Err(bad(format!("column {:?}: {what}", names[column]))),
            }
        }
    };
    Ok(Sample {
        texts: std::iter::once(a).chain(b).collect(),
        labels: vec![label],
        ..Sample::default()
    })
}

/// Names for a message, the first of many.
fn list(names: &[String]) -> String {
    let shown = names
        .iter()
        .take(20)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > 20 {
        format!("{shown}, ... ({} in all)", names.len())
    } else {
        shown
    }
}

/// Why rows with the label of what has none cannot be learned from.
fn ignored() -> String {
    format!("label {IGNORED} stands for \"no label\", and each row needs one")
}

/// A label's name, or why the cell holds none.
pub fn name(cell: &Cell) -> Result<String, &'static str> {
    match cell {
        Cell::Text(text) if whitespace::is_blank(text) => Err("the label is empty"),
        Cell::Text(text) | Cell::Number(text)
            if whitespace::strip(text).eq_ignore_ascii_case("nan") =>
        {
            Err("the label is NaN")
        }
        Cell::Text(text) => Ok(text.clone()),
        // As run_glue writes them.
        Cell::Number(truth) if truth == "true" => Ok("True".to_string()),
        Cell::Number(truth) if truth == "false" => Ok("False".to_string()),
        Cell::Number(number) => Ok(match number.parse::<f64>() {
            // 1.0 of a format that tells numbers from text is the label 1.
            Ok(value) if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value}"),
            _ => number.clone(),
        }),
        Cell::Class { name, .. } => Ok(name.clone()),
        Cell::Missing => Err("the label is missing (null; of CSV empty, NaN, NA or such)"),
        Cell::Time(_) => Err("the label is a time: all values of the column are"),
        Cell::List(_) | Cell::Fields(_) => Err("the label is a list or structure"),
    }
}

/// What the cells of a label column are: run_glue makes a regression of floating point numbers.
#[derive(Default)]
struct Numbers {
    texts: bool,
    truths: bool,
    numbers: bool,
    /// Some are written as floating point numbers, and some have a fraction.
    floats: bool,
    fractions: bool,
}

impl Numbers {
    fn add(&mut self, cell: &Cell) {
        match cell {
            Cell::Number(number) if ["true", "false"].contains(&number.as_str()) => {
                self.truths = true;
            }
            Cell::Number(number) => {
                self.numbers = true;
                self.floats |= number.parse::<i128>().is_err();
                let value = number.parse::<f64>();
                self.fractions |= value.is_ok_and(|value| value.fract() != 0.0);
            }
            _ => self.texts = true,
        }
    }

    /// Several of text, truth values and numbers, which `datasets` keeps as JSON.
    fn are_mixed(&self) -> bool {
        [self.texts, self.truths, self.numbers]
            .into_iter()
            .filter(|is| *is)
            .count()
            > 1
    }

    fn are_floats(&self) -> bool {
        self.floats && !self.are_mixed()
    }

    fn are_fractions(&self) -> bool {
        self.fractions && !self.are_mixed()
    }
}

/// The labels that occur in these files or, of parquet files that name their classes, those;
/// numbers where some are fractions.
pub fn labels_of(files: &[PathBuf], settings: &ClsDataSettings) -> Result<LabelMap> {
    let mut found = BTreeSet::new();
    let mut numbers = Numbers::default();
    let mut declared: Option<Vec<String>> = None;
    let mut without_label: Option<Error> = None;
    for path in files {
        let mut table = Table::open(path, &settings.source.table, Arc::default())?;
        let columns = Columns::of(&table, settings, true)?;
        let column = columns
            .label
            .expect("Columns::of refuses a table without the label that is needed");
        if let Some(names) = table.class_names(column) {
            if declared
                .as_deref()
                .is_some_and(|declared| declared != names)
            {
                let reason = format!(
                    "{} names its classes differently from the files before it",
                    path.display()
                );
                return Err(Error::Labels { reason });
            }
            declared = Some(names.to_vec());
            continue;
        }
        if settings.source.streaming.is_some() {
            let reason = "finding them would read the whole stream; name them, in order, with --labels no,yes".to_string();
            return Err(Error::Labels { reason });
        }
        let column_name = table.columns()[column].clone();
        table.choose(vec![column])?;
        for row in table {
            let label = row.and_then(|row| {
                let bad = |what: &str| Error::BadRow {
                    place: row.place.clone(),
                    reason: format!("column {column_name:?}: {what}"),
                };
                let cell = &row.cells[0];
                let label = name(cell).map_err(bad)?;
                numbers.add(cell);
                // A regression may have it.
                if label == IGNORED && without_label.is_none() {
                    without_label = Some(bad(&ignored()));
                }
                Ok(label)
            });
            let label = match label {
                Ok(label) => label,
                // It is counted when the samples are read: there the whole row is looked at.
                Err(error)
                    if error.is_bad_row() && settings.source.table.on_bad_row == OnBadRow::Skip =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if found.insert(label) && found.len() > MOST_LABELS {
                if settings.finds_regression && numbers.are_floats() {
                    return Ok(LabelMap::numbers());
                }
                let reason = format!(
                    "column {column_name:?} of {} has more than {MOST_LABELS} different values; \
                    name the right one with --label_column_name",
                    path.display()
                );
                return Err(Error::Labels { reason });
            }
        }
    }
    let finds_numbers = numbers.are_floats() && settings.finds_regression;
    if declared.is_none() && numbers.are_mixed() {
        let reason =
            "some are text and some are numbers or truth values; write all of them in one way";
        return Err(Error::Labels {
            reason: reason.to_string(),
        });
    }
    match without_label {
        Some(error) if !finds_numbers && settings.source.table.on_bad_row == OnBadRow::Error => {
            return Err(error);
        }
        _ => found.remove(IGNORED),
    };
    match declared {
        None if finds_numbers => Ok(LabelMap::numbers()),
        None if numbers.are_fractions() => {
            let reason = "they are fractions, no classes: leave --do_regression out, or name another column with \
                          --label_column_name";
            Err(Error::Labels {
                reason: reason.to_string(),
            })
        }
        Some(names) => {
            let map = LabelMap::declared(names)?;
            match found.iter().find(|label| map.id(label).is_none()) {
                None => Ok(map),
                Some(label) => Err(Error::Labels {
                    reason: format!(
                        "{label:?} is not among the classes that some of the files name"
                    ),
                }),
            }
        }
        None => LabelMap::of_data(found.iter().map(String::as_str)),
    }
}
