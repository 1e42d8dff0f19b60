//! What a reward model thinks of texts and conversations: a number each.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use xtrain_models::{HeadKind, Objective, Regression};

use super::answers::AnswerSettings;
use super::estimates::Estimates;
use super::{Context, Length, Predicted, Predicting, Task};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{LabelMap, Recipe, Result};
use xtrain_report::csv;
use xtrain_trainer::evaluate::Metrics;

/// Scores of a model that `reward` has trained.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreDataSettings {
    /// The texts, whose form is [`Form::Alone`](super::answers::Form::Alone). Rows are those of training: a text
    /// ends with the token that ends texts, a conversation as its template has it.
    pub answers: AnswerSettings,
}

impl Task for ScoreDataSettings {
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

    /// As long as the model takes: a score is one of the whole text.
    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        let requested = self.answers.max_seq_length;
        Length::of_rows(requested, usize::MAX, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(&self.answers.padding)
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::REGRESSION
    }

    fn objective(&self, _labels: Option<&LabelMap>, _smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(Regression)
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        self.answers.recipe(context)
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        self.answers.set_key(context)
    }

    fn stream_key(&self, context: &Context) -> String {
        let (key, padding) = (self.answers.set_key(context), &self.answers.padding);
        format!("scores {key} {padding:?}")
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(Estimates::new(None))
    }

    fn predicting(&self) -> Option<&dyn Predicting> {
        Some(self)
    }
}

impl Predicting for ScoreDataSettings {
    fn prediction_file(&self) -> &'static str {
        "predictions.csv"
    }

    /// A CSV table: `index`, the text if it is wanted, as it is scored, and `score`.
    fn predictions(&self, predicted: &Predicted<'_>) -> String {
        let with_text = predicted.include_text;
        let mut header = vec!["index"];
        header.extend(with_text.then_some("text"));
        header.push("score");
        let mut table = csv::line(&header);
        for (sample, score) in predicted.samples.iter().zip(predicted.outputs) {
            let mut fields = vec![sample.index.to_string()];
            fields.extend(with_text.then(|| sample.texts.last().cloned().unwrap_or_default()));
            fields.push(score[0].to_string());
            table.push_str(&csv::line(&fields));
        }
        table
    }
}
