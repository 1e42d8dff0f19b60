//! What follows from a run: totals, rates, time by part, cost, the metrics with their best steps.

use super::{DEVICE_MEMORY, Point, Process, Run};
use crate::accounting::Part;
use std::collections::BTreeMap;

/// The part that is in no process: between the end of one and the start of the next.
pub const RESTARTS: &str = "restarts";

/// One part of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct PartTime {
    pub key: &'static str,
    pub title: &'static str,
    pub seconds: f64,
}

/// A loss or a metric of evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// As it is logged.
    pub key: String,
    pub last: f64,
    pub best: f64,
    /// Where the best was first reached; NaN if that is not known.
    pub best_step: f64,
    pub greater_is_better: bool,
}

/// The compiled graphs of all processes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Compiled {
    pub compiled: usize,
    pub compile_seconds: f64,
    pub loaded: usize,
    pub load_seconds: f64,
    /// Compiled though another version had been.
    pub recompiled: usize,
}

/// The numbers of one run. `None` where the run's files do not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    pub steps: Option<f64>,
    pub tokens: Option<f64>,
    pub flops: Option<f64>,
    /// Seconds in training steps, without compiling.
    pub step_seconds: Option<f64>,
    /// Tokens by `step_seconds`.
    pub tokens_per_second: Option<f64>,
    /// The Trainer's: by the time of the whole loop, with compiling, evaluating and saving.
    pub samples_per_second: Option<f64>,
    pub steps_per_second: Option<f64>,
    /// FLOPs by `step_seconds`, as a share of the measured matmul peak.
    pub mfu: Option<f64>,
    /// From the start of the first process (or its launcher) to the end of the last, without the
    /// time between runs that somebody resumed by hand.
    pub wall_seconds: Option<f64>,
    /// What SageMaker charged, or every process's whole time by the number of instances.
    pub billable_seconds: Option<f64>,
    /// Add up to `wall_seconds`; empty where no process wrote an account.
    pub parts: Vec<PartTime>,
    pub metrics: Vec<Metric>,
    pub graphs: Compiled,
    /// Highest that the devices' allocators reported, in bytes.
    pub peak_memory: Option<f64>,
}

impl Numbers {
    pub fn of(run: &Run) -> Numbers {
        let summary = |key: &str| run.summary.get(key).copied().filter(|x| *x > 0.0);
        let sum = |of: fn(&Process) -> f64| -> Option<f64> {
            let total: f64 = run.processes.iter().map(of).sum();
            (total > 0.0).then_some(total)
        };
        let step_seconds = sum(|process| process.step_seconds);
        let (tokens, flops) = (sum(|process| process.tokens), sum(|process| process.flops));
        let per_step_second = |count: Option<f64>| Some(count? / step_seconds?);
        let (wall, billable, parts) = time(run);
        let runtime = summary("train_runtime");
        let seen = run
            .series
            .values()
            .flatten()
            .map(|point| point.place.tokens);
        let seen = seen.filter(|tokens| *tokens > 0.0).reduce(f64::max);
        let steps = Some(run.last_step).filter(|step| step.is_finite());
        let facts = run.facts();
        let examples = || {
            let per_step = facts?.examples_per_step as f64;
            Some(sum(|process| process.steps)? * per_step / step_seconds?)
        };
        let peak = facts.and_then(|facts| facts.peak_tflops);
        let memory = run.points(DEVICE_MEMORY).iter();
        Numbers {
            steps,
            tokens: seen.or(tokens),
            flops: run.summary.get("total_flos").copied().or(flops),
            step_seconds,
            tokens_per_second: per_step_second(tokens)
                .or_else(|| summary("train_tokens_per_second"))
                .or_else(|| Some(seen? / runtime?)),
            samples_per_second: summary("train_samples_per_second").or_else(examples),
            steps_per_second: summary("train_steps_per_second")
                .or_else(|| per_step_second(sum(|process| process.steps))),
            mfu: per_step_second(flops)
                .zip(peak)
                .filter(|(_, peak)| *peak > 0.0)
                .map(|(rate, peak)| rate / (peak * 1e12)),
            wall_seconds: wall.or(runtime),
            billable_seconds: run.billable_seconds.or(billable).or(runtime),
            parts,
            metrics: metrics(run),
            graphs: compiled(run),
            peak_memory: memory.map(|point| point.value).reduce(f64::max),
        }
    }

