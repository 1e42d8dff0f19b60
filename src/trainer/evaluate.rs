//! Evaluation with its own fixed graph: mean loss and metrics of a set, partial batches padded and
//! masked.

use super::error::Result;
use super::estimates::Estimates;
use super::feed::{BatchInputs, DeviceBatch, Truth, feed_batch, graph_name};
use super::metrics::{Confusion, argmax};
use super::session::{EachReplica, Recording, Session};
use super::step::parameter_tensors;
use std::time::{Duration, Instant};
use xtrain_graphs::{Randomness, Tensor};
use xtrain_models::{HeadKind, Model, ParameterSpec, Predictions, Weights};

/// The graph's name in plans, logs and the cache, but for its batches' variant.
pub const GRAPH_NAME: &str = "eval";

/// What its graph gives: the loss and the number of labels, then by task the number of correct
/// tokens or all logits.
const SUMS: &str = "sums";

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss per label; NaN of a set without labels.
    pub loss: f64,
    /// Labels that have a loss: tokens of a language model, examples of a classifier.
    pub labels: f64,
    pub examples: usize,
    pub batches: usize,
    pub runtime: Duration,
    pub scores: Scores,
}

/// What there is to say besides the loss.
#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// Of a language model: how many labels were the likeliest token.
    Tokens { correct: f64 },
    /// Of a classifier.
    Classes {
        confusion: Confusion,
        /// `[examples, labels]`, row-major.
        logits: Vec<f32>,
    },
    /// Of a regression.
    Numbers(Estimates),
}

impl Scores {
    fn none(task: HeadKind) -> Self {
        match task {
            HeadKind::REGRESSION => Scores::Numbers(Estimates::default()),
            HeadKind::SequenceClassification { labels } => Scores::Classes {
                confusion: Confusion::new(labels),
                logits: Vec::new(),
            },
            _ => Scores::Tokens { correct: 0.0 },
        }
    }
}

impl Evaluation {
    /// `exp(loss)` of a language model, infinite where that overflows, as run_clm has it.
    pub fn perplexity(&self) -> Option<f64> {
        matches!(self.scores, Scores::Tokens { .. }).then(|| self.loss.exp())
    }

    /// Names, as in `eval_accuracy` without the `eval_`, and values; a classifier's F1 of each
    /// label goes by the label's name.
    pub fn metrics(&self, labels: &[String]) -> Vec<(String, f64)> {
        match &self.scores {
            Scores::Tokens { correct } => vec![("accuracy".into(), correct / self.labels)],
            Scores::Classes { confusion, .. } => {
                let mut metrics = vec![
                    ("accuracy".to_string(), confusion.accuracy()),
                    ("f1".to_string(), confusion.macro_f1()),
                    (
                        "matthews_correlation".to_string(),
                        confusion.matthews_correlation(),
                    ),
                ];
                let each = labels.iter().enumerate();
                metrics.extend(each.map(|(class, label)| {
                    (format!("f1_{label}"), confusion.f1(class).unwrap_or(0.0))
                }));
                metrics
            }
            Scores::Numbers(estimates) => vec![
                ("mse".into(), estimates.mean_squared_error()),
                ("pearson".into(), estimates.pearson()),
                ("spearmanr".into(), estimates.spearman()),
            ],
        }
    }

    /// The value of a metric by its name without `eval_`, `None` if there is none such.
    pub fn metric(&self, name: &str, labels: &[String]) -> Option<f64> {
        match name {
            "loss" => Some(self.loss),
            "perplexity" => self.perplexity(),
            _ => self
                .metrics(labels)
                .into_iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value),
        }
    }
}

/// The names that [`Evaluation::metric`] knows for a task.
pub fn metric_names(task: HeadKind, labels: &[String]) -> Vec<String> {
    let scores = Scores::none(task);
    let nothing = Evaluation {
        loss: 0.0,
        labels: 0.0,
        examples: 0,
        batches: 0,
        runtime: Duration::ZERO,
        scores,
    };
    let first = std::iter::once("loss".to_string())
        .chain(nothing.perplexity().map(|_| "perplexity".to_string()));
    first
        .chain(nothing.metrics(labels).into_iter().map(|(name, _)| name))
        .collect()
}

