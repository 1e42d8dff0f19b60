//! Damaged files of settings and configurations of models.

use serde_json::{Value, json};
use std::ffi::OsString;
use xtrain_fuzz::{JSON, Target};
use xtrain_models::{Config, HeadKind, LoraConfig};

const TARGETS: &[Target] = &[
    Target {
        name: "adapter",
        file: "adapter_config.json",
        seeds: adapters,
        words: JSON,
        read: |_, bytes| {
            let Ok(Value::Object(values)) = serde_json::from_slice(bytes) else {
                return;
            };
            let Ok(config) = LoraConfig::from_json(&values, "adapter_config.json") else {
                return;
            };
            let base = xtrain_models::build(small(), HeadKind::CausalLm);
            if let Ok(adapted) = xtrain_models::adapt(base.expect("it is a model"), config) {
                let adapter = adapted.adapter().expect("it was added");
                // What is written is read again.
                let written = adapter.config_file();
                let again = LoraConfig::from_json(&written, "adapter_config.json");
                again.expect("an adapter that can be used can be saved");
            }
        },
    },
    Target {
        name: "config",
        file: "config.json",
        seeds: configurations,
        words: JSON,
        read: |path, bytes| {
            let typed: Vec<OsString> = ["xtrain", "train", "clm", "--config"]
                .into_iter()
                .map(OsString::from)
                .chain([path.into()])
                .collect();
            let _ = crate::from_args(typed);
            if let Ok(Value::Object(values)) = serde_json::from_slice(bytes) {
                let config = Config::new(values, "config.json");
                if let Ok(head) = HeadKind::of(&config) {
                    let _ = xtrain_models::build(config, head);
                }
            }
        },
    },
];

/// A model to which adapters are added.
fn small() -> Config {
    let mut config = xtrain_models::preset("gpt2").expect("it is a preset");
    for (key, value) in [
        ("n_layer", 2),
        ("n_embd", 16),
        ("n_head", 2),
        ("n_positions", 16),
        ("vocab_size", 64),
    ] {
        config.set(key, value);
    }
    config
}

/// What PEFT writes, in several forms.
fn adapters() -> Vec<Vec<u8>> {
    let seeds = [
        json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["c_attn"]}),
        json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": r".*\.h\.\d\.attn\.c_(attn|proj)", "exclude_modules": ["c_fc"],
            "bias": "lora_only", "use_rslora": true, "task_type": "CAUSAL_LM"}),
        json!({"peft_type": "LORA", "target_modules": "all-linear", "use_dora": true, "lora_dropout": 0.1, "fan_in_fan_out": true,
            "rank_pattern": {"c_fc": 3}, "alpha_pattern": {"c_proj": 7.5}, "init_lora_weights": "gaussian"}),
        json!({"peft_type": "LORA", "r": 2, "target_modules": ["c_attn"], "layers_to_transform": [0, 1], "layers_pattern": "h",
            "modules_to_save": ["ln_f"], "trainable_token_indices": {"wte": [1, 5]}}),
        json!({"peft_type": "LORA", "r": 2, "target_modules": ["wte", "lm_head"], "ensure_weight_tying": true}),
    ];
    seeds.map(|seed| seed.to_string().into_bytes()).into()
}

fn configurations() -> Vec<Vec<u8>> {
    let run = json!({"learning_rate": 0.001, "max_steps": 1, "block_size": 8, "bf16": false, "train_file": "a.txt"});
    let models = xtrain_models::MODEL_TYPES.iter();
    models
        .filter_map(|name| Some((name, xtrain_models::default_config(name).ok()?)))
        .map(|(name, config)| {
            let mut values = config.values().clone();
            values.insert("model_type".into(), (*name).into());
            for (key, value) in &mut values {
                // Small, so that most damage leaves a model that is quickly built.
                if value.as_u64().is_some_and(|size| size > 64) && !key.ends_with("_id") {
                    *value = 64.into();
                }
            }
            Value::Object(values).to_string().into_bytes()
        })
        .chain([run.to_string().into_bytes()])
        .collect()
}

xtrain_fuzz::tests!(TARGETS);
