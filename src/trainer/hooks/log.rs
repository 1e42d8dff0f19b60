//! Logging: the step line for people, the Trainer's dictionary for scrapers, JSON lines and
//! `log_history` for programs.

use crate::report::progress::Progress as Bar;
use crate::report::records::{LogFile, Record, ScalingRecord, TrainRecord};
use crate::report::step_line::{StepLine, StepTime};
use crate::trainer::error::{Error, Result};
use crate::trainer::run_loop::{Hook, Progress, StepReport};
use crate::trainer::session::HostTime;
use crate::trainer::settings::Cadence;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Everything that was logged, and where it goes.
pub struct RunLog {
    bar: Bar,
    /// `None` in a process that does not write.
    file: Option<LogFile>,
    path: std::path::PathBuf,
    history: Vec<Map<String, Value>>,
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
        let path = output_dir.join(crate::report::records::LOG_FILE);
        let io = |source| Error::Io {
            path: path.clone(),
            source,
        };
        if path.exists() {
            let old = std::fs::read_to_string(&path).map_err(io)?;
            let kept: String = old
                .lines()
                .filter(|line| step_of(line).is_some_and(|s| s <= step))
                .map(|l| format!("{l}\n"))
                .collect();
            crate::checkpoint::atomic::write_bytes(&path, kept.as_bytes())?;
        }
        let file = LogFile::append_in(output_dir).map_err(io)?;
        Ok(RunLog {
            bar,
            file: Some(file),
            path,
            history,
        })
    }

    /// The log of a process that leaves writing to another one of the run; its history is the same.
    pub fn unwritten(history: Vec<Map<String, Value>>, bar: Bar) -> Self {
        RunLog {
            bar,
            file: None,
            path: Default::default(),
            history,
        }
    }

    /// Prints a record and keeps it.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        self.bar.print(&record.printed());
        if let Some(file) = &mut self.file {
            file.write(record).map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        }
        if let Value::Object(entry) = record.history_entry() {
            self.history.push(entry);
        }
        Ok(())
    }

    pub fn history(&self) -> &[Map<String, Value>] {
        &self.history
    }

    /// Prints a line for people, where this process is the one that reports.
    pub fn note(&self, line: &str) {
        if self.file.is_some() {
            self.bar.note(line);
        }
    }

    pub fn bar(&self) -> &Bar {
        &self.bar
    }
}

/// The step that a line of the log belongs to; 0 steps were made when a new run starts, so that it
/// keeps none.
fn step_of(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line)
        .ok()?
        .get("step")?
        .as_u64()
}

/// Running sums that a resumed run continues. Losses are added in f64, in step order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    pub loss_since_log: f64,
    pub steps_since_log: f64,
    pub total_loss: f64,
    pub total_steps: f64,
    /// Floating-point operations.
    pub total_flops: f64,
    /// Steps that overflowed fp16 and changed nothing.
    pub skipped_steps: f64,
}

impl Sums {
    pub fn to_map(self) -> BTreeMap<String, f64> {
        [
            ("loss_since_log", self.loss_since_log),
            ("steps_since_log", self.steps_since_log),
            ("total_loss", self.total_loss),
            ("total_steps", self.total_steps),
            ("total_flops", self.total_flops),
            ("skipped_steps", self.skipped_steps),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into()
    }

    pub fn from_map(map: &BTreeMap<String, f64>) -> Self {
        let get = |name: &str| map.get(name).copied().unwrap_or(0.0);
        Sums {
            loss_since_log: get("loss_since_log"),
            steps_since_log: get("steps_since_log"),
            total_loss: get("total_loss"),
            total_steps: get("total_steps"),
            total_flops: get("total_flops"),
            skipped_steps: get("skipped_steps"),
        }
    }
}

/// Logs at its cadence.
pub struct Logger {
    log: Rc<RefCell<RunLog>>,
    sums: Rc<RefCell<Sums>>,
    cadence: Cadence,
    first_step: bool,
    peak_tflops: Option<f64>,
    /// Of the steps since the last line.
    interval: Interval,
}

#[derive(Default)]
struct Interval {
    steps: u32,
    flops: f64,
    tokens: f64,
    host: HostTime,
    data_wait: Duration,
    device_wait: Duration,
    elapsed: Duration,
}

impl Logger {
    pub fn new(
        log: Rc<RefCell<RunLog>>,
        sums: Rc<RefCell<Sums>>,
        (cadence, first_step): (Cadence, bool),
        peak_tflops: Option<f64>,
    ) -> Self {
        let interval = Interval::default();
        Logger {
            log,
            sums,
            cadence,
            first_step,
            peak_tflops,
            interval,
        }
    }

    fn is_due(&self, progress: &Progress) -> bool {
        self.cadence.is_due(progress) || (self.first_step && progress.step == 1)
    }

    fn step_line(&self, report: &StepReport, loss: f64) -> StepLine {
        let interval = &self.interval;
        let seconds = interval.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        StepLine {
            step: report.progress.step,
            total_steps: report.progress.max_steps,
            loss,
            learning_rate: report.learning_rate,
            grad_norm: Some(f64::from(report.metrics.grad_norm)),
            tokens_per_second: interval.tokens / seconds,
            time: StepTime {
                step: interval.elapsed / interval.steps,
                trace: interval.host.trace / interval.steps,
                compile: interval.host.compile / interval.steps,
                execute: (interval.host.execute + interval.device_wait) / interval.steps,
                wait: interval.data_wait / interval.steps,
            },
            model_tflops: interval.flops / seconds / 1e12,
            peak_tflops: self.peak_tflops,
        }
    }
}

impl Hook for Logger {
    fn reported(&mut self, report: &StepReport) -> Result<()> {
        let loss = f64::from(report.metrics.loss);
        let interval = &mut self.interval;
        interval.steps += 1;
        interval.flops += report.flops;
        interval.tokens += report.tokens as f64;
        interval.host += report.host_time;
        interval.data_wait += report.data_wait;
        interval.device_wait += report.device_wait;
        interval.elapsed += report.elapsed;
        let mut sums = self.sums.borrow_mut();
        if report.metrics.is_skipped() {
            sums.skipped_steps += 1.0;
        }
        // Only a skipped step's loss can be anything else.
        if loss.is_finite() {
            sums.loss_since_log += loss;
            sums.steps_since_log += 1.0;
            sums.total_loss += loss;
            sums.total_steps += 1.0;
        }
        sums.total_flops += report.flops;
        self.log.borrow().bar().advance(1);
        if !self.is_due(&report.progress) {
            return Ok(());
        }
        let mean_loss = sums.loss_since_log / sums.steps_since_log;
        (sums.loss_since_log, sums.steps_since_log) = (0.0, 0.0);
        let mut log = self.log.borrow_mut();
        log.note(&self.step_line(report, mean_loss).render());
        log.record(&Record::Train(TrainRecord {
            loss: mean_loss,
            grad_norm: Some(f64::from(report.metrics.grad_norm)),
            learning_rate: report.learning_rate,
            scaling: report.metrics.scaling.map(|scaling| ScalingRecord {
                loss_scale: f64::from(scaling.scale),
                skipped_steps: sums.skipped_steps as u64,
            }),
            epoch: report.progress.epoch,
            step: report.progress.step,
        }))?;
        self.interval = Interval::default();
        Ok(())
    }
}
