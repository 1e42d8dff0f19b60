//! Rows of token ids, made once and kept: memory-mapped from a file, or in memory. Cheap to clone,
//! shared between threads.
//!
//! There are two kinds. Packed rows are ids alone, all of one length, row after row. Examples have
//! any length: each one's ids and flags (one byte each), padded to four bytes, with the labels of
//! its tokens (u32 each) where they have some; an index follows with an example's place, length and
//! label in 16 bytes. Ids are little-endian u16 where the vocabulary allows, else u32.
//!
//! A file is a 128-byte header and then the rows. Header and rest carry SHA-256 digests that are
//! checked when it is opened: it is read as fast as the text it comes from is hashed, and a damaged
//! corpus would otherwise train without a sound.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::error::Result;
use super::label::Label;
use crate::checkpoint::atomic;
use crate::checkpoint::hash::{HashingWriter, hex};

#[cfg(target_endian = "big")]
compile_error!("token files are mapped as little-endian numbers");

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

/// The ids of a row where they are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ids<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl Ids<'_> {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Ids::Narrow(ids) => ids.len(),
            Ids::Wide(ids) => ids.len(),
        }
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (narrow, wide): (&[u16], &[u32]) = match self {
            Ids::Narrow(ids) => (ids, &[]),
            Ids::Wide(ids) => (&[], ids),
        };
        narrow
            .iter()
            .map(|id| u32::from(*id))
            .chain(wide.iter().copied())
    }

    /// Copies into a row of a batch. Ids fit i32, since no vocabulary reaches 2^31.
    pub fn copy_to(&self, out: &mut [i32]) {
        match self {
            Ids::Narrow(ids) => out
                .iter_mut()
                .zip(*ids)
                .for_each(|(out, id)| *out = i32::from(*id)),
            Ids::Wide(ids) => out
                .iter_mut()
                .zip(*ids)
                .for_each(|(out, id)| *out = *id as i32),
        }
    }
}

/// One kept row: T ids with their flags, and its label where the set has labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example<'a> {
    pub ids: Ids<'a>,
    /// Bits of [`flag`], one byte a token; empty for packed rows.
    pub flags: &'a [u8],
    pub label: Option<Label>,
    /// [`Label::to_bits`] of each token's label; empty where tokens have none of their own.
    pub token_labels: &'a [u32],
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

/// The bytes of a file, wherever they are; aligned to eight in both cases.
#[derive(Debug)]
enum Storage {
    Mapped(Mmap),
    Memory(Vec<u64>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(map) => map,
            Storage::Memory(words) => bytemuck::cast_slice(words),
        }
    }
}

