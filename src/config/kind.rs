//! The kinds of value that a setting can have, and how text becomes one. The same rules read the
//! command line, strings in a settings file and the defaults in the flag table, so that one value
//! is never understood in two ways.

/// A value as typed, checked for kind and range.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<String>),
}

/// Ranges that a float can be held to; each is a sentence in messages and in the reference page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    NotNegative,
    /// 0 to 1, both included.
    Fraction,
    /// From 0 up to, but not including, 1.
    BelowOne,
    /// From 0 up to, but not including, 100.
    Percent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Bool,
    /// A whole number that is at least `min`.
    Int {
        min: i64,
    },
    Float(Range),
    /// A whole number that is at least 1, or `auto`.
    CountOrAuto,
    /// A word or list of words that we interpret further on.
    Text,
    /// Free text, which may begin with a hyphen.
    Prose,
    Path,
    /// One or more paths: several values after one flag, or the flag several times.
    Paths,
    Choice(&'static [&'static str]),
    /// One or more words.
    Words,
    /// A number of bytes: `500MB`, `10GiB`, `4096`.
    Bytes,
    /// Nothing, true, false or a path: `--resume_from_checkpoint [PATH]`.
    FlagOrPath,
    /// Nothing, true, false or what is to be computed twice:
    /// `--gradient_checkpointing [full|attention|every:K]`.
    Checkpointing,
    /// Whatever may be written after a flag that is known but not built.
    Anything,
}

impl Range {
    fn holds(self, x: f64) -> bool {
        match self {
            Range::NotNegative => x >= 0.0 && x.is_finite(),
            Range::Fraction => (0.0..=1.0).contains(&x),
            Range::BelowOne => (0.0..1.0).contains(&x),
            Range::Percent => (0.0..100.0).contains(&x),
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Range::NotNegative => "a number that is 0 or more",
            Range::Fraction => "a number from 0 to 1",
            Range::BelowOne => "a number from 0 to less than 1",
            Range::Percent => "a number from 0 to less than 100",
        }
    }
}

impl Kind {
    /// Completes "must be ...".
    pub fn expected(self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Int { min: 0 } => "a whole number that is 0 or more".into(),
            Kind::Int { min } => format!("a whole number that is at least {min}"),
            Kind::Float(range) => range.describe().into(),
            Kind::CountOrAuto => "a whole number that is at least 1, or auto".into(),
            Kind::Text | Kind::Prose | Kind::Anything => "a text".into(),
            Kind::Path => "a path".into(),
            Kind::Paths => "one or more paths".into(),
            Kind::Words => "one or more words".into(),
            Kind::Bytes => "a size such as 500MB or 10GiB".into(),
            Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
            Kind::FlagOrPath => "true, false or a path".into(),
            Kind::Checkpointing => {
                "true, false, full, attention or every:K with K at least 1".into()
            }
        }
    }

    /// How the value is named in help.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Bool => "true|false",
            Kind::Checkpointing => "full|attention|every:K",
            Kind::Int { .. } => "N",
            Kind::CountOrAuto => "N|auto",
            Kind::Float(_) => "X",
            Kind::Text | Kind::Prose | Kind::Anything => "TEXT",
            Kind::Path | Kind::FlagOrPath => "PATH",
            Kind::Paths => "FILE",
            Kind::Words => "ID",
            Kind::Bytes => "SIZE",
            Kind::Choice(_) => "NAME",
        }
    }

    /// Reads one text; `None` when it is not of this kind or outside its range.
    pub fn parse(self, text: &str) -> Option<Value> {
        match self {
            Kind::Bool => parse_bool(text).map(Value::Bool),
            Kind::Int { min } => parse_int(text).filter(|n| *n >= min).map(Value::Int),
            Kind::Float(range) => parse_float(text)
                .filter(|x| range.holds(*x))
                .map(Value::Float),
            Kind::CountOrAuto if text == "auto" => Some(Value::Text(text.into())),
            Kind::CountOrAuto => Kind::Int { min: 1 }.parse(text),
            Kind::Prose | Kind::Anything => Some(Value::Text(text.into())),
            Kind::Text | Kind::Path if text.is_empty() => None,
            Kind::Text | Kind::Path => Some(Value::Text(text.into())),
            Kind::Bytes => parse_bytes(text).map(Value::Int),
            Kind::Paths | Kind::Words => (!text.is_empty()).then(|| Value::List(vec![text.into()])),
            Kind::Choice(choices) => choices.contains(&text).then(|| Value::Text(text.into())),
            Kind::Checkpointing => match (parse_bool(text), text.strip_prefix("every:")) {
                (Some(true), _) => Some(Value::Text("full".into())),
                (Some(false), _) => Some(Value::Text("off".into())),
                (None, Some(layers)) => Kind::Int { min: 1 }
                    .parse(layers)
                    .map(|_| Value::Text(text.into())),
                _ => ["full", "attention", "off"]
                    .contains(&text)
                    .then(|| Value::Text(text.into())),
            },
            Kind::FlagOrPath => match parse_bool(text) {
                Some(answer) => Some(Value::Bool(answer)),
                None => (!text.is_empty()).then(|| Value::Text(text.into())),
            },
        }
    }
}

