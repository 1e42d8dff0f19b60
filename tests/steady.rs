//! The steady state: nothing is compiled after the first steps, memory stays flat, and weights and
//! moments exist once because a step's state is donated to the next. Figures are printed
//! (`--nocapture`); times are never asserted.

use crate::support::{data_dir, objective_of, xtrain};
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::ahead::{Ahead, RunShapes};
use xtrain::trainer::feed::{BatchShape, DeviceBatch};
use xtrain::trainer::session::{Feeds, RecordedSteps, Session};
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_graphs::{DType, Shape};
use xtrain_models::HeadKind;

const MB: f64 = 1e6;

/// What a process has resident, in bytes.
fn rss(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

#[test]
#[ignore = "slow: 2,000 steps"]
fn memory_is_flat_and_nothing_is_compiled_over_2000_steps() {
    const STEPS: usize = 2000;
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..4000)
        .map(|i| {
            format!(
                "Line {i} says that {} and {} are {}.\n",
                i % 7,
                i % 11,
                i % 7 + i % 11
            )
        })
        .collect();
    fs::write(dir.path().join("train.txt"), text).unwrap();
    let mut measured = Vec::new();
    let run = xtrain()
        .dir(dir.path())
        .env("XTRAIN_CACHE_DIR", dir.path().join("cache"))
        .args([
            "train",
            "clm",
            "--disable_tqdm",
            "--model_type",
            "gpt2",
            "--output_dir",
            "out",
            "--train_file",
            "train.txt",
        ])
        .args([
            "--config_overrides",
            "n_layer=2,n_head=2,n_embd=32,n_positions=64",
            "--block_size",
            "16",
        ])
        .args([
            "--per_device_train_batch_size",
            "2",
            "--dataloader_num_workers",
            "2",
            "--logging_steps",
            "10",
        ])
        .args([
            "--max_steps",
            &STEPS.to_string(),
            "--save_strategy",
            "no",
            "--tokenizer_name",
        ])
        .arg(data_dir().join("golden/tokenizers/byte_bpe"))
        .run_watching(|line, pid| {
            if line.contains("{'loss'") {
                measured.push(rss(pid));
            }
        });
    run.succeeded();
    assert_eq!(measured.len(), STEPS / 10);
    // Means of 20 measurements, 200 steps: allocators and the kernel move single ones by pages.
    let mean = |range: &[f64]| range.iter().sum::<f64>() / range.len() as f64;
    let (early, late) = (mean(&measured[20..40]), mean(&measured[180..]));
    let growth = late - early;
    println!(
        "resident at steps 200..400: {:.1} MB, at steps 1800..2000: {:.1} MB, growth {:.2} MB",
        early / MB,
        late / MB,
        growth / MB
    );
    // 2 KB for each of 1600 steps would be 3.2 MB; a leaked batch, metric or executable of any size
    // shows.
    assert!(
        growth < 3.0 * MB,
        "{:.2} MB more after 1600 steps",
        growth / MB
    );

    let end = run
        .stderr
        .lines()
        .find(|line| line.starts_with("graphs used "))
        .expect("the run's last line counts compilations");
    println!("{end}");
    let number = |before: &str| -> u64 {
        let rest = end.split_once(before).unwrap().1;
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap()]
            .parse()
            .unwrap()
    };
    assert_eq!(number("graphs used "), 1, "the step's graph: {end}");
    assert_eq!(
        number("cache hits ") + number("compiled "),
        1,
        "each found or compiled once: {end}"
    );
}

