//! Runs beside each other: what all pages start from.

use crate::runs::Run;
use crate::runs::numbers::Numbers;
use crate::units::duration;
use std::time::Duration;

/// Runs beside each other.
pub struct Report {
    pub(super) runs: Vec<Run>,
    pub(super) numbers: Vec<Numbers>,
    /// The run that the others are compared with.
    pub(super) baseline: usize,
    /// Of one instance.
    pub(super) price_per_hour: Option<f64>,
}

/// What throughput is counted in: the first that all runs have.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub title: &'static str,
    pub of: fn(&Numbers) -> Option<f64>,
}

const RATES: [Rate; 3] = [
    Rate {
        title: "tokens/s",
        of: |numbers| numbers.tokens_per_second,
    },
    Rate {
        title: "samples/s",
        of: |numbers| numbers.samples_per_second,
    },
    Rate {
        title: "steps/s",
        of: |numbers| numbers.steps_per_second,
    },
];

impl Report {
    /// At least one run; `baseline` is the place of one of them.
    pub fn new(runs: Vec<Run>, baseline: usize, price_per_hour: Option<f64>) -> Report {
        Report {
            numbers: runs.iter().map(Numbers::of).collect(),
            baseline,
            price_per_hour,
            runs,
        }
    }

    /// The first rate that all runs have, else the first that some have.
    pub(super) fn rate(&self) -> Option<Rate> {
        let all = |rate: &&Rate| self.numbers.iter().all(|n| (rate.of)(n).is_some());
        let any = |rate: &&Rate| self.numbers.iter().any(|n| (rate.of)(n).is_some());
        let found = RATES.iter().find(all).or_else(|| RATES.iter().find(any));
        found.copied()
    }

    /// How many times the baseline's rate a run has.
    pub(super) fn speedup(&self, run: usize) -> Option<f64> {
        let of = self.rate()?.of;
        Some(of(&self.numbers[run])? / of(&self.numbers[self.baseline])?)
    }

    pub(super) fn title(&self) -> String {
        match &self.runs[..] {
            [run] => format!("Run {}", run.name),
            runs => format!("{} runs", runs.len()),
        }
    }
}

/// Seconds as people read them.
pub fn time(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
