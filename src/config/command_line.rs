//! The command line: first the command's words, then its flags, both read by clap as `tree` builds it
//! from the flag table. clap ends at its first mistake: that is recorded, its words are taken out and the
//! rest is read again, so that one start reports all. The kind of a flag reads its value, the same way as
//! in a settings file.

use super::command::{COMMANDS, CommandInfo, CommandName, VERBS, second_words};
use super::config_file;
use super::container;
use super::error::{Advice, Origin, UsageError};
use super::flags::{Flag, Flags};
use super::foreign::{self, Meaning};
use super::help;
use super::kind::{Form, parse_bool};
use super::lookup;
use super::tree;
use super::unexpected;
use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use std::ffi::OsString;
use std::path::Path;

pub enum Parsed {
    /// Help, version, completions or a manual page.
    Text(String),
    /// The flags that were typed, with the mistakes in them.
    Flags(Box<Flags>),
}

/// How often a line is read again: more mistakes are not listed.
const MOST_READINGS: usize = 500;

/// Reads the words of a command line, program name first.
///
/// # Errors
/// If no command can be recognized; mistakes in its flags are in [`Flags::mistakes`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let words = args.into_iter().skip(1).map(OsString::into_string);
    let Ok(words) = words.collect::<Result<Vec<String>, _>>() else {
        return Err(UsageError::CommandLine {
            problem: "an argument is not valid UTF-8".into(),
        });
    };
    if words.is_empty() {
        return Ok(Parsed::Text(help::page("", "--help")));
    }
    let words = previewed(words);
    let start = match start(&words)? {
        Found::Text(text) => return Ok(Parsed::Text(text)),
        Found::Command(start) => start,
    };
    let command = start.command;
    let own = start.words.iter().map(String::as_str);
    let mut own = own.take_while(|word| *word != "--");
    if let Some(flag) = own.find(|word| ["-h", "--help"].contains(word)) {
        return Ok(Parsed::Text(help::page(command.words(), flag)));
    }
    let (given, mistakes) = Reader::new(command, start.words).read();
    let mut flags = Flags::new(command);
    flags.notes = start.notes;
    flags.mistakes = mistakes;
    for (flag, texts) in given {
        if let Err(mistake) = flags.take(flag, &texts, Origin::CommandLine) {
            flags.mistakes.push(mistake);
        }
    }
    Ok(Parsed::Flags(Box::new(flags)))
}

/// `xtrain data preview TASK` is `xtrain train TASK` that stops after some examples.
fn previewed(mut words: Vec<String>) -> Vec<String> {
    let is_preview =
        matches!(&words[..], [first, second, ..] if first == "data" && second == "preview");
    if !is_preview {
        return words;
    }
    words.drain(..2);
    words.insert(0, "train".into());
    let has_count = |word: &String| word == "--preview" || word.starts_with("--preview=");
    // Without a task it is refused as `xtrain train` is.
    let has_task = words.get(1).is_some_and(|word| !word.starts_with('-'));
    if has_task && !words.iter().any(has_count) {
        words.push("--preview=3".into());
    }
    words
}

/// A command with the words that follow it.
struct Start {
    command: CommandName,
    words: Vec<String>,
    notes: Vec<String>,
}

enum Found {
    Text(String),
    Command(Start),
}

/// Reads the command's words and a `--device` before or between them.
fn start(words: &[String]) -> Result<Found, UsageError> {
    let read = match tree::front().try_get_matches_from(words) {
        Ok(read) => read,
        Err(error) => return before_the_command(words, &error),
    };
    let (mut verb, mut matches) = ("", &read);
    loop {
        if matches.get_flag("help") {
            let flag = words
                .iter()
                .find(|word| ["-h", "--help"].contains(&word.as_str()));
            let flag = flag.map_or("--help", String::as_str);
            return Ok(Found::Text(help::page(verb, flag)));
        }
        if matches.get_flag("version") {
            return Ok(Found::Text(help::version()));
        }
        let Some((word, inner)) = matches.subcommand() else {
            return match container::command(verb).filter(|_| words == [verb]) {
                Some(command) => command.map(|command| {
                    Found::Command(Start {
                        command: command.info.id,
                        words: command.words,
                        notes: vec![command.note],
                    })
                }),
                None => Err(incomplete(verb)),
            };
        };
        // A verb after `--` is read as any other word.
        let is_read = matches!(inner.try_get_one::<bool>("help"), Ok(Some(_)));
        if is_read && VERBS.iter().any(|(known, _)| *known == word) {
            (verb, matches) = (word, inner);
            continue;
        }
        let device = matches.get_one::<String>("device");
        let device = device.map(|device| format!("--device={device}"));
        let rest = inner.get_many::<OsString>("").into_iter().flatten();
        let rest: Vec<String> = rest
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let before = &words[..words.len().saturating_sub(rest.len() + 1)];
        if before.iter().any(|word| word == "--") {
            return Err(UsageError::CommandLine {
                problem: "unknown flag -- before the command".into(),
            });
        }
        return command(verb, word, device.into_iter().chain(rest).collect());
    }
}

