//! Saving: checkpoints at their cadence and when a signal asks for the end, and the finished model.
//!
//! A checkpoint is written tensor by tensor while training waits, or in the background from a copy of the
//! state. Of the optimizer's state each of several processes has its share.

use super::best::Best;
use super::sharded_state::{ShardedStateWriter, not_finite, values_of};
use super::streamed::{Check, Source, Streamed, Written, take_part};
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::run_loop::{Batches, Control, Hook, Progress, StepContext, StepReport};
use crate::run_state::{CheckpointHistory, DATA_POSITION, RunState};
use crate::session::Session;
use crate::session::parameters::HostTensor;
use crate::settings::{Cadence, EvaluationTimes};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use xtrain_checkpoint::hf::{Form, Pretrained, TrainerState, save_pretrained};
use xtrain_checkpoint::optimizer::PeerWriters;
use xtrain_checkpoint::state::checkpoint_dir;
use xtrain_checkpoint::{CheckpointParts, Pace, TensorRef, TrainingState, prune, save_checkpoint};
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::process_group::Work;
use xtrain_graphs::DType;
use xtrain_report::accounting::{self, Part};
use xtrain_report::memory;

/// The keys of `config.json` for the weights' element type; transformers 5 has the shorter name.
pub const DTYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

/// What a saved directory holds besides tensors.
pub struct SavedModel {
    /// The whole model, or what was added to one.
    pub form: Form,
    /// The content of `config.json`, of an adapter `adapter_config.json`.
    pub config: Map<String, Value>,
    /// Name and content of files that go along as they are: the tokenizer's, `generation_config.json`,
    /// and what is remembered of the data.
    pub files: Vec<(String, Vec<u8>)>,
    /// Names of the parameters, in the order of the model's list.
    pub parameters: Vec<String>,
    /// Their names in the file, where those are others.
    pub saved_names: Option<Vec<String>>,
    /// Weights beyond this many bytes go into several files.
    pub max_shard_size: u64,
    /// The element type of the weights as they are trained, which checkpoints have.
    pub trained: DType,
    /// The element type of the finished model's weights; `None`: as they are trained.
    pub dtype: Option<DType>,
}

fn references(tensors: &[HostTensor]) -> Vec<TensorRef<'_>> {
    tensors
        .iter()
        .map(|t| TensorRef::new(t.name.as_str(), t.shape.clone(), &t.bytes))
        .collect()
}

impl SavedModel {
    /// `config.json` beside weights of this element type.
    fn config_with(&self, dtype: DType) -> Map<String, Value> {
        let mut config = self.config.clone();
        if self.form == Form::Adapter {
            return config;
        }
        let key = DTYPE_KEYS.into_iter().find(|key| config.contains_key(*key));
        // Without a key it is float32.
        if key.is_some() || dtype != DType::F32 {
            let key = key.unwrap_or("torch_dtype");
            config.insert(key.into(), torch_name(dtype).into());
        }
        config
    }

    fn written(&self) -> Written<'_> {
        let max_shard_size = match self.form {
            Form::Model => self.max_shard_size,
            Form::Adapter => u64::MAX,
        };
        (&self.parameters, max_shard_size)
    }

    /// Writes a Hugging Face directory with the session's weights as they are after `step`.
    pub fn save(
        &self,
        session: &mut Session,
        dir: &Path,
        step: u64,
        kept: &CheckpointHistory,
    ) -> Result<()> {
        let check = Check {
            pace: Pace::full(),
            step,
            kept: kept.sentence(),
        };
        let streamed = Streamed::new(session, &[self.written()], check, self.dtype)?;
        let config = self.config_with(self.dtype.unwrap_or(self.trained));
        let names = self.saved_names.as_deref();
        let pretrained = Pretrained {
            form: self.form,
            config: &config,
            weights: &named(streamed.tensors(&self.parameters)?, names),
            files: &self.files,
            max_shard_size: self.max_shard_size,
        };
        let saved = save_pretrained(dir, &pretrained);
        streamed.finish()?;
        Ok(saved?)
    }

    /// What a process does while another one calls [`SavedModel::save`].
    pub fn take_part(&self, session: &mut Session) -> Result<()> {
        take_part(session, &[self.written()], self.dtype)
    }
}

