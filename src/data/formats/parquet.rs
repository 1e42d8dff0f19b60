//! Parquet files, row by row, only the columns that are asked for.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescriptor, Type};
use serde_json::Value;

use super::cell::{Cell, IGNORED};
use super::input::Bookmark;
use crate::checkpoint::files;
use crate::data::error::{Error, Place, Result};
use crate::data::remote::{Remote, RemoteReader, is_url};
use crate::report::panics;

/// The bytes of a parquet file, which is read here and there.
enum Source {
    File(File),
    Remote(Arc<Remote>),
}

impl Length for Source {
    fn len(&self) -> u64 {
        match self {
            Source::File(file) => file.len(),
            Source::Remote(remote) => remote.size(),
        }
    }
}

impl ChunkReader for Source {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Box<dyn Read>> {
        Ok(match self {
            Source::File(file) => Box::new(file.get_read(start)?),
            Source::Remote(remote) => Box::new(RemoteReader {
                remote: remote.clone(),
                offset: start,
            }),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        match self {
            Source::File(file) => file.get_bytes(start, length),
            Source::Remote(remote) => remote
                .bytes(start, length)
                .map_err(|error| ParquetError::External(Box::new(error))),
        }
    }
}

pub(in crate::data) struct ParquetReader {
    path: PathBuf,
    reader: SerializedFileReader<Source>,
    columns: Vec<String>,
    /// Names of the classes of the columns that have some.
    class_names: Vec<Option<Vec<String>>>,
    /// Columns that are read, by their place in the file, in the order asked for.
    chosen: Vec<usize>,
    group: usize,
    row: u64,
    rows: Option<ReaderIter>,
}

impl ParquetReader {
    pub fn open(path: &Path) -> Result<ParquetReader> {
        let source = if is_url(path) {
            Source::Remote(Arc::new(Remote::open(path)?))
        } else {
            Source::File(files::open(path).map_err(Error::io("read", path))?)
        };
        if source.len() == 0 {
            return Err(Error::EmptyFile {
                path: path.to_path_buf(),
            });
        }
        let reader = guarded(|| SerializedFileReader::new(source)).map_err(|failure| {
            failure.of_the_file(|reason| {
                let reason = format!("it is damaged, cut short or no parquet file ({reason}); download or write it again");
                Error::BadTable { path: path.to_path_buf(), reason }
            })
        })?;
        let metadata = reader.metadata().file_metadata();
        let fields = metadata.schema().get_fields();
        let columns: Vec<String> = fields
            .iter()
            .map(|field| field.name().to_string())
            .collect();
        let features = metadata.key_value_metadata().and_then(|pairs| {
            let value = pairs
                .iter()
                .find(|pair| pair.key == "huggingface")?
                .value
                .as_deref()?;
            serde_json::from_str::<Value>(value).ok()
        });
        let names = |column: &String| -> Option<Vec<String>> {
            declared_names(&features.as_ref()?["info"]["features"][column.as_str()])
        };
        let class_names = columns.iter().map(names).collect();
        let path = path.to_path_buf();
        Ok(ParquetReader {
            path,
            reader,
            columns,
            class_names,
            chosen: Vec::new(),
            group: 0,
            row: 0,
            rows: None,
        })
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of a column's classes (`datasets`' ClassLabel), where the file gives them.
    pub fn class_names(&self, column: usize) -> Option<&[String]> {
        self.class_names[column].as_deref()
    }

    /// Reads these columns from now on.
    ///
    /// # Errors
    /// One holds binary data or maps.
    pub fn choose(&mut self, columns: &[usize]) -> Result<()> {
        for &column in columns {
            let field = &self.reader.metadata().file_metadata().schema().get_fields()[column];
            if let Some(kind) = unreadable(field, 0) {
                let reason = format!(
                    "column {:?} holds {kind}; text, numbers, truth values, and lists and structures of these are read",
                    field.name()
                );
                return Err(Error::BadTable {
                    path: self.path.clone(),
                    reason,
                });
            }
        }
        self.chosen = columns.to_vec();
        Ok(())
    }

    /// Where the next row is.
    pub fn bookmark(&self) -> Bookmark {
        Bookmark {
            group: self.group,
            row: self.row,
            ..Bookmark::default()
        }
    }

