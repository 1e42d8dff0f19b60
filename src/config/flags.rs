//! The flags, each declared once: its sentence of help, name, kind, default, and the commands that
//! take it. The command line, settings files, `--help`, suggestions, `docs/flags.md` and the typed
//! field that `resolve` and the rules read all come from this declaration. Names are
//! TrainingArguments' and run_clm's wherever they have one, and so are defaults; where xtrain
//! differs, the help sentence says so. Names that are known and have no flag are declared here too.

use super::choices::*;
use super::command::sets::*;
use super::command::{CommandName, Commands};
use super::declare::{flags, sections, unbuilt};
use super::error::{Origin, UsageError};
use super::forms::*;
use super::instead;
use super::kind::*;
use super::setting::{Setting, Typed};
use std::path::PathBuf;
use xtrain_data::features::Features;
use xtrain_data::packing::PackingStrategy;
use xtrain_data::settings::Stopping;
use xtrain_data::settings::{OnBadRow, Quoting};
use xtrain_graphs::NeuronChip;
use xtrain_graphs::optim::ScheduleType;
use xtrain_parallel::PipelineSchedule;
use xtrain_report::records::LogFormat;
use xtrain_report::scaling::Fixed;
use xtrain_report::terminal::Colors;
use xtrain_trainer::settings::{Checkpointing, ExampleOrder, OptimizerKind, Resume, TokensSeen};

/// A flag without its typed field, for everything that lists flags.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// In snake_case; the kebab-case spelling is always accepted too.
    pub name: &'static str,
    /// Other names for the same setting.
    pub aliases: &'static [&'static str],
    pub kind: KindInfo,
    /// As one would type it; empty when there is none.
    pub default: &'static str,
    /// A sentence without its full stop.
    pub help: &'static str,
    pub commands: &'static [Commands],
    /// The heading that it stands below; `None` for flags that are not built.
    pub section: Option<Section>,
    pub support: Support,
    /// A letter for people at a terminal (`-j 4`), where the field has a habit.
    pub short: Option<char>,
    /// Its value shapes the graphs of a run, and with them its numbers: their origin in the cache
    /// and the run's checkpoints have it, and a resumed run notes another one.
    pub shapes_graphs: bool,
    /// It decides what the processes of a run do together, so that all of them have to have it alike.
    pub processes_agree: bool,
}

/// How xtrain treats a setting.
#[derive(Clone, Copy, Debug)]
pub enum Support {
    /// It is read into its field.
    Built(fn(&mut Flags, &[String], Origin) -> Result<(), Wrong>),
    /// There is no such flag, but what it asks for may happen anyway.
    Known {
        /// Accepted without a word: they say what is usual.
        silent: &'static [&'static str],
        /// Accepted with the help sentence as a note; `None`: all others. Any other value is
        /// refused with that sentence as the reason.
        noted: Option<&'static [&'static str]>,
    },
    /// Refused with the flags that do the same, by its value; without any it is accepted.
    Instead(fn(&str) -> Option<String>),
}

impl Flag {
    pub fn is_built(&self) -> bool {
        matches!(self.support, Support::Built(_))
    }

    /// Whether `command` takes it.
    pub fn is_of(&self, command: CommandName) -> bool {
        self.commands.iter().any(|set| set.contains(command))
    }

    /// Its name and the other names for it, in snake_case.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// Whether `name`, in either spelling, means this flag.
    pub fn answers_to(&self, name: &str) -> bool {
        let same = |own: &str| {
            own.len() == name.len()
                && own
                    .bytes()
                    .zip(name.bytes())
                    .all(|(a, b)| a == b || (a == b'_' && b == b'-'))
        };
        self.names().any(same)
    }
}

sections! {
    Run = "The run",
    Model = "Model",
    Data = "Data",
    Batches = "Batches and length",
    Adapters = "Adapters (LoRA)",
    Optimizer = "Optimizer",
    Precision = "Precision",
    Parallel = "Many devices",
    Logging = "Logging",
    Checkpoints = "Checkpoints",
    Hub = "Pushing to the Hub",
    Evaluation = "Evaluation",
    Generation = "Generation",
    Measurement = "Measurement",
    Neuron = "AWS Neuron",
    Cache = "The cache of compiled graphs",
}

