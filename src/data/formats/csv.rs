//! CSV and TSV, row by row.
//!
//! Own code rather than the csv crate: that reads any bytes without complaint, while here a quote
//! that is never closed, text after a closing quote and a field without end must be errors with the
//! line where they begin. Rows end at `\n`, `\r\n` or `\r` outside quotes; lines of nothing, or of
//! blanks that separate no fields, are passed over as pandas does; a byte order mark is too.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::input::{Bookmark, Input};
use crate::error::{Error, Place, Result};
use crate::settings::{MAX_COLUMNS, MAX_FIELD, Quoting};

/// Fields as bytes, with the line where each begins.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    bytes: Vec<u8>,
    /// End of each field in `bytes`, and its first line.
    ends: Vec<(usize, u64)>,
    /// Line where the row begins, from 1.
    pub line: u64,
}

impl Fields {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a field and the line where it begins.
    pub fn get(&self, index: usize) -> (&[u8], u64) {
        let start = if index == 0 {
            0
        } else {
            self.ends[index - 1].0
        };
        (&self.bytes[start..self.ends[index].0], self.ends[index].1)
    }
}

pub(crate) struct CsvReader {
    input: Input,
    delimiter: u8,
    quoting: Quoting,
    /// A quote at a field's start could be either, and is an error.
    refuses_quotes: bool,
    /// Of the byte that comes next, from 1.
    line: u64,
    /// The last byte was a `\r` that ended a line, so a `\n` now belongs to it.
    after_return: bool,
}

/// Where in a row the reader is.
#[derive(Clone, Copy, PartialEq)]
enum State {
    FieldStart,
    Plain,
    Quoted,
    /// After a quote within quotes: the field's end, or the first of a doubled quote.
    Closing,
    /// After text that follows a closing quote: the row is wrong, and its rest is passed over.
    Wrong,
}

enum Found {
    Row,
    EmptyLine,
    End,
}

impl CsvReader {
    /// Without a `quoting` a field may not begin with a quote.
    pub fn new(mut input: Input, delimiter: u8, quoting: Option<Quoting>) -> Result<CsvReader> {
        input.skip_byte_order_mark()?;
        Ok(CsvReader {
            input,
            delimiter,
            quoting: quoting.unwrap_or(Quoting::None),
            refuses_quotes: quoting.is_none(),
            line: 1,
            after_return: false,
        })
    }

    pub fn path(&self) -> &std::path::Path {
        self.input.path()
    }

    /// Another reader of the same file's rows.
    pub fn again(&self) -> Result<CsvReader> {
        let input = Input::open(self.input.path(), Arc::default())?;
        let quoting = (!self.refuses_quotes).then_some(self.quoting);
        CsvReader::new(input, self.delimiter, quoting)
    }

    /// Where the next row begins.
    pub fn bookmark(&self) -> Bookmark {
        let (offset, lines) = (self.input.position(), self.line - 1);
        Bookmark {
            offset,
            lines,
            after_return: self.after_return,
            ..Bookmark::default()
        }
    }

