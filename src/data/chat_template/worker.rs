//! The process that renders a chat template: this program, started once more, which answers requests
//! on its standard input until that ends.
//!
//! Steps alone do not bound a template: within one of them, texts of nested lists are exponential,
//! and lists that are nested too deeply overflow the stack where they are compared or freed. The
//! operating system bounds all of that in a process that nothing else depends on.

use super::engine::{Engine, Failure, Rendered, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{self, AssertUnwindSafe};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The only argument of such a process.
const ARGUMENT: &str = "__render_chat_template";

/// Memory that a rendering may take, and what each byte of its request adds.
const MEMORY: u64 = 512 << 20;
const MEMORY_PER_BYTE: u64 = 16;

/// Stack of the thread that renders. The engine's own limit of recursion fits many times.
const STACK: usize = 32 << 20;

/// Seconds of processor time that a rendering may take, and millions of steps that add another.
const SECONDS: u64 = 1;
const STEPS_PER_SECOND: u64 = 5_000_000;

/// Whether the program that runs here answers to [`ARGUMENT`].
static IS_AVAILABLE: AtomicBool = AtomicBool::new(false);

/// Whether templates are rendered in processes of their own. The program's own tests, which are
/// another program, render where they run.
pub(super) fn is_available() -> bool {
    IS_AVAILABLE.load(Ordering::Relaxed)
}

/// To be called first in a program: serves if it was started for that, and lets templates start it
/// otherwise.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ARGUMENT)) {
        IS_AVAILABLE.store(true, Ordering::Relaxed);
        return None;
    }
    // The other process prints what went wrong.
    panic::set_hook(Box::new(|_| {}));
    let serving = thread::Builder::new().stack_size(STACK).spawn(serve);
    let served = serving.map(|thread| thread.join());
    Some(match served {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What a process renders with.
#[derive(Serialize, Deserialize)]
struct Setup {
    source: String,
    tokens: Map<String, Value>,
}

/// Answers requests until there are no more.
fn serve() -> io::Result<()> {
    // Who started the process decides when it ends.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP] {
        // SAFETY: ignoring a signal has no precondition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    limit(libc::RLIMIT_CORE, 0)?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let start = size_of_process()?;
    let mut line = String::new();
    let mut engine: Option<Engine> = None;
    while input.read_line(&mut line)? > 0 {
        limit(
            libc::RLIMIT_AS,
            start + MEMORY + MEMORY_PER_BYTE * line.len() as u64,
        )?;
        let answer = panic::catch_unwind(AssertUnwindSafe(|| match &mut engine {
            None => {
                let setup: Setup = serde_json::from_str(&line)?;
                limit_time(SECONDS)?;
                let made = Engine::new(&setup.source, setup.tokens);
                io::Result::Ok(made.map(|made| {
                    engine = Some(made);
                    Rendered::default()
                }))
            }
            Some(engine) => {
                let request: Request = serde_json::from_str(&line)?;
                limit_time(SECONDS + request.steps / STEPS_PER_SECOND)?;
                Ok(engine.render(request))
            }
        }));
        let answer = match answer {
            Ok(answer) => answer?,
            Err(_) => Err(Failure::Refused("the template engine fails".to_string())),
        };
        limit_time(0)?;
        let mut answer = serde_json::to_vec(&answer)?;
        answer.push(b'\n');
        output.write_all(&answer)?;
        output.flush()?;
        line.clear();
    }
    Ok(())
}

/// Bytes of this process's address space.
fn size_of_process() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').next().and_then(|pages| pages.parse().ok());
    let pages: u64 = pages.ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the call has no precondition.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages * page.max(0) as u64)
}

/// Sets a limit of this process, at most the one that it may set.
fn limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls take a pointer to a whole structure.
    let done = unsafe {
        libc::getrlimit(resource, &mut limits) == 0 && {
            limits.rlim_cur = value.min(limits.rlim_max);
            libc::setrlimit(resource, &limits) == 0
        }
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Ends this process after this many seconds of processor time; 0: never.
fn limit_time(seconds: u64) -> io::Result<()> {
    let zero = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: zero,
        it_value: libc::timeval {
            tv_sec: seconds as libc::time_t,
            tv_usec: 0,
        },
    };
    // SAFETY: the timer is whole, and the old one is not asked for.
    if unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A running process, which ends with this value.
pub(super) struct Worker {
    child: Child,
    /// `None` once the process has ended.
    pipes: Option<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Worker {
    /// Starts one and lets it parse the template.
    pub fn start(source: &str, tokens: &Map<String, Value>) -> Result<Worker, Failure> {
        // This very program, even if its file has been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.spawn();
        let mut child = started.map_err(|error| {
            Failure::Refused(format!("a process to render it cannot start: {error}"))
        })?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let mut worker = Worker {
            child,
            pipes: pipes.map(|(input, output)| (input, BufReader::new(output))),
        };
        let setup = Setup {
            source: source.to_string(),
            tokens: tokens.clone(),
        };
        let answer: Result<Rendered, Failure> = worker.ask(&setup, SECONDS)?;
        answer.map(|_| worker)
    }

    /// The text of a conversation.
    pub fn render(&mut self, request: Request) -> Result<Rendered, Failure> {
        let seconds = SECONDS + request.steps / STEPS_PER_SECOND;
        self.ask(&request, seconds)?
    }

    /// Whether it takes no more requests.
    pub fn has_ended(&self) -> bool {
        self.pipes.is_none()
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        question: &impl Serialize,
        seconds: u64,
    ) -> Result<T, Failure> {
        let answer = self.exchange(question);
        answer.map_err(|error| self.end(&error, seconds))
    }

    fn exchange<T: DeserializeOwned>(&mut self, question: &impl Serialize) -> io::Result<T> {
        let (input, output) = self.pipes.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = serde_json::to_vec(question)?;
        line.push(b'\n');
        input.write_all(&line)?;
        input.flush()?;
        line.clear();
        if output.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Why the process ended.
    fn end(&mut self, error: &io::Error, seconds: u64) -> Failure {
        self.pipes = None;
        let mut words = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            // What cannot be read says nothing.
            let _ = stderr.take(1 << 12).read_to_string(&mut words);
        }
        let signal = self.child.wait().ok().and_then(|status| status.signal());
        let reason = match signal {
            Some(libc::SIGPROF) => format!("takes more than {seconds} s"),
            Some(libc::SIGABRT) if words.contains("memory allocation") => {
                format!("needs more than {} MB of memory", MEMORY >> 20)
            }
            Some(libc::SIGABRT | libc::SIGSEGV | libc::SIGBUS) => {
                "nests or recurses too deeply".to_string()
            }
            _ => {
                let how = signal.map_or(error.to_string(), |signal| format!("signal {signal}"));
                return Failure::Refused(format!("the process that renders it ended: {how}"));
            }
        };
        Failure::Unbounded(reason)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.pipes = None;
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
