//! Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv 2402.01306): answers that are good or bad,
//! without pairs, as TRL's KTOTrainer computes it.
//!
//! Letters: B examples, R rows, T tokens.

use crate::answers::{Answers, Measure, dropout, sum_where};
use crate::error::Result;
use crate::loss::LossSum;
use crate::objective::{Feed, Forward, LABELS, Objective, Outcome};
use crate::preference::{AnswerLogProbs, REFERENCE};
use std::sync::Arc;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, Tensor};

/// The feed that says which rows are good, `f32[R]`: 1, or 0 of a bad one.
pub const DESIRABLE: &str = "desirable";

/// Training on answers that are good or bad, under the names of TRL's KTOConfig.
#[derive(Clone, Debug, PartialEq)]
pub struct Kto {
    /// How much leaving the reference costs.
    pub beta: f64,
    /// The weight of good answers.
    pub desirable_weight: f64,
    /// The weight of bad answers.
    pub undesirable_weight: f64,
    /// Compare with the KL divergence, which is estimated from a second row of each example: its prompt
    /// with the answer to another one. Without it the loss is TRL's `apo_zero_unpaired`.
    pub has_kl: bool,
    /// Drop out as the model is configured, not nothing.
    pub dropout: bool,
}

impl Objective for Kto {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        vec![
            Feed::new(LABELS, DType::S32, [rows, tokens]),
            Feed::new(REFERENCE, DType::F32, [rows]),
            Feed::new(DESIRABLE, DType::F32, [rows]),
        ]
    }

    fn rows(&self) -> usize {
        1 + usize::from(self.has_kl)
    }

    fn reference(&self) -> Option<Arc<dyn Objective>> {
        Some(Arc::new(AnswerLogProbs {
            ld_alpha: None,
            rows: self.rows(),
        }))
    }

    fn measures(&self) -> &[&'static str] {
        &[
            "kl",
            "entropy",
            "logits/chosen",
            "logits/rejected",
            "rewards/chosen",
            "logps/chosen",
            "rewards/rejected",
            "logps/rejected",
            "rewards/margins",
        ]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let rng = dropout(step.rng, self.dropout);
        let step = &Forward { rng: &rng, ..*step };
        let mut answers = Answers::record(step)?;
        let trace = answers.log_probs.trace().clone();
        let _scope = trace.scope("loss");
        let rows = answers.summed(None)?;
        let ratios = rows.sub(step.inputs.get(REFERENCE)?)?;
        let log_probs = self.column(&rows, 0)?;
        let is_good = self
            .column(step.inputs.get(DESIRABLE)?, 0)?
            .compare_scalar(Comparison::Gt, 0.5)?;
        let is_real = self
            .column(&answers.lengths, 0)?
            .compare_scalar(Comparison::Gt, 0.0)?;
        let count = is_real.convert(DType::F32)?.sum_all()?;
        let one = trace.constant(1.0, DType::F32)?;

        let kl = if self.has_kl {
            // Of the whole batch, whichever replica has its rows.
            let others = self.column(&ratios, 1)?.stop_gradient()?;
            let sum = step
                .inputs
                .sum_over_replicas(&sum_where(&others, &is_real)?)?;
            let all = step.inputs.sum_over_replicas(&count)?.max_scalar(1.0)?;
            sum.div(&all)?.max_scalar(0.0)?
        } else {
            trace.constant(0.0, DType::F32)?
        };
        let ratios = self.column(&ratios, 0)?;
        let above = ratios
            .sub(&kl.broadcast_to(ratios.dims())?)?
            .mul_scalar(self.beta)?;
        let good = above
            .logistic()?
            .neg()?
            .add_scalar(1.0)?
            .mul_scalar(self.desirable_weight)?;
        // 1 - s(-x) is s(x).
        let bad = above.logistic()?.mul_scalar(self.undesirable_weight)?;
        let losses = is_good.select(&good, &bad)?;

        // The second rows' tokens count in no measure.
        answers.scored = answers
            .scored
            .mul(&self.own_rows(&answers.lengths, answers.scored.dims())?)?;
        let is_good = [is_real.and(&is_good)?, is_real.and(&is_good.not()?)?];
        let mut measures = vec![(kl, one), answers.entropy()?];
        let mean_logits = answers.mean_logits.clone();
        let mut of_kind: Vec<[Measure; 2]> = Vec::new();
        for is_chosen in &is_good {
            let number = is_chosen.convert(DType::F32)?;
            let chosen = self.of_rows(&number, answers.scored.dims())?;
            let tokens = answers.scored.mul(&chosen)?;
            measures.push(answers.over_tokens(&mean_logits, &tokens)?);
            let (number, rewards) = (number.sum_all()?, ratios.mul_scalar(self.beta)?);
            of_kind.push([
                (sum_where(&rewards, is_chosen)?, number.clone()),
                (sum_where(&log_probs, is_chosen)?, number),
            ]);
        }
        let means: Vec<Tensor> = of_kind
            .iter()
            .map(|[(sum, number), _]| Ok(sum.div(&number.max_scalar(1.0)?)?))
            .collect::<Result<_>>()?;
        let has_both = of_kind[0][0]
            .1
            .min_scalar(1.0)?
            .mul(&of_kind[1][0].1.min_scalar(1.0)?)?;
        measures.extend(of_kind.into_iter().flatten());
        measures.push((means[0].sub(&means[1])?.mul(&has_both)?, has_both));
        let loss = LossSum {
            sum: sum_where(&losses, &is_real)?,
            count,
            measured: None,
        };
        let loss = loss.measuring_each(&measures)?;
        let terms = rows.dims()[0] / self.rows();
        answers.outcome(step, loss, &rows, terms)
    }
}

impl Kto {
    /// `[B]`: of `[R]` each example's own row (0) or its second one (1).
    fn column(&self, rows: &Tensor, at: usize) -> Result<Tensor> {
        let (all, each) = (rows.dims()[0], self.rows());
        let table = rows.reshape(&[all / each, each])?;
        Ok(table.slice_dim(1, at, at + 1)?.reshape(&[all / each])?)
    }

    /// `f32[R, T]`: 1 in examples' own rows.
    fn own_rows(&self, rows: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let (all, each) = (rows.dims()[0], self.rows());
        let first = rows
            .trace()
            .iota(DType::S32, &[all / each, each], 1)?
            .compare_scalar(Comparison::Eq, 0.0)?;
        let first = first.convert(DType::F32)?.reshape(&[all])?;
        Ok(first.broadcast_in(dims, &[0])?)
    }

    /// `f32[R, T]`: each example's number in all of its rows.
    fn of_rows(&self, examples: &Tensor, dims: &[usize]) -> Result<Tensor> {
        let (count, each) = (examples.dims()[0], self.rows());
        let rows = examples.broadcast_in(&[count, each], &[0])?;
        Ok(rows.reshape(&[count * each])?.broadcast_in(dims, &[0])?)
    }
}