#[test]
fn state_is_donated_so_that_there_is_one_copy() {
    let mut config = xtrain_models::preset("gpt2").unwrap();
    for (key, value) in [
        ("n_layer", 2),
        ("n_head", 2),
        ("n_embd", 64),
        ("n_positions", 64),
        ("vocab_size", 500),
    ] {
        config.set(key, value);
    }
    let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    let specs = model.parameters();
    parameters::initialize(&mut session, &specs, 1).unwrap();
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak: 1e-4,
        warmup: 2,
        total: 10,
    };
    let train_step = TrainStep::new(
        &*model,
        objective_of(model.head_kind(), 0.0),
        OptimizerSettings::constant(ADAMW, 1e-4),
        schedule,
        1,
    );
    let extra = train_step.extra_state(true);
    parameters::set_extra_state(&mut session, &extra, None).unwrap();
    let shape = Shape::new(DType::S32, [2usize, 16]);
    let ids: Vec<i32> = (0..32).collect();
    let ids = session.upload(bytemuck::cast_slice(&ids), &shape).unwrap();
    let batch = DeviceBatch::full(ids.clone(), ids);
    // Learning rate, step and microstep change from step to step; the graphs must not.
    for step in 0..10 {
        for (micro, phase) in [Phase::Accumulate, Phase::Update { accumulated: true }]
            .into_iter()
            .enumerate()
        {
            let marked = train_step
                .microbatch(&mut session, &batch, phase, step, step * 2 + micro as u64)
                .unwrap();
            if phase != Phase::Accumulate {
                assert!(
                    read_metrics(&marked)
                        .unwrap()
                        .wait()
                        .unwrap()
                        .loss
                        .is_finite()
                );
            }
        }
        assert_eq!(session.cache().stats().compiled, 2, "after step {step}");
    }
    // Recorded once each, they are not looked up again.
    assert_eq!(session.cache().stats().hits, 0);

    let bytes = |shapes: &[&Shape]| shapes.iter().map(|shape| shape.bytes()).sum::<usize>() as i64;
    let weights: i64 = specs
        .iter()
        .map(|p| parameters::parameter_shape(p, DType::F32).bytes() as i64)
        .sum();
    let of = |kind: &str| {
        bytes(
            &extra
                .iter()
                .filter(|s| s.name.starts_with(kind))
                .map(|s| &s.shape)
                .collect::<Vec<_>>(),
        )
    };
    let moments = of("exp_avg");
    let accumulators = bytes(&extra.iter().map(|s| &s.shape).collect::<Vec<_>>()) - moments;
    assert_eq!(moments, 2 * weights);
    for graph in session.cache().graphs() {
        let memory = graph.memory().unwrap();
        println!(
            "{}: weights {weights}, moments {moments}, gradient sums {accumulators}; arguments {}, outputs {}, shared {}, temporaries {}",
            graph.name,
            memory.argument_bytes,
            memory.output_bytes,
            memory.alias_bytes,
            memory.temp_bytes
        );
        // What the step changes is written over in place.
        let changed = match graph.name.as_str() {
            "accumulate" => accumulators,
            _ => weights + moments + accumulators,
        };
        assert!(
            memory.alias_bytes >= changed,
            "{}: {changed} bytes change, {} are donated",
            graph.name,
            memory.alias_bytes
        );
        // Beyond that there are only a batch, a few numbers, and the table of output addresses.
        let once = memory.argument_bytes + memory.output_bytes - memory.alias_bytes;
        let slack = 16 * 1024;
        assert!(
            once <= weights + moments + accumulators + slack,
            "{}: {once} bytes for one copy",
            graph.name
        );
    }
}

#[test]
fn the_peak_of_a_real_process_is_one_copy_of_the_state() {
    let bench = |sizes: &str| -> Value {
        let run = xtrain()
            .args([
                "bench",
                "--json",
                "--model_type",
                "gpt2",
                "--batch",
                "1",
                "--seq",
                "16",
                "--steps",
                "5",
                "--warmup",
                "2",
            ])
            .args(["--config_overrides", sizes, "--compile_cache", "false"])
            .run();
        run.succeeded();
        serde_json::from_str(run.stdout.trim()).unwrap()
    };
    let tiny = bench("n_layer=4,n_head=8,n_embd=16,n_positions=16,vocab_size=100");
    let (layers, width, vocab) = (4.0, 512.0, 16_000.0);
    let medium = bench("n_layer=4,n_head=8,n_embd=512,n_positions=16,vocab_size=16000");
    let weights = 4.0 * (layers * 12.0 * width * width + vocab * width);
    let (state, temporaries) = (
        3.0 * weights,
        train_temporaries(&[("n_layer", 4), ("n_head", 8), ("n_embd", 512)]) as f64,
    );
    let peak = |json: &Value| json["peak_rss_mb"].as_f64().unwrap() * MB;
    let grown = peak(&medium) - peak(&tiny);
    println!(
        "peak {:.0} MB, of a tiny model {:.0} MB: {:.0} MB more; weights {:.0} MB, with moments {:.0} MB, the step's temporaries \
         {:.0} MB; with those of two steps, one copy of the state {:.0} MB, two {:.0} MB",
        peak(&medium) / MB,
        peak(&tiny) / MB,
        grown / MB,
        weights / MB,
        state / MB,
        temporaries / MB,
        (state + 2.0 * temporaries) / MB,
        (2.0 * state + 2.0 * temporaries) / MB
    );
    // Room is left for a second set of temporaries, which a step may take before the last one gave
    // its own back, for the compiler, and half of what a second copy would take.
    assert!(
        grown < state + 2.0 * temporaries + 0.5 * state,
        "{:.0} MB is not one copy",
        grown / MB
    );
    assert_eq!(medium["compiled_graphs"], 1, "{medium}");
    let (host, step) = (
        medium["trace_ms"].as_f64().unwrap(),
        medium["step_ms_median"].as_f64().unwrap(),
    );
    println!(
        "host time per step (trace and execute): {host:.2} ms of {step:.1} ms, {:.1}%",
        100.0 * host / step
    );
}

