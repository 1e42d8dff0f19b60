//! Supervised fine-tuning, as TRL's SFTTrainer prepares it: examples that stand alone, each a text,
//! a prompt with its completion, or a conversation that the model's chat template makes a text of.

mod borders;
mod encoder;
mod ends;
mod file;
mod fit;
mod known;
mod piece;
mod settings;
mod shape;
mod turns;

pub(crate) use borders::common;
pub use settings::SftDataSettings;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ndarray::s;
use serde_json::{Value, json};
use xtrain_models::{HeadKind, IGNORED_LABEL, NextToken, Objective};

use super::language::TokenAccuracy;
use super::{Context, Length, Task, TaskPlan};
use encoder::Encoder;
use xtrain_data::chat_template::ChatTemplate;
use xtrain_data::padding::Padding;
use xtrain_data::rows::{Totals, flag};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, LabelMap, Recipe, Result, Sample,
    SampleFile, Set, remote,
};
use xtrain_trainer::evaluate::Metrics;

/// Packed rows are as long as they may be.
static FULL_LENGTH: PaddingSettings = PaddingSettings {
    pad_to_max_length: true,
    pad_to_bucket: Vec::new(),
};

impl Task for SftDataSettings {
    fn name(&self) -> &'static str {
        "sft"
    }

    fn pipeline_tag(&self) -> &'static str {
        "text-generation"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, _needs_labels: bool) -> Result<()> {
        file::open(self, path, Arc::default()).map(drop)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 1024, tokenizer_limit, positions)
    }

    fn fitted(&self, context: &Context) -> Result<Option<(TaskPlan, String)>> {
        if !self.fits_data {
            return Ok(None);
        }
        let (fitted, note) = fit::fitted(self, context)?;
        Ok(Some((TaskPlan::Sft(fitted), note)))
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(match self.packing {
            Some(_) => &FULL_LENGTH,
            None => &self.padding,
        })
    }

    fn joins_examples(&self) -> bool {
        self.packing.is_some()
    }

    fn leaves_labels_out(&self) -> bool {
        true
    }

    fn of_evaluation(&self) -> Option<Box<dyn Task>> {
        let evaluates = SftDataSettings {
            packing: self.eval_packing,
            ..self.clone()
        };
        (self.packing != self.eval_packing).then(|| Box::new(evaluates) as Box<dyn Task>)
    }

    fn head(&self, _labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::CausalLm
    }

    fn objective(&self, _labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(NextToken {
            smoothing,
            weighs_by_probability: self.weighs_by_probability,
            ..NextToken::default()
        })
    }

    fn recipe(&self, context: &Context, _needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        let pad_id = context.tokenizer.pad_id().ok_or(Error::NoPadToken)?;
        Ok(Arc::new(Examples {
            padding: Padding::new(
                self.padding().unwrap_or(&self.padding),
                context.length,
                pad_id,
                false,
            )?,
            encoder: Encoder {
                begin: context.tokenizer.bos_id(),
                tokenizer: context.tokenizer.clone(),
                length: context.length,
                packing: self.packing,
            },
            settings: self.clone(),
            vocabulary: context.vocabulary,
        }))
    }

    fn set_key(&self, context: &Context, _needs_labels: bool) -> Value {
        json!({
            "max_length": context.length,
            "completion_only": self.completion_only_loss,
            "assistant_only": self.assistant_only_loss,
            "packing": self.packing.map(|strategy| strategy.name()),
            "end": context.tokenizer.eos_id(),
            "vocabulary": context.vocabulary,
            // Counts the ways in which turns are marked.
            "marking": 2,
            // One that is damaged is an error where files are opened.
            "templates": ChatTemplate::key(&context.tokenizer),
        })
    }

    fn stream_key(&self, context: &Context) -> String {
        format!("sft {} {:?}", self.set_key(context, true), self.padding())
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn notes(&self, context: &Context) -> Vec<String> {
        let mut notes: Vec<String> = self.rows_description().into_iter().collect();
        let has_tags = ChatTemplate::has_generation_tags(&context.tokenizer);
        if self.assistant_only_loss && has_tags == Some(false) {
            notes.push(
                "the chat template has no {% generation %} tags: the assistant's turns count as the texts before and after them \
                 show, each as the template writes it where it is the last"
                    .to_string(),
            );
        }
        notes
    }

    fn check_set(&self, context: &Context, set: &Set) -> Result<()> {
        match context.tokenizer.eos_id() {
            Some(end) => ends::check(&context.tokenizer, end, &set.rows),
            None => Ok(()),
        }
    }

    fn summary(&self, set: &Set) -> Option<String> {
        let strategy = self.packing?;
        let (rows, tokens) = (set.len(), set.rows.tokens());
        let length = set.lengths().last().copied().unwrap_or(1);
        let waste = 1.0 - tokens as f64 / (rows * length) as f64;
        Some(format!(
            "{} examples of {tokens} tokens are packed ({}) into {rows} rows of {length}, of which {:.1} % is padding",
            set.rows.totals().lines,
            strategy.name(),
            100.0 * waste
        ))
    }

    fn metrics(&self, _labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        Box::new(TokenAccuracy::new(!self.weighs_by_probability))
    }
}

