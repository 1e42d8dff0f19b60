//! Training: resuming, the loop with its hooks, the finished model.

use super::adapter;
use super::device::cpu_kernels;
use super::error::{Error, Outcome, failed};
use super::hooks::OwnHooks;
use super::model::{LoadedModel, load_saved, parameter_count, trained_count};
use super::precompile::note_unfused;
use super::resume::{self, Resuming};
use super::run::{Run, TrainedLog};
use super::trackers::trackers;
use super::training_data::TrainingData;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;
use xtrain_checkpoint::hf::{
    Form, TRAINER_STATE_FILE, TrainerState, remove_if_there, save_metrics, write_json,
};
use xtrain_checkpoint::{Checkpoint, TrainingState, clean_output_dir, load_checkpoint};
use xtrain_config::{DATA_SETTINGS_FILE, RunPlan, TrainSettings};
use xtrain_data::{LabelMap, Set};
use xtrain_distributed::ProcessGroup;
use xtrain_distributed::process_group::Work;
use xtrain_graphs::optim::{Plateau, Schedule, ScheduleKind};
use xtrain_models::Model;
use xtrain_report::accounting::{self, Part};
use xtrain_report::printable::quotable;
use xtrain_report::progress::{Progress as Bar, Style};
use xtrain_report::records::{Record, SummaryRecord};
use xtrain_report::terminal::{Tone, paint};
use xtrain_report::trackers::RunEnd;
use xtrain_report::units;
use xtrain_report::{errln, outln};
use xtrain_trainer::ahead::{Ahead, RunShapes};
use xtrain_trainer::evaluate::Metrics;
use xtrain_trainer::hooks::best::Best;
use xtrain_trainer::hooks::{SavedModel, trainer_state};
use xtrain_trainer::interrupt::Interrupt;
use xtrain_trainer::parameters::{self, ExtraState};
use xtrain_trainer::run_loop::{Hook, Progress, RunLength, RunLoop};
use xtrain_trainer::run_state::{
    CheckpointHistory, MeasuredTotals, RunLog, RunState, RunningTotals,
};
use xtrain_trainer::session::Session;
use xtrain_trainer::settings::{Cadence, ExampleOrder, TokensSeen};
use xtrain_trainer::step::TrainStep;

