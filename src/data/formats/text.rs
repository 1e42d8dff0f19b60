//! Lines of text files, plain or gzip, exactly as Python's text mode and `datasets`' text loader
//! see them.
//!
//! `\r\n` and `\r` count as `\n`; a line is split at `\n` only (not at form feeds or Unicode
//! separators) and keeps it; empty lines are lines; a last line without a line break is a line.
//! Several files follow one another as if their lines were one list.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::input::{Bookmark, Input};
use crate::error::{Error, Place, Result};
use crate::settings::MAX_FIELD;

/// Lines of one file, streaming. Goes on after a line that is not UTF-8, and ends at any other
/// error.
pub struct Lines {
    input: Input,
    /// Lines already returned.
    line: u64,
    /// Bytes of text (decompressed, as in the file) before the next line.
    offset: u64,
    /// The last line ended in `\r`, so a `\n` that follows belongs to it.
    after_return: bool,
    done: bool,
}

impl Lines {
    /// Opens a file; gzip is recognized by its first two bytes, whatever the name. A file without any
    /// text is an error.
    pub fn open(path: &Path) -> Result<Lines> {
        Lines::open_counted(path, Arc::default())
    }

    /// [`Lines::open`], adding the raw bytes read to `count`.
    pub fn open_counted(path: &Path, count: Arc<AtomicU64>) -> Result<Lines> {
        Ok(Lines::new(Input::open(path, count)?))
    }

    pub(crate) fn new(input: Input) -> Lines {
        Lines {
            input,
            line: 0,
            offset: 0,
            after_return: false,
            done: false,
        }
    }

    /// Where the next line begins.
    pub(crate) fn bookmark(&self) -> Bookmark {
        Bookmark {
            offset: self.offset,
            lines: self.line,
            after_return: self.after_return,
            ..Bookmark::default()
        }
    }

    /// Goes on at a bookmark of the same file.
    pub(crate) fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        self.input = self.input.at(bookmark, count)?;
        (self.line, self.offset, self.after_return) =
            (bookmark.lines, bookmark.offset, bookmark.after_return);
        Ok(())
    }

    /// The next line's bytes with a plain `\n` (or none, at the very end), or `None` after the
    /// last.
    fn next_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let number = self.line + 1;
        loop {
            let buffer = self.input.fill(number)?;
            if buffer.is_empty() {
                return Ok((!line.is_empty()).then_some(line));
            }
            if std::mem::take(&mut self.after_return) && buffer[0] == b'\n' {
                self.input.consume(1);
                self.offset += 1;
                continue;
            }
            let end = buffer.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let taken = end.unwrap_or(buffer.len());
            if line.len() + taken > MAX_FIELD {
                return Err(Error::HugeField {
                    place: Place::line(self.input.path(), number),
                });
            }
            line.extend_from_slice(&buffer[..taken]);
            let Some(end) = end else {
                self.input.consume(taken);
                continue;
            };
            line.push(b'\n');
            self.after_return = buffer[end] == b'\r';
            self.input.consume(end + 1);
            return Ok(Some(line));
        }
    }

    fn next_line(&mut self) -> Result<Option<String>> {
        let Some(bytes) = self.next_bytes()? else {
            return Ok(None);
        };
        self.line += 1;
        let start = self.offset;
        self.offset += bytes.len() as u64;
        String::from_utf8(bytes).map(Some).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::InvalidUtf8 {
                path: self.input.path().to_path_buf(),
                line: self.line,
                column: at as u64 + 1,
                offset: start + at as u64,
                byte: error.as_bytes()[at],
            }
        })
    }
}

impl Iterator for Lines {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        if self.done {
            return None;
        }
        let item = self.next_line().transpose();
        self.done = match &item {
            Some(Err(error)) => !error.is_bad_row(),
            other => other.is_none(),
        };
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

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
        let want = [
            "a\n",
            "b\n",
            "c\n",
            "\n",
            "\n",
            "\n",
            "\n",
            " \x0c\x0b\u{85}\u{2028}x\u{feff}\n",
            "last",
        ];
        assert_eq!(lines(&file(&dir, "plain", text.as_bytes())), want);
        assert_eq!(
            lines(&file(&dir, "named.txt", &gzip(text.as_bytes()))),
            want
        );
        assert_eq!(lines(&file(&dir, "cr", b"a\r")), ["a\n"]);
        assert_eq!(lines(&file(&dir, "nl", b"\n")), ["\n"]);
        assert_eq!(
            lines(&file(&dir, "whole", b"a\r\n\r\nb")).concat(),
            "a\n\nb"
        );
    }

    #[test]
    fn a_return_and_its_newline_in_two_buffers_are_one_break() {
        let dir = tempfile::tempdir().unwrap();
        // Buffers are 256 KiB: the pair is put across that border, as is a three-byte character.
        let text = format!(
            "{}\r\n{}€x\n",
            "a".repeat((1 << 18) - 1),
            "b".repeat((1 << 18) - 2)
        );
        let found = lines(&file(&dir, "x", text.as_bytes()));
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].len(), found[1].ends_with("€x\n")),
            (1 << 18, true)
        );
    }

    #[test]
    fn errors_say_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| {
            Lines::open(path)
                .and_then(|lines| lines.collect::<Result<Vec<_>>>())
                .unwrap_err()
                .to_string()
        };
        assert!(open(&file(&dir, "empty.txt", b"")).contains("empty.txt is empty"));
        assert!(open(&file(&dir, "empty.gz", &gzip(b""))).contains("empty.gz is empty"));
        assert!(open(&dir.path().join("none.txt")).contains("none.txt: No such file"));
        let error = open(&file(&dir, "latin.txt", b"one\r\ntwo\rcaf\xe9!\n"));
        assert!(
            error.contains("latin.txt:3: invalid UTF-8: byte 0xe9 at column 4")
                && error.contains("byte 12 of"),
            "{error}"
        );
        let error = open(&file(
            &dir,
            "cut.txt",
            "x\n€".as_bytes().split_last().unwrap().1,
        ));
        assert!(
            error.contains("cut.txt:2") && error.contains("0xe2"),
            "{error}"
        );
        let whole = gzip("line\n".repeat(100_000).as_bytes());
        for cut in [5, whole.len() / 2, whole.len() - 1] {
            let error = open(&file(&dir, "cut.gz", &whole[..cut]));
            assert!(
                error.contains("cut.gz:") && error.contains("end too early"),
                "{cut}: {error}"
            );
        }
        let mut flipped = whole.clone();
        let last = flipped.len() - 6;
        flipped[last] ^= 1; // the checksum at the end
        assert!(open(&file(&dir, "bad.gz", &flipped)).contains("bad.gz:100001"));
    }
}
