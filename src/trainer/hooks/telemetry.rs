//! Tells whoever watches how the run is going (`report/telemetry.rs`): a line a second at most,
//! whatever the logging cadence is.

use crate::error::Result;
use crate::run_loop::{Hook, Progress, StepReport, StepWork};
use crate::run_state::{RunState, RunningTotals};
use std::time::{Duration, Instant};
use xtrain_cache::CompiledGraph;
use xtrain_report::telemetry::{
    DeviceMemoryUse, Event, ProcessEvent, StepEvent, Telemetry, host, now,
};
use xtrain_runtime::Client;

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sums over the steps since the last line, and where the lines go.
pub struct TelemetryHook {
    telemetry: Telemetry,
    client: Client,
    last: Option<Instant>,
    sums: StepWork,
    step: u64,
    /// The last step, until it is written.
    unwritten: Option<(StepReport, RunningTotals)>,
}

impl TelemetryHook {
    /// A run of `device` that resumes at `start`.
    pub fn new(
        telemetry: Telemetry,
        client: Client,
        device: &str,
        start: &Progress,
    ) -> TelemetryHook {
        telemetry.write(&Event::Start {
            time: now(),
            pid: std::process::id(),
            host: host(),
            device: device.to_string(),
            step: start.step,
            total_steps: start.max_steps,
        });
        TelemetryHook {
            telemetry,
            client,
            last: None,
            sums: StepWork::default(),
            step: start.step,
            unwritten: None,
        }
    }

    /// Writes what the process is.
    pub fn describe(&self, process: ProcessEvent) {
        self.telemetry.write(&Event::Process(Box::new(process)));
    }

    fn write(&mut self, report: &StepReport, totals: &RunningTotals) {
        let sums = std::mem::take(&mut self.sums);
        let time = sums.time / sums.steps.max(1);
        let finite = |value: f32| Some(f64::from(value)).filter(|value| value.is_finite());
        self.telemetry.write(&Event::Step(StepEvent {
            time: now(),
            step: report.progress.step,
            total_steps: report.progress.max_steps,
            epoch: report.progress.epoch,
            loss: Some(report.metrics.measured_loss()).filter(|loss| !loss.is_nan()),
            learning_rate: report.learning_rate,
            tokens_per_second: sums.rate(sums.tokens as f64),
            step_seconds: time.step.as_secs_f64(),
            trace_seconds: time.trace.as_secs_f64(),
            compile_seconds: time.compile.as_secs_f64(),
            execute_seconds: time.execute.as_secs_f64(),
            wait_seconds: time.wait.as_secs_f64(),
            model_tflops: sums.rate(sums.flops) / 1e12,
            total_tokens: totals.total_tokens,
            total_flops: totals.total_flops,
            grad_norm: finite(report.metrics.grad_norm),
            devices: memory(&self.client),
        }));
        self.last = Some(Instant::now());
        self.unwritten = None;
    }
}

/// What tells of each graph that is there to be used.
pub fn graph_listener(telemetry: &Telemetry) -> impl Fn(&CompiledGraph) + Send + use<> {
    let telemetry = telemetry.clone();
    move |graph| {
        telemetry.write(&Event::Graph {
            time: now(),
            name: graph.name.clone(),
            id: graph.id.clone(),
            loaded: graph.loaded,
            seconds: graph.ready_time.as_secs_f64(),
            reason: graph.reason.clone(),
        });
    }
}

impl Hook for TelemetryHook {
    fn reported(&mut self, report: &StepReport, run: &mut RunState) -> Result<()> {
        self.sums += report.work;
        self.step = report.progress.step;
        let is_due =
            self.last.is_none_or(|last| last.elapsed() >= INTERVAL) || report.progress.is_last();
        if is_due {
            self.write(report, &run.totals);
        } else {
            self.unwritten = Some((report.clone(), run.totals));
        }
        Ok(())
    }
}

impl Drop for TelemetryHook {
    fn drop(&mut self) {
        if let Some((report, totals)) = self.unwritten.take() {
            self.write(&report, &totals);
        }
        self.telemetry.write(&Event::End {
            time: now(),
            step: self.step,
        });
    }
}

/// What the allocators of this process's devices say, of those that say something.
fn memory(client: &Client) -> Vec<DeviceMemoryUse> {
    let told = client
        .addressable_devices()
        .filter_map(|device| Some((device.kind(), device.memory()?)));
    let told = told.map(|(kind, memory)| DeviceMemoryUse {
        kind: kind.to_string(),
        bytes_in_use: memory.bytes_in_use,
        peak_bytes: memory.peak_bytes_in_use,
        limit_bytes: memory.bytes_limit,
    });
    told.collect()
}
