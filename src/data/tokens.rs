//! Texts that come as token ids: NumPy's arrays (`.npy`), raw ids of 16 bits (`.bin`, as nanoGPT and
//! llm.c write them), and the columns `input_ids` and `labels` of tables.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::error::{Error, Place, Result};
use super::formats::cell::{Cell, IGNORED};
use super::formats::input::{Bookmark, Input};
use super::formats::table::{Format, Table};
use super::rows::{Row, flag};
use super::samples::{Sample, SampleFile};
use super::settings::TableSettings;

/// The column of ids, as TRL recognizes sets that are tokenized.
pub const INPUT_IDS: &str = "input_ids";
/// What a row may have besides, and how it is called here.
const LABELS: &str = "labels";
const ATTENTION: &str = "attention_mask";
const ASSISTANT: &str = "assistant_masks";
const COMPLETION: &str = "completion_mask";

/// Ids of an array that make a sample, about: whole blocks.
const SAMPLE: usize = 1 << 16;

/// What NumPy's files begin with, and those of llm.c (a number of 32 bits, and the version).
const NUMPY: &[u8] = b"\x93NUMPY";
const LLM_C: [u8; 8] = [0x88, 0xD8, 0x34, 0x01, 1, 0, 0, 0];
/// Bytes of llm.c's header: 256 numbers of 32 bits.
const LLM_C_HEADER: u64 = 1024;

/// Columns of a table with ids.
#[derive(Clone, Debug)]
pub struct TokenColumns {
    ids: usize,
    labels: Option<usize>,
    attention: Option<usize>,
    assistant: Option<usize>,
}

impl TokenColumns {
    /// Those of a table; `None` where it has no column `input_ids`.
    ///
    /// # Errors
    /// It has a column of which it is not clear what it should do.
    pub fn of(table: &Table) -> Result<Option<TokenColumns>> {
        let find = |name: &str| table.find(None, &[name]);
        let Some(ids) = find(INPUT_IDS) else {
            return Ok(None);
        };
        let labels = find(LABELS);
        if labels.is_none() && find(COMPLETION).is_some() {
            return Err(Error::BadTable {
                path: table.path().to_path_buf(),
                reason: format!(
                    "it has {COMPLETION} and no {LABELS}: TRL reads that mask with completion_only_loss alone; write {LABELS}, \
                     the ids or {IGNORED} where nothing is to be learned"
                ),
            });
        }
        Ok(Some(TokenColumns {
            ids,
            labels,
            attention: find(ATTENTION),
            assistant: find(ASSISTANT).filter(|_| labels.is_none()),
        }))
    }

    /// The columns to choose.
    pub fn chosen(&self) -> Vec<usize> {
        let more = [self.labels, self.attention, self.assistant];
        std::iter::once(self.ids)
            .chain(more.into_iter().flatten())
            .collect()
    }

    /// Their names.
    pub fn names(&self, table: &Table) -> String {
        let names = self
            .chosen()
            .into_iter()
            .map(|column| &*table.columns()[column]);
        names.collect::<Vec<_>>().join(", ")
    }