impl SftDataSettings {
    /// What the rows of the first file are, if it is one of this machine that can be read.
    fn rows_description(&self) -> Option<String> {
        let mut files = self.source.train_files.iter();
        let path = files.next().or(self.source.validation_files.first())?;
        if remote::is_url(path) {
            return None;
        }
        let (mut table, columns) = file::open(self, path, Arc::default()).ok()?;
        let cells = match table.next() {
            Some(Ok(row)) => row.cells,
            _ => Vec::new(),
        };
        let found = columns.description(&table, &cells);
        Some(format!("rows of {} are {found}", path.display()))
    }
}

/// Examples as rows, one each or packed.
#[derive(Debug)]
struct Examples {
    settings: SftDataSettings,
    /// Ids that the model has.
    vocabulary: usize,
    encoder: Encoder,
    padding: Padding,
}

impl Recipe for Examples {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        let tokenizer = &self.encoder.tokenizer;
        let (settings, vocabulary) = (&self.settings, self.vocabulary);
        let file = file::examples(settings, tokenizer, vocabulary, path, count)?;
        Ok(Box::new(file))
    }

    fn group(&self) -> usize {
        self.encoder.group()
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        self.encoder.encode(samples)
    }

    fn length(&self) -> usize {
        self.encoder.length
    }

    fn padding(&self) -> Option<&Padding> {
        Some(&self.padding)
    }

    fn joins_examples(&self) -> bool {
        self.encoder.packing.is_some()
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let mut labels = batch.input_ids.clone();
        labels.fill(IGNORED_LABEL as i32);
        for (position, example) in rows.examples.iter().enumerate() {
            let columns = rows.columns(labels.ncols(), example.flags.len());
            let ids = batch.input_ids.slice(s![position, columns.clone()]);
            let mut row = labels.slice_mut(s![position, columns]);
            for ((label, id), flags) in row.iter_mut().zip(ids).zip(&*example.flags) {
                if flags & flag::COUNTED != 0 {
                    *label = *id;
                    batch.targets += 1;
                }
            }
        }
        batch.labels = HostLabels::Tokens(labels);
    }

    fn empty(&self, what: String, _share: Share, totals: Totals, _largest: u64) -> Error {
        let what = if totals.lines == 0 {
            what
        } else {
            format!(
                "{what}, in which nothing to learn begins within --max_seq_length {} (set more, unless the chat template leaves it out),",
                self.encoder.length
            )
        };
        Error::NoRows { what }
    }
}

#[cfg(test)]
#[path = "sft_tests.rs"]
mod tests;
