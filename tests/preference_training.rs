//! Parity of training on preferences with TRL 1.16, in f64 by plain torch: every trajectory of `finetune/dpo`, adapters'
//! too, and of reward, kto and orpo in `finetune/objectives` of the golden directories. Nothing here depends on which
//! settings or sizes they hold.

use crate::preferences::{
    Bench, GRADIENTS, HostBatch, LOSS, NORM, RowLabels, answers, assert_near, folders, number,
    pair_rows, preference, row,
};
use crate::support::max_difference;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::trainer::parameters;
use xtrain::trainer::session::Session;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, StepMetrics, TrainStep, read_metrics};
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_models::{DESIRABLE, Kto, Model, Objective, OddsRatio, REFERENCE, Reward};

const FINAL_WEIGHTS: f32 = 1e-5;
/// What TRL logs is f32.
const LOGGED: f64 = 1e-4;

/// A case that is trained: what to train, on which batches, and what each row is compared with.
struct Training<'a> {
    name: String,
    dir: &'a Path,
    model: PathBuf,
    /// The directory of the adapter that is trained in place of the model.
    adapter: Option<PathBuf>,
    pad_id: i32,
    objective: Arc<dyn Objective>,
    /// The batch of a step.
    batch: &'a dyn Fn(usize) -> HostBatch,
}

/// What a file calls a parameter.
fn saved_name(model: &dyn Model, parameter: &str) -> String {
    match model.adapter() {
        Some(adapter) => adapter.saved_name(parameter),
        None => parameter.to_string(),
    }
}

/// The adapter's gradients at the first step.
fn assert_gradients(
    name: &str,
    bench: &mut Bench,
    dir: &Path,
    objective: &dyn Objective,
    batch: &HostBatch,
) {
    let expected = StoredTensors::open(&dir.join("grads.safetensors")).unwrap();
    let found = bench.gradients(objective, batch);
    assert_eq!(
        found.len(),
        expected.iter().count(),
        "{name}: trained tensors"
    );
    for (parameter, found) in found {
        // As PEFT names it in a model.
        let saved = saved_name(&*bench.model, &parameter).replace(".weight", ".default.weight");
        let (_, expected) = expected.read_f32(&saved).unwrap();
        let difference = max_difference(&found, &expected);
        assert!(
            difference <= GRADIENTS,
            "{name} {parameter}: {difference:e}"
        );
    }
}

/// What TRL logged of a step beside what is measured here.
fn assert_record(
    what: &str,
    record: &Value,
    metrics: &StepMetrics,
    learning_rate: f64,
    objective: &dyn Objective,
    accumulation: u64,
) {
    let mut known = 0;
    for (key, expected) in record.as_object().unwrap() {
        let expected = expected.as_f64().unwrap();
        let found = match key.as_str() {
            "loss" => f64::from(metrics.loss),
            "grad_norm" => f64::from(metrics.grad_norm),
            "lr" => learning_rate,
            // TRL's ORPOTrainer has the mean over padding too.
            logits if what.starts_with("orpo ") && logits.starts_with("logits/") => continue,
            measure => {
                let place = objective.measures().iter().position(|it| *it == measure);
                let Some(place) = place else {
                    panic!("{what}: {measure} is not measured")
                };
                // TRL has the mean of the microbatches' means, here it is one over all of
                // their tokens.
                let over_tokens = ["entropy", "logits", "mean_token"];
                let is_over_tokens = over_tokens.iter().any(|it| measure.starts_with(it));
                if is_over_tokens && accumulation > 1 {
                    continue;
                }
                known += 1;
                metrics.measured[place]
            }
        };
        let bar = LOGGED * expected.abs().max(1.0);
        assert_near(&format!("{what} {key}"), found, expected, bar);
    }
    assert!(known > 0, "{what}: nothing that TRL logs is measured");
}

/// The weights after a training.
fn assert_final(
    model: &dyn Model,
    session: &mut Session,
    step: &TrainStep,
    file: &Path,
    expected: &StoredTensors,
) {
    let trained = step.parameters().iter().filter(|it| it.trained);
    let names: Vec<String> = trained.map(|p| p.name.clone()).collect();
    assert_eq!(expected.iter().count(), names.len(), "{}", file.display());
    for name in names {
        let (_, expected) = expected.read_f32(&saved_name(model, &name)).unwrap();
        let (bytes, _) = session.download(&name).unwrap();
        let found: &[f32] = bytemuck::cast_slice(&bytes);
        let difference = max_difference(found, &expected);
        assert!(difference <= FINAL_WEIGHTS, "{name}: {difference:e}");
    }
}

