//! Parity with transformers: logits, loss, every gradient, twenty optimizer steps and the final
//! weights of each golden case: the repository's, in `tests/data/golden`, and those of
//! `XTRAIN_GOLDEN_DIR` or `../shared/golden` where that is there. Nothing here depends on which cases
//! or sizes a golden directory holds.

use crate::support::{golden_cases, golden_cases_in, golden_dirs, max_difference, objective_of};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::parallel::Mesh;
use xtrain::trainer::feed::{DeviceBatch, feed_batch};
use xtrain::trainer::run_loop::RunLength;
use xtrain::trainer::session::Session;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, parameter_tensors, read_metrics};
use xtrain::trainer::trained::Trained;
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{
    ADAFACTOR, ADAMW, Argument, Arguments, LION, MUON, OPTIMIZERS, OptimizerKind, Plateau,
    Schedule, ScheduleKind, ScheduleType,
};
use xtrain_graphs::{DType, DropoutRng, Precision, Shape, backward};
use xtrain_models::{
    ATTENTION_MASK, Config, Forward, HeadKind, LABELS, LoraConfig, Model, TOKEN_TYPE_IDS, Weights,
};

const LOGITS: f32 = 1e-5;
const GRADIENTS: f32 = 5e-6;
const LOSS: f64 = 1e-5;
const NORM: f64 = 2e-5;
const FINAL_WEIGHTS: f32 = 1e-5;

pub struct Case {
    dir: PathBuf,
    pub model: Box<dyn Model>,
    pub session: Session,
    inputs: StoredTensors,
}

impl Case {
    pub fn open(dir: &Path) -> Self {
        let config = Config::new(
            hf::read_object(&dir.join("config.json")).unwrap(),
            "config.json",
        );
        let task = HeadKind::of(&config).unwrap();
        let model = xtrain_models::build(config, task).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        let weights = StoredTensors::open(&dir.join("model.safetensors")).unwrap();
        parameters::load(&mut session, &*model, &weights).unwrap();
        let inputs = StoredTensors::open(&dir.join("inputs.safetensors")).unwrap();
        Case {
            dir: dir.to_path_buf(),
            model,
            session,
            inputs,
        }
    }

    /// The same with an adapter, which starts anew.
    pub fn adapted(self, config: LoraConfig) -> xtrain_models::Result<Self> {
        let mut adapted = Case {
            model: xtrain_models::adapt(self.model, config)?,
            ..self
        };
        let start = adapted.start();
        parameters::load(&mut adapted.session, &*adapted.model, &start).unwrap();
        Ok(adapted)
    }

    /// The model's weights as they were saved.
    pub fn start(&self) -> StoredTensors {
        self.tensors("model.safetensors")
    }

    fn json(&self, name: &str) -> Value {
        hf::read_json(&self.dir.join(name)).unwrap()
    }

    fn tensors(&self, name: &str) -> StoredTensors {
        StoredTensors::open(&self.dir.join(name)).unwrap()
    }

    pub fn micro_batches(&self) -> usize {
        self.inputs.get("input_ids").unwrap().shape.dims[0]
    }

    /// Micro-batch `m` of an `i64[M, ...]` input.
    fn rows(&self, name: &str, m: usize) -> (Vec<usize>, Vec<i64>) {
        let view = self.inputs.get(name).unwrap();
        let values: Vec<i64> = view
            .bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let dims = view.shape.dims[1..].to_vec();
        let size: usize = dims.iter().product();
        (dims, values[m * size..(m + 1) * size].to_vec())
    }