    /// Goes on at a bookmark of the same file. Columns are chosen before.
    pub fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        (self.group, self.row, self.rows) = (bookmark.group, bookmark.row, None);
        if bookmark.row > 0 && self.group < self.reader.num_row_groups() {
            let mut rows = self.open_group()?;
            guarded(|| {
                (&mut rows)
                    .take(bookmark.row as usize)
                    .try_for_each(|row| row.map(|_| ()))
            })
            .map_err(|failure| self.damaged(failure))?;
            self.rows = Some(rows);
        }
        Ok(())
    }

    /// The next row's cells in the order chosen; `None` at the end.
    pub fn read(&mut self) -> Result<Option<(Place, Vec<Cell>)>> {
        loop {
            let Some(rows) = &mut self.rows else {
                if self.group == self.reader.num_row_groups() {
                    return Ok(None);
                }
                self.rows = Some(self.open_group()?);
                continue;
            };
            match guarded(|| rows.next().transpose()) {
                Ok(Some(row)) => {
                    let place = Place::row(&self.path, self.group, self.row);
                    self.row += 1;
                    let cells = self.cells(&row);
                    return Ok(Some((place, cells)));
                }
                Ok(None) => (self.group, self.row, self.rows) = (self.group + 1, 0, None),
                Err(failure) => return Err(self.damaged(failure)),
            }
        }
    }

    fn open_group(&self) -> Result<ReaderIter> {
        self.open_columns(&self.chosen)
            .map_err(|failure| self.damaged(failure))
    }

    /// The rows of the current group with only these columns.
    fn open_columns(&self, columns: &[usize]) -> Result<ReaderIter, Failure> {
        let schema = self.reader.metadata().file_metadata().schema();
        let mut wanted = columns.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let fields = wanted
            .iter()
            .map(|column| schema.get_fields()[*column].clone())
            .collect();
        guarded(|| {
            let projection = Type::group_type_builder(schema.name())
                .with_fields(fields)
                .build()?;
            let group = self.reader.get_row_group(self.group)?;
            TreeBuilder::new().as_iter(
                Arc::new(SchemaDescriptor::new(Arc::new(projection))),
                group.as_ref(),
            )
        })
    }

    /// What is wrong with the current row group, and in which column: where several are read, each
    /// is read again on its own until one fails.
    fn damaged(&self, failure: Failure) -> Error {
        let alone = |column: &usize| {
            let mut rows = match self.open_columns(&[*column]) {
                Ok(rows) => rows,
                Err(failure) => return Some((*column, 0, failure)),
            };
            let mut row = 0;
            let whole = guarded(|| rows.try_for_each(|read| read.map(|_| row += 1)));
            whole.err().map(|failure| (*column, row, failure))
        };
        let place = |row: u64| Place::row(&self.path, self.group, row);
        let (row, column, failure) = match (&self.chosen[..], &failure) {
            (_, Failure::Source(_)) => (self.row, None, failure),
            (several, _) => match several.iter().find_map(alone) {
                Some((column, row, found)) => (row, Some(&self.columns[column]), found),
                None => (self.row, None, failure),
            },
        };
        failure.of_the_file(|reason| Error::DamagedColumn {
            place: place(row),
            column: column.cloned().unwrap_or_default(),
            reason: reason.into(),
        })
    }

