//! The commands: an enum that is matched exhaustively, the one table of their words and help, and
//! the sets of commands that flags are declared for.

/// What a model is trained for: the second word of `train`, `eval`, `compile`, `fit` and `predict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskName {
    /// Causal language modelling.
    Clm,
    /// Masked language modelling.
    Mlm,
    /// Classification and regression of texts and pairs of texts.
    Cls,
    /// Classification of words.
    TokenCls,
}

/// What `xtrain cache` does, its second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheVerb {
    Ls,
    Show,
    Explain,
    Verify,
    Prune,
    Export,
    Import,
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
    Launch,
    Bench,
    Scaling,
    Doctor,
    Top,
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
    use crate::config::command::CacheVerb::*;
    use crate::config::command::CommandName::*;
    use crate::config::command::Commands;
    use crate::config::command::TaskName::*;

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
        BENCH = Bench,
        QUICKSTART = Quickstart,
        LAUNCH = Launch,
        SCALING = Scaling,
        DOCTOR = Doctor,
        TOP = Top,
        CLM = Train(Clm) | Eval(Clm) | Compile(Clm) | Fit(Clm),
        MLM = Train(Mlm) | Eval(Mlm) | Compile(Mlm) | Fit(Mlm),
        CLS = Train(Cls) | Eval(Cls) | Compile(Cls) | Fit(Cls) | Predict(Cls),
        TRAIN_LIKE_CLS = Train(Cls) | Compile(Cls) | Fit(Cls),
        PREDICT_CLS = Predict(Cls),
        TOKEN_CLS = Train(TokenCls) | Eval(TokenCls) | Compile(TokenCls) | Fit(TokenCls)
            | Predict(TokenCls),
        /// A training run, and what prepares one, of tasks whose rows have labels.
        TRAIN_LABELLED = Train(Cls | TokenCls) | Compile(Cls | TokenCls) | Fit(Cls | TokenCls),
        /// Commands of tasks whose rows have labels.
        LABELLED = Train(Cls | TokenCls) | Compile(Cls | TokenCls) | Fit(Cls | TokenCls)
            | Eval(Cls | TokenCls),
        LANGUAGE_MODELS = Train(Clm | Mlm) | Eval(Clm | Mlm) | Compile(Clm | Mlm) | Fit(Clm | Mlm),
        /// Commands that read a data set.
        READING = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_),
        /// Commands that compile graphs.
        COMPILING = Train(_) | Compile(_) | Fit(_) | Eval(_) | Predict(_) | Generate | Bench
            | Quickstart,
        /// Commands that run something on a device.
        RUNNING = Train(_) | Eval(_) | Predict(_) | Generate | Bench | Quickstart | Doctor,
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
        CACHE_STATS = Cache(Stats),
    }
}

/// One command: its words, what it is for, and a line or two to copy.
pub struct CommandInfo {
    pub id: CommandName,
    /// As typed, for example `train clm`.
    pub words: &'static str,
    pub about: &'static str,
    pub examples: &'static str,
}

