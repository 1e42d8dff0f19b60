//! The state of a run, from the files that it writes.

use super::devices::DeviceUse;
use crate::report::records::LOG_FILE;
use crate::report::telemetry::{Event, StepEvent, TELEMETRY_FILE, file_of_rank, host, latest, now};
use crate::report::{files, json};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

/// Losses that are kept for the curve.
const CURVE: usize = 600;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Finished,
    /// It ended before its last step, or its process is gone.
    Stopped,
    /// It runs elsewhere, if at all.
    #[default]
    Unknown,
}

/// A run at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    pub output_dir: PathBuf,
    pub state: State,
    pub device: String,
    pub pid: u32,
    /// The latest step record; fields that it lacks are zero.
    #[serde(flatten)]
    pub step: StepEvent,
    /// Until the last step, at the present pace.
    pub seconds_left: Option<f64>,
    /// Since the run's last record.
    pub seconds_silent: f64,
    pub graphs: Graphs,
    /// The last evaluation, as it was logged.
    pub eval: Option<Map<String, Value>>,
    /// The evaluation with the smallest loss.
    pub best_eval: Option<BestEval>,
    /// The processes of the run, the first one first.
    pub ranks: Vec<Rank>,
    /// Steps with their losses, oldest first, without what is not finite.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
    /// The same of evaluations.
    #[serde(skip)]
    pub eval_curve: Vec<(f64, f64)>,
    /// Of this machine; the run's own figures where the machine tells nothing.
    pub hardware: Vec<DeviceUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BestEval {
    pub step: u64,
    pub loss: f64,
}

/// A process of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rank {
    pub rank: usize,
    pub host: String,
    pub pid: u32,
    pub state: State,
    pub step: u64,
    pub step_seconds: f64,
    /// Since its last record.
    pub seconds_silent: f64,
    /// Processors that it keeps busy; `None` on another machine.
    pub cpu: Option<f64>,
    /// Resident; as above.
    pub memory_bytes: Option<u64>,
}

/// What the cache of compiled graphs did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graphs {
    pub compiled: u64,
    pub compile_seconds: f64,
    pub loaded: u64,
    pub load_seconds: f64,
    /// In their order.
    pub events: Vec<String>,
}

impl Snapshot {
    /// Reads a run's directory. Only a directory without telemetry is an error: there is no run to
    /// show.
    pub fn read(output_dir: &Path) -> io::Result<Snapshot> {
        let (events, now) = (latest(&output_dir.join(TELEMETRY_FILE))?, now());
        let log = files::lines(&output_dir.join(LOG_FILE));
        let records = log.into_iter().flatten().map_while(Result::ok);
        let records = records.filter_map(|line| json::of_line(&line.bytes));
        let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        let mut snapshot = Snapshot::of(output_dir, &events, records, now, lives);
        let processes = events.iter().rev().find_map(|event| match event {
            Event::Process(process) => Some(process.processes),
            _ => None,
        });
        // What an earlier, larger job left is none of this run.
        for rank in ranks_in(output_dir, processes.unwrap_or(1)) {
            let Ok(events) = latest(&output_dir.join(file_of_rank(rank))) else {
                continue;
            };
            let other = Snapshot::of(output_dir, &events, [], now, lives);
            let process = other.ranks.into_iter();
            snapshot
                .ranks
                .extend(process.map(|process| Rank { rank, ..process }));
        }
        Ok(snapshot)
    }

