//! A run built from its plan: tokenizer, model, task, data, session.

use super::batches::BatchForm;
use super::device::lock_output_dir;
use super::error::{Error, failed};
use super::execution::Execution;
use super::model::{LoadedModel, origin};
use super::task::{Purpose, TaskData, load_task};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use xtrain_cache::Origin;
use xtrain_checkpoint::hash;
use xtrain_checkpoint::lock::Lock;
use xtrain_config::{self as config, Command, Device, Invocation, RunPlan, TrainSettings};
use xtrain_data::sampler::{BatchPlan, Order};
use xtrain_data::stream::StreamSpec;
use xtrain_data::{Set, Tokenizer};
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::optim::Schedule;
use xtrain_models::Model;
use xtrain_report::accounting::{self, Part};
use xtrain_report::progress::say;
use xtrain_report::records::Record;
use xtrain_report::trackers::RunEnd;
use xtrain_tasks::Split;
use xtrain_trainer::ahead::RunShapes;
use xtrain_trainer::parameters::Head;
use xtrain_trainer::run_loop::{Progress, RunLength};
use xtrain_trainer::run_state::RunLog;
use xtrain_trainer::session::Session;
use xtrain_trainer::settings::ExampleOrder;
use xtrain_trainer::trained::Trained;

/// A run before it touches a weight: train, evaluate, predict, compile ahead or look for the
/// largest batch.
pub struct Run {
    /// What was asked for, resolved.
    pub plan: RunPlan,
    /// The tokenizer as the model wants it.
    pub tokenizer: Tokenizer,
    /// The model, and where its weights come from.
    pub loaded: LoadedModel,
    /// What the model is trained for.
    pub task: TaskData,
    /// The training set; `None` where the run does not train, or trains on a stream.
    pub train: Option<Set>,
    /// The training set that is read while the run trains.
    pub stream: Option<Arc<StreamSpec>>,
    /// The set to evaluate on; `None` where the plan does not evaluate.
    pub validation: Option<Set>,
    /// MNLI's second set to evaluate on.
    pub validation_mismatched: Option<Set>,
    /// The set to label; `None` where the plan does not predict.
    pub test: Option<Set>,
    /// MNLI's second set to label.
    pub test_mismatched: Option<Set>,
    /// The opened devices with the state that lies on them.
    pub session: Session,
    /// The log of a training that has ended, for an evaluation of its weights.
    pub(super) trained: Option<TrainedLog>,
    /// The evaluation that it ended with.
    pub(super) evaluated: Option<Record>,
    /// Held by the process that writes to the output directory.
    _output_lock: Option<Lock>,
}

