//! `xtrain sweep`: every run of a grid as a process of its own, in turn or several at a time, and
//! all of them in one report. A sweep that is started again skips finished runs and resumes
//! interrupted ones. The runs share the cache of compiled graphs, where two processes that need
//! the same graph compile it once.

use super::report::REPORT_FILE;
use super::{Error, Outcome};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xtrain_checkpoint::named::write_named_bytes;
use xtrain_checkpoint::{atomic, files};
use xtrain_config::{SweepPlan, SweptRun};
use xtrain_engine::failed;
use xtrain_launch::{Supervised, own_process};
use xtrain_report::ending::ending_signals;
use xtrain_report::memory;
use xtrain_report::page::{self, Report};
use xtrain_report::runs::checkpoints::newest_checkpoint;
use xtrain_report::runs::read;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, duration};
use xtrain_report::{errln, out};

/// The list of finished runs, in the sweep's directory.
const SWEEP_FILE: &str = "sweep.json";
/// Between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(50);
/// A run of a small model takes about so much; of a larger one more, which its first steps show.
const LEAST_MEMORY: u64 = 1 << 30;

/// The words of each run that was made to its end, by its name.
#[derive(Default, Serialize, Deserialize)]
struct Done(BTreeMap<String, Vec<String>>);

/// A run's process.
struct Running<'a> {
    run: &'a SweptRun,
    process: Supervised,
    began: Instant,
}

impl Done {
    /// The runs that an earlier sweep has finished; none if there was no sweep.
    fn read(path: &Path) -> Result<Done, Error> {
        let reading = |error: io::Error| {
            Error::because(format!("reading {}", path.display()), error).with_hint(
                "it lists the finished runs: fix it, remove it to make them again, or name another --output_dir",
            )
        };
        match files::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| reading(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Done::default()),
            Err(error) => Err(reading(error)),
        }
    }
}

/// How many of `runs` are made at a time where `asked` was asked for: no more than the machine has
/// cores and memory for, with a note about that.
fn at_a_time(
    asked: usize,
    runs: usize,
    cores: usize,
    free: Option<u64>,
) -> (usize, Option<String>) {
    let memory = free.map_or(usize::MAX, |free| (free / LEAST_MEMORY) as usize);
    let (wanted, most) = (asked.min(runs), cores.min(memory).max(1));
    if wanted <= most {
        return (wanted, None);
    }
    let limit = if cores <= memory {
        format!("it has {cores} cores")
    } else {
        let (free, least) = (bytes(free.unwrap_or(0)), bytes(LEAST_MEMORY));
        format!("{free} of memory are free, and a run takes {least} or more")
    };
    let note = format!("--jobs {asked}: this machine makes {most} at a time: {limit}");
    (most, Some(note))
}

pub fn run(plan: SweepPlan) -> Result<Outcome, Error> {
    fs::create_dir_all(&plan.output_dir).map_err(|error| {
        let dir = plan.output_dir.display();
        Error::because(format!("--output_dir: cannot create {dir}"), error)
            .with_hint("name a directory that you may write to")
    })?;
    let record = plan.output_dir.join(SWEEP_FILE);
    let mut done = Done::read(&record)?;
    let is_done = |run: &&SweptRun| done.0.get(&run.name) == Some(&run.words);
    let (finished, left): (Vec<_>, Vec<_>) = plan.runs.iter().partition(is_done);
    // Results of hours are not thrown away because a flag was typed otherwise.
    let is_kept = |run: &&&SweptRun| done.0.contains_key(&run.name) && !run.replaces;
    if let Some(run) = left.iter().find(is_kept) {
        let problem = format!(
            "{} was created with different flags",
            plan.output_dir.join(&run.name).display()
        );
        return Err(Error::usage(
            problem,
            "name another --output_dir, or add --overwrite_output_dir to the command to make such runs anew",
        ));
    }
    let (all, mut ended) = (plan.runs.len(), finished.len());
    if ended > 0 {
        errln!("{ended} of {all} runs are done");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (jobs, note) = at_a_time(plan.jobs, left.len(), cores, memory::available());
    if let Some(note) = note {
        errln!("note: {note}");
    }
    let mut waiting = left.into_iter();
    let mut signals = Signals::new(ending_signals()).map_err(failed("taking signals over"))?;
    let (mut running, mut failures): (Vec<Running>, Vec<String>) = Default::default();
    let mut interrupted = None;
    loop {
        while interrupted.is_none() && running.len() < jobs {
            let Some(run) = waiting.next() else { break };
            // An earlier sweep's run of this name with other flags no longer counts.
            let is_other = done.0.remove(&run.name).is_some();
            running.push(start(&plan.output_dir, run, is_other)?);
        }
        if running.is_empty() {
            break;
        }
        for signal in signals.pending() {
            // The first one lets runs save a checkpoint.
            let is_first = interrupted.replace(signal).is_none();
            for Running { process, .. } in &running {
                if is_first {
                    process.ask(SIGTERM);
                } else {
                    process.kill();
                }
            }
        }
        let mut still = Vec::new();
        for mut process in running {
            let status = process.process.try_end();
            let Some(status) = status.map_err(failed("waiting for a run"))? else {
                still.push(process);
                continue;
            };
            let name = &process.run.name;
            if status.success() {
                done.0.insert(name.clone(), process.run.words.clone());
                let text = serde_json::to_vec_pretty(&done).map_err(failed("writing JSON"))?;
                atomic::write_bytes(&record, &text).map_err(failed("writing sweep.json"))?;
                ended += 1;
                let result = result(&plan.output_dir.join(name));
                let took = duration(process.began.elapsed());
                errln!("[{ended}/{all}] {name}: {result}, {took}");
            } else if interrupted.is_none() {
                let log = log_path(&plan.output_dir, name);
                errln!(
                    "{name}: failed ({status}); its output is in {}",
                    log.display()
                );
                failures.push(name.clone());
            }
        }
        running = still;
        std::thread::sleep(PAUSE);
    }
    report(&plan, &done)?;
    if let Some(signal) = interrupted {
        errln!("stopped; the same command resumes here");
        return Ok(Outcome::Interrupted { signal });
    }
    if failures.is_empty() {
        return Ok(Outcome::Done);
    }
    let (count, names) = (failures.len(), failures.join("; "));
    Err(
        Error::failed(format!("{count} of {all} runs failed: {names}"))
            .with_hint("fix the errors in their .log files and rerun: finished runs are skipped"),
    )
}

fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}

