//! Saving: checkpoints at their cadence and when a signal asks for the end, and the finished model.

use super::sharded_state::ShardedStateWriter;
use crate::checkpoint::hf::{Pretrained, TrainerState, save_pretrained};
use crate::checkpoint::optimizer::PeerWriters;
use crate::checkpoint::{CheckpointParts, TensorRef, TrainingState, prune, save_checkpoint};
use crate::trainer::error::{Error, Result};
use crate::trainer::interrupt::Interrupt;
use crate::trainer::run_loop::{Batches, Control, Hook, Progress, StepContext, StepReport};
use crate::trainer::run_state::{CheckpointHistory, DATA_POSITION, RunState};
use crate::trainer::session::Session;
use crate::trainer::session::parameters::{HostTensor, download, is_finite, take_part_in_download};
use crate::trainer::settings::{Cadence, TrainSettings};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What a saved directory holds besides tensors.
pub struct SavedModel {
    pub config: Map<String, Value>,
    pub generation_config: Option<Map<String, Value>>,
    /// Name and content of the tokenizer's files.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    pub parameters: Vec<String>,
    /// Weights beyond this many bytes go into several files.
    pub max_shard_size: u64,
}

fn references(tensors: &[HostTensor]) -> Vec<TensorRef<'_>> {
    tensors
        .iter()
        .map(|t| TensorRef::new(t.name.as_str(), t.shape.clone(), &t.bytes))
        .collect()
}

impl SavedModel {
    fn pretrained<'a>(&'a self, weights: &'a [TensorRef<'a>]) -> Pretrained<'a> {
        Pretrained {
            config: &self.config,
            generation_config: self.generation_config.as_ref(),
            weights,
            files: &self.tokenizer_files,
            max_shard_size: self.max_shard_size,
        }
    }

    /// Writes a Hugging Face directory with the session's weights as they are after `step`.
    pub fn save(
        &self,
        session: &mut Session,
        dir: &Path,
        step: u64,
        kept: &CheckpointHistory,
    ) -> Result<()> {
        let weights = download(session, &self.parameters)?;
        worth_saving(&weights, step, kept)?;
        Ok(save_pretrained(
            dir,
            &self.pretrained(&references(&weights)),
        )?)
    }
}

impl SavedModel {
    /// What a process does while another one calls [`SavedModel::save`].
    pub fn take_part(&self, session: &mut Session) -> Result<()> {
        take_part_in_download(session, &self.parameters)
    }
}

/// A loss can be finite and the update that it leads to not: the loop, which looks at losses, would
/// see it a step later.
fn worth_saving(tensors: &[HostTensor], step: u64, kept: &CheckpointHistory) -> Result<()> {
    match tensors.iter().find(|t| !is_finite(&t.shape, &t.bytes)) {
        Some(broken) => Err(Error::NotWorthSaving {
            step,
            tensor: broken.name.clone(),
            kept: kept.sentence(),
        }),
        None => Ok(()),
    }
}

/// Saves checkpoints at their cadence, and one when a signal asks for the end.
pub struct SaveHook<'a> {
    pub settings: &'a TrainSettings,
    pub model: &'a SavedModel,
    /// Names of the optimizer's state.
    pub optimizer_state: Vec<String>,
    /// The position-independent part of the training state.
    pub state: TrainingState,
    pub interrupt: Option<Interrupt>,
    /// Whether this process writes; others of the run only take part in what is decided.
    pub writes: bool,
}

/// `trainer_state.json` at this point of a run.
pub fn trainer_state(
    settings: &TrainSettings,
    run: &RunState,
    progress: &Progress,
) -> TrainerState {
    // transformers keeps its defaults where a strategy is not in steps.
    let steps = |cadence: Cadence| match cadence {
        Cadence::Steps(n) => n as f64,
        _ => 500.0,
    };
    TrainerState {
        epoch: progress.epoch,
        eval_steps: steps(settings.eval),
        global_step: progress.step,
        log_history: run.log.history().to_vec(),
        logging_steps: steps(settings.logging),
        max_steps: progress.max_steps,
        num_train_epochs: settings.num_train_epochs.ceil() as u64,
        save_steps: steps(settings.save),
        total_flos: run.totals.total_flops,
        train_batch_size: Some(settings.per_device_train_batch_size as u64),
        ..Default::default()
    }
}

