//! Values of CSV as pandas has them, and so `datasets`: what stands for no value, and columns that
//! hold truth values or numbers alone.

use std::collections::HashMap;

use super::cell::Cell;

/// Texts that stand for no value, quoted or not.
const MISSING: [&str; 18] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan",
];

/// `null` is the last of them.
fn is_missing(text: &str) -> bool {
    MISSING.contains(&text) || text == "null"
}

/// What all values of a column are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// There is none.
    Missing,
    Bool,
    Integer,
    /// Whole numbers, some of which are beyond 64 bits: `datasets` cannot store them.
    Huge,
    Float,
    Text,
}

/// Finds a column's kind by its values, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Values {
    seen: bool,
    not_bool: bool,
    not_float: bool,
    not_integer: bool,
    negative: bool,
    /// A number that is no `i64`.
    large: bool,
    huge: bool,
}

impl Values {
    pub fn add(&mut self, text: &str) {
        if self.not_bool && self.not_float || is_missing(text) {
            return;
        }
        self.seen = true;
        self.not_bool = self.not_bool || truth(text).is_none();
        if self.not_float {
            return;
        }
        match integer(text) {
            Some(Integer { negative, value }) => match value {
                None => self.huge = true,
                Some(value) => {
                    self.negative |= negative;
                    let most = i64::MAX as u64 + u64::from(negative);
                    self.huge |= negative && value > most;
                    self.large |= !negative && value > most;
                }
            },
            None => {
                self.not_integer = true;
                self.not_float = float(text).is_none();
            }
        }
    }

    pub fn kind(&self) -> Kind {
        if !self.seen {
            Kind::Missing
        } else if !self.not_integer {
            match (self.huge, self.large && self.negative) {
                (true, _) => Kind::Huge,
                (false, true) => Kind::Text,
                (false, false) => Kind::Integer,
            }
        } else if !self.not_float && !self.huge {
            Kind::Float
        } else if !self.not_bool {
            Kind::Bool
        } else {
            Kind::Text
        }
    }
}

impl Kind {
    /// The cell of a text in a column of this kind.
    ///
    /// # Errors
    /// The text is of another kind: it stands behind the rows that the kind was found by.
    pub fn cell(self, text: &str) -> Result<Cell, String> {
        if is_missing(text) {
            return Ok(Cell::Missing);
        }
        let found = match self {
            Kind::Text => Some(Cell::Text(text.to_string())),
            Kind::Bool => truth(text).map(|value| Cell::Number(value.to_string())),
            Kind::Integer => whole(text),
            Kind::Float => float(text).map(Cell::fraction),
            Kind::Huge => {
                return Err(format!(
                    "{text} is beyond 64 bits, which datasets cannot store"
                ));
            }
            Kind::Missing => None,
        };
        let column = match self {
            Kind::Missing => "no value",
            Kind::Bool => "truth values",
            Kind::Integer | Kind::Huge => "whole numbers",
            Kind::Float => "numbers",
            Kind::Text => "text",
        };
        found.ok_or_else(|| {
            format!("it is {text:?} in a column whose first {FIRST} rows hold {column} alone, and pandas takes those for its kind")
        })
    }
}

/// Watches a column of text. pandas finds a column's kind anew every [`FIRST`] rows, and `datasets` writes
/// what it took for numbers in the first kind, text: `007` becomes `7`.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    rows: usize,
    values: Values,
    /// A whole number is written otherwise than it is spelled.
    is_changed: bool,
}

impl Blocks {
    /// Takes the next row's text; false if the rows before it were numbers that are written anew.
    pub fn add(&mut self, text: &str) -> bool {
        let is_same = !self.rows.is_multiple_of(FIRST) || self.end();
        if self.rows >= FIRST {
            self.values.add(text);
            if !self.values.not_float {
                let spelled = || Some(Cell::Number(text.to_string()));
                self.is_changed |= !is_missing(text) && whole(text) != spelled();
            }
        }
        self.rows += 1;
        is_same
    }

    /// The same of the last rows.
    pub fn end(&mut self) -> bool {
        let values = std::mem::take(&mut self.values);
        let is_changed = std::mem::take(&mut self.is_changed);
        match values.kind() {
            Kind::Missing | Kind::Text => true,
            Kind::Integer => !is_changed,
            Kind::Bool | Kind::Float | Kind::Huge => false,
        }
    }
}

/// The names of columns as pandas makes them unique: `a`, `a.1`, and `Unnamed: 2` of a column that
/// has none.
pub fn column_names(header: Vec<String>) -> Vec<String> {
    let mut names = header.clone();
    for (i, name) in names.iter_mut().enumerate() {
        if name.is_empty() {
            *name = format!("Unnamed: {i}");
        }
    }
    let given = names.clone();
    // Those with a name have it before those without.
    let (named, unnamed): (Vec<usize>, Vec<usize>) =
        (0..names.len()).partition(|i| !header[*i].is_empty());
    let mut counts: HashMap<String, usize> = HashMap::new();
    for i in named.into_iter().chain(unnamed) {
        let first = given[i].clone();
        let mut name = first.clone();
        let mut count = counts.get(&name).copied().unwrap_or(0);
        while count > 0 {
            counts.insert(first.clone(), count + 1);
            name = format!("{first}.{count}");
            count = if names.contains(&name) {
                count + 1
            } else {
                counts.get(&name).copied().unwrap_or(0)
            };
        }
        counts.insert(name.clone(), count + 1);
        names[i] = name;
    }
    names
}