    /// The tokens of a row, of which those count that its labels name; no id reaches `vocabulary`.
    ///
    /// # Errors
    /// The row is a bad one.
    pub fn row(&self, place: &Place, cells: Vec<Cell>, vocabulary: usize) -> Result<Row> {
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        let mut cells = cells.into_iter();
        let mut numbers = |name: &str| {
            let cell = cells.next().unwrap_or(Cell::Missing);
            whole_numbers(name, cell).map_err(bad)
        };
        let ids = numbers(INPUT_IDS)?;
        let mut more = |column: Option<usize>, name: &str| {
            let found = column.map(|_| numbers(name)).transpose()?;
            match found {
                Some(found) if found.len() != ids.len() => Err(bad(format!(
                    "{name} has {} values and {INPUT_IDS} has {}",
                    found.len(),
                    ids.len()
                ))),
                found => Ok(found),
            }
        };
        let labels = more(self.labels, LABELS)?;
        let attention = more(self.attention, ATTENTION)?;
        let assistant = more(self.assistant, ASSISTANT)?;
        let ids = in_vocabulary(&ids, vocabulary).map_err(bad)?;
        if ids.is_empty() {
            return Err(bad(format!("{INPUT_IDS} is empty")));
        }
        let padding = attention.and_then(|mask| mask.iter().position(|seen| *seen != 1));
        if let Some(padding) = padding {
            return Err(bad(format!(
                "{ATTENTION}[{padding}] is not 1: rows are padded here, take the padding out (TRL would train on it)"
            )));
        }
        let is_ignored = |label: i64| label == -100;
        let other = labels.iter().flat_map(|labels| labels.iter().zip(&*ids));
        let other = other
            .enumerate()
            .find(|(_, (label, id))| !is_ignored(**label) && **label != i64::from(**id));
        if let Some((at, (label, id))) = other {
            return Err(bad(format!(
                "{LABELS}[{at}] is {label} where {INPUT_IDS}[{at}] is {id}: a label is its own token's id (the shift to the next token is \
                 the loss's) or {IGNORED}"
            )));
        }
        let counts = |at: usize| match (&labels, &assistant) {
            (Some(labels), _) => !is_ignored(labels[at]),
            (None, Some(mask)) => mask[at] != 0,
            (None, None) => true,
        };
        let flags = (0..ids.len()).map(|at| if counts(at) { flag::COUNTED } else { 0 });
        Ok(Row {
            flags: flags.collect(),
            ..Row::of_ids(&ids)
        })
    }
}

/// The whole numbers of a cell.
fn whole_numbers(name: &str, cell: Cell) -> Result<Vec<i64>, String> {
    let Cell::List(items) = cell else {
        return Err(format!("{name} is no list of whole numbers"));
    };
    let number = |(at, item): (usize, Cell)| {
        let found = match &item {
            Cell::Number(text) => text.parse().ok(),
            _ => None,
        };
        found.ok_or_else(|| format!("{name}[{at}] is no whole number"))
    };
    items.into_iter().enumerate().map(number).collect()
}

/// Numbers as ids of a vocabulary.
fn in_vocabulary(numbers: &[i64], vocabulary: usize) -> Result<Vec<u32>, String> {
    let id = |(at, number): (usize, &i64)| match u32::try_from(*number) {
        Ok(id) if (id as usize) < vocabulary => Ok(id),
        _ => Err(format!(
            "{INPUT_IDS}[{at}] is {number}: the model's vocabulary has ids from 0 to {}",
            vocabulary - 1
        )),
    };
    numbers.iter().enumerate().map(id).collect()
}

/// One open file of ids.
pub enum TokenFile {
    /// An array in a file.
    Array(Box<ArrayFile>),
    /// Rows of a table.
    Table {
        table: Box<Table>,
        columns: TokenColumns,
        vocabulary: usize,
    },
}

impl TokenFile {
    /// Opens a file if it has ids, `None` if it has texts. Samples of an array have a multiple of `block`
    /// ids, up to the last one; no id reaches `vocabulary`. Raw bytes read are added to `count`.
    ///
    /// # Errors
    /// The file cannot be read, or is an array of something else.
    pub fn open(
        path: &Path,
        settings: &TableSettings,
        block: usize,
        vocabulary: usize,
        count: Arc<AtomicU64>,
    ) -> Result<Option<TokenFile>> {
        match Format::of(path) {
            Format::Text => return Ok(None),
            Format::Tokens => {
                let file = ArrayFile::open(path, block, vocabulary, count)?;
                return Ok(Some(TokenFile::Array(Box::new(file))));
            }
            Format::Csv | Format::Tsv | Format::Json | Format::Parquet => {}
        }
        if settings.text_column.is_some() {
            return Ok(None);
        }
        let mut table = Table::open(path, settings, count)?;
        let Some(columns) = TokenColumns::of(&table)? else {
            return Ok(None);
        };
        table.choose(columns.chosen())?;
        Ok(Some(TokenFile::Table {
            table: Box::new(table),
            columns,
            vocabulary,
        }))
    }
}

impl SampleFile for TokenFile {
    fn bookmark(&self) -> Bookmark {
        match self {
            TokenFile::Array(file) => file.bookmark(),
            TokenFile::Table { table, .. } => table.bookmark(),
        }
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        match self {
            TokenFile::Array(file) => file.resume(bookmark),
            TokenFile::Table { table, .. } => table.resume(bookmark, Arc::default()),
        }
    }

