//! What a regression estimated beside what is true. Formulas and conventions are scipy's and
//! scikit-learn's, which `run_glue` takes its metrics from.

use xtrain_graphs::Tensor;
use xtrain_models::{IGNORED_NUMBER, Predictions};

use super::glue::Glue;
use xtrain_data::HostLabels;
use xtrain_trainer::evaluate::Metrics;

/// Estimates and labels, pair by pair; a label may be missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimates {
    estimates: Vec<f32>,
    labels: Vec<f32>,
    glue: Option<Glue>,
}

impl Estimates {
    /// With the metrics of a GLUE task, if one was named.
    pub fn new(glue: Option<Glue>) -> Estimates {
        Estimates {
            glue,
            ..Estimates::default()
        }
    }
}

impl Metrics for Estimates {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        predictions.flat_logits().map(Some)
    }

    fn add(&mut self, outputs: &[f32], labels: &HostLabels, examples: usize) {
        let HostLabels::Numbers(numbers) = labels else {
            unreachable!("the labels of a regression are numbers")
        };
        // Rows that only fill the batch come last.
        self.estimates.extend(&outputs[..examples]);
        self.labels.extend(numbers.iter().take(examples));
    }

    /// Mean squared error, Pearson's correlation coefficient, and Spearman's: Pearson's of the
    /// ranks, equal values sharing the mean of theirs. NaN of no labels; correlations also where
    /// estimates or labels are all the same.
    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        let pairs = self.estimates.iter().zip(&self.labels);
        let (x, y): (Vec<f64>, Vec<f64>) = pairs
            .filter(|(_, label)| **label != IGNORED_NUMBER)
            .map(|(estimate, label)| (f64::from(*estimate), f64::from(*label)))
            .unzip();
        let squares = x.iter().zip(&y).map(|(x, y)| (x - y) * (x - y));
        let mut values = vec![
            ("mse".into(), squares.sum::<f64>() / x.len() as f64),
            ("pearson".into(), correlation(&x, &y)),
            ("spearmanr".into(), correlation(&ranks(&x), &ranks(&y))),
        ];
        values.extend(self.glue.and_then(|glue| glue.combined(&values)));
        values
    }

    fn predictions(&mut self) -> Vec<Vec<f32>> {
        let estimates = std::mem::take(&mut self.estimates);
        estimates.into_iter().map(|value| vec![value]).collect()
    }
}

fn correlation(x: &[f64], y: &[f64]) -> f64 {
    // Asked of the values: what is left of equal ones after subtracting their mean may be a
    // rounding error instead of nothing.
    let constant = |values: &[f64]| values.iter().all(|value| *value == values[0]);
    let undefined = |values: &[f64]| constant(values) || values.iter().any(|value| value.is_nan());
    if undefined(x) || undefined(y) {
        return f64::NAN;
    }
    let centred = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect::<Vec<_>>()
    };
    let (x, y) = (centred(x), centred(y));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    // Rounding must not make a correlation of more than one.
    (product(&x, &y) / (product(&x, &x).sqrt() * product(&y, &y).sqrt())).clamp(-1.0, 1.0)
}

/// Ranks from 1 on; NaN, which has none, stays.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let mean = before as f64 + (equal.len() + 1) as f64 / 2.0;
        equal.iter().for_each(|place| ranks[*place] = mean);
        before += equal.len();
    }
    for (rank, value) in ranks.iter_mut().zip(values) {
        if value.is_nan() {
            *rank = f64::NAN;
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    /// Mean squared error, Pearson's and Spearman's coefficients.
    fn values(pairs: &[(f32, f32)]) -> [f64; 3] {
        let mut found = Estimates::default();
        for (estimate, label) in pairs {
            found.add(&[*estimate], &HostLabels::Numbers(array![*label]), 1);
        }
        let values: Vec<f64> = found.values(0.0).into_iter().map(|(_, x)| x).collect();
        assert_eq!(
            found.predictions().len(),
            pairs.len(),
            "a row without a label is estimated, too"
        );
        values.try_into().unwrap()
    }

    #[test]
    fn figures_are_numpys() {
        // By numpy: mean((x - y)**2), corrcoef(x, y), and corrcoef of the ranks, which is how
        // scipy's spearmanr is defined.
        let found = values(&[
            (1.0, 0.5),
            (2.5, 2.0),
            (2.5, 4.0),
            (4.0, 3.0),
            (9.0, IGNORED_NUMBER),
            (0.25, 1.0),
        ]);
        let wanted = [0.8625, 0.743_445_902_546_269_2, 0.718_184_846_459_607_9];
        for (found, wanted) in found.into_iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
        }
    }

    #[test]
    fn edges_have_values() {
        let [error, pearson, _] = values(&[]);
        assert!(error.is_nan() && pearson.is_nan());
        let [_, pearson, spearman] = values(&[(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)]);
        assert!(pearson.is_nan() && spearman.is_nan());
        let [_, pearson, spearman] = values(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]);
        assert!((pearson - 1.0).abs() < 1e-14 && (spearman - 1.0).abs() < 1e-14);
    }
}
