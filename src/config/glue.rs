//! `--task_name` as run_glue and run_ner have it: a task's data set, columns and kind of label, in the
//! place of the flags that name them. Flags that were given win.

use super::choices::GlueTask;
use super::command::sets::PREDICT;
use super::flags::Flags;
use super::lookup;
use std::path::PathBuf;
use xtrain_tasks::Glue;

/// Where GLUE is on the Hub, each task a configuration.
const DATASET: &str = "nyu-mll/glue";

impl GlueTask {
    /// The columns of its texts.
    fn columns(self) -> (&'static str, Option<&'static str>) {
        match self {
            GlueTask::Cola | GlueTask::Sst2 => ("sentence", None),
            GlueTask::Mnli => ("premise", Some("hypothesis")),
            GlueTask::Qnli => ("question", Some("sentence")),
            GlueTask::Qqp => ("question1", Some("question2")),
            GlueTask::Mrpc | GlueTask::Rte | GlueTask::Stsb | GlueTask::Wnli => {
                ("sentence1", Some("sentence2"))
            }
        }
    }
}

impl GlueTask {
    /// How it is measured, and its classes.
    pub fn glue(self) -> Glue {
        let accuracy: &[&str] = &["accuracy"];
        let with_f1: &[&str] = &["accuracy", "f1"];
        let (name, metrics, classes): (_, _, &[&str]) = match self {
            GlueTask::Cola => (
                "cola",
                &["matthews_correlation"][..],
                &["unacceptable", "acceptable"],
            ),
            GlueTask::Sst2 => ("sst2", accuracy, &["negative", "positive"]),
            GlueTask::Mrpc => ("mrpc", with_f1, &["not_equivalent", "equivalent"]),
            GlueTask::Stsb => ("stsb", &["pearson", "spearmanr"], &[]),
            GlueTask::Qqp => ("qqp", with_f1, &["not_duplicate", "duplicate"]),
            GlueTask::Mnli => (
                "mnli",
                accuracy,
                &["entailment", "neutral", "contradiction"],
            ),
            GlueTask::Qnli => ("qnli", accuracy, &["entailment", "not_entailment"]),
            GlueTask::Rte => ("rte", accuracy, &["entailment", "not_entailment"]),
            GlueTask::Wnli => ("wnli", accuracy, &["not_entailment", "entailment"]),
        };
        Glue {
            name,
            metrics,
            classes,
        }
    }
}

/// MNLI's two sets to evaluate on and to label: of several files, those with `mismatched` in their
/// names are the second one's.
pub fn tell_halves(flags: &mut Flags) {
    let is_mnli = *flags.task_name == Some(GlueTask::Mnli);
    let halves = [
        (
            &mut flags.validation_file,
            &mut flags.validation_mismatched_file,
        ),
        (&mut flags.test_file, &mut flags.test_mismatched_file),
    ];
    for (first, second) in halves {
        let is_second = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains("mismatched")
        };
        let (others, own): (Vec<_>, Vec<_>) = first.iter().cloned().partition(is_second);
        let is_taken = lookup::find(second.name(), flags.command).is_some() && !second.is_given();
        if is_mnli && is_taken && !own.is_empty() && !others.is_empty() {
            first.set(own);
            second.set(others);
        }
    }
}

/// Sets what a task's name stands for.
pub fn apply(flags: &mut Flags) {
    if let Some(tags) = flags.tag_task.clone()
        && tags != "ner"
        && !flags.label_column_name.is_given()
    {
        // `ner_tags` is the default already.
        flags
            .label_column_name
            .set(Some(format!("{}_tags", tags.to_lowercase())));
    }
    let Some(task) = *flags.task_name else {
        return;
    };
    tell_halves(flags);
    let (text, pair) = task.columns();
    if !flags.text_column_name.is_given() {
        flags.text_column_name.set(Some(text.into()));
        if let Some(pair) = pair.filter(|_| !flags.text_pair_column_name.is_given()) {
            flags.text_pair_column_name.set(Some(pair.into()));
        }
    }
    if task == GlueTask::Stsb && !flags.do_regression.is_given() && !PREDICT.contains(flags.command)
    {
        flags.do_regression.set(Some(true));
    }
    let has_files = flags.train_file.is_given()
        || flags.validation_file.is_given()
        || flags.test_file.is_given();
    if !has_files && !flags.dataset_name.is_given() {
        flags.dataset_name.set(Some(DATASET.into()));
        flags.dataset_config_name.set(Some(task.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandName, TaskName};
    use crate::error::Origin;

    fn applied(task: TaskName, given: &[(&str, &str)]) -> Flags {
        let mut flags = Flags::new(CommandName::Train(task));
        for (name, text) in given {
            let flag = lookup::find(name, flags.command).unwrap();
            let texts = [text.to_string()];
            flags.take(flag, &texts, Origin::CommandLine).unwrap();
        }
        apply(&mut flags);
        flags
    }

    #[test]
    fn a_task_brings_its_data_and_columns() {
        let flags = applied(TaskName::Cls, &[("task_name", "stsb")]);
        assert_eq!(flags.dataset_name.as_deref(), Some(DATASET));
        assert_eq!(flags.dataset_config_name.as_deref(), Some("stsb"));
        assert_eq!(flags.text_pair_column_name.as_deref(), Some("sentence2"));
        assert_eq!(*flags.do_regression, Some(true));
        let own = [
            ("task_name", "qnli"),
            ("train_file", "a.csv"),
            ("text_column_name", "q"),
        ];
        let flags = applied(TaskName::Cls, &own);
        assert!(!flags.dataset_name.is_given());
        assert_eq!(flags.text_column_name.as_deref(), Some("q"));
        assert_eq!(flags.text_pair_column_name.as_deref(), None);
    }

    #[test]
    fn files_of_mnli_are_two_sets() {
        let files = ("validation_file", "dev_matched.csv");
        let mut flags = applied(TaskName::Cls, &[("task_name", "mnli"), files]);
        let both = ["a/dev_matched.csv", "a/dev_mismatched.csv"].map(PathBuf::from);
        flags.validation_file.set(both.to_vec());
        tell_halves(&mut flags);
        assert_eq!(*flags.validation_file, both[..1]);
        assert_eq!(*flags.validation_mismatched_file, both[1..]);
        assert!(!flags.test_mismatched_file.is_given());
    }

    #[test]
    fn tags_name_their_column() {
        let column = |task| {
            let flags = applied(TaskName::TokenCls, &[("task_name", task)]);
            flags.label_column_name.clone()
        };
        assert_eq!(column("POS").as_deref(), Some("pos_tags"));
        assert_eq!(column("ner"), None);
    }
}
