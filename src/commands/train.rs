//! `xtrain train clm`: trains a causal language model on text files.

use super::{Error, Outcome};
use crate::config::TrainPlan;

pub fn run(_plan: TrainPlan) -> Result<Outcome, Error> {
    super::not_built("train clm")
}
