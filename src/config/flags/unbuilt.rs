//! Names of TrainingArguments, run_clm, run_mlm and run_glue that xtrain knows but does not honour.
//! A value that describes what xtrain does anyway is accepted, so a complete dump of
//! TrainingArguments works; any other value is refused and the help sentence is the reason that the
//! user reads. When one of these is built, its row moves to `built.rs`.

use super::super::kind::Kind;
use super::{Commands, Flag, Section, Support};

const fn row(section: Section, name: &'static str, support: Support, help: &'static str) -> Flag {
    // Evaluation takes them as well, so that a training run's settings are answered there in the
    // same way.
    let commands = Commands::TRAIN
        .and(Commands::COMPILE)
        .and(Commands::FIT)
        .and(Commands::EVAL);
    Flag {
        name,
        aliases: &[],
        kind: Kind::Anything,
        default: "",
        help,
        commands,
        section,
        support,
        positional: false,
        short: None,
    }
}

const fn only(
    section: Section,
    name: &'static str,
    accepted: &'static [&'static str],
    help: &'static str,
) -> Flag {
    row(section, name, Support::Only(accepted), help)
}

const fn no_effect(section: Section, name: &'static str, help: &'static str) -> Flag {
    row(section, name, Support::NoEffect, help)
}

const LANGUAGE_MODELS: Commands = Commands::CLM.and(Commands::MLM);
const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];
const NONE: &[&str] = &["", "none", "false"];

