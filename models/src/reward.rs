//! Reward models: a number for each text, larger for the chosen one of a pair (Bradley and Terry 1952),
//! as TRL's RewardTrainer computes it.
//!
//! Letters: P pairs, R = 2 P rows.

use crate::answers::{PAIR, dropout, halves, log_sigmoid, sum_where};
use crate::error::Result;
use crate::loss::{IGNORED_NUMBER, LossSum, Predictions};
use crate::objective::{Feed, Forward, LABELS, Objective, Outcome};
use xtrain_graphs::DType;
use xtrain_graphs::op::Comparison;

/// Training a reward model on pairs. Labels `f32[R]` are the margins of pairs, the same in both rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reward {
    /// The weight of the squared sum of a pair's rewards, which centres them (arXiv 2312.09244).
    pub center: Option<f64>,
    /// Drop out as the model is configured, not nothing.
    pub dropout: bool,
}

impl Objective for Reward {
    fn feeds(&self, rows: usize, _tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::F32, [rows])]
    }

    fn rows(&self) -> usize {
        PAIR
    }

    fn measures(&self) -> &[&'static str] {
        &[
            "min_reward",
            "mean_reward",
            "max_reward",
            "accuracy",
            "margin",
        ]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let rng = dropout(step.rng, self.dropout);
        let step = &Forward { rng: &rng, ..*step };
        let (logits, margins) = (step.logits()?, step.inputs.get(LABELS)?);
        let trace = logits.trace().clone();
        let _scope = trace.scope("loss");
        let rewards = logits.reshape(margins.dims())?;
        let is_real = margins.compare_scalar(Comparison::Ne, f64::from(IGNORED_NUMBER))?;
        let zeros = trace.full(0.0, margins.shape())?;
        let margin = halves(&is_real.select(margins, &zeros)?)?[0].clone();
        let [chosen, rejected] = halves(&rewards)?;
        let of_pairs = halves(&is_real.convert(DType::F32)?)?[0].clone();
        let is_pair = of_pairs.compare_scalar(Comparison::Gt, 0.0)?;
        let count = of_pairs.sum_all()?;

        let difference = chosen.sub(&rejected)?;
        let mut losses = log_sigmoid(&difference.sub(&margin)?)?.neg()?;
        if let Some(center) = self.center {
            let both = chosen.add(&rejected)?;
            losses = losses.add(&both.mul(&both)?.mul_scalar(center)?)?;
        }
        let far = trace.full(f64::from(f32::MAX), rewards.shape())?;
        let smallest = is_real.select(&rewards, &far)?.min(&[0])?;
        let largest = is_real.select(&rewards, &far.neg()?)?.max(&[0])?;
        // Of a batch of nothing but filling there is neither.
        let is_there = count.min_scalar(1.0)?;
        let is_right = difference.compare_scalar(Comparison::Gt, 0.0)?;
        let measures = [
            (smallest.mul(&is_there)?, is_there.clone()),
            (
                sum_where(&rewards, &is_real)?,
                count.mul_scalar(PAIR as f64)?,
            ),
            (largest.mul(&is_there)?, is_there.clone()),
            (
                sum_where(&is_right.convert(DType::F32)?, &is_pair)?,
                count.clone(),
            ),
            (sum_where(&difference, &is_pair)?, count.clone()),
        ];
        let loss = LossSum {
            sum: sum_where(&losses, &is_pair)?,
            count,
            measured: None,
        };
        Ok(Outcome {
            loss: loss.measuring_each(&measures)?,
            terms: rewards.dims()[0] / PAIR,
            predictions: Predictions::new(step.model, logits, margins.clone()),
        })
    }
}
