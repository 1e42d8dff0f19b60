//! Damaged files of settings and configurations of models.

use serde_json::{Value, json};
use std::ffi::OsString;
use xtrain_fuzz::{JSON, Target};
use xtrain_models::{Config, HeadKind};

const TARGETS: &[Target] = &[Target {
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
}];

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

#[test]
fn damaged_input_is_refused_by_every_reader() {
    xtrain_fuzz::try_shortly(TARGETS);
}

/// Of `bin/soak fuzz`.
#[test]
#[ignore = "slow: ten seconds of each target, or what bin/soak fuzz asks for"]
fn soak() {
    xtrain_fuzz::soak(TARGETS);
}
