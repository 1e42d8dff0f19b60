//! Named arguments of schedules and optimizers (`--lr_scheduler_kwargs`, `--optim_args`), and how
//! each takes those that it knows.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeBounds;

/// The value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number, whole or not.
    Number(f64),
    /// `true` or `false`.
    Bool(bool),
    /// Any other word.
    Text(String),
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::Number(x) => write!(f, "{x:?}"),
            Argument::Bool(x) => write!(f, "{x}"),
            Argument::Text(text) => f.write_str(text),
        }
    }
}

/// Arguments by name, as somebody gave them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arguments(BTreeMap<String, Argument>);

impl Arguments {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Name by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Argument)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl FromIterator<(String, Argument)> for Arguments {
    fn from_iter<I: IntoIterator<Item = (String, Argument)>>(given: I) -> Self {
        Arguments(given.into_iter().collect())
    }
}

/// `num_cycles=2.0,power=1.5`.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

/// Why arguments are refused; the sentence has the name of the schedule or optimizer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentError(pub String);

/// Takes arguments one by one. What is wrong comes out at the end, when all names that are known
/// have been asked for.
pub struct ArgumentReader<'a> {
    /// The schedule or optimizer.
    of: &'a str,
    given: &'a Arguments,
    known: Vec<&'static str>,
    problem: Option<ArgumentError>,
}

impl<'a> ArgumentReader<'a> {
    pub(super) fn new(of: &'a str, given: &'a Arguments) -> Self {
        ArgumentReader {
            of,
            given,
            known: Vec::new(),
            problem: None,
        }
    }

    fn take(&mut self, name: &'static str) -> Option<&'a Argument> {
        self.known.push(name);
        self.given.0.get(name)
    }

    /// Refuses an argument, or its absence: `must` completes "NAME must be ...".
    fn wrong(&mut self, name: &str, must: &str) {
        let found = match self.given.0.get(name) {
            Some(value) => format!("{name} must be {must}, found `{value}`"),
            None => format!("{name} is missing; it must be {must}"),
        };
        self.refuse(found);
    }

    /// Refuses with a sentence of one's own; the first counts.
    pub(super) fn refuse(&mut self, problem: impl fmt::Display) {
        let problem = ArgumentError(format!("{}: {problem}", self.of));
        self.problem.get_or_insert(problem);
    }

    /// A number, if it is given; `range` in words completes "must be ...".
    pub(super) fn optional_number(
        &mut self,
        name: &'static str,
        range: impl RangeBounds<f64>,
        must: &str,
    ) -> Option<f64> {
        match self.take(name)? {
            Argument::Number(x) if range.contains(x) => Some(*x),
            _ => {
                self.wrong(name, must);
                None
            }
        }
    }

    /// A number, or its default.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        default: f64,
        range: impl RangeBounds<f64>,
        must: &str,
    ) -> f64 {
        self.optional_number(name, range, must).unwrap_or(default)
    }

    /// A number that is 0 or more, or its default.
    pub(super) fn not_negative(&mut self, name: &'static str, default: f64) -> f64 {
        self.number(name, default, 0.0..=f64::MAX, "a number that is 0 or more")
    }

    /// A number from 0 to less than 1, or its default.
    pub(super) fn below_one(&mut self, name: &'static str, default: f64) -> f64 {
        self.number(name, default, 0.0..1.0, "a number from 0 to less than 1")
    }

    /// A whole number that is at least `least`, if it is given.
    pub(super) fn optional_count(&mut self, name: &'static str, least: u64) -> Option<u64> {
        match self.take(name)? {
            // Beyond 2^53 not every whole number is a float.
            Argument::Number(x)
                if x.fract() == 0.0 && (least as f64..=9_007_199_254_740_992.0).contains(x) =>
            {
                Some(*x as u64)
            }
            _ => {
                self.wrong(name, &format!("a whole number that is at least {least}"));
                None
            }
        }
    }

    /// As [`ArgumentReader::optional_count`] of an argument that must be given.
    pub(super) fn required_count(&mut self, name: &'static str, least: u64) -> u64 {
        let found = self.optional_count(name, least);
        if found.is_none() {
            self.wrong(name, &format!("a whole number that is at least {least}"));
        }
        found.unwrap_or(least)
    }

    /// True or false, or the default; as in transformers also 1 and yes, 0 and no.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        let is = |text: &str, word: &str| text.eq_ignore_ascii_case(word);
        match self.take(name) {
            None => default,
            Some(Argument::Bool(x)) => *x,
            Some(Argument::Number(x)) if *x == 0.0 || *x == 1.0 => *x == 1.0,
            Some(Argument::Text(text)) if is(text, "yes") || is(text, "no") => is(text, "yes"),
            Some(_) => {
                self.wrong(name, "true or false");
                default
            }
        }
    }

    /// One of several words, the first by default.
    pub(super) fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> T {
        let default = words[0].1;
        let Some(value) = self.take(name) else {
            return default;
        };
        let is_meant = |word: &&(&str, T)| matches!(value, Argument::Text(text) if text == word.0);
        if let Some((_, meant)) = words.iter().find(is_meant) {
            return *meant;
        }
        let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.wrong(name, &format!("one of {}", all.join(", ")));
        default
    }

    /// The names that have been asked for.
    pub(super) fn known(self) -> Vec<&'static str> {
        self.known
    }

    /// What was made of the arguments, if all of them are known and right.
    pub(super) fn finish<T>(self, made: T) -> Result<T, ArgumentError> {
        let mut names = self.given.iter().map(|(name, _)| name);
        if let Some(unknown) = names.find(|name| !self.known.contains(name)) {
            let (of, known) = (self.of, self.known.join(", "));
            return Err(ArgumentError(if unknown == "weight_decay" {
                // torch's optimizers have it; here as in transformers each group of parameters has its own.
                format!("{of} takes weight_decay from --weight_decay, not from its arguments")
            } else if known.is_empty() {
                format!("{of} takes no arguments, found `{unknown}`")
            } else {
                format!("{of} has no argument `{unknown}`; it takes {known}")
            }));
        }
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(made),
        }
    }
}
