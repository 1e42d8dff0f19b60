//! What a task is: where its examples come from, how they become rows and batches, what its model
//! predicts, and what is measured. One file a task, one list: [`TaskPlan`].
//!
//! A task is the settings of its data, made by `config`. Once tokenizer, labels and length are
//! known, a [`Context`] holds them, and the task makes of it a [`Recipe`], by which the data layer
//! prepares its sets ([`set`]) or streams ([`stream`]).
//!
//! A new task is a file beside `cls`, and a line in each place of this one that lists them.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod answers;
mod chats;
pub mod clm;
pub mod cls;
mod columns;
mod estimates;
mod glue;
mod language;
pub mod masking;
mod metrics;
pub mod mlm;
pub mod preferences;
pub mod scores;
pub mod sft;
mod table_file;
pub mod token_cls;

use std::fmt::Debug;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use xtrain_models::{Config, HeadKind, Objective};

use xtrain_data::prepare::{Job, percentage};
use xtrain_data::settings::{PaddingSettings, SourceSettings};
use xtrain_data::share::Share;
use xtrain_data::stream::StreamSpec;
use xtrain_data::survey::Survey;
use xtrain_data::{Error, LabelMap, Recipe, Result, Sample, Samples, Set, Tokenizer};
use xtrain_trainer::evaluate::Metrics;

pub use clm::ClmDataSettings;
pub use cls::ClsDataSettings;
pub use glue::Glue;
pub use mlm::MlmDataSettings;
pub use preferences::{PreferenceDataSettings, PreferenceLoss};
pub use scores::ScoreDataSettings;
pub use sft::SftDataSettings;
pub use token_cls::TokenClsDataSettings;

/// Every task, with the settings of its data.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskPlan {
    /// Causal language modelling.
    Clm(ClmDataSettings),
    /// Supervised fine-tuning.
    Sft(SftDataSettings),
    /// Preferences: pairs of answers, reward models, good and bad answers.
    Preferences(PreferenceDataSettings),
    /// Scores of a reward model.
    Scores(ScoreDataSettings),
    /// Masked language modelling.
    Mlm(MlmDataSettings),
    /// Classification and regression of texts.
    Cls(ClsDataSettings),
    /// Classification of words.
    TokenCls(TokenClsDataSettings),
}

impl Deref for TaskPlan {
    type Target = dyn Task;

    fn deref(&self) -> &(dyn Task + 'static) {
        match self {
            TaskPlan::Clm(task) => task,
            TaskPlan::Sft(task) => task,
            TaskPlan::Preferences(task) => task,
            TaskPlan::Scores(task) => task,
            TaskPlan::Mlm(task) => task,
            TaskPlan::Cls(task) => task,
            TaskPlan::TokenCls(task) => task,
        }
    }
}

/// What a task is.
pub trait Task: Debug + Send + Sync {
    /// Its name on the command line, and in the names of its cached sets.
    fn name(&self) -> &'static str;

    /// What the Hub calls what its models do.
    fn pipeline_tag(&self) -> &'static str;

    /// Where its examples come from.
    fn source(&self) -> &SourceSettings;

    /// Looks for what it reads in the head of a file; `needs_labels`: its column too.
    ///
    /// # Errors
    /// The file cannot be read, is no table, or lacks a column.
    fn check_file(&self, path: &Path, needs_labels: bool) -> Result<()>;

