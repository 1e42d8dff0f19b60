//! Going on where an earlier run left off: which checkpoint, whether it fits this run, and from
//! which position.

use super::error::{Error, failed};
use crate::checkpoint::{
    Checkpoint, TrainingState, latest_checkpoint, list_checkpoints, load_checkpoint,
};
use crate::config::{ModelSource, TrainPlan};
use crate::data::stream::StreamPosition;
use crate::distributed::ProcessGroup;
use crate::trainer;
use crate::trainer::run_loop::{Progress, RunLength};
use crate::trainer::run_state::DATA_POSITION;
use crate::trainer::settings::{Resume, TrainSettings};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use xtrain_models::Model;

/// Checkpoints that an earlier run left where this one starts anew: never the one that its model
/// comes from.
pub fn stale_checkpoints(plan: &TrainPlan) -> Result<Vec<PathBuf>, Error> {
    let found = list_checkpoints(&plan.train.output_dir)
        .map_err(failed("looking for an earlier run's checkpoints"))?;
    let source = match &plan.model {
        ModelSource::Pretrained { directory } => directory.canonicalize().ok(),
        ModelSource::Scratch { .. } => None,
    };
    let is_source = |path: &Path| source.is_some() && path.canonicalize().ok() == source;
    Ok(found
        .into_iter()
        .map(|(_, path)| path)
        .filter(|path| !is_source(path))
        .collect())
}

