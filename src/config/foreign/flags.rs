//! The flags of other programs.

use crate::config::command::Commands;
use crate::config::command::sets::{
    ALL, BENCH, EVAL, GENERATE, LAUNCH, PREDICT, REPORT, TRAIN, TRAIN_EVAL,
};

/// What a name of another program is here.
#[derive(Clone, Copy)]
pub enum Here {
    /// The first of these flags that the command takes.
    Flag(&'static [&'static str]),
    /// What to do, as a sentence.
    Text(&'static str),
}
use Here::{Flag, Text};

const NO_LORA: &str =
    "not built yet: LoRA and other adapters; leave it out, and all parameters are trained";
const NO_QUANTIZATION: &str =
    "not built yet: quantized weights; --torch_dtype bfloat16 has weights of half the size";
const NO_PREFERENCES: &str = "not built yet: preference optimization (such as DPO)";
const NO_REWARDS: &str = "not built yet: reinforcement learning (such as GRPO or PPO)";
const NO_PACKING: &str = "not built yet: packing; `xtrain train clm` joins texts into full blocks, elsewhere --pad_to_bucket and --group_by_length save padding";
const NO_TOKENS: &str = "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json";
const OF_THE_TEMPLATE: &str = "not built yet: the chat template is that of the tokenizer; put another one into its chat_template.jinja";
const OF_THE_DEVICE: &str = "use --device cuda or --device neuron instead";
const SIZES: &str =
    "sizes of a model with random weights belong into --config_overrides, as n_layer=4,n_embd=256";

