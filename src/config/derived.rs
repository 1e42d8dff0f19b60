//! What follows from several flags together, or from a flag and the environment, and is read in
//! more than one place.

use super::choices::Strategy;
use super::command::CommandName;
use super::command::sets::CLS;
use super::flags::Flags;
use crate::data::remote;
use crate::distributed::{self, RankInfo};
use std::path::PathBuf;

impl Flags {
    /// `train` trains unless `--do_train false` is given; `--do_eval` alone means "evaluate, do not
    /// train", as in run_clm.
    pub fn trains(&self) -> bool {
        self.do_train.unwrap_or(*self.do_eval != Some(true))
    }

    /// As TrainingArguments does, a strategy that evaluates turns evaluation on.
    pub fn evaluates(&self) -> bool {
        self.do_eval.unwrap_or(*self.eval_strategy != Strategy::No)
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
