//! Rows of `block_size` token ids: memory-mapped from a file, or in memory. Cheap to clone, shared
//! between threads.
//!
//! The file is a 128-byte header and then the ids, row after row, as little-endian u16 where the
//! vocabulary allows and u32 otherwise. Header and ids carry SHA-256 digests that are checked when
//! it is opened: it is read as fast as the text it comes from is hashed, and a damaged corpus would
//! otherwise train without a sound.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use crate::checkpoint::atomic;
use crate::checkpoint::hash::{HashingWriter, hex, sha256};

#[cfg(target_endian = "big")]
compile_error!("token files are mapped as little-endian numbers");

const HEADER: usize = 128;
const MAGIC: &[u8; 8] = b"xtrnrows";
const VERSION: u32 = 1;

/// Where a data set's rows came from, for a line that tells the user.
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

#[derive(Debug)]
enum Storage {
    Mapped { map: Mmap, wide: bool },
    Memory(Vec<u32>),
}

#[derive(Clone, Debug)]
pub struct Dataset {
    storage: Arc<Storage>,
    block_size: usize,
    rows: usize,
    totals: Totals,
    digest: Arc<str>,
    origin: Origin,
}

/// One row of ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl Row<'_> {
    /// Number of ids.
    pub fn len(&self) -> usize {
        match self {
            Row::Narrow(ids) => ids.len(),
            Row::Wide(ids) => ids.len(),
        }
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (narrow, wide): (&[u16], &[u32]) = match self {
            Row::Narrow(ids) => (ids, &[]),
            Row::Wide(ids) => (&[], ids),
        };
        narrow
            .iter()
            .map(|id| u32::from(*id))
            .chain(wide.iter().copied())
    }

    /// Copies into a row of a batch. Ids fit i32, since no vocabulary reaches 2^31.
    pub fn copy_to(&self, out: &mut [i32]) {
        match self {
            Row::Narrow(ids) => out
                .iter_mut()
                .zip(*ids)
                .for_each(|(out, id)| *out = i32::from(*id)),
            Row::Wide(ids) => out
                .iter_mut()
                .zip(*ids)
                .for_each(|(out, id)| *out = *id as i32),
        }
    }
}

impl Dataset {
    /// Rows in memory, for tests and synthetic data; `ids` is cut into rows and what is left over
    /// is dropped.
    pub fn from_ids(block_size: usize, ids: Vec<u32>) -> Dataset {
        let rows = ids.len() / block_size;
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let totals = Totals {
            lines: 0,
            tokens: ids.len() as u64,
        };
        let storage = Arc::new(Storage::Memory(ids));
        Dataset {
            storage,
            block_size,
            rows,
            totals,
            digest: sha256(&bytes).into(),
            origin: Origin::Memory,
        }
    }

    /// Opens a file that [`RowsFile::write`] made. The error says what is wrong with it.
    pub(super) fn open(path: &Path) -> Result<Dataset, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        // SAFETY: the mapping is read only, and such files are only ever replaced by rename, never
        // written in place.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| error.to_string())?;
        let header = Header::parse(&map)?;
        let ids = &map[HEADER..];
        if hex(&Sha256::digest(ids)) != hex(&header.digest) {
            return Err("its ids do not match their digest".to_string());
        }
        Ok(Dataset {
            block_size: header.block_size,
            rows: header.rows,
            totals: header.totals,
            digest: hex(&header.digest).into(),
            storage: Arc::new(Storage::Mapped {
                wide: header.wide,
                map,
            }),
            origin: Origin::Cached,
        })
    }

    pub(super) fn with_origin(mut self, origin: Origin) -> Dataset {
        self.origin = origin;
        self
    }

    /// The first `rows` rows, or all if there are fewer (`max_train_samples`, `max_eval_samples`).
    pub fn take(mut self, rows: usize) -> Dataset {
        self.rows = self.rows.min(rows);
        self
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Identifies the rows by content and number; a resumed run compares it with the one it was
    /// saved with.
    pub fn fingerprint(&self) -> String {
        format!("{}x{}:{}", self.rows, self.block_size, self.digest)
    }

    /// Row `index`, which must be below [`Dataset::len`].
    pub fn row(&self, index: usize) -> Row<'_> {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let range = index * self.block_size..(index + 1) * self.block_size;
        match &*self.storage {
            Storage::Memory(ids) => Row::Wide(&ids[range]),
            // A mapping starts on a page, and the header keeps the ids aligned.
            Storage::Mapped { map, wide: true } => {
                Row::Wide(&bytemuck::cast_slice(&map[HEADER..])[range])
            }
            Storage::Mapped { map, wide: false } => {
                Row::Narrow(&bytemuck::cast_slice(&map[HEADER..])[range])
            }
        }
    }
}

