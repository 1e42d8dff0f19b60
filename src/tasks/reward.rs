//! Reward models, as TRL's RewardTrainer prepares them: pairs of texts of which the first is to score
//! higher.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use xtrain_models::{HeadKind, Objective, Reward};

use super::answers::AnswerSettings;
use super::dpo::Measured;
use super::{Context, Length, Task};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{LabelMap, Recipe, Result};
use xtrain_trainer::evaluate::Metrics;

/// Reward modelling.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardDataSettings {
    /// The pairs.
    pub answers: AnswerSettings,
    /// What is learned from them.
    pub loss: Reward,
}

impl Task for RewardDataSettings {
    fn name(&self) -> &'static str {
        "reward"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-classification"
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
        HeadKind::REGRESSION
    }

    fn objective(&self, _labels: Option<&LabelMap>, _smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(self.loss.clone())
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        self.answers.recipe(context)
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        self.answers.set_key(context)
    }

    fn stream_key(&self, context: &Context) -> String {
        let padding = &self.answers.padding;
        format!("reward {} {padding:?}", self.answers.set_key(context))
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(Measured)
    }
}
