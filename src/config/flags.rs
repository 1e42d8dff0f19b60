//! The one table of settings. Parsing, `--help`, settings files, suggestions and `docs/flags.md`
//! are all read from it, so a flag is added by adding a row to `flags/built.rs` and reading it in
//! `resolve.rs`. Names are TrainingArguments' and run_clm's wherever they have one.
//! `flags/unbuilt.rs` holds their names that xtrain knows but does not honour: those are refused
//! with a reason, never ignored.

mod built;
mod unbuilt;

use super::error::Advice;
use super::kind::{Kind, Value};
use super::nearest::nearest;

/// A set of commands, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commands(u32);

impl Commands {
    pub const TRAIN_CLM: Commands = Commands(1);
    pub const EVAL_CLM: Commands = Commands(2);
    pub const GENERATE: Commands = Commands(4);
    pub const DOCTOR: Commands = Commands(8);
    pub const BENCH: Commands = Commands(16);
    pub const QUICKSTART: Commands = Commands(32);
    pub const COMPILE_CLM: Commands = Commands(64);
    pub const CACHE_LS: Commands = Commands(1 << 7);
    pub const CACHE_SHOW: Commands = Commands(1 << 8);
    pub const CACHE_EXPLAIN: Commands = Commands(1 << 9);
    pub const CACHE_VERIFY: Commands = Commands(1 << 10);
    pub const CACHE_PRUNE: Commands = Commands(1 << 11);
    pub const CACHE_EXPORT: Commands = Commands(1 << 12);
    pub const CACHE_IMPORT: Commands = Commands(1 << 13);
    pub const CACHE_PATH: Commands = Commands(1 << 14);
    pub const CACHE_STATS: Commands = Commands(1 << 15);
    pub const TRAIN_MLM: Commands = Commands(1 << 16);
    pub const TRAIN_CLS: Commands = Commands(1 << 17);
    pub const EVAL_MLM: Commands = Commands(1 << 18);
    pub const EVAL_CLS: Commands = Commands(1 << 19);
    pub const PREDICT_CLS: Commands = Commands(1 << 20);
    pub const COMPILE_MLM: Commands = Commands(1 << 21);
    pub const COMPILE_CLS: Commands = Commands(1 << 22);
    pub const FIT_CLM: Commands = Commands(1 << 23);
    pub const FIT_MLM: Commands = Commands(1 << 24);
    pub const FIT_CLS: Commands = Commands(1 << 25);
    pub const TOP: Commands = Commands(1 << 26);
    pub const LAUNCH: Commands = Commands(1 << 27);
    pub const SCALING: Commands = Commands(1 << 28);
    pub const TRAIN: Commands = Self::TRAIN_CLM.and(Self::TRAIN_MLM).and(Self::TRAIN_CLS);
    pub const EVAL: Commands = Self::EVAL_CLM.and(Self::EVAL_MLM).and(Self::EVAL_CLS);
    pub const COMPILE: Commands = Self::COMPILE_CLM
        .and(Self::COMPILE_MLM)
        .and(Self::COMPILE_CLS);
    pub const FIT: Commands = Self::FIT_CLM.and(Self::FIT_MLM).and(Self::FIT_CLS);
    /// Causal language modelling, whatever is done.
    pub const CLM: Commands = Self::TRAIN_CLM
        .and(Self::EVAL_CLM)
        .and(Self::COMPILE_CLM)
        .and(Self::FIT_CLM);
    /// Masked language modelling.
    pub const MLM: Commands = Self::TRAIN_MLM
        .and(Self::EVAL_MLM)
        .and(Self::COMPILE_MLM)
        .and(Self::FIT_MLM);
    /// Classification.
    pub const CLS: Commands = Self::TRAIN_CLS
        .and(Self::EVAL_CLS)
        .and(Self::COMPILE_CLS)
        .and(Self::FIT_CLS)
        .and(Self::PREDICT_CLS);
    /// Training a classifier, or making ready for it.
    pub const TRAIN_LIKE_CLS: Commands = Self::TRAIN_CLS.and(Self::COMPILE_CLS).and(Self::FIT_CLS);
    /// All of `xtrain cache`.
    pub const CACHE: Commands = Commands(0x1ff << 7);
    pub const ALL: Commands = Commands(u32::MAX);

    pub const fn and(self, other: Commands) -> Commands {
        Commands(self.0 | other.0)
    }

    pub fn contains(self, other: Commands) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the two share a command.
    pub const fn meets(self, other: Commands) -> bool {
        self.0 & other.0 != 0
    }
}

/// One command: its words, what it is for, and a line or two to copy.
pub struct CommandInfo {
    pub id: Commands,
    /// As typed, for example `train clm`.
    pub words: &'static str,
    pub about: &'static str,
    pub examples: &'static str,
}

