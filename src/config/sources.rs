//! Which model, tokenizer and data the flags name, and by what the best evaluation is found: what
//! both the rules and the plans go by.

use super::choices::{GlueTask, LossType, SaveStrategy};
use super::command::TaskName;
use super::command::sets::{LABELLED, PREDICT, PREFERENCES, SFT, TRAIN_EVAL, TRAINING};
use super::derived::local_files;
use super::flags::Flags;
use super::plan::{ConfigSource, ModelSource, TaskPlan};
use super::preference;
use std::path::{Path, PathBuf};
use xtrain_data::LabelMap;
use xtrain_data::packing::PackingStrategy;
use xtrain_data::settings::{Mixture, PaddingSettings, SourceSettings, TableSettings};
use xtrain_graphs::op::CodeBook;
use xtrain_graphs::optim::ScheduleType;
use xtrain_models::{Quantization, preset_name};
use xtrain_tasks::answers::{AnswerSettings, Form};
use xtrain_tasks::{
    ClmDataSettings, ClsDataSettings, MlmDataSettings, PreferenceDataSettings, PreferenceLoss,
    ScoreDataSettings, SftDataSettings, TokenClsDataSettings,
};
use xtrain_trainer::settings::{BestRule, EarlyStopping};

/// The variable that names the cache's root where no flag does.
pub const CACHE_VARIABLE: &str = "XTRAIN_CACHE_DIR";

/// The variable that names the directory of event files where no flag does.
pub const LOGGING_VARIABLE: &str = "TENSORBOARD_LOGGING_DIR";

/// Where the model comes from; `None` if nothing names one.
pub fn model(flags: &Flags) -> Option<ModelSource> {
    if let Some(directory) = flags.model_name_or_path.clone() {
        return Some(ModelSource::Pretrained {
            directory,
            adapter: flags.adapter_name_or_path.clone(),
            model_type: *flags.model_type,
            quantization: quantization(flags),
        });
    }
    Some(ModelSource::Scratch {
        config: config_source(flags.config_name.as_deref(), *flags.model_type)?,
        model_type: *flags.model_type,
        overrides: flags.config_overrides.clone().unwrap_or_default(),
        quantization: quantization(flags),
    })
}

/// How the matrices of the model are held; `None`: as its other parameters.
fn quantization(flags: &Flags) -> Option<Quantization> {
    let book = if *flags.load_in_8bit {
        CodeBook::Int8
    } else if !*flags.load_in_4bit {
        return None;
    } else if *flags.bnb_4bit_quant_type == "fp4" {
        CodeBook::Fp4
    } else {
        CodeBook::Nf4
    };
    Some(Quantization {
        book,
        is_nested: book != CodeBook::Int8 && *flags.use_bnb_nested_quant,
    })
}

/// A file or directory here wins over a preset of the same name, as it does in transformers.
fn config_source(name: Option<&str>, model_type: Option<&'static str>) -> Option<ConfigSource> {
    let Some(name) = name else {
        return model_type.map(ConfigSource::Default);
    };
    let path = Path::new(name);
    if path.is_file() {
        return Some(ConfigSource::File(path.into()));
    }
    let inside = path.join("config.json");
    Some(match preset_name(name).filter(|_| !inside.is_file()) {
        Some(preset) => ConfigSource::Preset(preset),
        None => ConfigSource::File(inside),
    })
}

/// The tokenizer's directory or file: without one of its own, the model's; `None` if nothing names
/// one.
pub fn tokenizer_path(flags: &Flags) -> Option<&Path> {
    let named = flags.tokenizer_name.as_deref();
    named.or(flags.model_name_or_path.as_deref())
}

/// What the command's task learns, from which data; `None` of a command without one.
pub fn task(flags: &Flags) -> Option<TaskPlan> {
    Some(task_plan(flags, flags.command.task()?))
}

