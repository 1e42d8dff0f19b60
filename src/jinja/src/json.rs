//! `json.dumps`, which is what transformers' `tojson` calls.

use crate::error::{Result, refuse};
use crate::meter;
use crate::print;
use crate::sort::sorted;
use crate::value::Value;
use std::fmt::Write;

/// How values are laid out.
pub(crate) struct Layout {
    /// What each level begins a line with.
    pub indent: Option<String>,
    pub between_items: String,
    pub behind_keys: String,
    pub is_sorted: bool,
    /// Whether letters beyond ASCII are escaped.
    pub is_ascii: bool,
}

impl Layout {
    pub fn dumps(&self, value: &Value) -> Result<String> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        meter::spend_bytes(out.len())?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<()> {
        meter::spend(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&float(*value)),
            Value::Str(text) | Value::Markup(text) => self.write_text(out, text)?,
            Value::List(seq) | Value::Tuple(seq) => {
                out.push('[');
                for (index, item) in seq.items.iter().enumerate() {
                    self.before_item(out, index, depth)?;
                    self.write(out, item, depth + 1)?;
                }
                self.close(out, seq.items.is_empty(), depth)?;
                out.push(']');
            }
            Value::Dict(dict) => {
                let mut entries: Vec<_> = dict.entries().cloned().collect();
                if self.is_sorted {
                    let keyed = entries
                        .into_iter()
                        .map(|(key, value)| Ok((key.clone(), Value::tuple(vec![key, value])?)));
                    let pairs = sorted(keyed.collect::<Result<_>>()?, false)?;
                    let pairs = pairs.iter().filter_map(|pair| match pair {
                        Value::Tuple(pair) => Some((pair.items[0].clone(), pair.items[1].clone())),
                        _ => None,
                    });
                    entries = pairs.collect();
                }
                out.push('{');
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.before_item(out, index, depth)?;
                    self.write_text(out, &key_text(key)?)?;
                    out.push_str(&self.behind_keys);
                    self.write(out, value, depth + 1)?;
                }
                self.close(out, entries.is_empty(), depth)?;
                out.push('}');
            }
            other => {
                let kind = other.type_name();
                return refuse(format!("Object of type {kind} is not JSON serializable"));
            }
        }
        Ok(())
    }

    fn before_item(&self, out: &mut String, index: usize, depth: usize) -> Result<()> {
        if index > 0 {
            out.push_str(&self.between_items);
        }
        self.line(out, depth + 1)
    }

    fn close(&self, out: &mut String, is_empty: bool, depth: usize) -> Result<()> {
        if is_empty {
            return Ok(());
        }
        self.line(out, depth)
    }

    fn line(&self, out: &mut String, depth: usize) -> Result<()> {
        if let Some(indent) = &self.indent {
            meter::spend_bytes(indent.len() * depth + 64)?;
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
        Ok(())
    }

    fn write_text(&self, out: &mut String, text: &str) -> Result<()> {
        // Each of its letters costs more than one that is copied.
        meter::spend_bytes(text.len() * 8)?;
        out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{c}' => out.push_str("\\f"),
                '\u{8}' => out.push_str("\\b"),
                letter if letter < ' ' || (self.is_ascii && !letter.is_ascii()) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        // Writing to a text does not fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                letter => out.push(letter),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_string()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string()
    } else {
        print::float(value)
    }
}

/// A key, which JSON has as text.
fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::None => "null".to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => float(*value),
        Value::Str(text) | Value::Markup(text) => text.to_string(),
        other => {
            return refuse(format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            ));
        }
    })
}
