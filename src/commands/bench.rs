//! `xtrain bench`: measures the training step.

use super::{Error, Outcome};
use crate::config::BenchPlan;

pub fn run(_plan: BenchPlan) -> Result<Outcome, Error> {
    super::not_built("bench")
}
