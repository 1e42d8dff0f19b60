//! Logits, and what compares them with labels.
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
#[derive(Clone)]
pub struct LossSum {
    /// `f32[]`
    pub sum: Tensor,
    /// `f32[]`, exact below 2^24 labels.
    pub count: Tensor,
    /// `f32[2, n]`: the sums whose means [`Objective::measures`](crate::Objective::measures) names,
    /// then what each is to be divided by.
    pub measured: Option<Tensor>,
}

impl LossSum {
    /// The same with these sums, each `f32[]`, measured besides; their means are over what `count`
    /// counts.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn measuring(self, sums: &[Tensor]) -> Result<LossSum> {
        let measures = sums.iter().map(|sum| (sum.clone(), self.count.clone()));
        let measures: Vec<_> = measures.collect();
        self.measuring_each(&measures)
    }

    /// The same with these sums measured besides, each `f32[]` with what it is to be divided by. What is
    /// divided by 0 has no mean.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn measuring_each(self, measures: &[(Tensor, Tensor)]) -> Result<LossSum> {
        let sums = measures.iter().map(|(sum, _)| sum);
        let weights = measures.iter().map(|(_, weight)| weight);
        let vectors = sums.chain(weights).map(|number| number.reshape(&[1]));
        let vectors = vectors.collect::<xtrain_graphs::Result<Vec<_>>>()?;
        let measured = Tensor::concat(&vectors.iter().collect::<Vec<_>>(), 0)?;
        Ok(LossSum {
            measured: Some(measured.reshape(&[2, measures.len()])?),
            ..self
        })
    }
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
pub(crate) fn head(
    model: &dyn Model,
    weights: &Weights,
    rows: &Tensor,
    rng: &DropoutRng,
) -> Result<Tensor> {
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
    /// The logits of a model's head with the label of each row.
    pub fn new(model: &dyn Model, logits: Tensor, labels: Tensor) -> Self {
        let classes = if model.head_kind().is_language_model() {
            model.vocab_size()
        } else {
            logits.dims()[1]
        };
        Predictions {
            logits,
            labels,
            classes,
        }
    }

    /// `pred[R]`: which rows have a label.
    pub(crate) fn counted(&self) -> Result<Tensor> {
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

    /// Cross-entropy, summed over the rows that have a label. With a `smoothing` above 0 it is that
    /// with a label that has `1 - smoothing` and each class an equal share of the rest (Szegedy et
    /// al. 2016), as transformers' LabelSmoother.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn cross_entropy(&self, smoothing: f64) -> Result<LossSum> {
        let _scope = self.logits.trace().clone().scope("loss");
        let losses = self.cross_entropies()?;
        if smoothing == 0.0 {
            return self.sum(&losses);
        }
        self.sum(&losses.add(&self.above_mean()?.mul_scalar(smoothing)?)?)
    }

    /// `f32[R]`: the cross-entropy of each row, 0 where there is no label.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn cross_entropies(&self) -> Result<Tensor> {
        Ok(self.logits.cross_entropy(&self.labels, IGNORED_LABEL)?)
    }

    /// The squared error, summed over the rows that have a label; the labels are numbers.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn squared_error(&self) -> Result<LossSum> {
        let _scope = self.logits.trace().clone().scope("loss");
        self.sum(&self.squared_errors()?)
    }

    /// The sum of what each row contributes, `[R]`, of which those without a label must be 0.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn sum(&self, losses: &Tensor) -> Result<LossSum> {
        let count = self.counted()?.convert(losses.dtype())?.sum_all()?;
        Ok(LossSum {
            sum: losses.sum_all()?,
            count,
            measured: None,
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
        let above = of_label.sub(&self.mean_logits()?)?;
        Ok(self
            .counted()?
            .select(&above, &trace.full(0.0, above.shape())?)?)
    }

    /// `f32[R]`: the mean of each row's logits.
    ///
    /// # Errors
    /// An operation refuses its operands.
    pub fn mean_logits(&self) -> Result<Tensor> {
        let (logits, trace) = (&self.logits, self.logits.trace());
        let all = if self.classes < logits.dims()[1] {
            let zeros = trace.full(0.0, logits.shape())?;
            trace
                .iota(DType::S32, logits.dims(), 1)?
                .compare_scalar(Comparison::Lt, self.classes as f64)?
                .select(logits, &zeros)?
        } else {
            logits.clone()
        };
        Ok(all.sum(&[1])?.mul_scalar(1.0 / self.classes as f64)?)
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
