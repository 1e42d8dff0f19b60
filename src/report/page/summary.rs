//! A run in a few lines, for the terminal at its end.

use super::report::{Report, time};
use super::tables::metric_text;
use crate::runs::numbers::Metric;
use crate::terminal::folded;
use crate::units::{bytes, count};
use std::fmt::Write;

/// What the terminal shows of the first run when it has ended.
pub fn summary(report: &Report) -> String {
    let (run, numbers) = (&report.runs[0], &report.numbers[0]);
    let line = |name: &str, value: String, text: &mut String| {
        let _ = writeln!(text, "{name:<12} {}", folded(&value, 13));
    };
    let mut text = String::new();
    if let Some(wall) = numbers.wall_seconds {
        let mut parts: Vec<_> = numbers.parts.iter().collect();
        parts.retain(|part| part.seconds >= 0.01 * wall);
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let shares: Vec<String> = parts
            .iter()
            .map(|part| format!("{} {:.0}%", part.title, 100.0 * part.seconds / wall))
            .collect();
        let shares = match shares.as_slice() {
            [] => String::new(),
            shares => format!(": {}", shares.join(", ")),
        };
        line("time", format!("{}{shares}", time(wall)), &mut text);
    }
    let mut rates = Vec::new();
    rates.extend(
        numbers
            .tokens_per_second
            .map(|rate| format!("{} tokens/s", count(rate))),
    );
    rates.extend(
        numbers
            .mfu
            .map(|mfu| format!("{:.0}% of matmul peak", 100.0 * mfu)),
    );
    rates.extend(
        numbers
            .peak_memory
            .map(|peak| format!("{} at most", bytes(peak as u64))),
    );
    if !rates.is_empty() {
        line("speed", rates.join(", "), &mut text);
    }
    if let Some(metric) = deciding(&numbers.metrics) {
        line(&metric.key, metric_text(metric), &mut text);
    }
    // Without telemetry nobody knows of graphs.
    let graphs = numbers.graphs;
    if !numbers.parts.is_empty() || graphs.compiled + graphs.loaded > 0 {
        line(
            "graphs",
            format!(
                "{} compiled in {}, {} from the cache, {} recompiled",
                graphs.compiled,
                time(graphs.compile_seconds),
                graphs.loaded,
                graphs.recompiled
            ),
            &mut text,
        );
    }
    line("output", run.path.display().to_string(), &mut text);
    text
}

/// The metric that decides about a run, and its best value: the first of the evaluation, else the
/// loss of training.
pub fn result(report: &Report, run: usize) -> Option<(String, f64)> {
    let metric = deciding(&report.numbers[run].metrics)?;
    Some((metric.key.clone(), metric.best))
}

/// By this number the better of two runs comes first; runs without a result come last.
pub fn rank(report: &Report, run: usize) -> f64 {
    match deciding(&report.numbers[run].metrics) {
        Some(metric) if metric.greater_is_better => -metric.best,
        Some(metric) if !metric.best.is_nan() => metric.best,
        _ => f64::INFINITY,
    }
}

/// Tokens a second of a run.
pub fn speed(report: &Report, run: usize) -> Option<String> {
    report.numbers[run].tokens_per_second.map(count)
}

fn deciding(metrics: &[Metric]) -> Option<&Metric> {
    let evaluated = metrics.iter().find(|metric| metric.key != "loss");
    evaluated.or(metrics.first())
}
