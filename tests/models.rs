//! What the golden cases do not reach: classifiers on decoders, dropout, trigonometry at far
//! positions. Uses the golden checkpoints, whichever there are.

use crate::support::{golden_classes, max_difference, objective_of};
use std::collections::HashSet;
use std::path::PathBuf;
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::parallel::Mesh;
use xtrain::trainer::feed::DeviceBatch;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, parameter_tensors, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{SGD, Schedule};
use xtrain_graphs::{DType, DropoutRng, Shape};
use xtrain_models::{
    Config, Forward, HeadKind, INPUT_IDS, Inputs, LABELS, MaskedToken, Objective, POSITIONS,
    TokenBatch, Weights,
};

/// A golden checkpoint of each class, and its configuration.
fn checkpoints() -> Vec<(PathBuf, Config)> {
    let open = |(_, dir): (String, PathBuf)| {
        let config = Config::new(
            hf::read_object(&dir.join("config.json")).unwrap(),
            "config.json",
        );
        (dir, config)
    };
    golden_classes().into_iter().map(open).collect()
}

/// Micro-batch 0 of an `i64[M, B, T]` input.
fn first_rows(dir: &std::path::Path, name: &str) -> (Vec<usize>, Vec<i32>) {
    let inputs = StoredTensors::open(&dir.join("inputs.safetensors")).unwrap();
    let view = inputs.get(name).unwrap();
    let dims = view.shape.dims[1..].to_vec();
    let values = view
        .bytes
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32);
    (dims.clone(), values.take(dims.iter().product()).collect())
}

/// The classifier's logits are its matrix times the hidden state, as transformers computed it, of
/// the last token that is not padding.
#[test]
fn decoders_classify_by_the_last_token_that_is_not_padding() {
    for (dir, mut config) in checkpoints() {
        // transformers has no classifier of Granite.
        let has_classifier = config.text("model_type").unwrap() != "granite";
        if HeadKind::of(&config).unwrap() != HeadKind::CausalLm || !has_classifier {
            continue;
        }
        let (dims, ids) = first_rows(&dir, "input_ids");
        let [rows, tokens] = [dims[0], dims[1]];
        // The last id of the first row serves as padding, so that some row ends in it.
        let pad = ids[tokens - 1];
        config.set("pad_token_id", pad);
        let last = |row: usize| {
            ids[row * tokens..(row + 1) * tokens]
                .iter()
                .rposition(|&id| id != pad)
                .unwrap_or(0)
        };
        assert!(last(0) < tokens - 1);

        let model =
            xtrain_models::build(config, HeadKind::SequenceClassification { labels: 3 }).unwrap();
        let stored = StoredTensors::open(&dir.join("model.safetensors")).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        let mut score = Vec::new();
        for spec in model.parameters() {
            let shape = parameters::parameter_shape(&spec, DType::F32);
            if spec.name == "score.weight" {
                score = (0..shape.elements())
                    .map(|i| (i as f32 * 0.7).sin())
                    .collect();
                session
                    .set_state(&spec.name, bytemuck::cast_slice(&score), &shape)
                    .unwrap();
            } else {
                session
                    .set_state(
                        &spec.name,
                        &stored.read(&spec.name, &shape).unwrap(),
                        &shape,
                    )
                    .unwrap();
            }
        }
        let (_, mask) = first_rows(&dir, "attention_mask");
        let mask: Vec<u8> = mask.iter().map(|&m| m as u8).collect();
        // What a padding token sees is not defined where its window holds no attended key.
        let is_defined = |row: usize| mask[row * tokens + last(row)] == 1;
        let defined: Vec<usize> = (0..rows).filter(|row| is_defined(*row)).collect();
        let mut recording = session.begin();
        let input_ids = recording
            .feed_host(
                "ids",
                bytemuck::cast_slice(&ids),
                &Shape::new(DType::S32, dims.clone()),
            )
            .unwrap();
        let mask = recording
            .feed_host("mask", &mask, &Shape::new(DType::Pred, dims))
            .unwrap();
        let batch = TokenBatch {
            attention_mask: Some(mask),
            ..TokenBatch::new(input_ids)
        };
        let tensors = parameter_tensors(&mut recording, &model.parameters()).unwrap();
        let trace = recording.trace().clone();
        let logits = xtrain_models::logits(
            &*model,
            &Weights::new(&trace, &tensors),
            &batch,
            &DropoutRng::off(),
        )
        .unwrap();
        recording.fetch("logits", &logits);
        let found: Vec<f32> = recording
            .mark_step("classify")
            .unwrap()
            .fetched("logits")
            .download_to()
            .unwrap();

        let reference = StoredTensors::open(&dir.join("reference.safetensors")).unwrap();
        let names = reference
            .iter()
            .filter_map(|view| view.name.strip_prefix("hidden.")?.parse::<usize>().ok());
        let (_, hidden) = reference
            .read_f32(&format!("hidden.{}", names.max().unwrap()))
            .unwrap();
        let width = hidden.len() / (rows * tokens);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let state = |row: usize| &hidden[(row * tokens + last(row)) * width..][..width];
        assert!(!defined.is_empty(), "{}", dir.display());
        for row in defined {
            let labels = score.chunks(width).map(|label| dot(state(row), label));
            let expected: Vec<f32> = labels.collect();
            let difference = max_difference(&found[3 * row..3 * (row + 1)], &expected);
            assert!(
                difference <= 2e-5,
                "{}, row {row}: logits differ by {difference:e}",
                dir.display()
            );
        }
    }
}

