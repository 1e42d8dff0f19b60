//! Resuming from a checkpoint: which one, whether it fits this run, and from which position.

use super::error::{Error, failed};
use super::model::LoadedModel;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use xtrain_checkpoint::hf::{ADAPTER_CONFIG_FILE, CONFIG_FILE, Form, write_json};
use xtrain_checkpoint::state::{RUN_FILE, TRAINING_STATE_FILE};
use xtrain_checkpoint::{
    Checkpoint, TrainingState, files, hash, list_checkpoints, load_checkpoint, read_state,
};
use xtrain_config::{ModelSource, RunPlan, TrainSettings};
use xtrain_data::stream::StreamPosition;
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::optim::Schedule;
use xtrain_models::Model;
use xtrain_report::errln;
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::{checkpoint_step, newest_checkpoint};
use xtrain_trainer as trainer;
use xtrain_trainer::hooks::DTYPE_KEYS;
use xtrain_trainer::run_loop::{Progress, RunLength};
use xtrain_trainer::run_state::DATA_POSITION;
use xtrain_trainer::settings::Resume;
use xtrain_trainer::trained::{Trained, frozen_digest};

/// Which run was last started in an output directory, in a file there. The first one needs none;
/// each one that begins anew, or from another checkpoint than the newest, has the next number, which
/// its checkpoints bear.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct RunRecord {
    run: u64,
    /// The checkpoint that it began with, as seen from the output directory.
    resumed_from: Option<PathBuf>,
}

/// Under this name the [`changeable_settings`] of a run are in the `extra` of its checkpoints.
pub const SETTINGS: &str = "settings";

