//! What a run keeps account of. The loop owns it and lends it to each hook in turn, so that hooks
//! share it without holding it.

use super::error::{Error, Result};
use super::hooks::best::Best;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use xtrain_checkpoint::{atomic, files};
use xtrain_graphs::optim::Plateau;
use xtrain_report::json;
use xtrain_report::progress::Progress as Bar;
use xtrain_report::records::{LOG_FILE, LogFile, LogFormat, Record};
use xtrain_report::step_line::StepLine;
use xtrain_report::terminal;
use xtrain_report::trackers::{RunEnd, Trackers};

/// The account of one run.
pub struct RunState {
    /// What was logged.
    pub log: RunLog,
    /// Sums over the steps.
    pub totals: RunningTotals,
    /// What the objective measured since the last record.
    pub measured: MeasuredTotals,
    /// `None` where nobody asks for the best evaluation.
    pub best: Option<Best>,
    /// What was saved.
    pub checkpoints: CheckpointHistory,
    /// The learning rate, where evaluations decide about it.
    pub plateau: Option<Plateau>,
    /// The last evaluation at a step of this run.
    pub evaluated: Option<Record>,
}

/// Everything that was logged, and where it goes.
pub struct RunLog {
    bar: Bar,
    /// Whether this process is the one of the run that writes.
    writes: bool,
    /// `None` in one that does not, and after a write has failed.
    file: Option<LogFile>,
    path: PathBuf,
    history: Vec<Map<String, Value>>,
    trackers: Trackers,
    format: LogFormat,
    /// Input tokens so far, if they are counted: in every record that follows.
    pub tokens_seen: Option<u64>,
}

