//! Adapters: which directory has one, of which model it is, and what a new one is asked to be.

use super::error::UsageError;
use super::flags::Flags;
use std::path::{Path, PathBuf};
use xtrain_checkpoint::Weights;
use xtrain_checkpoint::hf::{self, ADAPTER_CONFIG_FILE, CONFIG_FILE};
use xtrain_hub as hub;
use xtrain_models::{AdapterBias, Config, LoraConfig, Modules};

/// Whether a directory has an adapter.
pub fn is_in(directory: &Path) -> bool {
    directory.join(ADAPTER_CONFIG_FILE).is_file()
}

/// Lets the directory of an adapter stand for the model that it is of: `--model_name_or_path` may name one,
/// as in transformers, and `--adapter_name_or_path` does without a model.
pub fn find_base(flags: &mut Flags) {
    let model = flags.model_name_or_path.clone();
    if let Some(directory) = model.filter(|directory| is_in(directory))
        && !flags.adapter_name_or_path.is_given()
    {
        flags.adapter_name_or_path.set(Some(directory));
        take_base(flags);
    } else if !flags.model_name_or_path.is_given() {
        take_base(flags);
    }
    let adapter = flags.adapter_name_or_path.as_deref();
    // Training saved it there, with the template and the tokens that it learned.
    let tokenizer = adapter.filter(|directory| {
        let files = ["tokenizer.json", "tokenizer_config.json"];
        files.iter().all(|name| directory.join(name).is_file())
    });
    if let Some(directory) = tokenizer.map(Path::to_path_buf)
        && !flags.tokenizer_name.is_given()
    {
        flags.tokenizer_name.set(Some(directory));
    }
}

fn take_base(flags: &mut Flags) {
    let Some(directory) = flags.adapter_name_or_path.clone() else {
        return;
    };
    let path = directory.join(ADAPTER_CONFIG_FILE);
    if !path.is_file() {
        return;
    }
    match base_of(&path) {
        Ok(base) => flags.model_name_or_path.set(Some(base)),
        Err(mistake) => flags.mistakes.push(mistake),
    }
}

/// The model that an `adapter_config.json` names.
fn base_of(path: &Path) -> Result<PathBuf, UsageError> {
    let shown = path.display();
    let values = hf::read_object(path)
        .map_err(|error| UsageError::illegal(error.to_string(), "restore the adapter's file"))?;
    let base = values.get("base_model_name_or_path");
    let base = base.and_then(serde_json::Value::as_str).unwrap_or_default();
    if base.is_empty() {
        return Err(UsageError::illegal(
            format!("{shown} does not say which model it is of (base_model_name_or_path)"),
            "name it: --model_name_or_path MODEL --adapter_name_or_path ADAPTER",
        ));
    }
    let path = PathBuf::from(base);
    if path.is_dir() || !path.exists() && hub::is_name(base) {
        return Ok(path);
    }
    Err(UsageError::illegal(
        format!("{shown} is of the model {base}, which is no directory here"),
        "say where it is: --model_name_or_path MODEL --adapter_name_or_path ADAPTER",
    ))
}

/// What a new adapter is asked to be; `None` where none is.
pub fn new(flags: &Flags) -> Option<LoraConfig> {
    if !*flags.use_peft || flags.adapter_name_or_path.is_given() {
        return None;
    }
    let rounded = |(name, value): &(String, f64)| (name.clone(), *value as usize);
    Some(LoraConfig {
        base: flags.typed.0.get("model_name_or_path").cloned(),
        rank: *flags.lora_r,
        alpha: *flags.lora_alpha,
        dropout: *flags.lora_dropout,
        targets: modules(&flags.lora_target_modules).unwrap_or(Modules::Usual),
        exclude: modules(&flags.exclude_modules),
        saved: flags.lora_modules_to_save.clone(),
        rank_stabilized: *flags.use_rslora,
        dora: *flags.use_dora,
        bias: AdapterBias::named(&flags.bias).unwrap_or_default(),
        lora_bias: *flags.lora_bias,
        rank_pattern: flags.rank_pattern.iter().flatten().map(rounded).collect(),
        alpha_pattern: flags.alpha_pattern.clone().unwrap_or_default(),
        layers: flags.layers_to_transform.clone().unwrap_or_default(),
        tokens: flags.trainable_token_indices.clone().unwrap_or_default(),
        layers_pattern: flags.layers_pattern.clone(),
        ties: *flags.ensure_weight_tying,
    })
}

