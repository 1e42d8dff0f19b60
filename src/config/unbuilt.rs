//! Names of TrainingArguments, run_clm, run_mlm, run_glue and run_ner that xtrain knows but has no
//! flag for. A setting that asks for what happens anyway is accepted, so that a command line or a
//! complete dump of TrainingArguments works; any other value is refused. The help sentence is what
//! the user reads in both cases. When one of these is built, it moves to `flags.rs`.

use super::command::sets::{EVAL, LABELLED, LANGUAGE_MODELS, TOKEN_CLS, TRAIN_EVAL};
use super::flags::{Flag, Support};
use super::instead;
use super::kind::{Anything, KindInfo};

const NOT_SET: &[&str] = &["", "none", "false"];

/// Only these values are true of xtrain.
const fn only(silent: &'static [&'static str]) -> Support {
    Support::Known {
        silent,
        noted: Some(&[]),
    }
}

/// Whatever the value, no number depends on it; these say nothing that is worth a note.
const fn anyway(silent: &'static [&'static str]) -> Support {
    Support::Known {
        silent,
        noted: None,
    }
}

/// The first are true of xtrain, the others with a note.
const fn with_note(silent: &'static [&'static str], noted: &'static [&'static str]) -> Support {
    Support::Known {
        silent,
        noted: Some(noted),
    }
}

