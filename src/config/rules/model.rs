//! Where the model and the tokenizer come from.

use super::data::neighbour;
use super::verdict::{Verdict, refuse, refuse_if};
use crate::choices::suits_task;
use crate::command::sets::{GENERATE, PREDICT};
use crate::error::UsageError;
use crate::flags::Flags;
use crate::from_hub;
use crate::nearest::nearest;
use crate::sources;
use std::path::Path;
use xtrain_checkpoint::hf::{self, ADAPTER_CONFIG_FILE};
use xtrain_checkpoint::{self as checkpoint, Weights, weights};
use xtrain_data::Tokenizer;
use xtrain_models::{MODEL_TYPES, preset_name, presets};
use xtrain_report::printable::quotable;
use xtrain_report::runs::checkpoints::newest_checkpoint;

/// Either a directory with weights, or a description of a model with random ones.
pub fn weights_or_a_description(flags: &Flags) -> Verdict {
    if flags.model_name_or_path.is_given() {
        // Scripts are often given one name as model, configuration and tokenizer.
        let config = flags.config_name.as_deref().map(Path::new);
        let is_another = config != flags.model_name_or_path.as_deref();
        let descriptions = [
            (
                flags.config_name.given_name().filter(|_| is_another),
                "it has its own config.json",
            ),
            (
                flags.config_overrides.given_name(),
                "a trained model's sizes cannot be changed",
            ),
        ];
        let refusals = descriptions.into_iter().filter_map(|(name, why)| {
            let name = name?;
            Some(UsageError::illegal(
                format!("--{name} does not go with --model_name_or_path: {why}"),
                format!(
                    "leave --{name} out or, to train from random weights, leave --model_name_or_path out"
                ),
            ))
        });
        return UsageError::all(refusals.collect());
    }
    // These have rules of their own: random weights do not predict.
    if GENERATE.contains(flags.command) || PREDICT.contains(flags.command) {
        return Ok(());
    }
    let mut types = MODEL_TYPES.into_iter();
    let usual = types.find(|name| suits_task(name, flags.command));
    let usual = usual.expect("there is a family for every task");
    refuse_if(
        !flags.model_type.is_given() && !flags.config_name.is_given(),
        "no model is named",
        &format!(
            "add --model_name_or_path DIR to start from trained weights, or --model_type {usual} (with --config_name and \
             --config_overrides) for random ones"
        ),
    )
}

/// What `--do_eval` or `--do_predict` alone uses has been trained before: where random weights would be, training was
/// meant, too.
pub fn evaluated_model_is_trained(flags: &Flags) -> Verdict {
    let is_random = flags.model_type.is_given() || flags.config_name.is_given();
    let given = [
        flags.model_type.given_name(),
        flags.config_name.given_name(),
    ];
    let name = given.into_iter().flatten().next().unwrap_or_default();
    let is_used = flags.evaluates() || flags.predicts();
    let (flag, does) = flags.use_without_training();
    refuse_if(
        is_used && !flags.trains() && is_random && !flags.model_name_or_path.is_given(),
        &format!(
            "{flag} without --do_train only {does}, and a model of --{name} has random weights"
        ),
        "add --do_train or, to use a trained model, name it with --model_name_or_path",
    )
}

/// A directory that was named as a model holds one. Damage inside of the files is for those who
/// read them.
pub fn model_directory_holds_a_model(flags: &Flags) -> Verdict {
    let Some(directory) = &*flags.model_name_or_path else {
        return Ok(());
    };
    let is_adapter = directory.join(ADAPTER_CONFIG_FILE).is_file();
    if from_hub::is_name(directory) || is_adapter {
        return Ok(());
    }
    if directory.join("config.json").is_file() {
        return match Weights::open(directory) {
            Err(error @ checkpoint::Error::NoWeights { .. }) => refuse(
                format!("--model_name_or_path: {error}"),
                "give a directory with weights or, to train from random ones, give it as --config_name instead",
            ),
            _ => Ok(()),
        };
    }
    if !directory.is_dir() {
        let what = if directory.exists() {
            "is a file, not a directory"
        } else {
            "is not a directory here"
        };
        return refuse(
            format!("--model_name_or_path: {} {what}", directory.display()),
            match (neighbour(directory), directory_of_weights(directory)) {
                (Some(near), _) => format!("did you mean {}?", near.display()),
                (None, Some(fix)) => fix,
                (None, None) => "give a directory with config.json and model.safetensors or the name of a model on the Hub, or train from \
                         random weights with --model_type and --config_name".into(),
            },
        );
    }
    let hint = weights::other_formats_hint(directory);
    let fix = match newest_checkpoint(directory, |_| true) {
        // The usual case: a run that was stopped before its end.
        Some(checkpoint) => format!("the run there was not finished; its newest checkpoint is {}", checkpoint.display()),
        None => {
            "give a directory with config.json and model.safetensors, as transformers' save_pretrained and xtrain write it".into()
        }
    };
    refuse(
        format!(
            "--model_name_or_path: {} holds no config.json{hint}",
            directory.display()
        ),
        fix,
    )
}

