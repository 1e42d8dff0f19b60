//! What the files that are named hold, as far as their heads tell. The functions that ask are those
//! that the run opens them with; what takes reading a whole file, such as the labels of a table, is
//! left to the run, and so is damage inside of a file.

use super::verdict::{Verdict, refuse};
use crate::adapter;
use crate::choices::suits_task;
use crate::command::sets::{BENCH, CLS, GENERATE};
use crate::derived::local_files;
use crate::error::UsageError;
use crate::flags::Flags;
use crate::mesh::mesh;
use crate::nearest::nearest;
use crate::plan::{ConfigSource, ModelSource};
use crate::sources;
use std::path::Path;
use xtrain_data::{self as data, LabelMap, MissingColumn};
use xtrain_graphs::optim::ADAMW;
use xtrain_models::{Config, HeadKind, MODEL_TYPES, Model, adapt, is_encoder, presets};
use xtrain_tasks::{self as tasks, Task};
use xtrain_trainer::step::placements;
use xtrain_trainer::trained::Trained;

/// Every file has the columns that the task reads.
pub fn data_files_have_their_columns(flags: &Flags) -> Verdict {
    let Some(task) = sources::task(flags) else {
        return Ok(());
    };
    let validates = flags.validation_file.is_given();
    let trains = flags.trains() || (flags.evaluates() && !validates);
    let mut mistakes = Vec::new();
    for (files, is_read, needs_labels) in [
        (&flags.train_file, trains, true),
        (&flags.validation_file, flags.evaluates(), true),
        (&flags.validation_mismatched_file, flags.evaluates(), true),
        (&flags.test_file, flags.predicts(), false),
        (&flags.test_mismatched_file, flags.predicts(), false),
    ] {
        let files = is_read.then(|| (files.name(), local_files(files)));
        for (name, path) in files
            .into_iter()
            .flat_map(|(name, paths)| paths.into_iter().map(move |path| (name, path)))
            // Missing ones are another rule's.
            .filter(|(_, path)| path.is_file())
        {
            match task.check_file(&path, needs_labels) {
                Err(data::Error::NoColumn { missing, found, .. }) => {
                    let missing = missing.iter();
                    mistakes.extend(missing.map(|column| no_column(name, &path, column, &found)));
                }
                Err(error @ data::Error::NotATable { .. }) => mistakes.push(UsageError::illegal(
                    format!("--{name}: {error}"),
                    "give a table, with what the task reads in columns",
                )),
                _ => {}
            }
        }
    }
    UsageError::all(mistakes)
}

fn no_column(name: &str, path: &Path, column: &MissingColumn, found: &[String]) -> UsageError {
    let MissingColumn { flag, wanted } = column;
    let known = || found.iter().map(String::as_str);
    let mut near = wanted
        .split(" or ")
        .filter_map(|wanted| nearest(wanted.trim_matches('"'), known()));
    UsageError::illegal(
        format!(
            "--{name}: {} has no column {wanted}; it has {}",
            path.display(),
            found.join(", ")
        ),
        match (data::other_rows(found), near.next()) {
            (Some(advice), _) => advice.to_string(),
            (None, Some(near)) => format!("did you mean --{flag} {near}?"),
            (None, None) => format!("name the one to use with --{flag}"),
        },
    )
}

/// The model's source, where its configuration can be read now: of what is missing, and of names on
/// the Hub before they are fetched, nothing is known.
fn source(flags: &Flags) -> Option<ModelSource> {
    let source = sources::model(flags)?;
    let is_there = match &source {
        ModelSource::Pretrained { directory, .. } => directory.join("config.json").is_file(),
        ModelSource::Scratch { config, .. } => match config {
            ConfigSource::File(path) => path.is_file(),
            ConfigSource::Preset(_) | ConfigSource::Default(_) => true,
        },
    };
    is_there.then_some(source)
}

/// It can be read, is of the type that was named, and has the settings that are changed.
pub fn configuration_can_be_read(flags: &Flags) -> Verdict {
    match source(flags) {
        // With another model it has other settings.
        Some(source) if !is_of_another_task(flags, &source) => source.config(None).map(drop),
        _ => Ok(()),
    }
}

/// Whether the model is known to be of a family without the command's task.
fn is_of_another_task(flags: &Flags, source: &ModelSource) -> bool {
    let model_type = model_type(source);
    model_type.is_some_and(|name| !suits_task(&name, flags.command))
}