    fn next(&mut self) -> Option<Result<Sample>> {
        let row = match self {
            TokenFile::Array(file) => file.next().transpose()?,
            TokenFile::Table {
                table,
                columns,
                vocabulary,
            } => table.next()?.and_then(|row| {
                let found = columns.row(&row.place, row.cells, *vocabulary)?;
                let all_count = found.flags.iter().all(|flags| flags & flag::COUNTED != 0);
                if all_count {
                    Ok(Row::of_ids(&found.ids))
                } else {
                    Err(Error::BadRow {
                        place: row.place,
                        reason: format!(
                            "its {LABELS} leave tokens out, and here every token counts: train it with sft"
                        ),
                    })
                }
            }),
        };
        Some(row.map(|row| Sample {
            row: Some(row),
            ..Sample::default()
        }))
    }
}

/// The type of an array's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    bytes: usize,
    is_signed: bool,
}

/// A file with one array of ids.
pub struct ArrayFile {
    input: Input,
    number: Number,
    /// Bytes before the first id.
    start: u64,
    /// Ids of it all, where the file tells.
    total: Option<u64>,
    /// Ids of a sample.
    sample: usize,
    vocabulary: usize,
}

impl ArrayFile {
    fn open(
        path: &Path,
        block: usize,
        vocabulary: usize,
        count: Arc<AtomicU64>,
    ) -> Result<ArrayFile> {
        let mut input = Input::open(path, count)?;
        let head = peeked(&mut input)?;
        let bad = |reason: String| Error::BadTable {
            path: path.to_path_buf(),
            reason,
        };
        let (number, start, total) = if head.starts_with(NUMPY) {
            numpy_header(&head).map_err(bad)?
        } else if head.starts_with(&LLM_C) {
            let ids = head.get(8..12).and_then(|bytes| bytes.try_into().ok());
            let ids = ids.map(u32::from_le_bytes).map(u64::from);
            (RAW, LLM_C_HEADER, ids)
        } else if path.to_string_lossy().ends_with(".npy") {
            return Err(bad("it does not begin as NumPy's files do".to_string()));
        } else {
            (RAW, 0, None)
        };
        let mut file = ArrayFile {
            input,
            number,
            start,
            total,
            sample: SAMPLE.next_multiple_of(block.max(1)),
            vocabulary,
        };
        let begin = file.take(start as usize)?;
        if begin.len() < start as usize {
            return Err(bad("it ends within its header".to_string()));
        }
        Ok(file)
    }

    fn bookmark(&self) -> Bookmark {
        Bookmark {
            offset: self.input.position(),
            lines: 1,
            ..Bookmark::default()
        }
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        if *bookmark != Bookmark::default() {
            self.input = self.input.at(bookmark, Arc::default())?;
        }
        Ok(())
    }

    /// Ids before the next one.
    fn at(&self) -> u64 {
        (self.input.position() - self.start) / self.number.bytes as u64
    }

    /// The next bytes, fewer at the end.
    fn take(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut taken = Vec::with_capacity(bytes.min(1 << 20));
        while taken.len() < bytes {
            let ready = self.input.fill(1)?;
            if ready.is_empty() {
                break;
            }
            let part = ready.len().min(bytes - taken.len());
            taken.extend_from_slice(&ready[..part]);
            self.input.consume(part);
        }
        Ok(taken)
    }

