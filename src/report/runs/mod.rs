//! Finished and running runs as data, read from what they left: output directories of xtrain,
//! transformers' `trainer_state.json`, and logs that hold the Trainer's dictionaries.
//!
//! Reading order: this file (what a run is), `read` (where it is read from), `directory`, `log`
//! (with `dictionary`), `numbers` (what follows from it), `losses` (two runs step by step); `checkpoints`
//! (names of checkpoint directories).

pub mod checkpoints;
mod dictionary;
pub mod directory;
mod log;
pub mod losses;
pub mod numbers;
mod read;

pub use read::{Error, read, runs_in};

use super::telemetry::{ProcessEvent, StepEvent};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where a run was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// xtrain's output directory.
    Directory,
    /// transformers' `trainer_state.json`.
    TrainerState,
    /// A text with the Trainer's dictionaries.
    Log,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Source::Directory => "output directory",
            Source::TrainerState => "trainer_state.json",
            Source::Log => "log",
        }
    }
}

/// What values are drawn against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Step,
    Epoch,
    Tokens,
    Seconds,
}

impl Axis {
    pub const ALL: [Axis; 4] = [Axis::Step, Axis::Epoch, Axis::Tokens, Axis::Seconds];

    /// Its name on the command line and in files.
    pub fn key(self) -> &'static str {
        match self {
            Axis::Step => "step",
            Axis::Epoch => "epoch",
            Axis::Tokens => "tokens",
            Axis::Seconds => "time",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Axis::Step => "step",
            Axis::Epoch => "epoch",
            Axis::Tokens => "tokens seen",
            Axis::Seconds => "wall time, s",
        }
    }
}

/// The most memory that the devices held until a step, in bytes; of devices that do not count it,
/// what they held then.
pub const DEVICE_MEMORY: &str = "device_memory_bytes";

/// Where in a run something was measured; NaN where that is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub step: f64,
    pub epoch: f64,
    pub tokens: f64,
    pub seconds: f64,
}

impl Place {
    pub const UNKNOWN: Place = Place {
        step: f64::NAN,
        epoch: f64::NAN,
        tokens: f64::NAN,
        seconds: f64::NAN,
    };

    pub fn on(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Step => self.step,
            Axis::Epoch => self.epoch,
            Axis::Tokens => self.tokens,
            Axis::Seconds => self.seconds,
        }
    }
}

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub place: Place,
    pub value: f64,
}

/// One process of a run: a start, or a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    pub facts: ProcessEvent,
    /// The process, its machine and its kind of device.
    pub pid: u32,
    pub host: String,
    pub device: String,
    /// When it started and when it was last known to run, in seconds since 1970.
    pub started: f64,
    pub last: f64,
    /// The time of its last record, but for accounts, which a process writes that does not get on too.
    pub recorded: f64,
    /// It has left the loop.
    pub has_ended: bool,
    /// Seconds by [`super::accounting::Part::key`]; empty where the process wrote no account.
    pub parts: BTreeMap<String, f64>,
    pub outcome: Option<String>,
    /// Seconds of its steps without compiling, as its step records have them.
    pub step_seconds: f64,
    /// Tokens and floating-point operations of its steps.
    pub tokens: f64,
    pub flops: f64,
    pub steps: f64,
    /// The same without its first record, whose step made the graphs ready.
    pub later: Pace,
    /// Its last step record; before the first, where it began.
    pub step: StepEvent,
    /// Steps with their losses.
    pub curve: Vec<(f64, f64)>,
    /// Graphs of the run that were ready before it.
    pub earlier_graphs: usize,
}

/// Steps with their tokens and their seconds without compiling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    pub steps: f64,
    pub tokens: f64,
    pub seconds: f64,
}

impl Process {
    /// Seconds from its start to the last that is known of it.
    pub fn wall(&self) -> f64 {
        (self.last - self.started).max(0.0)
    }
}

/// A compiled graph that was made ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphUse {
    pub name: String,
    pub id: String,
    /// It came from the cache.
    pub loaded: bool,
    pub seconds: f64,
    /// Why it was compiled though another version of it had been.
    pub reason: Option<String>,
}

/// A run as it was read.
#[derive(Clone, Debug)]
pub struct Run {
    /// As reports call it.
    pub name: String,
    pub path: PathBuf,
    pub source: Source,
    /// By the key that the Trainer logs, each in the order of the log.
    pub series: BTreeMap<String, Vec<Point>>,
    /// The values of the record that ends a run, and of results files.
    pub summary: BTreeMap<String, f64>,
    /// What SageMaker charges for the job, times its instances, where a log says it.
    pub billable_seconds: Option<f64>,
    /// In the order of their starts.
    pub processes: Vec<Process>,
    pub graphs: Vec<GraphUse>,
    pub settings: BTreeMap<String, String>,
    /// Records that were read, and the last one of an evaluation.
    pub records: usize,
    pub evaluation: Option<Map<String, Value>>,
    /// The last step, and how many there are to make.
    pub last_step: f64,
    pub total_steps: Option<f64>,
    /// The process that writes it has not ended.
    pub is_running: bool,
    /// What could not be read, and what follows from that, a sentence each.
    pub problems: Vec<String>,
    /// Values of keys beyond [`MOST_SERIES`].
    left_out: usize,
}