/// The command that `verb`, if there is one, and `word` name, with the words after it.
fn command(verb: &str, word: &str, rest: Vec<String>) -> Result<Found, UsageError> {
    let all = format!("{verb} {word}");
    if let Some(info) = COMMANDS.iter().find(|info| info.words == all.trim_start()) {
        return Ok(Found::Command(Start {
            command: info.id,
            words: rest,
            notes: Vec::new(),
        }));
    }
    if is_settings_file(word) {
        return command_of_file(verb, word, rest);
    }
    if verb.is_empty()
        && let Some(text) = help::printed(word, &rest)
    {
        return text.map(Found::Text);
    }
    Err(unexpected::command(verb, word))
}

/// `xtrain train run.json`: the task is the one whose flags the file's keys are.
fn command_of_file(verb: &str, file: &str, rest: Vec<String>) -> Result<Found, UsageError> {
    Flags::new(CommandName::Doctor).take(config_flag(), &[file.into()], Origin::CommandLine)?;
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
    let keys = config_file::keys(Path::new(file))?;
    let takes_all =
        |info: &&CommandInfo| keys.iter().all(|key| lookup::find(key, info.id).is_some());
    let fitting: Vec<&CommandInfo> = tasks().filter(takes_all).collect();
    let &[info] = &fitting[..] else {
        let all: Vec<&str> = second_words(verb).collect();
        return Err(UsageError::illegal(
            format!("{file} does not show which of {} it is for", all.join(", ")),
            format!("write the task before it, for example {}", example(first)),
        ));
    };
    let mut words = vec![format!("--config={file}")];
    words.extend(rest);
    Ok(Found::Command(Start {
        command: info.id,
        words,
        notes: vec![format!("{file} is read as {}", example(info))],
    }))
}

fn config_flag() -> &'static Flag {
    lookup::find("config", CommandName::Doctor).expect("every command takes it")
}

/// The words after the command, until clap reads them without a mistake.
struct Reader {
    command: CommandName,
    clap: clap::Command,
    /// Each with its place in the line.
    words: Vec<(usize, String)>,
    mistakes: Vec<(usize, UsageError)>,
}

impl Reader {
    fn new(command: CommandName, words: Vec<String>) -> Reader {
        let mut words: Vec<String> = words;
        let starts = starter(command).is_some();
        if starts && let Some(at) = begin_of_command(&words, command) {
            // As launchers have it, the first word of a command ends their own flags.
            words.insert(at, "--".into());
        }
        let mut is_text = false;
        for word in words.iter_mut().take_while(|word| *word != "--") {
            spell(word, command, is_text);
            let flag = lookup::find(word.trim_start_matches("--"), command);
            is_text = flag.is_some_and(|flag| flag.kind.form == Form::Prose);
        }
        Reader {
            command,
            clap: tree::reader(command),
            words: words.into_iter().enumerate().collect(),
            mistakes: Vec::new(),
        }
    }

