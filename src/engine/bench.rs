//! Timing training steps on random tokens, beside the device's peak FLOP/s.

use super::batches::BatchForm;
use super::device::cpu_kernels;
use super::error::{Error, failed};
use super::exchanged::exchanged;
use super::execution::Execution;
use super::model::{LoadedModel, ModelConfig, origin};
use super::profile;
use ndarray::Array2;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xtrain_config::{BenchPlan, ModelSource};
use xtrain_data::batch::{Batch, HostLabels};
use xtrain_graphs::Precision;
use xtrain_graphs::optim::Schedule;
use xtrain_models::{Config, HeadKind, IGNORED_LABEL, MaskedToken, NextToken, Objective};
use xtrain_report::memory::{cpu_time, peak_rss};
use xtrain_report::scaling::Exchange;
use xtrain_runtime::Library;
use xtrain_trainer::ahead::{Ahead, RunShapes};
use xtrain_trainer::feed::DeviceBatch;
use xtrain_trainer::matmul_peak;
use xtrain_trainer::parameters::{self, Head};
use xtrain_trainer::pipeline::HostTime;
use xtrain_trainer::session::Session;
use xtrain_trainer::step::{Phase, TrainStep, read_metrics};

/// Share of the tokens that masked language modelling predicts, as in `bench/peers.py`.
const MASKED: f64 = 0.15;

/// Steps that `--profile` records, after those that are timed.
const PROFILED: u32 = 3;

/// Different batches that the steps go round in.
const BATCHES: usize = 4;

/// Times the steps of a plan; the results by name, as `xtrain bench --json` prints them.
///
/// # Errors
/// If the model cannot be read, or a step cannot be run.
pub fn bench(plan: &BenchPlan) -> Result<Value, Error> {
    let began = Instant::now();
    let flags = &plan.train.flags;
    let (loaded, objective) = model(plan)?;
    let model = &*loaded.model;
    let execution = Execution::new(&plan.device, &plan.cache, &plan.train);
    let shards = plan.train.mesh.batch_shards();
    let shape = [
        ("batch", flags.batch.to_string()),
        ("seq", flags.seq.to_string()),
        ("data_parallel", shards.to_string()),
    ];
    let mut session = execution.session(model, origin("bench", model, &shape))?;
    let total = (*flags.warmup + *flags.steps) as u64;
    let schedule = Schedule::constant(plan.train.optimizer.learning_rate);
    let train_step = execution.step(model, &objective, schedule);
    let form = form(plan, objective.clone());
    let shapes = RunShapes {
        train: form.shapes(*flags.batch),
        eval: Vec::new(),
        accumulation: 1,
        of_reference: false,
    };
    let mut ahead = Ahead {
        session: &mut session,
        step: &train_step,
        shapes: &shapes,
        metrics: None,
    };
    ahead.start().map_err(failed("recording the step"))?;

    let placing = Instant::now();
    loaded.place(&mut session, *flags.seed)?;
    parameters::set_extra_state(&mut session, &train_step.extra_state(false), None)
        .map_err(failed("placing the moments"))?;
    let mut rng = ChaCha8Rng::seed_from_u64(*flags.seed);
    let batches = (0..BATCHES).map(|index| {
        let (rows, vocabulary) = (*flags.batch * shards, model.vocab_size());
        let share = objective.labelled_share();
        let batch = random_batch(rows, *flags.seq, vocabulary, share, index, &mut rng);
        let uploaded = form.upload(session.client(), batch);
        uploaded.map_err(failed("placing a batch"))
    });
    let batches = batches.collect::<Result<Vec<DeviceBatch>, Error>>()?;
    let placing = placing.elapsed();
    // Part of the start, unlike the measurement of the ceiling, which would wait for it too.
    session.cache_mut().settle();

    // Before and after, the better one counts: on a shared machine a single moment says little.
    let measuring = Instant::now();
    let before = measure_ceiling(&mut session, plan.train.precision)?;
    let measuring = measuring.elapsed();
    let mut steps = Steps {
        step: &train_step,
        session: &mut session,
        batches: &batches,
    };
    let timings = steps.timed(total, *flags.warmup as u64)?;
    let profile = flags.profile.then(|| steps.profiled(total)).transpose()?;
    let startup = timings.handed_over - began - placing - measuring;
    let first_step = timings.first_done - began - measuring;
    let (loaded_graphs, load_s) = graphs_of_steps(&session, true);
    let (compiled_graphs, compile_s) = graphs_of_steps(&session, false);
    let device = session
        .client()
        .addressable_devices()
        .next()
        .and_then(|device| device.memory());
    let device_peak = device.and_then(|memory| memory.peak_bytes_in_use);
    let ceiling = before.max(measure_ceiling(&mut session, plan.train.precision)?);
    let [times, trace, cpu] = [timings.steps, timings.trace, timings.cpu].map(|mut series| {
        series.sort_by(f64::total_cmp);
        series
    });
    let median = times[times.len() / 2];
    let tflops = train_step.flops(&batches[0]) / median / 1e9;
    let mut ahead = Ahead {
        session: &mut session,
        step: &train_step,
        shapes: &shapes,
        metrics: None,
    };
    let exchanged = exchanged(&mut ahead).map_err(failed("recording the step"))?;
    let mut results = json!({
        "precision": plan.train.precision.to_string(),
        "gradient_checkpointing": plan.train.checkpointing.to_string(),
        "kernels": cpu_kernels(&plan.device, &plan.cache),
        "step_ms_median": median,
        "step_ms_min": times[0],
        "step_ms_max": times[times.len() - 1],
        "cpu_ms_median": cpu[cpu.len() / 2],
        "tokens_per_s": (*flags.batch * shards * *flags.seq) as f64 / median * 1e3,
        "model_tflops": tflops,
        "ceiling_tflops": ceiling,
        "fraction_of_ceiling": tflops / ceiling,
        "compile_s": compile_s,
        // Until the first step was handed to the device, without making weights and batches;
        // loading overlaps with that.
        "startup_s": startup.as_secs_f64(),
        "first_step_s": first_step.as_secs_f64(),
        "peak_device_mb": device_peak.map_or(0.0, |b| b as f64 / 1e6),
        "peak_rss_mb": peak_rss().map_or(0.0, |b| b as f64 / 1e6),
        "trace_ms": trace[trace.len() / 2],
        "loss_first": timings.losses[0],
        "loss_last": timings.losses[timings.losses.len() - 1],
        "compiled_graphs": compiled_graphs,
        "loaded_graphs": loaded_graphs,
        "load_s": load_s,
        "exchanged_per_step": exchanged.iter().map(Exchange::json).collect::<Vec<_>>(),
    });
    if let Some(profile) = profile {
        results["profile"] = profile;
    }
    Ok(results)
}

