//! `xtrain train clm`: trains a causal language model on text files.

use super::model::{LoadedModel, block_size, create_output_dir, device_batches, eval_batches, failed, open_device, origin};
use super::{Error, Outcome, dry_run, fit};
use crate::checkpoint::hf::{TRAINER_STATE_FILE, save_metrics, write_json};
use crate::checkpoint::{Checkpoint, TrainingState, clean_output_dir, latest_checkpoint, list_checkpoints, load_checkpoint};
use crate::config::{ModelSource, TrainPlan};
use crate::data::loader::LoadSpec;
use crate::data::sampler::{BatchPlan, Order, Position};
use crate::data::{Collator, Dataset, Tokenizer, clm};
use crate::report::progress::{Progress as Bar, Style};
use crate::report::records::{Record, SummaryRecord};
use crate::trainer::ahead::RunShapes;
use crate::trainer::evaluate::evaluate;
use crate::trainer::hooks::{Evaluator, Kept, Logger, RunLog, SavedModel, Saver, Sums, trainer_state};
use crate::trainer::interrupt::Interrupt;
use crate::trainer::run_loop::{Hook, Progress, RunLength, RunLoop};
use crate::trainer::session::Session;
use crate::trainer::settings::{Resume, TrainSettings};
use crate::trainer::step::Stepper;
use crate::trainer::{self, ceiling, parameters};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use xtrain_graphs::optim::Schedule;

/// For measuring the machine's ceiling at the start of a run.
const CEILING_PATIENCE: Duration = Duration::from_millis(200);

pub fn run(mut plan: TrainPlan) -> Result<Outcome, Error> {
    let mut prepared = Prepared::new(&plan, true)?;
    fit::resolve_auto(&mut plan, &mut prepared)?;
    if plan.dry_run {
        dry_run::print(&plan, &mut prepared)?;
        return Ok(Outcome::Done);
    }
    create_output_dir(&plan.train.output_dir)?;
    clean_output_dir(&plan.train.output_dir).map_err(failed("cleaning up after a killed run"))?;
    let outcome = train_and_evaluate(&plan, &mut prepared)?;
    eprintln!("{}", prepared.session.cache().stats());
    Ok(outcome)
}

fn train_and_evaluate(plan: &TrainPlan, prepared: &mut Prepared) -> Result<Outcome, Error> {
    if !plan.do_train {
        prepared.loaded.place(&mut prepared.session, plan.train.seed)?;
        return evaluate_at_end(plan, prepared, None);
    }
    // The signals stay taken over during the last evaluation, so that has to look at them too.
    let interrupt = Interrupt::install().map_err(failed("taking over SIGINT and SIGTERM"))?;
    let outcome = train(plan, prepared, &interrupt)?;
    match plan.do_eval && outcome == Outcome::Done {
        true => evaluate_at_end(plan, prepared, Some(&interrupt)),
        false => Ok(outcome),
    }
}

/// Everything that a run needs before it touches a weight.
pub(super) struct Prepared {
    pub tokenizer: Tokenizer,
    pub loaded: LoadedModel,
    pub block_size: usize,
    pub train: Option<Dataset>,
    pub validation: Option<Dataset>,
    pub session: Session,
}

impl Prepared {
    /// Opens and checks everything else before tokenizing, which can take hours and which a run that only compiles does without.
    pub fn new(plan: &TrainPlan, reads_data: bool) -> Result<Self, Error> {
        let tokenizer = Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
        let loaded = LoadedModel::open(&plan.model, Some(&tokenizer))?;
        let model = &loaded.model;
        tokenizer.check_vocab(model.vocab_size()).map_err(failed("matching tokenizer and model"))?;
        let block_size = block_size(&plan.data, &tokenizer, &**model)?;
        let mut session = open_device(plan.device, &plan.cache)?;
        session.set_eval_precision(plan.train.eval_precision);
        session.cache_mut().set_origin(origin("train clm", &**model, &graph_settings(plan, block_size)));
        let quiet = plan.train.disable_tqdm;
        let load = |wanted: bool, load: fn(&_, &Tokenizer, usize, bool) -> crate::data::Result<Dataset>, doing| {
            wanted.then(|| load(&plan.data, &tokenizer, block_size, quiet).map_err(failed(doing))).transpose()
        };
        let train = load(reads_data && plan.do_train, clm::train_dataset, "preparing the training text")?;
        let validation = load(reads_data && plan.do_eval, clm::validation_dataset, "preparing the validation text")?;
        Ok(Prepared { block_size, train, validation, session, tokenizer, loaded })
    }