    /// The logits of token rows where `attention_mask` is 1: where a padding token's window holds no
    /// attended key, they are whatever an implementation of attention gives.
    pub fn defined(&self, m: usize, found: Vec<f32>, expected: Vec<f32>) -> (Vec<f32>, Vec<f32>) {
        if matches!(
            self.model.head_kind(),
            HeadKind::SequenceClassification { .. }
        ) {
            return (found, expected);
        }
        let (_, mask) = self.rows("attention_mask", m);
        let attended = |logits: Vec<f32>| {
            let width = logits.len() / mask.len();
            let rows = logits.chunks_exact(width).zip(&mask);
            rows.filter(|(_, mask)| **mask == 1)
                .flat_map(|(row, _)| row.to_vec())
                .collect()
        };
        (attended(found), attended(expected))
    }

    /// The loss of micro-batch 0 and the gradient of each parameter. As in training, a scale keeps small
    /// gradients in fp16's range.
    pub fn gradients(&mut self, precision: Precision) -> (f32, Vec<Vec<f32>>) {
        let batch = self.batch(0);
        let parameters = self.model.parameters();
        let mut recording = self.session.begin();
        recording.set_precision(precision);
        let inputs = feed_batch(&mut recording, &batch);
        let tensors = parameter_tensors(&mut recording, &parameters).unwrap();
        let trace = recording.trace().clone();
        let weights = Weights::new(&trace, &tensors);
        let objective = objective_of(self.model.head_kind(), 0.0);
        let outcome = objective.record(&Forward {
            model: &*self.model,
            weights: &weights,
            inputs: &inputs,
            rng: &DropoutRng::off(),
        });
        let loss = outcome.unwrap().loss;
        let loss = loss.sum.div(&loss.count).unwrap();
        let leaves: Vec<_> = parameters
            .iter()
            .map(|p| tensors[&p.name].held()[0].clone())
            .collect();
        let scale = if precision.needs_loss_scale() {
            1024.0
        } else {
            1.0
        };
        let all = backward(&loss.mul_scalar(scale).unwrap(), &leaves).unwrap();
        for (i, gradient) in all.iter().enumerate() {
            recording.fetch(&format!("{i}"), &gradient.mul_scalar(1.0 / scale).unwrap());
        }
        recording.fetch("loss", &loss);
        let marked = recording.mark_step("gradients").unwrap();
        let read = |name: &str| -> Vec<f32> { marked.fetched(name).download_to().unwrap() };
        let gradients = (0..parameters.len()).map(|i| read(&i.to_string()));
        (read("loss")[0], gradients.collect())
    }

    pub fn batch(&self, m: usize) -> DeviceBatch {
        let upload = |name: &str| {
            let (dims, values) = self.rows(name, m);
            let values: Vec<i32> = values.iter().map(|&v| v as i32).collect();
            self.session
                .upload(bytemuck::cast_slice(&values), &Shape::new(DType::S32, dims))
                .unwrap()
        };
        let (dims, mask) = self.rows("attention_mask", m);
        let mask: Vec<u8> = mask.iter().map(|&v| v as u8).collect();
        let mask = self
            .session
            .upload(&mask, &Shape::new(DType::Pred, dims.clone()))
            .unwrap();
        let mut feeds = vec![(LABELS, upload("labels")), (ATTENTION_MASK, mask)];
        if self.inputs.get(TOKEN_TYPE_IDS).is_some() {
            feeds.push((TOKEN_TYPE_IDS, upload(TOKEN_TYPE_IDS)));
        }
        DeviceBatch {
            batch_in_epoch: m as u64,
            ..DeviceBatch::of(upload("input_ids"), feeds)
        }
    }
}

/// Tests each of these cases, also after one has failed, and fails with the names of those that did.
fn test_each(cases: Vec<(String, PathBuf)>, test: impl Fn(&str, Case)) {
    let fails = |(name, dir): &(String, PathBuf)| {
        let run = || test(name, Case::open(dir));
        // What panicked has said why; nothing of it is used again.
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        println!(
            "golden case {name} {}",
            if failed { "failed" } else { "ran" }
        );
        failed
    };
    let failed: Vec<String> = cases
        .into_iter()
        .filter(fails)
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "golden cases failed: {failed:?}");
}

