//! `xtrain eval clm`: loss and perplexity of a model on text files.

use super::{Error, Outcome};
use crate::config::EvalPlan;

pub fn run(_plan: EvalPlan) -> Result<Outcome, Error> {
    super::not_built("eval clm")
}
