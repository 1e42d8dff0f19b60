//! `xtrain quickstart`: from nothing to a trained model and a sample of its text in a few minutes.

use super::{Error, Outcome};
use crate::config::QuickstartPlan;

pub fn run(_plan: QuickstartPlan) -> Result<Outcome, Error> {
    super::not_built("quickstart")
}