/// Every kind of dropout that a configuration has is drawn in training: the loss moves, but not
/// far.
#[test]
fn dropout_changes_the_training_loss_a_little() {
    let mut seen = HashSet::new();
    for (dir, config) in checkpoints() {
        let rates: Vec<String> = config
            .values()
            .keys()
            .filter(|key| key.contains("drop"))
            .cloned()
            .collect();
        // Relatives share their code: one of each kind is enough.
        let task = HeadKind::of(&config).unwrap();
        if !seen.insert((std::mem::discriminant(&task), rates.clone())) {
            continue;
        }
        let loss = |rate: f64| {
            let mut config = config.clone();
            for key in rates.iter().filter(|_| rate > 0.0) {
                config.set(key, rate);
            }
            let model = xtrain_models::build(config, task).unwrap();
            let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
            let stored = StoredTensors::open(&dir.join("model.safetensors")).unwrap();
            parameters::load(&mut session, &*model, &stored).unwrap();
            let upload = |name: &str| {
                let (dims, values) = first_rows(&dir, name);
                let shape = Shape::new(DType::S32, dims);
                session
                    .upload(bytemuck::cast_slice(&values), &shape)
                    .unwrap()
            };
            let batch = DeviceBatch::full(upload("input_ids"), upload("labels"));
            let optimizer = OptimizerSettings {
                weight_decay: 0.0,
                max_grad_norm: 0.0,
                ..OptimizerSettings::constant(SGD, 0.0)
            };
            let schedule = Schedule::constant(0.0);
            let train_step = TrainStep::new(
                &*model,
                objective_of(model.head_kind(), 0.0),
                optimizer,
                schedule,
                7,
            );
            let phase = Phase::Update { accumulated: false };
            let mut losses = Vec::new();
            for step in 0..2 {
                let marked = train_step
                    .microbatch(&mut session, &batch, phase, step, step)
                    .unwrap();
                losses.push(read_metrics(&marked).unwrap().wait().unwrap().loss);
            }
            losses
        };
        let (without, with) = (loss(0.0), loss(0.1));
        let name = dir.display();
        assert_eq!(
            without[0], without[1],
            "{name}: nothing else changes between the steps"
        );
        assert!(with[0] != with[1], "{name}: each step draws anew");
        for loss in with {
            assert!(
                loss != without[0] && (loss - without[0]).abs() < 0.6 * without[0],
                "{name}: {loss} against {}",
                without[0]
            );
        }
    }
}

