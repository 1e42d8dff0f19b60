//! `text % values`, and how numbers are written there and by `str.format`.

use crate::error::{Result, refuse};
use crate::meter;
use crate::value::Value;

/// What stands between `%` and its letter.
#[derive(Default)]
struct Spec {
    is_left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
}

/// The values, in their order or by name.
struct Values<'a> {
    all: &'a Value,
    items: Vec<Value>,
    used: usize,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value> {
        let Some(value) = self.items.get(self.used) else {
            return refuse("not enough arguments for format string");
        };
        self.used += 1;
        Ok(value.clone())
    }

    fn number(&mut self) -> Result<i128> {
        match self.next()?.as_int() {
            Some(value) => Ok(value),
            None => refuse("* wants int"),
        }
    }
}

/// `text % values`.
pub(crate) fn format(text: &str, all: &Value) -> Result<String> {
    let items = match all {
        Value::Tuple(seq) => seq.items.clone(),
        single => vec![single.clone()],
    };
    let mut values = Values {
        all,
        items,
        used: 0,
    };
    let mut out = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut named = None;
        if letters.next_if_eq(&'(').is_some() {
            let (mut name, mut depth) = (String::new(), 1);
            loop {
                match letters.next() {
                    None => return refuse("incomplete format key"),
                    Some(')') if depth == 1 => break,
                    Some(letter) => {
                        depth += i32::from(letter == '(') - i32::from(letter == ')');
                        name.push(letter);
                    }
                }
            }
            named = Some(name);
        }
        let spec = Spec::read(&mut letters, &mut values)?;
        while matches!(letters.peek(), Some('h' | 'l' | 'L')) {
            letters.next();
        }
        let Some(kind) = letters.next() else {
            return refuse("incomplete format");
        };
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match (&named, all) {
            (Some(name), Value::Dict(dict)) => match dict.get_str(name) {
                Some(value) => value.clone(),
                None => return refuse(format!("KeyError: '{name}'")),
            },
            (Some(_), _) => return refuse("format requires a mapping"),
            (None, _) => values.next()?,
        };
        let text = spec.write(kind, &value)?;
        meter::spend_bytes(text.len())?;
        out.push_str(&text);
    }
    let takes_more = matches!(
        values.all,
        Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_)
    );
    if values.used < values.items.len() && !takes_more {
        return refuse("not all arguments converted during string formatting");
    }
    Ok(out)
}

impl Spec {
    fn read(
        letters: &mut std::iter::Peekable<std::str::Chars<'_>>,
        values: &mut Values<'_>,
    ) -> Result<Spec> {
        let mut spec = Spec::default();
        while let Some(flag) = letters.next_if(|it| "-+ #0".contains(*it)) {
            match flag {
                '-' => spec.is_left = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '#' => spec.alternate = true,
                _ => spec.zeros = true,
            }
        }
        if letters.next_if_eq(&'*').is_some() {
            let width = values.number()?;
            spec.is_left |= width < 0;
            spec.width = width.unsigned_abs().try_into().unwrap_or(usize::MAX);
        } else {
            spec.width = digits(letters)?.unwrap_or(0);
        }
        if letters.next_if_eq(&'.').is_some() {
            spec.precision = Some(if letters.next_if_eq(&'*').is_some() {
                values.number()?.max(0).try_into().unwrap_or(usize::MAX)
            } else {
                digits(letters)?.unwrap_or(0)
            });
        }
        meter::spend_bytes(spec.width)?;
        meter::spend_bytes(spec.precision.unwrap_or(0))?;
        Ok(spec)
    }