    /// Goes on at a bookmark of the same file.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        self.input = self.input.at(bookmark, count)?;
        (self.line, self.after_return) = (bookmark.lines + 1, bookmark.after_return);
        Ok(())
    }

    /// Reads the next row that is not an empty line; false at the end. After a [`Error::BadRow`]
    /// reading can go on.
    pub fn read(&mut self, row: &mut Fields) -> Result<bool> {
        loop {
            row.bytes.clear();
            row.ends.clear();
            row.line = self.line;
            match self.read_row(row)? {
                Found::Row => return Ok(true),
                Found::EmptyLine => {}
                Found::End => return Ok(false),
            }
        }
    }

    fn place(&self, line: u64) -> Place {
        Place::line(self.input.path(), line)
    }

    fn read_row(&mut self, row: &mut Fields) -> Result<Found> {
        let mut state = State::FieldStart;
        // Whether there was any byte besides the line break, and whether the next byte is to be
        // taken as it is.
        let (mut content, mut escaped) = (false, false);
        // Whether there was any byte that is no blank.
        let mut is_blank = true;
        let mut field_line = self.line;
        let mut wrong_line = 0;
        let (quoted, backslash) = (
            self.quoting != Quoting::None,
            self.quoting == Quoting::Backslash,
        );
        loop {
            let line = self.line;
            let buffer = self.input.fill(line)?;
            if buffer.is_empty() {
                if state == State::Quoted {
                    return Err(Error::OpenQuote {
                        place: self.place(field_line),
                    });
                }
                row.ends.push((row.bytes.len(), field_line));
                return match (state, content && !is_blank) {
                    (State::Wrong, _) => Err(self.wrong(wrong_line)),
                    (_, true) => Ok(Found::Row),
                    (_, false) => Ok(Found::End),
                };
            }
            let mut used = 0;
            let (mut ended, mut could_be_either) = (false, false);
            for &byte in buffer {
                if std::mem::take(&mut self.after_return) && byte == b'\n' {
                    // The second half of a line break, whose line was counted; content only within
                    // quotes.
                    used += 1;
                    if state == State::Quoted {
                        row.bytes.push(byte);
                    }
                    continue;
                }
                used += 1;
                let newline = matches!(byte, b'\n' | b'\r');
                if newline {
                    self.line += 1;
                    self.after_return = byte == b'\r';
                }
                if escaped {
                    escaped = false;
                    row.bytes.push(byte);
                    continue;
                }
                let inside = state == State::Quoted;
                if newline && !inside {
                    ended = true;
                    break;
                }
                content = true;
                is_blank = is_blank && matches!(byte, b' ' | b'\t') && byte != self.delimiter;
                match state {
                    State::Wrong => {}
                    _ if backslash && byte == b'\\' && state != State::Closing => {
                        escaped = true;
                        state = if inside { State::Quoted } else { State::Plain };
                    }
                    State::Quoted if byte == b'"' => state = State::Closing,
                    State::Quoted => row.bytes.push(byte),
                    State::Closing if byte == b'"' => {
                        row.bytes.push(byte);
                        state = State::Quoted;
                    }
                    State::FieldStart if quoted && byte == b'"' => state = State::Quoted,
                    State::FieldStart if self.refuses_quotes && byte == b'"' => {
                        could_be_either = true;
                        break;
                    }
                    _ if byte == self.delimiter => {
                        row.ends.push((row.bytes.len(), field_line));
                        field_line = self.line;
                        state = State::FieldStart;
                    }
                    State::Closing => {
                        wrong_line = self.line;
                        state = State::Wrong;
                    }
                    State::FieldStart | State::Plain => {
                        row.bytes.push(byte);
                        state = State::Plain;
                    }
                }
            }
            self.input.consume(used);
            if could_be_either {
                return Err(Error::EitherQuote {
                    place: self.place(self.line),
                });
            }
            if row.bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(row.line),
                });
            }
            if row.ends.len() > MAX_COLUMNS {
                return Err(Error::ManyColumns {
                    place: self.place(row.line),
                });
            }
            if ended {
                row.ends.push((row.bytes.len(), field_line));
                return match (state, content && !is_blank) {
                    (State::Wrong, _) => Err(self.wrong(wrong_line)),
                    (_, true) => Ok(Found::Row),
                    (_, false) => Ok(Found::EmptyLine),
                };
            }
        }
    }

    fn wrong(&self, line: u64) -> Error {
        let hint = match self.quoting {
            Quoting::Backslash => "double the quotes within it, or put a backslash before them",
            _ => {
                "double the quotes within it or, if a backslash stands before them, set --quoting backslash"
            }
        };
        Error::BadRow {
            place: self.place(line),
            reason: format!("text follows the closing quote of a field; {hint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    fn read(bytes: &[u8], quoting: Quoting) -> Vec<(u64, Vec<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        std::fs::write(&path, bytes).unwrap();
        let mut reader = CsvReader::new(
            Input::open(&path, Arc::default()).unwrap(),
            b',',
            Some(quoting),
        )
        .unwrap();
        let (mut row, mut rows) = (Fields::default(), Vec::new());
        while reader.read(&mut row).unwrap() {
            let field = |i| String::from_utf8(row.get(i).0.to_vec()).unwrap();
            rows.push((row.line, (0..row.len()).map(field).collect()));
        }
        rows
    }

    /// Any text that is written with quotes comes back as it was, at the line where it was written.
    #[test]
    fn written_rows_come_back() {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let pieces = ["a", "\"", ",", "\n", "\r\n", "\r", "\\", "\u{e9}", " ", ""];
        let ends = ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"];
        for quoting in [Quoting::Standard, Quoting::Backslash] {
            let (mut text, mut line, mut wanted) = (String::new(), 1, Vec::new());
            for _ in 0..3000 {
                let mut pick = |below: usize| (rng.next_u64() % below as u64) as usize;
                let mut field = || {
                    (0..pick(6))
                        .map(|_| pieces[pick(pieces.len())])
                        .collect::<String>()
                };
                let fields: Vec<String> = (0..3).map(|_| field()).collect();
                let escaped = |field: &String| match quoting {
                    Quoting::Backslash => field.replace('\\', "\\\\").replace('"', "\\\""),
                    _ => field.replace('"', "\"\""),
                };
                let row = fields
                    .iter()
                    .map(|field| format!("\"{}\"", escaped(field)))
                    .collect::<Vec<_>>()
                    .join(",");
                let end = ends[pick(ends.len())];
                wanted.push((line, fields));
                let breaks =
                    |text: &str| text.replace("\r\n", "\n").matches(['\n', '\r']).count() as u64;
                line += breaks(&row) + breaks(end);
                text += &(row + end);
            }
            let found = read(text.as_bytes(), quoting);
            for (found, wanted) in found.iter().zip(&wanted) {
                assert_eq!(found, wanted);
            }
            assert_eq!(found.len(), wanted.len());
        }
    }

    #[test]
    fn a_row_of_delimiters_is_refused_early() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        std::fs::write(&path, ",".repeat(10_000_000)).unwrap();
        let input = Input::open(&path, Arc::default()).unwrap();
        let mut reader = CsvReader::new(input, b',', Some(Quoting::Standard)).unwrap();
        let mut row = Fields::default();
        let error = reader.read(&mut row).unwrap_err().to_string();
        assert!(error.contains("more than 65536 columns"), "{error}");
        assert!(row.len() < 1_000_000);
    }

    #[test]
    fn rows_go_across_buffers() {
        // Buffers are 256 KiB.
        let long = "x\"\"y\r\n".repeat(100_000);
        let found = read(format!("a,\"{long}\"\r\nb,c").as_bytes(), Quoting::Standard);
        assert_eq!(found[0].1[1], long.replace("\"\"", "\""));
        assert_eq!(
            (found[1].0, &found[1].1[..]),
            (100_002, &["b".to_string(), "c".to_string()][..])
        );
    }
}
