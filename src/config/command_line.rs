//! The command line, read from the flag table: first the command's words, then its flags with their
//! values. A mistake does not end the reading, so that one start reports all of them. What a value
//! means is decided by its kind, the same way as for a settings file.

use super::command::{COMMANDS, CommandInfo, CommandName, second_words};
use super::config_file;
use super::error::{Advice, Origin, UsageError};
use super::flags::{Flag, Flags};
use super::foreign::{self, Meaning};
use super::help;
use super::kind::{Form, parse_bool};
use super::lookup;
use super::unexpected;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;

pub enum Parsed {
    /// Help or version.
    Text(String),
    /// What was typed, with the mistakes in it.
    Flags(Box<Flags>),
}

/// Reads the words of a command line, program name first.
///
/// # Errors
/// If no command can be recognized; what is wrong with its flags is in [`Flags::mistakes`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let words = args.into_iter().skip(1).map(OsString::into_string);
    let Ok(words) = words.collect::<Result<VecDeque<String>, _>>() else {
        return Err(UsageError::CommandLine {
            problem: "an argument is not valid UTF-8".into(),
        });
    };
    if words.is_empty() {
        return Ok(Parsed::Text(help::page("")));
    }
    let mut start = Start {
        words,
        ..Start::default()
    };
    let command = match start.command()? {
        Found::Text(text) => return Ok(Parsed::Text(text)),
        Found::Command(command) => command,
    };
    let asks_for_help = |word: &String| ["-h", "--help"].contains(&word.as_str());
    let mut own = start.words.iter().take_while(|word| *word != "--");
    if own.any(asks_for_help) {
        return Ok(Parsed::Text(help::page(command.words())));
    }
    let mut reader = Reader {
        words: start.words,
        command,
        given: start.given,
        mistakes: Vec::new(),
    };
    reader.read();
    let mut flags = Flags::new(command);
    flags.notes = start.notes;
    flags.mistakes = reader.mistakes;
    for (flag, texts) in reader.given {
        if let Err(mistake) = flags.take(flag, &texts, Origin::CommandLine) {
            flags.mistakes.push(mistake);
        }
    }
    Ok(Parsed::Flags(Box::new(flags)))
}

/// A flag with the words that were given for it.
type Given = (&'static Flag, Vec<String>);

/// The start of a line: `--device X` and the command's words.
#[derive(Default)]
struct Start {
    words: VecDeque<String>,
    given: Vec<Given>,
    notes: Vec<String>,
}

enum Found {
    Text(String),
    Command(CommandName),
}

impl Start {
    /// Takes the command's words from the line.
    fn command(&mut self) -> Result<Found, UsageError> {
        let mut words = String::new();
        loop {
            if let Some(info) = COMMANDS.iter().find(|info| info.words == words) {
                return Ok(Found::Command(info.id));
            }
            let Some(word) = self.words.pop_front() else {
                return Err(incomplete(&words));
            };
            match word.as_str() {
                "-h" | "--help" => return Ok(Found::Text(help::page(&words))),
                "-V" | "--version" => return Ok(Found::Text(help::version())),
                "--device" => {
                    let value = self.words.pop_front();
                    let value = value.ok_or_else(|| no_value(device()))?;
                    self.given.push((device(), vec![value]));
                    continue;
                }
                _ => {}
            }
            if let Some(value) = word.strip_prefix("--device=") {
                self.given.push((device(), vec![value.into()]));
                continue;
            }
            if word.starts_with('-') {
                return Err(before_the_command(&words, &word));
            }
            let longer = if words.is_empty() {
                word.clone()
            } else {
                format!("{words} {word}")
            };
            let begins = |info: &CommandInfo| {
                info.words == longer || info.words.starts_with(&format!("{longer} "))
            };
            if COMMANDS.iter().any(begins) {
                words = longer;
            } else if is_settings_file(&word) {
                return self.command_of_file(&words, word);
            } else {
                return Err(unexpected::command(&words, &word));
            }
        }
    }

    /// `xtrain train run.json`: the task is the one whose flags the file's keys are.
    fn command_of_file(&mut self, verb: &str, file: String) -> Result<Found, UsageError> {
        Flags::new(CommandName::Doctor).take(
            config_flag(),
            std::slice::from_ref(&file),
            Origin::CommandLine,
        )?;
        let example = |info: &CommandInfo| format!("`xtrain {} {file}`", info.words);
        let tasks = || {
            let of_verb = |info: &&CommandInfo| info.words.split(' ').next() == Some(verb);
            COMMANDS.iter().filter(of_verb)
        };
        let Some(first) = tasks().next() else {
            return Err(UsageError::illegal(
                format!("a settings file needs a command before it, found {file}"),
                format!("for example {}", example(&COMMANDS[0])),
            ));
        };
        let keys = config_file::keys(Path::new(&file))?;
        let takes_all =
            |info: &&CommandInfo| keys.iter().all(|key| lookup::find(key, info.id).is_some());
        let fitting: Vec<&CommandInfo> = tasks().filter(takes_all).collect();
        let &[info] = &fitting[..] else {
            return Err(UsageError::illegal(
                format!(
                    "{file} does not show which of {} it is for",
                    all_of(second_words(verb))
                ),
                format!("write the task before it, for example {}", example(first)),
            ));
        };
        self.notes
            .push(format!("{file} is read as {}", example(info)));
        self.words.push_front(file);
        Ok(Found::Command(info.id))
    }
}

fn all_of(words: impl Iterator<Item = &'static str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

fn device() -> &'static Flag {
    lookup::find("device", CommandName::Doctor).expect("every command takes it")
}

fn config_flag() -> &'static Flag {
    lookup::find("config", CommandName::Doctor).expect("every command takes it")
}