/// The checkpoint that the run continues, if it does. Several processes continue the one that rank
/// 0 finds.
pub fn checkpoint(settings: &TrainSettings) -> Result<Option<Checkpoint>, Error> {
    let dir = match ProcessGroup::joined() {
        None => as_told(settings)?,
        Some(group) if !group.is_first() => {
            let path = group
                .get(CHECKPOINT_KEY, group.rank_info().timeouts.join)
                .map_err(failed("waiting for rank 0's checkpoint"))?;
            (!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path)))
        }
        Some(group) => {
            let dir = match restarted_from(settings, &group)? {
                Some(dir) => Some(dir),
                None => as_told(settings)?,
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
    dir.map(|dir| load_checkpoint(&dir).map_err(failed("loading the checkpoint to resume from")))
        .transpose()
}

/// Where rank 0 tells which checkpoint all continue from.
const CHECKPOINT_KEY: &str = "checkpoint";

/// Where the first start leaves for the later ones which checkpoints are not the job's own.
const FOREIGN_KEY: &str = "job/foreign_checkpoints";

fn as_told(settings: &TrainSettings) -> Result<Option<PathBuf>, Error> {
    match &settings.resume {
        Resume::No => Ok(None),
        Resume::From(dir) => Ok(Some(dir.clone())),
        Resume::Latest => latest_checkpoint(&settings.output_dir)
            .map_err(failed("looking for a checkpoint"))?
            .map(Some)
            .ok_or_else(|| {
                Error::failed(format!(
                    "there is no checkpoint in {}",
                    settings.output_dir.display()
                ))
            }),
    }
}

/// After a restart, the newest checkpoint that the job itself has saved, if there is one. What an
/// earlier run left in the directory was noted at the first start, with its time: the job may have
/// saved another one under its name since.
fn restarted_from(
    settings: &TrainSettings,
    group: &ProcessGroup,
) -> Result<Option<PathBuf>, Error> {
    let found =
        list_checkpoints(&settings.output_dir).map_err(failed("looking for a checkpoint"))?;
    let mark = |path: &Path| {
        let time = path.metadata().and_then(|data| data.modified()).ok();
        let since = time
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .unwrap_or_default();
        format!("{}@{}", path.display(), since.as_nanos())
    };
    if group.rank_info().generation == 0 {
        let foreign: Vec<String> = match settings.resume {
            Resume::Latest => Vec::new(),
            _ => found.iter().map(|(_, path)| mark(path)).collect(),
        };
        group
            .put(FOREIGN_KEY, foreign.join("\n").as_bytes())
            .map_err(failed("noting earlier checkpoints"))?;
        return Ok(None);
    }
    let foreign = group
        .try_get(FOREIGN_KEY)
        .map_err(failed("asking for earlier checkpoints"))?;
    // The first start did not come so far, so nothing there is its own.
    let Some(foreign) = foreign else {
        return Ok(None);
    };
    let foreign = String::from_utf8_lossy(&foreign).into_owned();
    let mut own = found
        .into_iter()
        .map(|(_, path)| path)
        .filter(|path| foreign.lines().all(|line| line != mark(path)));
    Ok(own.next_back())
}

/// Refuses a checkpoint whose position means something else in this run; causes come before their
/// effects.
pub fn check_resume(saved: &Checkpoint, run: &TrainingState) -> Result<(), Error> {
    let was = |what: &str, saved: u64, run: u64| {
        (saved != run).then(|| format!("{what} was {saved} when it was saved and is {run} now"))
    };
    let old = &saved.state;
    let reason = was("--seed", old.seed, run.seed)
        .or_else(|| was("--per_device_train_batch_size", old.batch_size, run.batch_size))
        .or_else(|| was("--gradient_accumulation_steps", old.gradient_accumulation_steps, run.gradient_accumulation_steps))
        .or_else(|| {
            let differ = old.data_fingerprint != run.data_fingerprint;
            differ.then(|| {
                "the training data, the tokenizer, the length of examples or the masking is not what it was saved with".into()
            })
        })
        .or_else(|| was("the number of batches in an epoch", old.batches_per_epoch, run.batches_per_epoch));
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

/// Says which of the model's settings are not those of the checkpoint. Some may change (dropout);
/// shapes are checked with the weights.
fn note_changed_config(saved: &Checkpoint, model: &Map<String, Value>) {
    let text = |value: Option<&Value>| value.map_or("not set".to_string(), Value::to_string);
    let keys: BTreeSet<&String> = saved.config.keys().chain(model.keys()).collect();
    for key in keys {
        let (old, new) = (saved.config.get(key), model.get(key));
        if old != new {
            eprintln!(
                "note: {key} was {} when the checkpoint was saved and is {} now",
                text(old),
                text(new)
            );
        }
    }
}

/// Says from where the run goes on, and what differs from the run that saved the checkpoint.
pub fn describe(saved: &Checkpoint, model: &dyn Model, length: &RunLength) {
    let (dir, step) = (saved.dir.display(), saved.state.global_step);
    eprintln!("resuming from {dir} (step {step})");
    note_changed_config(saved, model.config().values());
    let (old, new) = (saved.state.total_steps, length.max_steps);
    if old != new {
        eprintln!(
            "note: the learning-rate curve was laid out for {old} steps and is now for {new}"
        );
    }
    if step >= new {
        eprintln!(
            "note: that is already the end; nothing is left to train (--max_steps or --num_train_epochs would extend it)"
        );
    }
}

/// Where training starts: at the beginning, or where a checkpoint left off.
pub struct Start {
    pub progress: Progress,
    /// In a stream, after the last batch that was taken.
    pub stream: Option<StreamPosition>,
}

impl Start {
    /// After a checkpoint, if there is one. A stream is one epoch that ends with the run.
    ///
    /// # Errors
    /// If the checkpoint's position in the stream cannot be read.
    pub fn of(
        saved: Option<&Checkpoint>,
        is_stream: bool,
        length: &RunLength,
    ) -> Result<Start, Error> {
        let state = saved.map(|saved| &saved.state);
        let step = state.map_or(0, |state| state.global_step);
        let (next_epoch, next_batch) = if is_stream {
            (0, step * length.accumulation)
        } else {
            state.map_or((0, 0), |state| (state.epoch, state.batch_in_epoch))
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
            stream: saved.filter(|_| is_stream).map(position).transpose()?,
        })
    }
}
