//! The settings that xtrain honours. Defaults are TrainingArguments' and run_clm's own; where
//! xtrain differs, the help sentence says so. Order within a section is the order of `--help`.

use super::super::kind::{Kind, Range};
use super::super::scaling::AXES;
use super::{Commands, Flag, Section, Support};
use crate::runtime::neuron::compiler as neuron;
use crate::trainer::gpu::Gpu;

/// Compiling ahead takes a training run's flags, so that the same words do for both.
const TRAIN: Commands = Commands::TRAIN.and(Commands::COMPILE).and(Commands::FIT);
const EVAL: Commands = Commands::EVAL;
const GENERATE: Commands = Commands::GENERATE;
const BENCH: Commands = Commands::BENCH;
const QUICKSTART: Commands = Commands::QUICKSTART;
const TRAIN_EVAL: Commands = TRAIN.and(EVAL);
const PREDICT: Commands = Commands::PREDICT_CLS;
const CLM: Commands = Commands::CLM;
const MLM: Commands = Commands::MLM;
const CLS: Commands = Commands::CLS;
/// Commands that read a data set.
const READING: Commands = TRAIN_EVAL.and(PREDICT);
/// Those of them whose tables have labels.
const LABELLED: Commands = Commands::TRAIN_LIKE_CLS.and(Commands::EVAL_CLS);
/// Commands that compile graphs.
const COMPILING: Commands = READING.and(GENERATE).and(BENCH).and(QUICKSTART);
/// Commands that run something on a device.
const RUNNING: Commands = Commands::TRAIN
    .and(EVAL)
    .and(PREDICT)
    .and(GENERATE)
    .and(BENCH)
    .and(QUICKSTART)
    .and(Commands::DOCTOR);
/// Commands that a device's settings matter to.
const ON_A_DEVICE: Commands = COMPILING.and(Commands::DOCTOR);

/// Commands that open a device.
const OPENING: Commands = COMPILING.and(Commands::DOCTOR).and(Commands::CACHE_VERIFY);

/// What can be compiled for by name.
const TARGETS: [&str; 6] = {
    let ([a, b, c, d], [e, f]) = (Gpu::NAMES, [neuron::TARGETS[0], neuron::TARGETS[1]]);
    [a, b, c, d, e, f]
};

const STRATEGIES: Kind = Kind::Choice(&["no", "steps", "epoch"]);

const fn flag(
    section: Section,
    commands: Commands,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        aliases: &[],
        kind,
        default,
        help,
        commands,
        section,
        support: Support::Built,
        positional: false,
        short: None,
    }
}

impl Flag {
    const fn alias(self, aliases: &'static [&'static str]) -> Flag {
        Flag { aliases, ..self }
    }

    const fn short(self, letter: char) -> Flag {
        Flag {
            short: Some(letter),
            ..self
        }
    }

    const fn positional(self) -> Flag {
        Flag {
            positional: true,
            ..self
        }
    }
}

