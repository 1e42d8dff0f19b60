//! Training: resuming, the loop with its hooks, the finished model.

use super::error::{Error, Outcome, failed};
use super::resume;
use super::run::{Prepared, layout, stream_length};
use super::task::TaskData;
use crate::checkpoint::hf::{TRAINER_STATE_FILE, save_metrics, write_json};
use crate::checkpoint::{TrainingState, load_checkpoint};
use crate::config::TrainPlan;
use crate::data::Collator;
use crate::data::loader::LoadSpec;
use crate::data::sampler::{BatchPlan, Position};
use crate::data::stream::{BUFFER_FILE, StreamPosition, StreamSpec};
use crate::distributed::ProcessGroup;
use crate::report::progress::{Progress as Bar, Style};
use crate::report::records::{Record, SummaryRecord};
use crate::report::telemetry::Telemetry;
use crate::trainer::ahead::start_first_step;
use crate::trainer::feed::DeviceBatch;
use crate::trainer::hooks::best::Best;
use crate::trainer::hooks::{
    Alive, DATA_POSITION, DataPosition, Evaluator, Kept, Logger, ReplicaCheck, RunLog, SavedModel,
    Saver, Sums, Teller, graph_listener, trainer_state,
};
use crate::trainer::interrupt::Interrupt;
use crate::trainer::matmul_peak;
use crate::trainer::parameters;
use crate::trainer::replicas;
use crate::trainer::run_loop::{Hook, Progress, RunLength, RunLoop};
use crate::trainer::session::Session;
use crate::trainer::step::Stepper;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_graphs::optim::Schedule;
use xtrain_models::Model;

/// For measuring the machine's ceiling at the start of a run.
const CEILING_PATIENCE: Duration = Duration::from_millis(200);

/// Where training batches come from.
enum Source {
    Set(Box<(Collator, BatchPlan)>),
    Stream(Arc<StreamSpec>),
}

impl Source {
    fn new(plan: &TrainPlan, prepared: &Prepared) -> Result<(Source, RunLength, Schedule), Error> {
        if let Some(stream) = &prepared.stream {
            let (length, schedule) = stream_length(plan);
            return Ok((Source::Stream(stream.clone()), length, schedule));
        }
        let set = prepared
            .train
            .clone()
            .expect("a run that trains has training data");
        let (batches, length, schedule) = layout(plan, &set)?;
        Ok((Source::Set(Box::new((set, batches))), length, schedule))
    }

    fn fingerprint(&self, task: &TaskData) -> String {
        match self {
            Source::Set(set) => task.fingerprint(&set.0),
            Source::Stream(stream) => stream.fingerprint(),
        }
    }
}

