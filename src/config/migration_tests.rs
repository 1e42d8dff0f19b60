//! The pages `docs/migration.md`, what becomes of each setting of transformers' `TrainingArguments`
//! and example scripts, and `docs/command-lines.md`, of command lines as people write them. They are written from the flag table
//! and by the parser itself; to write them anew run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config reference_of`.

use super::command::{CommandName, TaskName};
use super::command_line::Parsed;
use super::error::{Origin, UsageError};
use super::fixture::Fixture;
use super::flags::{Flag, Flags, Support};
use super::lookup;
use std::fmt::Write;
use std::path::Path;

/// The fields of `TrainingArguments` of transformers 5.23 with their defaults.
const FIELDS: [(&str, Option<&str>); 114] = [
    ("output_dir", None),
    ("per_device_train_batch_size", Some("8")),
    ("num_train_epochs", Some("3.0")),
    ("max_steps", Some("-1")),
    ("learning_rate", Some("5e-05")),
    ("lr_scheduler_type", Some("linear")),
    ("lr_scheduler_kwargs", None),
    ("warmup_steps", Some("0")),
    ("optim", Some("adamw_torch")),
    ("optim_args", None),
    ("weight_decay", Some("0.0")),
    ("adam_beta1", Some("0.9")),
    ("adam_beta2", Some("0.999")),
    ("adam_epsilon", Some("1e-08")),
    ("optim_target_modules", None),
    ("gradient_accumulation_steps", Some("1")),
    ("average_tokens_across_devices", Some("True")),
    ("max_grad_norm", Some("1.0")),
    ("label_smoothing_factor", Some("0.0")),
    ("bf16", Some("False")),
    ("fp16", Some("False")),
    ("bf16_full_eval", Some("False")),
    ("fp16_full_eval", Some("False")),
    ("tf32", None),
    ("activation_checkpointing", None),
    ("activation_checkpointing_kwargs", None),
    ("gradient_checkpointing", None),
    ("gradient_checkpointing_kwargs", None),
    ("torch_compile", Some("False")),
    ("torch_compile_backend", None),
    ("torch_compile_mode", None),
    ("use_liger_kernel", Some("False")),
    ("liger_kernel_config", None),
    ("use_cache", Some("False")),
    ("neftune_noise_alpha", None),
    ("torch_empty_cache_steps", None),
    ("auto_find_batch_size", Some("False")),
    ("logging_strategy", Some("steps")),
    ("logging_steps", Some("500")),
    ("logging_first_step", Some("False")),
    ("log_on_each_node", Some("True")),
    ("logging_nan_inf_filter", Some("True")),
    ("include_num_input_tokens_seen", Some("no")),
    ("log_level", Some("passive")),
    ("log_level_replica", Some("warning")),
    ("disable_tqdm", None),
    ("report_to", Some("none")),
    ("run_name", None),
    ("project", Some("huggingface")),
    ("trackio_space_id", None),
    ("trackio_bucket_id", None),
    ("trackio_static_space_id", None),
    ("eval_strategy", Some("no")),
    ("eval_steps", None),
    ("eval_delay", Some("0")),
    ("per_device_eval_batch_size", Some("8")),
    ("prediction_loss_only", Some("False")),
    ("eval_on_start", Some("False")),
    ("eval_do_concat_batches", Some("True")),
    ("eval_use_gather_object", Some("False")),
    ("eval_accumulation_steps", None),
    ("include_for_metrics", None),
    ("batch_eval_metrics", Some("False")),
    ("save_only_model", Some("False")),
    ("save_strategy", Some("steps")),
    ("save_steps", Some("500")),
    ("save_on_each_node", Some("False")),
    ("save_total_limit", None),
    ("enable_jit_checkpoint", Some("False")),
    ("push_to_hub", Some("False")),
    ("hub_token", None),
    ("hub_private_repo", None),
    ("hub_model_id", None),
    ("hub_strategy", Some("every_save")),
    ("hub_always_push", Some("False")),
    ("hub_revision", None),
    ("load_best_model_at_end", Some("False")),
    ("metric_for_best_model", None),
    ("greater_is_better", None),
    ("ignore_data_skip", Some("False")),
    ("restore_callback_states_from_checkpoint", Some("False")),
    ("full_determinism", Some("False")),
    ("seed", Some("42")),
    ("data_seed", None),
    ("use_cpu", Some("False")),
    ("accelerator_config", None),
    ("parallelism_config", None),
    ("dataloader_drop_last", Some("False")),
    ("dataloader_num_workers", Some("0")),
    ("dataloader_pin_memory", Some("True")),
    ("dataloader_persistent_workers", Some("False")),
    ("dataloader_prefetch_factor", None),
    ("dataloader_multiprocessing_context", None),
    ("dataloader_in_order", Some("True")),
    ("remove_unused_columns", Some("True")),
    ("label_names", None),
    ("train_sampling_strategy", Some("random")),
    ("length_column_name", Some("length")),
    ("ddp_find_unused_parameters", None),
    ("ddp_bucket_cap_mb", None),
    ("ddp_broadcast_buffers", None),
    ("ddp_static_graph", None),
    ("ddp_backend", None),
    ("ddp_timeout", Some("1800")),
    ("fsdp", None),
    ("fsdp_config", None),
    ("deepspeed", None),
    ("debug", Some("")),
    ("skip_memory_metrics", Some("True")),
    ("do_train", Some("False")),
    ("do_eval", Some("False")),
    ("do_predict", Some("False")),
    ("resume_from_checkpoint", None),
    ("local_rank", Some("-1")),
];