impl Run {
    /// Trains to the end of the plan, or until a hook or a signal ends it, and saves the model in
    /// the output directory. `hooks` are called after the run's own, which log, report and
    /// checkpoint as the plan says.
    ///
    /// # Errors
    /// If the data cannot be read, a step fails, the loss is not finite, or nothing can be saved.
    ///
    /// # Panics
    /// If the plan does not train (`do_train`).
    pub fn train(
        &mut self,
        interrupt: Option<&Interrupt>,
        hooks: Vec<Box<dyn Hook>>,
    ) -> Result<Outcome, Error> {
        let (length, schedule) = self.settle()?;
        let data = TrainingData::of(self)?;
        let identity = self.identity(&data, &length, &schedule);
        let (form, shapes, execution) = (self.form(), self.shapes(), self.execution());
        let saved_model = self.saved_model();
        let Run {
            plan,
            loaded,
            task,
            validation,
            session,
            ..
        } = self;
        let (settings, model) = (&plan.train, &*loaded.model);
        let flags = &settings.flags;
        let step = execution.step(model, &task.objective, schedule);
        let extra_state = step.extra_state(length.accumulation > 1);

        let mut resuming = Resuming {
            settings,
            run: identity,
            length: &length,
            is_stream: data.is_stream(),
        };
        let resumed = resuming.checkpoint()?;
        if let Some(saved) = &resumed {
            resuming.check(saved)?;
        }
        loaded.check_memory()?;
        if ProcessGroup::this_writes() {
            resuming.run.run = resume::begin_run(&settings.output_dir, resumed.as_ref())?;
        }
        let start = resuming.start(resumed.as_ref())?;
        start_ahead(session, &step, &shapes.of_training(), &*task.metrics())?;
        if let Some(saved) = &resumed {
            resuming.describe(saved, model, &start.progress);
            if let Some(group) = ProcessGroup::joined() {
                group.saved(start.progress.step);
            }
        }
        place(loaded, session, resumed.as_ref(), *flags.seed, &extra_state)?;
        let adapter_at_start = adapter::digest(session, model)?;
        // Before there is a file: a tracker that does not answer leaves the directory as it was.
        let trackers = ProcessGroup::this_writes()
            .then(|| trackers(plan, model, start.progress.step, length.max_steps))
            .transpose()?;
        let mut state = run_state(plan, resumed.as_ref(), &start.progress)?;
        state.log.print_as(plan.log_format);
        if let Some(trackers) = trackers {
            let sets = (data.examples(), validation.as_ref().map(Set::len));
            let start = &start.progress;
            for line in header(plan, model, session, &length, start, sets, task.labels()) {
                state.log.note(&line);
            }
            state.log.track(trackers);
        }
        let stopped_early = stopped_early(&state);
        let saved = extra_state
            .iter()
            .filter(|state| state.saved && !*flags.save_only_model);
        let own = OwnHooks {
            plan,
            model,
            task,
            validation: validation.as_ref(),
            form: &form,
            saved_model: &saved_model,
            optimizer_state: saved.map(|state| state.name.clone()).collect(),
            trainer_state: constant_state(settings, &length),
            state: resuming.run,
            interrupt,
        };
        let mut all = own.make(session, &start.progress)?;
        let (client, workers) = (session.client().clone(), task.workers());
        all.extend(hooks);

        let rows = settings.batch_rows();
        let examples = data.examples();
        let mut batches = data.batches(&form, &client, rows, workers, &start)?;
        let began = Instant::now();
        if let Some(interrupt) = interrupt {
            interrupt.begin();
        }
        let progress = if stopped_early {
            drop(all);
            start.progress
        } else {
            let run = RunLoop {
                train_step: &step,
                session: &mut *session,
                length,
                hooks: all,
                state: &mut state,
            };
            run.run(&mut batches, start.progress)
                .map_err(failed("training"))?
        };
        let steps = progress.step - start.progress.step;
        let finished = Finished {
            progress,
            steps,
            examples: examples_seen(settings, &length, examples, steps),
            set: examples.map(|rows| rows as u64),
            runtime: began.elapsed().as_secs_f64(),
            length,
        };
        accounting::proceed_to(Part::Rest);
        batches.warn_of_skipped_rows();
        drop(batches);
        self.conclude(state, finished, &saved_model, adapter_at_start, interrupt)
    }

    /// What comes after the last step: the best weights, and the model in the output directory.
    fn conclude(
        &mut self,
        mut state: RunState,
        finished: Finished,
        saved_model: &SavedModel,
        adapter_at_start: Option<String>,
        interrupt: Option<&Interrupt>,
    ) -> Result<Outcome, Error> {
        let Run {
            plan,
            loaded,
            session,
            trained,
            evaluated,
            ..
        } = self;
        let (settings, model) = (&plan.train, &*loaded.model);
        let (progress, steps) = (finished.progress, finished.steps);
        if let Some(signal) = interrupt.and_then(Interrupt::received)
            && !(progress.is_last() || state.best.as_ref().is_some_and(Best::should_stop))
        {
            state.log.bar().finish();
            state.log.end(RunEnd::Interrupted);
            describe_interruption(settings, &progress, &state.checkpoints);
            return Ok(Outcome::Interrupted { signal });
        }
        // What rank 0 saved last is whole before another process reads it.
        if let Some(group) = ProcessGroup::joined() {
            let _exchanging = accounting::enter(Part::Exchange);
            group
                .from_first("trained", Vec::new)
                .map_err(failed("waiting for rank 0 to save"))?;
        }
        let _saving = (
            accounting::enter(Part::Saving),
            ProcessGroup::at_work(Work::Saving),
        );
        let adapter_at_end = adapter::digest(session, model)?;
        adapter::check_changed(adapter_at_start.as_ref(), adapter_at_end.as_ref(), steps)?;
        let best_step = match &state.best {
            Some(best) => load_best(best, &settings.output_dir, session, model)?,
            None => None,
        };
        let last = progress.step;
        *evaluated = state
            .evaluated
            .take()
            .filter(|record| record.step() == last && best_step.is_none_or(|step| step == last));
        if ProcessGroup::this_writes() {
            let served = model.adapter().map(|own| adapter::served(own, model));
            if finish(plan, saved_model, session, &mut state, finished)? {
                *trained = Some(TrainedLog {
                    log: state.log,
                    progress,
                });
            } else {
                state.log.end(RunEnd::Finished);
            }
            if let Some(served) = served {
                outln!("{served}");
            }
        } else {
            saved_model
                .take_part(session)
                .map_err(failed("taking part in saving the model"))?;
        }
        Ok(Outcome::Done)
    }