impl Run {
    /// Reads the words after `xtrain train`, and prepares the run that they describe.
    ///
    /// # Errors
    /// If a word is no flag, or a value not one of its flag's; else as [`Run::prepare`].
    pub fn from_args(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Run, Error> {
        let words = words.into_iter().map(Into::into);
        let program = ["xtrain", "train"].map(OsString::from);
        match config::from_args(program.into_iter().chain(words))? {
            Invocation::Run {
                command: Command::Train(plan),
                notes,
            } => {
                notes.iter().for_each(|note| say(&format!("note: {note}")));
                Run::prepare(plan)
            }
            _ => Err(Error::failed("not a training command")),
        }
    }

    /// Opens the plan's devices, its tokenizer, model and data.
    ///
    /// # Errors
    /// If something that the plan names cannot be read, does not fit the rest, or a device cannot
    /// be opened.
    pub fn prepare(plan: RunPlan) -> Result<Run, Error> {
        accounting::begin();
        let execution = execution(&plan);
        let output_dir = plan.train.output_dir.clone();
        let is_new = !output_dir.exists();
        Run::open(plan, &execution, true).inspect_err(|_| {
            if is_new {
                let _ = std::fs::remove_dir(output_dir); // Fails where something has been written.
            }
        })
    }

    /// The same without reading its data, which can take hours: for compiling its graphs ahead.
    ///
    /// # Errors
    /// As [`Run::prepare`].
    pub fn without_data(plan: RunPlan) -> Result<Run, Error> {
        let execution = execution(&plan);
        Run::open(plan, &execution, false)
    }

    /// The same where neither the plan's device nor its plugin is there: its graphs can be
    /// recorded, but not run.
    ///
    /// # Errors
    /// As [`Run::prepare`].
    pub fn for_recording(plan: RunPlan) -> Result<Run, Error> {
        let execution = execution(&plan).recording();
        Run::open(plan, &execution, false)
    }

    /// The same with its data: for a plan of a run on a device that is not attached.
    ///
    /// # Errors
    /// As [`Run::prepare`].
    pub fn for_planning(plan: RunPlan) -> Result<Run, Error> {
        let execution = execution(&plan).recording();
        Run::open(plan, &execution, true)
    }

    /// Opens and checks everything else before tokenizing.
    fn open(plan: RunPlan, execution: &Execution, reads_data: bool) -> Result<Run, Error> {
        // Before a device is opened, which a second run may find taken.
        let rank = plan
            .device
            .settings
            .member
            .as_ref()
            .map_or(0, |member| member.rank);
        let writes = plan.do_train && reads_data && !*plan.train.flags.dry_run && rank == 0;
        let output_lock = writes.then(|| lock_output_dir(&plan)).transpose()?;
        let head = if *plan.train.flags.ignore_mismatched_sizes {
            Head::NewIfDifferent
        } else {
            Head::NewIfMissing
        };
        let (purpose, head) = if plan.do_train {
            (Purpose::Train, head)
        } else {
            (Purpose::Use, Head::Saved)
        };
        let (mut loaded, mut task, tokenizer) = load_task(&plan, purpose, head)?;
        if plan.do_train {
            if let Some(config) = &plan.lora {
                loaded = loaded.with_new_adapter(config.clone())?;
            }
            let flags = &plan.train.flags;
            loaded.train(Trained::new(&flags.freeze, &flags.train_only))?;
        }
        check_best(&plan.train, &task)?;
        check_smoothing(&plan.train, &*loaded.model)?;
        let mut alike = config::together(&plan.settings);
        alike.insert("the tokenizer".into(), tokenizer.fingerprint().into());
        let model = json!(loaded.model.config().values()).to_string();
        let model = hash::sha256(model.as_bytes());
        alike.insert("the model's configuration".into(), model);
        let group = plan.device.settings.group();
        let group = group.map_err(failed("joining the other processes"))?;
        check_alike(group.as_deref(), "settings", &alike)?;
        let session = execution.session(&*loaded.model, origin_of(&plan, &*loaded.model, &task))?;
        let streams = plan.task.source().streaming.is_some();
        let reading = accounting::enter(Part::Tokenizing);
        let stream = if streams && plan.do_train && reads_data {
            task.stream()?.map(Arc::new)
        } else {
            None
        };
        let set = |wanted: bool, split| (wanted && reads_data).then(|| task.set(split)).transpose();
        let train = set(plan.do_train && !streams, Split::Train)?;
        let validation = set(plan.do_eval, Split::Validation)?;
        let test = set(plan.do_predict, Split::Test)?;
        let second = |wanted, split| set(wanted && task.has_files(split), split);
        let validation_mismatched = second(plan.do_eval, Split::ValidationMismatched)?;
        let test_mismatched = second(plan.do_predict, Split::TestMismatched)?;
        drop(reading);
        let sets = [
            ("training", &train),
            ("validation", &validation),
            ("mismatched validation", &validation_mismatched),
            ("test", &test),
            ("mismatched test", &test_mismatched),
        ];
        let prints = sets.into_iter().filter_map(|(name, set)| {
            let print = set.as_ref()?.rows.fingerprint();
            Some((format!("the {name} set"), print))
        });
        check_alike(group.as_deref(), "data", &prints.collect())?;
        let mut run = Run {
            plan,
            tokenizer,
            loaded,
            task,
            train,
            stream,
            validation,
            validation_mismatched,
            test,
            test_mismatched,
            session,
            trained: None,
            evaluated: None,
            _output_lock: output_lock,
        };
        run.look_at_labels()?;
        let (form, settings) = (run.form(), &run.plan.train);
        if run.plan.do_train {
            let rows = settings.per_device_train_batch_size;
            form.check_rows(rows, "--per_device_train_batch_size")?;
        }
        if run.plan.do_eval || run.plan.do_predict {
            let rows = *settings.flags.per_device_eval_batch_size;
            form.check_rows(rows, "--per_device_eval_batch_size")?;
        }
        Ok(run)
    }

    /// Has the objective compute logits where its sets have labels alone.
    fn look_at_labels(&mut self) -> Result<(), Error> {
        let shards = self.session.mesh().batch_shards();
        let eval_rows = *self.plan.train.flags.per_device_eval_batch_size * shards;
        let mut sets = Vec::new();
        if let Some(set) = &self.train {
            sets.push((set.clone(), self.batch_plan(set)?));
        }
        for set in self.sets(Split::Validation) {
            // As evaluations cut it.
            let plan = BatchPlan::new(set.len(), eval_rows, false, Order::Sequential);
            sets.push((set.clone(), plan.map_err(failed("counting labels"))?));
        }
        let sets: Vec<(&Set, BatchPlan)> = sets.iter().map(|(set, plan)| (set, *plan)).collect();
        self.task.look_at_labels(&sets, shards)
    }

    /// What decides the run's graphs besides its model and its data.
    pub fn execution(&self) -> Execution {
        execution(&self.plan)
    }

    /// What the run's batches look like.
    pub fn form(&self) -> BatchForm {
        // A stream may have rows of any length, whatever the other sets have.
        let sets: Vec<&Set> = if self.stream.is_some() {
            Vec::new()
        } else {
            let used = [Split::Train, Split::Validation, Split::Test];
            used.into_iter()
                .flat_map(|split| self.sets(split))
                .collect()
        };
        self.task.form(&sets, Split::Train, self.session.mesh())
    }

    /// One of the prepared sets.
    pub(super) fn prepared(&self, split: Split) -> Option<&Set> {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
            Split::ValidationMismatched => &self.validation_mismatched,
            Split::Test => &self.test,
            Split::TestMismatched => &self.test_mismatched,
        }
        .as_ref()
    }

