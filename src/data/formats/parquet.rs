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

use super::cell::Cell;
use super::input::Bookmark;
use crate::error::{Error, Place, Result};
use crate::features::{Feature, features_of_file};
use crate::remote::{Remote, RemoteReader, is_url};
use xtrain_checkpoint::files;
use xtrain_report::panics;

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

pub(crate) struct ParquetReader {
    path: PathBuf,
    reader: SerializedFileReader<Source>,
    columns: Vec<String>,
    /// What the file notes of its columns.
    features: Vec<Option<Feature>>,
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
        let notes = metadata.key_value_metadata().and_then(|pairs| {
            let pair = pairs.iter().find(|pair| pair.key == "huggingface")?;
            pair.value.as_deref()
        });
        let mut noted = notes.map(features_of_file).unwrap_or_default();
        // Of JSON columns that other writers marked, too.
        for field in fields.iter().filter(|field| is_json(field)) {
            if noted.iter().all(|(name, _)| name != field.name()) {
                noted.push((field.name().to_string(), Feature::Json));
            }
        }
        let feature = |column: &String| {
            let found = noted.iter().find(|(name, _)| name == column);
            found.map(|(_, feature)| feature.clone())
        };
        let features = columns.iter().map(feature).collect();
        let path = path.to_path_buf();
        Ok(ParquetReader {
            path,
            reader,
            columns,
            features,
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

    /// What the file notes of its columns beside their values.
    pub fn features(&self) -> &[Option<Feature>] {
        &self.features
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
            field.map_or(Cell::Missing, cell)
        };
        self.chosen.iter().map(find).collect()
    }
}

fn cell(field: &Field) -> Cell {
    match field {
        Field::Null => Cell::Missing,
        Field::Str(text) => Cell::Text(text.clone()),
        // JSON is no text for the library, which leaves its bytes.
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => Cell::Text(text.to_string()),
            Err(_) => Cell::Number(field.to_string()),
        },
        Field::Bool(value) => Cell::Number(value.to_string()),
        Field::Float16(value) => Cell::fraction(value.to_f64()),
        Field::Float(value) => Cell::fraction((*value).into()),
        Field::Double(value) => Cell::fraction(*value),
        Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => Cell::Time(field.to_string()),
        Field::ListInternal(list) => Cell::List(list.elements().iter().map(cell).collect()),
        Field::Group(row) => Cell::Fields(
            row.get_column_iter()
                .map(|(name, field)| (name.clone(), cell(field)))
                .collect(),
        ),
        other => Cell::Number(other.to_string()),
    }
}

/// Levels of lists and structures in one another that are read; conversations have three.
const DEEPEST: usize = 16;

/// Why a column cannot be read: what it holds somewhere in it, `levels` below the row.
fn unreadable(field: &Type, levels: usize) -> Option<&'static str> {
    let info = field.get_basic_info();
    if field.is_primitive() {
        let is_text = info.logical_type_ref() == Some(&LogicalType::String)
            || info.converted_type() == ConvertedType::UTF8
            || is_json(field);
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

/// Whether a column is text that is marked as JSON.
fn is_json(field: &Type) -> bool {
    let info = field.get_basic_info();
    field.is_primitive()
        && (info.logical_type_ref() == Some(&LogicalType::Json)
            || info.converted_type() == ConvertedType::JSON)
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
