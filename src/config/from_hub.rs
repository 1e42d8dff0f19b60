//! Names of the Hugging Face Hub in settings that usually hold paths: recognized when the settings
//! are checked, fetched after that, so that a mistake elsewhere costs no download. What exists on
//! this machine always wins over a name.

use super::UsageError;
use super::flags::Commands;
use super::kind::Value;
use super::typed::Typed;
use crate::hub::{self, Hub, HubSettings};
use std::path::Path;
use xtrain_models::preset_name;

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
pub fn fetch(mut typed: Typed) -> Result<Typed, UsageError> {
    let named = |flag: &str| {
        typed
            .path(flag)
            .filter(|path| is_name(path))
            .and_then(|path| path.to_str().map(str::to_string))
    };
    let (model, tokenizer) = (named("model_name_or_path"), named("tokenizer_name"));
    let config = typed
        .text("config_name")
        .filter(|name| preset_name(name).is_none() && is_config_name(name));
    let dataset = typed.text("dataset_name");
    if let Some(name) = dataset.as_ref().and(
        ["train_file", "validation_file"]
            .into_iter()
            .find(|name| typed.is_given(name)),
    ) {
        return Err(UsageError::illegal(
            format!("--{name} does not go with --dataset_name, which brings its own files"),
            "leave one out",
        ));
    }
    let predicts = typed.command == Commands::PREDICT_CLS;
    if dataset.is_some() && predicts && typed.is_given("test_file") {
        return Err(UsageError::illegal(
            "--test_file and --dataset_name both name rows to label",
            "leave one of them out",
        ));
    }
    if dataset.is_none() && typed.is_given("dataset_config_name") {
        return Err(UsageError::illegal(
            "--dataset_config_name is of a --dataset_name, which is missing",
            "add --dataset_name NAME",
        ));
    }
    let pinned = typed
        .text("model_revision")
        .is_some_and(|revision| revision != "main");
    if pinned && model.is_none() && tokenizer.is_none() && config.is_none() {
        let problem = "--model_revision is of a model on the Hub, and none is named: paths on this machine have no revisions";
        return Err(UsageError::illegal(
            problem,
            "leave --model_revision out, or name a model on the Hub",
        ));
    }
    if model.is_none() && tokenizer.is_none() && config.is_none() && dataset.is_none() {
        return Ok(typed);
    }
    let failed = |error: hub::Error| UsageError::Fetch {
        problem: error.to_string(),
    };
    let mut settings = HubSettings::from_env(|name| std::env::var(name).ok());
    settings.token = typed.text("token").or(settings.token);
    settings.quiet |= typed.bool("disable_tqdm");
    let hub = Hub::new(settings).map_err(failed)?;
    let revision = typed.text("model_revision");
    let revision = revision.as_deref();
    if let Some(name) = tokenizer {
        typed.set(
            "tokenizer_name",
            path(&hub.tokenizer(&name, revision).map_err(failed)?),
        );
    }
    if let Some(name) = config {
        typed.set(
            "config_name",
            path(&hub.config(&name, revision).map_err(failed)?),
        );
    }
    if let Some(name) = model {
        typed.set(
            "model_name_or_path",
            path(&hub.model(&name, revision).map_err(failed)?),
        );
    }
    if let Some(name) = dataset {
        let found = hub
            .dataset(
                &name,
                typed.text("dataset_config_name").as_deref(),
                None,
                predicts,
            )
            .map_err(failed)?;
        let labels = (predicts || typed.bool("do_predict")) && !typed.is_given("test_file");
        if labels && found.test.is_empty() {
            return Err(UsageError::illegal(
                format!("data set {name} has no test split, whose rows could be labelled"),
                "name the files whose rows are to be labelled with --test_file",
            ));
        }
        for (flag, files) in [
            ("train_file", found.train),
            ("validation_file", found.validation),
            ("test_file", found.test),
        ] {
            // Own rows to predict go with a data set.
            let taken = super::flags::find(flag, typed.command).is_some() && !typed.is_given(flag);
            if taken && !files.is_empty() {
                typed.set(
                    flag,
                    Value::List(
                        files
                            .iter()
                            .map(|file| file.display().to_string())
                            .collect(),
                    ),
                );
            }
        }
    }
    Ok(typed)
}

fn path(path: &Path) -> Value {
    Value::Text(path.display().to_string())
}
