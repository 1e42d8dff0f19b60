//! Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290) and its relatives, as TRL's
//! DPOTrainer computes them; and ORPO (Hong et al. 2024, arXiv 2403.07691).
//!
//! Letters: P pairs, R = 2 P rows, T tokens.

use crate::answers::{
    Answers, Measure, PAIR, dropout, half_mask, halves, lengths, log_sigmoid, sum_where,
};
use crate::error::Result;
use crate::loss::IGNORED_LABEL;
use crate::loss::LossSum;
use crate::objective::{
    ATTENTION_MASK, Feed, Forward, INPUT_IDS, LABELS, Objective, Outcome, next_tokens,
};
use std::f64::consts::LN_2;
use std::sync::Arc;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, Tensor};

/// The feed of the reference's log-probability of each row, `f32[R]`.
pub const REFERENCE: &str = "reference_log_probs";

/// A loss of pairs. r is the log-ratio of policy and reference of an answer, h beta times the
/// difference of a pair's; s is the sigmoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairLoss {
    /// -log s(h).
    Sigmoid,
    /// max(0, 1 - h) (SLiC, arXiv 2305.10425).
    Hinge,
    /// The squared difference of the ratios per token and 1 / (2 beta) (arXiv 2310.12036).
    Ipo,
    /// The reverse KL divergence from smoothed preferences (EXO, arXiv 2402.00856).
    ExoPair,
    /// Noise-contrastive alignment (arXiv 2402.05369).
    NcaPair,
    /// Robust to flipped labels (arXiv 2403.00409).
    Robust,
    /// Binary classifier optimization of pairs (arXiv 2404.04656), without a shift.
    BcoPair,
    /// Self-play preference optimization (arXiv 2405.00675).
    SppoHard,
    /// Alignment by optimal transport, by ratios of pairs (arXiv 2406.05882). Sorts the rows of a batch
    /// on one replica.
    Aot,
    /// The same, by ratios of answers.
    AotUnpaired,
    /// Anchored preference optimization, for answers better than the model's (arXiv 2408.06266).
    ApoZero,
    /// The same, for answers worse than the model's.
    ApoDown,
    /// A found blend of logistic and exponential losses (DiscoPOP, arXiv 2406.08414).
    DiscoPop,
    /// The cross-entropy of all tokens of the batch's chosen answers.
    Sft,
    /// -log s of beta times the difference of the ratios per token.
    SigmoidNorm,
}

impl PairLoss {
    /// Whether it is a function of the difference of a pair's scores, so that another divergence than
    /// the reverse KL has a meaning in it.
    pub fn takes_divergences(self) -> bool {
        use PairLoss::*;
        matches!(
            self,
            Sigmoid | SigmoidNorm | Hinge | Ipo | ExoPair | Robust | DiscoPop | Sft
        )
    }

    /// Whether it orders the pairs of a batch, so that it is no sum over them.
    pub fn sorts(self) -> bool {
        matches!(self, PairLoss::Aot | PairLoss::AotUnpaired)
    }
}

/// The divergence from the reference that scores answers (f-DPO, arXiv 2309.16240).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// r.
    ReverseKl,
    /// 1 - exp(-r).
    ForwardKl,
    /// log 2 + log s(r).
    JensenShannon,
    /// (exp((alpha - 1) r) - 1) / (alpha - 1).
    Alpha(f64),
}

/// Training on pairs, under the names of TRL's DPOConfig.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// What is added up, each with its weight.
    pub losses: Vec<(PairLoss, f64)>,
    /// How much leaving the reference costs.
    pub beta: f64,
    /// The share of flipped labels that `robust`, `exo_pair` and `aot` reckon with.
    pub label_smoothing: f64,
    /// How much tokens past a pair's shorter answer count; `None`: as all others.
    pub ld_alpha: Option<f64>,
    /// What scores answers.
    pub divergence: Divergence,
    /// Weigh each pair by how likely the policy makes it (WPO).
    pub use_weighting: bool,
    /// The temperature of `discopop`.
    pub discopop_tau: f64,
    /// Drop out as the model is configured, not nothing.
    pub dropout: bool,
}

