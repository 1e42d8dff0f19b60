//! Classification and regression of single texts or pairs, as run_glue prepares it: special tokens,
//! truncation longest first, labels to classes or numbers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ndarray::Array1;
use serde_json::{Value, json};
use xtrain_graphs::Tensor;
use xtrain_models::{
    Class, HeadKind, IGNORED_LABEL, IGNORED_NUMBER, Objective, Predictions, Regression,
};

pub use super::columns::ClsDataSettings;
use super::columns::{self, LabelUse, check_columns, labels_of};
use super::estimates::Estimates;
use super::glue::Glue;
use super::metrics::{Confusion, argmax, softmax};
use super::{Context, Labelled, Length, Predicted, Predicting, Task};
use xtrain_data::padding::Padding;
use xtrain_data::sequences::SequenceEncoder;
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, Label, LabelMap, Recipe, Result, Sample,
    SampleFile,
};
use xtrain_report::csv;
use xtrain_trainer::evaluate::Metrics;

/// Samples that a thread takes at a time.
pub(super) const GROUP: usize = 256;

impl Task for ClsDataSettings {
    fn name(&self) -> &'static str {
        "cls"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-classification"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, needs_labels: bool) -> Result<()> {
        check_columns(path, self, needs_labels)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 128, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(&self.padding)
    }

    fn has_pairs(&self) -> bool {
        self.text_pair_column.is_some()
    }

    fn head(&self, labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::SequenceClassification {
            labels: labels.map_or(0, LabelMap::len),
        }
    }

    fn labelled(&self) -> Option<&dyn Labelled> {
        Some(self)
    }

    fn predicting(&self) -> Option<&dyn Predicting> {
        Some(self)
    }

    fn recipe(&self, context: &Context, needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        Ok(Arc::new(LabelledTexts {
            labels: LabelUse {
                labels: context.run_labels().clone(),
                glue: self.glue,
                needed: needs_labels,
            },
            encoder: SequenceEncoder::new(&context.tokenizer, Some(context.length))?,
            length: context.length,
            padding: Padding::of(&self.padding, context.length, &context.tokenizer)?,
            segments: context.tokenizer.has_segments(),
            settings: self.clone(),
        }))
    }

    fn set_key(&self, context: &Context, needs_labels: bool) -> Value {
        let labels = context.run_labels();
        json!({
            "max_length": context.length,
            "pair": self.text_pair_column,
            "label": self.label_column,
            "labels": labels.map.key(),
            "numbers": labels.given,
            "task": self.glue.map(|task| task.name),
            "needed": needs_labels,
            "left": context.tokenizer.truncates_left,
        })
    }

    fn stream_key(&self, context: &Context) -> String {
        let columns = (&self.text_pair_column, &self.label_column);
        let labels = context.run_labels().map.key();
        format!("cls {columns:?} {labels:?} {:?}", self.padding)
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn objective(&self, labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        if labels.is_some_and(LabelMap::are_numbers) {
            Arc::new(Regression)
        } else {
            Arc::new(Class { smoothing })
        }
    }

    fn is_of_a_label(&self, metric: &str) -> bool {
        metric.starts_with("f1_")
    }

    fn metrics(&self, labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        match labels {
            Some(labels) if !labels.are_numbers() => Box::new(Classes::new(labels, self.glue)),
            _ => Box::new(Estimates::new(self.glue)),
        }
    }
}

impl Labelled for ClsDataSettings {
    fn class(&self) -> &'static str {
        "ForSequenceClassification"
    }

    fn named(&self) -> Option<&LabelMap> {
        self.labels.as_ref()
    }

    fn of_model(&self, saved: LabelMap) -> LabelMap {
        match self.glue {
            Some(task) => task.labels_of_model(saved),
            None => saved,
        }
    }

    fn note_of_model(&self, saved: &LabelMap) -> Option<String> {
        let task = self.glue.filter(|task| task.calls_otherwise(saved))?;
        Some(format!(
            "the model calls its classes {saved}; {} of {} go by their numbers",
            task.classes.join(", "),
            task.name
        ))
    }

    /// The labels that occur. A parquet file that names its classes (`datasets`' ClassLabel)
    /// decides their order.
    fn of_data(&self) -> Result<LabelMap> {
        if self.source.train_files.is_empty() {
            return Err(Error::NoFile { what: "train" });
        }
        let found = labels_of(&self.source.train_files, self)?;
        let named = self.glue.and_then(|task| task.classes_of(&found));
        Ok(named.unwrap_or(found))
    }
}

