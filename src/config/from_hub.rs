//! Names of the Hugging Face Hub in settings that usually hold paths: recognized when the settings
//! are checked, fetched after that, so that a mistake elsewhere costs no download. What exists on
//! this machine always wins over a name.

use super::adapter;
use super::choices::GlueTask;
use super::command::sets::PREDICT;
use super::error::UsageError;
use super::flags::Flags;
use super::lookup;
use std::path::{Path, PathBuf};
use xtrain_hub::{self as hub, Hub, HubSettings};
use xtrain_models::preset_name;
use xtrain_report::progress::say;

/// Whether a path that was given can only be meant as a name on the Hub.
pub fn is_name(path: &Path) -> bool {
    !path.exists() && path.to_str().is_some_and(hub::is_name)
}

/// The same for `--config_name`, whose short names are presets.
pub fn is_config_name(name: &str) -> bool {
    name.contains('/') && is_name(Path::new(name))
}

/// Puts the paths of fetched files in the place of names. Without a name nothing is asked of the
/// Hub.
///
/// # Errors
/// What could not be fetched.
pub fn fetch(mut flags: Flags) -> Result<Flags, UsageError> {
    let [model, tokenizer, config, adapter, reference] = repositories(&flags);
    let dataset = flags.dataset_name.clone();
    let predicts = PREDICT.contains(flags.command);
    let named = [&model, &tokenizer, &config, &adapter, &reference, &dataset];
    if named.iter().all(|name| name.is_none()) {
        return Ok(flags);
    }
    let failed = |error: hub::Error| UsageError::Fetch {
        problem: error.to_string(),
    };
    let mut settings = HubSettings::from_env(|name| std::env::var(name).ok());
    settings.token = flags.token.clone().or(settings.token);
    settings.offline |= *flags.local_files_only;
    settings.quiet |= *flags.disable_tqdm;
    let hub = Hub::new(settings).map_err(failed)?;
    let revision = flags.model_revision.clone();
    let revision = Some(revision.as_str());
    if let Some(name) = tokenizer {
        let path = hub.tokenizer(&name, revision).map_err(failed)?;
        flags.tokenizer_name.set(Some(path));
    }
    if let Some(name) = config {
        let path = hub.config(&name, revision).map_err(failed)?;
        flags.config_name.set(Some(path.display().to_string()));
    }
    if let Some(name) = adapter {
        let path = hub.adapter(&name, None).map_err(failed)?;
        flags.adapter_name_or_path.set(Some(path));
        adapter::find_base(&mut flags);
    }
    if let Some(name) = reference {
        let path = hub.model(&name, revision).map_err(failed)?;
        flags.ref_model_name_or_path.set(Some(path));
    }
    // A name may turn out to be an adapter's, which names its model.
    let (mut model, mut revision) = (named_model(&flags).or(model), revision);
    while let Some(name) = model.take() {
        let path = hub.model(&name, revision).map_err(failed)?;
        flags.model_name_or_path.set(Some(path));
        adapter::find_base(&mut flags);
        (model, revision) = (named_model(&flags), None);
    }
    if let Some(name) = dataset {
        let configuration = flags.dataset_config_name.as_deref();
        let dir = Path::new(&name);
        let found = if dir.is_dir() {
            hub::dataset_in(dir, configuration, predicts)
        } else {
            hub.dataset(&name, configuration, None, predicts)
        };
        let mut found = found.map_err(failed)?;
        flags.features = found.features;
        // MNLI's other half has texts from elsewhere; run_glue evaluates on it by itself.
        let has_halves = *flags.task_name == Some(GlueTask::Mnli) && !predicts;
        for files in [&mut found.validation_mismatched, &mut found.test_mismatched] {
            if !has_halves && !files.is_empty() {
                say(&format!(
                    "note: of {name} the matched set is used; the mismatched one is a file to be named"
                ));
                files.clear();
            }
        }
        let labels = flags.predicts() && !flags.test_file.is_given();
        if labels && found.test.is_empty() {
            return Err(UsageError::illegal(
                format!("data set {name} has no test split, whose rows could be labelled"),
                "name the files whose rows are to be labelled with --test_file",
            ));
        }
        let command = flags.command;
        for (files, found) in [
            (&mut flags.train_file, found.train),
            (&mut flags.validation_file, found.validation),
            (
                &mut flags.validation_mismatched_file,
                found.validation_mismatched,
            ),
            (&mut flags.test_mismatched_file, found.test_mismatched),
            (&mut flags.test_file, found.test),
        ] {
            // Own rows to predict go with a data set.
            let is_taken = lookup::find(files.name(), command).is_some() && !files.is_given();
            if is_taken && !found.is_empty() {
                files.set(found);
            }
        }
    }
    Ok(flags)
}

/// Whether something that is named is the Hub's.
pub fn is_asked(flags: &Flags) -> bool {
    flags.dataset_name.is_given() || repositories(flags).iter().any(Option::is_some)
}

/// The names of model, tokenizer, configuration, adapter and reference on the Hub, each if it is one.
fn repositories(flags: &Flags) -> [Option<String>; 5] {
    let config = flags
        .config_name
        .clone()
        .filter(|name| preset_name(name).is_none() && is_config_name(name));
    [
        named(&flags.model_name_or_path),
        named(&flags.tokenizer_name),
        config,
        named(&flags.adapter_name_or_path),
        named(&flags.ref_model_name_or_path),
    ]
}

fn named(path: &Option<PathBuf>) -> Option<String> {
    let path = path.as_deref().filter(|path| is_name(path))?;
    path.to_str().map(str::to_string)
}

fn named_model(flags: &Flags) -> Option<String> {
    named(&flags.model_name_or_path)
}

/// Adds what contradicts a fetch to the mistakes. No rule, because what was fetched stands in the
/// place of its name afterwards.
pub fn check(flags: &mut Flags) {
    let mut mistakes = Vec::new();
    let mut refuse = |illegal: bool, problem: String, fix: &str| {
        if illegal {
            mistakes.push(UsageError::illegal(problem, fix));
        }
    };
    let has_name = repositories(flags).iter().any(Option::is_some);
    refuse(
        flags.model_revision.as_str() != "main" && !has_name,
        "--model_revision needs a model on the Hub: local paths have no revisions".into(),
        "leave --model_revision out, or name a model on the Hub",
    );
    let has_dataset = flags.dataset_name.is_given();
    refuse(
        flags.dataset_config_name.is_given() && !has_dataset,
        "--dataset_config_name needs --dataset_name".into(),
        "add --dataset_name NAME",
    );
    // A data set of the Hub brings its files, and is named in messages about them.
    for files in [&flags.train_file, &flags.validation_file] {
        refuse(
            has_dataset && files.is_given(),
            format!(
                "--{} does not go with --dataset_name, which brings its own files",
                files.name()
            ),
            "leave one out",
        );
    }
    refuse(
        has_dataset && PREDICT.contains(flags.command) && flags.test_file.is_given(),
        "--test_file and --dataset_name exclude each other".into(),
        "leave one of them out",
    );
    flags.mistakes.extend(mistakes);
}
