//! The flags that say how a model is trained, saved and evaluated.
//!
//! A table that `flags.rs` declares from: the macro adds its sections to those that it is given, and hands
//! all of them to the next table.

macro_rules! training_flags {
    ({ $($before:tt)* } $next:ident $($tables:ident)*) => { $next! { { $($before)*
Adapters {
    /// Train an adapter of the model, LoRA in PEFT's format, and leave its own weights as they are
    use_peft: bool = "false", TRAIN | BENCH, shapes graphs;
    /// An adapter of the model, as PEFT and xtrain save it: a directory, or its name on the Hub; training
    /// continues from it
    adapter_name_or_path: Option<ModelPath>, READING | GENERATE | MERGE | BENCH;
    /// Rank: the rows of A and columns of B
    lora_r: Count<1> = "16", TRAIN | BENCH, shapes graphs;
    /// The product of B and A is scaled by lora_alpha / lora_r
    lora_alpha: Positive = "32", TRAIN | BENCH, shapes graphs;
    /// Share of a layer's input that is dropped before A
    lora_dropout: BelowOne = "0.05", TRAIN | BENCH, shapes graphs;
    /// Linear layers to adapt: names or ends of names, one regular expression for whole names, or
    /// all-linear; default: PEFT's for the family, or all-linear
    lora_target_modules: Texts, TRAIN | BENCH, alias "target_modules", shapes graphs;
    /// Modules that are trained whole and saved with the adapter, by ends of names; a classifier's head always
    /// is
    lora_modules_to_save: Texts, TRAIN | BENCH, alias "modules_to_save", shapes graphs;
    /// Scale by lora_alpha / sqrt(lora_r), as rsLoRA
    use_rslora: bool = "false", TRAIN | BENCH, shapes graphs;
    /// Train the magnitude of each output besides, as DoRA
    use_dora: bool = "false", TRAIN | BENCH, shapes graphs;
    /// Give B a bias
    lora_bias: bool = "false", TRAIN | BENCH, shapes graphs;
    /// The model's own biases to train: none; lora_only, those of the adapted layers; all
    bias: AdapterBiases = "none", TRAIN | BENCH, shapes graphs;
    /// Linear layers to leave out: names or ends of names, or one regular expression for whole names
    exclude_modules: Texts, TRAIN | BENCH, shapes graphs;
    /// Numbers of the layers to adapt, as 0,1; default: all
    layers_to_transform: Option<LayerNumbers>, TRAIN | BENCH, shapes graphs;
    /// With layers_to_transform: what the list of layers is called; default: any name
    layers_pattern: Texts, TRAIN | BENCH, shapes graphs;
    /// Ids of tokens whose rows of the embeddings are trained, as 5,17: for new tokens
    trainable_token_indices: Option<LayerNumbers>, TRAIN | BENCH, shapes graphs;
    /// Ranks of layers by regular expressions for the ends of their names, as q_proj=8 or as a JSON object
    rank_pattern: Option<NumbersByName>, TRAIN | BENCH, shapes graphs;
    /// The same of lora_alpha
    alpha_pattern: Option<NumbersByName>, TRAIN | BENCH, shapes graphs;
    /// Where the head is tied to the token embeddings: adapt both, by one pair of matrices
    ensure_weight_tying: bool = "false", TRAIN | BENCH, shapes graphs;
    /// Hold the matrices of linear layers in 4 bits, quantized while they are loaded, as QLoRA; they are not
    /// trained
    load_in_4bit: bool = "false", READING | GENERATE | BENCH, shapes graphs;
    /// The same in 8 bits: integers with a factor for each output
    load_in_8bit: bool = "false", READING | GENERATE | BENCH, shapes graphs;
    /// With load_in_4bit: what codes stand for, quantiles of a normal distribution (nf4) or small floats (fp4)
    bnb_4bit_quant_type: QuantTypes = "nf4", READING | GENERATE | BENCH, shapes graphs;
    /// With load_in_4bit: quantize the factors of blocks, too (double quantization)
    use_bnb_nested_quant: bool = "false", READING | GENERATE | BENCH, alias "bnb_4bit_use_double_quant", shapes graphs;
}
Optimizer {
    /// Optimizer (the adamw names all mean AdamW with decoupled weight decay)
    optim: OptimizerKind = "adamw_torch", TRAIN;
    /// Arguments of the optimizer, torch's names, as momentum=0.9,nesterov=true or as a JSON object
    /// (a table in a settings file)
    optim_args: NamedArguments = "", TRAIN;
    /// Peak learning rate; sft: 2e-5, dpo and kto: 1e-6, reward: 1e-4, as in TRL
    learning_rate: NotNegative = "5e-5", TRAIN;
    /// Weight decay, not applied to biases and layer norms
    weight_decay: NotNegative = "0.0", TRAIN;
    /// beta1 of AdamW and LAMB, the decay rate of the first moment, and of Lion
    adam_beta1: BelowOne = "0.9", TRAIN;
    /// beta2 of AdamW and LAMB, the decay rate of the second moment, and of Lion
    adam_beta2: BelowOne = "0.999", TRAIN;
    /// AdamW's epsilon
    adam_epsilon: NotNegative = "1e-8", TRAIN;
    /// Global gradient norm to clip to; 0: no clipping
    max_grad_norm: NotNegative = "1.0", TRAIN;
    /// Learning-rate schedule; all but constant warm up if warmup_steps or warmup_ratio is set
    lr_scheduler_type: ScheduleType = "linear", TRAIN;
    /// Arguments of the schedule, transformers' names, as num_cycles=2 or as a JSON object (a
    /// table in a settings file)
    lr_scheduler_kwargs: NamedArguments = "", TRAIN;
    /// Linear warm-up steps or, below 1, a fraction of all steps; overrides warmup_ratio if
    /// above 0
    warmup_steps: NotNegative = "0", TRAIN;
    /// Fraction of all steps to warm up for, rounded up
    warmup_ratio: Fraction = "0.0", TRAIN;
    /// Share of each label that the loss spreads over all classes, also in evaluation
    label_smoothing_factor: Fraction = "0.0", WITH_LABELS, shapes graphs;
    /// What pairs are learned by: TRL's losses, several of which are added up, or orpo, which has no
    /// reference
    preference_losses: PreferenceLosses = "sigmoid", DPO, name "loss_type", shapes graphs;
    /// What answers are learned by; kto compares with the KL divergence, apo_zero_unpaired does not
    kto_loss: KtoLoss = "kto", KTO, name "loss_type", shapes graphs;
    /// Weight of each loss_type; default: 1 each
    loss_weights: Numbers, DPO, shapes graphs;
    /// How much leaving the reference costs (orpo: weight of the odds ratio)
    beta: Positive = "0.1", REFERENCED, shapes graphs;
    /// Share of flipped preferences that robust, exo_pair, aot and aot_unpaired reckon with; others
    /// ignore it, as in TRL
    label_smoothing: BelowOne = "0.0", DPO, shapes graphs;
    /// Weight of tokens past the shorter answer's length (LD-DPO); default: 1
    ld_alpha: Option<Fraction>, DPO, shapes graphs;
    /// Divergence from the reference that scores answers (f-DPO)
    f_divergence_type: FDivergence = "reverse_kl", DPO, shapes graphs;
    /// Alpha of f_divergence_type alpha_divergence
    f_alpha_divergence_coef: NotNegative = "0.5", DPO, shapes graphs;
    /// Weigh pairs by how likely the model makes them (WPO)
    use_weighting: bool = "false", DPO, shapes graphs;
    /// Temperature of loss_type discopop
    discopop_tau: Positive = "0.05", DPO, shapes graphs;
    /// Weight of good answers
    desirable_weight: NotNegative = "1.0", KTO, shapes graphs;
    /// Weight of bad answers
    undesirable_weight: NotNegative = "1.0", KTO, shapes graphs;
    /// Weight of the squared sum of a pair's rewards, which centres them around 0
    center_rewards_coefficient: Option<NotNegative>, REWARD, shapes graphs;
    /// Train without dropout, whatever the model's configuration says
    disable_dropout: bool = "true", PREFERENCES, shapes graphs;
    /// The reference: a model of the same architecture; default in training: the model as it is before
    /// its first step
    ref_model_name_or_path: Option<ModelPath>, REFERENCED;
    /// Examples on each device while the reference's log-probabilities are computed; default: those of
    /// training and evaluation
    precompute_ref_batch_size: Option<Count<1>>, REFERENCED;
    /// NEFTune: alpha of the noise on token embeddings in training; 5 is usual
    neftune_noise_alpha: Option<NotNegative>, TRAIN, shapes graphs;
    /// Regular expressions: parameters stay as they are, without gradient and optimizer state, if one
    /// is found in their names (those of model.safetensors; a tied weight has two)
    freeze: Texts, TRAIN, shapes graphs;
    /// Regular expressions: the opposite of freeze, all parameters but these stay as they are
    train_only: Texts, TRAIN, shapes graphs;
}
Precision {
    /// Mixed precision: matmuls and activations in bfloat16; weights, moments, norms, softmax
    /// and loss in float32
    bf16: bool = "false", TRAIN_EVAL | BENCH;
    /// Mixed precision in float16 with dynamic loss scaling; a step whose gradients overflow is
    /// skipped and counted, also by the learning-rate schedule
    fp16: bool = "false", TRAIN_EVAL | BENCH;
    /// Element type that weights are held in: bfloat16 implies bf16; auto is float32
    torch_dtype: TorchDtype = "float32", TRAIN_EVAL | BENCH, alias "dtype", shapes graphs;
    /// With --torch_dtype bfloat16: the optimizer updates float32 copies of the weights; false:
    /// weights and moments are bfloat16, half the memory, as torch trains a bfloat16 model
    master_weights: bool = "true", TRAIN | BENCH, shapes graphs;
    /// Evaluate with bfloat16 matmuls; default: training's precision
    bf16_full_eval: bool = "false", TRAIN_EVAL;
    /// Evaluate with float16 matmuls; default: training's precision
    fp16_full_eval: bool = "false", TRAIN_EVAL;
    /// With --device cuda: float32 matmuls use TF32, several times faster; default: exact
    /// float32, as torch's
    tf32: bool = "false", TRAIN_EVAL | BENCH | PREDICT;
    /// With --device cuda: a fixed order for every sum, so that runs on one card are equal bit for bit; costs
    /// time and memory (other devices are always deterministic)
    full_determinism: bool = "false", TRAIN_EVAL | BENCH;
    /// Recompute activations in the backward pass: true or full, each layer; every:K, K layers
    /// at a time; attention, only inside attention
    gradient_checkpointing: Checkpointing = "false", TRAIN | BENCH, alias "activation_checkpointing";
    /// With --device cuda: keep the layer inputs that gradient_checkpointing saves in host
    /// memory; alone it implies full
    activation_offloading: bool = "false", TRAIN | BENCH;
}
Parallel {
    /// Data-parallel replicas over all processes; default with several processes: one device
    /// per process, or what the other axes need. auto, for one of the degrees: what the others
    /// leave of the visible devices. CPU devices share the machine's cores
    data_parallel: Degree = "1", TRAIN_EVAL | BENCH;
    /// Tensor-parallel devices (Megatron-LM): shard heads, MLP and vocabulary; all of them see
    /// the same rows
    tensor_parallel: Degree = "1", TRAIN_EVAL | BENCH;
    /// With tensor_parallel: shard norms, dropout and residuals between the sharded matmuls by
    /// tokens (Megatron-LM's sequence parallelism)
    sequence_parallel: bool = "false", TRAIN | BENCH;
    /// ZeRO-3/FSDP: devices that shard every weight, gradient and moment and take different
    /// rows; weights are gathered layer by layer. With data_parallel above 1, groups of N
    /// devices (MiCS)
    shard_parallel: Degree = "1", TRAIN_EVAL | BENCH, alias "fsdp_size";
    /// Pipeline stages of consecutive layers (GPipe, PipeDream), balanced by work and
    /// parameters; microbatches are gradient_accumulation_steps: the more, the smaller the
    /// bubble
    pipeline_parallel: Degree = "1", TRAIN_EVAL | BENCH;
    /// Pipeline schedule: interleaved (1F1B, few microbatches in flight) or simple (GPipe: all
    /// forward, then all backward)
    pipeline_schedule: PipelineSchedule = "interleaved", TRAIN;
    /// Shard optimizer moments over data_parallel (ZeRO-1)
    shard_optimizer_state: bool = "false", TRAIN | BENCH;
    /// Gradient all-reduce bucket size in MB, last layers first; 0: one collective per tensor
    gradient_bucket_mb: Count<0> = "25", TRAIN | BENCH, alias "ddp_bucket_cap_mb";
    /// SageMaker's model parallelism, as pipeline_parallel_degree=2,microbatches=4 or JSON; becomes
    /// the flags for the same mesh
    mp_parameters: Option<MpParameters>, TRAIN;
    /// With dry_run: estimate memory and communication of every mesh of N devices, report which
    /// fit and compile the best; given degrees stay fixed
    compare_meshes: Option<Count<2>>, TRAINING;
    /// Steps between checks that all replicas (and stages' copies of shared weights) are equal;
    /// also at the end; a difference stops the run; 0: never
    replica_check_steps: Count<0> = "500", TRAIN;
    /// Processes to start on this machine
    nproc_per_node: Count<1> = "1", LAUNCH;
    /// Machines in the job; run the same command on each
    nnodes: Count<1> = "1", LAUNCH;
    /// This machine's number; node 0 holds the rendezvous
    node_rank: Count<0> = "0", LAUNCH;
    /// HOST:PORT of node 0 for the rendezvous, which listens on this address only; not needed
    /// on one machine
    rdzv_endpoint: Option<String>, LAUNCH;
    /// File with the machines' shared secret, readable only by its owner; default:
    /// $XTRAIN_RDZV_SECRET, on one machine a new one
    rdzv_secret_file: Option<PathBuf>, LAUNCH;
    /// Seconds for all processes to join
    rdzv_timeout: Count<1> = "300", LAUNCH;
    /// Seconds without a heartbeat after which a process counts as hung, a machine as lost
    heartbeat_timeout: Count<2> = "60", LAUNCH;
    /// Restarts of all processes after a failure, each from the last checkpoint in output_dir
    max_restarts: Count<0> = "0", LAUNCH;
}
Logging {
    /// When to log
    logging_strategy: Strategy = "steps", TRAIN, processes agree;
    /// Optimizer steps between log records or, below 1, the share of all steps
    logging_steps: Interval = "500", TRAIN, processes agree;
    /// Log the first step too
    logging_first_step: bool = "false", TRAIN, processes agree;
    /// Count input tokens in log records: all, or non_padding, those of examples
    include_num_input_tokens_seen: TokensSeen = "no", TRAIN, processes agree;
    /// Form of log records on standard output: trainer, the dictionary that scrapers read; line, for a
    /// person; json, as log.jsonl; auto: line on a terminal, else trainer
    log_format: LogFormat = "auto", TRAIN;
    /// Experiment trackers that get every log record, besides log.jsonl: tensorboard, event files in
    /// logging_dir; mlflow, the server at $MLFLOW_TRACKING_URI; kubeflow, the progress of a TrainJob;
    /// all: those that are set up
    report_to: TrackerNames = "none", TRAIN;
    /// Directory for TensorBoard's event files; default: $TENSORBOARD_LOGGING_DIR, else
    /// runs/TIME_HOST in output_dir
    logging_dir: Option<WrittenPath>, TRAIN;
    /// Name of the run in MLflow; default: the name of output_dir
    run_name: Option<String>, TRAIN;
    /// At the end write report.html to output_dir, or not; `xtrain report` makes it later, too
    report: RunReport = "html", TRAINING;
    /// No progress bars, even on a terminal
    disable_tqdm: bool = "false", READING | QUICKSTART;
}
Checkpoints {
    /// When to write checkpoint-N
    save_strategy: SaveStrategy = "steps", TRAIN;
    /// Optimizer steps between checkpoints or, below 1, the share of all steps
    save_steps: Interval = "500", TRAIN;
    /// Keep the N newest checkpoints, plus the best; default: all
    save_total_limit: Option<Count<1>>, TRAIN;
    /// Write checkpoints in the background while the next steps run, from a copy of the state in host
    /// memory; default: true if the copy takes at most half of the free memory
    async_save: Option<bool>, TRAIN;
    /// Save the model alone in checkpoints: smaller, but no run can resume from them
    save_only_model: bool = "false", TRAIN;
    /// Split saved weights above this size into several files with an index
    max_shard_size: Bytes = "5GB", TRAIN;
    /// Element type of the finished model's weights (checkpoints have what is trained); default:
    /// that of torch_dtype if it is given, else what was loaded
    save_dtype: Option<SaveDtype>, TRAIN;
    /// End with the weights of the best checkpoint
    load_best_model_at_end: bool = "false", TRAIN;
    /// Metric that decides the best: loss, perplexity, accuracy, f1, f1_LABEL,
    /// matthews_correlation, with or without eval_; default: loss
    metric_for_best_model: Option<String>, TRAIN;
    /// Whether a larger metric is better; default: true except for loss and perplexity
    greater_is_better: Option<bool>, TRAIN;
    /// Resume from this checkpoint or, without a path, from the newest in output_dir; auto: from the newest
    /// if there is one, else start anew
    resume_from_checkpoint: Resume = "false", TRAIN, processes differ;
    /// With resume_from_checkpoint: begin the checkpoint's epoch again, instead of at its place in
    /// it; the training data may be other than the checkpoint's
    ignore_data_skip: bool = "false", TRAIN;
}
Hub {
    /// Push the finished directory to the Hub, and with hub_strategy the model on the way
    push_to_hub: bool = "false", TRAIN;
    /// Repository to push to, as NAME or ORGANIZATION/NAME, made if it is missing; default: the name of
    /// output_dir
    hub_model_id: Option<String>, TRAIN, alias "push_to_hub_model_id";
    /// What to push besides the finished directory: end, nothing; every_save, the model of each
    /// checkpoint; checkpoint, also that checkpoint, as last-checkpoint; all_checkpoints, also each
    /// checkpoint under its name
    hub_strategy: HubStrategy = "every_save", TRAIN;
    /// Token for pushing; default: $HF_TOKEN, else the one that `hf auth login` saved
    hub_token: Option<String>, TRAIN, alias "push_to_hub_token";
    /// Make a new repository private, or public; default: what the account's settings say
    hub_private_repo: Option<bool>, TRAIN;
    /// Push every checkpoint; default: none while an earlier push is under way
    hub_always_push: bool = "false", TRAIN;
    /// Branch to push to, which must exist; default: main
    hub_revision: Option<String>, TRAIN;
}
Evaluation {
    /// When to evaluate during training; its last step counts as the end of an interval or epoch
    eval_strategy: Strategy = "no", TRAIN, alias "evaluation_strategy";
    /// Optimizer steps between evaluations or, below 1, the share of all steps; default:
    /// logging_steps
    eval_steps: Option<Interval>, TRAIN;
    /// Steps (with eval_strategy epoch: epochs) before the first evaluation
    eval_delay: NotNegative = "0", TRAIN;
    /// Evaluate before the first step too
    eval_on_start: bool = "false", TRAIN;
    /// Stop after N evaluations in a row without improvement of metric_for_best_model
    early_stopping_patience: Option<Count<1>>, TRAIN;
    /// Minimum change of the metric that counts as improvement
    early_stopping_threshold: NotNegative = "0.0", TRAIN;
    /// Evaluate the loss alone (language models: with the perplexity), not the task's metrics; faster.
    /// With do_predict they are computed all the same
    prediction_loss_only: bool = "false", TRAIN_EVAL, shapes graphs;
    /// The scores of each kind of entity too, as eval_PER_f1, with those of all named as
    /// eval_overall_f1
    return_entity_level_metrics: bool = "false", TOKEN_CLS;
    /// Include the texts in the CSV file
    include_text: bool = "false", PREDICT_CLS | PREDICT_REWARD;
}
} $($tables)* } };
}

pub(super) use training_flags;