impl Default for Preference {
    fn default() -> Self {
        Preference {
            losses: vec![(PairLoss::Sigmoid, 1.0)],
            beta: 0.1,
            label_smoothing: 0.0,
            ld_alpha: None,
            divergence: Divergence::ReverseKl,
            use_weighting: false,
            discopop_tau: 0.05,
            dropout: false,
        }
    }
}

/// The log-probability of each answer, `f32[R]` in [`Outcome::predictions`]: what a reference gives.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerLogProbs {
    /// See [`Preference::ld_alpha`].
    pub ld_alpha: Option<f64>,
    /// Rows that make up an example.
    pub rows: usize,
}

/// Odds-ratio preference optimization: cross-entropy of prompts and chosen answers, minus beta times the
/// log-sigmoid of the log odds ratio. It has no reference.
#[derive(Clone, Debug, PartialEq)]
pub struct OddsRatio {
    /// The weight of the odds ratio.
    pub beta: f64,
    /// Drop out as the model is configured, not nothing.
    pub dropout: bool,
}

/// A pair's numbers, `[chosen, rejected]`, each `f32[P]`.
struct Pairs<'a> {
    settings: &'a Preference,
    answers: &'a Answers,
    log_probs: [Tensor; 2],
    reference: [Tensor; 2],
    ratios: [Tensor; 2],
    scores: [Tensor; 2],
    lengths: [Tensor; 2],
    /// `pred[P]`: pairs that do not only fill the batch.
    is_real: Tensor,
}

impl Objective for Preference {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        vec![
            Feed::new(LABELS, DType::S32, [rows, tokens]),
            Feed::new(REFERENCE, DType::F32, [rows]),
        ]
    }

    fn rows(&self) -> usize {
        PAIR
    }

    fn reference(&self) -> Option<Arc<dyn Objective>> {
        Some(Arc::new(AnswerLogProbs {
            ld_alpha: self.ld_alpha,
            rows: PAIR,
        }))
    }

    fn measures(&self) -> &[&'static str] {
        &[
            "entropy",
            "logits/chosen",
            "logits/rejected",
            "mean_token_accuracy",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
        ]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let rng = dropout(step.rng, self.dropout);
        let step = &Forward { rng: &rng, ..*step };
        let answers = Answers::record(step)?;
        let trace = answers.log_probs.trace().clone();
        let _scope = trace.scope("loss");
        let reference = step.inputs.get(REFERENCE)?;
        let rows = answers.summed(self.ld_alpha)?;
        let pairs = Pairs::new(self, &answers, &rows, reference)?;
        let count = pairs.is_real.convert(DType::F32)?.sum_all()?;
        let loss = LossSum {
            sum: sum_where(&pairs.losses()?, &pairs.is_real)?,
            count: count.clone(),
            measured: None,
        };
        let loss = loss.measuring_each(&pairs.measures(&count)?)?;
        let terms = rows.dims()[0] / PAIR;
        answers.outcome(step, loss, &rows, terms)
    }
}

