//! This program again, as a process that is waited for: what it printed, or why it failed.

use crate::Error;
use signal_hook::iterator::Signals;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xtrain_launch::{Sink, Supervised, own_process};
use xtrain_report::ending::ending_signals;

/// Between two looks at a process that runs.
const PAUSE: Duration = Duration::from_millis(20);

/// Lines of a failed process that are repeated.
const LAST_LINES: usize = 8;

/// Of what a process prints this much is kept, the end of it: results are its last line.
const KEPT: usize = 4 << 20;

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
            signals: Signals::new(ending_signals())?,
        })
    }

    /// Runs this program with these words to its end; what it printed on standard output. `place`
    /// names the run in an error.
    pub fn run(&mut self, words: &[String], place: &str) -> Result<String, Stopped> {
        let failed = |error| Error::because(format!("{place}: starting the command"), error);
        let (stdout, stderr) = (Tail::default(), Tail::default());
        let started = own_process(words)
            .and_then(|command| Supervised::piped(command, stdout.sink(), stderr.sink()));
        let mut child = started.map_err(failed)?;
        let mut interrupted = None;
        let status = loop {
            for signal in self.signals.pending() {
                // The first lets a launched job end its processes; nothing that it writes is kept.
                if interrupted.replace(signal).is_none() {
                    child.ask(signal);
                } else {
                    child.kill();
                }
            }
            match child.try_end().map_err(failed)? {
                Some(status) => break status,
                None => std::thread::sleep(PAUSE),
            }
        };
        match interrupted {
            Some(signal) => Err(Stopped::Interrupted(signal)),
            None if status.success() => Ok(stdout.text()),
            None => Err(failure(place, words, status, &stderr.text()).into()),
        }
    }
}

/// The end of what a process prints.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    fn sink(&self) -> Sink {
        let bytes = self.0.clone();
        Box::new(move |piece| {
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend_from_slice(piece);
            if bytes.len() > 2 * KEPT {
                let surplus = bytes.len() - KEPT;
                bytes.drain(..surplus);
            }
        })
    }

    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_endless_output_is_kept() {
        let tail = Tail::default();
        let mut sink = tail.sink();
        for _ in 0..1000 {
            sink(&[b'x'; 1 << 16]);
        }
        sink(b"\nresult");
        let text = tail.text();
        assert!(
            text.ends_with("\nresult") && text.len() <= 2 * KEPT,
            "{}",
            text.len()
        );
    }
}
