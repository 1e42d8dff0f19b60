//! `--push_to_hub`: checkpoints in the background while the run goes on, and the finished directory
//! at the end.
//!
//! The last push has a model card, `README.md`, made from the run's log: here and on the Hub one that
//! somebody wrote stays.
//!
//! A failed push on the way is a warning, since a later one makes up for it; the last one's failure
//! is the command's, and costs no file.

use super::error::{Error, failed};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use xtrain_checkpoint::hf::{
    ADAPTER_CONFIG_FILE, CONFIG_FILE, GENERATION_CONFIG_FILE, TRAINER_STATE_FILE, read_object,
};
use xtrain_checkpoint::weights::ADAPTER_WEIGHTS_FILE;
use xtrain_checkpoint::{atomic, files};
use xtrain_config::{HubStrategy, PushPlan};
use xtrain_hub::{self as hub, Addition, Repository};
use xtrain_report::page;
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::{CHECKPOINT_PREFIX, checkpoint_step};
use xtrain_report::runs::read;
use xtrain_report::units;
use xtrain_report::{errln, outln};
use xtrain_trainer::Result as TrainerResult;
use xtrain_trainer::run_loop::{Hook, StepContext};
use xtrain_trainer::settings::Cadence;

/// The model card's file.
const CARD_FILE: &str = "README.md";

/// The repository of a run, and the thread that commits to it one push after the other.
pub struct Push {
    repository: Arc<Repository>,
    plan: PushPlan,
    jobs: Sender<Job>,
    /// Pushes that have not ended.
    waiting: Arc<AtomicUsize>,
    worker: JoinHandle<()>,
}

/// A commit to make.
struct Job {
    files: Vec<Addition>,
    message: String,
}

impl Push {
    /// Makes the repository, so that a token or a name that will not do ends a run before it
    /// begins.
    ///
    /// # Errors
    /// If the Hub refuses or does not answer.
    pub fn begin(plan: &PushPlan) -> Result<Push, Error> {
        let revision = plan.revision.as_deref();
        let repository = Repository::create(&plan.hub, &plan.name, plan.private, revision);
        let repository = Arc::new(repository.map_err(failed("--push_to_hub"))?);
        let waiting = Arc::new(AtomicUsize::new(0));
        let (jobs, received) = channel::<Job>();
        let (target, left) = (repository.clone(), waiting.clone());
        let work = move || {
            for job in received {
                if let Err(error) = target.commit(&job.files, &job.message) {
                    say(&format!(
                        "warning: \"{}\" was not pushed: {error}",
                        job.message
                    ));
                }
                left.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let worker = std::thread::Builder::new().name("push".into()).spawn(work);
        let worker = worker.map_err(failed("starting the thread that pushes"))?;
        Ok(Push {
            repository,
            plan: plan.clone(),
            jobs,
            waiting,
            worker,
        })
    }

    /// What pushes checkpoints, where the strategy wants them pushed.
    pub fn hook(&self, save: Cadence, output_dir: &Path, model_files: Vec<String>) -> PushHook {
        PushHook(Some(Checkpoints {
            output_dir: output_dir.to_path_buf(),
            model_files,
            by_steps: matches!(save, Cadence::Steps(_) | Cadence::Share(_)),
            strategy: self.plan.strategy,
            always: self.plan.always,
            jobs: self.jobs.clone(),
            waiting: self.waiting.clone(),
        }))
    }

    /// Waits for the pushes of checkpoints. The run that saved them must be gone.
    fn wait(self) -> Arc<Repository> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            let name = self.repository.name();
            errln!("waiting for the push to {name}; a second signal ends it");
        }
        drop(self.jobs);
        // A panic has been printed by its thread.
        let _ = self.worker.join();
        self.repository
    }

    /// Ends without a last push: the run goes on another time.
    pub fn end(self) {
        self.wait();
    }

    /// Pushes the finished directory with its model card; `pipeline_tag` is the Hub's word for the
    /// task.
    ///
    /// # Errors
    /// If it is not all on the Hub then.
    pub fn finish(self, output_dir: &Path, pipeline_tag: &str) -> Result<(), Error> {
        let repository = self.wait();
        let card = write_card(output_dir, &repository, pipeline_tag);
        let pushed = card.and_then(|card| {
            let mut files = finished_files(output_dir);
            files.extend(card.map(|path| (CARD_FILE.to_string(), path)));
            let files = additions(files)?;
            let bytes: u64 = files.iter().map(Addition::size).sum();
            let is_news = repository.commit(&files, "End of training")?;
            Ok((files.len(), bytes, is_news))
        });
        let (count, bytes, is_news) = pushed.map_err(|error| {
            let (dir, name) = (output_dir.display(), repository.name());
            Error::failed(format!("{error}")).with_hint(format!(
                "the run has ended well and everything is in {dir}; `hf upload {name} {dir}` pushes it, and so does the same command \
                 with --resume_from_checkpoint"
            ))
        })?;
        let url = repository.url();
        if is_news {
            outln!("pushed {count} files ({}) to {url}", units::bytes(bytes))
        } else {
            outln!("{url} has everything already")
        }
        Ok(())
    }
}

