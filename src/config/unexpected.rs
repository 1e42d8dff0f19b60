//! Unexpected words of a command line, and their probable meaning.

use super::command::sets::{BENCH, EVAL, GENERATE, PREDICT};
use super::command::{COMMANDS, CommandInfo, CommandName, TaskName, second_words};
use super::error::UsageError;
use super::flags::Flag;
use super::foreign;
use super::lookup;
use super::nearest::nearest;
use std::path::Path;
use xtrain_data::remote;
use xtrain_hub as hub;
use xtrain_models::MODEL_TYPES;

/// A word after a command that takes none.
pub fn word(word: &str, command: CommandName) -> UsageError {
    if let Some(program) = foreign::of_program(word) {
        return UsageError::illegal(
            format!(
                "unexpected word `{word}`: every setting of `xtrain {}` is a flag",
                command.words()
            ),
            format!("leave it out: in its place stands the command, {program}"),
        );
    }
    UsageError::UnexpectedWord {
        word: word.into(),
        command: command.words(),
        meant: meant(word, command),
    }
}

/// The flag that a word belongs to, with the two as they would be written.
fn meant(word: &str, command: CommandName) -> Option<(&'static str, String)> {
    let taken = |name: &str| lookup::find(name, command).filter(|flag| flag.is_built());
    // `learning_rate=1e-4`, as other programs have it, or a flag without its hyphens.
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    if let Some(flag) = taken(name) {
        let separator = if value.is_empty() { "" } else { "=" };
        return Some((flag.name, format!("--{}{separator}{value}", flag.name)));
    }
    let data = if EVAL.contains(command) {
        "validation_file"
    } else if PREDICT.contains(command) {
        "test_file"
    } else if GENERATE.contains(command) {
        "prompt_file"
    } else {
        "train_file"
    };
    let is_type = MODEL_TYPES.contains(&word);
    let model = if BENCH.contains(command) && is_type {
        "model_type"
    } else {
        "model_name_or_path"
    };
    let is_model = || {
        let is_name = word.matches('/').count() == 1 && hub::is_name(word);
        is_type || is_name || Path::new(word).is_dir() || xtrain_models::preset(word).is_some()
    };
    let flag: &Flag = if is_data(word) {
        taken(data)?
    } else if is_model() {
        taken(model)?
    } else if GENERATE.contains(command) {
        taken("prompt")?
    } else {
        return None;
    };
    let quote = if word.contains(char::is_whitespace) {
        "\""
    } else {
        ""
    };
    Some((flag.name, format!("--{} {quote}{word}{quote}", flag.name)))
}

/// Whether a word is a file of data, by its name or because it is one.
fn is_data(word: &str) -> bool {
    const ENDINGS: [&str; 8] = [
        "txt", "csv", "tsv", "jsonl", "parquet", "conll", "gz", "text",
    ];
    let path = Path::new(word);
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending)) || remote::is_url(path) || path.is_file()
}

/// A word in the place of a command; `before` are those of the command so far.
pub fn command(before: &str, word: &str) -> UsageError {
    let full = format!("{before} {word}").trim_start().to_string();
    let refuse = |fix: String| UsageError::illegal(format!("unknown command `{full}`"), fix);
    if let Some(program) = foreign::of_program(word) {
        return refuse(format!("in its place stands {program}"));
    }
    let mut tasks = COMMANDS.iter().filter(|info| {
        let verb = info.words.split_once(' ').map(|(verb, _)| verb);
        verb == Some(before) && info.id.task().is_some()
    });
    if let Some(first) = tasks.next() {
        return task(before, word, first, &refuse);
    }
    if before.is_empty() {
        if let Some(what) = foreign::of_command(word) {
            return refuse(what.into());
        }
        match foreign::of_task(word) {
            Some(Ok(task)) => {
                let train = CommandName::Train(task).words();
                return refuse(format!("did you mean `xtrain {train}`?"));
            }
            Some(Err(why)) => return refuse(why.into()),
            None => {}
        }
    }
    let known: Vec<&str> = match before {
        "" => COMMANDS
            .iter()
            .map(|info| info.words.split(' ').next().unwrap_or(info.words))
            .collect(),
        verb => second_words(verb).collect(),
    };
    let near = nearest(word, known.into_iter());
    UsageError::UnknownCommand {
        nearest: near.map(|near| format!("{before} {near}").trim_start().to_string()),
        word: full,
    }
}

/// A word in the place of a task, after a verb whose first command is `first`.
fn task(
    verb: &str,
    word: &str,
    first: &CommandInfo,
    refuse: &dyn Fn(String) -> UsageError,
) -> UsageError {
    let known: Vec<&str> = second_words(verb).collect();
    let words_of = |task: TaskName| {
        let words = CommandName::Train(task).words();
        words.split_once(' ').map_or(words, |(_, task)| task)
    };
    match foreign::of_task(word) {
        Some(Ok(task)) if known.contains(&words_of(task)) => {
            return refuse(format!("did you mean `xtrain {verb} {}`?", words_of(task)));
        }
        // Predictions are labels.
        Some(Ok(task)) => {
            return refuse(match task {
                TaskName::Mlm => format!("`xtrain {verb}` is for {}", known.join(", ")),
                _ => format!(
                    "`xtrain {verb}` is for {}; texts are continued by `xtrain generate`",
                    known.join(", ")
                ),
            });
        }
        Some(Err(why)) => return refuse(why.into()),
        None => {}
    }
    if let Some(near) = nearest(word, known.iter().copied()) {
        return refuse(format!("did you mean `xtrain {verb} {near}`?"));
    }
    if let Some((_, written)) = meant(word, first.id) {
        return refuse(format!(
            "the task stands before it, as in `xtrain {} {written}`; tasks are {}",
            first.words,
            known.join(", ")
        ));
    }
    refuse(format!(
        "the tasks of `xtrain {verb}` are {}",
        known.join(", ")
    ))
}
