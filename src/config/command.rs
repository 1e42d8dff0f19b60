//! The commands: an enum that is matched exhaustively, the one table of their words and help, and
//! the sets of commands that flags are declared for.

use CacheVerb::*;
use CommandName::*;
use TaskName::*;
use xtrain_models::HeadKind;

/// The task that a model is trained for: the second word of `train`, `eval`, `compile`, `fit` and `predict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskName {
    /// Causal language modelling.
    Clm,
    /// Supervised fine-tuning.
    Sft,
    /// Preference optimization on pairs.
    Dpo,
    /// Reward modelling.
    Reward,
    /// Learning from good and bad answers.
    Kto,
    /// Masked language modelling.
    Mlm,
    /// Classification and regression of texts and pairs of texts.
    Cls,
    /// Classification of words.
    TokenCls,
}

impl TaskName {
    /// The head that its models have, a classifier's with two labels.
    pub fn head(self) -> HeadKind {
        match self {
            Clm | Sft | Dpo | Kto => HeadKind::CausalLm,
            Reward => HeadKind::REGRESSION,
            Mlm => HeadKind::MaskedLm,
            Cls => HeadKind::SequenceClassification { labels: 2 },
            TokenCls => HeadKind::TokenClassification { labels: 2 },
        }
    }
}

/// The action of `xtrain cache`: its second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheVerb {
    Ls,
    Show,
    Explain,
    Verify,
    Prune,
    Export,
    Import,
    Push,
    Pull,
    Path,
    Stats,
}

/// A command as its words name it. A task that [`COMMANDS`] doesn't list for a verb can't be typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandName {
    Train(TaskName),
    Eval(TaskName),
    Predict(TaskName),
    Compile(TaskName),
    Fit(TaskName),
    Generate,
    Merge,
    Launch,
    Bench,
    Scaling,
    Sweep,
    Doctor,
    Top,
    Report,
    Quickstart,
    Cache(CacheVerb),
}

/// A set of commands.
#[derive(Clone, Copy, Debug)]
pub struct Commands(fn(CommandName) -> bool);

impl Commands {
    /// Whether `command` is one of them.
    pub fn contains(self, command: CommandName) -> bool {
        (self.0)(command)
    }
}