/// Tensors of a model's parameters, with their names in the file.
fn named<'t>(tensors: Vec<TensorRef<'t>>, names: Option<&[String]>) -> Vec<TensorRef<'t>> {
    let Some(names) = names else { return tensors };
    let pairs = tensors.into_iter().zip(names);
    pairs
        .map(|(tensor, name)| tensor.saved_as(name.clone()))
        .collect()
}

/// What torch calls a float type.
fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}

/// The tensors of the optimizer's state that this process writes, where several write it.
struct Share {
    writer: ShardedStateWriter,
    tensors: Vec<HostTensor>,
}

impl Share {
    /// Writes them into the checkpoint that rank 0 has begun, which reports what is not worth saving: it
    /// knows the last good checkpoint.
    fn write(&self, output_dir: &Path, check: &Check) -> Result<()> {
        let broken = self.tensors.iter().find(|tensor| !check.is_finite(tensor));
        let broken = broken.map(|tensor| tensor.name.as_str());
        let tensors = references(&self.tensors);
        (self.writer).write(output_dir, &tensors, broken, &check.pace)
    }
}

/// What a checkpoint holds besides tensors, and their names.
struct Unwritten {
    output_dir: PathBuf,
    form: Form,
    parameters: Vec<String>,
    optimizer_state: Vec<String>,
    saved_names: Option<Vec<String>>,
    config: Map<String, Value>,
    files: Vec<(String, Vec<u8>)>,
    max_shard_size: u64,
    /// The model is saved alone.
    only_model: bool,
    trainer_state: TrainerState,
    state: TrainingState,
}

impl Unwritten {
    /// Writes the checkpoint from what is streamed, of the optimizer's state this process's share where
    /// others have one.
    fn write<S: Source>(
        &self,
        streamed: Streamed<S>,
        share: Option<&Share>,
        check: &Check,
    ) -> Result<PathBuf> {
        let mut own = share.into_iter().flat_map(|share| &share.tensors);
        let is_good = own.try_for_each(|tensor| check.check(tensor));
        let written = is_good.and_then(|()| self.write_parts(&streamed, share, &check.pace));
        // If it is not good, the others are reading the weights together with this process.
        let written = streamed.finish().and(written);
        if let (Err(_), Some(share)) = (&written, share) {
            share.writer.give_up();
        }
        written
    }

    fn write_parts<S: Source>(
        &self,
        streamed: &Streamed<S>,
        share: Option<&Share>,
        pace: &Pace,
    ) -> Result<PathBuf> {
        let optimizer = match share {
            Some(share) => references(&share.tensors),
            None => streamed.tensors(&self.optimizer_state)?,
        };
        let weights = streamed.tensors(&self.parameters)?;
        let parts = CheckpointParts {
            model: Pretrained {
                form: self.form,
                config: &self.config,
                weights: &named(weights, self.saved_names.as_deref()),
                files: &self.files,
                max_shard_size: self.max_shard_size,
            },
            optimizer: (!self.only_model).then_some(&optimizer[..]),
            peer_writers: share.map(|share| &share.writer as &dyn PeerWriters),
            trainer_state: &self.trainer_state,
            state: &self.state,
            pace,
        };
        Ok(save_checkpoint(&self.output_dir, &parts)?)
    }
}

/// A checkpoint that is being written while the next steps run.
pub struct Background {
    /// Gives the path of the checkpoint to the process that finishes it. `None` when it has been
    /// waited for.
    thread: Option<JoinHandle<Result<Option<PathBuf>>>>,
    /// That of the thread.
    pace: Pace,
    /// Of the checkpoint to be.
    path: PathBuf,
    step: u64,
    began: Instant,
    /// How long the steps waited for the copy of the state.
    copied: Duration,
}

impl Background {
    fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn wait(&mut self) -> Result<Option<PathBuf>> {
        let thread = self.thread.take().expect("it is waited for once");
        self.pace.hurry();
        match thread.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Background {
    /// A run that ends with an error still has the checkpoint that it had begun.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.pace.hurry();
            let _ = thread.join();
        }
    }
}