    /// The splits that [`Run::evaluate_until`] and [`Run::predict`] take, those of whose sets the run
    /// has: mnli has two to evaluate on, and two to label.
    pub fn halves(&self, split: Split) -> Vec<Split> {
        let mut halves = vec![split, split.mismatched()];
        halves.dedup();
        halves.retain(|half| self.prepared(*half).is_some());
        halves
    }

    /// The sets of [`Run::halves`].
    fn sets(&self, split: Split) -> Vec<&Set> {
        let halves = self.halves(split).into_iter();
        halves.filter_map(|half| self.prepared(half)).collect()
    }

    /// The shapes of the run's graphs.
    pub fn shapes(&self) -> RunShapes {
        self.shapes_of(self.plan.train.per_device_train_batch_size)
    }

    /// The same with `batch` training examples on each device.
    pub fn shapes_of(&self, batch: usize) -> RunShapes {
        let mesh = self.session.mesh();
        let shapes = |wanted: bool, split: Split, rows: usize| {
            if wanted {
                self.task.form(&self.sets(split), split, mesh).shapes(rows)
            } else {
                Vec::new()
            }
        };
        let settings = &self.plan.train;
        let eval_batch = *settings.flags.per_device_eval_batch_size;
        RunShapes {
            train: shapes(self.plan.do_train, Split::Train, batch),
            eval: if self.plan.do_eval {
                shapes(true, Split::Validation, eval_batch)
            } else {
                shapes(self.plan.do_predict, Split::Test, eval_batch)
            },
            accumulation: *settings.flags.gradient_accumulation_steps,
            of_reference: true,
        }
    }

    /// The run's steps and its learning rates; `None` where it does not train. A run that reads a
    /// stream is, as the Trainer has it, one epoch that ends with the run.
    ///
    /// # Errors
    /// If the training set has no batch.
    pub fn length(&self) -> Result<Option<(RunLength, Schedule)>, Error> {
        let flags = &self.plan.train.flags;
        let accumulation = *flags.gradient_accumulation_steps as u64;
        let length = match (&self.train, &self.stream) {
            (Some(set), _) => RunLength::new(
                self.batch_plan(set)?.batches_per_epoch() as u64,
                accumulation,
                *flags.num_train_epochs,
                *flags.max_steps,
            ),
            (None, Some(_)) => {
                let steps = flags.max_steps.unwrap_or(1);
                RunLength::new(steps * accumulation, accumulation, 1.0, Some(steps))
            }
            (None, None) => return Ok(None),
        };
        Ok(Some((length, schedule(&self.plan, &length))))
    }