/// The model is of a family for the task.
pub fn model_suits_the_task(flags: &Flags) -> Verdict {
    let Some(source) = sources::model(flags) else {
        return Ok(());
    };
    let Some(model_type) = model_type(&source).filter(|_| is_of_another_task(flags, &source))
    else {
        return Ok(());
    };
    let (flag, shown, known): (_, _, Vec<&str>) = match &source {
        ModelSource::Pretrained { directory, .. } => (
            "model_name_or_path",
            format!("{} ({model_type})", directory.display()),
            MODEL_TYPES.into(),
        ),
        ModelSource::Scratch { config, .. } => match config {
            ConfigSource::Default(name) => ("model_type", name.to_string(), MODEL_TYPES.into()),
            ConfigSource::Preset(name) => (
                "config_name",
                flags.config_name.as_deref().unwrap_or(name).to_string(),
                presets().collect(),
            ),
            ConfigSource::File(path) => (
                "config_name",
                format!("{} ({model_type})", path.display()),
                MODEL_TYPES.into(),
            ),
        },
    };
    let known = known.into_iter();
    let known: Vec<&str> = known
        .filter(|name| suits_task(name, flags.command))
        .collect();
    let labelled = sources::task(flags).is_some_and(|task| task.labelled().is_some());
    let (what, other) = match is_encoder(&model_type) {
        _ if labelled => ("of a family without such a classifier", "clm"),
        Some(true) => (
            "an encoder, which predicts masked tokens, not the next one",
            "mlm",
        ),
        _ => (
            "a decoder, which predicts the next token, not masked ones",
            "clm",
        ),
    };
    let task = if GENERATE.contains(flags.command) || labelled {
        "give one".to_string()
    } else {
        format!("use the task {other}, or one")
    };
    refuse(
        format!("--{flag}: {shown} is {what}"),
        format!("{task} of {}", known.join(", ")),
    )
}

fn model_type(source: &ModelSource) -> Option<String> {
    let config = match source {
        // A name on the Hub, before anything is fetched.
        ModelSource::Pretrained { directory, .. } if !directory.exists() => {
            xtrain_models::preset(directory.to_str()?)?
        }
        _ => source.named_config().ok()?,
    };
    config.text("model_type").ok()
}

/// The labels of a model that was saved with such, else two that stand for those of the data: which
/// they are changes nothing that is asked here.
fn some_labels(task: &dyn Task, config: &Config) -> Option<LabelMap> {
    let labelled = task.labelled()?;
    let saved = || tasks::saved_labels(labelled, config).ok().flatten();
    labelled
        .named()
        .cloned()
        .or_else(saved)
        .or_else(|| LabelMap::of_data(["0", "1"]).ok())
}

/// The model of a run with its adapter, or why there is none such; `None` where that is another rule's.
fn built(flags: &Flags) -> Option<xtrain_models::Result<Box<dyn Model>>> {
    match (without_adapter(flags)?, adapter::asked(flags)) {
        (Ok(model), Some(config)) => adapt(model, config.ok()?).ok().map(Ok),
        (model, _) => Some(model),
    }
}

/// An adapter can be added to the model.
pub fn adapter_fits_the_model(flags: &Flags) -> Verdict {
    let (Some(Ok(model)), Some(config)) = (without_adapter(flags), adapter::asked(flags)) else {
        return Ok(());
    };
    let added = config.and_then(|config| adapt(model, config).map_err(|error| error.to_string()));
    let Err(problem) = added else { return Ok(()) };
    if flags.adapter_name_or_path.is_given() {
        return refuse(
            format!("--adapter_name_or_path: {problem}"),
            "use it with the model that it was trained on, or train another one with --use_peft",
        );
    }
    refuse(
        problem,
        "change the adapter's flags (--lora_target_modules, --lora_modules_to_save, ...), or leave them out",
    )
}

/// The same as it is without an adapter.
fn without_adapter(flags: &Flags) -> Option<xtrain_models::Result<Box<dyn Model>>> {
    let source = source(flags)?;
    let mut config = source.config(None).ok()?;
    if !suits_task(&config.text("model_type").ok()?, flags.command) {
        return None;
    }
    let head = if GENERATE.contains(flags.command) {
        HeadKind::CausalLm
    } else if BENCH.contains(flags.command) {
        match HeadKind::of(&config).ok()? {
            HeadKind::MaskedLm => HeadKind::MaskedLm,
            _ => HeadKind::CausalLm,
        }
    } else {
        let task = sources::task(flags)?;
        let labels = some_labels(&*task, &config);
        // Classes may follow a regression, and numbers classes.
        if labels.is_some() {
            config.set("problem_type", serde_json::Value::Null);
        }
        task.head(labels.as_ref())
    };
    Some(xtrain_models::build(config, head))
}

/// The settings of its configuration go together, and its family has the task's head.
pub fn model_can_be_built(flags: &Flags) -> Verdict {
    match without_adapter(flags) {
        Some(Err(error)) => refuse(
            error.to_string(),
            if flags.config_overrides.is_given() {
                "change --config_overrides"
            } else {
                "docs/models.md lists the families, their tasks and their settings"
            },
        ),
        _ => Ok(()),
    }
}

