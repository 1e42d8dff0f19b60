//! What preference objectives have in common: answers to prompts, how likely they are, and numbers of
//! their tokens.
//!
//! Letters: P pairs, R rows (of pairs 2 P: each pair's chosen answer, then its rejected one), T tokens,
//! N = R * T, V vocabulary.

use crate::batch::TokenBatch;
use crate::error::Result;
use crate::loss::{IGNORED_LABEL, LossSum, Predictions, head};
use crate::objective::{Forward, LABELS, Outcome, next_tokens};
use xtrain_graphs::op::Comparison;
use xtrain_graphs::passes::rows_of_block;
use xtrain_graphs::{DType, DropoutRng, Tensor};

/// Rows of a batch that make up a pair: its chosen answer, then its rejected one.
pub const PAIR: usize = 2;

/// A sum and the sum of the weights that its mean is by, each `f32[]`.
pub(crate) type Measure = (Tensor, Tensor);

/// The answers of a batch's rows under a model.
pub(crate) struct Answers {
    /// `f32[R, T]`: log-probabilities of answer tokens, each where it is predicted, else 0.
    pub log_probs: Tensor,
    /// `f32[R, T]`: 1 where an answer token is predicted, else 0. An answer that begins its row has
    /// one less than tokens.
    pub scored: Tensor,
    /// `f32[R]`: the answers' tokens, also one that nothing predicts; 0 of rows that fill a batch.
    pub lengths: Tensor,
    /// `f32[R, T]`: the mean of all logits where each token is predicted.
    pub mean_logits: Tensor,
    /// `f32[R, T]`: the log-probabilities of other labels than the answers', where there are such.
    pub others: Option<Tensor>,
    /// `f32[R, T]`: the entropy of the distribution that each token is predicted by.
    entropies: Tensor,
    /// `f32[R, T]`: 1 where the likeliest token is the answer's.
    pub correct: Tensor,
    /// `f32[R, T]`: the logarithm of the sum of all tokens' squared probabilities, without gradient.
    squares: Tensor,
}

impl Answers {
    /// Records the forward pass. Labels `s32[R, T]` hold the answers' tokens.
    pub(crate) fn record(step: &Forward<'_>) -> Result<Answers> {
        Answers::of(step, &step.inputs.tokens()?, step.inputs.get(LABELS)?, None)
    }

    /// The same of other tokens than the batch's, also scored by `others`, labels of the same shape.
    ///
    /// Logits `[N, V]` that are large are made block by block of their rows, each of which leaves a few
    /// numbers of every token, and again in the backward pass.
    pub(crate) fn of(
        step: &Forward<'_>,
        batch: &TokenBatch,
        labels: &Tensor,
        others: Option<&Tensor>,
    ) -> Result<Answers> {
        let hidden = step.model.hidden(step.weights, batch, step.rng)?;
        let trace = hidden.trace().clone();
        let [own, others] =
            [Some(labels), others].map(|labels| labels.map(next_tokens).transpose());
        let (own, others) = (own?.expect("there are labels"), others?);
        let rows = hidden.dims()[0];
        let block = rows_of_block(rows, step.model.vocab_size());
        let mut blocks = Vec::new();
        for start in (0..rows).step_by(block) {
            let end = (start + block).min(rows);
            let part = |of: &Tensor| of.slice_dim(0, start, end);
            let is_whole = block >= rows;
            let (hidden, own) = if is_whole {
                (hidden.clone(), own.clone())
            } else {
                (part(&hidden)?, part(&own)?)
            };
            let others = match &others {
                Some(others) if !is_whole => Some(part(others)?),
                others => others.clone(),
            };
            let _again = (!is_whole).then(|| trace.cheap());
            blocks.push(of_tokens(step, &hidden, own, others.as_ref())?);
        }
        let _scope = trace.scope("loss");
        let joined = |at: usize| -> Result<Tensor> {
            let parts: Vec<&Tensor> = blocks.iter().map(|block| &block[at]).collect();
            let all = match parts[..] {
                [one] => one.clone(),
                _ => Tensor::concat(&parts, 0)?,
            };
            Ok(all.reshape(labels.dims())?)
        };
        let scored = own.compare_scalar(Comparison::Ne, IGNORED_LABEL as f64)?;
        Ok(Answers {
            log_probs: joined(0)?,
            mean_logits: joined(1)?,
            entropies: joined(2)?,
            correct: joined(3)?,
            squares: joined(4)?,
            others: others.map(|_| joined(5)).transpose()?,
            scored: scored.convert(DType::F32)?.reshape(labels.dims())?,
            lengths: lengths(labels)?,
        })
    }