/// The words after the command.
struct Reader {
    words: VecDeque<String>,
    command: CommandName,
    /// Each flag once, in the order typed.
    given: Vec<Given>,
    mistakes: Vec<UsageError>,
}

impl Reader {
    fn read(&mut self) {
        while let Some(word) = self.words.pop_front() {
            if word == "--" {
                while let Some(word) = self.words.pop_front() {
                    self.positional(word);
                }
            } else if is_flag_like(&word) {
                self.flag(&word);
            } else if self.starter().is_some() {
                // As launchers have it, the first word of a command ends their own flags.
                self.words.push_front(word);
                while let Some(word) = self.words.pop_front() {
                    self.positional(word);
                }
            } else {
                self.positional(word);
            }
        }
    }

    /// A word that belongs to no flag: one of those that the command takes, or a settings file.
    fn positional(&mut self, word: String) {
        if let Some(flag) = self.takes_words() {
            self.give(flag, vec![word]);
        } else if is_settings_file(&word)
            && !self.given.iter().any(|(flag, _)| flag.name == "config")
        {
            self.give(config_flag(), vec![word]);
        } else {
            self.mistakes.push(unexpected::word(&word, self.command));
        }
    }

    /// What there is to know of a command that starts another one.
    fn starter(&self) -> Option<&'static Starter> {
        STARTERS.iter().find(|starter| starter.id == self.command)
    }

    /// The flag whose words stand by themselves, of a command that has one.
    fn takes_words(&self) -> Option<&'static Flag> {
        lookup::of(self.command).find(|flag| flag.kind.form == Form::Positional)
    }

    /// A flag, from its word to its last value.
    fn flag(&mut self, word: &str) {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (word, None),
        };
        if let Some(name) = name.strip_prefix("--") {
            if let Some(flag) = lookup::find(name, self.command) {
                return self.values(flag, inline);
            }
            if let Some(flag) = self.negated(name) {
                return match inline {
                    None => self.give(flag, vec!["false".into()]),
                    Some(_) => self.mistakes.push(UsageError::illegal(
                        format!("--{name} takes no value"),
                        format!("write --{name}, or --{} false", flag.name),
                    )),
                };
            }
        } else if let Some((flag, value)) = self.letter(word) {
            return self.values(flag, value);
        }
        self.unknown(name, inline.is_some());
    }

    /// `--no_X` turns a switch off, as transformers' parser has it.
    fn negated(&self, name: &str) -> Option<&'static Flag> {
        let name = name.strip_prefix("no_").or(name.strip_prefix("no-"))?;
        let flag = lookup::find(name, self.command)?;
        matches!(flag.kind.form, Form::Switch | Form::Anything).then_some(flag)
    }

    /// `-j 4`, `-j4` or `-j=4`.
    fn letter(&self, word: &str) -> Option<(&'static Flag, Option<String>)> {
        let mut rest = word[1..].chars();
        let letter = rest.next();
        let flag =
            lookup::of(self.command).find(|flag| flag.short.is_some() && flag.short == letter)?;
        let value = rest.as_str();
        let value = value.strip_prefix('=').unwrap_or(value);
        Some((flag, (!value.is_empty()).then(|| value.to_string())))
    }

    /// Takes the words that are a flag's values.
    fn values(&mut self, flag: &'static Flag, inline: Option<String>) {
        let texts = match (inline, flag.kind.form) {
            (Some(value), _) => vec![value],
            (None, Form::Switch) => {
                // `cache show --hlo ID`: where words stand by themselves, only an answer is a value.
                let any = self.takes_words().is_none();
                let is_value =
                    |word: &str| !is_flag_like(word) && (any || parse_bool(word).is_some());
                let value = self.next_if(is_value);
                vec![value.unwrap_or_else(|| "true".into())]
            }
            (None, Form::Anything) => {
                let mut texts = self.next_while(|word| !is_flag_like(word));
                if texts.is_empty() {
                    texts.push("true".into());
                }
                texts
            }
            (None, Form::List | Form::Positional) => {
                let starts = self.starter().is_some();
                let ends = |word: &str| is_flag_like(word) || starts && begins_command(word);
                self.next_while(|word| !ends(word))
            }
            (None, Form::Number | Form::Word | Form::Pairs) => self
                .next_if(|word| !is_flag_like(word))
                .into_iter()
                .collect(),
            // A text may look like a flag, but not like one of the command's.
            (None, Form::Prose) => {
                let command = self.command;
                let is_text = |word: &str| !word.starts_with("--") || !names_a_flag(word, command);
                self.next_if(is_text).into_iter().collect()
            }
        };
        if texts.is_empty() {
            self.mistakes.push(no_value(flag));
        } else {
            self.give(flag, texts);
        }
    }

    fn next_if(&mut self, is_value: impl Fn(&str) -> bool) -> Option<String> {
        let is_taken = self.words.front().is_some_and(|word| is_value(word));
        is_taken.then(|| self.words.pop_front()).flatten()
    }

    fn next_while(&mut self, is_value: impl Fn(&str) -> bool) -> Vec<String> {
        let mut taken = Vec::new();
        while self.words.front().is_some_and(|word| is_value(word)) {
            taken.extend(self.words.pop_front());
        }
        taken
    }

    /// What is given twice counts once: the last time, or for lists all times together.
    fn give(&mut self, flag: &'static Flag, mut texts: Vec<String>) {
        let earlier = self
            .given
            .iter()
            .position(|(given, _)| given.name == flag.name);
        if let Some(at) = earlier {
            let (_, before) = self.given.remove(at);
            if matches!(flag.kind.form, Form::List | Form::Positional) {
                texts.splice(0..0, before);
            }
        }
        self.given.push((flag, texts));
    }

    /// Notes an unknown flag, with its values out of the way.
    fn unknown(&mut self, arg: &str, has_value: bool) {
        if !has_value && self.takes_words().is_some() {
            // Of several words the others are the command's own.
            self.next_if(|word| !is_flag_like(word) && !begins_command(word));
        } else if !has_value {
            self.next_while(|word| !is_flag_like(word));
        }
        let name = arg.trim_start_matches('-');
        let info = self.command.info();
        let elsewhere = lookup::commands_taking(name);
        let is_own = matches!(lookup::foreign(name, info.id), Some(Meaning::Flag(_)));
        let of_launcher = foreign::of_launcher(name).filter(|_| info.id == CommandName::Launch);
        if let Some(starter) = self.starter()
            && !is_own
            && of_launcher.is_none()
            && elsewhere.iter().any(|words| *words != info.words)
        {
            let vary = match starter.id {
                CommandName::Sweep => format!("vary it with --grid {name}=A,B, or "),
                _ => String::new(),
            };
            self.mistakes.push(UsageError::illegal(
                format!("{arg} belongs to the command that is {}", starter.done),
                format!(
                    "{vary}put that command after --: `xtrain {} ...`",
                    starter.example
                ),
            ));
            return;
        }
        let advice = match (lookup::find(name, info.id), of_launcher) {
            // With one hyphen for two.
            (Some(own), _) => Advice::Meant(own.name.into()),
            (None, Some(what)) if !is_own => Advice::Instead(what),
            (None, _) => lookup::advice(name, info.id),
        };
        self.mistakes.push(UsageError::UnknownFlag {
            flag: arg.into(),
            command: info.words,
            advice,
        });
    }
}