    /// The flag that sets the length of the longest row.
    fn length_flag(&self) -> &'static str {
        "max_seq_length"
    }

    /// The length of the longest row for a tokenizer with this limit and a model with this many
    /// positions.
    ///
    /// # Errors
    /// The length that was asked for is too short, or more than the model's positions.
    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length>;

    /// The task with the settings that suit its training files, and the note on them, where the user left
    /// these to the data.
    ///
    /// # Errors
    /// An example cannot be read or encoded.
    fn fitted(&self, _context: &Context) -> Result<Option<(TaskPlan, String)>> {
        Ok(None)
    }

    /// To which lengths batches are padded; `None` where all rows have one length.
    fn padding(&self) -> Option<&PaddingSettings>;

    /// Whether rows are known to be pairs of texts before a file is read.
    fn has_pairs(&self) -> bool {
        false
    }

    /// Whether a row holds several examples ([`Recipe::joins_examples`]).
    fn joins_examples(&self) -> bool {
        false
    }

    /// The task as it reads sets to evaluate on, where that is otherwise than its training set.
    fn of_evaluation(&self) -> Option<Box<dyn Task>> {
        None
    }

    /// Whether many tokens may have no label, so that counting those that have one pays.
    fn leaves_labels_out(&self) -> bool {
        false
    }

    /// Looks at a training set before the first step.
    ///
    /// # Errors
    /// What it has is nothing to train on.
    fn check_set(&self, _context: &Context, _set: &Set) -> Result<()> {
        Ok(())
    }

    /// What a user should know of a set that was made.
    fn summary(&self, _set: &Set) -> Option<String> {
        None
    }

    /// The head that its model has.
    fn head(&self, labels: Option<&LabelMap>) -> HeadKind;

    /// What there is besides, where labels have names.
    fn labelled(&self) -> Option<&dyn Labelled> {
        None
    }

    /// What its models predict of the rows of a test set, if they do.
    fn predicting(&self) -> Option<&dyn Predicting> {
        None
    }

    /// How files become rows and rows batches; `needs_labels`: a sample without is an error.
    ///
    /// # Errors
    /// The tokenizer lacks a token that the task needs, or a setting is out of range.
    fn recipe(&self, context: &Context, needs_labels: bool) -> Result<Arc<dyn Recipe>>;

    /// What decides a cached set besides its files, the tokenizer and how tables are read.
    fn set_key(&self, context: &Context, needs_labels: bool) -> Value;

    /// The settings that decide a stream, as text.
    fn stream_key(&self, context: &Context) -> String;

    /// What decides batches besides the set, for the fingerprint that a resumed run compares.
    fn batch_key(&self) -> Option<String> {
        None
    }

    /// Whether a validation split is a seeded random choice of the samples, not the first ones.
    fn splits_at_random(&self) -> bool {
        false
    }

    /// What a user should know of how its examples are read.
    fn notes(&self, _context: &Context) -> Vec<String> {
        Vec::new()
    }

    /// What its model is trained for: the labels that batches are fed, and the loss. `smoothing` is
    /// the share of each label that is spread over all classes.
    fn objective(&self, labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective>;

    /// What an evaluation measures besides the loss, before the first batch.
    fn metrics(&self, labels: Option<&LabelMap>) -> Box<dyn Metrics>;

    /// Whether a metric of this name is one label's: which there are follows from the labels.
    fn is_of_a_label(&self, _metric: &str) -> bool {
        false
    }

    /// The settings that shape a run's graphs, by the names of their flags, but for the batch
    /// sizes; `lengths` are those that batches may have.
    fn graph_settings(&self, context: &Context, lengths: &[usize]) -> Vec<(&'static str, String)> {
        let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
        let mut settings = vec![
            (self.length_flag(), context.length.to_string()),
            ("pad_to_bucket", lengths.join(",")),
        ];
        let labels = context.labels.as_ref();
        settings.extend(labels.map(|labels| ("labels", labels.map.len().to_string())));
        settings
    }
}

/// A task whose labels have names.
pub trait Labelled {
    /// How the classes of saved models end that have such labels.
    fn class(&self) -> &'static str;

    /// The labels that the user named.
    fn named(&self) -> Option<&LabelMap>;

    /// The labels of a model that was saved with these.
    fn of_model(&self, saved: LabelMap) -> LabelMap {
        saved
    }

    /// What is to be known where the model with these labels is used as it is.
    fn note_of_model(&self, _saved: &LabelMap) -> Option<String> {
        None
    }

    /// The labels of the training files.
    ///
    /// # Errors
    /// A file cannot be read, or what it has are no labels.
    fn of_data(&self) -> Result<LabelMap>;
}

/// A task whose models predict something of each row of a test set.
pub trait Predicting {
    /// The name of the file with predictions in a run's output directory.
    fn prediction_file(&self) -> &'static str;

    /// The text of that file.
    fn predictions(&self, predicted: &Predicted<'_>) -> String;

    /// A second file of the same predictions, as the script writes it that the task is modelled on:
    /// its name and its text. `half`: what MNLI calls the second of its sets, `-mm`, or nothing.
    fn script_predictions(
        &self,
        _predicted: &Predicted<'_>,
        _half: &str,
    ) -> Option<(String, String)> {
        None
    }
}

/// The class that a configuration was saved with; empty if it names none.
pub fn model_class(config: &Config) -> &str {
    let classes = config.get("architectures");
    let first = classes.and_then(|list| list.get(0));
    first.and_then(Value::as_str).unwrap_or_default()
}

/// The labels of a model that was saved for the task.
///
/// # Errors
/// They are no labels.
pub fn saved_labels(labelled: &dyn Labelled, config: &Config) -> Result<Option<LabelMap>> {
    if !model_class(config).ends_with(labelled.class()) {
        return Ok(None);
    }
    let named = LabelMap::from_config(config.values())?;
    let saved = named.unwrap_or_else(|| LabelMap::of_nobody(config.values()));
    Ok(Some(labelled.of_model(saved)))
}

/// What a model predicted of the test set.
pub struct Predicted<'a> {
    /// The tokenizer and the labels.
    pub context: &'a Context,
    /// The test set's samples, in their order.
    pub samples: &'a [Sample],
    /// What [`Metrics::predictions`] gives for each row.
    pub outputs: &'a [Vec<f32>],
    /// Repeat the texts beside their labels.
    pub include_text: bool,
}

