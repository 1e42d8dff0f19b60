//! The command that another one starts (`launch`, `scaling`, `sweep`), checked with it, so that one
//! start reports the mistakes of both.

use super::command::CommandName;
use super::command_line::Parsed;
use super::error::UsageError;
use super::flags::Flags;
use super::reading;
use super::rules;
use super::scaling::into_directory;

/// Refuses what is wrong with the command as it stands: what it lacks to be started is for those who
/// start it.
///
/// # Errors
/// All mistakes in it.
pub fn check(flags: &Flags) -> Result<(), UsageError> {
    let (words, processes): (&[String], _) = match flags.command {
        CommandName::Launch => {
            let (nodes, processes) = (*flags.nnodes, *flags.nproc_per_node);
            (&flags.launched, Some((nodes * processes, processes)))
        }
        CommandName::Scaling => (&flags.scaled, None),
        CommandName::Sweep => (&flags.swept, None),
        _ => return Ok(()),
    };
    let mut words = words.to_vec();
    match words.first().map(String::as_str) {
        Some("train") if processes.is_none() => {
            let first = |grid: &super::forms::Grid| {
                Some(format!("--{}={}", grid.flag, grid.values.first()?))
            };
            words.extend(flags.grid.iter().filter_map(first));
            words = into_directory(&words, &std::env::temp_dir().join("xtrain-started"));
        }
        Some("train" | "eval" | "bench") => {}
        _ => return Ok(()),
    }
    let words = std::iter::once("xtrain".to_string()).chain(words);
    match reading::read(words.map(Into::into))? {
        Parsed::Flags(mut started) => {
            started.processes = processes;
            // Each run has one combination of the grid: without it nobody knows what is missing.
            let is_partial = flags
                .mistakes
                .iter()
                .any(|mistake| mistake.flag() == Some("grid"));
            match is_partial {
                true => UsageError::all(started.mistakes.clone()),
                false => rules::check(&started),
            }
        }
        Parsed::Text(_) => Ok(()),
    }
}