impl<'a> Pairs<'a> {
    fn new(
        settings: &'a Preference,
        answers: &'a Answers,
        rows: &Tensor,
        reference: &Tensor,
    ) -> Result<Pairs<'a>> {
        let ratios = halves(&rows.sub(reference)?)?;
        let lengths = halves(&answers.lengths)?;
        let is_real = lengths[0]
            .add(&lengths[1])?
            .compare_scalar(Comparison::Gt, 0.0)?;
        Ok(Pairs {
            settings,
            answers,
            log_probs: halves(rows)?,
            reference: halves(reference)?,
            scores: [
                settings.divergence.score(&ratios[0])?,
                settings.divergence.score(&ratios[1])?,
            ],
            ratios,
            lengths,
            is_real,
        })
    }

    /// `f32[P]`: what each pair loses.
    fn losses(&self) -> Result<Tensor> {
        let weight = if self.settings.use_weighting {
            let [chosen, rejected] = halves(&self.answers.alignment()?)?;
            Some(chosen.add(&rejected)?.exp()?)
        } else {
            None
        };
        let mut total: Option<Tensor> = None;
        for (loss, factor) in &self.settings.losses {
            let mut losses = self.loss(*loss)?;
            if let Some(weight) = &weight {
                losses = losses.mul(weight)?;
            }
            if *factor != 1.0 {
                losses = losses.mul_scalar(*factor)?;
            }
            total = Some(match total {
                Some(total) => total.add(&losses)?,
                None => losses,
            });
        }
        Ok(total.expect("a preference objective has a loss"))
    }

    /// `f32[P]`: one of the losses of each pair.
    fn loss(&self, loss: PairLoss) -> Result<Tensor> {
        let Preference {
            beta,
            label_smoothing: smoothing,
            discopop_tau,
            ..
        } = *self.settings;
        let [chosen, rejected] = &self.ratios;
        let h = self.scores[0].sub(&self.scores[1])?.mul_scalar(beta)?;
        let scaled = |ratio: &Tensor| ratio.mul_scalar(beta);
        let one_minus = |x: Tensor| x.neg()?.add_scalar(1.0);
        let smoothed = |x: &Tensor| -> Result<Tensor> {
            let wanted = log_sigmoid(x)?.mul_scalar(smoothing - 1.0)?;
            Ok(wanted.sub(&log_sigmoid(&x.neg()?)?.mul_scalar(smoothing)?)?)
        };
        Ok(match loss {
            PairLoss::Sigmoid => log_sigmoid(&h)?.neg()?,
            PairLoss::Hinge => one_minus(h)?.relu()?,
            PairLoss::Ipo => {
                let error = self.by_token()?.add_scalar(-0.5 / beta)?;
                error.mul(&error)?
            }
            PairLoss::ExoPair => {
                let term = |h: &Tensor, target: f64| -> Result<Tensor> {
                    let distance = log_sigmoid(h)?.add_scalar(-target)?;
                    Ok(h.logistic()?.mul(&distance)?)
                };
                let chosen = term(&h, (-smoothing).ln_1p())?;
                chosen.add(&term(&h.neg()?, smoothing.ln())?)?
            }
            PairLoss::NcaPair => {
                let (chosen, rejected) = (scaled(chosen)?, scaled(rejected)?);
                let against = log_sigmoid(&chosen.neg()?)?.add(&log_sigmoid(&rejected.neg()?)?)?;
                log_sigmoid(&chosen)?
                    .neg()?
                    .sub(&against.mul_scalar(0.5)?)?
            }
            PairLoss::Robust => {
                let flipped = log_sigmoid(&h.neg()?)?.mul_scalar(smoothing)?;
                let clean = log_sigmoid(&h)?.mul_scalar(smoothing - 1.0)?;
                clean
                    .add(&flipped)?
                    .mul_scalar(1.0 / (1.0 - 2.0 * smoothing))?
            }
            PairLoss::BcoPair => {
                let wanted = log_sigmoid(&scaled(chosen)?)?;
                let unwanted = log_sigmoid(&scaled(rejected)?.neg()?)?;
                wanted.add(&unwanted)?.neg()?
            }
            PairLoss::SppoHard => {
                let won = chosen.add_scalar(-0.5 / beta)?;
                let lost = rejected.add_scalar(0.5 / beta)?;
                won.mul(&won)?.add(&lost.mul(&lost)?)?
            }
            PairLoss::Aot => {
                let [chosen, rejected] = &self.log_probs;
                let policy = self.sorted(&chosen.sub(rejected)?)?;
                let [chosen, rejected] = &self.reference;
                let reference = self.sorted(&chosen.sub(rejected)?)?;
                smoothed(&scaled(&policy.sub(&reference)?)?)?
            }
            PairLoss::AotUnpaired => {
                let difference = self.sorted(chosen)?.sub(&self.sorted(rejected)?)?;
                smoothed(&scaled(&difference)?)?
            }
            PairLoss::ApoZero => {
                let chosen = one_minus(scaled(chosen)?.logistic()?)?;
                chosen.add(&scaled(rejected)?.logistic()?)?
            }
            PairLoss::ApoDown => {
                let difference = scaled(&chosen.sub(rejected)?)?;
                let rejected = one_minus(difference.logistic()?)?;
                scaled(chosen)?.logistic()?.add(&rejected)?
            }
            PairLoss::DiscoPop => {
                let share = h.mul_scalar(1.0 / discopop_tau)?.logistic()?;
                let logistic = log_sigmoid(&h)?.neg()?.mul(&one_minus(share.clone())?)?;
                logistic.add(&h.neg()?.exp()?.mul(&share)?)?
            }
            PairLoss::Sft => {
                let chosen = self.half(&self.answers.scored, 0)?;
                let (sum, count) = self.answers.over_tokens(&self.answers.log_probs, &chosen)?;
                let mean = sum.div(&count.max_scalar(1.0)?)?.neg()?;
                mean.broadcast_to(h.dims())?
            }
            PairLoss::SigmoidNorm => log_sigmoid(&scaled(&self.by_token()?)?)?.neg()?,
        })
    }

    /// `f32[P]`: the difference of scores per token of the answers.
    fn by_token(&self) -> Result<Tensor> {
        let mean = |half: usize| -> Result<Tensor> {
            Ok(self.scores[half].div(&self.lengths[half].max_scalar(1.0)?)?)
        };
        Ok(mean(0)?.sub(&mean(1)?)?)
    }

    /// `f32[P]` in ascending order, pairs that fill the batch last. Each number goes where as many are
    /// before it; the order has no gradient.
    fn sorted(&self, values: &Tensor) -> Result<Tensor> {
        let (trace, pairs) = (values.trace(), values.dims()[0]);
        let square = [pairs, pairs];
        let last = trace.full(f64::from(f32::MAX), values.shape())?;
        let keys = self.is_real.select(&values.stop_gradient()?, &last)?;
        let (own, other) = (
            keys.broadcast_in(&square, &[0])?,
            keys.broadcast_in(&square, &[1])?,
        );
        let row = trace.iota(DType::S32, &square, 0)?;
        let column = trace.iota(DType::S32, &square, 1)?;
        let is_earlier = column.compare(Comparison::Lt, &row)?;
        let is_tied = other.compare(Comparison::Eq, &own)?.and(&is_earlier)?;
        let is_before = other.compare(Comparison::Lt, &own)?.or(&is_tied)?;
        let rank = is_before.convert(DType::F32)?.sum(&[1])?;
        let place = trace.iota(DType::S32, &square, 1)?.convert(DType::F32)?;
        let is_there = rank
            .broadcast_in(&square, &[0])?
            .compare(Comparison::Eq, &place)?;
        let values = values.broadcast_in(&square, &[0])?;
        let zeros = trace.full(0.0, values.shape())?;
        let sorted = is_there.select(&values, &zeros)?.sum(&[0])?;
        Ok(sorted)
    }

    /// `f32[R, T]` with zeros in the other half's rows.
    fn half(&self, tokens: &Tensor, half: usize) -> Result<Tensor> {
        let mask = half_mask(&self.answers.lengths, half)?;
        Ok(tokens.mul(&mask.broadcast_to(tokens.dims())?)?)
    }

    /// `f32[P]`: rewards that differ by less are the same. The reference's log-probabilities come from
    /// another graph, whose sums round otherwise, and a policy that agrees with it prefers nothing.
    fn rounding(&self) -> Result<Tensor> {
        const SHARE: f64 = 1e-6;
        let [chosen, rejected] = &self.log_probs;
        let sizes = chosen.abs()?.add(&rejected.abs()?)?;
        Ok(sizes.mul_scalar(SHARE * self.settings.beta)?)
    }

    /// In the order of [`Objective::measures`]; `count` is the number of pairs.
    fn measures(&self, count: &Tensor) -> Result<Vec<Measure>> {
        let beta = self.settings.beta;
        let answers = self.answers;
        let scored = [
            self.half(&answers.scored, 0)?,
            self.half(&answers.scored, 1)?,
        ];
        let mean_logits = &answers.mean_logits;
        let over_pairs = |values: &Tensor| -> Result<Measure> {
            Ok((sum_where(values, &self.is_real)?, count.clone()))
        };
        let chosen = self.ratios[0].mul_scalar(beta)?;
        let rejected = self.ratios[1].mul_scalar(beta)?;
        let margin = chosen.sub(&rejected)?;
        let is_right = margin.compare(Comparison::Gt, &self.rounding()?)?;
        Ok(vec![
            answers.entropy()?,
            answers.over_tokens(mean_logits, &scored[0])?,
            answers.over_tokens(mean_logits, &scored[1])?,
            answers.over_tokens(&answers.correct, &scored[0])?,
            over_pairs(&chosen)?,
            over_pairs(&rejected)?,
            over_pairs(&is_right.convert(DType::F32)?)?,
            over_pairs(&margin)?,
            over_pairs(&self.log_probs[0])?,
            over_pairs(&self.log_probs[1])?,
        ])
    }
}