/// The spellings that Hugging Face's argument parser takes.
fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "t" | "y" | "1" => Some(true),
        "false" | "no" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// Python's `int()`, and also whole numbers written as floats, because TrainingArguments keeps its
/// step counts as floats.
fn parse_int(text: &str) -> Option<i64> {
    /// Beyond this not every whole number is a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let text = without_underscores(text.trim())?;
    let whole = |x: &f64| x.fract() == 0.0 && x.abs() < EXACT;
    text.parse()
        .ok()
        .or_else(|| text.parse::<f64>().ok().filter(whole).map(|x| x as i64))
}

/// A number with a unit: decimal (`kB`, `MB`, ...) or binary (`KiB`, `MiB`, ...), bytes without
/// one.
fn parse_bytes(text: &str) -> Option<i64> {
    let text = text.trim();
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = (text[..split].trim(), text[split..].to_ascii_lowercase());
    let (power, base): (i32, f64) = match unit.as_str() {
        "" | "b" => (0, 1.0),
        _ => {
            let base = if unit.ends_with("ib") { 1024.0 } else { 1000.0 };
            let letter = unit.trim_end_matches("ib").trim_end_matches('b');
            (
                1 + ["k", "m", "g", "t"]
                    .iter()
                    .position(|known| *known == letter)? as i32,
                base,
            )
        }
    };
    let bytes = parse_float(number)? * base.powi(power);
    (bytes >= 0.0 && bytes < i64::MAX as f64).then_some(bytes as i64)
}

/// Python's `float()`; what is not a number or not finite is caught by the ranges.
fn parse_float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// Removes underscores that stand between two digits; anywhere else they make the number wrong.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let legal = bytes
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'_')
        .all(|(i, _)| {
            i > 0
                && bytes[i - 1].is_ascii_digit()
                && bytes.get(i + 1).is_some_and(|next| next.is_ascii_digit())
        });
    legal.then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        let kind = Kind::Float(Range::NotNegative);
        for (text, value) in [
            ("5e-5", 5e-5),
            ("5E-05", 5e-5),
            (".5", 0.5),
            ("5.", 5.0),
            ("+1", 1.0),
            (" 1_000.5 ", 1000.5),
            ("0", 0.0),
        ] {
            assert_eq!(kind.parse(text), Some(Value::Float(value)), "{text}");
        }
        for text in [
            "", "fast", "-1", "nan", "inf", "1__0", "_1", "1_", "0x10", "1e",
        ] {
            assert_eq!(kind.parse(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_keep_their_bounds() {
        let kind = Kind::Int { min: 1 };
        for text in ["1_000", "1000.0", "1e3", "+1000"] {
            assert_eq!(kind.parse(text), Some(Value::Int(1000)), "{text}");
        }
        for text in ["0", "-3", "1.5", "", "nan", "inf", "99999999999999999999"] {
            assert_eq!(kind.parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_take_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1kB", 1000),
            ("1.5 KiB", 1536),
            ("10GiB", 10 << 30),
            ("2G", 2_000_000_000),
            ("1tib", 1 << 40),
        ] {
            assert_eq!(Kind::Bytes.parse(text), Some(Value::Int(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "5 apples", "1iB", "1e30TB", "10GiBs"] {
            assert_eq!(Kind::Bytes.parse(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_include_what_they_say() {
        assert!(Kind::Float(Range::Fraction).parse("1").is_some());
        assert!(Kind::Float(Range::Fraction).parse("1.01").is_none());
        assert!(Kind::Float(Range::BelowOne).parse("1").is_none());
        assert!(Kind::Float(Range::Percent).parse("99.5").is_some());
        assert!(Kind::Float(Range::Percent).parse("100").is_none());
    }

    #[test]
    fn booleans_take_the_usual_spellings() {
        for text in ["true", "True", "yes", "1"] {
            assert_eq!(Kind::Bool.parse(text), Some(Value::Bool(true)));
        }
        assert_eq!(Kind::Bool.parse("maybe"), None);
        assert_eq!(Kind::FlagOrPath.parse("False"), Some(Value::Bool(false)));
        assert_eq!(
            Kind::FlagOrPath.parse("out/checkpoint-5"),
            Some(Value::Text("out/checkpoint-5".into()))
        );
    }
}