/// The model, and what it learns: encoders masked tokens, decoders the next one, whatever else the model
/// was saved for.
pub(super) fn model(plan: &BenchPlan) -> Result<(LoadedModel, Arc<dyn Objective>), Error> {
    let flags = &plan.train.flags;
    let mut read = ModelConfig::read(&plan.model, None)?;
    if let ModelSource::Scratch { overrides, .. } = &plan.model {
        set_dropout(&mut read.config, *flags.dropout, overrides);
    }
    let head = HeadKind::of(&read.config).map_err(failed("reading the model's configuration"))?;
    let (task, objective): (HeadKind, Arc<dyn Objective>) = match head {
        HeadKind::MaskedLm => {
            let share = Some(MASKED);
            let masked = MaskedToken {
                share,
                ..MaskedToken::default()
            };
            (HeadKind::MaskedLm, Arc::new(masked))
        }
        _ => (HeadKind::CausalLm, Arc::new(NextToken::default())),
    };
    let mut loaded = read.build(task, Head::NewIfMissing)?;
    if let Some(config) = &plan.lora {
        loaded = loaded.with_new_adapter(config.clone())?;
    }
    let positions = loaded.model.max_positions();
    if *flags.seq > positions {
        let problem = format!(
            "--seq {} is more than the model's {positions} positions (n_positions)",
            *flags.seq
        );
        let fix = format!("set --seq {positions} or less");
        return Err(Error::usage(problem, fix));
    }
    Ok((loaded, objective))
}

/// Batches of tokens alone.
fn form(plan: &BenchPlan, objective: Arc<dyn Objective>) -> BatchForm {
    BatchForm {
        lengths: vec![*plan.train.flags.seq],
        named: false,
        objective,
        attention_mask: false,
        position_ids: false,
        token_type_ids: false,
        mesh: plan.train.mesh,
    }
}

/// Steps over a few batches in turn.
struct Steps<'s> {
    step: &'s TrainStep<'s>,
    session: &'s mut Session,
    batches: &'s [DeviceBatch],
}

/// Milliseconds of each step that counts, and when the first one came.
struct Timings {
    steps: Vec<f64>,
    cpu: Vec<f64>,
    /// Of the host, until a step was handed over.
    trace: Vec<f64>,
    losses: Vec<f32>,
    handed_over: Instant,
    first_done: Instant,
}