    /// Cleans up, adds what the run is compared with, and decides its length.
    fn settle(&mut self) -> Result<(RunLength, Schedule), Error> {
        if ProcessGroup::this_writes() {
            clean_output_dir(&self.plan.train.output_dir)
                .map_err(failed("cleaning up after a killed run"))?;
        }
        self.add_reference()?;
        let (length, schedule) = self.length()?.expect("the plan trains");
        let train = &mut self.plan.train;
        for cadence in [&mut train.logging, &mut train.save, &mut train.eval] {
            *cadence = cadence.in_steps(length.max_steps);
        }
        Ok((length, schedule))
    }

    /// What a checkpoint must have in common with the run that resumes from it.
    fn identity(
        &self,
        data: &TrainingData,
        length: &RunLength,
        schedule: &Schedule,
    ) -> TrainingState {
        let settings = &self.plan.train;
        let mut identity = TrainingState {
            warmup_steps: schedule.warmup,
            seed: *settings.flags.seed,
            total_steps: length.max_steps,
            // A stream has none: a resumed run may be made longer.
            batches_per_epoch: if data.is_stream() {
                0
            } else {
                length.batches_per_epoch
            },
            batch_size: settings.batch_rows() as u64,
            gradient_accumulation_steps: length.accumulation,
            data_fingerprint: match settings.example_order {
                ExampleOrder::Random => data.fingerprint(&self.task),
                other => format!("{} {other:?}", data.fingerprint(&self.task)),
            },
            ..Default::default()
        };
        let settings = resume::changeable_settings(settings, schedule);
        identity.extra.insert(resume::SETTINGS.into(), settings);
        resume::note_trained(&mut identity, &self.loaded);
        identity
    }
}

/// Whether the checkpoint is of a run that stopped early, which a note says.
fn stopped_early(state: &RunState) -> bool {
    let stopped = state.best.as_ref().is_some_and(Best::should_stop);
    if stopped {
        errln!(
            "note: the run stopped early there; nothing is left to train (a higher --early_stopping_patience continues it)"
        );
    }
    stopped
}

/// Starts to make the graphs of training.
fn start_ahead(
    session: &mut Session,
    step: &TrainStep,
    shapes: &RunShapes,
    metrics: &dyn Metrics,
) -> Result<(), Error> {
    let mut ahead = Ahead {
        session,
        step,
        shapes,
        metrics: Some(metrics),
    };
    note_unfused(ahead.start().map_err(failed("recording the graphs"))?);
    Ok(())
}

/// Puts the weights and the optimizer's state on the devices: a checkpoint's, or new ones.
fn place(
    loaded: &LoadedModel,
    session: &mut Session,
    resumed: Option<&Checkpoint>,
    seed: u64,
    extra_state: &[ExtraState],
) -> Result<(), Error> {
    let (moments, problem) = match resumed {
        Some(saved) => {
            loaded.restore(session, saved, seed)?;
            (saved.optimizer.as_ref(), "loading the moments")
        }
        None => {
            loaded.place(session, seed)?;
            (None, "making room for the moments")
        }
    };
    parameters::set_extra_state(session, extra_state, moments).map_err(failed(problem))
}

