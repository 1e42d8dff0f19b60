//! `str.format`.

use crate::access;
use crate::arguments::Args;
use crate::error::{Result, not_built, refuse};
use crate::meter;
use crate::printf;
use crate::value::Value;

/// `text.format(*args)`.
pub(crate) fn format(text: &str, args: &Args) -> Result<String> {
    let mut formatter = Formatter {
        args,
        next: Some(0),
    };
    formatter.run(text, 2)
}

struct Formatter<'a> {
    args: &'a Args,
    /// The next field without a number; `None` once a field had one.
    next: Option<usize>,
}

impl Formatter<'_> {
    fn run(&mut self, text: &str, levels: usize) -> Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            let after = &rest[at + 1..];
            if let Some(left) = after.strip_prefix(brace) {
                out.push_str(brace);
                rest = left;
                continue;
            }
            if brace == "}" {
                return refuse("Single '}' encountered in format string");
            }
            if levels == 0 {
                return refuse("Max string recursion exceeded");
            }
            let mut depth = 1;
            let end = after.char_indices().find(|(_, letter)| {
                depth += i32::from(*letter == '{') - i32::from(*letter == '}');
                depth == 0
            });
            let Some((end, _)) = end else {
                return refuse("expected '}' before end of string");
            };
            let text = self.field(&after[..end], levels)?;
            meter::spend_bytes(text.len())?;
            out.push_str(&text);
            rest = &after[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// What stands between braces: `name!conversion:spec`.
    fn field(&mut self, field: &str, levels: usize) -> Result<String> {
        let mut depth = 0;
        let split = field.char_indices().find(|(_, letter)| {
            depth += i32::from(*letter == '[') - i32::from(*letter == ']');
            depth == 0 && matches!(letter, '!' | ':')
        });
        let at = split.map_or(field.len(), |(at, _)| at);
        let (name, mut rest) = field.split_at(at);
        let mut value = self.value(name)?;
        if let Some(conversion) = rest.strip_prefix('!') {
            let mut letters = conversion.chars();
            value = match letters.next() {
                Some('s') => Value::str(value.to_text()?),
                Some('r') => Value::str(value.repr()?),
                Some('a') => Value::str(printf::ascii(&value.repr()?)),
                _ => return refuse("Unknown conversion specifier"),
            };
            rest = letters.as_str();
        }
        let spec = match rest.strip_prefix(':') {
            Some(spec) => self.run(spec, levels - 1)?,
            None if rest.is_empty() => String::new(),
            None => return refuse("expected ':' after conversion specifier"),
        };
        written(&value, &spec)
    }

    /// The value of a field's name, with its attributes and items.
    fn value(&mut self, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let index = if first.is_empty() {
            let Some(next) = self.next else {
                return refuse(
                    "cannot switch from manual field specification to automatic field numbering",
                );
            };
            self.next = Some(next + 1);
            Some(next)
        } else if first.bytes().all(|byte| byte.is_ascii_digit()) {
            if self.next.is_some_and(|next| next > 0) {
                return refuse(
                    "cannot switch from manual field specification to automatic field numbering",
                );
            }
            self.next = None;
            first.parse().ok()
        } else {
            None
        };
        let found = match index {
            Some(index) => self.args.positional.get(index),
            None => (self.args.named.iter())
                .find(|(found, _)| &**found == first)
                .map(|(_, value)| value),
        };
        let Some(mut value) = found.cloned() else {
            return match index {
                Some(_) => refuse("Replacement index out of range for positional args tuple"),
                None => refuse(format!("KeyError: '{first}'")),
            };
        };
        while !rest.is_empty() {
            if let Some(item) = rest.strip_prefix('[') {
                let Some((item, after)) = item.split_once(']') else {
                    return refuse("Missing ']' in format string");
                };
                let item = match item.parse::<i128>() {
                    Ok(index) if !item.starts_with(['+', '-']) => Value::Int(index),
                    _ => Value::str(item),
                };
                value = access::item(&value, &item)?;
                rest = after;
            } else if let Some(attribute) = rest.strip_prefix('.') {
                let end = attribute.find(['.', '[']).unwrap_or(attribute.len());
                value = access::attribute(&value, &attribute[..end])?;
                rest = &attribute[end..];
            } else {
                return refuse("Only '.' or '[' may follow ']' in format field specifier");
            }
        }
        Ok(value)
    }
}