/// Declares sets of commands, each by a pattern.
macro_rules! sets {
    ($( $(#[$doc:meta])* $name:ident = $commands:pat, )+) => {$(
        $(#[$doc])*
        pub const $name: Commands = Commands(|command| matches!(command, $commands));
    )+};
}

/// The sets that flags and rules are declared for.
pub mod sets {
    use crate::command::CacheVerb::*;
    use crate::command::CommandName::*;
    use crate::command::Commands;
    use crate::command::TaskName::*;

    sets! {
        ALL = _,
        /// A training run and what prepares one: the same words do for all three.
        TRAIN = Train(_) | Compile(_) | Fit(_),
        TRAINING = Train(_),
        EVAL = Eval(_),
        TRAIN_EVAL = Train(_) | Compile(_) | Fit(_) | Eval(_),
        COMPILE = Compile(_),
        FIT = Fit(_),
        PREDICT = Predict(_),
        GENERATE = Generate,
        MERGE = Merge,
        BENCH = Bench,
        QUICKSTART = Quickstart,
        LAUNCH = Launch,
        SCALING = Scaling,
        SWEEP = Sweep,
        DOCTOR = Doctor,
        TOP = Top,
        REPORT = Report,
        CLM = Train(Clm) | Eval(Clm) | Compile(Clm) | Fit(Clm),
        EVAL_CLM = Eval(Clm),
        SFT = Train(Sft) | Eval(Sft) | Compile(Sft) | Fit(Sft),
        DPO = Train(Dpo) | Eval(Dpo) | Compile(Dpo) | Fit(Dpo),
        REWARD = Train(Reward) | Eval(Reward) | Compile(Reward) | Fit(Reward),
        KTO = Train(Kto) | Eval(Kto) | Compile(Kto) | Fit(Kto),
        /// Commands that learn from answers and what is thought of them.
        PREFERENCES = Train(Dpo | Reward | Kto) | Eval(Dpo | Reward | Kto)
            | Compile(Dpo | Reward | Kto) | Fit(Dpo | Reward | Kto),
        /// The same, of a reference.
        REFERENCED = Train(Dpo | Kto) | Eval(Dpo | Kto) | Compile(Dpo | Kto) | Fit(Dpo | Kto),
        EVAL_REFERENCED = Eval(Dpo | Kto),
        MLM = Train(Mlm) | Eval(Mlm) | Compile(Mlm) | Fit(Mlm),
        CLS = Train(Cls) | Eval(Cls) | Compile(Cls) | Fit(Cls) | Predict(Cls),
        TRAIN_EVAL_CLS = Train(Cls) | Eval(Cls) | Compile(Cls) | Fit(Cls),
        TRAIN_LIKE_CLS = Train(Cls) | Compile(Cls) | Fit(Cls),
        PREDICT_CLS = Predict(Cls),
        PREDICT_REWARD = Predict(Reward),
        TOKEN_CLS = Train(TokenCls) | Eval(TokenCls) | Compile(TokenCls) | Fit(TokenCls)
            | Predict(TokenCls),
        /// A training run, and what prepares one, of tasks whose rows have labels.
        TRAIN_LABELLED = Train(Cls | TokenCls) | Compile(Cls | TokenCls) | Fit(Cls | TokenCls),
        /// Commands of tasks whose rows have labels.
        LABELLED = Train(Cls | TokenCls) | Compile(Cls | TokenCls) | Fit(Cls | TokenCls)
            | Eval(Cls | TokenCls),
        /// A training run or an evaluation whose loss is of labels.
        WITH_LABELS = Train(Clm | Sft | Mlm | Cls | TokenCls) | Compile(Clm | Sft | Mlm | Cls | TokenCls)
            | Fit(Clm | Sft | Mlm | Cls | TokenCls) | Eval(Clm | Sft | Mlm | Cls | TokenCls),
        LANGUAGE_MODELS = Train(Clm | Sft | Mlm) | Eval(Clm | Sft | Mlm) | Compile(Clm | Sft | Mlm)
            | Fit(Clm | Sft | Mlm),
        /// Commands that read a data set.
        READING = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_),
        /// Commands that compile graphs.
        COMPILING = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_) | Generate | Merge | Bench
            | Quickstart,
        /// Commands that run something on a device.
        RUNNING = Train(_) | Eval(_) | Predict(_) | Generate | Bench | Quickstart | Doctor,
        /// The same, but for a training run.
        RUNNING_TRAINED = Eval(_) | Predict(_) | Generate | Bench | Quickstart | Doctor,
        /// Commands that a device's settings matter to.
        ON_A_DEVICE = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_) | Generate | Bench
            | Quickstart | Doctor,
        /// Commands that open a device.
        OPENING = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_) | Generate | Bench
            | Quickstart | Doctor | Cache(Verify),
        CACHE = Cache(_),
        CACHE_LS = Cache(Ls),
        CACHE_SHOW = Cache(Show),
        CACHE_EXPLAIN = Cache(Explain),
        CACHE_VERIFY = Cache(Verify),
        CACHE_PRUNE = Cache(Prune),
        CACHE_EXPORT = Cache(Export),
        CACHE_IMPORT = Cache(Import),
        CACHE_PUSH = Cache(Push),
        CACHE_PULL = Cache(Pull),
        CACHE_STATS = Cache(Stats),
    }
}

/// One command: its words, its purpose, and a line or two to copy.
pub struct CommandInfo {
    pub id: CommandName,
    /// As typed, for example `train clm`.
    pub words: &'static str,
    pub about: &'static str,
    pub examples: &'static str,
}

/// A command with its words, its purpose and its examples.
const fn info(
    id: CommandName,
    words: &'static str,
    about: &'static str,
    examples: &'static str,
) -> CommandInfo {
    CommandInfo {
        id,
        words,
        about,
        examples,
    }
}

