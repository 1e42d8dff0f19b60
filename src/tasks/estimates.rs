//! What a regression estimated beside what is true. Formulas and conventions are scipy's and
//! scikit-learn's, which `run_glue` takes its metrics from.

use xtrain_models::IGNORED_NUMBER;

/// Estimates and labels, pair by pair; a label may be missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimates {
    estimates: Vec<f32>,
    labels: Vec<f32>,
}

impl Estimates {
    /// Adds rows; labels beyond the estimates are of no row.
    pub fn extend(&mut self, estimates: &[f32], labels: &[f32]) {
        self.estimates.extend_from_slice(estimates);
        self.labels.extend_from_slice(&labels[..estimates.len()]);
    }

    pub fn into_estimates(self) -> Vec<f32> {
        self.estimates
    }

    /// Those with a label: what was estimated, what is true.
    fn pairs(&self) -> (Vec<f64>, Vec<f64>) {
        let pairs = self
            .estimates
            .iter()
            .zip(&self.labels)
            .filter(|(_, label)| **label != IGNORED_NUMBER);
        pairs
            .map(|(estimate, label)| (f64::from(*estimate), f64::from(*label)))
            .unzip()
    }

    /// NaN of no labels.
    pub fn mean_squared_error(&self) -> f64 {
        let (x, y) = self.pairs();
        x.iter()
            .zip(&y)
            .map(|(x, y)| (x - y) * (x - y))
            .sum::<f64>()
            / x.len() as f64
    }

    /// Pearson's correlation coefficient; NaN where estimates or labels are all the same.
    pub fn pearson(&self) -> f64 {
        let (x, y) = self.pairs();
        correlation(&x, &y)
    }

    /// Spearman's: Pearson's of the ranks, equal values sharing the mean of theirs.
    pub fn spearman(&self) -> f64 {
        let (x, y) = self.pairs();
        correlation(&ranks(&x), &ranks(&y))
    }
}

fn correlation(x: &[f64], y: &[f64]) -> f64 {
    // Asked of the values: what is left of equal ones after subtracting their mean may be a
    // rounding error instead of nothing.
    let constant = |values: &[f64]| values.iter().all(|value| *value == values[0]);
    if constant(x) || constant(y) {
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

/// Ranks from 1 on.
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
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimates(pairs: &[(f32, f32)]) -> Estimates {
        let mut found = Estimates::default();
        pairs
            .iter()
            .for_each(|(estimate, label)| found.extend(&[*estimate], &[*label]));
        found
    }

    #[test]
    fn figures_are_numpys() {
        // By numpy: mean((x - y)**2), corrcoef(x, y), and corrcoef of the ranks, which is how
        // scipy's spearmanr is defined.
        let found = estimates(&[
            (1.0, 0.5),
            (2.5, 2.0),
            (2.5, 4.0),
            (4.0, 3.0),
            (9.0, IGNORED_NUMBER),
            (0.25, 1.0),
        ]);
        assert!(
            (found.mean_squared_error() - 0.8625).abs() < 1e-12,
            "{}",
            found.mean_squared_error()
        );
        assert!(
            (found.pearson() - 0.743_445_902_546_269_2).abs() < 1e-12,
            "{}",
            found.pearson()
        );
        assert!(
            (found.spearman() - 0.718_184_846_459_607_9).abs() < 1e-12,
            "{}",
            found.spearman()
        );
        assert_eq!(
            found.into_estimates().len(),
            6,
            "a row without a label is estimated, too"
        );
    }

    #[test]
    fn edges_have_values() {
        assert!(estimates(&[]).mean_squared_error().is_nan() && estimates(&[]).pearson().is_nan());
        let constant = estimates(&[(0.1, 1.0), (0.1, 2.0), (0.1, 4.0)]);
        assert!(constant.pearson().is_nan() && constant.spearman().is_nan());
        let straight = estimates(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]);
        assert!(
            (straight.pearson() - 1.0).abs() < 1e-14 && (straight.spearman() - 1.0).abs() < 1e-14
        );
    }
}
