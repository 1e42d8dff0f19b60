//! xtrain's output directory: `log.jsonl`, `telemetry.jsonl` and the results files.

use super::log::{note_left_out, number};
use super::{DEVICE_MEMORY, GraphUse, Place, Point, Process, Run, Source, interpolated};
use crate::accounting::Part;
use crate::records::LOG_FILE;
use crate::telemetry::{
    Event, MOST_EVENTS, ProcessEvent, StepEvent, TELEMETRY_FILE, file_of_rank, host,
};
use crate::{files, json};
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::Path;

/// Passes the values of a file's lines on, one by one. Lines that are no JSON are left out and noted; a
/// last line without its end is still being written. A missing file has no lines.
fn each_line<T: serde::de::DeserializeOwned>(
    run: &mut Run,
    name: &str,
    mut take: impl FnMut(&mut Run, T),
) {
    let lines = match files::lines(&run.path.join(name)) {
        Ok(lines) => lines,
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => return run.problems.push(format!("{name}: {error}")),
    };
    let (mut first, mut count) = (0, 0);
    for (index, line) in lines.enumerate() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return run.problems.push(format!("{name}: {error}")),
        };
        match json::of_line(&line.bytes) {
            Some(value) => take(run, value),
            None if line.bytes.trim_ascii().is_empty() => {}
            None if !line.has_ended => run.problems.push(format!(
                "{name}: the last line is incomplete; the run may still be writing it"
            )),
            None => {
                first = if count == 0 { index + 1 } else { first };
                count += 1;
            }
        }
    }
    if count > 0 {
        let lines = if count == 1 { "line is" } else { "lines are" };
        run.problems.push(format!(
            "{name}: {count} {lines} damaged and left out, the first is line {first}"
        ));
    }
}

/// Reads the telemetry of one process of a job.
pub fn read_rank(dir: &Path, rank: usize) -> Run {
    let mut run = Run::new(dir.into(), Source::Directory);
    telemetry(&mut run, &file_of_rank(rank));
    run
}

/// Reads a directory that has a log or telemetry.
pub fn read(dir: &Path) -> Run {
    let mut run = read_rank(dir, 0);
    if run.processes.is_empty() {
        run.problems.push(format!(
            "there is no {TELEMETRY_FILE}: time, tokens, memory and where the time went are not known"
        ));
    }
    let known = |of: fn(&Place) -> f64, run: &Run| -> Vec<(f64, f64)> {
        let steps = run.points("tokens_per_second").iter();
        let steps = steps.map(|point| (point.place.step, of(&point.place)));
        std::iter::once((0.0, 0.0)).chain(steps).collect()
    };
    let tokens = known(|place| place.tokens, &run);
    let seconds = known(|place| place.seconds, &run);
    let mut not_finite = 0;
    each_line(&mut run, LOG_FILE, |run, record: Map<String, Value>| {
        let of = |key: &str| record.get(key).and_then(number).unwrap_or(f64::NAN);
        let step = of("step");
        let place = Place {
            step,
            epoch: of("epoch"),
            tokens: interpolated(&tokens, step),
            seconds: interpolated(&seconds, step),
        };
        let values = record
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), number(value)?)));
        not_finite += run.add(place, values);
        if record.contains_key("eval_loss") {
            run.evaluation = Some(record);
        }
    });
    if run.records == 0 {
        run.problems.push(format!("{LOG_FILE} has no record yet"));
    }
    note_left_out(&mut run, not_finite);
    for name in ["eval_results.json", "train_results.json"] {
        let results = files::read(&dir.join(name)).ok();
        let results = results.and_then(|text| json::from_slice::<Map<String, Value>>(&text).ok());
        for (key, value) in results.into_iter().flatten() {
            if let Some(value) = value.as_f64().filter(|_| key != "epoch") {
                run.summary.entry(key).or_insert(value);
            }
        }
    }
    run
}

/// The events of the run that was begun last, and of the processes that resumed it.
fn of_last_run(events: Vec<Event>) -> Vec<Event> {
    let starts = events.iter().enumerate().filter_map(|(index, event)| {
        let is_start = matches!(event, Event::Start { step: 0, .. });
        is_start.then_some(index)
    });
    // A job that failed before its first checkpoint starts anew, and is the same run.
    let is_restart = |start: usize| {
        let later = events[start + 1..].iter();
        let own = later.take_while(|event| !matches!(event, Event::Start { .. }));
        let mut facts = own.filter_map(|event| match event {
            Event::Process(facts) => Some(facts),
            _ => None,
        });
        facts.next().is_some_and(|facts| facts.attempt > 0)
    };
    let first = starts.rev().find(|start| !is_restart(*start));
    events.into_iter().skip(first.unwrap_or(0)).collect()
}

