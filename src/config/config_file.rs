//! `--config FILE`: TOML, YAML or JSON with the flags' names as keys, all at the top level, in snake_case
//! or kebab-case. A string is read as the command line would read it, so a dictionary of strings
//! (as SageMaker passes hyperparameters) works; a JSON `null` means "not set". Relative paths in a
//! file are relative to the working directory, like those on the command line.

use super::command::sets::TRAINING;
use super::command::{CommandName, TaskName};
use super::error::{Origin, UsageError};
use super::file_format::{Entry, Scalar, decoded, read_json, read_toml, read_yaml};
use super::flags::{Flag, Flags};
use super::kind::Form;
use super::lookup::{self, bad_value};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use xtrain_checkpoint::files;
use xtrain_distributed::environment::sagemaker::Container;

/// Adds the settings of the `--config` file, if one is named; what is wrong with it is added to the
/// mistakes.
pub fn read(mut flags: Flags) -> Flags {
    if let Some(path) = flags.config.clone() {
        read_into(&mut flags, &path);
    }
    flags
}

/// What `eval`, `predict` and `generate` remember of a model's training, in its directory: a settings file.
pub const DATA_SETTINGS_FILE: &str = "data_settings.json";

/// How a training run read its data: columns, lengths, settings of its tokenizer.
const REMEMBERED: &[&str] = &[
    "do_lower_case",
    "task_name",
    "text_column_name",
    "text_pair_column_name",
    "label_column_name",
    "label_all_tokens",
    "line_by_line",
    "block_size",
    "max_seq_length",
    "completion_only_loss",
    "assistant_only_loss",
    "packing",
    "packing_strategy",
    "eval_packing",
    "loss_type",
    "mlm_probability",
    "whole_word_mask",
];

/// How a training run held the model that its adapter was trained on.
const QUANTIZATION: &[&str] = &[
    "load_in_4bit",
    "load_in_8bit",
    "bnb_4bit_quant_type",
    "use_bnb_nested_quant",
];

/// Whether an evaluation by this command does as the model's training did. Of the tasks that have losses to
/// choose from, sft alone has one for all evaluations of a model: those of preferences are named anew.
fn is_remembered(name: &str, command: CommandName) -> bool {
    let is_sft = command.task() == Some(TaskName::Sft);
    let is_of_data = REMEMBERED.contains(&name) && command != CommandName::Generate;
    QUANTIZATION.contains(&name) || is_of_data && (name != "loss_type" || is_sft)
}

/// Notes that an adapter whose training held its model in few bits is trained on with the whole one.
fn note_other_quantization(flags: &mut Flags) {
    let adapter = flags.adapter_name_or_path.clone();
    let Some(path) = adapter.or(flags.model_name_or_path.clone()) else {
        return;
    };
    let path = path.join(DATA_SETTINGS_FILE);
    let is_asked = flags.load_in_4bit.is_given() || flags.load_in_8bit.is_given();
    if is_asked || !path.is_file() {
        return;
    }
    // Training needs nothing of the file.
    for entry in entries(&path).unwrap_or_default() {
        let (name, value) = (entry.key, decoded(entry.value));
        if name.starts_with("load_in_") && matches!(value, Scalar::Text(text) if text == "true") {
            flags.notes.push(format!(
                "the adapter was trained with --{name} ({}), and goes on here with its model as it is; add --{name} to train as before",
                path.display()
            ));
        }
    }
}