/// Writes the model card and says where it is, if it is to be pushed.
fn write_card(
    output_dir: &Path,
    repository: &Repository,
    pipeline_tag: &str,
) -> Result<Option<PathBuf>, hub::Error> {
    let path = output_dir.join(CARD_FILE);
    if path.exists() && !is_generated(&path) {
        return Ok(None);
    }
    let name = repository.name();
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    let made = read(&[output_dir.to_path_buf()]).map_err(|error| error.to_string());
    let made = made.and_then(|runs| {
        let text = page::card(&runs[0], name, pipeline_tag);
        atomic::write_bytes(&path, text.as_bytes()).map_err(|error| error.to_string())
    });
    if let Err(error) = made {
        say(&format!("warning: no model card: {error}"));
        return Ok(None);
    }
    let there = repository.text(CARD_FILE)?;
    if there.is_some_and(|text| !page::is_generated(&text)) {
        say(&format!(
            "note: the {CARD_FILE} of {} stays: somebody wrote it",
            repository.url()
        ));
        return Ok(None);
    }
    Ok(Some(path))
}

/// Whether a model card is one of a run's own.
fn is_generated(path: &Path) -> bool {
    files::read(path).is_ok_and(|text| page::is_generated(&String::from_utf8_lossy(&text)))
}

/// Has each checkpoint pushed when it is saved.
pub struct PushHook(Option<Checkpoints>);

impl Hook for PushHook {
    fn at_start(&mut self, context: &mut StepContext) -> TrainerResult<()> {
        if let Some(pushed) = self.0.take().filter(|own| own.strategy != HubStrategy::End) {
            let listener = Box::new(move |checkpoint: &Path| pushed.push(checkpoint));
            context.run.checkpoints.listener = Some(listener);
        }
        Ok(())
    }
}

/// How checkpoints are pushed.
struct Checkpoints {
    output_dir: PathBuf,
    model_files: Vec<String>,
    /// Commits are named by steps; else by epochs, as the Trainer's are.
    by_steps: bool,
    strategy: HubStrategy,
    always: bool,
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Checkpoints {
    /// Pushes a checkpoint in the background, unless the last push is still under way.
    fn push(&self, checkpoint: &Path) {
        if !self.always && self.waiting.load(Ordering::Acquire) > 0 {
            return;
        }
        let name = checkpoint.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let message = if self.by_steps {
            let step = checkpoint_step(checkpoint).unwrap_or_default();
            format!("Training in progress, step {step}")
        } else {
            let state = read_object(&checkpoint.join(TRAINER_STATE_FILE)).unwrap_or_default();
            let epoch = state.get("epoch").and_then(Value::as_f64);
            format!(
                "Training in progress, epoch {}",
                epoch.unwrap_or(0.0) as u64
            )
        };
        // Opened here, where nobody removes it.
        match additions(self.files(checkpoint, &name)) {
            Ok(files) => {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                // The thread outlives the run.
                let _ = self.jobs.send(Job { files, message });
            }
            Err(error) => say(&format!("warning: \"{message}\" was not pushed: {error}")),
        }
    }

    /// The directory as it is, with the checkpoint's model, and the checkpoint itself if it is
    /// wanted.
    fn files(&self, checkpoint: &Path, name: &str) -> BTreeMap<String, PathBuf> {
        let mut files = finished_files(&self.output_dir);
        let is_model = |name: &str| {
            [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, CONFIG_FILE].contains(&name)
                || name == GENERATION_CONFIG_FILE
                || (name.starts_with("model") && name.contains(".safetensors"))
                || self.model_files.iter().any(|own| own == name)
        };
        let saved = files_below(checkpoint, &|_| true);
        let model = saved.iter().filter(|(name, _)| is_model(name));
        files.extend(model.map(|(name, path)| (name.clone(), path.clone())));
        let folder = match self.strategy {
            HubStrategy::End | HubStrategy::EverySave => return files,
            HubStrategy::Checkpoint => "last-checkpoint".to_string(),
            HubStrategy::AllCheckpoints => name.to_string(),
        };
        let whole = saved.into_iter();
        files.extend(whole.map(|(name, path)| (format!("{folder}/{name}"), path)));
        files
    }
}

/// What the Trainer pushes of an output directory: all but checkpoints and names that begin with
/// `_`; nor what is hidden, such as locks and what is being written. A model card that was made is
/// left to the last push, which makes it anew.
fn finished_files(output_dir: &Path) -> BTreeMap<String, PathBuf> {
    let is_made_anew = |name: &str| name == CARD_FILE && is_generated(&output_dir.join(name));
    files_below(output_dir, &|name| {
        !name.starts_with('_') && !name.starts_with(CHECKPOINT_PREFIX) && !is_made_anew(name)
    })
}

/// Files by their path below `dir`, of the entries of `dir` that are `wanted`.
fn files_below(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    // A directory that cannot be read has nothing to push; what it should have had is missed there.
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

fn additions(files: BTreeMap<String, PathBuf>) -> Result<Vec<Addition>, hub::Error> {
    let open = |(name, path): (String, PathBuf)| Addition::open(name, &path);
    files.into_iter().map(open).collect()
}
