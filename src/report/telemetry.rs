//! `telemetry.jsonl`: how a run is going, for whoever watches it (`xtrain top`). Unlike
//! `log.jsonl`, whose lines are the same whenever a run is repeated or resumed, these tell of time,
//! memory and compiling, which never are.

use super::accounting;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// What the process is, once it is ready to train.
    Process(Box<ProcessEvent>),
    /// At most one a second, and the last step.
    Step(StepEvent),
    /// Where the time of the process went so far: now and then, and at its end.
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

/// What does not change while a process runs.
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
    /// This thread's account, if it has one.
    pub fn of_now(outcome: Option<&str>) -> Option<AccountEvent> {
        let account = accounting::account()?;
        let (time, wall_seconds) = (now(), account.wall.as_secs_f64());
        let parts = account.parts.iter();
        Some(AccountEvent {
            time,
            started: time - wall_seconds,
            wall_seconds,
            parts: parts
                .map(|(part, spent)| (part.key().to_string(), spent.as_secs_f64()))
                .collect(),
            outcome: outcome.map(str::to_string),
        })
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

/// What a device's allocator says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceMemoryUse {
    pub kind: String,
    pub bytes_in_use: i64,
    pub peak_bytes: Option<i64>,
    pub limit_bytes: Option<i64>,
}

/// The file, shared by everybody in the process who has something to tell. Trouble with it is
/// warned of once and costs the watcher, never the run.
#[derive(Clone)]
pub struct Telemetry(Arc<Mutex<Option<File>>>);

impl Telemetry {
    /// Opens the file of an output directory; a resumed run appends to it.
    pub fn append_in(output_dir: &Path) -> Telemetry {
        Telemetry::append_of_rank(output_dir, 0)
    }

    /// The same of the file of a process of a job.
    pub fn append_of_rank(output_dir: &Path, rank: usize) -> Telemetry {
        let path = output_dir.join(file_of_rank(rank));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| warn(&error));
        Telemetry(Arc::new(Mutex::new(file.ok())))
    }

    pub fn write(&self, event: &Event) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = file.as_mut() else { return };
        let written = serde_json::to_string(event).map_err(io::Error::from);
        // One write call: a reader sees whole lines, but for the moment of writing.
        if let Err(error) = written.and_then(|line| open.write_all((line + "\n").as_bytes())) {
            warn(&error);
            *file = None;
        }
    }
}

fn warn(error: &io::Error) {
    eprintln!(
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

/// The events of the process that took the run up last. Lines that are not whole or not known are
/// left out.
pub fn latest(text: &str) -> Vec<Event> {
    let events: Vec<Event> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let start = events
        .iter()
        .rposition(|event| matches!(event, Event::Start { .. }))
        .unwrap_or(0);
    events[start..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back_from_the_last_start() {
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
        let mut text = std::fs::read_to_string(dir.path().join(TELEMETRY_FILE)).unwrap();
        assert_eq!(text.lines().count(), 5);
        text.push_str("{\"event\":\"from the future\"}\n{\"event\":\"step\",\"ste");
        assert_eq!(latest(&text), [start(1), graph, step]);
        assert!(latest("").is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_written_harms_nobody() {
        Telemetry::append_in(Path::new("/nowhere/at/all"))
            .write(&Event::End { time: 0.0, step: 0 });
    }
}
