//! Looks now and then whether the replicas still hold the same weights, and stops the run when they
//! do not.

use crate::error::Result;
use crate::run_loop::{Control, Hook, Progress, StepContext};
use crate::session::replicas::check;
use crate::settings::Cadence;
use xtrain_models::ParameterSpec;
use xtrain_report::accounting::{self, Part};

/// Compares the replicas at its cadence, and after the last step.
pub struct ReplicaCheckHook {
    /// What is compared, bit for bit.
    pub parameters: Vec<ParameterSpec>,
    /// When it is compared.
    pub cadence: Cadence,
}

impl Hook for ReplicaCheckHook {
    /// Also after the last step: what is saved then stands for all replicas.
    fn wants(&mut self, progress: &Progress) -> bool {
        self.cadence != Cadence::Never && (self.cadence.is_due(progress) || progress.is_last())
    }

    fn at_step(&mut self, context: &mut StepContext) -> Result<Control> {
        let _exchanging = accounting::enter(Part::Exchange);
        check(context.session, &self.parameters, context.progress.step)?;
        Ok(Control::Continue)
    }
}
