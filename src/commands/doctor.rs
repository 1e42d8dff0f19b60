//! `xtrain doctor`: checks that everything a device needs is there.

use super::{Error, Outcome};
use crate::config::DoctorPlan;

pub fn run(_plan: DoctorPlan) -> Result<Outcome, Error> {
    super::not_built("doctor")
}
