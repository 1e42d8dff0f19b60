//! What the pages say in tables.

use super::report::{Report, time};
use crate::runs::Source;
use crate::runs::numbers::Metric;
use crate::units::{bytes, count, exact};
use std::collections::{BTreeMap, BTreeSet};

/// Settings that always differ and explain nothing.
const PLACES: [&str; 5] = [
    "cache_dir",
    "output_dir",
    "overwrite_output_dir",
    "report",
    "resume_from_checkpoint",
];

/// The heading of the section on time, which has a drawing.
pub const TIMES: &str = "Where time went";

/// A heading with a table and sentences below it.
pub struct Section {
    pub title: &'static str,
    pub notes: Vec<String>,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Section {
    fn new(title: &'static str, header: &[&str]) -> Section {
        Section {
            title,
            notes: Vec::new(),
            header: header.iter().map(|cell| cell.to_string()).collect(),
            rows: Vec::new(),
        }
    }

    /// Without the columns that say nothing in any row.
    fn without_empty_columns(mut self) -> Section {
        for column in (0..self.header.len()).rev() {
            if self.rows.iter().all(|row| row[column].is_empty()) {
                self.header.remove(column);
                self.rows
                    .iter_mut()
                    .for_each(|row| drop(row.remove(column)));
            }
        }
        self
    }
}

/// In the order of the page; those that have nothing to say are left out.
pub fn sections(report: &Report) -> Vec<Section> {
    let all = [
        runs(report),
        metrics(report),
        times(report),
        settings(report),
        graphs(report),
        machines(report),
        problems(report),
    ];
    let says = |section: &Section| !section.rows.is_empty() || !section.notes.is_empty();
    all.into_iter().filter(says).collect()
}

fn runs(report: &Report) -> Section {
    let rate = report.rate().map_or("", |rate| rate.title);
    let compared = format!("{rate} vs. {}", report.runs[report.baseline].name);
    let header = [
        "run",
        "steps",
        "tokens",
        "FLOPs",
        "tokens/s",
        "samples/s",
        "steps/s",
        &compared,
        "MFU",
        "peak memory",
        "wall time",
        "billable s",
        "cost",
        "cost per M tokens",
        "read from",
    ];
    let mut section = Section::new("Runs", &header);
    for (index, (run, numbers)) in report.runs.iter().zip(&report.numbers).enumerate() {
        let text =
            |value: Option<f64>, form: &dyn Fn(f64) -> String| value.map_or(String::new(), form);
        let total = run
            .total_steps
            .filter(|total| numbers.steps.is_some_and(|s| s < *total));
        let steps = |steps: f64| match total {
            Some(total) => format!("{steps:.0} of {total:.0}"),
            None => format!("{steps:.0}"),
        };
        let state = if run.is_running { " (running)" } else { "" };
        let speedup = report.speedup(index).filter(|_| report.runs.len() > 1);
        let price = report.price_per_hour;
        section.rows.push(vec![
            format!("{}{state}", run.name),
            text(numbers.steps, &steps),
            text(numbers.tokens, &count),
            text(numbers.flops.filter(|flops| *flops > 0.0), &|flops| {
                format!("{flops:.3e}")
            }),
            text(numbers.tokens_per_second, &count),
            text(numbers.samples_per_second, &|rate| format!("{rate:.2}")),
            text(numbers.steps_per_second, &|rate| format!("{rate:.3}")),
            text(speedup, &relative),
            text(numbers.mfu, &|mfu| format!("{:.1}%", 100.0 * mfu)),
            text(numbers.peak_memory, &|peak| bytes(peak as u64)),
            text(numbers.wall_seconds, &time),
            text(numbers.billable_seconds, &|seconds| format!("{seconds:.1}")),
            text(price.and_then(|price| numbers.cost(price)), &|cost| {
                format!("{cost:.4}")
            }),
            text(
                price.and_then(|price| numbers.cost_per_million_tokens(price)),
                &|cost| format!("{cost:.4}"),
            ),
            run.source.name().to_string(),
        ]);
    }
    section.notes.push(
        "tokens/s and MFU: by the time in training steps, without compiling. samples/s and steps/s: as the Trainer counts them, by the \
         time of the whole loop. MFU: the model's FLOPs as a share of the measured matmul peak. billable s: whole processes times instances; \
         of a log, what SageMaker's SDK prints, else train_runtime."
            .into(),
    );
    section.without_empty_columns()
}

/// `+25.0%`, as a comparison with the baseline.
pub fn relative(ratio: f64) -> String {
    format!("{:+.1}%", 100.0 * (ratio - 1.0))
}

/// A metric on one line.
pub fn metric_text(metric: &Metric) -> String {
    let best = if metric.best_step.is_finite() {
        format!("best {:.4} at step {:.0}", metric.best, metric.best_step)
    } else {
        format!("best {:.4}", metric.best)
    };
    format!("{best}, last {:.4}", metric.last)
}

fn metrics(report: &Report) -> Section {
    let header = ["run", "metric", "last", "best", "at step", "best is"];
    let mut section = Section::new("Final metrics", &header);
    for (run, numbers) in report.runs.iter().zip(&report.numbers) {
        for metric in &numbers.metrics {
            let step = Some(metric.best_step).filter(|step| step.is_finite());
            section.rows.push(vec![
                run.name.clone(),
                metric.key.clone(),
                format!("{:.4}", metric.last),
                format!("{:.4}", metric.best),
                step.map_or(String::new(), |step| format!("{step:.0}")),
                if metric.greater_is_better {
                    "largest"
                } else {
                    "smallest"
                }
                .into(),
            ]);
        }
    }
    section.without_empty_columns()
}

fn times(report: &Report) -> Section {
    let known: Vec<usize> = (0..report.runs.len())
        .filter(|run| !report.numbers[*run].parts.is_empty())
        .collect();
    let names = known.iter().map(|run| report.runs[*run].name.as_str());
    let header: Vec<&str> = std::iter::once("part").chain(names).collect();
    let mut section = Section::new(TIMES, &header);
    let Some(first) = known.first() else {
        return section;
    };
    let cell = |seconds: f64, run: usize| {
        let wall = report.numbers[run].wall_seconds.unwrap_or(f64::INFINITY);
        format!("{seconds:.2} s ({:.1}%)", 100.0 * seconds / wall)
    };
    for (place, part) in report.numbers[*first].parts.iter().enumerate() {
        let seconds = |run: &usize| report.numbers[*run].parts[place].seconds;
        if known.iter().any(|run| seconds(run) > 0.0) {
            let cells = known.iter().map(|run| cell(seconds(run), *run));
            section.rows.push(
                std::iter::once(part.title.to_string())
                    .chain(cells)
                    .collect(),
            );
        }
    }
    let walls = known.iter().map(|run| {
        let wall = report.numbers[*run].wall_seconds.unwrap_or(f64::NAN);
        format!("{wall:.2} s")
    });
    section.rows.push(
        std::iter::once("wall time".to_string())
            .chain(walls)
            .collect(),
    );
    section
}

/// Settings with another value in some run, each with the values in the order of runs. Only runs
/// that say their settings count.
pub fn differing_settings(report: &Report) -> Vec<(String, Vec<Option<String>>)> {
    let names: BTreeSet<&String> = report
        .runs
        .iter()
        .flat_map(|run| run.settings.keys())
        .collect();
    let of = |name: &str| -> Vec<Option<String>> {
        report
            .runs
            .iter()
            .map(|run| run.settings.get(name).cloned())
            .collect()
    };
    let differs = |values: &[Option<String>]| {
        let known = report.runs.iter().zip(values).filter(|(run, value)| {
            // xtrain says all of its settings: one that it leaves out is not set.
            let says_all = run.source == Source::Directory && !run.settings.is_empty();
            says_all || value.is_some()
        });
        let values: BTreeSet<_> = known.map(|(_, value)| value).collect();
        values.len() > 1
    };
    names
        .into_iter()
        .filter(|name| !PLACES.contains(&name.as_str()))
        .map(|name| (name.clone(), of(name)))
        .filter(|(_, values)| differs(values))
        .collect()
}

fn settings(report: &Report) -> Section {
    let names = report.runs.iter().map(|run| run.name.as_str());
    let header: Vec<&str> = std::iter::once("setting").chain(names).collect();
    let mut section = Section::new("Settings that differ", &header);
    for (name, values) in differing_settings(report) {
        let values = values.into_iter().map(Option::unwrap_or_default);
        section
            .rows
            .push(std::iter::once(name).chain(values).collect());
    }
    if report.runs.len() > 1 && section.rows.is_empty() {
        section
            .notes
            .push("none of the settings that the runs left on disk".into());
    }
    section.without_empty_columns()
}

fn graphs(report: &Report) -> Section {
    let header = [
        "run",
        "graph",
        "id",
        "how",
        "seconds",
        "why it was compiled again",
    ];
    let mut section = Section::new("Compiled graphs", &header);
    for run in &report.runs {
        // A resumed run loads the same graphs again.
        let mut uses: BTreeMap<_, (usize, f64)> = BTreeMap::new();
        for graph in &run.graphs {
            let key = (
                &*graph.name,
                &*graph.id,
                graph.loaded,
                graph.reason.as_deref(),
            );
            let (times, seconds) = uses.entry(key).or_default();
            *times += 1;
            *seconds += graph.seconds;
        }
        for ((name, id, loaded, reason), (times, seconds)) in uses {
            let how = if loaded { "from the cache" } else { "compiled" };
            let times = if times > 1 {
                format!(" {times} times")
            } else {
                String::new()
            };
            section.rows.push(vec![
                run.name.clone(),
                name.into(),
                id.get(..12).unwrap_or(id).into(),
                format!("{how}{times}"),
                format!("{seconds:.2}"),
                reason.unwrap_or_default().into(),
            ]);
        }
    }
    section.without_empty_columns()
}

fn machines(report: &Report) -> Section {
    let header = [
        "run",
        "host",
        "processor",
        "cores",
        "memory",
        "device",
        "devices",
        "processes",
        "instances",
        "parameters",
        "versions",
    ];
    let mut section = Section::new("Machine, versions, command line", &header);
    for run in &report.runs {
        let Some(facts) = run.facts() else { continue };
        let versions = facts
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"));
        let number = |n: usize| if n > 0 { n.to_string() } else { String::new() };
        section.rows.push(vec![
            run.name.clone(),
            facts.host.clone(),
            facts.cpu.clone(),
            number(facts.cores),
            facts.memory_bytes.map_or(String::new(), bytes),
            facts.device.clone(),
            number(facts.devices),
            number(facts.processes),
            number(facts.instances),
            exact(facts.parameters),
            versions.collect::<Vec<_>>().join(", "),
        ]);
        // Too long for a column.
        let command = facts.command.join(" ");
        section.notes.push(format!("{}: {command}", run.name));
    }
    section.without_empty_columns()
}

fn problems(report: &Report) -> Section {
    let mut section = Section::new("What could not be read", &[]);
    for run in &report.runs {
        let named = run
            .problems
            .iter()
            .map(|problem| format!("{}: {problem}.", run.name));
        section.notes.extend(named);
    }
    section
}
