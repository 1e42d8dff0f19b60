//! Evaluation with its own fixed graph: mean loss and metrics of a set, partial batches padded and
//! masked.

use super::error::Result;
use super::feed::{DeviceBatch, feed_batch, graph_name};
use super::session::{EachReplica, RecordedSteps, Recording, Session};
use super::step::{means, parameter_tensors};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::{DropoutRng, Tensor};
use xtrain_models::{Forward, HostLabels, Inputs, Model, Objective, Predictions, Weights};

/// The graph's name in plans, logs and the cache, but for its batches' variant.
pub const GRAPH_NAME: &str = xtrain_cache::EVALUATION;

/// The graph's output: the loss, the number of labels, what the objective measures, then what the
/// metrics need.
const SUMS: &str = "sums";

/// What an evaluation measures besides the loss, batch by batch: a task's own.
pub trait Metrics {
    /// What it needs of a batch besides the loss, recorded in the step: `f32[n]` or `s32[n]`;
    /// `None` if nothing.
    ///
    /// # Errors
    /// An operation refuses its operands.
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>>;

    /// Adds a batch: what [`Metrics::record`] gave on all its replicas, one after the other, the labels of all its
    /// rows, and how many of them, from the first on, are real.
    fn add(&mut self, outputs: &[f32], labels: &HostLabels, examples: usize);

    /// Names, as in `eval_accuracy` without the `eval_`, and values; `labels` is the number of
    /// labels that have a loss.
    fn values(&self, labels: f64) -> Vec<(String, f64)>;

    /// Whether `exp(loss)` is reported as the perplexity.
    fn has_perplexity(&self) -> bool {
        false
    }

    /// What the model predicted of each row, as far as that is kept; can be taken once.
    fn predictions(&mut self) -> Vec<Vec<f32>> {
        Vec::new()
    }

    /// The names that [`Evaluation::metric`] may know.
    fn names(&self) -> Vec<String> {
        let perplexity = self.has_perplexity().then(|| "perplexity".to_string());
        std::iter::once("loss".to_string())
            .chain(perplexity)
            .chain(self.values(0.0).into_iter().map(|(name, _)| name))
            .collect()
    }
}

/// Keeps the number that an objective predicts of each row that does not only fill a batch: one list of
/// [`Metrics::predictions`].
pub struct RowNumbers {
    /// Rows of an example.
    each: usize,
    numbers: Vec<f32>,
}

impl RowNumbers {
    /// Of examples of `each` rows.
    pub fn new(each: usize) -> RowNumbers {
        RowNumbers {
            each,
            numbers: Vec::new(),
        }
    }
}

impl Metrics for RowNumbers {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        Ok(Some(predictions.flat_logits()?))
    }

    fn add(&mut self, outputs: &[f32], _labels: &HostLabels, examples: usize) {
        let real = &outputs[..examples * self.each];
        self.numbers.extend_from_slice(real);
    }

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        Vec::new()
    }

    fn predictions(&mut self) -> Vec<Vec<f32>> {
        vec![std::mem::take(&mut self.numbers)]
    }
}

/// What tells the graphs of a reference from those of evaluations by the model itself.
const REFERENCE: &str = "reference";

/// The variant of a reference's batches of this one.
pub fn reference_variant(variant: Option<&str>) -> Arc<str> {
    match variant {
        Some(variant) => format!("{variant}.{REFERENCE}").into(),
        None => REFERENCE.into(),
    }
}

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Of the names of its numbers in records: `_mm` of MNLI's second set.
    pub suffix: &'static str,
    /// Mean loss per label; NaN of a set without labels.
    pub loss: f64,
    /// `exp(loss)` of a language model, infinite where that overflows, as run_clm has it.
    pub perplexity: Option<f64>,
    /// See [`Metrics::values`].
    pub metrics: Vec<(String, f64)>,
    /// See [`Metrics::predictions`].
    pub predictions: Vec<Vec<f32>>,
    /// Labels that have a loss: tokens of a language model, examples of a classifier.
    pub labels: f64,
    pub examples: usize,
    pub batches: usize,
    pub runtime: Duration,
}

impl Evaluation {
    /// The names that [`Evaluation::metric`] knows.
    pub fn names(&self) -> Vec<&str> {
        let perplexity = self.perplexity.map(|_| "perplexity");
        let metrics = self.metrics.iter().map(|(name, _)| name.as_str());
        std::iter::once("loss")
            .chain(perplexity)
            .chain(metrics)
            .collect()
    }

    /// The value of a metric by its name without `eval_`, `None` if there is none such.
    pub fn metric(&self, name: &str) -> Option<f64> {
        match name {
            "loss" => Some(self.loss),
            "perplexity" => self.perplexity,
            _ => self
                .metrics
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| *value),
        }
    }
}

