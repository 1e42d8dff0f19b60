//! The command line, read by clap from the flag table. clap splits words, knows which flags take
//! values and writes help; what a value means is decided in `typed`, the same way as for a settings
//! file. clap's own messages are replaced by ours so that both sources speak alike.

use super::command::{COMMANDS, CommandInfo, CommandName, VERBS, second_words};
use super::error::{Origin, UsageError};
use super::flags::{Flag, Flags, Section};
use super::kind::Form;
use super::lookup;
use super::nearest::nearest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;

pub enum Parsed {
    /// Help or version.
    Text(String),
    Flags(Box<Flags>),
}

/// Reads the words of a command line, program name first.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.len() <= 1 {
        return Ok(Parsed::Text(root().render_help().to_string()));
    }
    let matches = match root().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return from_clap(error, &args),
    };
    let (command, matches) = innermost(&matches)?;
    let mut flags = Flags::new(command);
    for flag in lookup::of(command) {
        if matches.value_source(flag.name).is_none() {
            continue;
        }
        let texts: Vec<String> = matches
            .get_many::<String>(flag.name)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        if texts
            .iter()
            .any(|text| is_another_flag(flag, text, command))
        {
            return Err(no_value(flag.name));
        }
        flags.take(flag, &texts, Origin::CommandLine)?;
    }
    Ok(Parsed::Flags(Box::new(flags)))
}

/// Whether clap took the next flag for this one's value, because values of its kind may begin with
/// a hyphen. No number begins with two; a text is one unless it is a flag of the command.
fn is_another_flag(flag: &Flag, text: &str, command: CommandName) -> bool {
    let is_flag = || {
        let name = text.trim_start_matches('-').split('=').next();
        name.is_some_and(|name| lookup::find(name, command).is_some())
    };
    match flag.kind.form {
        Form::Number => text.starts_with("--") || is_short_flag(text, command),
        Form::Prose => text.starts_with("--") && is_flag(),
        Form::Switch | Form::Word | Form::List | Form::Positional | Form::Anything => false,
    }
}

/// Whether this is a flag's letter, as in `-j`.
fn is_short_flag(text: &str, command: CommandName) -> bool {
    let letter = text.strip_prefix('-').and_then(|rest| rest.parse().ok());
    letter.is_some() && lookup::of(command).any(|flag| flag.short == letter)
}

/// The whole tree of commands.
pub fn root() -> Command {
    let mut root = Command::new("xtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains language models as whole compiled XLA graphs")
        .after_help(
            "Flags have the names of transformers' TrainingArguments and run_clm, in snake_case or kebab-case.\n\
             `xtrain COMMAND --help` lists the flags of one command; docs/flags.md lists them all.",
        )
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .args_override_self(true)
        .arg(global("device"));
    // Commands of two words hang below a command that only holds its tasks.
    for info in COMMANDS {
        match info.words.split_once(' ') {
            None => root = root.subcommand(leaf(info, info.words)),
            Some((verb, task)) => {
                if root.find_subcommand(verb).is_none() {
                    root = root.subcommand(parent(verb));
                }
                root = root.mut_subcommand(verb, |parent| parent.subcommand(leaf(info, task)));
            }
        }
    }
    root
}

/// A command that only holds those of two words.
fn parent(verb: &'static str) -> Command {
    let about = VERBS.iter().find(|(word, _)| *word == verb);
    let about = about.expect("a test looks every first word up").1;
    let words: Vec<&str> = second_words(verb).collect();
    Command::new(verb)
        .about(format!("{about}: {}", words.join(", ")))
        .subcommand_required(true)
}

/// `--device` hangs on the root, so that it may stand before the command too.
fn global(name: &str) -> Arg {
    let flag = lookup::find(name, CommandName::Doctor).expect("every command takes it");
    arg(flag, None).global(true)
}

fn leaf(info: &'static CommandInfo, word: &'static str) -> Command {
    let words = lookup::of(info.id).filter(|flag| flag.kind.form == Form::Positional);
    let positional: String = words
        .map(|flag| format!(" [{}...]", flag.name.to_uppercase()))
        .collect();
    let mut command = Command::new(word)
        .about(info.about)
        .override_usage(format!(
            "xtrain [--device cpu|cuda|neuron] {}{} [FLAGS]",
            info.words, positional
        ))
        .after_help(format!("Examples:\n  {}", info.examples))
        .next_line_help(true)
        .args_override_self(true);
    let sections = Section::ALL.iter().map(|section| Some(*section));
    for section in sections.chain([None]) {
        for flag in
            lookup::of(info.id).filter(|flag| flag.section == section && flag.name != "device")
        {
            command = command.arg(arg(flag, Some(info.id)));
        }
    }
    command
}