    /// How the rows of a training set become batches.
    ///
    /// # Errors
    /// If there are too few for one.
    pub fn batch_plan(&self, set: &Set) -> Result<BatchPlan, Error> {
        let settings = &self.plan.train;
        let seed = self.plan.task.source().seed;
        let order = match settings.example_order {
            ExampleOrder::Random => Order::Shuffled { seed },
            ExampleOrder::Sequential => Order::Sequential,
            ExampleOrder::GroupByLength => Order::Grouped { seed },
        };
        BatchPlan::new(
            set.len(),
            settings.batch_rows(),
            *settings.flags.dataloader_drop_last,
            order,
        )
        .map_err(|error| {
            Error::usage(
                error.to_string(),
                "lower --per_device_train_batch_size, or leave --dataloader_drop_last out",
            )
        })
    }

    /// Puts the model's weights on the devices, unless training has put them there: the
    /// directory's, or new ones from the seed.
    ///
    /// # Errors
    /// If they cannot be read or placed.
    pub fn place_weights(&mut self) -> Result<(), Error> {
        let parameters = self.loaded.model.parameters();
        let is_placed = parameters
            .first()
            .is_some_and(|first| self.session.replicas(&first.name).is_some());
        if is_placed {
            return Ok(());
        }
        self.loaded
            .place(&mut self.session, *self.plan.train.flags.seed)
    }
}

/// The log of a training that has reached its end, and where that was. Trackers hear of the end
/// when it is dropped.
pub(super) struct TrainedLog {
    pub log: RunLog,
    pub progress: Progress,
}

impl Drop for TrainedLog {
    fn drop(&mut self) {
        self.log.end(RunEnd::Finished);
    }
}

/// What decides the graphs of a plan besides its model and its data.
pub fn execution(plan: &RunPlan) -> Execution {
    Execution::new(&plan.device, &plan.cache, &plan.train)
}

/// Where the graphs of a run come from.
pub fn origin_of(plan: &RunPlan, model: &dyn Model, task: &TaskData) -> Origin {
    let command = format!("{} {}", plan.verb, plan.task.name());
    let mut origin = origin(&command, model, &settings_of_all(plan, task));
    origin.of_evaluations = settings_of_evaluations(plan);
    origin.of_others = settings_of_training(plan);
    origin
}

/// All processes of a run have the same settings, or the same data.
fn check_alike(
    group: Option<&ProcessGroup>,
    what: &str,
    own: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let Some(group) = group else { return Ok(()) };
    let compared = group.differences(own);
    let differences = compared.map_err(failed("comparing this process with rank 0"))?;
    if differences.is_empty() {
        return Ok(());
    }
    // Digests, shortened as far as they stay distinct.
    let shown = |value: &Option<String>| match value {
        Some(value) => value.chars().take(40).collect::<String>(),
        None => "none".into(),
    };
    let each = differences.iter().map(|difference| {
        let (own, first) = (shown(&difference.own), shown(&difference.first));
        format!("{} {own} (rank 0: {first})", difference.name)
    });
    Err(Error::usage(
        format!(
            "rank {}'s {what} differ from rank 0's: {}",
            group.rank_info().rank,
            each.collect::<Vec<String>>().join(", ")
        ),
        "start every process of the run with the same flags, files and model",
    ))
}

/// Only classes can be smoothed; whether labels are numbers may depend on the data.
fn check_smoothing(settings: &TrainSettings, model: &dyn Model) -> Result<(), Error> {
    if *settings.flags.label_smoothing_factor == 0.0
        || model.head_kind().problem_type() != Some("regression")
    {
        return Ok(());
    }
    Err(Error::usage(
        "--label_smoothing_factor spreads labels over classes, and these labels are numbers",
        "leave it out, or add --do_regression false if they name classes",
    ))
}