/// Records the sums of one batch and what its `metrics` need, in the session's precision for
/// evaluation.
///
/// # Errors
/// The model cannot be recorded for such a batch.
pub fn record(
    recording: &mut Recording,
    model: &dyn Model,
    objective: &dyn Objective,
    inputs: &Inputs,
    metrics: &dyn Metrics,
) -> Result<()> {
    recording.evaluates();
    let weights = parameter_tensors(recording, &model.parameters())?;
    let trace = recording.trace().clone();
    let weights = Weights::new(&trace, &weights);
    let stages = recording.stages_by_layer();
    let outcome = objective.record(&Forward {
        model,
        weights: &weights,
        inputs,
        rng: &DropoutRng::off(),
    })?;
    drop(stages);
    let loss = outcome.loss;
    let (sum, count) = (loss.sum.reshape(&[1])?, loss.count.reshape(&[1])?);
    let mut sums = vec![sum, count];
    if let Some(measured) = loss.measured {
        sums.push(measured.reshape(&[measured.shape().elements()])?);
    }
    if let Some(outputs) = metrics.record(&outcome.predictions)? {
        sums.push(outputs.convert(sums[0].dtype())?);
    }
    let sums: Vec<&Tensor> = sums.iter().collect();
    recording.fetch_each(SUMS, &Tensor::concat(&sums, 0)?)
}

/// Runs the model over all batches; the device works on one while the previous one's sums are read.
///
/// # Errors
/// A batch cannot be prepared, or the device fails.
pub fn evaluate(
    session: &mut Session,
    model: &dyn Model,
    objective: &dyn Objective,
    batches: &mut dyn Iterator<Item = Result<DeviceBatch>>,
    metrics: Box<dyn Metrics>,
) -> Result<Evaluation> {
    let start = Instant::now();
    let mut totals = Totals {
        loss: 0.0,
        labels: 0.0,
        measured: vec![0.0; 2 * objective.measures().len()],
        examples: 0,
        batches: 0,
        metrics,
    };
    let mut steps = RecordedSteps::default();
    let mut pending: Option<Pending> = None;
    for batch in batches {
        let batch = batch?;
        let name = graph_name(GRAPH_NAME, batch.variant.as_deref());
        let marked = session.step(&mut steps, &name, batch.to_feeds(), true, |recording| {
            let inputs = feed_batch(recording, &batch);
            record(recording, model, objective, &inputs, &*totals.metrics)
        })?;
        let sums = marked.start_reading_each(SUMS)?;
        if let Some(earlier) = pending.replace(Pending {
            sums,
            sharing: session.mesh().tensor,
            examples: batch.examples,
            labels: batch.host_labels,
        }) {
            totals.add(earlier)?;
        }
    }
    if let Some(last) = pending {
        totals.add(last)?;
    }
    let loss = totals.loss / totals.labels;
    Ok(Evaluation {
        suffix: "",
        loss,
        perplexity: totals.metrics.has_perplexity().then(|| loss.exp()),
        metrics: totals.values(objective),
        predictions: totals.metrics.predictions(),
        labels: totals.labels,
        examples: totals.examples,
        batches: totals.batches,
        runtime: start.elapsed(),
    })
}

/// A batch whose sums are being read.
struct Pending {
    sums: EachReplica,
    /// Replicas that share each part of the batch.
    sharing: usize,
    examples: usize,
    labels: Option<HostLabels>,
}

/// Sums over batches, in f64 so that their order and number do not show.
struct Totals {
    loss: f64,
    labels: f64,
    /// Sums in the order of [`Objective::measures`], then what each is to be divided by.
    measured: Vec<f64>,
    examples: usize,
    batches: usize,
    metrics: Box<dyn Metrics>,
}

impl Totals {
    /// What the metrics and then the objective have measured.
    fn values(&self, objective: &dyn Objective) -> Vec<(String, f64)> {
        let names = objective.measures().iter().map(|name| name.to_string());
        let metrics = self.metrics.values(self.labels).into_iter();
        metrics.chain(names.zip(means(&self.measured))).collect()
    }

    fn add(&mut self, batch: Pending) -> Result<()> {
        // What follows the loss and the count, of all replicas in the order of rows.
        let mut outputs = Vec::new();
        // Replicas that share rows have the same sums.
        for sums in batch.sums.wait()?.into_iter().step_by(batch.sharing) {
            self.loss += f64::from(sums[0]);
            self.labels += f64::from(sums[1]);
            let (measured, rest) = sums[2..].split_at(self.measured.len());
            for (total, sum) in self.measured.iter_mut().zip(measured) {
                *total += f64::from(*sum);
            }
            outputs.extend_from_slice(rest);
        }
        self.examples += batch.examples;
        self.batches += 1;
        let labels = batch.labels.expect("a batch to evaluate has its labels");
        self.metrics.add(&outputs, &labels, batch.examples);
        Ok(())
    }
}
