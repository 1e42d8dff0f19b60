//! The program: reads the command line, runs the command, prints each error once and turns the
//! outcome into an exit code. No logic of its own. Exit codes: 0 success, 1 failure, 2 usage, 130,
//! 143, 138 or 129 after a signal that ended in a saved checkpoint, or before there was anything to save,
//! 3 after a second one. The reason of a failure also goes where the engine that runs the process looks
//! for it.

use std::io::Write;
use std::panic;
use std::process::ExitCode;
use xtrain::commands::{self, Error};
use xtrain::config::{self, Invocation};
use xtrain::data::chat_template::worker;
use xtrain::distributed::environment::report_failure;
use xtrain::report::terminal::{Tone, folded, paint, take_colors};
use xtrain::report::{output, panics, printable::printable};
use xtrain::runtime::flags_server;

fn main() -> ExitCode {
    if let Some(code) = worker::serve_if_asked().or_else(flags_server::serve_if_asked) {
        return code;
    }
    panics::install_hook(|bug| {
        complain(
            bug,
            Some("this is a bug in xtrain; RUST_BACKTRACE=1 shows where it came from"),
        )
    });
    take_colors(std::env::args_os().map(|word| word.to_string_lossy().into_owned()));
    match panic::catch_unwind(invoke) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => {
            let mut reason = String::new();
            for (message, hint) in error.messages() {
                complain(&message, hint.as_deref());
                let lines = std::iter::once(message).chain(hint);
                lines.for_each(|line| reason.push_str(&format!("{}\n", printable(&line))));
            }
            report_failure(&reason);
            ExitCode::from(error.exit_code())
        }
        // The hook has printed it.
        Err(_) => ExitCode::FAILURE,
    }
}

fn invoke() -> Result<u8, Error> {
    match config::from_args(std::env::args_os())? {
        Invocation::Print(text) => {
            // A reader that closed the pipe (`xtrain --help | head -1`) is no failure.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(0)
        }
        Invocation::Run { command, notes } => {
            for note in notes {
                let head = paint(&std::io::stderr(), Tone::Warning, "note:");
                output::complain(format_args!("{head} {note}\n"));
            }
            commands::run(command).map(|outcome| outcome.exit_code())
        }
    }
}

fn complain(message: &str, hint: Option<&str>) {
    let stderr = std::io::stderr();
    let (error, then) = (
        paint(&stderr, Tone::Bad, "error:"),
        paint(&stderr, Tone::Hint, "hint:"),
    );
    let mut text = format!("{error} {}\n", folded(&printable(message), "error: ".len()));
    if let Some(hint) = hint {
        text.push_str(&format!(
            "{then} {}\n",
            folded(&printable(hint), "hint: ".len())
        ));
    }
    output::complain(format_args!("{text}"));
}