/// Logits for the labelled positions alone, with room to spare, give the loss and every gradient that
/// logits for all positions give.
#[test]
fn labelled_places_alone_give_the_same_loss_and_gradients() {
    for (dir, config) in checkpoints() {
        if HeadKind::of(&config).unwrap() != HeadKind::MaskedLm {
            continue;
        }
        let model = xtrain_models::build(config, HeadKind::MaskedLm).unwrap();
        let stored = StoredTensors::open(&dir.join("model.safetensors")).unwrap();
        let (dims, ids) = first_rows(&dir, "input_ids");
        let (_, labels) = first_rows(&dir, "labels");
        let (mut positions, mut chosen): (Vec<i32>, Vec<i32>) = labels
            .iter()
            .enumerate()
            .filter(|(_, label)| **label >= 0)
            .map(|(place, label)| (place as i32, *label))
            .unzip();
        let room = positions.len() + 5;
        positions.resize(room, 0);
        chosen.resize(room, -100);

        let found = [false, true].map(|alone| {
            let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
            parameters::load(&mut session, &*model, &stored).unwrap();
            let mut recording = session.begin();
            let mut feed = |name: &str, values: &[i32], dims: &[usize]| {
                recording
                    .feed_host(
                        name,
                        bytemuck::cast_slice(values),
                        &Shape::new(DType::S32, dims),
                    )
                    .unwrap()
            };
            let mut feeds = vec![(INPUT_IDS, feed(INPUT_IDS, &ids, &dims))];
            if alone {
                feeds.push((LABELS, feed(LABELS, &chosen, &[room])));
                feeds.push((POSITIONS, feed(POSITIONS, &positions, &[room])));
            } else {
                feeds.push((LABELS, feed(LABELS, &labels, &dims)));
            }
            let inputs: Inputs = feeds.into_iter().collect();
            let specs = model.parameters();
            let tensors = parameter_tensors(&mut recording, &specs).unwrap();
            let trace = recording.trace().clone();
            let outcome = MaskedToken::default().record(&Forward {
                model: &*model,
                weights: &Weights::new(&trace, &tensors),
                inputs: &inputs,
                rng: &DropoutRng::off(),
            });
            let loss = outcome.unwrap().loss;
            let leaves: Vec<_> = specs
                .iter()
                .map(|spec| tensors[&spec.name].held()[0].clone())
                .collect();
            let gradients = xtrain_graphs::backward(&loss.sum, &leaves).unwrap();
            recording.fetch("loss", &loss.sum.reshape(&[1]).unwrap());
            recording.fetch("count", &loss.count.reshape(&[1]).unwrap());
            for (spec, gradient) in specs.iter().zip(&gradients) {
                recording.fetch(&format!("d {}", spec.name), gradient);
            }
            let marked = recording.mark_step("positions").unwrap();
            let gradients = specs.iter().map(|spec| format!("d {}", spec.name));
            let names = ["count".to_string(), "loss".to_string()]
                .into_iter()
                .chain(gradients);
            names
                .map(|name| {
                    (
                        name.clone(),
                        marked.fetched(&name).download_to::<f32>().unwrap(),
                    )
                })
                .collect::<Vec<_>>()
        });
        let [all, alone] = found;
        assert_eq!(all.len(), alone.len());
        let largest = |values: &[f32]| values.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = all
            .iter()
            .filter(|(name, _)| name.starts_with("d "))
            .map(|(_, values)| largest(values))
            .fold(0f32, f32::max);
        for ((name, all), (_, alone)) in all.iter().zip(&alone) {
            // Sums of the same f32 terms in another order; some gradients (of a key's bias) are
            // nothing but their rounding.
            let difference = max_difference(all, alone) / largest(all).max(0.01 * scale);
            assert!(
                difference <= 1e-5,
                "{}: {name} differs by {difference:e} of its largest value",
                dir.display()
            );
        }
    }
}

/// Rotary tables take the sine and cosine of angles up to the number of positions.
#[test]
fn sine_and_cosine_hold_at_far_positions() {
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    let mut recording = session.begin();
    let angles = recording
        .trace()
        .iota(DType::F32, &[8192], 0)
        .unwrap()
        .mul_scalar(0.749_894_2)
        .unwrap();
    recording.fetch("sin", &angles.sin().unwrap());
    recording.fetch("cos", &angles.cos().unwrap());
    let marked = recording.mark_step("angles").unwrap();
    for (name, exact) in [("sin", f64::sin as fn(f64) -> f64), ("cos", f64::cos)] {
        let found: Vec<f32> = marked.fetched(name).download_to().unwrap();
        let expected: Vec<f32> = (0..8192)
            .map(|i| exact(f64::from(i as f32 * 0.749_894_2_f32)) as f32)
            .collect();
        let difference = max_difference(&found, &expected);
        assert!(difference <= 5e-7, "{name} differs by {difference:e}");
    }
}