    /// Each flag once with its texts, in the order typed, and the mistakes.
    fn read(mut self) -> (Vec<(&'static Flag, Vec<String>)>, Vec<UsageError>) {
        let mut readings = 0;
        let matches = loop {
            match self.matches(self.words.len()) {
                Ok(matches) => break matches,
                Err(error) if readings < MOST_READINGS => self.mend(&error),
                Err(error) => self.give_up(&error),
            }
            readings += 1;
        };
        let mut given: Vec<(usize, &Flag, Vec<String>)> = Vec::new();
        for flag in lookup::of(self.command) {
            if matches.value_source(flag.name) == Some(ValueSource::CommandLine) {
                let texts = matches.get_many::<String>(flag.name).into_iter().flatten();
                let at = matches.index_of(flag.name).unwrap_or_default();
                given.push((at, flag, texts.cloned().collect()));
            }
        }
        given.sort_by_key(|(at, ..)| *at);
        self.mistakes.sort_by_key(|(at, _)| *at);
        let given = given.into_iter().map(|(_, flag, texts)| (flag, texts));
        let mistakes = self.mistakes.into_iter().map(|(_, mistake)| mistake);
        (given.collect(), mistakes.collect())
    }

    /// clap's reading of the first `count` words.
    fn matches(&mut self, count: usize) -> Result<ArgMatches, clap::Error> {
        let words = self.words[..count].iter().map(|(_, word)| word);
        self.clap.try_get_matches_from_mut(words)
    }

    /// Takes the words of a mistake out and records it, or writes them in the one way that clap reads.
    fn mend(&mut self, error: &clap::Error) {
        let arg = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(arg)) => arg.clone(),
            _ => String::new(),
        };
        // `--seed <N>`
        let name = arg.split([' ', '=', '[']).next().unwrap_or_default();
        let flag = lookup::find(name.trim_start_matches('-'), self.command);
        match (error.kind(), flag) {
            (ErrorKind::UnknownArgument, _) if !self.words.is_empty() => {
                let at = self.unknown_at(&arg);
                self.unknown(at);
            }
            (ErrorKind::ValueValidation, Some(flag)) => self.no_boolean(flag, error),
            (_, Some(flag)) => match self.alone(flag, |reader, after| reader.ends_at(after)) {
                Some(at) => {
                    let (place, _) = self.words.remove(at);
                    self.mistakes.push((place, no_value(flag)));
                }
                None => self.give_up(error),
            },
            (_, None) => self.give_up(error),
        }
    }

    /// Records a mistake that only clap knows, and reads no further.
    fn give_up(&mut self, error: &clap::Error) {
        let problem = error.kind().to_string();
        self.mistakes.push((0, UsageError::CommandLine { problem }));
        self.words.clear();
    }

    /// A switch of a command that takes words, with a value that is no boolean: it is one of the words,
    /// unless it stands in the switch's own.
    fn no_boolean(&mut self, flag: &'static Flag, error: &clap::Error) {
        if let Some(at) = self.alone(flag, |reader, after| !reader.ends_at(after)) {
            self.words[at].1 = format!("--{}=true", flag.name);
            return;
        }
        let begin = format!("--{}=", flag.name);
        let is_wrong = |(_, word): &(usize, String)| {
            let value = word.strip_prefix(&begin);
            value.is_some_and(|value| parse_bool(value).is_none())
        };
        let Some(at) = self.words.iter().position(is_wrong) else {
            return self.give_up(error);
        };
        let (place, word) = self.words.remove(at);
        let found = format!("`{}`", &word[begin.len()..]);
        let mistake = lookup::bad_value(flag, self.command, found, Origin::CommandLine);
        self.mistakes.push((place, mistake));
    }

    /// The place of this flag without a value in its word, where `is_it` for the place after it.
    fn alone(&self, flag: &Flag, is_it: impl Fn(&Reader, usize) -> bool) -> Option<usize> {
        let mut places = 0..self.words.len();
        places.find(|at| self.is_alone(*at, flag) && is_it(self, at + 1))
    }

    /// Whether a word is this flag without a value in it.
    fn is_alone(&self, at: usize, flag: &Flag) -> bool {
        let word = &self.words[at].1;
        word.strip_prefix("--") == Some(flag.name)
            || flag
                .short
                .is_some_and(|letter| *word == format!("-{letter}"))
    }

    /// Whether no value can stand there.
    fn ends_at(&self, at: usize) -> bool {
        self.words
            .get(at)
            .is_none_or(|(_, word)| is_flag_like(word))
    }

    /// The place of a word that clap does not know. Where equal words stand as values too, it is the
    /// first with which the line is wrong.
    fn unknown_at(&mut self, arg: &str) -> usize {
        let is_it = |word: &str| {
            let rest = word.strip_prefix(arg);
            let is_cluster = arg.starts_with('-') && !arg.starts_with("--");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('=') || is_cluster)
        };
        let places = (0..self.words.len()).filter(|at| is_it(&self.words[*at].1));
        let places: Vec<usize> = places.collect();
        let is_wrong = |reader: &mut Reader, at: usize| {
            let read = reader.matches(at + 1);
            read.is_err_and(|error| error.kind() == ErrorKind::UnknownArgument)
        };
        match places[..] {
            [] => 0,
            [at] => at,
            _ => {
                let mut places = places.iter().copied();
                places.find(|at| is_wrong(self, *at)).unwrap_or_default()
            }
        }
    }

    /// A word that is no flag of the command, and no value that clap sees as one.
    fn unknown(&mut self, at: usize) {
        let word = self.words[at].1.clone();
        let is_after_end = self.words[..at].iter().any(|(_, word)| word == "--");
        if is_after_end {
            return self.word(at);
        }
        if let Some(before) = at.checked_sub(1)
            && let Some(flag) = lookup::of(self.command).find(|flag| self.is_alone(before, flag))
            // A text may look like a flag, but not like one of the command's.
            && (!is_flag_like(&word) || flag.kind.form == Form::Prose)
        {
            let (_, value) = self.words.remove(at);
            self.words[before].1 = format!("--{}={value}", flag.name);
            return;
        }
        if !is_flag_like(&word) {
            return match lookup::positional(self.command) {
                Some(_) => self.odd_word(at),
                None => self.word(at),
            };
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (&*word, None),
        };
        // `--run out`, as `out` by itself.
        if let Some(own) = name.strip_prefix("--")
            && let Some(flag) = lookup::positional(self.command)
            && flag.answers_to(own)
        {
            match value {
                Some(value) => self.words[at].1 = value.to_string(),
                None => drop(self.words.remove(at)),
            }
            return;
        }
        match negated(name, self.command) {
            Some(flag) => {
                let mistake = UsageError::illegal(
                    format!("{name} takes no value"),
                    format!("write {name}, or --{} false", flag.name),
                );
                let (place, _) = self.words.remove(at);
                self.mistakes.push((place, mistake));
            }
            None => self.unknown_flag(at, name, value.is_some()),
        }
    }

    /// A word with a hyphen that clap takes for a flag and is none, such as `-inf`: after `--` it is a
    /// word.
    fn odd_word(&mut self, at: usize) {
        let end = (self.words[at].0, "--".to_string());
        if starter(self.command).is_some() {
            return self.words.insert(at, end);
        }
        let word = self.words.remove(at);
        if !self.words.iter().any(|(_, word)| word == "--") {
            self.words.push(end);
        }
        self.words.push(word);
    }

    /// A word that belongs to no flag, of a command that takes none: a settings file, or a mistake.
    fn word(&mut self, at: usize) {
        let (place, word) = self.words.remove(at);
        let has_settings = self.words[..at]
            .iter()
            .any(|(_, word)| word == "--config" || word.starts_with("--config="));
        if is_settings_file(&word) && !has_settings {
            let config = format!("--config={word}");
            self.words.insert(0, (place, config));
        } else {
            let mistake = unexpected::word(&word, self.command);
            self.mistakes.push((place, mistake));
        }
    }

    /// Records an unknown flag and takes it out with its values.
    fn unknown_flag(&mut self, at: usize, name: &str, has_value: bool) {
        let (place, _) = self.words.remove(at);
        // Of several words the others are the command's own.
        let takes_words = lookup::positional(self.command).is_some();
        let most = match (has_value, takes_words) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => usize::MAX,
        };
        let values = self.words[at..].iter();
        let is_value = |word: &str| !(is_flag_like(word) || takes_words && begins_command(word));
        let values = values.take_while(|(_, word)| is_value(word)).take(most);
        self.words.drain(at..at + values.count());
        let mistake = unknown_flag(name, self.command);
        self.mistakes.push((place, mistake));
    }
}

