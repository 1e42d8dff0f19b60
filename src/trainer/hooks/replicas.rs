//! Looks now and then whether the replicas still hold the same weights, and stops the run when they
//! do not.

use crate::trainer::error::Result;
use crate::trainer::run_loop::{Control, Hook, Progress};
use crate::trainer::session::Session;
use crate::trainer::session::replicas::check;
use crate::trainer::settings::Cadence;
use xtrain_models::ParameterSpec;

pub struct ReplicaCheck {
    pub parameters: Vec<ParameterSpec>,
    pub cadence: Cadence,
}

impl Hook for ReplicaCheck {
    /// Also after the last step: what is saved then stands for all replicas.
    fn wants(&mut self, progress: &Progress) -> bool {
        self.cadence != Cadence::Never && (self.cadence.is_due(progress) || progress.is_last())
    }

    fn at_step(&mut self, progress: &Progress, session: &mut Session) -> Result<Control> {
        check(session, &self.parameters, progress.step)?;
        Ok(Control::Continue)
    }
}