/// Adds what the model's training was given of its data to the settings of an evaluation or a
/// prediction, which win.
pub fn recall(flags: &mut Flags) {
    if TRAINING.contains(flags.command) {
        return note_other_quantization(flags);
    }
    if !matches!(
        flags.command,
        CommandName::Eval(_) | CommandName::Predict(_) | CommandName::Generate
    ) {
        return;
    }
    let adapter = flags.adapter_name_or_path.clone();
    let Some(path) = adapter.or(flags.model_name_or_path.clone()) else {
        return;
    };
    let path = path.join(DATA_SETTINGS_FILE);
    if !path.is_file() {
        return;
    }
    let entries = match entries(&path) {
        Ok(entries) => entries,
        Err(error) => return flags.mistakes.push(error),
    };
    // Another task brings columns of its own.
    let names_task = flags.task_name.is_given() || flags.tag_task.is_given();
    let is_given = |name: &&str| flags.typed.0.contains_key(*name);
    let is_quantized = QUANTIZATION.iter().any(is_given);
    let mut seen = Seen::new();
    for entry in entries {
        if is_quantized && QUANTIZATION.contains(&&*entry.key) {
            continue;
        }
        let is_taken = lookup::find(&entry.key, flags.command).is_some_and(Flag::is_built);
        let is_remembered = is_remembered(&entry.key, flags.command);
        if !is_taken || !is_remembered || (names_task && entry.key.ends_with("_column_name")) {
            continue;
        }
        if let Err(mistake) = note(flags, &path, entry, &mut seen) {
            flags.mistakes.push(mistake);
        }
    }
    let is_news = |setting: &&FileSetting| !flags.typed.0.contains_key(setting.flag.name);
    let taken = seen.values().filter(is_news);
    let taken: Vec<String> = taken
        .map(|setting| format!("--{} {}", setting.flag.name, setting.texts.join(",")))
        .collect();
    if !taken.is_empty() {
        let taken = taken.join(" ");
        let from = path.display();
        flags
            .notes
            .push(format!("as in training: {taken} ({from})"));
    }
    take(flags, &path, seen);
}

impl Flags {
    /// The file that evaluations of the model read, by its name, with what this run was given of
    /// its data; `None` if that is nothing.
    pub fn data_settings(&self) -> Option<(String, Vec<u8>)> {
        let typed = &self.typed.0;
        let names = REMEMBERED.iter().chain(QUANTIZATION);
        let names = names.filter(|name| is_remembered(name, self.command));
        let given = names.filter_map(|name| {
            let text = typed.get(name)?.as_str();
            Some((name.to_string(), serde_json::Value::from(text)))
        });
        let given: serde_json::Map<String, serde_json::Value> = given.collect();
        let text = format!("{:#}\n", serde_json::Value::Object(given.clone()));
        (!given.is_empty()).then(|| (DATA_SETTINGS_FILE.to_string(), text.into_bytes()))
    }
}

/// The keys of a settings file.
///
/// # Errors
/// The file cannot be read.
pub fn keys(path: &Path) -> Result<Vec<String>, UsageError> {
    Ok(entries(path)?.into_iter().map(|entry| entry.key).collect())
}

fn problem(path: &Path, line: Option<usize>, problem: String, fix: &str) -> UsageError {
    let origin = Origin::File {
        path: path.into(),
        line,
    };
    UsageError::ConfigFile {
        origin,
        problem,
        fix: fix.into(),
    }
}