/// The model can be laid out on the devices that were asked for.
pub fn mesh_divides_the_model(flags: &Flags) -> Verdict {
    let (Some(Ok(model)), Ok(mesh)) = (built(flags), mesh(flags)) else {
        return Ok(());
    };
    // Which optimizer it is changes nothing here.
    let optimizer = xtrain_trainer::settings::OptimizerSettings::constant(ADAMW, 0.0).build();
    match placements(&*model, &*optimizer, mesh, false) {
        Err(error) => refuse(
            error.to_string(),
            "change the degrees of the mesh, or the model",
        ),
        Ok(_) => Ok(()),
    }
}

/// What `--freeze` and `--train_only` name is in the model, and leaves something to train.
pub fn trained_parameters_are_the_models(flags: &Flags) -> Verdict {
    let chosen = Trained::new(&flags.freeze, &flags.train_only);
    let chosen = chosen.and_then(|trained| match built(flags) {
        Some(Ok(model)) if flags.trains() => trained.choose(&*model),
        _ => Ok(()),
    });
    chosen.or_else(|error| refuse(error.to_string(), error.hint()))
}

/// Examples are not longer than the model's positions.
pub fn length_is_within_the_model(flags: &Flags) -> Verdict {
    // Its default may be more than the tokenizer's limit, which lowers it.
    if CLS.contains(flags.command) {
        return Ok(());
    }
    let (Some(Ok(model)), Some(task)) = (built(flags), sources::task(flags)) else {
        return Ok(());
    };
    // The tokenizer's limit, which is not known here, only lowers what nobody asked for.
    task.length(None, model.max_positions())
        .map(drop)
        .map_err(|error| length_mistake(&error, task.length_flag()))
}

/// What a user hears of a length that the model or the task does not have.
pub fn length_mistake(error: &data::Error, flag: &str) -> UsageError {
    let fix = match error {
        data::Error::TooLong { positions, .. } => format!("set --{flag} {positions} or less"),
        _ => format!("raise --{flag}"),
    };
    UsageError::illegal(error.to_string(), fix)
}

/// Who only uses a classifier needs one that was trained.
pub fn model_has_the_labels(flags: &Flags) -> Verdict {
    let (Some(source), Some(task)) = (source(flags), sources::task(flags)) else {
        return Ok(());
    };
    let (Ok(config), Some(labelled)) = (source.config(None), task.labelled()) else {
        return Ok(());
    };
    if flags.trains() || labelled.named().is_some() {
        return Ok(());
    }
    match tasks::saved_labels(labelled, &config) {
        Ok(None) => Err(no_labels(&config, task.name())),
        _ => Ok(()),
    }
}

/// What a user hears of a model without labels.
pub fn no_labels(config: &Config, task: &str) -> UsageError {
    let class = tasks::model_class(config);
    let what = if class.is_empty() {
        "names no class".to_string()
    } else {
        format!("is of a {class}")
    };
    UsageError::illegal(
        format!("{} {what}: there are no labels to give", config.source()),
        format!("train it for classification first: xtrain train {task} --model_name_or_path DIR"),
    )
}

/// The metric that the best model is judged by is one that the task has.
pub fn best_metric_is_the_tasks(flags: &Flags) -> Verdict {
    let (Some(best), Some(task)) = (sources::best(flags), sources::task(flags)) else {
        return Ok(());
    };
    let named = task.labelled().and_then(|labelled| labelled.named());
    let known = match named {
        _ if *flags.prediction_loss_only => return Ok(()),
        None if task.labelled().is_some() => {
            if task.is_of_a_label(&best.metric) {
                return Ok(());
            }
            let classes = LabelMap::of_data(["0", "1"]).ok();
            let mut known = task.metrics(classes.as_ref()).names();
            known.retain(|name| !task.is_of_a_label(name));
            let numbers = task.metrics(None).names().into_iter();
            let more: Vec<String> = numbers.filter(|name| !known.contains(name)).collect();
            known.extend(more);
            known
        }
        labels => task.metrics(labels).names(),
    };
    let objective = task.objective(named, 0.0);
    let measured = objective.measures().iter();
    let known: Vec<String> = measured.map(|name| name.to_string()).chain(known).collect();
    metric_is_known(&best.metric, &known)
}

/// Refuses a metric to judge the best model by that is none of those that there are.
///
/// # Errors
/// With the nearest one, or all.
pub fn metric_is_known(metric: &str, known: &[String]) -> Verdict {
    if known.iter().any(|name| name == metric) {
        return Ok(());
    }
    let fix = match nearest(metric, known.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("the metrics of this task are {}", known.join(", ")),
    };
    refuse(
        format!("--metric_for_best_model: there is no metric `{metric}`"),
        fix,
    )
}
