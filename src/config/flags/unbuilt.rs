//! Names of TrainingArguments, run_clm, run_mlm, run_glue and run_ner without a flag. A setting that
//! asks for what happens anyway is accepted, so that a command line or a complete dump of
//! TrainingArguments works; any other value is refused. The sentence is what the user reads in both
//! cases. What is built moves up.

use super::{Flag, Support};
use crate::command::sets::*;
use crate::declare::unbuilt;
use crate::instead;
use crate::kind::{Anything, KindInfo};

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
SFT {
    truncation_mode: only(&["keep_start"]), "not built yet: longer examples are cut at their end";
    shuffle_dataset: FALSE, "batches are drawn in a seeded order anyway";
    router_aux_loss_coef: NONE, "there are no mixtures of experts";
    eos_token: only(&["", "none", "false", "<EOS_TOKEN>"]), "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json";
    pad_token: only(&["", "none", "false", "<PAD_TOKEN>"]), "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json";
    chat_template_path: NONE, "not built yet: the chat template is that of the tokenizer; put another one into its chat_template.jinja";
    pad_to_multiple_of: NONE, "not built yet; pad_to_bucket has the lengths to pad to";
    dataset_kwargs model_init_kwargs: only(&["", "none", "false", "{}"]), "not built yet: they are arguments of Python functions";
}
PREFERENCES {
    packing eval_packing padding_free: FALSE, "answers are not packed: each is a row of its own; pad_to_bucket and group_by_length save padding";
    router_aux_loss_coef: NONE, "there are no mixtures of experts";
    eos_token: only(&["", "none", "false", "<EOS_TOKEN>"]), "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json";
    pad_token: only(&["", "none", "false", "<PAD_TOKEN>"]), "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json";
    chat_template_path: NONE, "not built yet: the chat template is that of the tokenizer; put another one into its chat_template.jinja";
    pad_to_multiple_of: only(&["", "none", "auto"]), "not built yet; pad_to_bucket has the lengths to pad to";
    dataset_kwargs model_init_kwargs: only(&["", "none", "false", "{}"]), "not built yet: they are arguments of Python functions";
    label_smoothing_factor: only(&["0", "0.0"]), "preference losses have no labels to smooth, and TRL ignores it; see label_smoothing of dpo";
    shuffle_dataset: FALSE, "batches are drawn in a seeded order anyway";
    do_predict: FALSE, "a training run predicts nothing here; see `xtrain predict reward` and `xtrain generate`";
    generate_during_eval: FALSE, "not built: evaluations generate nothing; see `xtrain generate`";
}
REFERENCED {
    precompute_ref_log_probs: ANYWAY, "reference log-probabilities are always computed once, before training, and kept beside the tokenized data";
    sync_ref_model: FALSE, "not built: the reference stays what it was before training, as its log-probabilities are computed once";
    ref_model_mixup_alpha ref_model_sync_steps: ANYWAY, "the reference is never synchronized";
    ref_model_init_kwargs force_use_ref_model: only(&["", "none", "false", "{}"]), "not built: the reference is loaded as the model is";
}
KTO {
    truncation_mode: only(&["keep_start"]), "not built: longer answers are cut at their end";
}
TRAIN_EVAL {
    lora_target_parameters target_parameters: NONE, "no family here has fused expert weights; lora_target_modules names linear layers";
    lora_task_type: ANYWAY, "what the adapter is for follows from the task";
    init_lora_weights: only(&["", "true"]), "an adapter starts as PEFT's do by default: A uniform, B zero";
    bnb_4bit_compute_dtype: ANYWAY, "matmuls of quantized layers have the precision of all others: that of bf16, fp16 or torch_dtype";
    bnb_4bit_quant_storage: ANYWAY, "codes are always kept as bytes";
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
    streaming: FALSE, "an evaluation reads its set once, and keeps it tokenized";
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
    eval_accumulation_steps: ANYWAY, "evaluation keeps no predictions";
    eval_do_concat_batches: anyway(&["true"]), "evaluation keeps no predictions";
    eval_use_gather_object: ANYWAY, "evaluation keeps no predictions";
    batch_eval_metrics: ANYWAY, "metrics are always summed up batch by batch";
    use_legacy_prediction_loop: ANYWAY, "there is one loop";
    include_inputs_for_metrics: ANYWAY, "no metric needs the inputs";
    include_for_metrics: ANYWAY, "no metric needs more";
}
}
