//! What a model is trained for: what it is fed besides its tokens, its loss, and the numbers that
//! are measured on the way. The objectives of labels are here, those of preferences in `preference`,
//! `reward` and `kto`; one of a user's own
//! implements [`Objective`] as they do.
//!
//! Letters: B batch, T tokens, N = B * T, K positions with a label, L labels of a classification, V
//! vocabulary.

use crate::batch::TokenBatch;
use crate::error::{Error, Result};
use crate::loss::{IGNORED_LABEL, LossSum, Predictions, head, logits};
use crate::model::Model;
use crate::weights::Weights;
use std::fmt::Debug;
use std::sync::Arc;
use xtrain_graphs::{DType, DropoutRng, Shape, Tensor};

/// The feed of token ids, `s32[B, T]`.
pub const INPUT_IDS: &str = "input_ids";
/// The feed that says which tokens are attended, `pred[B, T]`; without it all are.
pub const ATTENTION_MASK: &str = "attention_mask";
/// The feed of the tokens' segments, `s32[B, T]`; without it all are in segment 0.
pub const TOKEN_TYPE_IDS: &str = "token_type_ids";
/// The feed of the place of each token in its own example, `s32[B, T]`, where several are packed into a
/// row ([`TokenBatch::position_ids`]).
pub const POSITION_IDS: &str = "position_ids";
/// The feed of labels; their shape is the objective's.
pub const LABELS: &str = "labels";
/// The feed of the positions among N that labels are of, `s32[K]`. The name is part of recorded
/// graphs, and so of their fingerprints.
pub const POSITIONS: &str = "places";

/// Something that each batch has, by name and shape on one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// What the objective asks for it by.
    pub name: &'static str,
    /// Its first dimension is that of rows, or a replica's own.
    pub shape: Shape,
}

impl Feed {
    /// A feed of this name and shape.
    pub fn new(name: &'static str, dtype: DType, dims: impl Into<Vec<usize>>) -> Feed {
        Feed {
            name,
            shape: Shape::new(dtype, dims.into()),
        }
    }
}

/// The feeds of a batch as tensors of a recording, by name.
pub struct Inputs {
    feeds: Vec<(&'static str, Tensor)>,
    /// The replicas that a batch is divided between, group by group; `None`: it is whole.
    replicas: Option<Vec<Vec<u32>>>,
}

impl FromIterator<(&'static str, Tensor)> for Inputs {
    fn from_iter<I: IntoIterator<Item = (&'static str, Tensor)>>(feeds: I) -> Self {
        Inputs {
            feeds: feeds.into_iter().collect(),
            replicas: None,
        }
    }
}

impl Inputs {
    /// The same, of a replica's part of a batch that these groups of replicas divide.
    pub fn divided(self, replicas: Option<Vec<Vec<u32>>>) -> Self {
        Inputs { replicas, ..self }
    }

    /// The sum of what the replicas have that divide the batch.
    ///
    /// # Errors
    /// If the tensor holds no floats.
    pub fn sum_over_replicas(&self, part: &Tensor) -> Result<Tensor> {
        match &self.replicas {
            Some(groups) => Ok(part.all_reduce(groups, 0)?),
            None => Ok(part.clone()),
        }
    }

    /// The feed of this name, if the batch has one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let mut feeds = self.feeds.iter();
        feeds
            .find(|(known, _)| *known == name)
            .map(|(_, tensor)| tensor)
    }

    /// The feed of this name.
    ///
    /// # Errors
    /// If the batch has none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.find(name).ok_or_else(|| Error::NoSuchFeed {
            name: name.to_string(),
            known: self.feeds.iter().map(|(known, _)| *known).collect(),
        })
    }

    /// What a model reads: token ids with what says more of them.
    ///
    /// # Errors
    /// If the batch has no token ids.
    pub fn tokens(&self) -> Result<TokenBatch> {
        Ok(TokenBatch {
            input_ids: self.get(INPUT_IDS)?.clone(),
            attention_mask: self.find(ATTENTION_MASK).cloned(),
            token_type_ids: self.find(TOKEN_TYPE_IDS).cloned(),
            position_ids: self.find(POSITION_IDS).cloned(),
            cache: None,
        })
    }
}

/// What an objective records its loss from.
pub struct Forward<'a> {
    /// The model, whose forward pass it records.
    pub model: &'a dyn Model,
    /// The model's parameters in the step.
    pub weights: &'a Weights<'a>,
    /// The batch.
    pub inputs: &'a Inputs,
    /// What is dropped out; nothing in an evaluation.
    pub rng: &'a DropoutRng,
}

/// What an objective records of a batch.
pub struct Outcome {
    /// The loss.
    pub loss: LossSum,
    /// The most that [`LossSum::count`] of such a batch can be.
    pub terms: usize,
    /// What the model predicts, for the metrics of an evaluation.
    pub predictions: Predictions,
}

