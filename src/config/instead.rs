//! What stands in the place of settings that drive another library (DeepSpeed's file, PyTorch's FSDP
//! and its relatives), of values that only PyTorch has, and of names that other scripts and launchers
//! have. Each function names the flags that do the same, or nothing if there is nothing to name.

use crate::checkpoint::files;
use serde_json::Value;
use std::path::Path;
use xtrain_graphs::optim::{ADAMW, OPTIMIZERS};

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
            if has(&["8bit", "4bit", "bnb", "paged"]) {
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
        "torch_dtype" if value == "float16" => Some(
            "use --fp16, mixed precision with float32 weights; or bfloat16, whose range is float32's".into(),
        ),
        _ => None,
    }
}

/// Names of older scripts of transformers, of its relatives and of launchers, with what does the
/// same here.
const OF_OTHERS: &[(&[&str], &str)] = &[
    (
        &["evaluate_during_training"],
        "use --eval_strategy steps instead",
    ),
    (&["evaluate"], "use --do_eval instead"),
    (&["mlm"], "use `xtrain train mlm` instead"),
    (&["wwm"], "use --whole_word_mask instead"),
    (
        &["data_dir", "remove_splits"],
        "use --train_file, --validation_file and --test_file instead",
    ),
    (
        &["mixed_precision", "amp", "use_amp", "half_precision"],
        "use --bf16 or --fp16 instead",
    ),
    (
        &["n_gpu", "num_gpus", "multi_gpu", "num_cores"],
        "use --data_parallel N instead",
    ),
    (
        &["num_processes", "num_machines", "machine_rank", "nprocs"],
        "use `xtrain launch --nproc_per_node N -- train ...` instead",
    ),
    (
        &["xla", "use_xla", "tpu", "use_tpu", "torch_xla"],
        "leave it out: every step is compiled by XLA",
    ),
    (
        &[
            "use_peft",
            "use_lora",
            "lora_r",
            "lora_rank",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "target_modules",
        ],
        "leave it out: all parameters are trained",
    ),
    (
        &[
            "load_in_8bit",
            "load_in_4bit",
            "quantization_config",
            "bnb_4bit_compute_dtype",
            "bnb_4bit_quant_type",
        ],
        "leave it out or, for weights of half the size, use --torch_dtype bfloat16",
    ),
    (
        &["shuffle_train_dataset", "shuffle_seed"],
        "leave it out: training examples are always shuffled, by --seed or --data_seed",
    ),
    (
        &["column_delimiter"],
        "leave it out: files named .csv are split at commas, .tsv at tabs",
    ),
    (
        &[
            "wandb_project",
            "wandb_run_name",
            "use_wandb",
            "with_tracking",
        ],
        "use --report_to tensorboard or mlflow, and --run_name, instead",
    ),
    (&["num_warmup_steps"], "use --warmup_steps instead"),
    (&["checkpointing_steps"], "use --save_steps instead"),
    (&["max_train_steps"], "use --max_steps instead"),
];

/// The same for launchers: torchrun, accelerate, deepspeed.
const OF_LAUNCHERS: &[(&[&str], &str)] = &[
    (
        &[
            "master_port",
            "main_process_port",
            "rdzv_backend",
            "rdzv_id",
            "rdzv_conf",
            "standalone",
            "local_addr",
        ],
        "leave it out: processes of one machine find each other, those of several by --rdzv_endpoint HOST:PORT",
    ),
    (
        &[
            "hostfile",
            "include",
            "exclude",
            "gpu_ids",
            "num_cpu_threads_per_process",
        ],
        "leave it out: start it on each machine, with --nnodes N --node_rank I --rdzv_endpoint HOST:PORT",
    ),
    (
        &[
            "config_file",
            "multi_gpu",
            "tpu",
            "cpu",
            "use_cpu",
            "mixed_precision",
            "use_fsdp",
            "use_deepspeed",
            "deepspeed_config_file",
            "zero_stage",
            "fsdp_sharding_strategy",
            "dynamo_backend",
        ],
        "leave it out: what the processes run on and how are flags of the command after --, as in `-- train clm --device cuda --bf16 --shard_parallel 8`",
    ),
    (
        &[
            "module",
            "m",
            "no_python",
            "log_dir",
            "redirects",
            "tee",
            "monitor_interval",
            "start_method",
            "role",
        ],
        "leave it out: output of all processes comes together, and the launcher watches them by itself",
    ),
];

/// The programs of transformers, PyTorch and accelerate, with the commands that do the same.
const OF_PROGRAMS: &[(&[&str], &str)] = &[
    (
        &[
            "run_clm.py",
            "run_clm_no_trainer.py",
            "run_language_modeling.py",
        ],
        "`xtrain train clm`",
    ),
    (
        &["run_mlm.py", "run_mlm_no_trainer.py", "run_mlm_wwm.py"],
        "`xtrain train mlm`",
    ),
    (
        &[
            "run_glue.py",
            "run_glue_no_trainer.py",
            "run_xnli.py",
            "run_classification.py",
        ],
        "`xtrain train cls`",
    ),
    (
        &["run_ner.py", "run_ner_no_trainer.py"],
        "`xtrain train token-cls`",
    ),
    (&["run_generation.py"], "`xtrain generate`"),
    (
        &[
            "torchrun",
            "accelerate",
            "deepspeed",
            "xla_spawn.py",
            "neuron_parallel_compile",
        ],
        "`xtrain launch --nproc_per_node N -- train ...` or, to compile ahead, `xtrain compile ...`",
    ),
    (
        &["python", "python3"],
        "a command: `xtrain --help` lists them",
    ),
];

/// For a program's name, perhaps with its path: the command that does the same.
pub fn of_program(word: &str) -> Option<&'static str> {
    let name = Path::new(word).file_name()?.to_str()?;
    let found = OF_PROGRAMS.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, command)| *command)
}

/// For a flag that only launchers of PyTorch have: what does the same here.
pub fn of_launcher(name: &str) -> Option<&'static str> {
    let name = name.replace('-', "_");
    let found = OF_LAUNCHERS
        .iter()
        .find(|(names, _)| names.contains(&name.as_str()));
    found.map(|(_, what)| *what)
}

/// For a name that only other programs have: what does the same here.
pub fn of_name(name: &str) -> Option<&'static str> {
    let name = name.replace('-', "_");
    let found = OF_OTHERS
        .iter()
        .find(|(names, _)| names.contains(&name.as_str()));
    found.map(|(_, what)| *what)
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