/// In the order of `xtrain --help`.
pub const COMMANDS: [CommandInfo; 29] = [
    CommandInfo {
        id: Commands::TRAIN_CLM,
        words: "train clm",
        about: "Train a causal language model on text files",
        examples: "xtrain train clm --model_type gpt2 --config_overrides n_layer=6,n_embd=384,n_head=6 \\\n      --tokenizer_name DIR \
                   --train_file train.txt.gz --validation_file valid.txt --block_size 256 --do_train --do_eval --output_dir out\n  \
                   xtrain train clm --config run.toml --learning_rate 3e-4 --dry_run",
    },
    CommandInfo {
        id: Commands::TRAIN_MLM,
        words: "train mlm",
        about: "Train a masked language model on text files",
        examples: "xtrain train mlm --model_type bert --config_name bert-mini --tokenizer_name DIR --train_file train.txt.gz \\\n      \
                   --validation_file valid.txt --max_seq_length 128 --do_train --do_eval --output_dir out",
    },
    CommandInfo {
        id: Commands::TRAIN_CLS,
        words: "train cls",
        about: "Train a classifier of texts or pairs of texts on tables (CSV, TSV, JSON lines, parquet)",
        examples: "xtrain train cls --model_name_or_path DIR --train_file train.csv --validation_file valid.csv --text_column_name text \\\n      \
                   --label_column_name label --eval_strategy epoch --save_strategy epoch --load_best_model_at_end --output_dir out",
    },
    CommandInfo {
        id: Commands::EVAL_CLM,
        words: "eval clm",
        about: "Loss and perplexity of a model on text files",
        examples: "xtrain eval clm --model_name_or_path out --validation_file valid.txt --block_size 256",
    },
    CommandInfo {
        id: Commands::EVAL_MLM,
        words: "eval mlm",
        about: "Loss, perplexity and accuracy of a masked language model on text files",
        examples: "xtrain eval mlm --model_name_or_path out --validation_file valid.txt --max_seq_length 128",
    },
    CommandInfo {
        id: Commands::EVAL_CLS,
        words: "eval cls",
        about: "Loss, accuracy, F1 and Matthews correlation of a classifier, or a regression's errors, on a table with labels",
        examples: "xtrain eval cls --model_name_or_path out --validation_file test.csv",
    },
    CommandInfo {
        id: Commands::PREDICT_CLS,
        words: "predict cls",
        about: "Label the rows of a table, into a CSV file with a score for each label",
        examples: "xtrain predict cls --model_name_or_path out --test_file new.csv --output_file labels.csv",
    },
    CommandInfo {
        id: Commands::GENERATE,
        words: "generate",
        about: "Continue a prompt with a trained model",
        examples: "xtrain generate --model_name_or_path out --prompt \"The river\" --max_new_tokens 40",
    },
    CommandInfo {
        id: Commands::LAUNCH,
        words: "launch",
        about: "Run train or eval as several processes, on one machine or many",
        examples: "xtrain launch --nproc_per_node 2 --max_restarts 3 -- train clm --config run.toml\n  \
                   xtrain launch --nnodes 2 --node_rank 0 --rdzv_endpoint 10.0.0.1:29400 --rdzv_secret_file ~/secret -- train clm --config run.toml",
    },
    CommandInfo {
        id: Commands::BENCH,
        words: "bench",
        about: "Measure the training step: time, tokens/s, model FLOP/s against this machine's ceiling",
        examples: "xtrain bench --model_type gpt2 --batch 4 --seq 128 --steps 10 --warmup 2 --json",
    },
    CommandInfo {
        id: Commands::SCALING,
        words: "scaling",
        about: "Run bench or train on 1, 2, 4, ... devices and tell throughput, efficiency and what is exchanged",
        examples: "xtrain scaling --degrees 1,2,4 -- bench --model_type gpt2 --batch 8 --seq 128\n  \
                   xtrain scaling --degrees 1,2 --axis processes --plot scaling.svg -- train clm --config run.toml --max_steps 20",
    },
    CommandInfo {
        id: Commands::DOCTOR,
        words: "doctor",
        about: "Check that everything a device needs is there, and say what to install if not",
        examples: "xtrain doctor --device cpu",
    },
    CommandInfo {
        id: Commands::TOP,
        words: "top",
        about: "Watch a training run: step, loss, speed, where its time goes, compiled graphs, devices",
        examples: "xtrain top --output_dir out\n  xtrain top --output_dir out --once --json",
    },
    CommandInfo {
        id: Commands::QUICKSTART,
        words: "quickstart",
        about: "Train a small GPT-2 on the text that comes with xtrain: a few minutes from nothing to a sample",
        examples: "xtrain quickstart",
    },
    CommandInfo {
        id: Commands::COMPILE_CLM,
        words: "compile clm",
        about: "Compile every graph that `train clm` with the same flags will use, without data or weights",
        examples: "xtrain compile clm --model_type gpt2 --tokenizer_name DIR --block_size 256 --do_train --do_eval",
    },
    CommandInfo {
        id: Commands::COMPILE_MLM,
        words: "compile mlm",
        about: "Compile every graph that `train mlm` with the same flags will use, without data or weights",
        examples: "xtrain compile mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --do_train --do_eval",
    },
    CommandInfo {
        id: Commands::COMPILE_CLS,
        words: "compile cls",
        about: "Compile every graph that `train cls` with the same flags will use, without data or weights",
        examples: "xtrain compile cls --model_type bert --tokenizer_name DIR --labels no,yes --pad_to_bucket 64,128 --do_train",
    },
    CommandInfo {
        id: Commands::FIT_CLM,
        words: "fit clm",
        about: "Find the largest batch that fits into memory, from the compiler's statistics, without running a step",
        examples: "xtrain fit clm --model_type gpt2 --tokenizer_name DIR --block_size 512 --memory 16GiB\n  \
                   xtrain fit clm --config run.toml --memory 16GiB --scale_learning_rate_from 5e-5@32",
    },
    CommandInfo {
        id: Commands::FIT_MLM,
        words: "fit mlm",
        about: "Find the largest batch of `train mlm` with the same flags that fits into memory",
        examples: "xtrain fit mlm --model_type bert --tokenizer_name DIR --max_seq_length 128 --memory 16GiB",
    },
    CommandInfo {
        id: Commands::FIT_CLS,
        words: "fit cls",
        about: "Find the largest batch of `train cls` with the same flags that fits into memory",
        examples: "xtrain fit cls --model_type bert --tokenizer_name DIR --labels no,yes --max_seq_length 128 --memory 16GiB",
    },
    CommandInfo {
        id: Commands::CACHE_LS,
        words: "cache ls",
        about: "List the compiled graphs that are stored",
        examples: "xtrain cache ls\n  xtrain cache ls --json",
    },
    CommandInfo {
        id: Commands::CACHE_SHOW,
        words: "cache show",
        about: "Everything about one stored graph: its key's parts, origin, memory, cost",
        examples: "xtrain cache show 3f2a\n  xtrain cache show 3f2a --hlo > train.hlo.txt",
    },
    CommandInfo {
        id: Commands::CACHE_EXPLAIN,
        words: "cache explain",
        about: "Say what differs between two stored graphs, or between one and the nearest older one",
        examples: "xtrain cache explain 3f2a 91bc\n  xtrain cache explain 3f2a",
    },
    CommandInfo {
        id: Commands::CACHE_VERIFY,
        words: "cache verify",
        about: "Check the digests of all stored graphs and whether those of the device load on it",
        examples: "xtrain cache verify",
    },
    CommandInfo {
        id: Commands::CACHE_PRUNE,
        words: "cache prune",
        about: "Remove stored graphs by age, size, device or compiler",
        examples: "xtrain cache prune --older_than 30 --dry_run\n  xtrain cache prune --max_size 2GiB",
    },
    CommandInfo {
        id: Commands::CACHE_EXPORT,
        words: "cache export",
        about: "Write stored graphs (all, or those named) to a tar file, for other machines of the same kind",
        examples: "xtrain cache export --file graphs.tar",
    },
    CommandInfo {
        id: Commands::CACHE_IMPORT,
        words: "cache import",
        about: "Take graphs from a tar file that `cache export` wrote, each checked",
        examples: "xtrain cache import --file graphs.tar",
    },
    CommandInfo {
        id: Commands::CACHE_PATH,
        words: "cache path",
        about: "Print the directory of the stored graphs",
        examples: "xtrain cache path",
    },
    CommandInfo {
        id: Commands::CACHE_STATS,
        words: "cache stats",
        about: "Number, size and use of the stored graphs, and the compile time that they saved",
        examples: "xtrain cache stats",
    },
];

