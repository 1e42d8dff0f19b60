//! A run's task: how long its examples are, what its labels are called, which sets there are. From
//! the plan, the tokenizer and the model's configuration; nothing is tokenized before a set is
//! asked for.

use super::batches::{BatchForm, LabelForm};
use super::error::{Error, failed};
use super::model::{LoadedModel, ModelConfig};
use crate::config::{ModelSource, TaskPlan, TokenizerSource};
use crate::data::cls::{Split, TestRow};
use crate::data::padding::Padding;
use crate::data::settings::{ClsDataSettings, PaddingSettings};
use crate::data::stream::{StreamSpec, StreamTask};
use crate::data::{Collator, Error as DataError, LabelMap, Tokenizer, clm, cls, mlm};
use crate::trainer::parameters::Head;
use serde_json::Value;
use xtrain_models::{Config, HeadKind, Model};

/// What the labels are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training may bring labels of its own.
    Train,
    /// Evaluation and prediction have those of the model.
    Use,
}

/// What the model is built for. Of a classifier, the names of the labels are decided and written
/// into the configuration that will be saved; those that are not the data's own are put into the
/// plan.
fn model_task(
    plan: &mut TaskPlan,
    config: &mut Config,
    tokenizer: &Tokenizer,
    purpose: Purpose,
) -> Result<(HeadKind, Option<LabelMap>), Error> {
    let data = match plan {
        TaskPlan::Clm(_) => return Ok((HeadKind::CausalLm, None)),
        TaskPlan::Mlm(_) => return Ok((HeadKind::MaskedLm, None)),
        TaskPlan::Cls(data) => data,
    };
    if data.labels.is_none() {
        data.labels = given_labels(data, config, purpose)?;
    }
    let labels = cls::labels(data).map_err(failed("reading the labels"))?;
    if labels.len() < 2 && !labels.are_numbers() {
        let problem = format!(
            "there is one label only, {:?}: nothing can be told apart",
            labels.names()[0]
        );
        return Err(Error::usage(
            problem,
            "bring examples of at least two labels, or for numbers add --do_regression",
        ));
    }
    let task = HeadKind::SequenceClassification {
        labels: labels.len(),
    };
    if LabelMap::from_config(config.values())
        .map_err(failed("reading the model's labels"))?
        .as_ref()
        != Some(&labels)
    {
        config.set("id2label", labels.id2label());
        config.set("label2id", labels.label2id());
        if let (Some(_), Some(problem)) = (config.get("problem_type"), task.problem_type()) {
            config.set("problem_type", problem);
        }
    }
    if data.labels.is_none() && labels.are_numbers() {
        eprintln!(
            "note: the labels are numbers, some of them fractions: a regression, on the mean squared error"
        );
    }
    set_padding(config, tokenizer)?;
    Ok((task, Some(labels)))
}

/// The labels of a model that was saved as a classifier, unless it is trained on data that have
/// others; `None`: the data's.
fn given_labels(
    data: &ClsDataSettings,
    config: &Config,
    purpose: Purpose,
) -> Result<Option<LabelMap>, Error> {
    let class = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let saved = match class.ends_with("ForSequenceClassification") {
        true => {
            LabelMap::from_config(config.values()).map_err(failed("reading the model's labels"))?
        }
        false => None,
    };
    let trains = purpose == Purpose::Train;
    let Some(saved) = saved else {
        if trains && !data.source.train_files.is_empty() {
            return Ok(None);
        }
        if trains {
            let problem = "the labels are not known: there is no training file, and the model is no classifier";
            return Err(Error::usage(
                problem,
                "add --labels no,yes (in order), or --train_file FILE",
            ));
        }
        let what = if class.is_empty() {
            "names no class".to_string()
        } else {
            format!("is of a {class}")
        };
        return Err(Error::failed(format!(
            "{} {what}: there are no labels to give",
            config.source()
        ))
        .with_hint(
            "train it for classification first: xtrain train cls --model_name_or_path DIR",
        ));
    };
    // Those of a stream are not to be known before it is read.
    if !trains || data.source.train_files.is_empty() || data.source.streaming.is_some() {
        return Ok(Some(saved));
    }
    let found = cls::labels(data).map_err(failed("reading the labels"))?;
    let known = || {
        found
            .names()
            .iter()
            .all(|name| saved.id_or_number(name).is_some())
    };
    if saved.are_numbers() == found.are_numbers() && (saved.are_numbers() || known()) {
        return Ok(Some(saved));
    }
    eprintln!(
        "note: the model's labels ({saved}) are not those of the training set ({found}), which are used"
    );
    Ok(None)
}

