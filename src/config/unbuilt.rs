//! Names of TrainingArguments, run_clm, run_mlm and run_glue that xtrain knows but does not honour.
//! A value that describes what xtrain does anyway is accepted, so a complete dump of
//! TrainingArguments works; any other value is refused and the help sentence is the reason that the
//! user reads. When one of these is built, it moves to `flags.rs`.

use super::command::Commands;
use super::command::sets::{EVAL, LANGUAGE_MODELS, TRAIN_EVAL};
use super::flags::{Flag, Support};
use super::kind::{Anything, KindInfo};

const fn row(name: &'static str, support: Support, help: &'static str) -> Flag {
    Flag {
        name,
        aliases: &[],
        kind: KindInfo::of::<Anything>(),
        default: "",
        help,
        // Evaluation takes them as well, so that a training run's settings are answered there in
        // the same way.
        commands: &[TRAIN_EVAL],
        section: None,
        support,
        short: None,
    }
}

const fn only(name: &'static str, accepted: &'static [&'static str], help: &'static str) -> Flag {
    row(name, Support::Only(accepted), help)
}

const fn no_effect(name: &'static str, help: &'static str) -> Flag {
    row(name, Support::NoEffect, help)
}

/// The same for some commands only, because the others have built it.
const fn of(commands: &'static [Commands], flag: Flag) -> Flag {
    Flag { commands, ..flag }
}

const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];
const NONE: &[&str] = &["", "none", "false"];