/// Follows a trajectory: loss, norm and measures of each step, then the weights.
fn follow(training: Training<'_>) {
    let Training {
        name,
        dir,
        model,
        adapter,
        pad_id,
        objective,
        batch,
    } = training;
    let trajectory: Value = hf::read_json(&dir.join("trajectory.json")).unwrap();
    let steps = trajectory["steps"].as_array().unwrap();
    let hyper = |key: &str| trajectory["hyper"][key].as_f64().unwrap();
    let mut batches: Vec<HostBatch> = (0..steps.len()).map(batch).collect();
    let rows = batches.iter().flat_map(|batch| &batch.rows);
    let longest = rows.map(|row| row.ids.len()).max().unwrap();
    let weights = model.join("model.safetensors");
    let open = || Bench::open(&model, &weights, adapter.as_deref(), pad_id, longest);
    let mut bench = open();
    if let Some(reference) = objective.reference() {
        for batch in &mut batches {
            let numbers = bench.predicted(&*reference, batch);
            batch.numbers.insert(0, (REFERENCE, numbers));
        }
    }
    if adapter.is_some() {
        assert_gradients(&name, &mut bench, dir, &*objective, &batches[0]);
    }
    let logged = hf::read_json::<Value>(&dir.join("trl_log.json")).ok();
    let runs = logged.as_ref().and_then(|log| log["runs"].as_array());
    let runs: BTreeMap<u64, &Value> = runs
        .into_iter()
        .flatten()
        .map(|run| {
            (
                run["gradient_accumulation_steps"].as_u64().unwrap(),
                &run["steps"],
            )
        })
        .collect();
    let accumulations: Vec<u64> = std::iter::once(1).chain(runs.keys().copied()).collect();
    let accumulations: std::collections::BTreeSet<u64> = accumulations.into_iter().collect();
    for accumulation in accumulations {
        let total = steps.len() as u64 / accumulation;
        let mut bench = open();
        let optimizer = OptimizerSettings {
            learning_rate: hyper("peak_lr"),
            weight_decay: hyper("weight_decay"),
            adam_beta1: hyper("beta1"),
            adam_beta2: hyper("beta2"),
            adam_epsilon: hyper("eps"),
            max_grad_norm: hyper("max_grad_norm"),
            ..OptimizerSettings::constant(ADAMW, 0.0)
        };
        let schedule = Schedule {
            kind: ScheduleKind::Linear,
            peak: hyper("peak_lr"),
            // As the peer warms up: for the same share of fewer steps.
            warmup: hyper("warmup_steps") as u64 / accumulation,
            total,
        };
        let uploaded: Vec<_> = batches.iter().map(|batch| bench.upload(batch)).collect();
        let step = TrainStep::new(&*bench.model, objective.clone(), optimizer, schedule, 0);
        let extra = step.extra_state(accumulation > 1);
        parameters::set_extra_state(&mut bench.session, &extra, None).unwrap();
        for at in 0..total {
            let mut metrics = None;
            for part in 0..accumulation {
                let batch = &uploaded[(at * accumulation + part) as usize];
                let phase = if part + 1 < accumulation {
                    Phase::Accumulate
                } else {
                    Phase::Update {
                        accumulated: accumulation > 1,
                    }
                };
                let microstep = at * accumulation + part;
                let outputs = step.microbatch(&mut bench.session, batch, phase, at, microstep);
                let outputs = outputs.unwrap();
                if part + 1 == accumulation {
                    metrics = Some(read_metrics(&outputs).unwrap().wait().unwrap());
                }
            }
            let metrics = metrics.unwrap();
            let (loss, norm) = (f64::from(metrics.loss), f64::from(metrics.grad_norm));
            let what = format!("{name} x {accumulation} step {at}");
            if accumulation == 1 {
                let expected = &steps[at as usize];
                let value = |key: &str| expected[key].as_f64().unwrap();
                let bar = |expected: f64, bar: f64| bar * expected.abs().max(1.0);
                assert_near(&what, loss, value("loss_f64"), bar(value("loss_f64"), LOSS));
                let expected = value("grad_norm_f64");
                assert_near(&what, norm, expected, bar(expected, NORM));
            }
            let Some(run) = runs.get(&accumulation) else {
                continue;
            };
            let record = &run[at as usize];
            let rate = schedule.learning_rate(at);
            assert_record(&what, record, &metrics, rate, &*objective, accumulation);
        }
        let file = dir.join(match adapter {
            Some(_) => "final_adapter.safetensors",
            None => "final_weights.safetensors",
        });
        if let (1, Ok(expected)) = (accumulation, StoredTensors::open(&file)) {
            assert_final(&*bench.model, &mut bench.session, &step, &file, &expected);
        }
    }
    println!("golden case {name} ran");
}

