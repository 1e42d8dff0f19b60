//! `checkpoint-N/`: a Hugging Face directory plus all that is needed to resume as if training had
//! never stopped.
//!
//! Beside the files that `save_pretrained` writes there are `trainer_state.json` (transformers' own
//! format), `optimizer.safetensors` (moments by parameter name, and any other device state by the
//! name its owner chose; of several processes each writes a part of it: `optimizer.rs`; left out
//! where the model is saved alone) and
//! `training_state.json` (position, totals, and length and digest of every other file). The
//! directory gets its name only when all of it is on disk, so one that has a `training_state.json`
//! is complete; the digests catch what happens to it later.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic::{self, DirWriter};
use super::error::{Error, Result};
use super::hash;
use super::hf::{self, Form, Pretrained, TRAINER_STATE_FILE, TrainerState};
use super::optimizer::{
    self, FileRecord, OPTIMIZER_FILE, OPTIMIZER_INDEX_FILE, PeerWriters, Sink, write_hashed,
};
use super::pace::Pace;
use super::tensors::{TensorRef, write_safetensors};
use super::weights::{WEIGHTS_INDEX_FILE, Weights};
use xtrain_report::runs::checkpoints::{CHECKPOINT_PREFIX, checkpoint_step, numbered_checkpoints};

pub const TRAINING_STATE_FILE: &str = "training_state.json";
/// In an output directory: which of the runs that were started there is the last.
pub const RUN_FILE: &str = ".xtrain-run.json";
/// In the bucket of a run, for a moment before the run begins: proof that the bucket takes files.
pub const TRIAL_FILE: &str = ".xtrain-trial";
const FORMAT_VERSION: u64 = 1;

/// Where training stands, in numbers. Floats survive bit for bit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingState {
    /// Optimizer steps done.
    pub global_step: u64,
    /// Epoch of the next batch, from 0.
    pub epoch: u64,
    /// The next batch's place within its epoch, from 0.
    pub batch_in_epoch: u64,
    /// Which of the runs that were started in the output directory, from 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub run: u64,
    /// Key of shuffling, dropout and initialization.
    pub seed: u64,
    /// What the learning-rate curve was laid out for; resuming with other totals would bend it.
    pub total_steps: u64,
    pub warmup_steps: u64,
    /// The batch arithmetic under which `batch_in_epoch` counts.
    pub batches_per_epoch: u64,
    pub batch_size: u64,
    pub gradient_accumulation_steps: u64,
    /// Which tokenized rows those batches are cut from.
    pub data_fingerprint: String,
    /// Running sums (loss since the last log record, tokens seen, ...) by name; all finite.
    pub accumulators: BTreeMap<String, f64>,
    /// Whatever else the training loop wants back.
    pub extra: Map<String, Value>,
}

fn is_first(run: &u64) -> bool {
    *run == 0
}

/// `training_state.json`.
#[derive(Serialize, Deserialize)]
struct StateFile {
    format_version: u64,
    state: TrainingState,
    files: BTreeMap<String, FileRecord>,
    /// Over `state` and `files`, so that a damaged number in here is noticed too.
    digest: String,
}

impl StateFile {
    fn digest(state: &TrainingState, files: &BTreeMap<String, FileRecord>) -> String {
        hash::sha256(&hf::to_json_text(&(state, files), 0))
    }
}

/// Everything that goes into a checkpoint; tensors and files are borrowed.
#[derive(Clone)]
pub struct CheckpointParts<'a> {
    pub model: Pretrained<'a>,
    /// The optimizer's state (`exp_avg.PARAMETER`) and other device state: RNG, loss scale. `None`:
    /// the checkpoint holds the model alone.
    pub optimizer: Option<&'a [TensorRef<'a>]>,
    /// The processes that write the rest of that state; `None` where `optimizer` is all of it.
    pub peer_writers: Option<&'a dyn PeerWriters>,
    pub trainer_state: &'a TrainerState,
    pub state: &'a TrainingState,
    /// At which this process writes.
    pub pace: &'a Pace,
}

