//! `str()` and `repr()`.

use crate::error::{Result, not_built};
use crate::meter;
use crate::value::{Object, Value, ViewKind};
use std::fmt::Write;

impl Value {
    /// `str()`.
    pub fn to_text(&self) -> Result<String> {
        Ok(match self {
            Value::Undefined(_) => String::new(),
            Value::Str(text) | Value::Markup(text) => {
                meter::spend_bytes(text.len())?;
                text.to_string()
            }
            other => other.repr()?,
        })
    }

    /// `repr()`.
    pub fn repr(&self) -> Result<String> {
        let mut text = String::new();
        self.write(&mut text, 0)?;
        meter::spend_bytes(text.len())?;
        Ok(text)
    }

    fn write(&self, out: &mut String, namespaces: usize) -> Result<()> {
        meter::spend(1)?;
        match self {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&float(*value)),
            Value::Str(text) => write_quoted(out, text),
            Value::Markup(text) => {
                out.push_str("Markup(");
                write_quoted(out, text);
                out.push(')');
            }
            Value::List(seq) => write_items(out, "[", &seq.items, "]", namespaces)?,
            Value::Tuple(seq) => {
                let close = if seq.items.len() == 1 { ",)" } else { ")" };
                write_items(out, "(", &seq.items, close, namespaces)?;
            }
            Value::Dict(dict) => {
                write_entries(
                    out,
                    dict.entries().map(|(key, value)| (key, value)),
                    namespaces,
                )?;
            }
            Value::Range(range) if range.step == 1 => {
                out.push_str(&format!("range({}, {})", range.start, range.stop));
            }
            Value::Range(range) => {
                let (start, stop, step) = (range.start, range.stop, range.step);
                out.push_str(&format!("range({start}, {stop}, {step})"));
            }
            Value::View(kind, _) => {
                let open = match kind {
                    ViewKind::Keys => "dict_keys([",
                    ViewKind::Values => "dict_values([",
                    ViewKind::Items => "dict_items([",
                };
                write_items(out, open, &self.items()?, "])", namespaces)?;
            }
            Value::Namespace(names) => {
                if namespaces > 20 {
                    return crate::error::refuse("namespaces nest too deeply");
                }
                out.push_str("<Namespace ");
                let names = names.borrow();
                let entries = names
                    .iter()
                    .map(|(key, value)| (Value::Str(key.clone()), value));
                let entries: Vec<(Value, &Value)> = entries.collect();
                let entries = entries.iter().map(|(key, value)| (key, *value));
                write_entries(out, entries, namespaces + 1)?;
                out.push('>');
            }
            Value::Object(object) => match &**object {
                Object::Macro(it) => match &it.def.name {
                    Some(name) => {
                        out.push_str("<Macro ");
                        write_quoted(out, name);
                        out.push('>');
                    }
                    None => out.push_str("<Macro anonymous>"),
                },
                Object::Loop(state) => {
                    let state = state.borrow();
                    let (index, length) = (state.index + 1, state.items.len());
                    out.push_str(&format!("<LoopContext {index}/{length}>"));
                }
                _ => return not_built(format!("the text of a {}", self.type_name())),
            },
            Value::Iter(_) => return not_built("the text of a generator (use |list)"),
        }
        Ok(())
    }
}

fn write_items(
    out: &mut String,
    open: &str,
    items: &[Value],
    close: &str,
    namespaces: usize,
) -> Result<()> {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        item.write(out, namespaces)?;
    }
    out.push_str(close);
    Ok(())
}

fn write_entries<'a>(
    out: &mut String,
    entries: impl Iterator<Item = (&'a Value, &'a Value)>,
    namespaces: usize,
) -> Result<()> {
    out.push('{');
    for (index, (key, value)) in entries.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        key.write(out, namespaces)?;
        out.push_str(": ");
        value.write(out, namespaces)?;
    }
    out.push('}');
    Ok(())
}

/// A text as a literal.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            letter if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            letter if is_printable(letter) => out.push(letter),
            letter => {
                // Writing to a text does not fail.
                let _ = match u32::from(letter) {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` of one character.
pub(crate) fn is_printable(letter: char) -> bool {
    // Behind another letter, Rust escapes what Python does: other letters, separators, controls.
    let text = format!("a{letter}");
    matches!(letter, '\'' | '"' | '\\') || !text.escape_debug().skip(1).any(|it| it == '\\')
}

/// `repr(value)` of a Python float. Both languages print the shortest digits that give the same number
/// back; only the notation differs: Python has an exponent, of two digits or more, below 1e-4 and from
/// 1e16 on, and always a point or an exponent.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = format!("{value}");
        return if text.contains('.') {
            text
        } else {
            text + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repr_is_pythons() {
        // Right-hand sides were printed by Python 3.
        for (x, text) in [
            (5e-5, "5e-05"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012345"),
            (9.999e-5, "9.999e-05"),
            (1e-100, "1e-100"),
            (1.5e-7, "1.5e-07"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (100.0, "100.0"),
            (3.21, "3.21"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(x), text);
        }
    }
}
