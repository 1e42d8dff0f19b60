//! `--output_dir` in a bucket: the files that a run writes here are uploaded when a checkpoint is whole, and at the
//! end. Of a checkpoint the training state comes last, so that a folder without it is none that a run resumes from.
//!
//! A failed upload on the way is a warning, since the next one makes up for it; the last one's failure is the
//! command's, and costs no file.

use super::error::{Error, failed};
use super::run::Run;
use super::uploads::{Destination, Jobs, Worker, files_below, finished_files};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use xtrain_checkpoint::state::{RUN_FILE, TRAINING_STATE_FILE};
use xtrain_config::RunPlan;
use xtrain_objects::{Effort, Folder};
use xtrain_report::outln;
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::checkpoint_step;
use xtrain_report::units;
use xtrain_trainer::Result as TrainerResult;
use xtrain_trainer::run_loop::{Hook, StepContext};

/// Written and removed before a run begins, so that a bucket that takes nothing is no surprise at its end.
const TRIAL: &str = ".xtrain-trial";

/// The bucket of a run.
pub struct Bucket {
    url: String,
    /// As of the last upload: the folder as the run left it.
    result: Arc<Mutex<Result<u64, String>>>,
    worker: Worker<Job>,
}

/// An upload: first the files beside checkpoints, then those of one.
struct Job {
    beside: Vec<Opened>,
    checkpoint: Option<(String, Vec<Opened>)>,
}

/// A file that is uploaded as it was when it was opened, whatever happens to its name.
struct Opened {
    name: String,
    file: File,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Opened {
    fn open(name: String, path: &Path) -> io::Result<Opened> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        Ok(Opened {
            name,
            bytes: meta.len(),
            modified: meta.modified().ok(),
            file,
        })
    }
}

/// The thread's view of the folder.
struct Uploader {
    folder: Folder,
    dir: PathBuf,
    /// Checkpoints of an earlier run, which `--overwrite_output_dir` gave up.
    stale: BTreeSet<String>,
    /// How many checkpoints stay; `None`: all.
    limit: Option<usize>,
    /// Checkpoints that did not arrive.
    missed: BTreeSet<String>,
    /// Sizes and times of what was uploaded last.
    there: HashMap<String, (u64, Option<SystemTime>)>,
}

impl Bucket {
    /// Looks at the folder, and whether it takes files.
    ///
    /// # Errors
    /// If it does not.
    pub fn begin(url: &str, plan: &RunPlan) -> Result<Bucket, Error> {
        let flags = &plan.train.flags;
        let failed = |error: xtrain_objects::Error| {
            Error::failed(format!("--output_dir {url}: {error}")).with_hint(
                "see that the bucket exists and that the credentials may list, write and remove",
            )
        };
        let folder = Folder::open(url, &Effort::of_files()).map_err(failed)?;
        folder.put(TRIAL, Vec::new()).map_err(failed)?;
        folder.remove(TRIAL).map_err(failed)?;
        let mut uploader = Uploader {
            dir: plan.train.output_dir.clone(),
            stale: BTreeSet::new(),
            limit: *flags.save_total_limit,
            missed: BTreeSet::new(),
            there: HashMap::new(),
            folder,
        };
        if *flags.overwrite_output_dir {
            uploader.stale = uploader
                .checkpoints()
                .map_err(failed)?
                .into_keys()
                .collect();
        }
        let result = Arc::new(Mutex::new(Ok(0)));
        let last = result.clone();
        let work = move |job: Job| {
            let done = uploader.upload(job);
            if let Err(error) = &done {
                say(&format!("warning: not uploaded: {error}"));
            }
            *last.lock().unwrap_or_else(PoisonError::into_inner) = done;
        };
        Ok(Bucket {
            url: url.to_string(),
            result,
            worker: Worker::start("bucket", work)?,
        })
    }
}

impl Destination for Bucket {
    fn hook(&self, run: &Run) -> Box<dyn Hook> {
        Box::new(BucketHook(Some((
            run.plan.train.output_dir.clone(),
            self.worker.jobs(),
        ))))
    }

    fn finish(self: Box<Self>, output_dir: &Path, _: &str) -> Result<(), Error> {
        self.worker.jobs().send(Job {
            beside: opened(finished_files(output_dir))
                .map_err(failed("opening what is uploaded"))?,
            checkpoint: None,
        });
        self.worker.wait(&format!("the upload to {}", self.url));
        let result = self.result.lock();
        let result = result.unwrap_or_else(PoisonError::into_inner);
        match &*result {
            Ok(bytes) => outln!("uploaded {} to {}", units::bytes(*bytes), self.url),
            Err(error) => {
                let (dir, url) = (output_dir.display(), &self.url);
                return Err(Error::failed(format!("--output_dir {url}: {error}")).with_hint(format!(
                    "the run has ended well and everything is in {dir}; the same command with --resume_from_checkpoint uploads it"
                )));
            }
        }
        Ok(())
    }

    fn end(self: Box<Self>, output_dir: &Path) {
        if let Ok(beside) = opened(finished_files(output_dir)) {
            self.worker.jobs().send(Job {
                beside,
                checkpoint: None,
            });
        }
        self.worker.wait(&format!("the upload to {}", self.url));
    }
}

/// Has each checkpoint uploaded when it is saved.
struct BucketHook(Option<(PathBuf, Jobs<Job>)>);

