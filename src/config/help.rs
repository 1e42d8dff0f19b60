//! Pages about commands, which clap writes from their tree: `-h` and `--help`, `xtrain help`, `xtrain
//! completions` and `xtrain man`.

use super::command::{COMMANDS, VERBS};
use super::error::{UsageError, refuse};
use super::tree::{PRINTING, root};
use super::unexpected;
use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use xtrain_report::terminal;

/// The page of a command by its words, also of a first word alone; of the program without any.
/// `flag` is `-h` for the flags that people use most, `--help` for all.
pub fn page(words: &str, flag: &str) -> String {
    let line = std::iter::once("xtrain")
        .chain(words.split_whitespace())
        .chain([flag]);
    match root(flag == "-h").try_get_matches_from(line) {
        Err(error) if terminal::has_colors(&std::io::stdout()) => error.render().ansi().to_string(),
        Err(error) => error.to_string(),
        Ok(_) => unreachable!("clap answers --help itself"),
    }
}

/// The text of `--version`.
pub fn version() -> String {
    root(false).render_version()
}

/// The text of a command of [`PRINTING`]; `None` if `word` is none.
pub fn printed(word: &str, rest: &[String]) -> Option<Result<String, UsageError>> {
    PRINTING.iter().find(|(printing, ..)| *printing == word)?;
    if let Some(flag) = rest
        .iter()
        .find(|word| ["-h", "--help"].contains(&word.as_str()))
    {
        return Some(Ok(page(word, flag)));
    }
    Some(match word {
        "completions" => completions(rest),
        "man" => named(rest).map(|words| man(&words)),
        _ => named(rest).map(|words| page(&words, "--help")),
    })
}

/// The command that words name, perhaps its first word alone.
fn named(words: &[String]) -> Result<String, UsageError> {
    let all = words.join(" ");
    let is_command = all.is_empty()
        || COMMANDS.iter().any(|info| info.words == all)
        || VERBS.iter().any(|(verb, _)| *verb == all)
        || PRINTING.iter().any(|(word, ..)| *word == all);
    if is_command {
        return Ok(all);
    }
    Err(match words {
        [verb, task, ..] if VERBS.iter().any(|(known, _)| known == verb) => {
            unexpected::command(verb, task)
        }
        _ => unexpected::command("", &words[0]),
    })
}

fn completions(words: &[String]) -> Result<String, UsageError> {
    let fix = "write `xtrain completions bash`, `zsh` or `fish`";
    let shell = match words {
        [shell] => match shell.as_str() {
            "bash" => Shell::Bash,
            "zsh" => Shell::Zsh,
            "fish" => Shell::Fish,
            other => return refuse(format!("completions: there are none for `{other}`"), fix),
        },
        _ => return refuse("completions: name one shell", fix),
    };
    let mut text = Vec::new();
    generate(shell, &mut root(false), "xtrain", &mut text);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn man(words: &str) -> String {
    let mut root = root(false);
    root.build();
    let mut command: &Command = &root;
    for word in words.split_whitespace() {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let mut text = Vec::new();
    match Man::new(command.clone()).render(&mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => unreachable!("writing to memory does not fail"),
    }
}
