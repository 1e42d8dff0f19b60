//! Tokenized examples of any length: memory-mapped from a file, or in memory. Cheap to clone,
//! shared between threads.
//!
//! The file is a 128-byte header, then each example's ids (little-endian u16 where the vocabulary
//! allows, else u32) and flags (one byte each), padded to four bytes, with the labels of its tokens
//! (u32 each) where they have some, then an index with an example's place, length and label in 16
//! bytes. Header and rest carry SHA-256 digests that are
//! checked when the file is opened, as for the rows in `dataset`.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::dataset::{Origin, Row as Ids, Totals};
use super::error::Result;
use super::label::Label;
use super::samples::Row;
use crate::checkpoint::atomic;
use crate::checkpoint::hash::{HashingWriter, hex};

const HEADER: usize = 128;
const MAGIC: &[u8; 8] = b"xtrnexmp";
/// Of files without labels of tokens, and of those with.
const VERSIONS: [u32; 2] = [1, 2];

/// What is known of a token besides its id: bits of one byte.
pub mod flag {
    /// Added by the tokenizer around the text, such as `[CLS]`; never masked.
    pub const SPECIAL: u8 = 1;
    /// Continues the word of the token before it.
    pub const CONTINUES: u8 = 2;
    /// Belongs to the second text of a pair.
    pub const SECOND: u8 = 4;
}

/// One example: T ids with their flags, and its label where the set has labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example<'a> {
    pub ids: Ids<'a>,
    /// Bits of [`flag`], one byte a token.
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

#[derive(Clone, Debug)]
pub struct Examples {
    storage: Arc<Storage>,
    header: Header,
    /// Examples in use: those of the header or fewer.
    len: usize,
    origin: Origin,
}

