//! Labelled texts out of tables: which columns they are in, and what makes a row unusable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::error::{Error, Result};
use super::formats::input::Bookmark;
use super::formats::table::{Cell, Row, Table};
use super::label::Label;
use super::labels::LabelMap;
use super::settings::{ClsDataSettings, OnBadRow};
use super::texts::not_text;

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

/// A text or pair with its label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Place among all rows of the files, those that are left out too.
    pub index: u64,
    pub text: String,
    pub pair: Option<String>,
    pub label: Option<Label>,
}

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
        let label = table.find(named_label, &LABELS);
        if label.is_none() && needs_label {
            return Err(table.no_column("label_column_name", named_label, &LABELS));
        }
        let named = settings.source.table.text_column.as_deref();
        let usual_pair = PAIRS
            .iter()
            .find_map(|(a, b)| Some((table.find(Some(*a), &[])?, table.find(Some(*b), &[])?)));
        let (text, usual_pair) = match (named, usual_pair) {
            (None, Some((text, pair))) => (Some(text), Some(pair)),
            _ => (
                table
                    .find(named, &SINGLES)
                    .or_else(|| only_text(table, named, label)),
                None,
            ),
        };
        let text = text.ok_or_else(|| table.no_column("text_column_name", named, &SINGLES))?;
        let pair = match settings.text_pair_column.as_deref() {
            Some(name) => {
                let column = table.find(Some(name), &[]);
                Some(
                    column
                        .ok_or_else(|| table.no_column("text_pair_column_name", Some(name), &[]))?,
                )
            }
            None => usual_pair,
        };
        Ok(Columns { text, pair, label })
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

/// What is done with the labels of a split.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelUse<'a> {
    pub map: &'a LabelMap,
    /// Every row must have one; otherwise a missing one is no error.
    pub needed: bool,
    /// The map was given, so that labels may be its numbers.
    pub numbers: bool,
}

/// One open table of samples.
pub(super) struct SampleFile {
    table: Table,
    columns: Columns,
}

impl SampleFile {
    /// Opens a table; raw bytes read are added to `count`.
    pub fn open(
        path: &Path,
        settings: &ClsDataSettings,
        needs_label: bool,
        count: Arc<AtomicU64>,
    ) -> Result<SampleFile> {
        let mut table = Table::open(path, &settings.source.table, count)?;
        let columns = Columns::of(&table, settings, needs_label)?;
        table.choose(columns.chosen())?;
        Ok(SampleFile { table, columns })
    }

    /// Whether its samples are pairs of texts.
    pub fn has_pairs(&self) -> bool {
        self.columns.pair.is_some()
    }

    /// Where the next row is.
    pub fn bookmark(&self) -> Bookmark {
        self.table.bookmark()
    }

    /// Goes on at a bookmark of the same file.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        self.table.resume(bookmark, count)
    }

    /// The next row, which is row `index` of all.
    pub fn read(&mut self, index: u64, labels: &LabelUse<'_>) -> Option<Result<Sample>> {
        let row = self.table.next()?;
        Some(row.and_then(|row| sample(index, row, self.table.columns(), &self.columns, labels)))
    }
}

/// Samples of several files, as if they were one list. Ends at an error; bad rows are left out and
/// counted where that was asked for.
pub(super) struct Samples<'a> {
    files: std::slice::Iter<'a, PathBuf>,
    settings: &'a ClsDataSettings,
    labels: LabelUse<'a>,
    current: Option<SampleFile>,
    bytes_read: Arc<AtomicU64>,
    rows: u64,
    skipped: u64,
    done: bool,
}

