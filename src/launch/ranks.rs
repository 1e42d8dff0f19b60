//! The ranks of one node as processes: started, their output marked with their numbers, ended.

use super::child::{Sink, Supervised, own_process};
use super::{Error, Result};
use std::io::{IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use xtrain_distributed::job::{Cause, Ended};
use xtrain_report::ending::signal_of_exit_code;
use xtrain_report::terminal;

/// A longer line is handed on in pieces.
const LONGEST_LINE: usize = 1 << 16;
/// A rank's last lines are taken this long after its end. Its end is not reported later for what it
/// has left behind: who fails first is the cause.
const LAST_LINES: Duration = Duration::from_millis(200);
/// A killed process that is not gone after this long waits in the kernel, and so would another one.
const KILLED: Duration = Duration::from_secs(60);

/// One rank that runs.
struct Running {
    rank: usize,
    process: Supervised,
    /// The last line that began with `error:`.
    last_error: Arc<Mutex<String>>,
    /// Its end was handed out; what it has left behind may still run.
    is_reported: bool,
}

/// The ranks of this node.
#[derive(Default)]
pub struct Ranks {
    running: Vec<Running>,
    /// The signal that these ranks were sent to end with a checkpoint.
    asked: Option<i32>,
    /// When they were killed.
    killed: Option<Instant>,
}

/// What a rank is started with.
pub struct Start<'s> {
    pub rank: usize,
    pub words: &'s [String],
    pub environment: Vec<(&'static str, String)>,
}

impl Ranks {
    /// Starts a rank. It ends when the launcher does, however that ends.
    pub fn start(&mut self, start: Start) -> Result<()> {
        let rank = start.rank;
        let fail = |source| Error::Start { rank, source };
        let mut command = own_process(start.words).map_err(fail)?;
        command.envs(start.environment);
        let last_error = Arc::new(Mutex::new(String::new()));
        // The one progress display is rank 0's, where there is a terminal to draw it on.
        let draws = rank == 0 && std::io::stderr().is_terminal();
        let process = if draws {
            Supervised::start(command)
        } else {
            let (out, err) = (std::io::stdout(), std::io::stderr());
            let colors = (terminal::has_colors(&out), terminal::has_colors(&err));
            let stdout = marked(rank, out, colors.0, last_error.clone());
            let stderr = marked(rank, err, colors.1, last_error.clone());
            Supervised::piped(command, stdout, stderr)
        };
        (self.asked, self.killed) = (None, None);
        self.running.push(Running {
            rank,
            process: process.map_err(fail)?,
            last_error,
            is_reported: false,
        });
        Ok(())
    }

    pub fn are_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Those that have ended since the last call. What they have left behind may still run: then they
    /// are not idle.
    ///
    /// # Errors
    /// One cannot be waited for, or does not end though it was killed.
    pub fn take_ended(&mut self) -> Result<Vec<(usize, Ended)>> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let (rank, process) = (running.rank, &mut running.process);
            let gone = process
                .try_end()
                .map_err(|source| Error::Wait { rank, source })?;
            let reported = process.ended().filter(|(_, since)| *since >= LAST_LINES);
            if let Some(status) = gone.or(reported.map(|(status, _)| status))
                && !std::mem::replace(&mut running.is_reported, true)
            {
                let last_error = running.last_error.lock();
                let last_error = last_error.unwrap_or_else(PoisonError::into_inner).clone();
                ended.push((rank, how(status, last_error, self.asked)));
            }
            if gone.is_some() {
                self.running.swap_remove(index);
                continue;
            }
            if process.ended().is_none() && self.killed.is_some_and(|at| at.elapsed() > KILLED) {
                let process = process.id();
                return Err(Error::Unkillable { rank, process });
            }
            index += 1;
        }
        Ok(ended)
    }

    /// Asks each rank to save and end. What it has started is left to it: a compiler that ended now
    /// would be an error of the rank.
    pub fn ask(&mut self, signal: i32) {
        self.asked = Some(signal);
        self.running
            .iter()
            .for_each(|rank| rank.process.ask(signal));
    }

    /// Ends at once those that run, with all that they have started.
    pub fn kill(&mut self) {
        self.killed.get_or_insert_with(Instant::now);
        let running = self.running.iter().map(|rank| &rank.process);
        running
            .filter(|process| process.ended().is_none())
            .for_each(Supervised::kill);
    }
}

fn how(status: ExitStatus, last_error: String, asked: Option<i32>) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        (Some(code), _) => match signal_of_exit_code(code) {
            // What a rank ends with when a signal made it stop and save.
            Some(signal) => Ended::Interrupted(signal),
            None => Ended::Failed {
                cause: Cause::of_exit_code(code),
                code,
                message: last_error,
            },
        },
        // It had not come far enough to answer the signal.
        (None, Some(signal)) if asked == Some(signal) => Ended::Interrupted(signal),
        (None, signal) => Ended::Killed(signal.unwrap_or(0)),
    }
}

/// Copies lines, each marked and written at once, so that lines of several ranks do not mix.
fn marked(
    rank: usize,
    mut to: impl Write + Send + 'static,
    has_colors: bool,
    last_error: Arc<Mutex<String>>,
) -> Sink {
    let mut hand_on = move |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches('\n');
        if let Some(error) = text.strip_prefix("error: ") {
            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        }
        // Nobody may be reading any more; the run continues.
        let text = terminal::forwarded(text, has_colors);
        let _ = to.write_all(format!("[rank {rank}] {text}\n").as_bytes());
    };
    let mut begun = Vec::new();
    Box::new(move |piece| {
        begun.extend_from_slice(piece);
        let is_end = piece.is_empty();
        let whole = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if is_end || begun.len() > LONGEST_LINE => begun.len(),
            None => return,
        };
        begun[..whole]
            .split_inclusive(|byte| *byte == b'\n')
            .for_each(&mut hand_on);
        begun.drain(..whole);
        if is_end && !begun.is_empty() {
            hand_on(&begun);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_marked_whatever_pieces_they_come_in() {
        let (written, last_error) = (Written::default(), Arc::default());
        let mut sink = marked(3, written.clone(), false, Arc::clone(&last_error));
        for piece in ["on", "e\ntwo\nerr", "or: disk full\n", "rest", ""] {
            sink(piece.as_bytes());
        }
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "[rank 3] one\n[rank 3] two\n[rank 3] error: disk full\n[rank 3] rest\n"
        );
        assert_eq!(*last_error.lock().unwrap(), "disk full");
        // A line without an end does not grow without one.
        let written = Written::default();
        let mut sink = marked(3, written.clone(), false, last_error);
        (0..40).for_each(|_| sink(&[b'x'; 4096]));
        assert!(written.0.lock().unwrap().len() > 2 * LONGEST_LINE);
    }

    #[test]
    fn an_end_by_the_signal_that_was_sent_is_no_failure() {
        let by = |signal| ExitStatus::from_raw(signal);
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let how = |status, asked| how(status, String::new(), asked);
        let (term, hup) = (libc::SIGTERM, libc::SIGHUP);
        assert_eq!(how(by(term), Some(term)), Ended::Interrupted(term));
        assert_eq!(how(by(term), None), Ended::Killed(term));
        assert_eq!(
            how(by(libc::SIGKILL), Some(term)),
            Ended::Killed(libc::SIGKILL)
        );
        assert_eq!(how(exit(128 + hup), None), Ended::Interrupted(hup));
        assert_eq!(how(exit(0), Some(term)), Ended::Well);
    }
}