impl RunRecord {
    fn read(output_dir: &Path) -> Option<RunRecord> {
        let text = files::read(&output_dir.join(RUN_FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

fn checkpoints_in(output_dir: &Path) -> Result<impl DoubleEndedIterator<Item = PathBuf>, Error> {
    let found = list_checkpoints(output_dir).map_err(failed("looking for a checkpoint"))?;
    Ok(found.into_iter().map(|(_, path)| path))
}

/// The newest checkpoint of this run, if it has saved one. One that cannot be read may be it:
/// loading it says what is wrong.
fn newest_of(run: u64, output_dir: &Path) -> Result<Option<PathBuf>, Error> {
    let is_own = |path: &PathBuf| read_state(path).map_or(true, |state| state.run == run);
    Ok(checkpoints_in(output_dir)?.rev().find(is_own))
}

/// Where the run that was last started in `output_dir` is to be continued.
fn latest(output_dir: &Path) -> Result<Option<PathBuf>, Error> {
    let Some(record) = RunRecord::read(output_dir) else {
        return Ok(checkpoints_in(output_dir)?.next_back());
    };
    let began_with = record.resumed_from.map(|path| output_dir.join(path));
    Ok(newest_of(record.run, output_dir)?.or(began_with))
}

/// The number of the run that starts here: that of the run whose newest checkpoint it continues,
/// else the next one.
///
/// # Errors
/// If it cannot be written into the output directory.
pub fn begin_run(output_dir: &Path, resumed: Option<&Checkpoint>) -> Result<u64, Error> {
    let real = |path: &Path| path.canonicalize().ok();
    let resumed_from = resumed.and_then(|saved| real(&saved.dir));
    let last = RunRecord::read(output_dir);
    let number = last.as_ref().map_or(0, |last| last.run);
    let newest = newest_of(number, output_dir)?.and_then(|newest| real(&newest));
    let run = if resumed_from.is_some() && newest == resumed_from {
        number
    } else {
        let numbers =
            checkpoints_in(output_dir)?.map(|path| read_state(&path).map_or(0, |state| state.run));
        let known = numbers.chain(last.map(|last| last.run)).max();
        let dir = real(output_dir).unwrap_or_default();
        let record = RunRecord {
            run: known.map_or(0, |number| number + 1),
            resumed_from: resumed_from.map(|path| {
                path.strip_prefix(dir)
                    .map_or(path.clone(), Path::to_path_buf)
            }),
        };
        if record != RunRecord::default() {
            write_json(&output_dir.join(RUN_FILE), &record).map_err(failed("starting the run"))?;
        }
        record.run
    };
    if let Some(group) = ProcessGroup::joined() {
        let noted = group.put(RUN_KEY, run.to_string().as_bytes());
        noted.map_err(failed("noting the run"))?;
    }
    Ok(run)
}

/// Checkpoints that an earlier run left where this one starts anew: never the one that its model
/// comes from.
///
/// # Errors
/// If the output directory cannot be read.
pub fn stale_checkpoints(plan: &RunPlan) -> Result<Vec<PathBuf>, Error> {
    let sources = match &plan.model {
        ModelSource::Pretrained {
            directory, adapter, ..
        } => {
            let named = std::iter::once(directory).chain(adapter);
            named.filter_map(|path| path.canonicalize().ok()).collect()
        }
        ModelSource::Scratch { .. } => Vec::new(),
    };
    let is_source = |path: &Path| {
        path.canonicalize()
            .is_ok_and(|path| sources.contains(&path))
    };
    let found = checkpoints_in(&plan.train.output_dir)?;
    Ok(found.filter(|path| !is_source(path)).collect())
}

/// Where rank 0 tells which checkpoint all continue from.
const CHECKPOINT_KEY: &str = "checkpoint";

/// Where each start of a job leaves the number of its run for the later ones.
const RUN_KEY: &str = "job/run";

fn requested_checkpoint(settings: &TrainSettings) -> Result<Option<PathBuf>, Error> {
    match &*settings.flags.resume_from_checkpoint {
        Resume::No => Ok(None),
        Resume::IfAny if latest(&settings.output_dir)?.is_none() => Ok(None),
        Resume::From(dir) => Ok(Some(dir.clone())),
        Resume::Latest | Resume::IfAny => {
            let dir = settings.output_dir.display();
            let own = latest(&settings.output_dir)?;
            let other = without_training_state(&settings.output_dir);
            match (own, other) {
                (Some(own), Some(other)) if checkpoint_step(&other) > checkpoint_step(&own) => {
                    let (own, other) = (own.display(), other.display());
                    Err(Error::failed(format!(
                        "{other} holds no training state, such as that of another trainer, and the resumed run would replace it"
                    ))
                    .with_hint(format!(
                        "move it away, or name the checkpoint to resume from: --resume_from_checkpoint {own}"
                    )))
                }
                (Some(own), _) => Ok(Some(own)),
                (None, Some(other)) => {
                    let other = other.display();
                    Err(Error::failed(format!(
                        "{dir} has no checkpoint to resume from: {other} holds no training state, such as that of another trainer"
                    ))
                    .with_hint(format!(
                        "to start anew from its weights, give --model_name_or_path {other}"
                    )))
                }
                (None, None) => Err(Error::failed(format!(
                    "the run that was last started in {dir} has saved no checkpoint"
                ))
                .with_hint(
                    "to continue an earlier run, name its checkpoint after --resume_from_checkpoint",
                )),
            }
        }
    }
}

/// The newest checkpoint that only its name and its model show to be one, as transformers' Trainer
/// saves it.
fn without_training_state(output_dir: &Path) -> Option<PathBuf> {
    newest_checkpoint(output_dir, |path| {
        let is_saved = [CONFIG_FILE, ADAPTER_CONFIG_FILE]
            .iter()
            .any(|name| path.join(name).is_file());
        is_saved && !path.join(TRAINING_STATE_FILE).exists()
    })
}

/// After a restart, the newest checkpoint that the job itself has saved, if there is one.
fn restarted_from(
    settings: &TrainSettings,
    group: &ProcessGroup,
) -> Result<Option<PathBuf>, Error> {
    if group.rank_info().generation == 0 {
        return Ok(None);
    }
    // Without a number the first start did not come so far, and nothing there is its own.
    let run = group
        .try_get(RUN_KEY)
        .map_err(failed("asking for the run"))?;
    let run = run.and_then(|run| String::from_utf8_lossy(&run).parse().ok());
    let newest = run.map(|run| newest_of(run, &settings.output_dir));
    Ok(newest.transpose()?.flatten())
}

const BATCH: &str =
    "the number of examples in a batch of all devices (--per_device_train_batch_size)";
const ACCUMULATION: &str = "--gradient_accumulation_steps";

/// Whether an epoch of the run has other batches or steps than where the checkpoint was saved.
fn counts_otherwise(old: &TrainingState, run: &TrainingState) -> bool {
    let counts = |state: &TrainingState| {
        (
            state.batch_size,
            state.gradient_accumulation_steps,
            state.batches_per_epoch,
        )
    };
    counts(old) != counts(run)
}

/// The settings of a run that may be others when it is resumed, by their flags' names, for the
/// `extra` of its checkpoints.
pub fn changeable_settings(train: &TrainSettings, schedule: &Schedule) -> Value {
    let optimizer = &train.optimizer;
    let mut settings = json!({
        "optim": optimizer.kind.name,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": schedule.kind.name(),
        "warmup_steps": schedule.warmup,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.adam_beta1,
        "adam_beta2": optimizer.adam_beta2,
        "adam_epsilon": optimizer.adam_epsilon,
        "max_grad_norm": optimizer.max_grad_norm,
    });
    for (name, given) in [
        ("optim_args", &optimizer.arguments),
        ("lr_scheduler_kwargs", &optimizer.schedule_arguments),
    ] {
        if !given.is_empty() {
            settings[name] = given.to_string().into();
        }
    }
    for (name, is_on) in [("bf16", &train.flags.bf16), ("fp16", &train.flags.fp16)] {
        if **is_on {
            settings[name] = true.into();
        }
    }
    for (name, given) in train.flags.given_of_graphs() {
        settings[name] = serde_json::from_str(given).unwrap_or_else(|_| given.into());
    }
    settings
}

/// Under this name a checkpoint's `extra` says what was trained, unless everything was.
const TRAINED: &str = "trained";

/// Notes what a run trains: its checkpoints hold the state of that alone.
pub fn note_trained(run: &mut TrainingState, loaded: &LoadedModel) {
    if let Some(mut frozen) = frozen_digest(&*loaded.model) {
        let mut by = loaded.trained.to_string();
        if let Some(adapter) = loaded.model.adapter() {
            let mut config = adapter.config_file();
            // These may change: where the model is, and what is dropped.
            for key in ["base_model_name_or_path", "lora_dropout"] {
                config.remove(key);
            }
            by = adapter.to_string();
            let mut settings = vec![json!(frozen), json!(config)];
            if let Some(quantization) = loaded.model.config().quantization() {
                by = format!("{by} of a model in {quantization}");
                settings.push(quantization.to_string().into());
            }
            let settings = json!(settings).to_string();
            frozen = hash::sha256(settings.as_bytes())[..16].to_string();
        }
        let noted = json!({ "by": by, "frozen": frozen });
        run.extra.insert(TRAINED.into(), noted);
    }
}

/// What differs between what two runs train.
fn other_trained(old: &TrainingState, run: &TrainingState) -> Option<String> {
    let noted =
        |state: &TrainingState, key| state.extra.get(TRAINED).map(|noted| noted[key].clone());
    let by = |state: &TrainingState| match noted(state, "by") {
        Some(by) => by.as_str().unwrap_or_default().to_string(),
        None => Trained::All.to_string(),
    };
    (noted(old, "frozen") != noted(run, "frozen")).then(|| {
        format!(
            "it was saved with {}, and this run has {}",
            by(old),
            by(run)
        )
    })
}

/// Says which settings are not those of the checkpoint.
fn note_changes(old: &Map<String, Value>, new: &Map<String, Value>) {
    let text = |value: Option<&Value>| value.map_or("not set".to_string(), Value::to_string);
    // 5 and 5.0 are the same number.
    let same = |old: Option<&Value>, new: Option<&Value>| {
        let number = |value: Option<&Value>| value.and_then(Value::as_f64);
        old == new || (number(old).is_some() && number(old) == number(new))
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let (old, new) = (old.get(key), new.get(key));
        if !same(old, new) {
            say(&format!(
                "note: {key} was {} when the checkpoint was saved and is {} now",
                text(old),
                text(new)
            ));
        }
    }
}

/// Where training starts: at the beginning, or where a checkpoint left off.
pub struct Start {
    /// Steps and epochs done, and the next batch.
    pub progress: Progress,
    /// In a stream, after the last batch that was taken.
    pub stream: Option<StreamPosition>,
}

/// A run that may begin with a checkpoint.
pub struct Resuming<'a> {
    /// The settings of this run, not of the one that saved the checkpoint.
    pub settings: &'a TrainSettings,
    /// Its position-independent state.
    pub run: TrainingState,
    /// Steps of an epoch and of the run.
    pub length: &'a RunLength,
    /// Its data is read during the run.
    pub is_stream: bool,
}

impl Resuming<'_> {
    /// The checkpoint that the run continues, if it does. Several processes continue the one that rank
    /// 0 finds.
    ///
    /// # Errors
    /// If there is none to continue from, or it cannot be read.
    pub fn checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        let settings = self.settings;
        let dir = match ProcessGroup::joined() {
            None => requested_checkpoint(settings)?,
            Some(group) if !group.is_first() => {
                let path = group
                    .get(CHECKPOINT_KEY, group.rank_info().timeouts.join)
                    .map_err(failed("waiting for rank 0's checkpoint"))?;
                (!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path)))
            }
            Some(group) => {
                let dir = match restarted_from(settings, &group)? {
                    Some(dir) => Some(dir),
                    None => requested_checkpoint(settings)?,
                };
                let path = dir
                    .as_ref()
                    .map(|dir| dir.as_os_str().as_bytes())
                    .unwrap_or_default();
                group
                    .put(CHECKPOINT_KEY, path)
                    .map_err(failed("telling the other processes the checkpoint"))?;
                dir
            }
        };
        dir.map(|dir| {
            load_checkpoint(&dir).map_err(failed("loading the checkpoint to resume from"))
        })
        .transpose()
    }

    /// Refuses a checkpoint whose position means nothing in this run; causes come before their
    /// effects. A set that was read ahead may be resumed at another batch size
    /// ([`Resuming::start`]), a stream not.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, saved: &Checkpoint) -> Result<(), Error> {
        let (run, keeps_place) = (&self.run, !*self.settings.flags.ignore_data_skip);
        let is_stream = self.is_stream && keeps_place;
        let was = |what: &str, saved: u64, run: u64| {
            (saved != run).then(|| format!("{what} was {saved} when it was saved and is {run} now"))
        };
        if saved.optimizer.is_none() {
            return Err(Error::usage(
                format!(
                    "{} was saved with --save_only_model: it holds no state to resume from",
                    saved.dir.display()
                ),
                "to train its weights further, give it as --model_name_or_path",
            ));
        }
        let old = &saved.state;
        let reason = was("--seed", old.seed, run.seed)
        .or_else(|| other_trained(old, run))
        .or_else(|| was(BATCH, old.batch_size, run.batch_size).filter(|_| is_stream))
        .or_else(|| was(ACCUMULATION, old.gradient_accumulation_steps, run.gradient_accumulation_steps).filter(|_| is_stream))
        .or_else(|| {
            let differ = keeps_place && old.data_fingerprint != run.data_fingerprint;
            differ.then(|| {
                "the training data or its order, the tokenizer, the length of examples or the masking is not what it was saved with".into()
            })
        });
        match reason {
            Some(reason) => Err(Error::usage(
                trainer::Error::Resume {
                    path: saved.dir.clone(),
                    reason,
                }
                .to_string(),
                "use what it was saved with or, to start anew from its weights, give it as --model_name_or_path",
            )),
            None => Ok(()),
        }
    }

    /// Says from where the run goes on, and what differs from the run that saved the checkpoint.
    /// Dropout and the like may change; shapes are checked with the weights.
    pub fn describe(&self, saved: &Checkpoint, model: &dyn Model, start: &Progress) {
        let (run, length) = (&self.run, self.length);
        let (dir, step) = (saved.dir.display(), saved.state.global_step);
        errln!("resuming from {dir} (step {step})");
        // Checkpoints have the type that weights are trained in, whatever they were loaded in.
        let without_dtype = |config: &Map<String, Value>| -> Map<String, Value> {
            let rest = config
                .iter()
                .filter(|(key, _)| !DTYPE_KEYS.contains(&key.as_str()));
            rest.map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        // What an adapter is asked to be is the same, which was checked.
        if saved.form == Form::Model {
            note_changes(
                &without_dtype(&saved.config),
                &without_dtype(model.config().values()),
            );
        }
        let settings = |state: &TrainingState| state.extra.get(SETTINGS)?.as_object().cloned();
        if let (Some(old), Some(new)) = (settings(&saved.state), settings(run)) {
            note_changes(&old, &new);
            if old.get("optim") != new.get("optim") {
                say(
                    "note: state that both optimizers have is the checkpoint's; the rest starts anew",
                );
            }
        }
        let old = &saved.state;
        for (what, old, new) in [
            (BATCH, old.batch_size, run.batch_size),
            (
                ACCUMULATION,
                old.gradient_accumulation_steps,
                run.gradient_accumulation_steps,
            ),
            (
                "the number of batches in an epoch",
                old.batches_per_epoch,
                run.batches_per_epoch,
            ),
        ] {
            if old != new {
                say(&format!(
                    "note: {what} was {old} when the checkpoint was saved and is {new} now"
                ));
            }
        }
        if counts_otherwise(old, run) {
            say(&format!(
                "note: counted in steps as transformers does, the run continues in epoch {} at batch {} of {}",
                start.next_epoch, start.next_batch, length.batches_per_epoch
            ));
        }
        if *self.settings.flags.ignore_data_skip {
            say(&format!(
                "note: the run begins epoch {} again (--ignore_data_skip)",
                start.next_epoch
            ));
        }
        let (old, new) = (saved.state.total_steps, length.max_steps);
        if old != new {
            say(&format!(
                "note: the learning-rate curve was laid out for {old} steps and is now for {new}"
            ));
        }
        if step >= new {
            say(
                "note: that is already the end; nothing is left to train (--max_steps or --num_train_epochs would extend it)",
            );
        }
    }

    /// After a checkpoint, if there is one. A stream is one epoch that ends with the run. Where the
    /// batches of `run` are others than the checkpoint's, the place follows from the number of
    /// steps, as in transformers; with `--ignore_data_skip` it is where its epoch begins, of a
    /// stream the first row.
    ///
    /// # Errors
    /// If the checkpoint's position in the stream cannot be read.
    pub fn start(&self, saved: Option<&Checkpoint>) -> Result<Start, Error> {
        let (run, length, is_stream) = (&self.run, self.length, self.is_stream);
        let keeps_place = !*self.settings.flags.ignore_data_skip;
        let state = saved.map(|saved| &saved.state);
        let step = state.map_or(0, |state| state.global_step);
        let (next_epoch, next_batch) = if is_stream {
            (0, step * length.accumulation)
        } else {
            match state {
                None => (0, 0),
                Some(state) if counts_otherwise(state, run) => {
                    let updates = length.updates_per_epoch;
                    (step / updates, step % updates * length.accumulation)
                }
                Some(state) => (state.epoch, state.batch_in_epoch),
            }
        };
        let next_batch = if keeps_place || is_stream {
            next_batch
        } else {
            0
        };
        let position = |saved: &Checkpoint| {
            StreamPosition::load(&saved.dir, saved.state.extra.get(DATA_POSITION))
                .map_err(failed("finding the position in the stream"))
        };
        Ok(Start {
            progress: Progress {
                step,
                max_steps: length.max_steps,
                epoch: next_epoch as f64 + next_batch as f64 / length.batches_per_epoch as f64,
                next_epoch,
                next_batch,
                epoch_ended: false,
            },
            stream: saved
                .filter(|_| is_stream && keeps_place)
                .map(position)
                .transpose()?,
        })
    }
}