/// What `trainer_state.json` says at every step of a run.
fn constant_state(settings: &TrainSettings, length: &RunLength) -> TrainerState {
    // transformers keeps its defaults where a strategy is not in steps.
    let steps = |cadence: Cadence| match cadence {
        Cadence::Steps(n) => n as f64,
        Cadence::Never | Cadence::Share(_) | Cadence::Epoch | Cadence::Best => 500.0,
    };
    TrainerState {
        eval_steps: steps(settings.eval),
        logging_steps: steps(settings.logging),
        num_train_epochs: match *settings.flags.max_steps {
            Some(steps) => steps.div_ceil(length.updates_per_epoch),
            None => settings.flags.num_train_epochs.ceil() as u64,
        },
        save_steps: steps(settings.save),
        train_batch_size: Some(settings.per_device_train_batch_size as u64),
        ..Default::default()
    }
}

/// The account of a run that starts, or resumes from a checkpoint.
fn run_state(
    plan: &RunPlan,
    resumed: Option<&Checkpoint>,
    start: &Progress,
) -> Result<RunState, Error> {
    let (settings, writes) = (&plan.train, ProcessGroup::this_writes());
    let history = resumed.map(|saved| saved.trainer_state.log_history.clone());
    let history = history.unwrap_or_default();
    let style = Style::choose(plan.quiet() || !writes, Style::Silent);
    let bar = Bar::new("training", start.max_steps, style);
    bar.skip_to(start.step);
    let mut log = if writes {
        RunLog::open(&settings.output_dir, history, start.step, bar)
            .map_err(failed("opening the log"))?
    } else {
        RunLog::unwritten(history, bar)
    };
    let totals = resumed
        .map(|saved| RunningTotals::from_map(&saved.state.accumulators))
        .unwrap_or_default();
    let measured = resumed
        .map(|saved| MeasuredTotals::from_map(&saved.state.accumulators))
        .unwrap_or_default();
    let counts = *settings.flags.include_num_input_tokens_seen != TokensSeen::No;
    log.tokens_seen = counts.then_some(totals.tokens_seen as u64);
    let stale = if resumed.is_none() && writes {
        resume::stale_checkpoints(plan)?
    } else {
        Vec::new()
    };
    Ok(RunState {
        log,
        totals,
        measured,
        best: settings.best.clone().map(|rule| match resumed {
            Some(saved) => Best::resume(rule, &saved.trainer_state),
            None => Best::new(rule),
        }),
        checkpoints: CheckpointHistory {
            newest: resumed.map(|saved| saved.dir.clone()),
            proven: None,
            unsaved: None,
            stale,
            listeners: Vec::new(),
        },
        plateau: plateau(settings, resumed),
        evaluated: None,
    })
}

/// The learning rate of a run whose evaluations decide about it.
fn plateau(settings: &TrainSettings, resumed: Option<&Checkpoint>) -> Option<Plateau> {
    let ScheduleKind::ReduceLrOnPlateau(rule) = settings.optimizer.schedule else {
        return None;
    };
    let peak = settings.optimizer.learning_rate;
    Some(match resumed {
        Some(saved) => Plateau::from_map(rule, peak, &saved.state.accumulators),
        None => Plateau::new(rule, peak),
    })
}

