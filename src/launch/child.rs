//! Processes that this program starts and watches: the ranks of a job, the runs of a sweep, the
//! commands that `scaling` measures. Each has a process group of its own, which also holds what it
//! starts itself: compilers, data workers. Such a process may outlive it and keep its pipes open, so
//! the end of an output is never what is waited for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, waitid,
};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After a process has ended, what it has started and left gets SIGTERM and this long to end by
/// itself; then SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// After SIGKILL, how long what is left in the group may take to be gone.
const DYING: Duration = Duration::from_secs(1);
/// How long a process that is given up may take to be gone: one that waits in the kernel, for a file
/// system that is gone, does not end.
const LEAVING: Duration = Duration::from_secs(5);
/// Between two looks of a reader at whether its process has ended, and of `drop` at a process.
const LOOK: Duration = Duration::from_millis(50);
/// As much as a pipe may hold: what was written before the end is read, and not what comes later.
const PIPE: usize = 1 << 20;

/// This program again with these words: it reads nothing, Ctrl-C is for the process that starts it,
/// which passes it on, and it ends when that does, however that ends.
///
/// # Errors
/// The program's own file is not known.
pub fn own_process(words: &[String]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).stdin(Stdio::null()).process_group(0);
    let parent = Pid::from_raw(std::process::id() as i32);
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // One that died before the call sends no signal.
            if getppid() == parent {
                Ok(())
            } else {
                Err(ErrorKind::NotFound.into())
            }
        })
    };
    Ok(command)
}

/// Takes what a process writes, piece by piece.
pub type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// A process with its group. Dropped, all of the group is killed.
pub struct Supervised {
    child: Child,
    group: Pid,
    readers: Vec<JoinHandle<()>>,
    /// Readers take what their pipes hold, and wait for no more.
    is_over: Arc<AtomicBool>,
    /// When the process itself was seen to have ended, and how.
    ended: Option<(Instant, ExitStatus)>,
    /// Once it was waited for.
    status: Option<ExitStatus>,
}

impl Supervised {
    /// Starts a process with its outputs piped into these sinks.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn piped(mut command: Command, stdout: Sink, stderr: Sink) -> io::Result<Supervised> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Supervised::start(command)?;
        if let Some(from) = process.child.stdout.take() {
            process.follow(from, stdout)?;
        }
        if let Some(from) = process.child.stderr.take() {
            process.follow(from, stderr)?;
        }
        Ok(process)
    }

    /// Starts a process whose outputs go where its command says.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: Command) -> io::Result<Supervised> {
        let child = spawn(command)?;
        let group = Pid::from_child(&child);
        Ok(Supervised {
            child,
            group,
            readers: Vec::new(),
            is_over: Arc::default(),
            ended: None,
            status: None,
        })
    }

    fn follow(
        &mut self,
        from: impl Read + AsFd + Send + 'static,
        mut sink: Sink,
    ) -> io::Result<()> {
        let is_over = self.is_over.clone();
        let body = move || follow(from, &is_over, &mut sink);
        let thread = std::thread::Builder::new().name("output".into());
        self.readers.push(thread.spawn(body)?);
        Ok(())
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process alone: it saves and ends by itself, and may need what it has
    /// started for that.
    pub fn ask(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal).filter(|_| self.status.is_none()) {
            // The process has not been waited for, so its number is still its own.
            let _ = kill_process(self.group, signal);
        }
    }

    /// Ends the process and all of its group at once.
    pub fn kill(&self) {
        self.signal_group(Signal::KILL);
    }

    fn signal_group(&self, signal: Signal) {
        if self.status.is_none() {
            // As above; a group's number is not given out again as long as it has a process.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// How the process itself ended, as the last [`try_end`](Self::try_end) saw it, and how long ago.
    /// What it left behind may still run, and the last of what it wrote not be taken.
    pub fn ended(&self) -> Option<(ExitStatus, Duration)> {
        self.ended.map(|(at, status)| (status, at.elapsed()))
    }

    /// How the process ended, once it has, what it left behind is gone, and what it wrote was taken.
    /// Waits for nothing; ask again. From the end on this takes three seconds at most, and as long as
    /// a sink takes.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn try_end(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.status {
            return Ok(Some(status));
        }
        if self.ended.is_none() {
            let Some(status) = self.look()? else {
                return Ok(None);
            };
            self.signal_group(Signal::TERM);
            self.ended = Some((Instant::now(), status));
        }
        let since = self.ended.map_or(Duration::ZERO, |(at, _)| at.elapsed());
        if since < GRACE + DYING && !is_last_of_group(self.group) {
            if since >= GRACE {
                self.signal_group(Signal::KILL);
            }
            return Ok(None);
        }
        self.is_over.store(true, Ordering::Release);
        if !self.readers.iter().all(JoinHandle::is_finished) {
            return Ok(None);
        }
        self.signal_group(Signal::KILL);
        self.status = Some(self.child.wait()?);
        Ok(self.status)
    }

    /// How the process itself has ended, if it has. It keeps its number until it is waited for, and
    /// its group too.
    fn look(&self) -> io::Result<Option<ExitStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.group), options)?;
        Ok(ended.map(|status| {
            let code = status.exit_status().unwrap_or(0);
            ExitStatus::from_raw(code << 8 | status.terminating_signal().unwrap_or(0))
        }))
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.kill();
        let until = Instant::now() + LEAVING;
        let mut is_gone = self.status.is_some();
        while !is_gone && Instant::now() < until {
            // What cannot be waited for is gone.
            is_gone = self.look().map_or(true, |status| status.is_some());
            if !is_gone {
                std::thread::sleep(LOOK);
            }
        }
        self.is_over.store(true, Ordering::Release);
        let until = Instant::now() + DYING;
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        if is_gone {
            let _ = self.child.wait();
        }
    }
}