/// A format's parts.
struct Spec {
    fill: char,
    align: Option<char>,
    sign: char,
    is_alternate: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn read(text: &str) -> Result<Spec> {
        let mut letters: Vec<char> = text.chars().collect();
        letters.reverse();
        let mut spec = Spec {
            fill: ' ',
            align: None,
            sign: '-',
            is_alternate: false,
            width: 0,
            group: None,
            precision: None,
            kind: None,
        };
        let is_align = |letter: Option<&char>| letter.is_some_and(|it| "<>=^".contains(*it));
        let length = letters.len();
        if length > 1 && is_align(letters.get(length - 2)) {
            spec.fill = letters.pop().unwrap_or(' ');
            spec.align = letters.pop();
        } else if is_align(letters.last()) {
            spec.align = letters.pop();
        }
        if letters.last().is_some_and(|it| "+- ".contains(*it)) {
            spec.sign = letters.pop().unwrap_or('-');
        }
        if letters.last() == Some(&'z') {
            return not_built("the format option z");
        }
        spec.is_alternate = letters.pop_if(|it| *it == '#').is_some();
        if letters.last() == Some(&'0') {
            letters.pop();
            if spec.align.is_none() {
                spec.fill = '0';
                spec.align = Some('0');
            }
        }
        spec.width = number(&mut letters)?.unwrap_or(0);
        spec.group = letters.pop_if(|it| matches!(it, ',' | '_'));
        if letters.pop_if(|it| *it == '.').is_some() {
            spec.precision = number(&mut letters)?;
            if spec.precision.is_none() {
                return refuse("Format specifier missing precision");
            }
        }
        spec.kind = letters.pop();
        if !letters.is_empty() {
            return refuse("Invalid format specifier");
        }
        meter::spend_bytes(spec.width)?;
        meter::spend_bytes(spec.precision.unwrap_or(0))?;
        Ok(spec)
    }

    fn padded(&self, sign: &str, body: &str, usual: char) -> String {
        let room = self
            .width
            .saturating_sub(sign.chars().count() + body.chars().count());
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(usual) {
            '<' => format!("{sign}{body}{}", fill(room)),
            '^' => format!("{}{sign}{body}{}", fill(room / 2), fill(room - room / 2)),
            '=' => format!("{sign}{}{body}", fill(room)),
            _ => format!("{}{sign}{body}", fill(room)),
        }
    }
}

fn number(letters: &mut Vec<char>) -> Result<Option<usize>> {
    let mut text = String::new();
    while let Some(digit) = letters.pop_if(|it| it.is_ascii_digit()) {
        text.push(digit);
    }
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) => refuse("Too many decimal digits in format string"),
    }
}

/// `format(value, spec)`.
fn written(value: &Value, text: &str) -> Result<String> {
    if text.is_empty() {
        return value.to_text();
    }
    match value {
        Value::Str(it) | Value::Markup(it) => {
            let mut spec = Spec::read(text)?;
            if spec.align == Some('0') {
                spec.align = Some('<');
            }
            let is_text = matches!(spec.kind, None | Some('s')) && spec.group.is_none();
            if !is_text || spec.align == Some('=') || spec.is_alternate || spec.sign != '-' {
                return refuse(format!(
                    "Invalid format specifier '{text}' for object of type 'str'"
                ));
            }
            let cut: String = match spec.precision {
                Some(most) => it.chars().take(most).collect(),
                None => it.to_string(),
            };
            Ok(spec.padded("", &cut, '<'))
        }
        Value::Bool(_) | Value::Int(_) => {
            let spec = Spec::read(text)?;
            let number = value.as_int().unwrap_or(0);
            match spec.kind {
                None | Some('d' | 'b' | 'o' | 'x' | 'X') => int(number, spec),
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => float(number as f64, spec),
                Some('c') => match u32::try_from(number).ok().and_then(char::from_u32) {
                    Some(letter) => Ok(spec.padded("", &letter.to_string(), '<')),
                    None => refuse("%c arg not in range(0x110000)"),
                },
                Some(kind) => refuse(format!(
                    "Unknown format code '{kind}' for object of type 'int'"
                )),
            }
        }
        Value::Float(number) => float(*number, Spec::read(text)?),
        other => refuse(format!(
            "unsupported format string passed to {}.__format__",
            other.type_name()
        )),
    }
}

