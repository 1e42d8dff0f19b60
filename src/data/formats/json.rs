//! JSON rows: objects one after the other, mostly one a line, or one array (a `.json` file may be
//! either, recognized by its first character).
//!
//! As `datasets` reads them with Arrow: objects may go over lines or share one, `NaN` and `Infinity`
//! are numbers, a key that an object has twice is an error (in arrays the last one counts), and an
//! array of other values is a column `text`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cell::Cell;
use super::input::{Bookmark, Input};
use super::json_value::{End, parse, reason};
use crate::error::{Error, Place, Result};
use crate::settings::MAX_FIELD;

/// Rows of a file, streaming.
pub(crate) struct JsonReader {
    input: Input,
    form: Form,
    /// Of the byte that comes next, from 1.
    line: u64,
    /// Lines that were read to find where an object ends, and belong to what comes next.
    ahead: VecDeque<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Objects,
    /// Within an array; `ended` once its end was seen.
    Array {
        ended: bool,
        /// Its elements are no objects.
        is_of_texts: bool,
    },
}

/// A row's line and fields.
pub(super) type JsonRow = (u64, Vec<(String, Cell)>);

/// The column of an array's elements that are no objects.
const TEXT: &str = "text";

impl JsonReader {
    pub fn new(mut input: Input) -> Result<JsonReader> {
        input.skip_byte_order_mark()?;
        let mut reader = JsonReader {
            input,
            form: Form::Objects,
            line: 1,
            ahead: VecDeque::new(),
        };
        if reader.skip_blanks()? == Some(b'[') {
            reader.input.consume(1);
            let first = reader.skip_blanks()?;
            reader.form = Form::Array {
                ended: false,
                is_of_texts: !matches!(first, Some(b'{' | b']') | None),
            };
        }
        Ok(reader)
    }

    pub fn path(&self) -> &std::path::Path {
        self.input.path()
    }

    /// Where the next row begins.
    pub fn bookmark(&self) -> Bookmark {
        let ahead: usize = self.ahead.iter().map(Vec::len).sum();
        let lines = self.ahead.iter().filter(|line| line.ends_with(b"\n"));
        Bookmark {
            offset: self.input.position() - ahead as u64,
            lines: self.line - 1 - lines.count() as u64,
            ended: matches!(self.form, Form::Array { ended: true, .. }),
            ..Bookmark::default()
        }
    }