/// A checkpoint read back, every file checked against its digest.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub dir: PathBuf,
    pub state: TrainingState,
    pub trainer_state: TrainerState,
    /// What its weights are of.
    pub form: Form,
    pub config: Map<String, Value>,
    pub weights: Weights,
    /// `None` where the model was saved alone.
    pub optimizer: Option<Weights>,
}

pub fn checkpoint_dir(output_dir: &Path, step: u64) -> PathBuf {
    output_dir.join(format!("{CHECKPOINT_PREFIX}{step}"))
}

/// The training state of a checkpoint, as seen from the output directory.
pub fn state_name(step: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step}/{TRAINING_STATE_FILE}")
}

/// The checkpoints by their steps, incomplete ones too, with their files, among those of an output directory: all are
/// named as seen from there.
pub fn checkpoint_files<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<u64, Vec<&'a str>> {
    let mut found: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for name in names {
        let checkpoint = name.split_once('/').map(|(first, _)| Path::new(first));
        if let Some(step) = checkpoint.and_then(checkpoint_step) {
            found.entry(step).or_default().push(name);
        }
    }
    found
}

/// Writes `output_dir/checkpoint-N`, N being the global step. On any error, disk full included,
/// what was there before stays and the partial directory goes.
pub fn save_checkpoint(output_dir: &Path, parts: &CheckpointParts<'_>) -> Result<PathBuf> {
    let target = checkpoint_dir(output_dir, parts.state.global_step);
    if let Some((name, value)) = parts
        .state
        .accumulators
        .iter()
        .find(|(_, value)| !value.is_finite())
    {
        let reason = format!(
            "accumulator {name} is {value}; a state that is not finite is not worth resuming from"
        );
        return Err(Error::BadContent {
            path: target,
            reason,
        });
    }
    // A killed writer's remains may be what fills the disk.
    atomic::clean_leftovers(output_dir)?;
    let dir = DirWriter::begin(&target)?;
    if let Some(peers) = parts.peer_writers {
        peers.begin(dir.path())?;
    }
    let mut files = BTreeMap::new();
    let mut write = |name: &str, fill: &dyn Fn(&mut Sink<'_>) -> io::Result<()>| -> Result<()> {
        let path = dir.path().join(name);
        let above = path.parent().unwrap_or(dir.path());
        fs::create_dir_all(above).map_err(dir.io("create", name))?;
        let record = write_hashed(&path, parts.pace, fill).map_err(dir.io("write", name))?;
        files.insert(name.to_string(), record);
        Ok(())
    };
    let shards = parts.model.shards();
    for (name, tensors) in &shards.files {
        write(name, &|out| write_safetensors(out, tensors))?;
    }
    if let Some(index) = &shards.index {
        write(WEIGHTS_INDEX_FILE, &|out| {
            out.write_all(&hf::to_json_text(index, 2))
        })?;
    }
    if let (Some(optimizer), None) = (parts.optimizer, parts.peer_writers) {
        write(OPTIMIZER_FILE, &|out| write_safetensors(out, optimizer))?;
    }
    for (name, bytes) in hf::small_files(&parts.model) {
        write(name, &|out| out.write_all(&bytes))?;
    }
    write(TRAINER_STATE_FILE, &|out| {
        out.write_all(&hf::to_json_text(parts.trainer_state, 2))
    })?;
    if let Some(peers) = parts.peer_writers {
        let mut written = vec![optimizer::write_part(
            dir.path(),
            0,
            peers.count(),
            parts.optimizer.unwrap_or_default(),
            parts.pace,
        )?];
        // Only when all of it is there is there an index, and only then does the directory get its
        // name.
        written.extend(peers.finish()?);
        write(OPTIMIZER_INDEX_FILE, &|out| {
            out.write_all(&hf::to_json_text(&optimizer::index(&written), 2))
        })?;
        files.extend(written.into_iter().map(|part| (part.name, part.record)));
    }
    let digest = StateFile::digest(parts.state, &files);
    let state = StateFile {
        format_version: FORMAT_VERSION,
        state: parts.state.clone(),
        files,
        digest,
    };
    let text = hf::to_json_text(&state, 2);
    fs::write(dir.path().join(TRAINING_STATE_FILE), text)
        .map_err(dir.io("write", TRAINING_STATE_FILE))?;
    dir.commit()?;
    Ok(target)
}