fn for_each_case(test: impl Fn(&str, Case)) {
    test_each(golden_cases(), test);
}

/// One case for each family, the first.
pub fn for_each_family(test: impl Fn(&str, Case)) {
    let mut seen = BTreeSet::new();
    let mut cases = golden_cases();
    cases.retain(|(_, dir)| {
        let config = hf::read_object(&dir.join("config.json")).unwrap();
        seen.insert(config["model_type"].to_string())
    });
    test_each(cases, test);
}

#[test]
fn logits_equal_transformers() {
    for_each_case(|name, mut case| {
        let reference = case.tensors("reference.safetensors");
        let parameters = case.model.parameters();
        let mut worst = 0f32;
        for m in 0..case.micro_batches() {
            let batch = case.batch(m);
            let mut recording = case.session.begin();
            let inputs = feed_batch(&mut recording, &batch);
            let weights = parameter_tensors(&mut recording, &parameters).unwrap();
            let trace = recording.trace().clone();
            let weights = Weights::new(&trace, &weights);
            let logits = xtrain_models::logits(
                &*case.model,
                &weights,
                &inputs.tokens().unwrap(),
                &DropoutRng::off(),
            )
            .unwrap();
            recording.fetch("logits", &logits);
            let found: Vec<f32> = recording
                .mark_step("logits")
                .unwrap()
                .fetched("logits")
                .download_to()
                .unwrap();
            let (_, expected) = reference.read_f32(&format!("logits.{m}")).unwrap();
            let (found, expected) = case.defined(m, found, expected);
            let difference = max_difference(&found, &expected);
            assert!(
                difference <= LOGITS,
                "{name} micro-batch {m}: logits differ by {difference:e}"
            );
            worst = worst.max(difference);
        }
        println!("{name}: logits within {worst:.1e}");
    });
}

#[test]
fn loss_and_gradients_equal_transformers() {
    for_each_case(|name, mut case| {
        let parameters = case.model.parameters();
        let (loss, gradients) = case.gradients(Precision::F32);
        let expected = case.json("meta.json")["loss"]["f64"].as_f64().unwrap();
        assert!(
            (f64::from(loss) - expected).abs() <= LOSS,
            "{name}: loss {loss} expected {expected}"
        );
        let reference = case.tensors("grads.safetensors");
        assert_eq!(
            reference.iter().count(),
            parameters.len(),
            "{name}: number of parameters"
        );
        let mut worst = 0f32;
        for (parameter, found) in parameters.iter().zip(&gradients) {
            let (_, expected) = reference.read_f32(&parameter.name).unwrap();
            let difference = max_difference(found, &expected);
            assert!(
                difference <= GRADIENTS,
                "{name}: gradient of {} differs by {difference:e}",
                parameter.name
            );
            worst = worst.max(difference);
        }
        println!(
            "{name}: loss within {:.1e}, gradients within {worst:.1e}",
            (f64::from(loss) - expected).abs()
        );
    });
}

fn follow_adamw(name: &str, case: Case) {
    let dir = case.dir.clone();
    follow_trajectory(name, case, &dir, ADAMW);
}

/// What a family's further cases do otherwise (heads, tied weights, biases) is in their logits and
/// gradients above.
#[test]
fn trajectory_and_final_weights_equal_torch() {
    for_each_family(follow_adamw);
}

#[test]
#[ignore = "slow: the trajectory of every case, not of each family's first"]
fn every_trajectory_equals_torch() {
    for_each_case(follow_adamw);
}