impl CommandInfo {
    pub fn of(id: Commands) -> &'static CommandInfo {
        COMMANDS
            .iter()
            .find(|command| command.id == id)
            .expect("ids come from this table")
    }
}

/// Headings of `--help`, in the order in which they are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Run,
    Model,
    Data,
    Batches,
    Optimizer,
    Precision,
    Parallel,
    Logging,
    Checkpoints,
    Evaluation,
    Generation,
    Measurement,
    Neuron,
    Cache,
}

impl Section {
    pub const ALL: [Section; 14] = [
        Section::Run,
        Section::Model,
        Section::Data,
        Section::Batches,
        Section::Optimizer,
        Section::Precision,
        Section::Parallel,
        Section::Logging,
        Section::Checkpoints,
        Section::Evaluation,
        Section::Generation,
        Section::Measurement,
        Section::Neuron,
        Section::Cache,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Section::Run => "The run",
            Section::Model => "Model",
            Section::Data => "Data",
            Section::Batches => "Batches and length",
            Section::Optimizer => "Optimizer",
            Section::Precision => "Precision",
            Section::Parallel => "Many devices",
            Section::Logging => "Logging",
            Section::Checkpoints => "Checkpoints",
            Section::Evaluation => "Evaluation",
            Section::Generation => "Generation",
            Section::Measurement => "Measurement",
            Section::Neuron => "AWS Neuron",
            Section::Cache => "The cache of compiled graphs",
        }
    }
}

