//! How a rule answers.

use crate::error::UsageError;
pub use crate::error::refuse;

/// `Err`: the problem, and the change that makes the command legal.
pub type Verdict = Result<(), UsageError>;

/// Refuses if `illegal`.
pub fn refuse_if(illegal: bool, problem: &str, fix: &str) -> Verdict {
    if illegal {
        refuse(problem, fix)
    } else {
        Ok(())
    }
}