/// Starts a process from a thread that ends with this process: PR_SET_PDEATHSIG goes by the thread
/// that has started a child, not by its process.
fn spawn(mut command: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<Sender<Job>>> = LazyLock::new(|| {
        let (sender, jobs) = channel::<Job>();
        let work = move || {
            for (mut command, answer) in jobs {
                let _ = answer.send(command.spawn());
            }
        };
        // Without the thread its queue is closed, which is seen below.
        let _ = std::thread::Builder::new()
            .name("spawner".into())
            .spawn(work);
        Mutex::new(sender)
    });
    let (answer, started) = channel();
    let spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    match spawner.send((command, answer)) {
        Ok(()) => started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts processes is gone"))),
        Err(unsent) => {
            command = unsent.0.0;
            command.spawn()
        }
    }
}

/// Hands what comes out of a pipe to a sink, until its end or, once the process is over, until it is
/// empty. An empty piece says that nothing follows.
fn follow(mut from: impl Read + AsFd, is_over: &AtomicBool, sink: &mut Sink) {
    let mut buffer = vec![0; 1 << 16];
    let mut left = PIPE;
    while left > 0 {
        let ends = is_over.load(Ordering::Acquire);
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: if ends { 0 } else { LOOK.as_nanos() as i64 },
        };
        let mut streams = [PollFd::new(&from, PollFlags::IN)];
        match poll(&mut streams, Some(&patience)) {
            Ok(0) if ends => break,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                sink(&buffer[..read]);
                if ends {
                    left = left.saturating_sub(read);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    sink(&[]);
}

/// Whether a group has no living process. Where the system does not show them, it has none.
fn is_last_of_group(group: Pid) -> bool {
    let group = group.as_raw_pid().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_living_member = |entry: std::fs::DirEntry| {
        let is_process = entry
            .file_name()
            .as_encoded_bytes()
            .first()
            .is_some_and(u8::is_ascii_digit);
        let stat = is_process.then(|| std::fs::read_to_string(entry.path().join("stat")));
        let stat = stat.and_then(Result::ok).unwrap_or_default();
        // After the name in parentheses, which may hold anything: state, parent, group.
        let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
        let mut fields = fields.split_whitespace();
        let state = fields.next();
        fields.nth(1) == Some(&*group) && !matches!(state, Some("Z" | "X"))
    };
    !processes.into_iter().any(is_living_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command
    }

    /// Runs a script to its end: how it ended, what it wrote, and how long that took.
    fn run(script: &str) -> (ExitStatus, String, Duration) {
        let text = Arc::new(Mutex::new(Vec::new()));
        let taken = text.clone();
        let sink: Sink = Box::new(move |piece| taken.lock().unwrap().extend_from_slice(piece));
        let mut process = Supervised::piped(shell(script), sink, Box::new(|_| {})).unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = process.try_end().unwrap() {
                break status;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        (status, text, began.elapsed())
    }

    fn is_alive(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_keeps_nobody_waiting() {
        let long = Duration::from_secs(4);
        // One that ends when it is asked to, one that does not, one that left the group, and one that
        // goes on writing there.
        for (script, quick) in [
            ("sleep 600 & echo $!; exit 7", true),
            (
                "(trap '' TERM; while :; do sleep 1; done) & echo $!; exit 7",
                false,
            ),
            ("setsid sleep 5 & echo $!; exit 7", true),
            (
                "setsid sh -c 'sleep 3; i=0; while [ $i -lt 9 ]; do echo y; i=$((i+1)); done' & echo $!; exit 7",
                true,
            ),
        ] {
            let (status, text, took) = run(script);
            assert_eq!(status.code(), Some(7), "{script}");
            let pid = text.trim();
            assert!(pid.parse::<u32>().is_ok(), "{script}: {text}");
            let most = if quick {
                Duration::from_millis(1500)
            } else {
                long
            };
            assert!(took < most, "{script}: {took:?}");
            assert!(script.contains("setsid") || !is_alive(pid), "{script}");
        }
    }

    #[test]
    fn all_that_was_written_is_taken() {
        let (_, text, _) =
            run("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; printf end");
        assert!(text.ends_with("19999\nend"), "{} bytes", text.len());
    }

    #[test]
    fn a_dropped_process_goes_with_its_group() {
        let (sender, pids) = channel();
        let sink: Sink = Box::new(move |piece| {
            let _ = sender.send(String::from_utf8_lossy(piece).into_owned());
        });
        let script = "trap '' TERM; sleep 600 & echo $! $$; wait";
        let process = Supervised::piped(shell(script), sink, Box::new(|_| {})).unwrap();
        let pids = pids.recv().unwrap();
        assert!(pids.split_whitespace().all(is_alive), "{pids}");
        drop(process);
        let until = Instant::now() + Duration::from_secs(5);
        while pids.split_whitespace().any(is_alive) {
            assert!(Instant::now() < until, "{pids}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_signal_that_ends_a_process_is_its_status() {
        let mut process = Supervised::start(shell("sleep 600")).unwrap();
        assert_eq!(process.try_end().unwrap(), None);
        process.ask(libc::SIGTERM);
        let until = Instant::now() + Duration::from_secs(5);
        let status = loop {
            match process.try_end().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < until),
            }
        };
        assert_eq!(status.signal(), Some(libc::SIGTERM));
    }
}