/// Rows as they are kept.
#[derive(Clone, Debug)]
pub struct Rows {
    storage: Arc<Storage>,
    header: Header,
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
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        Ok(Rows::new(Storage::Memory(words), header, Origin::Memory))
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
        let file = File::open(path).map_err(|error| error.to_string())?;
        // SAFETY: the mapping is read only, and such files are only ever replaced by rename, never
        // written in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| error.to_string())?;
        let header = Header::parse(&map)?;
        if hex(&Sha256::digest(&map[HEADER..])) != hex(&header.digest) {
            return Err("its rows do not match their digest".to_string());
        }
        Ok(Rows::new(Storage::Mapped(map), header, Origin::Cached))
    }

    fn new(storage: Storage, header: Header, origin: Origin) -> Rows {
        Rows {
            storage: Arc::new(storage),
            len: header.rows,
            header,
            origin,
        }
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
        let rows = match self.header.block_size {
            Some(block_size) => return block_size,
            None => 0..self.len,
        };
        rows.map(|row| self.length(row)).max().unwrap_or(0)
    }

    fn entry(&self, row: usize) -> Entry {
        assert!(row < self.len, "row {row} of {}", self.len);
        if let Some(block_size) = self.header.block_size {
            return Entry {
                start: (row * block_size * self.header.id_bytes()) as u64,
                length: block_size as u32,
                label: None,
            };
        }
        let at = HEADER + self.header.index_start + row * ENTRY;
        Entry::parse(&self.storage.bytes()[at..at + ENTRY])
    }

    /// Tokens of a row.
    pub(super) fn length(&self, row: usize) -> usize {
        self.entry(row).length as usize
    }

    /// A row, which must be below [`Rows::len`].
    pub fn example(&self, row: usize) -> Example<'_> {
        let (entry, header) = (self.entry(row), &self.header);
        let (start, length) = (HEADER + entry.start as usize, entry.length as usize);
        let bytes = self.storage.bytes();
        let flags = start + length * header.id_bytes();
        // The storage is aligned, and rows begin at multiples of their ids' size.
        let ids = if header.wide {
            Ids::Wide(bytemuck::cast_slice(&bytes[start..flags]))
        } else {
            Ids::Narrow(bytemuck::cast_slice(&bytes[start..flags]))
        };
        if self.is_packed() {
            return Example {
                ids,
                flags: &[],
                label: None,
                token_labels: &[],
            };
        }
        let labels = (flags + length).next_multiple_of(4);
        let labels = labels..labels + length * if header.token_labels { 4 } else { 0 };
        Example {
            ids,
            flags: &bytes[flags..flags + length],
            label: entry.label,
            token_labels: bytemuck::cast_slice(&bytes[labels]),
        }
    }
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

    fn parse(file: &[u8]) -> Result<Header, String> {
        let Some(bytes) = file.get(..HEADER) else {
            return Err(format!("it has only {} bytes", file.len()));
        };
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
        if header.to_bytes() != bytes {
            return Err("its header is damaged or of another version".to_string());
        }
        let index = match header.block_size {
            Some(block_size) => {
                header.index_start = header.rows * block_size * header.id_bytes();
                0
            }
            None => header.rows * ENTRY,
        };
        let expected = HEADER + header.index_start + index;
        if file.len() != expected {
            return Err(format!("it has {} bytes instead of {expected}", file.len()));
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
mod tests {
    use super::*;
    use crate::data::Error;
    use std::fs;

    /// Five rows: packed ones of two ids each, or examples of none to four.
    fn fill(packed: bool, writer: &mut RowsWriter<'_>) -> Result<()> {
        let pushes: io::Result<()> = (0..5u32).try_for_each(|n| {
            let ids: Vec<u32> = (0..if packed { 2 } else { n })
                .map(|i| n * 100 + i)
                .collect();
            if packed {
                return writer.push(&Row::of_ids(&ids));
            }
            writer.push(&Row {
                ids: ids.into(),
                flags: vec![n as u8; n as usize].into(),
                label: (n != 3).then(|| Label::class(n)),
                token_labels: [].into(),
            })
        });
        writer.count(7, 10, 2);
        pushes.map_err(Error::io("write", Path::new("test")))
    }

    fn in_memory(packed: bool) -> Rows {
        Rows::in_memory(packed.then_some(2), |writer| fill(packed, writer)).unwrap()
    }

    fn write(path: &Path, packed: bool, wide: bool) {
        let block_size = packed.then_some(2);
        // A file that is there stays: its name is a digest of what it holds.
        let _ = fs::remove_file(path);
        Rows::write(path, block_size, wide, |writer| fill(packed, writer)).unwrap();
    }

    fn check(rows: &Rows, packed: bool) {
        assert_eq!(
            (rows.len(), rows.longest(), rows.is_packed(), rows.totals()),
            (
                5,
                if packed { 2 } else { 4 },
                packed,
                Totals {
                    lines: 7,
                    tokens: 10
                }
            )
        );
        for n in 0..5 {
            let (example, length) = (rows.example(n), if packed { 2 } else { n });
            assert_eq!(
                example.ids.iter().collect::<Vec<_>>(),
                (0..length as u32)
                    .map(|i| n as u32 * 100 + i)
                    .collect::<Vec<_>>()
            );
            if packed {
                assert_eq!((example.flags, example.label), (&[][..], None));
                continue;
            }
            assert_eq!(
                (example.flags.len(), example.label),
                (n, (n != 3).then(|| Label::class(n as u32)))
            );
            assert!(example.flags.iter().all(|flags| *flags == n as u8));
        }
        let digest = hex(&rows.header.digest);
        let (all, three) = if packed {
            (format!("5x2:{digest}"), format!("3x2:{digest}"))
        } else {
            (format!("5:{digest}"), format!("3:{digest}"))
        };
        assert_eq!(rows.fingerprint(), all);
        assert_eq!(rows.clone().take(3).fingerprint(), three);
    }

    #[test]
    fn what_was_pushed_comes_back_from_memory_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for packed in [false, true] {
            check(&in_memory(packed), packed);
            for wide in [false, true] {
                write(&path, packed, wide);
                let rows = Rows::open(&path).unwrap();
                check(&rows, packed);
                assert_eq!(rows.skipped(), if packed { 0 } else { 2 });
            }
            assert!(
                Rows::in_memory(packed.then_some(2), |_| Ok(()))
                    .unwrap()
                    .is_empty()
            );
        }
    }

    #[test]
    fn wide_ids_are_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        let ids = [70_000, 1, 65_536, 50_256];
        Rows::write(&path, Some(4), true, |rows| {
            rows.push(&Row::of_ids(&ids))
                .map_err(Error::io("write", &path))
        })
        .unwrap();
        let rows = Rows::open(&path).unwrap();
        assert_eq!(rows.example(0).ids, Ids::Wide(&ids));
    }

    /// Files of earlier runs stay readable: headers byte by byte.
    #[test]
    fn headers_are_laid_out_as_before() {
        for (packed, numbers) in [(true, vec![2, 5, 7, 10]), (false, vec![5, 56, 7, 10, 2])] {
            let header = in_memory(packed).header;
            let bytes = header.to_bytes();
            let mut wanted = if packed { *PACKED } else { *EXAMPLES }.to_vec();
            wanted.extend([1, 0, 0, 0, 4, 0, 0, 0]);
            wanted.extend(numbers.iter().flat_map(|n: &u64| n.to_le_bytes()));
            wanted.extend(header.digest);
            wanted.extend(&Sha256::digest(&wanted)[..if packed { 32 } else { 16 }]);
            wanted.resize(HEADER, 0);
            assert_eq!(bytes.to_vec(), wanted);
        }
    }

    #[test]
    fn damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for packed in [false, true] {
            write(&path, packed, false);
            let good = fs::read(&path).unwrap();
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 1;
                fs::write(&path, bad).unwrap();
                assert!(Rows::open(&path).is_err(), "byte {at}");
            }
            for cut in [0, 1, 127, 128, good.len() - 1] {
                fs::write(&path, &good[..cut]).unwrap();
                assert!(Rows::open(&path).is_err(), "{cut} bytes");
            }
        }
    }
}