/// As `command` takes it; `None`: any.
fn arg(flag: &'static Flag, command: Option<CommandName>) -> Arg {
    let kebab = flag
        .names()
        .filter(|name| name.contains('_'))
        .map(|name| name.replace('_', "-"));
    let mut help = flag.help.to_string();
    let choices = flag.kind.choices(command);
    if !choices.is_empty() {
        help.push_str(&format!(": {}", choices.join(", ")));
    }
    if !flag.default.is_empty() {
        help.push_str(&format!(" [default: {}]", flag.default));
    }
    let arg = Arg::new(flag.name)
        .value_name(flag.kind.placeholder)
        .help(help)
        .help_heading(flag.section.map(Section::title))
        .hide(!flag.is_built());
    if flag.kind.form == Form::Positional {
        return arg
            .value_name(flag.name.to_uppercase())
            .action(ArgAction::Append)
            .num_args(0..);
    }
    let arg = match flag.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    let arg = arg
        .long(flag.name)
        .aliases(flag.aliases.iter().copied())
        .aliases(kebab);
    match flag.kind.form {
        Form::Switch => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .default_missing_value("true"),
        Form::Anything => arg
            .action(ArgAction::Set)
            .num_args(0..)
            .default_missing_value("true")
            .allow_negative_numbers(true),
        Form::List | Form::Positional => arg.action(ArgAction::Append).num_args(1..),
        // clap's own notion of negative numbers does not know `-5e-5`; a flag taken for a value is
        // caught in `parse`.
        Form::Prose | Form::Number => arg.action(ArgAction::Set).allow_hyphen_values(true),
        Form::Word => arg.action(ArgAction::Set),
    }
}

/// Walks down to the command that was chosen.
fn innermost(matches: &ArgMatches) -> Result<(CommandName, &ArgMatches), UsageError> {
    let mut words: Vec<&str> = Vec::new();
    let mut matches = matches;
    while let Some((word, inner)) = matches.subcommand() {
        words.push(word);
        matches = inner;
    }
    let words = words.join(" ");
    match COMMANDS.iter().find(|info| info.words == words) {
        Some(info) => Ok((info.id, matches)),
        None => Err(incomplete(&words)),
    }
}

fn incomplete(words: &str) -> UsageError {
    UsageError::IncompleteCommand {
        command: words.into(),
        choices: second_words(words).map(str::to_string).collect(),
    }
}

fn from_clap(error: clap::Error, args: &[OsString]) -> Result<Parsed, UsageError> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        _ => String::new(),
    };
    let words = words_of(args);
    Err(match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return Ok(Parsed::Text(error.render().to_string()));
        }
        ErrorKind::UnknownArgument => {
            let arg = context(ContextKind::InvalidArg);
            match flag_without_value(args, &arg) {
                Some(flag) => no_value(flag),
                None => unknown_argument(&arg, &words),
            }
        }
        ErrorKind::InvalidSubcommand => {
            unknown_command(&words, &context(ContextKind::InvalidSubcommand))
        }
        ErrorKind::MissingSubcommand if words.is_empty() => UsageError::IncompleteCommand {
            command: "COMMAND".into(),
            choices: COMMANDS.iter().map(|info| info.words.to_string()).collect(),
        },
        ErrorKind::MissingSubcommand => incomplete(&words),
        // clap reports a flag at the end of the line, or before another flag, as an empty invalid
        // value.
        ErrorKind::InvalidValue | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            no_value(&context(ContextKind::InvalidArg))
        }
        ErrorKind::InvalidUtf8 => UsageError::CommandLine {
            problem: "an argument is not valid UTF-8".into(),
        },
        // Whatever else clap may say, without its own prefix and usage lines.
        _ => UsageError::CommandLine {
            problem: error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_string(),
        },
    })
}

/// The flag that took the next one for its value, so that this word was left over, as in `--prompt
/// --seed 3`.
fn flag_without_value<'a>(args: &'a [OsString], word: &str) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == word)?;
    let is_flag = |arg: &&str| {
        let name = arg.strip_prefix("--").unwrap_or_default();
        lookup::all().any(|flag| flag.answers_to(name))
    };
    let before = |n: usize| args.get(at.checked_sub(n)?)?.to_str().filter(is_flag);
    before(1).and(before(2))
}

/// The command words at the start of a line, skipping `--device X`; for messages when clap gave up.
fn words_of(args: &[OsString]) -> String {
    let mut words = String::new();
    let mut rest = args.iter().skip(1).map(|arg| arg.to_string_lossy());
    while let Some(arg) = rest.next() {
        if arg == "--device" {
            rest.next();
        } else if !arg.starts_with("--device=") {
            let longer = if words.is_empty() {
                arg.to_string()
            } else {
                format!("{words} {arg}")
            };
            if !COMMANDS
                .iter()
                .any(|info| info.words == longer || info.words.starts_with(&format!("{longer} ")))
            {
                break;
            }
            words = longer;
        }
    }
    words
}