/// Flags of other programs, each row for some commands with its names; of several rows the first counts.
pub const FLAGS: &[(Commands, Here, &str)] = &[
    // Short names.
    (
        ALL,
        Flag(&["output_dir"]),
        "o out output out_dir output_path save_dir save_path",
    ),
    (ALL, Flag(&["output"]), "o out output_file output_path"),
    (
        ALL,
        Flag(&["model_name_or_path"]),
        "m model model_name model_path model_id model_dir base_model init_from \
         pretrained_model_name_or_path hf_model",
    ),
    (ALL, Flag(&["config"]), "c f cfg yaml"),
    (
        ALL,
        Flag(&["tokenizer_name"]),
        "t tokenizer tokenizer_path tokenizer_dir tokenizer_name_or_path",
    ),
    (
        ALL,
        Flag(&["dataset_name"]),
        "d dataset datasets dataset_id dataset_path",
    ),
    (
        ALL,
        Flag(&["dataset_config_name"]),
        "dataset_config dataset_configuration subset",
    ),
    (ALL, Flag(&["streaming"]), "dataset_streaming"),
    (
        EVAL,
        Flag(&["validation_file"]),
        "data data_file data_path file input input_file test_file test_data",
    ),
    (
        PREDICT,
        Flag(&["test_file"]),
        "data data_file data_path file input input_file",
    ),
    (
        GENERATE,
        Flag(&["prompt_file"]),
        "data data_file data_path file input input_file prompts",
    ),
    (
        ALL,
        Flag(&["train_file"]),
        "data data_file data_path file input input_file train train_data train_files train_path \
         train_dataset train_data_file training_file training_data corpus",
    ),
    (
        ALL,
        Flag(&["validation_file"]),
        "eval_file eval_data eval_path eval_dataset eval_data_file valid val dev valid_file \
         val_file dev_file valid_data val_data validation_data validation_path validation_files",
    ),
    (
        ALL,
        Flag(&["test_file"]),
        "test test_data test_path predict_file predict_data test_data_file",
    ),
    (
        TRAIN_EVAL,
        Text("use --validation_split_percentage P instead, in percent"),
        "val_set_size val_size test_size eval_split valid_split val_split validation_split \
         validation_fraction",
    ),
    (
        TRAIN_EVAL,
        Text(
            "the splits train, validation and test of a data set are taken by their names; other splits: give files with --train_file and --validation_file",
        ),
        "dataset_train_split dataset_test_split train_split test_split dataset_split split",
    ),
    (
        TRAIN_EVAL,
        Text("use --train_file, --validation_file and --test_file instead"),
        "data_dir remove_splits dataset_dir",
    ),
    // Batches and length.
    (
        ALL,
        Flag(&[
            "per_device_train_batch_size",
            "per_device_eval_batch_size",
            "batch",
        ]),
        "b bs batch batch_size train_batch_size per_device_batch_size micro_batch_size \
         device_batch_size mini_batch_size train_micro_batch_size_per_gpu",
    ),
    (
        ALL,
        Flag(&["per_device_eval_batch_size"]),
        "eval_batch_size valid_batch_size val_batch_size test_batch_size",
    ),
    (
        TRAIN,
        Text(
            "the examples of a step are --per_device_train_batch_size x --gradient_accumulation_steps x data-parallel devices: set these",
        ),
        "global_batch_size total_batch_size effective_batch_size train_global_batch_size",
    ),
    (
        ALL,
        Flag(&["num_train_epochs"]),
        "e epoch epochs num_epochs n_epochs num_epoch max_epochs train_epochs",
    ),
    (
        ALL,
        Flag(&["max_steps", "steps"]),
        "iters iterations max_iters num_iters train_iters num_iterations steps num_steps n_steps \
         total_steps train_steps training_steps num_train_steps num_training_steps \
         max_train_steps",
    ),
    (
        ALL,
        Flag(&["gradient_accumulation_steps"]),
        "gradient_accumulation grad_accum grad_accumulation grad_accum_steps \
         grad_accumulation_steps accumulation_steps accumulate_grad_batches update_freq",
    ),
    (
        GENERATE,
        Flag(&["max_new_tokens"]),
        "max_tokens max_length n_predict num_tokens max_completion_tokens",
    ),
    (
        ALL,
        Flag(&["block_size", "max_seq_length", "seq"]),
        "max_length max_len max_seq_length max_seq_len seq_length seq_len sequence_length \
         sequence_len context_length context_len ctx_len context_window model_max_length \
         cutoff_len max_tokens",
    ),
    // Optimizer.
    (ALL, Flag(&["learning_rate"]), "lr peak_lr max_lr base_lr"),
    (ALL, Flag(&["weight_decay"]), "wd"),
    (ALL, Flag(&["adam_beta1"]), "beta1 b1"),
    (ALL, Flag(&["adam_beta2"]), "beta2 b2"),
    (ALL, Flag(&["adam_epsilon"]), "eps epsilon adam_eps"),
    (
        ALL,
        Flag(&["optim"]),
        "optimizer opt optimizer_name optimizer_type",
    ),
    (
        ALL,
        Flag(&["max_grad_norm"]),
        "grad_clip clip_grad gradient_clip gradient_clipping clip_grad_norm gradient_clip_val \
         grad_norm_clip max_norm",
    ),
    (
        ALL,
        Flag(&["lr_scheduler_type"]),
        "scheduler lr_scheduler lr_schedule schedule scheduler_type lr_decay_style",
    ),
    (
        ALL,
        Flag(&["warmup_steps"]),
        "num_warmup_steps warmup_iters lr_warmup_iters lr_warmup_steps warmup_updates",
    ),
    (
        ALL,
        Flag(&["warmup_ratio"]),
        "warmup_fraction warmup_proportion lr_warmup_fraction",
    ),
    (
        TRAIN,
        Text("use --warmup_steps N or --warmup_ratio SHARE instead"),
        "warmup",
    ),
    (
        TRAIN,
        Text("use --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs min_lr=X instead"),
        "min_lr min_learning_rate lr_min",
    ),
    (
        ALL,
        Flag(&["label_smoothing_factor"]),
        "label_smoothing smoothing",
    ),
    (
        ALL,
        Flag(&["early_stopping_patience"]),
        "early_stopping patience early_stop",
    ),
    (ALL, Flag(&["seed"]), "s random_seed rng_seed manual_seed"),
    // Logging, evaluation, checkpoints.
    (
        ALL,
        Flag(&["logging_steps"]),
        "logging_step log_steps log_every log_freq log_interval logging_interval \
         log_every_n_steps steps_per_report print_freq",
    ),
    (
        ALL,
        Flag(&["save_steps"]),
        "save_every save_freq save_interval checkpointing_steps checkpoint_interval \
         checkpoint_every ckpt_interval",
    ),
    (
        ALL,
        Flag(&["eval_steps"]),
        "eval_every eval_freq eval_interval steps_per_eval evaluation_steps val_check_interval",
    ),
    (
        ALL,
        Flag(&["save_total_limit"]),
        "save_limit max_checkpoints keep_last checkpoints_total_limit",
    ),
    (
        ALL,
        Flag(&["resume_from_checkpoint", "model_name_or_path"]),
        "resume resume_from checkpoint ckpt checkpoint_path checkpoint_dir load_checkpoint",
    ),
    (
        TRAIN,
        Text("use --eval_strategy steps instead"),
        "evaluate_during_training",
    ),
    (TRAIN, Text("use --do_eval instead"), "evaluate"),
    (
        TRAIN_EVAL,
        Text("use --report_to tensorboard or mlflow, and --run_name, instead"),
        "wandb use_wandb wandb_project wandb_name wandb_run_name with_tracking tensorboard \
         use_tensorboard log_with logger",
    ),
    (
        ALL,
        Flag(&["dataloader_num_workers"]),
        "num_workers n_workers workers dataloader_workers",
    ),
    (
        ALL,
        Flag(&["preprocessing_num_workers"]),
        "num_proc preprocessing_workers",
    ),
    // Model, memory and devices.
    (TRAIN_EVAL, Text("use `xtrain train mlm` instead"), "mlm"),
    (TRAIN_EVAL, Text("use --whole_word_mask instead"), "wwm"),
    (
        TRAIN_EVAL,
        Text("use --bf16 or --fp16 instead"),
        "mixed_precision amp use_amp half_precision precision half",
    ),
    (
        ALL,
        Text("not built yet: matmuls in 8 bits; --bf16 has 16"),
        "fp8 use_fp8 int8",
    ),
    (
        ALL,
        Flag(&["gradient_checkpointing"]),
        "grad_checkpoint grad_checkpointing use_gradient_checkpointing checkpoint_activations \
         activation_checkpoint recompute_activations remat",
    ),
    (
        ALL,
        Text(OF_THE_DEVICE),
        "gpu cuda use_cuda use_gpu accelerator",
    ),
    (
        TRAIN_EVAL,
        Text("use --data_parallel N instead"),
        "n_gpu num_gpus gpus n_gpus multi_gpu num_cores num_devices",
    ),
    (
        ALL,
        Flag(&["data_parallel"]),
        "dp dp_size data_parallel_size",
    ),
    (
        ALL,
        Flag(&["tensor_parallel"]),
        "tp tp_size tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size",
    ),
    (
        ALL,
        Flag(&["pipeline_parallel"]),
        "pp pp_size pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size",
    ),
    (
        TRAIN_EVAL,
        Text("use --shard_optimizer_state (ZeRO-1) or --shard_parallel N (ZeRO-3/FSDP) instead"),
        "zero zero_stage zero3",
    ),
    (
        TRAIN_EVAL,
        Text("use `xtrain launch --nproc_per_node N -- train ...` instead"),
        "num_processes num_machines machine_rank nprocs nproc_per_node nnodes node_rank",
    ),
    (
        LAUNCH,
        Flag(&["nproc_per_node"]),
        "n np nproc nprocs num_processes num_gpus",
    ),
    (LAUNCH, Flag(&["nnodes"]), "num_machines num_nodes"),
    (LAUNCH, Flag(&["node_rank"]), "machine_rank"),
    (
        LAUNCH,
        Flag(&["rdzv_endpoint"]),
        "main_process_ip master_addr rdzv_host",
    ),
    (
        ALL,
        Text("leave it out: every step is compiled by XLA"),
        "xla use_xla tpu use_tpu torch_xla compile jit",
    ),
    (
        ALL,
        Text("leave it out: attention is fused wherever the device can"),
        "flash_attention flash_attn use_flash_attn use_flash_attention use_flash_attention_2 \
         sdp_attention xformers_attention",
    ),
    (
        TRAIN_EVAL,
        Text(SIZES),
        "num_layers n_layer n_layers num_hidden_layers n_head num_heads n_heads \
         num_attention_heads n_embd hidden_size hidden_dim d_model embedding_dim \
         intermediate_size n_positions max_position_embeddings vocab_size dropout",
    ),
    (
        BENCH,
        Text(SIZES),
        "num_layers n_layer n_layers n_head num_heads n_embd hidden_size vocab_size",
    ),
    // Data.
    (
        TRAIN_EVAL,
        Text("leave it out: training examples are always shuffled, by --seed or --data_seed"),
        "shuffle shuffle_dataset shuffle_train_dataset shuffle_seed",
    ),
    (
        TRAIN_EVAL,
        Text("leave it out: files named .csv are split at commas, .tsv at tabs"),
        "column_delimiter delimiter sep",
    ),
    (
        ALL,
        Flag(&["text_column_name"]),
        "text_column text_field text_key dataset_text_column",
    ),
    (
        ALL,
        Flag(&["label_column_name"]),
        "label_column label_field label_key",
    ),
    (
        ALL,
        Text(NO_TOKENS),
        "eos_token bos_token pad_token unk_token eos_token_id bos_token_id pad_token_id \
         special_tokens additional_special_tokens added_tokens add_eos_token add_bos_token \
         add_special_tokens new_special_tokens",
    ),
    (
        ALL,
        Text(OF_THE_TEMPLATE),
        "chat_template chat_template_path chat_template_jinja template prompt_template",
    ),
    (
        TRAIN_EVAL,
        Text(NO_PACKING),
        "packing eval_packing packing_strategy padding_free sample_packing eval_sample_packing \
         pack packed neat_packing",
    ),
    (
        TRAIN_EVAL,
        Text("use --pad_to_bucket 64,128 instead, with the lengths to pad to"),
        "pad_to_multiple_of",
    ),
    (
        TRAIN_EVAL,
        Text("leave it out: longer examples are cut at their end"),
        "truncation_mode truncation truncation_side",
    ),
    (
        TRAIN_EVAL,
        Text("not built yet: other losses; the loss is the cross-entropy of tokens or classes"),
        "loss_type loss loss_fn loss_function",
    ),
    (
        TRAIN_EVAL,
        Text(
            "use `xtrain train sft`, whose loss is that of the completion alone unless --completion_only_loss false",
        ),
        "mask_prompt train_on_inputs train_on_responses_only response_template instruction_template",
    ),
    // Not built.
    (
        ALL,
        Text(NO_LORA),
        "lora qlora dora peft use_peft use_lora use_dora use_rslora lora_r lora_rank lora_alpha \
         lora_dropout lora_bias lora_config lora_target lora_targets lora_target_linear \
         lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type \
         lora_model_dir target_modules target_parameters exclude_modules modules_to_save \
         init_lora_weights rank_pattern alpha_pattern layers_to_transform trainable_token_indices \
         peft_type peft_config adapter adapter_path adapter_file adapter_name_or_path \
         resume_adapter_file finetuning_type fine_tune_type model_adapter_name ref_adapter_name",
    ),
    (
        ALL,
        Text(NO_QUANTIZATION),
        "load_in_8bit load_in_4bit quantization quantization_bit quantization_config quantize \
         bnb_4bit_compute_dtype bnb_4bit_quant_type bnb_4bit_quant_storage \
         bnb_4bit_use_double_quant use_bnb_nested_quant",
    ),
    (
        TRAIN_EVAL,
        Text(NO_PREFERENCES),
        "beta dpo_beta pref_beta pref_loss dpo_loss loss_weights f_divergence_type \
         f_alpha_divergence_coef reference_free reference_model ref_model ref_model_name_or_path \
         ref_model_init_kwargs ref_model_mixup_alpha ref_model_sync_steps sync_ref_model \
         force_use_ref_model use_weighting rpo_alpha ld_alpha discopop_tau \
         precompute_ref_log_probs precompute_ref_batch_size max_prompt_length \
         max_completion_length max_target_length generate_during_eval desirable_weight \
         undesirable_weight orpo_alpha simpo_gamma cpo_alpha",
    ),
    (
        TRAIN_EVAL,
        Text(NO_REWARDS),
        "num_generations use_vllm vllm_mode vllm_server_host vllm_server_port \
         vllm_gpu_memory_utilization vllm_importance_sampling_correction reward_funcs \
         reward_weights reward_model reward_model_path reward_model_name_or_path scale_rewards \
         kl_coef init_kl_coef cliprange num_ppo_epochs epsilon_high mask_truncated_completions",
    ),
    (
        TRAIN_EVAL,
        Text("not built yet: mixtures of experts"),
        "router_aux_loss_coef output_router_logits num_experts",
    ),
    (ALL, Flag(&["prompt"]), "p text input_text"),
    (REPORT, Flag(&["output"]), "report_file"),
    (
        REPORT,
        Text(
            "there are no PNG images any more: report.html (--format html) draws the losses as SVG",
        ),
        "png",
    ),
];

/// Flags of launchers (torchrun, accelerate, deepspeed), with what does the same.
pub const OF_LAUNCHERS: &[(&str, &str)] = &[
    (
        "master_port main_process_port rdzv_backend rdzv_id rdzv_conf standalone local_addr",
        "leave it out: processes of one machine find each other, those of several by --rdzv_endpoint HOST:PORT",
    ),
    (
        "hostfile include exclude gpu_ids num_cpu_threads_per_process",
        "leave it out: start it on each machine, with --nnodes N --node_rank I --rdzv_endpoint HOST:PORT",
    ),
    (
        "config_file multi_gpu tpu cpu use_cpu mixed_precision use_fsdp use_deepspeed \
         deepspeed_config_file zero_stage fsdp_sharding_strategy dynamo_backend",
        "leave it out: what the processes run on and how are flags of the command after --, as in `-- train clm --device cuda --bf16 --shard_parallel 8`",
    ),
    (
        "module m no_python log_dir redirects tee monitor_interval start_method role",
        "leave it out: output of all processes comes together, and the launcher watches them by itself",
    ),
];