/// Rows by which a column's kind is found: what `datasets` reads at once.
pub const FIRST: usize = 10_000;

/// `True` in any case.
fn truth(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

struct Integer {
    negative: bool,
    /// `None` beyond 64 bits.
    value: Option<u64>,
}

/// C's white space.
fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

fn integer(text: &str) -> Option<Integer> {
    let text = trimmed(text);
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_integer.then(|| Integer {
        negative: text.starts_with('-'),
        value: digits.parse().ok(),
    })
}

/// A whole number without what its spelling adds: a plus, zeros, white space. A fraction of zero is
/// one, too, behind the rows that the kind was found by.
fn whole(text: &str) -> Option<Cell> {
    let Some(Integer { negative, value }) = integer(text) else {
        let value = float(text)?;
        let is_whole = value.fract() == 0.0 && value.abs() < 1e15;
        return is_whole.then(|| Cell::Number((value as i64).to_string()));
    };
    let value = value?;
    let sign = if negative && value != 0 { "-" } else { "" };
    Some(Cell::Number(format!("{sign}{value}")))
}

fn float(text: &str) -> Option<f64> {
    let text = trimmed(text);
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let named = ["inf", "infinity"];
    let is_named = named.iter().any(|name| digits.eq_ignore_ascii_case(name));
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    (is_named || is_number)
        .then(|| text.parse::<f64>().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[&str]) -> Kind {
        let mut found = Values::default();
        values.iter().for_each(|value| found.add(value));
        found.kind()
    }

    #[test]
    fn a_column_has_the_kind_of_all_its_values() {
        for (values, wanted) in [
            (&["", "NA", "null"][..], Kind::Missing),
            (&["True", "false", "", "tRue"], Kind::Bool),
            (&["True", "1"], Kind::Text),
            (&["007", "+5", " 1 ", "-0", "NaN"], Kind::Integer),
            (&["1", "2.0"], Kind::Float),
            (
                &[".5", "1.", "1e5", "1E+5", "inf", "-Infinity"],
                Kind::Float,
            ),
            (&["1,000"], Kind::Text),
            (&["1_000"], Kind::Text),
            (&["0x10"], Kind::Text),
            (&["-"], Kind::Text),
            (&["."], Kind::Text),
            (&["1", "x", "01"], Kind::Text),
            (&["none", "Null"], Kind::Text),
            (&["18446744073709551615"], Kind::Integer),
            (&["18446744073709551615", "-1"], Kind::Text),
            (&["18446744073709551616"], Kind::Huge),
            (&["-9223372036854775809"], Kind::Huge),
            (&["18446744073709551616", "0.5"], Kind::Text),
        ] {
            assert_eq!(kind(values), wanted, "{values:?}");
        }
    }

    #[test]
    fn later_rows_of_numbers_alone_are_noticed() {
        let of = |later: &[&str]| {
            let mut blocks = Blocks::default();
            let first = (0..FIRST).all(|_| blocks.add("x"));
            first && later.iter().all(|text| blocks.add(text)) && blocks.end()
        };
        assert!(of(&["7", "", "8"]) && of(&["007", "x"]) && of(&[]));
        assert!(!of(&["007", "8"]) && !of(&["1.5"]) && !of(&["True"]));
        assert!(!of(&vec!["007"; FIRST + 1]));
    }

    #[test]
    fn columns_of_one_name_are_numbered() {
        for (header, wanted) in [
            (&["a", "b"][..], &["a", "b"][..]),
            (&["a", "a", "a"], &["a", "a.1", "a.2"]),
            (&["a", "a", "a.1"], &["a", "a.2", "a.1"]),
            (&["", "a", ""], &["Unnamed: 0", "a", "Unnamed: 2"]),
        ] {
            let header = header.iter().map(|name| name.to_string()).collect();
            assert_eq!(column_names(header), wanted);
        }
    }

    #[test]
    fn cells_have_their_columns_kind() {
        let number = |text: &str| Ok(Cell::Number(text.to_string()));
        assert_eq!(Kind::Integer.cell("+007"), number("7"));
        assert_eq!(Kind::Integer.cell("-0"), number("0"));
        assert_eq!(Kind::Integer.cell("n/a"), Ok(Cell::Missing));
        assert_eq!(Kind::Integer.cell("2.0"), number("2"));
        assert_eq!(Kind::Float.cell("1"), number("1.0"));
        assert_eq!(Kind::Bool.cell("TRUE"), number("true"));
        assert_eq!(Kind::Text.cell("007"), Ok(Cell::Text("007".into())));
        let error = Kind::Integer.cell("many").unwrap_err();
        assert!(error.contains("whole numbers alone"), "{error}");
        let error = Kind::Huge.cell("18446744073709551616").unwrap_err();
        assert!(error.contains("beyond 64 bits"), "{error}");
    }
}
