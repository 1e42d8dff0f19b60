//! What an evaluation says of a model besides its loss. Formulas and conventions are
//! scikit-learn's, which `run_glue` takes its metrics from.

/// How often each label was taken for which.
#[derive(Clone, Debug, PartialEq)]
pub struct Confusion {
    classes: usize,
    /// Row-major: what it was, what it was taken for.
    counts: Vec<u64>,
}

impl Confusion {
    pub fn new(classes: usize) -> Self {
        Confusion {
            classes,
            counts: vec![0; classes * classes],
        }
    }

    /// Adds one example; both are label ids.
    pub fn add(&mut self, label: usize, predicted: usize) {
        self.counts[label * self.classes + predicted] += 1;
    }

    fn count(&self, label: usize, predicted: usize) -> f64 {
        self.counts[label * self.classes + predicted] as f64
    }

    fn total(&self) -> f64 {
        self.counts.iter().sum::<u64>() as f64
    }

    fn right(&self) -> f64 {
        (0..self.classes).map(|c| self.count(c, c)).sum()
    }

    /// How often a label is true.
    fn true_count(&self, class: usize) -> f64 {
        (0..self.classes).map(|p| self.count(class, p)).sum()
    }

    /// How often a label was predicted.
    fn predicted_count(&self, class: usize) -> f64 {
        (0..self.classes).map(|l| self.count(l, class)).sum()
    }

    /// The share that is right; NaN of no examples.
    pub fn accuracy(&self) -> f64 {
        self.right() / self.total()
    }

    /// The harmonic mean of a label's precision and recall; `None` for one that is neither true nor
    /// predicted anywhere.
    pub fn f1(&self, class: usize) -> Option<f64> {
        let sum = self.true_count(class) + self.predicted_count(class);
        (sum > 0.0).then(|| 2.0 * self.count(class, class) / sum)
    }

    /// The mean of the labels' F1, each counting the same; labels that do not occur are left out.
    /// NaN of no examples.
    pub fn macro_f1(&self) -> f64 {
        let present: Vec<f64> = (0..self.classes)
            .filter_map(|class| self.f1(class))
            .collect();
        present.iter().sum::<f64>() / present.len() as f64
    }

    /// Matthews' correlation coefficient, for any number of labels (Gorodkin 2004); 0 where it has
    /// no value, as when one label is always predicted.
    pub fn matthews_correlation(&self) -> f64 {
        let (total, right) = (self.total(), self.right());
        let pairs: Vec<(f64, f64)> = (0..self.classes)
            .map(|c| (self.true_count(c), self.predicted_count(c)))
            .collect();
        let both: f64 = pairs.iter().map(|(t, p)| t * p).sum();
        let spread = |counts: &mut dyn Iterator<Item = f64>| {
            total * total - counts.map(|n| n * n).sum::<f64>()
        };
        let (by_label, by_prediction) = (
            spread(&mut pairs.iter().map(|p| p.0)),
            spread(&mut pairs.iter().map(|p| p.1)),
        );
        match by_label * by_prediction {
            product if product > 0.0 => (right * total - both) / product.sqrt(),
            _ => 0.0,
        }
    }
}

/// Where the largest value is, the first among equals; numpy takes a NaN for the largest.
pub fn argmax(values: &[f32]) -> usize {
    if let Some(first) = values.iter().position(|value| value.is_nan()) {
        return first;
    }
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

/// Probabilities of logits.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits[argmax(logits)]);
    let powers: Vec<f64> = logits
        .iter()
        .map(|&x| (f64::from(x) - largest).exp())
        .collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confusion(classes: usize, pairs: &[(usize, usize)]) -> Confusion {
        let mut confusion = Confusion::new(classes);
        pairs
            .iter()
            .for_each(|&(label, predicted)| confusion.add(label, predicted));
        confusion
    }

    #[test]
    fn figures_are_scikit_learns() {
        // y_true = [0,0,1,1,2,2,2], y_pred = [0,1,1,1,2,0,2]: accuracy_score, f1_score(average=None
        // | "macro"), matthews_corrcoef.
        let three = confusion(3, &[(0, 0), (0, 1), (1, 1), (1, 1), (2, 2), (2, 0), (2, 2)]);
        assert!((three.accuracy() - 5.0 / 7.0).abs() < 1e-15);
        let f1: Vec<f64> = (0..3).map(|c| three.f1(c).unwrap()).collect();
        for (found, expected) in f1.iter().zip([0.5, 0.8, 0.8]) {
            assert!((found - expected).abs() < 1e-15);
        }
        assert!((three.macro_f1() - 0.7).abs() < 1e-15);
        // (7 * 5 - (2*2 + 2*3 + 3*2)) / sqrt((49 - 17) (49 - 17)) = 19 / 32
        assert!((three.matthews_correlation() - 0.59375).abs() < 1e-15);
    }

    #[test]
    fn edges_have_values() {
        let constant = confusion(2, &[(0, 0), (0, 0), (1, 0)]);
        assert_eq!(
            (constant.matthews_correlation(), constant.f1(1)),
            (0.0, Some(0.0))
        );
        // A label that occurs nowhere is left out of the mean.
        let absent = confusion(3, &[(0, 0), (1, 1)]);
        assert_eq!(
            (
                absent.f1(2),
                absent.macro_f1(),
                absent.matthews_correlation()
            ),
            (None, 1.0, 1.0)
        );
        let opposite = confusion(2, &[(0, 1), (1, 0)]);
        assert_eq!(opposite.matthews_correlation(), -1.0);
        assert!(Confusion::new(2).accuracy().is_nan());
    }

    #[test]
    fn ties_go_to_the_first_label() {
        assert_eq!(
            (
                argmax(&[1.0, 3.0, 3.0]),
                argmax(&[f32::NEG_INFINITY; 2]),
                argmax(&[1.0, f32::NAN, 3.0])
            ),
            (1, 0, 1)
        );
        let probabilities = softmax(&[0.0, 1000.0, 1000.0]);
        assert_eq!(probabilities, [0.0, 0.5, 0.5]);
    }
}
