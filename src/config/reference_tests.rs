//! The reference page `docs/flags.md`, written from the flag table. A test fails when the page is
//! out of date; to write it anew run `XTRAIN_WRITE_DOCS=1 cargo test flags_page`.

use super::command::COMMANDS;
use super::flags::{Flag, Section, Support};
use super::kind::Form;
use super::lookup;
use std::fmt::Write;
use std::path::Path;

/// The page, as Markdown.
fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for section in Section::ALL {
        let rows = lookup::all().filter(|flag| flag.section == Some(*section));
        let _ = write!(
            page,
            "\n## {}\n\n| Flag | Value | Default | Commands | |\n|---|---|---|---|---|\n",
            section.title()
        );
        for flag in rows {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} |",
                names(flag),
                flag.kind.expected(None).replace('|', "\\|"),
                if flag.default.is_empty() {
                    String::new()
                } else {
                    format!("`{}`", flag.default)
                },
                commands(flag),
                flag.help
            );
        }
    }
    page.push_str(UNBUILT_INTRODUCTION);
    for flag in lookup::all().filter(|flag| !flag.is_built()) {
        let accepted = match flag.support {
            Support::Only(values) => values
                .iter()
                .filter(|v| !v.is_empty())
                .map(|v| format!("`{v}`"))
                .collect::<Vec<_>>()
                .join(", "),
            Support::NoEffect | Support::Built(_) => "anything".into(),
        };
        let _ = writeln!(page, "| `{}` | {accepted} | {} |", flag.name, flag.help);
    }
    page
}

const INTRODUCTION: &str = "# Flags

<!-- Written from src/config/flags.rs by `XTRAIN_WRITE_DOCS=1 cargo test flags_page`. Do not edit by hand. -->

Names, meanings and defaults are those of transformers' `TrainingArguments`, `run_clm`, `run_mlm` and `run_glue`. Each name may be written in snake_case or
kebab-case (`--learning_rate`, `--learning-rate`), with a blank or `=` before the value. A boolean alone means true; `true` or `false` may
follow. When a flag is given twice, the last one counts; file flags collect.

`--config FILE` reads the same names from a TOML or JSON file, all at the top level. Flags win over the file. Unknown names are errors. A
JSON `null` means \"not set\", and a string is read as on the command line. Paths are relative to the working directory in both.

`train` trains unless only `--do_eval` is given. An output directory that is not empty is refused unless `--overwrite_output_dir` or
`--resume_from_checkpoint` is given; overwriting deletes nothing up front, files are replaced as new ones are written.
A training run locks its output directory (`.xtrain.lock` names host, process and time); a second one is refused. The lock of a killed run
counts no more on its own host; on another one `--take_over_output_dir` is needed.

Exit codes: 0 success, 1 failure, 2 a mistake in the command line or settings file (nothing was started), 130 after SIGINT and 143 after
SIGTERM when the run stopped at the end of a step and saved a checkpoint, or before its first step, with nothing to save; 3 after a second
signal, which ends a run at once, without saving.
";

const UNBUILT_INTRODUCTION: &str = "
## Known, not built

These names of `TrainingArguments` and the scripts are known. The values listed say what xtrain does anyway and are accepted, so that a dump
of a notebook's arguments works; any other value is an error.

| Name | Accepted | Why |
|---|---|---|
";

fn names(flag: &Flag) -> String {
    if flag.kind.form == Form::Positional {
        return format!(
            "`{}...` (words after the command)",
            flag.name.to_uppercase()
        );
    }
    flag.names()
        .map(|name| format!("`--{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The commands that take a flag; a verb alone means all of its tasks.
fn commands(flag: &Flag) -> String {
    let taking: Vec<&str> = COMMANDS
        .iter()
        .filter(|c| flag.is_of(c.id))
        .map(|c| c.words)
        .collect();
    if taking.len() == COMMANDS.len() {
        return "all".into();
    }
    let of_verb =
        |verb: &str, words: &str| words.split_once(' ').is_some_and(|(own, _)| own == verb);
    let mut names: Vec<&str> = Vec::new();
    for words in &taking {
        let name = match words.split_once(' ') {
            Some((verb, _))
                if COMMANDS
                    .iter()
                    .filter(|c| of_verb(verb, c.words))
                    .all(|c| taking.contains(&c.words)) =>
            {
                verb
            }
            _ => words,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[test]
fn flags_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md");
    if std::env::var_os("XTRAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/flags.md is out of date: run `XTRAIN_WRITE_DOCS=1 cargo test flags_page`"
    );
}
