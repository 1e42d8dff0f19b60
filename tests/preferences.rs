//! Parity of preference objectives with TRL 1.16, in f64 by plain torch: rows of text and every setting of a loss in
//! `finetune/dpo` of the golden directories. Nothing here depends on which settings or sizes they hold. What is trained
//! is in `preference_training.rs`.

use crate::support::{golden_dirs, max_difference, shared_data};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::data::settings::{PaddingSettings, SourceSettings};
use xtrain::data::{Position, Tokenizer};
use xtrain::parallel::Mesh;
use xtrain::tasks::answers::{AnswerSettings, Form, TruncationMode};
use xtrain::tasks::{self, Context, PreferenceDataSettings, PreferenceLoss, Split};
use xtrain::trainer::feed::{DeviceBatch, feed_batch};
use xtrain::trainer::mesh_devices::Buffers;
use xtrain::trainer::session::{Recording, Session};
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, StepMetrics, TrainStep, parameter_tensors, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{ADAMW, Schedule};
use xtrain_graphs::{DType, DropoutRng, Shape, Tensor, backward};
use xtrain_models::{
    ATTENTION_MASK, Config, Divergence, Forward, HeadKind, LABELS, LoraConfig, Model, Objective,
    Outcome, PairLoss, Preference, REFERENCE, Weights,
};

pub const GRADIENTS: f32 = 5e-6;
pub const LOSS: f64 = 1e-5;
pub const NORM: f64 = 2e-5;
const LOG_PROBS: f64 = 3e-5;

/// A row of a batch: its tokens, and where the answer begins.
#[derive(Clone)]
pub struct HostRow {
    pub ids: Vec<i32>,
    pub prompt: usize,
}

fn ids(value: &Value) -> Vec<i32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_i64().unwrap() as i32).collect()
}

pub fn row(prompt: &Value, answer: &Value) -> HostRow {
    let prompt = ids(prompt);
    HostRow {
        ids: [prompt.clone(), ids(answer)].concat(),
        prompt: prompt.len(),
    }
}

/// What batches are fed as labels.
pub enum RowLabels {
    /// The answers' tokens.
    Answers,
    /// A number for each row.
    Numbers(Vec<f32>),
}

/// A batch on the host.
pub struct HostBatch {
    pub rows: Vec<HostRow>,
    pub labels: RowLabels,
    pub numbers: Vec<(&'static str, Vec<f32>)>,
}

/// A model with its weights on the CPU.
pub struct Bench {
    pub model: Box<dyn Model>,
    pub session: Session,
    pad_id: i32,
    /// T of every batch, so that one graph serves all.
    tokens: usize,
}

impl Bench {
    /// A model of `finetune/models` with these weights and, if its directory is given, an adapter.
    pub fn open(
        model: &Path,
        weights: &Path,
        adapter: Option<&Path>,
        pad_id: i32,
        tokens: usize,
    ) -> Bench {
        let config = hf::read_object(&model.join("config.json")).unwrap();
        let config = Config::new(config, "config.json");
        let head = HeadKind::of(&config).unwrap();
        let mut model = xtrain_models::build(config, head).unwrap();
        if let Some(dir) = adapter {
            let config = hf::read_object(&dir.join("adapter_config.json")).unwrap();
            let config = LoraConfig::from_json(&config, "adapter_config.json").unwrap();
            model = xtrain_models::adapt(model, config).unwrap();
        }
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        let weights = StoredTensors::open(weights).unwrap();
        parameters::load(&mut session, &*model, &weights).unwrap();
        if let Some(dir) = adapter {
            let weights = StoredTensors::open(&dir.join("adapter_model.safetensors")).unwrap();
            parameters::load_adapter(&mut session, &*model, &weights).unwrap();
        }
        Bench {
            model,
            session,
            pad_id,
            tokens,
        }
    }

    /// A model of random weights.
    pub fn random(model: Box<dyn Model>, tokens: usize) -> Bench {
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        parameters::initialize(&mut session, &model.parameters(), 1).unwrap();
        Bench {
            model,
            session,
            pad_id: 0,
            tokens,
        }
    }

