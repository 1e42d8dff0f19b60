//! What hangs on the training loop, in the order in which it is called: logging, telemetry,
//! comparing replicas, evaluating, saving.

pub mod best;
mod evaluate;
mod log;
mod replicas;
mod save;
mod sharded_state;
mod streamed;
mod telemetry;

pub use evaluate::EvaluateHook;
pub use log::LogHook;
pub use replicas::ReplicaCheckHook;
pub use save::{DTYPE_KEYS, SaveHook, SaveSettings, SavedModel, trainer_state};
pub use telemetry::{TelemetryHook, graph_listener};

use super::run_loop::Progress;
use super::settings::{Cadence, EvaluationTimes};

impl Cadence {
    /// Whether something of this cadence happens after the step that led to `progress`. As in
    /// transformers, the end of a training ends its last epoch too.
    pub fn is_due(self, progress: &Progress) -> bool {
        match self {
            Cadence::Never => false,
            Cadence::Steps(n) => progress.step.is_multiple_of(n),
            Cadence::Epoch => progress.epoch_ended || progress.is_last(),
            // These are not of a step by themselves.
            Cadence::Share(_) | Cadence::Best => false,
        }
    }
}

impl EvaluationTimes {
    /// Whether an evaluation follows the step that led to `progress`. As in transformers, a run that
    /// evaluates every N steps also evaluates after its last one.
    pub fn include(&self, progress: &Progress) -> bool {
        let done = match self.cadence {
            Cadence::Epoch => progress.epoch,
            _ => progress.step as f64,
        };
        let is_end = progress.is_last() && matches!(self.cadence, Cadence::Steps(_));
        (self.cadence.is_due(progress) || is_end) && done >= self.delay
    }
}
