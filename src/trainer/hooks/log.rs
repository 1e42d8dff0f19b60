//! Logging: the step line for people, the Trainer's dictionary for scrapers, JSON lines and
//! `log_history` for programs.

use crate::error::Result;
use crate::run_loop::{Hook, Progress, StepReport, StepWork};
use crate::run_state::RunState;
use crate::settings::{Cadence, TokensSeen};
use std::time::Duration;
use xtrain_report::records::{Record, ScalingRecord, TrainRecord};
use xtrain_report::step_line::{StepLine, loss_text};
use xtrain_report::units::count;

/// Logs at its cadence.
pub struct LogHook {
    cadence: Cadence,
    first_step: bool,
    tokens_seen: TokensSeen,
    peak_tflops: Option<f64>,
    /// Names of what the objective measures.
    measures: Vec<&'static str>,
    /// Of the steps since the last line.
    interval: StepWork,
    /// Of a step without compiling, as it was lately.
    step_seconds: f64,
    /// Why there was no loss has been said.
    has_noted: bool,
}

/// Says why the steps up to this one have no loss.
fn without_loss(report: &StepReport) -> String {
    let step = report.progress.step;
    if report.metrics.is_skipped() {
        format!(
            "note: no loss is logged at step {step}: all steps since the last record were skipped, because their gradients overflowed fp16"
        )
    } else {
        format!("note: no loss is logged at step {step}: no label since the last record has one")
    }
}

impl LogHook {
    /// Logs at this cadence and, if wanted, after the first step; the rate of matrix products
    /// that the device reaches stands beside the step's, and what the objective measures under these
    /// names in each record.
    pub fn new(
        cadence: Cadence,
        first_step: bool,
        tokens_seen: TokensSeen,
        peak_tflops: Option<f64>,
        measures: &[&'static str],
    ) -> Self {
        LogHook {
            cadence,
            first_step,
            tokens_seen,
            peak_tflops,
            measures: measures.to_vec(),
            interval: StepWork::default(),
            step_seconds: 0.0,
            has_noted: false,
        }
    }

    /// Takes a step into the mean, which forgets in about twenty steps. A step that had to be
    /// compiled says nothing of the next ones.
    fn pace(&mut self, work: &StepWork) {
        let seconds = (work.time.step.saturating_sub(work.time.compile)).as_secs_f64();
        self.step_seconds = match self.step_seconds {
            0.0 => seconds,
            mean => 0.9 * mean + 0.1 * seconds,
        };
    }

    fn is_due(&self, progress: &Progress) -> bool {
        self.cadence.is_due(progress) || (self.first_step && progress.step == 1)
    }

    fn step_line(&self, report: &StepReport, loss: f64) -> StepLine {
        let interval = &self.interval;
        StepLine {
            step: report.progress.step,
            total_steps: report.progress.max_steps,
            loss,
            learning_rate: report.learning_rate,
            grad_norm: Some(f64::from(report.metrics.grad_norm)),
            tokens_per_second: interval.rate(interval.tokens as f64),
            time: interval.time / interval.steps,
            model_tflops: interval.rate(interval.flops) / 1e12,
            peak_tflops: self.peak_tflops,
        }
    }
}

impl Hook for LogHook {
    fn reported(&mut self, report: &StepReport, state: &mut RunState) -> Result<()> {
        let loss = report.metrics.measured_loss();
        self.interval += report.work;
        let RunState {
            log,
            totals,
            measured,
            ..
        } = state;
        if report.metrics.is_skipped() {
            totals.skipped_steps += 1.0;
        }
        if !loss.is_nan() {
            totals.loss_since_log += loss;
            totals.steps_since_log += 1.0;
            totals.total_loss += loss;
            totals.total_steps += 1.0;
        }
        for (name, mean) in self.measures.iter().zip(&report.metrics.measured) {
            measured.add(name, *mean);
        }
        totals.total_flops += report.work.flops;
        totals.tokens_seen += match self.tokens_seen {
            TokensSeen::No => 0.0,
            TokensSeen::All => report.work.padded_tokens as f64,
            TokensSeen::NonPadding => report.work.tokens as f64,
        };
        if self.tokens_seen != TokensSeen::No {
            log.tokens_seen = Some(totals.tokens_seen as u64);
        }
        totals.total_tokens += report.work.tokens as f64;
        self.pace(&report.work);
        if log.bar().is_drawn() {
            let rate = 1.0 / self.step_seconds.max(f64::MIN_POSITIVE);
            let tokens = count(report.work.tokens as f64 * rate);
            let text = format!("{}  {rate:.2} steps/s  {tokens} tok/s", loss_text(loss));
            let step = Duration::try_from_secs_f64(self.step_seconds);
            log.bar().message(&text, step.unwrap_or_default());
        }
        log.bar().advance(1);
        if !self.is_due(&report.progress) {
            return Ok(());
        }
        // NaN if no step had one.
        let mean_loss = totals.loss_since_log / totals.steps_since_log;
        if mean_loss.is_nan() && !self.has_noted {
            self.has_noted = true;
            log.note(&without_loss(report));
        }
        (totals.loss_since_log, totals.steps_since_log) = (0.0, 0.0);
        let line = self.step_line(report, mean_loss);
        let record = Record::Train(TrainRecord {
            loss: mean_loss,
            grad_norm: Some(f64::from(report.metrics.grad_norm)),
            learning_rate: report.learning_rate,
            scaling: report.metrics.scaling.map(|scaling| ScalingRecord {
                loss_scale: f64::from(scaling.scale),
                skipped_steps: totals.skipped_steps as u64,
            }),
            measured: self
                .measures
                .iter()
                .map(|name| (*name, measured.take(name)))
                .collect(),
            epoch: report.progress.epoch,
            tokens_seen: log.tokens_seen,
            step: report.progress.step,
        });
        log.record_step(&record, Some(&line));
        self.interval = StepWork::default();
        Ok(())
    }
}