/// In the order of `xtrain --help`.
pub const COMMANDS: &[CommandInfo] = &[
    info(
        Train(Clm),
        "train clm",
        "Train a causal language model on text files",
        "xtrain train clm --model_type gpt2 --config_overrides n_layer=6,n_embd=384,n_head=6 \\\n      --tokenizer_name DIR \
                   --train_file train.txt.gz --validation_file valid.txt --block_size 256 --do_train --do_eval --output_dir out\n  \
                   xtrain train clm --config run.toml --learning_rate 3e-4 --dry_run",
    ),
    info(
        Train(Sft),
        "train sft",
        "Fine-tune a causal language model on conversations, prompts with completions, or texts",
        "xtrain train sft --model_name_or_path DIR --train_file chats.jsonl --assistant_only_loss --max_seq_length 1024 \\\n      \
                   --do_train --do_eval --output_dir out",
    ),
    info(
        Train(Dpo),
        "train dpo",
        "Train a causal language model on pairs of a chosen and a rejected answer (DPO and its relatives, ORPO)",
        "xtrain train dpo --model_name_or_path DIR --train_file pairs.jsonl --beta 0.1 --max_length 1024 --do_train --output_dir out\n  \
                   xtrain train dpo --model_name_or_path DIR --train_file pairs.jsonl --loss_type sigmoid sft --loss_weights 1.0 0.2 --output_dir out",
    ),
    info(
        Train(Reward),
        "train reward",
        "Train a reward model on pairs of a chosen and a rejected text",
        "xtrain train reward --model_name_or_path DIR --train_file pairs.jsonl --max_length 1024 --do_train --output_dir out",
    ),
    info(
        Train(Kto),
        "train kto",
        "Train a causal language model on answers that are good or bad",
        "xtrain train kto --model_name_or_path DIR --train_file answers.jsonl --max_length 1024 --do_train --output_dir out",
    ),
    info(
        Train(Mlm),
        "train mlm",
        "Train a masked language model on text files",
        "xtrain train mlm --model_type bert --config_name bert-mini --tokenizer_name DIR --train_file train.txt.gz \\\n      \
                   --validation_file valid.txt --max_seq_length 128 --do_train --do_eval --output_dir out",
    ),
    info(
        Train(Cls),
        "train cls",
        "Train a classifier of texts or pairs of texts on tables (CSV, TSV, JSON lines, parquet)",
        "xtrain train cls --model_name_or_path DIR --train_file train.csv --validation_file valid.csv --text_column_name text \\\n      \
                   --label_column_name label --eval_strategy epoch --save_strategy epoch --load_best_model_at_end --output_dir out",
    ),
    info(
        Train(TokenCls),
        "train token-cls",
        "Train a classifier of words, such as names in a text (JSON lines, parquet, CoNLL columns)",
        "xtrain train token-cls --model_name_or_path DIR --train_file train.conll --validation_file valid.conll \\\n      \
                   --eval_strategy epoch --save_strategy epoch --load_best_model_at_end --metric_for_best_model f1 --output_dir out",
    ),
    info(
        Eval(Clm),
        "eval clm",
        "Loss and perplexity of a model on text files",
        "xtrain eval clm --model_name_or_path out --validation_file valid.txt --block_size 256",
    ),
    info(
        Eval(Sft),
        "eval sft",
        "Loss, perplexity and accuracy of a model on conversations, completions or texts",
        "xtrain eval sft --model_name_or_path out --validation_file chats.jsonl --assistant_only_loss",
    ),
    info(
        Eval(Dpo),
        "eval dpo",
        "Loss, rewards and accuracy of a model on pairs of answers, compared with its reference",
        "xtrain eval dpo --model_name_or_path out --ref_model_name_or_path DIR --validation_file pairs.jsonl",
    ),
    info(
        Eval(Reward),
        "eval reward",
        "Loss and accuracy of a reward model on pairs of texts",
        "xtrain eval reward --model_name_or_path out --validation_file pairs.jsonl",
    ),
    info(
        Eval(Kto),
        "eval kto",
        "Loss and rewards of a model on good and bad answers, compared with its reference",
        "xtrain eval kto --model_name_or_path out --ref_model_name_or_path DIR --validation_file answers.jsonl",
    ),
    info(
        Eval(Mlm),
        "eval mlm",
        "Loss, perplexity and accuracy of a masked language model on text files",
        "xtrain eval mlm --model_name_or_path out --validation_file valid.txt --max_seq_length 128",
    ),
    info(
        Eval(Cls),
        "eval cls",
        "Loss, accuracy, F1 and Matthews correlation of a classifier, or a regression's errors, on a table with labels",
        "xtrain eval cls --model_name_or_path out --validation_file test.csv",
    ),
    info(
        Eval(TokenCls),
        "eval token-cls",
        "Loss, precision, recall, F1 and accuracy (seqeval's) of a classifier of words",
        "xtrain eval token-cls --model_name_or_path out --validation_file test.conll",
    ),
    info(
        Predict(Reward),
        "predict reward",
        "Score texts and conversations with a reward model, into a CSV file",
        "xtrain predict reward --model_name_or_path out --test_file answers.jsonl --output_file scores.csv",
    ),
    info(
        Predict(Cls),
        "predict cls",
        "Label the rows of a table, into a CSV file with a score for each label",
        "xtrain predict cls --model_name_or_path out --test_file new.csv --output_file labels.csv",
    ),
    info(
        Predict(TokenCls),
        "predict token-cls",
        "Label the words of sentences, into JSON lines or CoNLL columns as the input is",
        "xtrain predict token-cls --model_name_or_path out --test_file new.conll --output_file labels.conll",
    ),
    info(
        Generate,
        "generate",
        "Continue a prompt with a trained model",
        "xtrain generate --model_name_or_path out --prompt \"The river\" --max_new_tokens 40",
    ),
    info(
        Merge,
        "merge",
        "Merge an adapter into its model: a model of the same files and types that needs no adapter",
        "xtrain merge --model_name_or_path MODEL --adapter_name_or_path out --output_dir merged",
    ),
    info(
        Launch,
        "launch",
        "Run train or eval as several processes, on one machine or many",
        "xtrain launch --nproc_per_node 2 --max_restarts 3 -- train clm --config run.toml\n  \
                   xtrain launch --nnodes 2 --node_rank 0 --rdzv_endpoint 10.0.0.1:29400 --rdzv_secret_file ~/secret -- train clm --config run.toml",
    ),
    info(
        Bench,
        "bench",
        "Measure the training step: time, tokens/s, model FLOP/s, % of matmul peak",
        "xtrain bench --model_type gpt2 --batch 4 --seq 128 --steps 10 --warmup 2 --json",
    ),
    info(
        Scaling,
        "scaling",
        "Run bench or train on 1, 2, 4, ... devices; report throughput, efficiency and communication",
        "xtrain scaling --degrees 1,2,4 -- bench --model_type gpt2 --batch 8 --seq 128\n  \
                   xtrain scaling --degrees 1,2 --axis processes --plot scaling.svg -- train clm --config run.toml --max_steps 20",
    ),
    info(
        Sweep,
        "sweep",
        "Train at every combination of some flags' values; report which run is the best",
        "xtrain sweep --grid learning_rate=1e-4,3e-4 --grid per_device_train_batch_size=8,16 --output_dir sweep \\\n      \
                   -- train clm --config run.toml\n  \
                   xtrain sweep --grid seed=1,2,3 --jobs 3 --output_dir seeds -- train cls --config run.toml",
    ),
    info(
        Doctor,
        "doctor",
        "Check that a device's software is installed, and say what is missing",
        "xtrain doctor --device cpu",
    ),
    info(
        Top,
        "top",
        "Watch a training run: step, loss, speed, where its time goes, compiled graphs, devices",
        "xtrain top out\n  xtrain top out other\n  xtrain top out --once --json",
    ),
    info(
        Report,
        "report",
        "Compare finished and running runs: curves, throughput, time by part, cost, settings that differ",
        "xtrain report output/a output/b --price_per_hour 4\n  xtrain report native.log output/compiled --format markdown,json --output comparison\n  \
                   xtrain report output/f32 output/bf16 --compare_losses --largest 0.02",
    ),
    info(
        Quickstart,
        "quickstart",
        "Train a small GPT-2 on the text that comes with xtrain: a few minutes from nothing to a sample",
        "xtrain quickstart",
    ),
    info(
        Compile(Clm),
        "compile clm",
        "Compile every graph that `train clm` with the same flags will use, without data or weights",
        "xtrain compile clm --model_type gpt2 --tokenizer_name DIR --block_size 256 --do_train --do_eval",
    ),
    info(
        Compile(Sft),
        "compile sft",
        "Compile every graph that `train sft` with the same flags will use, without data or weights",
        "xtrain compile sft --model_name_or_path DIR --max_seq_length 1024 --pad_to_bucket 256,512 --do_train",
    ),
    info(
        Compile(Dpo),
        "compile dpo",
        "Compile every graph that `train dpo` with the same flags will use, without data or weights",
        "xtrain compile dpo --model_name_or_path DIR --max_length 1024 --pad_to_bucket 256,512 --do_train",
    ),
    info(
        Compile(Reward),
        "compile reward",
        "Compile every graph that `train reward` with the same flags will use, without data or weights",
        "xtrain compile reward --model_name_or_path DIR --max_length 1024 --pad_to_bucket 256,512 --do_train",
    ),
    info(
        Compile(Kto),
        "compile kto",
        "Compile every graph that `train kto` with the same flags will use, without data or weights",
        "xtrain compile kto --model_name_or_path DIR --max_length 1024 --pad_to_bucket 256,512 --do_train",
    ),
    info(
        Compile(Mlm),
        "compile mlm",
        "Compile every graph that `train mlm` with the same flags will use, without data or weights",
        "xtrain compile mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --do_train --do_eval",
    ),
    info(
        Compile(Cls),
        "compile cls",
        "Compile every graph that `train cls` with the same flags will use, without data or weights",
        "xtrain compile cls --model_type bert --tokenizer_name DIR --labels no,yes --pad_to_bucket 64,128 --do_train",
    ),
    info(
        Compile(TokenCls),
        "compile token-cls",
        "Compile every graph that `train token-cls` with the same flags will use, without data or weights",
        "xtrain compile token-cls --model_type bert --tokenizer_name DIR --labels O,B-PER,I-PER --do_train --do_eval",
    ),
    info(
        Fit(Clm),
        "fit clm",
        "Find the largest batch that fits into memory, from compiler statistics, without running a step",
        "xtrain fit clm --model_type gpt2 --tokenizer_name DIR --block_size 512 --memory 16GiB\n  \
                   xtrain fit clm --config run.toml --memory 16GiB --scale_learning_rate_from 5e-5@32",
    ),
    info(
        Fit(Sft),
        "fit sft",
        "Find the largest batch of `train sft` with the same flags that fits into memory",
        "xtrain fit sft --model_name_or_path DIR --max_seq_length 1024 --memory 16GiB",
    ),
    info(
        Fit(Dpo),
        "fit dpo",
        "Find the largest batch of `train dpo` with the same flags that fits into memory",
        "xtrain fit dpo --model_name_or_path DIR --max_length 1024 --memory 16GiB",
    ),
    info(
        Fit(Reward),
        "fit reward",
        "Find the largest batch of `train reward` with the same flags that fits into memory",
        "xtrain fit reward --model_name_or_path DIR --max_length 1024 --memory 16GiB",
    ),
    info(
        Fit(Kto),
        "fit kto",
        "Find the largest batch of `train kto` with the same flags that fits into memory",
        "xtrain fit kto --model_name_or_path DIR --max_length 1024 --memory 16GiB",
    ),
    info(
        Fit(Mlm),
        "fit mlm",
        "Find the largest batch of `train mlm` with the same flags that fits into memory",
        "xtrain fit mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --memory 16GiB",
    ),
    info(
        Fit(Cls),
        "fit cls",
        "Find the largest batch of `train cls` with the same flags that fits into memory",
        "xtrain fit cls --model_type bert --tokenizer_name DIR --labels no,yes --max_seq_length 128 --memory 16GiB",
    ),
    info(
        Fit(TokenCls),
        "fit token-cls",
        "Find the largest batch of `train token-cls` with the same flags that fits into memory",
        "xtrain fit token-cls --model_type bert --tokenizer_name DIR --labels O,B-PER,I-PER --memory 16GiB",
    ),
    info(
        Cache(Ls),
        "cache ls",
        "List the compiled graphs that are stored",
        "xtrain cache ls\n  xtrain cache ls --json\n  xtrain cache ls --cache_remote s3://bucket/xtrain",
    ),
    info(
        Cache(Show),
        "cache show",
        "Everything about one stored graph: its key's parts, origin, memory, cost",
        "xtrain cache show 3f2a\n  xtrain cache show 3f2a --hlo > train.hlo.txt",
    ),
    info(
        Cache(Explain),
        "cache explain",
        "Explain how two stored graphs differ, or one and the nearest older one",
        "xtrain cache explain 3f2a 91bc\n  xtrain cache explain 3f2a",
    ),
    info(
        Cache(Verify),
        "cache verify",
        "Check the digests of all stored graphs and whether those of the device load on it",
        "xtrain cache verify",
    ),
    info(
        Cache(Prune),
        "cache prune",
        "Remove stored graphs by age, size, device or compiler",
        "xtrain cache prune --older_than 30 --dry_run\n  xtrain cache prune --max_size 2GiB",
    ),
    info(
        Cache(Export),
        "cache export",
        "Write stored graphs (all, or those named) to a tar file, for other machines of the same kind",
        "xtrain cache export --file graphs.tar",
    ),
    info(
        Cache(Import),
        "cache import",
        "Take graphs from a tar file that `cache export` wrote, each checked",
        "xtrain cache import --file graphs.tar",
    ),
    info(
        Cache(Push),
        "cache push",
        "Store graphs (all, or those named) in a store that others share",
        "xtrain cache push --cache_remote s3://bucket/xtrain",
    ),
    info(
        Cache(Pull),
        "cache pull",
        "Take graphs (all, or those named) from a store that others share, each checked",
        "xtrain cache pull --cache_remote s3://bucket/xtrain",
    ),
    info(
        Cache(Path),
        "cache path",
        "Print the directory of the stored graphs",
        "xtrain cache path",
    ),
    info(
        Cache(Stats),
        "cache stats",
        "Number, size and use of the stored graphs, and the compile time that they saved",
        "xtrain cache stats",
    ),
];

