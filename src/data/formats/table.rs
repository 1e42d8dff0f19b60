//! Rows of tables, whatever the format: CSV, TSV, JSON lines or a JSON array, parquet. Only the
//! columns asked for are kept.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::Value;

use super::cell::Cell;
use super::csv::{CsvReader, Fields};
use super::input::{Bookmark, Input};
use super::json::JsonReader;
use super::parquet::ParquetReader;
use crate::data::error::{Error, MissingColumn, Place, Result};
use crate::data::remote::is_url;
use crate::data::settings::{MAX_FIELD, OnBadRow, Quoting, TableSettings};

/// How a file is read, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Csv,
    Tsv,
    Json,
    Parquet,
}

impl Format {
    /// By the extension, one before `.gz` included; anything unknown is text.
    pub fn of(path: &Path) -> Format {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("csv") => Format::Csv,
            Some("tsv") => Format::Tsv,
            Some("json" | "jsonl" | "ndjson") => Format::Json,
            Some("parquet") => Format::Parquet,
            _ => Format::Text,
        }
    }
}

/// A row: where it is, and its cells in the order of the columns chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub place: Place,
    pub cells: Vec<Cell>,
}

enum Reader {
    Csv { reader: CsvReader, fields: Fields },
    Json(JsonReader),
    Parquet(ParquetReader),
}

/// An open table. Choose columns, then iterate.
pub struct Table {
    reader: Reader,
    columns: Vec<String>,
    chosen: Vec<usize>,
    done: bool,
}

impl Table {
    /// Opens a table and reads its header (of JSON, the keys of the rows of a first block). Raw bytes
    /// read are added to `count`.
    pub fn open(path: &Path, settings: &TableSettings, count: Arc<AtomicU64>) -> Result<Table> {
        let (delimiter, usual) = match Format::of(path) {
            Format::Text => {
                return Err(Error::NotATable {
                    path: path.to_path_buf(),
                });
            }
            Format::Json => return Table::open_json(path, settings.on_bad_row, count),
            Format::Parquet => {
                let reader = ParquetReader::open(path)?;
                let columns = reader.columns().to_vec();
                return Ok(Table {
                    reader: Reader::Parquet(reader),
                    columns,
                    chosen: Vec::new(),
                    done: false,
                });
            }
            Format::Csv => (b',', Quoting::Standard),
            Format::Tsv => (b'\t', Quoting::None),
        };
        let mut reader = CsvReader::new(
            Input::open(path, count)?,
            delimiter,
            settings.quoting.unwrap_or(usual),
        )?;
        let mut fields = Fields::default();
        // Without its header no row can be used, so that none is to be left out for it.
        let header = |error: Error| match error {
            Error::BadRow { place, reason } => Error::BadTable {
                path: path.to_path_buf(),
                reason: format!("its header is damaged: {}: {reason}", place.within_file()),
            },
            other => other,
        };
        if !reader.read(&mut fields).map_err(header)? {
            return Err(Error::EmptyFile {
                path: path.to_path_buf(),
            });
        }
        let columns = (0..fields.len())
            .map(|i| utf8(path, &fields, i).map(str::to_string))
            .collect::<Result<Vec<_>>>()
            .map_err(header)?;
        if let Some(twice) = columns
            .iter()
            .enumerate()
            .find_map(|(i, name)| columns[..i].contains(name).then_some(name))
        {
            let reason = format!("its header has the column {twice:?} twice");
            return Err(Error::BadTable {
                path: path.to_path_buf(),
                reason,
            });
        }
        Ok(Table {
            reader: Reader::Csv { reader, fields },
            columns,
            chosen: Vec::new(),
            done: false,
        })
    }

    fn open_json(path: &Path, on_bad_row: OnBadRow, count: Arc<AtomicU64>) -> Result<Table> {
        let reader = JsonReader::new(Input::open(path, Arc::default())?)?;
        let columns = json_columns(reader, on_bad_row)?;
        let reader = JsonReader::new(Input::open(path, count)?)?;
        Ok(Table {
            reader: Reader::Json(reader),
            columns,
            chosen: Vec::new(),
            done: false,
        })
    }