impl Examples {
    /// Examples in memory, for tests and synthetic data; `fill` pushes them.
    pub fn in_memory(fill: impl FnOnce(&mut ExamplesWriter<'_>) -> Result<()>) -> Result<Examples> {
        let mut body = Vec::new();
        let header =
            write_body(&mut body, true, fill).expect("a vector takes all that is written")?;
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        Ok(Examples {
            len: header.examples,
            header,
            storage: Arc::new(Storage::Memory(words)),
            origin: Origin::Memory,
        })
    }

    /// Writes a file of examples. An error of `fill` comes back as it is, and leaves no file.
    pub(super) fn write(
        path: &Path,
        wide: bool,
        fill: impl FnOnce(&mut ExamplesWriter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut failure = None;
        let written = atomic::write_new(path, |out| {
            // The header is known last, so its place is kept.
            out.write_all(&[0; HEADER])?;
            match write_body(out, wide, fill)? {
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

    /// Opens a file that [`Examples::write`] made. The error says what is wrong with it.
    pub(super) fn open(path: &Path) -> Result<Examples, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        // SAFETY: the mapping is read only, and such files are only ever replaced by rename, never
        // written in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| error.to_string())?;
        let header = Header::parse(&map)?;
        if hex(&Sha256::digest(&map[HEADER..])) != hex(&header.digest) {
            return Err("its examples do not match their digest".to_string());
        }
        Ok(Examples {
            len: header.examples,
            header,
            storage: Arc::new(Storage::Mapped(map)),
            origin: Origin::Cached,
        })
    }

    pub(super) fn with_origin(mut self, origin: Origin) -> Examples {
        self.origin = origin;
        self
    }

    /// The first `examples`, or all if there are fewer (`max_train_samples` and its like).
    pub fn take(mut self, examples: usize) -> Examples {
        self.len = self.len.min(examples);
        self
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What went in: rows read (`lines`) and tokens, special ones included.
    pub fn totals(&self) -> Totals {
        self.header.totals
    }

    /// Bad rows that were left out; to be reported, never silent.
    pub fn skipped(&self) -> u64 {
        self.header.skipped
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Identifies the examples by content and number; a resumed run compares it with the one it was
    /// saved with.
    pub fn fingerprint(&self) -> String {
        format!("{}:{}", self.len, hex(&self.header.digest))
    }

    /// Tokens of the longest example in use; 0 if there is none.
    pub fn longest(&self) -> usize {
        (0..self.len)
            .map(|index| self.entry(index).length as usize)
            .max()
            .unwrap_or(0)
    }

    /// Whether every example has its label.
    pub fn has_labels(&self) -> bool {
        (0..self.len).all(|index| self.entry(index).label.is_some())
    }

    fn entry(&self, index: usize) -> Entry {
        assert!(index < self.len, "example {index} of {}", self.len);
        let at = HEADER + self.header.index_start + index * ENTRY;
        Entry::parse(&self.storage.bytes()[at..at + ENTRY])
    }

    /// Tokens of example `index`.
    pub fn length(&self, index: usize) -> usize {
        self.entry(index).length as usize
    }

    /// Example `index`, which must be below [`Examples::len`].
    pub fn example(&self, index: usize) -> Example<'_> {
        let entry = self.entry(index);
        let (start, length) = (HEADER + entry.start as usize, entry.length as usize);
        let (bytes, wide) = (self.storage.bytes(), self.header.wide);
        let flags = start + length * if wide { 4 } else { 2 };
        // The storage is aligned, and examples begin at multiples of four.
        let ids = match wide {
            true => Ids::Wide(bytemuck::cast_slice(&bytes[start..flags])),
            false => Ids::Narrow(bytemuck::cast_slice(&bytes[start..flags])),
        };
        let labels = (flags + length).next_multiple_of(4);
        let labels = labels..labels + length * if self.header.token_labels { 4 } else { 0 };
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
    wide: bool,
    token_labels: bool,
    examples: usize,
    /// Bytes from the end of the header to the index.
    index_start: usize,
    totals: Totals,
    skipped: u64,
    digest: [u8; 32],
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSIONS[usize::from(self.token_labels)].to_le_bytes());
        bytes.extend(if self.wide { 4u32 } else { 2 }.to_le_bytes());
        for number in [
            self.examples as u64,
            self.index_start as u64,
            self.totals.lines,
            self.totals.tokens,
            self.skipped,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.digest);
        bytes.extend(&Sha256::digest(&bytes)[..16]);
        bytes.resize(HEADER, 0);
        bytes.try_into().expect("resized to just that")
    }

    fn parse(file: &[u8]) -> Result<Header, String> {
        let Some(bytes) = file.get(..HEADER) else {
            return Err(format!("it has only {} bytes", file.len()));
        };
        let number =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let header = Header {
            wide: bytes[12] == 4,
            token_labels: u32::from(bytes[8]) == VERSIONS[1],
            examples: number(16) as usize,
            index_start: number(24) as usize,
            totals: Totals {
                lines: number(32),
                tokens: number(40),
            },
            skipped: number(48),
            digest: bytes[56..88].try_into().expect("32 bytes"),
        };
        // Rebuilding it checks magic, version, digest and padding at once.
        if header.to_bytes() != bytes {
            return Err("its header is damaged or of another version".to_string());
        }
        let expected = HEADER + header.index_start + header.examples * ENTRY;
        if file.len() != expected {
            return Err(format!("it has {} bytes instead of {expected}", file.len()));
        }
        Ok(header)
    }
}

/// Takes examples one by one.
pub struct ExamplesWriter<'a> {
    out: HashingWriter<&'a mut dyn Write>,
    wide: bool,
    /// Whether tokens have labels, once there is an example.
    token_labels: Option<bool>,
    written: usize,
    index: Vec<Entry>,
    totals: Totals,
    skipped: u64,
}

fn write_body(
    out: &mut dyn Write,
    wide: bool,
    fill: impl FnOnce(&mut ExamplesWriter<'_>) -> Result<()>,
) -> io::Result<Result<Header>> {
    let (totals, skipped) = (Totals::default(), 0);
    let mut writer = ExamplesWriter {
        out: HashingWriter::new(out),
        wide,
        token_labels: None,
        written: 0,
        index: Vec::new(),
        totals,
        skipped,
    };
    if let Err(error) = fill(&mut writer) {
        return Ok(Err(error));
    }
    let index_start = writer.written.next_multiple_of(8);
    writer
        .out
        .write_all(&[0; 8][..index_start - writer.written])?;
    for entry in &writer.index {
        writer.out.write_all(&entry.to_bytes())?;
    }
    let (examples, totals, skipped) = (writer.index.len(), writer.totals, writer.skipped);
    let token_labels = writer.token_labels.unwrap_or(false);
    let (_, _, digest) = writer.out.finish();
    Ok(Ok(Header {
        wide,
        token_labels,
        examples,
        index_start,
        totals,
        skipped,
        digest,
    }))
}

impl ExamplesWriter<'_> {
    /// Appends an example.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, row: &Row) -> io::Result<()> {
        let (ids, flags, label) = (&row.ids, &row.flags, row.label);
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
            label,
        });
        let mut bytes: Vec<u8> = match self.wide {
            true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            false => ids
                .iter()
                .flat_map(|id| (*id as u16).to_le_bytes())
                .collect(),
        };
        bytes.extend(&flags[..]);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(
            row.token_labels
                .iter()
                .flat_map(|label| label.to_le_bytes()),
        );
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

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::io_error;
    use std::fs;

    fn fill(writer: &mut ExamplesWriter<'_>) -> Result<()> {
        let io = io_error(Path::new("test"));
        let pushes: io::Result<()> = (0..5u32).try_for_each(|n| {
            let ids: Vec<u32> = (0..n).map(|i| n * 100 + i).collect();
            writer.push(&Row {
                ids: ids.into(),
                flags: vec![n as u8; n as usize].into(),
                label: (n != 3).then(|| Label::class(n)),
                token_labels: [].into(),
            })
        });
        writer.count(7, 10, 2);
        pushes.map_err(io)
    }

    fn check(examples: &Examples) {
        assert_eq!(
            (
                examples.len(),
                examples.longest(),
                examples.skipped(),
                examples.totals().lines
            ),
            (5, 4, 2, 7)
        );
        for n in 0..5 {
            let example = examples.example(n);
            let ids: Vec<u32> = example.ids.iter().collect();
            assert_eq!(
                ids,
                (0..n as u32)
                    .map(|i| n as u32 * 100 + i)
                    .collect::<Vec<_>>()
            );
            assert_eq!(
                (example.flags.len(), example.label),
                (n, (n != 3).then(|| Label::class(n as u32)))
            );
            assert!(example.flags.iter().all(|flags| *flags == n as u8));
        }
        assert!(!examples.has_labels() && examples.clone().take(3).has_labels());
    }

    #[test]
    fn what_was_pushed_comes_back_from_memory_and_from_files() {
        check(&Examples::in_memory(fill).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for wide in [false, true] {
            Examples::write(&path, wide, fill).unwrap();
            check(&Examples::open(&path).unwrap());
        }
        assert!(Examples::in_memory(|_| Ok(())).unwrap().is_empty());
    }

    #[test]
    fn damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        Examples::write(&path, false, fill).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert!(Examples::open(&path).is_err(), "byte {at}");
        }
        for cut in [0, 1, 127, 128, good.len() - 1] {
            fs::write(&path, &good[..cut]).unwrap();
            assert!(Examples::open(&path).is_err(), "{cut} bytes");
        }
    }
}