/// Records the sums of one batch and, of a classifier, its logits, in the session's precision for
/// evaluation.
pub fn record(
    recording: &mut Recording,
    model: &dyn Model,
    parameters: &[ParameterSpec],
    inputs: &BatchInputs,
) -> Result<()> {
    recording.evaluates();
    let weights = parameter_tensors(recording, parameters)?;
    let trace = recording.trace().clone();
    let weights = Weights::new(&trace, &weights);
    let stages = recording.stages_by_layer();
    let predictions = Predictions::of(
        model,
        &weights,
        &inputs.tokens,
        &inputs.labels,
        &Randomness::off(),
    )?;
    drop(stages);
    let loss = predictions.loss()?;
    let mut sums = vec![loss.sum.reshape(&[1])?, loss.count.reshape(&[1])?];
    match model.head_kind() {
        HeadKind::SequenceClassification { labels } => {
            let logits = predictions
                .logits
                .reshape(&[inputs.tokens.size()[0] * labels])?;
            sums.push(logits.convert(loss.sum.dtype())?);
        }
        _ => sums.push(predictions.correct()?.reshape(&[1])?),
    }
    recording.fetch_each(SUMS, &Tensor::concat(&sums.iter().collect::<Vec<_>>(), 0)?)
}

/// Runs the model over all batches; the device works on one while the previous one's sums are read.
pub fn evaluate(
    session: &mut Session,
    model: &dyn Model,
    parameters: &[ParameterSpec],
    batches: &mut dyn Iterator<Item = Result<DeviceBatch>>,
) -> Result<Evaluation> {
    let start = Instant::now();
    let mut totals = Totals::of(model.head_kind());
    let mut pending: Option<Pending> = None;
    for batch in batches {
        let batch = batch?;
        let mut recording = session.begin();
        let inputs = feed_batch(&mut recording, &batch);
        record(&mut recording, model, parameters, &inputs)?;
        let marked = recording.mark_step(&graph_name(GRAPH_NAME, batch.variant.as_deref()))?;
        let sums = marked.start_reading_each(SUMS)?;
        if let Some(earlier) = pending.replace(Pending {
            sums,
            sharing: session.mesh().tensor,
            examples: batch.examples,
            truth: batch.truth,
        }) {
            totals.add(earlier)?;
        }
    }
    if let Some(last) = pending {
        totals.add(last)?;
    }
    Ok(Evaluation {
        loss: totals.loss / totals.labels,
        labels: totals.labels,
        examples: totals.examples,
        batches: totals.batches,
        runtime: start.elapsed(),
        scores: totals.scores,
    })
}

/// A batch whose sums are on their way.
struct Pending {
    sums: EachReplica,
    /// Replicas that share each part of the batch.
    sharing: usize,
    examples: usize,
    truth: Truth,
}

/// Sums over batches, in f64 so that their order and number do not show.
struct Totals {
    loss: f64,
    labels: f64,
    examples: usize,
    batches: usize,
    scores: Scores,
}

impl Totals {
    fn of(task: HeadKind) -> Self {
        Totals {
            loss: 0.0,
            labels: 0.0,
            examples: 0,
            batches: 0,
            scores: Scores::none(task),
        }
    }

    fn add(&mut self, batch: Pending) -> Result<()> {
        // What follows the loss and the count: the number of correct tokens of each replica, or
        // logits in the order of rows.
        let mut rest = Vec::new();
        // Replicas that share rows have the same sums.
        for sums in batch.sums.wait()?.into_iter().step_by(batch.sharing) {
            self.loss += f64::from(sums[0]);
            self.labels += f64::from(sums[1]);
            rest.extend_from_slice(&sums[2..]);
        }
        self.examples += batch.examples;
        self.batches += 1;
        match (&mut self.scores, &batch.truth) {
            (Scores::Tokens { correct }, _) => {
                *correct += rest.iter().copied().map(f64::from).sum::<f64>()
            }
            (Scores::Classes { confusion, logits }, Truth::Classes(classes)) => {
                // Rows that only fill the batch come last.
                let labels = rest.len() / classes.len().max(1);
                let real = &rest[..batch.examples * labels];
                for (row, class) in real.chunks(labels).zip(classes) {
                    if let Ok(class) = usize::try_from(*class) {
                        confusion.add(class, argmax(row));
                    }
                }
                logits.extend_from_slice(real);
            }
            (Scores::Numbers(estimates), Truth::Numbers(numbers)) => {
                estimates.extend(&rest[..batch.examples], numbers);
            }
            (Scores::Classes { .. } | Scores::Numbers(_), _) => {
                unreachable!("the batches of a task have its labels")
            }
        }
        Ok(())
    }
}