/// Trains to the end, or until a signal asks for the end.
pub fn train(
    plan: &TrainPlan,
    prepared: &mut Prepared,
    interrupt: &Interrupt,
) -> Result<Outcome, Error> {
    let settings = &plan.train;
    let form = prepared.form();
    let (data, length, schedule) = Source::new(plan, prepared)?;
    let streams = matches!(data, Source::Stream(_));
    let state = TrainingState {
        seed: settings.seed,
        total_steps: length.max_steps,
        warmup_steps: schedule.warmup,
        // A stream has none: a resumed run may be made longer.
        batches_per_epoch: if streams { 0 } else { length.batches_per_epoch },
        batch_size: settings.batch_rows() as u64,
        gradient_accumulation_steps: length.accumulation,
        data_fingerprint: data.fingerprint(&prepared.task),
        ..Default::default()
    };
    let saved_model = prepared.saved_model(settings.max_shard_size);
    let model = &*prepared.loaded.model;
    let stepper = Stepper::new(model, settings.optimizer.clone(), schedule, settings.seed)
        .with_precision(settings.precision)
        .with_buckets(settings.gradient_bucket_bytes)
        .with_checkpointing(settings.checkpointing);
    let shapes = prepared.shapes(plan);
    let session = &mut prepared.session;
    let extra_state = stepper.extra_state(length.accumulation > 1);

    let resumed = resume::checkpoint(settings)?;
    if let Some(saved) = &resumed {
        resume::check_resume(saved, &state)?;
    }
    let stream_start = match &resumed {
        Some(saved) if streams => {
            let position = StreamPosition::load(&saved.dir, saved.state.extra.get(DATA_POSITION));
            Some(position.map_err(failed("finding the position in the stream"))?)
        }
        _ => None,
    };
    start_first_step(session, model, &stepper, &shapes).map_err(failed("recording the graphs"))?;
    if let Some(saved) = &resumed {
        eprintln!(
            "resuming from {} (step {})",
            saved.dir.display(),
            saved.state.global_step
        );
        resume::note_changed_config(saved, model.config().values());
        if saved.state.total_steps != length.max_steps {
            let (old, new) = (saved.state.total_steps, length.max_steps);
            eprintln!(
                "note: the learning-rate curve was laid out for {old} steps and is now for {new}"
            );
        }
        if saved.state.global_step >= length.max_steps {
            eprintln!(
                "note: that is already the end; nothing is left to train (--max_steps or --num_train_epochs would extend it)"
            );
        }
        parameters::load(session, model, stepper.parameters(), &saved.weights)
            .map_err(failed("loading the weights"))?;
        parameters::set_extra_state(session, &extra_state, Some(&saved.optimizer))
            .map_err(failed("loading the moments"))?;
    } else {
        prepared.loaded.place(session, settings.seed)?;
        parameters::set_extra_state(session, &extra_state, None)
            .map_err(failed("making room for the moments"))?;
    }
    let start_position = if streams {
        resume::start_in_stream
    } else {
        resume::start_position
    };
    let start = start_position(resumed.as_ref().map(|c| &c.state), &length);
    // After the last batch that the run has taken.
    let stream_position = Rc::new(RefCell::new(stream_start.clone()));
    let history = resumed
        .as_ref()
        .map(|c| c.trainer_state.log_history.clone())
        .unwrap_or_default();
    let best = settings.best.clone().map(|rule| match &resumed {
        Some(saved) => Best::resume(rule, &saved.trainer_state),
        None => Best::new(rule),
    });
    let stopped_early = best.as_ref().is_some_and(Best::should_stop);
    if stopped_early {
        eprintln!(
            "note: the run stopped early there; nothing is left to train (a higher --early_stopping_patience would go on)"
        );
    }
    let best = Rc::new(RefCell::new(best));
    let sums = Rc::new(RefCell::new(
        resumed
            .as_ref()
            .map(|c| Sums::from_map(&c.state.accumulators))
            .unwrap_or_default(),
    ));

    let writes = ProcessGroup::this_writes();
    let bar = Bar::new(
        "training",
        length.max_steps,
        Style::choose(settings.disable_tqdm || !writes, Style::Silent),
    );
    bar.skip_to(start.step);
    let log = match writes {
        true => RunLog::open(&settings.output_dir, history, start.step, bar)
            .map_err(failed("opening the log"))?,
        false => RunLog::unwritten(history, bar),
    };
    let log = Rc::new(RefCell::new(log));
    let client = session.client().clone();
    let teller = writes.then(|| {
        let telemetry = Telemetry::append_in(&settings.output_dir);
        session.cache_mut().on_ready(graph_listener(&telemetry));
        Teller::new(
            telemetry,
            client.clone(),
            &plan.device.kind.to_string(),
            &start,
        )
    });
    let kept = Rc::new(RefCell::new(Kept {
        newest: resumed.as_ref().map(|c| c.dir.clone()),
        proven: None,
        stale: if resumed.is_none() && writes {
            resume::stale_checkpoints(plan)?
        } else {
            Vec::new()
        },
    }));
    let ceiling = matmul_peak::measure_tflops(session, settings.precision, CEILING_PATIENCE)
        .map_err(failed("measuring the matrix-multiply ceiling"))?;

    let saver = Saver {
        settings,
        model: &saved_model,
        optimizer_state: extra_state
            .iter()
            .filter(|state| state.saved)
            .map(|state| state.name.clone())
            .collect(),
        state,
        data_position: streams.then(|| {
            let position = stream_position.clone();
            Box::new(move || saved_position(&position.borrow())) as Box<dyn Fn() -> DataPosition>
        }),
        log: log.clone(),
        sums: sums.clone(),
        interrupt: Some(interrupt.clone()),
        writes,
        kept: kept.clone(),
        best: best.clone(),
    };
    let cadence = (settings.logging, settings.logging_first_step);
    let logger = Logger::new(log.clone(), sums.clone(), cadence, Some(ceiling));
    let mut hooks: Vec<Box<dyn Hook + '_>> = vec![Box::new(logger)];
    hooks.extend(teller.map(|teller| Box::new(teller) as Box<dyn Hook>));
    hooks.extend(ProcessGroup::joined().map(|group| Box::new(Alive(group)) as Box<dyn Hook>));
    if replicas::have_equals(settings.mesh, session.placements()) {
        hooks.push(Box::new(ReplicaCheck {
            parameters: model.parameters(),
            cadence: settings.replica_check,
        }));
    }
    let client = session.client().clone();
    let workers = prepared.task.workers();
    if let Some(validation) = prepared.validation.clone() {
        let (client, form, size) = (
            client.clone(),
            form.clone(),
            settings.per_device_eval_batch_size,
        );
        hooks.push(Box::new(Evaluator {
            model,
            parameters: model.parameters(),
            labels: prepared.task.label_names(),
            batches: Box::new(move || form.one_pass(&client, &validation, size, workers)),
            cadence: settings.eval,
            log: log.clone(),
            best: best.clone(),
        }));
    }
    hooks.push(Box::new(saver));

    let starting = failed("starting the data workers");
    let mut source: Box<dyn Iterator<Item = crate::trainer::Result<DeviceBatch>>> = match data {
        Source::Set(set) => {
            let (collator, plan) = *set;
            let start = Position {
                epoch: start.next_epoch,
                batch: start.next_batch as usize,
            };
            let spec = LoadSpec {
                collator,
                plan,
                start,
                end_epoch: u64::MAX,
            };
            Box::new(
                form.device_batches(&client, spec, workers)
                    .map_err(starting)?,
            )
        }
        Source::Stream(spec) => {
            let size = (settings.batch_rows(), start.next_batch);
            let batches = form
                .stream_batches(&client, spec, stream_start, size)
                .map_err(starting)?;
            let position = stream_position.clone();
            Box::new(batches.map(move |item| {
                item.map(|(batch, after)| {
                    *position.borrow_mut() = Some(after);
                    batch
                })
            }))
        }
    };
    let sentence = {
        let kept = kept.clone();
        move || kept.borrow().sentence()
    };
    let began = Instant::now();
    let progress = match stopped_early {
        true => start,
        false => {
            let run = RunLoop {
                stepper: &stepper,
                session: &mut *session,
                length,
                hooks,
                kept: Box::new(sentence),
            };
            run.run(&mut *source, start).map_err(failed("training"))?
        }
    };
    let runtime = began.elapsed().as_secs_f64();
    drop(source);
    if let Some(skipped) = stream_position
        .borrow()
        .as_ref()
        .map(StreamPosition::skipped)
        .filter(|skipped| *skipped > 0)
    {
        let rows = if skipped == 1 { "row was" } else { "rows were" };
        eprintln!("warning: {skipped} bad {rows} left out of the stream (--on_bad_row skip)");
    }

    let ended_early = best.borrow().as_ref().is_some_and(Best::should_stop);
    if let (Some(signal), false) = (interrupt.received(), progress.is_last() || ended_early) {
        log.borrow().bar().finish();
        if !writes {
            return Ok(Outcome::Interrupted { signal });
        }
        let dir = kept.borrow().newest.clone().unwrap_or_default();
        eprintln!(
            "stopped after step {} of {}; saved {}",
            progress.step,
            progress.max_steps,
            dir.display()
        );
        eprintln!("to go on, run the same command with --resume_from_checkpoint");
        return Ok(Outcome::Interrupted { signal });
    }
    let finished = Finished {
        progress,
        steps: progress.step - start.step,
        runtime,
    };
    let best = best.borrow();
    // What rank 0 saved last is whole before another process reads it.
    if let Some(group) = ProcessGroup::joined() {
        group
            .from_first("trained", Vec::new)
            .map_err(failed("waiting for rank 0 to save"))?;
    }
    if let Some(best) = &*best {
        load_best(best, &settings.output_dir, session, model)?;
    }
    let state = RunState {
        log: &log,
        sums: &sums.borrow(),
        kept: &mut kept.borrow_mut(),
        best: best.as_ref(),
    };
    match writes {
        true => finish(plan, &saved_model, session, state, finished)?,
        false => saved_model
            .take_part(session)
            .map_err(failed("taking part in saving the model"))?,
    }
    Ok(Outcome::Done)
}