    /// Goes on at a bookmark of the same file.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        self.input = self.input.at(bookmark, count)?;
        self.line = bookmark.lines + 1;
        self.ahead.clear();
        if let Form::Array { ended, .. } = &mut self.form {
            *ended = bookmark.ended;
        }
        Ok(())
    }

    /// The next row; `None` at the end. After a [`Error::BadRow`] reading can go on.
    pub fn read(&mut self) -> Result<Option<JsonRow>> {
        let (line, value) = match self.form {
            Form::Objects => match self.object()? {
                Some(found) => found,
                None => return Ok(None),
            },
            Form::Array { .. } => match self.element_bytes()? {
                Some((line, bytes)) => (line, parse(&bytes, false)),
                None => return Ok(None),
            },
        };
        let of_texts = matches!(
            self.form,
            Form::Array {
                is_of_texts: true,
                ..
            }
        );
        let bad = |line: u64, reason: String| Error::BadRow {
            place: self.place(line),
            reason,
        };
        match value {
            Ok(Cell::Fields(fields)) if !of_texts => Ok(Some((line, fields))),
            Ok(cell) if of_texts => Ok(Some((line, vec![(TEXT.to_string(), cell)]))),
            Ok(other) => {
                let kind = kind(&other);
                Err(bad(
                    line,
                    format!("a JSON object is expected for each row, not {kind}"),
                ))
            }
            Err(error) => {
                let at = line + error.line().saturating_sub(1) as u64;
                let column = error.column();
                let reason = reason(&error);
                Err(bad(
                    at,
                    format!("not valid JSON: {reason} (column {column})"),
                ))
            }
        }
    }

    fn place(&self, line: u64) -> Place {
        Place::line(self.input.path(), line)
    }

    /// Passes over white space; the byte after it, which is not taken.
    fn skip_blanks(&mut self) -> Result<Option<u8>> {
        loop {
            let buffer = self.input.fill(self.line)?;
            let Some(&byte) = buffer.first() else {
                return Ok(None);
            };
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.line += u64::from(byte == b'\n');
            self.input.consume(1);
        }
    }

    /// The next value of a file without an array, and its line: of one line, or of as many as it
    /// takes; what follows it on its last line comes next. What is wrong is wrong with its first
    /// line alone, so that the lines behind it can be used.
    fn object(&mut self) -> Result<Option<(u64, serde_json::Result<Cell>)>> {
        let (line, first) = loop {
            let number = self.bookmark().lines + 1;
            match self.next_line()? {
                None => return Ok(None),
                Some(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                Some(line) => break (number, line),
            }
        };
        let mut end = End::default();
        let first_end = first.trim_ascii_end().len();
        let (mut bytes, mut later) = (first, Vec::new());
        let (mut searched, mut tried) = (0, 0);
        loop {
            let found = end.find(&bytes[searched..]).map(|found| searched + found);
            searched = bytes.len();
            if let Some(found) = found {
                let value = parse(&bytes[..found], true);
                if value.is_err() {
                    break self.give_back(later, line, &bytes[..first_end]);
                }
                let rest = bytes.split_off(found);
                if !rest.iter().all(u8::is_ascii_whitespace) {
                    self.ahead.push_front(rest);
                }
                break Ok(Some((line, value)));
            }
            // Whether it can become one at all is looked at now and then, and at the end.
            let tries = later.len() >= 2 * tried;
            let next = if end.is_open() {
                self.next_line()?
            } else {
                None
            };
            if next.is_none() || tries {
                tried = later.len().max(1);
                let value = parse(&bytes, true);
                match &value {
                    Err(error) if error.is_eof() && next.is_some() => {}
                    Ok(_) if later.is_empty() && next.is_none() => break Ok(Some((line, value))),
                    _ => {
                        later.extend(next);
                        break self.give_back(later, line, &bytes[..first_end]);
                    }
                }
            }
            if let Some(next) = next {
                bytes.extend_from_slice(&next);
                later.push(next);
            }
            if bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(line),
                });
            }
        }
    }

    /// What is wrong with a damaged line alone; those behind it come next.
    fn give_back(
        &mut self,
        later: Vec<Vec<u8>>,
        line: u64,
        first: &[u8],
    ) -> Result<Option<(u64, serde_json::Result<Cell>)>> {
        for line in later.into_iter().rev() {
            self.ahead.push_front(line);
        }
        Ok(Some((line, parse(first, true))))
    }

    /// The next line with its break.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(line) = self.ahead.pop_front() {
            return Ok(Some(line));
        }
        let (line, mut bytes) = (self.line, Vec::new());
        loop {
            let buffer = self.input.fill(line)?;
            if buffer.is_empty() {
                return Ok((!bytes.is_empty()).then_some(bytes));
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            bytes.extend_from_slice(&buffer[..taken]);
            self.input.consume(taken);
            if bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(line),
                });
            }
            if end.is_some() {
                self.line += 1;
                return Ok(Some(bytes));
            }
        }
    }

    /// The bytes of the array's next element, up to the comma or bracket that ends it.
    fn element_bytes(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let broken = |reader: &JsonReader, reason: &str| Error::BadTable {
            path: reader.input.path().to_path_buf(),
            reason: format!("line {}: {reason}", reader.line),
        };
        if let Form::Array { ended: true, .. } = self.form {
            return match self.skip_blanks()? {
                None => Ok(None),
                Some(_) => Err(broken(self, "something follows the array's end")),
            };
        }
        let first = self.skip_blanks()?;
        if first == Some(b']') {
            self.input.consume(1);
            self.end_array();
            return self.element_bytes();
        }
        let (line, mut bytes) = (self.line, Vec::new());
        let mut end = End::default();
        loop {
            let now = self.line;
            let buffer = self.input.fill(now)?;
            if buffer.is_empty() {
                return Err(broken(self, "the file ends within its array"));
            }
            let (mut used, mut last) = (0, None);
            for &byte in buffer {
                used += 1;
                self.line += u64::from(byte == b'\n');
                if matches!(byte, b',' | b']') && end.depth == 0 && !end.in_string {
                    last = Some(byte);
                    break;
                }
                end.step(byte);
                bytes.push(byte);
            }
            self.input.consume(used);
            if bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(line),
                });
            }
            if let Some(last) = last {
                if last == b']' {
                    self.end_array();
                }
                return Ok(Some((line, bytes)));
            }
        }
    }

    fn end_array(&mut self) {
        if let Form::Array { ended, .. } = &mut self.form {
            *ended = true;
        }
    }
}

