//! `--push_to_hub`: checkpoints in the background while the run goes on, and the finished directory
//! at the end.
//!
//! The last push has a model card, `README.md`, made from the run's log: here and on the Hub one that
//! somebody wrote stays.
//!
//! A failed push on the way is a warning, since a later one makes up for it; the last one's failure
//! is the command's, and costs no file.

use super::error::{Error, failed};
use super::run::Run;
use super::uploads::{Destination, Jobs, Worker, files_below, finished_files};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xtrain_checkpoint::hf::{
    ADAPTER_CONFIG_FILE, CONFIG_FILE, GENERATION_CONFIG_FILE, TRAINER_STATE_FILE, read_object,
};
use xtrain_checkpoint::weights::ADAPTER_WEIGHTS_FILE;
use xtrain_checkpoint::{atomic, files};
use xtrain_config::{HubStrategy, PushPlan};
use xtrain_hub::{self as hub, Addition, Repository};
use xtrain_report::outln;
use xtrain_report::page;
use xtrain_report::progress::say;
use xtrain_report::runs::checkpoints::checkpoint_step;
use xtrain_report::runs::read;
use xtrain_report::units;
use xtrain_trainer::Result as TrainerResult;
use xtrain_trainer::run_loop::{Hook, StepContext};
use xtrain_trainer::settings::Cadence;

/// The model card's file.
const CARD_FILE: &str = "README.md";

/// The repository of a run.
pub struct Push {
    /// The repository's name.
    name: String,
    plan: PushPlan,
    worker: Worker<Job, Repository>,
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
        let repository = repository.map_err(failed("--push_to_hub"))?;
        let work = |repository: &mut Repository, job: Job| {
            if let Err(error) = repository.commit(&job.files, &job.message) {
                say(&format!(
                    "warning: \"{}\" was not pushed: {error}",
                    job.message
                ));
            }
        };
        Ok(Push {
            name: repository.name().to_string(),
            plan: plan.clone(),
            worker: Worker::start("push", repository, work)?,
        })
    }

    /// Waits for the pushes of checkpoints.
    fn wait(self) -> Result<Repository, Error> {
        self.worker.wait(&format!("the push to {}", self.name))
    }
}

impl Destination for Push {
    /// Pushes checkpoints, where the strategy wants them pushed.
    fn hook(&self, run: &Run) -> Box<dyn Hook> {
        let settings = &run.plan.train;
        let files = run.files_beside_tensors().into_iter();
        Box::new(PushHook(Some(Checkpoints {
            output_dir: settings.output_dir.clone(),
            model_files: files.map(|(name, _)| name).collect(),
            by_steps: matches!(settings.save, Cadence::Steps(_) | Cadence::Share(_)),
            strategy: self.plan.strategy,
            always: self.plan.always,
            jobs: self.worker.jobs(),
        })))
    }

    fn end(self: Box<Self>, _: &Path) {
        if let Err(error) = self.wait() {
            say(&format!("warning: {error}"));
        }
    }

    /// Pushes the finished directory with its model card.
    fn finish(self: Box<Self>, output_dir: &Path, pipeline_tag: &str) -> Result<(), Error> {
        let (dir, name) = (output_dir.display(), self.name.clone());
        let hint = format!(
            "the run has ended well and everything is in {dir}; `hf upload {name} {dir}` pushes it, and so does the same command \
             with --resume_from_checkpoint"
        );
        let repository = self.wait().map_err(|error| error.with_hint(hint.clone()))?;
        let card = write_card(output_dir, &repository, pipeline_tag);
        let pushed = card.and_then(|card| {
            let mut files = pushed_files(output_dir);
            files.extend(card.map(|path| (CARD_FILE.to_string(), path)));
            let files = additions(files)?;
            let bytes: u64 = files.iter().map(Addition::size).sum();
            let is_news = repository.commit(&files, "End of training")?;
            Ok((files.len(), bytes, is_news))
        });
        let (count, bytes, is_news) =
            pushed.map_err(|error| Error::failed(format!("{error}")).with_hint(hint))?;
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
        if let Some(pushed) = self
            .0
            .take()
            .filter(|pushed| pushed.strategy != HubStrategy::End)
        {
            let listener = Box::new(move |checkpoint: &Path| pushed.push(checkpoint));
            context.run.checkpoints.listeners.push(listener);
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
    jobs: Jobs<Job>,
}

impl Checkpoints {
    /// Pushes a checkpoint in the background, unless the last push is still under way.
    fn push(&self, checkpoint: &Path) {
        if !self.always && self.jobs.is_busy() {
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
            Ok(files) => self.jobs.send(Job { files, message }),
            Err(error) => say(&format!("warning: \"{message}\" was not pushed: {error}")),
        }
    }

    /// The directory as it is, with the checkpoint's model, and the checkpoint itself if it is
    /// wanted.
    fn files(&self, checkpoint: &Path, name: &str) -> BTreeMap<String, PathBuf> {
        let mut files = pushed_files(&self.output_dir);
        let is_model = |name: &str| {
            [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, CONFIG_FILE].contains(&name)
                || name == GENERATION_CONFIG_FILE
                || (name.starts_with("model") && name.contains(".safetensors"))
                || self.model_files.iter().any(|file| file == name)
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

/// What the Trainer pushes of an output directory. A model card that was made is left to the last push, which
/// makes it anew.
fn pushed_files(output_dir: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = finished_files(output_dir);
    files.retain(|name, path| name != CARD_FILE || !is_generated(path));
    files
}

fn additions(files: BTreeMap<String, PathBuf>) -> Result<Vec<Addition>, hub::Error> {
    let open = |(name, path): (String, PathBuf)| Addition::open(name, &path);
    files.into_iter().map(open).collect()
}
