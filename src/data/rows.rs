//! Rows of token ids, made once and kept: in a file, or in memory. Cheap to clone, shared between
//! threads.
//!
//! There are two kinds. Packed rows are ids alone, all of one length, row after row. Examples have
//! any length: each one's ids and flags (one byte each), padded to four bytes, with the labels of
//! its tokens (u32 each) where they have some; an index follows with an example's place, length and
//! label in 16 bytes. Ids are little-endian u16 where the vocabulary allows, else u32.
//!
//! A file is a 128-byte header and then the rows. Header and rest carry SHA-256 digests that are
//! checked when it is opened: it is read as fast as the text it comes from is hashed, and a damaged
//! corpus would otherwise train without a sound. For the same reason a file that is written while a
//! run reads it is checked again.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::label::Label;
use xtrain_checkpoint::hash::{HashingWriter, hex};
use xtrain_checkpoint::{atomic, files};

const HEADER: usize = 128;
const PACKED: &[u8; 8] = b"xtrnrows";
const EXAMPLES: &[u8; 8] = b"xtrnexmp";

/// What is known of a token besides its id: bits of one byte.
pub mod flag {
    /// Added by the tokenizer around the text, such as `[CLS]`; never masked.
    pub const SPECIAL: u8 = 1;
    /// Continues the word of the token before it.
    pub const CONTINUES: u8 = 2;
    /// Belongs to the second text of a pair.
    pub const SECOND: u8 = 4;
    /// Counts in the loss.
    pub const COUNTED: u8 = 8;
    /// Begins an example, in rows of several.
    pub const STARTS: u8 = 16;
}

/// Where a set's rows came from, for a line that tells the user.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// Found on disk, made by an earlier run.
    Cached,
    /// Tokenized in this run.
    Tokenized,
    /// Tokenized in this run because the file on disk was damaged, with the reason.
    Remade(String),
    Memory,
}

/// What went into the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub lines: u64,
    /// Ids before cutting; those that fill no row are left out of it.
    pub tokens: u64,
}

/// One row of token ids: an example, or a block of a language model. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub ids: Arc<[u32]>,
    /// Bits of [`flag`], one byte a token; empty for packed rows.
    pub flags: Arc<[u8]>,
    pub label: Option<Label>,
    /// [`Label::to_bits`] of each token's label; empty where tokens have none of their own.
    pub token_labels: Arc<[u32]>,
}

impl Row {
    /// A row of ids alone.
    pub fn of_ids(ids: &[u32]) -> Row {
        Row {
            ids: ids.into(),
            flags: [].into(),
            label: None,
            token_labels: [].into(),
        }
    }
}

/// Index of an example: where its ids begin (bytes from the end of the header), their number, and
/// its label.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    length: u32,
    label: Option<Label>,
}

const ENTRY: usize = 16;

impl Entry {
    fn to_bytes(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&Label::to_bits(self.label).to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Entry {
        Entry {
            start: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
            length: u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")),
            label: Label::from_bits(u32::from_le_bytes(
                bytes[12..16].try_into().expect("four bytes"),
            )),
        }
    }
}

/// The bytes of a file, wherever they are. A file is read, not mapped: of a mapped one that another
/// program cuts short, the next look at a row would end the process.
#[derive(Debug)]
enum Storage {
    File(RowsFile),
    Memory(Vec<u8>),
}

impl Storage {
    fn read_at(&self, bytes: &mut [u8], offset: usize) -> Result<()> {
        match self {
            Storage::File(file) => {
                let read = file.file.read_exact_at(bytes, offset as u64);
                read.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => file.changed(),
                    _ => Error::io("read", &file.path)(error),
                })
            }
            Storage::Memory(all) => {
                bytes.copy_from_slice(&all[offset..offset + bytes.len()]);
                Ok(())
            }
        }
    }

    /// What bytes that no writer of rows has written mean.
    fn damaged(&self) -> Error {
        match self {
            Storage::File(file) => file.changed(),
            Storage::Memory(_) => unreachable!("rows in memory are as they were pushed"),
        }
    }
}

