//! Going on where an earlier run left off: which checkpoint, whether it fits this run, and from which position.

use super::Error;
use super::model::failed;
use crate::checkpoint::{Checkpoint, TrainingState, latest_checkpoint, list_checkpoints, load_checkpoint};
use crate::config::{ModelSource, TrainPlan};
use crate::trainer;
use crate::trainer::run_loop::{Progress, RunLength};
use crate::trainer::settings::{Resume, TrainSettings};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checkpoints that an earlier run left where this one starts anew: never the one that its model comes from.
pub(super) fn stale_checkpoints(plan: &TrainPlan) -> Result<Vec<PathBuf>, Error> {
    let found = list_checkpoints(&plan.train.output_dir).map_err(failed("looking for an earlier run's checkpoints"))?;
    let source = match &plan.model {
        ModelSource::Pretrained { directory } => directory.canonicalize().ok(),
        ModelSource::Scratch { .. } => None,
    };
    let is_source = |path: &Path| source.is_some() && path.canonicalize().ok() == source;
    Ok(found.into_iter().map(|(_, path)| path).filter(|path| !is_source(path)).collect())
}

/// The checkpoint that the run continues, if it does.
pub(super) fn checkpoint(settings: &TrainSettings) -> Result<Option<Checkpoint>, Error> {
    let dir: PathBuf = match &settings.resume {
        Resume::No => return Ok(None),
        Resume::From(dir) => dir.clone(),
        Resume::Latest => latest_checkpoint(&settings.output_dir)
            .map_err(failed("looking for a checkpoint"))?
            .ok_or_else(|| Error::failed(format!("there is no checkpoint in {}", settings.output_dir.display())))?,
    };
    load_checkpoint(&dir).map(Some).map_err(failed("loading the checkpoint to resume from"))
}

/// Refuses a checkpoint whose position means something else in this run; causes come before their effects.
pub(super) fn check_resume(saved: &Checkpoint, run: &TrainingState) -> Result<(), Error> {
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
            trainer::Error::Resume { path: saved.dir.clone(), reason }.to_string(),
            "use what it was saved with or, to start anew from its weights, give it as --model_name_or_path",
        )),
        None => Ok(()),
    }
}

/// Says which of the model's settings are not those of the checkpoint. Some may change (dropout); shapes are checked with the weights.
pub(super) fn note_changed_config(saved: &Checkpoint, model: &Map<String, Value>) {
    let text = |value: Option<&Value>| value.map_or("not set".to_string(), Value::to_string);
    let keys: BTreeSet<&String> = saved.config.keys().chain(model.keys()).collect();
    for key in keys {
        let (old, new) = (saved.config.get(key), model.get(key));
        if old != new {
            eprintln!("note: {key} was {} when the checkpoint was saved and is {} now", text(old), text(new));
        }
    }
}

/// Where training on a stream starts, which is one epoch that ends with the run.
pub(super) fn start_in_stream(saved: Option<&TrainingState>, length: &RunLength) -> Progress {
    let step = saved.map_or(0, |saved| saved.global_step);
    let next_batch = step * length.accumulation;
    let epoch = next_batch as f64 / length.batches_per_epoch as f64;
    Progress { step, max_steps: length.max_steps, epoch, next_epoch: 0, next_batch, epoch_ended: false }
}

/// Where training starts: at the beginning, or where a checkpoint left off.
pub(super) fn start_position(saved: Option<&TrainingState>, length: &RunLength) -> Progress {
    let (step, next_epoch, next_batch) = saved.map_or((0, 0, 0), |s| (s.global_step, s.epoch, s.batch_in_epoch));
    Progress {
        step,
        max_steps: length.max_steps,
        epoch: next_epoch as f64 + next_batch as f64 / length.batches_per_epoch as f64,
        next_epoch,
        next_batch,
        epoch_ended: false,
    }
}