impl Divergence {
    /// `f32[P]`: the score of answers with these log-ratios.
    fn score(self, ratio: &Tensor) -> Result<Tensor> {
        /// The largest exponent, as in TRL, whose power is an f32.
        const MOST: f64 = 80.0;
        Ok(match self {
            Divergence::ReverseKl => ratio.clone(),
            Divergence::ForwardKl => ratio.neg()?.exp()?.neg()?.add_scalar(1.0)?,
            Divergence::JensenShannon => log_sigmoid(ratio)?.add_scalar(LN_2)?,
            Divergence::Alpha(alpha) if (alpha - 1.0).abs() < 1e-6 => ratio.clone(),
            Divergence::Alpha(alpha) => {
                let power = ratio.mul_scalar(alpha - 1.0)?.min_scalar(MOST)?.exp()?;
                power.add_scalar(-1.0)?.mul_scalar(1.0 / (alpha - 1.0))?
            }
        })
    }
}

impl Objective for AnswerLogProbs {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::S32, [rows, tokens])]
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let answers = Answers::record(step)?;
        let _scope = answers.log_probs.trace().clone().scope("loss");
        let rows = answers.summed(self.ld_alpha)?;
        let loss = LossSum {
            sum: rows.sum_all()?.neg()?,
            count: answers.scored.sum_all()?,
            measured: None,
        };
        let terms = answers.scored.shape().elements();
        answers.outcome(step, loss, &rows, terms)
    }
}