/// An open file whose content has been checked.
#[derive(Debug)]
struct RowsFile {
    path: PathBuf,
    file: File,
    /// When it was last known to hold what its digest says.
    checked: Mutex<Stamp>,
}

/// What changes with a file's content: its size, and the time of the last write.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stamp {
    bytes: u64,
    written: Option<SystemTime>,
}

impl RowsFile {
    fn stamp(file: &File) -> io::Result<Stamp> {
        let found = file.metadata()?;
        Ok(Stamp {
            bytes: found.len(),
            written: found.modified().ok(),
        })
    }

    /// Whether the rows are still those that were opened: what was read before is right then.
    fn check(&self, header: &Header) -> Result<()> {
        let now = RowsFile::stamp(&self.file).map_err(Error::io("read", &self.path))?;
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if *checked == now {
            return Ok(());
        }
        let digest = digest_of(&self.file).map_err(Error::io("read", &self.path))?;
        if digest != header.digest {
            return Err(self.changed());
        }
        // It was only touched.
        *checked = now;
        Ok(())
    }

    fn changed(&self) -> Error {
        Error::RowsChanged {
            path: self.path.clone(),
        }
    }
}

/// The digest of what follows the header.
fn digest_of(file: &File) -> io::Result<[u8; 32]> {
    let (mut hasher, mut block, mut at) = (Sha256::new(), vec![0; 1 << 20], HEADER as u64);
    loop {
        match file.read_at(&mut block, at)? {
            0 => return Ok(hasher.finalize().into()),
            read => {
                hasher.update(&block[..read]);
                at += read as u64;
            }
        }
    }
}

/// Rows as they are kept.
#[derive(Clone, Debug)]
pub struct Rows {
    storage: Arc<Storage>,
    header: Header,
    /// Tokens of each row; empty where all have the header's number.
    lengths: Arc<[u32]>,
    pairs: bool,
    /// Rows in use: those of the header or fewer.
    len: usize,
    origin: Origin,
}

