//! Names of TrainingArguments, run_clm, run_mlm and run_glue that xtrain knows but does not honour.
//! A value that describes what xtrain does anyway is accepted, so a complete dump of
//! TrainingArguments works; any other value is refused and the help sentence is the reason that the
//! user reads. When one of these is built, it moves to `flags.rs`.

use super::command::sets::{EVAL, LANGUAGE_MODELS, TRAIN_EVAL};
use super::flags::{Flag, Support};
use super::kind::{Anything, KindInfo};

/// Only these values are true of xtrain.
const fn only(accepted: &'static [&'static str]) -> Support {
    Support::Only(accepted)
}

const FALSE: Support = only(&["false"]);
const TRUE: Support = only(&["true"]);
const NONE: Support = only(&["", "none", "false"]);
const NO_EFFECT: Support = Support::NoEffect;

/// Declares them, for the commands of each block: names, what is accepted, and why.
macro_rules! unbuilt {
    ($( $commands:ident { $( $($name:ident)+: $support:expr, $help:literal; )+ } )+) => {
        pub static UNBUILT: &[Flag] = &[$($($(
            Flag {
                name: stringify!($name),
                aliases: &[],
                kind: KindInfo::of::<Anything>(),
                default: "",
                help: $help,
                commands: &[$commands],
                section: None,
                support: $support,
                short: None,
            },
        )+)+)+];
    };
}