/// What a value is, for messages.
fn kind(value: &Cell) -> &'static str {
    match value {
        Cell::Missing => "null",
        Cell::Number(number) if ["true", "false"].contains(&number.as_str()) => "true or false",
        Cell::Number(_) | Cell::Class { .. } => "a number",
        Cell::Text(_) | Cell::Time(_) => "a string",
        Cell::List(_) => "an array",
        Cell::Fields(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<JsonRow, String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        std::fs::write(&path, text).unwrap();
        let open = || JsonReader::new(Input::open(&path, Arc::default()).unwrap()).unwrap();
        let next = |reader: &mut JsonReader| {
            let row = reader.read().map_err(|error| error.to_string());
            row.transpose()
        };
        let (mut reader, mut rows) = (open(), Vec::new());
        loop {
            let bookmark = reader.bookmark();
            let row = next(&mut reader);
            // Every row can be resumed at.
            let mut again = open();
            if bookmark != Bookmark::default() {
                again.resume(&bookmark, Arc::default()).unwrap();
            }
            assert_eq!(next(&mut again), row, "{text:?}");
            match row {
                Some(row) => rows.push(row),
                None => return rows,
            }
        }
    }

    fn number(text: &str) -> Cell {
        Cell::Number(text.to_string())
    }

    /// Lines and values of `a`.
    fn of_a(text: &str) -> Vec<(u64, Cell)> {
        let rows = read(text).into_iter().map(Result::unwrap);
        let a = |(line, fields): JsonRow| {
            let found = fields.into_iter().find(|(name, _)| name == "a");
            (line, found.map_or(Cell::Missing, |(_, cell)| cell))
        };
        rows.map(a).collect()
    }

    #[test]
    fn objects_may_share_lines_and_go_over_them() {
        let text =
            "{\"a\": 1}{\"a\": 2} {\"a\": 3}\n\n{\n \"a\": [\n4\n]\n}\r\n{\"a\": \"}\\\"{\"}";
        let found = of_a(text);
        let list = Cell::List(vec![number("4")]);
        let wanted = [
            (1, number("1")),
            (1, number("2")),
            (1, number("3")),
            (3, list),
            (8, Cell::Text("}\"{".into())),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn only_the_damaged_line_is_lost() {
        for damaged in [
            "{\"a\": 1",
            "{\"a\": \"x",
            "{\"a\": 1,",
            "nonsense",
            "{\"a\": [1, 2}",
            "}",
            "\"text\"",
            "5",
            "{\"a\": 1} x",
        ] {
            let text = format!("{{\"a\": 0}}\n{damaged}\n{{\"a\": 2}}\n{{\"a\": 3}}\n");
            let rows = read(&text);
            let good: Vec<u64> = rows.iter().flatten().map(|(line, _)| *line).collect();
            let bad: Vec<&String> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
            let lines: &[u64] = if damaged.ends_with("} x") {
                &[1, 2, 3, 4]
            } else {
                &[1, 3, 4]
            };
            assert_eq!(good, lines, "{damaged}");
            assert_eq!(bad.len(), 1, "{damaged}: {bad:?}");
            assert!(bad[0].contains("x.json:2: "), "{bad:?}");
        }
        let rows = read("{\"a\": 0}\n{\"a\": ");
        assert!(
            rows[1]
                .as_ref()
                .unwrap_err()
                .contains("x.json:2: not valid JSON")
        );
    }

    #[test]
    fn numbers_are_those_of_arrow() {
        let text = "{\"a\": NaN}\n{\"a\": [-Infinity, Infinity, \"NaN\"]}\n{\"a\": 18446744073709551615}\n{\"a\": 1.0}\n{\"a\": 0.12345678901234}\n";
        let list = Cell::List(vec![
            number("-inf"),
            number("inf"),
            Cell::Text("NaN".into()),
        ]);
        let found: Vec<Cell> = of_a(text).into_iter().map(|(_, cell)| cell).collect();
        let wanted = [
            number("NaN"),
            list,
            number("1.8446744073709552e19"),
            number("1.0"),
            number("0.12345678901234"),
        ];
        assert_eq!(found, wanted);
        let array: Vec<Cell> = of_a("[{\"a\": 0.12345678901234}, {\"a\": NaN}, {\"a\": 1e300}]")
            .into_iter()
            .map(|(_, cell)| cell)
            .collect();
        assert_eq!(
            array,
            [number("0.123456789"), Cell::Missing, number("1e300")]
        );
    }

    #[test]
    fn keys_that_occur_twice_are_refused_but_in_arrays() {
        let rows = read("{\"a\": 1, \"a\": 2}\n{\"b\": {\"a\": 1, \"a\": 2}}\n");
        for row in rows {
            let error = row.unwrap_err();
            assert!(error.contains("\"a\" occurs twice"), "{error}");
        }
        assert_eq!(of_a("[{\"a\": 1, \"a\": 2}]"), [(1, number("2"))]);
    }

    #[test]
    fn arrays_of_other_values_are_a_column_of_text() {
        let rows: Vec<JsonRow> = read("[\"x\", \"y,]\"]")
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let row = |text: &str| (1, vec![("text".to_string(), Cell::Text(text.into()))]);
        assert_eq!(rows, [row("x"), row("y,]")]);
    }
}
