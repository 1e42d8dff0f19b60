//! JSON files: read with errors that say where, written number for number as Python lays them out.

use super::error::{Error, Result};
use super::{atomic, files};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value};
use std::io;
use std::path::Path;
use xtrain_report::json;
use xtrain_report::python_float::repr;

/// Reads a JSON file into a type; an error says file, line and column.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = files::read(path).map_err(Error::io("read", path))?;
    if text.trim_ascii().is_empty() {
        return Err(Error::BadContent {
            path: path.to_path_buf(),
            reason: "the file is empty; it should hold JSON".to_string(),
        });
    }
    json::from_slice(&text).map_err(|error| {
        // serde_json repeats the position at the end of its message.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        let (path, message) = (path.to_path_buf(), message.to_string());
        match error.line() {
            0 => Error::BadContent {
                path,
                reason: message,
            },
            line => Error::Json {
                path,
                line,
                column: error.column(),
                message,
            },
        }
    })
}

/// Reads a JSON file that must hold an object, keys in file order.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json::<Value>(path)? {
        Value::Object(map) => Ok(map),
        _ => Err(Error::BadContent {
            path: path.to_path_buf(),
            reason: "expected a JSON object ({...})".to_string(),
        }),
    }
}

/// JSON text with the given indentation and a final newline, number for number as Python's
/// `json.dump(..., indent=n)` lays it out.
pub fn to_json_text(value: &impl Serialize, indent: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let spaces = vec![b' '; indent];
    let mut serializer = Serializer::with_formatter(
        &mut out,
        PythonFormatter(PrettyFormatter::with_indent(&spaces)),
    );
    value
        .serialize(&mut serializer)
        .expect("JSON values and plain structs always serialize into memory");
    out.push(b'\n');
    out
}

/// serde_json's pretty printer with Python's floats.
struct PythonFormatter<'a>(PrettyFormatter<'a>);

/// What is left to the pretty printer.
macro_rules! as_pretty {
    ($($method:ident($($first:ident)?);)*) => {$(
        fn $method<W: ?Sized + io::Write>(
            &mut self,
            writer: &mut W,
            $($first: bool,)?
        ) -> io::Result<()> {
            self.0.$method(writer, $($first)?)
        }
    )*};
}

impl Formatter for PythonFormatter<'_> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(repr(value).as_bytes())
    }

    as_pretty! {
        begin_array();
        end_array();
        begin_array_value(first);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first);
        begin_object_value();
        end_object_value();
    }
}

/// Writes a JSON file as a whole, two spaces deep, as transformers does.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    atomic::write_bytes(path, &to_json_text(value, 2))
}
