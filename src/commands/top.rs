//! `xtrain top`: watches runs through the files in their output directories, and the machine's
//! devices.

use super::{Error, Outcome};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::Duration;
use xtrain_config::Flags;
use xtrain_engine::failed;
use xtrain_report::runs::runs_in;
use xtrain_report::table::Table;
use xtrain_report::telemetry::TELEMETRY_FILE;
use xtrain_report::top::devices::Devices;
use xtrain_report::top::processes::Processes;
use xtrain_report::top::{Snapshot, draw};
use xtrain_report::{out, outln};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long one look waits for neuron-monitor's first report, of which there is one in five
/// seconds.
const REPORT: Duration = Duration::from_secs(8);
/// Between the two readings of counters that make a utilisation.
const SAMPLE: Duration = Duration::from_millis(300);

pub fn run(flags: &Flags) -> Result<Outcome, Error> {
    let named = flags.watched.iter().map(PathBuf::from);
    let mut watcher = Watcher {
        output_dirs: named.chain(flags.watched_dir.clone()).collect(),
        devices: Devices::new(flags.neuron_monitor.clone()),
        processes: Processes::default(),
    };
    if !*flags.once {
        return watch(&mut watcher);
    }
    watcher.devices.wait(REPORT);
    let mut snapshots = watcher.look()?;
    let counts = |snapshot: &Snapshot| {
        snapshot
            .hardware
            .iter()
            .any(|device| device.source == "sysfs")
            || snapshot.ranks.iter().any(|rank| rank.cpu.is_some())
    };
    if snapshots.iter().any(counts) {
        std::thread::sleep(SAMPLE);
        watcher.measure(&mut snapshots);
    }
    if *flags.json {
        let json = match &snapshots[..] {
            [one] => serde_json::to_string(one),
            several => serde_json::to_string(several),
        };
        outln!("{}", json.map_err(failed("writing JSON"))?);
    } else {
        let texts: Vec<String> = snapshots.iter().map(text).collect();
        out!("{}", texts.join("\n"));
    }
    Ok(Outcome::Done)
}

/// Looks at the runs and at this machine.
struct Watcher {
    output_dirs: Vec<PathBuf>,
    devices: Devices,
    processes: Processes,
}

impl Watcher {
    fn look(&mut self) -> Result<Vec<Snapshot>, Error> {
        let read = |dir: &PathBuf| {
            Snapshot::read(dir).map_err(|error| {
                Error::because(format!("{} holds no {TELEMETRY_FILE}", dir.display()), error)
                    .with_hint(
                        "name the --output_dir of a training run; it writes that file from its first step on",
                    )
            })
        };
        // Anew at each look: a sweep goes on to its next run.
        let started = |dir: &PathBuf| -> Vec<PathBuf> {
            let mut runs = runs_in(dir);
            runs.retain(|run| run == dir || run.join(TELEMETRY_FILE).is_file());
            if runs.is_empty() {
                vec![dir.clone()]
            } else {
                runs
            }
        };
        let dirs: Vec<PathBuf> = self.output_dirs.iter().flat_map(started).collect();
        let runs = dirs.iter().map(read);
        let mut snapshots = runs.collect::<Result<Vec<Snapshot>, Error>>()?;
        self.measure(&mut snapshots);
        Ok(snapshots)
    }

    /// Asks the machine, which all runs share.
    fn measure(&mut self, snapshots: &mut [Snapshot]) {
        let hardware = self.devices.read();
        for snapshot in snapshots {
            snapshot.hardware.clone_from(&hardware);
            self.processes.read(&mut snapshot.ranks);
        }
    }
}

fn text(snapshot: &Snapshot) -> String {
    let mut table = Table::pairs();
    table.heading(snapshot.output_dir.display().to_string());
    for (name, value) in snapshot.numbers() {
        table.pair(name, value);
    }
    if snapshot.ranks.len() > 1 {
        table.heading("ranks".to_string());
        for [rank, host, pid, step, state, cpu, memory] in snapshot.rank_rows() {
            let name = format!("rank {rank}");
            table.pair(
                name,
                format!("{state}, step {step}, {cpu} cores, {memory}, process {pid} on {host}"),
            );
        }
    }
    table.heading("devices".to_string());
    for [name, busy, used, peak, source] in snapshot.device_rows() {
        table.pair(
            name,
            format!("busy {busy}, memory {used}, peak {peak} (by {source})"),
        );
    }
    table.render()
}

/// Draws until q, Esc or Ctrl-C. The terminal is given back as it was, after an error and a panic
/// too.
fn watch(watcher: &mut Watcher) -> Result<Outcome, Error> {
    let mut snapshots = watcher.look()?;
    if !stdout().is_terminal() {
        return Err(Error::usage(
            "top draws on a terminal, and standard output is none",
            "add --once, and --json for programs",
        ));
    }
    let io = failed("drawing on the terminal");
    let mut terminal = ratatui::try_init().map_err(&io)?;
    let mut watch = || -> Result<(), Error> {
        loop {
            terminal
                .draw(|frame| draw(frame, &snapshots))
                .map_err(&io)?;
            if event::poll(INTERVAL).map_err(&io)?
                && let Event::Key(key) = event::read().map_err(&io)?
            {
                let interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
            }
            snapshots = watcher.look()?;
        }
    };
    let ended = watch();
    ratatui::restore();
    ended.map(|()| Outcome::Done)
}