/// The cases of `newer/optimizers`, each on the weights and batches of a model case.
#[test]
fn optimizers_equal_torch() {
    let mut ran = BTreeSet::new();
    for golden in golden_dirs() {
        let cases = golden_cases_in(&golden);
        let entries = std::fs::read_dir(golden.join("newer/optimizers"))
            .into_iter()
            .flatten();
        let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        dirs.sort();
        for dir in dirs {
            let name = dir.file_name().unwrap().to_string_lossy().to_string();
            let trajectory: Value = hf::read_json(&dir.join("trajectory.json")).unwrap();
            let word = |key: &str| trajectory[key].as_str().unwrap();
            let kind = OPTIMIZERS
                .iter()
                .find(|kind| kind.name == word("optimizer"));
            let of_model = cases.iter().find(|(_, dir)| dir.ends_with(word("case")));
            let (Some(kind), Some((_, of_model))) = (kind, of_model) else {
                println!("golden case {name} did not run: its optimizer or model is not supported");
                continue;
            };
            follow_trajectory(&name, Case::open(of_model), &dir, *kind);
            println!("golden case {name} ran");
            ran.insert(kind.name);
        }
    }
    // Those in 8 bits are element by element; `eight_bit.rs` has their steps.
    let others = OPTIMIZERS.iter().filter(|kind| kind.name.contains("8bit"));
    let others = others.count() + 1;
    assert_eq!(
        ran.len(),
        OPTIMIZERS.len() - others,
        "all but AdamW: {ran:?}"
    );
}

/// The cases of `newer/frozen`, each on the weights and batches of a model case: what is frozen keeps
/// its bits, the rest moves as with `requires_grad` off in torch.
#[test]
fn frozen_weights_equal_torch() {
    let mut ran = 0;
    for golden in golden_dirs() {
        let cases = golden_cases_in(&golden);
        let entries = std::fs::read_dir(golden.join("newer/frozen"))
            .into_iter()
            .flatten();
        for dir in entries.map(|entry| entry.unwrap().path()) {
            let name = dir.file_name().unwrap().to_string_lossy().to_string();
            let trajectory: Value = hf::read_json(&dir.join("trajectory.json")).unwrap();
            let texts = |key: &str| -> Vec<String> {
                serde_json::from_value(trajectory[key].clone()).unwrap()
            };
            let of_model = cases
                .iter()
                .find(|(_, dir)| dir.ends_with(trajectory["case"].as_str().unwrap()));
            let case = Case::open(&of_model.unwrap().1);
            let patterns = texts("patterns");
            let trained = match trajectory["flag"].as_str() {
                Some("freeze") => Trained::new(&patterns, &[]),
                _ => Trained::new(&[], &patterns),
            };
            trained.unwrap().choose(&*case.model).unwrap();
            let parameters = case.model.parameters().into_iter();
            let trained = parameters.filter(|parameter| parameter.trained);
            let trained: BTreeSet<String> = trained.map(|parameter| parameter.name).collect();
            assert_eq!(trained, texts("trained").into_iter().collect(), "{name}");
            follow_trajectory(&name, case, &dir, ADAMW);
            ran += 1;
        }
    }
    assert!(ran >= 4, "{ran} cases ran");
}

/// `label_smoothing.json`: loss and gradient norm of micro-batch 0.
#[test]
fn label_smoothing_equals_transformers() {
    let mut ran = BTreeSet::new();
    for golden in golden_dirs() {
        let cases = golden_cases_in(&golden);
        let path = golden.join("newer/label_smoothing.json");
        if !path.exists() {
            continue;
        }
        let expected = hf::read_object(&path).unwrap();
        for (name, expected) in &expected {
            let Some((_, dir)) = cases.iter().find(|(_, dir)| dir.ends_with(name)) else {
                println!("golden case {name} did not run: its model is not supported");
                continue;
            };
            let mut case = Case::open(dir);
            let value = |key: &str| expected[key].as_f64().unwrap();
            let optimizer = OptimizerSettings::constant(ADAMW, 0.0);
            let schedule = Schedule::constant(0.0);
            let train_step = TrainStep::new(
                &*case.model,
                objective_of(case.model.head_kind(), value("epsilon")),
                optimizer,
                schedule,
                0,
            );
            let extra = train_step.extra_state(false);
            parameters::set_extra_state(&mut case.session, &extra, None).unwrap();
            let batch = case.batch(0);
            let phase = Phase::Update { accumulated: false };
            let outputs = train_step
                .microbatch(&mut case.session, &batch, phase, 0, 0)
                .unwrap();
            let metrics = read_metrics(&outputs).unwrap().wait().unwrap();
            let loss = f64::from(metrics.loss);
            assert!(
                (loss - value("loss")).abs() <= LOSS,
                "{name}: loss {loss}, expected {}",
                value("loss")
            );
            let norm = f64::from(metrics.grad_norm);
            assert!(
                (norm - value("grad_norm")).abs() <= NORM * value("grad_norm").max(1.0),
                "{name}: norm {norm}, expected {}",
                value("grad_norm")
            );
            println!("golden case {name} ran");
            ran.insert(name.clone());
        }
    }
    assert!(ran.len() >= 4, "{ran:?}");
}

