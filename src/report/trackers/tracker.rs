//! The trait of trackers, and the values that they get.

use crate::records::Record;
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
    /// The step that it ends with, if nothing ends it earlier.
    pub total_steps: u64,
}

impl RunDescription {
    /// The settings, numbers and booleans as such.
    pub(super) fn values(&self) -> Map<String, Value> {
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
pub(super) fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
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

/// A tracker that `--report_to` names. A new one is a file with its kind, and a row of `KINDS`.
pub struct TrackerKind {
    pub name: &'static str,
    /// `--report_to all` includes it.
    pub is_set_up: fn() -> bool,
    /// Begins or resumes a run. The errors of one that cannot be reached or written.
    pub start: fn(&Destination, &RunDescription) -> io::Result<Box<dyn Tracker>>,
}

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
