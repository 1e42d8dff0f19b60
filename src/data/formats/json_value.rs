//! JSON values as cells, with the numbers, keys and times that Arrow knows.

use std::collections::HashMap;
use std::fmt;

use chrono::NaiveDate;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::cell::Cell;

/// How deep in brackets and strings a text is.
#[derive(Default)]
pub(super) struct End {
    pub depth: u32,
    pub in_string: bool,
    escaped: bool,
    /// A bracket was seen.
    began: bool,
}

impl End {
    pub fn step(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => (self.depth, self.began) = (self.depth + 1, true),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Bytes up to the end of the value that was begun, if it ends in these.
    pub fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            self.step(byte);
            if self.began && self.depth == 0 {
                return Some(at + 1);
            }
        }
        None
    }

    /// Whether more lines can end it. A string has no line breaks.
    pub fn is_open(&self) -> bool {
        self.depth > 0 && !self.in_string
    }
}

/// The cell of a text that is JSON.
pub(super) fn cell_of_json(text: &str) -> Option<Cell> {
    parse(text.as_bytes(), true).ok()
}

/// What is wrong, without the place.
pub(super) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_string()
}

/// A value as a cell. `is_strict`: keys may not occur twice, and numbers are not rounded, which
/// `datasets` does to those in arrays.
pub(super) fn parse(bytes: &[u8], is_strict: bool) -> serde_json::Result<Cell> {
    let read = |bytes: &[u8]| {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let cell = Seed { is_strict }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(cell)
    };
    read(bytes).or_else(|error: serde_json::Error| match with_named_numbers(bytes) {
        Some(bytes) => read(&bytes),
        None => Err(error),
    })
}

/// What stands for a number that JSON cannot write, within a string.
const NAMED_NUMBER: &str = "\u{0}number:";

/// The numbers that Python writes and JSON lacks.
const NAMED: [(&[u8], &str); 3] = [
    (b"-Infinity", "-inf"),
    (b"Infinity", "inf"),
    (b"NaN", "NaN"),
];

/// The same bytes with strings in the place of named numbers; `None` where there are none.
fn with_named_numbers(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut found = false;
    let mut end = End::default();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let named = NAMED.iter().find(|(name, _)| bytes[at..].starts_with(name));
        match named {
            Some((name, number)) if !end.in_string => {
                out.extend_from_slice(format!("\"\\u0000number:{number}\"").as_bytes());
                at += name.len();
                found = true;
            }
            _ => {
                end.step(bytes[at]);
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    found.then_some(out)
}

/// Decimals that `datasets` keeps of an array's numbers.
const DECIMALS: usize = 10;
/// From there on it keeps all digits.
const ALL_DIGITS: f64 = 1e16;

/// Keys of an object that are compared one by one.
const FEW_KEYS: usize = 16;

/// Makes a cell of a value.
#[derive(Clone, Copy)]
struct Seed {
    is_strict: bool,
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Cell;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cell, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Cell, E> {
        Ok(Cell::Number(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Cell, E> {
        Ok(Cell::Number(value.to_string()))
    }

    /// Arrow has no whole numbers beyond `i64` here.
    fn visit_u64<E>(self, value: u64) -> Result<Cell, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Cell::Number(value.to_string()),
            Err(_) => Cell::fraction(value as f64),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Cell, E> {
        let rounded = if self.is_strict || value.abs() >= ALL_DIGITS {
            None
        } else {
            format!("{value:.DECIMALS$}").parse().ok()
        };
        Ok(Cell::fraction(rounded.unwrap_or(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cell, E> {
        Ok(match value.strip_prefix(NAMED_NUMBER) {
            // Null in arrays.
            Some("NaN") if !self.is_strict => Cell::Missing,
            Some(number) => Cell::Number(number.to_string()),
            None => Cell::Text(value.to_string()),
        })
    }

    fn visit_unit<E>(self) -> Result<Cell, E> {
        Ok(Cell::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Cell, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = seq.next_element_seed(self)? {
            cells.push(cell);
        }
        Ok(Cell::List(cells))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Cell, A::Error> {
        let mut fields: Vec<(String, Cell)> = Vec::new();
        // Of objects with many keys.
        let mut places = HashMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let cell = map.next_value_seed(self)?;
            if fields.len() == FEW_KEYS {
                places = fields
                    .iter()
                    .enumerate()
                    .map(|(i, (key, _))| (key.clone(), i))
                    .collect();
            }
            let place = if fields.len() < FEW_KEYS {
                fields.iter().position(|(known, _)| *known == key)
            } else {
                places.get(&key).copied()
            };
            match place {
                Some(_) if self.is_strict => {
                    let reason = format!("the key {key:?} occurs twice in one object");
                    return Err(serde::de::Error::custom(reason));
                }
                Some(place) => fields[place].1 = cell,
                None => {
                    if fields.len() >= FEW_KEYS {
                        places.insert(key.clone(), fields.len());
                    }
                    fields.push((key, cell));
                }
            }
        }
        Ok(Cell::Fields(fields))
    }
}

/// Whether Arrow takes a text for a time: a date of ISO 8601, and if there is more a time of the day
/// with its zone. A column of nothing else is one of times.
pub(super) fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize, most: u32| {
        let digits = text.get(from..to).filter(|_| bytes.len() >= to);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits
            .and_then(|digits| digits.parse::<u32>().ok())
            .filter(|number| *number <= most)
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let day = (number(0, 4, 9999).zip(number(5, 7, 12))).zip(number(8, 10, 31));
    let date = is(4, b"-")
        && is(7, b"-")
        && day.is_some_and(|((year, month), day)| {
            NaiveDate::from_ymd_opt(year as i32, month, day).is_some()
        });
    if !date || bytes.len() == 10 {
        return date;
    }
    if !is(10, b" T") || number(11, 13, 23).is_none() {
        return false;
    }
    let mut at = 13;
    while at <= 16 && is(at, b":") && number(at + 1, at + 3, 59).is_some() {
        at += 3;
    }
    match &bytes[at..] {
        b"" | b"Z" => true,
        [b'+' | b'-', zone @ ..] => {
            let digits: Vec<u8> = zone.iter().copied().filter(|byte| *byte != b':').collect();
            [2, 4].contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_iso_8601() {
        for text in [
            "2020-01-01",
            "2020-01-01 10:00:00",
            "2020-01-01T10:00Z",
            "2020-01-01T10:00:00+02:00",
            "2020-01-01 10",
        ] {
            assert!(is_time(text), "{text}");
        }
        for text in [
            "2020-1-1",
            "20200101",
            "2020-13-01",
            "2020-01-01x",
            "2020-01-01 10:00:00.5",
            "2020-01-01 25:00",
            "2021-02-29",
            "",
            "é020-01-01",
        ] {
            assert!(!is_time(text), "{text}");
        }
    }
}
