//! Rows of tables, whatever the format: CSV, TSV, JSON lines or a JSON array, parquet. Only the
//! columns asked for are kept.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cell::Cell;
use super::csv::{CsvReader, Fields};
use super::feature;
use super::input::{Bookmark, Input};
use super::json::JsonReader;
use super::json_value::is_time;
use super::pandas::{self, Blocks, Kind};
use super::parquet::ParquetReader;
use crate::error::{Error, MissingColumn, Place, Result};
use crate::features::Feature;
use crate::remote::is_url;
use crate::settings::{MAX_FIELD, OnBadRow, Quoting, TableSettings};

/// How a file is read, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Csv,
    Tsv,
    Json,
    Parquet,
    /// Token ids alone.
    Tokens,
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
            Some("npy" | "bin") => Format::Tokens,
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
    Csv {
        reader: CsvReader,
        fields: Fields,
        /// Of the chosen columns.
        kinds: Vec<Kind>,
        /// Of those of text, unless reading was resumed within the file.
        blocks: Vec<Option<Blocks>>,
    },
    Json {
        reader: JsonReader,
        facts: JsonFacts,
    },
    Parquet(ParquetReader),
}

/// An open table. Choose columns, then iterate.
pub struct Table {
    reader: Reader,
    columns: Vec<String>,
    /// What is noted of the columns beside their values.
    features: Vec<Option<Feature>>,
    chosen: Vec<usize>,
    done: bool,
}

impl Table {
    /// Opens a table and reads its header (of JSON, the keys of the rows of a first block). Raw bytes
    /// read are added to `count`.
    pub fn open(path: &Path, settings: &TableSettings, count: Arc<AtomicU64>) -> Result<Table> {
        let (reader, columns) = match Format::of(path) {
            Format::Text | Format::Tokens => {
                return Err(Error::NotATable {
                    path: path.to_path_buf(),
                });
            }
            Format::Json => open_json(path, settings.on_bad_row, count)?,
            Format::Parquet => {
                let reader = ParquetReader::open(path)?;
                let columns = reader.columns().to_vec();
                (Reader::Parquet(reader), columns)
            }
            Format::Csv => {
                let quoting = settings.quoting.unwrap_or(Quoting::Standard);
                open_csv(path, b',', Some(quoting), count)?
            }
            Format::Tsv => open_csv(path, b'\t', settings.quoting, count)?,
        };
        let own = match &reader {
            Reader::Parquet(reader) => reader.features().to_vec(),
            _ => vec![None; columns.len()],
        };
        let noted = |column: &String| {
            let mut features = settings.features.iter();
            let found = features.find(|(name, _)| name == column);
            found.map(|(_, feature)| feature.clone())
        };
        // A card stands above what the file has.
        let features = columns.iter().zip(own);
        let features = features
            .map(|(column, own)| noted(column).or(own))
            .collect();
        Ok(Table {
            reader,
            columns,
            features,
            chosen: Vec::new(),
            done: false,
        })
    }

