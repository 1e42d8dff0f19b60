//! clap's commands, built from the tables of commands and flags: reading, help, man pages and
//! completions all have them from here.

use super::command::{COMMANDS, CommandInfo, CommandName, VERBS, second_words};
use super::flags::{Flag, Section};
use super::kind::{Form, parse_bool};
use super::lookup;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};

/// Commands that print about the others: the word, a sentence, and the words after it.
pub const PRINTING: [(&str, &str, &str); 3] = [
    ("help", "Show the help of a command", "[COMMAND]..."),
    (
        "completions",
        "Print a shell's completions: bash, zsh or fish",
        "<SHELL>",
    ),
    (
        "man",
        "Print a manual page, of xtrain or of a command",
        "[COMMAND]...",
    ),
];

/// Flags that `-h` lists of a command with many.
const COMMON: &[&str] = &[
    "config",
    "output_dir",
    "dry_run",
    "model_name_or_path",
    "model_type",
    "tokenizer_name",
    "dataset_name",
    "train_file",
    "validation_file",
    "test_file",
    "block_size",
    "max_seq_length",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "bf16",
    "seed",
    "data_parallel",
    "prompt",
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "eval_strategy",
    "save_steps",
    "resume_from_checkpoint",
];

/// A command with more flags than this has a short list.
const MOST_IN_SHORT: usize = 24;

/// The command line up to the command, of which the last word and all that follows is left unread.
pub fn front() -> Command {
    let switch = |name: &'static str, letter| {
        let arg = Arg::new(name).long(name).short(letter);
        arg.action(ArgAction::SetTrue)
    };
    let open = |command: Command| {
        command
            .disable_help_flag(true)
            .disable_version_flag(true)
            .disable_help_subcommand(true)
            .allow_external_subcommands(true)
            .args_override_self(true)
            .arg(switch("help", 'h'))
            .arg(switch("version", 'V'))
    };
    open(Command::new("xtrain"))
        .no_binary_name(true)
        .arg(option(device(), Arg::new("device")).global(true))
        .subcommands(VERBS.iter().map(|(verb, _)| open(Command::new(verb))))
}

/// One command as it reads its words.
pub fn reader(command: CommandName) -> Command {
    let takes_words = lookup::positional(command).is_some();
    let args = lookup::of(command).map(|flag| {
        let arg = arg(flag);
        if takes_words && flag.kind.form == Form::Switch {
            // `cache show --hlo ID`: where words stand by themselves, only a boolean is a value.
            let boolean = |text: &str| parse_bool(text).map(|_| text.to_string()).ok_or("");
            return arg.value_parser(boolean);
        }
        arg
    });
    Command::new("xtrain")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
        .args(args)
}