/// What xtrain makes of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Support {
    Built,
    /// Nothing to do here whatever the value, and no number depends on it: accepted with a note.
    NoEffect,
    /// Only these values are true of xtrain; any other is refused with the flag's help sentence as
    /// the reason.
    Only(&'static [&'static str]),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// In snake_case; the kebab-case spelling is always accepted too.
    pub name: &'static str,
    /// Older names for the same setting.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    /// As one would type it; empty when there is none.
    pub default: &'static str,
    /// A sentence without its full stop.
    pub help: &'static str,
    pub commands: Commands,
    pub section: Section,
    pub support: Support,
    /// Written without its name, as plain words after the command.
    pub positional: bool,
    /// A letter for people at a terminal (`-j 4`), where the field has a habit.
    pub short: Option<char>,
}

impl Flag {
    /// The value when nobody sets it.
    pub fn default_value(&self) -> Option<Value> {
        if self.default.is_empty() {
            return None;
        }
        Some(
            self.kind
                .parse(self.default)
                .expect("a test parses every default in the table"),
        )
    }

    pub fn is_built(&self) -> bool {
        self.support == Support::Built
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
        same(self.name) || self.aliases.iter().any(|alias| same(alias))
    }
}

/// Every row, the built ones first.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    built::FLAGS.iter().chain(unbuilt::FLAGS)
}

/// The rows that one command takes.
pub fn of(command: Commands) -> impl Iterator<Item = &'static Flag> {
    all().filter(move |flag| flag.commands.contains(command))
}

/// The row that a name in either spelling means for a command.
pub fn find(name: &str, command: Commands) -> Option<&'static Flag> {
    of(command).find(|flag| flag.answers_to(name))
}

/// The words of the commands that take `name`, if any do.
pub fn commands_taking(name: &str) -> Vec<&'static str> {
    let takes = |command: &&CommandInfo| find(name, command.id).is_some_and(Flag::is_built);
    COMMANDS
        .iter()
        .filter(takes)
        .map(|command| command.words)
        .collect()
}

/// What to say about a name that a command does not take. Names that are not built are not
/// suggested.
pub fn advice(name: &str, command: Commands) -> Advice {
    let elsewhere = commands_taking(name);
    if !elsewhere.is_empty() {
        return Advice::BelongsTo(elsewhere);
    }
    let built = of(command).filter(|flag| flag.is_built());
    let known =
        built.flat_map(|flag| std::iter::once(flag.name).chain(flag.aliases.iter().copied()));
    nearest(name, known).map_or(Advice::Nothing, |name| Advice::Meant(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_legal_value() {
        for flag in all() {
            if !flag.default.is_empty() {
                assert!(
                    flag.kind.parse(flag.default).is_some(),
                    "{} = {}",
                    flag.name,
                    flag.default
                );
            }
        }
    }

    #[test]
    fn names_are_unique_within_a_command() {
        for command in &COMMANDS {
            let mut seen = std::collections::BTreeSet::new();
            for flag in of(command.id) {
                for name in std::iter::once(flag.name).chain(flag.aliases.iter().copied()) {
                    assert!(
                        seen.insert(name),
                        "`{name}` stands twice in the table for {}",
                        command.words
                    );
                    assert!(
                        name.bytes()
                            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                        "{name}"
                    );
                }
            }
        }
    }

    #[test]
    fn help_is_one_sentence_without_a_full_stop() {
        for flag in all() {
            assert!(
                !flag.help.is_empty() && !flag.help.ends_with('.'),
                "{}",
                flag.name
            );
        }
    }

    #[test]
    fn both_spellings_and_old_names_are_found() {
        for name in [
            "learning_rate",
            "learning-rate",
            "evaluation_strategy",
            "evaluation-strategy",
        ] {
            assert!(find(name, Commands::TRAIN_CLM).is_some(), "{name}");
        }
        assert!(find("learning_rate", Commands::EVAL_CLS).is_none());
        assert!(find("learning rate", Commands::TRAIN_CLM).is_none());
    }
}
