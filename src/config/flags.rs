//! The flags, each declared once: its sentence of help, name, kind, default, and the commands that
//! take it. The command line, settings files, `--help`, suggestions, `docs/flags.md` and the typed
//! field that `resolve` and the rules read all come from this declaration. Names are
//! TrainingArguments' and run_clm's wherever they have one, and so are defaults; where xtrain
//! differs, the help sentence says so. The tables are in `flags/`; `unbuilt` has the names that are
//! known and have no flag.

mod machine;
mod run;
mod training;
mod unbuilt;

use super::choices::*;
use super::command::sets::*;
use super::command::{CommandName, Commands};
use super::declare::{flags, sections};
use super::error::{Origin, UsageError};
use super::forms::*;
use super::kind::*;
use super::setting::{Setting, Typed};
use machine::machine_flags;
use run::run_flags;
use std::path::PathBuf;
use training::training_flags;
pub use unbuilt::UNBUILT;
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

run_flags! { {} training_flags machine_flags flags }

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
