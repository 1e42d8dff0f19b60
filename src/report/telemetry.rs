//! `telemetry.jsonl`: the state of a run, for `xtrain top` and `xtrain report`. Unlike the lines of
//! `log.jsonl`, which are the same whenever a run is repeated or resumed, these hold times, memory and
//! compilations.

use super::accounting::{self, Account, Reader};
use super::files;
use crate::errln;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name of the file in the output directory.
pub const TELEMETRY_FILE: &str = "telemetry.jsonl";

/// The file of a process other than the first one of a job, whose file is [`TELEMETRY_FILE`].
pub fn file_of_rank(rank: usize) -> String {
    match rank {
        0 => TELEMETRY_FILE.to_string(),
        rank => format!("telemetry.rank-{rank}.jsonl"),
    }
}

/// A line of the file. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process took the run up.
    Start {
        time: f64,
        pid: u32,
        host: String,
        device: String,
        step: u64,
        total_steps: u64,
    },
    /// The facts of the process, once it is ready to train.
    Process(Box<ProcessEvent>),
    /// At most one a second, and the last step.
    Step(StepEvent),
    /// Where the time of the process went so far. While the process runs, one stands behind its
    /// events and is written anew once a second, so a killed process leaves its last.
    Account(AccountEvent),
    /// A graph is there to be used.
    Graph {
        time: f64,
        name: String,
        id: String,
        loaded: bool,
        seconds: f64,
        /// Why a graph of which another version was compiled before is compiled again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The process has ended the loop, by itself or by an error; a killed one says nothing.
    End { time: f64, step: u64 },
}

/// Facts that do not change while a process runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessEvent {
    pub time: f64,
    /// When the process started.
    pub started: f64,
    pub command: Vec<String>,
    /// Every setting of the command with its value, defaults included.
    pub settings: BTreeMap<String, String>,
    /// The program's and the device's software, by name.
    pub versions: BTreeMap<String, String>,
    pub host: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    pub device: String,
    /// Of the CPU: its matmul kernels and what they reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<String>,
    /// Devices of the run.
    pub devices: usize,
    /// Processes of the run, and machines that they run on.
    pub processes: usize,
    pub instances: usize,
    /// When `xtrain launch` started, if it started this process, and how often it did before.
    pub launched: Option<f64>,
    pub attempt: u64,
    pub parameters: u64,
    pub examples_per_step: u64,
    /// Of all devices, in units of 10^12 a second, as measured at the start.
    pub peak_tflops: Option<f64>,
}

/// Where the time of a process went until `time`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountEvent {
    pub time: f64,
    /// When the process started.
    pub started: f64,
    /// Seconds since then, and of these by [`accounting::Part::key`].
    pub wall_seconds: f64,
    pub parts: BTreeMap<String, f64>,
    /// How the process ended: `done`, `interrupted` or `failed`; `None` while it runs.
    pub outcome: Option<String>,
}

impl AccountEvent {
    /// An account that was read now.
    pub fn new(account: &Account, outcome: Option<&str>) -> AccountEvent {
        let (time, wall_seconds) = (now(), account.wall.as_secs_f64());
        let parts = account.parts.iter();
        AccountEvent {
            time,
            started: time - wall_seconds,
            wall_seconds,
            parts: parts
                .map(|(part, spent)| (part.key().to_string(), spent.as_secs_f64()))
                .collect(),
            outcome: outcome.map(str::to_string),
        }
    }
}

/// The steps since the last one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepEvent {
    pub time: f64,
    pub step: u64,
    pub total_steps: u64,
    pub epoch: f64,
    /// Of the last step.
    pub loss: Option<f64>,
    pub learning_rate: f64,
    /// Without padding.
    pub tokens_per_second: f64,
    /// Seconds of one step on average, and of these for recording, compiling, the device and
    /// waiting for data.
    pub step_seconds: f64,
    pub trace_seconds: f64,
    pub compile_seconds: f64,
    pub execute_seconds: f64,
    pub wait_seconds: f64,
    pub model_tflops: f64,
    /// Of all steps of the run so far, and the model's floating-point operations of them.
    #[serde(default)]
    pub total_tokens: f64,
    #[serde(default)]
    pub total_flops: f64,
    /// Of the last step.
    #[serde(default)]
    pub grad_norm: Option<f64>,
    pub devices: Vec<DeviceMemoryUse>,
}

/// The figures of a device's allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemoryUse {
    pub kind: String,
    pub bytes_in_use: i64,
    pub peak_bytes: Option<i64>,
    pub limit_bytes: Option<i64>,
}

/// Between two accounts of a running process.
const PULSE: Duration = Duration::from_secs(1);

/// The file, shared by everybody in the process who has something to tell. Trouble with it is
/// warned of once and costs the watcher, never the run.
#[derive(Clone)]
pub struct Telemetry(Arc<Shared>);

struct Shared {
    lines: Arc<Mutex<Option<Lines>>>,
    /// Ended with the last handle, so that whoever opens the file next finds it at rest.
    _pulse: Option<Pulse>,
}

