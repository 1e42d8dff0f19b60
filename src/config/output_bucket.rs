//! `--output_dir` in a bucket: the run writes to a directory of the cache, and its files are uploaded after each
//! checkpoint and at the end (xtrain-engine's `bucket`). A resumed run is fetched first: its newest checkpoint, its
//! best one, and its logs.

use super::command::sets::TRAINING;
use super::error::UsageError;
use super::flags::Flags;
use super::kind::is_bucket;
use super::rules::output::has_checkpoint;
use super::sources::cache_dir;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use url::Url;
use xtrain_checkpoint::atomic::{self, DirWriter};
use xtrain_checkpoint::hf::{TRAINER_STATE_FILE, TrainerState, read_json};
use xtrain_checkpoint::lock::Lock;
use xtrain_checkpoint::state::{RUN_FILE, TRIAL_FILE, checkpoint_files, state_name};
use xtrain_checkpoint::weights::MODEL_FILES;
use xtrain_checkpoint::{list_checkpoints, read_state};
use xtrain_distributed::RankInfo;
use xtrain_objects::{Effort, Error, Folder, Object};
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::{CHECKPOINT_PREFIX, checkpoint_step, newest_checkpoint};
use xtrain_report::units;
use xtrain_trainer::settings::Resume;

/// A training state, or a record of runs, has no more bytes.
const MOST: u64 = 64 << 20;

/// Replaces the bucket's folder by a directory of this machine. Nothing is asked of any server.
pub fn apply(flags: &mut Flags) {
    let Some(url) = flags.output_dir.as_ref().and_then(|path| path.to_str()) else {
        return;
    };
    if !is_bucket(url) {
        return;
    }
    let url = url.trim_end_matches('/').to_string();
    let mistake = if !flags.trains() {
        let fix = if TRAINING.contains(flags.command) {
            "add --do_train, or give a path on this machine"
        } else {
            "give a path on this machine, and copy what is written there afterwards"
        };
        let problem = "only `xtrain train` writes to a bucket, and only if it trains";
        Some(UsageError::illegal(
            format!("--output_dir: {url}: {problem}"),
            fix,
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
            let dir = local_dir(&cache_dir(flags, "outputs"), &url);
            if uploads(flags) {
                let shown = dir.display();
                flags.notes.push(format!(
                    "output is written in {shown} and uploaded to {url}"
                ));
            }
            flags.output_dir.set(Some(dir));
        }
    }
    flags.bucket = Some(url);
}

/// Whether the run has files to upload.
fn uploads(flags: &Flags) -> bool {
    let is_run = !*flags.dry_run && !flags.preview.is_given() && flags.compare_meshes.is_none();
    flags.trains() && is_run
}

/// The directory for a folder's files.
fn local_dir(root: &Path, url: &str) -> PathBuf {
    let Ok(parsed) = Url::parse(url) else {
        return root.to_path_buf();
    };
    let parts = parsed.path_segments().into_iter().flatten();
    let parts = parts.filter(|part| !part.is_empty());
    let bucket = [parsed.scheme(), parsed.host_str().unwrap_or_default()];
    root.join(bucket.iter().collect::<PathBuf>())
        .join(parts.collect::<PathBuf>())
}

/// Looks at the bucket. A run that is resumed is fetched; one that begins wants an empty folder, or
/// `--overwrite_output_dir`.
///
/// # Errors
/// The store does not answer, has another run's files, or has no checkpoint to resume from.
pub fn fetch(flags: &Flags) -> Result<(), UsageError> {
    let named = flags.bucket.as_ref().zip(flags.output_dir.as_deref());
    let Some((url, dir)) = named.filter(|_| uploads(flags)) else {
        return Ok(());
    };
    let failed = |error: String| UsageError::Fetch {
        problem: format!("--output_dir {url}: {error}"),
    };
    // Of several processes, the first one's first start decides.
    let is_refused = !*flags.overwrite_output_dir && RankInfo::this_begins_job();
    let not_empty =
        |fix: &str| UsageError::illegal(format!("--output_dir: {url} is not empty"), fix);
    let run = Remote::list(url, dir).map_err(failed)?;
    match &*flags.resume_from_checkpoint {
        Resume::Latest | Resume::IfAny => {
            run.fetch().map_err(failed)?;
            let begins = newest_checkpoint(dir, |_| true).is_none();
            if begins && *flags.resume_from_checkpoint == Resume::Latest {
                return Err(UsageError::illegal(
                    format!("--resume_from_checkpoint: {url} has no checkpoint"),
                    "leave the flag out to start from the beginning",
                ));
            }
            if begins && is_refused && run.has_model() {
                return Err(not_empty(
                    "name another folder, or add --overwrite_output_dir to replace its files",
                ));
            }
        }
        Resume::No | Resume::From(_) if run.objects.is_empty() => {}
        Resume::From(path) if has_checkpoint(dir, path) => {}
        Resume::No | Resume::From(_) if *flags.overwrite_output_dir => {
            run.count_runs().map_err(failed)?;
        }
        Resume::From(_) if is_refused => {
            return Err(not_empty(
                "to resume from another directory's checkpoint, name an empty folder, or add --overwrite_output_dir to replace its files",
            ));
        }
        Resume::No if is_refused => {
            return Err(not_empty(
                "add --resume_from_checkpoint to resume from its newest checkpoint, --overwrite_output_dir to replace its files, or name another folder",
            ));
        }
        Resume::No | Resume::From(_) => {}
    }
    Ok(())
}

/// A run's files in a bucket, and the directory for them.
struct Remote<'a> {
    folder: Folder,
    objects: Vec<Object>,
    dir: &'a Path,
}