    /// What the run cost at this price of an instance's hour.
    pub fn cost(&self, price_per_hour: f64) -> Option<f64> {
        Some(self.billable_seconds? / 3600.0 * price_per_hour)
    }

    pub fn cost_per_million_tokens(&self, price_per_hour: f64) -> Option<f64> {
        Some(self.cost(price_per_hour)? / (self.tokens? / 1e6))
    }
}

/// Processes that one launcher started, or one that nobody did.
struct Job<'r> {
    began: f64,
    processes: Vec<&'r Process>,
}

fn jobs(run: &Run) -> Vec<Job<'_>> {
    let mut jobs: Vec<Job> = Vec::new();
    for process in &run.processes {
        let launched = process.facts.launched;
        match jobs.last_mut() {
            Some(job) if launched == Some(job.began) => job.processes.push(process),
            _ => jobs.push(Job {
                // A clock that was set back must not make the start negative.
                began: launched.unwrap_or(process.started).min(process.started),
                processes: vec![process],
            }),
        }
    }
    jobs
}

/// Wall time, billable time and the parts of the wall time.
fn time(run: &Run) -> (Option<f64>, Option<f64>, Vec<PartTime>) {
    let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
    let (mut wall, mut billable) = (0.0, 0.0);
    let has_accounts = run
        .processes
        .iter()
        .any(|process| !process.parts.is_empty());
    for job in jobs(run) {
        let mut until = job.began;
        for (index, process) in job.processes.iter().enumerate() {
            let part = if index == 0 {
                Part::Start.key()
            } else {
                RESTARTS
            };
            *seconds.entry(part).or_default() += (process.started - until).max(0.0);
            until = process.last.max(until);
            if process.parts.is_empty() {
                *seconds.entry(Part::Rest.key()).or_default() += process.wall();
            }
            for (key, spent) in &process.parts {
                if let Some(part) = Part::ALL.iter().find(|part| part.key() == key) {
                    *seconds.entry(part.key()).or_default() += spent;
                }
            }
        }
        let instances = job.processes.iter().map(|process| process.facts.instances);
        wall += until - job.began;
        billable += (until - job.began) * instances.max().unwrap_or(1).max(1) as f64;
    }
    let titles = Part::ALL.iter().map(|part| (part.key(), part.title()));
    let parts = titles.chain([(RESTARTS, "restarts")]);
    let parts = parts.map(|(key, title)| PartTime {
        key,
        title,
        seconds: seconds.get(key).copied().unwrap_or(0.0),
    });
    (
        (wall > 0.0).then_some(wall),
        (billable > 0.0).then_some(billable),
        parts.filter(|_| has_accounts).collect(),
    )
}

fn compiled(run: &Run) -> Compiled {
    let mut compiled = Compiled::default();
    for graph in &run.graphs {
        let (count, seconds) = if graph.loaded {
            (&mut compiled.loaded, &mut compiled.load_seconds)
        } else {
            (&mut compiled.compiled, &mut compiled.compile_seconds)
        };
        *count += 1;
        *seconds += graph.seconds;
        compiled.recompiled += usize::from(graph.reason.is_some());
    }
    compiled
}

/// Whether a series is a loss or a metric, not a setting or a time.
pub fn is_metric(key: &str) -> bool {
    let is_time = key.ends_with("_runtime")
        || key.ends_with("_per_second")
        || key.ends_with("_time")
        || key == "eval_samples";
    key == "loss" || key == "perplexity" || (key.starts_with("eval_") && !is_time)
}

