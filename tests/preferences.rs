//! Parity of preference objectives with TRL 1.16, in f64 by plain torch: every case of
//! `finetune/dpo` and of reward, kto and orpo in `finetune/objectives` of the golden directories.
//! Nothing here depends on which settings or sizes they hold.

use crate::support::{golden_dirs, max_difference, shared_data};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::data::settings::{PaddingSettings, SourceSettings};
use xtrain::data::{Position, Tokenizer};
use xtrain::parallel::Mesh;
use xtrain::tasks::answers::{AnswerSettings, Form, TruncationMode};
use xtrain::tasks::dpo::DpoLoss;
use xtrain::tasks::{self, Context, DpoDataSettings, Split};
use xtrain::trainer::feed::{DeviceBatch, feed_batch};
use xtrain::trainer::session::{Buffers, Session};
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, StepMetrics, TrainStep, parameter_tensors, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_graphs::{DType, DropoutRng, Shape, backward};
use xtrain_models::{
    ATTENTION_MASK, Config, DESIRABLE, Divergence, Forward, HeadKind, Kto, LABELS, Model,
    Objective, OddsRatio, PairLoss, Preference, REFERENCE, Reward, Weights,
};

const GRADIENTS: f32 = 5e-6;
const LOSS: f64 = 1e-5;
const NORM: f64 = 2e-5;
const FINAL_WEIGHTS: f32 = 1e-5;
const LOG_PROBS: f64 = 3e-5;
/// What TRL logs is f32.
const LOGGED: f64 = 1e-4;

/// A row of a batch: its tokens, and where the answer begins.
#[derive(Clone)]
struct HostRow {
    ids: Vec<i32>,
    prompt: usize,
}

fn ids(value: &Value) -> Vec<i32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_i64().unwrap() as i32).collect()
}

fn row(prompt: &Value, answer: &Value) -> HostRow {
    let prompt = ids(prompt);
    HostRow {
        ids: [prompt.clone(), ids(answer)].concat(),
        prompt: prompt.len(),
    }
}

/// What batches are fed as labels.
enum RowLabels {
    /// The answers' tokens.
    Answers,
    /// A number for each row.
    Numbers(Vec<f32>),
}

/// A batch on the host.
struct HostBatch {
    rows: Vec<HostRow>,
    labels: RowLabels,
    numbers: Vec<(&'static str, Vec<f32>)>,
}

/// A model with its weights on the CPU.
struct Bench {
    model: Box<dyn Model>,
    session: Session,
    pad_id: i32,
    /// T of every batch, so that one graph serves all.
    tokens: usize,
}

impl Bench {
    /// A model of `finetune/models` with these weights.
    fn open(model: &Path, weights: &Path, pad_id: i32, tokens: usize) -> Bench {
        let config = hf::read_object(&model.join("config.json")).unwrap();
        let config = Config::new(config, "config.json");
        let head = HeadKind::of(&config).unwrap();
        let model = xtrain_models::build(config, head).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        let weights = StoredTensors::open(weights).unwrap();
        parameters::load(&mut session, &*model, &weights).unwrap();
        Bench {
            model,
            session,
            pad_id,
            tokens,
        }
    }

    fn upload(&self, batch: &HostBatch) -> DeviceBatch {
        let (rows, tokens) = (batch.rows.len(), self.tokens);
        let mut input_ids = vec![self.pad_id; rows * tokens];
        let mut labels = vec![-100; rows * tokens];
        let mut mask = vec![0u8; rows * tokens];
        for (at, row) in batch.rows.iter().enumerate() {
            let start = at * tokens;
            input_ids[start..start + row.ids.len()].copy_from_slice(&row.ids);
            let answer = start + row.prompt..start + row.ids.len();
            labels[answer].copy_from_slice(&row.ids[row.prompt..]);
            mask[start..start + row.ids.len()].fill(1);
        }
        let put = |bytes: &[u8], dtype: DType, dims: &[usize]| -> Buffers {
            self.session
                .upload(bytes, &Shape::new(dtype, dims))
                .unwrap()
        };
        let dims = [rows, tokens];
        let labels = match &batch.labels {
            RowLabels::Answers => put(bytemuck::cast_slice(&labels), DType::S32, &dims),
            RowLabels::Numbers(numbers) => put(bytemuck::cast_slice(numbers), DType::F32, &[rows]),
        };
        let mut feeds = vec![(LABELS, labels)];
        for (name, numbers) in &batch.numbers {
            feeds.push((
                *name,
                put(bytemuck::cast_slice(numbers), DType::F32, &[rows]),
            ));
        }
        feeds.push((ATTENTION_MASK, put(&mask, DType::Pred, &dims)));
        let ids = put(bytemuck::cast_slice(&input_ids), DType::S32, &dims);
        DeviceBatch::of(ids, feeds)
    }

