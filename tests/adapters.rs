//! Adapters beside PEFT: logits, gradients, twenty steps and what they end with, of each case of a golden
//! directory's `newer/lora` and `finetune/adapters`.

use crate::golden::Case;
use crate::support::{golden_dirs, max_difference, objective_of};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::trainer::feed::feed_batch;
use xtrain::trainer::parameters;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, parameter_tensors, read_metrics};
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_graphs::{DropoutRng, backward};
use xtrain_models::{Forward, LoraConfig, ParameterSet, ParameterSpec, Weights};

const LOGITS: f32 = 1e-5;
const GRADIENTS: f32 = 5e-6;
const LOSS: f64 = 1e-5;
const NORM: f64 = 2e-5;
const FINAL_ADAPTER: f32 = 1e-5;

/// Cases with the model that each is of: name, the adapter's directory, the model's.
fn cases() -> Vec<(String, PathBuf, PathBuf)> {
    let mut cases = Vec::new();
    for golden in golden_dirs() {
        let folders = [
            ("newer/lora", vec![golden.clone(), golden.join("newer")]),
            ("finetune/adapters", vec![golden.join("finetune/models")]),
        ];
        for (folder, models) in folders {
            let entries = std::fs::read_dir(golden.join(folder)).into_iter().flatten();
            let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
            dirs.sort();
            for dir in dirs {
                let config = hf::read_object(&dir.join("adapter/adapter_config.json")).unwrap();
                let base = config["base_model_name_or_path"].as_str().unwrap();
                let mut models = models.iter().map(|models| models.join(base));
                let model = models.find(|model| model.join("inputs.safetensors").exists());
                let name = format!("{folder}/{}", dir.file_name().unwrap().to_string_lossy());
                cases.push((name, dir, model.expect("the model of a case is there")));
            }
        }
    }
    cases
}

/// An opened case, or why it cannot run.
fn open(dir: &Path, model: &Path) -> Result<Case, String> {
    let path = dir.join("adapter/adapter_config.json");
    let values = hf::read_object(&path).unwrap();
    let config = LoraConfig::from_json(&values, "adapter_config.json");
    let case = Case::open(model).adapted(config.map_err(|error| error.to_string())?);
    let mut case = case.map_err(|error| error.to_string())?;
    load(&mut case, &dir.join("adapter/adapter_model.safetensors"));
    Ok(case)
}

fn load(case: &mut Case, file: &Path) {
    let weights = StoredTensors::open(file).unwrap();
    parameters::load_adapter(&mut case.session, &*case.model, &weights).unwrap();
}

/// What a golden file calls a parameter of the adapter, without what PEFT puts between.
fn plain(name: &str) -> String {
    let name = name
        .replace(".modules_to_save.default", "")
        .replace(".default", "");
    match name.strip_suffix("lora_magnitude_vector.weight") {
        Some(module) => format!("{module}lora_magnitude_vector"),
        None => name,
    }
}

fn logits(case: &mut Case, is_off: bool) -> Vec<f32> {
    let batch = case.batch(0);
    let parameters = case.model.parameters();
    let mut recording = case.session.begin();
    let inputs = feed_batch(&mut recording, &batch);
    let tensors = parameter_tensors(&mut recording, &parameters).unwrap();
    let trace = recording.trace().clone();
    let mut weights = Weights::new(&trace, &tensors);
    if is_off {
        weights = weights.without_adapter();
    }
    let tokens = inputs.tokens().unwrap();
    let logits = xtrain_models::logits(&*case.model, &weights, &tokens, &DropoutRng::off());
    recording.fetch("logits", &logits.unwrap());
    let marked = recording.mark_step("logits").unwrap();
    marked.fetched("logits").download_to().unwrap()
}

fn assert_logits(name: &str, case: &mut Case, dir: &Path, key: &str, is_off: bool) {
    let reference = StoredTensors::open(&dir.join("reference.safetensors")).unwrap();
    if reference.get(key).is_none() {
        return;
    }
    let (_, expected) = reference.read_f32(key).unwrap();
    let found = logits(case, is_off);
    let (found, expected) = case.defined(0, found, expected);
    let difference = max_difference(&found, &expected);
    assert!(
        difference <= LOGITS,
        "{name}: {key} differ by {difference:e}"
    );
}

