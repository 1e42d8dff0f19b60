//! The commands. `run` dispatches; one file per command calls the layers below and prints the results
//! on standard output. A command does not parse, does not print errors and does not exit: it returns.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod bench;
mod cache;
mod compile;
pub mod corpus;
mod doctor;
mod dry_run;
mod eval;
mod fit;
mod generate;
mod kernels;
mod launch;
mod merge;
mod meshes;
mod output_file;
mod predict;
mod preview;
mod quickstart;
mod report;
mod scaling;
mod sweep;
mod target;
mod top;
mod train;

pub use xtrain_config::Command;
pub use xtrain_engine::{Error, Outcome};

use xtrain_distributed::ProcessGroup;
use xtrain_distributed::job::Ended;
use xtrain_report::errln;
use xtrain_report::output;

/// Runs one command to its end.
pub fn run(command: Command) -> Result<Outcome, Error> {
    // A training run survives a closed stdout; commands that only print stop (`cache show | head`).
    let goes_on = matches!(
        command,
        Command::Train(_)
            | Command::Quickstart(_)
            | Command::Launch(_)
            | Command::Scaling(_)
            | Command::Sweep(_)
    );
    if !goes_on {
        // SAFETY: sets a signal's disposition before any thread runs.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // A file that would grow beyond a limit is an error, as on a full disk.
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let outcome = dispatch(command).and_then(|outcome| match output::lost() {
        Some(error) if goes_on => {
            errln!("warning: standard output could not be written: {error}");
            Ok(outcome)
        }
        Some(error) => Err(Error::failed(format!(
            "writing to standard output: {error}"
        ))),
        None => Ok(outcome),
    });
    if let Some(group) = ProcessGroup::joined() {
        group.leave(match &outcome {
            Ok(_) => Ended::Well,
            Err(error) => Ended::Failed {
                cause: error.cause(),
                code: error.exit_code().into(),
                message: error.one_line(),
            },
        });
    }
    outcome
}

fn dispatch(command: Command) -> Result<Outcome, Error> {
    match command {
        Command::Train(plan) => train::run(plan),
        Command::Eval(plan) => eval::run(plan),
        Command::Predict(plan) => predict::run(plan),
        Command::Generate(plan) => generate::run(plan),
        Command::Merge(plan) => merge::run(plan),
        Command::Bench(plan) => bench::run(plan),
        Command::Doctor(plan) => doctor::run(plan),
        Command::Top(flags) => top::run(&flags),
        Command::Report(flags) => report::run(&flags),
        Command::Launch(settings) => launch::run(settings),
        Command::Scaling(plan) => scaling::run(plan),
        Command::Sweep(plan) => sweep::run(plan),
        Command::Quickstart(plan) => quickstart::run(plan),
        Command::Compile(plan) => compile::run(plan),
        Command::Fit(plan) => fit::run(plan),
        Command::Cache(plan) => cache::run(plan),
    }
}