fn unknown_argument(arg: &str, words: &str) -> UsageError {
    let name = arg
        .trim_start_matches('-')
        .split('=')
        .next()
        .unwrap_or_default();
    let Some(info) = COMMANDS.iter().find(|info| info.words == words) else {
        return match lookup::commands_taking(name).first() {
            Some(command) => UsageError::illegal(
                format!("{arg} stands before the command"),
                format!("write it after: `xtrain {command} {arg} ...`"),
            ),
            None => UsageError::CommandLine {
                problem: format!("unknown flag {arg} before the command"),
            },
        };
    };
    let before_a_command = [
        (
            CommandName::Launch,
            "launched",
            "launch --nproc_per_node 2 -- train clm",
        ),
        (
            CommandName::Scaling,
            "scaled",
            "scaling --degrees 1,2 -- bench",
        ),
    ];
    if let Some((_, done, example)) = before_a_command.into_iter().find(|(id, ..)| *id == info.id)
        && arg.starts_with('-')
        && lookup::commands_taking(name)
            .iter()
            .any(|words| *words != info.words)
    {
        return UsageError::illegal(
            format!("{arg} belongs to the command that is {done}"),
            format!("put that command after --: `xtrain {example} ...`"),
        );
    }
    if !arg.starts_with('-') {
        return UsageError::CommandLine {
            problem: format!(
                "unexpected word `{arg}`: every setting of `xtrain {words}` is a flag"
            ),
        };
    }
    UsageError::UnknownFlag {
        flag: format!("--{name}"),
        command: info.words,
        advice: lookup::advice(name, info.id),
    }
}

fn unknown_command(before: &str, word: &str) -> UsageError {
    let full = if before.is_empty() {
        word.to_string()
    } else {
        format!("{before} {word}")
    };
    let first_words = COMMANDS
        .iter()
        .map(|info| info.words.split(' ').next().unwrap_or(info.words));
    let nearest = match before {
        "" => nearest(word, first_words),
        // A wrong task: the nearest one or, where none is near, the first.
        _ => {
            let whole = || {
                COMMANDS
                    .iter()
                    .map(|info| info.words)
                    .filter(|words| words.starts_with(before))
            };
            nearest(&full, whole()).or_else(|| whole().next())
        }
    };
    UsageError::UnknownCommand {
        word: full,
        nearest: nearest.map(str::to_string),
    }
}

fn no_value(arg: &str) -> UsageError {
    // clap names the argument as it prints it in usage: `--seed <N>`.
    let name = arg
        .trim_start_matches('-')
        .split([' ', '='])
        .next()
        .unwrap_or_default()
        .to_string();
    match lookup::all().find(|flag| flag.answers_to(&name)) {
        Some(flag) => UsageError::NoValue {
            name,
            expected: flag.kind.expected(None),
        },
        None => UsageError::CommandLine {
            problem: format!("{arg} is not complete"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::choices::Device;

    fn typed(line: &str) -> Result<Flags, UsageError> {
        let args = line.split_whitespace().map(OsString::from);
        match parse(std::iter::once("xtrain".into()).chain(args))? {
            Parsed::Flags(flags) => Ok(*flags),
            Parsed::Text(text) => panic!("printed {text}"),
        }
    }

    #[test]
    fn the_tree_of_commands_is_well_formed() {
        root().debug_assert();
    }

    #[test]
    fn every_first_word_says_what_it_is_for() {
        for (verb, _) in COMMANDS
            .iter()
            .filter_map(|info| info.words.split_once(' '))
        {
            assert!(VERBS.iter().any(|(word, _)| *word == verb), "{verb}");
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
            "compile clm --max_steps -j",
        ] {
            let error = typed(line).unwrap_err();
            assert!(
                matches!(error, UsageError::NoValue { .. }),
                "{line}: {error}"
            );
        }
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
            ("eval translation", "did you mean `xtrain eval clm`?"),
            (
                "generate --learning_rate 1",
                "that one belongs to `xtrain train clm`, `xtrain train mlm`, `xtrain train cls`, `xtrain train token-cls`, \
                 `xtrain compile clm`, `xtrain compile mlm`, `xtrain compile cls`, `xtrain compile token-cls`, \
                 `xtrain fit clm`, `xtrain fit mlm`, `xtrain fit cls`, `xtrain fit token-cls`; \
                 `xtrain generate --help` lists what this command takes",
            ),
            ("train clm --save_strategy epochs", "did you mean `epoch`?"),
            ("train mlm --model_type brt", "did you mean `bert`?"),
        ] {
            assert_eq!(
                typed(line).unwrap_err().hint().as_deref(),
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
            "--report_to wandb",
            "--report_to a b",
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
        assert_eq!(typed("train clm --run_name x").unwrap().notes.len(), 1);
    }
}