    /// `f32[R]`: the log-probability of each answer, the sum of its tokens'. With `verbosity`, tokens
    /// past the length of a pair's shorter answer have this weight (LD-DPO, arXiv 2409.06411).
    pub(crate) fn summed(&self, verbosity: Option<f64>) -> Result<Tensor> {
        let Some(alpha) = verbosity else {
            return Ok(self.log_probs.sum(&[1])?);
        };
        let trace = self.scored.trace();
        let dims = self.scored.dims();
        let is_scored = self.scored.compare_scalar(Comparison::Gt, 0.0)?;
        let column = trace.iota(DType::S32, dims, 1)?.convert(DType::F32)?;
        let last = trace.full(dims[1] as f64, column.shape())?;
        // Answers are contiguous, so that a place in one counts from its first token.
        let first = is_scored.select(&column, &last)?.min(&[1])?;
        let place = column.sub(&first.broadcast_in(dims, &[0])?)?;
        let pairs = dims[0] / PAIR;
        let shorter = self.scored.sum(&[1])?.reshape(&[pairs, PAIR])?.min(&[1])?;
        let shorter = shorter
            .broadcast_in(&[pairs, PAIR], &[0])?
            .reshape(&[dims[0]])?;
        let is_shared = place.compare(Comparison::Lt, &shorter.broadcast_in(dims, &[0])?)?;
        let tail = self.log_probs.mul_scalar(alpha)?;
        Ok(is_shared.select(&self.log_probs, &tail)?.sum(&[1])?)
    }

    /// `f32[R]`: the mean over each answer's predicted tokens of log p minus the log of the sum of all
    /// tokens' squared probabilities, without gradient: what WPO weighs a pair by (arXiv 2406.11827).
    pub(crate) fn alignment(&self) -> Result<Tensor> {
        let aligned = self.log_probs.stop_gradient()?.sub(&self.squares)?;
        let sums = aligned.mul(&self.scored)?.sum(&[1])?;
        Ok(sums.div(&self.scored.sum(&[1])?.max_scalar(1.0)?)?)
    }

    /// The entropy of the distribution that each answer token is predicted by.
    pub(crate) fn entropy(&self) -> Result<Measure> {
        self.over_tokens(&self.entropies, &self.scored)
    }

    /// The mean of `values` `f32[R, T]` over the tokens that `weights` chooses.
    pub(crate) fn over_tokens(&self, values: &Tensor, weights: &Tensor) -> Result<Measure> {
        Ok((values.mul(weights)?.sum_all()?, weights.sum_all()?))
    }

    /// The outcome of a batch whose rows have these log-probabilities `f32[R]`, which are what is
    /// predicted of them; `examples` of them at most have a loss.
    pub(crate) fn outcome(
        self,
        step: &Forward<'_>,
        loss: LossSum,
        log_probs: &Tensor,
        examples: usize,
    ) -> Result<Outcome> {
        let rows = log_probs.dims()[0];
        let column = log_probs.reshape(&[rows, 1])?;
        Ok(Outcome {
            loss,
            terms: examples,
            predictions: Predictions::new(step.model, column, self.lengths),
        })
    }
}

/// `f32[R]`: the tokens of each answer, by labels `s32[R, T]`.
pub(crate) fn lengths(labels: &Tensor) -> Result<Tensor> {
    let is_answer = labels.compare_scalar(Comparison::Ne, IGNORED_LABEL as f64)?;
    Ok(is_answer.convert(DType::F32)?.sum(&[1])?)
}

