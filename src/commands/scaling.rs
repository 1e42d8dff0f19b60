//! `xtrain scaling`: the same command at several degrees, each time in a process, as a user would run
//! it. Degrees take turns, so that a disturbance of the machine affects all of them.

mod child;

use super::output_file::check_output;
use super::{Error, Outcome};
use child::{Children, Stopped};
use serde_json::Value;
use std::path::Path;
use xtrain_checkpoint::named::write_named_bytes;
use xtrain_config::{Axis, ScaledRun, ScalingPlan, into_directory};
use xtrain_engine::failed;
use xtrain_report::runs::read;
use xtrain_report::scaling::{Exchange, Point, Scaling};
use xtrain_report::units::count;
use xtrain_report::{errln, out, outln};

/// One run's numbers.
struct Measured {
    tokens_per_second: f64,
    step_seconds: f64,
    exchanged: Option<Vec<Exchange>>,
    /// Of a training run.
    train_seconds: Option<f64>,
    epoch_seconds: Option<f64>,
}

pub fn run(plan: ScalingPlan) -> Result<Outcome, Error> {
    for (flag, path) in [("--plot", &plan.plot), ("--html", &plan.html)] {
        if let Some(path) = path {
            check_output(flag, path)?;
        }
    }
    let points = match points(&plan) {
        Ok(points) => points,
        Err(Stopped::Interrupted(signal)) => return Ok(Outcome::Interrupted { signal }),
        Err(Stopped::Failed(error)) => return Err(error),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let scaling = Scaling {
        axis: plan.axis.to_string(),
        fixed: plan.fixed,
        command: plan.command.join(" "),
        grows: !plan.shares_processor && plan.axis != Axis::DataloaderNumWorkers,
        shared_cores: (plan.shares_processor && plan.axis != Axis::DataloaderNumWorkers)
            .then_some(cores),
        points,
    };
    if plan.json {
        outln!("{}", scaling.json())
    } else {
        out!("{}", scaling.text())
    }
    let drawn = plan.plot.as_ref().map(|path| (path, scaling.svg()));
    let page = plan.html.as_ref().map(|path| (path, scaling.html()));
    for (path, text) in drawn.into_iter().chain(page) {
        write_named_bytes(path, text.as_bytes()).map_err(failed("saving the measurements"))?;
        errln!("written: {}", path.display());
    }
    Ok(Outcome::Done)
}

/// Every degree, measured as often as the plan says.
fn points(plan: &ScalingPlan) -> Result<Vec<Point>, Stopped> {
    let making = failed("making a directory for what the runs write");
    let scratch = tempfile::tempdir().map_err(making)?;
    let mut children = Children::new().map_err(failed("taking signals over"))?;
    let mut points: Vec<Point> = plan.runs.iter().map(point).collect();
    if plan.trains {
        for (run, point) in plan.runs.iter().zip(&mut points) {
            let place = place(plan, run);
            errln!("{place}: compiling, to see what is exchanged");
            point.exchanged = planned(run, &place, scratch.path(), &mut children)?;
        }
    }
    for repeat in 1..=plan.repeats {
        for (run, point) in plan.runs.iter().zip(&mut points) {
            let place = place(plan, run);
            let measured = measured(plan, run, &place, scratch.path(), &mut children)?;
            let rate = count(measured.tokens_per_second);
            errln!("{place}, run {repeat} of {}: {rate} tokens/s", plan.repeats);
            point.tokens_per_second.push(measured.tokens_per_second);
            point.step_seconds.push(measured.step_seconds);
            point.train_seconds.extend(measured.train_seconds);
            point.epoch_seconds.extend(measured.epoch_seconds);
            if let Some(exchanged) = measured.exchanged {
                point.exchanged = exchanged;
            }
        }
    }
    Ok(points)
}

fn point(run: &ScaledRun) -> Point {
    Point {
        degree: run.degree,
        devices: run.devices,
        max_steps: run.max_steps,
        examples_per_device: run.examples_per_device,
        examples_per_step: run.examples_per_step,
        ..Point::default()
    }
}

/// The exchanges that a training run plans.
fn planned(
    run: &ScaledRun,
    place: &str,
    scratch: &Path,
    children: &mut Children,
) -> Result<Vec<Exchange>, Stopped> {
    let mut words = into_directory(&run.words, &scratch.join("plan"));
    words.extend(["--dry_run".into(), "--json".into()]);
    let results = last_json(&children.run(&words, place)?);
    let problem = format!("{place}: the plan has no JSON");
    Ok(exchanges(&results.ok_or_else(|| Error::failed(problem))?))
}

/// Runs it once.
fn measured(
    plan: &ScalingPlan,
    run: &ScaledRun,
    place: &str,
    scratch: &Path,
    children: &mut Children,
) -> Result<Measured, Stopped> {
    let dir = scratch.join("run");
    let mut words = if plan.trains {
        into_directory(&run.words, &dir)
    } else {
        run.words.iter().cloned().chain(["--json".into()]).collect()
    };
    if run.processes > 1 {
        let processes = run.processes.to_string();
        let launch = ["launch", "--nproc_per_node", &processes, "--"];
        words.splice(..0, launch.map(str::to_string));
    }
    let output = children.run(&words, place)?;
    let measured = if plan.trains {
        from_directory(&dir)
    } else {
        from_bench(&output)
    };
    // The next run finds an empty directory, as the user's would.
    let _ = std::fs::remove_dir_all(&dir);
    let hint = "a run that ends after its first steps, as early stopping makes it, cannot be measured: leave that out of the command";
    let problem = format!("{place}: the run reported no step time");
    Ok(measured.ok_or_else(|| Error::failed(problem).with_hint(hint))?)
}

/// As messages name a run.
fn place(plan: &ScalingPlan, run: &ScaledRun) -> String {
    format!("{} {}", plan.axis, run.degree)
}

fn from_bench(output: &str) -> Option<Measured> {
    let results = last_json(output)?;
    Some(Measured {
        tokens_per_second: results["tokens_per_s"].as_f64()?,
        step_seconds: results["step_ms_median"].as_f64()? / 1e3,
        exchanged: Some(exchanges(&results)),
        train_seconds: None,
        epoch_seconds: None,
    })
}

/// The numbers of a training run's directory, over all steps but those of the first record.
fn from_directory(dir: &Path) -> Option<Measured> {
    let run = read(&[dir.to_path_buf()]).ok()?.pop()?;
    let process = run.processes.last()?;
    let (pace, last) = (process.later, &process.step);
    if pace.seconds <= 0.0 {
        return None;
    }
    let step_seconds = pace.seconds / pace.steps;
    let epoch_steps = (last.epoch > 0.0).then(|| last.step as f64 / last.epoch);
    Some(Measured {
        tokens_per_second: pace.tokens / pace.seconds,
        step_seconds,
        exchanged: None,
        train_seconds: run.summary.get("train_runtime").copied(),
        epoch_seconds: epoch_steps.map(|steps| steps * step_seconds),
    })
}

fn exchanges(results: &Value) -> Vec<Exchange> {
    results["exchanged_per_step"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Exchange::from_json)
        .collect()
}

/// The last line that is an object.
fn last_json(output: &str) -> Option<Value> {
    output
        .lines()
        .rev()
        .filter(|line| line.starts_with('{'))
        .find_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_report::telemetry::{Event, StepEvent, TELEMETRY_FILE};

    #[test]
    fn the_pace_leaves_out_the_first_step_and_compiling() {
        let dir = tempfile::tempdir().unwrap();
        let start = Event::Start {
            time: 0.0,
            pid: 1,
            host: String::new(),
            device: String::new(),
            step: 0,
            total_steps: 5,
        };
        let line = |step, step_seconds, tokens_per_second, compile_seconds| {
            Event::Step(StepEvent {
                step,
                step_seconds,
                tokens_per_second,
                compile_seconds,
                epoch: step as f64 / 10.0,
                ..Default::default()
            })
        };
        let measured = |events: &[Event]| {
            let lines = events
                .iter()
                .map(|e| serde_json::to_string(e).unwrap() + "\n");
            let text: String = lines.collect();
            std::fs::write(dir.path().join(TELEMETRY_FILE), text).unwrap();
            from_directory(dir.path())
        };
        // 100 tokens a step: the first takes ten seconds, the next four half a second, of which one
        // compiled for another half.
        let events = [
            start,
            line(1, 10.0, 10.0, 9.0),
            line(3, 0.5, 200.0, 0.0),
            line(5, 0.75, 100.0 / 0.75, 0.25),
        ];
        let found = measured(&events).unwrap();
        assert!(
            (found.tokens_per_second - 200.0).abs() < 1e-9
                && (found.step_seconds - 0.5).abs() < 1e-9
                && (found.epoch_seconds.unwrap() - 5.0).abs() < 1e-9
        );
        assert!(measured(&events[..2]).is_none());
    }

    #[test]
    fn json_is_found_below_other_lines() {
        let results = last_json(
            "note: x\n{'loss': 1}\n{\"exchanged_per_step\":[{\"kind\":\"all-reduce\",\"axis\":\"data\",\"bytes\":7}]}\n",
        );
        assert_eq!(exchanges(&results.unwrap())[0].bytes, 7);
        assert!(last_json("{'loss': 1}").is_none());
    }
}
