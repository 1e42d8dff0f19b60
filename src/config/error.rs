//! Every way in which a command line or a settings file can be wrong. A message says what was found and where; the hint, printed
//! on its own line, says what to do instead. All of these end the program with exit code 2 before anything was started.

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
            Origin::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UsageError {
    #[error("unknown flag {flag} for `xtrain {command}`")]
    UnknownFlag { flag: String, command: String, nearest: Option<String>, elsewhere: Vec<String> },

    #[error("{origin}: unknown key `{key}` for `xtrain {command}`")]
    UnknownKey { key: String, origin: Origin, command: String, nearest: Option<String>, elsewhere: Vec<String> },

    #[error("unknown command `{word}`")]
    UnknownCommand { word: String, nearest: Option<String> },

    #[error("`xtrain {command}` needs one of: {}", choices.join(", "))]
    IncompleteCommand { command: String, choices: Vec<String> },

    #[error("{origin}: `{name}` must be {expected}, found {found}")]
    BadValue { name: String, origin: Origin, expected: String, found: String, nearest: Option<String> },

    #[error("--{name} needs a value: {expected}")]
    NoValue { name: String, expected: String },

    #[error("{origin}: `{name}` cannot be {value}: {reason}")]
    Refused { name: String, origin: Origin, value: String, reason: String },

    #[error("{origin}: `{key}` is given twice (it also stands at line {first})")]
    GivenTwice { key: String, origin: Origin, first: usize },

    #[error("{origin}: {problem}")]
    ConfigFile { origin: Origin, problem: String, fix: String },

    /// Two settings that do not go together, or one that is missing: the one shape of everything that `check` refuses.
    #[error("{problem}")]
    Illegal { problem: String, fix: String },

    #[error("{problem}")]
    CommandLine { problem: String },
}

impl UsageError {
    pub(super) fn illegal(problem: impl Into<String>, fix: impl Into<String>) -> UsageError {
        UsageError::Illegal { problem: problem.into(), fix: fix.into() }
    }

    /// What to do about it, if there is more to say than the message itself.
    pub fn hint(&self) -> Option<String> {
        match self {
            UsageError::UnknownFlag { nearest: Some(name), .. } => Some(format!("did you mean --{name}?")),
            UsageError::UnknownFlag { command, elsewhere, .. } => Some(elsewhere_or_help(command, elsewhere)),
            UsageError::UnknownKey { nearest: Some(name), .. } => Some(format!("did you mean `{name}`?")),
            UsageError::UnknownKey { command, elsewhere, .. } => Some(elsewhere_or_help(command, elsewhere)),
            UsageError::UnknownCommand { nearest: Some(name), .. } => Some(format!("did you mean `xtrain {name}`?")),
            UsageError::UnknownCommand { .. } => Some("`xtrain --help` lists the commands".into()),
            UsageError::IncompleteCommand { command, choices } => {
                choices.first().map(|choice| format!("for example `xtrain {command} {choice} --help`"))
            }
            UsageError::BadValue { nearest: Some(name), .. } => Some(format!("did you mean `{name}`?")),
            UsageError::BadValue { .. } | UsageError::NoValue { .. } => None,
            UsageError::Refused { name, .. } => Some(format!("leave `{name}` out")),
            UsageError::GivenTwice { .. } => Some("keep one of the two".into()),
            UsageError::ConfigFile { fix, .. } | UsageError::Illegal { fix, .. } => Some(fix.clone()),
            UsageError::CommandLine { .. } => Some("`xtrain --help` shows how commands are written".into()),
        }
    }
}

fn elsewhere_or_help(command: &str, elsewhere: &[String]) -> String {
    if elsewhere.is_empty() {
        format!("`xtrain {command} --help` lists what it takes")
    } else {
        format!(
            "that one belongs to `xtrain {}`; `xtrain {command} --help` lists what this command takes",
            elsewhere.join("`, `xtrain ")
        )
    }
}
