//! Logits and the loss of each head.
//!
//! Letters: B batch, T tokens, N = B * T, K positions with a label, L labels of a classification, V
//! vocabulary.

use crate::batch::TokenBatch;
use crate::error::Result;
use crate::head::HeadKind;
use crate::model::Model;
use crate::weights::Weights;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, DropoutRng, Tensor};

/// The sum of the losses and the number of labels that have one.
pub struct LossSum {
    /// `f32[]`
    pub sum: Tensor,
    /// `f32[]`, exact below 2^24 labels.
    pub count: Tensor,
}

/// The label that takes no part in the loss, as in transformers.
pub const IGNORED_LABEL: i64 = -100;

/// The same among a regression's labels, of which any that occurs could be -100. Finite, as not
/// every device can be relied upon to compare with what is not.
pub const IGNORED_NUMBER: f32 = f32::MAX;

/// Logits as the model's head has them: `[N, V]` of a language model, `[B, L]` of a sequence
/// classifier, `[N, L]` of a token classifier.
pub fn logits(
    model: &dyn Model,
    weights: &Weights,
    batch: &TokenBatch,
    rng: &DropoutRng,
) -> Result<Tensor> {
    let mut rows = model.hidden(weights, batch, rng)?;
    if matches!(model.head_kind(), HeadKind::SequenceClassification { .. }) {
        rows = model.pool(&rows, batch)?;
    }
    head(model, weights, &rows, rng)
}

/// The model's head. Where the vocabulary's tables were filled up to divide between devices, logits
/// of rows that are none are so low that they take no part in anything.
fn head(model: &dyn Model, weights: &Weights, rows: &Tensor, rng: &DropoutRng) -> Result<Tensor> {
    let logits = model.head(weights, rows, rng)?;
    let (width, vocabulary) = (logits.dims()[1], model.vocab_size());
    if !model.head_kind().is_language_model() || width == vocabulary {
        return Ok(logits);
    }
    let trace = logits.trace().clone();
    let _scope = trace.scope("lm_head");
    let is_word = trace
        .iota(DType::S32, &[width], 0)?
        .compare_scalar(Comparison::Lt, vocabulary as f64)?;
    Ok(is_word
        .broadcast_in(logits.dims(), &[1])?
        .select(&logits, &trace.full(NO_WORD, logits.shape())?)?)
}

/// The logit of what is no word.
const NO_WORD: f64 = -1e9;

/// The labels of a batch: what the loss compares predictions with.
pub struct Labels {
    /// For the shapes see [`HeadKind`]; with `masked_positions`, `s32[K]`.
    pub ids: Tensor,
    /// Of masked language modelling, `s32[K]`: the positions among N = B * T that `ids` are of. Logits
    /// are computed for these only, which is the same loss as long as every position that has a label
    /// is among them. `None`: one label for each position.
    pub masked_positions: Option<Tensor>,
}

impl From<Tensor> for Labels {
    fn from(ids: Tensor) -> Self {
        Labels {
            ids,
            masked_positions: None,
        }
    }
}

/// Logits, and the label that belongs to each row of them. R rows: N or K of a language model, N of
/// a token classifier, B of a sequence classifier.
pub struct Predictions {
    /// `[R, V]` of a language model, `[R, L]` of a classifier.
    pub logits: Tensor,
    /// `s32[R]`; of a regression `f32[R]`
    pub labels: Tensor,
    /// Columns of the logits that are words or labels; those behind them fill tables up.
    classes: usize,
}

impl Predictions {
    /// Runs the model on a batch and pairs its logits with `labels`.
    ///
    /// # Errors
    /// If the forward pass cannot be recorded, or the labels are of another shape than its head's.
    pub fn of(
        model: &dyn Model,
        weights: &Weights,
        batch: &TokenBatch,
        labels: &Labels,
        rng: &DropoutRng,
    ) -> Result<Self> {
        let logits = match &labels.masked_positions {
            Some(positions) => {
                let rows = model.hidden(weights, batch, rng)?.take_rows(positions)?;
                head(model, weights, &rows, rng)?
            }
            None => logits(model, weights, batch, rng)?,
        };
        let _scope = logits.trace().clone().scope("loss");
        let labels = match model.head_kind() {
            HeadKind::CausalLm => next_tokens(&labels.ids)?,
            HeadKind::MaskedLm | HeadKind::TokenClassification { .. } => {
                labels.ids.reshape(&[labels.ids.shape().elements()])?
            }
            HeadKind::SequenceClassification { .. } => labels.ids.clone(),
        };
        let classes = if model.head_kind().is_language_model() {
            model.vocab_size()
        } else {
            logits.dims()[1]
        };
        Ok(Predictions {
            logits,
            labels,
            classes,
        })
    }

