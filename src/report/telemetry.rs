//! `telemetry.jsonl`: how a run is going, for whoever watches it (`xtrain top`). Unlike
//! `log.jsonl`, whose lines are the same whenever a run is repeated or resumed, these tell of time,
//! memory and compiling, which never are.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the file in the output directory.
pub const TELEMETRY_FILE: &str = "telemetry.jsonl";

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
    /// At most one a second, and the last step.
    Step(StepEvent),
    /// A graph is there to be used.
    Graph {
        time: f64,
        name: String,
        id: String,
        loaded: bool,
        seconds: f64,
    },
    /// The process has ended the loop, by itself or by an error; a killed one says nothing.
    End { time: f64, step: u64 },
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
        let path = output_dir.join(TELEMETRY_FILE);
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