struct Header {
    wide: bool,
    block_size: usize,
    rows: usize,
    totals: Totals,
    digest: [u8; 32],
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(if self.wide { 4u32 } else { 2 }.to_le_bytes());
        for number in [
            self.block_size as u64,
            self.rows as u64,
            self.totals.lines,
            self.totals.tokens,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.digest);
        bytes.extend(Sha256::digest(&bytes));
        bytes.resize(HEADER, 0);
        bytes.try_into().expect("resized to just that")
    }

    fn parse(file: &[u8]) -> Result<Header, String> {
        let Some(bytes) = file.get(..HEADER) else {
            return Err(format!("it has only {} bytes", file.len()));
        };
        let number = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
        };
        let header = Header {
            wide: bytes[12] == 4,
            block_size: number(16),
            rows: number(24),
            totals: Totals {
                lines: number(32) as u64,
                tokens: number(40) as u64,
            },
            digest: bytes[48..80].try_into().expect("32 bytes"),
        };
        // Rebuilding it checks magic, version, digest and padding at once.
        if header.to_bytes() != bytes {
            return Err("its header is damaged or of another version".to_string());
        }
        let expected = HEADER + header.rows * header.block_size * if header.wide { 4 } else { 2 };
        if file.len() != expected {
            return Err(format!("it has {} bytes instead of {expected}", file.len()));
        }
        Ok(header)
    }
}

/// A file of rows being written.
pub(super) struct RowsFile<'a> {
    out: HashingWriter<&'a mut dyn Write>,
    wide: bool,
    ids: usize,
    pub totals: Totals,
}

impl RowsFile<'_> {
    /// Writes a whole file: `fill` pushes rows. An error of its own comes back as it is, and leaves
    /// no file.
    pub fn write(
        path: &Path,
        block_size: usize,
        wide: bool,
        fill: impl FnOnce(&mut RowsFile<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut failure = None;
        let written = atomic::write_new(path, |out| {
            // The header is known last, so its place is kept.
            out.write_all(&[0; HEADER])?;
            let header = {
                let mut rows = RowsFile {
                    out: HashingWriter::new(out as &mut dyn Write),
                    wide,
                    ids: 0,
                    totals: Totals::default(),
                };
                if let Err(error) = fill(&mut rows) {
                    failure = Some(error);
                    return Err(io::Error::other("stopped"));
                }
                let (_, _, digest) = rows.out.finish();
                Header {
                    wide,
                    block_size,
                    rows: rows.ids / block_size,
                    totals: rows.totals,
                    digest,
                }
            };
            out.seek(SeekFrom::Start(0))?;
            out.write_all(&header.to_bytes())
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(written?),
        }
    }

    /// Appends ids, whole rows of them.
    pub fn push(&mut self, ids: &[u32]) -> io::Result<()> {
        self.ids += ids.len();
        let bytes: Vec<u8> = match self.wide {
            true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            false => ids
                .iter()
                .flat_map(|id| (*id as u16).to_le_bytes())
                .collect(),
        };
        self.out.write_all(&bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.ids == 0
    }
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(dataset: &Dataset) -> Vec<Vec<u32>> {
        (0..dataset.len())
            .map(|i| dataset.row(i).iter().collect())
            .collect()
    }

    #[test]
    fn wide_ids_are_kept_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rows");
        let ids = [70_000, 1, 65_536, 50_256];
        RowsFile::write(&path, 2, true, |rows| {
            rows.push(&ids).map_err(io_error(&path))
        })
        .unwrap();
        assert_eq!(rows(&Dataset::open(&path).unwrap()).concat(), ids);
    }
}