/// What is learned, from which data.
pub fn task_plan(flags: &Flags, task: TaskName) -> TaskPlan {
    match task {
        TaskName::Clm => TaskPlan::Clm(ClmDataSettings {
            source: source(flags),
            block_size: *flags.block_size,
            stride: *flags.stride,
        }),
        TaskName::Sft => TaskPlan::Sft(SftDataSettings {
            source: source(flags),
            max_seq_length: *flags.max_seq_length,
            padding: padding(flags, *flags.pad_to_max_length),
            completion_only_loss: *flags.completion_only_loss,
            assistant_only_loss: *flags.assistant_only_loss,
            packing: packing(flags, *flags.packing),
            eval_packing: packing(flags, flags.eval_packing.unwrap_or(*flags.packing)),
            weighs_by_probability: *flags.loss_type == LossType::Dft,
            fits_data: fits_data(flags),
        }),
        TaskName::Dpo => preferences(flags, Form::Pairs, preference::dpo(flags)),
        TaskName::Reward if PREDICT.contains(flags.command) => {
            let answers = answers(flags, Form::Alone);
            TaskPlan::Scores(ScoreDataSettings { answers })
        }
        TaskName::Reward => {
            let loss = PreferenceLoss::Reward(preference::reward(flags));
            preferences(flags, Form::Scored, loss)
        }
        TaskName::Kto => {
            let loss = PreferenceLoss::Kto(preference::kto(flags));
            preferences(flags, preference::judged(flags), loss)
        }
        TaskName::Mlm => TaskPlan::Mlm(MlmDataSettings {
            source: source(flags),
            max_seq_length: *flags.max_seq_length,
            line_by_line: *flags.line_by_line,
            mlm_probability: *flags.mlm_probability,
            whole_word_mask: *flags.whole_word_mask,
            padding: padding(flags, *flags.pad_to_max_length),
        }),
        TaskName::Cls => TaskPlan::Cls(cls_data(flags)),
        TaskName::TokenCls => TaskPlan::TokenCls(TokenClsDataSettings {
            source: source(flags),
            label_column: flags.label_column_name.clone(),
            max_seq_length: *flags.max_seq_length,
            padding: padding(flags, *flags.pad_to_max_length),
            labels: flags.labels.clone(),
            label_all_tokens: *flags.label_all_tokens,
            entity_level_metrics: *flags.return_entity_level_metrics,
        }),
    }
}

fn preferences(flags: &Flags, form: Form, loss: PreferenceLoss) -> TaskPlan {
    let answers = answers(flags, form);
    TaskPlan::Preferences(PreferenceDataSettings { answers, loss })
}

fn answers(flags: &Flags, form: Form) -> AnswerSettings {
    AnswerSettings {
        source: source(flags),
        max_seq_length: *flags.max_seq_length,
        truncation: preference::truncation(flags),
        padding: padding(flags, *flags.pad_to_max_length),
        form,
    }
}

fn cls_data(flags: &Flags) -> ClsDataSettings {
    ClsDataSettings {
        source: source(flags),
        text_pair_column: flags.text_pair_column_name.clone(),
        label_column: flags.label_column_name.clone(),
        max_seq_length: *flags.max_seq_length,
        padding: padding(flags, *flags.cls_pad_to_max_length),
        labels: if *flags.do_regression == Some(true) {
            Some(LabelMap::numbers())
        } else {
            flags.labels.clone()
        },
        finds_regression: *flags.do_regression != Some(false),
        glue: flags.task_name.map(GlueTask::glue),
    }
}

fn packing(flags: &Flags, packs: bool) -> Option<PackingStrategy> {
    packs.then_some(*flags.packing_strategy)
}

/// Whether length, padding and packing of sft follow from the data: of a folder, if nobody chose any of
/// them.
fn fits_data(flags: &Flags) -> bool {
    let chosen = [
        flags.max_seq_length.given_name(),
        flags.packing.given_name(),
        flags.packing_strategy.given_name(),
        flags.eval_packing.given_name(),
        flags.padding_free.given_name(),
        flags.pad_to_max_length.given_name(),
        flags.pad_to_bucket.given_name(),
        flags.max_train_samples.given_name(),
        flags.max_eval_samples.given_name(),
    ];
    flags.is_folder && !*flags.streaming && chosen.iter().all(Option::is_none)
}

fn padding(flags: &Flags, pad_to_max_length: bool) -> PaddingSettings {
    let pad_to_bucket = flags.pad_to_bucket.clone().unwrap_or_default();
    PaddingSettings {
        pad_to_max_length: pad_to_max_length && pad_to_bucket.is_empty(),
        pad_to_bucket,
    }
}

/// Percent of the training set that validates. Nothing is set aside of a stream, nor of rows that
/// nobody evaluates on; of a text, run_clm and run_mlm always set it aside.
fn set_aside(flags: &Flags) -> f64 {
    let of_rows = [LABELLED, SFT, PREFERENCES];
    let is_mixture = !flags.weights.is_empty();
    let are_rows = is_mixture || of_rows.iter().any(|set| set.contains(flags.command));
    let unused = are_rows && TRAINING.contains(flags.command) && !flags.evaluates();
    if TRAIN_EVAL.contains(flags.command) && !unused && !*flags.streaming {
        *flags.validation_split_percentage
    } else {
        0.0
    }
}

