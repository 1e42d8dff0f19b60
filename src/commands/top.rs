//! `xtrain top`: watches a run through the files in its output directory, and the machine's
//! devices.

use super::{Error, Outcome};
use crate::config::TopPlan;
use crate::engine::failed;
use crate::report::table::Table;
use crate::report::telemetry::TELEMETRY_FILE;
use crate::report::top::devices::Devices;
use crate::report::top::{Snapshot, draw};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long one look waits for neuron-monitor's first report, of which there is one in five
/// seconds.
const REPORT: Duration = Duration::from_secs(8);
/// Between the two readings of counters that make a utilisation.
const SAMPLE: Duration = Duration::from_millis(300);

pub fn run(plan: TopPlan) -> Result<Outcome, Error> {
    let mut devices = Devices::new(plan.neuron_monitor.clone());
    if plan.once {
        devices.wait(REPORT);
    }
    let mut snapshot = look(&plan, &mut devices)?;
    if !plan.once {
        return watch(&plan, &mut devices, snapshot);
    }
    if snapshot
        .hardware
        .iter()
        .any(|device| device.source == "sysfs")
    {
        std::thread::sleep(SAMPLE);
        snapshot.hardware = devices.read();
    }
    match plan.json {
        true => println!(
            "{}",
            serde_json::to_string(&snapshot).map_err(failed("writing JSON"))?
        ),
        false => print!("{}", text(&snapshot)),
    }
    Ok(Outcome::Done)
}

fn look(plan: &TopPlan, devices: &mut Devices) -> Result<Snapshot, Error> {
    let mut snapshot = Snapshot::read(&plan.output_dir).map_err(|error| {
        Error::because(
            format!("{} holds no {TELEMETRY_FILE}", plan.output_dir.display()),
            error,
        )
        .with_hint(
            "name the --output_dir of a training run; it writes that file from its first step on",
        )
    })?;
    snapshot.hardware = devices.read();
    Ok(snapshot)
}

fn text(snapshot: &Snapshot) -> String {
    let mut table = Table::pairs();
    table.heading(snapshot.output_dir.display().to_string());
    for (name, value) in snapshot.numbers() {
        table.pair(name, value);
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
fn watch(plan: &TopPlan, devices: &mut Devices, first: Snapshot) -> Result<Outcome, Error> {
    if !stdout().is_terminal() {
        return Err(Error::usage(
            "top draws on a terminal, and standard output is none",
            "add --once, and --json for programs",
        ));
    }
    let io = failed("drawing on the terminal");
    let mut terminal = ratatui::try_init().map_err(&io)?;
    let mut snapshot = first;
    let mut watch = || -> Result<(), Error> {
        loop {
            terminal.draw(|frame| draw(frame, &snapshot)).map_err(&io)?;
            if event::poll(INTERVAL).map_err(&io)?
                && let Event::Key(key) = event::read().map_err(&io)?
            {
                let interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
            }
            snapshot = look(plan, devices)?;
        }
    };
    let ended = watch();
    ratatui::restore();
    ended.map(|()| Outcome::Done)
}
