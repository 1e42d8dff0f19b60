//! What follows from several flags together, or from a flag and the environment, and is read in
//! more than one place.

use super::choices::Strategy;
use super::command::CommandName;
use super::command::sets::{CLS, EVAL, PREDICT, TRAIN};
use super::flags::{FLAGS, Flag, Flags};
use super::lookup;
use crate::data::remote;
use crate::distributed::{self, RankInfo};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The flag whose value is nobody else's business.
const SECRET: &str = "token";

/// Without the access token.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Flags")
            .field("command", &self.command)
            .field("settings", &self.settings())
            .finish_non_exhaustive()
    }
}

impl Flags {
    /// `train` trains unless `--do_train false` is given; `--do_eval` alone means "evaluate, do not
    /// train", as in run_clm.
    pub fn trains(&self) -> bool {
        TRAIN.contains(self.command) && self.do_train.unwrap_or(*self.do_eval != Some(true))
    }

    /// `eval` does. In training, as TrainingArguments has it, a strategy that evaluates turns
    /// evaluation on.
    pub fn evaluates(&self) -> bool {
        let by_strategy = *self.eval_strategy != Strategy::No;
        EVAL.contains(self.command) || self.do_eval.unwrap_or(by_strategy)
    }

    /// Whether the rows of the test files are labelled.
    pub fn predicts(&self) -> bool {
        PREDICT.contains(self.command) || *self.do_predict
    }

    /// Which of the runs of a report the baseline is: named as it stands among them, or by its
    /// last part.
    pub fn baseline_place(&self) -> Option<usize> {
        let name = self.baseline.as_deref()?;
        let is_named = |run: &String| {
            let last = Path::new(run).file_name();
            run == name || last.is_some_and(|last| last == name)
        };
        self.runs.iter().position(is_named)
    }

    /// Every setting of the command by its flag's name, as typed or by default, for those who
    /// compare runs. Secrets stay out.
    pub fn settings(&self) -> BTreeMap<&'static str, String> {
        let shown = lookup::of(self.command).filter(|flag| flag.is_built() && flag.name != SECRET);
        let value = |flag: &&Flag| match self.typed.0.get(flag.name) {
            Some(typed) => typed.clone(),
            None => flag.default.to_string(),
        };
        shown
            .map(|flag| (flag.name, value(&flag)))
            .filter(|(_, value)| !value.is_empty())
            .collect()
    }

    /// What was given of the flags that shape a run's graphs, as it was typed.
    pub fn given_of_graphs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let shaping = FLAGS.iter().filter(|flag| flag.shapes_graphs);
        shaping.filter_map(|flag| Some((flag.name, self.typed.0.get(flag.name)?.as_str())))
    }

    /// `--max_seq_length` as the command's task has it.
    pub fn max_seq_length(&self) -> Option<usize> {
        if CLS.contains(self.command) {
            Some(*self.cls_max_seq_length)
        } else {
            *self.max_seq_length
        }
    }

    /// Which process of a job this is, for commands that several can share.
    ///
    /// # Errors
    /// The environment contradicts itself.
    pub fn member(&self) -> Result<Option<RankInfo>, distributed::Error> {
        match self.command {
            CommandName::Train(_) | CommandName::Eval(_) => RankInfo::from_environment(),
            _ => Ok(None),
        }
    }
}

/// Data files as they were named; `file://` is a path here like any other.
pub fn local_files(files: &[PathBuf]) -> Vec<PathBuf> {
    files.iter().cloned().map(remote::local).collect()
}