/// Where and when checkpoints are saved, and how.
pub struct SaveSettings {
    /// Where the `checkpoint-N` directories are made.
    pub output_dir: PathBuf,
    /// When checkpoints are saved.
    pub cadence: Cadence,
    /// Keep only the N newest `checkpoint-N` directories, and the best one.
    pub total_limit: Option<usize>,
    /// Write checkpoints while the next steps run, from a copy of the state; `None`: where memory
    /// allows.
    pub in_background: Option<bool>,
    /// Checkpoints hold the model alone, without what a resumed run needs.
    pub only_model: bool,
}

/// Saves checkpoints at their cadence, and one when a signal asks for the end.
pub struct SaveHook<'a> {
    /// Where, when and how.
    pub settings: SaveSettings,
    /// When evaluations decide which step is the best.
    pub evaluations: EvaluationTimes,
    /// What `trainer_state.json` says of the run at each of its steps.
    pub trainer_state: TrainerState,
    /// The files that every checkpoint has besides tensors.
    pub model: &'a SavedModel,
    /// Names of the optimizer's state; none where the model is saved alone.
    pub optimizer_state: Vec<String>,
    /// The position-independent part of the training state.
    pub state: TrainingState,
    /// The signal that asks for the end, if signals are taken over.
    pub interrupt: Option<Interrupt>,
    /// Whether this process writes; others of the run only take part in what is decided.
    pub writes: bool,
    /// The checkpoint that is being written in the background.
    pub background: Option<Background>,
}

/// `trainer_state.json` at this point of a run; `constant` has what it says at every step.
pub fn trainer_state(constant: &TrainerState, run: &RunState, progress: &Progress) -> TrainerState {
    TrainerState {
        epoch: progress.epoch,
        global_step: progress.step,
        log_history: run.log.history().to_vec(),
        max_steps: progress.max_steps,
        num_input_tokens_seen: run.totals.tokens_seen as u64,
        total_flos: run.totals.total_flops,
        ..constant.clone()
    }
}