/// The metric that the best model is judged by is one that the task has.
fn check_best(settings: &TrainSettings, task: &TaskData) -> Result<(), Error> {
    let Some(rule) = &settings.best else {
        return Ok(());
    };
    let mut known = task.metrics().names();
    let measured = task.objective.measures().iter();
    known.extend(measured.map(|name| name.to_string()));
    Ok(config::metric_is_known(&rule.metric, &known)?)
}

/// The settings that shape all graphs of a run, by the names that the user knows. What is fed
/// (learning rate, seed) is not among them.
fn settings_of_all(plan: &RunPlan, task: &TaskData) -> Vec<(&'static str, String)> {
    let (device, mesh) = (&plan.device, &plan.train.mesh);
    let mut settings = task.settings();
    let mut add = |name, value: &dyn ToString| settings.push((name, value.to_string()));
    if plan.do_train {
        add("data_parallel", &mesh.data);
        add("shard_parallel", &mesh.shard);
        add("tensor_parallel", &mesh.tensor);
        add("sequence_parallel", &*plan.train.flags.sequence_parallel);
        add("pipeline_parallel", &mesh.stage);
        if device.kind == Device::Cuda {
            add("tf32", &device.settings.tf32);
        }
    }
    settings
}

/// Those that shape its evaluations only.
fn settings_of_evaluations(plan: &RunPlan) -> BTreeMap<String, String> {
    let (train, flags) = (&plan.train, &plan.train.flags);
    let given = flags.given_of_evaluations();
    let given = given.map(|(name, value)| (name.to_string(), value.to_string()));
    let own = [
        (
            "per_device_eval_batch_size",
            flags.per_device_eval_batch_size.to_string(),
        ),
        ("eval_precision", train.eval_precision.to_string()),
    ];
    let own = own.map(|(name, value)| (name.to_string(), value));
    given.chain(own).collect()
}

/// Those that shape its training only; none where it does not train.
fn settings_of_training(plan: &RunPlan) -> BTreeMap<String, String> {
    let (train, optimizer, flags) = (&plan.train, &plan.train.optimizer, &plan.train.flags);
    let mut settings = BTreeMap::new();
    if !plan.do_train {
        return settings;
    }
    let mut add = |name: &str, value: &dyn ToString| {
        settings.insert(name.to_string(), value.to_string());
    };
    for (name, given) in flags.given_of_graphs() {
        add(name, &given);
    }
    add(
        "per_device_train_batch_size",
        &train.per_device_train_batch_size,
    );
    add(
        "gradient_accumulation_steps",
        &*flags.gradient_accumulation_steps,
    );
    add("precision", &train.precision);
    add("optim", &optimizer.kind.name);
    if !optimizer.arguments.is_empty() {
        add("optim_args", &optimizer.arguments);
    }
    add("weight_decay", &optimizer.weight_decay);
    add("adam_beta1", &optimizer.adam_beta1);
    add("adam_beta2", &optimizer.adam_beta2);
    add("adam_epsilon", &optimizer.adam_epsilon);
    add("max_grad_norm", &optimizer.max_grad_norm);
    add("gradient_checkpointing", &train.checkpointing);
    add("shard_optimizer_state", &train.shard_optimizer_state);
    if plan.device.kind == Device::Cuda {
        let by_cudnn = plan.device.settings.fused_attention_dropout;
        add(
            "attention_dropout_kernel",
            &if by_cudnn { "cudnn" } else { "xtrain" },
        );
    }
    if train.mesh.devices() > 1 {
        add("gradient_bucket_mb", &*flags.gradient_bucket_mb);
    }
    settings
}

fn schedule(plan: &RunPlan, length: &RunLength) -> Schedule {
    let optimizer = &plan.train.optimizer;
    let ratio = (length.max_steps as f64 * optimizer.warmup_ratio).ceil() as u64;
    Schedule {
        kind: optimizer.schedule,
        peak: optimizer.learning_rate,
        warmup: optimizer.warmup_steps.unwrap_or(ratio),
        total: length.max_steps,
    }
}