fn telemetry(run: &mut Run, name: &str) {
    let (mut events, mut too_many) = (Vec::new(), 0);
    each_line(run, name, |_, event: Event| {
        if events.len() == MOST_EVENTS {
            // The first one begins the run.
            too_many += events.drain(1..MOST_EVENTS / 2).count();
        }
        events.push(event);
    });
    if too_many > 0 {
        run.problems.push(format!(
            "{name}: {too_many} events after the first are left out: there are more than {MOST_EVENTS}"
        ));
    }
    let events = of_last_run(events);
    let this_host = host();
    // Seconds of the processes before.
    let mut before = 0.0;
    for event in events {
        if let Event::Start {
            time,
            pid,
            host: started_on,
            device,
            step,
            total_steps,
        } = event
        {
            before += run.processes.last().map_or(0.0, Process::wall);
            run.forget_from(|place| place.step > step as f64);
            run.last_step = step as f64;
            run.total_steps = Some(total_steps as f64);
            run.is_running = started_on == this_host && Path::new(&format!("/proc/{pid}")).exists();
            run.processes.push(Process {
                pid,
                host: started_on,
                started: time,
                last: time,
                recorded: time,
                facts: ProcessEvent {
                    device: device.clone(),
                    ..ProcessEvent::default()
                },
                device,
                step: StepEvent {
                    step,
                    total_steps,
                    ..StepEvent::default()
                },
                earlier_graphs: run.graphs.len(),
                ..Process::default()
            });
            continue;
        }
        let Some(process) = run.processes.last_mut() else {
            continue;
        };
        match event {
            Event::Start { .. } => {}
            Event::Process(facts) => {
                process.started = facts.started;
                process.last = process.last.max(facts.time);
                process.recorded = facts.time;
                run.settings = facts.settings.clone();
                process.facts = *facts;
            }
            Event::Step(step) => take_step(run, &step, before),
            Event::Graph {
                time,
                name,
                id,
                loaded,
                seconds,
                reason,
            } => {
                process.last = process.last.max(time);
                process.recorded = time;
                run.graphs.push(GraphUse {
                    name,
                    id,
                    loaded,
                    seconds,
                    reason,
                });
            }
            Event::Account(account) => {
                process.started = account.started;
                process.last = process.last.max(account.time);
                process.parts = account.parts;
                process.outcome = account.outcome;
                if process.outcome.is_some() {
                    process.recorded = account.time;
                }
                run.is_running &= process.outcome.is_none();
            }
            Event::End { time, .. } => {
                process.last = process.last.max(time);
                (process.recorded, process.has_ended) = (time, true);
            }
        }
    }
    for process in &mut run.processes {
        let known: f64 = process.parts.values().sum();
        // A killed process is known to have lived longer than its last account.
        if !process.parts.is_empty() && process.wall() > known {
            let rest = process.parts.entry(Part::Rest.key().into()).or_default();
            *rest += process.last - process.started - known;
        }
    }
}

fn take_step(run: &mut Run, step: &StepEvent, before: f64) {
    let Some(process) = run.processes.last_mut() else {
        return;
    };
    process.last = process.last.max(step.time);
    let place = Place {
        step: step.step as f64,
        epoch: step.epoch,
        tokens: if step.total_tokens > 0.0 {
            step.total_tokens
        } else {
            f64::NAN
        },
        seconds: before + step.time - process.started,
    };
    let steps = (step.step as f64 - run.last_step.max(0.0)).max(0.0);
    let seconds = steps * (step.step_seconds - step.compile_seconds);
    let tokens = steps * step.tokens_per_second * step.step_seconds;
    if process.steps > 0.0 {
        process.later.steps += steps;
        process.later.tokens += tokens;
        process.later.seconds += seconds;
    }
    process.steps += steps;
    process.step_seconds += seconds;
    process.tokens += tokens;
    process.flops += steps * step.model_tflops * 1e12 * step.step_seconds;
    run.last_step = place.step;
    process.recorded = step.time;
    let loss = step.loss.map(|loss| (place.step, loss));
    process.curve.extend(loss);
    process.step = step.clone();
    let mut add = |key: &str, value: f64| {
        let point = Point { place, value };
        run.series.entry(key.into()).or_default().push(point);
    };
    add("tokens_per_second", step.tokens_per_second);
    add("model_tflops", step.model_tflops);
    let in_use = step.devices.iter().map(|device| device.bytes_in_use);
    let memory = in_use.fold(0, i64::saturating_add);
    let peak: i64 = step
        .devices
        .iter()
        .filter_map(|device| device.peak_bytes)
        .fold(0, i64::saturating_add);
    // The memory in use at a record only shows whether the next step has begun.
    let most = if peak > 0 { peak } else { memory };
    if most > 0 {
        add(DEVICE_MEMORY, most as f64);
    }
}
