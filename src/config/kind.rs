//! The kinds of value that a setting can have. A kind is a type: it says what text it reads, what
//! the value's Rust type is, and how help and messages name it. The same rules read the command
//! line, strings in a settings file and the defaults in the flag table, so that one value is never
//! understood in two ways.

use super::command::CommandName;
use std::fmt::{self, Debug};
use std::ops::RangeBounds;
use std::path::PathBuf;
use xtrain_data::remote;

/// How a value is written: on the command line how many words follow the flag, in a settings file
/// what may stand beside a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A word that may be missing, which means true. File: a boolean.
    Switch,
    /// One word, which may begin with a hyphen. File: a number.
    Number,
    /// One word.
    Word,
    /// One word of `name=value` pairs. File: also a table.
    Pairs,
    /// One word, which may begin with a hyphen.
    Prose,
    /// One or more words after the flag, or the flag several times. File: a list of strings.
    List,
    /// All words after the command that belong to no flag. File: a list of strings.
    Positional,
    /// Whatever follows a flag that is known but not built. File: anything.
    Anything,
}

/// Why a text is not a value of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// It is something else than the kind's `expected` says.
    Kind,
    /// A whole number beyond the largest that the kind takes.
    TooLarge(u64),
    /// It has another form; `problem` completes `--flag: `.
    Form { problem: String, fix: &'static str },
}

pub trait Kind {
    type Value: Clone + Debug + PartialEq;
    const FORM: Form;
    /// The value's name in help.
    const PLACEHOLDER: &'static str;

    /// Completes "must be ..."; kinds with [`Kind::choices`] need none.
    fn expected() -> String {
        "a text".into()
    }

    /// The words that may be given to `command` (`None`: to any), if they are a list.
    fn choices(_command: Option<CommandName>) -> Vec<&'static str> {
        Vec::new()
    }

    /// # Errors
    /// The text is not a value of this kind, or outside its range.
    fn parse(text: &str) -> Result<Self::Value, Wrong>;

    /// The value of several words; one, for most kinds.
    ///
    /// # Errors
    /// As [`Kind::parse`].
    fn parse_all(texts: &[String]) -> Result<Self::Value, Wrong> {
        Self::parse(&texts.join(" "))
    }
}

/// Kinds whose flags need no default.
pub trait Optional: Kind {
    fn absent() -> Self::Value;
}

/// A kind as data, for what lists flags.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    pub form: Form,
    pub placeholder: &'static str,
    expected: fn() -> String,
    choices: fn(Option<CommandName>) -> Vec<&'static str>,
}

impl KindInfo {
    pub const fn of<K: Kind>() -> KindInfo {
        KindInfo {
            form: K::FORM,
            placeholder: K::PLACEHOLDER,
            expected: K::expected,
            choices: K::choices,
        }
    }

    /// Completes "must be ..."; with a command, as that one has it.
    pub fn expected(&self, command: Option<CommandName>) -> String {
        match self.choices(command)[..] {
            [] => (self.expected)(),
            ref choices => format!("one of {}", choices.join(", ")),
        }
    }

    /// The words of a kind that has a list of them.
    pub fn choices(&self, command: Option<CommandName>) -> Vec<&'static str> {
        (self.choices)(command)
    }
}

/// Nothing, or a value: for flags without a default.
impl<K: Kind> Kind for Option<K> {
    type Value = Option<K::Value>;
    const FORM: Form = K::FORM;
    const PLACEHOLDER: &'static str = K::PLACEHOLDER;

    fn expected() -> String {
        K::expected()
    }

    fn choices(command: Option<CommandName>) -> Vec<&'static str> {
        K::choices(command)
    }

    fn parse(text: &str) -> Result<Self::Value, Wrong> {
        K::parse(text).map(Some)
    }
}

impl<K: Kind> Optional for Option<K> {
    fn absent() -> Self::Value {
        None
    }
}