fn signed(is_negative: bool, spec: &Spec) -> String {
    match (is_negative, spec.sign) {
        (true, _) => "-".to_string(),
        (false, '-') => String::new(),
        (false, sign) => sign.to_string(),
    }
}

/// Digits with separators, filled up with zeros to a width.
fn grouped(digits: &str, size: usize, separator: Option<char>, width: usize) -> String {
    let Some(separator) = separator else {
        return format!("{digits:0>width$}");
    };
    let mut reversed = String::new();
    let mut letters = digits.chars().rev();
    let mut count = 0;
    loop {
        let digit = match letters.next() {
            Some(digit) => digit,
            None if reversed.len() < width => '0',
            None => break,
        };
        if count > 0 && count % size == 0 {
            reversed.push(separator);
        }
        reversed.push(digit);
        count += 1;
    }
    reversed.chars().rev().collect()
}

fn int(number: i128, mut spec: Spec) -> Result<String> {
    if spec.precision.is_some() {
        return refuse("Precision not allowed in integer format specifier");
    }
    let kind = spec.kind.unwrap_or('d');
    let mut sign = signed(number < 0, &spec);
    if spec.is_alternate && kind != 'd' {
        sign.push('0');
        sign.push(kind);
    }
    let digits = printf::radix(number.unsigned_abs(), kind);
    if spec.group == Some(',') && kind != 'd' {
        return refuse(format!("Cannot specify ',' with '{kind}'."));
    }
    let size = if kind == 'd' { 3 } else { 4 };
    let width = spec.zero_width(&sign);
    let body = grouped(&digits, size, spec.group, width);
    Ok(spec.padded(&sign, &body, '>'))
}

impl Spec {
    /// The digits that zeros fill up to, where that is how the width is filled.
    fn zero_width(&mut self, sign: &str) -> usize {
        if self.align == Some('0') {
            self.align = Some('=');
        }
        let is_filled = self.align == Some('=') && self.fill == '0';
        if is_filled {
            self.width.saturating_sub(sign.len())
        } else {
            0
        }
    }
}

fn float(number: f64, mut spec: Spec) -> Result<String> {
    let sign = signed(number.is_sign_negative() && !number.is_nan(), &spec);
    let value = number.abs();
    let text = match spec.kind {
        None if !value.is_finite() => printf::float(value, 'g', 6, false),
        None => match spec.precision {
            None => crate::print::float(value),
            Some(precision) => {
                let precision = precision.max(1);
                let text = printf::general(value, precision, spec.is_alternate, precision - 1);
                let is_whole = text.bytes().all(|byte| byte.is_ascii_digit());
                if is_whole { text + ".0" } else { text }
            }
        },
        Some('%') => {
            let precision = spec.precision.unwrap_or(6);
            printf::float(value * 100.0, 'f', precision, spec.is_alternate) + "%"
        }
        Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
            printf::float(value, kind, spec.precision.unwrap_or(6), spec.is_alternate)
        }
        Some(kind) => {
            return refuse(format!(
                "Unknown format code '{kind}' for object of type 'float'"
            ));
        }
    };
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(whole);
    let width = spec.zero_width(&sign).saturating_sub(rest.len());
    let body = if digits.is_empty() {
        text.clone()
    } else {
        grouped(digits, 3, spec.group, width) + rest
    };
    Ok(spec.padded(&sign, &body, '>'))
}
