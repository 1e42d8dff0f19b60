//! Where the model and the tokenizer come from.

use super::data::neighbour;
use super::verdict::{Verdict, refuse, refuse_if};
use crate::adapter;
use crate::choices::{Device, suits_task};
use crate::command::sets::{GENERATE, PREDICT};
use crate::error::UsageError;
use crate::flags::Flags;
use crate::from_hub;
use crate::nearest::nearest;
use crate::sources;
use std::path::{Path, PathBuf};
use xtrain_checkpoint::{self as checkpoint, Weights, weights};
use xtrain_data::Tokenizer;
use xtrain_models::{MODEL_TYPES, preset_name, presets};
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
    // That an adapter does not say of which model it is, has been reported.
    if from_hub::is_name(directory) || adapter::is_in(directory) {
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

/// A directory that was named as an adapter holds one.
pub fn adapter_directory_holds_one(flags: &Flags) -> Verdict {
    let Some(directory) = &*flags.adapter_name_or_path else {
        return Ok(());
    };
    if from_hub::is_name(directory) || adapter::is_in(directory) {
        return Ok(());
    }
    let shown = directory.display();
    let what = if directory.is_dir() {
        "holds no adapter_config.json"
    } else {
        "is not a directory here"
    };
    refuse(
        format!("--adapter_name_or_path: {shown} {what}"),
        match newest_checkpoint(directory, |_| true) {
            Some(checkpoint) => format!("the run there was not finished; its newest checkpoint is {}", checkpoint.display()),
            None => "give a directory that PEFT or a run with --use_peft saved, or an adapter's name on the Hub".into(),
        },
    )
}

/// What an adapter is asked to be is of a new one.
pub fn adapter_flags_are_used(flags: &Flags) -> Verdict {
    let given = [
        flags.lora_r.given_name(),
        flags.lora_alpha.given_name(),
        flags.lora_dropout.given_name(),
        flags.lora_target_modules.given_name(),
        flags.lora_modules_to_save.given_name(),
        flags.use_rslora.name_if_true(),
        flags.use_dora.name_if_true(),
        flags.lora_bias.name_if_true(),
        flags.bias.given_name().filter(|_| *flags.bias != "none"),
        flags.exclude_modules.given_name(),
        flags.layers_to_transform.given_name(),
        flags.layers_pattern.given_name(),
        flags.trainable_token_indices.given_name(),
        flags.rank_pattern.given_name(),
        flags.alpha_pattern.given_name(),
    ];
    let Some(name) = given.into_iter().flatten().next() else {
        return Ok(());
    };
    if flags.adapter_name_or_path.is_given() {
        return refuse(
            format!(
                "--{name} is of a new adapter, and --adapter_name_or_path names one that says so itself"
            ),
            format!("leave --{name} out"),
        );
    }
    refuse_if(
        !*flags.use_peft,
        &format!("--{name} is of an adapter, and none is trained"),
        "add --use_peft, or leave it out to train the model itself",
    )
}

/// The flag that asks for matrices in few bits.
fn quantizing(flags: &Flags) -> Option<&'static str> {
    let asked = [
        flags.load_in_4bit.name_if_true(),
        flags.load_in_8bit.name_if_true(),
    ];
    asked.into_iter().flatten().next()
}

/// Settings of 4 bits come with them.
pub fn kinds_of_4_bits_have_4_bits(flags: &Flags) -> Verdict {
    let given = [
        flags.bnb_4bit_quant_type.given_name(),
        flags.use_bnb_nested_quant.name_if_true(),
    ];
    match given.into_iter().flatten().next() {
        Some(name) if !*flags.load_in_4bit => refuse(
            format!("--{name} is of matrices in 4 bits, and there are none"),
            "add --load_in_4bit, or leave it out",
        ),
        _ => Ok(()),
    }
}

/// A quantized model is trained by what is added to it.
pub fn quantized_models_train_adapters(flags: &Flags) -> Verdict {
    let is_adapted = *flags.use_peft || flags.adapter_name_or_path.is_given();
    match quantizing(flags) {
        Some(name) if flags.trains() && !is_adapted => refuse(
            format!("--{name}: a quantized model cannot be trained itself, only an adapter of it"),
            "add --use_peft (QLoRA), or leave it out to train the model itself",
        ),
        _ => Ok(()),
    }
}

/// Codes are computed with where this was tried.
pub fn quantized_models_run_on_cpus_and_gpus(flags: &Flags) -> Verdict {
    match quantizing(flags) {
        Some(name) if *flags.device == Device::Neuron => refuse(
            format!(
                "--{name} was never tried on Neuron, whose compiler may refuse arithmetic of 8-bit integers"
            ),
            "leave it out; --torch_dtype bfloat16 has weights of half the size",
        ),
        _ => Ok(()),
    }
}

/// A merged model gets a directory of its own.
pub fn merge_writes_a_directory(flags: &Flags) -> Verdict {
    let Some(output) = flags.output_dir.as_deref() else {
        return refuse(
            "--output_dir is missing",
            "add --output_dir DIR for the merged model",
        );
    };
    let real = |path: Option<&Path>| path?.canonicalize().ok();
    let own = real(Some(output));
    let sources = [&flags.model_name_or_path, &flags.adapter_name_or_path];
    if own.is_some() && sources.iter().any(|path| real(path.as_deref()) == own) {
        return refuse(
            "--output_dir is the directory of the model or of the adapter",
            "name another directory",
        );
    }
    let mut entries = std::fs::read_dir(output).into_iter().flatten();
    refuse_if(
        !*flags.overwrite_output_dir && entries.next().is_some(),
        &format!("--output_dir: {} is not empty", output.display()),
        "name another directory, or add --overwrite_output_dir",
    )
}

/// A run does not write its adapter in the place of the model that it is of.
pub fn adapter_leaves_its_model(flags: &Flags) -> Verdict {
    let real = |path: &Option<PathBuf>| path.as_deref()?.canonicalize().ok();
    let model = real(&flags.model_name_or_path);
    let output = flags
        .output_dir
        .as_deref()
        .and_then(|path| path.canonicalize().ok());
    let is_adapter = *flags.use_peft || flags.adapter_name_or_path.is_given();
    refuse_if(
        is_adapter && model.is_some() && model == output,
        "--output_dir is the directory of the model, whose weights the adapter needs",
        "name another directory",
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