    /// The shapes of the run's graphs.
    pub fn shapes(&self, plan: &TrainPlan) -> RunShapes {
        RunShapes {
            train_batch: plan.train.per_device_train_batch_size,
            eval_batch: plan.train.per_device_eval_batch_size,
            block_size: self.block_size,
            accumulation: plan.train.gradient_accumulation_steps,
            trains: plan.do_train,
            evaluates: plan.do_eval,
        }
    }

    fn saved_model(&self) -> SavedModel {
        SavedModel {
            config: self.loaded.model.config().values().clone(),
            generation_config: Some(self.loaded.generation_config()),
            tokenizer_files: self.tokenizer.files().to_vec(),
            parameters: self.loaded.model.parameters().into_iter().map(|p| p.name).collect(),
        }
    }
}

/// The settings that shape a run's graphs, by the names that the user knows. What is fed (learning rate, seed) is not among them.
fn graph_settings(plan: &TrainPlan, block_size: usize) -> Vec<(&'static str, String)> {
    let (train, optimizer) = (&plan.train, &plan.train.optimizer);
    vec![
        ("block_size", block_size.to_string()),
        ("per_device_train_batch_size", train.per_device_train_batch_size.to_string()),
        ("per_device_eval_batch_size", train.per_device_eval_batch_size.to_string()),
        ("gradient_accumulation_steps", train.gradient_accumulation_steps.to_string()),
        ("precision", train.precision.to_string()),
        ("eval_precision", train.eval_precision.to_string()),
        ("optim", format!("{:?}", optimizer.kind).to_lowercase()),
        ("weight_decay", optimizer.weight_decay.to_string()),
        ("adam_beta1", optimizer.adam_beta1.to_string()),
        ("adam_beta2", optimizer.adam_beta2.to_string()),
        ("adam_epsilon", optimizer.adam_epsilon.to_string()),
        ("max_grad_norm", optimizer.max_grad_norm.to_string()),
    ]
}

/// How the training rows become batches and steps.
pub(super) fn layout(plan: &TrainPlan, data: &Dataset) -> Result<(BatchPlan, RunLength, Schedule), Error> {
    let settings = &plan.train;
    let order = Order::Shuffled { seed: plan.data.source.seed };
    let batches = BatchPlan::new(data.len(), settings.per_device_train_batch_size, settings.dataloader_drop_last, order)
        .map_err(|error| {
            Error::usage(error.to_string(), "lower --per_device_train_batch_size, or leave --dataloader_drop_last out")
        })?;
    let length = RunLength::new(
        batches.batches_per_epoch() as u64,
        settings.gradient_accumulation_steps as u64,
        settings.num_train_epochs,
        settings.max_steps,
    );
    let optimizer = &settings.optimizer;
    let ratio = (length.max_steps as f64 * optimizer.warmup_ratio).ceil() as u64;
    let schedule = Schedule {
        kind: optimizer.schedule,
        peak: optimizer.learning_rate,
        warmup: optimizer.warmup_steps.unwrap_or(ratio),
        total: length.max_steps,
    };
    Ok((batches, length, schedule))
}

/// Checkpoints that an earlier run left where this one starts anew: never the one that its model comes from.
fn stale_checkpoints(plan: &TrainPlan) -> Result<Vec<PathBuf>, Error> {
    let found = list_checkpoints(&plan.train.output_dir).map_err(failed("looking for an earlier run's checkpoints"))?;
    let source = match &plan.model {
        ModelSource::Pretrained { directory } => directory.canonicalize().ok(),
        ModelSource::Scratch { .. } => None,
    };
    let is_source = |path: &Path| source.is_some() && path.canonicalize().ok() == source;
    Ok(found.into_iter().map(|(_, path)| path).filter(|path| !is_source(path)).collect())
}