impl RunLog {
    /// A log in `output_dir`. A resumed run brings the history up to its `step`; what an earlier
    /// run logged after that goes, since this run logs it again.
    pub fn open(
        output_dir: &Path,
        history: Vec<Map<String, Value>>,
        step: u64,
        bar: Bar,
    ) -> Result<Self> {
        let path = output_dir.join(LOG_FILE);
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        match files::lines(&path) {
            // Lines that cannot be read, of a damaged file, are of no step.
            Ok(mut lines) => atomic::write_file(&path, |kept| {
                lines.try_for_each(|line| {
                    let line = line?.bytes;
                    if step_of(&line).is_some_and(|own| own <= step) {
                        kept.write_all(&line)?;
                        kept.write_all(b"\n")?;
                    }
                    Ok(())
                })
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        let file = LogFile::append_in(output_dir).map_err(io)?;
        Ok(RunLog {
            bar,
            writes: true,
            file: Some(file),
            path,
            history,
            trackers: Trackers::default(),
            format: LogFormat::Auto,
            tokens_seen: None,
        })
    }

    /// The log of a process that leaves writing to another one of the run; its history is the same.
    pub fn unwritten(history: Vec<Map<String, Value>>, bar: Bar) -> Self {
        RunLog {
            bar,
            writes: false,
            file: None,
            path: Default::default(),
            history,
            trackers: Trackers::default(),
            format: LogFormat::Auto,
            tokens_seen: None,
        }
    }

    /// Prints records in this form.
    pub fn print_as(&mut self, format: LogFormat) {
        self.format = format;
    }

    /// Sends the records that follow there too.
    pub fn track(&mut self, trackers: Trackers) {
        self.trackers = trackers;
    }

    /// Says to the trackers how the run ended.
    pub fn end(&mut self, end: RunEnd) {
        self.trackers.end(end);
    }

    /// Prints a record and keeps it. Steps are worth more than their log: a file that cannot be
    /// written, on a full disk say, is warned of once, and checkpoints still have the record.
    pub fn record(&mut self, record: &Record) {
        self.record_step(record, None);
    }

    /// The same of a training record, with the line that a person reads.
    pub fn record_step(&mut self, record: &Record, line: Option<&StepLine>) {
        let total = self.bar.total();
        let text = self.format.text(record, line, total, terminal::width());
        self.bar.print(&text);
        self.keep_directory();
        if let Some(file) = &mut self.file
            && let Err(error) = file.write(record)
        {
            let path = self.path.display();
            self.bar
                .note(&format!("warning: {path} is not written any more: {error}"));
            self.file = None;
        }
        self.trackers.record(record);
        if let Value::Object(entry) = record.history_entry() {
            self.history.push(entry);
        }
    }

    /// Makes the output directory again if somebody has removed it, or the log in it: the steps are
    /// worth more than what is gone, and the model can still be saved.
    pub fn keep_directory(&mut self) {
        if !self.file.as_ref().is_some_and(LogFile::is_removed) {
            return;
        }
        let dir = self.path.parent().unwrap_or(Path::new("")).to_path_buf();
        let (what, gone) = if dir.exists() {
            (&self.path, "")
        } else {
            (&dir, ", and its checkpoints are gone")
        };
        let again = std::fs::create_dir_all(&dir).and_then(|()| {
            let mut file = LogFile::append_in(&dir)?;
            let mut entries = self.history.iter();
            entries.try_for_each(|entry| file.write_entry(entry))?;
            Ok(file)
        });
        let end = match &again {
            Ok(_) => "it is made again, with the log so far".to_string(),
            Err(error) => format!("it cannot be made again: {error}"),
        };
        self.bar.note(&format!(
            "warning: {} was removed while this run wrote to it{gone}; {end}",
            what.display()
        ));
        self.file = again.ok();
    }

    /// Every record so far, as `trainer_state.json` has them.
    pub fn history(&self) -> &[Map<String, Value>] {
        &self.history
    }

    /// Prints a line for people, where this process is the one that reports.
    pub fn note(&self, line: &str) {
        if self.writes {
            self.bar.note(line);
        }
    }

    /// The progress bar that lines are printed above.
    pub fn bar(&self) -> &Bar {
        &self.bar
    }
}

/// The step that a line of the log belongs to; 0 steps were made when a new run starts, so that it
/// keeps none.
fn step_of(line: &[u8]) -> Option<u64> {
    json::of_line::<Value>(line)?.get("step")?.as_u64()
}

/// Running sums that a resumed run continues. Losses are added in f64, in step order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunningTotals {
    /// Sum of the steps' losses since the last record.
    pub loss_since_log: f64,
    /// Steps since the last record.
    pub steps_since_log: f64,
    /// Sum of the losses of all steps.
    pub total_loss: f64,
    /// Steps whose losses that is.
    pub total_steps: f64,
    /// Floating-point operations.
    pub total_flops: f64,
    /// Without padding.
    pub total_tokens: f64,
    /// Steps that overflowed fp16 and changed nothing.
    pub skipped_steps: f64,
    /// Input tokens, if they are counted.
    pub tokens_seen: f64,
}

impl RunningTotals {
    fn fields(&mut self) -> [(&'static str, &mut f64); 8] {
        [
            ("loss_since_log", &mut self.loss_since_log),
            ("steps_since_log", &mut self.steps_since_log),
            ("total_loss", &mut self.total_loss),
            ("total_steps", &mut self.total_steps),
            ("total_flops", &mut self.total_flops),
            ("total_tokens", &mut self.total_tokens),
            ("skipped_steps", &mut self.skipped_steps),
            ("tokens_seen", &mut self.tokens_seen),
        ]
    }

    /// By name, for a checkpoint.
    pub fn to_map(mut self) -> BTreeMap<String, f64> {
        let fields = self.fields();
        fields.map(|(name, value)| (name.into(), *value)).into()
    }

    /// Those of a checkpoint; what it lacks is 0.
    pub fn from_map(map: &BTreeMap<String, f64>) -> Self {
        let mut totals = RunningTotals::default();
        for (name, value) in totals.fields() {
            *value = map.get(name).copied().unwrap_or(0.0);
        }
        totals
    }
}

/// What the objective measured in the steps since the last record: by name the sum of the steps' means
/// and the number of steps that had one. A resumed run continues it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredTotals(BTreeMap<String, (f64, f64)>);

/// What the names of sums and of numbers of steps begin with in a checkpoint.
const MEASURED: [&str; 2] = ["measured_since_log.", "measured_steps."];

impl MeasuredTotals {
    /// Adds a step's mean, unless it has none.
    pub fn add(&mut self, name: &str, mean: f64) {
        if mean.is_finite() {
            let (sum, steps) = self.0.entry(name.to_string()).or_default();
            *sum += mean;
            *steps += 1.0;
        }
    }

    /// The mean of the steps, which begins anew; NaN of none.
    pub fn take(&mut self, name: &str) -> f64 {
        let (sum, steps) = self.0.remove(name).unwrap_or_default();
        sum / steps
    }

    /// By name, for a checkpoint.
    pub fn to_map(&self) -> BTreeMap<String, f64> {
        let of_name = |(name, (sum, steps)): (&String, &(f64, f64))| {
            let [sums, counts] = MEASURED.map(|start| format!("{start}{name}"));
            [(sums, *sum), (counts, *steps)]
        };
        self.0.iter().flat_map(of_name).collect()
    }

    /// Those of a checkpoint.
    pub fn from_map(map: &BTreeMap<String, f64>) -> Self {
        let [sums, counts] = MEASURED;
        let of_name = |(key, sum): (&String, &f64)| {
            let name = key.strip_prefix(sums)?;
            let steps = map.get(&format!("{counts}{name}"))?;
            Some((name.to_string(), (*sum, *steps)))
        };
        MeasuredTotals(map.iter().filter_map(of_name).collect())
    }
}

/// What wants to know of each checkpoint that is saved.
pub type SavedListener = Box<dyn FnMut(&Path)>;

/// The checkpoints in the output directory as this run sees them.
#[derive(Default)]
pub struct CheckpointHistory {
    /// The newest one: what the run was resumed from, or its own last.
    pub newest: Option<PathBuf>,
    /// The newest one from which a step with a finite loss has been made. A checkpoint can hold
    /// finite weights that are already lost; only the next step shows it, so this one stays until
    /// then whatever `save_total_limit` says.
    pub proven: Option<PathBuf>,
    /// What was to be saved last, and why it was not.
    pub unsaved: Option<(PathBuf, String)>,
    /// Those of an earlier run, which `--overwrite_output_dir` gave up. They go when this run has
    /// something in their place.
    pub stale: Vec<PathBuf>,
    /// Called with each checkpoint when it is whole, before any other is removed.
    pub listeners: Vec<SavedListener>,
}

impl CheckpointHistory {
    /// What a run that cannot go on can be continued from.
    pub fn sentence(&self) -> String {
        let kept = match &self.newest {
            Some(path) if !path.is_dir() => {
                format!("its last checkpoint, {}, was removed", path.display())
            }
            _ => self.kept(),
        };
        match &self.unsaved {
            Some((path, reason)) => format!("{} was not saved: {reason}; {kept}", path.display()),
            None => kept,
        }
    }

    fn kept(&self) -> String {
        match (&self.newest, &self.proven) {
            (None, _) => "no checkpoint had been saved".to_string(),
            (newest, proven) if newest == proven => {
                format!(
                    "the last good checkpoint is {}",
                    newest.as_deref().unwrap_or(Path::new("")).display()
                )
            }
            (Some(newest), Some(proven)) => format!(
                "{} was saved just before and would lead here again; the last good checkpoint is {}, go on from it with \
                 --resume_from_checkpoint and that path",
                newest.display(),
                proven.display()
            ),
            (Some(newest), None) => {
                format!(
                    "{} was saved just before and would lead here again; this run has no earlier one",
                    newest.display()
                )
            }
        }
    }

    /// Removes what an earlier run left, now that this run has saved something.
    pub fn remove_stale(&mut self) -> Result<()> {
        for path in self.stale.drain(..) {
            if Some(&path) != self.newest.as_ref() && path.exists() {
                atomic::remove_dir(&path)?;
            }
        }
        Ok(())
    }
}

/// Under this name a [`DataPosition`] is in the training state's `extra`.
pub const DATA_POSITION: &str = "data_position";

/// Where the data stand, for a run whose batches are not numbered.
pub struct DataPosition {
    /// JSON that the stream wrote and reads again.
    pub state: Value,
    /// Files of the checkpoint, by name.
    pub files: Vec<(String, Vec<u8>)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use xtrain_report::accounting::{self, Part};
    use xtrain_report::progress::Style;
    use xtrain_report::records::TrainRecord;
    use xtrain_report::telemetry::{Event, StepEvent, Telemetry, now};
    use xtrain_report::trackers::{RunDescription, TensorBoard};

    /// A mean is over the steps that had one, and goes through a checkpoint.
    #[test]
    fn measures_are_means_of_the_steps_since_the_last_record() {
        let mut totals = MeasuredTotals::default();
        totals.add("rewards/chosen", 1.0);
        totals.add("kl", f64::NAN);
        let mut totals = MeasuredTotals::from_map(&totals.to_map());
        totals.add("rewards/chosen", 4.0);
        totals.add("rewards/chosen", f64::NAN);
        assert_eq!(totals.take("rewards/chosen"), 2.5);
        assert!(totals.take("rewards/chosen").is_nan());
        assert!(totals.take("kl").is_nan());
        assert_eq!(totals, MeasuredTotals::default());
    }

    /// A step of 50 ms may lose 0.2 % to all that is recorded of it: the log, TensorBoard's events
    /// and the account of time at every step, and telemetry, which a run writes once a second, at
    /// every step too. The quietest of some rounds counts: other programs only add.
    #[test]
    #[ignore = "slow: measures, so run it alone"]
    fn recording_a_step_costs_less_than_a_five_hundredth_of_50_ms() {
        const STEPS: u64 = 500;
        let dir = tempfile::tempdir().unwrap();
        let run = RunDescription {
            settings: BTreeMap::new(),
            model: Map::new(),
            step: 0,
            total_steps: STEPS,
        };
        let bar = Bar::new("training", STEPS, Style::Silent);
        let mut log = RunLog::open(dir.path(), Vec::new(), 0, bar).unwrap();
        let events = TensorBoard::start(dir.path(), None, &run).unwrap();
        log.track(Trackers::new(vec![Box::new(events)]));
        let telemetry = Telemetry::append_in(dir.path());
        accounting::begin();
        let mut record = |step: u64| {
            for part in [Part::InputWait, Part::Device] {
                drop(accounting::enter(part));
            }
            let number = step as f64;
            let record = Record::Train(TrainRecord {
                loss: 1.0 / (number + 1.1),
                grad_norm: Some(number.sqrt()),
                learning_rate: 5e-5 / (number + 1.0),
                scaling: None,
                measured: Vec::new(),
                epoch: number / 7.0,
                tokens_seen: Some(step * 1024),
                step,
            });
            log.record(&record);
            telemetry.write(&Event::Step(StepEvent {
                time: now(),
                step,
                loss: Some(number),
                ..StepEvent::default()
            }));
        };
        let round = |_| {
            let began = Instant::now();
            (0..STEPS).for_each(&mut record);
            began.elapsed() / STEPS as u32
        };
        let least: Duration = (0..10).map(round).min().unwrap();
        eprintln!("recording a step takes {least:?}");
        assert!(least < Duration::from_micros(100), "{least:?}");
    }
}