/// Bytes that the compiler sets aside for the step of the medium model: gradients, activations.
fn train_temporaries(sizes: &[(&str, i64)]) -> i64 {
    let mut config = xtrain_models::preset("gpt2").unwrap();
    for (key, value) in sizes
        .iter()
        .chain(&[("n_positions", 16), ("vocab_size", 16000)])
    {
        config.set(key, *value);
    }
    for key in ["embd_pdrop", "attn_pdrop", "resid_pdrop"] {
        config.set(key, 0.0);
    }
    let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    let schedule = Schedule::constant(1e-4);
    let train_step = TrainStep::new(
        &*model,
        objective_of(model.head_kind(), 0.0),
        OptimizerSettings::constant(ADAMW, 1e-4),
        schedule,
        1,
    );
    let batch = BatchShape::of(train_step.objective(), 1, 16);
    let shapes = RunShapes {
        train: vec![batch],
        eval: Vec::new(),
        accumulation: 1,
        of_reference: false,
    };
    let graphs = Ahead {
        session: &mut session,
        step: &train_step,
        shapes: &shapes,
        metrics: None,
    }
    .compile(2, &mut |_| {})
    .unwrap();
    let train = graphs.iter().find(|graph| graph.name == "train").unwrap();
    train.memory().unwrap().temp_bytes
}

/// Adds the feed `x`, times `factor`, to the state `w` and fetches it.
fn add(
    session: &mut Session,
    steps: &mut RecordedSteps,
    x: &[f32],
    factor: f64,
    recorded: &Cell<usize>,
) -> xtrain::trainer::Result<Vec<f32>> {
    let shape = Shape::new(DType::F32, [x.len()]);
    let mut feeds = Feeds::begin();
    feeds.add("x", session.upload(bytemuck::cast_slice(x), &shape)?);
    let outputs = session.step(steps, "add", feeds, true, |recording| {
        recorded.set(recorded.get() + 1);
        let x = recording.given("x", &shape).sum_all()?;
        let two =
            recording.feed_host("two", bytemuck::bytes_of(&2f32), &Shape::scalar(DType::F32))?;
        let held = recording.state("w")?;
        let change = x.mul(&two)?.mul_scalar(factor)?;
        let new = held.add(&change.broadcast_to(held.dims())?)?;
        recording.assign("w", &new)?;
        recording.fetch("sum", &new);
        Ok(())
    })?;
    Ok(outputs.fetched("sum").download_to()?)
}

/// A step is recorded for each shape of its feeds and for each layout of the state; constants that it feeds
/// by itself stay.
#[test]
fn a_step_is_recorded_once() {
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    session.set_records_again(false);
    let (mut steps, recorded) = (RecordedSteps::default(), Cell::new(0));
    let zeros = |n: usize| (vec![0u8; 4 * n], Shape::new(DType::F32, [n]));
    let (bytes, shape) = zeros(1);
    session.set_state("w", &bytes, &shape).unwrap();
    let mut add = |session: &mut Session, x: &[f32]| {
        let sum = add(session, &mut steps, x, 1.0, &recorded).unwrap();
        (sum, recorded.get())
    };
    assert_eq!(add(&mut session, &[1.0, 2.0]), (vec![6.0], 1));
    assert_eq!(add(&mut session, &[0.5, 0.0]), (vec![7.0], 1));
    assert_eq!(add(&mut session, &[1.0]), (vec![9.0], 2));
    assert_eq!(add(&mut session, &[0.0, -1.0]), (vec![7.0], 2));
    // The same shape again: nothing that a recording depends on.
    session.set_state("w", &bytes, &shape).unwrap();
    assert_eq!(add(&mut session, &[0.0, 1.0]), (vec![2.0], 2));
    let (bytes, shape) = zeros(2);
    session.set_state("w", &bytes, &shape).unwrap();
    assert_eq!(add(&mut session, &[0.0, 1.0]), (vec![2.0, 2.0], 3));
}

/// What changes a step besides the shapes of its feeds is found where each step is recorded again.
#[test]
fn a_step_that_changes_is_found() {
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    session.set_records_again(true);
    let (mut steps, recorded) = (RecordedSteps::default(), Cell::new(0));
    let zero = Shape::new(DType::F32, [1]);
    session.set_state("w", &[0; 4], &zero).unwrap();
    let mut add = |factor| add(&mut session, &mut steps, &[1.0], factor, &recorded);
    assert_eq!(add(1.0).unwrap(), [2.0]);
    assert_eq!(add(1.0).unwrap(), [4.0]);
    let error = add(3.0).unwrap_err().to_string();
    assert!(error.contains("`add`"), "{error}");
    assert_eq!(recorded.get(), 3);
}