/// Declares kinds, each by its form, its value's name in help, what completes "must be ..." and the
/// function that reads it: `struct Kind: Value = ...` a type of its own, `for Value = ...` the
/// value's type itself. No word is empty.
macro_rules! kinds {
    ($( $(#[$doc:meta])* struct $kind:ident: $value:ty = $($rest:expr),+; )+) => {$(
        $(#[$doc])*
        pub struct $kind;

        $crate::kind::kinds! { @ $kind, $value, $($rest),+ }
    )+};
    ($( $(#[$doc:meta])* for $kind:ty = $($rest:expr),+; )+) => {$(
        $crate::kind::kinds! { @ $kind, $kind, $($rest),+ }
    )+};
    (@ $kind:ty, $value:ty, $form:expr, $placeholder:expr, $expected:expr, $read:expr) => {
        impl Kind for $kind {
            type Value = $value;
            const FORM: Form = $form;
            const PLACEHOLDER: &'static str = $placeholder;

            fn expected() -> String {
                $expected.into()
            }

            fn parse(text: &str) -> Result<$value, Wrong> {
                if text.is_empty() && Self::FORM == Form::Word {
                    return Err(Wrong::Kind);
                }
                let read: fn(&str) -> Result<$value, Wrong> = $read;
                read(text)
            }
        }
    };
}
pub(super) use kinds;

kinds! {
    for bool = Form::Switch, "true|false", "true or false", |text| parse_bool(text).ok_or(Wrong::Kind);
    /// A seed.
    for u64 = Form::Number, "N", "a whole number that is 0 or more", seed;
    for Interval = Form::Number, "N", "a whole number that is at least 1, or a share of all steps between 0 and 1", interval;
    for Degree = Form::Number, "N|auto", "a whole number that is at least 1, or auto", degree;
    for String = Form::Word, "TEXT", "a text", |text| Ok(text.into());
    for PathBuf = Form::Word, "PATH", "a path", |text| here(text, "copy it to this machine first, and give its path");
}

kinds! {
    /// A number of steps; -1 and 0 mean that it is not set.
    struct MaxSteps: Option<u64> = Form::Number, "N", "a whole number that is at least -1", max_steps;
    struct Positive: f64 = Form::Number, "X", "a number above 0", |text| within(text, f64::MIN_POSITIVE..=f64::MAX);
    struct NotNegative: f64 = Form::Number, "X", "a number that is 0 or more", |text| within(text, 0.0..=f64::MAX);
    /// 0 to 1, both included.
    struct Fraction: f64 = Form::Number, "X", "a number from 0 to 1", |text| within(text, 0.0..=1.0);
    /// From 0 up to, but not including, 1.
    struct BelowOne: f64 = Form::Number, "X", "a number from 0 to less than 1", |text| within(text, 0.0..1.0);
    /// From 0 up to, but not including, 100.
    struct Percent: f64 = Form::Number, "X", "a number from 0 to less than 100", |text| within(text, 0.0..100.0);
    /// A number of bytes: `500MB`, `10GiB`, `4096`.
    struct Bytes: u64 = Form::Number, "SIZE", "a size such as 500MB or 10GiB", |text| parse_bytes(text).ok_or(Wrong::Kind);
    /// Free text, which may be empty or begin with a hyphen.
    struct Prose: String = Form::Prose, "TEXT", "a text", |text| Ok(text.into());
    /// A file or directory that is written.
    struct WrittenPath: PathBuf = Form::Word, "PATH", "a path",
        |text| here(text, "give a path on this machine, and copy what is written there afterwards");
    /// The directory of a run, which may be a bucket's.
    struct RunDir: PathBuf = Form::Word, "PATH", "a path", |text| if is_bucket(text) {
        Ok(text.into())
    } else {
        here(text, "give a path on this machine, or a folder of a bucket (s3://BUCKET/PREFIX, gs://, az://)")
    };
    /// A tar file, read or written.
    struct ArchivePath: PathBuf = Form::Word, "PATH", "a path",
        |text| here(text, "give a path on this machine, and copy the file from there or to there");
    /// The directory of tokenized text and compiled graphs.
    struct CachePath: PathBuf = Form::Word, "PATH", "a path",
        |text| here(text, "give a directory on this machine; `xtrain cache export` and `xtrain cache import` carry graphs to other machines");
    /// A directory or file of a model, or its name on the Hub.
    struct ModelPath: PathBuf = Form::Word, "PATH", "a path",
        |text| here(text, "copy it to this machine first, and give its path; a model on the Hub is NAME or ORGANIZATION/NAME");
    /// The same, or the name of a preset.
    struct ModelName: String = Form::Word, "TEXT", "a text",
        |text| ModelPath::parse(text).map(shown);
    /// The name of a data set on the Hub.
    struct DatasetName: String = Form::Word, "TEXT", "a text",
        |text| here(text, "give its name on the Hub, as ORGANIZATION/NAME, or its files with --train_file, which reads s3:// and https:// too").map(shown);
    /// A place of compiled graphs; rules look at its scheme.
    struct StorePath: PathBuf = Form::Word, "PATH", "a path", |text| Ok(remote::local(text.into()));
    /// A file of data; rules look at its scheme.
    struct DataPath: PathBuf = Form::Word, "PATH", "a path", |text| Ok(text.into());
    /// The output of a run.
    struct RunPath: String = Form::Word, "PATH", "a path", |text| PathBuf::parse(text).map(shown);
    /// The kind of flags that are known but not built.
    struct Anything: String = Form::Anything, "TEXT", "a text", |text| Ok(text.into());
}

/// A path on this machine, also as a `file://` URL. Other schemes are refused, because a path that
/// begins with one would be made here, as a directory of that name.
fn here(text: &str, fix: &'static str) -> Result<PathBuf, Wrong> {
    let path = remote::local(text.into());
    match remote::scheme(&path) {
        None => Ok(path),
        Some(scheme) => Err(Wrong::Form {
            problem: format!(
                "{text} is not on this machine, and {scheme}:// is not supported here"
            ),
            fix,
        }),
    }
}

/// Whether an output directory is a folder of a bucket.
pub fn is_bucket(text: &str) -> bool {
    let schemes = ["s3://", "gs://", "az://"];
    schemes.iter().any(|scheme| text.starts_with(scheme))
}

/// The text of a path that came from one.
fn shown(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

/// A whole number from `MIN` to `MAX`. No count of steps, rows, tokens or devices goes beyond the
/// default: XLA's index type for gathers is 32 bits wide.
pub struct Count<const MIN: usize, const MAX: usize = { i32::MAX as usize }>;

impl<const MIN: usize, const MAX: usize> Kind for Count<MIN, MAX> {
    type Value = usize;
    const FORM: Form = Form::Number;
    const PLACEHOLDER: &'static str = "N";

    fn expected() -> String {
        match MIN {
            0 => "a whole number that is 0 or more".into(),
            min => format!("a whole number that is at least {min}"),
        }
    }

    fn parse(text: &str) -> Result<usize, Wrong> {
        let number = parse_int(text)?;
        if number > MAX as i128 {
            return Err(Wrong::TooLarge(MAX as u64));
        }
        let number = usize::try_from(number).map_err(|_| Wrong::Kind)?;
        (number >= MIN).then_some(number).ok_or(Wrong::Kind)
    }
}

fn seed(text: &str) -> Result<u64, Wrong> {
    let number = parse_int(text)?;
    if number > i128::from(u64::MAX) {
        return Err(Wrong::TooLarge(u64::MAX));
    }
    u64::try_from(number).map_err(|_| Wrong::Kind)
}

fn max_steps(text: &str) -> Result<Option<u64>, Wrong> {
    match parse_int(text)? {
        ..-1 => Err(Wrong::Kind),
        -1 | 0 => Ok(None),
        1.. => Count::<1>::parse(text).map(|steps| Some(steps as u64)),
    }
}

/// How often something happens: every N steps or, below 1, every share of all steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interval {
    Steps(usize),
    Share(f64),
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interval::Steps(steps) => write!(f, "{steps}"),
            Interval::Share(share) => write!(f, "{share}"),
        }
    }
}

fn interval(text: &str) -> Result<Interval, Wrong> {
    match parse_float(text) {
        Some(share) if share > 0.0 && share < 1.0 => Ok(Interval::Share(share)),
        _ => Count::<1>::parse(text).map(Interval::Steps),
    }
}

/// A number of examples or devices, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degree {
    Auto,
    Count(usize),
}

