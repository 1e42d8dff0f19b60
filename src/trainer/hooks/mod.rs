//! What hangs on the training loop, in the order in which it is called: logging, telemetry,
//! heartbeats, comparing replicas, evaluating, saving.

pub mod best;
mod evaluate;
mod heartbeat;
mod log;
mod replicas;
mod save;
mod sharded_state;
mod streamed;
mod telemetry;

pub use evaluate::EvaluateHook;
pub use heartbeat::HeartbeatHook;
pub use log::LogHook;
pub use replicas::ReplicaCheckHook;
pub use save::{SaveHook, SavedModel, trainer_state};
pub use telemetry::{TelemetryHook, graph_listener};

use super::run_loop::Progress;
use super::settings::{Cadence, TrainSettings};

impl Cadence {
    /// Whether something of this cadence happens after the step that led to `progress`.
    pub fn is_due(self, progress: &Progress) -> bool {
        match self {
            Cadence::Never => false,
            Cadence::Steps(n) => progress.step.is_multiple_of(n),
            Cadence::Epoch => progress.epoch_ended,
            // These are not of a step by themselves.
            Cadence::Share(_) | Cadence::Best => false,
        }
    }
}

impl TrainSettings {
    /// Whether an evaluation follows the step that led to `progress`.
    pub fn evaluates_at(&self, progress: &Progress) -> bool {
        let done = match self.eval {
            Cadence::Epoch => progress.epoch,
            _ => progress.step as f64,
        };
        self.eval.is_due(progress) && done >= self.eval_delay
    }
}