/// In the order of `xtrain --help`.
pub const COMMANDS: &[CommandInfo] = &[
    CommandInfo {
        id: CommandName::Train(TaskName::Clm),
        words: "train clm",
        about: "Train a causal language model on text files",
        examples: "xtrain train clm --model_type gpt2 --config_overrides n_layer=6,n_embd=384,n_head=6 \\\n      --tokenizer_name DIR \
                   --train_file train.txt.gz --validation_file valid.txt --block_size 256 --do_train --do_eval --output_dir out\n  \
                   xtrain train clm --config run.toml --learning_rate 3e-4 --dry_run",
    },
    CommandInfo {
        id: CommandName::Train(TaskName::Mlm),
        words: "train mlm",
        about: "Train a masked language model on text files",
        examples: "xtrain train mlm --model_type bert --config_name bert-mini --tokenizer_name DIR --train_file train.txt.gz \\\n      \
                   --validation_file valid.txt --max_seq_length 128 --do_train --do_eval --output_dir out",
    },
    CommandInfo {
        id: CommandName::Train(TaskName::Cls),
        words: "train cls",
        about: "Train a classifier of texts or pairs of texts on tables (CSV, TSV, JSON lines, parquet)",
        examples: "xtrain train cls --model_name_or_path DIR --train_file train.csv --validation_file valid.csv --text_column_name text \\\n      \
                   --label_column_name label --eval_strategy epoch --save_strategy epoch --load_best_model_at_end --output_dir out",
    },
    CommandInfo {
        id: CommandName::Train(TaskName::TokenCls),
        words: "train token-cls",
        about: "Train a classifier of words, such as names in a text (JSON lines, parquet, CoNLL columns)",
        examples: "xtrain train token-cls --model_name_or_path DIR --train_file train.conll --validation_file valid.conll \\\n      \
                   --eval_strategy epoch --save_strategy epoch --load_best_model_at_end --metric_for_best_model f1 --output_dir out",
    },
    CommandInfo {
        id: CommandName::Eval(TaskName::Clm),
        words: "eval clm",
        about: "Loss and perplexity of a model on text files",
        examples: "xtrain eval clm --model_name_or_path out --validation_file valid.txt --block_size 256",
    },
    CommandInfo {
        id: CommandName::Eval(TaskName::Mlm),
        words: "eval mlm",
        about: "Loss, perplexity and accuracy of a masked language model on text files",
        examples: "xtrain eval mlm --model_name_or_path out --validation_file valid.txt --max_seq_length 128",
    },
    CommandInfo {
        id: CommandName::Eval(TaskName::Cls),
        words: "eval cls",
        about: "Loss, accuracy, F1 and Matthews correlation of a classifier, or a regression's errors, on a table with labels",
        examples: "xtrain eval cls --model_name_or_path out --validation_file test.csv",
    },
    CommandInfo {
        id: CommandName::Eval(TaskName::TokenCls),
        words: "eval token-cls",
        about: "Loss, precision, recall, F1 and accuracy (seqeval's) of a classifier of words",
        examples: "xtrain eval token-cls --model_name_or_path out --validation_file test.conll",
    },
    CommandInfo {
        id: CommandName::Predict(TaskName::Cls),
        words: "predict cls",
        about: "Label the rows of a table, into a CSV file with a score for each label",
        examples: "xtrain predict cls --model_name_or_path out --test_file new.csv --output_file labels.csv",
    },
    CommandInfo {
        id: CommandName::Predict(TaskName::TokenCls),
        words: "predict token-cls",
        about: "Label the words of sentences, into JSON lines or CoNLL columns as the input is",
        examples: "xtrain predict token-cls --model_name_or_path out --test_file new.conll --output_file labels.conll",
    },
    CommandInfo {
        id: CommandName::Generate,
        words: "generate",
        about: "Continue a prompt with a trained model",
        examples: "xtrain generate --model_name_or_path out --prompt \"The river\" --max_new_tokens 40",
    },
    CommandInfo {
        id: CommandName::Launch,
        words: "launch",
        about: "Run train or eval as several processes, on one machine or many",
        examples: "xtrain launch --nproc_per_node 2 --max_restarts 3 -- train clm --config run.toml\n  \
                   xtrain launch --nnodes 2 --node_rank 0 --rdzv_endpoint 10.0.0.1:29400 --rdzv_secret_file ~/secret -- train clm --config run.toml",
    },
    CommandInfo {
        id: CommandName::Bench,
        words: "bench",
        about: "Measure the training step: time, tokens/s, model FLOP/s, % of matmul peak",
        examples: "xtrain bench --model_type gpt2 --batch 4 --seq 128 --steps 10 --warmup 2 --json",
    },
    CommandInfo {
        id: CommandName::Scaling,
        words: "scaling",
        about: "Run bench or train on 1, 2, 4, ... devices; report throughput, efficiency and communication",
        examples: "xtrain scaling --degrees 1,2,4 -- bench --model_type gpt2 --batch 8 --seq 128\n  \
                   xtrain scaling --degrees 1,2 --axis processes --plot scaling.svg -- train clm --config run.toml --max_steps 20",
    },
    CommandInfo {
        id: CommandName::Doctor,
        words: "doctor",
        about: "Check that a device's software is installed, and say what is missing",
        examples: "xtrain doctor --device cpu",
    },
    CommandInfo {
        id: CommandName::Top,
        words: "top",
        about: "Watch a training run: step, loss, speed, where its time goes, compiled graphs, devices",
        examples: "xtrain top --output_dir out\n  xtrain top --output_dir out --once --json",
    },
    CommandInfo {
        id: CommandName::Quickstart,
        words: "quickstart",
        about: "Train a small GPT-2 on the text that comes with xtrain: a few minutes from nothing to a sample",
        examples: "xtrain quickstart",
    },
    CommandInfo {
        id: CommandName::Compile(TaskName::Clm),
        words: "compile clm",
        about: "Compile every graph that `train clm` with the same flags will use, without data or weights",
        examples: "xtrain compile clm --model_type gpt2 --tokenizer_name DIR --block_size 256 --do_train --do_eval",
    },
    CommandInfo {
        id: CommandName::Compile(TaskName::Mlm),
        words: "compile mlm",
        about: "Compile every graph that `train mlm` with the same flags will use, without data or weights",
        examples: "xtrain compile mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --do_train --do_eval",
    },
    CommandInfo {
        id: CommandName::Compile(TaskName::Cls),
        words: "compile cls",
        about: "Compile every graph that `train cls` with the same flags will use, without data or weights",
        examples: "xtrain compile cls --model_type bert --tokenizer_name DIR --labels no,yes --pad_to_bucket 64,128 --do_train",
    },
    CommandInfo {
        id: CommandName::Compile(TaskName::TokenCls),
        words: "compile token-cls",
        about: "Compile every graph that `train token-cls` with the same flags will use, without data or weights",
        examples: "xtrain compile token-cls --model_type bert --tokenizer_name DIR --labels O,B-PER,I-PER --do_train --do_eval",
    },
    CommandInfo {
        id: CommandName::Fit(TaskName::Clm),
        words: "fit clm",
        about: "Find the largest batch that fits into memory, from compiler statistics, without running a step",
        examples: "xtrain fit clm --model_type gpt2 --tokenizer_name DIR --block_size 512 --memory 16GiB\n  \
                   xtrain fit clm --config run.toml --memory 16GiB --scale_learning_rate_from 5e-5@32",
    },
    CommandInfo {
        id: CommandName::Fit(TaskName::Mlm),
        words: "fit mlm",
        about: "Find the largest batch of `train mlm` with the same flags that fits into memory",
        examples: "xtrain fit mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --memory 16GiB",
    },
    CommandInfo {
        id: CommandName::Fit(TaskName::Cls),
        words: "fit cls",
        about: "Find the largest batch of `train cls` with the same flags that fits into memory",
        examples: "xtrain fit cls --model_type bert --tokenizer_name DIR --labels no,yes --max_seq_length 128 --memory 16GiB",
    },
    CommandInfo {
        id: CommandName::Fit(TaskName::TokenCls),
        words: "fit token-cls",
        about: "Find the largest batch of `train token-cls` with the same flags that fits into memory",
        examples: "xtrain fit token-cls --model_type bert --tokenizer_name DIR --labels O,B-PER,I-PER --memory 16GiB",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Ls),
        words: "cache ls",
        about: "List the compiled graphs that are stored",
        examples: "xtrain cache ls\n  xtrain cache ls --json",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Show),
        words: "cache show",
        about: "Everything about one stored graph: its key's parts, origin, memory, cost",
        examples: "xtrain cache show 3f2a\n  xtrain cache show 3f2a --hlo > train.hlo.txt",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Explain),
        words: "cache explain",
        about: "Explain how two stored graphs differ, or one and the nearest older one",
        examples: "xtrain cache explain 3f2a 91bc\n  xtrain cache explain 3f2a",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Verify),
        words: "cache verify",
        about: "Check the digests of all stored graphs and whether those of the device load on it",
        examples: "xtrain cache verify",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Prune),
        words: "cache prune",
        about: "Remove stored graphs by age, size, device or compiler",
        examples: "xtrain cache prune --older_than 30 --dry_run\n  xtrain cache prune --max_size 2GiB",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Export),
        words: "cache export",
        about: "Write stored graphs (all, or those named) to a tar file, for other machines of the same kind",
        examples: "xtrain cache export --file graphs.tar",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Import),
        words: "cache import",
        about: "Take graphs from a tar file that `cache export` wrote, each checked",
        examples: "xtrain cache import --file graphs.tar",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Path),
        words: "cache path",
        about: "Print the directory of the stored graphs",
        examples: "xtrain cache path",
    },
    CommandInfo {
        id: CommandName::Cache(CacheVerb::Stats),
        words: "cache stats",
        about: "Number, size and use of the stored graphs, and the compile time that they saved",
        examples: "xtrain cache stats",
    },
];

impl CommandName {
    /// What [`COMMANDS`] says of it.
    pub fn info(self) -> &'static CommandInfo {
        COMMANDS
            .iter()
            .find(|info| info.id == self)
            .expect("names come from this table")
    }

    /// Its words, as in `train clm`.
    pub fn words(self) -> &'static str {
        self.info().words
    }
}

/// The first words of two-word commands, each with what it is for.
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