#[rustfmt::skip] // A table.
pub const FLAGS: &[Flag] = &[
    // Precision and memory.
    only(Section::Optimizer, "fp16_opt_level", &["O1"], "there is one form of mixed precision, which is O1's: master weights and moments stay in float32"),
    only(Section::Optimizer, "fp16_backend", &["auto"], "mixed precision is part of the compiled graph; there are no backends to choose from"),
    only(Section::Optimizer, "half_precision_backend", &["auto"], "mixed precision is part of the compiled graph; there are no backends to choose from"),
    only(Section::Optimizer, "gradient_checkpointing_kwargs", NONE, "they are torch.utils.checkpoint's; see gradient_checkpointing"),
    only(Section::Optimizer, "activation_checkpointing_kwargs", NONE, "they are torch.utils.checkpoint's; see gradient_checkpointing"),
    only(Section::Optimizer, "scan_layers", FALSE, "layers are compiled one after the other; XLA compiles equal kernels once"),
    only(Section::Optimizer, "auto_find_batch_size", FALSE, "xtrain finds the batch size before the run, not by failing in it: use --per_device_train_batch_size auto"),
    only(Section::Model, "torch_dtype", &["", "none", "auto", "float32"], "weights are held in float32"),
    only(Section::Model, "low_cpu_mem_usage", FALSE, "weights are mapped from the file; there is nothing to switch"),
    only(Section::Model, "use_cache", FALSE, "training keeps no past keys and values"),

    // Optimizer.
    only(Section::Optimizer, "adafactor", FALSE, "Adafactor is not built; see optim"),
    only(Section::Optimizer, "optim_args", NONE, "optimizers take no further arguments; see adam_beta1, adam_beta2 and adam_epsilon"),
    only(Section::Optimizer, "optim_target_modules", NONE, "all parameters are trained"),
    only(Section::Optimizer, "lr_scheduler_kwargs", NONE, "the schedules take no further arguments"),
    only(Section::Optimizer, "label_smoothing_factor", &["0", "0.0"], "label smoothing is not built"),
    only(Section::Optimizer, "neftune_noise_alpha", NONE, "NEFTune is not built"),
    only(Section::Optimizer, "average_tokens_across_devices", TRUE, "the loss is always divided by the number of tokens over all devices and microbatches"),
    only(Section::Optimizer, "use_liger_kernel", FALSE, "the graph is compiled as a whole; there are no kernels to replace"),
    only(Section::Optimizer, "liger_kernel_config", NONE, "the graph is compiled as a whole; there are no kernels to replace"),
    only(Section::Optimizer, "full_determinism", &["true", "false"], "runs are always deterministic"),

    // Devices and processes.
    only(Section::Run, "no_cuda", NONE, "choose the device with --device"),
    only(Section::Run, "use_cpu", NONE, "choose the device with --device"),
    only(Section::Run, "use_mps_device", FALSE, "choose the device with --device"),
    only(Section::Run, "use_ipex", FALSE, "choose the device with --device"),
    only(Section::Run, "xpu_backend", NONE, "choose the device with --device"),
    only(Section::Run, "local_rank", &["-1", "0"], "which process this is comes from the environment that the launcher sets"),
    only(Section::Run, "ddp_backend", NONE, "collectives are the device's own: NCCL, Neuron's, on the CPU Gloo"),
    only(Section::Run, "ddp_timeout", &["1800"], "a process that hangs is found by its heartbeat; see heartbeat_timeout of xtrain launch"),
    only(Section::Run, "ddp_bucket_cap_mb", NONE, "it is called gradient_bucket_mb here"),
    only(Section::Run, "ddp_find_unused_parameters", NONE, "gradients are part of the compiled graph; there are no unused parameters to find"),
    only(Section::Run, "ddp_broadcast_buffers", NONE, "the models have no buffers"),
    only(Section::Run, "ddp_static_graph", NONE, "the graph is always static"),
    only(Section::Run, "parallelism_config", NONE, "it drives accelerate; see data_parallel"),
    only(Section::Run, "deepspeed", NONE, "DeepSpeed drives PyTorch; xtrain has no use for its file"),
    only(Section::Run, "fsdp", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only(Section::Run, "fsdp_config", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only(Section::Run, "fsdp_min_num_params", &["0"], "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only(Section::Run, "fsdp_transformer_layer_cls_to_wrap", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only(Section::Run, "accelerator_config", NONE, "accelerate drives PyTorch; xtrain has no use for its settings"),
    only(Section::Run, "tpu_num_cores", NONE, "TPUs are not supported"),
    only(Section::Run, "tpu_metrics_debug", FALSE, "TPUs are not supported"),
    only(Section::Run, "torch_compile", NONE, "xtrain always compiles the whole step; there is nothing to switch on"),
    only(Section::Run, "torch_compile_backend", NONE, "xtrain always compiles the whole step with XLA"),
    only(Section::Run, "torch_compile_mode", NONE, "xtrain always compiles the whole step with XLA"),
    only(Section::Run, "torchdynamo", NONE, "xtrain always compiles the whole step with XLA"),
    only(Section::Run, "jit_mode_eval", FALSE, "evaluation is always compiled"),
    Flag { commands: LANGUAGE_MODELS, ..only(Section::Run, "do_predict", FALSE, "only classifiers predict; see also `xtrain generate`") },
    only(Section::Run, "debug", NONE, "there are no debug modes by that name"),
    no_effect(Section::Run, "torch_empty_cache_steps", "memory is planned when the graph is compiled"),

    // Model and Hub.
    only(Section::Model, "use_fast_tokenizer", TRUE, "only fast tokenizers (tokenizer.json) are read"),
    only(Section::Model, "trust_remote_code", FALSE, "model code is never fetched or run"),
    only(Section::Model, "use_auth_token", NONE, "it is called token now"),
    only(Section::Checkpoints, "push_to_hub", FALSE, "the output directory can be uploaded as it is when the run has ended"),
    only(Section::Checkpoints, "push_to_hub_model_id", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "push_to_hub_organization", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "push_to_hub_token", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "hub_model_id", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "hub_strategy", &["every_save"], "xtrain does not upload"),
    only(Section::Checkpoints, "hub_token", &["", "none", "false", "<HUB_TOKEN>"], "xtrain does not upload"),
    only(Section::Checkpoints, "hub_private_repo", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "hub_always_push", FALSE, "xtrain does not upload"),
    only(Section::Checkpoints, "hub_revision", NONE, "xtrain does not upload"),
    only(Section::Checkpoints, "enable_jit_checkpoint", FALSE, "SIGTERM and SIGINT always save a checkpoint; there is nothing to switch on"),

    // Data.
    Flag { commands: Commands::EVAL, ..only(Section::Data, "streaming", FALSE, "an evaluation reads its set once, and keeps it tokenized and memory-mapped") },
    only(Section::Data, "keep_linebreaks", TRUE, "line breaks are always kept"),
    only(Section::Data, "group_by_length", FALSE, "examples are not sorted by length; see pad_to_bucket"),
    only(Section::Data, "length_column_name", &["length"], "examples are not sorted by length; see pad_to_bucket"),
    only(Section::Data, "ignore_data_skip", FALSE, "a resumed run always goes on at its exact place in the data"),
    no_effect(Section::Data, "dataloader_pin_memory", "batches are uploaded by the runtime"),
    no_effect(Section::Data, "dataloader_persistent_workers", "workers always live as long as the run"),
    only(Section::Data, "dataloader_prefetch_factor", NONE, "how far to read ahead follows from dataloader_num_workers"),
    only(Section::Data, "dataloader_multiprocessing_context", NONE, "workers are threads"),
    only(Section::Data, "dataloader_in_order", TRUE, "batches always come in order"),
    only(Section::Data, "train_sampling_strategy", &["random"], "training examples are always shuffled"),
    only(Section::Data, "split_batches", NONE, "batch sizes are per device"),
    no_effect(Section::Data, "remove_unused_columns", "columns that no flag names are not read"),
    only(Section::Data, "label_names", NONE, "labels come from the text or from label_column_name"),
    only(Section::Data, "past_index", &["-1"], "past states are not carried from batch to batch"),
    only(Section::Batches, "per_gpu_train_batch_size", NONE, "the name is per_device_train_batch_size"),
    only(Section::Batches, "per_gpu_eval_batch_size", NONE, "the name is per_device_eval_batch_size"),

    // Logging.
    only(Section::Logging, "report_to", NONE, "records go to standard output and to log.jsonl in output_dir; use --report_to none"),
    only(Section::Logging, "logging_dir", NONE, "records go to log.jsonl in output_dir"),
    only(Section::Logging, "logging_nan_inf_filter", TRUE, "a loss that is not finite stops the run"),
    only(Section::Logging, "log_level", &["passive", "info", "warning"], "there is one level of messages"),
    only(Section::Logging, "log_level_replica", &["passive", "info", "warning"], "there is one level of messages"),
    only(Section::Logging, "log_on_each_node", TRUE, "rank 0 logs for all processes"),
    only(Section::Logging, "include_tokens_per_second", NONE, "tokens per second are always in the step line"),
    only(Section::Logging, "include_num_input_tokens_seen", &["", "no", "none", "false"], "tokens are counted in the step line"),
    only(Section::Logging, "skip_memory_metrics", TRUE, "memory is reported by --dry_run and bench"),
    only(Section::Logging, "mp_parameters", NONE, "it drives SageMaker's library; see data_parallel"),
    no_effect(Section::Logging, "run_name", "only reporting services show it"),
    no_effect(Section::Logging, "project", "only reporting services show it"),
    only(Section::Logging, "trackio_space_id", NONE, "records go to standard output and to log.jsonl in output_dir"),
    only(Section::Logging, "trackio_bucket_id", NONE, "records go to standard output and to log.jsonl in output_dir"),
    only(Section::Logging, "trackio_static_space_id", NONE, "records go to standard output and to log.jsonl in output_dir"),

    // Checkpoints and evaluation.
    only(Section::Checkpoints, "save_safetensors", TRUE, "weights are always written as safetensors"),
    only(Section::Checkpoints, "save_only_model", FALSE, "a checkpoint always holds what an exact resume needs"),
    only(Section::Checkpoints, "save_on_each_node", FALSE, "rank 0 saves for all processes, into a directory that all machines share"),
    only(Section::Checkpoints, "restore_callback_states_from_checkpoint", FALSE, "there are no callbacks to restore"),
    only(Section::Evaluation, "prediction_loss_only", NONE, "evaluation always computes all of the task's metrics"),
    only(Section::Evaluation, "eval_accumulation_steps", NONE, "evaluation keeps no predictions"),
    only(Section::Evaluation, "eval_delay", &["0", "0.0"], "delayed evaluation is not built"),
    only(Section::Evaluation, "eval_on_start", FALSE, "evaluation before the first step is not built; run `xtrain eval`"),
    only(Section::Evaluation, "eval_do_concat_batches", TRUE, "evaluation keeps no predictions"),
    only(Section::Evaluation, "eval_use_gather_object", FALSE, "evaluation keeps no predictions"),
    only(Section::Evaluation, "batch_eval_metrics", FALSE, "metrics are always summed up batch by batch"),
    only(Section::Evaluation, "include_inputs_for_metrics", FALSE, "no metric needs the inputs"),
    only(Section::Evaluation, "include_for_metrics", NONE, "no metric needs more"),
];