/// A stream's position as a checkpoint has it.
fn saved_position(position: &Option<StreamPosition>) -> DataPosition {
    let saved = position
        .as_ref()
        .expect("a checkpoint follows a step, and a step a batch")
        .save();
    DataPosition {
        state: saved.state,
        files: vec![(BUFFER_FILE.to_string(), saved.buffer)],
    }
}

/// Puts the weights of the best checkpoint in the place of the last ones, if that was asked for.
fn load_best(
    best: &Best,
    output_dir: &Path,
    session: &mut Session,
    model: &dyn Model,
) -> Result<(), Error> {
    if !best.rule().load_at_end {
        return Ok(());
    }
    let Some((path, (value, step))) = best.checkpoint(output_dir).zip(best.found()) else {
        eprintln!(
            "note: no evaluation was made, so there is no best checkpoint to load; these are the last weights"
        );
        return Ok(());
    };
    let saved = load_checkpoint(&path).map_err(failed("loading the best checkpoint"))?;
    parameters::load(session, model, &model.parameters(), &saved.weights)
        .map_err(failed("loading the best checkpoint"))?;
    println!(
        "loaded the best checkpoint: {} ({} {value} at step {step})",
        path.display(),
        best.rule().metric
    );
    Ok(())
}

/// What a run that reached its end did.
struct Finished {
    progress: Progress,
    /// Optimizer steps made in this process.
    steps: u64,
    /// Seconds.
    runtime: f64,
}