/// The scripts, the command for each, and their own settings (of their releases since 4.20).
const SCRIPTS: [(&str, CommandName, &[&str]); 8] = [
    (
        "run_clm",
        CommandName::Train(TaskName::Clm),
        &[
            "model_name_or_path",
            "model_type",
            "config_overrides",
            "config_name",
            "tokenizer_name",
            "cache_dir",
            "use_fast_tokenizer",
            "model_revision",
            "token",
            "use_auth_token",
            "trust_remote_code",
            "dtype",
            "torch_dtype",
            "low_cpu_mem_usage",
            "dataset_name",
            "dataset_config_name",
            "train_file",
            "validation_file",
            "max_train_samples",
            "max_eval_samples",
            "streaming",
            "block_size",
            "overwrite_cache",
            "validation_split_percentage",
            "preprocessing_num_workers",
            "keep_linebreaks",
        ],
    ),
    (
        "run_mlm",
        CommandName::Train(TaskName::Mlm),
        &[
            "model_name_or_path",
            "model_type",
            "config_overrides",
            "config_name",
            "tokenizer_name",
            "cache_dir",
            "use_fast_tokenizer",
            "model_revision",
            "token",
            "use_auth_token",
            "trust_remote_code",
            "dtype",
            "low_cpu_mem_usage",
            "dataset_name",
            "dataset_config_name",
            "train_file",
            "validation_file",
            "overwrite_cache",
            "validation_split_percentage",
            "max_seq_length",
            "preprocessing_num_workers",
            "mlm_probability",
            "line_by_line",
            "pad_to_max_length",
            "max_train_samples",
            "max_eval_samples",
            "streaming",
        ],
    ),
    (
        "run_glue",
        CommandName::Train(TaskName::Cls),
        &[
            "task_name",
            "dataset_name",
            "dataset_config_name",
            "max_seq_length",
            "overwrite_cache",
            "pad_to_max_length",
            "max_train_samples",
            "max_eval_samples",
            "max_predict_samples",
            "train_file",
            "validation_file",
            "test_file",
            "model_name_or_path",
            "config_name",
            "tokenizer_name",
            "cache_dir",
            "use_fast_tokenizer",
            "model_revision",
            "token",
            "use_auth_token",
            "trust_remote_code",
            "ignore_mismatched_sizes",
            "metric_name",
            "do_regression",
        ],
    ),
    (
        "run_ner",
        CommandName::Train(TaskName::TokenCls),
        &[
            "model_name_or_path",
            "config_name",
            "tokenizer_name",
            "cache_dir",
            "model_revision",
            "token",
            "use_auth_token",
            "trust_remote_code",
            "ignore_mismatched_sizes",
            "task_name",
            "dataset_name",
            "dataset_config_name",
            "train_file",
            "validation_file",
            "test_file",
            "text_column_name",
            "label_column_name",
            "overwrite_cache",
            "preprocessing_num_workers",
            "max_seq_length",
            "pad_to_max_length",
            "max_train_samples",
            "max_eval_samples",
            "max_predict_samples",
            "label_all_tokens",
            "return_entity_level_metrics",
        ],
    ),
    (
        "dpo",
        CommandName::Train(TaskName::Dpo),
        &[
            "model_name_or_path",
            "dataset_name",
            "max_length",
            "truncation_mode",
            "padding_free",
            "pad_to_multiple_of",
            "precompute_ref_log_probs",
            "precompute_ref_batch_size",
            "loss_type",
            "loss_weights",
            "ld_alpha",
            "f_divergence_type",
            "f_alpha_divergence_coef",
            "label_smoothing",
            "beta",
            "use_weighting",
            "discopop_tau",
            "disable_dropout",
            "activation_offloading",
            "sync_ref_model",
            "ref_model_mixup_alpha",
            "ref_model_sync_steps",
            "router_aux_loss_coef",
            "model_init_kwargs",
            "pad_token",
        ],
    ),
    (
        "reward",
        CommandName::Train(TaskName::Reward),
        &[
            "model_name_or_path",
            "dataset_name",
            "max_length",
            "chat_template_path",
            "eos_token",
            "pad_token",
            "pad_to_multiple_of",
            "center_rewards_coefficient",
            "disable_dropout",
            "activation_offloading",
            "model_init_kwargs",
        ],
    ),
    (
        "kto",
        CommandName::Train(TaskName::Kto),
        &[
            "model_name_or_path",
            "dataset_name",
            "max_length",
            "loss_type",
            "beta",
            "desirable_weight",
            "undesirable_weight",
            "precompute_ref_log_probs",
            "disable_dropout",
            "sync_ref_model",
            "model_init_kwargs",
        ],
    ),
    (
        "trl sft",
        CommandName::Train(TaskName::Sft),
        &[
            "use_peft",
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_target_parameters",
            "lora_modules_to_save",
            "lora_task_type",
            "use_rslora",
            "use_dora",
            "load_in_4bit",
            "load_in_8bit",
            "bnb_4bit_quant_type",
            "use_bnb_nested_quant",
            "bnb_4bit_use_double_quant",
            "bnb_4bit_quant_storage",
            "bnb_4bit_compute_dtype",
            "target_modules",
            "modules_to_save",
            "exclude_modules",
            "bias",
            "lora_bias",
            "layers_to_transform",
            "layers_pattern",
            "rank_pattern",
            "alpha_pattern",
            "trainable_token_indices",
            "init_lora_weights",
            "ensure_weight_tying",
        ],
    ),
];