/// The trained parameters' gradients on micro-batch 0.
fn gradients(case: &mut Case) -> Vec<(ParameterSpec, Vec<f32>)> {
    let batch = case.batch(0);
    let parameters = case.model.parameters();
    let mut recording = case.session.begin();
    let inputs = feed_batch(&mut recording, &batch);
    let tensors = parameter_tensors(&mut recording, &parameters).unwrap();
    let trace = recording.trace().clone();
    let outcome = objective_of(case.model.head_kind(), 0.0).record(&Forward {
        model: &*case.model,
        weights: &Weights::new(&trace, &tensors),
        inputs: &inputs,
        rng: &DropoutRng::off(),
    });
    let loss = outcome.unwrap().loss;
    let loss = loss.sum.div(&loss.count).unwrap();
    let trained: Vec<ParameterSpec> = parameters.into_iter().filter(|p| p.trained).collect();
    let leaves: Vec<_> = trained
        .iter()
        .map(|p| tensors[&p.name].held()[0].clone())
        .collect();
    let all = backward(&loss, &leaves).unwrap();
    for (place, gradient) in all.iter().enumerate() {
        recording.fetch(&place.to_string(), gradient);
    }
    let marked = recording.mark_step("gradients").unwrap();
    let read = |place: usize| marked.fetched(&place.to_string()).download_to().unwrap();
    let values: Vec<Vec<f32>> = (0..all.len()).map(read).collect();
    trained.into_iter().zip(values).collect()
}

/// Where PEFT has two parameters on one memory, what one with the sum of their gradients does.
const ONE_PARAMETER: &str = "one_parameter";

/// A file of a case, or the one about one parameter in the place of two.
fn file_of(dir: &Path, name: &str, ending: &str) -> PathBuf {
    let one = dir.join(format!("{ONE_PARAMETER}.{ending}"));
    if one.exists() {
        one
    } else {
        dir.join(format!("{name}.{ending}"))
    }
}

fn assert_gradients(name: &str, case: &mut Case, dir: &Path) {
    let file = file_of(dir, "reference", "safetensors");
    let reference = StoredTensors::open(&file).unwrap();
    let stored: Vec<String> = reference.iter().map(|view| view.name.to_string()).collect();
    let stored = stored.iter().filter(|name| name.starts_with("grad."));
    let found = gradients(case);
    assert_eq!(
        found.len(),
        stored.clone().count(),
        "{name}: trained tensors"
    );
    for (parameter, values) in &found {
        let saved = case.model.adapter().unwrap().saved_name(&parameter.name);
        let key = stored
            .clone()
            .find(|key| plain(key.trim_start_matches("grad.")) == saved);
        let key = key.unwrap_or_else(|| panic!("{name}: no gradient of {saved}"));
        let (dims, expected) = reference.read_f32(key).unwrap();
        assert_eq!(dims, parameter.dims, "{name}: {saved}");
        let difference = max_difference(values, &expected);
        assert!(
            difference <= GRADIENTS,
            "{name}: gradient of {saved} differs by {difference:e}"
        );
    }
}

/// Where a bias's gradient is rounding's alone, as softmax ignores biases of keys.
fn is_noise(parameter: &ParameterSpec) -> bool {
    parameter.name.ends_with(".key.bias")
}

