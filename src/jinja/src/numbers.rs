//! Filters of numbers, and numbers from texts.

use crate::arguments::{Args, int, optional_int};
use crate::ast::BinaryOp;
use crate::error::{Result, not_built, refuse};
use crate::ops;
use crate::text::trim;
use crate::value::Value;

pub(crate) fn apply(name: &str, value: &Value, args: &Args) -> Result<Value> {
    match name {
        "abs" => {
            args.none(name)?;
            match value.defined()? {
                Value::Float(number) => Ok(Value::Float(number.abs())),
                other if other.as_int().is_some_and(|it| it < 0) => ops::signed(true, other),
                other if other.as_int().is_some() => ops::signed(false, other),
                other => refuse(format!(
                    "bad operand type for abs(): '{}'",
                    other.type_name()
                )),
            }
        }
        "int" => {
            let [usual, base] = args.bind(name, ["default", "base"], 0)?;
            let base = optional_int(base.as_ref(), "base")?.unwrap_or(10);
            match to_int(value.defined()?, base)? {
                Some(number) => Ok(Value::Int(number)),
                None => Ok(usual.unwrap_or(Value::Int(0))),
            }
        }
        "float" => {
            let [usual] = args.bind(name, ["default"], 0)?;
            match to_float(value.defined()?) {
                Some(number) => Ok(Value::Float(number)),
                None => Ok(usual.unwrap_or(Value::Float(0.0))),
            }
        }
        "round" => round(value, args),
        _ => file_size(value, args),
    }
}

/// `int(text, base)`.
fn parsed_int(text: &str, base: i128) -> Result<Option<i128>> {
    let text = trim(text);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0b", 2), ("0o", 8), ("0x", 16)]
        .into_iter()
        .find(|(prefix, radix)| lower.starts_with(prefix) && (base == 0 || base == *radix));
    let (radix, digits) = match prefixed {
        // One underscore may follow the prefix.
        Some((_, radix)) => {
            let digits = &lower[2..];
            (radix, digits.strip_prefix('_').unwrap_or(digits))
        }
        None if base == 0 => return not_built("int with base 0"),
        None => (base, lower.as_str()),
    };
    let Some(radix) = u32::try_from(radix)
        .ok()
        .filter(|radix| (2..=36).contains(radix))
    else {
        return refuse("int() base must be >= 2 and <= 36, or 0");
    };
    let is_separated = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let digits = digits.replace('_', "");
    if digits.is_empty() || is_separated || !digits.chars().all(|digit| digit.is_digit(radix)) {
        if digits.chars().any(|it| !it.is_ascii() && it.is_numeric()) {
            return not_built("digits beyond ASCII");
        }
        return Ok(None);
    }
    match i128::from_str_radix(&digits, radix) {
        Ok(number) => Ok(Some(if is_negative { -number } else { number })),
        Err(_) => not_built("an integer of more than 127 bits"),
    }
}

/// A number cut to a whole one; `None`: Jinja takes the default.
fn cut(number: f64, is_text: bool) -> Result<Option<i128>> {
    match () {
        () if number.is_nan() => Ok(None),
        () if number.is_infinite() && is_text => Ok(None),
        () if number.is_infinite() => refuse("cannot convert float infinity to integer"),
        () if number.abs() > 1e38 => not_built("an integer of more than 127 bits"),
        () => Ok(Some(number as i128)),
    }
}

fn to_int(value: &Value, base: i128) -> Result<Option<i128>> {
    match value {
        Value::Float(number) => cut(*number, false),
        Value::Str(text) | Value::Markup(text) => match parsed_int(text, base)? {
            Some(number) => Ok(Some(number)),
            // "42.23" is 42.
            None => parsed_float(text).map_or(Ok(None), |number| cut(number, true)),
        },
        other => Ok(other.as_int()),
    }
}

/// `float(text)`.
fn parsed_float(text: &str) -> Option<f64> {
    let text = trim(text);
    let is_separated = |text: &str| {
        let bytes = text.as_bytes();
        let is_digit = |at: Option<usize>| {
            at.and_then(|at| bytes.get(at))
                .is_some_and(u8::is_ascii_digit)
        };
        let mut places = (0..bytes.len()).filter(|at| bytes[*at] == b'_');
        places.all(|at| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)))
    };
    if !is_separated(text) {
        return None;
    }
    let plain = text.replace('_', "");
    let word = plain.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_word = matches!(word.as_str(), "inf" | "infinity" | "nan");
    let is_number = word.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    if !is_word && !is_number {
        return None;
    }
    plain.parse().ok()
}

fn to_float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        Value::Str(text) | Value::Markup(text) => parsed_float(text),
        other => other.as_int().map(|number| number as f64),
    }
}

fn round(value: &Value, args: &Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"], 0)?;
    let precision = int(&precision.unwrap_or(Value::Int(0)), "precision")?;
    let method = method.unwrap_or_else(|| Value::str("common"));
    let method = method
        .as_str()
        .map(|method| method.to_string())
        .unwrap_or_default();
    let value = value.defined()?;
    match method.as_str() {
        "common" => {}
        "ceil" | "floor" => {
            let ten = ops::binary(BinaryOp::Pow, &Value::Int(10), &Value::Int(precision))?;
            let scaled = ops::binary(BinaryOp::Mul, value, &ten)?;
            let whole = match scaled {
                Value::Float(number) => {
                    let number = if method == "ceil" {
                        number.ceil()
                    } else {
                        number.floor()
                    };
                    match cut(number, false)? {
                        Some(number) => Value::Int(number),
                        None => return refuse("cannot convert float NaN to integer"),
                    }
                }
                Value::Int(_) => scaled,
                other => return refuse(format!("must be real number, not {}", other.type_name())),
            };
            return ops::binary(BinaryOp::Div, &whole, &ten);
        }
        _ => return refuse("method must be common, ceil or floor"),
    }
    if let Some(number) = value.as_int() {
        if precision >= 0 {
            return Ok(Value::Int(number));
        }
        return not_built("round of an integer to tens");
    }
    let Value::Float(number) = value else {
        let kind = value.type_name();
        return refuse(format!("type {kind} doesn't define __round__ method"));
    };
    if precision < 0 {
        return not_built("round to tens");
    }
    if !number.is_finite() {
        return Ok(Value::Float(*number));
    }
    if precision == 0 {
        return Ok(Value::Float(number.round_ties_even()));
    }
    let precision = usize::try_from(precision).unwrap_or(400).min(400);
    let text = format!("{number:.precision$}");
    Ok(Value::Float(text.parse().unwrap_or(*number)))
}

fn file_size(value: &Value, args: &Args) -> Result<Value> {
    let [binary] = args.bind("filesizeformat", ["binary"], 0)?;
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let Some(bytes) = to_float(value.defined()?) else {
        return refuse("could not convert to float");
    };
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::str("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::str(format!("{} Bytes", bytes.trunc() as i128)));
    }
    let prefixes = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    let mut found = "Y";
    for prefix in prefixes {
        unit *= base;
        found = prefix;
        if bytes < unit {
            break;
        }
    }
    let suffix = match (is_binary, found) {
        (true, "k") => "KiB".to_string(),
        (true, other) => format!("{other}iB"),
        (false, other) => format!("{other}B"),
    };
    Ok(Value::str(format!("{:.1} {suffix}", base * bytes / unit)))
}