impl Degree {
    /// The number, if it is given.
    pub fn count(self) -> Option<usize> {
        match self {
            Degree::Auto => None,
            Degree::Count(count) => Some(count),
        }
    }
}

fn degree(text: &str) -> Result<Degree, Wrong> {
    if text == "auto" {
        Ok(Degree::Auto)
    } else {
        Count::<1>::parse(text).map(Degree::Count)
    }
}

fn within(text: &str, range: impl RangeBounds<f64>) -> Result<f64, Wrong> {
    let number = parse_float(text).filter(|x| range.contains(x));
    number.ok_or(Wrong::Kind)
}

/// Declares kinds of one or more words, none of which is empty.
macro_rules! lists {
    ($( $(#[$doc:meta])* $kind:ident: $item:ty = $form:ident, $placeholder:literal, $expected:literal; )+) => {$(
        $(#[$doc])*
        pub struct $kind;

        impl Kind for $kind {
            type Value = Vec<<$item as Kind>::Value>;
            const FORM: Form = Form::$form;
            const PLACEHOLDER: &'static str = $placeholder;

            fn expected() -> String {
                $expected.into()
            }

            fn parse(text: &str) -> Result<Self::Value, Wrong> {
                Ok(vec![<$item>::parse(text)?])
            }

            fn parse_all(texts: &[String]) -> Result<Self::Value, Wrong> {
                if texts.is_empty() {
                    return Err(Wrong::Kind);
                }
                texts.iter().map(|text| <$item>::parse(text)).collect()
            }
        }

        impl Optional for $kind {
            fn absent() -> Self::Value {
                Vec::new()
            }
        }
    )+};
}

lists! {
    /// One or more paths.
    Paths: DataPath = List, "FILE", "one or more paths";
    /// One or more texts.
    Texts: String = List, "TEXT", "one or more texts";
    /// One or more numbers.
    Numbers: NotNegative = List, "X", "one or more numbers that are 0 or more";
    /// One or more words after the command.
    Words: String = Positional, "ID", "one or more words";
    /// Output directories of runs.
    RunPaths: RunPath = Positional, "ID", "one or more words";
}

/// The spellings that Hugging Face's argument parser takes.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "t" | "y" | "1" => Some(true),
        "false" | "no" | "f" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// Python's `int()`, and also whole numbers written as floats, because TrainingArguments keeps its
/// step counts as floats.
fn parse_int(text: &str) -> Result<i128, Wrong> {
    /// Beyond this not every whole number is a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let text = without_underscores(text.trim()).ok_or(Wrong::Kind)?;
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match text.parse::<f64>() {
        Ok(x) if x.fract() == 0.0 && x.abs() < EXACT => Ok(x as i128),
        Ok(x) if x.fract() == 0.0 && x > 0.0 => Ok(i128::MAX),
        _ => Err(Wrong::Kind),
    }
}

/// A number with a unit: decimal (`kB`, `MB`, ...) or binary (`KiB`, `MiB`, ...), bytes without
/// one.
fn parse_bytes(text: &str) -> Option<u64> {
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
    (bytes >= 0.0 && bytes < i64::MAX as f64).then_some(bytes as u64)
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
        for (text, value) in [
            ("5e-5", 5e-5),
            ("5E-05", 5e-5),
            (".5", 0.5),
            ("5.", 5.0),
            ("+1", 1.0),
            (" 1_000.5 ", 1000.5),
            ("0", 0.0),
        ] {
            assert_eq!(NotNegative::parse(text), Ok(value), "{text}");
        }
        for text in [
            "", "fast", "-1", "nan", "inf", "1__0", "_1", "1_", "0x10", "1e",
        ] {
            assert_eq!(NotNegative::parse(text), Err(Wrong::Kind), "{text}");
        }
    }

    #[test]
    fn whole_numbers_keep_their_bounds() {
        for text in ["1_000", "1000.0", "1e3", "+1000"] {
            assert_eq!(Count::<1>::parse(text), Ok(1000), "{text}");
        }
        for text in ["0", "-3", "1.5", "", "nan"] {
            assert_eq!(Count::<1>::parse(text), Err(Wrong::Kind), "{text}");
        }
        let most = i32::MAX as u64;
        for text in ["2147483648", "18446744073709551616", "1e300"] {
            assert_eq!(
                Count::<0>::parse(text),
                Err(Wrong::TooLarge(most)),
                "{text}"
            );
        }
        assert_eq!(Count::<0, 9>::parse("10"), Err(Wrong::TooLarge(9)));
        assert_eq!(u64::parse("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(
            u64::parse("18446744073709551616"),
            Err(Wrong::TooLarge(u64::MAX))
        );
        assert_eq!(u64::parse("-1"), Err(Wrong::Kind));
        assert_eq!(MaxSteps::parse("-1"), Ok(None));
        assert_eq!(MaxSteps::parse("7"), Ok(Some(7)));
        assert_eq!(MaxSteps::parse("-2"), Err(Wrong::Kind));
        assert_eq!(Interval::parse("0.25"), Ok(Interval::Share(0.25)));
        assert_eq!(Interval::parse("20.0"), Ok(Interval::Steps(20)));
        for text in ["0", "1.5", "-0.5", "nan"] {
            assert_eq!(Interval::parse(text), Err(Wrong::Kind), "{text}");
        }
        assert_eq!(Degree::parse("auto"), Ok(Degree::Auto));
        assert_eq!(Degree::parse("0"), Err(Wrong::Kind));
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
            assert_eq!(Bytes::parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "-1", "5 apples", "1iB", "1e30TB", "10GiBs"] {
            assert_eq!(Bytes::parse(text), Err(Wrong::Kind), "{text}");
        }
    }

    #[test]
    fn ranges_include_what_they_say() {
        assert!(Fraction::parse("1").is_ok());
        assert!(Fraction::parse("1.01").is_err());
        assert!(BelowOne::parse("1").is_err());
        assert!(Percent::parse("99.5").is_ok());
        assert!(Percent::parse("100").is_err());
    }

    #[test]
    fn schemes_are_refused_and_files_are_paths() {
        fn refuses<K: Kind>(text: &str) -> bool {
            matches!(K::parse(text), Err(Wrong::Form { problem, .. }) if problem.contains(text))
        }
        for text in [
            "s3://bucket/out",
            "S3://bucket/out",
            "s3:/bucket/out",
            "gs://b/x",
            "hdfs://host:9000/x",
            "abfss://c@a.example/x",
            "https://example.org/x",
            "hf://datasets/x",
            "dbfs:/x",
            "file://other-host/x",
            " s3://b/x",
        ] {
            assert!(refuses::<PathBuf>(text), "{text}");
            assert!(refuses::<Option<WrittenPath>>(text), "{text}");
            assert!(refuses::<Option<ModelPath>>(text), "{text}");
            assert!(refuses::<Option<ModelName>>(text), "{text}");
            assert!(refuses::<CachePath>(text), "{text}");
            assert!(refuses::<ArchivePath>(text), "{text}");
            assert!(refuses::<DatasetName>(text), "{text}");
            assert!(RunPaths::parse(text).is_err(), "{text}");
            assert_eq!(Paths::parse(text), Ok(vec![text.into()]));
        }
        for text in [
            "out", "./a:b/c", "/x/s3:/y", "c:/x", "a:b", "org/name", "12:00/x",
        ] {
            assert_eq!(WrittenPath::parse(text), Ok(text.into()), "{text}");
        }
        assert_eq!(WrittenPath::parse("file:///x/y"), Ok("/x/y".into()));
    }

    #[test]
    fn booleans_take_the_usual_spellings() {
        for text in ["true", "True", "yes", "1"] {
            assert_eq!(bool::parse(text), Ok(true));
        }
        assert_eq!(bool::parse("maybe"), Err(Wrong::Kind));
    }
}
