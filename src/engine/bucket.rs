//! `--output_dir` in a bucket: the run's files are uploaded after each checkpoint and at the end. The training state is
//! the last file of a checkpoint to be uploaded, and no run resumes from a checkpoint without it.
//!
//! A failed upload during the run is a warning, and the next one sends the same files; the last one's failure is the
//! command's, and costs no file.

use super::error::{Error, failed};
use super::run::Run;
use super::uploads::{Destination, Jobs, Worker, files_below, finished_files};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use xtrain_checkpoint::state::{TRIAL_FILE, checkpoint_dir, checkpoint_files, state_name};
use xtrain_checkpoint::{list_checkpoints, read_state};
use xtrain_config::RunPlan;
use xtrain_distributed::RankInfo;
use xtrain_objects::{Effort, Folder};
use xtrain_report::outln;
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::{CHECKPOINT_PREFIX, checkpoint_step};
use xtrain_report::units;
use xtrain_trainer::Result as TrainerResult;
use xtrain_trainer::run_loop::{Hook, StepContext};
use xtrain_trainer::settings::Resume;

/// The bucket of a run. The jobs are the steps of the checkpoints that were saved.
pub struct Bucket {
    url: String,
    worker: Worker<u64, Uploader>,
}

/// Size and time of a file.
type Version = (u64, SystemTime);

/// A file that is uploaded as it was when it was opened, whatever happens to its name.
struct Opened {
    name: String,
    file: File,
    version: Version,
}

impl Opened {
    /// `None` if there is no such file any more.
    fn open(name: String, path: &Path) -> io::Result<Option<Opened>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let meta = file.metadata()?;
        Ok(Some(Opened {
            name,
            version: (meta.len(), meta.modified()?),
            file,
        }))
    }

    /// The files of a checkpoint, its training state last; `None` if the checkpoint has been removed.
    fn checkpoint(output_dir: &Path, step: u64) -> io::Result<Option<Vec<Opened>>> {
        let mut files = Vec::new();
        for (file, path) in files_below(&checkpoint_dir(output_dir, step), &|_| true) {
            let name = format!("{CHECKPOINT_PREFIX}{step}/{file}");
            let Some(opened) = Opened::open(name, &path)? else {
                return Ok(None);
            };
            files.push(opened);
        }
        let state = state_name(step);
        files.sort_by_key(|file| file.name == state);
        let is_complete = files.last().is_some_and(|last| last.name == state);
        Ok(is_complete.then_some(files))
    }
}

/// Keeps the bucket's folder like the output directory.
struct Uploader {
    folder: Folder,
    output_dir: PathBuf,
    /// How many checkpoints stay; `None`: all.
    limit: Option<usize>,
    /// Steps of the checkpoints that are still to be uploaded.
    pending: BTreeSet<u64>,
    /// Steps of an earlier run's checkpoints, which `--overwrite_output_dir` gave up.
    stale: BTreeSet<u64>,
    /// The version of each file that the folder has.
    versions: HashMap<String, Version>,
    /// Bytes uploaded so far.
    bytes: u64,
}

impl Bucket {
    /// Looks at the folder, and whether it takes files.
    ///
    /// # Errors
    /// If it does not.
    pub fn begin(url: &str, plan: &RunPlan) -> Result<Bucket, Error> {
        let refused = |error: xtrain_objects::Error| {
            Error::failed(format!("--output_dir {url}: {error}")).with_hint(
                "see that the bucket exists and that the credentials may list, write and remove",
            )
        };
        let uploader = Uploader::begin(url, plan).map_err(refused)?;
        let work = |uploader: &mut Uploader, step| {
            uploader.pending.insert(step);
            let uploaded = uploader.upload().and_then(|()| uploader.prune(false));
            if let Err(error) = uploaded {
                warn(&error);
            }
        };
        Ok(Bucket {
            url: url.to_string(),
            worker: Worker::start("bucket", uploader, work)?,
        })
    }
}

impl Destination for Bucket {
    fn hook(&self, _: &Run) -> Box<dyn Hook> {
        Box::new(BucketHook(Some(self.worker.jobs())))
    }

    fn finish(self: Box<Self>, output_dir: &Path, _: &str) -> Result<(), Error> {
        let (url, dir) = (self.url, output_dir.display());
        let uploaded = self.worker.wait(&format!("the upload to {url}"));
        let uploaded = uploaded.and_then(|mut uploader| {
            say(&format!("uploading to {url}"));
            uploader.upload()?;
            uploader.prune(true)?;
            Ok(uploader.bytes)
        });
        let bytes = uploaded.map_err(|error| {
            let problem = format!("--output_dir {url}: {}", error.one_line());
            Error::failed(problem).with_hint(format!(
                "the run has ended well and everything is in {dir}; the same command with --resume_from_checkpoint uploads it"
            ))
        })?;
        outln!("uploaded {} to {url}", units::bytes(bytes));
        Ok(())
    }

    fn end(self: Box<Self>, _: &Path) {
        let uploaded = self.worker.wait(&format!("the upload to {}", self.url));
        if let Err(error) = uploaded.and_then(|mut uploader| uploader.upload()) {
            warn(&error);
        }
    }
}

fn warn(error: &Error) {
    say(&format!("warning: not uploaded: {}", error.one_line()));
}

/// Hands over each checkpoint when it is saved.
struct BucketHook(Option<Jobs<u64>>);

impl Hook for BucketHook {
    fn at_start(&mut self, context: &mut StepContext) -> TrainerResult<()> {
        if let Some(jobs) = self.0.take() {
            let listener = move |checkpoint: &Path| {
                if let Some(step) = checkpoint_step(checkpoint) {
                    jobs.send(step);
                }
            };
            context.run.checkpoints.listeners.push(Box::new(listener));
        }
        Ok(())
    }
}