/// The checkpoint that the run continues, if it does.
fn checkpoint(settings: &TrainSettings) -> Result<Option<Checkpoint>, Error> {
    let dir: PathBuf = match &settings.resume {
        Resume::No => return Ok(None),
        Resume::From(dir) => dir.clone(),
        Resume::Latest => latest_checkpoint(&settings.output_dir)
            .map_err(failed("looking for a checkpoint"))?
            .ok_or_else(|| Error::failed(format!("there is no checkpoint in {}", settings.output_dir.display())))?,
    };
    load_checkpoint(&dir).map(Some).map_err(failed("loading the checkpoint to resume from"))
}

/// Refuses a checkpoint whose position means something else in this run; causes come before their effects.
fn check_resume(saved: &Checkpoint, run: &TrainingState) -> Result<(), Error> {
    let was = |what: &str, saved: u64, run: u64| {
        (saved != run).then(|| format!("{what} was {saved} when it was saved and is {run} now"))
    };
    let old = &saved.state;
    let reason = was("--seed", old.seed, run.seed)
        .or_else(|| was("--per_device_train_batch_size", old.batch_size, run.batch_size))
        .or_else(|| was("--gradient_accumulation_steps", old.gradient_accumulation_steps, run.gradient_accumulation_steps))
        .or_else(|| {
            let differ = old.data_fingerprint != run.data_fingerprint;
            differ.then(|| "the training text, the tokenizer or the block size is not the one that it was saved with".into())
        })
        .or_else(|| was("the number of batches in an epoch", old.batches_per_epoch, run.batches_per_epoch));
    match reason {
        Some(reason) => Err(Error::usage(
            trainer::Error::Resume { path: saved.dir.clone(), reason }.to_string(),
            "use what it was saved with or, to start anew from its weights, give it as --model_name_or_path",
        )),
        None => Ok(()),
    }
}

/// Says which of the model's settings are not those of the checkpoint. Some may change (dropout); shapes are checked with the weights.
fn note_changed_config(saved: &Checkpoint, model: &Map<String, Value>) {
    let text = |value: Option<&Value>| value.map_or("not set".to_string(), Value::to_string);
    let keys: BTreeSet<&String> = saved.config.keys().chain(model.keys()).collect();
    for key in keys {
        let (old, new) = (saved.config.get(key), model.get(key));
        if old != new {
            eprintln!("note: {key} was {} when the checkpoint was saved and is {} now", text(old), text(new));
        }
    }
}

