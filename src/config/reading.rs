//! What a command line says in all: its flags, the settings file's, and what a model's training, a task
//! of GLUE and SageMaker's names bring. Nothing is checked here that needs more than one flag, but for
//! what is fetched from the Hub.

use super::command_line::{self, Parsed};
use super::config_file;
use super::error::UsageError;
use super::from_hub;
use super::glue;
use super::sagemaker;
use std::ffi::OsString;

/// Reads the words, program name first; names of the Hub are still names.
///
/// # Errors
/// If no command can be recognized; what is wrong with its flags is in their `mistakes`.
pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let mut flags = match command_line::parse(args)? {
        Parsed::Text(text) => return Ok(Parsed::Text(text)),
        Parsed::Flags(flags) => config_file::read(*flags),
    };
    sagemaker::apply(&mut flags);
    config_file::recall(&mut flags);
    glue::apply(&mut flags);
    from_hub::check(&mut flags);
    Ok(Parsed::Flags(Box::new(flags)))
}
