//! How a rule answers.

use crate::config::error::UsageError;

/// `Err`: the problem, and the change that makes the command legal.
pub type Verdict = Result<(), UsageError>;

/// Refuses: what is wrong, and what to do.
pub fn refuse(problem: impl Into<String>, fix: impl Into<String>) -> Verdict {
    Err(UsageError::illegal(problem, fix))
}

/// Refuses if `illegal`.
pub fn refuse_if(illegal: bool, problem: &str, fix: &str) -> Verdict {
    if illegal {
        refuse(problem, fix)
    } else {
        Ok(())
    }
}
