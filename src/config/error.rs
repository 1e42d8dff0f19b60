//! Every way in which a command line or a settings file can be wrong. A message names the value
//! and its place; the hint, on a line of its own, names the remedy. All of these end the
//! program with exit code 2 before anything was started.

use super::instead;
use std::fmt;
use std::path::PathBuf;

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    CommandLine,
    File { path: PathBuf, line: Option<usize> },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::CommandLine => write!(f, "command line"),
            Origin::File {
                path,
                line: Some(line),
            } => write!(f, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(f, "{}", path.display()),
        }
    }
}

/// A value that is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// As a message names it.
    pub value: String,
    /// Flags that do the same, where there are any for this value.
    pub instead: Option<String>,
}

/// A mistake in the command line or the settings file; exit code 2.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum UsageError {
    #[error("unknown flag {flag} for `xtrain {command}`")]
    UnknownFlag {
        flag: String,
        command: &'static str,
        advice: Advice,
    },

    #[error("{origin}: unknown key `{key}` for `xtrain {command}`")]
    UnknownKey {
        key: String,
        origin: Origin,
        command: &'static str,
        advice: Advice,
    },

    #[error("unexpected word `{word}`: every setting of `xtrain {command}` is a flag")]
    UnexpectedWord {
        word: String,
        command: &'static str,
        /// The flag whose value it probably is, as it would be written.
        meant: Option<(&'static str, String)>,
    },

    #[error("unknown command `{word}`")]
    UnknownCommand {
        word: String,
        nearest: Option<String>,
    },

    #[error("`xtrain {command}` needs one of: {}", choices.join(", "))]
    IncompleteCommand {
        command: String,
        choices: Vec<String>,
    },

    #[error("{origin}: `{name}` must be {expected}, found {found}")]
    BadValue {
        name: &'static str,
        origin: Origin,
        expected: String,
        found: String,
        /// The choice that was probably meant.
        nearest: Option<&'static str>,
    },

    /// A value whose form is wrong; `shown` is the flag as the user knows it.
    #[error("{shown}: {problem}")]
    Malformed {
        name: &'static str,
        shown: String,
        problem: String,
        fix: &'static str,
    },

    #[error("--{name} needs a value: {expected}")]
    NoValue { name: String, expected: String },

    #[error("{origin}: `{name}` cannot be {}: {reason}", .asked.value)]
    Refused {
        name: &'static str,
        origin: Origin,
        /// Boxed, so that errors stay small.
        asked: Box<Asked>,
        reason: &'static str,
    },

    #[error("{origin}: `{key}` is given twice (also at line {first})")]
    GivenTwice {
        key: String,
        origin: Origin,
        first: usize,
    },

    #[error("{origin}: {problem}")]
    ConfigFile {
        origin: Origin,
        problem: String,
        fix: String,
    },

    /// Two settings that do not go together, or one that is missing: the one shape of everything
    /// that the rules refuse.
    #[error("{problem}")]
    Illegal { problem: String, fix: String },

    #[error("{problem}")]
    CommandLine { problem: String },

    /// Something that is named could not be fetched from the Hub. Exit code 1: the command itself
    /// may be right.
    #[error("{problem}")]
    Fetch { problem: String },

    /// All mistakes of one command, none of them this variant.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<UsageError>),
}