impl Rows {
    /// Rows in memory, for tests, synthetic data and streams; `fill` pushes them. Packed ones have
    /// `block_size` ids each.
    pub fn in_memory(
        block_size: Option<usize>,
        fill: impl FnOnce(&mut RowsWriter<'_>) -> Result<()>,
    ) -> Result<Rows> {
        let mut body = Vec::new();
        let header = write_body(&mut body, block_size, true, fill)
            .expect("a vector takes all that is written")?;
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(body);
        Rows::new(Storage::Memory(bytes), header, Origin::Memory)
    }

    /// Writes a file of rows. An error of `fill` comes back as it is, and leaves no file.
    pub(super) fn write(
        path: &Path,
        block_size: Option<usize>,
        wide: bool,
        fill: impl FnOnce(&mut RowsWriter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut failure = None;
        let written = atomic::write_new(path, |out| {
            // The header is known last, so its place is kept.
            out.write_all(&[0; HEADER])?;
            match write_body(out, block_size, wide, fill)? {
                Ok(header) => {
                    out.seek(SeekFrom::Start(0))?;
                    out.write_all(&header.to_bytes())
                }
                Err(error) => {
                    failure = Some(error);
                    Err(io::Error::other("stopped"))
                }
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }

    /// Opens a file that [`Rows::write`] made. The error says what is wrong with it.
    pub(super) fn open(path: &Path) -> Result<Rows, String> {
        let read = |error: io::Error| error.to_string();
        let file = files::open(path).map_err(read)?;
        // Before the rows are read: a write while they are shows, too.
        let checked = RowsFile::stamp(&file).map_err(read)?;
        let mut header = [0; HEADER];
        if checked.bytes < HEADER as u64 {
            return Err(format!("it has only {} bytes", checked.bytes));
        }
        file.read_exact_at(&mut header, 0).map_err(read)?;
        let header = Header::parse(&header, checked.bytes)?;
        if digest_of(&file).map_err(read)? != header.digest {
            return Err("its rows do not match their digest".to_string());
        }
        let storage = Storage::File(RowsFile {
            path: path.to_path_buf(),
            file,
            checked: Mutex::new(checked),
        });
        Rows::new(storage, header, Origin::Cached).map_err(|error| error.to_string())
    }

    fn new(storage: Storage, header: Header, origin: Origin) -> Result<Rows> {
        let mut rows = Rows {
            lengths: lengths_in(&storage, &header)?,
            storage: Arc::new(storage),
            pairs: false,
            len: header.rows,
            header,
            origin,
        };
        if !rows.is_empty() {
            let first = rows.row(0)?;
            rows.pairs = first.flags.iter().any(|flags| flags & flag::SECOND != 0);
        }
        Ok(rows)
    }

    pub(super) fn with_origin(mut self, origin: Origin) -> Rows {
        self.origin = origin;
        self
    }

    /// The first `rows` rows, or all if there are fewer (`max_train_samples` and its like).
    pub fn take(mut self, rows: usize) -> Rows {
        self.len = self.len.min(rows);
        self
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether rows are ids alone, all of one length.
    pub fn is_packed(&self) -> bool {
        self.header.block_size.is_some()
    }

    /// What went in: lines or table rows read, and tokens, special ones included.
    pub fn totals(&self) -> Totals {
        self.header.totals
    }

    /// Bad rows that were left out of examples; to be reported, never silent.
    pub fn skipped(&self) -> u64 {
        self.header.skipped
    }

    /// Where the rows came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Identifies the rows by content and number; a resumed run compares it with the one it was
    /// saved with.
    pub fn fingerprint(&self) -> String {
        let (rows, digest) = (self.len, hex(&self.header.digest));
        match self.header.block_size {
            Some(block_size) => format!("{rows}x{block_size}:{digest}"),
            None => format!("{rows}:{digest}"),
        }
    }

    /// Tokens of the longest row in use; 0 if there is none.
    pub(super) fn longest(&self) -> usize {
        match self.header.block_size {
            Some(block_size) => block_size,
            None => self.lengths[..self.len].iter().max().copied().unwrap_or(0) as usize,
        }
    }

    /// Tokens of a row.
    pub fn length(&self, row: usize) -> usize {
        self.header
            .block_size
            .unwrap_or_else(|| self.lengths[row] as usize)
    }

    /// Tokens of all rows in use.
    pub fn tokens(&self) -> usize {
        (0..self.len).map(|row| self.length(row)).sum()
    }

    /// Whether the first row is of two texts.
    pub(super) fn has_pairs(&self) -> bool {
        self.pairs
    }

    /// A row, which must be below [`Rows::len`].
    ///
    /// # Errors
    /// The file cannot be read, or is not what it was when it was opened.
    pub fn row(&self, row: usize) -> Result<Row> {
        let mut rows = self.rows(&[row as u32])?;
        Ok(rows.remove(0))
    }

    /// Several rows, by their numbers.
    ///
    /// # Errors
    /// As [`Rows::row`].
    pub fn rows(&self, numbers: &[u32]) -> Result<Vec<Row>> {
        let rows = numbers.iter().map(|row| self.read(*row as usize));
        let rows = rows.collect::<Result<Vec<Row>>>()?;
        if let Storage::File(file) = &*self.storage {
            file.check(&self.header)?;
        }
        Ok(rows)
    }

    fn read(&self, row: usize) -> Result<Row> {
        assert!(row < self.len, "row {row} of {}", self.len);
        let header = &self.header;
        let (length, is_packed) = (self.length(row), self.is_packed());
        let entry = if is_packed {
            Entry {
                start: (row * length * header.id_bytes()) as u64,
                length: length as u32,
                label: None,
            }
        } else {
            let mut bytes = [0; ENTRY];
            let at = HEADER + header.index_start + row * ENTRY;
            self.storage.read_at(&mut bytes, at)?;
            Entry::parse(&bytes)
        };
        let ids = length * header.id_bytes();
        let flags = if is_packed { 0 } else { length };
        let labels = if header.token_labels { 4 * length } else { 0 };
        let before_labels = (ids + flags).next_multiple_of(if is_packed { 1 } else { 4 });
        let size = before_labels + labels;
        let start = usize::try_from(entry.start).ok();
        let fits = start.and_then(|start| start.checked_add(size)) <= Some(header.index_start);
        let (Some(start), true) = (start, fits && entry.length as usize == length) else {
            return Err(self.storage.damaged());
        };
        let mut bytes = vec![0; size];
        self.storage.read_at(&mut bytes, HEADER + start)?;
        Ok(Row {
            ids: if header.wide {
                wide(&bytes[..ids])
            } else {
                narrow(&bytes[..ids])
            },
            flags: bytes[ids..ids + flags].into(),
            label: entry.label,
            token_labels: wide(&bytes[before_labels..]),
        })
    }
}

/// Numbers of four bytes, and of two.
fn wide(bytes: &[u8]) -> Arc<[u32]> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|id| u32::from_le_bytes(*id)).collect()
}

fn narrow(bytes: &[u8]) -> Arc<[u32]> {
    let (numbers, _) = bytes.as_chunks::<2>();
    let numbers = numbers.iter().map(|id| u16::from_le_bytes(*id));
    numbers.map(u32::from).collect()
}

/// The length of each row, of the index.
fn lengths_in(storage: &Storage, header: &Header) -> Result<Arc<[u32]>> {
    /// Entries that are read at once.
    const BLOCK: usize = 1 << 14;
    let mut lengths = Vec::new();
    if header.block_size.is_some() {
        return Ok(lengths.into());
    }
    for first in (0..header.rows).step_by(BLOCK) {
        let count = BLOCK.min(header.rows - first);
        let mut bytes = vec![0; count * ENTRY];
        storage.read_at(&mut bytes, HEADER + header.index_start + first * ENTRY)?;
        let entries = bytes.chunks_exact(ENTRY).map(Entry::parse);
        lengths.extend(entries.map(|entry| entry.length));
    }
    Ok(lengths.into())
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Header {
    /// Ids of each row where rows are packed; `None` of examples.
    block_size: Option<usize>,
    wide: bool,
    token_labels: bool,
    rows: usize,
    /// Bytes from the end of the header to the index, or of packed rows to the end.
    index_start: usize,
    totals: Totals,
    skipped: u64,
    digest: [u8; 32],
}

impl Header {
    fn id_bytes(&self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    fn to_bytes(self) -> [u8; HEADER] {
        let Totals { lines, tokens } = self.totals;
        let (rows, index_start) = (self.rows as u64, self.index_start as u64);
        // Examples have another version where their tokens have labels.
        let (magic, version, numbers, seal) = match self.block_size {
            Some(block_size) => (PACKED, 1, vec![block_size as u64, rows, lines, tokens], 32),
            None => {
                let numbers = vec![rows, index_start, lines, tokens, self.skipped];
                (EXAMPLES, 1 + u32::from(self.token_labels), numbers, 16)
            }
        };
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(magic);
        bytes.extend(version.to_le_bytes());
        bytes.extend((self.id_bytes() as u32).to_le_bytes());
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(self.digest);
        bytes.extend(&Sha256::digest(&bytes)[..seal]);
        bytes.resize(HEADER, 0);
        bytes.try_into().expect("resized to just that")
    }

    /// The header of a file of `size` bytes.
    fn parse(bytes: &[u8; HEADER], size: u64) -> Result<Header, String> {
        let number = |place: usize| {
            let at = 16 + 8 * place;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let packed = bytes.starts_with(PACKED);
        let digest = if packed { 48 } else { 56 };
        let mut header = Header {
            block_size: packed.then(|| number(0) as usize),
            wide: bytes[12] == 4,
            token_labels: bytes[8] == 2,
            rows: number(usize::from(packed)) as usize,
            index_start: number(1) as usize,
            totals: Totals {
                lines: number(2),
                tokens: number(3),
            },
            skipped: if packed { 0 } else { number(4) },
            digest: bytes[digest..digest + 32].try_into().expect("32 bytes"),
        };
        // Rebuilding it checks magic, version, digest and padding at once.
        if header.to_bytes() != *bytes {
            return Err("its header is damaged or of another version".to_string());
        }
        // Numbers whose product has no place in memory are nobody's rows.
        let product = |factors: &[usize]| {
            let mut factors = factors.iter();
            factors.try_fold(1usize, |all, factor| all.checked_mul(*factor))
        };
        let expected = match header.block_size {
            Some(block_size) => {
                let body = product(&[header.rows, block_size, header.id_bytes()]);
                header.index_start = body.filter(|_| block_size > 0).unwrap_or(usize::MAX);
                header.index_start.checked_add(HEADER)
            }
            None => product(&[header.rows, ENTRY])
                .and_then(|index| index.checked_add(header.index_start)?.checked_add(HEADER)),
        };
        if expected.map(|bytes| bytes as u64) != Some(size) {
            let expected = expected.map_or("more".to_string(), |bytes| bytes.to_string());
            return Err(format!("it has {size} bytes instead of {expected}"));
        }
        Ok(header)
    }
}

/// Takes the rows of a set one by one.
pub struct RowsWriter<'a> {
    out: HashingWriter<&'a mut dyn Write>,
    block_size: Option<usize>,
    wide: bool,
    /// Whether tokens have labels, once there is an example.
    token_labels: Option<bool>,
    written: usize,
    rows: usize,
    /// Of examples.
    index: Vec<Entry>,
    totals: Totals,
    skipped: u64,
}

fn write_body(
    out: &mut dyn Write,
    block_size: Option<usize>,
    wide: bool,
    fill: impl FnOnce(&mut RowsWriter<'_>) -> Result<()>,
) -> io::Result<Result<Header>> {
    let mut writer = RowsWriter {
        out: HashingWriter::new(out),
        block_size,
        wide,
        token_labels: None,
        written: 0,
        rows: 0,
        index: Vec::new(),
        totals: Totals::default(),
        skipped: 0,
    };
    if let Err(error) = fill(&mut writer) {
        return Ok(Err(error));
    }
    let mut index_start = writer.written;
    if block_size.is_none() {
        index_start = index_start.next_multiple_of(8);
        let padding = index_start - writer.written;
        writer.out.write_all(&[0; 8][..padding])?;
    }
    for entry in &writer.index {
        writer.out.write_all(&entry.to_bytes())?;
    }
    let (_, _, digest) = writer.out.finish();
    Ok(Ok(Header {
        block_size,
        wide,
        token_labels: writer.token_labels.unwrap_or(false),
        rows: writer.rows,
        index_start,
        totals: writer.totals,
        skipped: writer.skipped,
        digest,
    }))
}

impl RowsWriter<'_> {
    /// Appends a row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, row: &Row) -> io::Result<()> {
        let (ids, flags) = (&row.ids, &row.flags);
        let mut bytes: Vec<u8> = if self.wide {
            ids.iter().flat_map(|id| id.to_le_bytes()).collect()
        } else {
            ids.iter()
                .flat_map(|id| (*id as u16).to_le_bytes())
                .collect()
        };
        if let Some(block_size) = self.block_size {
            assert_eq!(ids.len(), block_size, "packed rows have one length");
        } else {
            assert_eq!(ids.len(), flags.len(), "each id has its flags");
            let has_labels = !row.token_labels.is_empty();
            assert_eq!(
                has_labels,
                *self.token_labels.get_or_insert(has_labels),
                "either all examples have labels of their tokens or none"
            );
            assert!(!has_labels || row.token_labels.len() == ids.len());
            self.index.push(Entry {
                start: self.written as u64,
                length: ids.len() as u32,
                label: row.label,
            });
            bytes.extend(&flags[..]);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(
                row.token_labels
                    .iter()
                    .flat_map(|label| label.to_le_bytes()),
            );
        }
        self.rows += 1;
        self.written += bytes.len();
        self.out.write_all(&bytes)
    }

    /// Adds to the report of the set: rows read, tokens, bad rows left out.
    pub fn count(&mut self, rows: u64, tokens: u64, skipped: u64) {
        self.totals.lines += rows;
        self.totals.tokens += tokens;
        self.skipped += skipped;
    }

    /// What was counted so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether no row was pushed yet.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