impl Objective for OddsRatio {
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        vec![Feed::new(LABELS, DType::S32, [rows, tokens])]
    }

    fn rows(&self) -> usize {
        PAIR
    }

    fn measures(&self) -> &[&'static str] {
        &[
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
            "logits/chosen",
            "logits/rejected",
            "nll_loss",
            "log_odds_ratio",
            "log_odds_chosen",
        ]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let rng = dropout(step.rng, self.dropout);
        let step = &Forward { rng: &rng, ..*step };
        let labels = step.inputs.get(LABELS)?;
        let whole = self.whole_chosen(step, labels)?;
        let tokens = step.inputs.tokens()?;
        let answers = Answers::of(step, &tokens, labels, Some(&whole))?;
        let trace = answers.log_probs.trace().clone();
        let _scope = trace.scope("loss");
        let predicted = answers.scored.sum(&[1])?.max_scalar(1.0)?;
        let rows = answers.summed(None)?.div(&predicted)?;
        let [chosen, rejected] = halves(&rows)?;
        let lengths = halves(&answers.lengths)?;
        let is_real = lengths[0]
            .add(&lengths[1])?
            .compare_scalar(Comparison::Gt, 0.0)?;
        let count = is_real.convert(DType::F32)?.sum_all()?;

        let log_odds = chosen
            .sub(&rejected)?
            .sub(&log_of_rest(&chosen)?.sub(&log_of_rest(&rejected)?)?)?;
        let ratio = log_sigmoid(&log_odds)?;
        let scored = next_tokens(&whole)?.compare_scalar(Comparison::Ne, IGNORED_LABEL as f64)?;
        let scored = scored.convert(DType::F32)?.sum_all()?;
        let whole = answers.others.as_ref().expect("they were asked for");
        let nll = whole.sum_all()?.neg()?.div(&scored.max_scalar(1.0)?)?;
        let mean_logits = &answers.mean_logits;
        let losses = nll
            .broadcast_to(ratio.dims())?
            .sub(&ratio.mul_scalar(self.beta)?)?;

        let over_pairs = |values: &Tensor| -> Result<Measure> {
            Ok((sum_where(values, &is_real)?, count.clone()))
        };
        let logits_of = |half: usize| -> Result<Measure> {
            let half = half_mask(&answers.lengths, half)?.broadcast_to(mean_logits.dims())?;
            answers.over_tokens(mean_logits, &answers.scored.mul(&half)?)
        };
        let rewards = [
            chosen.mul_scalar(self.beta)?,
            rejected.mul_scalar(self.beta)?,
        ];
        let is_right = rewards[0].compare(Comparison::Gt, &rewards[1])?;
        let measures = [
            over_pairs(&rewards[0])?,
            over_pairs(&rewards[1])?,
            over_pairs(&is_right.convert(DType::F32)?)?,
            over_pairs(&rewards[0].sub(&rewards[1])?)?,
            over_pairs(&chosen)?,
            over_pairs(&rejected)?,
            logits_of(0)?,
            logits_of(1)?,
            (nll.mul(&count)?, count.clone()),
            over_pairs(&ratio)?,
            over_pairs(&log_odds)?,
        ];
        let loss = LossSum {
            sum: sum_where(&losses, &is_real)?,
            count: count.clone(),
            measured: None,
        };
        let loss = loss.measuring_each(&measures)?;
        let terms = rows.dims()[0] / PAIR;
        answers.outcome(step, loss, &rows, terms)
    }
}

