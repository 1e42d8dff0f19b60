//! From what the user typed to a resolved, legal plan, in two stages:
//!
//! 1. *typed*: the command line ([`command_line`]) and `--config` files ([`config_file`]) become
//!    [`typed::Typed`], checked name by name against the one table of flags ([`flags`]), which also
//!    feeds `--help` and `docs/flags.md` ([`reference`]).
//! 2. *resolved*: [`check`] refuses every illegal combination, then [`resolve`] makes the plans of
//!    [`plan`], which the commands take and which hold no `Option` that does not mean something.
//!
//! In between, names of models and data sets on the Hub become the paths of fetched files
//! ([`from_hub`]).
//!
//! Nothing here loads a library, a model or a tokenizer, so help and mistakes are answered at once.

mod check;
mod command_line;
mod config_file;
mod error;
pub mod flags;
mod from_hub;
mod kind;
mod mesh;
mod nearest;
mod plan;
pub mod reference;
mod resolve;
mod scaling;
mod typed;

pub use error::{Advice, Origin, UsageError};
pub use nearest::nearest;
pub use plan::{
    BenchPlan, CacheAction, CachePlan, Command, CompilePlan, ConfigSource, Device, DevicePlan,
    DoctorPlan, EvalPlan, FitPlan, GeneratePlan, MeshComparison, ModelSource, PredictPlan,
    PruneRules, QuickstartPlan, Sampling, ScaledRun, ScalingPlan, ShowForm, TaskPlan,
    TokenizerSource, TopPlan, TrainPlan,
};
pub use scaling::into_directory;

use std::ffi::OsString;

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one of these in a process"
)]
pub enum Invocation {
    /// Help or version: print it to standard output and succeed.
    Print(String),
    /// Run `command`; `notes` are settings that were understood but change nothing here, one
    /// sentence each.
    Run {
        command: Command,
        notes: Vec<String>,
    },
}

/// Reads a command line, program name first, together with the `--config` file that it may name.
pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, UsageError> {
    from_args_among(None, args)
}

/// Reads what each of so many processes will run, so many of them on this machine, before they are
/// there to say it themselves.
pub fn from_args_among(
    processes: Option<(usize, usize)>,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Invocation, UsageError> {
    let typed = match command_line::parse(args)? {
        command_line::Parsed::Text(text) => return Ok(Invocation::Print(text)),
        command_line::Parsed::Typed(typed) => typed,
    };
    let mut typed = typed.with_config_file()?;
    typed.processes = processes;
    check::check(&typed)?;
    let typed = from_hub::fetch(typed)?;
    // Once more: what came from the Hub must be what it was taken for.
    check::check(&typed)?;
    let notes = typed
        .notes()
        .into_iter()
        .chain(mesh::note(&typed))
        .collect();
    Ok(Invocation::Run {
        command: resolve::resolve(&typed),
        notes,
    })
}