impl Hook for BucketHook {
    fn at_start(&mut self, context: &mut StepContext) -> TrainerResult<()> {
        if let Some((dir, jobs)) = self.0.take() {
            let listener = move |checkpoint: &Path| match job(&dir, checkpoint) {
                Ok(job) => jobs.send(job),
                Err(error) => {
                    let shown = checkpoint.display();
                    say(&format!("warning: {shown} was not uploaded: {error}"));
                }
            };
            context.run.checkpoints.listeners.push(Box::new(listener));
        }
        Ok(())
    }
}

/// The upload of a checkpoint and of what is beside it. Opened here, where nobody removes it.
fn job(dir: &Path, checkpoint: &Path) -> io::Result<Job> {
    let name = checkpoint.file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    Ok(Job {
        beside: opened(finished_files(dir))?,
        checkpoint: Some((name.clone(), checkpoint_files(&name, checkpoint)?)),
    })
}

fn checkpoint_files(name: &str, checkpoint: &Path) -> io::Result<Vec<Opened>> {
    let files = files_below(checkpoint, &|_| true).into_iter();
    opened(
        files
            .map(|(file, path)| (format!("{name}/{file}"), path))
            .collect(),
    )
}

/// Files that went away since they were listed are left out.
fn opened(files: BTreeMap<String, PathBuf>) -> io::Result<Vec<Opened>> {
    let mut all = Vec::new();
    for (name, path) in files {
        match Opened::open(name, &path) {
            Ok(file) => all.push(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

impl Uploader {
    /// Uploads a job, and before it the checkpoints that did not arrive earlier; the bytes that were sent.
    fn upload(&mut self, job: Job) -> Result<u64, String> {
        let said = |error: io::Error| error.to_string();
        let mut bytes = 0;
        for name in std::mem::take(&mut self.missed) {
            let path = self.dir.join(&name);
            if path.is_dir() {
                let files = checkpoint_files(&name, &path).map_err(said)?;
                bytes += self.upload_checkpoint(name, files)?;
            }
        }
        for file in job.beside {
            bytes += self.upload_file(file)?;
        }
        if let Some((name, files)) = job.checkpoint {
            bytes += self.upload_checkpoint(name.clone(), files)?;
            let record = self.dir.join(RUN_FILE);
            if record.exists() {
                let record = Opened::open(RUN_FILE.to_string(), &record).map_err(said)?;
                bytes += self.upload_file(record)?;
            }
            self.prune(&name).map_err(|error| error.to_string())?;
        }
        Ok(bytes)
    }

    /// Uploads the training state last, after one that an earlier checkpoint of this name left has been removed.
    fn upload_checkpoint(&mut self, name: String, files: Vec<Opened>) -> Result<u64, String> {
        let state = format!("{name}/{TRAINING_STATE_FILE}");
        self.missed.insert(name.clone());
        let removed = self.folder.remove(&state);
        removed.map_err(|error| format!("{state}: {error}"))?;
        self.there.remove(&state);
        let (last, first): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.name == state);
        let mut bytes = 0;
        for file in first.into_iter().chain(last) {
            bytes += self.upload_file(file)?;
        }
        self.missed.remove(&name);
        Ok(bytes)
    }

    /// Nothing is sent of a file that is there as it is.
    fn upload_file(&mut self, mut file: Opened) -> Result<u64, String> {
        let state = (file.bytes, file.modified);
        if self.there.get(&file.name) == Some(&state) {
            return Ok(0);
        }
        let sent = self.folder.upload(&file.name, file.bytes, &mut file.file);
        sent.map_err(|error| format!("{}: {error}", file.name))?;
        self.there.insert(file.name, state);
        Ok(file.bytes)
    }

    /// The checkpoints in the folder with their files, those that are not whole too.
    fn checkpoints(&self) -> Result<BTreeMap<String, Vec<String>>, xtrain_objects::Error> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for object in self.folder.list_all()? {
            if let Some((name, _)) = object.name.split_once('/')
                && checkpoint_step(Path::new(name)).is_some()
            {
                found.entry(name.to_string()).or_default().push(object.name);
            }
        }
        Ok(found)
    }

    /// Removes the checkpoints that an earlier run left, and the oldest of those that are here no more until as
    /// many are left as were asked for.
    fn prune(&mut self, newest: &str) -> Result<(), xtrain_objects::Error> {
        if self.stale.is_empty() && self.limit.is_none() {
            return Ok(());
        }
        let found = self.checkpoints()?;
        let mut by_age: Vec<&String> = found.keys().collect();
        by_age.sort_by_key(|name| checkpoint_step(Path::new(name)));
        let mut left = by_age.len();
        for name in by_age {
            let is_stale = self.stale.contains(name);
            let is_surplus = self.limit.is_some_and(|limit| left > limit.max(1));
            let inside = format!("{name}/");
            let is_own = self.there.keys().any(|file| file.starts_with(&inside));
            let is_here = self.dir.join(name).is_dir();
            if name == newest || !(is_stale && !is_own || is_surplus && !is_here) {
                continue;
            }
            let files = &found[name];
            let is_state = |file: &&String| file.ends_with(&format!("/{TRAINING_STATE_FILE}"));
            let state = files.iter().filter(is_state);
            for file in state.chain(files.iter().filter(|file| !is_state(file))) {
                self.folder.remove(file)?;
            }
            left -= 1;
        }
        self.stale.clear();
        Ok(())
    }
}