/// What is trained on what, before it begins.
fn header(
    plan: &RunPlan,
    model: &dyn Model,
    session: &Session,
    length: &RunLength,
    start: &Progress,
    (examples, evaluated): (Option<usize>, Option<usize>),
    classes: Option<&LabelMap>,
) -> Vec<String> {
    let settings = &plan.train;
    let (count, trained) = (parameter_count(model), trained_count(model));
    let trained = if trained == count {
        String::new()
    } else {
        format!(" ({} of them trained)", units::count(trained as f64))
    };
    let (devices, client) = (session.mesh().devices(), session.client());
    let name = plan.device.kind.to_string();
    let kind = client
        .addressable_devices()
        .next()
        .map(|device| device.kind());
    let kind = kind
        .filter(|kind| *kind != name)
        .map(|kind| format!(" ({kind})"));
    let (rows, accumulated) = (settings.per_device_train_batch_size, length.accumulation);
    let shards = settings.mesh.batch_shards();
    let mut batch = format!("{rows} per device");
    for (factor, what) in [
        (accumulated, "accumulated"),
        (shards as u64, "data-parallel"),
    ] {
        if factor > 1 {
            batch.push_str(&format!(" x {factor} {what}"));
        }
    }
    let all = settings.examples_per_step();
    let resumed = match start.step {
        0 => String::new(),
        step => format!(", from step {step}"),
    };
    let head = paint(&std::io::stderr(), Tone::Heading, "training");
    let first = format!(
        "{head}  {} {}, {} parameters{trained}, {} on {devices} {name} device{}{}",
        plan.task.name(),
        model.config().values()["model_type"]
            .as_str()
            .unwrap_or_default(),
        units::count(count as f64),
        settings.precision,
        if devices == 1 { "" } else { "s" },
        kind.unwrap_or_default(),
    );
    let exact = |count: usize| units::exact(count as u64);
    let (rows, epochs) = match examples {
        Some(rows) => {
            let epochs = length.max_steps as f64 / length.updates_per_epoch as f64;
            let steps = units::exact(length.updates_per_epoch);
            (
                exact(rows),
                format!(" in {epochs:.2} epochs of {steps} steps"),
            )
        }
        None => ("a stream of".to_string(), String::new()),
    };
    let evaluated = evaluated.map(|rows| format!(", {} to evaluate on", exact(rows)));
    let steps = units::exact(length.max_steps);
    let mut lines = vec![
        first,
        format!("data      {rows} examples{}", evaluated.unwrap_or_default()),
        format!("batch     {batch} = {all} examples a step"),
        format!("steps     {steps}{epochs}{resumed}"),
    ];
    let kernels = cpu_kernels(&plan.device, &plan.cache);
    if !kernels.is_empty() {
        lines.push(format!("kernels   {}", kernels.join(", ")));
    }
    lines.extend(classes.filter(|map| !map.are_numbers()).map(labels));
    if !std::io::stderr().is_terminal() {
        lines.extend(unlogged(settings, length, start));
    }
    lines
}

/// A run that is shorter than the default interval of its log shows no loss on the way, where there is
/// no bar either.
fn unlogged(settings: &TrainSettings, length: &RunLength, start: &Progress) -> Option<String> {
    let flags = &settings.flags;
    let Cadence::Steps(every) = settings.logging else {
        return None;
    };
    let (steps, last) = (length.max_steps, length.max_steps / every.max(1) * every);
    let is_logged = last > start.step || (*flags.logging_first_step && start.step == 0);
    let is_chosen = flags.logging_steps.is_given() || flags.logging_strategy.is_given();
    (!is_logged && !is_chosen && steps > start.step).then(|| {
        format!(
            "note: the loss is logged at the end alone: --logging_steps is {every}, the run has {}; --logging_steps {} logs it on the way, too",
            units::exact(steps),
            (steps / 10).max(1)
        )
    })
}

/// The classes, so that a number or a spelling that became one is seen.
fn labels(map: &LabelMap) -> String {
    let names = map.names().iter().take(8);
    let mut first: Vec<String> = names.map(|name| quotable(name)).collect();
    if first.len() < map.len() {
        first.push("...".into());
    }
    format!("labels    {}: {}", map.len(), first.join(", "))
}

/// Says where a run that a signal ended can be resumed from.
fn describe_interruption(
    settings: &TrainSettings,
    progress: &Progress,
    checkpoints: &CheckpointHistory,
) {
    if !ProcessGroup::this_writes() {
        return;
    }
    let dir = checkpoints.newest.clone().unwrap_or_default();
    errln!(
        "stopped after step {} of {}; saved {}",
        progress.step,
        progress.max_steps,
        dir.display()
    );
    if *settings.flags.save_only_model {
        errln!(
            "it holds the model alone (--save_only_model): to train it further, give it as --model_name_or_path"
        );
    } else {
        errln!("to resume, run the same command with --resume_from_checkpoint");
    }
}