    fn write(&self, kind: char, value: &Value) -> Result<String> {
        let (sign, body) = match kind {
            's' | 'r' | 'a' => {
                let text = match kind {
                    's' => value.to_text()?,
                    'r' => value.repr()?,
                    _ => ascii(&value.repr()?),
                };
                let cut = match self.precision {
                    Some(most) => text.chars().take(most).collect(),
                    None => text,
                };
                return Ok(self.padded("", &cut, false));
            }
            'c' => {
                let letter = match value.as_str() {
                    Some(text) if text.chars().count() == 1 => text.to_string(),
                    _ => match value.as_int().and_then(|code| u32::try_from(code).ok()) {
                        Some(code) => char::from_u32(code).into_iter().collect(),
                        None => return refuse("%c requires int or char"),
                    },
                };
                return Ok(self.padded("", &letter, false));
            }
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
                let number = match value {
                    Value::Float(value) if "diu".contains(kind) && value.is_finite() => {
                        *value as i128
                    }
                    other => match other.defined()?.as_int() {
                        Some(number) => number,
                        None => {
                            return refuse(format!(
                                "%{kind} format: a real number is required, not {}",
                                value.type_name()
                            ));
                        }
                    },
                };
                let mut body = radix(number.unsigned_abs(), kind);
                if let Some(least) = self.precision {
                    let zeros = least.saturating_sub(body.len());
                    body.insert_str(0, &"0".repeat(zeros));
                }
                let prefix = match kind {
                    'o' | 'x' | 'X' if self.alternate => format!("0{kind}"),
                    _ => String::new(),
                };
                (self.sign(number < 0) + &prefix, body)
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = match value.defined()? {
                    Value::Float(value) => *value,
                    other => match other.as_int() {
                        Some(value) => value as f64,
                        None => {
                            let kind = value.type_name();
                            return refuse(format!("must be real number, not {kind}"));
                        }
                    },
                };
                let precision = self.precision.unwrap_or(6);
                let body = float(number.abs(), kind, precision, self.alternate);
                let sign = self.sign(number.is_sign_negative() && !number.is_nan());
                (sign, body)
            }
            other => {
                return refuse(format!("unsupported format character '{other}'"));
            }
        };
        Ok(self.padded(&sign, &body, true))
    }

    fn sign(&self, is_negative: bool) -> String {
        match () {
            () if is_negative => "-",
            () if self.plus => "+",
            () if self.space => " ",
            () => "",
        }
        .to_string()
    }

    fn padded(&self, sign: &str, body: &str, is_number: bool) -> String {
        let room = self.width.saturating_sub(sign.len() + body.chars().count());
        if self.is_left {
            format!("{sign}{body}{}", " ".repeat(room))
        } else if self.zeros && is_number {
            format!("{sign}{}{body}", "0".repeat(room))
        } else {
            format!("{}{sign}{body}", " ".repeat(room))
        }
    }
}

fn digits(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let mut text = String::new();
    while let Some(digit) = letters.next_if(char::is_ascii_digit) {
        text.push(digit);
    }
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(value) if value <= i32::MAX as usize => Ok(Some(value)),
        _ => refuse("width or precision too big"),
    }
}

/// `ascii()` of what `repr()` gave.
pub(crate) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match u32::from(letter) {
            ..=0x7f => out.push(letter),
            code @ ..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}

/// A whole number's digits.
pub(crate) fn radix(value: u128, kind: char) -> String {
    match kind {
        'b' => format!("{value:b}"),
        'o' => format!("{value:o}"),
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        _ => value.to_string(),
    }
}

/// A float that is not negative, by a letter of C's `printf`.
pub(crate) fn float(value: f64, kind: char, precision: usize, is_alternate: bool) -> String {
    let is_upper = kind.is_ascii_uppercase();
    let text = match () {
        () if value.is_nan() => "nan".to_string(),
        () if value.is_infinite() => "inf".to_string(),
        () => match kind.to_ascii_lowercase() {
            'f' => {
                let value = if precision == 0 {
                    value.round_ties_even()
                } else {
                    value
                };
                let text = format!("{value:.precision$}");
                if is_alternate && precision == 0 {
                    text + "."
                } else {
                    text
                }
            }
            'e' => exponential(value, precision, is_alternate),
            _ => general(value, precision.max(1), is_alternate, precision.max(1)),
        },
    };
    if is_upper { text.to_uppercase() } else { text }
}

fn exponential(value: f64, precision: usize, is_alternate: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    let point = if is_alternate && precision == 0 {
        "."
    } else {
        ""
    };
    format!("{digits}{point}e{sign}{:02}", exponent.abs())
}

/// `precision` significant digits; a value of at least ten to the power of `most` has an exponent.
pub(crate) fn general(value: f64, precision: usize, keeps_zeros: bool, most: usize) -> String {
    let text = format!("{value:.*e}", precision - 1);
    let exponent = text.split_once('e').map_or("0", |(_, exponent)| exponent);
    let exponent: i64 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= most as i64 {
        let text = exponential(value, precision - 1, keeps_zeros);
        if keeps_zeros {
            return text;
        }
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let decimals = (precision as i64 - 1 - exponent).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if keeps_zeros {
        text
    } else {
        without_zeros(&text).to_string()
    }
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}