impl CommandName {
    /// Its row of [`COMMANDS`].
    pub fn info(self) -> &'static CommandInfo {
        COMMANDS
            .iter()
            .find(|info| info.id == self)
            .expect("names come from this table")
    }

    /// The task that it is for; `None` of a command without one.
    pub fn task(self) -> Option<TaskName> {
        match self {
            Train(task) | Eval(task) | Predict(task) | Compile(task) | Fit(task) => Some(task),
            Generate | Merge | Launch | Bench | Scaling | Sweep | Doctor | Top | Report
            | Quickstart | Cache(_) => None,
        }
    }

    /// Its words, as in `train clm`.
    pub fn words(self) -> &'static str {
        self.info().words
    }
}

/// The first words of two-word commands, each with its purpose.
pub const VERBS: &[(&str, &str)] = &[
    ("train", "Train a model; the next word is the task"),
    ("eval", "Evaluate a model; the next word is the task"),
    ("predict", "Label texts; the next word is the task"),
    (
        "compile",
        "Compile a training run's graphs ahead; the next word is the task",
    ),
    (
        "fit",
        "Find the largest batch that fits into memory; the next word is the task",
    ),
    ("cache", "Look into the cache of compiled graphs"),
];

/// The second words of a two-word command, in the order of [`COMMANDS`].
pub fn second_words(verb: &str) -> impl Iterator<Item = &'static str> {
    COMMANDS
        .iter()
        .filter_map(|info| info.words.split_once(' '))
        .filter(move |(first, _)| *first == verb)
        .map(|(_, second)| second)
}
