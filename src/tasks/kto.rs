//! Kahneman-Tversky optimization, as TRL's KTOTrainer prepares it: answers that are good or bad.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use xtrain_models::{HeadKind, Kto, Objective};

use super::answers::{AnswerSettings, Form};
use super::dpo::Measured;
use super::{Context, Length, Task};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{LabelMap, Recipe, Result};
use xtrain_trainer::evaluate::Metrics;

/// Learning from good and bad answers.
#[derive(Clone, Debug, PartialEq)]
pub struct KtoDataSettings {
    /// The answers.
    pub answers: AnswerSettings,
    /// What is learned from them.
    pub loss: Kto,
}

impl Task for KtoDataSettings {
    fn name(&self) -> &'static str {
        "kto"
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
        format!("kto {} {padding:?}", self.answers.set_key(context))
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