impl SaveHook<'_> {
    /// Whether this checkpoint is written while the next steps run. The last one is not: nothing
    /// would run meanwhile. All ranks call it at the same step, and get the same answer.
    fn goes_to_background(&self, session: &Session, step: u64, is_last: bool) -> Result<bool> {
        if is_last {
            return Ok(false);
        }
        if let Some(asked) = self.settings.in_background {
            return Ok(asked);
        }
        // The processes of one machine copy this much together.
        let bytes = |name: &String| {
            let held = session.shape(name);
            held.map_or(0, |held| {
                session.placements().whole(name, held).bytes() as u64
            })
        };
        let state: u64 = self.names().map(bytes).sum();
        let fits = memory::available().is_some_and(|free| state <= free / 2);
        match ProcessGroup::joined() {
            Some(group) => Ok(group.all_agree(&values_of(step), "background", fits)?),
            None => Ok(fits),
        }
    }

    /// Everything that is saved by its name.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.model.parameters.iter().chain(&self.optimizer_state)
    }

    fn unwritten(&self, progress: &Progress, batches: &dyn Batches, run: &RunState) -> Unwritten {
        let mut state = TrainingState {
            global_step: progress.step,
            epoch: progress.next_epoch,
            batch_in_epoch: progress.next_batch,
            accumulators: run.totals.to_map(),
            ..self.state.clone()
        };
        state.accumulators.extend(run.measured.to_map());
        if let Some(plateau) = &run.plateau {
            state.accumulators.extend(plateau.to_map());
        }
        let mut files = self.model.files.clone();
        let only_model = self.settings.only_model;
        if let Some(position) = batches.position().filter(|_| !only_model) {
            state
                .extra
                .insert(DATA_POSITION.to_string(), position.state);
            files.extend(position.files);
        }
        let output_dir = self.settings.output_dir.clone();
        let mut trainer_state = trainer_state(&self.trainer_state, run, progress);
        if let Some(best) = &run.best {
            best.describe(&mut trainer_state, &output_dir, Some(progress.step));
        }
        Unwritten {
            output_dir,
            form: self.model.form,
            parameters: self.model.parameters.clone(),
            optimizer_state: self.optimizer_state.clone(),
            saved_names: self.model.saved_names.clone(),
            config: self.model.config_with(self.model.trained),
            files,
            max_shard_size: self.model.max_shard_size,
            only_model,
            trainer_state,
            state,
        }
    }

    /// What is streamed, in the order of a checkpoint: the optimizer's state too, unless several
    /// processes write it.
    fn written(&self, is_shared: bool) -> Vec<Written<'_>> {
        let optimizer = (&self.optimizer_state[..], u64::MAX);
        let weights = [self.model.written()];
        weights
            .into_iter()
            .chain((!is_shared).then_some(optimizer))
            .collect()
    }

    /// Reads this process's share of the optimizer's state, where several processes write it. All ranks
    /// call it at the same step.
    fn share(&self, session: &mut Session, step: u64) -> Result<Option<Share>> {
        let names = &self.optimizer_state;
        let writer = ShardedStateWriter::of(session, names, step, &self.settings.output_dir)?;
        let Some(writer) = writer else {
            return Ok(None);
        };
        let tensors = writer.download(session)?;
        Ok(Some(Share { writer, tensors }))
    }

    /// Begins to write in the background; since `began` the steps have waited for a copy.
    fn start(
        &self,
        began: Instant,
        check: Check,
        write: impl FnOnce(&Check) -> Result<Option<PathBuf>> + Send + 'static,
    ) -> Result<Background> {
        let (pace, step) = (check.pace.clone(), check.step);
        let write = move || write(&check);
        let thread = std::thread::Builder::new().name("save".into()).spawn(write);
        let thread = thread.map_err(|source| Error::Io {
            path: self.settings.output_dir.clone(),
            source,
        })?;
        Ok(Background {
            thread: Some(thread),
            pace,
            path: checkpoint_dir(&self.settings.output_dir, step),
            step,
            began,
            copied: began.elapsed(),
        })
    }

    /// Waits for the checkpoint in the background, if there is one.
    fn wait(&mut self, run: &mut RunState) -> Result<()> {
        let Some(mut background) = self.background.take() else {
            return Ok(());
        };
        let path = background.wait().inspect_err(|error| {
            let reason = match error {
                Error::NotWorthSaving { tensor, .. } => not_finite(tensor),
                other => other.to_string(),
            };
            run.checkpoints.unsaved = Some((background.path.clone(), reason));
        })?;
        let Some(path) = path else {
            return Ok(());
        };
        let Background {
            began,
            copied,
            step,
            ..
        } = background;
        let line = format!(
            "saved {} in {:.1} s in the background, steps waited {:.1} s",
            path.display(),
            began.elapsed().as_secs_f64(),
            copied.as_secs_f64()
        );
        run.log.note(&line);
        self.saved(path, step, run)
    }

    fn saved(&self, path: PathBuf, step: u64, run: &mut RunState) -> Result<()> {
        if let Some(group) = ProcessGroup::joined() {
            group.saved(step);
        }
        for listener in &mut run.checkpoints.listeners {
            listener(&path);
        }
        run.checkpoints.newest = Some(path);
        run.checkpoints.remove_stale()
    }

    /// Keeps as many checkpoints as were asked for, the newest and the best among them.
    fn prune(&self, run: &RunState) -> Result<()> {
        let Some(newest) = run.checkpoints.newest.as_ref().filter(|_| self.writes) else {
            return Ok(());
        };
        let best = run
            .best
            .as_ref()
            .and_then(|best| best.checkpoint(&self.settings.output_dir));
        let protected: Vec<&Path> = std::iter::once(newest.as_path())
            .chain(best.as_deref())
            .collect();
        prune(
            &self.settings.output_dir,
            self.settings.total_limit,
            &protected,
        )?;
        Ok(())
    }

    /// As transformers: a run that saves every N steps also saves its last one.
    fn is_due(&self, progress: &Progress) -> bool {
        let save = self.settings.cadence;
        save.is_due(progress)
            // Whether it was the best is known when it was made.
            || (save == Cadence::Best && self.evaluations.include(progress))
            || (progress.is_last() && matches!(save, Cadence::Steps(_)))
    }

    /// The signal that ends the run with this step.
    fn signal(&self, step: u64) -> Result<Option<i32>> {
        Ok(self
            .interrupt
            .as_ref()
            .map(|interrupt| interrupt.ends_with(step))
            .transpose()?
            .flatten())
    }
}