    pub fn path(&self) -> &Path {
        match &self.reader {
            Reader::Csv { reader, .. } => reader.path(),
            Reader::Json { reader, .. } => reader.path(),
            Reader::Parquet(reader) => reader.path(),
        }
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The names of a column's classes in their order, where the file or its card gives them.
    pub fn class_names(&self, column: usize) -> Option<&[String]> {
        self.features[column].as_ref()?.class_names()
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
        if let Reader::Json { facts, .. } = &self.reader
            && let Some(field) = &facts.rows_within
        {
            let path = self.path().to_path_buf();
            let reason = format!(
                "its rows are the list in field {field:?} of one object, which datasets reads with field={field:?} alone; \
                 write the list as a file of its own"
            );
            return Error::BadTable { path, reason };
        }
        Error::NoColumn {
            path: self.path().to_path_buf(),
            missing: missing.into_iter().collect(),
            found: self.columns.clone(),
        }
    }

    /// The cells that rows have from now on. Of CSV, their kinds are found in its first rows.
    pub fn choose(&mut self, columns: Vec<usize>) -> Result<()> {
        match &mut self.reader {
            Reader::Parquet(reader) => reader.choose(&columns)?,
            Reader::Csv {
                reader,
                kinds,
                blocks,
                ..
            } => {
                *kinds = csv_kinds(reader, &columns)?;
                let of_text = |kind: &Kind| (*kind == Kind::Text).then(Blocks::default);
                *blocks = kinds.iter().map(of_text).collect();
            }
            Reader::Json { .. } => {}
        }
        self.chosen = columns;
        Ok(())
    }

    /// Where the next row is, for a table that was opened in the same way.
    pub fn bookmark(&self) -> Bookmark {
        match &self.reader {
            Reader::Csv { reader, .. } => reader.bookmark(),
            Reader::Json { reader, .. } => reader.bookmark(),
            Reader::Parquet(reader) => reader.bookmark(),
        }
    }

    /// Goes on at a bookmark of the same file; columns are chosen before.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        if *bookmark == Bookmark::default() {
            return Ok(());
        }
        match &mut self.reader {
            Reader::Csv { reader, blocks, .. } => {
                blocks.fill(None);
                reader.resume(bookmark, count)
            }
            Reader::Json { reader, .. } => reader.resume(bookmark, count),
            Reader::Parquet(reader) => reader.resume(bookmark),
        }
    }

    fn read(&mut self) -> Result<Option<Row>> {
        let Some((place, mut cells)) = self.cells()? else {
            return Ok(None);
        };
        if cells.iter().any(|cell| cell.longest_text() > MAX_FIELD) {
            return Err(Error::HugeField { place });
        }
        for (cell, column) in cells.iter_mut().zip(&self.chosen) {
            let Some(noted) = &self.features[*column] else {
                continue;
            };
            let read = feature::apply(noted, std::mem::replace(cell, Cell::Missing));
            *cell = read.map_err(|reason| bad_cell(&place, &self.columns[*column], &reason))?;
        }
        Ok(Some(Row { place, cells }))
    }

    /// The next row's cells as the file has them.
    fn cells(&mut self) -> Result<Option<(Place, Vec<Cell>)>> {
        match &mut self.reader {
            Reader::Parquet(reader) => reader.read(),
            Reader::Csv {
                reader,
                fields,
                kinds,
                blocks,
            } => {
                let is_row = reader.read(fields)?;
                let watched = self.chosen.iter().zip(blocks.iter_mut());
                for (column, blocks) in watched {
                    let Some(blocks) = blocks else { continue };
                    let is_same = match (is_row, *column < fields.len()) {
                        (false, _) => blocks.end(),
                        (true, false) => blocks.add(""),
                        (true, true) => blocks.add(&String::from_utf8_lossy(fields.get(*column).0)),
                    };
                    if !is_same {
                        return Err(numbers_alone(reader.path(), &self.columns[*column]));
                    }
                }
                if !is_row {
                    return Ok(None);
                }
                let place = Place::line(reader.path(), fields.line);
                if fields.len() > self.columns.len() {
                    let reason = format!(
                        "{} fields where the header has {}",
                        fields.len(),
                        self.columns.len()
                    );
                    return Err(Error::BadRow { place, reason });
                }
                let cell = |(column, kind): (&usize, &Kind)| {
                    // A short row lacks its last fields.
                    if *column >= fields.len() {
                        return Ok(Cell::Missing);
                    }
                    let text = utf8(reader.path(), fields, *column)?;
                    let name = &self.columns[*column];
                    let cell = kind.cell(text);
                    cell.map_err(|reason| bad_cell(&place, name, &reason))
                };
                let cells = self.chosen.iter().zip(&*kinds).map(cell);
                let cells = cells.collect::<Result<Vec<_>>>()?;
                Ok(Some((place, cells)))
            }
            Reader::Json { reader, facts } => {
                let Some((line, mut fields)) = reader.read()? else {
                    return Ok(None);
                };
                let place = Place::line(reader.path(), line);
                let cells = self.chosen.iter().map(|column| {
                    let name = &self.columns[*column];
                    let found = fields.iter_mut().find(|(field, _)| field == name);
                    // A column may be asked for twice.
                    let cell = found.map_or(Cell::Missing, |(_, cell)| cell.clone());
                    match cell {
                        Cell::Text(text) if facts.are_times[*column] => Cell::Time(text),
                        cell => cell,
                    }
                });
                let cells = cells.collect();
                Ok(Some((place, cells)))
            }
        }
    }
}

/// The error for a column of text of which later rows are numbers alone.
fn numbers_alone(path: &Path, column: &str) -> Error {
    let rows = pandas::FIRST;
    Error::BadTable {
        path: path.to_path_buf(),
        reason: format!(
            "column {column:?} is text, but of one of its blocks of {rows} rows all values are numbers or truth values, which pandas reads \
             as such and datasets writes anew, 007 as 7; mix the rows, or write JSON lines"
        ),
    }
}