    fn cells(&self, row: &Row) -> Vec<Cell> {
        let find = |column: &usize| {
            let name = &self.columns[*column];
            let field = row
                .get_column_iter()
                .find(|(found, _)| *found == name)
                .map(|(_, field)| field);
            field.map_or(Cell::Missing, |field| {
                cell(field, self.class_names(*column))
            })
        };
        self.chosen.iter().map(find).collect()
    }
}

/// The names of a feature's classes or, of a list, of its elements': an object with `feature`
/// (`Sequence`, `List`, `LargeList`) or, by earlier versions of `datasets`, a JSON list of one.
fn declared_names(feature: &Value) -> Option<Vec<String>> {
    let inside = feature.get("feature").or_else(|| feature.get(0));
    if let Some(inside) = inside {
        return declared_names(inside);
    }
    let names = feature["names"].as_array();
    match (names, feature["num_classes"].as_u64()) {
        (Some(names), _) => names
            .iter()
            .map(|name| name.as_str().map(str::to_string))
            .collect(),
        // Classes that were only counted are called by their numbers.
        (None, Some(count)) if feature["_type"] == "ClassLabel" && count < 10_000 => {
            Some((0..count).map(|class| class.to_string()).collect())
        }
        _ => None,
    }
}

fn cell(field: &Field, class_names: Option<&[String]>) -> Cell {
    let whole = |number: i64| match class_names {
        Some(_) if number.to_string() == IGNORED => Cell::Number(number.to_string()),
        // `datasets` writes -1 where a class is not known.
        Some(_) if number < 0 => Cell::Missing,
        Some(names) => match names.get(number as usize) {
            Some(name) => Cell::Class {
                number,
                name: name.clone(),
            },
            None => Cell::Number(number.to_string()),
        },
        None => Cell::Number(number.to_string()),
    };
    match field {
        Field::Null => Cell::Missing,
        Field::Str(text) => Cell::Text(text.clone()),
        Field::Bool(value) => Cell::Number(value.to_string()),
        Field::Byte(n) => whole((*n).into()),
        Field::Short(n) => whole((*n).into()),
        Field::Int(n) => whole((*n).into()),
        Field::Long(n) => whole(*n),
        Field::UByte(n) => whole((*n).into()),
        Field::UShort(n) => whole((*n).into()),
        Field::UInt(n) => whole((*n).into()),
        Field::Float(value) => Cell::Number(value.to_string()),
        Field::Double(value) => Cell::Number(value.to_string()),
        Field::ListInternal(list) => Cell::List(
            list.elements()
                .iter()
                .map(|element| cell(element, class_names))
                .collect(),
        ),
        Field::Group(row) => Cell::Fields(
            row.get_column_iter()
                .map(|(name, field)| (name.clone(), within_structure(field)))
                .collect(),
        ),
        other => Cell::Number(other.to_string()),
    }
}

/// A cell of a structure, whose numbers may be shown: a float is not a whole number there.
fn within_structure(field: &Field) -> Cell {
    match field {
        Field::Float(value) => Cell::Number(format!("{:?}", f64::from(*value))),
        Field::Double(value) => Cell::Number(format!("{value:?}")),
        Field::ListInternal(list) => {
            Cell::List(list.elements().iter().map(within_structure).collect())
        }
        other => cell(other, None),
    }
}

/// Levels of lists and structures in one another that are read; conversations have three.
const DEEPEST: usize = 16;

/// Why a column cannot be read: what it holds somewhere in it, `levels` below the row.
fn unreadable(field: &Type, levels: usize) -> Option<&'static str> {
    let info = field.get_basic_info();
    if field.is_primitive() {
        let is_text = info.logical_type_ref() == Some(&LogicalType::String)
            || info.converted_type() == ConvertedType::UTF8;
        let is_binary = field.get_physical_type() == Physical::BYTE_ARRAY && !is_text;
        return is_binary.then_some("binary data");
    }
    if matches!(
        info.converted_type(),
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE
    ) {
        return Some("maps");
    }
    if levels == DEEPEST {
        return Some("lists and structures in one another, deeper than any table's");
    }
    let mut fields = field.get_fields().iter();
    fields.find_map(|field| unreadable(field, levels + 1))
}

/// Why the decoder stopped.
enum Failure {
    /// The bytes could not be had.
    Source(Error),
    /// They make no parquet.
    Content(String),
}

impl Failure {
    fn of_the_file(self, content: impl FnOnce(&str) -> Error) -> Error {
        match self {
            Failure::Source(error) => error,
            Failure::Content(reason) => content(&reason),
        }
    }
}

