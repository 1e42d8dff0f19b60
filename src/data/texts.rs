//! The texts that a language model reads: lines of text files, or one column of tables.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};
use super::formats::input::Bookmark;
use super::formats::table::{Cell, Format, Row, Table};
use super::formats::text::Lines;
use super::settings::{OnBadRow, TableSettings};

const USUAL_COLUMNS: [&str; 3] = ["text", "sentence", "sentence1"];

/// One open file of texts.
pub(super) enum TextFile {
    /// `keep`: lines keep their break (run_clm does so, run_mlm does not). Cells of tables are as
    /// they are.
    Lines {
        lines: Lines,
        keep: bool,
    },
    Table {
        table: Box<Table>,
        column: String,
    },
}

impl TextFile {
    /// Opens a file; raw bytes read are added to `count`.
    pub fn open(
        path: &Path,
        settings: &TableSettings,
        line_breaks: bool,
        count: Arc<AtomicU64>,
    ) -> Result<TextFile> {
        if Format::of(path) == Format::Text {
            return Ok(TextFile::Lines {
                lines: Lines::open_counted(path, count)?,
                keep: line_breaks,
            });
        }
        let mut table = Table::open(path, settings, count.clone())?;
        let named = settings.text_column.as_deref();
        let only = (named.is_none() && table.columns().len() == 1).then_some(0);
        let column = table.find(named, &USUAL_COLUMNS).or(only);
        let column =
            column.ok_or_else(|| table.no_column("text_column_name", named, &USUAL_COLUMNS))?;
        table.choose(vec![column])?;
        if Format::of(path) == Format::Parquet {
            // It is read here and there; its rows tell nothing of the bytes.
            count.fetch_add(
                path.metadata().map_or(0, |metadata| metadata.len()),
                Ordering::Relaxed,
            );
        }
        let column = table.columns()[column].clone();
        Ok(TextFile::Table {
            table: Box::new(table),
            column,
        })
    }

    /// Where the next text is.
    pub fn bookmark(&self) -> Bookmark {
        match self {
            TextFile::Lines { lines, .. } => lines.bookmark(),
            TextFile::Table { table, .. } => table.bookmark(),
        }
    }

    /// Goes on at a bookmark of the same file.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        match self {
            TextFile::Lines { lines, .. } => lines.resume(bookmark, count),
            TextFile::Table { table, .. } => table.resume(bookmark, count),
        }
    }
}

impl Iterator for TextFile {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        match self {
            TextFile::Lines { lines, keep } => lines.next().map(|line| {
                line.map(|mut line| {
                    if !*keep && line.ends_with('\n') {
                        line.pop();
                    }
                    line
                })
            }),
            TextFile::Table { table, column } => table.next().map(|row| text(row?, column)),
        }
    }
}

/// Texts of several files, one after the other, as if they were one list. Ends at an error; files
/// are opened as they are reached.
pub(super) struct Texts<'a> {
    files: std::slice::Iter<'a, PathBuf>,
    settings: TableSettings,
    line_breaks: bool,
    current: Option<TextFile>,
    bytes_read: Arc<AtomicU64>,
    skipped: u64,
    done: bool,
}

impl<'a> Texts<'a> {
    /// `line_breaks`: see [`TextFile`].
    pub fn new(files: &'a [PathBuf], settings: &TableSettings, line_breaks: bool) -> Texts<'a> {
        Texts {
            files: files.iter(),
            settings: settings.clone(),
            line_breaks,
            current: None,
            bytes_read: Arc::default(),
            skipped: 0,
            done: false,
        }
    }

    /// Raw bytes read so far (compressed ones, for gzip).
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        self.bytes_read.clone()
    }

    /// Bad rows left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn read(&mut self) -> Result<Option<String>> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(path) = self.files.next() else {
                    return Ok(None);
                };
                self.current = Some(TextFile::open(
                    path,
                    &self.settings,
                    self.line_breaks,
                    self.bytes_read.clone(),
                )?);
                continue;
            };
            match current.next() {
                Some(Ok(text)) => return Ok(Some(text)),
                Some(Err(error))
                    if error.is_bad_row() && self.settings.on_bad_row == OnBadRow::Skip =>
                {
                    self.skipped += 1
                }
                Some(Err(error)) => return Err(error),
                None => self.current = None,
            }
        }
    }
}

impl Iterator for Texts<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        // Nothing after an error: a half-read file must not be followed by the next one.
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// The text of a row's first cell.
fn text(mut row: Row, column: &str) -> Result<String> {
    match row.cells.swap_remove(0) {
        Cell::Text(text) => Ok(text),
        other => Err(not_text(row.place, column, &other)),
    }
}

/// The error for a cell that should be text.
pub(super) fn not_text(place: super::error::Place, column: &str, cell: &Cell) -> Error {
    let found = match cell {
        Cell::Number(number) => format!("is {number}, not text"),
        Cell::Class { name, .. } => format!("is the class {name}, not text"),
        Cell::Other(kind) => format!("is {kind}, not text"),
        Cell::Missing | Cell::Text(_) => "is missing".to_string(),
    };
    Error::BadRow {
        place,
        reason: format!("column {column:?} {found}"),
    }
}