/// The mistake of a flag that a command does not take.
fn unknown_flag(arg: &str, command: CommandName) -> UsageError {
    let name = arg.trim_start_matches('-');
    let elsewhere = lookup::commands_taking(name);
    let is_own = matches!(lookup::foreign(name, command), Some(Meaning::Flag(_)));
    let of_launcher = foreign::of_launcher(name).filter(|_| command == CommandName::Launch);
    if let Some(starter) = starter(command)
        && !is_own
        && of_launcher.is_none()
        && elsewhere.iter().any(|words| *words != command.words())
    {
        let vary = match starter.id {
            CommandName::Sweep => format!("vary it with --grid {name}=A,B, or "),
            _ => String::new(),
        };
        return UsageError::illegal(
            format!("{arg} belongs to the command that is {}", starter.done),
            format!(
                "{vary}put that command after --: `xtrain {} ...`",
                starter.example
            ),
        );
    }
    let advice = match (lookup::find(name, command), of_launcher) {
        // With one hyphen for two.
        (Some(own), _) => Advice::Meant(own.name.into()),
        (None, Some(what)) if !is_own => Advice::Instead(what),
        (None, _) => lookup::advice(name, command),
    };
    UsageError::UnknownFlag {
        flag: arg.into(),
        command: command.words(),
        advice,
    }
}