    /// What an objective predicts of each row.
    fn predicted(&mut self, objective: &dyn Objective, batch: &HostBatch) -> Vec<f32> {
        let batch = self.upload(batch);
        let parameters = self.model.parameters();
        let mut recording = self.session.begin();
        let inputs = feed_batch(&mut recording, &batch);
        let tensors = parameter_tensors(&mut recording, &parameters).unwrap();
        let trace = recording.trace().clone();
        let outcome = objective.record(&Forward {
            model: &*self.model,
            weights: &Weights::new(&trace, &tensors),
            inputs: &inputs,
            rng: &DropoutRng::off(),
        });
        let numbers = outcome.unwrap().predictions.flat_logits().unwrap();
        recording.fetch("numbers", &numbers);
        let marked = recording.mark_step("predicted").unwrap();
        marked.fetched("numbers").download_to().unwrap()
    }

    /// The gradient of each parameter.
    fn gradients(
        &mut self,
        objective: &dyn Objective,
        batch: &HostBatch,
    ) -> Vec<(String, Vec<f32>)> {
        let batch = self.upload(batch);
        let parameters = self.model.parameters();
        let mut recording = self.session.begin();
        let inputs = feed_batch(&mut recording, &batch);
        let tensors = parameter_tensors(&mut recording, &parameters).unwrap();
        let trace = recording.trace().clone();
        let outcome = objective.record(&Forward {
            model: &*self.model,
            weights: &Weights::new(&trace, &tensors),
            inputs: &inputs,
            rng: &DropoutRng::off(),
        });
        let loss = outcome.unwrap().loss;
        let loss = loss.sum.div(&loss.count).unwrap();
        let leaves: Vec<_> = parameters
            .iter()
            .map(|p| tensors[&p.name].held()[0].clone())
            .collect();
        for (i, gradient) in backward(&loss, &leaves).unwrap().iter().enumerate() {
            recording.fetch(&i.to_string(), gradient);
        }
        let marked = recording.mark_step("gradients").unwrap();
        let read = |i: usize| marked.fetched(&i.to_string()).download_to().unwrap();
        let names = parameters.iter().map(|parameter| parameter.name.clone());
        names.enumerate().map(|(i, name)| (name, read(i))).collect()
    }