/// Arguments as a JSON object has them; Python's None is an argument that is not given.
fn arguments(given: &Value) -> Arguments {
    let object = given.as_object().into_iter().flatten();
    let argument = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::Null => return None,
            Value::Bool(x) => Argument::Bool(*x),
            Value::Number(x) => Argument::Number(x.as_f64().unwrap()),
            other => Argument::Text(other.as_str().unwrap().into()),
        };
        Some((name.clone(), value))
    };
    object.filter_map(argument).collect()
}

/// `schedules.json`: the learning rate of every step.
#[test]
fn schedules_equal_transformers() {
    let mut ran = BTreeSet::new();
    let files = golden_dirs()
        .into_iter()
        .map(|golden| golden.join("newer/schedules.json"));
    let cases = files.filter(|path| path.exists()).flat_map(|path| {
        let cases: Value = hf::read_json(&path).unwrap();
        cases.as_array().unwrap().clone()
    });
    for case in cases {
        let name = case["lr_scheduler_type"].as_str().unwrap();
        let kind = ScheduleType::WORDS.iter().find(|(word, _)| *word == name);
        let given = &case["lr_scheduler_kwargs"];
        let Some((_, kind)) = kind else {
            println!("golden schedule {name} did not run: it is not supported");
            continue;
        };
        let kind = kind.with(&arguments(given)).unwrap();
        if let ScheduleKind::ReduceLrOnPlateau(rule) = kind {
            let mut plateau = Plateau::new(rule, case["peak"].as_f64().unwrap());
            let rates = case["lr"].as_array().unwrap();
            for (metric, expected) in case["metrics"].as_array().unwrap().iter().zip(rates) {
                plateau.observe(metric.as_f64().unwrap());
                // What a checkpoint keeps is all of it.
                let saved = plateau.to_map();
                plateau = Plateau::from_map(rule, 1.0, &saved);
                let (found, expected) = (plateau.rate(), expected.as_f64().unwrap());
                assert!(
                    (found - expected).abs() <= 1e-15,
                    "{name} {given}: {found}, expected {expected}"
                );
            }
            ran.insert(name.to_string());
            continue;
        }
        let schedule = Schedule {
            kind,
            peak: case["peak"].as_f64().unwrap(),
            warmup: case["warmup_steps"].as_u64().unwrap(),
            total: case["total"].as_u64().unwrap(),
        };
        for (step, expected) in case["lr"].as_array().unwrap().iter().enumerate() {
            let (found, expected) = (
                schedule.learning_rate(step as u64),
                expected.as_f64().unwrap(),
            );
            assert!(
                (found - expected).abs() <= 1e-15,
                "{name} {given}, step {step}: {found}, expected {expected}"
            );
        }
        println!("golden schedule {name} {given} ran");
        ran.insert(name.to_string());
    }
    assert_eq!(ran.len(), ScheduleType::WORDS.len(), "{ran:?}");
}

