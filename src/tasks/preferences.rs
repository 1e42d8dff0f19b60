//! What is learned from answers: direct preference optimization, reward models and Kahneman-Tversky
//! optimization, as TRL's DPOTrainer, RewardTrainer and KTOTrainer prepare them.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use xtrain_graphs::Tensor;
use xtrain_models::{HeadKind, Kto, Objective, OddsRatio, Predictions, Preference, Reward};

use super::answers::{AnswerSettings, Form};
use super::{Context, Length, Task};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{HostLabels, LabelMap, Recipe, Result};
use xtrain_trainer::evaluate::Metrics;

/// Learning from answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferenceDataSettings {
    /// Pairs of answers, or single ones that are good or bad.
    pub answers: AnswerSettings,
    /// What is learned from them.
    pub loss: PreferenceLoss,
}

/// What is learned from answers.
#[derive(Clone, Debug, PartialEq)]
pub enum PreferenceLoss {
    /// `dpo`: losses of pairs against a reference.
    Pairs(Preference),
    /// `dpo` with ORPO's loss, which needs no reference.
    OddsRatio(OddsRatio),
    /// `reward`: the first of a pair is to score higher.
    Reward(Reward),
    /// `kto`: good and bad answers.
    Kto(Kto),
}

impl Task for PreferenceDataSettings {
    fn name(&self) -> &'static str {
        match self.loss {
            PreferenceLoss::Pairs(_) | PreferenceLoss::OddsRatio(_) => "dpo",
            PreferenceLoss::Reward(_) => "reward",
            PreferenceLoss::Kto(_) => "kto",
        }
    }

    fn pipeline_tag(&self) -> &'static str {
        match self.loss {
            PreferenceLoss::Reward(_) => "text-classification",
            _ => "text-generation",
        }
    }

    fn source(&self) -> &SourceSettings {
        &self.answers.source
    }

    fn check_file(&self, path: &Path, _needs_labels: bool) -> Result<()> {
        self.answers.check_file(path)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        self.answers.length(tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(&self.answers.padding)
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        match self.loss {
            PreferenceLoss::Reward(_) => HeadKind::REGRESSION,
            _ => HeadKind::CausalLm,
        }
    }

    fn objective(&self, _labels: Option<&LabelMap>, _smoothing: f64) -> Arc<dyn Objective> {
        match &self.loss {
            PreferenceLoss::Pairs(preference) => Arc::new(preference.clone()),
            PreferenceLoss::OddsRatio(orpo) => Arc::new(orpo.clone()),
            PreferenceLoss::Reward(reward) => Arc::new(reward.clone()),
            PreferenceLoss::Kto(kto) => Arc::new(kto.clone()),
        }
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        self.answers.recipe(context)
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        self.answers.set_key(context)
    }

    fn stream_key(&self, context: &Context) -> String {
        let padding = &self.answers.padding;
        let key = self.answers.set_key(context);
        format!("{} {key} {padding:?}", self.name())
    }

    fn batch_key(&self) -> Option<String> {
        let Form::Judged { compared } = self.answers.form else {
            return None;
        };
        compared.map(|batch| format!("compared in batches of {batch}"))
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(Measured)
    }
}

/// No metric besides what the objective measures.
struct Measured;

impl Metrics for Measured {
    fn record(&self, _predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        Ok(None)
    }

    fn add(&mut self, _outputs: &[f32], _labels: &HostLabels, _examples: usize) {}

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        Vec::new()
    }
}
