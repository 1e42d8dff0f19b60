//! What each command does. `run` dispatches; one file per command holds its work, which is to put
//! the layers below together and to say on standard output what came of it. A command does not
//! parse, does not print errors and does not exit: it returns.

mod batches;
mod bench;
mod cache;
mod compile;
pub mod corpus;
mod doctor;
mod dry_run;
mod eval;
mod exchanged;
mod fit;
mod generate;
mod launch;
mod meshes;
mod model;
mod predict;
mod quickstart;
mod resume;
mod scaling;
mod target;
mod task;
mod top;
mod train;

pub use crate::config::Command;

use crate::config::UsageError;
use crate::launch::Group;
use std::error::Error as StdError;

/// How a command ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Stopped by SIGINT or SIGTERM at the end of a step, with a checkpoint saved.
    Interrupted {
        signal: i32,
    },
}

impl Outcome {
    /// 0, or what a shell reports for a process that the signal killed: 130 for SIGINT, 143 for
    /// SIGTERM.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(1),
        }
    }
}

/// Why a command failed. The layers below have their own error types; here they become a cause
/// under one sentence of context.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A mistake in what was asked for that only shows once files are read; exit code 2.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// Anything else; exit code 1.
    #[error("{message}")]
    Failed {
        message: String,
        hint: Option<String>,
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
}

impl Error {
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed {
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    /// A mistake in what was typed that only showed once files were read.
    pub fn usage(problem: impl Into<String>, fix: impl Into<String>) -> Error {
        Error::Usage(UsageError::Illegal {
            problem: problem.into(),
            fix: fix.into(),
        })
    }

    /// A failure with the lower layer's error as its cause.
    pub fn because(
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error::Failed {
            message: message.into(),
            hint: None,
            source: Some(source.into()),
        }
    }

    /// Adds what to do about it.
    pub fn with_hint(self, hint: impl Into<String>) -> Error {
        match self {
            Error::Failed {
                message, source, ..
            } => Error::Failed {
                message,
                hint: Some(hint.into()),
                source,
            },
            usage => usage,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Usage(usage) => usage.hint(),
            Error::Failed { hint, .. } => hint.clone(),
        }
    }

    /// 2 for usage, 1 for failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(UsageError::Fetch { .. }) => 1,
            Error::Usage(_) => 2,
            Error::Failed { .. } => 1,
        }
    }

    /// The whole story in one line: the message and its causes, each once (some errors print their
    /// cause themselves).
    pub fn one_line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !line.contains(&text) {
                line = format!("{line}: {text}");
            }
            cause = error.source();
        }
        line
    }
}

/// Runs one command to its end.
pub fn run(command: Command) -> Result<Outcome, Error> {
    // A training run goes on when nobody reads its lines any more; what only prints ends with its
    // reader (`cache show | head`).
    if !matches!(
        command,
        Command::Train(_) | Command::Quickstart(_) | Command::Launch(_) | Command::Scaling(_)
    ) {
        // SAFETY: sets a signal's disposition before any thread runs.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    let outcome = dispatch(command);
    if let Some(group) = Group::joined() {
        group.leave(
            outcome
                .as_ref()
                .err()
                .map(|error| (i32::from(error.exit_code()), error.one_line())),
        );
    }
    outcome
}

fn dispatch(command: Command) -> Result<Outcome, Error> {
    match command {
        Command::Train(plan) => train::run(plan),
        Command::Eval(plan) => eval::run(plan),
        Command::Predict(plan) => predict::run(plan),
        Command::Generate(plan) => generate::run(plan),
        Command::Bench(plan) => bench::run(plan),
        Command::Doctor(plan) => doctor::run(plan),
        Command::Top(plan) => top::run(plan),
        Command::Launch(settings) => launch::run(settings),
        Command::Scaling(plan) => scaling::run(plan),
        Command::Quickstart(plan) => quickstart::run(plan),
        Command::Compile(plan) => compile::run(plan),
        Command::Fit(plan) => fit::run(plan),
        Command::Cache(plan) => cache::run(plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let io = std::io::Error::other("disk full");
        assert_eq!(
            Error::because("saving checkpoint-5", io).one_line(),
            "saving checkpoint-5: disk full"
        );
        let io = std::io::Error::other("disk full");
        assert_eq!(
            Error::because("saving checkpoint-5: disk full", io).one_line(),
            "saving checkpoint-5: disk full"
        );
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        assert_eq!(Outcome::Done.exit_code(), 0);
        assert_eq!(
            Outcome::Interrupted {
                signal: libc::SIGINT
            }
            .exit_code(),
            130
        );
        assert_eq!(
            Outcome::Interrupted {
                signal: libc::SIGTERM
            }
            .exit_code(),
            143
        );
        assert_eq!(Error::failed("x").exit_code(), 1);
    }
}
