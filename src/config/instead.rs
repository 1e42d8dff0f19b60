//! What stands in the place of settings that drive another library (DeepSpeed's file, PyTorch's FSDP
//! and its relatives), and of values that only other programs have. Each function names the flags that
//! do the same, or nothing if there is nothing to name.

use serde_json::Value;
use std::path::Path;
use xtrain_checkpoint::files;
use xtrain_graphs::optim::{ADAMW, ADAMW_8BIT, LION_8BIT, OPTIMIZERS};

const ZERO_1: &str = "--shard_optimizer_state (ZeRO-1)";
const ZERO_3: &str = "--shard_parallel N (ZeRO-3/FSDP on N devices)";

fn is_set(value: &str) -> bool {
    !["", "none", "false", "null", "[]", "{}"].contains(&value.to_ascii_lowercase().as_str())
}

/// The options of `--fsdp`, or the sharding strategy of a `--sharded_ddp`.
pub fn of_fsdp(value: &str) -> Option<String> {
    if !is_set(value) {
        return None;
    }
    let has = |option: &str| {
        value
            .split([' ', ',', '"', '[', ']'])
            .any(|word| word == option)
    };
    Some(if has("shard_grad_op") {
        ZERO_1.into()
    } else if has("hybrid_shard") || has("hybrid_shard_zero2") {
        "--shard_parallel N with --data_parallel M (groups of N devices)".into()
    } else if has("no_shard") {
        "--data_parallel N".into()
    } else {
        ZERO_3.into()
    })
}

/// Fairscale's `--sharded_ddp`.
pub fn of_sharded_ddp(value: &str) -> Option<String> {
    let has = |option: &str| value.split([' ', ',']).any(|word| word == option);
    is_set(value).then(|| if has("zero_dp_3") { ZERO_3 } else { ZERO_1 }.to_string())
}

/// `--accelerator_config`, of which only this changes what a run computes.
pub fn of_accelerate(value: &str) -> Option<String> {
    let config = object(value);
    let splits = config.is_some_and(|config| config["split_batches"] == true);
    splits.then(|| "--per_device_train_batch_size, the part of one device,".into())
}

/// `--deepspeed`: a file, or its JSON itself.
pub fn of_deepspeed(value: &str) -> Option<String> {
    if !is_set(value) {
        return None;
    }
    let Some(config) = object(value) else {
        return Some(format!(
            "{ZERO_1} or {ZERO_3}, --bf16 or --fp16, --max_grad_norm"
        ));
    };
    let mut flags: Vec<String> = Vec::new();
    match config["zero_optimization"]["stage"].as_u64() {
        Some(1 | 2) => flags.push(ZERO_1.into()),
        Some(3) => flags.push(ZERO_3.into()),
        _ => {}
    }
    for part in ["bf16", "fp16"] {
        if config[part]["enabled"] == true {
            flags.push(format!("--{part}"));
        }
    }
    if let Some(norm) = config["gradient_clipping"].as_f64() {
        flags.push(format!("--max_grad_norm {norm}"));
    }
    for (key, flag) in [
        (
            "train_micro_batch_size_per_gpu",
            "per_device_train_batch_size",
        ),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ] {
        if let Some(count) = config[key].as_u64() {
            flags.push(format!("--{flag} {count}"));
        }
    }
    if let Some(rate) = config["optimizer"]["params"]["lr"].as_f64() {
        flags.push(format!("--learning_rate {rate}"));
    }
    if config["activation_checkpointing"].is_object() {
        flags.push("--gradient_checkpointing".into());
    }
    if flags.is_empty() {
        flags.push("--data_parallel N".into());
    }
    Some(flags.join(", "))
}