/// Keys of a run that are kept; a Trainer has some dozens.
const MOST_SERIES: usize = 2000;

impl Run {
    /// A run of which nothing is known yet.
    fn new(path: PathBuf, source: Source) -> Run {
        Run {
            name: String::new(),
            path,
            source,
            series: BTreeMap::new(),
            summary: BTreeMap::new(),
            billable_seconds: None,
            processes: Vec::new(),
            graphs: Vec::new(),
            settings: BTreeMap::new(),
            records: 0,
            evaluation: None,
            last_step: f64::NAN,
            total_steps: None,
            is_running: false,
            problems: Vec::new(),
            left_out: 0,
        }
    }

    /// The values of a key; none where it was not logged.
    pub fn points(&self, key: &str) -> &[Point] {
        self.series.get(key).map_or(&[], Vec::as_slice)
    }

    /// Command line, machine and versions of the last process that recorded them.
    pub fn facts(&self) -> Option<&ProcessEvent> {
        let mut facts = self.processes.iter().rev().map(|process| &process.facts);
        facts.find(|facts| !facts.command.is_empty())
    }

    /// Adds a record: its numbers to the series of their keys, those of the record that ends a run
    /// to the summary. Returns how many values are not finite.
    fn add(&mut self, place: Place, values: impl IntoIterator<Item = (String, f64)>) -> usize {
        let mut not_finite = 0;
        self.records += 1;
        for (key, value) in values {
            let is_full = self.series.len() == MOST_SERIES;
            match key.as_str() {
                "step" | "epoch" | "num_input_tokens_seen" => {}
                _ if !value.is_finite() => not_finite += 1,
                _ if is_of_summary(&key) => drop(self.summary.insert(key, value)),
                _ => match self.series.get_mut(&key) {
                    Some(points) => points.push(Point { place, value }),
                    None if is_full => self.left_out += 1,
                    None => drop(self.series.insert(key, vec![Point { place, value }])),
                },
            }
        }
        if place.step.is_finite() {
            self.last_step = place.step.max(self.last_step);
        }
        not_finite
    }

    /// Drops what was logged from a place on, at the ends of the series: a later process logs it
    /// again.
    fn forget_from(&mut self, is_later: impl Fn(&Place) -> bool) -> usize {
        let mut dropped = 0;
        for points in self.series.values_mut() {
            while points.pop_if(|point| is_later(&point.place)).is_some() {
                dropped += 1;
            }
        }
        dropped
    }
}

/// Whether a key belongs to the record that ends a run.
fn is_of_summary(key: &str) -> bool {
    key.starts_with("train_") || key == "total_flos"
}

/// The value at `x` between known pairs, which are in the order of their first numbers; NaN outside
/// of them.
fn interpolated(known: &[(f64, f64)], x: f64) -> f64 {
    let after = known.partition_point(|(at, _)| *at < x);
    match (after.checked_sub(1).map(|i| known[i]), known.get(after)) {
        (_, Some((at, value))) if *at == x => *value,
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_between_known_ones_are_on_the_line() {
        let known = [(0.0, 0.0), (2.0, 10.0), (4.0, 10.0)];
        for (x, y) in [
            (0.0, 0.0),
            (1.0, 5.0),
            (2.0, 10.0),
            (3.0, 10.0),
            (4.0, 10.0),
        ] {
            assert_eq!(interpolated(&known, x), y);
        }
        assert!(interpolated(&known, 5.0).is_nan() && interpolated(&[], 1.0).is_nan());
    }

    #[test]
    fn records_become_series_and_a_summary() {
        let mut run = Run::new("x".into(), Source::Log);
        let values = [("loss", 2.0), ("grad_norm", f64::NAN), ("train_loss", 3.0)];
        let values = values.map(|(key, value)| (key.to_string(), value));
        let place = Place {
            step: 4.0,
            ..Place::UNKNOWN
        };
        assert_eq!(run.add(place, values), 1);
        assert_eq!(run.points("loss")[0].value, 2.0);
        assert_eq!((run.summary["train_loss"], run.last_step), (3.0, 4.0));
        assert!(run.points("grad_norm").is_empty());
    }
}