    /// The ids of the next sample.
    fn next(&mut self) -> Result<Option<Row>> {
        let first = self.at();
        let left = self
            .total
            .map_or(u64::MAX, |total| total - first.min(total));
        let wanted = (self.sample as u64).min(left) as usize;
        let width = self.number.bytes;
        let bytes = self.take(wanted * width)?;
        let path = self.input.path();
        let bad = |reason: String| Error::BadTable {
            path: path.to_path_buf(),
            reason,
        };
        if !bytes.len().is_multiple_of(width) {
            return Err(bad(format!(
                "it has {} bytes of ids, which are no whole number of {width} bytes each",
                first * width as u64 + bytes.len() as u64
            )));
        }
        if self.total.is_some() && bytes.len() < wanted * width {
            return Err(bad(format!(
                "it ends after {} of its {} ids",
                first + (bytes.len() / width) as u64,
                self.total.unwrap_or_default()
            )));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let ids = bytes.chunks_exact(width).enumerate();
        let ids = ids.map(|(at, bytes)| {
            let number = self.number.read(bytes);
            let id = u32::try_from(number).ok();
            id.filter(|id| (*id as usize) < self.vocabulary)
                .ok_or_else(|| {
                    bad(format!(
                        "id {} (counted from 0) is {number}: the model's vocabulary has ids from 0 to {}",
                        first + at as u64,
                        self.vocabulary - 1
                    ))
                })
        });
        let ids = ids.collect::<Result<Vec<u32>>>()?;
        Ok(Some(Row::of_ids(&ids)))
    }
}

/// Ids of files without a header.
const RAW: Number = Number {
    bytes: 2,
    is_signed: false,
};

impl Number {
    fn read(self, bytes: &[u8]) -> i128 {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unused = 64 - 8 * bytes.len() as u32;
        let number = u64::from_le_bytes(wide);
        if self.is_signed {
            i128::from((number << unused) as i64 >> unused)
        } else {
            i128::from(number)
        }
    }
}

/// The bytes that a file begins with, none of them taken.
fn peeked(input: &mut Input) -> Result<Vec<u8>> {
    Ok(input.fill(1)?.to_vec())
}

/// Type, first byte and number of ids, of NumPy's header: its version, a length, and a Python dictionary.
fn numpy_header(head: &[u8]) -> Result<(Number, u64, Option<u64>), String> {
    let damaged = || "its header is damaged".to_string();
    let length = |bytes: Option<&[u8]>| {
        let bytes = bytes?;
        let length = bytes.iter().rev();
        Some(length.fold(0_usize, |all, byte| all << 8 | usize::from(*byte)))
    };
    let (length, start) = match head.get(6) {
        Some(1) => (length(head.get(8..10)), 10),
        Some(2 | 3) => (length(head.get(8..12)), 12),
        _ => (None, 0),
    };
    let end = start + length.ok_or_else(damaged)?;
    let text = head.get(start..end).ok_or_else(damaged)?;
    let text = std::str::from_utf8(text).map_err(|_| damaged())?;
    let after = |key: &str| {
        let (_, rest) = text.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let kind = after("descr").and_then(|rest| rest.strip_prefix('\''));
    let kind = kind.and_then(|rest| Some(rest.split_once('\'')?.0));
    let Some(kind) = kind else {
        return Err("it has no array of numbers".to_string());
    };
    let (is_signed, bytes) = match kind {
        "|u1" => (false, 1),
        "<u2" => (false, 2),
        "<u4" => (false, 4),
        "<u8" => (false, 8),
        "|i1" => (true, 1),
        "<i2" => (true, 2),
        "<i4" => (true, 4),
        "<i8" => (true, 8),
        other => {
            return Err(format!(
                "its numbers are of type {other:?}: ids are whole numbers, as array.astype(\"<u4\") makes them"
            ));
        }
    };
    let shape = after("shape").and_then(|rest| Some(rest.strip_prefix('(')?.split_once(')')?.0));
    let sizes: Option<Vec<u64>> = shape.and_then(|shape| {
        let sizes = shape
            .split(',')
            .map(str::trim)
            .filter(|size| !size.is_empty());
        sizes.map(|size| size.parse().ok()).collect()
    });
    let sizes = sizes.ok_or_else(damaged)?;
    let is_in_order = after("fortran_order").is_some_and(|rest| rest.starts_with("False"));
    if sizes.is_empty() || sizes.len() > 2 || (sizes.len() == 2 && !is_in_order) {
        return Err(format!(
            "its array has the shape ({}): ids are a row, or rows one after the other (C order)",
            sizes
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    let total = sizes
        .iter()
        .try_fold(1_u64, |all, size| all.checked_mul(*size));
    let number = Number { bytes, is_signed };
    Ok((number, end as u64, Some(total.ok_or_else(damaged)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids_in(name: &str, bytes: &[u8], block: usize) -> Result<Vec<Vec<u32>>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let settings = TableSettings::default();
        let file = TokenFile::open(&path, &settings, block, 1000, Arc::default())?;
        let mut file = file.expect("it has ids");
        let rows = std::iter::from_fn(|| file.next());
        rows.map(|sample| Ok(sample?.row.expect("ids").ids.to_vec()))
            .collect()
    }

    fn numpy(header: &str, body: &[u8]) -> Vec<u8> {
        let mut header = header.to_string();
        while !(10 + header.len() + 1).is_multiple_of(64) {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = NUMPY.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn arrays_are_read_whatever_their_type() {
        let raw: Vec<u8> = [5_u16, 999, 0]
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .collect();
        assert_eq!(ids_in("a.bin", &raw, 4).unwrap(), [[5, 999, 0]]);
        let mut with_header = LLM_C.to_vec();
        with_header.extend(3_u32.to_le_bytes());
        with_header.resize(1024, 0);
        with_header.extend(&raw);
        assert_eq!(ids_in("a.bin", &with_header, 4).unwrap(), [[5, 999, 0]]);
        let wide: Vec<u8> = [5_i64, 999]
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .collect();
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(
            ids_in("a.npy", &numpy(header, &wide), 4).unwrap(),
            [[5, 999]]
        );
        let rows = "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 3), }";
        assert_eq!(
            ids_in("a.npy", &numpy(rows, &raw), 4).unwrap(),
            [[5, 999, 0]]
        );
    }

    #[test]
    fn long_arrays_are_samples_of_whole_blocks() {
        let raw: Vec<u8> = (0..70_000_u32)
            .flat_map(|at| ((at % 1000) as u16).to_le_bytes())
            .collect();
        let found = ids_in("a.bin", &raw, 1000).unwrap();
        assert_eq!(
            found.iter().map(Vec::len).collect::<Vec<_>>(),
            [66_000, 4_000]
        );
        assert_eq!(found.concat()[69_999], 999);
    }

    #[test]
    fn what_is_no_id_is_named() {
        let error = |name: &str, bytes: &[u8]| ids_in(name, bytes, 4).unwrap_err().to_string();
        let beyond = error("a.bin", &[1, 0, 232, 3]);
        assert!(
            beyond.contains(
                "id 1 (counted from 0) is 1000: the model's vocabulary has ids from 0 to 999"
            ),
            "{beyond}"
        );
        assert!(error("a.bin", &[1, 0, 2]).contains("3 bytes"));
        assert!(error("a.npy", &[1, 0, 2]).contains("NumPy"));
        let float = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
        assert!(error("a.npy", &numpy(float, &[0; 4])).contains("<f4"));
        let short = "{'descr': '<u2', 'fortran_order': False, 'shape': (9,), }";
        assert!(error("a.npy", &numpy(short, &[0; 4])).contains("after 2 of its 9"));
        let negative = "{'descr': '<i2', 'fortran_order': False, 'shape': (1,), }";
        assert!(error("a.npy", &numpy(negative, &[255, 255])).contains("is -1"));
    }

    #[test]
    fn rows_of_tables_have_ids_and_labels() {
        let read = |text: &str| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.jsonl");
            std::fs::write(&path, text).unwrap();
            let settings = TableSettings::default();
            let mut table = Table::open(&path, &settings, Arc::default())?;
            let columns = TokenColumns::of(&table)?.expect("it has ids");
            table.choose(columns.chosen())?;
            let row = table.next().expect("a row")?;
            columns.row(&row.place, row.cells, 10)
        };
        let row = read("{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, -100]}\n").unwrap();
        assert_eq!(
            (&*row.ids, &*row.flags),
            (&[1, 2, 3][..], &[0, flag::COUNTED, 0][..])
        );
        let row = read("{\"input_ids\": [4, 5], \"attention_mask\": [1, 1]}\n").unwrap();
        assert_eq!(&*row.flags, &[flag::COUNTED; 2]);
        for (text, reason) in [
            (
                r#"{"input_ids": [1, 10]}"#,
                "input_ids[1] is 10: the model's vocabulary has ids from 0 to 9",
            ),
            (
                r#"{"input_ids": [1, 2], "labels": [2, -100]}"#,
                "labels[0] is 2 where input_ids[0] is 1",
            ),
            (
                r#"{"input_ids": [1, 2], "labels": [1]}"#,
                "labels has 1 values and input_ids has 2",
            ),
            (
                r#"{"input_ids": [1, 2], "attention_mask": [1, 0]}"#,
                "attention_mask[1]",
            ),
            (
                r#"{"input_ids": [1, 2.5]}"#,
                "input_ids[1] is no whole number",
            ),
            (
                r#"{"input_ids": [1], "completion_mask": [1]}"#,
                "completion_mask",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