impl Predicting for ClsDataSettings {
    fn prediction_file(&self) -> &'static str {
        "predictions.csv"
    }

    /// A CSV table: `index`, the texts if they are wanted, `prediction`, and of classes a
    /// probability for each.
    fn predictions(&self, predicted: &Predicted<'_>) -> String {
        let labels = &predicted.context.run_labels().map;
        let labels = if labels.are_numbers() {
            &[]
        } else {
            labels.names()
        };
        let (samples, with_text) = (predicted.samples, predicted.include_text);
        let pairs = with_text && samples.iter().any(|sample| sample.texts.len() > 1);
        let mut header = vec!["index".to_string()];
        header.extend(with_text.then(|| "text".into()));
        header.extend(pairs.then(|| "text_pair".into()));
        header.push("prediction".into());
        header.extend(labels.iter().map(|label| format!("score_{label}")));
        let mut table = csv::line(&header);
        for (sample, logits) in samples.iter().zip(predicted.outputs) {
            let mut fields = vec![sample.index.to_string()];
            fields.extend(with_text.then(|| sample.texts[0].clone()));
            fields.extend(pairs.then(|| sample.texts.get(1).cloned().unwrap_or_default()));
            if labels.is_empty() {
                fields.push(logits[0].to_string());
            } else {
                fields.push(labels[argmax(logits)].clone());
                fields.extend(softmax(logits).iter().map(|score| format!("{score:.6}")));
            }
            table.push_str(&csv::line(&fields));
        }
        table
    }

    fn script_predictions(
        &self,
        predicted: &Predicted<'_>,
        half: &str,
    ) -> Option<(String, String)> {
        let task = self.glue?;
        let map = &predicted.context.run_labels().map;
        let name = format!("predict_results_{}{half}.txt", task.name);
        Some((name, task.predictions(map, predicted.outputs)))
    }
}

/// Texts or pairs with a label each.
#[derive(Debug)]
struct LabelledTexts {
    settings: ClsDataSettings,
    labels: LabelUse,
    encoder: SequenceEncoder,
    length: usize,
    padding: Padding,
    segments: bool,
}

impl Recipe for LabelledTexts {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        let labels = self.labels.clone();
        Ok(Box::new(columns::open(
            path,
            &self.settings,
            labels,
            self.encoder.adds_tokens(),
            count,
        )?))
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let mut group = EncodedGroup::default();
        for sample in samples {
            let pair = sample.texts.get(1).map(String::as_str);
            let sequence = self.encoder.encode(&sample.texts[0], pair)?;
            group.tokens += sequence.ids.len() as u64;
            group.truncated += u64::from(sequence.truncated);
            group.rows.push(sequence.into_row(sample.labels[0]));
        }
        Ok(group)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn padding(&self) -> Option<&Padding> {
        Some(&self.padding)
    }

    fn has_segments(&self) -> bool {
        self.segments
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let labels: Vec<_> = rows.examples.iter().map(|example| example.label).collect();
        let size = batch.input_ids.nrows();
        batch.targets = labels.iter().flatten().count();
        batch.labels = if self.labels.labels.map.are_numbers() {
            HostLabels::Numbers(column(&labels, size, Label::as_number, IGNORED_NUMBER))
        } else {
            HostLabels::Classes(column(&labels, size, Label::as_class, IGNORED_LABEL as i32))
        };
    }
}

/// The labels of a batch's rows, `missing` where there is none.
fn column<T: Copy>(
    labels: &[Option<Label>],
    batch_size: usize,
    read: impl Fn(Label) -> T,
    missing: T,
) -> Array1<T> {
    Array1::from_shape_fn(batch_size, |row| {
        labels.get(row).copied().flatten().map_or(missing, &read)
    })
}

/// Accuracy, F1 and Matthews' correlation of classes.
struct Classes {
    names: Vec<String>,
    confusion: Confusion,
    logits: Vec<Vec<f32>>,
    glue: Option<Glue>,
}

impl Classes {
    fn new(labels: &LabelMap, glue: Option<Glue>) -> Self {
        Classes {
            glue,
            names: labels.names().to_vec(),
            confusion: Confusion::new(labels.len()),
            logits: Vec::new(),
        }
    }
}

impl Metrics for Classes {
    fn record(&self, predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        predictions.flat_logits().map(Some)
    }

    fn add(&mut self, outputs: &[f32], labels: &HostLabels, examples: usize) {
        let HostLabels::Classes(classes) = labels else {
            unreachable!("the labels of a classifier are classes")
        };
        // Rows that only fill the batch come last.
        let rows = outputs.chunks(self.names.len()).take(examples);
        for (row, class) in rows.zip(classes) {
            if let Ok(class) = usize::try_from(*class) {
                self.confusion.add(class, argmax(row));
            }
            self.logits.push(row.to_vec());
        }
    }

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        let confusion = &self.confusion;
        // GLUE's F1 is scikit-learn's of two classes: the second one's.
        let is_binary =
            self.names.len() == 2 && self.glue.is_some_and(|it| it.metrics.contains(&"f1"));
        let f1 = if is_binary {
            confusion.f1(1).unwrap_or(0.0)
        } else {
            confusion.macro_f1()
        };
        let mut values = vec![
            ("accuracy".to_string(), confusion.accuracy()),
            ("f1".to_string(), f1),
            (
                "matthews_correlation".to_string(),
                confusion.matthews_correlation(),
            ),
        ];
        values.extend(self.glue.and_then(|glue| glue.combined(&values)));
        let each = self.names.iter().enumerate();
        values.extend(
            each.map(|(class, label)| (format!("f1_{label}"), confusion.f1(class).unwrap_or(0.0))),
        );
        values
    }

    fn predictions(&mut self) -> Vec<Vec<f32>> {
        std::mem::take(&mut self.logits)
    }
}

#[cfg(test)]
#[path = "cls_tests.rs"]
mod tests;