/// The switch that `--no_X` turns off, as transformers' parser has it.
fn negated(name: &str, command: CommandName) -> Option<&'static Flag> {
    let name = name.strip_prefix("--no_").or(name.strip_prefix("--no-"))?;
    let flag = lookup::find(name, command)?;
    matches!(flag.kind.form, Form::Switch | Form::Anything).then_some(flag)
}

/// Writes a flag in the one way that clap knows: every name in either spelling is accepted. A word that
/// may be a text negates nothing.
fn spell(word: &mut String, command: CommandName, is_text: bool) {
    let Some(rest) = word.strip_prefix("--") else {
        return;
    };
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (rest, None),
    };
    if let Some(flag) = lookup::find(name, command) {
        *word = match value {
            Some(value) => format!("--{}={value}", flag.name),
            None => format!("--{}", flag.name),
        };
    } else if let Some(flag) = negated(word, command)
        && !is_text
    {
        *word = format!("--{}=false", flag.name);
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

fn starter(command: CommandName) -> Option<&'static Starter> {
    STARTERS.iter().find(|starter| starter.id == command)
}

/// Whether a word is the first of a command that another one can start.
fn begins_command(word: &str) -> bool {
    ["train", "eval", "bench"].contains(&word)
}

/// Where the command begins that a starter starts: at a first word that is no flag and no flag's value.
fn begin_of_command(words: &[String], command: CommandName) -> Option<usize> {
    let takes_any = |word: &String| {
        let flag = lookup::find(word.strip_prefix("--")?, command)?;
        let form = flag.kind.form;
        use Form::{Anything, List, Positional, Switch};
        (!matches!(form, List | Positional | Switch | Anything)).then_some(())
    };
    let begins = |at: &usize| {
        begins_command(&words[*at])
            && at
                .checked_sub(1)
                .is_none_or(|before| takes_any(&words[before]).is_none())
    };
    let end = words.iter().position(|word| word == "--");
    (0..end.unwrap_or(words.len())).find(begins)
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

/// A flag too early, or `--device` without its value, unless a flag before it asks for help.
fn before_the_command(words: &[String], error: &clap::Error) -> Result<Found, UsageError> {
    let arg = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(arg)) if error.kind() == ErrorKind::UnknownArgument => arg,
        _ => return Err(no_value(tree::device())),
    };
    let at = words.iter().position(|word| word.starts_with(arg));
    let arg = at.map_or(arg, |at| &words[at]);
    let mut verb = "";
    for word in &words[..at.unwrap_or_default()] {
        match word.as_str() {
            "-V" | "--version" => return Ok(Found::Text(help::version())),
            "-h" | "--help" => return Ok(Found::Text(help::page(verb, word))),
            word if VERBS.iter().any(|(known, _)| *known == word) => verb = word,
            _ => {}
        }
    }
    let name = arg.trim_start_matches('-').split('=').next();
    let commands = lookup::commands_taking(name.unwrap_or_default());
    let begun = commands.iter().find(|command| command.starts_with(verb));
    Err(match begun.or(commands.first()) {
        Some(command) => UsageError::illegal(
            format!("{arg} stands before the command"),
            format!("write it after: `xtrain {command} {arg} ...`"),
        ),
        None => UsageError::CommandLine {
            problem: format!("unknown flag {arg} before the command"),
        },
    })
}

fn no_value(flag: &Flag) -> UsageError {
    UsageError::NoValue {
        name: flag.name.into(),
        expected: flag.kind.expected(None),
    }
}

#[cfg(test)]
mod tests;
