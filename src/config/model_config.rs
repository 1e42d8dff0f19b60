//! The configuration of the model that a plan names, before it is decided what the model is built
//! for.

use super::adapter;
use super::error::UsageError;
use super::nearest::nearest;
use super::plan::{ConfigSource, ModelSource};
use serde_json::Value;
use std::path::Path;
use xtrain_checkpoint::hf;
use xtrain_data::Tokenizer;
use xtrain_models::Config;

impl ModelSource {
    /// The settings of its `config.json` or preset, with overrides applied. A vocabulary that nobody
    /// chose follows the tokenizer, when there is one.
    ///
    /// # Errors
    /// If the file cannot be read, is of another type than `--model_type` says, or an override is
    /// none of its settings.
    pub fn config(&self, tokenizer: Option<&Tokenizer>) -> Result<Config, UsageError> {
        let mut config = self.named_config()?;
        let (ModelSource::Pretrained { model_type, .. } | ModelSource::Scratch { model_type, .. }) =
            self;
        is_of_type(&config, *model_type)?;
        let (ModelSource::Pretrained { quantization, .. }
        | ModelSource::Scratch { quantization, .. }) = self;
        config = config.quantized(*quantization);
        if let ModelSource::Pretrained {
            adapter: Some(adapter),
            ..
        } = self
        {
            adapter::take_labels(&mut config, adapter);
        }
        if let ModelSource::Scratch {
            config: source,
            overrides,
            ..
        } = self
        {
            apply_overrides(&mut config, overrides)?;
            if let (Some(tokenizer), ConfigSource::Default(_) | ConfigSource::Preset(_)) =
                (tokenizer, source)
            {
                fit_to_tokenizer(&mut config, overrides, tokenizer);
            }
        }
        Ok(config)
    }

    /// The same as it stands in the file or preset.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn named_config(&self) -> Result<Config, UsageError> {
        const KNOWN: &str = "a plan names families and presets that there are";
        match self {
            ModelSource::Pretrained { directory, .. } => {
                read(&directory.join(hf::CONFIG_FILE), "model_name_or_path")
            }
            ModelSource::Scratch { config, .. } => match config {
                ConfigSource::Default(name) => {
                    Ok(xtrain_models::default_config(name).expect(KNOWN))
                }
                ConfigSource::Preset(name) => Ok(xtrain_models::preset(name).expect(KNOWN)),
                ConfigSource::File(file) => read(file, "config_name"),
            },
        }
    }
}

fn read(path: &Path, flag: &str) -> Result<Config, UsageError> {
    let values = hf::read_object(path).map_err(|error| {
        UsageError::illegal(
            format!("--{flag}: reading the model's configuration: {error}"),
            "give a directory as transformers' save_pretrained and xtrain write it",
        )
    })?;
    Ok(Config::new(values, path.display().to_string()))
}

/// Refuses a configuration that is not of the type that `--model_type` says.
fn is_of_type(config: &Config, model_type: Option<&str>) -> Result<(), UsageError> {
    let Some(model_type) = model_type else {
        return Ok(());
    };
    match config.text("model_type") {
        Ok(found) if found == model_type => Ok(()),
        Ok(found) => Err(UsageError::illegal(
            format!(
                "--model_type is {model_type}, but {} says {found}",
                config.source()
            ),
            "leave --model_type out",
        )),
        Err(error) => Err(UsageError::illegal(
            error.to_string(),
            "add it to the file: the family that the model is of",
        )),
    }
}

/// A mistake in `--config_overrides` is the command line's.
fn apply_overrides(config: &mut Config, overrides: &[(String, Value)]) -> Result<(), UsageError> {
    let mut mistakes = Vec::new();
    for change in overrides {
        let Err(error) = config.apply_overrides(std::slice::from_ref(change)) else {
            continue;
        };
        let key = change.0.as_str();
        let near = nearest(key, config.values().keys().map(String::as_str));
        let fix = match near.filter(|meant| *meant != key) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "the names and types are those of the model's config.json".to_string(),
        };
        mistakes.push(UsageError::illegal(format!("--{error}"), fix));
    }
    UsageError::all(mistakes)
}

/// A preset's vocabulary belongs to the released tokenizer; with another one, what nobody chose
/// follows that.
fn fit_to_tokenizer(config: &mut Config, overrides: &[(String, Value)], tokenizer: &Tokenizer) {
    let chosen = |key: &str| overrides.iter().any(|(name, _)| name == key);
    if chosen("vocab_size") {
        return;
    }
    config.set("vocab_size", tokenizer.id_bound());
    // What pads is looked up in the embeddings and, in RoBERTa, tells where a text begins.
    let pad = tokenizer
        .pad_id()
        .filter(|_| config.get("pad_token_id").is_some());
    for (key, id) in [
        ("bos_token_id", tokenizer.bos_id()),
        ("eos_token_id", tokenizer.eos_id()),
        ("pad_token_id", pad),
    ] {
        if let (Some(id), false) = (id, chosen(key)) {
            config.set(key, id);
        }
    }
}
