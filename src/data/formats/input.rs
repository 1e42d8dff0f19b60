//! Files as streams of bytes: here or behind a URL, plain or gzip, counted for progress bars,
//! guarded against decompression bombs.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::remote::{Remote, RemoteReader, is_url};
use xtrain_checkpoint::files;
use xtrain_checkpoint::hash::{self, hex};

/// Text compresses to a fifth, rarely to a fiftieth. Where far more comes out, the file is made to
/// fill memory or disk.
const MAX_RATIO: u64 = 500;
/// The ratio is looked at once so much has come out; a short file of blanks is nobody's attack.
const RATIO_FROM: u64 = 64 << 20;

/// Some programs put it before UTF-8.
pub const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The raw bytes of a file, compressed or not, are added to the count on their way in: what a
/// progress bar can compare with file sizes.
struct Counted<R> {
    inner: R,
    /// Of this file alone.
    read: Arc<AtomicU64>,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Stops when far more comes out of a gzip file than went in.
struct Guarded<R> {
    inner: R,
    compressed: Arc<AtomicU64>,
    written: u64,
}

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.written += read as u64;
        let compressed = self.compressed.load(Ordering::Relaxed);
        if self.written > RATIO_FROM && self.written / compressed.max(1) > MAX_RATIO {
            let reason = format!(
                "{} MB came out of {} KB",
                self.written / 1_000_000,
                compressed / 1000
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(read)
    }
}

/// Where in a file reading can go on. Which of the numbers count is the format's affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bookmark {
    /// Bytes before it, decompressed.
    pub offset: u64,
    /// Lines before it.
    pub lines: u64,
    /// The byte before it is a `\r` that ended a line, so that a `\n` there belongs to it.
    pub after_return: bool,
    /// The end of a JSON array was seen.
    pub ended: bool,
    /// Of parquet: the row group, and the row in it.
    pub group: usize,
    pub row: u64,
}

/// One open file.
pub(crate) struct Input {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    gzip: bool,
    /// Bytes before the next one, decompressed.
    position: u64,
}

/// The raw bytes of a file from a place on.
fn raw(path: &Path, offset: u64) -> Result<Box<dyn Read + Send>> {
    if is_url(path) {
        let remote = Arc::new(Remote::open(path)?);
        return Ok(Box::new(RemoteReader { remote, offset }));
    }
    let mut file = files::open(path).map_err(Error::io("read", path))?;
    file.seek(SeekFrom::Start(offset))
        .map_err(Error::io("read", path))?;
    Ok(Box::new(file))
}

/// What tells the file at this path from another one, found without reading all of it: its size,
/// and the ETag of an object or a digest of a file's beginning and end.
pub(crate) fn identity(path: &Path) -> Result<String> {
    const ENDS: u64 = 1 << 16;
    if is_url(path) {
        return Ok(Remote::open(path)?.identity());
    }
    let failed = || Error::io("read", path);
    let mut file = files::open(path).map_err(failed())?;
    let size = file.metadata().map_err(failed())?.len();
    let mut hasher = Sha256::new();
    for start in [0, size.saturating_sub(ENDS)] {
        file.seek(SeekFrom::Start(start)).map_err(failed())?;
        let mut bytes = Vec::new();
        file.by_ref()
            .take(ENDS)
            .read_to_end(&mut bytes)
            .map_err(failed())?;
        hasher.update(&bytes);
    }
    Ok(format!(
        "{size} bytes, digest {}",
        &hex(&hasher.finalize())[..16]
    ))
}

/// What tells a file's content from any other: all of it is read, or of an object its ETag taken.
pub(crate) fn content(path: &Path) -> Result<String> {
    if is_url(path) {
        return identity(path);
    }
    let (bytes, digest) = hash::sha256_file(path).map_err(Error::io("read", path))?;
    if bytes == 0 {
        Err(Error::EmptyFile {
            path: path.to_path_buf(),
        })
    } else {
        Ok(digest)
    }
}

/// What a file is that is neither text nor gzip, and what to do with it, by its first bytes.
fn unread(start: &[u8]) -> Option<(&'static str, &'static str)> {
    const DECOMPRESS: &str = "decompress it, or compress it with gzip";
    const PARQUET: &str =
        "write parquet with Python: datasets.Dataset.from_file(FILE).to_parquet(\"train.parquet\")";
    const KINDS: [(&[u8], &str, &str); 11] = [
        (b"\xfd7zXZ\0", "compressed with xz", DECOMPRESS),
        (b"BZh", "compressed with bzip2", DECOMPRESS),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd", DECOMPRESS),
        (b"\x04\x22\x4d\x18", "compressed with lz4", DECOMPRESS),
        (b"PK\x03\x04", "a zip archive", "take the files out of it"),
        (
            b"7z\xbc\xaf\x27\x1c",
            "a 7z archive",
            "take the files out of it",
        ),
        (b"ARROW1", "an Arrow file", PARQUET),
        (b"\xff\xff\xff\xff", "an Arrow file", PARQUET),
        (b"PAR1", "a parquet file", "let its name end in .parquet"),
        (
            b"\x89HDF\r\n",
            "an HDF5 file",
            "write parquet or JSON lines",
        ),
        (
            b"SQLite format 3\0",
            "an SQLite database",
            "write parquet or JSON lines",
        ),
    ];
    let found = KINDS.iter().find(|(magic, _, _)| start.starts_with(magic));
    // A word may begin so; the level follows, and a block's mark.
    let is_text = |magic: &[u8]| {
        magic == b"BZh"
            && !start
                .get(4..)
                .is_some_and(|rest| rest.starts_with(b"1AY&SY"))
    };
    let (magic, what, advice) = found?;
    (!is_text(magic)).then_some((*what, *advice))
}

