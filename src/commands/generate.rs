//! `xtrain generate`: continues a prompt.

use super::{Error, Outcome};
use crate::config::GeneratePlan;
use crate::engine::generate;

pub fn run(plan: GeneratePlan) -> Result<Outcome, Error> {
    println!("{}", generate(&plan)?);
    Ok(Outcome::Done)
}