/// What texts mean: names, or a single one that is `all-linear` or a regular expression.
fn modules(texts: &[String]) -> Option<Modules> {
    let is_name = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    };
    match texts {
        [] => None,
        [text] if text == "all-linear" || !is_name(text) => Some(Modules::of_text(text)),
        names => Some(Modules::Names(names.to_vec())),
    }
}

/// What the adapter of a command is asked to be: a new one's flags, or a saved one's file.
///
/// # Errors
/// If the file cannot be read, or asks for what is not implemented.
pub fn asked(flags: &Flags) -> Option<Result<LoraConfig, String>> {
    if let Some(directory) = &*flags.adapter_name_or_path {
        let path = directory.join(ADAPTER_CONFIG_FILE);
        if !path.is_file() {
            return None;
        }
        let read = hf::read_object(&path).map_err(|error| error.to_string());
        return Some(read.and_then(|values| {
            LoraConfig::from_json(&values, &path.display().to_string())
                .map_err(|error| error.to_string())
        }));
    }
    let config = new(flags)?;
    let checked = config
        .check("--use_peft")
        .map_err(|error| error.to_string());
    Some(checked.map(|()| config))
}

/// The keys of a `config.json` that say that it is of a classifier, and what its labels are.
const LABEL_KEYS: [&str; 4] = ["architectures", "id2label", "label2id", "problem_type"];

/// Puts the labels of a classifier's adapter in the place of its model's: from the settings that lie beside
/// it or, where another program saved it, by their number alone.
pub fn take_labels(config: &mut Config, adapter: &Path) {
    if let Ok(values) = hf::read_object(&adapter.join(CONFIG_FILE)) {
        for key in LABEL_KEYS {
            if let Some(value) = values.get(key) {
                config.set(key, value.clone());
            }
        }
        return;
    }
    let Ok(weights) = Weights::open_adapter(adapter) else {
        return;
    };
    let is_head = |name: &str| {
        [
            "score.weight",
            "classifier.weight",
            "classifier.out_proj.weight",
        ]
        .iter()
        .any(|end| {
            name.strip_suffix(end)
                .is_some_and(|above| above.ends_with('.'))
        })
    };
    let values = hf::read_object(&adapter.join(ADAPTER_CONFIG_FILE)).unwrap_or_default();
    let task = values.get("task_type").and_then(serde_json::Value::as_str);
    let classes = [
        ("SEQ_CLS", "ForSequenceClassification"),
        ("TOKEN_CLS", "ForTokenClassification"),
    ];
    let Some((_, class)) = classes.iter().find(|(name, _)| task == Some(name)) else {
        return;
    };
    config.set("architectures", vec![*class]);
    let heads = weights.iter().filter(|view| is_head(view.name));
    let labels = heads
        .filter_map(|view| view.shape.dims.first().copied())
        .next();
    let known = config
        .get("id2label")
        .and_then(serde_json::Value::as_object);
    if let Some(labels) = labels.filter(|labels| known.map(|map| map.len()) != Some(*labels)) {
        let name = |id: usize| format!("LABEL_{id}");
        let by_id = (0..labels).map(|id| (id.to_string(), name(id).into()));
        let by_name = (0..labels).map(|id| (name(id), id.into()));
        let by_id: serde_json::Map<String, serde_json::Value> = by_id.collect();
        let by_name: serde_json::Map<String, serde_json::Value> = by_name.collect();
        config.set("id2label", by_id);
        config.set("label2id", by_name);
    }
}
