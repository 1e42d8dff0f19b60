//! Logging: the step line for people, the Trainer's dictionary for scrapers, JSON lines and
//! `log_history` for programs.

use crate::report::records::{Record, ScalingRecord, TrainRecord};
use crate::report::step_line::{StepLine, StepTime};
use crate::trainer::error::Result;
use crate::trainer::run_loop::{Hook, Progress, StepReport};
use crate::trainer::run_state::RunState;
use crate::trainer::session::HostTime;
use crate::trainer::settings::Cadence;
use std::time::Duration;

/// Logs at its cadence.
pub struct LogHook {
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

impl LogHook {
    /// Logs at this cadence and, if wanted, after the first step; the rate of matrix products
    /// that the device reaches stands beside the step's.
    pub fn new(cadence: Cadence, first_step: bool, peak_tflops: Option<f64>) -> Self {
        let interval = Interval::default();
        LogHook {
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

impl Hook for LogHook {
    fn reported(&mut self, report: &StepReport, state: &mut RunState) -> Result<()> {
        let loss = f64::from(report.metrics.loss);
        let interval = &mut self.interval;
        interval.steps += 1;
        interval.flops += report.flops;
        interval.tokens += report.tokens as f64;
        interval.host += report.host_time;
        interval.data_wait += report.data_wait;
        interval.device_wait += report.device_wait;
        interval.elapsed += report.elapsed;
        let RunState { log, totals, .. } = state;
        if report.metrics.is_skipped() {
            totals.skipped_steps += 1.0;
        }
        // Only a skipped step's loss can be anything else.
        if loss.is_finite() {
            totals.loss_since_log += loss;
            totals.steps_since_log += 1.0;
            totals.total_loss += loss;
            totals.total_steps += 1.0;
        }
        totals.total_flops += report.flops;
        log.bar().advance(1);
        if !self.is_due(&report.progress) {
            return Ok(());
        }
        let mean_loss = totals.loss_since_log / totals.steps_since_log;
        (totals.loss_since_log, totals.steps_since_log) = (0.0, 0.0);
        log.note(&self.step_line(report, mean_loss).render());
        log.record(&Record::Train(TrainRecord {
            loss: mean_loss,
            grad_norm: Some(f64::from(report.metrics.grad_norm)),
            learning_rate: report.learning_rate,
            scaling: report.metrics.scaling.map(|scaling| ScalingRecord {
                loss_scale: f64::from(scaling.scale),
                skipped_steps: totals.skipped_steps as u64,
            }),
            epoch: report.progress.epoch,
            step: report.progress.step,
        }))?;
        self.interval = Interval::default();
        Ok(())
    }
}