fn bad_cell(place: &Place, column: &str, reason: &str) -> Error {
    Error::BadRow {
        place: place.clone(),
        reason: format!("column {column:?}: {reason}"),
    }
}

/// Opens CSV and reads its header. Without a `quoting` quotes that could be either are an error.
fn open_csv(
    path: &Path,
    delimiter: u8,
    quoting: Option<Quoting>,
    count: Arc<AtomicU64>,
) -> Result<(Reader, Vec<String>)> {
    let mut reader = CsvReader::new(Input::open(path, count)?, delimiter, quoting)?;
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
    let names = (0..fields.len()).map(|i| utf8(path, &fields, i).map(str::to_string));
    let names = names.collect::<Result<Vec<_>>>().map_err(header)?;
    let reader = Reader::Csv {
        reader,
        fields,
        kinds: Vec::new(),
        blocks: Vec::new(),
    };
    Ok((reader, pandas::column_names(names)))
}

/// The kinds of columns, by the rows that `datasets` reads first.
fn csv_kinds(reader: &CsvReader, columns: &[usize]) -> Result<Vec<Kind>> {
    let mut values = vec![pandas::Values::default(); columns.len()];
    let mut reader = reader.again()?;
    let mut fields = Fields::default();
    let (mut header, mut rows) = (true, 0);
    while rows < pandas::FIRST {
        match reader.read(&mut fields) {
            Ok(true) if std::mem::take(&mut header) => {}
            Ok(true) => {
                rows += 1;
                for (values, column) in values.iter_mut().zip(columns) {
                    if *column < fields.len() {
                        values.add(&String::from_utf8_lossy(fields.get(*column).0));
                    }
                }
            }
            Ok(false) => break,
            // What is wrong is met again where rows are read.
            Err(error) if error.is_bad_row() => rows += 1,
            Err(_) => break,
        }
    }
    Ok(values.iter().map(pandas::Values::kind).collect())
}

fn open_json(
    path: &Path,
    on_bad_row: OnBadRow,
    count: Arc<AtomicU64>,
) -> Result<(Reader, Vec<String>)> {
    let reader = JsonReader::new(Input::open(path, Arc::default())?)?;
    let (columns, facts) = json_columns(reader, on_bad_row)?;
    let reader = JsonReader::new(Input::open(path, count)?)?;
    Ok((Reader::Json { reader, facts }, columns))
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

/// What a first block of JSON rows tells besides its columns.
struct JsonFacts {
    /// Of each column: all its texts are times, and so is the column.
    are_times: Vec<bool>,
    /// The field whose list has the rows, where the file is one object.
    rows_within: Option<String>,
}

/// All keys of a first block's rows, in the order in which they occur. Bad rows that are to be left
/// out are read again, and counted, where rows are.
fn json_columns(mut reader: JsonReader, on_bad_row: OnBadRow) -> Result<(Vec<String>, JsonFacts)> {
    let block = if is_url(reader.path()) {
        REMOTE_BLOCK
    } else {
        BLOCK
    };
    let (mut columns, mut places) = (Vec::new(), HashMap::new());
    // Whether a column has texts, and whether all are times.
    let mut texts: Vec<(bool, bool)> = Vec::new();
    let mut rows_within = None;
    let (mut rows, mut bad) = (0_u64, 0_u64);
    while reader.bookmark().offset < block || rows == 0 {
        match reader.read() {
            Ok(Some((_, row))) => {
                rows += 1;
                rows_within = if rows == 1 { list_of_rows(&row) } else { None };
                for (key, cell) in row {
                    let place = *places.entry(key).or_insert_with_key(|key| {
                        columns.push(key.clone());
                        texts.push((false, true));
                        columns.len() - 1
                    });
                    let (has_texts, are_times) = &mut texts[place];
                    match cell {
                        Cell::Missing => {}
                        Cell::Text(text) => {
                            *has_texts = true;
                            *are_times = *are_times && is_time(&text);
                        }
                        _ => *are_times = false,
                    }
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
        let are_times = texts.iter().map(|(has, are)| *has && *are).collect();
        let facts = JsonFacts {
            are_times,
            rows_within,
        };
        return Ok((columns, facts));
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

/// The field of a row that is a list of structures.
fn list_of_rows(row: &[(String, Cell)]) -> Option<String> {
    let is_list = |cell: &Cell| match cell {
        Cell::List(cells) => matches!(cells.first(), Some(Cell::Fields(_))),
        _ => false,
    };
    let found = row.iter().find(|(_, cell)| is_list(cell));
    found.map(|(name, _)| name.clone())
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
