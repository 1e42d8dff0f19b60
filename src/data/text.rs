//! Lines of text files, plain or gzip, exactly as Python's text mode and `datasets`' text loader see them.
//!
//! `\r\n` and `\r` count as `\n`; a line is split at `\n` only (not at form feeds or Unicode separators) and keeps it; empty lines
//! are lines; a last line without a line break is a line. Several files follow one another as if their lines were one list.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::error::{Error, Result};

/// Counts raw bytes (compressed ones, for gzip) on their way in: what a progress bar can compare with file sizes.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Lines of one file, streaming. Ends at the first error.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    gzip: bool,
    /// Lines already returned.
    line: u64,
    /// Bytes of text (decompressed, as in the file) before the next line.
    offset: u64,
    /// The last line ended in `\r`, so a `\n` that follows belongs to it.
    after_return: bool,
    done: bool,
}

impl Lines {
    /// Opens a file; gzip is told by its first two bytes, whatever the name. A file without any text is an error.
    pub fn open(path: &Path) -> Result<Lines> {
        Lines::open_counted(path, Arc::default())
    }

    /// [`Lines::open`], adding the raw bytes read to `count`.
    pub fn open_counted(path: &Path, count: Arc<AtomicU64>) -> Result<Lines> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let mut raw = BufReader::with_capacity(1 << 18, Counted { inner: file, count });
        let start = raw.fill_buf().map_err(Error::io("read", path))?;
        if start.is_empty() {
            return Err(Error::EmptyFile { path: path.to_path_buf() });
        }
        let gzip = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead + Send> =
            if gzip { Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(raw))) } else { Box::new(raw) };
        let mut lines = Lines { path: path.to_path_buf(), reader, gzip, line: 0, offset: 0, after_return: false, done: false };
        let empty = match lines.reader.fill_buf() {
            Ok(text) => text.is_empty(),
            Err(error) => return Err(lines.read_error(error)),
        };
        if empty { Err(Error::EmptyFile { path: path.to_path_buf() }) } else { Ok(lines) }
    }

    fn read_error(&self, source: io::Error) -> Error {
        let path = self.path.clone();
        if self.gzip { Error::BadGzip { path, line: self.line + 1, source } } else { Error::Io { doing: "read", path, source } }
    }

    /// The next line's bytes with a plain `\n` (or none, at the very end), or `None` after the last.
    fn next_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let buffer = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.read_error(error)),
            };
            if buffer.is_empty() {
                return Ok((!line.is_empty()).then_some(line));
            }
            if std::mem::take(&mut self.after_return) && buffer[0] == b'\n' {
                self.reader.consume(1);
                self.offset += 1;
                continue;
            }
            match buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                Some(end) => {
                    line.extend_from_slice(&buffer[..end]);
                    line.push(b'\n');
                    self.after_return = buffer[end] == b'\r';
                    self.reader.consume(end + 1);
                    return Ok(Some(line));
                }
                None => {
                    line.extend_from_slice(buffer);
                    let length = buffer.len();
                    self.reader.consume(length);
                }
            }
        }
    }

    fn next_line(&mut self) -> Result<Option<String>> {
        let Some(bytes) = self.next_bytes()? else { return Ok(None) };
        self.line += 1;
        let length = bytes.len() as u64;
        match String::from_utf8(bytes) {
            Ok(line) => {
                self.offset += length;
                Ok(Some(line))
            }
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                Err(Error::InvalidUtf8 {
                    path: self.path.clone(),
                    line: self.line,
                    column: at as u64 + 1,
                    offset: self.offset + at as u64,
                    byte: error.as_bytes()[at],
                })
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        if self.done {
            return None;
        }
        let item = self.next_line().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Lines of several files, one after the other, with the raw bytes read so far. Files are opened as they are reached.
pub fn lines_of(files: Vec<PathBuf>) -> (impl Iterator<Item = Result<String>>, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    let mut failed = false;
    let lines = files.into_iter().flat_map(move |path| {
        let lines: Box<dyn Iterator<Item = Result<String>>> = match Lines::open_counted(&path, counter.clone()) {
            Ok(lines) => Box::new(lines),
            Err(error) => Box::new(std::iter::once(Err(error))),
        };
        lines
    });
    // Nothing after an error: a half-read file must not be followed by the next one.
    let lines = lines.take_while(move |line| {
        let before = failed;
        failed |= line.is_err();
        !before
    });
    (lines, count)
}

/// A whole file as one string, line breaks made plain.
pub fn read_whole(path: &Path) -> Result<String> {
    Lines::open(path)?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(dir: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn lines(path: &Path) -> Vec<String> {
        Lines::open(path).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn line_breaks_as_python_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let text = "a\r\nb\rc\n\n\r\r\n\n \x0c\x0b\u{85}\u{2028}x\u{feff}\rlast";
        let want = ["a\n", "b\n", "c\n", "\n", "\n", "\n", "\n", " \x0c\x0b\u{85}\u{2028}x\u{feff}\n", "last"];
        assert_eq!(lines(&file(&dir, "plain", text.as_bytes())), want);
        assert_eq!(lines(&file(&dir, "named.txt", &gzip(text.as_bytes()))), want);
        assert_eq!(lines(&file(&dir, "cr", b"a\r")), ["a\n"]);
        assert_eq!(lines(&file(&dir, "nl", b"\n")), ["\n"]);
        assert_eq!(read_whole(&file(&dir, "whole", b"a\r\n\r\nb")).unwrap(), "a\n\nb");
    }

    #[test]
    fn a_return_and_its_newline_in_two_buffers_are_one_break() {
        let dir = tempfile::tempdir().unwrap();
        // Buffers are 256 KiB: the pair is put across that border, as is a three-byte character.
        let text = format!("{}\r\n{}€x\n", "a".repeat((1 << 18) - 1), "b".repeat((1 << 18) - 2));
        let found = lines(&file(&dir, "x", text.as_bytes()));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].len(), found[1].ends_with("€x\n")), (1 << 18, true));
    }

    #[test]
    fn several_files_are_one_list_of_lines() {
        let dir = tempfile::tempdir().unwrap();
        let files = [file(&dir, "1", b"a\nb"), file(&dir, "2", &gzip(b"c\n"))];
        let (found, count) = lines_of(files.to_vec());
        assert_eq!(found.map(Result::unwrap).collect::<Vec<_>>(), ["a\n", "b", "c\n"]);
        let sizes: u64 = files.iter().map(|f| f.metadata().unwrap().len()).sum();
        assert_eq!(count.load(Ordering::Relaxed), sizes);
        let missing = [files[0].clone(), dir.path().join("none.txt"), files[1].clone()];
        let found: Vec<_> = lines_of(missing.to_vec()).0.collect();
        assert_eq!(found.len(), 3);
        assert!(found[2].as_ref().unwrap_err().to_string().contains("none.txt"));
    }

    #[test]
    fn errors_say_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| Lines::open(path).and_then(|lines| lines.collect::<Result<Vec<_>>>()).unwrap_err().to_string();
        assert!(open(&file(&dir, "empty.txt", b"")).contains("empty.txt is empty"));
        assert!(open(&file(&dir, "empty.gz", &gzip(b""))).contains("empty.gz is empty"));
        assert!(open(&dir.path().join("none.txt")).contains("none.txt: No such file"));
        let error = open(&file(&dir, "latin.txt", b"one\r\ntwo\rcaf\xe9!\n"));
        assert!(error.contains("latin.txt:3: invalid UTF-8: byte 0xe9 at column 4") && error.contains("byte 12 of"), "{error}");
        let error = open(&file(&dir, "cut.txt", "x\n€".as_bytes().split_last().unwrap().1));
        assert!(error.contains("cut.txt:2") && error.contains("0xe2"), "{error}");
        let whole = gzip("line\n".repeat(100_000).as_bytes());
        for cut in [5, whole.len() / 2, whole.len() - 1] {
            let error = open(&file(&dir, "cut.gz", &whole[..cut]));
            assert!(error.contains("cut.gz:") && error.contains("end too early"), "{cut}: {error}");
        }
        let mut flipped = whole.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1; // the checksum at the end
        assert!(open(&file(&dir, "bad.gz", &flipped)).contains("bad.gz:100001"));
    }
}