    /// Loss, gradient norm and measures of each batch, without changing a weight.
    fn measured(
        &mut self,
        objective: &Arc<dyn Objective>,
        batches: &[HostBatch],
    ) -> Vec<StepMetrics> {
        let schedule = Schedule {
            kind: ScheduleKind::Constant,
            peak: 0.0,
            warmup: 0,
            total: 1,
        };
        let optimizer = OptimizerSettings::constant(ADAMW, 0.0);
        let batches: Vec<_> = batches.iter().map(|batch| self.upload(batch)).collect();
        let step = TrainStep::new(&*self.model, objective.clone(), optimizer, schedule, 0);
        parameters::set_extra_state(&mut self.session, &step.extra_state(false), None).unwrap();
        let phase = Phase::Update { accumulated: false };
        let mut metrics = Vec::new();
        for (i, batch) in batches.iter().enumerate() {
            let outputs = step.microbatch(&mut self.session, batch, phase, i as u64, i as u64);
            metrics.push(read_metrics(&outputs.unwrap()).unwrap().wait().unwrap());
        }
        metrics
    }
}

fn assert_near(name: &str, found: f64, expected: f64, bar: f64) {
    assert!(
        (found - expected).abs() <= bar,
        "{name}: {found}, expected {expected}"
    );
}

fn number(options: &Value, key: &str, default: f64) -> f64 {
    options.get(key).and_then(Value::as_f64).unwrap_or(default)
}

/// The objective that DPOConfig's options describe; `None` of a loss that TRL lacks.
fn preference(options: &Value) -> Option<Preference> {
    let texts = |value: &Value| -> Vec<String> {
        match value {
            Value::String(text) => vec![text.clone()],
            list => serde_json::from_value(list.clone()).unwrap(),
        }
    };
    let names = options.get("loss_type").map(texts);
    let names = names.unwrap_or_else(|| vec!["sigmoid".to_string()]);
    let loss = |name: &String| {
        use PairLoss::*;
        Some(match name.as_str() {
            "sigmoid" => Sigmoid,
            "hinge" => Hinge,
            "ipo" => Ipo,
            "exo_pair" => ExoPair,
            "nca_pair" => NcaPair,
            "robust" => Robust,
            "bco_pair" => BcoPair,
            "sppo_hard" => SppoHard,
            "aot" => Aot,
            "aot_unpaired" => AotUnpaired,
            "apo_zero" => ApoZero,
            "apo_down" => ApoDown,
            "discopop" => DiscoPop,
            "sft" => Sft,
            "sigmoid_norm" => SigmoidNorm,
            _ => return None,
        })
    };
    let losses = names.iter().map(loss).collect::<Option<Vec<_>>>()?;
    let weights: Vec<f64> = match options.get("loss_weights") {
        Some(weights) => serde_json::from_value(weights.clone()).unwrap(),
        None => vec![1.0; losses.len()],
    };
    Some(Preference {
        losses: losses.into_iter().zip(weights).collect(),
        beta: number(options, "beta", 0.1),
        label_smoothing: number(options, "label_smoothing", 0.0),
        ld_alpha: options.get("ld_alpha").and_then(Value::as_f64),
        divergence: match options.get("f_divergence_type").and_then(Value::as_str) {
            None | Some("reverse_kl") => Divergence::ReverseKl,
            Some("forward_kl") => Divergence::ForwardKl,
            Some("js_divergence") => Divergence::JensenShannon,
            Some("alpha_divergence") => {
                Divergence::Alpha(number(options, "f_alpha_divergence_coef", 0.5))
            }
            Some(other) => panic!("f_divergence_type {other}"),
        },
        use_weighting: options.get("use_weighting") == Some(&Value::Bool(true)),
        ..Preference::default()
    })
}

/// Pairs as batches, around the list, each pair's rows one after the other.
fn pair_rows(pairs: &[Value], batch: usize, at: usize) -> Vec<HostRow> {
    let numbers = at * batch..(at + 1) * batch;
    let pair = |i: usize| {
        let pair = &pairs[i % pairs.len()];
        ["chosen", "rejected"].map(|name| row(&pair["prompt"], &pair[name]))
    };
    numbers.flat_map(pair).collect()
}

fn answers(rows: Vec<HostRow>) -> HostBatch {
    HostBatch {
        rows,
        labels: RowLabels::Answers,
        numbers: Vec::new(),
    }
}

/// Folders of a kind of case in every golden directory.
fn folders(path: &str) -> Vec<PathBuf> {
    let of_golden = |golden: PathBuf| golden.join("finetune").join(path);
    let folders = golden_dirs().into_iter().map(of_golden);
    let found: Vec<PathBuf> = folders.filter(|folder| folder.exists()).collect();
    assert!(!found.is_empty(), "no golden directory has finetune/{path}");
    found
}

/// Rows of text: the ids of prompts and answers, the batch that is made of them, and which rows are
/// left out.
#[test]
fn rows_of_text_equal_trl() {
    let Some(data) = shared_data() else { return };
    for dir in folders("dpo/texts") {
        let read = |name: &str| -> Value { hf::read_json(&dir.join(name)).unwrap() };
        let (rows, cases) = (read("rows_in.json"), read("prepared.json"));
        for case in cases.as_array().unwrap() {
            let folder = tempfile::tempdir().unwrap();
            let template = case["template"]
                .as_str()
                .map(|name| std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap());
            let config =
                serde_json::json!({"eos_token": "<|endoftext|>", "chat_template": template});
            let tokenizer = data.join("gpt2/tokenizer.json");
            std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
            let path = folder.path().join("tokenizer_config.json");
            std::fs::write(path, config.to_string()).unwrap();
            let tokenizer = Tokenizer::load(folder.path()).unwrap();
            let tokenizer = tokenizer.with_pad_token("<|endoftext|>").unwrap();
            let file = folder.path().join("rows.jsonl");
            let lines = rows[case["rows"].as_str().unwrap()].as_array().unwrap();
            let lines: String = lines.iter().map(|row| format!("{row}\n")).collect();
            std::fs::write(&file, lines).unwrap();
            let answers = AnswerSettings {
                source: SourceSettings {
                    train_files: vec![file],
                    cache_dir: folder.path().join("cache"),
                    ..SourceSettings::default()
                },
                max_seq_length: None,
                truncation: match case["truncation_mode"].as_str() {
                    Some("keep_end") => TruncationMode::KeepEnd,
                    _ => TruncationMode::KeepStart,
                },
                padding: PaddingSettings::default(),
                form: Form::Pairs,
            };
            let task = DpoDataSettings {
                answers,
                loss: DpoLoss::Pairs(Preference::default()),
            };
            let context = Context {
                tokenizer,
                length: case["max_length"].as_u64().unwrap_or(1024) as usize,
                vocabulary: 1 << 16,
                labels: None,
                quiet: true,
                spaces_words: false,
            };
            let set = tasks::set(&task, &context, Split::Train).unwrap();
            let wanted = case["made"].as_array().unwrap();
            let name = format!(
                "{} {:?} {}",
                case["rows"], case["max_length"], case["truncation_mode"]
            );
            assert_eq!(set.len(), wanted.len(), "{name}");
            let all: Vec<u32> = (0..set.len() as u32).collect();
            let batch = set.batch(&all, all.len(), Position::default()).unwrap();
            let labels = batch.labels.tokens().unwrap();
            let mask = batch.attention_mask.as_ref().unwrap();
            // TRL has the chosen answers first; here a pair's rows are together.
            for (half, first) in [(0, 0), (1, set.len())] {
                for pair in 0..set.len() {
                    let (own, trl) = (2 * pair + half, first + pair);
                    let ids_of_trl = ids(&case["batch"]["input_ids"][trl]);
                    let mask_of_trl = ids(&case["batch"]["attention_mask"][trl]);
                    let answer = ids(&case["batch"]["completion_mask"][trl]);
                    for column in 0..batch.input_ids.ncols() {
                        let at = [own, column];
                        let what = format!("{name} row {trl} column {column}");
                        let is_there = mask_of_trl.get(column) == Some(&1);
                        assert_eq!(mask[at], is_there, "{what}");
                        let is_answer = answer.get(column) == Some(&1);
                        assert_eq!(labels[at] != -100, is_answer, "{what}");
                        if is_there {
                            assert_eq!(
                                Some(&batch.input_ids[at]),
                                ids_of_trl.get(column),
                                "{what}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The reference's log-probabilities, and a policy that is not the reference: loss, norm and
/// gradients of every setting.
#[test]
fn losses_of_pairs_equal_trl() {
    for dir in folders("dpo/losses.json") {
        let dir = dir.parent().unwrap();
        let read = |name: &str| -> Value { hf::read_json(&dir.join(name)).unwrap() };
        let problem = read("pairs.json");
        let pairs = problem["pairs"].as_array().unwrap();
        let (size, pad_id) = (
            problem["batch"].as_u64().unwrap() as usize,
            problem["pad_token_id"].as_i64().unwrap() as i32,
        );
        let model = dir
            .join("../models")
            .join(problem["model"].as_str().unwrap());
        let count = pairs.len() / size;
        let rows: Vec<_> = (0..count).map(|at| pair_rows(pairs, size, at)).collect();
        let longest = rows
            .iter()
            .flatten()
            .map(|row| row.ids.len())
            .max()
            .unwrap();
        let mut reference = Bench::open(&model, &model.join("model.safetensors"), pad_id, longest);
        let policy = dir.join("policy.safetensors");
        let mut policy = Bench::open(&model, &policy, pad_id, longest);
        let gradients = StoredTensors::open(&dir.join("grads.safetensors"));
        let mut ran = 0;
        for case in read("losses.json").as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let Some(preference) = preference(&case["options"]) else {
                println!("golden setting {name} did not run: TRL has no such loss");
                continue;
            };
            let known = |key: &str, at: usize| -> Option<Vec<f64>> {
                serde_json::from_value(case.get(key)?[at].clone()).ok()
            };
            let of_reference = preference.reference().unwrap();
            let mut batches = Vec::new();
            for (at, rows) in rows.iter().enumerate() {
                let mut batch = answers(rows.clone());
                let check = |bench: &mut Bench, keys: [&str; 2]| {
                    let found = bench.predicted(&*of_reference, &answers(rows.clone()));
                    for (half, key) in keys.into_iter().enumerate() {
                        for (i, expected) in known(key, at).into_iter().flatten().enumerate() {
                            let found = f64::from(found[2 * i + half]);
                            assert_near(&format!("{name} {key} {i}"), found, expected, LOG_PROBS);
                        }
                    }
                    found
                };
                check(&mut policy, ["chosen_logps", "rejected_logps"]);
                let numbers = check(&mut reference, ["ref_chosen_logps", "ref_rejected_logps"]);
                batch.numbers.push((REFERENCE, numbers));
                batches.push(batch);
            }
            let objective: Arc<dyn Objective> = Arc::new(preference);
            let metrics = policy.measured(&objective, &batches);
            let names = objective.measures();
            for (at, found) in metrics.iter().enumerate() {
                let expected = case["loss"][at].as_f64().unwrap();
                let bar = LOSS * expected.abs().max(1.0);
                let what = format!("{name} batch {at}");
                assert_near(&what, f64::from(found.loss), expected, bar);
                for (measure, key) in [
                    ("rewards/chosen", "chosen_rewards"),
                    ("rewards/rejected", "rejected_rewards"),
                    ("rewards/margins", "margins"),
                    ("rewards/accuracies", "accuracies"),
                    ("logps/chosen", "chosen_logps"),
                    ("logps/rejected", "rejected_logps"),
                ] {
                    let Some(each) = known(key, at) else { continue };
                    let place = names.iter().position(|name| *name == measure).unwrap();
                    let mean = each.iter().sum::<f64>() / each.len() as f64;
                    let what = format!("{name} batch {at} {measure}");
                    assert_near(&what, found.measured[place], mean, LOG_PROBS);
                }
            }
            let norm = case["grad_norm"].as_f64().unwrap();
            let found = f64::from(metrics[0].grad_norm);
            assert_near(&format!("{name} norm"), found, norm, NORM * norm.max(1.0));
            if let Ok(gradients) = &gradients
                && gradients
                    .iter()
                    .any(|it| it.name.starts_with(&format!("{name}.")))
            {
                for (parameter, found) in policy.gradients(&*objective, &batches[0]) {
                    let (_, expected) = gradients.read_f32(&format!("{name}.{parameter}")).unwrap();
                    let size = expected.iter().fold(1f32, |most, it| most.max(it.abs()));
                    let difference = max_difference(&found, &expected);
                    assert!(
                        difference <= GRADIENTS * size,
                        "{name} {parameter}: {difference:e}"
                    );
                }
            }
            ran += 1;
        }
        assert!(ran > 0);
        println!("{}: {ran} settings", dir.display());
    }
}

/// A case that is trained: what to train, on which batches, and what each row is compared with.
struct Training<'a> {
    name: String,
    dir: &'a Path,
    model: PathBuf,
    pad_id: i32,
    objective: Arc<dyn Objective>,
    /// The batch of a step.
    batch: &'a dyn Fn(usize) -> HostBatch,
}

/// Follows a trajectory: loss, norm and measures of each step, then the weights.
fn follow(training: Training<'_>) {
    let Training {
        name,
        dir,
        model,
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
    let mut bench = Bench::open(&model, &weights, pad_id, longest);
    if let Some(reference) = objective.reference() {
        for batch in &mut batches {
            let numbers = bench.predicted(&*reference, batch);
            batch.numbers.insert(0, (REFERENCE, numbers));
        }
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
        let mut bench = Bench::open(&model, &weights, pad_id, longest);
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
            let mut known = 0;
            for (key, expected) in record.as_object().unwrap() {
                let expected = expected.as_f64().unwrap();
                let found = match key.as_str() {
                    "loss" => loss,
                    "grad_norm" => norm,
                    "lr" => schedule.learning_rate(at),
                    // TRL's ORPOTrainer has the mean over padding too.
                    logits if name == "orpo" && logits.starts_with("logits/") => continue,
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
        let final_weights = StoredTensors::open(&dir.join("final_weights.safetensors"));
        if let (1, Ok(expected)) = (accumulation, final_weights) {
            let names: Vec<String> = step.parameters().iter().map(|p| p.name.clone()).collect();
            for name in names {
                let (_, expected) = expected.read_f32(&name).unwrap();
                let (bytes, _) = bench.session.download(&name).unwrap();
                let found: &[f32] = bytemuck::cast_slice(&bytes);
                let difference = max_difference(found, &expected);
                assert!(difference <= FINAL_WEIGHTS, "{name}: {difference:e}");
            }
        }
    }
    println!("golden case {name} ran");
}

/// Trajectories whose reference is the initial policy.
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
            if !trajectory["lora"].is_null() {
                continue;
            }
            follow(Training {
                name: case.file_name().unwrap().to_string_lossy().to_string(),
                dir: &case,
                model: dir
                    .join("../models")
                    .join(problem["model"].as_str().unwrap()),
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
                pad_id: problem["pad_token_id"].as_i64().unwrap() as i32,
                objective,
                batch,
            });
            *ran.entry(kind).or_insert(0) += 1;
        }
    }
    assert_eq!(ran.len(), 3, "{ran:?}");
}
