//! The best evaluation of a run so far: which checkpoint to keep and to load at the end, and when
//! to stop early. The rules are those of transformers' Trainer and its `EarlyStoppingCallback`, and
//! so is what `trainer_state.json` says of them.

use crate::settings::{BestRule, EarlyStopping};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use xtrain_checkpoint::hf::TrainerState;
use xtrain_checkpoint::state::checkpoint_dir;

/// The name of early stopping's record in `trainer_state.json`.
const CALLBACK: &str = "EarlyStoppingCallback";
const COUNTER: &str = "early_stopping_patience_counter";

/// What is known of the evaluations so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    rule: BestRule,
    /// Value and optimizer step of the best one.
    found: Option<(f64, u64)>,
    /// Evaluations in a row that were not better than the best one before them.
    without_progress: u64,
}

impl Best {
    /// Before the first evaluation.
    pub fn new(rule: BestRule) -> Self {
        Best {
            rule,
            found: None,
            without_progress: 0,
        }
    }

    /// Resumes from a checkpoint.
    pub fn resume(rule: BestRule, saved: &TrainerState) -> Self {
        let counter = saved
            .stateful_callbacks
            .get(CALLBACK)
            .and_then(|callback| callback["attributes"][COUNTER].as_u64());
        let found = saved.best_metric.zip(saved.best_global_step);
        Best {
            rule,
            found,
            without_progress: counter.unwrap_or(0),
        }
    }

    /// What it decides by.
    pub fn rule(&self) -> &BestRule {
        &self.rule
    }

    fn is_better(&self, value: f64, than: f64) -> bool {
        if self.rule.greater_is_better {
            value > than
        } else {
            value < than
        }
    }

    /// Takes an evaluation into account. A value that is no number is never better.
    pub fn observe(&mut self, value: f64, step: u64) {
        let threshold = self
            .rule
            .early_stopping
            .map_or(0.0, |stopping| stopping.threshold);
        let progress = match self.found {
            Some((best, _)) => self.is_better(value, best) && (value - best).abs() > threshold,
            None => !value.is_nan(),
        };
        self.without_progress = if progress {
            0
        } else {
            self.without_progress + 1
        };
        if !value.is_nan()
            && self
                .found
                .is_none_or(|(best, _)| self.is_better(value, best))
        {
            self.found = Some((value, step));
        }
    }

    /// Whether the evaluations have gone without progress for so long that the run should end.
    pub fn should_stop(&self) -> bool {
        self.rule
            .early_stopping
            .is_some_and(|stopping| self.without_progress >= stopping.patience)
    }

    /// The checkpoint of the best evaluation, if there is one of that step.
    pub fn checkpoint(&self, output_dir: &Path) -> Option<PathBuf> {
        let (_, step) = self.found?;
        Some(checkpoint_dir(output_dir, step)).filter(|path| path.is_dir())
    }

    /// Value and step of the best evaluation.
    pub fn found(&self) -> Option<(f64, u64)> {
        self.found
    }

    /// Writes what is known into the state that is saved; `saving` is the checkpoint that is being
    /// written, which exists when the state is read.
    pub fn describe(&self, state: &mut TrainerState, output_dir: &Path, saving: Option<u64>) {
        if let Some((value, step)) = self.found {
            state.best_metric = Some(value);
            state.best_global_step = Some(step);
            let path = checkpoint_dir(output_dir, step);
            if saving == Some(step) || path.is_dir() {
                state.best_model_checkpoint = Some(path.display().to_string());
            }
        }
        if let Some(EarlyStopping {
            patience,
            threshold,
        }) = self.rule.early_stopping
        {
            let mut callback = Map::new();
            callback.insert(
                "args".into(),
                json!({"early_stopping_patience": patience, "early_stopping_threshold": threshold}),
            );
            callback.insert("attributes".into(), json!({COUNTER: self.without_progress}));
            state
                .stateful_callbacks
                .insert(CALLBACK.into(), Value::Object(callback));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(greater: bool, patience: u64, threshold: f64) -> Best {
        let early_stopping = Some(EarlyStopping {
            patience,
            threshold,
        });
        Best::new(BestRule {
            metric: "loss".into(),
            greater_is_better: greater,
            load_at_end: false,
            early_stopping,
        })
    }

    #[test]
    fn patience_counts_evaluations_without_progress() {
        let mut best = best(false, 2, 0.0);
        for (step, (value, stops, found)) in [
            (3.0, false, 3.0),
            (2.0, false, 2.0),
            (2.0, false, 2.0),
            (1.5, false, 1.5),
            (1.6, false, 1.5),
            (1.7, true, 1.5),
        ]
        .into_iter()
        .enumerate()
        {
            best.observe(value, step as u64);
            assert_eq!(
                (best.should_stop(), best.found().unwrap().0),
                (stops, found),
                "{step}"
            );
        }
        assert_eq!(best.found(), Some((1.5, 3)));
    }

    #[test]
    fn a_small_gain_is_the_best_but_no_progress() {
        let mut best = best(true, 1, 0.1);
        best.observe(0.5, 10);
        best.observe(0.55, 20);
        assert_eq!((best.found(), best.should_stop()), (Some((0.55, 20)), true));
    }

    #[test]
    fn a_state_that_was_saved_goes_on_as_it_was() {
        let mut first = best(true, 3, 0.0);
        [0.5, 0.4, f64::NAN]
            .into_iter()
            .enumerate()
            .for_each(|(step, value)| first.observe(value, step as u64));
        let mut state = TrainerState::default();
        first.describe(&mut state, Path::new("out"), Some(0));
        assert_eq!(
            state.best_model_checkpoint.as_deref(),
            Some("out/checkpoint-0")
        );
        let state: TrainerState =
            serde_json::from_value(serde_json::to_value(&state).unwrap()).unwrap();
        assert_eq!(Best::resume(first.rule().clone(), &state), first);
    }

    #[test]
    fn what_is_not_a_number_is_never_the_best() {
        let mut best = best(false, 5, 0.0);
        best.observe(f64::NAN, 1);
        assert_eq!(best.found(), None);
        best.observe(2.0, 2);
        best.observe(f64::NAN, 3);
        assert_eq!(best.found(), Some((2.0, 2)));
    }
}
