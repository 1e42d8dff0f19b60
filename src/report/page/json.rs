//! The numbers of a report for programs.

use super::report::Report;
use super::tables::differing_settings;
use serde_json::{Map, Value, json};

/// The numbers, each run's under its name; what is not known is null.
pub fn json(report: &Report) -> Value {
    let runs: Vec<Value> = (0..report.runs.len())
        .map(|run| run_json(report, run))
        .collect();
    json!({
        "baseline": report.runs[report.baseline].name,
        "price_per_hour": report.price_per_hour,
        "throughput_unit": report.rate().map(|rate| rate.title),
        "settings_that_differ": differing_settings(report)
            .into_iter()
            .map(|(name, values)| (name, json!(values)))
            .collect::<Map<String, Value>>(),
        "runs": runs,
    })
}

fn run_json(report: &Report, index: usize) -> Value {
    let (run, numbers) = (&report.runs[index], &report.numbers[index]);
    let metrics = numbers.metrics.iter().map(|metric| {
        let best_step = Some(metric.best_step).filter(|step| step.is_finite());
        let value = json!({
            "last": metric.last,
            "best": metric.best,
            "best_step": best_step,
            "greater_is_better": metric.greater_is_better,
        });
        (metric.key.clone(), value)
    });
    let parts = numbers.parts.iter();
    let graphs = run.graphs.iter().map(|graph| {
        json!({
            "name": graph.name,
            "id": graph.id,
            "loaded": graph.loaded,
            "seconds": graph.seconds,
            "reason": graph.reason,
        })
    });
    let processes = run.processes.iter().map(|process| {
        json!({
            "host": process.facts.host,
            "started": process.started,
            "wall_seconds": process.wall(),
            "outcome": process.outcome,
            "attempt": process.facts.attempt,
            "command": process.facts.command,
        })
    });
    let price = report.price_per_hour;
    json!({
        "name": run.name,
        "path": run.path,
        "source": run.source.name(),
        "running": run.is_running,
        "records": run.records,
        "steps": numbers.steps,
        "total_steps": run.total_steps,
        "tokens": numbers.tokens,
        "flops": numbers.flops,
        "step_seconds": numbers.step_seconds,
        "tokens_per_second": numbers.tokens_per_second,
        "samples_per_second": numbers.samples_per_second,
        "steps_per_second": numbers.steps_per_second,
        "speedup": report.speedup(index),
        "mfu": numbers.mfu,
        "peak_tflops": run.facts().and_then(|facts| facts.peak_tflops),
        "peak_memory_bytes": numbers.peak_memory,
        "wall_seconds": numbers.wall_seconds,
        "billable_seconds": numbers.billable_seconds,
        "cost": price.and_then(|price| numbers.cost(price)),
        "cost_per_million_tokens": price
            .and_then(|price| numbers.cost_per_million_tokens(price)),
        "time": parts
            .map(|part| (part.key.to_string(), json!(part.seconds)))
            .collect::<Map<String, Value>>(),
        "metrics": metrics.collect::<Map<String, Value>>(),
        "summary": run.summary,
        "compiled_graphs": numbers.graphs.compiled,
        "recompiled_graphs": numbers.graphs.recompiled,
        "loaded_graphs": numbers.graphs.loaded,
        "compile_seconds": numbers.graphs.compile_seconds,
        "graphs": graphs.collect::<Vec<_>>(),
        "processes": processes.collect::<Vec<_>>(),
        "settings": run.settings,
        "problems": run.problems,
    })
}
