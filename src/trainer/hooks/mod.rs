//! What hangs on the training loop, in the order in which it is called: logging, telling whoever
//! watches, comparing replicas, evaluating, saving.

mod alive;
pub mod best;
mod evaluate;
mod log;
mod replicas;
mod save;
mod shares;
mod telemetry;

pub use alive::Alive;
pub use evaluate::Evaluator;
pub use log::{Logger, RunLog, Sums};
pub use replicas::ReplicaCheck;
pub use save::{DATA_POSITION, DataPosition, Kept, SavedModel, Saver, trainer_state};
pub use telemetry::{Teller, graph_listener};

use super::run_loop::Progress;
use super::settings::Cadence;

impl Cadence {
    /// Whether something of this cadence happens after the step that led to `progress`.
    pub fn is_due(self, progress: &Progress) -> bool {
        match self {
            Cadence::Never => false,
            Cadence::Steps(n) => progress.step.is_multiple_of(n),
            Cadence::Epoch => progress.epoch_ended,
        }
    }
}