/// Runs the decoder, which may panic on damaged input.
fn guarded<T>(work: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, Failure> {
    match panics::guarded(work) {
        Ok(Ok(value)) => Ok(value),
        // A remote file's own error, in the disguise of another library's or of a stream's.
        Ok(Err(ParquetError::External(error))) => Err(match error.downcast::<Error>() {
            Ok(error) => Failure::Source(*error),
            Err(error) => match error
                .downcast::<io::Error>()
                .map(|error| error.downcast::<Error>())
            {
                Ok(Ok(error)) => Failure::Source(error),
                Ok(Err(error)) => Failure::Content(error.to_string()),
                Err(error) => Failure::Content(error.to_string()),
            },
        }),
        Ok(Err(error)) => Err(Failure::Content(reason(&error))),
        Err(_) => Err(Failure::Content("its pages make no sense".to_string())),
    }
}

/// What the library says, without what it may quote of the file: values as they are, in whole.
fn reason(error: &ParquetError) -> String {
    /// Of a message, which is a sentence.
    const MOST: usize = 200;
    let text = match error {
        ParquetError::General(text) | ParquetError::EOF(text) | ParquetError::NYI(text) => {
            text.clone()
        }
        other => other.to_string(),
    };
    if text.starts_with("Error reading BYTE_ARRAY as String") {
        return "text that is not UTF-8".into();
    }
    let text = text.lines().next().unwrap_or_default();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::fs;

    const ROWS: usize = 500;

    /// Two row groups of a text and a number.
    fn write(path: &Path, compression: Compression, text: impl Fn(usize) -> Vec<u8>) {
        let schema = "message m { required binary text (UTF8); required int32 label; }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_dictionary_enabled(false)
            .build();
        let file = File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        for group in 0..2 {
            let rows = || group * ROWS..(group + 1) * ROWS;
            let mut columns = writer.next_row_group().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let texts: Vec<ByteArray> = rows().map(|row| text(row).into()).collect();
            let typed = column.typed::<ByteArrayType>();
            typed.write_batch(&texts, None, None).unwrap();
            column.close().unwrap();
            let mut column = columns.next_column().unwrap().unwrap();
            let labels: Vec<i32> = rows().map(|row| row as i32 % 7).collect();
            let typed = column.typed::<Int32Type>();
            typed.write_batch(&labels, None, None).unwrap();
            column.close().unwrap();
            columns.close().unwrap();
        }
        writer.close().unwrap();
    }

    /// A whole file, for damage.
    pub fn sample() -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), Compression::SNAPPY, |row| text(row % 20));
        fs::read(file.path()).unwrap()
    }

    fn text(row: usize) -> Vec<u8> {
        format!("a sentence with the number {row}, which is {}", row * row).into_bytes()
    }

    /// How many rows there are before the end or an error.
    fn read(path: &Path) -> (usize, Option<String>) {
        let mut reader = match ParquetReader::open(path) {
            Ok(reader) => reader,
            Err(error) => return (0, Some(error.to_string())),
        };
        reader.choose(&[1, 0]).unwrap();
        let mut rows = 0;
        loop {
            match reader.read() {
                Ok(None) => return (rows, None),
                Err(error) => return (rows, Some(error.to_string())),
                Ok(Some((_, cells))) => {
                    let wanted = String::from_utf8(text(rows)).unwrap();
                    let label = Cell::Number((rows % 7).to_string());
                    assert_eq!(cells, [label, Cell::Text(wanted)]);
                    rows += 1;
                }
            }
        }
    }

    fn codecs() -> [Compression; 7] {
        [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(GzipLevel::default()),
            Compression::LZ4,
            Compression::LZ4_RAW,
            Compression::BROTLI(BrotliLevel::default()),
            Compression::ZSTD(ZstdLevel::default()),
        ]
    }

    #[test]
    fn every_codec_that_writers_use_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        for codec in codecs() {
            write(&path, codec, text);
            assert_eq!(read(&path), (2 * ROWS, None), "{codec:?}");
        }
    }

    #[test]
    fn class_names_are_found_in_every_form_of_a_feature() {
        let class = serde_json::json!({"names": ["a", "b"], "_type": "ClassLabel"});
        let of = |feature: Value| declared_names(&feature);
        let named = Some(vec!["a".to_string(), "b".to_string()]);
        for kind in ["Sequence", "List", "LargeList"] {
            assert_eq!(
                of(serde_json::json!({"feature": class, "_type": kind})),
                named
            );
        }
        assert_eq!(of(serde_json::json!([class])), named);
        assert_eq!(of(class), named);
        let counted = serde_json::json!({"num_classes": 2, "names": null, "_type": "ClassLabel"});
        assert_eq!(of(counted), Some(vec!["0".to_string(), "1".to_string()]));
        assert_eq!(
            of(serde_json::json!({"dtype": "int64", "_type": "Value"})),
            None
        );
    }

    /// As `datasets` writes a conversation: a list of structures of text.
    #[test]
    fn lists_of_structures_are_read_and_others_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let of = |schema: &str| Arc::new(parse_message_type(schema).unwrap());
        let schema = of("message m { optional group messages (LIST) { repeated group list { optional group element {
            optional binary role (UTF8); optional binary content (UTF8); } } } }");
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut columns = writer.next_row_group().unwrap();
        // Two messages, one whose content is null, and no list.
        for (texts, present) in [
            (vec!["user", "assistant", "user"], [4, 4, 4, 0]),
            (vec!["a", "b"], [4, 4, 3, 0]),
        ] {
            let mut column = columns.next_column().unwrap().unwrap();
            let texts: Vec<ByteArray> = texts.into_iter().map(ByteArray::from).collect();
            let typed = column.typed::<ByteArrayType>();
            let begins = [0, 1, 0, 0];
            typed
                .write_batch(&texts, Some(&present), Some(&begins))
                .unwrap();
            column.close().unwrap();
        }
        columns.close().unwrap();
        writer.close().unwrap();
        let mut reader = ParquetReader::open(&path).unwrap();
        reader.choose(&[0]).unwrap();
        let text = |text: &str| Cell::Text(text.to_string());
        let message = |role: &str, content: Cell| {
            Cell::Fields(vec![
                ("role".to_string(), text(role)),
                ("content".to_string(), content),
            ])
        };
        for wanted in [
            Cell::List(vec![
                message("user", text("a")),
                message("assistant", text("b")),
            ]),
            Cell::List(vec![message("user", Cell::Missing)]),
            Cell::Missing,
        ] {
            assert_eq!(reader.read().unwrap().unwrap().1, [wanted]);
        }
        assert!(reader.read().unwrap().is_none());
        let deep = |levels: usize| {
            let (open, close) = ("optional group g { ".repeat(levels), "} ".repeat(levels));
            format!("message m {{ {open}optional int32 x; {close}}}")
        };
        for (schema, found) in [
            (
                "message m { optional group a { optional binary x; } }".to_string(),
                Some("binary data"),
            ),
            (deep(DEEPEST), None),
            (deep(DEEPEST + 1), Some("deeper")),
        ] {
            let schema = of(&schema);
            let kind = unreadable(&schema.get_fields()[0], 0);
            let right = kind.zip(found).is_some_and(|(a, b)| a.contains(b));
            assert!(right || (kind, found) == (None, None), "{kind:?} {found:?}");
        }
    }

    /// Whatever byte is damaged: right rows, then nothing or one sentence; never a panic, and never
    /// the bytes themselves.
    #[test]
    fn damaged_pages_are_one_sentence_with_their_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        for codec in &codecs()[1..] {
            write(&path, *codec, text);
            let whole = fs::read(&path).unwrap();
            let reader = ParquetReader::open(&path).unwrap();
            let label = reader.reader.metadata().row_group(1).column(1);
            let (start, size) = label.byte_range();
            let mut damaged = whole.clone();
            damaged[start as usize..][..size as usize].fill(0xa5);
            fs::write(&path, damaged).unwrap();
            let (rows, message) = read(&path);
            let message = message.expect("nothing is left of the column");
            assert_eq!(rows, ROWS, "{codec:?}: {message}");
            assert!(
                message.contains("row 0 of row group 1, column \"label\": damaged (")
                    && message.ends_with("); download or write the file again"),
                "{codec:?}: {message}"
            );
        }
    }

    #[test]
    fn invalid_text_is_named_and_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        write(&path, Compression::UNCOMPRESSED, |row| match row {
            700 => b"Gr\xfc\xdfe \x1b[31m".repeat(1000),
            row => text(row),
        });
        let (rows, message) = read(&path);
        let message = message.unwrap();
        assert!(rows >= ROWS, "{rows}");
        assert!(
            message.contains(
                "row 200 of row group 1, column \"text\": damaged (text that is not UTF-8)"
            ) && message.len() < 1000,
            "{message}"
        );
    }
}
