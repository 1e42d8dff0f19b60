//! A file that the user names for a command's result: checked before the work, and named after it.

use super::Error;
use std::path::Path;
use xtrain_checkpoint::named::{check_named, is_standard_output};
use xtrain_report::{errln, outln};

/// Refuses a file that cannot be written, before the work whose result it is to hold.
pub fn check_output(flag: &str, path: &Path) -> Result<(), Error> {
    check_named(path)
        .map_err(|error| Error::failed(format!("{flag}: {error}")).with_hint("name another file"))
}

/// Says what was written to a file that the user named: on standard error where the file is standard
/// output itself.
pub fn announce(path: &Path, line: &str) {
    if is_standard_output(path) {
        errln!("{line}");
    } else {
        outln!("{line}");
    }
}