    /// From events and log, at a time; `lives` says whether there is a process of this number here.
    fn of(
        output_dir: &Path,
        events: &[Event],
        records: impl IntoIterator<Item = Map<String, Value>>,
        now: f64,
        lives: impl Fn(u32) -> bool,
    ) -> Snapshot {
        let mut snapshot = Snapshot {
            output_dir: output_dir.into(),
            ..Snapshot::default()
        };
        let (mut ended, mut is_here, mut last) = (false, false, now);
        let mut on = String::new();
        for event in events {
            match event {
                Event::Start {
                    time,
                    pid,
                    host: started_on,
                    device,
                    step,
                    total_steps,
                } => {
                    (snapshot.pid, snapshot.device) = (*pid, device.clone());
                    (snapshot.step.step, snapshot.step.total_steps) = (*step, *total_steps);
                    (is_here, last) = (*started_on == host(), *time);
                    on = started_on.clone();
                }
                Event::Step(step) => {
                    snapshot
                        .curve
                        .extend(step.loss.map(|loss| (step.step as f64, loss)));
                    last = step.time;
                    snapshot.step = step.clone();
                }
                Event::Graph {
                    time,
                    name,
                    id,
                    loaded,
                    seconds,
                    ..
                } => {
                    snapshot.graphs.add(name, id, *loaded, *seconds);
                    last = *time;
                }
                Event::End { time, .. } => (ended, last) = (true, *time),
                Event::Process(process) => last = process.time,
                // Written whether the run gets on or not, until it ends.
                Event::Account(account) => {
                    if account.outcome.is_some() {
                        last = account.time;
                    }
                }
            }
        }
        let step = &snapshot.step;
        let is_done = step.total_steps > 0 && step.step >= step.total_steps;
        snapshot.state = if is_done && ended {
            State::Finished
        } else if ended || (is_here && !lives(snapshot.pid)) {
            State::Stopped
        } else if is_here {
            State::Running
        } else {
            State::Unknown
        };
        if snapshot.state == State::Running && step.step_seconds > 0.0 {
            snapshot.seconds_left =
                Some(step.total_steps.saturating_sub(step.step) as f64 * step.step_seconds);
        }
        snapshot.seconds_silent = (now - last).max(0.0);
        snapshot.ranks.push(Rank {
            rank: 0,
            host: on,
            pid: snapshot.pid,
            state: snapshot.state,
            step: snapshot.step.step,
            step_seconds: snapshot.step.step_seconds,
            seconds_silent: snapshot.seconds_silent,
            ..Rank::default()
        });
        let is_eval = |record: &Map<String, Value>| record.contains_key("eval_loss");
        for record in records.into_iter().filter(is_eval) {
            let number = |key: &str| record.get(key).and_then(Value::as_f64);
            if let (Some(loss), Some(step)) = (number("eval_loss"), number("step")) {
                snapshot.eval_curve.push((step, loss));
                if snapshot.best_eval.is_none_or(|best| loss < best.loss) {
                    let step = step as u64;
                    snapshot.best_eval = Some(BestEval { step, loss });
                }
            }
            snapshot.eval = Some(record);
        }
        for curve in [&mut snapshot.curve, &mut snapshot.eval_curve] {
            // Every n-th is enough to draw.
            let stride = curve.len().div_ceil(CURVE).max(1);
            *curve = curve.iter().copied().step_by(stride).collect();
        }
        snapshot
    }
}

/// The ranks of a run of `processes` processes, but for the first one, that have a file. The number is
/// from a file: it may be anything.
fn ranks_in(output_dir: &Path, processes: usize) -> BTreeSet<usize> {
    let entries = std::fs::read_dir(output_dir)
        .into_iter()
        .flatten()
        .flatten();
    let rank = |entry: DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let rank = name
            .strip_prefix("telemetry.rank-")?
            .strip_suffix(".jsonl")?;
        rank.parse()
            .ok()
            .filter(|rank| (1..processes).contains(rank))
    };
    entries.filter_map(rank).collect()
}

