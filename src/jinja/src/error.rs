//! Why a template gives no text.

use crate::meter::OutOfSteps;

/// Why a template cannot be parsed or rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is no valid Jinja, or does what Python refuses or this engine lacks.
    #[error("line {line}: {reason}")]
    At { line: u32, reason: String },
    /// As [`Error::At`], where no line is known yet.
    #[error("{0}")]
    Refused(String),
    /// The template's own words: it called `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// It takes more steps than it may.
    #[error("it takes too many steps")]
    Steps,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<OutOfSteps> for Error {
    fn from(_: OutOfSteps) -> Error {
        Error::Steps
    }
}

impl Error {
    /// The same error with the line where it occurred, if it has none yet.
    pub(crate) fn at(self, line: u32) -> Error {
        match self {
            Error::Refused(reason) => Error::At { line, reason },
            other => other,
        }
    }
}

/// An error of Python's or a refusal.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Refused(reason.into()))
}

/// What Python has and this engine lacks.
pub(crate) fn not_built<T>(what: impl std::fmt::Display) -> Result<T> {
    refuse(format!("{what} is not implemented"))
}