/// The whole tree of commands with its help. Where it is short, a command with many flags hides those
/// that are not [`COMMON`].
pub fn root(is_short: bool) -> Command {
    let device = helped(device(), None).global(true);
    let mut root = Command::new("xtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains language models as whole compiled XLA graphs")
        .after_help(
            "Flags have the names of transformers' TrainingArguments and run_clm, in snake_case or kebab-case.\n\
             `xtrain COMMAND -h` lists the flags that people use most, `xtrain COMMAND --help` all.",
        )
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .arg(device);
    // Commands of two words hang below a command that only holds its tasks.
    for info in COMMANDS {
        match info.words.split_once(' ') {
            None => root = root.subcommand(leaf(info, info.words, is_short)),
            Some((verb, task)) => {
                if root.find_subcommand(verb).is_none() {
                    root = root.subcommand(parent(verb));
                }
                root = root
                    .mut_subcommand(verb, |parent| parent.subcommand(leaf(info, task, is_short)));
            }
        }
    }
    for (word, about, words) in PRINTING {
        let printing = Command::new(word).about(about);
        let usage = format!("xtrain {word} {words}");
        let named = Arg::new("words").num_args(0..).value_name("COMMAND");
        root = root.subcommand(
            printing
                .override_usage(usage)
                .arg(if word == "completions" {
                    let shells = PossibleValuesParser::new(["bash", "zsh", "fish"]);
                    Arg::new("shell").value_name("SHELL").value_parser(shells)
                } else {
                    let first = COMMANDS
                        .iter()
                        .map(|info| info.words.split(' ').next().unwrap_or(""));
                    named
                        .value_parser(PossibleValuesParser::new(first))
                        .hide_possible_values(true)
                }),
        );
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
pub fn device() -> &'static Flag {
    lookup::find("device", CommandName::Doctor).expect("every command takes it")
}

fn leaf(info: &'static CommandInfo, word: &'static str, is_short: bool) -> Command {
    let positional = lookup::positional(info.id);
    let positional = positional.map(|flag| format!(" [{}...]", flag.name.to_uppercase()));
    let flags: Vec<&Flag> = Section::ALL
        .iter()
        .flat_map(|section| {
            lookup::of(info.id)
                .filter(move |flag| flag.section == Some(*section) && flag.name != "device")
        })
        .collect();
    let has_more = is_short && flags.len() > MOST_IN_SHORT;
    let after = if has_more {
        format!(
            "These are the flags that people use most; `xtrain {} --help` lists all {}.",
            info.words,
            flags.len() + 1
        )
    } else {
        format!("Examples:\n  {}", examples(info.examples))
    };
    let command = Command::new(word)
        .about(info.about)
        .override_usage(format!(
            "xtrain [--device cpu|cuda|neuron] {}{} [FLAGS]",
            info.words,
            positional.unwrap_or_default()
        ))
        .after_help(after)
        .next_line_help(true);
    command.args(flags.into_iter().map(|flag| {
        let is_hidden = has_more && !COMMON.contains(&flag.name);
        helped(flag, Some(info.id)).hide(is_hidden)
    }))
}

/// Example commands in lines that no terminal of 80 columns wraps, each but a command's last with a
/// backslash at its end, so that a copy runs.
fn examples(text: &str) -> String {
    const WIDTH: usize = 74;
    let joined = text.replace(" \\\n      ", " ");
    let wrap = |command: &str| {
        let mut lines = vec![String::new()];
        // A flag stays with its values.
        for (at, part) in command.split(" --").enumerate() {
            let flag = if at == 0 { "" } else { " --" };
            let line = lines.last_mut().expect("there is always a line");
            if line.len() + flag.len() + part.len() > WIDTH && !line.is_empty() {
                line.push_str(" \\");
                lines.push(format!("   {flag}{part}"));
            } else {
                line.push_str(flag);
                line.push_str(part);
            }
        }
        lines.join("\n  ")
    };
    joined
        .split("\n  ")
        .map(wrap)
        .collect::<Vec<_>>()
        .join("\n  ")
}

/// A flag with its help, as `command` takes it; `None`: any.
fn helped(flag: &'static Flag, command: Option<CommandName>) -> Arg {
    let mut help = flag.help.to_string();
    let choices = flag.kind.choices(command);
    if !choices.is_empty() {
        help.push_str(&format!(": {}", choices.join(", ")));
    }
    if !flag.default.is_empty() {
        help.push_str(&format!(" [default: {}]", flag.default));
    }
    let arg = arg(flag)
        .help(help)
        .help_heading(flag.section.map(Section::title));
    let arg = if flag.kind.form == Form::Switch {
        arg.value_parser(PossibleValuesParser::new(["true", "false"]))
    } else if flag.kind.placeholder == "PATH" {
        arg.value_hint(ValueHint::AnyPath)
    } else if !choices.is_empty() {
        arg.value_parser(PossibleValuesParser::new(choices))
    } else {
        arg
    };
    arg.hide_possible_values(true)
}

/// A flag as clap reads it: kinds read the values themselves.
fn arg(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name).value_name(flag.kind.placeholder);
    if flag.kind.form != Form::Positional {
        return option(flag, arg);
    }
    arg.value_name(flag.name.to_uppercase())
        .action(ArgAction::Append)
        .allow_negative_numbers(true)
        // As launchers have it, the first word of another command ends the flags.
        .trailing_var_arg(flag.name == "command")
        .num_args(0..)
}

/// The part of [`arg`] for a flag with a name.
fn option(flag: &'static Flag, arg: Arg) -> Arg {
    let arg = arg.long(flag.name).allow_negative_numbers(true);
    let arg = match flag.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    match flag.kind.form {
        Form::Switch => arg.num_args(0..=1).default_missing_value("true"),
        Form::Anything => arg.num_args(0..).default_missing_value("true"),
        Form::List | Form::Positional => arg.action(ArgAction::Append).num_args(1..),
        Form::Prose | Form::Number | Form::Word | Form::Pairs => arg.num_args(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_well_formed() {
        root(true).debug_assert();
        front().debug_assert();
        COMMANDS
            .iter()
            .for_each(|info| reader(info.id).debug_assert());
    }

    /// A name that no command takes would never be listed.
    #[test]
    fn the_short_help_lists_twenty_flags_or_so() {
        for name in COMMON {
            assert!(!lookup::commands_taking(name).is_empty(), "{name}");
        }
        for info in COMMANDS {
            let flags = lookup::of(info.id).filter(|flag| flag.section.is_some());
            let flags: Vec<&str> = flags.map(|flag| flag.name).collect();
            let common = flags.iter().filter(|name| COMMON.contains(name)).count();
            let is_long = flags.len() > MOST_IN_SHORT + 1;
            assert!(
                !is_long || (5..=24).contains(&common),
                "{}: {common}",
                info.words
            );
        }
    }

    #[test]
    fn examples_can_be_copied() {
        for info in COMMANDS {
            let printed = examples(info.examples);
            for line in printed.lines() {
                assert!(line.len() <= 80, "{line}");
            }
            // As a shell reads them.
            let read = printed.replace("\\\n", "");
            let mut commands = read.lines().map(|line| line.split_whitespace().next());
            assert!(commands.all(|first| first == Some("xtrain")), "{read}");
        }
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
}