/// Puts the weights of the best checkpoint in the place of the last ones, if that was asked for. Returns
/// the step of what was loaded.
fn load_best(
    best: &Best,
    output_dir: &Path,
    session: &mut Session,
    model: &dyn Model,
) -> Result<Option<u64>, Error> {
    if !best.rule().load_at_end {
        return Ok(None);
    }
    let Some((value, step)) = best.found() else {
        errln!(
            "note: no evaluation was made, so there is no best checkpoint to load; these are the last weights"
        );
        return Ok(None);
    };
    let Some(path) = best.checkpoint(output_dir) else {
        errln!(
            "warning: the best checkpoint, of step {step}, is not in {} any more; these are the last weights",
            output_dir.display()
        );
        return Ok(None);
    };
    let saved = load_checkpoint(&path).map_err(failed("loading the best checkpoint"))?;
    load_saved(session, model, &saved).map_err(failed("loading the best checkpoint"))?;
    outln!(
        "loaded the best checkpoint: {} ({} {value} at step {step})",
        path.display(),
        best.rule().metric
    );
    Ok(Some(step))
}

/// What a run that reached its end did.
struct Finished {
    length: RunLength,
    progress: Progress,
    /// Optimizer steps made in this process.
    steps: u64,
    /// Examples in them.
    examples: u64,
    /// Rows of the training set; `None` of a stream.
    set: Option<u64>,
    /// Seconds.
    runtime: f64,
}

/// The examples of `steps` as transformers counts them: an epoch has those of the set, whatever its
/// last batch lacks, and with `--max_steps` every step is a full one.
fn examples_seen(
    settings: &TrainSettings,
    length: &RunLength,
    examples: Option<usize>,
    steps: u64,
) -> u64 {
    match (*settings.flags.max_steps, examples) {
        (None, Some(examples)) => {
            let all = examples as f64 * *settings.flags.num_train_epochs;
            (all * steps as f64 / length.max_steps.max(1) as f64).round() as u64
        }
        _ => steps * settings.examples_per_step() as u64,
    }
}

/// Writes the finished model and says how the run went. Returns whether it has made a step: of one
/// that was resumed at its end everything has been logged before.
fn finish(
    plan: &RunPlan,
    model: &SavedModel,
    session: &mut Session,
    state: &mut RunState,
    run: Finished,
) -> Result<bool, Error> {
    let settings = &plan.train;
    let totals = state.totals;
    let summary = Record::Summary(SummaryRecord {
        runtime: run.runtime,
        samples: run.examples,
        set: run.set,
        steps: run.steps,
        loss: totals.total_loss / totals.total_steps,
        total_flos: totals.total_flops,
        epoch: run.progress.epoch,
        tokens_seen: state.log.tokens_seen,
        step: run.progress.step,
    });
    state.log.bar().finish();
    if totals.skipped_steps > 0.0 {
        let (skipped, all) = (totals.skipped_steps, run.progress.step);
        errln!(
            "note: {skipped} of {all} optimizer steps were skipped, because their gradients overflowed fp16"
        );
    }
    let dir = &settings.output_dir;
    // A finished run that is resumed has made no steps; its figures stay those of the run that made
    // them.
    let is_news = run.steps > 0 || !dir.join("train_results.json").exists();
    if is_news {
        state.log.record(&summary);
    }
    if settings.flags.data_settings().is_none() {
        // What an overwritten run was given is not this model's.
        remove_if_there(&dir.join(DATA_SETTINGS_FILE)).map_err(failed("saving the model"))?;
    }
    model
        .save(session, dir, run.progress.step, &state.checkpoints)
        .map_err(failed("saving the model"))?;
    if run.steps > 0 {
        // What an earlier run measured is not of these weights.
        for name in ["eval_results.json", "all_results.json"] {
            remove_if_there(&dir.join(name)).map_err(failed("removing earlier results"))?;
        }
    }
    state
        .checkpoints
        .remove_stale()
        .map_err(failed("removing an earlier run's checkpoints"))?;
    let constant = constant_state(settings, &run.length);
    let mut trainer_state = trainer_state(&constant, state, &run.progress);
    if let Some(best) = &state.best {
        best.describe(&mut trainer_state, dir, None);
    }
    write_json(&dir.join(TRAINER_STATE_FILE), &trainer_state)
        .map_err(failed("saving the trainer state"))?;
    if is_news {
        save_metrics(dir, "train", &summary.results()).map_err(failed("saving the results"))?;
    }
    let what = match model.form {
        Form::Model => "model",
        Form::Adapter => "adapter",
    };
    outln!("saved the {what} in {}", dir.display());
    Ok(is_news)
}
