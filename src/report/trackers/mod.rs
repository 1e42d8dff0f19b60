//! Experiment trackers (`--report_to`): each gets a description of the run, then every record.

pub mod event;
mod kubeflow;
mod mlflow;
mod tensorboard;
mod tracker;

pub use tensorboard::{KIND as TENSORBOARD, TensorBoard};
pub use tracker::{Destination, RunDescription, RunEnd, Tracker, TrackerKind};

use super::printable::quotable;
use super::progress::say;
use super::records::Record;
use std::io;

/// Every kind, in the order of messages.
pub static KINDS: &[&TrackerKind] = &[&tensorboard::KIND, &mlflow::KIND, &kubeflow::KIND];

/// The trackers of a run. Trouble with one is warned of once and costs that one, never the run.
#[derive(Default)]
pub struct Trackers(Vec<Box<dyn Tracker>>);

impl Trackers {
    pub fn new(trackers: Vec<Box<dyn Tracker>>) -> Trackers {
        Trackers(trackers)
    }

    pub fn record(&mut self, record: &Record) {
        self.each(|tracker| tracker.record(record));
    }

    /// Ends them; later records are dropped.
    pub fn end(&mut self, end: RunEnd) {
        self.each(|tracker| tracker.end(end));
        self.0.clear();
    }

    fn each(&mut self, mut call: impl FnMut(&mut dyn Tracker) -> io::Result<()>) {
        self.0.retain_mut(|tracker| match call(&mut **tracker) {
            Ok(()) => true,
            Err(error) => {
                let name = tracker.name();
                let reason = quotable(&error.to_string());
                say(&format!(
                    "warning: the run is not reported to {name} any more: {reason}"
                ));
                false
            }
        });
    }
}

impl Drop for Trackers {
    /// A successful run has ended them before.
    fn drop(&mut self) {
        self.end(RunEnd::Failed);
    }
}
