//! A run's task: how long its examples are, what its labels are called, which sets there are. From
//! the plan, the tokenizer and the model's configuration; nothing is tokenized before a set is
//! asked for.

use super::batches::{BatchForm, labelled_shares};
use super::error::{Error, failed};
use super::model::{LoadedModel, ModelConfig};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use xtrain_config::{self as config, Flags, RunPlan, TaskPlan};
use xtrain_data::padding::Padding;
use xtrain_data::sampler::BatchPlan;
use xtrain_data::stream::StreamSpec;
use xtrain_data::survey::Survey;
use xtrain_data::{HostLabels, LabelMap, Set, Tokenizer};
use xtrain_graphs::Tensor;
use xtrain_models::{Config, HeadKind, LabelledShare, Model, Objective, Predictions};
use xtrain_parallel::Mesh;
use xtrain_report::progress::say;
use xtrain_tasks::{self as tasks, Context, Labelled, Predicted, RunLabels, Split, Task};
use xtrain_trainer::evaluate::Metrics;
use xtrain_trainer::parameters::Head;

/// What the labels are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training may bring labels of its own.
    Train,
    /// Evaluation and prediction have those of the model.
    Use,
}

/// The labels of a task that has some. Their names are written into the configuration that will be
/// saved.
fn run_labels(
    task: &dyn Task,
    config: &mut Config,
    tokenizer: &Tokenizer,
    purpose: Purpose,
) -> Result<Option<RunLabels>, Error> {
    let Some(labelled) = task.labelled() else {
        return Ok(None);
    };
    let known = match labelled.named() {
        Some(named) => Some(named.clone()),
        None => known_labels(task, labelled, config, purpose)?,
    };
    let given = known.is_some();
    let labels = match known {
        Some(labels) => labels,
        None => labelled.of_data().map_err(failed("reading the labels"))?,
    };
    if labels.len() < 2 && !labels.are_numbers() {
        let problem = format!(
            "there is one label only, {:?}: a classifier needs two",
            labels.names()[0]
        );
        return Err(Error::usage(
            problem,
            "bring examples of at least two labels, or for numbers add --do_regression",
        ));
    }
    if LabelMap::from_config(config.values())
        .map_err(failed("reading the model's labels"))?
        .as_ref()
        != Some(&labels)
    {
        config.set("id2label", labels.id2label());
        config.set("label2id", labels.label2id());
        let problem = task.head(Some(&labels)).problem_type();
        if let (Some(_), Some(problem)) = (config.get("problem_type"), problem) {
            config.set("problem_type", problem);
        }
    }
    if !given && labels.are_numbers() {
        say(
            "note: the labels are numbers, some of them fractions: a regression, on the mean squared error",
        );
    }
    set_padding(config, tokenizer)?;
    Ok(Some(RunLabels { map: labels, given }))
}

/// The labels of a model that was saved with such, unless it is trained on data that have others;
/// `None`: the data's.
fn known_labels(
    task: &dyn Task,
    labelled: &dyn Labelled,
    config: &Config,
    purpose: Purpose,
) -> Result<Option<LabelMap>, Error> {
    let saved =
        tasks::saved_labels(labelled, config).map_err(failed("reading the model's labels"))?;
    let source = task.source();
    let trains = purpose == Purpose::Train;
    let Some(saved) = saved else {
        if trains && !source.train_files.is_empty() {
            return Ok(None);
        }
        if trains {
            let problem = "the labels are not known: there is no training file, and the model is no classifier";
            return Err(Error::usage(
                problem,
                "add --labels no,yes (in order), or --train_file FILE",
            ));
        }
        return Err(config::no_labels(config, task.name()).into());
    };
    if !trains && let Some(note) = labelled.note_of_model(&saved) {
        say(&format!("note: {note}"));
    }
    // Those of a stream are not to be known before it is read.
    if !trains || source.train_files.is_empty() || source.streaming.is_some() {
        return Ok(Some(saved));
    }
    let found = labelled.of_data().map_err(failed("reading the labels"))?;
    let known = || {
        found
            .names()
            .iter()
            .all(|name| saved.id_or_number(name).is_some())
    };
    if saved.are_numbers() == found.are_numbers() && (saved.are_numbers() || known()) {
        return Ok(Some(saved));
    }
    say(&format!(
        "note: the model's labels ({saved}) are not those of the training set ({found}), which are used"
    ));
    Ok(None)
}