/// Trajectories whose reference is the initial policy: of weights, of an adapter that is new (which is the base)
/// and of one that was trained before.
#[test]
fn training_on_pairs_equals_trl() {
    for dir in folders("dpo/pairs.json") {
        let dir = dir.parent().unwrap();
        let problem: Value = hf::read_json(&dir.join("pairs.json")).unwrap();
        let pairs = problem["pairs"].as_array().unwrap();
        let size = problem["batch"].as_u64().unwrap() as usize;
        let mut ran = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let case = entry.unwrap().path();
            let Ok(trajectory) = hf::read_json::<Value>(&case.join("trajectory.json")) else {
                continue;
            };
            follow(Training {
                name: case.file_name().unwrap().to_string_lossy().to_string(),
                dir: &case,
                model: dir
                    .join("../models")
                    .join(problem["model"].as_str().unwrap()),
                adapter: Some(case.join("adapter")).filter(|dir| dir.exists()),
                pad_id: problem["pad_token_id"].as_i64().unwrap() as i32,
                objective: Arc::new(preference(&trajectory["options"]).unwrap()),
                batch: &|at| answers(pair_rows(pairs, size, at)),
            });
            ran += 1;
        }
        assert!(ran > 0);
    }
}

/// Reward models, KTO and ORPO.
#[test]
fn other_objectives_equal_trl() {
    let mut ran = BTreeMap::new();
    for folder in folders("objectives") {
        for entry in std::fs::read_dir(folder).unwrap() {
            let case = entry.unwrap().path();
            let name = case.file_name().unwrap().to_string_lossy().to_string();
            let kind = name.split('-').next().unwrap().to_string();
            if !["reward", "kto", "orpo"].contains(&kind.as_str()) {
                continue;
            }
            let problem: Value = hf::read_json(&case.join("rows.json")).unwrap();
            let trajectory: Value = hf::read_json(&case.join("trajectory.json")).unwrap();
            let options = &trajectory["options"];
            let rows = problem["rows"].as_array().unwrap();
            let size = problem["batch"].as_u64().unwrap() as usize;
            let has_kl = options["loss_type"] == "kto";
            let of_step = |at: usize| -> Vec<&Value> {
                let numbers = at * size..(at + 1) * size;
                numbers.map(|i| &rows[i % rows.len()]).collect()
            };
            let reward_batch = |at: usize| {
                let pairs = of_step(at);
                let none = Value::Array(Vec::new());
                let margins = pairs.iter().map(|pair| number(pair, "margin", 0.0) as f32);
                HostBatch {
                    labels: RowLabels::Numbers(margins.flat_map(|it| [it, it]).collect()),
                    rows: pairs
                        .iter()
                        .flat_map(|pair| {
                            ["chosen_ids", "rejected_ids"].map(|name| row(&none, &pair[name]))
                        })
                        .collect(),
                    numbers: Vec::new(),
                }
            };
            let kto_batch = |at: usize| {
                let own = of_step(at);
                let mut batch = answers(Vec::new());
                let mut good = Vec::new();
                for (i, example) in own.iter().enumerate() {
                    let before = own[(i + own.len() - 1) % own.len()];
                    let is_good = f32::from(u8::from(example["label"] == true));
                    let mut push = |answer: &Value| {
                        batch.rows.push(row(&example["prompt"], answer));
                        good.push(is_good);
                    };
                    push(&example["completion"]);
                    if has_kl {
                        push(&before["completion"]);
                    }
                }
                batch.numbers.push((DESIRABLE, good));
                batch
            };
            let orpo_batch = |at: usize| answers(pair_rows(rows, size, at));
            let (objective, batch): (Arc<dyn Objective>, &dyn Fn(usize) -> HostBatch) =
                match kind.as_str() {
                    "reward" => {
                        let center = options["center_rewards_coefficient"].as_f64();
                        let dropout = false;
                        (Arc::new(Reward { center, dropout }), &reward_batch)
                    }
                    "kto" => {
                        let kto = Kto {
                            beta: number(options, "beta", 0.1),
                            desirable_weight: number(options, "desirable_weight", 1.0),
                            undesirable_weight: number(options, "undesirable_weight", 1.0),
                            has_kl,
                            dropout: false,
                        };
                        (Arc::new(kto), &kto_batch)
                    }
                    _ => {
                        let orpo = OddsRatio {
                            beta: number(options, "beta", 0.1),
                            dropout: false,
                        };
                        (Arc::new(orpo), &orpo_batch)
                    }
                };
            follow(Training {
                name,
                dir: &case,
                model: case
                    .join("../../models")
                    .join(problem["model"].as_str().unwrap()),
                adapter: None,
                pad_id: problem["pad_token_id"].as_i64().unwrap() as i32,
                objective,
                batch,
            });
            *ran.entry(kind).or_insert(0) += 1;
        }
    }
    assert_eq!(ran.len(), 3, "{ran:?}");
}
