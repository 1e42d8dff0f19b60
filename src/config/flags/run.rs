//! The flags that say what runs on what: the run itself, model, data, batches.
//!
//! A table that `flags.rs` declares from: the macro adds its sections to those that it is given, and hands
//! all of them to the next table.

macro_rules! run_flags {
    ({ $($before:tt)* } $next:ident $($tables:ident)*) => { $next! { { $($before)*
Run {
    /// Where to run; may stand before or after the command
    device: Device = "cpu", ALL, processes agree;
    /// Run on the CPU, as without --device
    use_cpu: bool = "false", TRAIN_EVAL, alias "no_cuda";
    /// The device's PJRT plugin (xla_cuda_plugin.so, libneuronpjrt.so); default:
    /// $XTRAIN_CUDA_PLUGIN or $NEURON_LIBRARY_PATH, else where pip installs it
    plugin: Option<PathBuf>, OPENING;
    /// With --device cuda: share of GPU memory to preallocate; default: 0.9, with several
    /// GPUs 0.85
    gpu_memory_fraction: Option<Fraction>, OPENING;
    /// With --device cuda: GPUs to use, as 0,1, among those that CUDA_VISIBLE_DEVICES leaves;
    /// default: the first
    visible_devices: Option<DeviceNumbers>, OPENING;
    /// With --device cuda: XLA compiler options, as
    /// xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1
    xla_options: Option<XlaOptions>, OPENING;
    /// TOML, YAML or JSON file with the same keys as these flags; flags win over the file
    config: Option<PathBuf>, ALL;
    /// Colours: auto, on a terminal unless NO_COLOR is set; always; never
    color: Colors = "auto", ALL;
    /// Output directories of the runs to watch, several beside each other; a sweep
    /// directory includes all of its runs
    watched: RunPaths, TOP, name "run";
    /// The same as a flag, for one run
    watched_dir: Option<PathBuf>, TOP, name "output_dir";
    /// Print the run's state once, as text, and exit
    once: bool = "false", TOP;
    /// Read device metrics from this file, which `neuron-monitor > FILE` writes; default: start
    /// neuron-monitor if it is installed and read the driver's files, else nvidia-smi
    neuron_monitor: Option<PathBuf>, TOP;
    /// Directory for the model, checkpoints, logs and results; required by train, which also takes a
    /// folder of a bucket (s3://, gs://, az://); quickstart's default: output/quickstart
    output_dir: Option<RunDir>, TRAIN_EVAL | MERGE | QUICKSTART | SWEEP;
    /// Allow a non-empty output directory; nothing is deleted up front, files are replaced as
    /// new ones are written
    overwrite_output_dir: bool = "false", TRAIN | MERGE | QUICKSTART;
    /// Write to an output directory that a run on another host has locked; use only if
    /// you are sure that run is dead
    take_over_output_dir: bool = "false", TRAIN;
    /// Train; default: true unless only --do_eval or --do_predict is given
    do_train: Option<bool>, TRAIN, processes agree;
    /// Evaluate at the end; default: true if eval_strategy is not no
    do_eval: Option<bool>, TRAIN, processes agree;
    /// Label the rows of test_file at the end, into predictions.csv (token-cls: .jsonl or .conll)
    do_predict: bool = "false", TRAIN_LABELLED, processes agree;
    /// The file to write; default: standard output
    output_file: Option<WrittenPath>, PREDICT;
    /// Print the resolved plan and what it will compile and hold in memory (prune: what would
    /// go), then stop
    dry_run: bool = "false", TRAINING | CACHE_PRUNE;
    /// Print this many examples as the training would see them, token by token, those that count in
    /// the loss marked, and what the training set counts, then stop; `xtrain data preview TASK` is the
    /// same with 3
    preview: Option<Count<1>>, TRAINING;
    /// With --device cuda: a GPU to compile for that need not be present; nothing runs, memory
    /// and kernels are reported (train: with dry_run). With --device neuron: the chip; default: this instance's, else
    /// trn1
    target: Option<Target>, TRAIN;
    /// With target: report the kernels of the compiled graphs by class and layer, what to look at in
    /// them, memory over the schedule and the least time of a step. cache show: of a stored graph
    kernels: bool = "false", COMPILE | CACHE_SHOW;
    /// Compile nothing; report what in each graph the device's compiler is not known to support
    /// (needs neither device nor plugin)
    check: bool = "false", COMPILE;
    /// Compile nothing; write each graph to this directory as HLO and StableHLO, with the
    /// device compiler's command lines
    export: Option<WrittenPath>, COMPILE;
    /// Random seed for initial weights, example order, dropout and sampling
    seed: u64 = "42", TRAIN | GENERATE | BENCH | QUICKSTART | EVAL, processes agree;
    /// Directory for tokenized text and compiled graphs; default: $XTRAIN_CACHE_DIR, else
    /// $XDG_CACHE_HOME/xtrain, else ~/.cache/xtrain
    cache_dir: Option<CachePath>, ON_A_DEVICE | MERGE | CACHE;
    /// Runs: output directories of xtrain or transformers, or a sweep's for all of its runs,
    /// trainer_state.json files, logs that hold the Trainer's records
    runs: RunPaths, REPORT, name "run";
    /// The command that each process runs, after --: train or eval with its flags
    launched: Words, LAUNCH, name "command";
    /// The command to measure, after --: bench or train with the flags of a run on one device
    scaled: Words, SCALING, name "command";
    /// The command to run at each combination, after --: train with its flags, but no output_dir
    swept: Words, SWEEP, name "command";
}
Model {
    /// Directory with config.json and model.safetensors, or a model's name on the Hub
    model_name_or_path: Option<ModelPath>, READING | GENERATE | MERGE | BENCH;
    /// Architecture to train from random weights: decoders for clm, encoders for mlm, either
    /// for cls
    model_type: Option<ModelType>, TRAIN_EVAL | BENCH;
    /// Sizes for random weights: a released model's name (gpt2, gpt-neo-125m, gpt-j-6b,
    /// bert-base-uncased, bert-mini, roberta-base, albert-base-v2, ...), or a config.json or
    /// the directory that holds one
    config_name: Option<ModelName>, TRAIN_EVAL | BENCH;
    /// Changes to that configuration, as n_layer=4,n_embd=256; random weights only
    config_overrides: Option<Overrides>, TRAIN_EVAL | BENCH;
    /// Directory with the tokenizer's files, a tokenizer.json, or a model's name on the Hub;
    /// default: the model's
    tokenizer_name: Option<ModelPath>, READING | GENERATE;
    /// Lowercase the text or keep its case (BERT's and ALBERT's tokenizers; a saved model keeps
    /// the setting); default: the tokenizer's own setting
    do_lower_case: Option<bool>, READING;
    /// auto: fused attention where the device has it (cpu by its kernels; cuda: 16-bit, no dropout,
    /// no local window); eager: always unfused
    attn_implementation: AttnImplementation = "auto", COMPILING, processes agree;
    /// With --device cpu: kernels of matmuls, attention, normalizations, losses and updates, auto (the fastest for
    /// this processor and shape) or xla (XLA's own)
    cpu_kernels: CpuKernelChoice = "auto", COMPILING, processes agree;
    /// With --device cpu: threads that compute, shared by the devices of a process; default: the
    /// physical cores that CPU affinity and quota leave it
    cpu_threads: Option<Count<1, 1024>>, COMPILING;
    /// With --device cuda: attention-dropout implementation, xtrain (unfused, reproducible) or
    /// cudnn (fused, not reproducible)
    attention_dropout_kernel: AttentionDropoutKernel = "xtrain", TRAIN | BENCH, processes agree;
    /// Reinitialize the head if its shape differs from the saved one, as for another number of
    /// labels
    ignore_mismatched_sizes: bool = "false", TRAIN;
    /// Branch, tag or commit for the model, tokenizer and configuration on the Hub
    model_revision: String = "main", READING | GENERATE | MERGE;
    /// Access token for gated and private repositories; default: $HF_TOKEN, else the one that
    /// `hf auth login` saved
    token: Option<String>, READING | GENERATE | MERGE;
    /// Use only the Hub's files in the cache and never connect, as HF_HUB_OFFLINE=1
    local_files_only: bool = "false", READING | GENERATE | MERGE;
}
Data {
    /// Files to train on, in order: text, CSV, TSV, JSON lines or parquet by their extension,
    /// all but parquet .gz too; also s3://, gs://, az:// and https://; wildcards; a folder with train and
    /// valid files; or files with their shares of the examples, as a.jsonl:0.7 b.jsonl:0.3
    train_file: Paths, TRAIN_EVAL, processes differ;
    /// When a mixture of training files ends, as datasets.interleave_datasets has it: with the file
    /// that ends first, or when each row has been there, files that ended beginning anew
    stopping_strategy: Stopping = "first_exhausted", TRAIN;
    /// Files to evaluate on; default: validation_split_percentage of train_file
    validation_file: Paths, TRAIN_EVAL, processes differ;
    /// mnli's second set to evaluate on, whose metrics end in _mm; files of validation_file with
    /// mismatched in their names are taken for it
    validation_mismatched_file: Paths, TRAIN_EVAL_CLS, processes differ;
    /// Data set on the Hub or in a directory, instead of train_file and validation_file, and of
    /// test_file if that is not given
    dataset_name: Option<DatasetName>, READING;
    /// Configuration of the data set; required if it has several
    dataset_config_name: Option<String>, READING;
    /// Percent of the training set to validate on without validation_file: the first lines of a
    /// text, random rows in cls
    validation_split_percentage: Percent = "5", TRAIN_EVAL;
    /// Files whose rows to label; no label column needed
    test_file: Paths, TRAIN_LABELLED | PREDICT, processes differ;
    /// mnli's second set to label, into predictions_mm.csv; files of test_file with mismatched in
    /// their names are taken for it
    test_mismatched_file: Paths, TRAIN_LIKE_CLS, processes differ;
    /// Column with the text; default: text, sentence or sentence1, else the only candidate
    /// (token-cls, lists of words: tokens or words; sft, texts or conversations: prompt with
    /// completion, messages, conversations or text)
    text_column_name: Option<String>, READING, alias "dataset_text_field";
    /// GLUE task: brings its columns and, without files, its data set
    task_name: Option<GlueTask>, CLS;
    /// What the tags are, ner, pos or chunk: label_column_name is then NAME_tags
    tag_task: Option<String>, TOKEN_CLS, name "task_name";
    /// Column with the second text of a pair; default: sentence2 if the first is sentence1,
    /// else none
    text_pair_column_name: Option<String>, CLS;
    /// Column with the label; default: label or labels (token-cls, lists: ner_tags or labels)
    label_column_name: Option<String>, LABELLED | TOKEN_CLS;
    /// Labels in order, as no,yes; default: the model's, else those of the training set, sorted
    labels: Option<LabelNames>, TRAIN_LABELLED;
    /// Label every piece of a word (I-X after B-X), not the first piece alone
    label_all_tokens: bool = "false", TOKEN_CLS;
    /// Predict numbers instead of classes; default: true if training labels are floating point
    /// numbers
    do_regression: Option<bool>, TRAIN_LIKE_CLS;
    /// Meaning of quotes in a table: none, RFC 4180, or RFC 4180 with backslash escapes;
    /// default: standard in CSV; in TSV fields may not begin with a quote
    quoting: Option<Quoting>, READING;
    /// Stop at an unusable row, or skip it and report how many were skipped
    on_bad_row: OnBadRow = "error", READING;
    /// Tokens per example; default: the tokenizer's maximum or, beyond the model's positions,
    /// min(1024, positions)
    block_size: Option<Count<1>>, CLM;
    /// Perplexity over a sliding window of block_size tokens that moves by N: each token counts
    /// once, with all but the first of a window seeing block_size - N tokens before them at least;
    /// default: separate blocks
    stride: Option<Count<1>>, EVAL_CLM;
    /// Tokens per example, of which longer ones are truncated; default: the tokenizer's maximum,
    /// at most 1024 (cls: 128) and the model's positions
    max_seq_length: Option<Count<1>>, SFT | PREFERENCES | PREDICT_REWARD | MLM | CLS | TOKEN_CLS, alias "max_length";
    /// Compute the loss on the completion only
    completion_only_loss: bool = "true", SFT;
    /// Compute the loss on the assistant's turns only
    assistant_only_loss: bool = "false", SFT;
    /// Which end of a longer pair is kept; with keep_start, pairs whose prompt alone fills max_length
    /// are left out
    truncation_mode: Truncation = "keep_start", DPO;
    /// Pack several examples into each row of max_seq_length tokens; each sees itself alone, from
    /// position 0 on
    packing: bool = "false", SFT;
    /// How: bfd, best fit decreasing, cuts examples longer than a row; bfd_split splits them; wrapped
    /// concatenates all and cuts anywhere, and examples see those before them in the row
    packing_strategy: PackingStrategy = "bfd", SFT;
    /// The same for sets to evaluate on; default: as packing
    eval_packing: Option<bool>, SFT;
    /// Accepted with packing, whose rows have hardly any padding
    padding_free: bool = "false", SFT;
    /// Loss of a token: nll, cross-entropy (chunked_nll means the same); dft, cross-entropy times the
    /// token's probability as a constant (dynamic fine-tuning)
    loss_type: LossType = "nll", SFT, shapes graphs;
    /// Treat each line as an example, instead of concatenating lines and chunking
    line_by_line: bool = "false", MLM;
    /// Share of tokens to predict: 80% masked, 10% replaced at random, 10% kept, drawn anew in
    /// each epoch
    mlm_probability: Fraction = "0.15", MLM;
    /// Mask whole words rather than tokens
    whole_word_mask: bool = "false", MLM;
    /// Pad all batches to max_seq_length, else to powers of two (mlm: only with line_by_line)
    pad_to_max_length: bool = "false", SFT | PREFERENCES | PREDICT_REWARD | MLM | TOKEN_CLS;
    /// Pad all batches to max_seq_length; false: to powers of two; ignored with pad_to_bucket
    cls_pad_to_max_length: bool = "true", CLS, name "pad_to_max_length";
    /// Pad each batch to the smallest of these lengths that fits, as 32,64; compiles one graph
    /// per length and one for max_seq_length
    pad_to_bucket: Option<Buckets>, SFT | PREFERENCES | PREDICT_REWARD | MLM | CLS | TOKEN_CLS;
    /// Read the training files during the run, instead of tokenizing them first; needs
    /// max_steps
    streaming: bool = "false", TRAIN;
    /// With streaming: rows in the shuffle buffer, drawn at random by data_seed; 0: file order
    shuffle_buffer_size: Count<0> = "1000", TRAIN;
    /// Use only the first N training examples
    max_train_samples: Option<Count<1>>, TRAIN;
    /// Use only the first N evaluation examples
    max_eval_samples: Option<Count<1>>, TRAIN_EVAL;
    /// Label only the first N rows of test_file
    max_predict_samples: Option<Count<1>>, TRAIN_LABELLED | PREDICT;
    /// Tokenization threads; default: one per core
    preprocessing_num_workers: Option<Count<1, 1024>>, READING, alias "dataset_num_proc", processes differ;
    /// Threads that upload batches ahead of the step; 0: the training thread does it
    dataloader_num_workers: Count<0, 1024> = "0", READING, processes differ;
    /// Drop the last incomplete batch of an epoch
    dataloader_drop_last: bool = "false", TRAIN;
    /// Order of training examples: random, anew in each epoch; sequential, as in the files;
    /// group_by_length, random with examples of about the same length together
    train_sampling_strategy: ExampleOrder = "random", TRAIN;
    /// As --train_sampling_strategy group_by_length
    group_by_length: bool = "false", TRAIN;
    /// Seed for the order of examples; default: seed
    data_seed: Option<u64>, TRAIN;
    /// Tokenize again even if the tokenized text is cached
    overwrite_cache: bool = "false", READING, processes differ;
}
Batches {
    /// Examples per device and microbatch; auto: the largest that fits into memory, as `xtrain
    /// fit` finds it
    per_device_train_batch_size: Degree = "8", TRAIN, alias "per_gpu_train_batch_size";
    /// Examples per device and evaluation batch
    per_device_eval_batch_size: Count<1> = "8", READING, alias "per_gpu_eval_batch_size";
    /// Microbatches per optimizer step
    gradient_accumulation_steps: Count<1> = "1", TRAIN;
    /// Passes over the training examples; may be a fraction
    num_train_epochs: NotNegative = "3.0", TRAIN;
    /// Optimizer steps, overriding epochs (quickstart: its own default); -1 or 0: not set
    max_steps: MaxSteps = "-1", TRAIN | QUICKSTART;
}
} $($tables)* } };
}

pub(super) use run_flags;