/// What a model is trained for.
pub trait Objective: Debug + Send + Sync {
    /// What a batch of `rows` rows of `tokens` tokens on one replica is fed besides what the model
    /// reads ([`Inputs::tokens`]).
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed>;

    /// Records the forward pass and the loss of a batch.
    ///
    /// # Errors
    /// If the batch lacks a feed, or the model cannot be recorded for it.
    fn record(&self, step: &Forward<'_>) -> Result<Outcome>;

    /// Rows of a batch that make up one example, one after the other, which stay on one replica: 2 where
    /// a pair is learned from.
    fn rows(&self) -> usize {
        1
    }

    /// What the model as it is before training is to say of each row, which batches are then fed as
    /// [`REFERENCE`](crate::REFERENCE): an objective whose predictions are that number. `None`: nothing.
    fn reference(&self) -> Option<Arc<dyn Objective>> {
        None
    }

    /// Names of what is measured besides the loss, in the order of [`LossSum::measured`]: records of
    /// training have the mean of their steps under the name, evaluations under `eval_` and the name.
    fn measures(&self) -> &[&'static str] {
        &[]
    }

    /// The share of the tokens that have a label, where logits are computed for these alone. A batch
    /// in which more of them have one is fed all labels, without positions.
    fn labelled_share(&self) -> Option<f64> {
        None
    }

    /// How many tokens before its label a prediction stands, which positions count from.
    fn label_distance(&self) -> usize {
        0
    }

    /// The same for data in which at most these shares of the tokens have a label; `None` where it makes
    /// no difference to the objective.
    fn for_data(&self, _shares: &[LabelledShare]) -> Option<Arc<dyn Objective>> {
        None
    }
}

/// Which share of the tokens of batches of one length have a label, at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelledShare {
    /// T
    pub tokens: usize,
    /// Of the B * T tokens of a replica.
    pub share: f64,
}

/// The logits at t predict token t + 1. Labels `s32[B, T]` or, with positions, `s32[K]`.
#[derive(Clone, Debug, Default)]
pub struct NextToken {
    /// See [`Predictions::cross_entropy`].
    pub smoothing: f64,
    /// The loss of each token is multiplied with the probability of its label, a constant in the gradient
    /// (Wu et al. 2025, "dynamic fine-tuning", arXiv:2508.05629).
    pub weighs_by_probability: bool,
    /// Lengths of which logits are computed where there are labels alone; empty: at every token.
    pub shares: Vec<LabelledShare>,
}

/// The logits at t predict the token that was at t. Labels `s32[B, T]` or, with positions, `s32[K]`.
#[derive(Clone, Debug, Default)]
pub struct MaskedToken {
    /// See [`Predictions::cross_entropy`].
    pub smoothing: f64,
    /// See [`Objective::labelled_share`].
    pub share: Option<f64>,
}

/// A row of logits for each token is a class. Labels `s32[B, T]`.
#[derive(Clone, Debug, Default)]
pub struct TokenLabel {
    /// See [`Predictions::cross_entropy`].
    pub smoothing: f64,
}

/// A row of logits for each sequence is a class. Labels `s32[B]`.
#[derive(Clone, Debug, Default)]
pub struct Class {
    /// See [`Predictions::cross_entropy`].
    pub smoothing: f64,
}

/// One number for each sequence, which is to be near the label. Labels `f32[B]`.
#[derive(Clone, Debug, Default)]
pub struct Regression;

impl Objective for NextToken {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        let share = self.shares.iter().find(|share| share.tokens == tokens);
        let all = rows * tokens;
        let room = share.map(|share| (all as f64 * share.share).ceil() as usize);
        label_feeds(rows, tokens, room.and_then(|room| fewer(room, all)))
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let labels = step.inputs.get(LABELS)?;
        let (logits, labels) = match step.inputs.find(POSITIONS) {
            Some(positions) => (step.logits_at(positions)?, labels.clone()),
            None => {
                let logits = step.logits()?;
                let _scope = logits.trace().clone().scope("loss");
                (logits, next_tokens(labels)?)
            }
        };
        let predictions = Predictions::new(step.model, logits, labels);
        if !self.weighs_by_probability {
            return Outcome::of_classes(predictions, self.smoothing);
        }
        let scope = predictions.logits.trace().clone().scope("loss");
        let losses = predictions.cross_entropies()?;
        let weighed = losses.mul(&losses.neg()?.exp()?.stop_gradient()?)?;
        let loss = predictions.sum(&weighed)?;
        drop(scope);
        Outcome::of(loss, predictions)
    }

    fn label_distance(&self) -> usize {
        1
    }

    fn for_data(&self, shares: &[LabelledShare]) -> Option<Arc<dyn Objective>> {
        Some(Arc::new(NextToken {
            shares: shares.to_vec(),
            ..self.clone()
        }))
    }
}

