//! The JSON files of a Hugging Face directory, laid out as transformers writes them, and the
//! directory as `save_pretrained` leaves it. Objects keep the order of their keys, so a
//! `config.json` that comes in goes out as it was.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::atomic;
use super::error::{Error, Result};
pub use super::json::{read_json, read_object, to_json_text, write_json};
use super::shards::{self, Shards};
use super::tensors::{TensorRef, write_safetensors};
use super::weights::{ADAPTER_WEIGHTS_FILE, WEIGHTS_FILE, WEIGHTS_INDEX_FILE};

pub const CONFIG_FILE: &str = "config.json";
/// The settings of an adapter of PEFT.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

/// What a saved directory is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A model, as transformers saves it.
    #[default]
    Model,
    /// What an adapter adds to a model, as PEFT saves it.
    Adapter,
}

impl Form {
    /// That of a directory.
    pub fn of(dir: &Path) -> Form {
        if dir.join(ADAPTER_CONFIG_FILE).is_file() {
            Form::Adapter
        } else {
            Form::Model
        }
    }

    /// The file of its settings.
    pub fn config_file(self) -> &'static str {
        match self {
            Form::Model => CONFIG_FILE,
            Form::Adapter => ADAPTER_CONFIG_FILE,
        }
    }
}

pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";
pub const TRAINER_STATE_FILE: &str = "trainer_state.json";

/// A copy whose keys are sorted, at every depth.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map
                .iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// `SPLIT_results.json` with the metrics, and the same merged into `all_results.json`, as
/// `Trainer.save_metrics` does.
pub fn save_metrics(dir: &Path, split: &str, metrics: &Map<String, Value>) -> Result<()> {
    let write = |name: &str, metrics: &Map<String, Value>| {
        atomic::write_bytes(
            &dir.join(name),
            &to_json_text(&sorted(&Value::Object(metrics.clone())), 4),
        )
    };
    write(&format!("{split}_results.json"), metrics)?;
    let all = dir.join("all_results.json");
    let mut merged = if all.exists() {
        read_object(&all)?
    } else {
        Map::new()
    };
    merged.extend(
        metrics
            .iter()
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    write("all_results.json", &merged)
}

/// `trainer_state.json`, field by field as transformers writes it (keys sorted, so the fields here
/// are too).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerState {
    pub best_global_step: Option<u64>,
    pub best_metric: Option<f64>,
    pub best_model_checkpoint: Option<String>,
    pub epoch: f64,
    pub eval_steps: f64,
    pub global_step: u64,
    pub is_hyper_param_search: bool,
    pub is_local_process_zero: bool,
    pub is_world_process_zero: bool,
    pub log_history: Vec<Map<String, Value>>,
    pub logging_steps: f64,
    pub max_steps: u64,
    pub num_input_tokens_seen: u64,
    /// A whole number there, rounded up when the run was asked for a fraction.
    pub num_train_epochs: u64,
    pub save_steps: f64,
    pub stateful_callbacks: Map<String, Value>,
    pub total_flos: f64,
    pub train_batch_size: Option<u64>,
    pub trial_name: Option<String>,
    pub trial_params: Option<Value>,
}

impl Default for TrainerState {
    fn default() -> Self {
        TrainerState {
            best_global_step: None,
            best_metric: None,
            best_model_checkpoint: None,
            epoch: 0.0,
            eval_steps: 500.0,
            global_step: 0,
            is_hyper_param_search: false,
            is_local_process_zero: true,
            is_world_process_zero: true,
            log_history: Vec::new(),
            logging_steps: 500.0,
            max_steps: 0,
            num_input_tokens_seen: 0,
            num_train_epochs: 0,
            save_steps: 500.0,
            stateful_callbacks: Map::new(),
            total_flos: 0.0,
            train_batch_size: None,
            trial_name: None,
            trial_params: None,
        }
    }
}

/// What `save_pretrained` writes for a model and its tokenizer.
#[derive(Clone, Debug)]
pub struct Pretrained<'a> {
    pub form: Form,
    pub config: &'a Map<String, Value>,
    pub weights: &'a [TensorRef<'a>],
    /// Name and content of files that go along as they are: the tokenizer's, `generation_config.json`.
    pub files: &'a [(String, Vec<u8>)],
    /// Weights beyond this many bytes go into several files; an adapter's never do.
    pub max_shard_size: u64,
}

impl<'a> Pretrained<'a> {
    /// The weights by their files.
    pub(super) fn shards(&self) -> Shards<'a> {
        match self.form {
            Form::Model => shards::split(self.weights, self.max_shard_size),
            Form::Adapter => Shards {
                files: vec![(ADAPTER_WEIGHTS_FILE.to_string(), self.weights.to_vec())],
                index: None,
            },
        }
    }
}