impl SaveHook<'_> {
    fn save(
        &self,
        progress: &Progress,
        session: &mut Session,
        batches: &dyn Batches,
        run: &mut RunState,
    ) -> Result<PathBuf> {
        let weights = download(session, &self.model.parameters)?;
        let writer = ShardedStateWriter::of(
            session,
            &self.optimizer_state,
            progress.step,
            &self.settings.output_dir,
        )?;
        let optimizer = match &writer {
            Some(writer) => writer.download(session)?,
            None => download(session, &self.optimizer_state)?,
        };
        for tensors in [&weights, &optimizer] {
            worth_saving(tensors, progress.step, &run.checkpoints)?;
        }
        let mut state = TrainingState {
            global_step: progress.step,
            epoch: progress.next_epoch,
            batch_in_epoch: progress.next_batch,
            accumulators: run.totals.to_map(),
            ..self.state.clone()
        };
        let mut files = self.model.tokenizer_files.clone();
        if let Some(position) = batches.position() {
            state
                .extra
                .insert(DATA_POSITION.to_string(), position.state);
            files.extend(position.files);
        }
        let mut trainer_state = trainer_state(self.settings, run, progress);
        if let Some(best) = &run.best {
            best.describe(
                &mut trainer_state,
                &self.settings.output_dir,
                Some(progress.step),
            );
        }
        let (weights, optimizer) = (references(&weights), references(&optimizer));
        let parts = CheckpointParts {
            model: Pretrained {
                files: &files,
                ..self.model.pretrained(&weights)
            },
            optimizer: &optimizer,
            peer_writers: writer.as_ref().map(|writer| writer as &dyn PeerWriters),
            trainer_state: &trainer_state,
            state: &state,
        };
        let path = save_checkpoint(&self.settings.output_dir, &parts)?;
        run.checkpoints.newest = Some(path.clone());
        run.checkpoints.remove_stale()?;
        Ok(path)
    }

    /// What a process does while rank 0 saves: its share of the optimizer's state.
    fn help_save(&self, step: u64, session: &mut Session) -> Result<()> {
        self.model.take_part(session)?;
        let Some(writer) = ShardedStateWriter::of(
            session,
            &self.optimizer_state,
            step,
            &self.settings.output_dir,
        )?
        else {
            return take_part_in_download(session, &self.optimizer_state);
        };
        let own = writer.download(session)?;
        // Rank 0 tells the user, who knows which checkpoint is the last good one.
        let broken = own
            .iter()
            .find(|t| !is_finite(&t.shape, &t.bytes))
            .map(|t| t.name.as_str());
        writer.write(&self.settings.output_dir, &references(&own), broken)
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
            self.settings.save_total_limit,
            &protected,
        )?;
        Ok(())
    }

    /// As transformers: a run that saves every N steps also saves its last one.
    fn is_due(&self, progress: &Progress) -> bool {
        self.settings.save.is_due(progress)
            || (progress.is_last() && matches!(self.settings.save, Cadence::Steps(_)))
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
        // Read before saving, so that a signal during the save is answered after the next step, not
        // with a second save.
        let signal = self.signal(progress.step)?;
        let control = if signal.is_some() {
            Control::Stop
        } else {
            Control::Continue
        };
        if !self.writes {
            self.help_save(progress.step, session)?;
            return Ok(control);
        }
        let path = self.save(progress, session, *batches, run)?;
        run.log.note(&format!("saved {}", path.display()));
        let stops_early = run.best.as_ref().is_some_and(|best| best.should_stop());
        if progress.is_last() || signal.is_some() || stops_early {
            // No step follows that could prove it.
            self.prune(run)?;
        }
        Ok(control)
    }
}
