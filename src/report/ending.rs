//! How a process ends early: the signals that ask it to, and the end at once where no clean one is
//! possible.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::{Write, stderr, stdout};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long last words may wait for a reader, and partial lines for the thread that holds standard
/// output.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A pipe that is ready takes this much without blocking.
const PIPE_BUF: usize = 4096;

/// The signals that ask a run to save and end: SIGINT, SIGTERM, SIGUSR1 (SLURM's `--signal=USR1@120`) and
/// SIGHUP, but for one that is ignored (`nohup` ignores SIGHUP, and its command is to survive the
/// terminal). Ask before handlers are installed.
pub fn ending_signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM, SIGUSR1];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Whether a process with this exit code has ended for one of these signals, and for which.
pub fn signal_of_exit_code(code: i32) -> Option<i32> {
    let signal = code - 128;
    [SIGHUP, SIGINT, SIGTERM, SIGUSR1]
        .contains(&signal)
        .then_some(signal)
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction`; without a new action only the old one is
    // written.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0
            && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Ends the process at once with these last words on standard error. `exit` would run the handlers
/// and destructors of libraries, which wait for, or take apart, what other threads are inside of: a
/// collective, a compiler. Neither a reader that has stopped nor a thread that holds a stream keeps
/// the process longer than two seconds.
pub fn end_now(code: i32, last_words: &str) -> ! {
    // Past the lock of the standard library, which another thread may hold while it waits for a
    // reader.
    for piece in last_words.as_bytes().chunks(PIPE_BUF) {
        if !is_writable(LAST_WORDS) || rustix::io::write(stderr(), piece).is_err() {
            break;
        }
    }
    let (flushed, done) = channel::<()>();
    let flush = move || {
        let _flushed = flushed;
        let _ = stdout().flush();
    };
    if thread::Builder::new().spawn(flush).is_ok() {
        let _ = done.recv_timeout(LAST_WORDS);
    }
    // SAFETY: ends the process; nothing of it is used again.
    unsafe { libc::_exit(code) }
}

/// Whether standard error takes bytes within this time.
fn is_writable(patience: Duration) -> bool {
    let stderr = stderr();
    let mut streams = [PollFd::new(&stderr, PollFlags::OUT)];
    let patience = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    poll(&mut streams, Some(&patience)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_name_their_signals() {
        assert_eq!(signal_of_exit_code(129), Some(SIGHUP));
        assert_eq!(signal_of_exit_code(143), Some(SIGTERM));
        assert_eq!(signal_of_exit_code(138), Some(SIGUSR1));
        for code in [0, 1, 3, 128, 137] {
            assert_eq!(signal_of_exit_code(code), None, "{code}");
        }
    }

    #[test]
    fn an_ignored_signal_is_seen() {
        // SIGURG is ignored by default and by nobody here on purpose.
        assert!(!is_ignored(libc::SIGURG));
        // SAFETY: nothing in this process uses the signal.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_IGN) };
        assert!(is_ignored(libc::SIGURG));
    }
}
