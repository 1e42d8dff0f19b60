//! JSON rows: one object a line, or one array of objects (a `.json` file may be either, recognized by its
//! first character).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value};

use super::input::{Bookmark, Input};
use crate::data::error::{Error, Place, Result};
use crate::data::settings::MAX_FIELD;

/// Objects of a file, streaming.
pub(in crate::data) struct JsonReader {
    input: Input,
    form: Form,
    /// Of the byte that comes next, from 1.
    line: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Lines,
    /// Within an array; true once its end was seen.
    Array {
        ended: bool,
    },
}

/// One object, or what was wrong with it, and the line where it begins.
pub(super) type JsonRow = (u64, Map<String, Value>);

impl JsonReader {
    pub fn new(mut input: Input) -> Result<JsonReader> {
        input.skip_byte_order_mark()?;
        let mut reader = JsonReader {
            input,
            form: Form::Lines,
            line: 1,
        };
        if reader.skip_blanks()? == Some(b'[') {
            reader.input.consume(1);
            reader.form = Form::Array { ended: false };
        }
        Ok(reader)
    }

    pub fn path(&self) -> &std::path::Path {
        self.input.path()
    }

    /// Where the next object begins.
    pub fn bookmark(&self) -> Bookmark {
        let ended = self.form == (Form::Array { ended: true });
        Bookmark {
            offset: self.input.position(),
            lines: self.line - 1,
            ended,
            ..Bookmark::default()
        }
    }

    /// Goes on at a bookmark of the same file.
    pub fn resume(&mut self, bookmark: &Bookmark, count: Arc<AtomicU64>) -> Result<()> {
        self.input = self.input.at(bookmark, count)?;
        self.line = bookmark.lines + 1;
        if let Form::Array { ended } = &mut self.form {
            *ended = bookmark.ended;
        }
        Ok(())
    }

    /// The next object; `None` at the end. After a [`Error::BadRow`] reading can go on.
    pub fn read(&mut self) -> Result<Option<JsonRow>> {
        let bytes = match self.form {
            Form::Lines => self.line_bytes()?,
            Form::Array { .. } => self.element_bytes()?,
        };
        let Some((line, bytes)) = bytes else {
            return Ok(None);
        };
        let bad = |line: u64, reason: String| Error::BadRow {
            place: self.place(line),
            reason,
        };
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(object)) => Ok(Some((line, object))),
            Ok(other) => Err(bad(
                line,
                format!(
                    "a JSON object is expected for each row, not {}",
                    kind(&other)
                ),
            )),
            Err(error) => {
                let at = line + error.line().saturating_sub(1) as u64;
                let text = error.to_string();
                let reason = text.split(" at line ").next().unwrap_or(&text);
                Err(bad(
                    at,
                    format!("not valid JSON: {reason} (column {})", error.column()),
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

    /// The next line that is not blank, with its number.
    fn line_bytes(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        if self.skip_blanks()?.is_none() {
            return Ok(None);
        }
        let (line, mut bytes) = (self.line, Vec::new());
        loop {
            let buffer = self.input.fill(line)?;
            if buffer.is_empty() {
                return Ok(Some((line, bytes)));
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.unwrap_or(buffer.len());
            bytes.extend_from_slice(&buffer[..taken]);
            self.input.consume(taken + usize::from(end.is_some()));
            if bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(line),
                });
            }
            if end.is_some() {
                self.line += 1;
                return Ok(Some((line, bytes)));
            }
        }
    }

    /// The bytes of the array's next element, up to the comma or bracket that ends it.
    fn element_bytes(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let broken = |reader: &JsonReader, reason: &str| Error::BadTable {
            path: reader.input.path().to_path_buf(),
            reason: format!("line {}: {reason}", reader.line),
        };
        if self.form == (Form::Array { ended: true }) {
            return match self.skip_blanks()? {
                None => Ok(None),
                Some(_) => Err(broken(self, "something follows the array's end")),
            };
        }
        let first = self.skip_blanks()?;
        if first == Some(b']') {
            self.input.consume(1);
            self.form = Form::Array { ended: true };
            return self.element_bytes();
        }
        let (line, mut bytes) = (self.line, Vec::new());
        let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
        loop {
            let now = self.line;
            let buffer = self.input.fill(now)?;
            if buffer.is_empty() {
                return Err(broken(self, "the file ends within its array of objects"));
            }
            let (mut used, mut end) = (0, None);
            for &byte in buffer {
                used += 1;
                self.line += u64::from(byte == b'\n');
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_string => escaped = true,
                    b'"' => in_string = !in_string,
                    _ if in_string => {}
                    b'{' | b'[' => depth += 1,
                    b',' | b']' if depth == 0 => {
                        end = Some(byte);
                        break;
                    }
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                bytes.push(byte);
            }
            self.input.consume(used);
            if bytes.len() > MAX_FIELD {
                return Err(Error::HugeField {
                    place: self.place(line),
                });
            }
            if let Some(end) = end {
                self.form = Form::Array { ended: end == b']' };
                return Ok(Some((line, bytes)));
            }
        }
    }
}

/// What a value is, for messages.
pub(in crate::data) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