    pub fn path(&self) -> &Path {
        match &self.reader {
            Reader::Csv { reader, .. } => reader.path(),
            Reader::Json(reader) => reader.path(),
            Reader::Parquet(reader) => reader.path(),
        }
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Whether nothing between two separators stands for no value, as pandas reads it.
    pub fn takes_empty_for_missing(&self) -> bool {
        matches!(self.reader, Reader::Csv { .. })
    }

    /// The names of a column's classes in their order, where the file gives them.
    pub fn class_names(&self, column: usize) -> Option<&[String]> {
        match &self.reader {
            Reader::Parquet(reader) => reader.class_names(column),
            _ => None,
        }
    }

    /// The place of a column that was named (with the flag `flag`) or, if none was, of the first of
    /// `usual` that there is.
    pub fn find(&self, named: Option<&str>, usual: &[&str]) -> Option<usize> {
        let place = |name: &str| self.columns.iter().position(|column| column == name);
        match named {
            Some(name) => place(name),
            None => usual.iter().find_map(|name| place(name)),
        }
    }

    /// The place of a column as [`Table::find`] has it, or what is missing.
    pub fn column(
        &self,
        flag: &'static str,
        named: Option<&str>,
        usual: &[&str],
    ) -> Result<usize, MissingColumn> {
        self.find(named, usual).ok_or_else(|| {
            let wanted = named.map_or_else(|| usual.join(" or "), |name| format!("{name:?}"));
            MissingColumn { flag, wanted }
        })
    }

    /// The error for columns that are missing.
    pub fn no_column(&self, missing: impl IntoIterator<Item = MissingColumn>) -> Error {
        Error::NoColumn {
            path: self.path().to_path_buf(),
            missing: missing.into_iter().collect(),
            found: self.columns.clone(),
        }
    }

    /// The cells that rows have from now on.
    pub fn choose(&mut self, columns: Vec<usize>) -> Result<()> {
        if let Reader::Parquet(reader) = &mut self.reader {
            reader.choose(&columns)?;
        }
        self.chosen = columns;
        Ok(())
    }

    /// Where the next row is, for a table that was opened in the same way.
    pub fn bookmark(&self) -> Bookmark {
        match &self.reader {
            Reader::Csv { reader, .. } => reader.bookmark(),
            Reader::Json(reader) => reader.bookmark(),
            Reader::Parquet(reader) => reader.bookmark(),
        }
    }

    /// Goes on at a bookmark of the same file; columns are chosen before.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        if *bookmark == Bookmark::default() {
            return Ok(());
        }
        match &mut self.reader {
            Reader::Csv { reader, .. } => reader.resume(bookmark, count),
            Reader::Json(reader) => reader.resume(bookmark, count),
            Reader::Parquet(reader) => reader.resume(bookmark),
        }
    }

    fn read(&mut self) -> Result<Option<Row>> {
        match &mut self.reader {
            Reader::Parquet(reader) => {
                let Some((place, cells)) = reader.read()? else {
                    return Ok(None);
                };
                if cells.iter().any(|cell| cell.longest_text() > MAX_FIELD) {
                    return Err(Error::HugeField { place });
                }
                Ok(Some(Row { place, cells }))
            }
            Reader::Csv { reader, fields } => {
                if !reader.read(fields)? {
                    return Ok(None);
                }
                let place = Place::line(reader.path(), fields.line);
                if fields.len() != self.columns.len() {
                    let reason = format!(
                        "{} fields where the header has {}",
                        fields.len(),
                        self.columns.len()
                    );
                    return Err(Error::BadRow { place, reason });
                }
                let cell = |column: &usize| {
                    utf8(reader.path(), fields, *column).map(|text| Cell::Text(text.to_string()))
                };
                let cells = self.chosen.iter().map(cell).collect::<Result<Vec<_>>>()?;
                Ok(Some(Row { place, cells }))
            }
            Reader::Json(reader) => {
                let Some((line, object)) = reader.read()? else {
                    return Ok(None);
                };
                let columns = self
                    .chosen
                    .iter()
                    .map(|column| self.columns[*column].as_str());
                let cells = columns
                    .map(|name| object.get(name).map_or(Cell::Missing, cell))
                    .collect();
                Ok(Some(Row {
                    place: Place::line(reader.path(), line),
                    cells,
                }))
            }
        }
    }
}

impl Iterator for Table {
    type Item = Result<Row>;

    /// Goes on after a bad row, and ends at any other error.
    fn next(&mut self) -> Option<Result<Row>> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        self.done = match &item {
            Some(Err(error)) => !error.is_bad_row(),
            other => other.is_none(),
        };
        item
    }
}

/// Bytes of a JSON file whose rows' keys are its columns, as `datasets` reads one.
const BLOCK: u64 = 10 << 20;
/// Of a file on another machine, which is read from its beginning again.
const REMOTE_BLOCK: u64 = 1 << 20;

/// All keys of a first block's rows, in the order in which they occur. Bad rows that are to be left
/// out are read again, and counted, where rows are.
fn json_columns(mut reader: JsonReader, on_bad_row: OnBadRow) -> Result<Vec<String>> {
    let block = if is_url(reader.path()) {
        REMOTE_BLOCK
    } else {
        BLOCK
    };
    let mut columns = serde_json::Map::new();
    let (mut rows, mut bad) = (0_u64, 0_u64);
    while reader.bookmark().offset < block || rows == 0 {
        match reader.read() {
            Ok(Some((_, row))) => {
                rows += 1;
                for key in row.into_iter().map(|(key, _)| key) {
                    columns.entry(key).or_insert(Value::Null);
                }
            }
            Ok(None) => break,
            Err(error) if error.is_bad_row() && (rows > 0 || on_bad_row == OnBadRow::Skip) => {
                bad += 1;
            }
            // It is met again where rows are read.
            Err(_) if rows > 0 => break,
            Err(error) => return Err(error),
        }
    }
    if rows > 0 {
        return Ok(columns.into_iter().map(|(key, _)| key).collect());
    }
    let reason = match bad {
        0 => "it has no rows".to_string(),
        bad => format!("none of its {bad} rows can be used"),
    };
    Err(Error::BadTable {
        path: reader.path().to_path_buf(),
        reason,
    })
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::String(text) => Cell::Text(text.clone()),
        Value::Null => Cell::Missing,
        Value::Number(number) => Cell::Number(number.to_string()),
        Value::Bool(value) => Cell::Number(value.to_string()),
        Value::Array(values) => Cell::List(values.iter().map(cell).collect()),
        Value::Object(fields) => Cell::Fields(
            fields
                .iter()
                .map(|(name, value)| (name.clone(), cell(value)))
                .collect(),
        ),
    }
}