const FALSE: Support = only(&["false"]);
const TRUE: Support = only(&["true"]);
const NONE: Support = only(NOT_SET);
const ANYWAY: Support = anyway(NOT_SET);

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
                shapes_graphs: false,
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
    fp16_backend half_precision_backend: anyway(&["auto"]), "mixed precision is part of the compiled graph; there are no backends to choose from";
    gradient_checkpointing_kwargs activation_checkpointing_kwargs: ANYWAY, "they are torch.utils.checkpoint's; see gradient_checkpointing";
    scan_layers: FALSE, "layers are compiled one after the other; XLA compiles equal kernels once";
    auto_find_batch_size: FALSE, "xtrain finds the batch size before the run, not by failing in it: use --per_device_train_batch_size auto";
    low_cpu_mem_usage: ANYWAY, "weights are mapped from the file; there is nothing to switch";
    use_cache: ANYWAY, "training keeps no past keys and values";

    // Optimizer.
    adafactor: FALSE, "it is chosen with --optim adafactor now";
    optim_target_modules: NONE, "all parameters are trained";
    average_tokens_across_devices: with_note(&["true"], &["false"]), "the loss is always divided by the number of tokens over all devices and microbatches";
    use_liger_kernel: ANYWAY, "the graph is compiled as a whole; there are no kernels to replace";
    liger_kernel_config: ANYWAY, "the graph is compiled as a whole; there are no kernels to replace";
    full_determinism: only(&["true", "false"]), "runs are always deterministic";

    // Devices and processes.
    use_mps_device use_ipex: FALSE, "choose the device with --device";
    xpu_backend: NONE, "choose the device with --device";
    local_rank: only(&["-1", "0"]), "which process this is comes from the environment that the launcher sets";
    ddp_backend: ANYWAY, "collectives are the device's own: NCCL, Neuron's, on the CPU Gloo";
    ddp_timeout: anyway(&["1800"]), "a process that hangs is found by its heartbeat; see heartbeat_timeout of xtrain launch";
    ddp_find_unused_parameters: ANYWAY, "gradients are part of the compiled graph; there are no unused parameters to find";
    ddp_broadcast_buffers: ANYWAY, "the models have no buffers";
    ddp_static_graph: ANYWAY, "the graph is always static";
    parallelism_config: NONE, "it drives accelerate; see data_parallel, shard_parallel and tensor_parallel";
    deepspeed: Support::Instead(instead::of_deepspeed), "DeepSpeed drives PyTorch; its parts have flags of their own";
    fsdp: Support::Instead(instead::of_fsdp), "it drives PyTorch's FSDP; see shard_parallel and shard_optimizer_state";
    fsdp_config: ANYWAY, "it drives PyTorch's FSDP; weights are gathered layer by layer";
    fsdp_min_num_params: anyway(&["0"]), "it drives PyTorch's FSDP; weights are gathered layer by layer";
    fsdp_transformer_layer_cls_to_wrap: ANYWAY, "it drives PyTorch's FSDP; weights are gathered layer by layer";
    sharded_ddp: Support::Instead(instead::of_sharded_ddp), "it drives fairscale; see shard_parallel and shard_optimizer_state";
    accelerator_config: Support::Instead(instead::of_accelerate), "accelerate drives PyTorch; batch sizes are per device, batches come in seeded order";
    ray_scope: anyway(&["last"]), "there is no hyperparameter search by Ray; see xtrain sweep";
    tpu_num_cores: NONE, "TPUs are not supported";
    tpu_metrics_debug: FALSE, "TPUs are not supported";
    torch_compile: ANYWAY, "the whole step is always compiled, by XLA";
    torch_compile_backend torch_compile_mode torchdynamo: ANYWAY, "the whole step is always compiled, by XLA";
    jit_mode_eval: ANYWAY, "evaluation is always compiled";
}
EVAL {
    ddp_bucket_cap_mb: ANYWAY, "an evaluation has no gradients";
    save_only_model ignore_data_skip eval_delay eval_on_start group_by_length train_sampling_strategy include_num_input_tokens_seen: ANYWAY, "nothing is trained";
    per_gpu_train_batch_size: ANYWAY, "an evaluation trains nothing";
    neftune_noise_alpha: ANYWAY, "an evaluation has no noise";
    report_to logging_dir run_name: ANYWAY, "an evaluation prints its results";
    push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision: ANYWAY, "an evaluation pushes nothing";
    push_to_hub_model_id push_to_hub_token: ANYWAY, "an evaluation pushes nothing";
}
LABELLED {
    metric_name: with_note(&[], &["accuracy", "f1", "precision", "recall", "matthews_correlation", "mse", "pearson", "spearmanr", "glue", "seqeval"]), "all metrics of the task are always computed; metric_for_best_model chooses the one that decides";
}
TOKEN_CLS {
    return_entity_level_metrics: ANYWAY, "precision, recall and F1 of each kind of entity are always computed";
}
LANGUAGE_MODELS {
    do_predict: FALSE, "only classifiers predict; see also `xtrain generate`";
}
TRAIN_EVAL {
    debug: NONE, "there are no debug modes by that name";
    torch_empty_cache_steps: ANYWAY, "memory is planned when the graph is compiled";

    // Model and Hub.
    use_fast_tokenizer: TRUE, "only fast tokenizers (tokenizer.json) are read";
    trust_remote_code: ANYWAY, "model code is never fetched or run; the supported models need none";
    use_auth_token: with_note(NOT_SET, &["true"]), "the token that `hf auth login` saved is used anyway; another one is given as token";
    push_to_hub_organization: NONE, "the organization is written in hub_model_id, as ORGANIZATION/NAME";
    enable_jit_checkpoint: ANYWAY, "SIGTERM and SIGINT always save a checkpoint; there is nothing to switch on";

    // Data.
}
EVAL {
    streaming: FALSE, "an evaluation reads its set once, and keeps it tokenized and memory-mapped";
}
TRAIN_EVAL {
    keep_linebreaks: with_note(&[], &["true"]), "line breaks are always kept";
    length_column_name: anyway(&["length"]), "lengths are counted in tokens";
    dataloader_pin_memory: anyway(&["true"]), "batches are uploaded by the runtime";
    dataloader_persistent_workers: ANYWAY, "workers always live as long as the run";
    dataloader_prefetch_factor: ANYWAY, "how far to read ahead follows from dataloader_num_workers";
    dataloader_multiprocessing_context: ANYWAY, "workers are threads";
    dataloader_in_order: anyway(&["true"]), "batches always come in order";
    split_batches dispatch_batches: NONE, "batch sizes are per device";
    remove_unused_columns: anyway(&["true"]), "columns that no flag names are not read";
    label_names: NONE, "labels come from the text or from label_column_name";
    past_index: only(&["-1"]), "past states are not carried from batch to batch";

    // Logging.
    logging_nan_inf_filter: anyway(&["true"]), "a loss that is not finite stops the run";
    log_level log_level_replica: anyway(&["passive", "warning"]), "there is one level of messages";
    log_on_each_node: anyway(&["true"]), "rank 0 logs for all processes";
    include_tokens_per_second: ANYWAY, "tokens per second are always in the step line";
    skip_memory_metrics: TRUE, "memory is reported by --dry_run and bench";
    project: anyway(&["", "huggingface"]), "only trackio shows it";
    trackio_space_id trackio_bucket_id trackio_static_space_id: ANYWAY, "records go to standard output and to log.jsonl in output_dir";

    // Checkpoints and evaluation.
    save_safetensors: TRUE, "weights are always written as safetensors";
    save_on_each_node: FALSE, "rank 0 saves for all processes, into a directory that all machines share";
    restore_callback_states_from_checkpoint: ANYWAY, "there are no callbacks to restore";
    prediction_loss_only: ANYWAY, "evaluation always computes all of the task's metrics";
    eval_accumulation_steps: ANYWAY, "evaluation keeps no predictions";
    eval_do_concat_batches: anyway(&["true"]), "evaluation keeps no predictions";
    eval_use_gather_object: ANYWAY, "evaluation keeps no predictions";
    batch_eval_metrics: ANYWAY, "metrics are always summed up batch by batch";
    use_legacy_prediction_loop: ANYWAY, "there is one loop";
    include_inputs_for_metrics: ANYWAY, "no metric needs the inputs";
    include_for_metrics: ANYWAY, "no metric needs more";
}
}
