//! How what was asked for ended, and why it failed.

use std::error::Error as StdError;
use xtrain_cache as cache;
use xtrain_checkpoint::{self as checkpoint, is_full};
use xtrain_config::UsageError;
use xtrain_distributed::{self as distributed, job::Cause};
use xtrain_report::printable::with_causes;
use xtrain_runtime as runtime;
use xtrain_trainer as trainer;
use xtrain_trainer::interrupt::QUIT;

/// How a command ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All the work was done.
    Done,
    /// Stopped by SIGINT, SIGTERM, SIGUSR1 or SIGHUP at the end of a step, with a checkpoint saved.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// Ended at once by a second signal.
    Quit,
}

impl Outcome {
    /// 0, or what a shell reports for a process that the signal killed: 130 for SIGINT, 143 for
    /// SIGTERM, 138 for SIGUSR1, 129 for SIGHUP, or [`QUIT`].
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(1),
            Outcome::Quit => QUIT,
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
        /// What went wrong, where, in one sentence.
        message: String,
        /// What the user can do about it.
        hint: Option<String>,
        /// The lower layer's error.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
}

impl Error {
    /// A failure without a lower layer's error.
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

    /// Each message in one line, with what to do about it: several where a command line has
    /// several mistakes.
    pub fn messages(&self) -> Vec<(String, Option<String>)> {
        match self {
            Error::Usage(usage) => {
                let each = usage.each();
                each.map(|error| (error.to_string(), error.hint()))
                    .collect()
            }
            Error::Failed { .. } => vec![(self.one_line(), self.hint())],
        }
    }

    /// What to do about it, where that is known.
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

    /// Where its reason lies, for the other processes of a job.
    pub fn cause(&self) -> Cause {
        if matches!(self, Error::Usage(_)) && self.exit_code() == 2 {
            return Cause::Usage;
        }
        let mut link = self.source();
        while let Some(error) = link {
            if is_of_peers(error) {
                return Cause::Peers;
            }
            if is_lasting(error) {
                return Cause::Lasting;
            }
            link = error.source();
        }
        Cause::Own
    }

    /// The message and its causes in one line.
    pub fn one_line(&self) -> String {
        with_causes(self)
    }
}

/// Whether an error of a lower layer says that other processes, or the way to them, are gone.
/// Transparent variants do not appear in the chain of sources, so they are looked into here.
fn is_of_peers(error: &(dyn StdError + 'static)) -> bool {
    let of_runtime = |error: &runtime::Error| error.code() == Some(runtime::Code::Unavailable);
    if let Some(error) = error.downcast_ref::<distributed::Error>() {
        return error.is_of_peers();
    }
    if let Some(error) = error.downcast_ref::<runtime::Error>() {
        return of_runtime(error);
    }
    match error.downcast_ref::<trainer::Error>() {
        Some(trainer::Error::Launch(error)) => error.is_of_peers(),
        Some(trainer::Error::AlsoUnsaved { error, .. }) => is_of_peers(&**error),
        Some(
            trainer::Error::Runtime(error) | trainer::Error::Cache(cache::Error::Runtime(error)),
        ) => of_runtime(error),
        _ => false,
    }
}

/// Whether an error of a lower layer would come again after a restart from the last checkpoint.
fn is_lasting(error: &(dyn StdError + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return is_full(error);
    }
    if let Some(error) = error.downcast_ref::<checkpoint::Error>() {
        return error.is_lasting();
    }
    match error.downcast_ref::<trainer::Error>() {
        Some(
            trainer::Error::NotFinite { .. }
            | trainer::Error::LossScaleExhausted { .. }
            | trainer::Error::NotWorthSaving { .. }
            | trainer::Error::BrokenWeights { .. }
            | trainer::Error::NotTied { .. }
            | trainer::Error::NotTransposed { .. }
            | trainer::Error::Resume { .. }
            | trainer::Error::NoMetric { .. }
            | trainer::Error::TooFewDevices { .. }
            | trainer::Error::TooManyStages { .. }
            | trainer::Error::NothingToTrain { .. }
            | trainer::Error::Model(_),
        ) => true,
        Some(trainer::Error::Checkpoint(error)) => error.is_lasting(),
        Some(trainer::Error::Cache(cache::Error::Checkpoint(error))) => error.is_lasting(),
        Some(trainer::Error::Io { source, .. }) => is_full(source),
        Some(trainer::Error::AlsoUnsaved { error, unsaved }) => {
            is_lasting(&**error) || is_lasting(&**unsaved)
        }
        _ => false,
    }
}

/// Turns a lower layer's error into this layer's, under one phrase of context.
pub fn failed<E: StdError + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::because(doing, error)
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
    fn a_restart_is_not_tried_where_it_cannot_help() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let path = || std::path::PathBuf::from("out/checkpoint-5");
        let damaged = checkpoint::Error::Damaged {
            path: path(),
            reason: "its digest differs".into(),
        };
        let saving = |error| Error::because("training", trainer::Error::Checkpoint(error));
        let part = |is_lasting| {
            let error = "no space left".into();
            saving(checkpoint::Error::Part {
                rank: 1,
                error,
                is_lasting,
            })
        };
        for (error, cause) in [
            (saving(damaged), Cause::Lasting),
            (
                saving(checkpoint::Error::io("write", &path())(full())),
                Cause::Lasting,
            ),
            (Error::because("writing the log", full()), Cause::Lasting),
            (part(true), Cause::Lasting),
            (part(false), Cause::Own),
            (
                saving(checkpoint::Error::io("write", &path())(
                    std::io::ErrorKind::TimedOut.into(),
                )),
                Cause::Own,
            ),
            (Error::failed("anything else"), Cause::Own),
            (Error::usage("a mistake", "mend it"), Cause::Usage),
        ] {
            assert_eq!(error.cause(), cause, "{}", error.one_line());
        }
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