impl Section {
    /// Whether the processes of a run agree on its settings, unless a flag says otherwise. Where a machine
    /// keeps its files, and how it reads them, is its own.
    const fn is_agreed(self) -> bool {
        use Section::*;
        matches!(
            self,
            Data | Batches | Adapters | Optimizer | Precision | Parallel | Checkpoints | Evaluation
        )
    }
}

flags! {
Run {
    /// Where to run; may stand before or after the command
    device: Device = "cpu", ALL, processes agree;
    /// Run on the CPU, as without --device
    use_cpu: bool = "false", TRAIN_EVAL, alias "no_cuda";
    /// The device's PJRT plugin (xla_cuda_plugin.so, libneuronpjrt.so); default:
    /// $XTRAIN_CUDA_PLUGIN or $NEURON_LIBRARY_PATH, else where pip installs it
    plugin: Option<PathBuf>, OPENING;
    /// With --device cuda: share of GPU memory to preallocate; default: 0.9
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
    /// Directory for the model, checkpoints, logs and results; required by train; quickstart's
    /// default: output/quickstart
    output_dir: Option<WrittenPath>, TRAIN_EVAL | MERGE | QUICKSTART | SWEEP;
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
    /// and kernels are reported. With --device neuron: the chip; default: this instance's, else
    /// trn1
    target: Option<Target>, COMPILE | FIT;
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
    max_seq_length: Option<Count<1>>, SFT | PREFERENCES | MLM | CLS | TOKEN_CLS, alias "max_length";
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
    pad_to_max_length: bool = "false", SFT | PREFERENCES | MLM | TOKEN_CLS;
    /// Pad all batches to max_seq_length; false: to powers of two; ignored with pad_to_bucket
    cls_pad_to_max_length: bool = "true", CLS, name "pad_to_max_length";
    /// Pad each batch to the smallest of these lengths that fits, as 32,64; compiles one graph
    /// per length and one for max_seq_length
    pad_to_bucket: Option<Buckets>, SFT | PREFERENCES | MLM | CLS | TOKEN_CLS;
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
    /// Resume from this checkpoint or, without a path, from the newest in output_dir
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
    include_text: bool = "false", PREDICT_CLS;
}
Generation {
    /// The text to continue
    prompt: Option<Prose>, GENERATE;
    /// A file with a prompt on each line; all of them are continued as one batch
    prompt_file: Option<PathBuf>, GENERATE;
    /// Hold a conversation on the terminal in the model's chat template, or answer prompt, or what a
    /// pipe brings
    chat: bool = "false", GENERATE;
    /// With chat: the system message
    system_prompt: Option<Prose>, GENERATE;
    /// Maximum number of tokens to generate; default: that of generation_config.json, else 50
    max_new_tokens: Option<Count<1>>, GENERATE;
    /// Sample instead of taking the likeliest token; default: true if temperature, top_k, top_p or
    /// min_p is given, else that of generation_config.json, else true
    do_sample: Option<bool>, GENERATE;
    /// Sampling temperature; 0: greedy; default: that of generation_config.json, else 1
    temperature: Option<NotNegative>, GENERATE;
    /// Sample from the K most likely tokens (0: all); default: that of generation_config.json, else
    /// 50
    top_k: Option<Count<0>>, GENERATE;
    /// Sample from the most likely tokens that together reach this probability; default: that of
    /// generation_config.json, else 1
    top_p: Option<Fraction>, GENERATE;
    /// Sample from tokens with at least this share of the likeliest token's probability; default:
    /// that of generation_config.json, else 0
    min_p: Option<Fraction>, GENERATE;
    /// Divide the logits of tokens that the text already has by this; default: that of
    /// generation_config.json, else 1
    repetition_penalty: Option<Positive>, GENERATE;
    /// Continuations of each prompt
    num_return_sequences: Count<1> = "1", GENERATE;
    /// End a text before any of these; default: those of generation_config.json
    stop_strings: Texts, GENERATE;
}
Measurement {
    /// Per-device memory budget for fit, auto and dry_run; default for fit and auto: the
    /// device's memory, on the CPU four fifths of the machine's
    memory: Option<Bytes>, TRAIN;
    /// RATE@EXAMPLES: a learning rate tuned for that many examples per step; scales it linearly
    /// to the batch that fits
    scale_learning_rate_from: Option<RateAtExamples>, FIT;
    /// Examples per data-parallel device and step
    batch: Count<1> = "4", BENCH;
    /// Tokens per example
    seq: Count<1> = "128", BENCH;
    /// Measured steps
    steps: Count<1> = "10", BENCH;
    /// Unmeasured steps after the first
    warmup: Count<0> = "2", BENCH;
    /// Dropout wherever the model has one; random weights only
    dropout: Fraction = "0", BENCH;
    /// Measure generation instead of training: batch texts of seq tokens are continued by steps tokens
    generate: bool = "false", BENCH;
    /// With --device cpu: where a step's time goes, by part of the model and kind of operation
    profile: bool = "false", BENCH;
    /// Print the result as JSON (train: the plan, with dry_run; report: with compare_losses)
    json: bool = "false", BENCH | DOCTOR | EVAL | CACHE_LS | CACHE_SHOW | CACHE_STATS | FIT | TOP | SCALING | TRAINING | REPORT;
    /// Degrees to run at, as 1,2,4; compared with the smallest
    degrees: Option<Degrees>, SCALING;
    /// Flag of the command to vary, or its processes, one per data-parallel replica;
    /// dataloader_num_workers: threads, of a training run
    axis: Axis = "data_parallel", SCALING;
    /// What is the same at every degree: batch, the examples of a step, which devices share (strong
    /// scaling); per_device, those of a device (weak scaling); examples, also those of the whole
    /// run, in fewer steps
    fixed: Fixed = "batch", SCALING;
    /// As --fixed per_device
    weak: bool = "false", SCALING;
    /// A flag of the command and its values, as learning_rate=1e-4,3e-4; every combination of
    /// several --grid is a run
    grid: Grids, SWEEP;
    /// Runs at the same time
    sweep_jobs: Count<1> = "1", SWEEP, name "jobs";
    /// Repetitions per degree; the median is reported
    repeats: Count<1> = "3", SCALING;
    /// Plot throughput by degree to this SVG file
    plot: Option<WrittenPath>, SCALING;
    /// Write table and plot to this HTML file
    html: Option<WrittenPath>, SCALING;
    /// The run that the others are compared with, as it was named; default: the first
    baseline: Option<String>, REPORT;
    /// Price of one instance for an hour; adds cost, and cost per million tokens
    price_per_hour: Option<NotNegative>, REPORT;
    /// Formats to write, as html,markdown,json
    format: Formats = "html", REPORT;
    /// The file to write, with each format's ending; default: report.html, for markdown or json
    /// alone standard output
    report_file: Option<WrittenPath>, REPORT, name "output";
    /// Compare the training losses of two runs step by step and smoothed, and write no page
    compare_losses: bool = "false", REPORT;
    /// With compare_losses: what losses are aligned by; auto: step if it is the same work in
    /// both runs, else tokens, epoch or time
    align: Alignment = "auto", REPORT;
    /// With compare_losses: values in a running mean
    window: Count<1> = "20", REPORT;
    /// With compare_losses: fail if the largest difference is above this share, as 0.01
    largest: Option<NotNegative>, REPORT;
    /// With compare_losses: fail if the mean difference is above this share
    mean: Option<NotNegative>, REPORT;
    /// With compare_losses: fail if the largest difference of running means is above this share
    smoothed: Option<NotNegative>, REPORT;
}
Neuron {
    /// With --device neuron: the chip to compile for; default: that of this instance, else trn1
    neuron_target: Option<NeuronChip>, RUNNING, name "target";
    /// neuronx-cc's --model-type; default: that of NEURON_CC_FLAGS, else transformer
    neuron_model_type: Option<NeuronModelType>, ON_A_DEVICE;
    /// neuronx-cc's --optlevel, where 1 compiles fastest; default: that of NEURON_CC_FLAGS,
    /// else 2
    neuron_optlevel: Option<NeuronOptlevel>, ON_A_DEVICE;
    /// neuronx-cc's --auto-cast, which casts f32 operations the model did not ask to; default:
    /// that of NEURON_CC_FLAGS, else none
    neuron_auto_cast: Option<NeuronAutoCast>, ON_A_DEVICE;
    /// neuronx-cc's --auto-cast-type; default: that of NEURON_CC_FLAGS, else bf16
    neuron_auto_cast_type: Option<NeuronAutoCastType>, ON_A_DEVICE;
    /// Stochastic rounding to 16 bits on the chip (NEURON_RT_STOCHASTIC_ROUNDING_EN), seeded by
    /// NEURON_RT_STOCHASTIC_ROUNDING_SEED, else 0
    neuron_stochastic_rounding: bool = "false", ON_A_DEVICE;
}
Cache {
    /// Graphs to compile in parallel; default: one per two cores
    jobs: Option<Count<1>>, COMPILE, short 'j';
    /// Load compiled graphs from cache_dir and store new ones there
    compile_cache: bool = "true", COMPILING;
    /// Where else to look for compiled graphs: another cache_dir, or a folder of objects
    /// (s3://BUCKET/PREFIX, gs://, az://, https://); what is found there is copied into cache_dir
    cache_remote: Option<StorePath>, COMPILING | CACHE_LS | CACHE_PUSH | CACHE_PULL;
    /// Store what is compiled here in cache_remote, too; hosts that do compile each graph once
    cache_remote_write: bool = "false", READING | GENERATE | BENCH;
    /// File with the key that signs the entries of cache_remote, readable only by its owner;
    /// default: $XTRAIN_CACHE_KEY; with a key, only signed entries are loaded
    cache_remote_key: Option<PathBuf>, READING | GENERATE | BENCH | CACHE_LS | CACHE_PUSH | CACHE_PULL;
    /// Cache size above which the least recently used graphs are evicted
    cache_max_size: Bytes = "10GiB", COMPILING;
    /// Fail instead of recompiling a graph that this run or an earlier one compiled in another
    /// version
    fail_on_recompile: bool = "false", READING | GENERATE | BENCH;
    /// Stored graphs, each by a unique prefix of its id
    id: Words, CACHE_SHOW | CACHE_EXPLAIN | CACHE_EXPORT | CACHE_VERIFY | CACHE_PUSH | CACHE_PULL;
    /// Print only the HLO module before compilation
    hlo: bool = "false", CACHE_SHOW;
    /// Print only the optimized HLO module
    optimized_hlo: bool = "false", CACHE_SHOW;
    /// Print only the module before compilation, as StableHLO
    stablehlo: bool = "false", CACHE_SHOW;
    /// Print the live buffers at peak memory, largest first, in the model's terms
    peak_memory: bool = "false", CACHE_SHOW, name "memory";
    /// Remove graphs not used for N days
    older_than: Option<NotNegative>, CACHE_PRUNE;
    /// Remove the least recently used graphs until the rest fits
    max_size: Option<Bytes>, CACHE_PRUNE;
    /// Restrict to graphs compiled for devices whose name starts with this (cpu, cuda, neuron)
    only_device: Option<String>, CACHE_PRUNE;
    /// Remove graphs that this build never loads: other XLA version, lowering or format
    stale_compiler: bool = "false", CACHE_PRUNE;
    /// Export modules without executables, each once, for a device whose host cannot lower
    /// graphs
    modules_only: bool = "false", CACHE_EXPORT;
    /// The tar file
    file: Option<ArchivePath>, CACHE_EXPORT | CACHE_IMPORT;
}}

// Names of TrainingArguments, run_clm, run_mlm, run_glue and run_ner without a flag. A setting that
// asks for what happens anyway is accepted, so that a command line or a complete dump of
// TrainingArguments works; any other value is refused. The sentence is what the user reads in both
// cases. What is built moves up.

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
    do_predict: FALSE, "only classifiers predict; see also `xtrain generate`";
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
    ensure_weight_tying: FALSE, "not built yet: one adapter for tied weights";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::COMMANDS;

    #[test]
    fn every_default_is_a_legal_value() {
        // It panics where one is not.
        let flags = Flags::new(COMMANDS[0].id);
        assert_eq!(*flags.learning_rate, 5e-5);
        assert_eq!(*flags.max_train_samples, None);
        assert!(!flags.learning_rate.is_given());
    }

    #[test]
    fn help_is_one_sentence_without_a_full_stop() {
        for flag in FLAGS {
            assert!(
                !flag.help.is_empty() && !flag.help.ends_with('.') && !flag.help.contains("  "),
                "{}",
                flag.name
            );
        }
    }
}