#[rustfmt::skip] // A table.
pub static UNBUILT: &[Flag] = &[
    // Precision and memory.
    only("fp16_opt_level", &["O1"], "there is one form of mixed precision, which is O1's: master weights and moments stay in float32"),
    only("fp16_backend", &["auto"], "mixed precision is part of the compiled graph; there are no backends to choose from"),
    only("half_precision_backend", &["auto"], "mixed precision is part of the compiled graph; there are no backends to choose from"),
    only("gradient_checkpointing_kwargs", NONE, "they are torch.utils.checkpoint's; see gradient_checkpointing"),
    only("activation_checkpointing_kwargs", NONE, "they are torch.utils.checkpoint's; see gradient_checkpointing"),
    only("scan_layers", FALSE, "layers are compiled one after the other; XLA compiles equal kernels once"),
    only("auto_find_batch_size", FALSE, "xtrain finds the batch size before the run, not by failing in it: use --per_device_train_batch_size auto"),
    only("torch_dtype", &["", "none", "auto", "float32"], "weights are held in float32"),
    only("low_cpu_mem_usage", FALSE, "weights are mapped from the file; there is nothing to switch"),
    only("use_cache", FALSE, "training keeps no past keys and values"),

    // Optimizer.
    only("adafactor", FALSE, "Adafactor is not built; see optim"),
    only("optim_args", NONE, "optimizers take no further arguments; see adam_beta1, adam_beta2 and adam_epsilon"),
    only("optim_target_modules", NONE, "all parameters are trained"),
    only("lr_scheduler_kwargs", NONE, "the schedules take no further arguments"),
    only("label_smoothing_factor", &["0", "0.0"], "label smoothing is not built"),
    only("neftune_noise_alpha", NONE, "NEFTune is not built"),
    only("average_tokens_across_devices", TRUE, "the loss is always divided by the number of tokens over all devices and microbatches"),
    only("use_liger_kernel", FALSE, "the graph is compiled as a whole; there are no kernels to replace"),
    only("liger_kernel_config", NONE, "the graph is compiled as a whole; there are no kernels to replace"),
    only("full_determinism", &["true", "false"], "runs are always deterministic"),

    // Devices and processes.
    only("no_cuda", NONE, "choose the device with --device"),
    only("use_cpu", NONE, "choose the device with --device"),
    only("use_mps_device", FALSE, "choose the device with --device"),
    only("use_ipex", FALSE, "choose the device with --device"),
    only("xpu_backend", NONE, "choose the device with --device"),
    only("local_rank", &["-1", "0"], "which process this is comes from the environment that the launcher sets"),
    only("ddp_backend", NONE, "collectives are the device's own: NCCL, Neuron's, on the CPU Gloo"),
    only("ddp_timeout", &["1800"], "a process that hangs is found by its heartbeat; see heartbeat_timeout of xtrain launch"),
    only("ddp_bucket_cap_mb", NONE, "it is called gradient_bucket_mb here"),
    only("ddp_find_unused_parameters", NONE, "gradients are part of the compiled graph; there are no unused parameters to find"),
    only("ddp_broadcast_buffers", NONE, "the models have no buffers"),
    only("ddp_static_graph", NONE, "the graph is always static"),
    only("parallelism_config", NONE, "it drives accelerate; see data_parallel"),
    only("deepspeed", NONE, "DeepSpeed drives PyTorch; xtrain has no use for its file"),
    only("fsdp", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only("fsdp_config", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only("fsdp_min_num_params", &["0"], "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only("fsdp_transformer_layer_cls_to_wrap", NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state"),
    only("accelerator_config", NONE, "accelerate drives PyTorch; xtrain has no use for its settings"),
    only("tpu_num_cores", NONE, "TPUs are not supported"),
    only("tpu_metrics_debug", FALSE, "TPUs are not supported"),
    only("torch_compile", NONE, "xtrain always compiles the whole step; there is nothing to switch on"),
    only("torch_compile_backend", NONE, "xtrain always compiles the whole step with XLA"),
    only("torch_compile_mode", NONE, "xtrain always compiles the whole step with XLA"),
    only("torchdynamo", NONE, "xtrain always compiles the whole step with XLA"),
    only("jit_mode_eval", FALSE, "evaluation is always compiled"),
    of(&[LANGUAGE_MODELS], only("do_predict", FALSE, "only classifiers predict; see also `xtrain generate`")),
    only("debug", NONE, "there are no debug modes by that name"),
    no_effect("torch_empty_cache_steps", "memory is planned when the graph is compiled"),

    // Model and Hub.
    only("use_fast_tokenizer", TRUE, "only fast tokenizers (tokenizer.json) are read"),
    only("trust_remote_code", FALSE, "model code is never fetched or run"),
    only("use_auth_token", NONE, "it is called token now"),
    only("push_to_hub", FALSE, "the output directory can be uploaded as it is when the run has ended"),
    only("push_to_hub_model_id", NONE, "xtrain does not upload"),
    only("push_to_hub_organization", NONE, "xtrain does not upload"),
    only("push_to_hub_token", NONE, "xtrain does not upload"),
    only("hub_model_id", NONE, "xtrain does not upload"),
    only("hub_strategy", &["every_save"], "xtrain does not upload"),
    only("hub_token", &["", "none", "false", "<HUB_TOKEN>"], "xtrain does not upload"),
    only("hub_private_repo", NONE, "xtrain does not upload"),
    only("hub_always_push", FALSE, "xtrain does not upload"),
    only("hub_revision", NONE, "xtrain does not upload"),
    only("enable_jit_checkpoint", FALSE, "SIGTERM and SIGINT always save a checkpoint; there is nothing to switch on"),

    // Data.
    of(&[EVAL], only("streaming", FALSE, "an evaluation reads its set once, and keeps it tokenized and memory-mapped")),
    only("keep_linebreaks", TRUE, "line breaks are always kept"),
    only("group_by_length", FALSE, "examples are not sorted by length; see pad_to_bucket"),
    only("length_column_name", &["length"], "examples are not sorted by length; see pad_to_bucket"),
    only("ignore_data_skip", FALSE, "a resumed run always goes on at its exact place in the data"),
    no_effect("dataloader_pin_memory", "batches are uploaded by the runtime"),
    no_effect("dataloader_persistent_workers", "workers always live as long as the run"),
    only("dataloader_prefetch_factor", NONE, "how far to read ahead follows from dataloader_num_workers"),
    only("dataloader_multiprocessing_context", NONE, "workers are threads"),
    only("dataloader_in_order", TRUE, "batches always come in order"),
    only("train_sampling_strategy", &["random"], "training examples are always shuffled"),
    only("split_batches", NONE, "batch sizes are per device"),
    no_effect("remove_unused_columns", "columns that no flag names are not read"),
    only("label_names", NONE, "labels come from the text or from label_column_name"),
    only("past_index", &["-1"], "past states are not carried from batch to batch"),
    only("per_gpu_train_batch_size", NONE, "the name is per_device_train_batch_size"),
    only("per_gpu_eval_batch_size", NONE, "the name is per_device_eval_batch_size"),

    // Logging.
    only("report_to", NONE, "records go to standard output and to log.jsonl in output_dir; use --report_to none"),
    only("logging_dir", NONE, "records go to log.jsonl in output_dir"),
    only("logging_nan_inf_filter", TRUE, "a loss that is not finite stops the run"),
    only("log_level", &["passive", "info", "warning"], "there is one level of messages"),
    only("log_level_replica", &["passive", "info", "warning"], "there is one level of messages"),
    only("log_on_each_node", TRUE, "rank 0 logs for all processes"),
    only("include_tokens_per_second", NONE, "tokens per second are always in the step line"),
    only("include_num_input_tokens_seen", &["", "no", "none", "false"], "tokens are counted in the step line"),
    only("skip_memory_metrics", TRUE, "memory is reported by --dry_run and bench"),
    only("mp_parameters", NONE, "it drives SageMaker's library; see data_parallel"),
    no_effect("run_name", "only reporting services show it"),
    no_effect("project", "only reporting services show it"),
    only("trackio_space_id", NONE, "records go to standard output and to log.jsonl in output_dir"),
    only("trackio_bucket_id", NONE, "records go to standard output and to log.jsonl in output_dir"),
    only("trackio_static_space_id", NONE, "records go to standard output and to log.jsonl in output_dir"),

    // Checkpoints and evaluation.
    only("save_safetensors", TRUE, "weights are always written as safetensors"),
    only("save_only_model", FALSE, "a checkpoint always holds what an exact resume needs"),
    only("save_on_each_node", FALSE, "rank 0 saves for all processes, into a directory that all machines share"),
    only("restore_callback_states_from_checkpoint", FALSE, "there are no callbacks to restore"),
    only("prediction_loss_only", NONE, "evaluation always computes all of the task's metrics"),
    only("eval_accumulation_steps", NONE, "evaluation keeps no predictions"),
    only("eval_delay", &["0", "0.0"], "delayed evaluation is not built"),
    only("eval_on_start", FALSE, "evaluation before the first step is not built; run `xtrain eval`"),
    only("eval_do_concat_batches", TRUE, "evaluation keeps no predictions"),
    only("eval_use_gather_object", FALSE, "evaluation keeps no predictions"),
    only("batch_eval_metrics", FALSE, "metrics are always summed up batch by batch"),
    only("include_inputs_for_metrics", FALSE, "no metric needs the inputs"),
    only("include_for_metrics", NONE, "no metric needs more"),
];
