//! Reports this process's step to the other processes of a run.

use crate::distributed::ProcessGroup;
use crate::trainer::error::Result;
use crate::trainer::run_loop::{Hook, StepReport};
use crate::trainer::run_state::RunState;
use std::sync::Arc;

/// Sends a heartbeat to the process group after each step.
pub struct HeartbeatHook(pub Arc<ProcessGroup>);

impl Hook for HeartbeatHook {
    fn reported(&mut self, report: &StepReport, _run: &mut RunState) -> Result<()> {
        self.0.made_step(report.progress.step);
        Ok(())
    }
}
