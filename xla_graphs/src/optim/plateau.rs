//! `reduce_lr_on_plateau`: a learning rate that falls when evaluations stop getting better, as
//! torch's `ReduceLROnPlateau` has it. No function of the step, so it is kept beside the schedule.

use super::arguments::ArgumentReader;
use std::collections::BTreeMap;

/// When the rate falls, and how far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauRule {
    /// Whether a larger number of the evaluation is an improvement (`mode`: `max`).
    pub greater_is_better: bool,
    /// What the rate is multiplied by.
    pub factor: f64,
    /// Evaluations in a row without improvement that are let pass.
    pub patience: u64,
    /// The least change that counts as improvement: a share of the best value, or a difference.
    pub threshold: f64,
    /// Whether `threshold` is a share of the best value (`threshold_mode`: `rel`).
    pub is_relative: bool,
    /// Evaluations after a fall that count for nothing.
    pub cooldown: u64,
    /// The rate falls no lower.
    pub min_lr: f64,
    /// A fall by no more than this is left out.
    pub eps: f64,
}

impl PlateauRule {
    /// By the names of `--lr_scheduler_kwargs`, with torch's defaults.
    pub(super) fn from_arguments(args: &mut ArgumentReader) -> PlateauRule {
        PlateauRule {
            greater_is_better: args.choice("mode", &[("min", false), ("max", true)]),
            factor: args.below_one("factor", 0.1),
            patience: args.optional_count("patience", 0).unwrap_or(10),
            threshold: args.not_negative("threshold", 1e-4),
            is_relative: args.choice("threshold_mode", &[("rel", true), ("abs", false)]),
            cooldown: args.optional_count("cooldown", 0).unwrap_or(0),
            min_lr: args.not_negative("min_lr", 0.0),
            eps: args.not_negative("eps", 1e-8),
        }
    }
}

/// A rate and the evaluations that decide about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    rule: PlateauRule,
    rate: f64,
    best: Option<f64>,
    bad: u64,
    cooling: u64,
}

/// Names in a checkpoint.
const RATE: &str = "plateau_learning_rate";
const BEST: &str = "plateau_best";
const BAD: &str = "plateau_bad_evaluations";
const COOLING: &str = "plateau_cooldown";

impl Plateau {
    /// At the rate `rate`, before the first evaluation.
    pub fn new(rule: PlateauRule, rate: f64) -> Plateau {
        Plateau {
            rule,
            rate,
            best: None,
            bad: 0,
            cooling: 0,
        }
    }

    /// The learning rate of the next step.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes an evaluation into account.
    pub fn observe(&mut self, value: f64) {
        let rule = self.rule;
        let is_better = match (self.best, rule.greater_is_better, rule.is_relative) {
            (None, ..) => value.is_finite(),
            (Some(best), false, true) => value < best * (1.0 - rule.threshold),
            (Some(best), false, false) => value < best - rule.threshold,
            (Some(best), true, true) => value > best * (1.0 + rule.threshold),
            (Some(best), true, false) => value > best + rule.threshold,
        };
        if is_better {
            (self.best, self.bad) = (Some(value), 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.bad = 0;
        }
        if self.bad > rule.patience {
            let lower = (self.rate * rule.factor).max(rule.min_lr);
            if self.rate - lower > rule.eps {
                self.rate = lower;
            }
            (self.cooling, self.bad) = (rule.cooldown, 0);
        }
    }

    /// By name, for a checkpoint.
    pub fn to_map(&self) -> BTreeMap<String, f64> {
        let best = self.best.map(|best| (BEST, best));
        let known = [
            (RATE, self.rate),
            (BAD, self.bad as f64),
            (COOLING, self.cooling as f64),
        ];
        let all = known.into_iter().chain(best);
        all.map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// As a checkpoint has it; what that lacks is as in a new run.
    pub fn from_map(rule: PlateauRule, rate: f64, map: &BTreeMap<String, f64>) -> Plateau {
        let count = |name| map.get(name).map_or(0, |count| *count as u64);
        Plateau {
            rule,
            rate: map.get(RATE).copied().unwrap_or(rate),
            best: map.get(BEST).copied(),
            bad: count(BAD),
            cooling: count(COOLING),
        }
    }
}