/// transformers puts an adapter that lies beside a model on its base; here none is applied.
pub fn model_has_no_adapter(flags: &Flags) -> Verdict {
    let directory = flags.model_name_or_path.as_deref();
    let Some(path) = directory.map(|directory| directory.join(ADAPTER_CONFIG_FILE)) else {
        return Ok(());
    };
    if !path.is_file() {
        return Ok(());
    }
    let base = hf::read_object(&path).ok().and_then(|adapter| {
        let base = adapter.get("base_model_name_or_path")?.as_str()?;
        Some(format!(" of {}", quotable(base)))
    });
    refuse(
        format!(
            "--model_name_or_path: {} is an adapter{}, and xtrain applies none",
            path.display(),
            base.unwrap_or_default()
        ),
        "merge it with PEFT's merge_and_unload and save that model, or move the adapter's files away to use the weights beside it",
    )
}

/// What to do with a state dict that was named as a model.
fn directory_of_weights(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    if !file.is_file() || !weights::is_weights(name) {
        return None;
    }
    let parent = file.parent()?;
    if parent.join("config.json").is_file() {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        return Some(format!(
            "give the directory that holds it, {}",
            parent.display()
        ));
    }
    Some(format!(
        "give a directory that holds these weights as {} beside the model's config.json and tokenizer",
        weights::usual_name(name)
    ))
}

/// Whether a `config.json`, or a directory that holds one, has this name.
fn is_configuration(name: &str) -> bool {
    let path = Path::new(name);
    path.is_file() || path.join("config.json").is_file()
}

pub fn configuration_is_known(flags: &Flags) -> Verdict {
    let Some(name) = &*flags.config_name else {
        return Ok(());
    };
    if is_configuration(name) || preset_name(name).is_some() || from_hub::is_config_name(name) {
        return Ok(());
    }
    let known: Vec<&str> = presets()
        .filter(|name| suits_task(name, flags.command))
        .collect();
    refuse(
        format!("--config_name: `{name}` is neither a known configuration nor a config.json here"),
        match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!(
                "known configurations are {}; or give a config.json or the directory that holds one",
                known.join(", ")
            ),
        },
    )
}

pub fn tokenizer_is_there(flags: &Flags) -> Verdict {
    let random = flags.model_type.is_given() || flags.config_name.is_given();
    let Some(path) = sources::tokenizer_path(flags) else {
        return refuse_if(
            random,
            "a model with random weights comes without a tokenizer",
            "add --tokenizer_name DIR, a directory with tokenizer.json (`xtrain quickstart` makes one of its own)",
        );
    };
    if path.is_dir() {
        let model = flags.model_name_or_path.as_deref();
        // Of a directory without a model another rule says what is wrong.
        if Some(path) == model && !path.join("config.json").is_file() {
            return Ok(());
        }
        return Tokenizer::check_files(path).or_else(|error| {
            refuse(
                error.to_string(),
                "name a directory or a tokenizer.json with --tokenizer_name",
            )
        });
    }
    if !flags.tokenizer_name.is_given() || path.exists() || from_hub::is_name(path) {
        return Ok(());
    }
    refuse(
        format!("--tokenizer_name: {} does not exist here", path.display()),
        match neighbour(path) {
            Some(near) => format!("did you mean {}?", near.display()),
            None => {
                "give a directory with tokenizer.json, that file, or the name of a model on the Hub"
                    .into()
            }
        },
    )
}