#[rustfmt::skip] // One row a line or two reads better than seven.
pub const FLAGS: &[Flag] = &[
    // The run.
    flag(Section::Run, Commands::ALL, "device", Kind::Choice(&["cpu", "cuda", "neuron"]), "cpu",
        "Where to run; may stand before or after the command"),
    flag(Section::Run, OPENING, "plugin", Kind::Path, "",
        "The device's plugin (xla_cuda_plugin.so, libneuronpjrt.so); default: $XTRAIN_CUDA_PLUGIN or $NEURON_LIBRARY_PATH, else where pip puts it"),
    flag(Section::Run, OPENING, "gpu_memory_fraction", Kind::Float(Range::Fraction), "",
        "With --device cuda, share of the GPU's memory to take at the start; default: 0.9"),
    flag(Section::Run, OPENING, "visible_devices", Kind::Text, "",
        "With --device cuda, the GPUs to use, as 0,1, of those that CUDA_VISIBLE_DEVICES leaves; default: the first"),
    flag(Section::Run, OPENING, "xla_options", Kind::Text, "",
        "With --device cuda, options of XLA's compiler, as xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1"),
    flag(Section::Run, Commands::ALL, "config", Kind::Path, "",
        "TOML or JSON file with the same keys as these flags; flags win over the file"),
    flag(Section::Run, Commands::TOP, "output_dir", Kind::Path, "",
        "The run to watch: its --output_dir"),
    flag(Section::Run, Commands::TOP, "once", Kind::Bool, "false",
        "Print the run's state once, as text, and end"),
    flag(Section::Run, Commands::TOP, "neuron_monitor", Kind::Path, "",
        "Take the devices' figures from this file, which `neuron-monitor > FILE` writes; default: neuron-monitor is started where it is installed, beside the driver's files; else nvidia-smi"),
    flag(Section::Run, TRAIN_EVAL.and(QUICKSTART), "output_dir", Kind::Path, "",
        "Directory for the model, checkpoints, logs and results; needed by train; quickstart uses output/quickstart if not told"),
    flag(Section::Run, TRAIN.and(QUICKSTART), "overwrite_output_dir", Kind::Bool, "false",
        "Allow an output directory that is not empty; nothing is deleted up front, files are replaced as new ones are written"),
    flag(Section::Run, TRAIN, "do_train", Kind::Bool, "",
        "Train; the default, unless only --do_eval is given"),
    flag(Section::Run, TRAIN, "do_eval", Kind::Bool, "",
        "Evaluate at the end; on by itself when eval_strategy is not no"),
    flag(Section::Run, Commands::TRAIN_LIKE_CLS, "do_predict", Kind::Bool, "false",
        "Label the rows of test_file at the end, into predictions.csv"),
    flag(Section::Run, PREDICT, "output_file", Kind::Path, "",
        "The CSV file to write; default: standard output"),
    flag(Section::Run, Commands::TRAIN.and(Commands::CACHE_PRUNE), "dry_run", Kind::Bool, "false",
        "Print the resolved plan and what it will compile and hold in memory (prune: what would go), then stop"),
    flag(Section::Run, Commands::COMPILE.and(Commands::FIT), "target", Kind::Choice(&TARGETS), "",
        "With --device cuda, a card that need not be there: compile for it, by its description, and tell what that needs; nothing can run. With --device neuron: the chip; default: that of this instance, else trn1"),
    flag(Section::Run, Commands::COMPILE, "check", Kind::Bool, "false",
        "Compile nothing; say of each graph what the device's compiler is not known to take (neither device nor plugin is needed)"),
    flag(Section::Run, Commands::COMPILE, "export", Kind::Path, "",
        "Compile nothing; write each graph into this directory as HLO and StableHLO, with the command lines of the device's compiler"),
    flag(Section::Run, TRAIN.and(GENERATE).and(BENCH).and(QUICKSTART).and(EVAL), "seed", Kind::Int { min: 0 }, "42",
        "Seed of everything random: initial weights, order of examples, dropout, sampling"),
    flag(Section::Run, ON_A_DEVICE.and(Commands::CACHE), "cache_dir", Kind::Path, "",
        "Where tokenized text and compiled graphs are kept; default $XTRAIN_CACHE_DIR, else $XDG_CACHE_HOME/xtrain, else ~/.cache/xtrain"),

    // Model.
    flag(Section::Model, READING.and(GENERATE).and(BENCH), "model_name_or_path", Kind::Path, "",
        "Directory with config.json and model.safetensors to start from, or a model's name on the Hub"),
    flag(Section::Model, TRAIN_EVAL.and(BENCH), "model_type", Kind::Choice(&xtrain_models::MODEL_TYPES), "",
        "Architecture to train from random weights: a decoder for clm and cls, an encoder for mlm and cls"),
    flag(Section::Model, TRAIN_EVAL.and(BENCH), "config_name", Kind::Text, "",
        "Sizes for random weights: a released model's name (gpt2, gpt-neo-125m, gpt-j-6b, bert-base-uncased, bert-mini, roberta-base, \
         albert-base-v2, ...), or a config.json or the directory that holds one"),
    flag(Section::Model, TRAIN_EVAL.and(BENCH), "config_overrides", Kind::Text, "",
        "Changes to that configuration, as n_layer=4,n_embd=256; only with random weights"),
    flag(Section::Model, READING.and(GENERATE), "tokenizer_name", Kind::Path, "",
        "Directory with the tokenizer's files, a tokenizer.json, or a model's name on the Hub; default: the model's"),
    flag(Section::Model, READING, "do_lower_case", Kind::Bool, "",
        "Turn texts into lower case, or leave capitals alone: BERT's and ALBERT's tokenizers can be told, and a saved model keeps it; default: as the tokenizer says"),
    flag(Section::Model, COMPILING, "attn_implementation", Kind::Choice(&["auto", "eager"]), "auto",
        "auto: attention as one call where the device has it (cuda, 16 bits, no dropout, no local window); eager: always written out"),
    flag(Section::Model, TRAIN.and(BENCH), "attention_dropout_kernel", Kind::Choice(&["xtrain", "cudnn"]), "xtrain",
        "With --device cuda: who drops attention weights out. xtrain: attention is written out, with masks that a resumed run repeats; cudnn: it stays one \
         call, whose masks no run repeats"),
    flag(Section::Model, TRAIN, "ignore_mismatched_sizes", Kind::Bool, "false",
        "Start the head anew where its shape is not that of the saved one, as for another number of labels"),
    flag(Section::Model, READING.and(GENERATE), "model_revision", Kind::Text, "main",
        "Branch, tag or commit of the model, tokenizer and configuration that come from the Hub"),
    flag(Section::Model, READING.and(GENERATE), "token", Kind::Text, "",
        "Token for gated and private repositories of the Hub; default: $HF_TOKEN, else the one that `hf auth login` saved"),

    // Data.
    flag(Section::Data, TRAIN_EVAL, "train_file", Kind::Paths, "",
        "Files to train on, in order: text, CSV, TSV, JSON lines or parquet by their extension, all but parquet .gz too; also s3:// and https://"),
    flag(Section::Data, TRAIN_EVAL, "validation_file", Kind::Paths, "",
        "Files to evaluate on; without them validation_split_percentage of train_file serves"),
    flag(Section::Data, READING, "dataset_name", Kind::Text, "",
        "Data set on the Hub, in place of train_file and validation_file, and of test_file where that is not given"),
    flag(Section::Data, READING, "dataset_config_name", Kind::Text, "",
        "Its configuration; needed where it has several"),
    flag(Section::Data, TRAIN_EVAL, "validation_split_percentage", Kind::Float(Range::Percent), "5",
        "Share of the training set that validates when there is no validation_file: the first lines of a text, random rows in cls"),
    flag(Section::Data, Commands::TRAIN_LIKE_CLS.and(PREDICT), "test_file", Kind::Paths, "",
        "Files whose rows are to be labelled; they need no label column"),
    flag(Section::Data, READING, "text_column_name", Kind::Text, "",
        "Column with the text; default: text, sentence or sentence1, else the only one that can be meant"),
    flag(Section::Data, CLS, "text_pair_column_name", Kind::Text, "",
        "Column with the second text of a pair; default: sentence2 where the first is sentence1, else there are no pairs"),
    flag(Section::Data, LABELLED, "label_column_name", Kind::Text, "",
        "Column with the label; default: label or labels"),
    flag(Section::Data, Commands::TRAIN_LIKE_CLS, "labels", Kind::Text, "",
        "The labels in order, as no,yes; default: the model's own, else those of the training set, sorted"),
    flag(Section::Data, Commands::TRAIN_LIKE_CLS, "do_regression", Kind::Bool, "",
        "Labels are numbers to be estimated; default: where some of the training set's are fractions"),
    flag(Section::Data, READING, "quoting", Kind::Choice(&["none", "standard", "backslash"]), "",
        "What quotes mean in a table: nothing, RFC 4180, or that with backslash escapes; default: standard in CSV, none in TSV"),
    flag(Section::Data, READING, "on_bad_row", Kind::Choice(&["error", "skip"]), "error",
        "Stop at a row that cannot be used, or leave it out and say how many there were"),
    flag(Section::Data, CLM, "block_size", Kind::Int { min: 1 }, "",
        "Tokens per example; default: the tokenizer's maximum or, beyond the model's positions, min(1024, positions)"),
    flag(Section::Data, MLM, "max_seq_length", Kind::Int { min: 1 }, "",
        "Tokens per example; default: the tokenizer's maximum, at most 1024 and the model's positions"),
    flag(Section::Data, CLS, "max_seq_length", Kind::Int { min: 1 }, "128",
        "Tokens per example; longer ones are cut, the longest text of a pair first"),
    flag(Section::Data, MLM, "line_by_line", Kind::Bool, "false",
        "Take each line as an example of its own, instead of joining lines and cutting them"),
    flag(Section::Data, MLM, "mlm_probability", Kind::Float(Range::Fraction), "0.15",
        "Share of the tokens to predict; of these 80% are masked, 10% exchanged and 10% left, anew in each epoch"),
    flag(Section::Data, MLM, "whole_word_mask", Kind::Bool, "false",
        "Choose whole words to predict, rather than tokens"),
    flag(Section::Data, MLM, "pad_to_max_length", Kind::Bool, "false",
        "With line_by_line, pad all batches to max_seq_length; else to powers of two"),
    flag(Section::Data, CLS, "pad_to_max_length", Kind::Bool, "true",
        "Pad all batches to max_seq_length; false: to powers of two. Off by itself with pad_to_bucket"),
    flag(Section::Data, MLM.and(CLS), "pad_to_bucket", Kind::Text, "",
        "Pad each batch to the smallest of these lengths that it fits, as 32,64; one graph is compiled for each and for max_seq_length"),
    flag(Section::Data, TRAIN, "streaming", Kind::Bool, "false",
        "Read the training files as the run goes on, instead of tokenizing all of them before it; needs max_steps"),
    flag(Section::Data, TRAIN, "shuffle_buffer_size", Kind::Int { min: 0 }, "1000",
        "With streaming, rows that wait in memory to be drawn from, at random by data_seed; 0: in the order of the files"),
    flag(Section::Data, TRAIN, "max_train_samples", Kind::Int { min: 1 }, "",
        "Use only the first so many training examples"),
    flag(Section::Data, TRAIN_EVAL, "max_eval_samples", Kind::Int { min: 1 }, "",
        "Use only the first so many evaluation examples"),
    flag(Section::Data, Commands::TRAIN_LIKE_CLS.and(PREDICT), "max_predict_samples", Kind::Int { min: 1 }, "",
        "Label only the first so many rows of test_file"),
    flag(Section::Data, READING, "preprocessing_num_workers", Kind::Int { min: 1 }, "",
        "Threads that tokenize; default: one per core"),
    flag(Section::Data, READING, "dataloader_num_workers", Kind::Int { min: 0 }, "0",
        "Threads that put the next batches on the device ahead of the step; 0 does it in the step's own thread"),
    flag(Section::Data, TRAIN, "dataloader_drop_last", Kind::Bool, "false",
        "Leave out the last batch of an epoch when it is not full"),
    flag(Section::Data, TRAIN, "data_seed", Kind::Int { min: 0 }, "",
        "Seed of the order of examples; default: seed"),
    flag(Section::Data, READING, "overwrite_cache", Kind::Bool, "false",
        "Tokenize anew even if the tokenized text is in the cache"),

    // Batches.
    flag(Section::Batches, TRAIN, "per_device_train_batch_size", Kind::CountOrAuto, "8",
        "Examples per device in one microbatch; auto: as many as fit into memory, as `xtrain fit` finds them"),
    flag(Section::Batches, READING, "per_device_eval_batch_size", Kind::Int { min: 1 }, "8",
        "Examples per device in one evaluation batch"),
    flag(Section::Batches, TRAIN, "gradient_accumulation_steps", Kind::Int { min: 1 }, "1",
        "Microbatches per optimizer step"),
    flag(Section::Batches, TRAIN, "num_train_epochs", Kind::Float(Range::NotNegative), "3.0",
        "Passes over the training examples; may be a fraction"),
    flag(Section::Batches, TRAIN.and(QUICKSTART), "max_steps", Kind::Int { min: -1 }, "-1",
        "Optimizer steps, instead of epochs (in quickstart, instead of its own number); -1 or 0: not set"),

    // Optimizer.
    flag(Section::Optimizer, TRAIN, "optim", Kind::Choice(&["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "sgd"]), "adamw_torch",
        "Optimizer (the adamw names all mean AdamW with decoupled decay)"),
    flag(Section::Optimizer, TRAIN, "learning_rate", Kind::Float(Range::NotNegative), "5e-5",
        "Peak learning rate"),
    flag(Section::Optimizer, TRAIN, "weight_decay", Kind::Float(Range::NotNegative), "0.0",
        "Decay, not applied to biases and layer norms"),
    flag(Section::Optimizer, TRAIN, "adam_beta1", Kind::Float(Range::BelowOne), "0.9",
        "Decay rate of AdamW's first moment"),
    flag(Section::Optimizer, TRAIN, "adam_beta2", Kind::Float(Range::BelowOne), "0.999",
        "Decay rate of AdamW's second moment"),
    flag(Section::Optimizer, TRAIN, "adam_epsilon", Kind::Float(Range::NotNegative), "1e-8",
        "AdamW's epsilon"),
    flag(Section::Optimizer, TRAIN, "max_grad_norm", Kind::Float(Range::NotNegative), "1.0",
        "Clip the global gradient norm to this; 0 clips nothing"),
    flag(Section::Optimizer, TRAIN, "lr_scheduler_type", Kind::Choice(&["linear", "cosine", "constant", "constant_with_warmup"]), "linear",
        "Learning rate after the warm-up, which constant has too when warmup_steps or warmup_ratio ask for it"),
    flag(Section::Optimizer, TRAIN, "warmup_steps", Kind::Float(Range::NotNegative), "0",
        "Steps of linear warm-up or, below 1, their share of all steps; when above 0 it takes the place of warmup_ratio"),
    flag(Section::Optimizer, TRAIN, "warmup_ratio", Kind::Float(Range::Fraction), "0.0",
        "Share of all steps that warms up, rounded up"),

    // Precision.
    flag(Section::Precision, TRAIN_EVAL.and(BENCH), "bf16", Kind::Bool, "false",
        "Matrix products and the activations between them in bfloat16; weights, moments, norms, softmax and loss stay in float32"),
    flag(Section::Precision, TRAIN_EVAL.and(BENCH), "fp16", Kind::Bool, "false",
        "The same in IEEE half precision, with a dynamic loss scale; a step whose gradients overflow is skipped and counted, and the learning-rate schedule counts it too"),
    flag(Section::Precision, TRAIN_EVAL, "bf16_full_eval", Kind::Bool, "false",
        "Evaluate with bfloat16 products whatever training uses; default: as training does"),
    flag(Section::Precision, TRAIN_EVAL, "fp16_full_eval", Kind::Bool, "false",
        "Evaluate with half-precision products whatever training uses; default: as training does"),
    flag(Section::Precision, TRAIN_EVAL.and(BENCH).and(PREDICT), "tf32", Kind::Bool, "false",
        "With --device cuda: products that stay float32 round their operands to TF32, which is several times faster; without it they are exact, as torch's"),

    // Activations.
    flag(Section::Precision, TRAIN.and(BENCH), "gradient_checkpointing", Kind::Checkpointing, "false",
        "Compute activations once more in the backward pass instead of keeping them: true or full, each layer on its own; every:K, K layers together; attention, only what is inside of attention").alias(&["activation_checkpointing"]),
    flag(Section::Precision, TRAIN.and(BENCH), "activation_offloading", Kind::Bool, "false",
        "With --device cuda: the layers' inputs that gradient_checkpointing keeps wait in the host's memory; alone it means full"),

    // Many devices.
    flag(Section::Parallel, TRAIN_EVAL.and(BENCH), "data_parallel", Kind::CountOrAuto, "1",
        "Devices, of all processes together, that hold the same model and take different rows of each batch; default with several processes: what gives each one device, or as many as the other axes need. auto, of one of the degrees: what the others leave of the visible devices. On the CPU devices of a machine share its cores"),
    flag(Section::Parallel, TRAIN_EVAL.and(BENCH), "tensor_parallel", Kind::CountOrAuto, "1",
        "Devices that divide each layer between them, by heads, inner width and vocabulary, for the same rows (Megatron-LM)"),
    flag(Section::Parallel, TRAIN.and(BENCH), "sequence_parallel", Kind::Bool, "false",
        "With tensor_parallel: between the divided matrices each device computes and keeps norms, dropout and residuals of its own tokens only (Megatron-LM's sequence parallelism)"),
    flag(Section::Parallel, TRAIN_EVAL.and(BENCH), "shard_parallel", Kind::CountOrAuto, "1",
        "Devices that hold one part each of every weight, gradient and moment (ZeRO-3) and take different rows; weights are put together layer by layer. With data_parallel above 1, groups of so many devices (MiCS)"),
    flag(Section::Parallel, TRAIN_EVAL.and(BENCH), "pipeline_parallel", Kind::CountOrAuto, "1",
        "Stages that hold consecutive layers each and hand microbatches on (GPipe, PipeDream); layers are dealt out by work and parameters. The microbatches of a step are those of gradient_accumulation_steps: the more, the less stages wait for each other"),
    flag(Section::Parallel, TRAIN, "pipeline_schedule", Kind::Choice(&["interleaved", "simple"]), "interleaved",
        "Order in which a stage takes microbatches. interleaved: backward as soon as it can, so that few are under way at a time; simple: all forward, then all backward"),
    flag(Section::Parallel, TRAIN.and(BENCH), "shard_optimizer_state", Kind::Bool, "false",
        "Each device of data_parallel holds and updates one part of the optimizer's moments (ZeRO-1)"),
    flag(Section::Parallel, TRAIN.and(BENCH), "gradient_bucket_mb", Kind::Int { min: 0 }, "25",
        "Replicas exchange gradients in collectives of so many MB, the last layer's first; 0: one for each tensor"),
    flag(Section::Parallel, Commands::TRAIN, "compare_meshes", Kind::Int { min: 2 }, "",
        "With dry_run: every mesh of so many devices, what each holds and exchanges by estimate, which of them fit into memory, the best of these compiled. Degrees that are given stay"),
    flag(Section::Parallel, TRAIN, "replica_check_steps", Kind::Int { min: 0 }, "500",
        "Compare the weights of all replicas, and stages' copies of shared ones, every so many steps and at the end, and stop when they differ; 0: never"),

    // Several processes.
    flag(Section::Parallel, Commands::LAUNCH, "nproc_per_node", Kind::Int { min: 1 }, "1",
        "Processes to start on this machine"),
    flag(Section::Parallel, Commands::LAUNCH, "nnodes", Kind::Int { min: 1 }, "1",
        "Machines of the job; the same command runs on each"),
    flag(Section::Parallel, Commands::LAUNCH, "node_rank", Kind::Int { min: 0 }, "0",
        "Which of the machines this is; node 0 holds the rendezvous"),
    flag(Section::Parallel, Commands::LAUNCH, "rdzv_endpoint", Kind::Text, "",
        "HOST:PORT of node 0, where the processes meet; it listens at this address only. On one machine it need not be given"),
    flag(Section::Parallel, Commands::LAUNCH, "rdzv_secret_file", Kind::Path, "",
        "File with the secret that the machines share, readable for its owner only; default: $XTRAIN_RDZV_SECRET, on one machine a new one"),
    flag(Section::Parallel, Commands::LAUNCH, "rdzv_timeout", Kind::Int { min: 1 }, "300",
        "Seconds in which all processes have to be there"),
    flag(Section::Parallel, Commands::LAUNCH, "heartbeat_timeout", Kind::Int { min: 2 }, "60",
        "Seconds without a sign of life after which a process counts as hanging, a machine as lost"),
    flag(Section::Parallel, Commands::LAUNCH, "max_restarts", Kind::Int { min: 0 }, "0",
        "How often all processes are started again, from the last checkpoint in output_dir, when one has failed"),
    flag(Section::Run, Commands::LAUNCH, "command", Kind::Words, "",
        "The command that each process runs, after --: train or eval with its flags").positional(),

    // Logging.
    flag(Section::Logging, TRAIN, "logging_strategy", STRATEGIES, "steps",
        "When to log"),
    flag(Section::Logging, TRAIN, "logging_steps", Kind::Int { min: 1 }, "500",
        "Optimizer steps between log records"),
    flag(Section::Logging, TRAIN, "logging_first_step", Kind::Bool, "false",
        "Log the first step too"),
    flag(Section::Logging, READING.and(QUICKSTART), "disable_tqdm", Kind::Bool, "false",
        "No progress bars, even on a terminal"),

    // Checkpoints.
    flag(Section::Checkpoints, TRAIN, "save_strategy", STRATEGIES, "steps",
        "When to write checkpoint-N"),
    flag(Section::Checkpoints, TRAIN, "save_steps", Kind::Int { min: 1 }, "500",
        "Optimizer steps between checkpoints"),
    flag(Section::Checkpoints, TRAIN, "save_total_limit", Kind::Int { min: 1 }, "",
        "Keep only the newest so many checkpoints, and the best one; default: all"),
    flag(Section::Checkpoints, TRAIN, "max_shard_size", Kind::Bytes, "5GB",
        "Save weights beyond this in several files with an index"),
    flag(Section::Checkpoints, TRAIN, "load_best_model_at_end", Kind::Bool, "false",
        "End with the weights of the checkpoint whose evaluation was the best"),
    flag(Section::Checkpoints, TRAIN, "metric_for_best_model", Kind::Text, "",
        "What the best is judged by: loss, perplexity, accuracy, f1, f1_LABEL, matthews_correlation, with or without eval_; default: loss"),
    flag(Section::Checkpoints, TRAIN, "greater_is_better", Kind::Bool, "",
        "Which way that metric is good; default: true but for loss and perplexity"),
    flag(Section::Checkpoints, TRAIN, "resume_from_checkpoint", Kind::FlagOrPath, "false",
        "Go on from this checkpoint or, without a path, from the newest in output_dir"),

    // Evaluation.
    flag(Section::Evaluation, TRAIN, "eval_strategy", STRATEGIES, "no",
        "When to evaluate during training").alias(&["evaluation_strategy"]),
    flag(Section::Evaluation, TRAIN, "eval_steps", Kind::Int { min: 1 }, "",
        "Optimizer steps between evaluations; default: logging_steps"),
    flag(Section::Evaluation, TRAIN, "early_stopping_patience", Kind::Int { min: 1 }, "",
        "Stop after so many evaluations in a row without progress in metric_for_best_model"),
    flag(Section::Evaluation, TRAIN, "early_stopping_threshold", Kind::Float(Range::NotNegative), "0.0",
        "By how much the metric has to beat its best value to count as progress"),
    flag(Section::Evaluation, PREDICT, "include_text", Kind::Bool, "false",
        "Repeat the texts in the CSV file"),

    // Generation.
    flag(Section::Generation, GENERATE, "prompt", Kind::Prose, "",
        "The text to continue"),
    flag(Section::Generation, GENERATE, "max_new_tokens", Kind::Int { min: 1 }, "50",
        "Tokens to add at most"),
    flag(Section::Generation, GENERATE, "temperature", Kind::Float(Range::NotNegative), "1.0",
        "Divides the logits before sampling; 0 always takes the likeliest token"),
    flag(Section::Generation, GENERATE, "top_k", Kind::Int { min: 0 }, "50",
        "Sample among the so many likeliest tokens; 0: among all"),

    // Measurement.
    flag(Section::Measurement, TRAIN, "memory", Kind::Bytes, "",
        "Memory of one device that a batch size found by fit or auto may use, and that a plan (dry_run) is held against; default for a \
         batch size: what the device says or, on the CPU, four fifths of the machine's"),
    flag(Section::Measurement, Commands::FIT, "scale_learning_rate_from", Kind::Text, "",
        "RATE@EXAMPLES: a learning rate that suits so many examples per step, to be scaled in proportion to what fits"),
    flag(Section::Measurement, BENCH, "batch", Kind::Int { min: 1 }, "4",
        "Examples per step of each device that takes rows of its own"),
    flag(Section::Measurement, BENCH, "seq", Kind::Int { min: 1 }, "128",
        "Tokens per example"),
    flag(Section::Measurement, BENCH, "steps", Kind::Int { min: 1 }, "10",
        "Steps that are measured"),
    flag(Section::Measurement, BENCH, "warmup", Kind::Int { min: 0 }, "2",
        "Steps after the first that are not measured"),
    flag(Section::Measurement, BENCH.and(Commands::DOCTOR).and(EVAL).and(Commands::CACHE_LS).and(Commands::CACHE_SHOW).and(Commands::CACHE_STATS).and(Commands::FIT).and(Commands::TOP).and(Commands::SCALING).and(Commands::TRAIN), "json", Kind::Bool, "false",
        "Print the result as JSON (train: the plan, with dry_run)"),
    flag(Section::Measurement, Commands::SCALING, "degrees", Kind::Text, "",
        "Degrees to run at, as 1,2,4; the others are compared with the smallest"),
    flag(Section::Measurement, Commands::SCALING, "axis", Kind::Choice(AXES), "data_parallel",
        "What grows: that flag of the command, or its processes, one for each place on data_parallel"),
    flag(Section::Measurement, Commands::SCALING, "weak", Kind::Bool, "false",
        "Each device keeps the command's batch; else all devices together have it, so that a step has the same examples at every degree"),
    flag(Section::Measurement, Commands::SCALING, "repeats", Kind::Int { min: 1 }, "3",
        "Runs at each degree, in turn; medians are told"),
    flag(Section::Measurement, Commands::SCALING, "plot", Kind::Path, "",
        "Draw throughput by degree into this SVG file"),
    flag(Section::Run, Commands::SCALING, "command", Kind::Words, "",
        "The command to measure, after --: bench or train with the flags of a run on one device").positional(),

    // AWS Neuron.
    flag(Section::Neuron, RUNNING, "target", Kind::Choice(neuron::TARGETS), "",
        "With --device neuron: the chip to compile for; default: that of this instance, else trn1"),
    flag(Section::Neuron, ON_A_DEVICE, "neuron_model_type", Kind::Choice(neuron::MODEL_TYPES), "",
        "neuronx-cc's --model-type; default: that of NEURON_CC_FLAGS, else transformer"),
    flag(Section::Neuron, ON_A_DEVICE, "neuron_optlevel", Kind::Choice(neuron::OPTLEVELS), "",
        "neuronx-cc's --optlevel, where 1 compiles fastest; default: that of NEURON_CC_FLAGS, else 2"),
    flag(Section::Neuron, ON_A_DEVICE, "neuron_auto_cast", Kind::Choice(neuron::AUTO_CASTS), "",
        "neuronx-cc's --auto-cast, which rounds f32 without being asked by the model; default: that of NEURON_CC_FLAGS, else none"),
    flag(Section::Neuron, ON_A_DEVICE, "neuron_auto_cast_type", Kind::Choice(neuron::AUTO_CAST_TYPES), "",
        "neuronx-cc's --auto-cast-type; default: that of NEURON_CC_FLAGS, else bf16"),
    flag(Section::Neuron, ON_A_DEVICE, "neuron_stochastic_rounding", Kind::Bool, "false",
        "Round to 16 bits at random inside of the chip (NEURON_RT_STOCHASTIC_ROUNDING_EN), with the seed in NEURON_RT_STOCHASTIC_ROUNDING_SEED, else 0"),

    // The cache of compiled graphs.
    flag(Section::Cache, Commands::COMPILE, "jobs", Kind::Int { min: 1 }, "",
        "Graphs to compile at the same time; default: one per two cores, since a compile keeps more than one busy").short('j'),
    flag(Section::Cache, COMPILING, "compile_cache", Kind::Bool, "true",
        "Load graphs that were compiled before and store new ones, under cache_dir"),
    flag(Section::Cache, COMPILING, "cache_max_size", Kind::Bytes, "10GiB",
        "Size of all stored graphs over which the least recently used go"),
    flag(Section::Cache, READING.and(GENERATE).and(BENCH), "fail_on_recompile", Kind::Bool, "false",
        "Stop instead of compiling a graph of which this run has used, or an earlier one has stored, another version"),
    flag(Section::Cache, Commands::CACHE_SHOW.and(Commands::CACHE_EXPLAIN).and(Commands::CACHE_EXPORT).and(Commands::CACHE_VERIFY), "id", Kind::Words, "",
        "Stored graphs, by as much of the start of their ids as tells them apart").positional(),
    flag(Section::Cache, Commands::CACHE_SHOW, "hlo", Kind::Bool, "false",
        "Print the HLO module that was compiled, and nothing else"),
    flag(Section::Cache, Commands::CACHE_SHOW, "optimized_hlo", Kind::Bool, "false",
        "Print the module as the compiler left it, and nothing else"),
    flag(Section::Cache, Commands::CACHE_SHOW, "stablehlo", Kind::Bool, "false",
        "Print the module that was compiled as StableHLO, and nothing else"),
    flag(Section::Cache, Commands::CACHE_SHOW, "memory", Kind::Bool, "false",
        "Print what is in memory where it is most, largest first, in the model's terms"),
    flag(Section::Cache, Commands::CACHE_PRUNE, "older_than", Kind::Float(Range::NotNegative), "",
        "Remove what was last used more than so many days ago"),
    flag(Section::Cache, Commands::CACHE_PRUNE, "max_size", Kind::Bytes, "",
        "Remove the least recently used until the rest is not larger"),
    flag(Section::Cache, Commands::CACHE_PRUNE, "only_device", Kind::Text, "",
        "Of these, remove only what was compiled for a device whose name begins so (cpu, cuda, neuron)"),
    flag(Section::Cache, Commands::CACHE_PRUNE, "stale_compiler", Kind::Bool, "false",
        "Remove what this build of xtrain does not look for: of another XLA, lowered otherwise, in another format"),
    flag(Section::Cache, Commands::CACHE_EXPORT, "modules_only", Kind::Bool, "false",
        "Leave out what was compiled: each graph once, as its compiler gets it, for a device whose host cannot lower it"),
    flag(Section::Cache, Commands::CACHE_EXPORT.and(Commands::CACHE_IMPORT), "file", Kind::Path, "",
        "The tar file"),
];