    /// The loss of a batch, summed over its examples, and the gradient of that.
    pub fn summed(&mut self, objective: &dyn Objective, batch: &HostBatch) -> (f32, Vec<Vec<f32>>) {
        let (mut recording, outcome, leaves) = self.record(objective, batch);
        recording.fetch("loss", &outcome.loss.sum);
        let gradients = backward(&outcome.loss.sum, &leaves).unwrap();
        for (i, gradient) in gradients.iter().enumerate() {
            recording.fetch(&i.to_string(), gradient);
        }
        let marked = recording.mark_step("summed").unwrap();
        let read = |name: &str| -> Vec<f32> { marked.fetched(name).download_to().unwrap() };
        let gradients = (0..leaves.len()).map(|i| read(&i.to_string()));
        (read("loss")[0], gradients.collect())
    }

    pub fn upload(&self, batch: &HostBatch) -> DeviceBatch {
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

    /// Records an objective over a batch; its outcome, and the trained parameters.
    fn record(
        &mut self,
        objective: &dyn Objective,
        batch: &HostBatch,
    ) -> (Recording<'_>, Outcome, Vec<Tensor>) {
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
        let trained = parameters.iter().filter(|it| it.trained);
        let leaves = trained.map(|p| tensors[&p.name].held()[0].clone());
        (recording, outcome.unwrap(), leaves.collect())
    }

    /// What an objective predicts of each row.
    pub fn predicted(&mut self, objective: &dyn Objective, batch: &HostBatch) -> Vec<f32> {
        let (mut recording, outcome, _) = self.record(objective, batch);
        let numbers = outcome.predictions.flat_logits().unwrap();
        recording.fetch("numbers", &numbers);
        let marked = recording.mark_step("predicted").unwrap();
        marked.fetched("numbers").download_to().unwrap()
    }

    /// The gradient of each parameter that is trained.
    pub fn gradients(
        &mut self,
        objective: &dyn Objective,
        batch: &HostBatch,
    ) -> Vec<(String, Vec<f32>)> {
        let parameters = self.model.parameters();
        let (mut recording, outcome, leaves) = self.record(objective, batch);
        let loss = outcome.loss.sum.div(&outcome.loss.count).unwrap();
        for (i, gradient) in backward(&loss, &leaves).unwrap().iter().enumerate() {
            recording.fetch(&i.to_string(), gradient);
        }
        let marked = recording.mark_step("gradients").unwrap();
        let read = |i: usize| marked.fetched(&i.to_string()).download_to().unwrap();
        let trained = parameters.iter().filter(|it| it.trained);
        let names = trained.map(|parameter| parameter.name.clone());
        names.enumerate().map(|(i, name)| (name, read(i))).collect()
    }

    /// Loss, gradient norm and measures of each batch, without changing a weight.
    fn measured(
        &mut self,
        objective: &Arc<dyn Objective>,
        batches: &[HostBatch],
    ) -> Vec<StepMetrics> {
        let schedule = Schedule::constant(0.0);
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

pub fn assert_near(name: &str, found: f64, expected: f64, bar: f64) {
    assert!(
        (found - expected).abs() <= bar,
        "{name}: {found}, expected {expected}"
    );
}

pub fn number(options: &Value, key: &str, default: f64) -> f64 {
    options.get(key).and_then(Value::as_f64).unwrap_or(default)
}

/// The objective that DPOConfig's options describe; `None` of a loss that TRL lacks.
pub fn preference(options: &Value) -> Option<Preference> {
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
pub fn pair_rows(pairs: &[Value], batch: usize, at: usize) -> Vec<HostRow> {
    let numbers = at * batch..(at + 1) * batch;
    let pair = |i: usize| {
        let pair = &pairs[i % pairs.len()];
        ["chosen", "rejected"].map(|name| row(&pair["prompt"], &pair[name]))
    };
    numbers.flat_map(pair).collect()
}

pub fn answers(rows: Vec<HostRow>) -> HostBatch {
    HostBatch {
        rows,
        labels: RowLabels::Answers,
        numbers: Vec::new(),
    }
}

/// Folders of a kind of case in every golden directory.
pub fn folders(path: &str) -> Vec<PathBuf> {
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
            let task = PreferenceDataSettings {
                answers,
                loss: PreferenceLoss::Pairs(Preference::default()),
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
        let mut reference = Bench::open(
            &model,
            &model.join("model.safetensors"),
            None,
            pad_id,
            longest,
        );
        let policy = dir.join("policy.safetensors");
        let mut policy = Bench::open(&model, &policy, None, pad_id, longest);
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