impl OddsRatio {
    /// `s32[R, T]`: the prompts and answers of chosen rows, as labels.
    fn whole_chosen(&self, step: &Forward<'_>, answers: &Tensor) -> Result<Tensor> {
        let ids = step.inputs.get(INPUT_IDS)?;
        let trace = ids.trace();
        let ignored = trace.full(IGNORED_LABEL as f64, ids.shape())?;
        let labels = match step.inputs.find(ATTENTION_MASK) {
            Some(mask) => mask.select(ids, &ignored)?,
            None => ids.clone(),
        };
        let lengths = lengths(answers)?;
        let mask = half_mask(&lengths, 0)?.reshape(lengths.dims())?;
        let is_chosen = mask
            .mul(&lengths)?
            .compare_scalar(Comparison::Gt, 0.0)?
            .broadcast_in(ids.dims(), &[0])?;
        Ok(is_chosen.select(&labels, &ignored)?)
    }
}

/// log(1 - exp(x)) of log-probabilities.
fn log_of_rest(x: &Tensor) -> Result<Tensor> {
    // A mean log-probability of 0 would be of certain answers; its rest is none.
    let rest = x.exp()?.neg()?.add_scalar(1.0)?;
    Ok(rest.max_scalar(f64::from(f32::MIN_POSITIVE))?.log()?)
}