/// A field as text, or where its bytes stop being UTF-8.
fn utf8<'a>(path: &Path, fields: &'a Fields, index: usize) -> Result<&'a str> {
    let (bytes, line) = fields.get(index);
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let breaks = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        let reason = format!(
            "invalid UTF-8: byte 0x{:02x} in field {}; save the file as UTF-8",
            bytes[at],
            index + 1
        );
        Error::BadRow {
            place: Place::line(path, line + breaks),
            reason,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str, text: &[u8], on_bad_row: OnBadRow) -> Result<Table> {
        let dir = tempfile::tempdir().unwrap();
        open_in(dir.path(), name, text, on_bad_row)
    }

    fn open_in(dir: &Path, name: &str, text: &[u8], on_bad_row: OnBadRow) -> Result<Table> {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        let settings = TableSettings {
            on_bad_row,
            ..TableSettings::default()
        };
        Table::open(&path, &settings, Arc::default())
    }

    #[test]
    fn bad_rows_that_a_file_begins_with_can_be_left_out() {
        for (name, text) in [
            ("rows.jsonl", "not json\n\n7\n{\"a\": 1}\n{\"a\": 2}\n"),
            ("rows.json", "[{\"a\": tru}, 7,\n{\"a\": 1}, {\"a\": 2}]"),
        ] {
            let error = open(name, text.as_bytes(), OnBadRow::Error).err().unwrap();
            let message = error.to_string();
            assert!(message.contains(&format!("{name}:1: ")), "{message}");
            let mut table = open(name, text.as_bytes(), OnBadRow::Skip).unwrap();
            assert_eq!(table.columns(), ["a"]);
            table.choose(vec![0]).unwrap();
            let rows: Vec<_> = table.collect();
            let bad = rows.iter().take_while(|row| row.is_err()).count();
            assert_eq!((bad, rows.len()), (2, 4), "{name}");
            let cells = rows[2..]
                .iter()
                .map(|row| row.as_ref().unwrap().cells.clone());
            let number = |text: &str| vec![Cell::Number(text.to_string())];
            assert_eq!(cells.collect::<Vec<_>>(), [number("1"), number("2")]);
            let nothing = open(name, b"nothing\n8\n", OnBadRow::Skip).err().unwrap();
            let message = nothing.to_string();
            assert!(message.contains("none of its 2 rows"), "{message}");
        }
        // Without its header no row can be used: skipping rows is no advice.
        for header in [&b"a,\"b\" c\n1,2\n"[..], b"a,\xff\n1,2\n"] {
            for on_bad_row in [OnBadRow::Error, OnBadRow::Skip] {
                let error = open("rows.csv", header, on_bad_row).err().unwrap();
                let message = error.to_string();
                assert!(
                    message.contains("header is damaged: line 1")
                        && !message.contains("on_bad_row"),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn columns_are_the_keys_of_all_rows_and_a_bad_first_row_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = b"{\"text\": \"a\"}\nnonsense\n{\"label\": 1, \"text\": \"b\"}\n";
        let mut table = open_in(dir.path(), "x.jsonl", text, OnBadRow::Error).unwrap();
        assert_eq!(table.columns(), ["text", "label"]);
        table.choose(vec![1, 0]).unwrap();
        let first = table.next().unwrap().unwrap();
        assert_eq!(first.cells, [Cell::Missing, Cell::Text("a".into())]);
        assert!(table.next().unwrap().unwrap_err().is_bad_row());
        let bookmark = table.bookmark();
        let last = table.next().unwrap().unwrap();
        assert_eq!(last.cells[0], Cell::Number("1".into()));
        assert!(table.next().is_none());
        let mut again = open_in(dir.path(), "x.jsonl", text, OnBadRow::Error).unwrap();
        again.choose(vec![1, 0]).unwrap();
        again.resume(&bookmark, Arc::default()).unwrap();
        assert_eq!(again.next().unwrap().unwrap(), last);
        let bad = b"nonsense\n{\"text\": \"a\"}\n";
        let skips = open("x.jsonl", bad, OnBadRow::Skip).unwrap();
        assert_eq!(skips.columns(), ["text"]);
        for (text, words) in [(&b"nonsense\n"[..], "not valid JSON"), (b"[]", "no rows")] {
            let error = open("x.jsonl", text, OnBadRow::Error).err().unwrap();
            let error = error.to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