fn follow(name: &str, case: &mut Case, dir: &Path) {
    let trajectory: Value = hf::read_json(&file_of(dir, "trajectory", "json")).unwrap();
    let steps = trajectory["steps"].as_array().unwrap();
    let number = |step: &Value, keys: [&str; 2]| {
        let found = keys.iter().find_map(|key| step[*key].as_f64());
        found.unwrap_or_else(|| panic!("{name}: no {keys:?}"))
    };
    let rates: Vec<f64> = steps
        .iter()
        .map(|step| step["lr"].as_f64().unwrap())
        .collect();
    let peak = rates.iter().copied().fold(0.0, f64::max);
    let warmup = rates.iter().position(|rate| *rate == peak).unwrap() as u64;
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak,
        warmup,
        total: steps.len() as u64,
    };
    let settings = OptimizerSettings {
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        ..OptimizerSettings::constant(ADAMW, peak)
    };
    let step = TrainStep::new(
        &*case.model,
        objective_of(case.model.head_kind(), 0.0),
        settings,
        schedule,
        0,
    );
    parameters::set_extra_state(&mut case.session, &step.extra_state(false), None).unwrap();
    let mut compiled = BTreeSet::new();
    for (i, recorded) in steps.iter().enumerate() {
        assert!((schedule.learning_rate(i as u64) - rates[i]).abs() < 1e-12);
        let batch = case.batch(i % case.micro_batches());
        let phase = Phase::Update { accumulated: false };
        let outputs = step.microbatch(&mut case.session, &batch, phase, i as u64, i as u64);
        let metrics = read_metrics(&outputs.unwrap()).unwrap().wait().unwrap();
        compiled.insert(case.session.cache().stats().compiled);
        let loss = number(recorded, ["loss_f64", "loss"]);
        let norm = number(recorded, ["grad_norm_f64", "grad_norm"]);
        assert!(
            (f64::from(metrics.loss) - loss).abs() <= LOSS,
            "{name} step {i}: loss {}, expected {loss}",
            metrics.loss
        );
        assert!(
            (f64::from(metrics.grad_norm) - norm).abs() <= NORM * norm.max(1.0),
            "{name} step {i}: norm {}, expected {norm}",
            metrics.grad_norm
        );
    }
    assert_eq!(compiled.len(), 1, "{name}: one graph for all steps");
    assert_final(name, case, dir);
}

fn assert_final(name: &str, case: &mut Case, dir: &Path) {
    let file = file_of(dir, "final_adapter", "safetensors");
    let expected = StoredTensors::open(&file).unwrap();
    let of_one = file.ends_with(format!("{ONE_PARAMETER}.safetensors"));
    let prefix = if of_one { "final." } else { "" };
    let parameters = case.model.parameters();
    let names: Vec<String> = parameters.iter().map(|p| p.name.clone()).collect();
    let start = case.start();
    let tensors = parameters::download(&mut case.session, &names).unwrap();
    for (tensor, parameter) in tensors.into_iter().zip(&parameters) {
        let found: &[f32] = bytemuck::cast_slice(&tensor.bytes);
        if parameter.set != ParameterSet::Adapter {
            let (_, before) = start.read_f32(&tensor.name).unwrap();
            assert_eq!(found, before, "{name}: {} is the model's own", tensor.name);
            continue;
        }
        if is_noise(parameter) {
            continue;
        }
        let saved = case.model.adapter().unwrap().saved_name(&parameter.name);
        let (_, mut expected) = expected.read_f32(&format!("{prefix}{saved}")).unwrap();
        let mut found = found.to_vec();
        if parameter.name.ends_with("attn.c_attn.bias") {
            // The keys' third, likewise.
            let third = found.len() / 3;
            found[third..2 * third].fill(0.0);
            expected[third..2 * third].fill(0.0);
        }
        let difference = max_difference(&found, &expected);
        assert!(
            difference <= FINAL_ADAPTER,
            "{name}: final {saved} differs by {difference:e}"
        );
    }
}

/// Every case that the implementation covers, and the reasons of the others.
#[test]
fn adapters_equal_peft() {
    let mut ran = Vec::new();
    for (name, dir, model) in cases() {
        let mut case = match open(&dir, &model) {
            Ok(case) => case,
            Err(reason) => {
                println!("golden case {name} did not run: {reason}");
                continue;
            }
        };
        assert_logits(&name, &mut case, &dir, "logits", false);
        assert_gradients(&name, &mut case, &dir);
        follow(&name, &mut case, &dir);
        // Those are of two parameters.
        if !dir.join(format!("{ONE_PARAMETER}.json")).exists() {
            assert_logits(&name, &mut case, &dir, "logits_after", false);
        }
        // PEFT keeps the original of a module that is trained whole, which is not here.
        if case.model.adapter().unwrap().saved_modules().len() == 0 {
            assert_logits(&name, &mut case, &dir, "logits_off_after", true);
        }
        println!("golden case {name} ran");
        ran.push(name);
    }
    assert!(ran.len() >= 5, "{ran:?}");
}