/// A decoder classifies by the last token that is not padding, so that it has to know its padding
/// token.
fn set_padding(config: &mut Config, tokenizer: &Tokenizer) -> Result<(), Error> {
    let id = config.get("pad_token_id").and_then(Value::as_i64);
    if let Some(id) = id.filter(|id| *id < 0) {
        let problem = format!(
            "{}: `pad_token_id` is {id}, which is no token's: a decoder would classify by what pads",
            config.source()
        );
        return Err(Error::usage(
            problem,
            "name the tokenizer's: --config_overrides pad_token_id=N",
        ));
    }
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
    task: &dyn Task,
    config: &Config,
) -> Result<Tokenizer, Error> {
    if tokenizer.pad_id().is_some() || task.padding().is_none() {
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
    say(&format!(
        "note: the tokenizer has no padding token; {token} (id {id}) serves as one"
    ));
    tokenizer
        .with_pad_token(&token)
        .map_err(failed("choosing a padding token"))
}

/// The model for a task, the task, and the tokenizer as the model wants it: what training,
/// evaluation and prediction begin with.
///
/// # Errors
/// If a file of either cannot be read, they do not fit each other, or the labels are not known.
pub fn load_task(
    plan: &RunPlan,
    purpose: Purpose,
    head: Head,
) -> Result<(LoadedModel, TaskData, Tokenizer), Error> {
    let tokenizer = Tokenizer::load_with(&plan.tokenizer.path, plan.tokenizer.lower_case)
        .map_err(failed("loading the tokenizer"))?;
    let mut read = ModelConfig::read(&plan.model, Some(&tokenizer))?;
    let task: &dyn Task = &*plan.task;
    let tokenizer = padding_tokenizer(tokenizer, task, &read.config)?;
    if ["clm", "mlm"].contains(&task.name()) {
        let tokens = tokenizer.id_bound();
        // An id far beyond the others would make rows for all between.
        if tokens <= 2 * tokenizer.vocab_size() {
            read.fit_vocabulary(tokens);
        }
    }
    let labels = run_labels(task, &mut read.config, &tokenizer, purpose)?;
    if task.labelled().is_none() && task.head(None) == HeadKind::REGRESSION {
        set_padding(&mut read.config, &tokenizer)?;
    }
    let loaded = read.build(task.head(labels.as_ref().map(|labels| &labels.map)), head)?;
    tokenizer
        .check_vocab(loaded.model.vocab_size())
        .map_err(failed("matching tokenizer and model"))?;
    let data = TaskData::new(plan, &tokenizer, labels, &*loaded.model)?;
    Ok((loaded, data, tokenizer))
}

/// No metrics but the loss, and the perplexity where the task has it.
struct LossOnly {
    has_perplexity: bool,
}

impl Metrics for LossOnly {
    fn record(&self, _predictions: &Predictions) -> xtrain_models::Result<Option<Tensor>> {
        Ok(None)
    }

    fn add(&mut self, _outputs: &[f32], _labels: &HostLabels, _examples: usize) {}

    fn values(&self, _labels: f64) -> Vec<(String, f64)> {
        Vec::new()
    }

    fn has_perplexity(&self) -> bool {
        self.has_perplexity
    }
}

/// A task whose lengths and labels are decided.
pub struct TaskData {
    plan: TaskPlan,
    /// The task as it reads sets to evaluate on, where that is otherwise.
    evaluation: Option<Box<dyn Task>>,
    flags: Arc<Flags>,
    context: Context,
    /// What the model is trained for: the task's own, unless a program puts another one here before
    /// the run begins.
    pub objective: Arc<dyn Objective>,
    /// Of a stream whose first file was opened: whether its batches have segments.
    segments: Option<bool>,
}

impl TaskData {
    /// Decides the length, and prints the notes about it.
    fn new(
        run: &RunPlan,
        tokenizer: &Tokenizer,
        labels: Option<RunLabels>,
        model: &dyn Model,
    ) -> Result<Self, Error> {
        let mut plan = run.task.clone();
        let length = plan.length(tokenizer.model_max_length(), model.max_positions());
        let flag = plan.length_flag();
        let mut length = length.map_err(|error| config::length_mistake(&error, flag))?;
        let mut context = Context {
            tokenizer: tokenizer.clone(),
            length: length.size,
            vocabulary: model.vocab_size(),
            labels,
            quiet: run.quiet(),
            spaces_words: model.info().spaces_words,
        };
        let fitted = if run.train.flags.trains() {
            plan.fitted(&context)
        } else {
            Ok(None)
        };
        if let Some((fitted, note)) = fitted.map_err(failed("looking at the examples"))? {
            say(&format!("note: {note}"));
            plan = fitted;
            let asked = plan.length(tokenizer.model_max_length(), model.max_positions());
            length = asked.map_err(|error| config::length_mistake(&error, flag))?;
            context.length = length.size;
        }
        // Of a trained model, the training has said so.
        let is_asked = run.train.flags.typed.0.contains_key(flag);
        if let Some(note) = &length.note
            && (is_asked || run.train.flags.trains())
        {
            say(&format!("note: {note}"));
        }
        let label_map = context.label_map();
        let smoothing = *run.train.flags.label_smoothing_factor;
        let objective = plan.objective(label_map, smoothing);
        let task = TaskData {
            objective,
            evaluation: plan.of_evaluation(),
            plan,
            flags: run.train.flags.clone(),
            context,
            segments: None,
        };
        task.lengths()?;
        for note in task.plan.notes(&task.context) {
            say(&format!("note: {note}"));
        }
        Ok(task)
    }

    /// The flag that sets the length.
    pub fn length_flag(&self) -> &'static str {
        self.plan.length_flag()
    }

    /// Tokens of the longest example.
    pub fn length(&self) -> usize {
        self.context.length
    }

    /// Names of the labels; `None` for a language model.
    pub fn labels(&self) -> Option<&LabelMap> {
        self.context.label_map()
    }

    /// Begins the metrics of an evaluation.
    pub fn metrics(&self) -> Box<dyn Metrics> {
        let metrics = self.plan.metrics(self.labels());
        // Predictions are taken from the metrics.
        if *self.flags.prediction_loss_only && !self.flags.predicts() {
            return Box::new(LossOnly {
                has_perplexity: metrics.has_perplexity(),
            });
        }
        metrics
    }

    /// Threads that prepare batches.
    pub fn workers(&self) -> usize {
        self.plan.source().dataloader_num_workers
    }

    /// The stream to train on, if the training set is one. Its first file is opened.
    ///
    /// # Errors
    /// If its first file cannot be read or lacks the columns.
    pub fn stream(&mut self) -> Result<Option<StreamSpec>, Error> {
        let Some(buffer) = self.plan.source().streaming else {
            return Ok(None);
        };
        let opening = || failed("opening the stream");
        let spec = tasks::stream(&*self.plan, &self.context, buffer).map_err(opening())?;
        let pairs = spec.check().map_err(opening())?;
        self.segments = Some(pairs && self.context.tokenizer.has_segments());
        Ok(Some(spec))
    }

    /// Whether files are named for a split.
    pub fn has_files(&self, split: Split) -> bool {
        !split.files(self.plan.source()).is_empty()
    }

    /// A split's set.
    ///
    /// # Errors
    /// If a file cannot be read, has no samples, or one that the task cannot use.
    pub fn set(&self, split: Split) -> Result<Set, Error> {
        let doing = match split {
            Split::Train => "preparing the training set",
            Split::Validation => "preparing the validation set",
            Split::ValidationMismatched => "preparing the mismatched validation set",
            Split::Test => "preparing the test set",
            Split::TestMismatched => "preparing the mismatched test set",
        };
        let set = tasks::set(&*self.plan, &self.context, split).map_err(failed(doing))?;
        let task = self.task_of(split);
        if split == Split::Train {
            let checked = task.check_set(&self.context, &set);
            checked.map_err(failed("looking at the training set"))?;
        }
        if let Some(summary) = task.summary(&set) {
            let what = doing.trim_start_matches("preparing ");
            say(&format!("note: {what}: {summary}"));
        }
        Ok(set)
    }

    /// The training set looked at: its first examples, up to `most`, and counts of all in batches of `batch`.
    ///
    /// # Errors
    /// If a file cannot be read, or has a sample that the task cannot use.
    pub fn survey(&self, most: usize, batch: usize) -> Result<Survey, Error> {
        let survey = tasks::survey(&*self.plan, &self.context, most, batch);
        survey.map_err(failed("looking at the training set"))
    }

    /// The task as it reads a split's set.
    fn task_of(&self, split: Split) -> &dyn Task {
        match &self.evaluation {
            Some(task) if split != Split::Train => &**task,
            _ => &*self.plan,
        }
    }

    /// Has the objective compute logits where there are labels alone, as many as `sets` have, each with
    /// its batches, for replicas that share a batch between `shards`.
    ///
    /// # Errors
    /// If a batch cannot be made.
    pub fn look_at_labels(
        &mut self,
        sets: &[(&Set, BatchPlan)],
        shards: usize,
    ) -> Result<(), Error> {
        let mut shares: BTreeMap<usize, f64> = BTreeMap::new();
        if !self.plan.leaves_labels_out() || self.objective.for_data(&[]).is_none() {
            return Ok(());
        }
        for (set, plan) in sets {
            let found = labelled_shares(set, *plan, shards, &*self.objective);
            for found in found.map_err(failed("counting labels"))? {
                let share = shares.entry(found.tokens).or_default();
                *share = share.max(found.share);
            }
        }
        let shares = shares.into_iter();
        let shares: Vec<LabelledShare> = shares
            .map(|(tokens, share)| LabelledShare { tokens, share })
            .collect();
        if let Some(objective) = self.objective.for_data(&shares) {
            self.objective = objective;
        }
        Ok(())
    }

    /// The files of predictions: the usual one with its name and its text, then what a script would
    /// write. `outputs` is what the model gave for each row of the `split`.
    ///
    /// # Errors
    /// If the test set cannot be read.
    pub fn predictions(
        &self,
        split: Split,
        outputs: &[Vec<f32>],
        include_text: bool,
    ) -> Result<Vec<(String, String)>, Error> {
        let task = self.plan.predicting();
        let task = task.expect("only tasks that predict are asked to, which `config` sees to");
        let samples = tasks::test_samples(&*self.plan, &self.context, split)
            .map_err(failed("reading the test set"))?;
        let predicted = Predicted {
            context: &self.context,
            samples: &samples,
            outputs,
            include_text,
        };
        let (name, half) = match split {
            Split::TestMismatched => (task.prediction_file().replace('.', "_mm."), "-mm"),
            _ => (task.prediction_file().to_string(), ""),
        };
        let usual = (name, task.predictions(&predicted));
        let script = task.script_predictions(&predicted, half);
        Ok(std::iter::once(usual).chain(script).collect())
    }

    /// Every length that a batch can have, whatever the data.
    fn lengths(&self) -> Result<Vec<usize>, Error> {
        let tasks = [Some(&*self.plan), self.evaluation.as_deref()];
        let mut all = Vec::new();
        for task in tasks.into_iter().flatten() {
            all.extend(self.lengths_of(task)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn lengths_of(&self, task: &dyn Task) -> Result<Vec<usize>, Error> {
        let Some(padding) = task.padding() else {
            return Ok(vec![self.context.length]);
        };
        // What is padded with does not matter here.
        Padding::new(padding, self.context.length, 0, false)
            .map(|padding| padding.lengths().to_vec())
            .map_err(|error| Error::usage(error.to_string(), "change the list"))
    }

    /// What a split's batches look like for the replicas of a mesh; `sets` are those that have been
    /// prepared, none where no data is read.
    pub fn form(&self, sets: &[&Set], split: Split, mesh: Mesh) -> BatchForm {
        let task = self.task_of(split);
        let (all, of_split) = (self.lengths(), self.lengths_of(task));
        let [all, of_split] = [all, of_split].map(|it| it.expect("checked when the task was made"));
        let joins = task.joins_examples();
        // Lengths that no batch can have need no graph.
        let named = all.len() > 1;
        let used: Vec<usize> = sets.iter().flat_map(|set| set.lengths()).collect();
        let lengths = if used.is_empty() {
            of_split
        } else {
            all.into_iter().filter(|it| used.contains(it)).collect()
        };
        let pairs = self.plan.has_pairs() && self.context.tokenizer.has_segments();
        BatchForm {
            lengths,
            named,
            objective: self.objective.clone(),
            attention_mask: task.padding().is_some() && !joins,
            position_ids: joins,
            token_type_ids: match sets.first() {
                Some(set) => set.has_token_type_ids(),
                None => self.segments.unwrap_or(pairs),
            },
            mesh,
        }
    }

    /// Identifies what a set's batches hold in each epoch; a resumed run compares it with the one
    /// it was saved with.
    pub fn fingerprint(&self, set: &Set) -> String {
        let rows = set.rows.fingerprint();
        self.plan
            .batch_key()
            .map_or(rows.clone(), |key| format!("{rows} {key}"))
    }

    /// The settings that shape a run's graphs, by the names that the user knows.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let lengths = self.lengths().unwrap_or_default();
        self.plan.graph_settings(&self.context, &lengths)
    }
}
