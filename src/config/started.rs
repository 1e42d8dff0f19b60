//! The command that another one starts (`launch`, `scaling`, `sweep`), checked with it, so that one
//! start reports the mistakes of both.

use super::command::CommandName;
use super::command_line::Parsed;
use super::error::UsageError;
use super::flags::Flags;
use super::reading;
use super::rules;
use super::scaling::into_directory;

/// Refuses the mistakes in the command as it stands: its starter adds the settings that it lacks.
///
/// # Errors
/// All mistakes in it.
pub fn check(flags: &Flags) -> Result<(), UsageError> {
    // One of them at most has words.
    let words: [&[String]; 3] = [&flags.launched, &flags.scaled, &flags.swept];
    let mut words = words.concat();
    let command = words.first().map(String::as_str);
    if !["train", "eval", "bench"].map(Some).contains(&command) {
        return Ok(());
    }
    let processes = (flags.command == CommandName::Launch).then(|| {
        let (nodes, processes) = (*flags.nnodes, *flags.nproc_per_node);
        (nodes * processes, processes)
    });
    if command == Some("train") && processes.is_none() {
        let first =
            |grid: &super::forms::Grid| Some(format!("--{}={}", grid.flag, grid.values.first()?));
        words.extend(flags.grid.iter().filter_map(first));
        words = into_directory(&words, &std::env::temp_dir().join("xtrain-started"));
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
            if is_partial {
                UsageError::all(started.mistakes.clone())
            } else {
                rules::check(&started)
            }
        }
        Parsed::Text(_) => Ok(()),
    }
}
