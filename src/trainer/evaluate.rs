//! Evaluation with its own fixed graph: the mean loss over all labelled tokens of a set, partial batches padded and masked.

use super::error::Result;
use super::session::{Recording, Session};
use super::step::{BatchInputs, DeviceBatch, feed_batch, parameter_tensors};
use crate::runtime::PendingDownload;
use std::time::{Duration, Instant};
use xtrain_graphs::{Randomness, Tensor};
use xtrain_models::{Model, ParameterSpec, Weights, loss};

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "eval";

/// What an evaluation found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss per token.
    pub loss: f64,
    pub tokens: f64,
    pub examples: usize,
    pub batches: usize,
    pub runtime: Duration,
}

impl Evaluation {
    /// `exp(loss)`, infinite where that overflows, as run_clm has it.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// Records the loss sum and token count of one batch, in the session's precision for evaluation.
pub fn record(recording: &mut Recording, model: &dyn Model, parameters: &[ParameterSpec], inputs: &BatchInputs) -> Result<()> {
    recording.evaluates();
    let weights = parameter_tensors(recording, parameters)?;
    let trace = recording.trace().clone();
    let weights = Weights::new(&trace, &weights);
    let loss = loss(model, &weights, &inputs.tokens, &inputs.labels, &Randomness::off())?;
    let sums = Tensor::concat(&[&loss.sum.reshape(&[1])?, &loss.count.reshape(&[1])?], 0)?;
    recording.fetch("sums", &sums);
    Ok(())
}

/// Runs the model over all batches; the device works on one while the previous one's sums are read.
pub fn evaluate(
    session: &mut Session,
    model: &dyn Model,
    parameters: &[ParameterSpec],
    batches: &mut dyn Iterator<Item = Result<DeviceBatch>>,
) -> Result<Evaluation> {
    let start = Instant::now();
    let mut totals = Totals::default();
    let mut pending: Option<PendingDownload<f32>> = None;
    for batch in batches {
        let batch = batch?;
        totals.examples += batch.examples;
        totals.batches += 1;
        let mut recording = session.begin();
        let inputs = feed_batch(&mut recording, &batch);
        record(&mut recording, model, parameters, &inputs)?;
        let mut marked = recording.mark_step(GRAPH_NAME)?;
        let sums = marked.fetched.remove("sums").expect("record fetches the sums");
        if let Some(earlier) = pending.replace(sums.start_download_to()?) {
            totals.add(earlier)?;
        }
    }
    if let Some(last) = pending {
        totals.add(last)?;
    }
    Ok(Evaluation {
        loss: totals.loss / totals.tokens,
        tokens: totals.tokens,
        examples: totals.examples,
        batches: totals.batches,
        runtime: start.elapsed(),
    })
}

/// Sums over batches, in f64 so that their order and number do not show.
#[derive(Default)]
struct Totals {
    loss: f64,
    tokens: f64,
    examples: usize,
    batches: usize,
}

impl Totals {
    fn add(&mut self, sums: PendingDownload<f32>) -> Result<()> {
        let sums = sums.wait()?;
        self.loss += f64::from(sums[0]);
        self.tokens += f64::from(sums[1]);
        Ok(())
    }
}