impl Uploader {
    fn begin(url: &str, plan: &RunPlan) -> Result<Uploader, xtrain_objects::Error> {
        let flags = &plan.train.flags;
        let folder = Folder::open(url, &Effort::of_files())?;
        folder.put(TRIAL_FILE, Vec::new())?;
        folder.remove(TRIAL_FILE)?;
        let objects = folder.list_all()?;
        let names: BTreeSet<&str> = objects.iter().map(|object| &*object.name).collect();
        let mut uploader = Uploader {
            folder,
            output_dir: plan.train.output_dir.clone(),
            limit: *flags.save_total_limit,
            pending: BTreeSet::new(),
            stale: BTreeSet::new(),
            versions: HashMap::new(),
            bytes: 0,
        };
        let begins_anew = *flags.resume_from_checkpoint == Resume::No;
        if begins_anew && *flags.overwrite_output_dir && RankInfo::this_begins_job() {
            let found = checkpoint_files(names.iter().copied());
            uploader.stale = found.into_keys().collect();
        } else {
            uploader.pending = unsent_checkpoints(&uploader.output_dir, &names);
        }
        // A file that the folder has may be another machine's newer one: this run sends its version once it writes one.
        for (name, path) in finished_files(&uploader.output_dir) {
            if names.contains(&*name)
                && let Ok(Some(file)) = Opened::open(name, &path)
            {
                uploader.versions.insert(file.name, file.version);
            }
        }
        Ok(uploader)
    }

    /// Uploads whatever the folder lacks. A file that fails stops no checkpoint.
    fn upload(&mut self) -> Result<(), Error> {
        let files = self.upload_finished_files();
        files.and(self.upload_checkpoints())
    }

    fn upload_finished_files(&mut self) -> Result<(), Error> {
        for (name, path) in finished_files(&self.output_dir) {
            let opened = Opened::open(name, &path).map_err(failed("opening a file to upload"))?;
            if let Some(file) = opened {
                self.upload_file(file)?;
            }
        }
        Ok(())
    }

    /// The newest first.
    fn upload_checkpoints(&mut self) -> Result<(), Error> {
        for step in self.pending.clone().into_iter().rev() {
            let opened = Opened::checkpoint(&self.output_dir, step);
            // One that has been removed has a successor.
            if let Some(files) = opened.map_err(failed("opening a checkpoint to upload"))? {
                self.upload_checkpoint(step, files)?;
            }
            self.pending.remove(&step);
        }
        Ok(())
    }

    /// Removes the training state of an earlier checkpoint of this step first, since its other files are replaced.
    fn upload_checkpoint(&mut self, step: u64, files: Vec<Opened>) -> Result<(), Error> {
        let state = state_name(step);
        let removed = self.folder.remove(&state);
        removed.map_err(|error| Error::failed(format!("{state}: {error}")))?;
        self.versions.remove(&state);
        for file in files {
            self.upload_file(file)?;
        }
        self.stale.remove(&step);
        Ok(())
    }

    /// Sends a file unless the folder has this version of it.
    fn upload_file(&mut self, mut file: Opened) -> Result<(), Error> {
        if self.versions.get(&file.name) == Some(&file.version) {
            return Ok(());
        }
        let (bytes, _) = file.version;
        let sent = self.folder.upload(&file.name, bytes, &mut file.file);
        sent.map_err(|error| Error::failed(format!("{}: {error}", file.name)))?;
        self.versions.insert(file.name, file.version);
        self.bytes += bytes;
        Ok(())
    }

    /// Removes the stale checkpoints, once the run has ended or has a checkpoint in the folder, and as many of the
    /// oldest as are beyond the limit and no longer here.
    fn prune(&mut self, has_ended: bool) -> Result<(), Error> {
        if self.stale.is_empty() && self.limit.is_none() {
            return Ok(());
        }
        let removing = |error: xtrain_objects::Error| {
            Error::failed(format!("removing old checkpoints: {error}"))
        };
        let objects = self.folder.list_all().map_err(removing)?;
        let found = checkpoint_files(objects.iter().map(|object| &*object.name));
        let (mut gone, live): (Vec<u64>, Vec<u64>) = found
            .keys()
            .copied()
            .partition(|step| self.stale.contains(step));
        if live.is_empty() && !has_ended {
            return Ok(());
        }
        let limit = self.limit.unwrap_or(live.len());
        let surplus = live.len().saturating_sub(limit);
        let is_here = |step: u64| checkpoint_dir(&self.output_dir, step).is_dir();
        gone.extend(
            live.into_iter()
                .filter(|step| !is_here(*step))
                .take(surplus),
        );
        for step in gone {
            let (state, mut files) = (state_name(step), found[&step].clone());
            // Without its training state it is no checkpoint any more.
            files.sort_by_key(|name| *name != state);
            for name in files {
                self.folder.remove(name).map_err(removing)?;
            }
        }
        self.stale.clear();
        Ok(())
    }
}

/// Steps of the newest run's checkpoints that are complete here and not in the folder, whose files are `names`.
fn unsent_checkpoints(output_dir: &Path, names: &BTreeSet<&str>) -> BTreeSet<u64> {
    let found = list_checkpoints(output_dir).unwrap_or_default().into_iter();
    let runs: Vec<(u64, u64)> = found
        .filter_map(|(step, path)| Some((read_state(&path).ok()?.run, step)))
        .collect();
    let newest = runs.iter().map(|(run, _)| *run).max();
    let of_newest = runs.into_iter().filter(|(run, _)| Some(*run) == newest);
    let steps = of_newest.map(|(_, step)| step);
    steps
        .filter(|step| !names.contains(&*state_name(*step)))
        .collect()
}