impl<'a> Samples<'a> {
    pub fn new(
        files: &'a [PathBuf],
        settings: &'a ClsDataSettings,
        labels: LabelUse<'a>,
    ) -> Samples<'a> {
        let files = files.iter();
        Samples {
            files,
            settings,
            labels,
            current: None,
            bytes_read: Arc::default(),
            rows: 0,
            skipped: 0,
            done: false,
        }
    }

    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        self.bytes_read.clone()
    }

    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn read(&mut self) -> Result<Option<Sample>> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(path) = self.files.next() else {
                    return Ok(None);
                };
                self.current = Some(SampleFile::open(
                    path,
                    self.settings,
                    self.labels.needed,
                    self.bytes_read.clone(),
                )?);
                continue;
            };
            let Some(sample) = current.read(self.rows, &self.labels) else {
                self.current = None;
                continue;
            };
            self.rows += 1;
            match sample {
                Ok(sample) => return Ok(Some(sample)),
                Err(error)
                    if error.is_bad_row()
                        && self.settings.source.table.on_bad_row == OnBadRow::Skip =>
                {
                    self.skipped += 1
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Iterator for Samples<'_> {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

fn sample(
    index: u64,
    row: Row,
    names: &[String],
    columns: &Columns,
    labels: &LabelUse<'_>,
) -> Result<Sample> {
    let place = &row.place;
    let bad = |reason: String| Error::BadRow {
        place: place.clone(),
        reason,
    };
    let mut cells = row.cells.into_iter();
    let mut text = |column: usize| match cells.next() {
        Some(Cell::Text(text)) if text.trim().is_empty() => Err(bad(format!(
            "the text in column {:?} is empty",
            names[column]
        ))),
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
    let label = match columns.label {
        None => None,
        Some(column) => {
            let cell = cells.next().unwrap_or(Cell::Missing);
            let by_number = || match &cell {
                Cell::Class { number, .. } => labels.map.label(&number.to_string(), false),
                _ => None,
            };
            match name(&cell).map_err(|what| format!("column {:?}: {what}", names[column])) {
                Ok(name) => {
                    // Another file of the same set may have the numbers alone, and the labels be
                    // made of those.
                    match labels.map.label(&name, labels.numbers).or_else(by_number) {
                        Some(label) => Some(label),
                        // Unlabelled rows of published test sets say -1.
                        None if !labels.needed && name == "-1" => None,
                        None if labels.map.are_numbers() => {
                            return Err(bad(format!("label {name:?} is not a finite number")));
                        }
                        None => {
                            return Err(bad(format!(
                                "label {name:?} is not among the labels: {}",
                                list(labels.map.names())
                            )));
                        }
                    }
                }
                Err(_) if !labels.needed => None,
                Err(reason) => return Err(bad(reason)),
            }
        }
    };
    Ok(Sample {
        index,
        text: a,
        pair: b,
        label,
    })
}

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

/// A label's name, or why the cell holds none.
fn name(cell: &Cell) -> Result<String, &'static str> {
    match cell {
        Cell::Text(text) if text.trim().is_empty() => Err("the label is empty"),
        Cell::Text(text) | Cell::Number(text) if text.trim().eq_ignore_ascii_case("nan") => {
            Err("the label is NaN")
        }
        Cell::Text(text) => Ok(text.clone()),
        Cell::Number(number) => Ok(match number.parse::<f64>() {
            // 1.0 of a format that tells numbers from text is the label 1.
            Ok(value) if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value}"),
            _ => number.clone(),
        }),
        Cell::Class { name, .. } => Ok(name.clone()),
        Cell::Missing => Err("the label is missing"),
        Cell::Other(_) => Err("the label is a list or structure"),
    }
}

/// Whether labels are numbers, and some of them fractions: then they are no classes.
#[derive(Default)]
struct Numbers {
    fractions: bool,
    others: bool,
}

impl Numbers {
    fn add(&mut self, label: &str) {
        match label.trim().parse::<f64>() {
            Ok(number) => self.fractions |= number.fract() != 0.0,
            Err(_) => self.others = true,
        }
    }

    fn are_fractions(&self) -> bool {
        self.fractions && !self.others
    }
}

/// The labels that occur in these files or, of parquet files that name their classes, those;
/// numbers where some are fractions.
pub(super) fn labels_of(files: &[PathBuf], settings: &ClsDataSettings) -> Result<LabelMap> {
    let mut found = BTreeSet::new();
    let mut numbers = Numbers::default();
    let mut declared: Option<Vec<String>> = None;
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
                let bad = |what| Error::BadRow {
                    place: row.place.clone(),
                    reason: format!("column {column_name:?}: {what}"),
                };
                name(&row.cells[0]).map_err(bad)
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
            numbers.add(&label);
            if found.insert(label) && found.len() > MOST_LABELS {
                if settings.finds_regression && numbers.are_fractions() {
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
    match declared {
        None if numbers.are_fractions() && settings.finds_regression => Ok(LabelMap::numbers()),
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
