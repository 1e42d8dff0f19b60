//! Variables of the environment, of this process or of a test.

use super::super::{Error, Result};

pub const GENERATION: &str = "XTRAIN_GENERATION";

/// Looks a variable up.
pub(super) type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// A variable of this process that is set to something.
pub(super) fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A whole number that is 0 or more.
///
/// # Errors
/// If it is none; the error names the variable.
pub(super) fn number(name: &str, value: &str) -> Result<usize> {
    value.trim().parse().map_err(|_| Error::Environment {
        variable: name.into(),
        value: value.into(),
        problem: "expected a number that is 0 or more".into(),
    })
}
