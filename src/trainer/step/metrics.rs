//! What a training step measures, and how the host reads it without making the device wait.

use crate::error::Result;
use crate::session::{Recording, StepOutputs};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use xtrain_graphs::Tensor;
use xtrain_runtime::{Buffer, PendingDownload};

/// What a step measured, once the device is there.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMetrics {
    /// Mean loss per token over the whole accumulation.
    pub loss: f32,
    /// Norm of the mean gradient before clipping.
    pub grad_norm: f32,
    /// Tokens that had a loss.
    pub tokens: f32,
    /// `None` where the loss is not scaled.
    pub scaling: Option<Scaling>,
    /// Means of what the objective measures, in its order; NaN where nothing was measured.
    pub measured: Vec<f64>,
}

/// What loss scaling did in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The factor on the step's loss.
    pub scale: f32,
    /// Gradients overflowed, so the step changed nothing but the scale.
    pub skipped: bool,
}

impl StepMetrics {
    /// The loss; NaN of a step that has none, as without a masked token, or that was skipped because of
    /// what overflowed.
    pub fn measured_loss(&self) -> f64 {
        if self.tokens > 0.0 && self.loss.is_finite() {
            f64::from(self.loss)
        } else {
            f64::NAN
        }
    }

    /// Whether the step left weights and optimizer state as they were.
    pub fn is_skipped(&self) -> bool {
        self.scaling.is_some_and(|scaling| scaling.skipped)
    }
}

/// Metrics on their way from the device.
pub struct PendingMetrics {
    numbers: PendingDownload<f32>,
    /// `None` where the objective measures nothing.
    measured: Option<PendingDownload<f32>>,
}

impl PendingMetrics {
    /// Waits for the device.
    ///
    /// # Errors
    /// If the step failed on the device.
    pub fn wait(self) -> Result<StepMetrics> {
        let values = self.numbers.wait()?;
        let measured = self.measured.map(PendingDownload::wait).transpose()?;
        let scaling = (values.len() > 3).then(|| Scaling {
            scale: values[3],
            skipped: values[4] == 0.0,
        });
        Ok(StepMetrics {
            loss: values[0],
            grad_norm: values[1],
            tokens: values[2],
            scaling,
            measured: means(&measured.unwrap_or_default()),
        })
    }
}

/// The means of sums that are followed by what each is to be divided by.
pub(crate) fn means<T: Copy + Into<f64>>(measured: &[T]) -> Vec<f64> {
    let (sums, weights) = measured.split_at(measured.len() / 2);
    let pairs = sums.iter().zip(weights);
    pairs
        .map(|(sum, weight)| (*sum).into() / (*weight).into())
        .collect()
}

/// Waits for the metrics of steps in a thread of its own: the training thread may be recording the
/// next step at the moment when the device finishes one.
pub struct MetricsReader {
    /// `None` once no more steps come.
    pending: Option<Sender<PendingMetrics>>,
    read: Receiver<(Result<StepMetrics>, Instant)>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsReader {
    /// Starts the thread.
    pub fn start() -> MetricsReader {
        let (pending, to_read) = mpsc::channel::<PendingMetrics>();
        let (sender, read) = mpsc::channel();
        let thread = thread::spawn(move || {
            for metrics in to_read {
                let metrics = metrics.wait();
                // Nobody receives after an error.
                let _ = sender.send((metrics, Instant::now()));
            }
        });
        MetricsReader {
            pending: Some(pending),
            read,
            thread: Some(thread),
        }
    }

    /// Takes a step's metrics over; steps are read in their order.
    pub fn read(&self, metrics: PendingMetrics) {
        if let Some(pending) = &self.pending {
            // The thread ends when this does.
            let _ = pending.send(metrics);
        }
    }

    /// Waits for the metrics of the oldest step that was taken over; also when the device had
    /// finished it.
    ///
    /// # Panics
    /// If there is none.
    pub fn next(&self) -> (Result<StepMetrics>, Instant) {
        self.read.recv().expect("a step was taken over")
    }
}

impl Drop for MetricsReader {
    /// Waits for what the device is still writing.
    fn drop(&mut self) {
        self.pending = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was one here, too.
            let _ = thread.join();
        }
    }
}

/// The fetched `f32[3]`: mean loss, gradient norm, token count; in fp16 `f32[5]` with the loss
/// scale and whether (1) or not (0) all gradients were finite.
const METRICS: &str = "metrics";

/// The fetched sums of what the objective measures, and their divisors, `f32[2, n]`.
const MEASURED: &str = "measured";

/// Fetches the metrics of a step, each `f32[]`.
pub(super) fn fetch(recording: &mut Recording, metrics: &[Tensor]) -> Result<()> {
    let metrics = metrics
        .iter()
        .map(|t| t.reshape(&[1]))
        .collect::<xtrain_graphs::Result<Vec<_>>>()?;
    let metrics = Tensor::concat(&metrics.iter().collect::<Vec<_>>(), 0)?;
    recording.fetch(METRICS, &metrics);
    Ok(())
}

/// Fetches the sums of what the objective measures, and their divisors, `f32[2, n]`.
pub(super) fn fetch_measured(recording: &mut Recording, sums: &Tensor) -> Result<()> {
    let sums = recording.at_every_stage(sums)?;
    recording.fetch(MEASURED, &sums);
    Ok(())
}

/// Starts reading the metrics of a step that updated.
///
/// # Errors
/// If the download cannot start.
pub fn read_metrics(outputs: &StepOutputs) -> Result<PendingMetrics> {
    let measured = outputs.find(MEASURED);
    Ok(PendingMetrics {
        numbers: outputs.fetched(METRICS).start_download_to()?,
        measured: measured.map(Buffer::start_download_to).transpose()?,
    })
}