/// Programs whose settings have no table, and the command for each. What Axolotl's `train` and mlx_lm's
/// `lora` are given stands behind their names.
const OTHERS: [(&str, CommandName); 3] = [
    ("sft", CommandName::Train(TaskName::Sft)),
    ("mlx_lm.lora", CommandName::Train(TaskName::Sft)),
    ("axolotl", CommandName::Train(TaskName::Sft)),
];

/// Settings files as people have them for other programs.
const FILES: [(&str, &str); 5] = [
    (
        "sft.yaml",
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/Capybara\nlearning_rate: 2.0e-5\npacking: true\noutput_dir: sft\n",
    ),
    (
        "mlx.yaml",
        "model: \"gpt2\"\ntrain: true\ndata: data\nfine_tune_type: lora\noptimizer: adamw\nseed: 0\nnum_layers: 16\nbatch_size: 4\niters: 1000\n\
         val_batches: 25\nlearning_rate: 1e-5\nsteps_per_report: 10\nsteps_per_eval: 200\nresume_adapter_file: null\nadapter_path: adapters\n\
         save_every: 100\ntest: false\nmax_seq_length: 2048\ngrad_checkpoint: false\nlora_parameters:\n  rank: 8\n  scale: 20.0\n",
    ),
    (
        "axolotl.yml",
        "base_model: gpt2\nload_in_8bit: false\nstrict: false\ndatasets:\n  - path: chats.jsonl\n    type: chat_template\n\
         dataset_prepared_path: prepared\nval_set_size: 0.1\noutput_dir: out\nadapter: lora\nlora_model_dir:\nsequence_len: 2048\n\
         sample_packing: true\neval_sample_packing: true\npad_to_sequence_len: true\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\n\
         lora_target_linear: true\nwandb_project:\ngradient_accumulation_steps: 2\nmicro_batch_size: 2\nnum_epochs: 1\noptimizer: adamw_8bit\n\
         lr_scheduler: cosine\nlearning_rate: 0.0002\ntrain_on_inputs: false\nbf16: auto\ntf32: false\ngradient_checkpointing: true\n\
         logging_steps: 1\nflash_attention: true\nloss_watchdog_threshold: 5.0\nwarmup_steps: 10\nevals_per_epoch: 4\nsaves_per_epoch: 1\n\
         weight_decay: 0.0\nspecial_tokens:\n  pad_token: <|end_of_text|>\n",
    ),
    (
        "axolotl-qlora.yml",
        "base_model: gpt2\nload_in_4bit: true\nadapter: qlora\nchat_template: llama3\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\n\
         val_set_size: 0.0\nsequence_len: 4096\nlora_target_modules:\n  - c_attn\noptimizer: paged_adamw_8bit\nlr_scheduler: cosine\n\
         warmup_ratio: 0.1\nnum_epochs: 2\noutput_dir: out\n",
    ),
    (
        "axolotl-dpo.yml",
        "base_model: gpt2\nrl: dpo\ndatasets:\n  - path: argilla/distilabel-intel-orca-dpo-pairs\n    split: train\n    type: chatml\n\
         sequence_len: 1024\nmicro_batch_size: 1\nlearning_rate: 0.000005\noutput_dir: out\n",
    ),
];