fn train(plan: &TrainPlan, prepared: &mut Prepared, interrupt: &Interrupt) -> Result<Outcome, Error> {
    let settings = &plan.train;
    let data = prepared.train.clone().expect("a run that trains has training data");
    let (batches, length, schedule) = layout(plan, &data)?;
    let state = TrainingState {
        seed: settings.seed,
        total_steps: length.max_steps,
        warmup_steps: schedule.warmup,
        batches_per_epoch: length.batches_per_epoch,
        batch_size: settings.per_device_train_batch_size as u64,
        gradient_accumulation_steps: length.accumulation,
        data_fingerprint: data.fingerprint(),
        ..Default::default()
    };
    let saved_model = prepared.saved_model();
    let model = &*prepared.loaded.model;
    let stepper = Stepper::new(model, settings.optimizer.clone(), schedule, settings.seed).with_precision(settings.precision);
    let session = &mut prepared.session;
    let extra_state = stepper.extra_state(length.accumulation > 1);

    let resumed = checkpoint(settings)?;
    if let Some(saved) = &resumed {
        check_resume(saved, &state)?;
        eprintln!("resuming from {} (step {})", saved.dir.display(), saved.state.global_step);
        note_changed_config(saved, model.config().values());
        if saved.state.total_steps != length.max_steps {
            let (old, new) = (saved.state.total_steps, length.max_steps);
            eprintln!("note: the learning-rate curve was laid out for {old} steps and is now for {new}");
        }
        if saved.state.global_step >= length.max_steps {
            eprintln!(
                "note: that is already the end; nothing is left to train (--max_steps or --num_train_epochs would extend it)"
            );
        }
        parameters::load(session, model, stepper.parameters(), &saved.weights).map_err(failed("loading the weights"))?;
        parameters::set_extra_state(session, &extra_state, Some(&saved.optimizer)).map_err(failed("loading the moments"))?;
    } else {
        prepared.loaded.place(session, settings.seed)?;
        parameters::set_extra_state(session, &extra_state, None).map_err(failed("making room for the moments"))?;
    }
    let start = start_position(resumed.as_ref().map(|c| &c.state), &length);
    let history = resumed.as_ref().map(|c| c.trainer_state.log_history.clone()).unwrap_or_default();
    let sums = Rc::new(RefCell::new(resumed.as_ref().map(|c| Sums::from_map(&c.state.accumulators)).unwrap_or_default()));

    let bar = Bar::new("training", length.max_steps, Style::choose(settings.disable_tqdm, Style::Silent));
    bar.skip_to(start.step);
    let log = RunLog::open(&settings.output_dir, history, start.step, bar).map_err(failed("opening the log"))?;
    let log = Rc::new(RefCell::new(log));
    let kept = Rc::new(RefCell::new(Kept {
        newest: resumed.as_ref().map(|c| c.dir.clone()),
        proven: None,
        stale: if resumed.is_none() { stale_checkpoints(plan)? } else { Vec::new() },
    }));
    let microbatch_flops = model.step_flops(settings.per_device_train_batch_size, prepared.block_size);
    let ceiling = ceiling::measure_tflops(session, settings.precision, CEILING_PATIENCE)
        .map_err(failed("measuring the matrix-multiply ceiling"))?;

    let saver = Saver {
        settings,
        model: &saved_model,
        optimizer_state: extra_state.iter().filter(|state| state.saved).map(|state| state.name.clone()).collect(),
        state,
        flops_per_step: microbatch_flops * length.accumulation as f64,
        log: log.clone(),
        sums: sums.clone(),
        interrupt: Some(interrupt.clone()),
        kept: kept.clone(),
    };
    let cadence = (settings.logging, settings.logging_first_step);
    let logger = Logger::new(log.clone(), sums.clone(), cadence, microbatch_flops, Some(ceiling));
    let mut hooks: Vec<Box<dyn Hook + '_>> = vec![Box::new(logger)];
    let client = session.client().clone();
    if let Some(validation) = prepared.validation.clone().map(Collator::Causal) {
        let (size, workers) = (settings.per_device_eval_batch_size, plan.data.source.dataloader_num_workers);
        let client = client.clone();
        hooks.push(Box::new(Evaluator {
            model,
            parameters: model.parameters(),
            batches: Box::new(move || eval_batches(&client, &validation, size, workers)),
            cadence: settings.eval,
            log: log.clone(),
        }));
    }
    hooks.push(Box::new(saver));

    let spec = LoadSpec {
        collator: Collator::Causal(data),
        plan: batches,
        start: Position { epoch: start.next_epoch, batch: start.next_batch as usize },
        end_epoch: u64::MAX,
    };
    let mut source =
        device_batches(&client, spec, plan.data.source.dataloader_num_workers).map_err(failed("starting the data workers"))?;
    let sentence = {
        let kept = kept.clone();
        move || kept.borrow().sentence()
    };
    let began = Instant::now();
    let run = RunLoop { stepper: &stepper, session, length, hooks, kept: Box::new(sentence) };
    let progress = run.run(&mut source, start).map_err(failed("training"))?;
    let runtime = began.elapsed().as_secs_f64();

    if let (Some(signal), false) = (interrupt.received(), progress.is_last()) {
        log.borrow().bar().finish();
        let dir = kept.borrow().newest.clone().unwrap_or_default();
        eprintln!("stopped after step {} of {}; saved {}", progress.step, progress.max_steps, dir.display());
        eprintln!("to go on, run the same command with --resume_from_checkpoint");
        return Ok(Outcome::Interrupted { signal });
    }
    let flops_per_step = microbatch_flops * length.accumulation as f64;
    let finished = Finished { progress, steps: progress.step - start.step, runtime, flops_per_step };
    finish(plan, &saved_model, session, (&log, &sums.borrow(), &mut kept.borrow_mut()), finished)?;
    Ok(Outcome::Done)
}