    /// `pred[R]`: which rows have a label.
    fn counted(&self) -> Result<Tensor> {
        let ignored = if self.are_numbers() {
            f64::from(IGNORED_NUMBER)
        } else {
            IGNORED_LABEL as f64
        };
        Ok(self.labels.compare_scalar(Comparison::Ne, ignored)?)
    }

    fn are_numbers(&self) -> bool {
        self.labels.dtype().is_float()
    }

    /// Cross-entropy or, of a regression, the squared error, summed over the rows that have a
    /// label. With a `smoothing` above 0 the cross-entropy is that with a label that has
    /// `1 - smoothing` and each class an equal share of the rest (Szegedy et al. 2016), as
    /// transformers' LabelSmoother; a regression has none.
    pub fn loss(&self, smoothing: f64) -> Result<LossSum> {
        let _scope = self.logits.trace().clone().scope("loss");
        let losses = if self.are_numbers() {
            self.squared_errors()?
        } else {
            let losses = self.logits.cross_entropy(&self.labels, IGNORED_LABEL)?;
            if smoothing == 0.0 {
                losses
            } else {
                losses.add(&self.above_mean()?.mul_scalar(smoothing)?)?
            }
        };
        let count = self.counted()?.convert(losses.dtype())?.sum_all()?;
        Ok(LossSum {
            sum: losses.sum_all()?,
            count,
        })
    }

    /// `f32[R]`: by how much the label's logit is above the mean of all; 0 where there is no label.
    /// A share s of the label that goes to all classes equally adds s times that to the
    /// cross-entropy, as the logarithm of the sum is the same for each class.
    fn above_mean(&self) -> Result<Tensor> {
        let (logits, trace) = (&self.logits, self.logits.trace());
        let class = trace.iota(DType::S32, logits.dims(), 1)?;
        let zeros = trace.full(0.0, logits.shape())?;
        let of_label = class
            .compare(
                Comparison::Eq,
                &self.labels.broadcast_in(logits.dims(), &[0])?,
            )?
            .select(logits, &zeros)?
            .sum(&[1])?;
        let all = if self.classes < logits.dims()[1] {
            class
                .compare_scalar(Comparison::Lt, self.classes as f64)?
                .select(logits, &zeros)?
        } else {
            logits.clone()
        };
        let mean = all.sum(&[1])?.mul_scalar(1.0 / self.classes as f64)?;
        let above = of_label.sub(&mean)?;
        Ok(self
            .counted()?
            .select(&above, &trace.full(0.0, above.shape())?)?)
    }

    /// `[R]`, 0 where there is no label.
    fn squared_errors(&self) -> Result<Tensor> {
        let estimates = self.logits.reshape(self.labels.dims())?;
        let errors = estimates.sub(&self.labels.convert(estimates.dtype())?)?;
        // Chosen before the square: that of a label that does not count would be infinite, and its
        // gradient not a number.
        let errors = self
            .counted()?
            .select(&errors, &errors.trace().full(0.0, errors.shape())?)?;
        Ok(errors.mul(&errors)?)
    }

    /// `f32[]`: in how many of the rows that have a label that is where the largest logit is, the
    /// first among equals.
    pub fn correct(&self) -> Result<Tensor> {
        let _scope = self.logits.trace().clone().scope("accuracy");
        // No class is negative, so rows without a label are never right.
        Ok(self
            .predicted()?
            .compare(Comparison::Eq, &self.labels)?
            .convert(DType::F32)?
            .sum_all()?)
    }

    /// The logits row after row, `[R * V]` or `[R * L]`.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn flat_logits(&self) -> Result<Tensor> {
        Ok(self.logits.reshape(&[self.logits.shape().elements()])?)
    }

    /// `s32[R]`: where the largest logit of each row is, the first among equals.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn predicted(&self) -> Result<Tensor> {
        let (rows, classes) = (self.logits.dims()[0], self.logits.dims()[1]);
        let largest = self
            .logits
            .max(&[1])?
            .broadcast_in(&[rows, classes], &[0])?;
        let place = self.logits.trace().iota(DType::S32, &[rows, classes], 1)?;
        let last = self.logits.trace().full(classes as f64, place.shape())?;
        Ok(self
            .logits
            .compare(Comparison::Eq, &largest)?
            .select(&place, &last)?
            .min(&[1])?)
    }
}

/// The loss of a batch by the model's task; for `smoothing` see [`Predictions::loss`].
pub fn loss(
    model: &dyn Model,
    weights: &Weights,
    batch: &TokenBatch,
    labels: &Labels,
    rng: &DropoutRng,
    smoothing: f64,
) -> Result<LossSum> {
    Predictions::of(model, weights, batch, labels, rng)?.loss(smoothing)
}

/// Labels `[B, T]` moved one place to the left, `[N]`: the labels move instead of the logits, which
/// would have to be copied.
fn next_tokens(labels: &Tensor) -> Result<Tensor> {
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