impl Input {
    /// Opens a file; gzip is recognized by its first two bytes, whatever the name. A file without any
    /// content is an error. Raw bytes read are added to `count`.
    pub fn open(path: &Path, count: Arc<AtomicU64>) -> Result<Input> {
        let read = Arc::new(AtomicU64::new(0));
        let mut raw = BufReader::with_capacity(
            1 << 18,
            Counted {
                inner: raw(path, 0)?,
                read: read.clone(),
                count,
            },
        );
        let start = raw.fill_buf().map_err(|error| failed(path, error))?;
        if start.is_empty() {
            return Err(Error::EmptyFile {
                path: path.to_path_buf(),
            });
        }
        if let Some((what, advice)) = unread(start) {
            return Err(Error::BadTable {
                path: path.to_path_buf(),
                reason: format!("it is {what}; {advice}"),
            });
        }
        let gzip = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead + Send> = if gzip {
            let guarded = Guarded {
                inner: MultiGzDecoder::new(raw),
                compressed: read,
                written: 0,
            };
            Box::new(BufReader::with_capacity(1 << 18, guarded))
        } else {
            Box::new(raw)
        };
        let mut input = Input {
            path: path.to_path_buf(),
            reader,
            gzip,
            position: 0,
        };
        let empty = input.fill(1)?.is_empty();
        if empty {
            Err(Error::EmptyFile {
                path: path.to_path_buf(),
            })
        } else {
            Ok(input)
        }
    }

    /// The same file from another place on. What comes before it is passed over, or of gzip
    /// decompressed and dropped.
    pub fn at(&self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<Input> {
        if self.gzip {
            let mut input = Input::open(&self.path, count)?;
            while input.position < bookmark.offset {
                let ready = input.fill(bookmark.lines)?.len() as u64;
                if ready == 0 {
                    let reason = format!(
                        "it ends after {} bytes of text, before byte {}",
                        input.position, bookmark.offset
                    );
                    return Err(Error::BadTable {
                        path: self.path.clone(),
                        reason,
                    });
                }
                input.consume(ready.min(bookmark.offset - input.position) as usize);
            }
            return Ok(input);
        }
        let counted = Counted {
            inner: raw(&self.path, bookmark.offset)?,
            read: Arc::default(),
            count,
        };
        let reader = Box::new(BufReader::with_capacity(1 << 18, counted));
        Ok(Input {
            path: self.path.clone(),
            reader,
            gzip: false,
            position: bookmark.offset,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes before the next one, decompressed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that come next, none at the end. `line` is where an error would be.
    pub fn fill(&mut self, line: u64) -> Result<&[u8]> {
        // The buffer of the call that succeeds cannot be returned from a loop (a known limit of the
        // borrow checker).
        loop {
            match self.reader.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error, line)),
            }
        }
        self.reader
            .fill_buf()
            .map_err(Error::io("read", &self.path))
    }

    pub fn consume(&mut self, bytes: usize) {
        self.position += bytes as u64;
        self.reader.consume(bytes);
    }

    /// Passes over the byte order mark, if the file begins with one.
    pub fn skip_byte_order_mark(&mut self) -> Result<()> {
        if self.fill(1)?.starts_with(BYTE_ORDER_MARK.as_bytes()) {
            self.consume(BYTE_ORDER_MARK.len());
        }
        Ok(())
    }

    fn error(&self, source: io::Error, line: u64) -> Error {
        let source = match source.downcast::<Error>() {
            Ok(error) => return error,
            Err(source) => source,
        };
        let path = self.path.clone();
        if !self.gzip {
            Error::io("read", &self.path)(source)
        } else if source.kind() == io::ErrorKind::FileTooLarge {
            Error::GzipBomb {
                path,
                line,
                reason: source.to_string(),
            }
        } else {
            Error::BadGzip { path, line, source }
        }
    }
}

/// The error of a read; a remote file's own comes out of its disguise.
fn failed(path: &Path, error: io::Error) -> Error {
    error
        .downcast::<Error>()
        .unwrap_or_else(Error::io("read", path))
}
