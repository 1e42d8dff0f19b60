//! Experiment trackers (`--report_to`): each gets a description of the run, then every record.

pub mod event;
mod mlflow;
mod tensorboard;

pub use tensorboard::{KIND as TENSORBOARD, TensorBoard};

use super::printable::quotable;
use super::progress::say;
use super::records::Record;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The description of a run for a tracker.
pub struct RunDescription {
    /// Settings by name, as typed or by default.
    pub settings: BTreeMap<String, String>,
    /// The model's `config.json`.
    pub model: Map<String, Value>,
    /// The step that the run starts from; 0 for a new one.
    pub step: u64,
}

impl RunDescription {
    /// The settings, numbers and booleans as such.
    fn values(&self) -> Map<String, Value> {
        let value = |text: &String| match serde_json::from_str(text) {
            Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
            _ => Value::String(text.clone()),
        };
        let settings = self.settings.iter();
        settings
            .map(|(name, text)| (name.clone(), value(text)))
            .collect()
    }
}

/// Adds the path to a system error, which does not name it.
fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    }
}

/// The places of a run that its trackers use.
pub struct Destination<'a> {
    pub output_dir: &'a Path,
    /// Of event files; `None`: below the output directory.
    pub logging_dir: Option<&'a Path>,
    pub run_name: &'a str,
}

/// A tracker that `--report_to` names. A new one is a file with its kind, and a row of [`KINDS`].
pub struct TrackerKind {
    pub name: &'static str,
    /// `--report_to all` includes it.
    pub is_set_up: fn() -> bool,
    /// Begins or resumes a run. The errors of one that cannot be reached or written.
    pub start: fn(&Destination, &RunDescription) -> io::Result<Box<dyn Tracker>>,
}

/// Every kind, in the order of messages.
pub static KINDS: &[&TrackerKind] = &[&tensorboard::KIND, &mlflow::KIND];

impl PartialEq for TrackerKind {
    fn eq(&self, other: &TrackerKind) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for TrackerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Finished,
    /// By a signal, after a checkpoint.
    Interrupted,
    Failed,
}

/// A service or a file format for the numbers of runs.
pub trait Tracker: Send {
    /// Its name in `--report_to`.
    fn name(&self) -> &'static str;

    /// Keeps a record.
    ///
    /// # Errors
    /// If it cannot be written or sent.
    fn record(&mut self, record: &Record) -> io::Result<()>;

    /// Called once, after the last record.
    ///
    /// # Errors
    /// As [`Tracker::record`].
    fn end(&mut self, end: RunEnd) -> io::Result<()>;
}

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