/// What the hooks have kept account of.
struct RunState<'a> {
    log: &'a RefCell<RunLog>,
    sums: &'a Sums,
    kept: &'a mut Kept,
    best: Option<&'a Best>,
}

/// Writes the finished model and says how the run went.
fn finish(
    plan: &TrainPlan,
    model: &SavedModel,
    session: &mut Session,
    state: RunState,
    run: Finished,
) -> Result<(), Error> {
    let RunState {
        log,
        sums,
        kept,
        best,
    } = state;
    let settings = &plan.train;
    let summary = Record::Summary(SummaryRecord {
        runtime: run.runtime,
        samples: run.steps * settings.examples_per_step() as u64,
        steps: run.steps,
        loss: if sums.total_steps > 0.0 {
            sums.total_loss / sums.total_steps
        } else {
            0.0
        },
        total_flos: sums.total_flops,
        epoch: run.progress.epoch,
        step: run.progress.step,
    });
    let mut log = log.borrow_mut();
    log.bar().finish();
    if sums.skipped_steps > 0.0 {
        let (skipped, all) = (sums.skipped_steps, run.progress.step);
        eprintln!(
            "note: {skipped} of {all} optimizer steps were skipped, because their gradients overflowed fp16"
        );
    }
    let dir = &settings.output_dir;
    // A finished run that is resumed has made no steps; its figures stay those of the run that made
    // them.
    let is_news = run.steps > 0 || !dir.join("train_results.json").exists();
    if is_news {
        log.record(&summary).map_err(failed("logging"))?;
    }
    model
        .save(session, dir, run.progress.step, kept)
        .map_err(failed("saving the model"))?;
    kept.remove_stale()
        .map_err(failed("removing an earlier run's checkpoints"))?;
    let mut state = trainer_state(settings, &log, sums, &run.progress);
    if let Some(best) = best {
        best.describe(&mut state, dir, None);
    }
    write_json(&dir.join(TRAINER_STATE_FILE), &state)
        .map_err(failed("saving the trainer state"))?;
    if is_news {
        save_metrics(dir, "train", &summary.results()).map_err(failed("saving the results"))?;
    }
    println!("saved the model in {}", dir.display());
    Ok(())
}
