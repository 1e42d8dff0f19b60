//! The texts that a language model reads: lines of text files, or one column of tables.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};
use super::formats::cell::Cell;
use super::formats::input::Bookmark;
use super::formats::table::{Format, Row, Table};
use super::formats::text::Lines;
use super::samples::{Sample, SampleFile};
use super::settings::TableSettings;

const USUAL_COLUMNS: [&str; 3] = ["text", "sentence", "sentence1"];

/// One open file of texts.
pub enum TextFile {
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
    ///
    /// # Errors
    /// The file cannot be read, or is a table without the column.
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
        let column = only.map_or_else(
            || table.column("text_column_name", named, &USUAL_COLUMNS),
            Ok,
        );
        let column = column.map_err(|missing| table.no_column([missing]))?;
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
}

impl SampleFile for TextFile {
    fn bookmark(&self) -> Bookmark {
        match self {
            TextFile::Lines { lines, .. } => lines.bookmark(),
            TextFile::Table { table, .. } => table.bookmark(),
        }
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        match self {
            TextFile::Lines { lines, .. } => lines.resume(bookmark, Arc::default()),
            TextFile::Table { table, .. } => table.resume(bookmark, Arc::default()),
        }
    }

    fn next(&mut self) -> Option<Result<Sample>> {
        let text = match self {
            TextFile::Lines { lines, keep } => lines.next()?.map(|mut line| {
                if !*keep && line.ends_with('\n') {
                    line.pop();
                }
                line
            }),
            TextFile::Table { table, column } => table.next()?.and_then(|row| text(row, column)),
        };
        Some(text.map(|text| Sample {
            texts: vec![text],
            ..Sample::default()
        }))
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
pub fn not_text(place: super::error::Place, column: &str, cell: &Cell) -> Error {
    let found = match cell {
        Cell::Number(number) => format!("is {number}, not text"),
        Cell::Class { name, .. } => format!("is the class {name}, not text"),
        Cell::List(_) => "is an array, not text".to_string(),
        Cell::Fields(_) => "is an object, not text".to_string(),
        Cell::Time(time) => format!("is the time {time}, not text: all its values are times"),
        Cell::Missing | Cell::Text(_)
            if matches!(Format::of(place.path()), Format::Csv | Format::Tsv) =>
        {
            "is missing: empty, or NA, null, None, nan or such, which pandas takes for no value"
                .to_string()
        }
        Cell::Missing | Cell::Text(_) => "is missing".to_string(),
    };
    Error::BadRow {
        place,
        reason: format!("column {column:?} {found}"),
    }
}
