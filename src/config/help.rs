//! `--help`: the tree of commands and their flags, written by clap from the tables of commands and
//! flags.

use super::command::{COMMANDS, CommandInfo, CommandName, VERBS, second_words};
use super::flags::{Flag, Section};
use super::kind::Form;
use super::lookup;
use crate::report::terminal;
use clap::{Arg, ArgAction, Command};

/// The page of a command by its words, also of a first word alone; of the program without any.
pub fn page(words: &str) -> String {
    let line = std::iter::once("xtrain")
        .chain(words.split_whitespace())
        .chain(["--help"]);
    match root().try_get_matches_from(line) {
        Err(error) if terminal::has_colors(&std::io::stdout()) => error.render().ansi().to_string(),
        Err(error) => error.to_string(),
        Ok(_) => unreachable!("clap answers --help itself"),
    }
}

/// What `--version` prints.
pub fn version() -> String {
    root().render_version()
}

/// The whole tree of commands.
fn root() -> Command {
    let mut root = Command::new("xtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains language models as whole compiled XLA graphs")
        .after_help(
            "Flags have the names of transformers' TrainingArguments and run_clm, in snake_case or kebab-case.\n\
             `xtrain COMMAND --help` lists the flags of one command; docs/flags.md lists them all.",
        )
        .disable_help_subcommand(true)
        .subcommand_required(true)
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
        .after_help(format!("Examples:\n  {}", examples(info.examples)))
        .next_line_help(true);
    for section in Section::ALL {
        let listed = |flag: &&Flag| flag.section == Some(*section) && flag.name != "device";
        for flag in lookup::of(info.id).filter(listed) {
            command = command.arg(arg(flag, Some(info.id)));
        }
    }
    command
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

/// As `command` takes it; `None`: any.
fn arg(flag: &'static Flag, command: Option<CommandName>) -> Arg {
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
        .help_heading(flag.section.map(Section::title));
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
    let arg = arg.long(flag.name);
    match flag.kind.form {
        Form::Switch => arg.num_args(0..=1),
        Form::Anything => arg.num_args(0..),
        Form::List | Form::Positional => arg.action(ArgAction::Append).num_args(1..),
        Form::Prose | Form::Number | Form::Word | Form::Pairs => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_commands_is_well_formed() {
        root().debug_assert();
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
