//! `xtrain generate`: continues a prompt with a trained model.

use super::{Error, Outcome};
use crate::config::GeneratePlan;

pub fn run(_plan: GeneratePlan) -> Result<Outcome, Error> {
    super::not_built("generate")
}