// Evaluation takes most of them as well, so that a training run's settings are answered there in the
// same way.
unbuilt! {
TRAIN_EVAL {
    // Precision and memory.
    fp16_opt_level: only(&["O1"]), "there is one form of mixed precision, which is O1's: master weights and moments stay in float32";
    fp16_backend half_precision_backend: only(&["auto"]), "mixed precision is part of the compiled graph; there are no backends to choose from";
    gradient_checkpointing_kwargs activation_checkpointing_kwargs: NONE, "they are torch.utils.checkpoint's; see gradient_checkpointing";
    scan_layers: FALSE, "layers are compiled one after the other; XLA compiles equal kernels once";
    auto_find_batch_size: FALSE, "xtrain finds the batch size before the run, not by failing in it: use --per_device_train_batch_size auto";
    torch_dtype: only(&["", "none", "auto", "float32"]), "weights are held in float32";
    low_cpu_mem_usage: FALSE, "weights are mapped from the file; there is nothing to switch";
    use_cache: FALSE, "training keeps no past keys and values";

    // Optimizer.
    adafactor: FALSE, "Adafactor is not supported; see optim";
    optim_args: NONE, "optimizers take no further arguments; see adam_beta1, adam_beta2 and adam_epsilon";
    optim_target_modules: NONE, "all parameters are trained";
    lr_scheduler_kwargs: NONE, "the schedules take no further arguments";
    label_smoothing_factor: only(&["0", "0.0"]), "label smoothing is not supported";
    neftune_noise_alpha: NONE, "NEFTune is not supported";
    average_tokens_across_devices: TRUE, "the loss is always divided by the number of tokens over all devices and microbatches";
    use_liger_kernel: FALSE, "the graph is compiled as a whole; there are no kernels to replace";
    liger_kernel_config: NONE, "the graph is compiled as a whole; there are no kernels to replace";
    full_determinism: only(&["true", "false"]), "runs are always deterministic";

    // Devices and processes.
    no_cuda use_cpu: NONE, "choose the device with --device";
    use_mps_device use_ipex: FALSE, "choose the device with --device";
    xpu_backend: NONE, "choose the device with --device";
    local_rank: only(&["-1", "0"]), "which process this is comes from the environment that the launcher sets";
    ddp_backend: NONE, "collectives are the device's own: NCCL, Neuron's, on the CPU Gloo";
    ddp_timeout: only(&["1800"]), "a process that hangs is found by its heartbeat; see heartbeat_timeout of xtrain launch";
    ddp_bucket_cap_mb: NONE, "it is called gradient_bucket_mb here";
    ddp_find_unused_parameters: NONE, "gradients are part of the compiled graph; there are no unused parameters to find";
    ddp_broadcast_buffers: NONE, "the models have no buffers";
    ddp_static_graph: NONE, "the graph is always static";
    parallelism_config: NONE, "it drives accelerate; see data_parallel";
    deepspeed: NONE, "DeepSpeed drives PyTorch; xtrain has no use for its file";
    fsdp fsdp_config: NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state";
    fsdp_min_num_params: only(&["0"]), "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state";
    fsdp_transformer_layer_cls_to_wrap: NONE, "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state";
    accelerator_config: NONE, "accelerate drives PyTorch; xtrain has no use for its settings";
    tpu_num_cores: NONE, "TPUs are not supported";
    tpu_metrics_debug: FALSE, "TPUs are not supported";
    torch_compile: NONE, "xtrain always compiles the whole step; there is nothing to switch on";
    torch_compile_backend torch_compile_mode torchdynamo: NONE, "xtrain always compiles the whole step with XLA";
    jit_mode_eval: FALSE, "evaluation is always compiled";
}
LANGUAGE_MODELS {
    do_predict: FALSE, "only classifiers predict; see also `xtrain generate`";
}
TRAIN_EVAL {
    debug: NONE, "there are no debug modes by that name";
    torch_empty_cache_steps: NO_EFFECT, "memory is planned when the graph is compiled";

    // Model and Hub.
    use_fast_tokenizer: TRUE, "only fast tokenizers (tokenizer.json) are read";
    trust_remote_code: FALSE, "model code is never fetched or run";
    use_auth_token: NONE, "it is called token now";
    push_to_hub: FALSE, "the output directory can be uploaded as it is when the run has ended";
    push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_model_id: NONE, "xtrain does not upload";
    hub_strategy: only(&["every_save"]), "xtrain does not upload";
    hub_token: only(&["", "none", "false", "<HUB_TOKEN>"]), "xtrain does not upload";
    hub_private_repo: NONE, "xtrain does not upload";
    hub_always_push: FALSE, "xtrain does not upload";
    hub_revision: NONE, "xtrain does not upload";
    enable_jit_checkpoint: FALSE, "SIGTERM and SIGINT always save a checkpoint; there is nothing to switch on";

    // Data.
}
EVAL {
    streaming: FALSE, "an evaluation reads its set once, and keeps it tokenized and memory-mapped";
}
TRAIN_EVAL {
    keep_linebreaks: TRUE, "line breaks are always kept";
    group_by_length: FALSE, "examples are not sorted by length; see pad_to_bucket";
    length_column_name: only(&["length"]), "examples are not sorted by length; see pad_to_bucket";
    ignore_data_skip: FALSE, "a resumed run always goes on at its exact place in the data";
    dataloader_pin_memory: NO_EFFECT, "batches are uploaded by the runtime";
    dataloader_persistent_workers: NO_EFFECT, "workers always live as long as the run";
    dataloader_prefetch_factor: NONE, "how far to read ahead follows from dataloader_num_workers";
    dataloader_multiprocessing_context: NONE, "workers are threads";
    dataloader_in_order: TRUE, "batches always come in order";
    train_sampling_strategy: only(&["random"]), "training examples are always shuffled";
    split_batches: NONE, "batch sizes are per device";
    remove_unused_columns: NO_EFFECT, "columns that no flag names are not read";
    label_names: NONE, "labels come from the text or from label_column_name";
    past_index: only(&["-1"]), "past states are not carried from batch to batch";
    per_gpu_train_batch_size: NONE, "the name is per_device_train_batch_size";
    per_gpu_eval_batch_size: NONE, "the name is per_device_eval_batch_size";

    // Logging.
    report_to: NONE, "records go to standard output and to log.jsonl in output_dir; use --report_to none";
    logging_dir: NONE, "records go to log.jsonl in output_dir";
    logging_nan_inf_filter: TRUE, "a loss that is not finite stops the run";
    log_level log_level_replica: only(&["passive", "info", "warning"]), "there is one level of messages";
    log_on_each_node: TRUE, "rank 0 logs for all processes";
    include_tokens_per_second: NONE, "tokens per second are always in the step line";
    include_num_input_tokens_seen: only(&["", "no", "none", "false"]), "tokens are counted in the step line";
    skip_memory_metrics: TRUE, "memory is reported by --dry_run and bench";
    mp_parameters: NONE, "it drives SageMaker's library; see data_parallel";
    run_name project: NO_EFFECT, "only reporting services show it";
    trackio_space_id trackio_bucket_id trackio_static_space_id: NONE, "records go to standard output and to log.jsonl in output_dir";

    // Checkpoints and evaluation.
    save_safetensors: TRUE, "weights are always written as safetensors";
    save_only_model: FALSE, "a checkpoint always holds what an exact resume needs";
    save_on_each_node: FALSE, "rank 0 saves for all processes, into a directory that all machines share";
    restore_callback_states_from_checkpoint: FALSE, "there are no callbacks to restore";
    prediction_loss_only: NONE, "evaluation always computes all of the task's metrics";
    eval_accumulation_steps: NONE, "evaluation keeps no predictions";
    eval_delay: only(&["0", "0.0"]), "delayed evaluation is not supported";
    eval_on_start: FALSE, "evaluation before the first step is not supported; run `xtrain eval`";
    eval_do_concat_batches: TRUE, "evaluation keeps no predictions";
    eval_use_gather_object: FALSE, "evaluation keeps no predictions";
    batch_eval_metrics: FALSE, "metrics are always summed up batch by batch";
    include_inputs_for_metrics: FALSE, "no metric needs the inputs";
    include_for_metrics: NONE, "no metric needs more";
}
}