/// A command that starts another one.
struct Starter {
    id: CommandName,
    /// What it does to that one.
    done: &'static str,
    example: &'static str,
}

const STARTERS: &[Starter] = &[
    Starter {
        id: CommandName::Launch,
        done: "launched",
        example: "launch --nproc_per_node 2 -- train clm",
    },
    Starter {
        id: CommandName::Scaling,
        done: "scaled",
        example: "scaling --degrees 1,2 -- bench",
    },
    Starter {
        id: CommandName::Sweep,
        done: "swept",
        example: "sweep --grid learning_rate=1e-4,3e-4 --output_dir sweep -- train clm",
    },
];

/// Whether a word is the first of a command that another one can start.
fn begins_command(word: &str) -> bool {
    ["train", "eval", "bench"].contains(&word)
}

/// Whether a word is a flag rather than a value: it begins with a hyphen and is no number.
fn is_flag_like(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('-') else {
        return false;
    };
    !rest.is_empty()
        && word.parse::<f64>().is_err()
        && !rest.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a word is the name of one of the command's flags, perhaps with its value.
fn names_a_flag(word: &str, command: CommandName) -> bool {
    let name = word.trim_start_matches('-').split('=').next();
    name.is_some_and(|name| lookup::find(name, command).is_some())
}

fn is_settings_file(word: &str) -> bool {
    let extension = Path::new(word).extension();
    extension.is_some_and(|ext| {
        ["json", "toml", "yaml", "yml"]
            .iter()
            .any(|known| ext == *known)
    })
}

fn incomplete(words: &str) -> UsageError {
    if words.is_empty() {
        return UsageError::IncompleteCommand {
            command: "COMMAND".into(),
            choices: COMMANDS.iter().map(|info| info.words.to_string()).collect(),
        };
    }
    UsageError::IncompleteCommand {
        command: words.into(),
        choices: second_words(words).map(str::to_string).collect(),
    }
}

/// A flag too early: `words` are those of the command so far.
fn before_the_command(words: &str, arg: &str) -> UsageError {
    let name = arg.trim_start_matches('-').split('=').next();
    let commands = lookup::commands_taking(name.unwrap_or_default());
    let begun = commands.iter().find(|command| command.starts_with(words));
    match begun.or(commands.first()) {
        Some(command) => UsageError::illegal(
            format!("{arg} stands before the command"),
            format!("write it after: `xtrain {command} {arg} ...`"),
        ),
        None => UsageError::CommandLine {
            problem: format!("unknown flag {arg} before the command"),
        },
    }
}

fn no_value(flag: &Flag) -> UsageError {
    UsageError::NoValue {
        name: flag.name.into(),
        expected: flag.kind.expected(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::choices::Device;

    fn typed(line: &str) -> Result<Flags, UsageError> {
        let args = line.split_whitespace().map(OsString::from);
        match parse(std::iter::once("xtrain".into()).chain(args))? {
            Parsed::Flags(flags) => {
                UsageError::all(flags.mistakes.clone())?;
                Ok(*flags)
            }
            Parsed::Text(text) => panic!("printed {text}"),
        }
    }

    #[test]
    fn every_spelling_means_the_same() {
        let plain = typed(
            "train clm --learning_rate 5e-4 --do_train --eval_strategy epoch --train_file a b",
        )
        .unwrap();
        for line in [
            "train clm --learning-rate 5e-4 --do-train true --evaluation_strategy epoch --train-file a --train-file b",
            "train clm --learning_rate=5e-4 --do_train=True --evaluation-strategy=epoch --train_file=a --train_file b",
            "train clm --learning_rate 1 --learning_rate 0.0005 --do_train yes --eval-strategy epoch --train_file a b",
        ] {
            assert_eq!(typed(line).unwrap(), plain, "{line}");
        }
        assert_eq!(*plain.learning_rate, 5e-4);
        assert_eq!(plain.train_file.len(), 2);
    }

    #[test]
    fn device_may_stand_anywhere() {
        for line in [
            "--device cuda train clm",
            "train --device cuda clm",
            "train clm --device cuda",
            "--device=cuda train clm --seed 42",
        ] {
            assert_eq!(*typed(line).unwrap().device, Device::Cuda, "{line}");
        }
        assert_eq!(*typed("doctor").unwrap().device, Device::Cpu);
    }

    #[test]
    fn negative_numbers_are_values_and_flags_are_not() {
        assert_eq!(*typed("train clm --max_steps -1").unwrap().max_steps, None);
        let error = typed("train clm --learning_rate -5e-5")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`learning_rate` must be a number that is 0 or more, found `-5e-5`"),
            "{error}"
        );
        let error = typed("train clm --learning_rate --do_train")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "--learning_rate needs a value: a number that is 0 or more"
        );
        let prompt = typed("generate --prompt --so").unwrap().prompt;
        assert_eq!(prompt.as_deref(), Some("--so"));
        for line in [
            "generate --prompt --max_new_tokens 3",
            "generate --max-new-tokens --prompt=x",
            "compile clm --max_steps -j 3",
            "compile clm --output_dir --do_train",
            "compile clm --output_dir -x=3 --train_file --do_eval",
        ] {
            let error = typed(line).unwrap_err();
            let mut each = error.each();
            assert!(
                each.any(|error| matches!(error, UsageError::NoValue { .. })),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn all_mistakes_are_found_and_nothing_is_swallowed() {
        let error = typed(
            "train clm --learning_rte 1e-4 --learning_rate -o out --max_steps ten --bf16 perhaps \
             word --save_strategy --seed 3 --lr 3",
        )
        .unwrap_err();
        let found: Vec<String> = error
            .each()
            .map(|error| format!("{error} | {}", error.hint().unwrap_or_default()))
            .collect();
        assert_eq!(
            found,
            [
                "unknown flag --learning_rte for `xtrain train clm` | did you mean `--learning_rate`?",
                "--learning_rate needs a value: a number that is 0 or more | ",
                "unknown flag -o for `xtrain train clm` | did you mean `--output_dir`?",
                "unexpected word `word`: every setting of `xtrain train clm` is a flag | `xtrain train clm --help` lists them",
                "--save_strategy needs a value: one of no, steps, epoch, best | ",
                "unknown flag --lr for `xtrain train clm` | did you mean `--learning_rate`?",
                "command line: `max_steps` must be a whole number that is at least -1, found `ten` | ",
                "command line: `bf16` must be true or false, found `perhaps` | ",
            ]
        );
    }

    #[test]
    fn booleans_are_turned_off_in_every_way() {
        for line in [
            "--no_bf16",
            "--no-bf16",
            "--bf16 False",
            "--bf16=no",
            "--bf16 --no_bf16",
        ] {
            let flags = typed(&format!("train clm {line}")).unwrap();
            assert!(!*flags.bf16 && flags.bf16.is_given(), "{line}");
        }
        assert!(*typed("train clm --no_bf16 --bf16").unwrap().bf16);
        let error = typed("train clm --no_bf16=true").unwrap_err();
        assert_eq!(
            error.hint().as_deref(),
            Some("write --no_bf16, or --bf16 false")
        );
    }

    #[test]
    fn a_settings_file_may_stand_alone() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let plain = write("plain.json", r#"{"seed": 3, "output_dir": "out"}"#);
        let blocks = write("blocks.json", r#"{"seed": 3, "block_size": 64}"#);
        let flags = typed(&format!("train mlm {plain}")).unwrap();
        assert_eq!(flags.config.as_deref(), Some(Path::new(&plain)));
        let flags = typed(&format!("train {blocks} --seed 4")).unwrap();
        assert_eq!(flags.command.words(), "train clm");
        assert_eq!(
            flags.notes,
            [format!("{blocks} is read as `xtrain train clm {blocks}`")]
        );
        let error = typed(&format!("train {plain}")).unwrap_err();
        let tasks: Vec<&str> = second_words("train").collect();
        assert_eq!(
            error.to_string(),
            format!(
                "{plain} does not show which of {} it is for",
                tasks.join(", ")
            )
        );
        let error = typed(&plain).unwrap_err();
        assert_eq!(
            error.hint(),
            Some(format!("for example `xtrain train clm {plain}`"))
        );
    }

    #[test]
    fn unknown_names_get_the_nearest_known_one() {
        for (line, hint) in [
            (
                "train clm --learning-rte 1",
                "did you mean `--learning_rate`?",
            ),
            (
                "train clm --lr_schedule linear",
                "did you mean `--lr_scheduler_type`?",
            ),
            ("trian clm", "did you mean `xtrain train`?"),
            ("train mml", "did you mean `xtrain train mlm`?"),
            (
                "eval translation",
                "models of an encoder with a decoder are not built; `xtrain train sft` learns completions of prompts",
            ),
            (
                "eval xyz",
                "the tasks of `xtrain eval` are clm, sft, mlm, cls, token-cls",
            ),
            ("train llm", "did you mean `xtrain train clm`?"),
            ("predict ner", "did you mean `xtrain predict token-cls`?"),
            (
                "predict clm",
                "`xtrain predict` is for cls and token-cls; texts are continued by `xtrain generate`",
            ),
            (
                "train dpo",
                "preference optimization (such as DPO) is not built yet; `xtrain train sft` fine-tunes on prompts with completions",
            ),
            (
                "train foo.txt",
                "the task stands before it, as in `xtrain train clm --train_file foo.txt`; tasks are clm, sft, mlm, cls, token-cls",
            ),
            ("sft", "did you mean `xtrain train sft`?"),
            ("clm", "did you mean `xtrain train clm`?"),
            ("mlm", "did you mean `xtrain train mlm`?"),
            ("cls", "did you mean `xtrain train cls`?"),
            ("token-cls", "did you mean `xtrain train token-cls`?"),
            (
                "chat",
                "use `xtrain generate --chat --model_name_or_path DIR`",
            ),
            ("zzz", "`xtrain --help` lists the commands"),
            ("cache prun", "did you mean `xtrain cache prune`?"),
            (
                "generate --learning_rate 1",
                "that one belongs to `xtrain train`, `xtrain compile`, `xtrain fit`; \
                 `xtrain generate --help` lists what this command takes",
            ),
            (
                "predict token-cls --learning_rate 1",
                "that one belongs to `xtrain train token-cls`, `xtrain compile token-cls`, `xtrain fit token-cls`; \
                 `xtrain predict token-cls --help` lists what this command takes",
            ),
            ("train clm --save_strategy epochs", "did you mean `epoch`?"),
            ("train mlm --model_type brt", "did you mean `bert`?"),
            // Not the name that looks most alike, but what does the same.
            (
                "train clm --mixed_precision fp16",
                "use --bf16 or --fp16 instead",
            ),
            (
                "train clm --evaluate_during_training",
                "use --eval_strategy steps instead",
            ),
            ("train clm --mlm", "use `xtrain train mlm` instead"),
            // Nothing rather than a name that only looks like it.
            (
                "train clm --zos_token x",
                "`xtrain train clm --help` lists what it takes",
            ),
            (
                "train clm --eos_token x",
                "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json",
            ),
            (
                "train clm --loss_type dft",
                "not built yet: other losses; the loss is the cross-entropy of tokens or classes",
            ),
            ("train sft --eos_token x", "leave `eos_token` out"),
            ("train sft --loss_type dft", "leave `loss_type` out"),
            (
                "train sft --use_peft",
                "not built yet: LoRA and other adapters; leave it out, and all parameters are trained",
            ),
            ("train clm --max_length 3", "did you mean `--block_size`?"),
            (
                "train clm --batch_size 3",
                "did you mean `--per_device_train_batch_size`?",
            ),
            (
                "eval clm --batch_size 3",
                "did you mean `--per_device_eval_batch_size`?",
            ),
            ("bench --batch_size 3", "did you mean `--batch`?"),
            (
                "train clm --eval_file x",
                "did you mean `--validation_file`?",
            ),
            (
                "train clm --labels a,b",
                "that one belongs to `xtrain train cls`, `xtrain train token-cls`; `xtrain train clm --help` lists what this command takes",
            ),
            ("train clm foo.txt", "write it as --train_file foo.txt"),
            (
                "eval clm s3://b/foo.txt",
                "write it as --validation_file s3://b/foo.txt",
            ),
            ("predict cls foo.csv", "write it as --test_file foo.csv"),
            (
                "train clm org/name",
                "write it as --model_name_or_path org/name",
            ),
            ("bench gpt2", "write it as --model_type gpt2"),
            (
                "train clm lr=3 learning_rate=1e-4",
                "`xtrain train clm --help` lists them",
            ),
            (
                "train clm learning_rate=1e-4",
                "write it as --learning_rate=1e-4",
            ),
            ("train clm --device gpu", "use cuda, for NVIDIA cards"),
            (
                "train clm --device cuda:1",
                "use cuda, with --visible_devices 1",
            ),
            (
                "train s3://b/run.json",
                "copy it to this machine first, and give its path",
            ),
            (
                "train clm --output_dir s3://b/out",
                "give a path on this machine, and copy what is written there afterwards",
            ),
            (
                "train clm --optim paged_lion_8bit",
                "use lion_32bit: its state is float32; --shard_optimizer_state shards it over --data_parallel devices",
            ),
            (
                "train clm --optim adamw_bnb_8bit",
                "use adamw_torch: its state is float32; --shard_optimizer_state shards it over --data_parallel devices",
            ),
            (
                "train clm --optim galore_adamw_layerwise",
                "use adamw_torch, the nearest of them",
            ),
            (
                "train clm --optim adamw_torh",
                "did you mean `adamw_torch`?",
            ),
            (
                "train clm --attn_implementation flash_attention_2",
                "leave `attn_implementation` out: attention is fused wherever the device can",
            ),
            (
                "train clm --dtype float16",
                "use --fp16, mixed precision with float32 weights; or bfloat16, whose range is float32's",
            ),
        ] {
            assert_eq!(
                typed(line)
                    .unwrap_err()
                    .each()
                    .next()
                    .unwrap()
                    .hint()
                    .as_deref(),
                Some(hint),
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_not_built_is_refused_with_a_reason_and_never_ignored() {
        for line in [
            "--adafactor",
            "--adafactor true",
            "--push_to_hub_organization me",
            "--deepspeed x.json",
        ] {
            let error = typed(&format!("train clm {line}")).unwrap_err();
            assert!(
                matches!(error, UsageError::Refused { .. }),
                "{line}: {error}"
            );
        }
        for line in [
            "--adafactor false",
            "--report_to none",
            "--local_rank -1",
            "--push-to-hub=False",
        ] {
            assert_eq!(
                typed(&format!("train clm {line}")).unwrap().notes.len(),
                0,
                "{line}"
            );
        }
        assert_eq!(typed("train clm --project x").unwrap().notes.len(), 1);
    }
}