/// Starts a run, from its last checkpoint if it has one.
fn start<'a>(dir: &Path, run: &'a SweptRun, is_other: bool) -> Result<Running<'a>, Error> {
    let own = dir.join(&run.name);
    let mut words = run.words.clone();
    words.push(format!("--output_dir={}", own.display()));
    words.push("--disable_tqdm=true".into());
    if !is_other && newest_checkpoint(&own, |_| true).is_some() {
        words.push("--resume_from_checkpoint=true".into());
    } else {
        words.push("--overwrite_output_dir=true".into());
    }
    let log = log_path(dir, &run.name);
    let starting = |error| Error::because(format!("starting {}", run.name), error);
    let mut options = OpenOptions::new();
    // A pipe that nobody reads is an error, and not waited for.
    let options = options.create(true).append(true);
    let open = options.custom_flags(libc::O_NONBLOCK).open(&log);
    let out = open.map_err(starting)?;
    let mut command = own_process(&words).map_err(starting)?;
    command
        .stdout(out.try_clone().map_err(starting)?)
        .stderr(out);
    Ok(Running {
        run,
        process: Supervised::start(command).map_err(starting)?,
        began: Instant::now(),
    })
}

/// How a finished run did, in a few words.
fn result(dir: &Path) -> String {
    let Ok(runs) = read(&[dir.to_path_buf()]) else {
        return "its numbers cannot be read".into();
    };
    let result = page::result(&Report::new(runs, 0, None), 0);
    result.map_or("done".into(), |(metric, best)| {
        format!("{metric} {best:.4}")
    })
}

/// All runs that are done, the best first, on standard output and as a page.
fn report(plan: &SweepPlan, done: &Done) -> Result<(), Error> {
    let names: Vec<&str> = plan
        .runs
        .iter()
        .filter(|run| done.0.contains_key(&run.name))
        .map(|run| run.name.as_str())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let paths: Vec<PathBuf> = names
        .iter()
        .map(|name| plan.output_dir.join(name))
        .collect();
    let runs = read(&paths).map_err(failed("reading the runs"))?;
    let report = Report::new(runs, 0, None);
    let mut order: Vec<usize> = (0..names.len()).collect();
    let rank = |place: &usize| page::rank(&report, *place);
    order.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
    let metric = page::result(&report, order[0]).map_or(String::new(), |(metric, _)| metric);
    let mut table = Table::new("lrr");
    table.row(["run", &*format!("best {metric}"), "tokens/s"]);
    for place in order {
        let best = page::result(&report, place).map(|(_, best)| format!("{best:.4}"));
        table.row([
            names[place].to_string(),
            best.unwrap_or_default(),
            page::speed(&report, place).unwrap_or_default(),
        ]);
    }
    out!("{}", table.render());
    let path = plan.output_dir.join(REPORT_FILE);
    let text = page::html(&report);
    write_named_bytes(&path, text.as_bytes()).map_err(failed("writing the report"))?;
    errln!("report in {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_a_time_are_bounded_by_the_machine() {
        let gib = |n: u64| Some(n << 30);
        assert_eq!(at_a_time(1, 9, 1, gib(0)), (1, None));
        assert_eq!(at_a_time(1_000_000, 3, 8, gib(64)), (3, None));
        assert_eq!(at_a_time(4, 9, 8, None), (4, None));
        let (most, note) = at_a_time(1_000_000, 10_000, 8, gib(64));
        let text = "--jobs 1000000: this machine makes 8 at a time: it has 8 cores";
        assert_eq!((most, note.as_deref()), (8, Some(text)));
        let (most, note) = at_a_time(16, 10_000, 128, gib(3));
        let limit = "3.0 GiB of memory are free, and a run takes 1.0 GiB or more";
        assert_eq!(most, 3);
        assert!(note.unwrap().ends_with(limit));
    }
}