/// For a value that is none of the flag's words: the one that does the same.
pub fn of_value(name: &str, value: &str) -> Option<String> {
    let value = value.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| value.contains(part));
    match name {
        "optim" => {
            let base = OPTIMIZERS.iter().find(|kind| value.contains(kind.name));
            let base = match base {
                Some(kind) => kind.choices[0],
                None => value.contains("adam").then_some(ADAMW.choices[0])?,
            };
            let narrow = match base {
                _ if has(&["4bit"]) => Some(ADAMW_8BIT.choices[1]),
                _ if !has(&["8bit"]) => None,
                "adamw_torch" => Some(ADAMW_8BIT.choices[1]),
                "lion_32bit" => Some(LION_8BIT.choices[0]),
                _ => None,
            };
            if let Some(narrow) = narrow {
                Some(format!("use {narrow}, whose state is in 8 bits"))
            } else if has(&["8bit", "bnb", "paged"]) {
                Some(format!(
                    "use {base}: its state is float32; --shard_optimizer_state shards it over --data_parallel devices"
                ))
            } else if has(&[
                "galore",
                "apollo",
                "lomo",
                "schedule_free",
                "ademamix",
                "grok",
                "stable",
                "anyprecision",
            ]) {
                Some(format!("use {base}, the nearest of them"))
            } else {
                None
            }
        }
        "attn_implementation" if has(&["sdpa", "flash", "flex", "paged"]) => Some(
            "leave `attn_implementation` out: attention is fused wherever the device can".into(),
        ),
        "device" => of_device(&value),
        "torch_dtype" if value == "float16" => Some(
            "use --fp16, mixed precision with float32 weights; or bfloat16, whose range is float32's".into(),
        ),
        _ => None,
    }
}

/// For a name of a device that other programs have.
fn of_device(value: &str) -> Option<String> {
    let is = |names: &[&str]| names.iter().any(|name| value.starts_with(name));
    if let Some(number) = value.strip_prefix("cuda:") {
        Some(format!("use cuda, with --visible_devices {number}"))
    } else if is(&[
        "gpu", "nvidia", "h100", "h200", "a100", "a10g", "b200", "v100", "l4",
    ]) {
        Some("use cuda, for NVIDIA cards".into())
    } else if is(&["trn", "trainium", "inf1", "inf2", "inferentia", "xla"]) {
        Some("use neuron, for AWS Trainium and Inferentia".into())
    } else if is(&[
        "mps", "metal", "tpu", "xpu", "hpu", "npu", "rocm", "hip", "amd",
    ]) {
        Some("there is no support for it; cpu runs everywhere".into())
    } else {
        None
    }
}

/// A JSON object, or the file that holds one.
fn object(value: &str) -> Option<Value> {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    let file = || files::read_piped(Path::new(value), files::SETTINGS).ok();
    let from_file = || read(std::str::from_utf8(&file()?).ok()?);
    read(value).or_else(from_file).filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_the_flags_that_do_the_same() {
        for nothing in ["", "false", "None", "[]"] {
            assert_eq!(of_fsdp(nothing), None, "{nothing}");
        }
        for (value, flag) in [
            ("full_shard auto_wrap", "--shard_parallel N"),
            ("true", "--shard_parallel N"),
            ("shard_grad_op", "--shard_optimizer_state"),
            ("hybrid_shard", "--data_parallel M"),
            ("no_shard", "--data_parallel N"),
        ] {
            assert!(of_fsdp(value).unwrap().contains(flag), "{value}");
        }
        assert_eq!(of_sharded_ddp("simple").as_deref(), Some(ZERO_1));
        assert_eq!(of_accelerate("{\"split_batches\": false}"), None);
        assert!(of_accelerate("{\"split_batches\": true}").is_some());
    }

    #[test]
    fn a_deepspeed_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ds.json");
        let text = r#"{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "fp16": {"enabled": "auto"},
            "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4}"#;
        std::fs::write(&path, text).unwrap();
        let expected =
            format!("{ZERO_3}, --bf16, --max_grad_norm 0.5, --gradient_accumulation_steps 4");
        assert_eq!(
            of_deepspeed(&path.display().to_string()),
            Some(expected.clone())
        );
        assert_eq!(of_deepspeed(text), Some(expected));
        assert!(
            of_deepspeed("missing.json")
                .unwrap()
                .contains("--shard_parallel")
        );
    }
}
