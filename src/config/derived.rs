//! What follows from several flags together, or from a flag and the environment, and is read in
//! more than one place.

use super::choices::{Device, Strategy, TorchDtype};
use super::command::sets::{BENCH, EVAL, PREDICT, TRAIN, TRAINING};
use super::command::{CommandName, TaskName};
use super::flags::{FLAGS, Flag, Flags};
use super::lookup;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use xtrain_data::remote;
use xtrain_distributed::{self as distributed, RankInfo};
use xtrain_report::runs::runs_in;

/// Of a run's settings by their flags' names, those that all of its processes have to have alike.
pub fn together(settings: &BTreeMap<&'static str, String>) -> BTreeMap<String, String> {
    let agreed = |name: &str| {
        let mut flags = FLAGS.iter().filter(|flag| flag.name == name);
        flags.any(|flag| flag.processes_agree)
    };
    let shared = settings.iter().filter(|(name, _)| agreed(name));
    shared
        .map(|(name, value)| (name.to_string(), value.clone()))
        .collect()
}

/// Flags with private values (secrets).
const SECRETS: [&str; 2] = ["token", "hub_token"];

/// Words as they were typed, without the values of secrets.
pub fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    let secret = |word: &str| {
        let name = word.strip_prefix("--")?.replace('-', "_");
        let flags = FLAGS.iter().filter(|flag| SECRETS.contains(&flag.name));
        flags.into_iter().find(|flag| flag.answers_to(&name))
    };
    let mut shown: Vec<String> = Vec::new();
    let mut is_value = false;
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        let is_secret = secret(name).is_some();
        shown.push(if is_value {
            "***".into()
        } else if is_secret && value.is_some() {
            format!("{name}=***")
        } else {
            word.clone()
        });
        is_value = is_secret && value.is_none() && !is_value;
    }
    shown
}

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
    /// `train` trains unless `--do_train false` is given; `--do_eval` or `--do_predict` alone means
    /// "use, do not train", as in run_glue.
    pub fn trains(&self) -> bool {
        let is_used = *self.do_eval == Some(true) || *self.do_predict;
        TRAIN.contains(self.command) && self.do_train.unwrap_or(!is_used)
    }

    /// `eval` does. In training, as TrainingArguments has it, a strategy that evaluates turns
    /// evaluation on.
    pub fn evaluates(&self) -> bool {
        let by_strategy = *self.eval_strategy != Strategy::No;
        EVAL.contains(self.command) || self.do_eval.unwrap_or(by_strategy)
    }

    /// The note that `--do_eval` or `--do_predict` alone does not train, or that what is evaluated has random weights; the
    /// first process of a job prints it.
    pub fn evaluation_note(&self) -> Option<String> {
        let is_first = self.member().ok()?.is_none_or(|member| member.rank == 0);
        let is_random = EVAL.contains(self.command) && !self.model_name_or_path.is_given();
        if !is_first {
            None
        } else if is_random {
            Some("the model has random weights: no --model_name_or_path is given".into())
        } else if TRAINING.contains(self.command) && !self.trains() && !self.do_train.is_given() {
            let (flag, does) = self.use_without_training();
            Some(format!(
                "{flag} without --do_train only {does}; add --do_train to train, too"
            ))
        } else {
            None
        }
    }

    /// The note that f32 matmuls use no tensor core, which nobody who comes from JAX expects; the first
    /// process of a job prints it.
    pub fn f32_note(&self) -> Option<String> {
        let is_first = self.member().ok()?.is_none_or(|member| member.rank == 0);
        let is_of = TRAIN.contains(self.command) || BENCH.contains(self.command);
        let is_f32 = !*self.bf16 && !*self.fp16 && *self.torch_dtype == TorchDtype::Float32;
        (is_first && is_of && *self.device == Device::Cuda && is_f32 && !*self.tf32).then(|| {
            "float32 matmuls are exact and use no tensor core; of an H100's peak, --tf32 has 7 times as much, --bf16 15 times".to_string()
        })
    }

    /// The note that an optimizer whose name says so pages nothing; the first process of a job prints it.
    pub fn paging_note(&self) -> Option<String> {
        let is_first = self.member().ok()?.is_none_or(|member| member.rank == 0);
        let name = self.typed.0.get("optim")?;
        (is_first && name.starts_with("paged")).then(|| {
            format!(
                "--optim {name} is {}: its state stays on the device, nothing is paged",
                self.optim.choices[0]
            )
        })
    }

    /// The flag that uses a model where none is trained, and what it does.
    pub fn use_without_training(&self) -> (&'static str, &'static str) {
        if *self.do_eval == Some(true) || !*self.do_predict {
            ("--do_eval", "evaluates")
        } else {
            ("--do_predict", "labels")
        }
    }

    /// Whether a flag was given with a value that could not be read, so that nobody knows what is missing.
    pub fn is_mistaken(&self, name: &str) -> bool {
        self.mistakes
            .iter()
            .any(|mistake| mistake.flag() == Some(name))
    }

    /// Whether the rows of the test files are labelled.
    pub fn predicts(&self) -> bool {
        PREDICT.contains(self.command) || *self.do_predict
    }

    /// The repository that the model is pushed to, unless output_dir has no name.
    pub fn pushed_name(&self) -> Option<String> {
        let of_directory = || {
            let dir = std::path::absolute(self.output_dir.as_deref()?).ok()?;
            Some(dir.file_name()?.to_str()?.to_string())
        };
        self.hub_model_id.clone().or_else(of_directory)
    }

    /// The runs of a report: those that were named, and those in a sweep's directory.
    pub fn reported(&self) -> Vec<PathBuf> {
        let named = self.runs.iter();
        named.flat_map(|run| runs_in(Path::new(run))).collect()
    }

    /// Which of the runs of a report the baseline is: named as it stands among them, or by its
    /// last part.
    pub fn baseline_place(&self) -> Option<usize> {
        let name = Path::new(self.baseline.as_deref()?);
        let is_named = |run: &PathBuf| run == name || run.file_name() == Some(name.as_os_str());
        self.reported().iter().position(is_named)
    }

    /// Every setting of the command by its flag's name, as typed or by default, for those who
    /// compare runs. Secrets stay out.
    pub fn settings(&self) -> BTreeMap<&'static str, String> {
        let shown = lookup::of(self.command)
            .filter(|flag| flag.is_built() && !SECRETS.contains(&flag.name));
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

    /// The same of the flags that an evaluation has too.
    pub fn given_of_evaluations(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let evaluation = CommandName::Eval(TaskName::Clm);
        self.given_of_graphs()
            .filter(move |(name, _)| lookup::find(name, evaluation).is_some())
    }

    /// Which process of a job this is, for commands that several can share.
    ///
    /// # Errors
    /// The environment contradicts itself.
    pub fn member(&self) -> Result<Option<RankInfo>, distributed::Error> {
        if TRAINING.contains(self.command) || EVAL.contains(self.command) {
            return RankInfo::from_environment();
        }
        Ok(None)
    }
}

/// Data files as they were named; `file://` is a path here like any other.
pub fn local_files(files: &[PathBuf]) -> Vec<PathBuf> {
    files.iter().cloned().map(remote::local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_what_decides_their_steps() {
        let all = FLAGS.iter().map(|flag| (flag.name, "x".to_string()));
        let shared = together(&all.collect());
        for name in ["learning_rate", "bf16", "device", "seed", "logging_steps"] {
            assert!(shared.contains_key(name), "{name}");
        }
        for name in ["output_dir", "cpu_threads", "train_file", "overwrite_cache"] {
            assert!(!shared.contains_key(name), "{name}");
            assert!(FLAGS.iter().any(|flag| flag.name == name), "{name}");
        }
    }

    #[test]
    fn a_token_is_not_kept() {
        let words = "xtrain --token hf_1 --token=hf_2 --hub-token hf_3 --push_to_hub_token=hf_4 --hub_token --token --seed 3";
        assert_eq!(
            without_secrets(words.split(' ').map(str::to_string)).join(" "),
            "xtrain --token *** --token=*** --hub-token *** --push_to_hub_token=*** --hub_token *** --seed 3"
        );
    }
}
