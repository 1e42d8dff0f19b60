//! The texts that a language model reads: lines of text files, or one column of tables.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};
use super::settings::{OnBadRow, TableSettings};
use super::table::{Cell, Format, Row, Table};
use super::text::Lines;

const USUAL_COLUMNS: [&str; 3] = ["text", "sentence", "sentence1"];

/// Texts of several files, one after the other, as if they were one list. Ends at an error; files are opened as they are reached.
pub(super) struct Texts<'a> {
    files: std::slice::Iter<'a, PathBuf>,
    settings: TableSettings,
    /// Lines of text files keep their break (run_clm does, run_mlm does not). Cells of tables are as they are.
    line_breaks: bool,
    current: Option<Box<dyn Iterator<Item = Result<String>> + Send>>,
    bytes_read: Arc<AtomicU64>,
    skipped: u64,
    done: bool,
}

impl<'a> Texts<'a> {
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

    fn open(&self, path: &Path) -> Result<Box<dyn Iterator<Item = Result<String>> + Send>> {
        let count = self.bytes_read.clone();
        if Format::of(path) == Format::Text {
            let (lines, keep) = (Lines::open_counted(path, count)?, self.line_breaks);
            return Ok(Box::new(lines.map(move |line| {
                line.map(|mut line| {
                    if !keep && line.ends_with('\n') {
                        line.pop();
                    }
                    line
                })
            })));
        }
        let bytes = match Format::of(path) {
            // Parquet is read here and there; its rows tell nothing of the bytes.
            Format::Parquet => path.metadata().map_err(Error::io("read", path))?.len(),
            _ => 0,
        };
        let mut table = Table::open(path, &self.settings, count.clone())?;
        let named = self.settings.text_column.as_deref();
        let only = (named.is_none() && table.columns().len() == 1).then_some(0);
        let column = table.find(named, &USUAL_COLUMNS).or(only);
        let column = column.ok_or_else(|| table.no_column("text_column_name", named, &USUAL_COLUMNS))?;
        table.choose(vec![column])?;
        count.fetch_add(bytes, Ordering::Relaxed);
        let name = table.columns()[column].clone();
        Ok(Box::new(table.map(move |row| text(row?, &name))))
    }

    fn read(&mut self) -> Result<Option<String>> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(path) = self.files.next() else { return Ok(None) };
                self.current = Some(self.open(path)?);
                continue;
            };
            match current.next() {
                Some(Ok(text)) => return Ok(Some(text)),
                Some(Err(error)) if error.is_bad_row() && self.settings.on_bad_row == OnBadRow::Skip => self.skipped += 1,
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
    Error::BadRow { place, reason: format!("column {column:?} {found}") }
}