/// Where training starts: at the beginning, or where a checkpoint left off.
fn start_position(saved: Option<&TrainingState>, length: &RunLength) -> Progress {
    let (step, next_epoch, next_batch) = saved.map_or((0, 0, 0), |s| (s.global_step, s.epoch, s.batch_in_epoch));
    Progress {
        step,
        max_steps: length.max_steps,
        epoch: next_epoch as f64 + next_batch as f64 / length.batches_per_epoch as f64,
        next_epoch,
        next_batch,
        epoch_ended: false,
    }
}

/// What a run that reached its end did.
struct Finished {
    progress: Progress,
    /// Optimizer steps made in this process.
    steps: u64,
    /// Seconds.
    runtime: f64,
    flops_per_step: f64,
}

/// Writes the finished model and says how the run went.
fn finish(
    plan: &TrainPlan,
    model: &SavedModel,
    session: &Session,
    (log, sums, kept): (&RefCell<RunLog>, &Sums, &mut Kept),
    run: Finished,
) -> Result<(), Error> {
    let settings = &plan.train;
    let summary = Record::Summary(SummaryRecord {
        runtime: run.runtime,
        samples: run.steps * (settings.per_device_train_batch_size * settings.gradient_accumulation_steps) as u64,
        steps: run.steps,
        loss: if sums.total_steps > 0.0 { sums.total_loss / sums.total_steps } else { 0.0 },
        total_flos: run.flops_per_step * run.progress.step as f64,
        epoch: run.progress.epoch,
        step: run.progress.step,
    });
    let mut log = log.borrow_mut();
    log.bar().finish();
    if sums.skipped_steps > 0.0 {
        let (skipped, all) = (sums.skipped_steps, run.progress.step);
        eprintln!("note: {skipped} of {all} optimizer steps were skipped, because their gradients overflowed fp16");
    }
    let dir = &settings.output_dir;
    // A finished run that is resumed has made no steps; its figures stay those of the run that made them.
    let is_news = run.steps > 0 || !dir.join("train_results.json").exists();
    if is_news {
        log.record(&summary).map_err(failed("logging"))?;
    }
    model.save(session, dir, run.progress.step, kept).map_err(failed("saving the model"))?;
    kept.remove_stale().map_err(failed("removing an earlier run's checkpoints"))?;
    let state = trainer_state(settings, &log, run.flops_per_step, &run.progress);
    write_json(&dir.join(TRAINER_STATE_FILE), &state).map_err(failed("saving the trainer state"))?;
    if is_news {
        save_metrics(dir, "train", &summary.results()).map_err(failed("saving the results"))?;
    }
    println!("saved the model in {}", dir.display());
    Ok(())
}

/// Evaluates the weights on the device and writes the results, unless a signal asks for the end: half a set's loss is no result.
fn evaluate_at_end(plan: &TrainPlan, prepared: &mut Prepared, interrupt: Option<&Interrupt>) -> Result<Outcome, Error> {
    let validation = Collator::Causal(prepared.validation.clone().expect("a run that evaluates has validation data"));
    let model = &*prepared.loaded.model;
    let (size, workers) = (plan.train.per_device_eval_batch_size, plan.data.source.dataloader_num_workers);
    let session = &mut prepared.session;
    let batches =
        eval_batches(session.client(), &validation, size, workers).map_err(failed("preparing the validation batches"))?;
    let received = || interrupt.and_then(Interrupt::received);
    let mut batches = batches.take_while(|_| received().is_none());
    let evaluation = evaluate(session, model, &model.parameters(), &mut batches).map_err(failed("evaluating"))?;
    if let Some(signal) = received() {
        let dir = plan.train.output_dir.display();
        eprintln!("stopped during the last evaluation; the trained model is in {dir}");
        eprintln!("to evaluate it, run xtrain eval clm --model_name_or_path {dir}");
        return Ok(Outcome::Interrupted { signal });
    }
    let record = evaluation.record(None);
    println!("{}", record.printed());
    save_metrics(&plan.train.output_dir, "eval", &record.results()).map_err(failed("saving the results"))?;
    Ok(Outcome::Done)
}