/// The longest row in tokens, and what should be reported about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Length {
    /// Tokens.
    pub size: usize,
    /// Why it is not what a flag asked for.
    pub note: Option<String>,
}

impl Length {
    /// `--max_seq_length`, as run_mlm and run_glue take it: what it asks for, but at most the
    /// tokenizer's own limit; by default that limit, at most `usual` and the model's positions.
    ///
    /// # Errors
    /// The flag asks for nothing, or for more than the model's positions.
    fn of_rows(
        requested: Option<usize>,
        usual: usize,
        tokenizer_limit: Option<usize>,
        positions: usize,
    ) -> Result<Length> {
        const FLAG: &str = "max_seq_length";
        let Some(length) = requested else {
            let limit = tokenizer_limit.unwrap_or(usize::MAX);
            let size = limit.min(usual).min(positions);
            let note = (size != limit).then(|| {
                format!("{FLAG} is not set; using {size} of the model's {positions} positions")
            });
            return Ok(Length { size, note });
        };
        if length == 0 {
            return Err(Error::Zero { what: FLAG });
        }
        let asked = Length::asked(FLAG, length, tokenizer_limit);
        Length::check(FLAG, asked.size, positions)?;
        Ok(asked)
    }

    /// What a flag asks for, but at most the tokenizer's own limit.
    fn asked(flag: &str, length: usize, tokenizer_limit: Option<usize>) -> Length {
        let size = length.min(tokenizer_limit.unwrap_or(usize::MAX));
        let note = (size < length).then(|| {
            format!("{flag} {length} is more than the tokenizer's model_max_length; using {size}")
        });
        Length { size, note }
    }

    /// # Errors
    /// The model has fewer positions.
    fn check(flag: &'static str, length: usize, positions: usize) -> Result<()> {
        if length > positions {
            return Err(Error::TooLong {
                flag,
                length,
                positions,
            });
        }
        Ok(())
    }
}

/// Labels as they are for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLabels {
    /// The labels' names, by id.
    pub map: LabelMap,
    /// Named by the user or the model, not found in the training files: samples may give a label
    /// by its number.
    pub given: bool,
}

/// What a task needs to know to make rows, once the model is known.
#[derive(Clone, Debug)]
pub struct Context {
    /// Turns texts into ids.
    pub tokenizer: Tokenizer,
    /// Tokens of the longest row.
    pub length: usize,
    /// Ids that the model has.
    pub vocabulary: usize,
    /// `None` where labels have no names.
    pub labels: Option<RunLabels>,
    /// Nothing is drawn on the terminal.
    pub quiet: bool,
    /// A byte-level tokenizer puts a space before each word of a sentence that comes as words.
    pub spaces_words: bool,
}

impl Context {
    /// The labels of a task that has some.
    pub(crate) fn run_labels(&self) -> &RunLabels {
        let labels = self.labels.as_ref();
        labels.expect("the labels of a labelled task are decided before its context is made")
    }

    /// The labels' names in the order of their ids.
    pub fn label_map(&self) -> Option<&LabelMap> {
        self.labels.as_ref().map(|labels| &labels.map)
    }
}

/// Which part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// `train_files`, less what is set aside for validation.
    Train,
    /// `validation_files` or, without them, the share of the training samples that was set aside.
    Validation,
    /// `validation_mismatched_files`: MNLI's second validation set.
    ValidationMismatched,
    /// `test_files`, whose samples need no label.
    Test,
    /// `test_mismatched_files`: MNLI's second test set.
    TestMismatched,
}

impl Split {
    /// The second set of those tasks that have two to evaluate on or to predict.
    pub fn mismatched(self) -> Split {
        match self {
            Split::Validation => Split::ValidationMismatched,
            Split::Test => Split::TestMismatched,
            other => other,
        }
    }