impl Steps<'_> {
    /// Runs a step to its end: its loss, the host's time, and when it was handed over.
    fn run(&mut self, step: u64) -> Result<(f32, HostTime, Instant), Error> {
        let batch = &self.batches[step as usize % self.batches.len()];
        let phase = Phase::Update { accumulated: false };
        let marked = self.step.microbatch(self.session, batch, phase, step, step);
        let marked = marked.map_err(failed("running a step"))?;
        let handed_over = Instant::now();
        let metrics = read_metrics(&marked).and_then(|m| m.wait());
        let metrics = metrics.map_err(failed("running a step"))?;
        Ok((metrics.loss, marked.host_time, handed_over))
    }

    /// Times the steps up to `total`, without those of the warm-up.
    fn timed(&mut self, total: u64, warmup: u64) -> Result<Timings, Error> {
        let now = Instant::now();
        let mut timings = Timings {
            steps: Vec::new(),
            cpu: Vec::new(),
            trace: Vec::new(),
            losses: Vec::new(),
            handed_over: now,
            first_done: now,
        };
        for step in 0..total {
            let (start, cpu_start) = (Instant::now(), cpu_time());
            let (loss, host, handed_over) = self.run(step)?;
            timings.losses.push(loss);
            if step == 0 {
                (timings.handed_over, timings.first_done) = (handed_over, Instant::now());
            }
            if step >= warmup {
                let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
                timings.steps.push(milliseconds(start.elapsed()));
                timings.cpu.push(milliseconds(cpu_time() - cpu_start));
                timings.trace.push(milliseconds(host.trace + host.execute));
            }
        }
        Ok(timings)
    }

    /// Where the time of further steps goes.
    fn profiled(&mut self, first: u64) -> Result<Value, Error> {
        let library = Library::open().map_err(failed("opening XLA's profiler"))?;
        let work = || {
            (first..)
                .take(PROFILED as usize)
                .try_for_each(|step| self.run(step).map(drop))
        };
        let (done, events) = library
            .profile(work)
            .map_err(failed("recording a profile"))?;
        done?;
        let graphs = self.session.cache().graphs();
        let steps = graphs
            .iter()
            .filter(|graph| graph.name != matmul_peak::GRAPH_NAME);
        let modules = steps.map(|graph| graph.executable.optimized_hlo());
        let modules: Result<Vec<_>, _> = modules.collect();
        let parts = modules.and_then(|modules| profile::parts(&events, &modules));
        let parts = parts.map_err(failed("reading the compiled step"))?;
        Ok(profile::json(&parts, PROFILED))
    }
}

/// How many of the steps' graphs were loaded, or compiled, and the seconds that took.
fn graphs_of_steps(session: &Session, loaded: bool) -> (usize, f64) {
    let graphs = session.cache().graphs();
    let of_steps = graphs
        .iter()
        .filter(|graph| graph.name != matmul_peak::GRAPH_NAME && graph.loaded == loaded);
    of_steps.fold((0, 0.0), |(count, seconds), graph| {
        (count + 1, seconds + graph.ready_time.as_secs_f64())
    })
}

fn measure_ceiling(session: &mut Session, precision: Precision) -> Result<f64, Error> {
    matmul_peak::measure_tflops(session, precision, Duration::from_secs(5))
        .map_err(failed("measuring the matrix-multiply ceiling"))
}

/// Dropout everywhere, but for what the user chose by `--config_overrides`.
fn set_dropout(config: &mut Config, rate: f64, overrides: &[(String, Value)]) {
    let keys: Vec<String> = config.values().keys().cloned().collect();
    let is_rate = |key: &str| key.contains("drop") || key.ends_with("pdrop");
    for key in keys.iter().filter(|key| is_rate(key)) {
        let is_chosen = overrides.iter().any(|(chosen, _)| chosen == key);
        if !is_chosen && config.get(key).is_some_and(Value::is_number) {
            config.set(key, rate);
        }
    }
}

/// Random tokens, each its own label; for masked language modelling a random share of them.
fn random_batch(
    rows: usize,
    tokens: usize,
    vocabulary: usize,
    labelled_share: Option<f64>,
    index: usize,
    rng: &mut ChaCha8Rng,
) -> Batch {
    let input_ids =
        Array2::from_shape_fn((rows, tokens), |_| rng.random_range(0..vocabulary as i32));
    let chosen = match labelled_share {
        Some(share) => input_ids.mapv(|id| {
            if rng.random_bool(share) {
                id
            } else {
                IGNORED_LABEL as i32
            }
        }),
        None => input_ids.clone(),
    };
    Batch {
        targets: chosen
            .iter()
            .filter(|label| **label != IGNORED_LABEL as i32)
            .count(),
        labels: HostLabels::Tokens(chosen),
        input_ids,
        attention_mask: None,
        token_type_ids: None,
        numbers: Vec::new(),
        position_ids: None,
        examples: rows,
        tokens: rows * tokens,
        epoch: 0,
        index_in_epoch: index,
    }
}