/// Command lines of the scripts as documentation and people write them, one a line.
const COMMAND_LINES: &str = include_str!("snapshots/command_lines.txt");

const INTRODUCTION: &str = "# Coming from transformers

<!-- Written from src/config by `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config reference_of`. Do not edit by hand. -->

| there | here |
|---|---|
| `python run_clm.py FLAGS` | `xtrain train clm FLAGS` |
| `run_mlm.py`, `run_glue.py`, `run_ner.py` | `train mlm`, `train cls`, `train token-cls` |
| TRL 1.16's `sft.py`, `dpo.py`, `reward.py`, `kto.py` | `train sft`, `train dpo`, `train reward`, `train kto` |
| `run_clm.py settings.json`, `trl sft --config FILE.yaml` | `xtrain train clm settings.json`, `xtrain train sft --config FILE.yaml` |
| `torchrun --nproc_per_node 8 run_clm.py FLAGS` | `xtrain launch --nproc_per_node 8 -- train clm FLAGS` |
| SageMaker's `--mp_parameters` | the same, or the flags for the mesh that it becomes |
| settings files of `mlx_lm.lora` and Axolotl | other names: `xtrain train sft FILE.yml` answers each with the flag that does the same |

Every setting of these scripts is known, under the same name and with the same meaning and default; tables below have those that differ. [flags.md](flags.md) says what each does. Those without a
flag stand there under [Known names without a flag](flags.md#known-names-without-a-flag): they are accepted where they ask for what happens anyway, or for something that
no number depends on, and refused, with what to use instead, where the run would not be what was asked for. All refusals of a command line are
printed at once, with what is missing in the files that it names: columns, a model of the task's family, weights, a tokenizer.
[A hundred command lines](command-lines.md), as people write them, with the answer to each.

## What a run does differently

- **Losses in a log.** In `train clm` transformers counts the first label of each row, which predicts nothing, so its loss, eval_loss and
  grad_norm are (T-1)/T of those here, T the block size. With gradient accumulation its classifiers and regressions log the sum of
  the steps' losses, and clip its gradient; here it is the mean, as without accumulation.
- **Resuming.** A resumed run may have another number of steps, batch size or number of accumulation steps, as in transformers: what changed is printed, and the
  place in the data follows from the number of steps. A checkpoint of transformers' Trainer can't be resumed, since its optimizer is a Python object;
  `--model_name_or_path` starts from its weights.
- **`do_train`** must be given in transformers; here it is the default. `--do_eval` alone only evaluates, as in transformers; a note says so, and random weights are refused.
- **`tensor_parallel_degree` T** of `--mp_parameters`: SageMaker's library reads T batches in a tensor-parallel group unless `prescaled_batch` is true; here the T devices share one batch. A note
  names the batch size that has as many examples a step.
";

const COMMAND_LINES_INTRODUCTION: &str = "# A hundred command lines

<!-- Written from src/config by `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config reference_of`. Do not edit by hand. -->

Command lines of transformers' and TRL's scripts as documentation and people write them, each read by the parser: models and data sets are the Hub's.
";

/// Where a setting is something else here than in transformers, which has this default. A name
/// without a flag has an empty cell, which stays as it is when it gets one.
fn difference(flag: &Flag, name: &str, default: Option<&str>) -> String {
    let mut parts = Vec::new();
    if flag.is_built() && flag.name != name {
        parts.push(format!("its name is `{}`", flag.name));
    }
    let has_other = default.is_some_and(|default| !lookup::same(flag.default, default));
    if flag.is_built() && has_other {
        parts.push(match flag.default {
            "" => "no default".into(),
            own => format!("default `{own}`"),
        });
    }
    parts.join("; ")
}

/// The settings of a command, each with its default in transformers, if it has one: a table of those
/// that are something else here, and the names of the others.
fn settings<'n>(
    page: &mut String,
    command: impl Fn(&str) -> CommandName,
    settings: impl Iterator<Item = (&'n str, Option<&'n str>)>,
) {
    let (mut table, mut same) = (String::new(), Vec::new());
    for (name, default) in settings {
        let command = command(name);
        let flag = lookup::find(name, command);
        let flag = flag.unwrap_or_else(|| panic!("{} does not know {name}", command.words()));
        match difference(flag, name, default) {
            none if none.is_empty() => same.push(format!("`{name}`")),
            difference => {
                let _ = writeln!(table, "| `{name}` | {difference} |");
            }
        }
    }
    if !table.is_empty() {
        let _ = write!(page, "| Setting | Here |\n|---|---|\n{table}\n");
    }
    let _ = writeln!(page, "The same: {}.", same.join(", "));
}

