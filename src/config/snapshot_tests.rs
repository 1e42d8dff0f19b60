//! What a user meets, as text in `snapshots/`: the answer to each command line of `lines.txt` that
//! is refused or gets a note. To write it anew run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config
//! snapshot_of_messages`. With `XTRAIN_WRITE_PLANS=DIR` the plans of the other lines and all help
//! pages are written too, to compare two versions of the program with each other.

use super::Invocation;
use super::command::COMMANDS;
use super::fixture::Fixture;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const LINES: &str = include_str!("snapshots/lines.txt");

#[test]
fn snapshot_of_messages() {
    let fixture = Fixture::new();
    let (mut messages, mut plans) = (String::new(), String::new());
    for line in LINES.lines().filter(|line| !line.is_empty()) {
        // `file NAME TEXT` is a settings file.
        if let Some((name, text)) = line.strip_prefix("file ").and_then(|l| l.split_once(' ')) {
            fixture.write(name, &text.replace("\\n", "\n"));
            continue;
        }
        let _ = match fixture.invoke(line) {
            Ok(Invocation::Run { command, notes }) => {
                for note in &notes {
                    let _ = writeln!(messages, "$ {line}\nnote: {note}\n");
                }
                writeln!(plans, "$ {line}\n{command:#?}\n{notes:#?}")
            }
            Ok(Invocation::Print(page)) => panic!("{line} prints {page}"),
            Err(error) => {
                let _ = writeln!(messages, "$ {line}");
                for error in error.each() {
                    let hint = error.hint().unwrap_or_default();
                    let _ = writeln!(messages, "{error}\n  {hint}");
                }
                writeln!(messages)
            }
        };
    }
    if let Some(folder) = std::env::var_os("XTRAIN_WRITE_PLANS").map(PathBuf::from) {
        std::fs::write(folder.join("plans.txt"), fixture.relative(&plans)).unwrap();
        let pages =
            COMMANDS.iter().map(
                |info| match fixture.invoke(&format!("{} --help", info.words)) {
                    Ok(Invocation::Print(page)) => {
                        format!("$ xtrain {} --help\n{page}\n", info.words)
                    }
                    other => panic!("{other:?}"),
                },
            );
        std::fs::write(folder.join("help.txt"), pages.collect::<String>()).unwrap();
    }
    let messages = fixture.relative(&messages);
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("src/config/snapshots/messages.txt");
    if std::env::var_os("XTRAIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, &messages).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let first = written.lines().zip(messages.lines()).find(|(a, b)| a != b);
    assert!(
        written == messages,
        "messages.txt is out of date: run `XTRAIN_WRITE_DOCS=1 cargo test -p xtrain-config snapshot_of_messages`; first difference: {first:?}"
    );
}
