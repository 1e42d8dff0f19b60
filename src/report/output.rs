//! Standard output and standard error that may be gone or full. What the crate prints passes through
//! here: its `println!`, `print!`, `eprintln!` and `eprint!` (defined in `lib.rs`) do not panic. A line of
//! progress that nobody can read must not end a training run; a command whose result was lost must not
//! end well, so the first error on standard output is kept until [`lost`] is asked for it.

use std::fmt::Arguments;
use std::io::{Error, Write, stderr, stdout};
use std::sync::OnceLock;

static LOST: OnceLock<Error> = OnceLock::new();

/// Prints on standard output, or remembers why it cannot.
pub fn print(text: Arguments) {
    keep(stdout().write_fmt(text));
}

/// The same of bytes.
pub fn write(bytes: &[u8]) {
    keep(stdout().write_all(bytes));
}

/// Prints on standard error, if it can.
pub fn complain(text: Arguments) {
    let _ = stderr().write_fmt(text);
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