fn damaged(path: &Path, reason: String) -> Error {
    Error::Damaged {
        path: path.to_path_buf(),
        reason,
    }
}

/// Where training stood when a checkpoint was saved; its other files are not looked at.
///
/// # Errors
/// If it is damaged, or of another version.
pub fn read_state(dir: &Path) -> Result<TrainingState> {
    read_state_file(dir).map(|file| file.state)
}

fn read_state_file(dir: &Path) -> Result<StateFile> {
    let path = dir.join(TRAINING_STATE_FILE);
    // The version is read by itself, since another version's state need not parse as ours.
    let value: Value = hf::read_json(&path).map_err(|error| damaged(&path, error.to_string()))?;
    match value["format_version"].as_u64() {
        Some(FORMAT_VERSION) => {}
        Some(found) => {
            return Err(Error::Version {
                path,
                found,
                supported: FORMAT_VERSION,
            });
        }
        None => return Err(damaged(&path, "no format_version".to_string())),
    }
    let file: StateFile =
        serde_json::from_value(value).map_err(|error| damaged(&path, error.to_string()))?;
    if StateFile::digest(&file.state, &file.files) != file.digest {
        return Err(damaged(
            &path,
            "its content does not match its digest".to_string(),
        ));
    }
    Ok(file)
}

/// Opens a checkpoint, checking every file's length and digest first. Any difference is an error
/// that names the file.
pub fn load_checkpoint(dir: &Path) -> Result<Checkpoint> {
    let path = dir.join(TRAINING_STATE_FILE);
    if !path.exists() {
        return if dir.exists() {
            Err(Error::NotACheckpoint {
                dir: dir.to_path_buf(),
            })
        } else {
            Err(Error::io("read", dir)(io::ErrorKind::NotFound.into()))
        };
    }
    let file = read_state_file(dir)?;
    for (name, record) in &file.files {
        let path = dir.join(name);
        let found = hash::sha256_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => damaged(&path, "it is missing".to_string()),
            _ => damaged(&path, error.to_string()),
        })?;
        if found.0 != record.bytes {
            return Err(damaged(
                &path,
                format!("it has {} bytes, {} were written", found.0, record.bytes),
            ));
        }
        if found.1 != record.sha256 {
            return Err(damaged(
                &path,
                "its content is not what was written (SHA-256 differs)".to_string(),
            ));
        }
    }
    let form = Form::of(dir);
    Ok(Checkpoint {
        form,
        dir: dir.to_path_buf(),
        state: file.state,
        trainer_state: hf::read_json(&dir.join(TRAINER_STATE_FILE))?,
        config: hf::read_object(&dir.join(form.config_file()))?,
        weights: match form {
            Form::Model => Weights::open(dir)?,
            Form::Adapter => Weights::open_adapter(dir)?,
        },
        optimizer: if [OPTIMIZER_FILE, OPTIMIZER_INDEX_FILE]
            .iter()
            .any(|name| file.files.contains_key(*name))
        {
            Some(optimizer::open(dir)?)
        } else {
            None
        },
    })
}

/// `checkpoint-N` directories in `output_dir`, complete ones only, by rising N. A missing
/// `output_dir` has none. Being complete is not being undamaged: [`load_checkpoint`] checks that, and
/// a damaged newest checkpoint is an error to report, not a reason to quietly take an older one.
pub fn list_checkpoints(output_dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = match numbered_checkpoints(output_dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", output_dir)(error)),
    };
    found.retain(|(_, path)| path.join(TRAINING_STATE_FILE).is_file());
    Ok(found)
}

/// Repairs what a killed run left in an output directory. Call it before
/// [`list_checkpoints`] when starting to train.
pub fn clean_output_dir(output_dir: &Path) -> Result<Vec<PathBuf>> {
    atomic::clean_leftovers(output_dir)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