impl Graphs {
    fn add(&mut self, name: &str, id: &str, loaded: bool, seconds: f64) {
        let (count, time) = if loaded {
            (&mut self.loaded, &mut self.load_seconds)
        } else {
            (&mut self.compiled, &mut self.compile_seconds)
        };
        *count += 1;
        *time += seconds;
        let verb = if loaded { "loaded" } else { "compiled" };
        self.events.push(format!(
            "{verb} {name} in {seconds:.1} s ({})",
            id.get(..12).unwrap_or(id)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::telemetry::ProcessEvent;

    fn start(host: String) -> Event {
        Event::Start {
            time: 100.0,
            pid: 42,
            host,
            device: "cpu".into(),
            step: 0,
            total_steps: 10,
        }
    }

    fn step(time: f64, step: u64) -> Event {
        Event::Step(StepEvent {
            time,
            step,
            total_steps: 10,
            loss: Some(4.0),
            step_seconds: 2.0,
            ..Default::default()
        })
    }

    fn snapshot(events: &[Event], lives: bool) -> Snapshot {
        Snapshot::of(
            Path::new("out"),
            events,
            [
                r#"{"eval_loss":3.25,"step":2}"#,
                r#"{"eval_loss":null,"step":3}"#,
                r#"{"eval_loss":3.5,"step":4}"#,
            ]
            .map(|line| serde_json::from_str(line).unwrap()),
            110.0,
            |pid| pid == 42 && lives,
        )
    }

    #[test]
    fn the_state_follows_from_the_last_process() {
        let running = [start(host()), step(104.0, 4)];
        let found = snapshot(&running, true);
        assert_eq!(
            (found.state, found.step.step, found.seconds_left),
            (State::Running, 4, Some(12.0))
        );
        assert_eq!(found.seconds_silent, 6.0);
        assert_eq!(found.eval.unwrap()["eval_loss"], 3.5);
        assert_eq!(found.eval_curve, [(2.0, 3.25), (4.0, 3.5)]);
        let best = BestEval {
            step: 2,
            loss: 3.25,
        };
        assert_eq!(found.best_eval, Some(best));
        let own = &found.ranks[0];
        assert_eq!(
            (own.rank, own.pid, own.step, &own.host),
            (0, 42, 4, &host())
        );
        assert_eq!(snapshot(&running, false).state, State::Stopped);
        let ended = |step: u64| {
            [
                &running[..],
                &[self::step(105.0, step), Event::End { time: 105.0, step }],
            ]
            .concat()
        };
        assert_eq!(snapshot(&ended(10), false).state, State::Finished);
        assert_eq!(snapshot(&ended(7), true).state, State::Stopped);
        assert_eq!(
            snapshot(&[start("elsewhere".into()), step(104.0, 4)], true).state,
            State::Unknown
        );
    }

    #[test]
    fn a_run_has_the_ranks_that_left_files() {
        let dir = tempfile::tempdir().unwrap();
        let process = |processes| {
            Event::Process(Box::new(ProcessEvent {
                processes,
                ..ProcessEvent::default()
            }))
        };
        let write = |rank: usize, events: &[Event]| {
            let lines = events.iter().map(|e| serde_json::to_string(e).unwrap());
            let text: Vec<String> = lines.collect();
            std::fs::write(dir.path().join(file_of_rank(rank)), text.join("\n")).unwrap();
        };
        let ranks = || -> Vec<usize> {
            let ranks = Snapshot::read(dir.path()).unwrap().ranks;
            ranks.iter().map(|rank| rank.rank).collect()
        };
        for rank in [2, 10, 3] {
            write(rank, &[start(host())]);
        }
        // A number that no machine has files for is not counted to.
        for (processes, expected) in [(4, vec![0, 2, 3]), (usize::MAX, vec![0, 2, 3, 10])] {
            write(0, &[start(host()), process(processes)]);
            assert_eq!(ranks(), expected);
        }
    }

    #[test]
    fn graphs_are_counted_by_how_they_came() {
        let graph = |loaded, seconds| Event::Graph {
            time: 101.0,
            name: "train".into(),
            id: "0123456789abcdef".into(),
            loaded,
            seconds,
            reason: None,
        };
        let found = snapshot(&[start(host()), graph(false, 3.5), graph(true, 0.5)], true).graphs;
        assert_eq!(
            (
                found.compiled,
                found.compile_seconds,
                found.loaded,
                found.load_seconds
            ),
            (1, 3.5, 1, 0.5)
        );
        assert_eq!(
            found.events,
            [
                "compiled train in 3.5 s (0123456789ab)",
                "loaded train in 0.5 s (0123456789ab)"
            ]
        );
    }

    #[test]
    fn long_runs_are_thinned_out() {
        let events: Vec<Event> = (0..5000).map(|i| step(100.0, i)).collect();
        let curve = snapshot(&events, true).curve;
        assert!(
            curve.len() <= CURVE && curve[0] == (0.0, 4.0),
            "{}",
            curve.len()
        );
    }
}
