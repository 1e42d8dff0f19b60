//! Direct preference optimization, as TRL's DPOTrainer prepares it: pairs of a chosen and a rejected
//! answer. With ORPO's loss no reference is needed.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use xtrain_graphs::Tensor;
use xtrain_models::{HeadKind, Objective, OddsRatio, Predictions, Preference};

use super::answers::AnswerSettings;
use super::{Context, Length, Task};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{HostLabels, LabelMap, Recipe, Result};
use xtrain_trainer::evaluate::Metrics;

/// Preference optimization.
#[derive(Clone, Debug, PartialEq)]
pub struct DpoDataSettings {
    /// The pairs.
    pub answers: AnswerSettings,
    /// What is learned from them.
    pub loss: DpoLoss,
}

/// What is learned from pairs.
#[derive(Clone, Debug, PartialEq)]
pub enum DpoLoss {
    /// Losses of pairs against a reference.
    Pairs(Preference),
    /// ORPO's, which has none.
    OddsRatio(OddsRatio),
}

impl Task for DpoDataSettings {
    fn name(&self) -> &'static str {
        "dpo"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-generation"
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
        HeadKind::CausalLm
    }

    fn objective(&self, _labels: Option<&LabelMap>, _smoothing: f64) -> Arc<dyn Objective> {
        match &self.loss {
            DpoLoss::Pairs(preference) => Arc::new(preference.clone()),
            DpoLoss::OddsRatio(orpo) => Arc::new(orpo.clone()),
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
        format!("dpo {} {padding:?}", self.answers.set_key(context))
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(Measured)
    }
}

/// No metric besides what the objective measures.
pub(super) struct Measured;

impl Metrics for Measured {
    fn record(&self, _predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        Ok(None)
    }

    fn add(&mut self, _outputs: &[f32], _labels: &HostLabels, _examples: usize) {}

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        Vec::new()
    }
}
