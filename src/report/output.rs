//! Standard output and standard error that may be closed or full. The macros [`out!`](crate::out), [`outln!`](crate::outln),
//! [`err!`](crate::err) and [`errln!`](crate::errln) of all our crates print through this file: they do not panic, and of control characters they
//! pass only the colours of `terminal::paint`, since names, paths, labels and servers' answers may hold
//! others. A training run survives a closed stderr; a command whose result was lost fails, so the first
//! error on standard output is kept for [`lost`].

use super::printable::visible;
use super::terminal;
use std::fmt::Arguments;
use std::io::{Error, IsTerminal, Write, stderr, stdout};
use std::sync::OnceLock;

/// Prints on standard output: the standard library's macro panics when that is closed. A test's own
/// output is captured by that one.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {{
        #[cfg(test)]
        ::std::print!($($text)*);
        #[cfg(not(test))]
        $crate::output::print(::std::format_args!($($text)*));
    }};
}

/// Prints on standard error, as [`out!`](crate::out) does on standard output.
#[macro_export]
macro_rules! err {
    ($($text:tt)*) => {{
        #[cfg(test)]
        ::std::eprint!($($text)*);
        #[cfg(not(test))]
        $crate::output::complain(::std::format_args!($($text)*));
    }};
}

/// Prints a line on standard output.
#[macro_export]
macro_rules! outln {
    () => { $crate::out!("\n") };
    ($($text:tt)*) => { $crate::out!("{}\n", ::std::format_args!($($text)*)) };
}

/// Prints a line on standard error.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::err!("{}\n", ::std::format_args!($($text)*)) };
}

static LOST: OnceLock<Error> = OnceLock::new();

/// Prints on standard output, or remembers why it cannot.
pub fn print(text: Arguments) {
    keep(send(stdout(), text));
}

/// A result: byte for byte where a file or a program gets it, and as a line is where a terminal does.
pub fn write(bytes: &[u8]) {
    let out = stdout();
    keep(match std::str::from_utf8(bytes) {
        Ok(text) if out.is_terminal() => { &out }.write_all(visible(text).as_bytes()),
        _ => { &out }.write_all(bytes),
    });
}

/// Prints on standard error, if it can.
pub fn complain(text: Arguments) {
    let _ = send(stderr(), text);
}

fn send(mut stream: impl Write + IsTerminal, text: Arguments) -> std::io::Result<()> {
    let colors = terminal::has_colors(&stream);
    stream.write_all(terminal::shown(&text.to_string(), colors).as_bytes())
}

/// Why something that was printed did not arrive; `None` where everything did.
pub fn lost() -> Option<&'static Error> {
    keep(stdout().flush());
    LOST.get()
}

fn keep(result: std::io::Result<()>) {
    if let Err(error) = result {
        let _ = LOST.set(error);
    }
}