fn entries(path: &Path) -> Result<Vec<Entry>, UsageError> {
    let extension = path.extension().and_then(|ext| ext.to_str());
    let text = files::read_piped(path, files::SETTINGS).and_then(|bytes| {
        String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
    });
    let text = text.map_err(|e| {
        problem(
            path,
            None,
            e.to_string(),
            "--config takes a TOML, YAML or JSON file",
        )
    })?;
    let is_json = match extension {
        Some("json") => true,
        Some("toml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let is_yaml = matches!(extension, Some("yaml" | "yml"));
    let (entries, fix) = if is_yaml {
        (
            read_yaml(&text),
            "keys are flag names, as in `learning_rate: 5e-5`",
        )
    } else if is_json {
        (
            read_json(&text),
            "keys are flag names, as in `{\"learning_rate\": 5e-5}`; a file of data goes to --train_file",
        )
    } else {
        (
            read_toml(&text),
            "keys are flag names, as in `learning_rate = 5e-5`",
        )
    };
    let mut entries = entries.map_err(|(line, message)| problem(path, Some(line), message, fix))?;
    if is_hyperparameters(path) {
        entries.retain(|entry| !is_reserved(&entry.key));
        for entry in &mut entries {
            entry.value = decoded(std::mem::replace(&mut entry.value, Scalar::Null));
        }
    }
    Ok(entries)
}

/// The hyperparameter that names the task.
pub const TASK: &str = "task";

/// Whether this file holds the hyperparameters of the container that this process runs in.
fn is_hyperparameters(path: &Path) -> bool {
    Container::found().is_some_and(|container| container.hyperparameters() == path)
}

/// Hyperparameters that are no settings: the task, and those that SageMaker's tools add for
/// themselves.
fn is_reserved(key: &str) -> bool {
    key == TASK || key == "_tuning_objective_metric" || key.starts_with("sagemaker_")
}

/// The text of one key of a JSON file, as a hyperparameter is written; `None` without that key.
///
/// # Errors
/// The file cannot be read, or has something else there.
pub fn text_of(path: &Path, key: &str) -> Result<Option<String>, UsageError> {
    let wrong = |what: String| problem(path, None, what, "its values are strings");
    let text = files::read_piped(path, files::SETTINGS).map_err(|e| wrong(e.to_string()))?;
    let text = String::from_utf8_lossy(&text);
    let entries = read_json(&text).map_err(|(line, message)| {
        problem(path, Some(line), message, "SageMaker writes a JSON object")
    })?;
    match entries.into_iter().find(|entry| entry.key == key) {
        None => Ok(None),
        Some(entry) => match decoded(entry.value) {
            Scalar::Text(text) => Ok(Some(text)),
            other => Err(wrong(format!("`{key}` is {}", other.describe()))),
        },
    }
}

/// Reads the file and adds its settings to those that were typed, which win.
fn read_into(flags: &mut Flags, path: &Path) {
    let entries = match entries(path) {
        Ok(entries) => entries,
        Err(error) => return flags.mistakes.push(error),
    };
    let mut seen = Seen::new();
    for entry in entries {
        if let Err(mistake) = note(flags, path, entry, &mut seen) {
            flags.mistakes.push(mistake);
        }
    }
    take(flags, path, seen);
}

/// Takes the settings of a file, in the order of its lines.
fn take(flags: &mut Flags, path: &Path, seen: Seen) {
    let mut settings: Vec<_> = seen.into_values().collect();
    settings.sort_by_key(|setting| setting.line);
    for FileSetting {
        flag, line, texts, ..
    } in settings
    {
        let origin = Origin::File {
            path: path.into(),
            line: Some(line),
        };
        if let Err(mistake) = flags.take(flag, &texts, origin) {
            flags.mistakes.push(mistake);
        }
    }
}

/// The settings of a file, by flag.
type Seen = BTreeMap<&'static str, FileSetting>;

/// What a file has of a flag, under one of its names.
struct FileSetting {
    flag: &'static Flag,
    key: String,
    line: usize,
    texts: Vec<String>,
}

/// Adds one entry to `seen`, which has those before it.
fn note(
    flags: &Flags,
    path: &Path,
    Entry { key, line, value }: Entry,
    seen: &mut Seen,
) -> Result<(), UsageError> {
    let origin = Origin::File {
        path: path.into(),
        line: Some(line),
    };
    let Some(flag) = lookup::find(&key, flags.command) else {
        // Other programs' files list settings that nobody set.
        if matches!(value, Scalar::Null) {
            return Ok(());
        }
        return Err(unknown_key(flags.command, key, origin));
    };
    if flag.name == "config" {
        return Err(problem(
            path,
            Some(line),
            "`config` cannot stand in a settings file".into(),
            "give it on the command line",
        ));
    }
    let Some(texts) = texts(flag, flags.command, value, &origin)? else {
        return Ok(());
    };
    // A dump of TrainingArguments has a setting under its old name and its new one; one of them may
    // be as it is when nobody sets it.
    let is_unset = |key: &str, texts: &[String]| {
        let placeholder = format!("<{}>", key.to_ascii_uppercase());
        matches!(texts, [text] if *text == flag.default || *text == placeholder)
    };
    if let Some(earlier) = seen.get(flag.name) {
        let has_other_name = earlier.key != key;
        if has_other_name && (earlier.texts == texts || is_unset(&key, &texts)) {
            return Ok(());
        }
        if !has_other_name || !is_unset(&earlier.key, &earlier.texts) {
            let first = earlier.line;
            return Err(UsageError::GivenTwice { key, origin, first });
        }
    }
    let setting = FileSetting {
        flag,
        key,
        line,
        texts,
    };
    seen.insert(flag.name, setting);
    Ok(())
}

fn unknown_key(command: CommandName, key: String, origin: Origin) -> UsageError {
    let advice = lookup::advice(&key, command);
    UsageError::UnknownKey {
        key,
        origin,
        command: command.words(),
        advice,
    }
}

/// The texts that a value would be on the command line, or the error that names the kind expected.
/// `None` is "not set".
fn texts(
    flag: &'static Flag,
    command: CommandName,
    value: Scalar,
    origin: &Origin,
) -> Result<Option<Vec<String>>, UsageError> {
    let wrong = |found: String| Err(bad_value(flag, command, found, origin.clone()));
    let text = match (value, flag.kind.form) {
        (Scalar::Null, _) => return Ok(None),
        (Scalar::Text(text), _) => text,
        (Scalar::Bool(answer), Form::Switch | Form::Anything) => answer.to_string(),
        (Scalar::Number(digits), Form::Number | Form::Anything) => digits,
        (Scalar::List(items), Form::List | Form::Positional) => {
            let mut paths = Vec::new();
            for item in items {
                match item {
                    Scalar::Text(path) => paths.push(path),
                    other => return wrong(format!("a list with {}", other.describe())),
                }
            }
            return Ok(Some(paths));
        }
        (Scalar::List(items), Form::Anything) => items
            .into_iter()
            .map(|item| item.describe().trim_matches('`').to_string())
            .collect::<Vec<_>>()
            .join(" "),
        // Files with their weights.
        (Scalar::Table(_, serde_json::Value::Object(table)), Form::List)
            if flag.name == "train_file" =>
        {
            let weighted = table.into_iter().map(|(file, weight)| match weight {
                serde_json::Value::Number(weight) => Ok(format!("{file}:{weight}")),
                other => Err(other.to_string()),
            });
            return match weighted.collect::<Result<Vec<String>, String>>() {
                Ok(files) => Ok(Some(files)),
                Err(weight) => wrong(format!("a table with the weight {weight}")),
            };
        }
        // An empty table is how TrainingArguments dumps "no settings".
        (Scalar::Table(_, table), Form::Anything) if table == serde_json::json!({}) => {
            String::new()
        }
        (Scalar::Table(_, table), Form::Pairs | Form::Anything) => table.to_string(),
        (other, _) => return wrong(other.describe()),
    };
    Ok(Some(vec![text]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TaskName;
    use crate::kind::Degree;
    use xtrain_trainer::settings::Resume;

    const TRAIN_CLM: CommandName = CommandName::Train(TaskName::Clm);

    fn read(name: &str, text: &str) -> Result<Flags, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut flags = Flags::new(TRAIN_CLM);
        read_into(&mut flags, &path);
        match UsageError::all(flags.mistakes.clone()) {
            Ok(()) => Ok(flags),
            // The directory's name differs from run to run.
            Err(e) => Err(format!("{e} | {}", e.hint().unwrap_or_default())
                .replace(&format!("{}/", dir.path().display()), "")),
        }
    }

    #[test]
    fn an_adapter_of_a_quantized_model_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let settings = dir.path().join(DATA_SETTINGS_FILE);
        std::fs::write(&settings, "{\"load_in_4bit\": \"true\"}").unwrap();
        let notes = |is_quantized: Option<bool>| {
            let mut flags = Flags::new(CommandName::Train(TaskName::Sft));
            flags
                .adapter_name_or_path
                .set(Some(dir.path().to_path_buf()));
            if let Some(is_quantized) = is_quantized {
                flags.load_in_4bit.set(is_quantized);
            }
            recall(&mut flags);
            assert!(flags.mistakes.is_empty(), "{:?}", flags.mistakes);
            flags.notes
        };
        let [note] = &notes(None)[..] else {
            panic!("one note is expected")
        };
        assert!(
            note.ends_with("add --load_in_4bit to train as before"),
            "{note}"
        );
        assert!(notes(Some(true)).is_empty() && notes(Some(false)).is_empty());
    }

    /// What TRL 1.16's SFTConfig writes besides where nobody set anything.
    #[test]
    fn a_dump_of_trl_is_a_settings_file() {
        let dump = r#"{"model_init_kwargs": null, "trust_remote_code": false, "router_aux_loss_coef": null, "chat_template_path": null,
            "dataset_text_field": "text", "dataset_kwargs": null, "dataset_num_proc": null, "eos_token": "<EOS_TOKEN>",
            "max_length": 1024, "truncation_mode": "keep_start", "shuffle_dataset": false, "packing": false, "packing_strategy": "bfd",
            "padding_free": false, "pad_to_multiple_of": null, "eval_packing": null, "completion_only_loss": null,
            "assistant_only_loss": false, "loss_type": "nll", "activation_offloading": false, "pad_token": "<PAD_TOKEN>"}"#;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("args.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut flags = Flags::new(CommandName::Train(TaskName::Sft));
            read_into(&mut flags, &path);
            UsageError::all(flags.mistakes.clone()).map(|()| flags.notes)
        };
        assert_eq!(read(dump).unwrap(), Vec::<String>::new());
        for (usual, other) in [
            ("\"nll\"", "\"bnpo\""),
            ("keep_start", "keep_end"),
            ("<EOS_TOKEN>", "</s>"),
        ] {
            let error = read(&dump.replace(usual, other)).unwrap_err().to_string();
            assert!(error.contains("args.json"), "{error}");
        }
    }

    /// What transformers 4.46 and 5.23 write where nobody set anything but three settings.
    #[test]
    fn a_dump_has_settings_under_two_names() {
        let flags = read(
            "args.json",
            r#"{"evaluation_strategy": null, "eval_strategy": "steps", "no_cuda": false, "use_cpu": true,
                "activation_checkpointing": true, "gradient_checkpointing": true,
                "hub_token": "<HUB_TOKEN>", "push_to_hub_token": "<PUSH_TO_HUB_TOKEN>", "mp_parameters": "",
                "ray_scope": "last", "dispatch_batches": null, "split_batches": null}"#,
        )
        .unwrap();
        assert!(
            *flags.use_cpu && flags.notes.is_empty(),
            "{:?}",
            flags.notes
        );
        assert!(
            flags
                .mp_parameters
                .clone()
                .is_none_or(|parameters| parameters.is_empty())
        );
        let flags = read("args.json", r#"{"use_cpu": true, "no_cuda": false}"#).unwrap();
        assert!(*flags.use_cpu);
    }

    #[test]
    fn toml_and_json_say_the_same() {
        let toml = read(
            "run.toml",
            "learning_rate = 5e-4\nnum-train-epochs = 2\ndo_train = true\ntrain_file = [\"a\", \"b\"]\nblock_size = 1_28\nper_device_train_batch_size = 4\n\
             resume_from_checkpoint = false\nlr_scheduler_type = \"cosine\"\nreport_to = []\n\
             optim_args = { eps = 1e-6 }\n[lr_scheduler_kwargs]\nnum_cycles = 2\n",
        )
        .unwrap();
        let json = read(
            "run.json",
            r#"{"learning_rate": 5e-4, "num_train_epochs": "2", "do_train": "True", "train-file": ["a", "b"],
                "block_size": 128, "per_device_train_batch_size": 4, "resume_from_checkpoint": false, "lr_scheduler_type": "cosine", "eval_steps": null, "tf32": null,
                "lr_scheduler_kwargs": {"num_cycles": "2"}, "optim_args": {"eps": 1e-6}}"#,
        )
        .unwrap();
        for flags in [toml, json] {
            assert_eq!(*flags.learning_rate, 5e-4);
            assert_eq!(*flags.num_train_epochs, 2.0);
            assert_eq!(*flags.do_train, Some(true));
            assert_eq!(*flags.train_file, [Path::new("a"), Path::new("b")]);
            assert_eq!(*flags.block_size, Some(128));
            assert_eq!(*flags.per_device_train_batch_size, Degree::Count(4));
            assert_eq!(*flags.resume_from_checkpoint, Resume::No);
            assert!(!flags.eval_steps.is_given());
            assert_eq!(flags.lr_scheduler_kwargs.to_string(), "num_cycles=2.0");
            assert_eq!(flags.optim_args.to_string(), "eps=1e-6");
        }
    }

    #[test]
    fn what_was_flags_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "seed = 1\nmax_steps = 7\n").unwrap();
        let mut flags = Flags::new(TRAIN_CLM);
        flags
            .take(
                lookup::find("seed", TRAIN_CLM).unwrap(),
                &["2".into()],
                Origin::CommandLine,
            )
            .unwrap();
        read_into(&mut flags, &path);
        assert_eq!((*flags.seed, *flags.max_steps), (2, Some(7)));
    }

    #[test]
    fn mistakes_name_the_file_the_line_and_what_was_expected() {
        for (name, text, message) in [
            (
                "a.toml",
                "seed = 1\n\nlearning_rte = 1\n",
                "a.toml:3: unknown key `learning_rte` for `xtrain train clm` | did you mean `learning_rate`?",
            ),
            (
                "a.json",
                "{\n \"seed\": 1,\n \"epochs\": 2}",
                "a.json:3: unknown key `epochs` for `xtrain train clm` | did you mean `num_train_epochs`?",
            ),
            (
                "a.toml",
                "prompt = \"x\"",
                "a.toml:1: unknown key `prompt` for `xtrain train clm` | that one belongs to `xtrain generate`; \
                `xtrain train clm --help` lists what this command takes",
            ),
            (
                "a.toml",
                "learning_rate = \"fast\"",
                "a.toml:1: `learning_rate` must be a number that is 0 or more, found `fast` | ",
            ),
            (
                "a.toml",
                "learning_rate = true",
                "a.toml:1: `learning_rate` must be a number that is 0 or more, found `true` | ",
            ),
            (
                "a.json",
                "{\"max_steps\": 1.5}",
                "a.json:1: `max_steps` must be a whole number that is at least -1, found `1.5` | ",
            ),
            (
                "a.json",
                "{\"seed\": [1]}",
                "a.json:1: `seed` must be a whole number that is 0 or more, found a list | ",
            ),
            (
                "a.toml",
                "train_file = [1]",
                "a.toml:1: `train_file` must be one or more paths, found a list with `1` | ",
            ),
            (
                "a.toml",
                "train_file = []",
                "a.toml:1: `train_file` must be one or more paths, found `` | ",
            ),
            (
                "a.toml",
                "[seed]\nx = 1",
                "a.toml:1: `seed` must be a whole number that is 0 or more, found a table (all keys stand at the top level) | ",
            ),
            (
                "a.json",
                "{\"adafactor\": true}",
                "a.json:1: `adafactor` cannot be `true`: it is chosen with --optim adafactor now | leave `adafactor` out",
            ),
            (
                "a.json",
                "{\"seed\": 1,\n\"seed\": 2}",
                "a.json:2: `seed` is given twice (also at line 1) | keep one of the two",
            ),
            (
                "a.toml",
                "eval_strategy = \"steps\"\nevaluation-strategy = \"epoch\"",
                "a.toml:2: `evaluation-strategy` is given twice (also at line 1) | keep one of the two",
            ),
            (
                "a.json",
                "[1]",
                "a.json:1: not a JSON object | keys are flag names, as in `{\"learning_rate\": 5e-5}`; a file of data goes to --train_file",
            ),
        ] {
            assert_eq!(read(name, text).unwrap_err(), message);
        }
        assert!(
            read("a.toml", "seed = \n")
                .unwrap_err()
                .starts_with("a.toml:1: not valid TOML")
        );
        assert!(
            read("a.json", "{\"seed\": 1,\n}")
                .unwrap_err()
                .starts_with("a.json:2: not valid JSON")
        );
    }
}
