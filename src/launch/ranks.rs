//! The ranks of one node as processes: started, their output marked with their numbers, ended.

use super::{Error, Result};
use crate::distributed::job::{Cause, Ended};
use crate::report::terminal;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// This program again with these words: it reads nothing, Ctrl-C is for the process that starts it,
/// which passes it on, and it ends when that does, however that ends.
///
/// # Errors
/// The program's own file is not known.
pub fn own_process(words: &[String]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).stdin(Stdio::null()).process_group(0);
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        )
    };
    Ok(command)
}

/// One rank that runs.
struct Running {
    rank: usize,
    child: Child,
    /// The last line that began with `error:`.
    last_error: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// The ranks of this node.
#[derive(Default)]
pub struct Ranks {
    running: Vec<Running>,
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
        // The one progress display is rank 0's, where there is a terminal to draw it on.
        let draws = rank == 0 && std::io::stderr().is_terminal();
        if !draws {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(fail)?;
        let last_error = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(forward(rank, stdout, std::io::stdout(), last_error.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(forward(rank, stderr, std::io::stderr(), last_error.clone()));
        }
        self.running.push(Running {
            rank,
            child,
            last_error,
            readers,
        });
        Ok(())
    }

    pub fn are_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Those that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<(usize, Ended)> {
        let mut ended = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            match self.running[index].child.try_wait() {
                Ok(Some(status)) => {
                    let rank = self.running.swap_remove(index);
                    rank.readers
                        .into_iter()
                        .for_each(|reader| drop(reader.join()));
                    let last_error = rank
                        .last_error
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner())
                        .clone();
                    ended.push((rank.rank, how(status, last_error)));
                }
                _ => index += 1,
            }
        }
        ended
    }

    /// Passes a signal on.
    pub fn signal(&self, signal: i32) {
        for rank in &self.running {
            // SAFETY: the child has not been waited for, so its number is still its own.
            unsafe { libc::kill(rank.child.id() as i32, signal) };
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.running {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

fn how(status: ExitStatus, last_error: String) -> Ended {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        // What a rank ends with when a signal made it stop and save.
        (Some(code), _) if [libc::SIGINT, libc::SIGTERM].contains(&(code - 128)) => {
            Ended::Interrupted(code - 128)
        }
        (Some(code), _) => Ended::Failed {
            cause: Cause::of_exit_code(code),
            code,
            message: last_error,
        },
        (None, signal) => Ended::Killed(signal.unwrap_or(0)),
    }
}

/// Copies lines, each marked and written at once, so that lines of several ranks do not mix.
fn forward(
    rank: usize,
    from: impl Read + Send + 'static,
    mut to: impl Write + IsTerminal + Send + 'static,
    last_error: Arc<Mutex<String>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches('\n');
            if let Some(error) = text.strip_prefix("error: ") {
                *last_error
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner()) = error.to_string();
            }
            // Nobody may be reading any more; the run continues.
            let text = terminal::forwarded(text, terminal::has_colors(&to));
            let _ = to.write_all(format!("[rank {rank}] {text}\n").as_bytes());
            line.clear();
        }
    })
}