/// A command line and what the parser makes of it.
struct Answered {
    line: &'static str,
    answer: Result<Vec<String>, UsageError>,
}

/// Reads all lines. Models and data sets are those of the Hub, which is not asked.
fn answers(fixture: &Fixture) -> Vec<Answered> {
    for (name, text) in FILES {
        fixture.write(name, text);
    }
    const CHAT: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"}]}\n";
    std::fs::create_dir_all(fixture.path("chat")).unwrap();
    for name in [
        "chats.jsonl",
        "more.jsonl",
        "chat/train.jsonl",
        "chat/valid.jsonl",
    ] {
        fixture.write(name, CHAT);
    }
    const PAIR: &str = "{\"prompt\": \"hi\", \"chosen\": \" ho\", \"rejected\": \" hu\"}\n";
    fixture.write("pairs.jsonl", PAIR);
    let lines = COMMAND_LINES.lines().filter(|line| !line.is_empty());
    let answer = |line: &'static str| {
        let (script, flags) = line.split_once(' ').expect("a script and its flags");
        let known = SCRIPTS.iter().map(|(name, command, _)| (*name, *command));
        let known = known.chain(OTHERS).find(|(name, _)| *name == script);
        let (_, command) = known.unwrap_or_else(|| panic!("{script}"));
        let here = fixture.words(&format!("{} {flags}", command.words()));
        let answer = match super::read(None, here) {
            Ok(Parsed::Flags(flags)) => Ok(flags.notes),
            Ok(Parsed::Text(_)) => panic!("{line} prints help"),
            Err(error) => Err(error),
        };
        Answered { line, answer }
    };
    lines.map(answer).collect()
}

/// `docs/migration.md`.
fn settings_page() -> String {
    let mut page = String::from(INTRODUCTION);
    page.push_str("\n## TrainingArguments of transformers 5.23\n\n");
    // Of these only tasks with labels predict.
    let command = |name: &str| match name {
        "do_predict" => CommandName::Train(TaskName::Cls),
        _ => CommandName::Train(TaskName::Clm),
    };
    settings(&mut page, command, FIELDS.iter().copied());
    for (script, command, names) in SCRIPTS {
        let _ = write!(page, "\n## {script}'s own\n\n");
        let names = names.iter().map(|name| (*name, None));
        settings(&mut page, |_| command, names);
    }
    page
}