/// Writes the model into `dir`, each file as a whole. The weights come first: they are what can run
/// out of disk, and a directory with an old config beside new weights is only ever the same model.
pub fn save_pretrained(dir: &Path, model: &Pretrained<'_>) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    write_weights(dir, model.shards())?;
    remove_other_form(dir, model.form)?;
    for (name, bytes) in small_files(model) {
        let path = dir.join(name);
        let above = path.parent().unwrap_or(dir);
        fs::create_dir_all(above).map_err(Error::io("create", above))?;
        atomic::write_file(&path, |out| out.write_all(&bytes))?;
    }
    Ok(())
}

/// Puts weights in the place of those that `dir` holds, in whatever number of files either are.
/// Every new file is whole on disk before an old one goes; parts are never to be had under an index
/// that is not theirs.
fn write_weights(dir: &Path, new: Shards<'_>) -> Result<()> {
    let index_path = dir.join(WEIGHTS_INDEX_FILE);
    match &new.index {
        None => {
            let (name, tensors) = &new.files[0];
            atomic::write_file(&dir.join(name), |out| write_safetensors(out, tensors))?;
        }
        Some(index) => {
            let parts = atomic::DirWriter::begin(&dir.join("weights"))?;
            for (name, tensors) in &new.files {
                let path = parts.path().join(name);
                let write = || -> io::Result<()> {
                    let file = fs::File::create_new(&path)?;
                    let mut out = io::BufWriter::with_capacity(1 << 20, &file);
                    write_safetensors(&mut out, tensors)?;
                    out.flush()?;
                    drop(out);
                    file.sync_all()
                };
                write().map_err(Error::io("write", &dir.join(name)))?;
            }
            remove_if_there(&index_path)?;
            for (name, _) in &new.files {
                fs::rename(parts.path().join(name), dir.join(name))
                    .map_err(Error::io("rename into place", &dir.join(name)))?;
            }
            write_json(&index_path, index)?;
            remove_if_there(&dir.join(WEIGHTS_FILE))?;
        }
    }
    // What an earlier model of another size left.
    if new.index.is_none() {
        remove_if_there(&index_path)?;
    }
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if shards::is_part(&name) && !new.files.iter().any(|(own, _)| *own == name) {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}

/// An adapter in the directory of a model would be added to it, and a model's settings beside an adapter
/// are not its own.
fn remove_other_form(dir: &Path, form: Form) -> Result<()> {
    let others = match form {
        Form::Model => [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE],
        // The settings of a classifier's model go along with its adapter, and are written next.
        Form::Adapter => [CONFIG_FILE, WEIGHTS_FILE],
    };
    others
        .iter()
        .try_for_each(|name| remove_if_there(&dir.join(name)))
}

/// Removes a file that need not exist.
pub fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Everything but the weights.
pub(super) fn small_files<'a>(
    model: &Pretrained<'a>,
) -> Vec<(&'a str, std::borrow::Cow<'a, [u8]>)> {
    let config = to_json_text(model.config, 2);
    let mut files = vec![(model.form.config_file(), config.into())];
    files.extend(
        model
            .files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice().into())),
    );
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtrain_report::python_float::repr;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn bad_json_is_located() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG_FILE);
        fs::write(&path, "{\n  \"n_layer\": 2,\n  \"n_head\": }\n").unwrap();
        let error = read_object(&path).unwrap_err().to_string();
        assert!(
            error.contains("config.json:3:13: not valid JSON: expected value"),
            "{error}"
        );
        fs::write(&path, "[1]").unwrap();
        assert!(
            read_object(&path)
                .unwrap_err()
                .to_string()
                .contains("expected a JSON object")
        );
        fs::write(&path, "").unwrap();
        assert!(
            read_object(&path)
                .unwrap_err()
                .to_string()
                .contains("config.json: the file is empty")
        );
        assert!(
            read_object(&dir.path().join("none.json"))
                .unwrap_err()
                .to_string()
                .contains("none.json")
        );
    }

    #[test]
    fn configs_go_out_as_they_came_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG_FILE);
        let text = "{\n  \"vocab_size\": 50257,\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n  \"a\": 1e-5,\n  \"z\": 0.1\n}\n";
        fs::write(&path, text).unwrap();
        let map = read_object(&path).unwrap();
        write_json(&path, &map).unwrap();
        assert_eq!(read_object(&path).unwrap(), map);
        assert_eq!(
            map.keys().collect::<Vec<_>>(),
            ["vocab_size", "architectures", "a", "z"]
        );
        assert!(
            fs::read_to_string(&path)
                .unwrap()
                .starts_with("{\n  \"vocab_size\": 50257,\n  \"architectures\": [\n    \"GPT2")
        );
    }

    #[test]
    fn floats_print_as_python_prints_them() {
        // Each right-hand side is what Python's repr() gives.
        let known = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (5e-5, "5e-05"),
            (4.9999999999999996e-05, "4.9999999999999996e-05"),
            (1.5e-12, "1.5e-12"),
            (1e-300, "1e-300"),
            (123456789.0, "123456789.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.0e30, "1e+30"),
            (0.1 + 0.2, "0.30000000000000004"),
        ];
        for (value, text) in known {
            assert_eq!(repr(value), text);
        }
        assert_eq!(
            to_json_text(&json!({"a": [1e-5, 2], "b": {}, "c": []}), 2),
            b"{\n  \"a\": [\n    1e-05,\n    2\n  ],\n  \"b\": {},\n  \"c\": []\n}\n"
        );
    }

    #[test]
    fn metrics_accumulate_in_all_results() {
        let dir = tempfile::tempdir().unwrap();
        save_metrics(
            dir.path(),
            "train",
            &object(json!({"train_loss": 3.5, "epoch": 1.0})),
        )
        .unwrap();
        save_metrics(
            dir.path(),
            "eval",
            &object(json!({"perplexity": 20.0, "epoch": 2.0})),
        )
        .unwrap();
        let all = fs::read_to_string(dir.path().join("all_results.json")).unwrap();
        assert_eq!(
            all,
            "{\n    \"epoch\": 2.0,\n    \"perplexity\": 20.0,\n    \"train_loss\": 3.5\n}\n"
        );
        assert!(
            dir.path().join("train_results.json").exists()
                && dir.path().join("eval_results.json").exists()
        );
    }

    #[test]
    fn weights_change_between_one_file_and_several() {
        use crate::Weights;
        use xtrain_graphs::{DType, Shape};
        let dir = tempfile::tempdir().unwrap();
        let config = Map::new();
        let save = |value: f32, max_shard_size: u64| {
            let bytes: Vec<u8> = value.to_le_bytes().repeat(4);
            let weights = ["a", "b", "c"]
                .map(|name| TensorRef::new(name, Shape::new(DType::F32, [4]), &bytes));
            let model = Pretrained {
                form: Form::Model,
                config: &config,
                weights: &weights,
                files: &[],
                max_shard_size,
            };
            save_pretrained(dir.path(), &model).unwrap();
            let read = Weights::open(dir.path()).unwrap();
            assert!(
                ["a", "b", "c"]
                    .iter()
                    .all(|name| read.read_f32(name).unwrap().1 == [value; 4]),
                "{value}"
            );
            let mut names: Vec<String> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != CONFIG_FILE)
                .collect();
            names.sort();
            names
        };
        assert_eq!(save(1.0, 48), [WEIGHTS_FILE]);
        let three = [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
        ];
        assert_eq!(save(2.0, 16)[..3], three);
        assert_eq!(
            save(3.0, 16),
            [three[0], three[1], three[2], WEIGHTS_INDEX_FILE]
        );
        let two = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            WEIGHTS_INDEX_FILE,
        ];
        assert_eq!(save(4.0, 32), two);
        assert_eq!(save(5.0, 1 << 30), [WEIGHTS_FILE]);
    }

    #[test]
    fn trainer_state_has_transformers_keys_in_order_and_survives_exactly() {
        let state = TrainerState {
            epoch: 0.1 + 0.2,
            global_step: 7,
            log_history: vec![object(
                json!({"loss": 3.2100000000000004, "learning_rate": 4.9999999999999996e-05, "epoch": 0.5, "step": 7}),
            )],
            ..TrainerState::default()
        };
        let text = to_json_text(&state, 2);
        let value: Value = serde_json::from_slice(&text).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        let mut in_order = keys.clone();
        in_order.sort();
        assert_eq!(keys, in_order);
        assert_eq!(keys.len(), 20);
        let again: TrainerState = serde_json::from_slice(&text).unwrap();
        assert_eq!(again, state);
        assert_eq!(to_json_text(&again, 2), text);
    }

    #[test]
    fn floats_survive_json_bit_for_bit() {
        use rand_chacha::rand_core::{Rng, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for _ in 0..100_000 {
            let value = f64::from_bits(rng.next_u64());
            if value.is_finite() {
                let again: f64 =
                    serde_json::from_str(&serde_json::to_string(&value).unwrap()).unwrap();
                assert_eq!(
                    again.to_bits(),
                    value.to_bits(),
                    "{value:e}: serde_json needs its float_roundtrip feature"
                );
            }
        }
    }
}
