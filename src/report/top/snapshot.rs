//! The state of a run, from the files that it writes.

use super::devices::DeviceUse;
use crate::files;
use crate::runs::{GraphUse, Process, Run, directory};
use crate::telemetry::{StepEvent, TELEMETRY_FILE, host, now};
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

/// The graphs that were compiled and loaded.
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
        files::open(&output_dir.join(TELEMETRY_FILE))?;
        let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        let (run, now) = (directory::read(output_dir), now());
        let mut snapshot = Snapshot::of(&run, now, lives);
        // The files that an earlier, larger job left are none of this run.
        let processes = run.processes.last().map_or(1, |last| last.facts.processes);
        for rank in ranks_in(output_dir, processes) {
            let other = directory::read_rank(output_dir, rank);
            let process = other.processes.last();
            let process = process.map(|process| Rank::of(rank, process, now, lives));
            snapshot.ranks.extend(process);
        }
        Ok(snapshot)
    }

    /// A run at a time; `lives` says whether there is a process of this number here.
    fn of(run: &Run, now: f64, lives: impl Fn(u32) -> bool) -> Snapshot {
        let none = Process {
            recorded: now,
            ..Process::default()
        };
        let process = run.processes.last().unwrap_or(&none);
        let rank = Rank::of(0, process, now, lives);
        let step = process.step.clone();
        let has_pace = rank.state == State::Running && step.step_seconds > 0.0;
        let left = step.total_steps.saturating_sub(step.step) as f64 * step.step_seconds;
        let evaluated: Vec<(f64, f64)> = run
            .points("eval_loss")
            .iter()
            .map(|point| (point.place.step, point.value))
            .collect();
        let best = evaluated.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        // Every n-th is enough to draw.
        let thinned = |curve: &[(f64, f64)]| {
            let stride = curve.len().div_ceil(CURVE).max(1);
            curve.iter().copied().step_by(stride).collect()
        };
        let mut graphs = Graphs::default();
        run.graphs[process.earlier_graphs..]
            .iter()
            .for_each(|graph| graphs.add(graph));
        Snapshot {
            output_dir: run.path.clone(),
            state: rank.state,
            device: process.device.clone(),
            pid: process.pid,
            seconds_left: has_pace.then_some(left),
            seconds_silent: rank.seconds_silent,
            graphs,
            eval: run.evaluation.clone(),
            best_eval: best.map(|(step, loss)| BestEval {
                step: *step as u64,
                loss: *loss,
            }),
            ranks: vec![rank],
            curve: thinned(&process.curve),
            eval_curve: thinned(&evaluated),
            hardware: Vec::new(),
            step,
        }
    }
}

impl Rank {
    fn of(rank: usize, process: &Process, now: f64, lives: impl Fn(u32) -> bool) -> Rank {
        let step = &process.step;
        let is_done = step.total_steps > 0 && step.step >= step.total_steps;
        let is_here = process.host == host();
        let state = if is_done && process.has_ended {
            State::Finished
        } else if process.has_ended || (is_here && !lives(process.pid)) {
            State::Stopped
        } else if is_here {
            State::Running
        } else {
            State::Unknown
        };
        Rank {
            rank,
            host: process.host.clone(),
            pid: process.pid,
            state,
            step: step.step,
            step_seconds: step.step_seconds,
            seconds_silent: (now - process.recorded).max(0.0),
            ..Rank::default()
        }
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
    fn add(&mut self, graph: &GraphUse) {
        let GraphUse {
            name, id, seconds, ..
        } = graph;
        let (count, time) = if graph.loaded {
            (&mut self.loaded, &mut self.load_seconds)
        } else {
            (&mut self.compiled, &mut self.compile_seconds)
        };
        *count += 1;
        *time += seconds;
        let verb = if graph.loaded { "loaded" } else { "compiled" };
        self.events.push(format!(
            "{verb} {name} in {seconds:.1} s ({})",
            id.get(..12).unwrap_or(id)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::LOG_FILE;
    use crate::telemetry::{Event, ProcessEvent, file_of_rank};

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

    fn write(dir: &Path, rank: usize, events: &[Event]) {
        let lines = events
            .iter()
            .map(|e| serde_json::to_string(e).unwrap() + "\n");
        std::fs::write(dir.join(file_of_rank(rank)), lines.collect::<String>()).unwrap();
    }

    fn snapshot(events: &[Event], lives: bool) -> Snapshot {
        let dir = tempfile::tempdir().unwrap();
        let log = "{\"eval_loss\":3.25,\"step\":2}\n{\"eval_loss\":null,\"step\":3}\n{\"eval_loss\":3.5,\"step\":4}\n";
        std::fs::write(dir.path().join(LOG_FILE), log).unwrap();
        write(dir.path(), 0, events);
        Snapshot::of(&directory::read(dir.path()), 110.0, |pid| {
            pid == 42 && lives
        })
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
        let ranks = || -> Vec<usize> {
            let ranks = Snapshot::read(dir.path()).unwrap().ranks;
            ranks.iter().map(|rank| rank.rank).collect()
        };
        for rank in [2, 10, 3] {
            write(dir.path(), rank, &[start(host())]);
        }
        // A number that no machine has files for is not counted to.
        for (processes, expected) in [(4, vec![0, 2, 3]), (usize::MAX, vec![0, 2, 3, 10])] {
            write(dir.path(), 0, &[start(host()), process(processes)]);
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
        let steps = (0..5000).map(|i| step(100.0, i));
        let events: Vec<Event> = [start(host())].into_iter().chain(steps).collect();
        let curve = snapshot(&events, true).curve;
        assert!(
            curve.len() <= CURVE && curve[0] == (0.0, 4.0),
            "{}",
            curve.len()
        );
    }
}