/// `docs/command-lines.md`.
fn command_lines_page() -> String {
    let fixture = Fixture::new();
    let mut page = String::from(COMMAND_LINES_INTRODUCTION);
    for Answered { line, answer } in answers(&fixture) {
        let _ = write!(page, "\n```\n{line}\n```\n\n");
        match answer {
            Ok(notes) if notes.is_empty() => page.push_str("Runs.\n"),
            Ok(notes) => {
                page.push_str("Runs, with notes:\n\n");
                for note in notes {
                    let _ = writeln!(page, "- {}", fixture.relative(&note));
                }
            }
            Err(error) => {
                page.push_str("Refused:\n\n");
                for error in error.each() {
                    let hint = error.hint().map(|hint| format!(" ({hint})"));
                    let text = format!("{error}{}", hint.unwrap_or_default());
                    let _ = writeln!(page, "- {}", fixture.relative(&text));
                }
            }
        }
    }
    page
}

#[track_caller]
fn assert_is_up_to_date(name: &str, page: &str) {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let path = docs.join(name);
    if std::env::var_os("XTRAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is out of date: run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config reference_of`"
    );
}

#[test]
fn reference_of_migration_is_up_to_date() {
    assert_is_up_to_date("migration.md", &settings_page());
    assert_is_up_to_date("command-lines.md", &command_lines_page());
}

/// What the pages say of a setting is what the parser does with it.
#[test]
fn the_pages_agree_with_the_parser() {
    for (script, command, names) in SCRIPTS {
        let fields = FIELDS.iter().map(|(name, _)| *name);
        for name in fields.chain(names.iter().copied()) {
            let flag = lookup::find(name, command);
            let flag = flag.unwrap_or_else(|| panic!("{script} does not know {name}"));
            let mut flags = Flags::new(command);
            let taken = flags.take(flag, &["xyzzy".into()], Origin::CommandLine);
            let agrees = match (taken, flag.support) {
                (Err(UsageError::Refused { .. }), Support::Built(_)) => false,
                (_, Support::Built(_)) => flags.notes.is_empty(),
                (Ok(()), Support::Known { noted: None, .. }) => flags.notes.len() == 1,
                (Ok(()), Support::Instead(_)) => flag.name == "accelerator_config",
                (Err(UsageError::Refused { .. }), support) => {
                    !matches!(support, Support::Known { noted: None, .. })
                }
                (_, Support::Known { .. } | Support::Instead(_)) => false,
            };
            assert!(agrees, "{name}: {:?}", flags.notes);
        }
    }
}

/// The page differs from transformers' defaults only where it has to, and says so.
#[test]
fn differences_are_named() {
    let of = |name: &str, default| {
        let flag = lookup::find(name, CommandName::Train(TaskName::Clm)).unwrap();
        difference(flag, name, default)
    };
    assert_eq!(of("learning_rate", Some("5e-05")), "");
    assert_eq!(of("learning_rate", Some("1e-04")), "default `5e-5`");
    assert_eq!(of("bf16", Some("False")), "");
    let alias = of("activation_checkpointing", None);
    assert_eq!(alias, "its name is `gradient_checkpointing`");
    assert_eq!(of("torch_compile", Some("False")), "");
}

#[test]
fn a_dump_of_all_defaults_is_accepted_without_a_word() {
    for (_, command, _) in SCRIPTS {
        let mut flags = Flags::new(command);
        for (name, default) in FIELDS {
            let flag = lookup::find(name, command).unwrap();
            if let Some(default) = default {
                let taken = flags.take(flag, &[default.into()], Origin::CommandLine);
                assert_eq!(taken, Ok(()), "{name}");
            }
        }
        assert_eq!(flags.notes, Vec::<String>::new());
    }
}

#[test]
fn command_lines_as_people_write_them_run_or_say_all_that_is_wrong() {
    let fixture = Fixture::new();
    let answers = answers(&fixture);
    assert_eq!(answers.len(), 100);
    let refused = answers.iter().filter(|answered| answered.answer.is_err());
    assert!(refused.count() <= 42);
    for Answered { line, answer } in answers {
        for error in answer.err().iter().flat_map(UsageError::each) {
            // What is expected of a value stands in the message itself.
            let is_plain = matches!(
                error,
                UsageError::BadValue { .. } | UsageError::NoValue { .. }
            );
            assert!(error.hint().is_some() || is_plain, "{line}: {error}");
        }
    }
}
