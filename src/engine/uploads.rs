//! Where a run's files go while it trains and when it has ended: the Hub, a bucket. A thread of its own uploads,
//! one job after the other, so that steps do not wait.

use super::error::{Error, failed};
use super::run::Run;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use xtrain_report::errln;
use xtrain_report::runs::checkpoints::CHECKPOINT_PREFIX;
use xtrain_trainer::run_loop::Hook;

/// A place that a run's files are uploaded to.
pub trait Destination {
    /// Hands over each checkpoint when it is saved.
    fn hook(&self, run: &Run) -> Box<dyn Hook>;

    /// Uploads what the finished run left; `pipeline_tag` is the Hub's word for the task.
    ///
    /// # Errors
    /// If it is not all there then.
    fn finish(self: Box<Self>, output_dir: &Path, pipeline_tag: &str) -> Result<(), Error>;

    /// Ends with what was handed over: the run goes on another time.
    fn end(self: Box<Self>, output_dir: &Path);
}

/// A thread that does jobs in their order.
pub(super) struct Worker<J> {
    jobs: Jobs<J>,
    thread: JoinHandle<()>,
}

/// Where jobs are handed in.
pub(super) struct Jobs<J> {
    sender: Sender<J>,
    /// Jobs that have not ended.
    waiting: Arc<AtomicUsize>,
}

impl<J> Clone for Jobs<J> {
    fn clone(&self) -> Self {
        Jobs {
            sender: self.sender.clone(),
            waiting: self.waiting.clone(),
        }
    }
}

impl<J> Jobs<J> {
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    pub fn send(&self, job: J) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The thread outlives the run.
        let _ = self.sender.send(job);
    }
}

impl<J: Send + 'static> Worker<J> {
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(name: &str, mut work: impl FnMut(J) + Send + 'static) -> Result<Worker<J>, Error> {
        let waiting = Arc::new(AtomicUsize::new(0));
        let (sender, received) = channel::<J>();
        let left = waiting.clone();
        let work = move || {
            for job in received {
                work(job);
                left.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        Ok(Worker {
            jobs: Jobs { sender, waiting },
            thread: thread.map_err(failed("starting the thread that uploads"))?,
        })
    }

    pub fn jobs(&self) -> Jobs<J> {
        self.jobs.clone()
    }

    /// Waits for what was handed in; `what` is being done. Whoever has [`Jobs`] must be gone.
    pub fn wait(self, what: &str) {
        if self.jobs.is_busy() {
            errln!("waiting for {what}; a second signal ends it");
        }
        drop(self.jobs);
        // A panic has been printed by its thread.
        let _ = self.thread.join();
    }
}

/// The files of an output directory by their paths in it: all but checkpoints and names that begin with
/// `_`; nor what is hidden, such as locks and what is being written.
pub(super) fn finished_files(output_dir: &Path) -> BTreeMap<String, PathBuf> {
    files_below(output_dir, &|name| {
        !name.starts_with('_') && !name.starts_with(CHECKPOINT_PREFIX)
    })
}

/// Files by their path below `dir`, of the entries of `dir` that are `wanted`.
pub(super) fn files_below(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    // A directory that cannot be read has nothing to upload; what it should have had is missed there.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name
            .to_str()
            .filter(|name| !name.starts_with('.') && wanted(name))
        else {
            continue;
        };
        if path.is_dir() {
            let below = files_below(&path, &|_| true).into_iter();
            files.extend(below.map(|(inner, path)| (format!("{name}/{inner}"), path)));
        } else {
            files.insert(name.to_string(), path);
        }
    }
    files
}