/// A decoder classifies by the last token that is not padding, so that it has to know its padding
/// token.
fn set_padding(config: &mut Config, tokenizer: &Tokenizer) -> Result<(), Error> {
    let known = config.get("pad_token_id").and_then(Value::as_u64);
    match (known, tokenizer.pad_id()) {
        (Some(model), Some(tokenizer)) if model != u64::from(tokenizer) => {
            let problem = format!(
                "the tokenizer pads with token {tokenizer}, the model's pad_token_id is {model}"
            );
            Err(Error::usage(
                problem,
                "use the model's own tokenizer: --tokenizer_name DIR",
            ))
        }
        (None, Some(id)) => {
            config.set("pad_token_id", id);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A tokenizer that can pad: one without a padding token takes the model's, or the one that ends a
/// text, and says so.
fn padding_tokenizer(
    tokenizer: Tokenizer,
    plan: &TaskPlan,
    config: &Config,
) -> Result<Tokenizer, Error> {
    if tokenizer.pad_id().is_some() || !matches!(plan, TaskPlan::Cls(_)) {
        return Ok(tokenizer);
    }
    let model = config
        .get("pad_token_id")
        .and_then(Value::as_u64)
        .and_then(|id| u32::try_from(id).ok());
    let Some(id) = model.or(tokenizer.eos_id()) else {
        let problem =
            "the tokenizer has no padding token, and no end-of-text token that could serve as one";
        return Err(Error::failed(problem)
            .with_hint("name one of its tokens as pad_token in its tokenizer_config.json, or use another tokenizer"));
    };
    let Some(token) = tokenizer.token(id) else {
        let problem = format!(
            "{}: `pad_token_id` is {id}, and the tokenizer has no such token",
            config.source()
        );
        return Err(
            Error::failed(problem).with_hint("use the model's own tokenizer: --tokenizer_name DIR")
        );
    };
    eprintln!("note: the tokenizer has no padding token; {token} (id {id}) serves as one");
    tokenizer
        .with_pad_token(&token)
        .map_err(failed("choosing a padding token"))
}

/// The model for a task, the task, and the tokenizer as the model wants it: what training,
/// evaluation and prediction begin with.
pub fn load_task(
    plan: &TaskPlan,
    source: &ModelSource,
    tokenizer: &TokenizerSource,
    purpose: Purpose,
    head: Head,
    quiet: bool,
) -> Result<(LoadedModel, TaskData, Tokenizer), Error> {
    let tokenizer = Tokenizer::load_with(&tokenizer.path, tokenizer.lower_case)
        .map_err(failed("loading the tokenizer"))?;
    let mut read = ModelConfig::read(source, Some(&tokenizer))?;
    let tokenizer = padding_tokenizer(tokenizer, plan, &read.config)?;
    let mut plan = plan.clone();
    let (task, labels) = model_task(&mut plan, &mut read.config, &tokenizer, purpose)?;
    let loaded = read.build(task, head)?;
    tokenizer
        .check_vocab(loaded.model.vocab_size())
        .map_err(failed("matching tokenizer and model"))?;
    let data = TaskData::new(plan, &tokenizer, labels, &*loaded.model, quiet)?;
    Ok((loaded, data, tokenizer))
}

/// A task whose lengths and labels are decided.
pub struct TaskData {
    plan: TaskPlan,
    tokenizer: Tokenizer,
    /// Longest example, in tokens.
    pub length: usize,
    pub labels: Option<LabelMap>,
    /// Of a stream that was looked into: whether its batches have segments.
    segments: Option<bool>,
    quiet: bool,
}

impl TaskData {
    /// Decides the length, with what should be said about it said.
    fn new(
        plan: TaskPlan,
        tokenizer: &Tokenizer,
        labels: Option<LabelMap>,
        model: &dyn Model,
        quiet: bool,
    ) -> Result<Self, Error> {
        let (limit, positions) = (tokenizer.model_max_length(), model.max_positions());
        let length = match &plan {
            TaskPlan::Clm(data) => clm::block_size(data.block_size, limit, positions),
            TaskPlan::Mlm(data) => mlm::max_seq_length(data.max_seq_length, limit, positions),
            TaskPlan::Cls(data) => cls_length(data.max_seq_length, limit, positions),
        };
        let flag = length_flag(&plan);
        let length = length.map_err(|error| match &error {
            DataError::TooLong { positions, .. } => Error::usage(
                error.to_string(),
                format!("set --{flag} {positions} or less"),
            ),
            _ => Error::usage(error.to_string(), format!("raise --{flag}")),
        })?;
        if let Some(note) = &length.note {
            eprintln!("note: {note}");
        }
        let task = TaskData {
            plan,
            tokenizer: tokenizer.clone(),
            length: length.size,
            labels,
            segments: None,
            quiet,
        };
        task.lengths()?;
        Ok(task)
    }

    /// The flag that sets the length.
    pub fn length_flag(&self) -> &'static str {
        length_flag(&self.plan)
    }

    /// Whether labels are numbers to be estimated.
    pub fn estimates(&self) -> bool {
        self.labels.as_ref().is_some_and(LabelMap::are_numbers)
    }

    /// Names of the labels, none of a language model.
    pub fn label_names(&self) -> Vec<String> {
        self.labels
            .as_ref()
            .map(|labels| labels.names().to_vec())
            .unwrap_or_default()
    }

    pub fn workers(&self) -> usize {
        self.plan.source().dataloader_num_workers
    }

    /// The stream to train on, if the training set is one. Its first file is looked into.
    pub fn stream(&mut self) -> Result<Option<StreamSpec>, Error> {
        let Some(buffer) = self.plan.source().streaming else {
            return Ok(None);
        };
        let task = match (&self.plan, &self.labels) {
            (TaskPlan::Clm(data), _) => StreamTask::Clm(data.clone()),
            (TaskPlan::Mlm(data), _) => StreamTask::Mlm(data.clone()),
            (TaskPlan::Cls(data), Some(labels)) => StreamTask::Cls(data.clone(), labels.clone()),
            (TaskPlan::Cls(_), None) => unreachable!("a classifier's labels are decided first"),
        };
        let spec = StreamSpec {
            task,
            tokenizer: self.tokenizer.clone(),
            length: self.length,
            buffer,
        };
        let pairs = spec.check().map_err(failed("opening the stream"))?;
        self.segments = Some(pairs && self.tokenizer.has_segments());
        Ok(Some(spec))
    }

    /// The set to train on.
    pub fn train(&self) -> Result<Collator, Error> {
        let doing = "preparing the training set";
        self.set(
            doing,
            |data| mlm::train_examples(data, &self.tokenizer, self.length, self.quiet),
            clm::train_dataset,
            Split::Train,
        )
    }

    /// The set to evaluate on.
    pub fn validation(&self) -> Result<Collator, Error> {
        let doing = "preparing the validation set";
        let masked =
            |data: &_| mlm::validation_examples(data, &self.tokenizer, self.length, self.quiet);
        self.set(doing, masked, clm::validation_dataset, Split::Validation)
    }

    /// The set to label.
    pub fn test(&self) -> Result<Collator, Error> {
        match &self.plan {
            TaskPlan::Cls(data) => self
                .classes(data, Split::Test)
                .map_err(failed("preparing the test set")),
            _ => unreachable!("only classifiers predict, which `config` sees to"),
        }
    }

    /// The rows of the set to label.
    pub fn test_rows(&self) -> Result<Vec<TestRow>, Error> {
        match (&self.plan, &self.labels) {
            (TaskPlan::Cls(data), Some(labels)) => {
                cls::test_rows(data, labels).map_err(failed("reading the test set"))
            }
            _ => unreachable!("only classifiers predict, which `config` sees to"),
        }
    }

    fn set(
        &self,
        doing: &'static str,
        masked: impl Fn(
            &crate::data::settings::MlmDataSettings,
        ) -> crate::data::Result<crate::data::Examples>,
        causal: fn(
            &crate::data::settings::ClmDataSettings,
            &Tokenizer,
            usize,
            bool,
        ) -> crate::data::Result<crate::data::Dataset>,
        split: Split,
    ) -> Result<Collator, Error> {
        match &self.plan {
            TaskPlan::Clm(data) => {
                causal(data, &self.tokenizer, self.length, self.quiet).map(Collator::Causal)
            }
            TaskPlan::Mlm(data) => masked(data)
                .and_then(|examples| mlm::collator(data, &self.tokenizer, self.length, examples)),
            TaskPlan::Cls(data) => self.classes(data, split),
        }
        .map_err(failed(doing))
    }

    fn classes(&self, data: &ClsDataSettings, split: Split) -> crate::data::Result<Collator> {
        let labels = self
            .labels
            .as_ref()
            .expect("a classifier's labels are decided first");
        let examples = cls::examples(
            data,
            split,
            &self.tokenizer,
            labels,
            self.length,
            self.quiet,
        )?;
        cls::collator(data, &self.tokenizer, labels, self.length, examples)
    }

    /// Every length that a batch can have, whatever the data.
    fn lengths(&self) -> Result<Vec<usize>, Error> {
        let padded = |padding: &PaddingSettings| {
            // What is padded with does not matter here.
            let padding = Padding::new(padding, self.length, 0, false);
            padding
                .map(|padding| padding.lengths().to_vec())
                .map_err(|error| Error::usage(error.to_string(), "change the list"))
        };
        match &self.plan {
            TaskPlan::Mlm(data) if data.line_by_line => padded(&data.padding),
            TaskPlan::Cls(data) => padded(&data.padding),
            _ => Ok(vec![self.length]),
        }
    }

    /// What batches look like; `sets` are those that have been prepared, none where no data is
    /// read.
    pub fn form(&self, sets: &[&Collator]) -> BatchForm {
        let all = self
            .lengths()
            .expect("checked when the task was made ready");
        // Lengths that no batch can have need no graph.
        let named = all.len() > 1;
        let used: Vec<usize> = sets.iter().flat_map(|set| set.lengths()).collect();
        let lengths = all
            .into_iter()
            .filter(|length| used.is_empty() || used.contains(length))
            .collect();
        let (labels, attention_mask, pairs) = match &self.plan {
            TaskPlan::Clm(_) => (LabelForm::Tokens, false, false),
            TaskPlan::Mlm(data) => (
                LabelForm::SomeTokens(data.mlm_probability),
                data.line_by_line,
                false,
            ),
            TaskPlan::Cls(data) => {
                let form = if self.estimates() {
                    LabelForm::Numbers
                } else {
                    LabelForm::Classes
                };
                (
                    form,
                    true,
                    data.text_pair_column.is_some() && self.tokenizer.has_segments(),
                )
            }
        };
        let token_type_ids = match sets.first() {
            Some(set) => set.has_token_type_ids(),
            None => self.segments.unwrap_or(pairs),
        };
        BatchForm {
            lengths,
            named,
            labels,
            attention_mask,
            token_type_ids,
            shards: 1,
            copies: 1,
            stages: 1,
        }
    }

    /// Identifies what a set's batches hold in each epoch; a resumed run compares it with the one
    /// it was saved with.
    pub fn fingerprint(&self, set: &Collator) -> String {
        match &self.plan {
            TaskPlan::Mlm(data) => {
                format!(
                    "{} masked {} {} {}",
                    set.fingerprint(),
                    data.mlm_probability,
                    data.whole_word_mask,
                    data.source.seed
                )
            }
            _ => set.fingerprint(),
        }
    }

    /// The settings that shape a run's graphs, by the names that the user knows.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let lengths: Vec<String> = self
            .lengths()
            .unwrap_or_default()
            .iter()
            .map(usize::to_string)
            .collect();
        match &self.plan {
            TaskPlan::Clm(_) => vec![("block_size", self.length.to_string())],
            TaskPlan::Mlm(data) => vec![
                ("max_seq_length", self.length.to_string()),
                ("pad_to_bucket", lengths.join(",")),
                ("mlm_probability", data.mlm_probability.to_string()),
            ],
            TaskPlan::Cls(_) => {
                let labels = self.labels.as_ref().map_or(0, LabelMap::len);
                vec![
                    ("max_seq_length", self.length.to_string()),
                    ("pad_to_bucket", lengths.join(",")),
                    ("labels", labels.to_string()),
                ]
            }
        }
    }
}

fn length_flag(plan: &TaskPlan) -> &'static str {
    if matches!(plan, TaskPlan::Clm(_)) {
        "block_size"
    } else {
        "max_seq_length"
    }
}

/// run_glue's rule: what is asked for, but at most the tokenizer's own limit. Beyond the model's
/// positions is an error.
fn cls_length(
    length: usize,
    limit: Option<usize>,
    positions: usize,
) -> crate::data::Result<clm::BlockSize> {
    let limit = limit.unwrap_or(usize::MAX);
    let size = length.min(limit);
    if size > positions {
        return Err(DataError::TooLong {
            flag: "max_seq_length",
            length: size,
            positions,
        });
    }
    let note = (size < length).then(|| {
        format!(
            "max_seq_length {length} is more than the tokenizer's model_max_length; using {limit}"
        )
    });
    Ok(clm::BlockSize { size, note })
}