/// What is known of each token of rows `[K, C]` by its logits `[K, V]`: its log-probability, the mean of all
/// logits, the entropy, whether it is the likeliest, the logarithm of the sum of all squared probabilities, and
/// its log-probability by `others`; `f32[K]` each.
fn of_tokens(
    step: &Forward<'_>,
    hidden: &Tensor,
    labels: Tensor,
    others: Option<&Tensor>,
) -> Result<Vec<Tensor>> {
    let logits = head(step.model, step.weights, hidden, step.rng)?;
    let _scope = logits.trace().clone().scope("loss");
    let predictions = Predictions::new(step.model, logits.clone(), labels);
    let log_probs = predictions.cross_entropies()?.neg()?;
    let is_right = predictions
        .predicted()?
        .compare(Comparison::Eq, &predictions.labels)?;
    let logits = logits.stop_gradient()?;
    let largest = logits.max(&[1])?;
    let shifted = logits.sub(&largest.broadcast_in(logits.dims(), &[0])?)?;
    let powers = shifted.exp()?;
    let total = powers.sum(&[1])?;
    let mean = powers.mul(&shifted)?.sum(&[1])?.div(&total)?;
    let total = total.log()?;
    let squares = shifted.mul_scalar(2.0)?.exp()?.sum(&[1])?.log()?;
    let mut numbers = vec![
        log_probs,
        predictions.mean_logits()?,
        total.sub(&mean)?,
        is_right.convert(DType::F32)?,
        squares.sub(&total.mul_scalar(2.0)?)?,
    ];
    if let Some(others) = others {
        let predictions = Predictions::new(step.model, predictions.logits, others.clone());
        numbers.push(predictions.cross_entropies()?.neg()?);
    }
    Ok(numbers)
}

/// The chosen and the rejected rows of `[R]`, each `[P]`.
pub(crate) fn halves(rows: &Tensor) -> Result<[Tensor; 2]> {
    let pairs = rows.dims()[0] / PAIR;
    let table = rows.reshape(&[pairs, PAIR])?;
    let column =
        |at: usize| -> Result<Tensor> { Ok(table.slice_dim(1, at, at + 1)?.reshape(&[pairs])?) };
    Ok([column(0)?, column(1)?])
}

/// `f32[R, 1]`: 1 in the chosen rows (0) or the rejected ones (1), else 0.
pub(crate) fn half_mask(rows: &Tensor, half: usize) -> Result<Tensor> {
    let count = rows.dims()[0];
    let column = rows
        .trace()
        .iota(DType::S32, &[count / PAIR, PAIR], 1)?
        .compare_scalar(Comparison::Eq, half as f64)?;
    Ok(column.convert(DType::F32)?.reshape(&[count, 1])?)
}

/// log(1 / (1 + exp(-x))), with gradient 1/2 at 0, where a pair starts that its reference does not
/// prefer.
pub(crate) fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let opposite = x.neg()?;
    let largest = opposite.max_scalar(0.0)?.stop_gradient()?;
    let total = largest
        .neg()?
        .exp()?
        .add(&opposite.sub(&largest)?.exp()?)?
        .log()?;
    Ok(total.add(&largest)?.neg()?)
}

/// The numbers of `values` where `is_counted` (`pred`, the same shape), summed.
pub(crate) fn sum_where(values: &Tensor, is_counted: &Tensor) -> Result<Tensor> {
    let zeros = values.trace().full(0.0, values.shape())?;
    Ok(is_counted.select(values, &zeros)?.sum_all()?)
}

/// What is dropped out of a model: what its configuration says, or nothing, as TRL's trainers have it
/// by default. Noise on embeddings stays.
pub(crate) fn dropout(rng: &DropoutRng, is_wanted: bool) -> DropoutRng {
    if is_wanted {
        rng.clone()
    } else {
        rng.without_dropout()
    }
}
