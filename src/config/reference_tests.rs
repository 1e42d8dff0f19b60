//! The reference pages `docs/flags.md`, written from the flag table, and the table of docs/models.md, from the families. A test fails when one is
//! out of date; to write them anew run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config _page`.

use super::command::COMMANDS;
use super::flags::{Flag, Section, Support};
use super::kind::Form;
use super::lookup;
use std::fmt::Write;
use std::path::Path;
use xtrain_graphs::optim::{OPTIMIZERS, OptimizerKind};
use xtrain_models::{HeadKind, MODEL_TYPES, default_config, preset, presets};

/// The page, as Markdown.
fn markdown() -> String {
    let arguments = |kind: &OptimizerKind| {
        let names = kind.arguments().into_iter();
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        (!names.is_empty()).then(|| format!("{} {}", kind.name, names.join(", ")))
    };
    let optimizers: Vec<String> = OPTIMIZERS.iter().filter_map(arguments).collect();
    let mut page = INTRODUCTION.replace("@OPTIMIZERS@", &optimizers.join("; "));
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
        let list = |values: &[&str]| {
            let named = values.iter().filter(|value| !value.is_empty());
            named
                .map(|value| format!("`{value}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (accepted, noted) = match flag.support {
            Support::Known { silent, noted } => (
                list(silent),
                noted.map_or("anything else".to_string(), list),
            ),
            Support::Instead(_) => ("`false`".into(), String::new()),
            Support::Built(_) => unreachable!("these are not built"),
        };
        let _ = writeln!(
            page,
            "| `{}` | {accepted} | {noted} | {} | {} |",
            flag.name,
            commands(flag),
            flag.help
        );
    }
    page
}

const INTRODUCTION: &str = "# Flags

<!-- Written from src/config/flags.rs by `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config flags_page`. Do not edit by hand. -->

Names, meanings and defaults are those of transformers' `TrainingArguments`, `run_clm`, `run_mlm` and `run_glue`. Each name may be written in snake_case or
kebab-case (`--learning_rate`, `--learning-rate`), with a blank or `=` before the value. A boolean alone means true; `true` or `false` may
follow, and `--no_NAME` means false. When a flag is given twice, the last one counts; file flags collect. All mistakes of a command line are
reported at once.

`xtrain COMMAND -h` lists the flags that people use most, `xtrain COMMAND --help` or `xtrain help COMMAND` all of the command. `xtrain man
[COMMAND]` prints a manual page (`man -l <(xtrain man train clm)` shows it), and `xtrain completions bash`, `zsh` or `fish` a shell's completions:
`source <(xtrain completions bash)`; for zsh write them to a file `_xtrain` in a directory of `$fpath`, for fish to
`~/.config/fish/completions/xtrain.fish`.

`--config FILE`, or the file alone as in `xtrain train clm FILE`, reads the same names from a TOML or JSON file, all at the top level. Flags win over the file. Unknown names are errors. A
JSON `null` means \"not set\", a string is read as on the command line, and the arguments of schedules and optimizers may be a table. Paths
are relative to the working directory in both.

`train` trains unless only `--do_eval` or `--do_predict` is given. An output directory that is not empty is refused unless `--overwrite_output_dir` or
`--resume_from_checkpoint` is given; overwriting deletes nothing up front, files are replaced as new ones are written.
A training run locks its output directory (`.xtrain.lock` names host, process and time); a second one is refused. The lock of a killed run
counts no more on its own host; on another one `--take_over_output_dir` is needed.

`--lr_scheduler_kwargs` takes, by schedule: cosine and cosine_with_restarts `num_cycles`; polynomial `lr_end`, `power`; inverse_sqrt `timescale`;
cosine_with_min_lr `min_lr` or `min_lr_rate`, `num_cycles`; cosine_warmup_with_min_lr these and `warmup_lr_rate`; warmup_stable_decay
`num_decay_steps`, `num_stable_steps`, `warmup_type`, `decay_type`, `min_lr_ratio`, `num_cycles`. All mean what they mean in transformers.

`--optim_args` takes, by optimizer: @OPTIMIZERS@. Weight decay is part of the gradient in sgd, adagrad and rmsprop, as in torch, and decoupled
in the others. Muon orthogonalizes the matrices between hidden states; embeddings, heads and vectors are AdamW's.

Exit codes: 0 success, 1 failure, 2 a mistake in the command line or settings file (nothing was started), 130 after SIGINT, 143 after
SIGTERM, 138 after SIGUSR1 and 129 after SIGHUP (unless it was ignored at the start, as `nohup` has it) when the run stopped at the end of a step and saved a
checkpoint, or before its first step, with nothing to save; 3 after a second signal, which ends a run at once, without saving.
";

const UNBUILT_INTRODUCTION: &str = "
## Known names without a flag

These names of `TrainingArguments` and the scripts are known. Values that ask for what happens anyway are accepted, with a note where they say
something, so that a command line or a dump of a notebook's arguments works; any other value is an error that names the flags that do the same.

| Name | Accepted | With a note | Commands | Why |
|---|---|---|---|---|
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
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/flags.md");
    if std::env::var_os("XTRAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/flags.md is out of date: run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config flags_page`"
    );
}

/// The table of docs/models.md: a row for each family.
fn families() -> String {
    let mut table = String::from(
        "| `model_type` | released sizes that `--config_name` knows | trained for |\n|---|---|---|\n",
    );
    let heads = [
        HeadKind::CausalLm,
        HeadKind::MaskedLm,
        HeadKind::SequenceClassification { labels: 2 },
        HeadKind::TokenClassification { labels: 2 },
    ];
    for model_type in MODEL_TYPES {
        let is_of_family = |name: &&str| {
            preset(name).unwrap().get("model_type") == Some(&serde_json::json!(model_type))
        };
        let sizes: Vec<&str> = presets().filter(is_of_family).collect();
        let config = || default_config(model_type).unwrap();
        let heads = heads
            .into_iter()
            .filter(|head| xtrain_models::build(config(), *head).is_ok());
        let heads: Vec<String> = heads.map(|head| head.to_string()).collect();
        let _ = writeln!(
            table,
            "| `{model_type}` | {} | {} |",
            sizes.join(", "),
            heads.join(", ")
        );
    }
    table
}

#[test]
fn models_page_is_up_to_date() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/models.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once("| `model_type` |").unwrap();
    let (_, tail) = rest.split_once("\n\n").unwrap();
    let expected = format!("{head}{}\n{tail}", families());
    if std::env::var_os("XTRAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == expected,
        "docs/models.md is out of date: run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config models_page`"
    );
}