impl Hook for SaveHook<'_> {
    fn reported(&mut self, report: &StepReport, run: &mut RunState) -> Result<()> {
        if self
            .background
            .as_ref()
            .is_some_and(Background::is_finished)
        {
            self.wait(run)?;
        }
        // A skipped step proves nothing.
        if report.metrics.is_skipped() {
            return Ok(());
        }
        // The loop only reports finite losses, so this step shows that the newest checkpoint is a
        // good one.
        let kept = &mut run.checkpoints;
        if kept.newest == kept.proven {
            return Ok(());
        }
        kept.proven = kept.newest.clone();
        self.prune(run)
    }

    fn wants(&mut self, progress: &Progress) -> bool {
        // A question that fails is asked again in `at_step`, which can say so.
        self.is_due(progress) || !matches!(self.signal(progress.step), Ok(None))
    }

    fn at_step(&mut self, context: &mut StepContext) -> Result<Control> {
        let StepContext {
            progress,
            session,
            batches,
            run,
        } = context;
        let _saving = (
            accounting::enter(Part::Saving),
            ProcessGroup::at_work(Work::Saving),
        );
        // Read before saving, so that a signal during the save is answered after the next step, not
        // with a second save.
        let signal = self.signal(progress.step)?;
        let control = if signal.is_some() {
            Control::Stop
        } else {
            Control::Continue
        };
        let best = run.best.as_ref().and_then(Best::found);
        let is_best = best.is_some_and(|(_, step)| step == progress.step);
        if self.settings.cadence == Cadence::Best && !is_best && signal.is_none() {
            return Ok(control);
        }
        self.wait(run)?;
        let stops_early = run.best.as_ref().is_some_and(|best| best.should_stop());
        let is_last = progress.is_last() || signal.is_some() || stops_early;
        let in_background = self.goes_to_background(session, progress.step, is_last)?;
        let began = Instant::now();
        let pace = if in_background {
            Pace::background()
        } else {
            Pace::full()
        };
        let check = Check {
            pace,
            step: progress.step,
            kept: run.checkpoints.sentence(),
        };
        let share = self.share(session, progress.step)?;
        let lists = self.written(share.is_some());
        if !self.writes {
            take_part(session, &lists, None)?;
            let Some(share) = share else {
                return Ok(control);
            };
            let output_dir = self.settings.output_dir.clone();
            let write = move |check: &Check| share.write(&output_dir, check).map(|()| None);
            if in_background {
                self.background = Some(self.start(began, check, write)?);
            } else {
                write(&check)?;
            }
            return Ok(control);
        }
        run.log.keep_directory();
        let unwritten = self.unwritten(progress, *batches, run);
        let streamed = Streamed::new(session, &lists, check.clone(), None)?;
        if in_background {
            let copy = streamed.copy()?;
            let write = move |check: &Check| unwritten.write(copy, share.as_ref(), check).map(Some);
            self.background = Some(self.start(began, check, write)?);
            return Ok(control);
        }
        let path = unwritten.write(streamed, share.as_ref(), &check)?;
        let seconds = began.elapsed().as_secs_f64();
        run.log
            .note(&format!("saved {} in {seconds:.1} s", path.display()));
        self.saved(path, progress.step, run)?;
        Ok(control)
    }

    fn finish(&mut self, run: &mut RunState, is_complete: bool) -> Result<()> {
        let _saving = (
            accounting::enter(Part::Saving),
            ProcessGroup::at_work(Work::Saving),
        );
        self.wait(run)?;
        if is_complete {
            // No step follows that could prove the last one. It may be what a run began with that was
            // killed before it came to this.
            self.prune(run)
        } else {
            Ok(())
        }
    }
}
