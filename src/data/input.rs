//! Files as streams of bytes: plain or gzip, counted for progress bars, guarded against decompression bombs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::error::{Error, Result};

/// Bytes of the longest line or table cell. Longer ones are an error rather than memory: they come from a wrong delimiter, an open
/// quote or a decompression bomb.
pub const MAX_FIELD: usize = 64 << 20;

/// Text compresses to a fifth, rarely to a fiftieth. Where far more comes out, the file is made to fill memory or disk.
const MAX_RATIO: u64 = 500;
/// The ratio is looked at once so much has come out; a short file of blanks is nobody's attack.
const RATIO_FROM: u64 = 64 << 20;

/// The raw bytes of a file, compressed or not, are added to the count on their way in: what a progress bar can compare with file
/// sizes.
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
            let reason = format!("{} MB came out of {} KB", self.written / 1_000_000, compressed / 1000);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(read)
    }
}

/// One open file.
pub(super) struct Input {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    gzip: bool,
}

impl Input {
    /// Opens a file; gzip is told by its first two bytes, whatever the name. A file without any content is an error. Raw bytes read
    /// are added to `count`.
    pub fn open(path: &Path, count: Arc<AtomicU64>) -> Result<Input> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let read = Arc::new(AtomicU64::new(0));
        let mut raw = BufReader::with_capacity(1 << 18, Counted { inner: file, read: read.clone(), count });
        let start = raw.fill_buf().map_err(Error::io("read", path))?;
        if start.is_empty() {
            return Err(Error::EmptyFile { path: path.to_path_buf() });
        }
        let gzip = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead + Send> = match gzip {
            true => {
                let guarded = Guarded { inner: MultiGzDecoder::new(raw), compressed: read, written: 0 };
                Box::new(BufReader::with_capacity(1 << 18, guarded))
            }
            false => Box::new(raw),
        };
        let mut input = Input { path: path.to_path_buf(), reader, gzip };
        let empty = input.fill(1)?.is_empty();
        if empty { Err(Error::EmptyFile { path: path.to_path_buf() }) } else { Ok(input) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that come next, none at the end. `line` is where an error would be.
    pub fn fill(&mut self, line: u64) -> Result<&[u8]> {
        // The buffer of the call that succeeds cannot be returned from a loop (a known limit of the borrow checker).
        loop {
            match self.reader.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error, line)),
            }
        }
        self.reader.fill_buf().map_err(Error::io("read", &self.path))
    }

    pub fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }

    /// Passes over the byte order mark that some programs put before UTF-8.
    pub fn skip_byte_order_mark(&mut self) -> Result<()> {
        if self.fill(1)?.starts_with("\u{feff}".as_bytes()) {
            self.consume(3);
        }
        Ok(())
    }

    fn error(&self, source: io::Error, line: u64) -> Error {
        let path = self.path.clone();
        match self.gzip {
            true if source.kind() == io::ErrorKind::FileTooLarge => Error::GzipBomb { path, line, reason: source.to_string() },
            true => Error::BadGzip { path, line, source },
            false => Error::Io { doing: "read", path, source },
        }
    }
}
