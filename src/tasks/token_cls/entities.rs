//! seqeval's scores: precision, recall and F1 of the entities that labels of words spell.

use std::collections::{BTreeMap, HashSet};

use xtrain_data::HostLabels;
use xtrain_graphs::Tensor;
use xtrain_models::Predictions;
use xtrain_trainer::evaluate::Metrics;

/// Entities of a kind: predicted and true, predicted, and true.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    both: usize,
    predicted: usize,
    labelled: usize,
}

impl Counts {
    /// Precision, recall and F1; 0 where there is nothing to divide by, as seqeval has it.
    fn scores(&self) -> [(&'static str, f64); 3] {
        let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        [
            ("precision", share(self.both, self.predicted)),
            ("recall", share(self.both, self.labelled)),
            ("f1", 2.0 * share(self.both, self.predicted + self.labelled)),
        ]
    }
}

/// seqeval's scores in its default mode, over the entities of all sentences together.
#[derive(Debug, Default)]
pub(super) struct Entities {
    /// Of the labels, by id.
    names: Vec<String>,
    /// The scores of each kind besides, and those of all of them as `overall_`.
    by_kind: bool,
    /// The kinds that occur, sorted.
    kinds: BTreeMap<String, Counts>,
    /// Labels that are right, and all of them.
    right: usize,
    tokens: usize,
    outputs: Vec<Vec<f32>>,
}

impl Entities {
    /// Of labels by id.
    pub(super) fn new(names: &[String], by_kind: bool) -> Entities {
        Entities {
            names: names.to_vec(),
            by_kind,
            ..Entities::default()
        }
    }

    /// Adds a sentence by its label ids.
    pub(super) fn add_sentence(&mut self, truth: &[usize], predicted: &[usize]) {
        let names = |ids: &[usize]| entities(ids.iter().map(|id| self.names[*id].as_str()));
        let (labelled, found) = (names(truth), names(predicted));
        for entity in &labelled {
            let counts = self.kinds.entry(entity.0.clone()).or_default();
            counts.labelled += 1;
            counts.both += usize::from(found.contains(entity));
        }
        for (kind, ..) in found {
            self.kinds.entry(kind).or_default().predicted += 1;
        }
        self.right += truth.iter().zip(predicted).filter(|(a, b)| a == b).count();
        self.tokens += truth.len();
    }

    /// The entities of all kinds together.
    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self.kinds.values() {
            total.both += counts.both;
            total.predicted += counts.predicted;
            total.labelled += counts.labelled;
        }
        total
    }
}

impl Metrics for Entities {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        predictions.predicted().map(Some)
    }

    fn add(&mut self, outputs: &[f32], labels: &HostLabels, examples: usize) {
        let labels = labels.tokens().expect("the labels are those of tokens");
        let rows = outputs.chunks(labels.ncols()).take(examples);
        for (row, labels) in rows.zip(labels.outer_iter()) {
            let counted = labels.iter().zip(row).filter(|(label, _)| **label >= 0);
            let (truth, predicted): (Vec<usize>, Vec<usize>) =
                counted.map(|(a, b)| (*a as usize, *b as usize)).unzip();
            self.add_sentence(&truth, &predicted);
            self.outputs.push(row.to_vec());
        }
    }

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        if self.by_kind {
            for (kind, counts) in &self.kinds {
                let scores = counts.scores();
                values.extend(scores.map(|(score, value)| (format!("{kind}_{score}"), value)));
                values.push((format!("{kind}_number"), counts.labelled as f64));
            }
        }
        let accuracy = self.right as f64 / self.tokens.max(1) as f64;
        let all = if self.by_kind { "overall_" } else { "" };
        let scores = self.total().scores().into_iter();
        values.extend(
            scores
                .chain([("accuracy", accuracy)])
                .map(|(score, value)| (format!("{all}{score}"), value)),
        );
        values
    }

    /// Those of every kind that the labels spell, though an evaluation has only the kinds that occur.
    fn names(&self) -> Vec<String> {
        let kinds = self.names.iter().filter_map(|label| {
            let (letter, kind) = parts(label);
            (!is_outside(letter)).then(|| (kind.to_string(), Counts::default()))
        });
        let every = Entities {
            by_kind: self.by_kind,
            kinds: kinds.collect(),
            ..Entities::default()
        };
        let values = every.values(0.0).into_iter().map(|(name, _)| name);
        std::iter::once("loss".to_string()).chain(values).collect()
    }

    fn predictions(&mut self) -> Vec<Vec<f32>> {
        std::mem::take(&mut self.outputs)
    }
}

/// A label's letter, one of B, I, E, S, O, and its kind of entity, `_` where it names none.
fn parts(label: &str) -> (char, &str) {
    let mut letters = label.chars();
    let letter = letters.next().unwrap_or('O');
    let rest = letters.as_str();
    let kind = rest.split_once('-').map_or(rest, |(_, kind)| kind);
    (letter, if kind.is_empty() { "_" } else { kind })
}

/// Whether a label with this letter is no part of an entity.
fn is_outside(letter: char) -> bool {
    matches!(letter, 'O' | '.')
}

/// The entities that a sentence's labels spell: type, first and last word. As seqeval finds them by
/// default, after conlleval: a label is a letter of B, I, E, S, O and a type, and an entity also
/// begins where the type changes, so that IOB1 and IOB2 are both read.
pub(super) fn entities<'a>(
    labels: impl Iterator<Item = &'a str>,
) -> HashSet<(String, usize, usize)> {
    let mut found = HashSet::new();
    let (mut before, mut before_kind) = ('O', "_");
    let mut start = 0;
    let labels = labels.chain(std::iter::once("O"));
    for (i, label) in labels.enumerate() {
        let (letter, kind) = parts(label);
        let changes = before_kind != kind;
        let ends = matches!(
            (before, letter),
            ('E' | 'S', _) | ('B' | 'I', 'B' | 'S' | 'O')
        ) || (!is_outside(before) && changes);
        let begins = matches!(
            (before, letter),
            (_, 'B' | 'S') | ('E' | 'S' | 'O', 'E' | 'I')
        ) || (!is_outside(letter) && changes);
        if ends {
            found.insert((before_kind.to_string(), start, i - 1));
        }
        if begins {
            start = i;
        }
        (before, before_kind) = (letter, kind);
    }
    found
}
