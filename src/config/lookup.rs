//! Flags by name, and how a text becomes a flag's value.

use super::command::{COMMANDS, CommandName, second_words};
use super::error::{Advice, Asked, Origin, UsageError};
use super::flags::{FLAGS, Flag, Flags, Support, UNBUILT};
use super::foreign::{self, Meaning};
use super::kind::{Form, Wrong, parse_bool};
use super::nearest::nearest;

/// Every flag, the built ones first.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().chain(UNBUILT)
}

/// The flags that one command takes.
pub fn of(command: CommandName) -> impl Iterator<Item = &'static Flag> {
    all().filter(move |flag| flag.is_of(command))
}

/// The flag that a name in either spelling means for a command.
pub fn find(name: &str, command: CommandName) -> Option<&'static Flag> {
    of(command).find(|flag| flag.answers_to(name))
}

/// The flag whose words stand by themselves, of a command that has one.
pub fn positional(command: CommandName) -> Option<&'static Flag> {
    of(command).find(|flag| flag.kind.form == Form::Positional)
}

/// The words of the commands that take `name`, if any do.
pub fn commands_taking(name: &str) -> Vec<&'static str> {
    COMMANDS
        .iter()
        .filter(|info| find(name, info.id).is_some_and(Flag::is_built))
        .map(|info| info.words)
        .collect()
}

/// The commands, of those that take a name, that matter to a user of `command`: those of its task, else
/// those of its verb, if there are any. A verb stands for all its tasks.
fn shortest(commands: Vec<&'static str>, command: CommandName) -> Vec<&'static str> {
    let split = |words: &'static str| words.split_once(' ');
    let own = split(command.words());
    let task = |words: &&'static str| Some(split(words)?.1 == own?.1);
    let verb = |words: &&'static str| Some(split(words)?.0 == own?.0);
    for is_same in [&task as &dyn Fn(&&'static str) -> Option<bool>, &verb] {
        let same = commands.iter().filter(|words| is_same(words) == Some(true));
        let same: Vec<&str> = same.copied().collect();
        if !same.is_empty() {
            return same;
        }
    }
    let of_verb = |verb: &str| {
        let verbs = commands.iter().filter_map(|words| split(words));
        verbs.filter(|(other, _)| *other == verb).count()
    };
    let short = |words: &&'static str| match split(words) {
        Some((verb, _)) if of_verb(verb) == second_words(verb).count() => verb,
        _ => *words,
    };
    let mut found: Vec<&str> = commands.iter().map(short).collect();
    found.dedup();
    found
}

/// The meaning in another program of a flag that a command does not take.
pub fn foreign(name: &str, command: CommandName) -> Option<Meaning> {
    let taken = |name: &str| find(name, command).filter(|flag| flag.is_built());
    foreign::of_flag(name, command, |name| taken(name).map(|flag| flag.name))
}

/// The advice for a name that a command does not take: its meaning in another program, the command that
/// takes it, or the name that was mistyped. Names that are not built are not suggested.
pub fn advice(name: &str, command: CommandName) -> Advice {
    match foreign(name, command) {
        Some(Meaning::Flag(flag)) => return Advice::Meant(flag.into()),
        Some(Meaning::Text(text)) => return Advice::Instead(text),
        None => {}
    }
    let elsewhere = commands_taking(name);
    if !elsewhere.is_empty() {
        return Advice::BelongsTo(shortest(elsewhere, command));
    }
    let known = of(command)
        .filter(|flag| flag.is_built())
        .flat_map(Flag::names);
    nearest(name, known).map_or(Advice::Nothing, |name| Advice::Meant(name.into()))
}

impl Flags {
    /// Takes one setting as text (several texts for a list). One that was given before wins.
    ///
    /// # Errors
    /// If the texts do not parse as the flag's kind, or ask for an unsupported value.
    pub fn take(
        &mut self,
        flag: &'static Flag,
        texts: &[String],
        origin: Origin,
    ) -> Result<(), UsageError> {
        let text = texts.join(" ");
        match flag.support {
            Support::Built(read) => {
                read(self, texts, origin.clone())
                    .map_err(|wrong| refused(flag, self.command, &text, origin, wrong))?;
                self.typed.0.entry(flag.name).or_insert(text);
                Ok(())
            }
            Support::Known { silent, noted } => {
                let is_in = |values: &[&str]| values.iter().any(|value| same(value, &text));
                if is_in(silent) {
                    return Ok(());
                }
                if noted.is_none_or(is_in) {
                    self.notes.push(format!(
                        "{origin}: `{}` changes nothing here: {}",
                        flag.name, flag.help
                    ));
                    return Ok(());
                }
                Err(unsupported(flag, &text, origin, None))
            }
            Support::Instead(equivalent) => match equivalent(&text) {
                None => Ok(()),
                equivalent => Err(unsupported(flag, &text, origin, equivalent)),
            },
        }
    }
}

/// Two texts are equal as values: in any case, booleans and numbers in every spelling.
pub fn same(a: &str, b: &str) -> bool {
    let (truth, number) = (parse_bool(a), |text: &str| text.parse::<f64>().ok());
    a.eq_ignore_ascii_case(b)
        || (truth.is_some() && truth == parse_bool(b))
        || (number(a).is_some() && number(a) == number(b))
}

fn unsupported(flag: &Flag, text: &str, origin: Origin, instead: Option<String>) -> UsageError {
    UsageError::Refused {
        name: flag.name,
        origin,
        asked: Box::new(Asked {
            value: if text.is_empty() {
                "set".into()
            } else {
                format!("`{text}`")
            },
            instead,
        }),
        reason: flag.help,
    }
}

fn refused(
    flag: &Flag,
    command: CommandName,
    text: &str,
    origin: Origin,
    wrong: Wrong,
) -> UsageError {
    match wrong {
        Wrong::Kind => bad_value(flag, command, format!("`{text}`"), origin),
        Wrong::TooLarge(most) => bad_value(
            flag,
            command,
            format!("`{text}`, which is more than {most}"),
            origin,
        ),
        Wrong::Form { problem, fix } => UsageError::Malformed {
            name: flag.name,
            shown: match flag.kind.form {
                Form::Positional => command.words().into(),
                _ => format!("--{}", flag.name),
            },
            problem,
            fix,
        },
    }
}

/// The error for a value of the wrong kind or outside its range.
pub fn bad_value(flag: &Flag, command: CommandName, found: String, origin: Origin) -> UsageError {
    let choices = flag.kind.choices(Some(command));
    UsageError::BadValue {
        name: flag.name,
        origin,
        expected: flag.kind.expected(Some(command)),
        nearest: nearest(found.trim_matches('`'), choices.into_iter()),
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TaskName;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_within_a_command() {
        for command in COMMANDS {
            let mut seen = BTreeSet::new();
            for name in of(command.id).flat_map(Flag::names) {
                assert!(
                    seen.insert(name),
                    "`{name}` is declared twice for {}",
                    command.words
                );
                assert!(
                    name.bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn both_spellings_and_old_names_are_found() {
        for name in [
            "learning_rate",
            "learning-rate",
            "evaluation_strategy",
            "evaluation-strategy",
        ] {
            assert!(
                find(name, CommandName::Train(TaskName::Clm)).is_some(),
                "{name}"
            );
        }
        assert!(find("learning_rate", CommandName::Eval(TaskName::Cls)).is_none());
        assert!(find("learning rate", CommandName::Train(TaskName::Clm)).is_none());
    }
}
