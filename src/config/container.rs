//! `xtrain train` alone, as SageMaker starts an image whose entry point is xtrain: the task is the
//! hyperparameter `task`, the other hyperparameters are the settings file, and what the job gives
//! besides (channels, the folder of checkpoints) becomes the flags that name it, unless a
//! hyperparameter is that flag.

use super::command::{COMMANDS, CommandInfo, second_words};
use super::config_file::{self, TASK};
use super::error::{Origin, UsageError};
use super::lookup;
use std::path::{Path, PathBuf};
use xtrain_distributed::environment::sagemaker::{Channel, Container};

/// Channels, by any of the names, and the flag that takes their files or their folder.
const CHANNELS: &[(&[&str], &str, Takes)] = &[
    (&["train", "training"], "train_file", Takes::Files),
    (
        &["validation", "valid", "eval"],
        "validation_file",
        Takes::Files,
    ),
    (&["test"], "test_file", Takes::Files),
    (&["model"], "model_name_or_path", Takes::Folder),
    (&["tokenizer"], "tokenizer_name", Takes::Folder),
];

#[derive(Clone, Copy)]
enum Takes {
    Files,
    Folder,
}

/// The command of a container with the words that it stands for, and a note of them.
pub struct Command {
    pub info: &'static CommandInfo,
    pub words: Vec<String>,
    pub note: String,
}

/// What `xtrain VERB` alone means in this process; `None` outside of a container, and of a verb that
/// none is started with.
pub fn command(verb: &str) -> Option<Result<Command, UsageError>> {
    let container = Container::found().filter(|_| verb == "train")?;
    Some(of(&container))
}

fn of(container: &Container) -> Result<Command, UsageError> {
    let path = container.hyperparameters();
    let origin = || Origin::File {
        path: path.clone(),
        line: None,
    };
    let wrong = |problem: String| UsageError::ConfigFile {
        origin: origin(),
        problem,
        fix: "in SageMaker the hyperparameter `task` says what to train: clm, sft, cls, ...".into(),
    };
    let tasks: Vec<&str> = second_words("train").collect();
    let tasks = tasks.join(", ");
    let task = config_file::text_of(&path, TASK)?
        .ok_or_else(|| wrong(format!("no hyperparameter `{TASK}`; it is one of {tasks}")))?;
    let is_it = |info: &&CommandInfo| info.words.strip_prefix("train ") == Some(&task);
    let info = COMMANDS.iter().find(is_it).ok_or_else(|| {
        wrong(format!(
            "the hyperparameter `{TASK}` is `{task}`, which is none of {tasks}"
        ))
    })?;
    let keys = config_file::keys(&path)?;
    let given = |flag: &str| {
        keys.iter()
            .any(|key| lookup::find(key, info.id).is_some_and(|found| found.name == flag))
    };
    let (mut words, mut unused) = (Vec::new(), Vec::new());
    let channels = container.channels().map_err(|error| UsageError::Fetch {
        problem: error.to_string(),
    })?;
    for channel in channels {
        let names = |(names, ..): &&(&[&str], _, _)| names.contains(&channel.name.as_str());
        match CHANNELS.iter().find(names) {
            Some((_, flag, _)) if given(flag) => {}
            Some((_, flag, takes)) if lookup::find(flag, info.id).is_some() => {
                words.push(format!("--{flag}"));
                words.extend(paths(&channel, *takes)?);
            }
            None | Some(_) => unused.push(channel.name),
        }
    }
    if !given("output_dir") {
        let output = container.checkpoints();
        words.push(format!("--output_dir={}", output.display()));
        // The job was stopped, or its instance was taken away, and starts again.
        if !given("resume_from_checkpoint") && !given("overwrite_output_dir") {
            words.push("--resume_from_checkpoint=auto".into());
        }
    }
    let mut note = format!("SageMaker: xtrain {} {}", info.words, words.join(" "));
    if !unused.is_empty() {
        let channels = unused.join(", ");
        note.push_str(&format!("; no flag of this task takes: {channels}"));
    }
    words.push(format!("--config={}", path.display()));
    Ok(Command { info, words, note })
}

/// What a flag gets of a channel.
fn paths(channel: &Channel, takes: Takes) -> Result<Vec<String>, UsageError> {
    let shown = channel.dir.display();
    let refuse = |problem: &str, fix: &str| {
        Err(UsageError::illegal(
            format!("SageMaker's channel {}: {problem}", channel.name),
            fix,
        ))
    };
    if channel.is_piped {
        return refuse(
            "its data come through a pipe",
            "set the channel's input mode to File or FastFile",
        );
    }
    let mut found = Vec::new();
    match takes {
        Takes::Folder => found.push(channel.dir.clone()),
        Takes::Files => {
            if let Err(error) = files(&channel.dir, &mut found) {
                return refuse(
                    &format!("{shown}: {error}"),
                    "give the channel an S3 prefix with data",
                );
            }
        }
    }
    if found.is_empty() {
        return refuse(
            &format!("{shown} has no file"),
            "give the channel an S3 prefix with data",
        );
    }
    Ok(found
        .into_iter()
        .map(|path| path.display().to_string())
        .collect())
}

/// The files below a folder, in the order of their names; those that begin with a dot are not data.
fn files(dir: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let entries = std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    let mut entries: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