/// Of checkpoints the one of the latest run, and of these the one of the latest step, is the newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    run: u64,
    step: u64,
}

impl<'a> Remote<'a> {
    fn list(url: &str, dir: &'a Path) -> Result<Remote<'a>, String> {
        let open = || {
            let folder = Folder::open(url, &Effort::of_files())?;
            let mut objects = folder.list_all()?;
            objects.retain(|object| object.name != TRIAL_FILE);
            Ok(Remote {
                folder,
                objects,
                dir,
            })
        };
        open().map_err(|error: Error| error.to_string())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().map(|object| &*object.name)
    }

    fn has_model(&self) -> bool {
        self.names().any(|name| MODEL_FILES.contains(&name))
    }

    fn has_checkpoint(&self, step: u64) -> bool {
        let state = state_name(step);
        self.names().any(|name| name == state)
    }

    /// The newest complete checkpoint.
    fn newest(&self) -> Result<Option<Position>, String> {
        let mut newest: Option<Position> = None;
        for step in checkpoint_files(self.names()).into_keys() {
            if self.has_checkpoint(step) {
                let run = self.run_of(&state_name(step))?;
                newest = newest.max(Some(Position { run, step }));
            }
        }
        Ok(newest)
    }

    /// The number of the run that saved a training state.
    fn run_of(&self, state: &str) -> Result<u64, String> {
        let failed = |error: String| format!("{state}: {error}");
        let bytes = self.folder.get(state, MOST);
        let bytes = bytes.map_err(|error| failed(error.to_string()))?;
        let file: Result<Value, _> = serde_json::from_slice(&bytes.unwrap_or_default());
        let file = file.map_err(|error| failed(error.to_string()))?;
        Ok(file["state"]["run"].as_u64().unwrap_or(0))
    }

    /// This machine's newest complete checkpoint.
    fn newest_here(&self) -> Option<Position> {
        let found = list_checkpoints(self.dir).unwrap_or_default().into_iter();
        let positions = found.filter_map(|(step, path)| {
            let run = read_state(&path).ok()?.run;
            Some(Position { run, step })
        });
        positions.max()
    }

    /// Fetches what a run needs to go on, unless this machine is as far.
    fn fetch(&self) -> Result<(), String> {
        let Some(newest) = self.newest()? else {
            return Ok(());
        };
        // One process of a machine after the other.
        let lock = self.dir.with_extension("lock");
        let _lock = Lock::wait(&lock, "fetching the run");
        if self.newest_here() >= Some(newest) {
            return Ok(());
        }
        let name = format!("{CHECKPOINT_PREFIX}{}", newest.step);
        let mut bytes = self.fetch_checkpoint(&name)?;
        let state: TrainerState = read_json(&self.dir.join(&name).join(TRAINER_STATE_FILE))
            .map_err(|error| error.to_string())?;
        let best = state.best_model_checkpoint.as_deref();
        let best = best.and_then(|best| Path::new(best).file_name()?.to_str());
        if let Some(best) = best
            && checkpoint_step(Path::new(best)).is_some_and(|step| self.has_checkpoint(step))
            && !self.dir.join(best).is_dir()
        {
            bytes += self.fetch_checkpoint(best)?;
        }
        // The run writes its final model anew.
        let is_model = |name: &str| name.ends_with(".safetensors") || name.ends_with(".bin");
        for name in self.names() {
            let first = name.split('/').next().unwrap_or_default();
            if checkpoint_step(Path::new(first)).is_none() && !is_model(name) {
                bytes += self.fetch_file(name, &self.dir.join(name))?;
            }
        }
        self.write_record(newest.run)?;
        say(&format!("fetched {name} ({})", units::bytes(bytes)));
        Ok(())
    }

    /// Has the run that begins numbered after those whose checkpoints the bucket has.
    fn count_runs(&self) -> Result<(), String> {
        let here: Option<Value> = read_json(&self.dir.join(RUN_FILE)).ok();
        let here = here.and_then(|record| record["run"].as_u64());
        match self.newest()? {
            Some(newest) if here < Some(newest.run) => self.write_record(newest.run),
            Some(_) | None => Ok(()),
        }
    }

    /// Notes the run as the one that was started last.
    fn write_record(&self, run: u64) -> Result<(), String> {
        let record = json!({"run": run, "resumed_from": null}).to_string();
        write(&self.dir.join(RUN_FILE), |writer| {
            Ok(writer.write_all(record.as_bytes())?)
        })
    }

    fn fetch_checkpoint(&self, name: &str) -> Result<u64, String> {
        let as_text = |error: xtrain_checkpoint::Error| error.to_string();
        let writer = DirWriter::begin(&self.dir.join(name)).map_err(as_text)?;
        let mut bytes = 0;
        for file in self.names() {
            let inside = file.strip_prefix(name);
            if let Some(inside) = inside.and_then(|inside| inside.strip_prefix('/')) {
                bytes += self.fetch_file(file, &writer.path().join(inside))?;
            }
        }
        writer.commit().map_err(as_text)?;
        Ok(bytes)
    }

    /// One object; its bytes.
    fn fetch_file(&self, name: &str, path: &Path) -> Result<u64, String> {
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
