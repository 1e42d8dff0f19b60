//! Uploads of a run's files, to the Hub or a bucket, while it trains and when it has ended. A background thread uploads,
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

/// Where a run's files are uploaded to. [`Destination::finish`] and [`Destination::end`] wait until everyone who hands in
/// jobs is gone: drop the hook, and the run that has it, before you call one of them.
pub trait Destination {
    /// Hands over each checkpoint when it is saved.
    fn hook(&self, run: &Run) -> Box<dyn Hook>;

    /// Uploads what the finished run left; `pipeline_tag` is the Hub's word for the task.
    ///
    /// # Errors
    /// If not everything has arrived then.
    fn finish(self: Box<Self>, output_dir: &Path, pipeline_tag: &str) -> Result<(), Error>;

    /// Uploads what was handed over, and warns if that fails: the run is resumed another time.
    fn end(self: Box<Self>, output_dir: &Path);
}

/// A thread that does jobs in their order, with a state of type `S`.
pub(super) struct Worker<J, S> {
    jobs: Jobs<J>,
    thread: JoinHandle<S>,
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
    /// Whether a job is waiting or being done.
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Hands in a job; it never waits.
    pub fn send(&self, job: J) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // Fails if the thread has panicked, which `Worker::wait` reports.
        let _ = self.sender.send(job);
    }
}

impl<J: Send + 'static, S: Send + 'static> Worker<J, S> {
    /// # Errors
    /// If there is no thread to be had.
    pub fn start(
        name: &str,
        mut state: S,
        work: impl Fn(&mut S, J) + Send + 'static,
    ) -> Result<Worker<J, S>, Error> {
        let waiting = Arc::new(AtomicUsize::new(0));
        let (sender, received) = channel::<J>();
        let left = waiting.clone();
        let work = move || {
            for job in received {
                work(&mut state, job);
                left.fetch_sub(1, Ordering::AcqRel);
            }
            state
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        Ok(Worker {
            jobs: Jobs { sender, waiting },
            thread: thread.map_err(failed("starting the thread that uploads"))?,
        })
    }

    /// For whoever hands in jobs.
    pub fn jobs(&self) -> Jobs<J> {
        self.jobs.clone()
    }

    /// Waits for the jobs, which are named `doing`, and gives the state back. All other [`Jobs`] must be gone.
    ///
    /// # Errors
    /// If a job has panicked.
    pub fn wait(self, doing: &str) -> Result<S, Error> {
        if self.jobs.is_busy() {
            errln!("waiting for {doing}; a second signal ends it");
        }
        drop(self.jobs);
        let panicked = |_| Error::failed(format!("{doing} has panicked"));
        self.thread.join().map_err(panicked)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_gives_its_state_back_unless_a_job_panicked() {
        let sum = |jobs: &[u64]| {
            let add = |sum: &mut u64, job: u64| *sum += 6 / job;
            let worker = Worker::start("test", 0, add).unwrap();
            let handed_in = worker.jobs();
            jobs.iter().for_each(|job| handed_in.send(*job));
            drop(handed_in);
            worker.wait("the sum").map_err(|error| error.to_string())
        };
        assert_eq!(sum(&[]), Ok(0));
        assert_eq!(sum(&[1, 2]), Ok(9));
        assert_eq!(sum(&[1, 0, 2]), Err("the sum has panicked".into()));
    }
}
