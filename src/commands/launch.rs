//! `xtrain launch`: runs train or eval as several processes.

use super::{Error, Outcome};
use xtrain_config::{self as config, Command, Invocation};
use xtrain_launch::{self as launch, LaunchSettings, Verdict};

pub fn run(settings: LaunchSettings) -> Result<Outcome, Error> {
    if settings.node == 0 {
        check(&settings)?;
    }
    match launch::launch(&settings) {
        Ok(Verdict::Done) => Ok(Outcome::Done),
        Ok(Verdict::Interrupted(signal)) => Ok(Outcome::Interrupted { signal }),
        Ok(Verdict::Quit) => Ok(Outcome::Quit),
        Ok(Verdict::Failed { cause, is_lasting }) => {
            let hint = match settings.max_restarts {
                _ if is_lasting => {
                    "a restart would end the same way; once that is mended, the same command with --resume_from_checkpoint resumes from the last checkpoint"
                }
                0 => {
                    "with --max_restarts N it would be started again from its last checkpoint; --resume_from_checkpoint resumes by hand"
                }
                _ => {
                    "once the cause is gone, the same command with --resume_from_checkpoint resumes from the last checkpoint"
                }
            };
            Err(Error::failed(cause).with_hint(hint))
        }
        Err(error) => Err(Error::because("launching", error)),
    }
}

/// A mistake in what each process would run is reported once, before any of them runs.
fn check(settings: &LaunchSettings) -> Result<(), Error> {
    let words = std::iter::once("xtrain").chain(settings.words.iter().map(String::as_str));
    let processes = (settings.nodes * settings.processes, settings.processes);
    match config::from_args_among(Some(processes), words.map(Into::into))? {
        Invocation::Run {
            command: Command::Train(_) | Command::Eval(_),
            ..
        } => Ok(()),
        _ => Err(Error::usage(
            "the command after -- does not train or evaluate",
            "write it as it would run alone, without xtrain",
        )),
    }
}