/// Where examples come from, for every task.
fn source(flags: &Flags) -> SourceSettings {
    SourceSettings {
        train_files: local_files(&flags.train_file),
        mixture: (!flags.weights.is_empty()).then(|| Mixture {
            weights: flags.weights.clone(),
            stopping: *flags.stopping_strategy,
        }),
        validation_files: local_files(&flags.validation_file),
        validation_mismatched_files: local_files(&flags.validation_mismatched_file),
        test_files: local_files(&flags.test_file),
        test_mismatched_files: local_files(&flags.test_mismatched_file),
        validation_split_percentage: set_aside(flags),
        max_train_samples: *flags.max_train_samples,
        max_eval_samples: *flags.max_eval_samples,
        max_predict_samples: *flags.max_predict_samples,
        table: TableSettings {
            text_column: flags.text_column_name.clone(),
            quoting: *flags.quoting,
            on_bad_row: *flags.on_bad_row,
            features: flags.features.clone(),
        },
        preprocessing_num_workers: *flags.preprocessing_num_workers,
        dataloader_num_workers: *flags.dataloader_num_workers,
        overwrite_cache: *flags.overwrite_cache,
        cache_dir: cache_dir(flags, "data"),
        seed: flags.data_seed.unwrap_or(*flags.seed),
        streaming: flags.streaming.then_some(*flags.shuffle_buffer_size),
    }
}

/// By which metric evaluations are compared. As TrainingArguments does, whoever wants the best model
/// and names no metric gets the one of the smallest loss.
pub fn best(flags: &Flags) -> Option<BestRule> {
    let load_at_end = *flags.load_best_model_at_end;
    let named = flags.metric_for_best_model.as_deref();
    let saves_best = *flags.save_strategy == SaveStrategy::Best;
    // As TrainingArguments has it, this schedule judges by a metric too.
    let by_plateau = *flags.lr_scheduler_type == ScheduleType::ReduceLrOnPlateau;
    let stops_early = flags.early_stopping_patience.is_some();
    if named.is_none() && !(stops_early || load_at_end || saves_best || by_plateau) {
        return None;
    }
    let metric = named.unwrap_or("loss");
    let metric = metric.strip_prefix("eval_").unwrap_or(metric);
    let grows = !metric.ends_with("loss") && !["perplexity", "mse"].contains(&metric);
    Some(BestRule {
        greater_is_better: flags.greater_is_better.unwrap_or(grows),
        load_at_end,
        early_stopping: flags.early_stopping_patience.map(|patience| EarlyStopping {
            patience: patience as u64,
            threshold: *flags.early_stopping_threshold,
        }),
        metric: metric.to_string(),
    })
}

/// A directory for one kind of thing below the cache's root.
pub fn cache_dir(flags: &Flags, kind: &str) -> PathBuf {
    cache_root(flags.cache_dir.clone(), |name| {
        std::env::var_os(name).map(PathBuf::from)
    })
    .join(kind)
}

/// The directory under which everything that can be made again is kept: the one given, else by the
/// environment. Empty variables count as unset, as the XDG specification has it.
fn cache_root(given: Option<PathBuf>, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    given
        .or_else(|| set(CACHE_VARIABLE))
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("xtrain")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/xtrain")))
        // A process without a home (some containers) still has a working directory.
        .unwrap_or_else(|| ".xtrain-cache".into())
}

#[cfg(test)]
mod tests {
    use super::super::command::COMMANDS;
    use super::*;
    use std::mem::discriminant;

    /// What `config` says of a task before there are settings, the task says too.
    #[test]
    fn a_command_and_its_task_have_one_name_and_one_head() {
        let mut checked = 0;
        for info in COMMANDS {
            let Some(name) = info.id.task() else { continue };
            let task = task_plan(&Flags::new(info.id), name);
            assert!(
                info.words.ends_with(&format!(" {}", task.name())),
                "`{}` is of task {}",
                info.words,
                task.name()
            );
            assert_eq!(
                discriminant(&name.head()),
                discriminant(&task.head(None)),
                "{}",
                info.words
            );
            checked += 1;
        }
        assert!(checked >= 20, "{checked} commands with a task");
    }

    #[test]
    fn the_cache_directory_follows_the_environment() {
        let root = |set: &[(&str, &str)]| {
            let set: Vec<(String, PathBuf)> =
                set.iter().map(|(k, v)| (k.to_string(), v.into())).collect();
            cache_root(None, |name| {
                set.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone())
            })
        };
        assert_eq!(
            root(&[("XTRAIN_CACHE_DIR", "/a"), ("HOME", "/h")]),
            PathBuf::from("/a")
        );
        assert_eq!(
            root(&[
                ("XTRAIN_CACHE_DIR", ""),
                ("XDG_CACHE_HOME", "/x"),
                ("HOME", "/h")
            ]),
            PathBuf::from("/x/xtrain")
        );
        assert_eq!(root(&[("HOME", "/h")]), PathBuf::from("/h/.cache/xtrain"));
        assert_eq!(root(&[]), PathBuf::from(".xtrain-cache"));
        assert_eq!(
            cache_root(Some("/t".into()), |_| Some("/a".into())),
            PathBuf::from("/t")
        );
    }
}
