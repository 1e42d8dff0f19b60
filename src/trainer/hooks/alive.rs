//! Tells the other processes of a run how far this one is.

use crate::distributed::ProcessGroup;
use crate::trainer::error::Result;
use crate::trainer::run_loop::{Hook, StepReport};
use std::sync::Arc;

pub struct Alive(pub Arc<ProcessGroup>);

impl Hook for Alive {
    fn reported(&mut self, report: &StepReport) -> Result<()> {
        self.0.made_step(report.progress.step);
        Ok(())
    }
}
