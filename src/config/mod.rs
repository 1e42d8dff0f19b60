//! From what the user typed to a resolved, legal plan, in two stages:
//!
//! 1. *typed*: the command line (`command_line`) and `--config` files (`config_file`) become
//!    `flags::Flags`, whose one declaration also feeds `--help` (`help`) and `docs/flags.md`
//!    (`reference_tests`). Mistakes are collected on the way.
//! 2. *resolved*: `rules` refuse these and every illegal combination, then `resolve` makes the plans of
//!    `plan`, which the commands take and which hold no `Option` that does not mean something.
//!
//! In between, names of models and data sets on the Hub become the paths of fetched files
//! (`from_hub`).
//!
//! Nothing here loads a library, a model or a tokenizer, so help and mistakes are answered at once.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod adapter;
mod choices;
mod command;
mod command_line;
mod config_file;
mod container;
mod declare;
mod derived;
mod error;
mod file_format;
#[cfg(test)]
mod fixture;
mod flags;
mod foreign;
mod forms;
mod from_hub;
#[cfg(test)]
mod fuzz;
mod glue;
mod help;
mod instead;
mod kind;
mod lookup;
mod mesh;
#[cfg(test)]
mod migration_tests;
mod model_config;
mod nearest;
mod output_bucket;
mod plan;
mod preference;
mod reading;
#[cfg(test)]
mod reference_tests;
mod resolve;
mod rules;
mod sagemaker;
mod scaling;
mod setting;
#[cfg(test)]
mod snapshot_tests;
mod sources;
mod started;
mod sweep;
mod train_files;
mod tree;
mod unexpected;

pub use choices::{Alignment, Axis, Device, HubStrategy, ReportFormat, TorchDtype};
pub use command::CacheVerb;
pub use config_file::DATA_SETTINGS_FILE;
pub use derived::{together, without_secrets};
pub use error::{Advice, Asked, Origin, UsageError};
pub use flags::Flags;
pub use plan::{
    BenchPlan, CachePlan, Command, CompilePlan, ConfigSource, DevicePlan, DoctorPlan, FitPlan,
    GeneratePlan, GenerationFlags, MergePlan, MeshComparison, ModelSource, PredictPlan,
    PromptSource, PushPlan, QuickstartPlan, RunPlan, ScaledRun, ScalingPlan, SweepPlan, SweptRun,
    TaskPlan, TokenizerSource, TrackerPlan, TrainSettings,
};
pub use rules::contents::{length_mistake, metric_is_known, no_labels};
pub use scaling::into_directory;
pub use setting::Setting;

use command_line::Parsed;
use std::ffi::OsString;
use std::sync::Arc;
use xtrain_report::terminal;

/// The request of a command line.
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
///
/// # Errors
/// Everything that is wrong with it, all at once.
pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, UsageError> {
    from_args_among(None, args)
}

/// The flags of the command line and the settings file, checked; names of the Hub are still names.
fn read(
    processes: Option<(usize, usize)>,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Parsed, UsageError> {
    let mut flags = match reading::read(args)? {
        Parsed::Text(text) => return Ok(Parsed::Text(text)),
        Parsed::Flags(flags) => flags,
    };
    flags.processes = processes;
    if let Err(own) = rules::check(&flags) {
        let started = started::check(&flags).err();
        UsageError::all(std::iter::once(own).chain(started).collect())?;
    }
    Ok(Parsed::Flags(flags))
}

/// Reads what each process of a job will run, before the launcher starts them: `processes` in all
/// and on this machine.
///
/// # Errors
/// As [`from_args`].
pub fn from_args_among(
    processes: Option<(usize, usize)>,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Invocation, UsageError> {
    let flags = match read(processes, args)? {
        Parsed::Text(text) => return Ok(Invocation::Print(text)),
        Parsed::Flags(flags) => {
            output_bucket::fetch(&flags)?;
            from_hub::fetch(*flags)?
        }
    };
    if flags.color.is_given() {
        terminal::set_colors(*flags.color);
    }
    // Once more: the files from the Hub must be of the kind that the flags take.
    rules::check(&flags)?;
    let notes = flags.notes.iter().cloned();
    let notes = notes
        .chain(mesh::note(&flags))
        .chain(flags.evaluation_note())
        .chain(flags.paging_note())
        .chain(flags.f32_note());
    Ok(Invocation::Run {
        notes: notes.collect(),
        command: resolve::resolve(&Arc::new(flags))?,
    })
}