/// The open file: whole lines, and behind them the account, which the next line takes the place of.
struct Lines {
    file: File,
    /// Where the next line begins, and where the account behind it ends.
    end: u64,
    length: u64,
    /// Of the thread that opened the file.
    account: Option<Reader>,
    /// Until then the last process that the file tells of is another one.
    has_begun: bool,
}

impl Lines {
    /// Behind the last whole line: what a killed process had half written is overwritten.
    fn open(path: &Path, account: Option<Reader>) -> io::Result<Lines> {
        let mut options = OpenOptions::new();
        options.create(true).read(true).write(true).truncate(false);
        let file = files::open_as(&mut options, path)?;
        let end = end_of_lines(&file)?;
        file.set_len(end)?;
        Ok(Lines {
            file,
            end,
            length: end,
            account,
            has_begun: false,
        })
    }

    /// Writes the event, if there is one, and the account behind it in one call: a reader sees
    /// whole lines, but for the moment of writing.
    fn write(&mut self, event: Option<&Event>) -> io::Result<()> {
        self.has_begun |= event.is_some();
        if !self.has_begun {
            return Ok(());
        }
        let mut text = Vec::new();
        let mut add = |event: &Event| -> io::Result<usize> {
            serde_json::to_writer(&mut text, event)?;
            text.push(b'\n');
            Ok(text.len())
        };
        let kept = event.map_or(Ok(0), &mut add)?;
        if let Some(account) = &self.account {
            add(&Event::Account(AccountEvent::new(&account.account(), None)))?;
        }
        // A shorter one than stands there would leave that one's end as a line.
        let missing = (self.length - self.end).saturating_sub(text.len() as u64) as usize;
        let last = text.len().saturating_sub(1);
        text.splice(last..last, std::iter::repeat_n(b' ', missing));
        self.file.write_all_at(&text, self.end)?;
        self.length = self.end + text.len() as u64;
        self.end += kept as u64;
        Ok(())
    }
}

/// Where the last whole line of a file ends.
fn end_of_lines(file: &File) -> io::Result<u64> {
    /// A line is far shorter.
    const LONGEST: u64 = 64 << 20;
    let mut block = vec![0; 1 << 16];
    let size = file.metadata()?.len();
    let mut until = size;
    while until > 0 {
        let start = until.saturating_sub(block.len() as u64);
        let part = &mut block[..(until - start) as usize];
        file.read_exact_at(part, start)?;
        if let Some(last) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        if size - start > LONGEST {
            return Err(io::Error::other("it does not end with a line of telemetry"));
        }
        until = start;
    }
    Ok(0)
}

fn write_in(lines: &Mutex<Option<Lines>>, event: Option<&Event>) {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(open) = lines.as_mut() else { return };
    if let Err(error) = open.write(event) {
        warn(&error);
        *lines = None;
    }
}

/// A thread that writes the account anew until this is dropped.
struct Pulse {
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    fn start(lines: Arc<Mutex<Option<Lines>>>) -> Option<Pulse> {
        let (stop, stopped) = mpsc::channel::<()>();
        let beat = move || {
            while stopped.recv_timeout(PULSE) == Err(RecvTimeoutError::Timeout) {
                write_in(&lines, None);
            }
        };
        let thread = std::thread::Builder::new().name("telemetry".into());
        // Without it the account is as old as the last event.
        let thread = thread.spawn(beat).ok()?;
        Some(Pulse {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Telemetry {
    /// Opens the file of an output directory; a resumed run appends to it. The account of the
    /// thread that calls this is kept up to date in it, if it has one, until the last clone is
    /// dropped.
    pub fn append_in(output_dir: &Path) -> Telemetry {
        Telemetry::append_of_rank(output_dir, 0)
    }

    /// The same of the file of a process of a job.
    pub fn append_of_rank(output_dir: &Path, rank: usize) -> Telemetry {
        let path = output_dir.join(file_of_rank(rank));
        let account = accounting::reader();
        let has_account = account.is_some();
        let lines = Lines::open(&path, account).map_err(|error| warn(&error));
        let lines = Arc::new(Mutex::new(lines.ok()));
        let pulse = has_account.then(|| Pulse::start(lines.clone()));
        Telemetry(Arc::new(Shared {
            lines,
            _pulse: pulse.flatten(),
        }))
    }

    pub fn write(&self, event: &Event) {
        write_in(&self.0.lines, Some(event));
    }
}

/// Writes the last account of this thread, if it has one, with how the process ended, behind all
/// that was written in an output directory; nobody may have the file open any more.
pub fn close(output_dir: &Path, outcome: &str) {
    let Some(account) = accounting::reader() else {
        return;
    };
    let written = Lines::open(&output_dir.join(TELEMETRY_FILE), None).and_then(|mut lines| {
        let account = AccountEvent::new(&account.account(), Some(outcome));
        lines.write(Some(&Event::Account(account)))
    });
    if let Err(error) = written {
        warn(&error);
    }
}

fn warn(error: &io::Error) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if WARNED.swap(true, Ordering::Relaxed) {
        return;
    }
    errln!(
        "warning: {TELEMETRY_FILE} is not written, so `xtrain top` will not see this run: {error}"
    );
}

/// Seconds since 1970, now.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

/// The name of this machine's processor; empty where the system does not say.
pub fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or(String::new(), |(_, name)| name.trim().to_string())
}

/// This machine's name.
pub fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_string())
        .unwrap_or_default()
}