    /// The files that are named for it.
    pub fn files(self, source: &SourceSettings) -> &[PathBuf] {
        match self {
            Split::Train => &source.train_files,
            Split::Validation => &source.validation_files,
            Split::ValidationMismatched => &source.validation_mismatched_files,
            Split::Test => &source.test_files,
            Split::TestMismatched => &source.test_mismatched_files,
        }
    }
}

/// A split's set, found on disk or made.
///
/// # Errors
/// There is no file, a file cannot be read or has a bad row, or the tokenizer does not suit.
pub fn set(task: &dyn Task, context: &Context, split: Split) -> Result<Set> {
    let of_evaluation = task.of_evaluation().filter(|_| split != Split::Train);
    let task = of_evaluation.as_deref().unwrap_or(task);
    let needs_labels = !matches!(split, Split::Test | Split::TestMismatched);
    let recipe = task.recipe(context, needs_labels)?;
    let (job, most) = job(task, context, split, needs_labels);
    let rows = job.prepare(&*recipe)?;
    let most = most.map_or(usize::MAX, |most| most.saturating_mul(recipe.kept_rows()));
    Ok(Set::new(rows.take(most), recipe))
}

/// The training set looked at, without keeping it: its first `most` examples, and counts of all in batches of
/// `batch`. Of `--max_train_samples` it knows nothing.
///
/// # Errors
/// As [`set`].
pub fn survey(task: &dyn Task, context: &Context, most: usize, batch: usize) -> Result<Survey> {
    let recipe = task.recipe(context, true)?;
    let (job, _) = job(task, context, Split::Train, true);
    job.survey(recipe, most, batch)
}

/// How a split's set is made, and the most samples that it has.
fn job<'a>(
    task: &'a dyn Task,
    context: &'a Context,
    split: Split,
    needs_labels: bool,
) -> (Job<'a>, Option<usize>) {
    let source = task.source();
    let apart = percentage(source);
    let validates = source.validation_files.is_empty();
    let (what, files, most) = match split {
        Split::Train => ("train", &source.train_files, source.max_train_samples),
        Split::Validation if validates => {
            ("validation", &source.train_files, source.max_eval_samples)
        }
        Split::Validation => (
            "validation",
            &source.validation_files,
            source.max_eval_samples,
        ),
        Split::ValidationMismatched => (
            "validation_mismatched",
            &source.validation_mismatched_files,
            source.max_eval_samples,
        ),
        Split::Test => ("test", &source.test_files, source.max_predict_samples),
        Split::TestMismatched => (
            "test_mismatched",
            &source.test_mismatched_files,
            source.max_predict_samples,
        ),
    };
    let share = match (split, task.splits_at_random()) {
        (Split::Train, true) if validates && apart > 0.0 => Share::NotChosen(apart, source.seed),
        (Split::Train, false) if validates && apart > 0.0 => Share::After(apart),
        (Split::Validation, true) if validates => Share::Chosen(apart, source.seed),
        (Split::Validation, false) if validates => Share::First(apart),
        _ => Share::All,
    };
    let job = Job {
        task: task.name(),
        what,
        files,
        mixture: source.mixture.as_ref().filter(|_| split == Split::Train),
        share,
        source,
        tokenizer: &context.tokenizer,
        id_bound: context.tokenizer.id_bound().max(context.vocabulary),
        key: task.set_key(context, needs_labels),
        quiet: context.quiet,
    };
    (job, most)
}

/// The samples that the rows of a test set come from, in their order.
///
/// # Errors
/// A file cannot be read or has a bad row.
pub fn test_samples(task: &dyn Task, context: &Context, split: Split) -> Result<Vec<Sample>> {
    let recipe = task.recipe(context, false)?;
    let source = task.source();
    Samples::new(split.files(source), &*recipe, source.table.on_bad_row)
        .take(source.max_predict_samples.unwrap_or(usize::MAX))
        .collect()
}

/// The training files as a stream; `buffer` rows wait to be drawn from.
///
/// # Errors
/// The tokenizer does not suit.
pub fn stream(task: &dyn Task, context: &Context, buffer: usize) -> Result<StreamSpec> {
    Ok(StreamSpec {
        recipe: task.recipe(context, true)?,
        source: task.source().clone(),
        settings: task.stream_key(context),
        tokenizer: context.tokenizer.clone(),
        buffer,
    })
}

#[cfg(test)]
mod bad_inputs;
#[cfg(test)]
mod bad_tables;
#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod test_support;