impl Objective for MaskedToken {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        let share = self.share;
        let room = share.and_then(|share| positions(rows * tokens, share));
        label_feeds(rows, tokens, room)
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let logits = match step.inputs.find(POSITIONS) {
            Some(positions) => step.logits_at(positions)?,
            None => step.logits()?,
        };
        let labels = flat_labels(&logits, step.inputs.get(LABELS)?)?;
        Outcome::of_classes(Predictions::new(step.model, logits, labels), self.smoothing)
    }

    fn labelled_share(&self) -> Option<f64> {
        self.share
    }
}

impl Objective for TokenLabel {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::S32, [rows, tokens])]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let logits = step.logits()?;
        let labels = flat_labels(&logits, step.inputs.get(LABELS)?)?;
        Outcome::of_classes(Predictions::new(step.model, logits, labels), self.smoothing)
    }
}

impl Objective for Class {
    fn feeds(&self, rows: usize, _tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::S32, [rows])]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let (logits, labels) = (step.logits()?, step.inputs.get(LABELS)?.clone());
        Outcome::of_classes(Predictions::new(step.model, logits, labels), self.smoothing)
    }
}

impl Objective for Regression {
    fn feeds(&self, rows: usize, _tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::F32, [rows])]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let (logits, labels) = (step.logits()?, step.inputs.get(LABELS)?.clone());
        let predictions = Predictions::new(step.model, logits, labels);
        Outcome::of(predictions.squared_error()?, predictions)
    }
}

impl Forward<'_> {
    /// Logits as the model's head has them, of every token or sequence.
    ///
    /// # Errors
    /// If the forward pass cannot be recorded.
    pub fn logits(&self) -> Result<Tensor> {
        logits(self.model, self.weights, &self.inputs.tokens()?, self.rng)
    }

    /// Logits `[K, V]` as the model's head has them, of the tokens at these positions among N, `s32[K]`.
    ///
    /// # Errors
    /// If the forward pass cannot be recorded.
    pub fn logits_at(&self, positions: &Tensor) -> Result<Tensor> {
        let tokens = self.inputs.tokens()?;
        let rows = self.model.hidden(self.weights, &tokens, self.rng)?;
        let rows = rows.take_rows(positions)?;
        head(self.model, self.weights, &rows, self.rng)
    }
}

impl Outcome {
    /// That of predictions, one term for each of their rows at most.
    fn of(loss: LossSum, predictions: Predictions) -> Result<Outcome> {
        Ok(Outcome {
            loss,
            terms: predictions.labels.shape().elements(),
            predictions,
        })
    }

    fn of_classes(predictions: Predictions, smoothing: f64) -> Result<Outcome> {
        Outcome::of(predictions.cross_entropy(smoothing)?, predictions)
    }
}

/// Labels that a batch of `tokens` tokens has room for when each is chosen with this probability.
/// The number of those chosen is binomial: five standard deviations above its mean are passed once
/// in three million batches. `None` where little would be saved by leaving out the others.
fn positions(tokens: usize, probability: f64) -> Option<usize> {
    let (n, p) = (tokens as f64, probability);
    let room = (n * p + 5.0 * (n * p * (1.0 - p)).sqrt()).ceil() as usize;
    fewer(room, tokens)
}

/// Room for this many labels, if a batch of `tokens` tokens is spared much by it.
fn fewer(labels: usize, tokens: usize) -> Option<usize> {
    Some(labels.next_multiple_of(8)).filter(|room| *room > 0 && 5 * room < 4 * tokens)
}

/// The feeds of labels: of all tokens, or of as many as there is room for, with their positions.
fn label_feeds(rows: usize, tokens: usize, room: Option<usize>) -> Vec<Feed> {
    match room {
        Some(room) => [LABELS, POSITIONS]
            .map(|name| Feed::new(name, DType::S32, [room]))
            .into(),
        None => vec![Feed::new(LABELS, DType::S32, [rows, tokens])],
    }
}

/// One label for each row of logits.
fn flat_labels(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let _scope = logits.trace().clone().scope("loss");
    Ok(labels.reshape(&[labels.shape().elements()])?)
}

/// Labels `[B, T]` moved one place to the left, `[N]`: the labels move instead of the logits, which
/// would have to be copied.
pub(crate) fn next_tokens(labels: &Tensor) -> Result<Tensor> {
    let (rows, tokens) = (labels.dims()[0], labels.dims()[1]);
    let last = labels
        .trace()
        .constant(IGNORED_LABEL as f64, labels.dtype())?
        .broadcast_to(&[rows, 1])?;
    let shifted = match tokens {
        1 => last,
        _ => Tensor::concat(&[&labels.slice_dim(1, 1, tokens)?, &last], 1)?,
    };
    Ok(shifted.reshape(&[rows * tokens])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_room_for_what_is_chosen() {
        // 16 x 128 tokens at 15%: 307.2 on average, standard deviation 16.2.
        assert_eq!(positions(2048, 0.15), Some(392));
        assert_eq!(positions(2048, 0.8), None, "nothing is saved");
        assert_eq!(positions(16, 0.15), None, "too few to be sure of anything");
    }
}
