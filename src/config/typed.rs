//! What was typed: each setting that somebody gave, with its checked value and where it was
//! written. Reading a setting that nobody gave answers with the table's default.

use super::config_file;
use super::error::{Origin, UsageError};
use super::flags::{self, CommandInfo, Commands, Flag, Support};
use super::kind::{Kind, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub value: Value,
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Typed {
    pub command: Commands,
    given: BTreeMap<&'static str, Given>,
    /// Settings that were accepted and change nothing.
    notes: Vec<String>,
    /// Of a command that a launcher looks over before its processes are there: how many there will
    /// be, and how many of them here.
    pub processes: Option<(usize, usize)>,
}

impl Typed {
    pub fn new(command: Commands) -> Typed {
        Typed {
            command,
            given: BTreeMap::new(),
            notes: Vec::new(),
            processes: None,
        }
    }

    /// The command's words, for messages.
    pub fn command_words(&self) -> &'static str {
        CommandInfo::of(self.command).words
    }

    pub fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Takes one setting as text (several texts for a list of paths). What stands there already
    /// wins, so the command line is taken first and the file after it.
    pub fn take(
        &mut self,
        flag: &'static Flag,
        texts: &[String],
        origin: Origin,
    ) -> Result<(), UsageError> {
        match flag.support {
            Support::Built => {}
            Support::NoEffect => {
                self.notes.push(format!(
                    "{origin}: `{}` changes nothing here: {}",
                    flag.name, flag.help
                ));
                return Ok(());
            }
            Support::Only(accepted) => {
                return refuse_unless_accepted(flag, accepted, &texts.join(" "), origin);
            }
        }
        let value = match flag.kind {
            Kind::Paths | Kind::Words if texts.is_empty() || texts.iter().any(String::is_empty) => {
                None
            }
            Kind::Paths | Kind::Words => Some(Value::List(texts.to_vec())),
            kind => kind.parse(&texts.join(" ")),
        };
        let Some(value) = value else {
            return Err(bad_value(flag, format!("`{}`", texts.join(" ")), origin));
        };
        self.given
            .entry(flag.name)
            .or_insert(Given { value, origin });
        Ok(())
    }

    /// Puts another value in the place of what was given, or of nothing: what a name stands for.
    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        let origin = self
            .given
            .get(name)
            .map_or(Origin::CommandLine, |given| given.origin.clone());
        self.given.insert(name, Given { value, origin });
    }

    /// Adds the settings of the `--config` file, if one is named.
    pub fn with_config_file(mut self) -> Result<Typed, UsageError> {
        if let Some(path) = self.path("config") {
            config_file::read_into(&mut self, &path)?;
        }
        Ok(self)
    }

    /// Where a setting was written, if it was.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        debug_assert!(
            flags::all().any(|flag| flag.name == name),
            "`{name}` is not in the flag table"
        );
        self.given.get(name).map(|given| &given.origin)
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.origin(name).is_some()
    }

    /// The value given, else the default; `None` when there is neither, or when the command does
    /// not take the setting.
    pub fn value(&self, name: &str) -> Option<Value> {
        match self.given.get(name) {
            Some(given) => Some(given.value.clone()),
            None => flags::find(name, self.command).and_then(Flag::default_value),
        }
    }

    pub fn bool(&self, name: &str) -> bool {
        self.bool_if_given(name).unwrap_or(false)
    }

    pub fn bool_if_given(&self, name: &str) -> Option<bool> {
        match self.value(name) {
            Some(Value::Bool(answer)) => Some(answer),
            _ => None,
        }
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        match self.value(name) {
            Some(Value::Int(n)) => Some(n),
            _ => None,
        }
    }

    /// A count whose kind has no negative values.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.int(name).and_then(|n| usize::try_from(n).ok())
    }

    pub fn float(&self, name: &str) -> Option<f64> {
        match self.value(name) {
            Some(Value::Float(x)) => Some(x),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub fn paths(&self, name: &str) -> Vec<PathBuf> {
        self.words(name).into_iter().map(PathBuf::from).collect()
    }

    /// The texts of a setting that takes several.
    pub fn words(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(Value::List(words)) => words,
            _ => Vec::new(),
        }
    }
}

/// The error for a value of the wrong kind or outside its range.
pub fn bad_value(flag: &Flag, found: String, origin: Origin) -> UsageError {
    UsageError::BadValue {
        name: flag.name,
        origin,
        kind: flag.kind,
        found,
    }
}

fn refuse_unless_accepted(
    flag: &Flag,
    accepted: &[&str],
    value: &str,
    origin: Origin,
) -> Result<(), UsageError> {
    if accepted
        .iter()
        .any(|known| known.eq_ignore_ascii_case(value))
    {
        return Ok(());
    }
    let value = if value.is_empty() {
        "set".into()
    } else {
        format!("`{value}`")
    };
    Err(UsageError::Refused {
        name: flag.name,
        origin,
        value,
        reason: flag.help,
    })
}
