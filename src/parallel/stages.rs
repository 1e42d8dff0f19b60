//! The stages of a pipeline: which layers each has, and which parameters.

use std::collections::HashMap;
use std::ops::Range;

/// How a model is dealt out to stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// The first layer of each stage; the first stage begins with layer 0.
    first_layers: Vec<usize>,
    layers: usize,
    /// The stages that use each parameter, in order. What comes before the layers is the first
    /// stage's, what comes after the last's.
    users: HashMap<String, Vec<usize>>,
    /// Share of the model's work that each stage has.
    work: Vec<f64>,
}

/// What one layer costs, with whatever comes before the first and after the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// Floating-point operations of a forward pass.
    pub work: f64,
    /// Elements of the parameters that it is the first to use.
    pub elements: f64,
    /// The parameters that it uses.
    pub parameters: Vec<String>,
}

impl Stages {
    /// Deals layers out to `count` stages so that the most expensive one costs least: the mean of
    /// its shares of work and of parameters, since a stage needs time for the one and memory for
    /// the other.
    ///
    /// `None` if there are fewer layers than stages.
    pub fn balanced(layers: &[LayerCost], count: usize) -> Option<Stages> {
        if count == 0 || layers.len() < count {
            return None;
        }
        let total = |of: fn(&LayerCost) -> f64| layers.iter().map(of).sum::<f64>().max(1.0);
        let (work, elements) = (total(|layer| layer.work), total(|layer| layer.elements));
        let costs: Vec<f64> = layers
            .iter()
            .map(|layer| (layer.work / work + layer.elements / elements) / 2.0)
            .collect();
        let first_layers = cuts(&costs, count);
        let mut users: HashMap<String, Vec<usize>> = HashMap::new();
        let mut shares = vec![0.0; count];
        for (index, layer) in layers.iter().enumerate() {
            let stage = first_layers
                .iter()
                .rposition(|first| *first <= index)
                .unwrap_or(0);
            shares[stage] += layer.work / work;
            for name in &layer.parameters {
                let stages = users.entry(name.clone()).or_default();
                if stages.last() != Some(&stage) {
                    stages.push(stage);
                }
            }
        }
        users.values_mut().for_each(|stages| {
            stages.sort_unstable();
            stages.dedup();
        });
        Some(Stages {
            first_layers,
            layers: layers.len(),
            users,
            work: shares,
        })
    }

    /// Number of stages.
    pub fn count(&self) -> usize {
        self.first_layers.len()
    }

    /// The stage with the loss.
    pub fn last(&self) -> usize {
        self.count() - 1
    }

    /// Of each stage, its first layer.
    pub fn first_layers(&self) -> &[usize] {
        &self.first_layers
    }

    /// The layers of a stage.
    pub fn layers(&self, stage: usize) -> Range<usize> {
        self.first_layers[stage]
            ..self
                .first_layers
                .get(stage + 1)
                .copied()
                .unwrap_or(self.layers)
    }

    /// The stages that hold a parameter: all that use it. One that nobody uses is the first's.
    pub fn users(&self, parameter: &str) -> &[usize] {
        self.users.get(parameter).map_or(&[0], Vec::as_slice)
    }

    /// Whether several stages hold one parameter.
    pub fn share_parameters(&self) -> bool {
        self.users.values().any(|users| users.len() > 1)
    }

    /// What `stage` calls a parameter, or what belongs to one: the first of its stages by its own
    /// name.
    pub fn held_name(&self, parameter: &str, name: &str, stage: usize) -> String {
        if self.users(parameter).first() == Some(&stage) {
            name.to_string()
        } else {
            copy_name(name, stage)
        }
    }

    /// Share of the model's work that a stage has.
    pub fn work(&self, stage: usize) -> f64 {
        self.work[stage]
    }
}

const COPY: &str = "@stage.";

/// What a stage calls its copy of a value that an earlier stage holds too.
pub fn copy_name(name: &str, stage: usize) -> String {
    format!("{name}{COPY}{stage}")
}

/// The name without what makes it a copy's.
pub fn original_name(name: &str) -> &str {
    name.split_once(COPY).map_or(name, |(original, _)| original)
}

/// Whether this is the name of a state's copy in another stage than its home.
pub fn is_copy(name: &str) -> bool {
    name.contains(COPY)
}

/// Where `count` runs of consecutive costs begin so that the largest sum is least; of equal ones,
/// the earliest cuts.
fn cuts(costs: &[f64], count: usize) -> Vec<usize> {
    let n = costs.len();
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(costs.iter().scan(0.0, |sum, cost| {
            *sum += cost;
            Some(*sum)
        }))
        .collect();
    // least[k][i]: the largest sum of the first i costs in k + 1 runs, with where the last run
    // begins.
    let mut least = vec![vec![(f64::INFINITY, 0); n + 1]; count];
    for i in 1..=n {
        least[0][i] = (sums[i], 0);
    }
    for k in 1..count {
        for i in k + 1..=n {
            least[k][i] = (k..i)
                .map(|first| (least[k - 1][first].0.max(sums[i] - sums[first]), first))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap_or((f64::INFINITY, 0));
        }
    }
    let mut first = vec![0; count];
    let mut end = n;
    for k in (0..count).rev() {
        first[k] = least[k][end].1;
        end = first[k];
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(work: f64, elements: f64, parameters: &[&str]) -> LayerCost {
        LayerCost {
            work,
            elements,
            parameters: parameters.iter().map(|name| name.to_string()).collect(),
        }
    }

    #[test]
    fn equal_layers_are_dealt_out_evenly() {
        assert_eq!(cuts(&[1.0; 12], 4), [0, 3, 6, 9]);
        assert_eq!(cuts(&[1.0; 3], 3), [0, 1, 2]);
        assert_eq!(cuts(&[1.0, 1.0, 1.0, 3.0], 2), [0, 3]);
    }

    #[test]
    fn parameters_belong_to_all_stages_that_use_them() {
        let layers = [
            layer(1.0, 9.0, &["embedding", "a"]),
            layer(1.0, 4.0, &["b"]),
            layer(2.0, 4.0, &["c", "embedding"]),
        ];
        let stages = Stages::balanced(&layers, 2).unwrap();
        assert_eq!(stages.users("embedding"), [0, 1]);
        assert_eq!(
            (stages.users("a"), stages.users("c"), stages.layers(1)),
            (&[0][..], &[1][..], 1..3)
        );
        assert_eq!(
            stages.held_name("embedding", "exp_avg.embedding", 1),
            "exp_avg.embedding@stage.1"
        );
        assert_eq!(
            original_name("exp_avg.embedding@stage.1"),
            "exp_avg.embedding"
        );
        assert_eq!(Stages::balanced(&layers, 4), None);
    }
}
