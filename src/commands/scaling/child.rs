//! This program again, as a process that is waited for: what it printed, or why it failed.

use crate::commands::Error;
use crate::launch::own_process;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

/// Between two looks at a process that runs.
const PAUSE: Duration = Duration::from_millis(20);

/// Lines of a failed process that are repeated.
const LAST_LINES: usize = 8;

/// Runs one process after the other, and takes the signals meanwhile.
pub struct Children {
    signals: Signals,
}

/// Why there is nothing to measure.
pub enum Stopped {
    /// A signal to us, which was passed on.
    Interrupted(i32),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Failed(error)
    }
}

impl Children {
    pub fn new() -> std::io::Result<Children> {
        Ok(Children {
            signals: Signals::new([SIGINT, SIGTERM])?,
        })
    }

    /// Runs this program with these words to its end; what it printed on standard output. `place`
    /// names the run in an error.
    pub fn run(&mut self, words: &[String], place: &str) -> Result<String, Stopped> {
        let failed = |error| Error::because(format!("{place}: starting the command"), error);
        let mut child = start(words).map_err(failed)?;
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let mut interrupted = None;
        let status = loop {
            for signal in self.signals.pending() {
                // The first lets a launched job end its processes; nothing that it writes is kept.
                let passed_on = if interrupted.is_none() {
                    signal
                } else {
                    libc::SIGKILL
                };
                // SAFETY: the child has not been waited for, so its number is still its own.
                unsafe { libc::kill(child.id() as i32, passed_on) };
                interrupted = Some(signal);
            }
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None => std::thread::sleep(PAUSE),
            }
        };
        let join = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
        let (stdout, stderr) = (join(stdout), join(stderr));
        match interrupted {
            Some(signal) => Err(Stopped::Interrupted(signal)),
            None if status.success() => Ok(stdout),
            None => Err(failure(place, words, status, &stderr).into()),
        }
    }
}

fn start(words: &[String]) -> std::io::Result<Child> {
    let mut command = own_process(words)?;
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

fn reader(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What could be read is reported.
        let _ = from.map(|mut from| from.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn failure(place: &str, words: &[String], status: ExitStatus, stderr: &str) -> Error {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, signal) => format!(
            "was killed by signal {} (by the kernel, if memory ran out)",
            signal.unwrap_or(0)
        ),
    };
    let lines: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last: String = lines[lines.len().saturating_sub(LAST_LINES)..]
        .iter()
        .map(|line| format!("\n  {line}"))
        .collect();
    let said = if last.is_empty() {
        " without a word".to_string()
    } else {
        format!("; its last lines:{last}")
    };
    Error::failed(format!("{place}: the command {how}{said}"))
        .with_hint(format!("run it by itself: xtrain {}", words.join(" ")))
}
