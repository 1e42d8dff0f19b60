//! `--output_dir` in a bucket: the run is written in a directory of the cache's, and its files are uploaded when a
//! checkpoint is whole and at the end (xtrain-engine's `bucket`). A run that is resumed is fetched first: its newest
//! checkpoint, the one with the best metric, and its logs.

use super::command::sets::TRAINING;
use super::error::UsageError;
use super::flags::Flags;
use super::sources::cache_dir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use url::Url;
use xtrain_checkpoint::atomic::{self, DirWriter};
use xtrain_checkpoint::hf::{TRAINER_STATE_FILE, TrainerState, read_json};
use xtrain_checkpoint::lock::Lock;
use xtrain_checkpoint::state::{RUN_FILE, TRAINING_STATE_FILE};
use xtrain_distributed::RankInfo;
use xtrain_objects::{Effort, Error, Folder, Object};
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::{checkpoint_step, newest_checkpoint};
use xtrain_report::units;
use xtrain_trainer::settings::Resume;

/// A folder that a run's files go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub url: String,
    /// Its files have been listed and, if asked, fetched.
    pub is_here: bool,
}

/// A training state, or a record of runs, has no more bytes.
const MOST: u64 = 64 << 20;

/// Whether an output directory is a folder of a bucket.
pub fn is_bucket(text: &str) -> bool {
    ["s3://", "gs://", "az://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
}

/// Puts a directory of this machine in the place of a bucket's. Nothing is asked of any server.
pub fn apply(flags: &mut Flags) {
    let Some(url) = flags.output_dir.as_ref().and_then(|path| path.to_str()) else {
        return;
    };
    if !is_bucket(url) {
        return;
    }
    let url = url.trim_end_matches('/').to_string();
    let mistake = if !TRAINING.contains(flags.command) {
        Some(UsageError::illegal(
            format!("--output_dir: {url}: only `xtrain train` writes into a bucket"),
            "give a path on this machine, and copy what is written there afterwards",
        ))
    } else {
        let opened = Folder::open(&url, &Effort::of_files());
        opened.err().map(|error| {
            UsageError::illegal(
                format!("--output_dir: {error}"),
                "give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
            )
        })
    };
    match mistake {
        Some(mistake) => flags.mistakes.push(mistake),
        None => {
            let dir = place(&cache_dir(flags, "outputs"), &url);
            let shown = dir.display();
            flags.notes.push(format!(
                "output is written in {shown} and uploaded to {url}"
            ));
            flags.output_dir.set(Some(dir));
        }
    }
    flags.bucket = Some(Bucket {
        url,
        is_here: false,
    });
}

/// The directory for a folder's files.
fn place(root: &Path, url: &str) -> PathBuf {
    let Ok(parsed) = Url::parse(url) else {
        return root.to_path_buf();
    };
    let parts = parsed.path_segments().into_iter().flatten();
    let parts = parts.filter(|part| !part.is_empty());
    let bucket = [parsed.scheme(), parsed.host_str().unwrap_or_default()];
    root.join(bucket.iter().collect::<PathBuf>())
        .join(parts.collect::<PathBuf>())
}

/// Looks at what the bucket has. A run that is resumed is fetched; one that begins wants an empty folder, or
/// `--overwrite_output_dir`.
///
/// # Errors
/// The store does not answer, or it has another run's files.
pub fn fetch(mut flags: Flags) -> Result<Flags, UsageError> {
    let trains = flags.trains() && !*flags.dry_run && !flags.preview.is_given();
    let Some((bucket, dir)) = flags.bucket.as_mut().zip(flags.output_dir.clone()) else {
        return Ok(flags);
    };
    bucket.is_here = true;
    if !trains || flags.compare_meshes.is_some() {
        return Ok(flags);
    }
    let url = bucket.url.clone();
    let failed = |error: String| UsageError::Fetch {
        problem: format!("--output_dir {url}: {error}"),
    };
    let effort = Effort::of_files();
    let folder = Folder::open(&url, &effort).map_err(|error| failed(error.to_string()))?;
    let found = folder.list_all();
    let found = found.map_err(|error| failed(error.to_string()))?;
    let run = Remote { folder, found, dir };
    match &*flags.resume_from_checkpoint {
        Resume::Latest | Resume::IfAny => run.bring().map_err(failed)?,
        _ if run.found.is_empty() => {}
        _ if *flags.overwrite_output_dir => run.bring_record().map_err(failed)?,
        // Of several processes, the first one's first start decides.
        Resume::No if begins_job() => {
            return Err(UsageError::illegal(
                format!("--output_dir: {url} is not empty"),
                "add --resume_from_checkpoint to resume from its newest checkpoint, --overwrite_output_dir to replace its files, or name another folder",
            ));
        }
        Resume::No | Resume::From(_) => {}
    }
    Ok(flags)
}

fn begins_job() -> bool {
    RankInfo::from_environment().is_ok_and(|member| member.is_none_or(|member| member.begins_job()))
}

/// What a bucket has of a run, and where it belongs here.
struct Remote {
    folder: Folder,
    found: Vec<Object>,
    dir: PathBuf,
}

impl Remote {
    /// Whole checkpoints, by their steps: of each one the training state is uploaded last.
    fn checkpoints(&self) -> BTreeMap<u64, &str> {
        let whole = self.found.iter().filter_map(|object| {
            let (checkpoint, file) = object.name.split_once('/')?;
            let step =
                checkpoint_step(Path::new(checkpoint)).filter(|_| file == TRAINING_STATE_FILE);
            Some((step?, checkpoint))
        });
        whole.collect()
    }

    fn json(&self, name: &str) -> Result<Value, String> {
        let bytes = self
            .folder
            .get(name, MOST)
            .map_err(|error| error.to_string())?;
        let bytes = bytes.unwrap_or_default();
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| format!("{name}: {error}"))
    }

    /// The newest checkpoint of the run that was last started.
    fn newest(&self) -> Result<Option<(u64, &str)>, String> {
        let number = |value: &Value| value["run"].as_u64().unwrap_or(0);
        let last = number(&self.json(RUN_FILE)?);
        for (step, name) in self.checkpoints().into_iter().rev() {
            let file = self.json(&format!("{name}/{TRAINING_STATE_FILE}"))?;
            if number(&file["state"]) == last {
                return Ok(Some((step, name)));
            }
        }
        Ok(None)
    }

    /// Fetches what a run needs to go on. What this machine has saved beyond that stays.
    fn bring(&self) -> Result<(), String> {
        let Some((step, name)) = self.newest()? else {
            return Ok(());
        };
        // One process of a machine after the other.
        let lock = self.dir.with_extension("lock");
        let _lock = Lock::wait(&lock, "fetching the run");
        let is_whole = |dir: &Path| dir.join(TRAINING_STATE_FILE).is_file();
        let own = newest_checkpoint(&self.dir, is_whole);
        if own.and_then(|own| checkpoint_step(&own)) >= Some(step) {
            return Ok(());
        }
        let mut bytes = self.bring_checkpoint(name)?;
        let state: TrainerState = read_json(&self.dir.join(name).join(TRAINER_STATE_FILE))
            .map_err(|error| error.to_string())?;
        let best = state.best_model_checkpoint.as_deref();
        let best = best.and_then(|best| Path::new(best).file_name()?.to_str());
        if let Some(best) = best.filter(|best| self.checkpoints().values().any(|own| own == best))
            && !self.dir.join(best).is_dir()
        {
            bytes += self.bring_checkpoint(best)?;
        }
        // The finished model of before is made anew.
        let is_model = |name: &str| name.ends_with(".safetensors") || name.ends_with(".bin");
        for object in &self.found {
            let first = object.name.split('/').next().unwrap_or_default();
            if checkpoint_step(Path::new(first)).is_none() && !is_model(&object.name) {
                bytes += self.bring_file(&object.name, &self.dir.join(&object.name))?;
            }
        }
        say(&format!("fetched {name} ({})", units::bytes(bytes)));
        Ok(())
    }

    /// Which runs there were, so that the one that begins has a number of its own.
    fn bring_record(&self) -> Result<(), String> {
        let path = self.dir.join(RUN_FILE);
        if path.exists() || self.checkpoints().is_empty() {
            return Ok(());
        }
        let record = match self.json(RUN_FILE)? {
            Value::Null => r#"{"run":0,"resumed_from":null}"#.to_string(),
            record => record.to_string(),
        };
        write(&path, |writer| Ok(writer.write_all(record.as_bytes())?))
    }

    fn bring_checkpoint(&self, name: &str) -> Result<u64, String> {
        let said = |error: xtrain_checkpoint::Error| error.to_string();
        let writer = DirWriter::begin(&self.dir.join(name)).map_err(said)?;
        let mut bytes = 0;
        for object in &self.found {
            let inside = object.name.strip_prefix(name);
            if let Some(inside) = inside.and_then(|inside| inside.strip_prefix('/')) {
                bytes += self.bring_file(&object.name, &writer.path().join(inside))?;
            }
        }
        writer.commit().map_err(said)?;
        Ok(bytes)
    }

    /// One object; its bytes.
    fn bring_file(&self, name: &str, path: &Path) -> Result<u64, String> {
        let is_safe = |part: &str| !matches!(part, "" | "." | "..");
        if !name.split('/').all(is_safe) {
            return Err(format!("{name:?} is no name of a file"));
        }
        let fetched = |writer: &mut dyn std::io::Write| self.folder.download(name, writer);
        write(path, |writer| {
            let bytes = fetched(writer)?;
            let gone = || Error::Failed(format!("{name} went away while it was fetched"));
            Ok(bytes.ok_or_else(gone)?)
        })
    }
}

/// Writes a file whole, with the directories above it.
fn write<T>(
    path: &Path,
    fill: impl FnOnce(&mut dyn std::io::Write) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<T, String> {
    if let Some(above) = path.parent() {
        std::fs::create_dir_all(above)
            .map_err(|error| format!("cannot create {}: {error}", above.display()))?;
    }
    let written = atomic::write_file(path, |writer| fill(writer).map_err(std::io::Error::other));
    written.map_err(|error| error.to_string())
}