impl UsageError {
    pub(super) fn illegal(problem: impl Into<String>, fix: impl Into<String>) -> UsageError {
        UsageError::Illegal {
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    /// `Err` if there are any: one as itself, several together.
    pub(super) fn all(mistakes: Vec<UsageError>) -> Result<(), UsageError> {
        let mut mistakes: Vec<UsageError> = mistakes
            .into_iter()
            .flat_map(|mistake| match mistake {
                UsageError::Several(inner) => inner,
                one => vec![one],
            })
            .collect();
        match mistakes.len() {
            0 => Ok(()),
            1 => Err(mistakes.remove(0)),
            _ => Err(UsageError::Several(mistakes)),
        }
    }

    /// Each mistake by itself.
    pub fn each(&self) -> impl Iterator<Item = &UsageError> {
        match self {
            UsageError::Several(mistakes) => mistakes.as_slice(),
            one => std::slice::from_ref(one),
        }
        .iter()
    }

    /// The flag that is meant here, whose value is thus unknown, if there is one.
    pub(super) fn flag(&self) -> Option<&str> {
        match self {
            UsageError::UnknownFlag {
                advice: Advice::Meant(name),
                ..
            }
            | UsageError::UnknownKey {
                advice: Advice::Meant(name),
                ..
            } => Some(name),
            UsageError::BadValue { name, .. } | UsageError::Refused { name, .. } => Some(name),
            UsageError::Malformed { name, .. } => Some(name),
            UsageError::NoValue { name, .. } => Some(name),
            UsageError::UnexpectedWord {
                meant: Some((name, _)),
                ..
            } => Some(name),
            _ => None,
        }
    }

    /// The remedy, unless the message contains it.
    pub fn hint(&self) -> Option<String> {
        match self {
            UsageError::UnknownFlag {
                command, advice, ..
            } => Some(advice.sentence(command, "--")),
            UsageError::UnknownKey {
                command, advice, ..
            } => Some(advice.sentence(command, "")),
            UsageError::UnexpectedWord { meant, command, .. } => Some(match meant {
                Some((_, written)) => format!("write it as {written}"),
                None => format!("`xtrain {command} --help` lists them"),
            }),
            UsageError::UnknownCommand {
                nearest: Some(name),
                ..
            } => Some(format!("did you mean `xtrain {name}`?")),
            UsageError::UnknownCommand { .. } => Some("`xtrain --help` lists the commands".into()),
            UsageError::IncompleteCommand { command, choices } => choices
                .first()
                .map(|choice| format!("for example `xtrain {command} {choice} --help`")),
            UsageError::BadValue {
                name,
                found,
                nearest,
                ..
            } => instead::of_value(name, found.trim_matches('`'))
                .or_else(|| nearest.map(|choice| format!("did you mean `{choice}`?"))),
            UsageError::NoValue { .. } | UsageError::Fetch { .. } | UsageError::Several(_) => None,
            UsageError::Refused { name, asked, .. } => Some(match &asked.instead {
                None => format!("leave `{name}` out"),
                Some(instead) => format!("use {instead} instead"),
            }),
            UsageError::Malformed { fix, .. } => Some((*fix).into()),
            UsageError::GivenTwice { .. } => Some("keep one of the two".into()),
            UsageError::ConfigFile { fix, .. } | UsageError::Illegal { fix, .. } => {
                Some(fix.clone())
            }
            UsageError::CommandLine { .. } => {
                Some("`xtrain --help` shows how commands are written".into())
            }
        }
    }
}

/// Advice about a name that the command does not take.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    /// Probably a slip of the finger for this name.
    Meant(String),
    /// These commands take it.
    BelongsTo(Vec<&'static str>),
    /// Other scripts and launchers have it; what does the same here.
    Instead(&'static str),
    Nothing,
}

impl Advice {
    fn sentence(&self, command: &str, dashes: &str) -> String {
        match self {
            Advice::Meant(name) => format!("did you mean `{dashes}{name}`?"),
            Advice::BelongsTo(commands) => {
                let commands = commands.join("`, `xtrain ");
                format!(
                    "that one belongs to `xtrain {commands}`; `xtrain {command} --help` lists what this command takes"
                )
            }
            Advice::Instead(what) => (*what).into(),
            Advice::Nothing => format!("`xtrain {command} --help` lists what it takes"),
        }
    }
}

/// Refuses: the problem, and the change that makes the command legal.
pub fn refuse<T>(problem: impl Into<String>, fix: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError::illegal(problem, fix))
}
