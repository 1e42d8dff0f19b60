//! What both language models have in common: lines of text, 1000 at a time, and how many tokens
//! were predicted.

use xtrain_data::rows::Totals;
use xtrain_data::share::Share;
use xtrain_data::{Error, HostLabels, Sample};
use xtrain_graphs::Tensor;
use xtrain_models::Predictions;
use xtrain_trainer::evaluate::Metrics;

/// Lines that are joined before cutting: `datasets.map`'s batch size, on which the rows of run_clm
/// and run_mlm depend.
pub const GROUP: usize = 1000;

/// The texts of samples that have one each.
pub fn texts(samples: &[Sample]) -> impl Iterator<Item = &str> {
    samples.iter().map(|sample| sample.texts[0].as_str())
}

/// The error for a set without one row of `length`; `flag` sets that length, and no group had more
/// than `largest` tokens.
pub fn too_short(
    what: String,
    share: Share,
    totals: Totals,
    length: usize,
    largest: u64,
    flag: &'static str,
) -> Error {
    let mut advice = Vec::new();
    if largest >= 2 {
        advice.push(format!("set --{flag} {largest} or less"));
    }
    match share {
        Share::First(_) => advice
            .push("give a --validation_file, or raise --validation_split_percentage".to_string()),
        Share::After(_) => advice.push("lower --validation_split_percentage".to_string()),
        _ => {}
    }
    advice.push("bring more text".to_string());
    Error::TooShort {
        what,
        tokens: totals.tokens,
        lines: totals.lines,
        length,
        largest,
        advice: advice.join(", or "),
    }
}

/// The share of the labels that were the likeliest token. Counted on the device.
#[derive(Debug)]
pub struct TokenAccuracy {
    correct: f64,
    has_perplexity: bool,
}

impl TokenAccuracy {
    /// Of an evaluation whose loss is the cross-entropy, which has a perplexity, or another one.
    pub fn new(is_cross_entropy: bool) -> TokenAccuracy {
        TokenAccuracy {
            correct: 0.0,
            has_perplexity: is_cross_entropy,
        }
    }
}

impl Metrics for TokenAccuracy {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        Ok(Some(predictions.correct()?.reshape(&[1])?))
    }

    fn add(&mut self, outputs: &[f32], _labels: &HostLabels, _examples: usize) {
        self.correct += outputs.iter().copied().map(f64::from).sum::<f64>();
    }

    fn values(&self, labels: f64) -> Vec<(String, f64)> {
        vec![("accuracy".into(), self.correct / labels)]
    }

    fn has_perplexity(&self) -> bool {
        self.has_perplexity
    }
}