/// Events that are kept of a run: at one a second, those of three weeks.
pub const MOST_EVENTS: usize = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let start = |step| Event::Start {
            time: 1.5,
            pid: 7,
            host: "h".into(),
            device: "cpu".into(),
            step,
            total_steps: 9,
        };
        let step = Event::Step(StepEvent {
            step: 3,
            loss: Some(2.5),
            ..Default::default()
        });
        let graph = Event::Graph {
            time: 2.0,
            name: "train".into(),
            id: "ab".into(),
            loaded: true,
            seconds: 0.5,
            reason: None,
        };
        for events in [
            vec![start(0), Event::End { time: 3.0, step: 1 }],
            vec![start(1), graph.clone(), step.clone()],
        ] {
            let file = Telemetry::append_in(dir.path());
            events.iter().for_each(|event| file.clone().write(event));
        }
        let text = std::fs::read_to_string(dir.path().join(TELEMETRY_FILE)).unwrap();
        let read: Vec<Event> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read[2..], [start(1), graph, step]);
    }

    /// A killed process leaves its last account, and the next one writes behind it.
    #[test]
    fn the_account_stands_behind_the_events_and_stays_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TELEMETRY_FILE);
        let events = |text: &str| -> Vec<Event> {
            let lines = text.lines();
            lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        };
        let end = |step| Event::End { time: 1.0, step };
        let process = || {
            accounting::begin();
            let telemetry = Telemetry::append_in(dir.path());
            telemetry.write(&end(1));
            telemetry.write(&end(2));
            let first = events(&std::fs::read_to_string(&path).unwrap());
            let Event::Account(account) = &first[2] else {
                panic!("{first:?}");
            };
            assert_eq!((first.len(), &first[..2]), (3, &[end(1), end(2)][..]));
            // It grows by itself, in its place.
            loop {
                let later = events(&std::fs::read_to_string(&path).unwrap());
                let Event::Account(later) = &later[2] else {
                    panic!("{later:?}");
                };
                if later.wall_seconds > account.wall_seconds {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| scope.spawn(process).join().unwrap());
        // What was half written is gone.
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"event\":\"st");
        std::fs::write(&path, text).unwrap();
        std::thread::scope(|scope| {
            let closing = || {
                accounting::begin();
                close(dir.path(), "done");
            };
            scope.spawn(closing).join().unwrap();
        });
        let all = events(&std::fs::read_to_string(&path).unwrap());
        let Event::Account(last) = &all[3] else {
            panic!("{all:?}");
        };
        assert_eq!((all.len(), last.outcome.as_deref()), (4, Some("done")));
        assert!(matches!(&all[2], Event::Account(account) if account.outcome.is_none()));
    }

    /// The output directory is often on a network file system, and has a file of each rank.
    #[test]
    fn the_account_is_written_once_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TELEMETRY_FILE);
        let work = || {
            accounting::begin();
            let telemetry = Telemetry::append_in(dir.path());
            telemetry.write(&Event::End { time: 1.0, step: 1 });
            let began = std::time::Instant::now();
            let mut seen = std::collections::BTreeSet::new();
            while began.elapsed() < Duration::from_millis(1300) {
                seen.insert(std::fs::read_to_string(&path).unwrap());
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(seen.len() <= 3, "{} writes in 1.3 s", seen.len() - 1);
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }

    /// Numbers of an account have more digits or fewer.
    #[test]
    fn a_shorter_account_leaves_nothing_of_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TELEMETRY_FILE);
        let work = || {
            accounting::begin();
            let mut lines = Lines::open(&path, accounting::reader()).unwrap();
            lines
                .write(Some(&Event::End { time: 1.0, step: 1 }))
                .unwrap();
            let long = lines.length;
            // As if it had been far longer.
            lines.file.write_all_at(&[b'x'; 500], long).unwrap();
            lines.length = long + 500;
            lines.write(None).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.len() as u64, long + 500);
            let mut lines = text.lines();
            assert!(
                lines.all(|line| serde_json::from_str::<Event>(line).is_ok()),
                "{text}"
            );
            assert_eq!(text.lines().count(), 2, "{text}");
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }

    #[test]
    fn a_file_that_cannot_be_written_harms_nobody() {
        Telemetry::append_in(Path::new("/nowhere/at/all"))
            .write(&Event::End { time: 0.0, step: 0 });
    }
}
