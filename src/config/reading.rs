//! All settings of a command line: its flags and those of the settings file, of a model's training, of a
//! task of GLUE and of SageMaker's names. Checks that need several flags are elsewhere, except those of
//! files from the Hub.

use super::adapter;
use super::command_line::{self, Parsed};
use super::config_file;
use super::error::UsageError;
use super::from_hub;
use super::glue;
use super::output_bucket;
use super::sagemaker;
use super::train_files;
use std::ffi::OsString;

/// Reads the words, program name first; names of the Hub are still names.
///
/// # Errors
/// If no command can be recognized; its flags hold their `mistakes`.
pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let mut flags = match command_line::parse(args)? {
        Parsed::Text(text) => return Ok(Parsed::Text(text)),
        Parsed::Flags(flags) => config_file::read(*flags),
    };
    sagemaker::apply(&mut flags);
    output_bucket::apply(&mut flags);
    config_file::recall(&mut flags);
    glue::apply(&mut flags);
    train_files::apply(&mut flags);
    adapter::find_base(&mut flags);
    from_hub::check(&mut flags);
    Ok(Parsed::Flags(Box::new(flags)))
}