/// The optimizer and the schedule of a recorded training.
fn recorded_settings(
    trajectory: &Value,
    kind: OptimizerKind,
    peak: f64,
) -> (OptimizerSettings, Schedule) {
    let hyper = |key: &str| trajectory["hyper"][key].as_f64().unwrap();
    let optimizer = OptimizerSettings {
        kind,
        storage: Default::default(),
        arguments: arguments(&trajectory["optim_args"]),
        learning_rate: peak,
        weight_decay: hyper("weight_decay"),
        adam_beta1: hyper("beta1"),
        // The golden Lion has its paper's, whatever is recorded of AdamW.
        adam_beta2: if kind == LION { 0.99 } else { hyper("beta2") },
        adam_epsilon: hyper("eps"),
        max_grad_norm: hyper("max_grad_norm"),
        schedule: ScheduleKind::Linear,
        schedule_arguments: Arguments::default(),
        warmup_steps: Some(hyper("warmup_steps") as u64),
        warmup_ratio: 0.0,
    };
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak,
        warmup: hyper("warmup_steps") as u64,
        total: hyper("total_steps") as u64,
    };
    (optimizer, schedule)
}

/// The weights after a training beside those of a file; gives back the largest difference. `slack` widens the
/// bars, in which case a bias that is noise is left out.
fn assert_final_weights(
    name: &str,
    case: &mut Case,
    expected: &Path,
    kind: OptimizerKind,
    slack: f32,
) -> f32 {
    let mut worst = 0f32;
    let has_noise = slack > 1.0;
    let meta = case.json("meta.json");
    let undetermined: Vec<&str> = meta["zero_gradient_params"]
        .as_array()
        .map(|a| a.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let reference = StoredTensors::open(&expected.join("final_weights.safetensors")).unwrap();
    let (start, parameters) = (case.tensors("model.safetensors"), case.model.parameters());
    let names: Vec<String> = parameters.iter().map(|p| p.name.clone()).collect();
    let tensors = parameters::download(&mut case.session, &names).unwrap();
    for (tensor, parameter) in tensors.into_iter().zip(&parameters) {
        if !parameter.trained {
            let (_, before) = start.read_f32(&tensor.name).unwrap();
            let found: &[f32] = bytemuck::cast_slice(&tensor.bytes);
            assert_eq!(found, before, "{name}: {} is frozen", tensor.name);
            continue;
        }
        // Softmax ignores key biases, so that an optimizer that divides by the gradient's size
        // turns rounding noise into steps there.
        if undetermined.contains(&tensor.name.as_str()) || tensor.name.ends_with(".key.bias") {
            continue;
        }
        let mut found: Vec<f32> = bytemuck::cast_slice(&tensor.bytes).to_vec();
        let (_, mut expected) = reference.read_f32(&tensor.name).unwrap();
        if tensor.name.ends_with("attn.c_attn.bias") {
            if has_noise {
                continue;
            }
            // The key third, likewise.
            let third = found.len() / 3;
            found[third..2 * third].fill(0.0);
            expected[third..2 * third].fill(0.0);
        }
        // Those of a key that shares its parameter with others.
        let noisy = meta["zero_gradient_elements"][&tensor.name].as_array();
        for index in noisy.into_iter().flatten() {
            let index = index.as_u64().unwrap() as usize;
            (found[index], expected[index]) = (0.0, 0.0);
        }
        let difference = max_difference(&found, &expected);
        // Adam divides by the gradient's size, which makes much of rounding where that is small:
        // torch's own f32 run says how much, by one draw of rounding errors. Another draw may be four
        // times as far off.
        let of_torch = &meta["torch_f32_error"]["final_weights"][&tensor.name]["max_abs"];
        let allowed = FINAL_WEIGHTS.max(4.0 * of_torch.as_f64().unwrap_or_default() as f32);
        assert!(
            difference <= allowed * slack || kind == MUON,
            "{name}: final {} differs by {difference:e}",
            tensor.name
        );
        worst = worst.max(difference);
    }
    worst
}

/// Twenty optimizer steps beside `trajectory.json` of `expected`, then the weights beside its
/// `final_weights.safetensors`.
fn follow_trajectory(name: &str, mut case: Case, expected: &Path, kind: OptimizerKind) {
    let trajectory: Value = hf::read_json(&expected.join("trajectory.json")).unwrap();
    let steps = trajectory["steps"].as_array().unwrap();
    // Where several precisions or parameter groups are recorded: f64, the first group.
    let recorded = |step: &Value, keys: [&str; 2]| {
        let found = keys.iter().find_map(|key| step.get(*key)).unwrap();
        found.get(0).unwrap_or(found).as_f64().unwrap()
    };
    let learning_rate = |step: &Value| recorded(step, ["lr", "lr"]);
    let peak = steps.iter().map(learning_rate).fold(0.0, f64::max);
    let (optimizer, schedule) = recorded_settings(&trajectory, kind, peak);
    let length = RunLength::new(
        case.micro_batches() as u64,
        1,
        1.0,
        Some(steps.len() as u64),
    );
    let train_step = TrainStep::new(
        &*case.model,
        crate::support::objective_of(case.model.head_kind(), 0.0),
        optimizer,
        schedule,
        0,
    );
    parameters::set_extra_state(&mut case.session, &train_step.extra_state(false), None).unwrap();
    // A key's bias has no gradient but rounding's, which Adafactor makes as large as any in f32, but
    // not in f64, and which is part of the norm that it clips GPT-2's fused bias by.
    let is_noisy = |name: &str| kind == ADAFACTOR && name.ends_with("attn.c_attn.bias");
    let has_noise = train_step.parameters().iter().any(|p| is_noisy(&p.name));
    let slack: f32 = if has_noise { 1000.0 } else { 1.0 };
    let phase = Phase::Update { accumulated: false };
    let (mut worst_loss, mut worst_norm) = (0f64, 0f64);
    for i in 0..length.max_steps {
        let batch = case.batch(i as usize % case.micro_batches());
        let outputs = train_step
            .microbatch(&mut case.session, &batch, phase, i, i)
            .unwrap();
        let metrics = read_metrics(&outputs).unwrap().wait().unwrap();
        let step = &steps[i as usize];
        assert!(
            (schedule.learning_rate(i) - learning_rate(step)).abs() < 1e-12,
            "{name} step {i}: learning rate"
        );
        let expected_loss = recorded(step, ["loss_f64", "loss"]);
        let expected_norm = recorded(step, ["grad_norm_f64", "grad_norm"]);
        let loss = (f64::from(metrics.loss) - expected_loss).abs();
        let norm = (f64::from(metrics.grad_norm) - expected_norm).abs();
        // Muon orthogonalizes in bf16, where each product's order of additions shows.
        let (loss_bar, norm_bar) = if kind == MUON {
            (0.02 * expected_loss, 0.1 * expected_norm)
        } else {
            (LOSS, NORM * expected_norm.max(1.0))
        };
        let (loss_bar, norm_bar) = (loss_bar * f64::from(slack), norm_bar * f64::from(slack));
        assert!(
            loss <= loss_bar,
            "{name} step {i}: loss {}, expected {expected_loss}",
            metrics.loss
        );
        assert!(
            norm <= norm_bar,
            "{name} step {i}: norm {}, expected {expected_norm}",
            metrics.grad_norm
        );
        worst_loss = worst_loss.max(loss);
        worst_norm = worst_norm.max(norm);
    }
    assert_eq!(
        case.session.cache().stats().compiled,
        1,
        "{name}: one graph for all steps"
    );
    let worst_weight = assert_final_weights(name, &mut case, expected, kind, slack);
    println!(
        "{name}: losses within {worst_loss:.1e}, norms {worst_norm:.1e}, final weights {worst_weight:.1e}"
    );
}