/// Whether a larger value of a metric is better.
fn greater_is_better(key: &str) -> bool {
    let lower = [
        "loss",
        "perplexity",
        "mse",
        "mae",
        "rmse",
        "error",
        "wer",
        "cer",
    ];
    !lower.iter().any(|word| key.ends_with(word))
}

fn metrics(run: &Run) -> Vec<Metric> {
    let logged = run.series.keys().map(String::as_str);
    let results = run.summary.keys().map(String::as_str);
    let mut keys: Vec<&str> = logged.chain(results).filter(|key| is_metric(key)).collect();
    keys.sort_by_key(|key| (*key != "loss", *key != "eval_loss", key.to_string()));
    keys.dedup();
    let metric = |key: &&str| {
        let greater = greater_is_better(key);
        let mut points: Vec<Point> = run.points(key).to_vec();
        // What was evaluated after the last step.
        if let Some(value) = run.summary.get(*key) {
            let mut place = super::Place::UNKNOWN;
            place.step = run.last_step;
            points.push(Point {
                place,
                value: *value,
            });
        }
        let is_better = |a: f64, b: f64| if greater { a > b } else { a < b };
        let best = points.iter().copied().reduce(|best, point| {
            if is_better(point.value, best.value) {
                point
            } else {
                best
            }
        })?;
        Some(Metric {
            key: key.to_string(),
            last: points.last()?.value,
            best: best.value,
            best_step: best.place.step,
            greater_is_better: greater,
        })
    };
    keys.iter().filter_map(metric).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Place, Source};
    use super::*;
    use crate::telemetry::ProcessEvent;

    fn process(started: f64, last: f64, launched: Option<f64>) -> Process {
        Process {
            started,
            last,
            facts: ProcessEvent {
                launched,
                instances: 2,
                ..ProcessEvent::default()
            },
            parts: BTreeMap::from([("steps_device".to_string(), last - started)]),
            ..Process::default()
        }
    }

    #[test]
    fn a_restarted_job_is_billed_as_a_whole() {
        let mut run = Run::new("x".into(), Source::Directory);
        run.processes = vec![
            process(101.0, 110.0, Some(100.0)),
            process(113.0, 120.0, Some(100.0)),
            // Resumed by hand a day later.
            process(90_000.0, 90_010.0, None),
        ];
        let numbers = Numbers::of(&run);
        assert_eq!(numbers.wall_seconds, Some(30.0));
        assert_eq!(numbers.billable_seconds, Some(60.0));
        assert_eq!(numbers.cost(6.0), Some(0.1));
        let of = |key| {
            let part = numbers.parts.iter().find(|part| part.key == key);
            part.unwrap().seconds
        };
        assert_eq!(
            (of("start"), of(RESTARTS), of("steps_device")),
            (1.0, 3.0, 26.0)
        );
        assert_eq!(
            numbers.parts.iter().map(|part| part.seconds).sum::<f64>(),
            30.0
        );
    }

    #[test]
    fn the_best_value_has_its_step() {
        let mut run = Run::new("x".into(), Source::Log);
        for (step, loss, accuracy) in [(1.0, 3.0, 0.5), (2.0, 2.0, 0.75), (3.0, 2.5, 0.5)] {
            let place = Place {
                step,
                ..Place::UNKNOWN
            };
            let values = [
                ("eval_loss", loss),
                ("eval_accuracy", accuracy),
                ("eval_runtime", 1.0),
            ];
            run.add(place, values.map(|(key, value)| (key.to_string(), value)));
        }
        let metrics = Numbers::of(&run).metrics;
        let found: Vec<_> = metrics
            .iter()
            .map(|metric| (&*metric.key, metric.last, metric.best, metric.best_step))
            .collect();
        assert_eq!(
            found,
            [
                ("eval_loss", 2.5, 2.0, 2.0),
                ("eval_accuracy", 0.5, 0.75, 2.0)
            ]
        );
    }
}
