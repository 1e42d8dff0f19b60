//! `xtrain bench`: times training steps on random tokens, beside the device's peak FLOP/s.

use super::{Error, Outcome};
use serde_json::Value;
use std::time::Duration;
use xtrain_config::BenchPlan;
use xtrain_engine::{bench, bench_generation, profile};
use xtrain_report::scaling::Exchange;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, duration, exact};
use xtrain_report::{out, outln};

pub fn run(plan: BenchPlan) -> Result<Outcome, Error> {
    let generates = *plan.train.flags.generate;
    let results = if generates {
        bench_generation(&plan)?
    } else {
        bench(&plan)?
    };
    if *plan.train.flags.json {
        outln!("{results}");
    } else if generates {
        out!("{}", table_of_generation(&results));
    } else {
        out!("{}", table(&results));
        if let Some(profile) = results.get("profile") {
            out!("{}", profile::table(profile));
        }
    }
    Ok(Outcome::Done)
}

/// The results for a person; `--json` has all their digits.
fn table(results: &Value) -> String {
    let number = |name: &str| results[name].as_f64().unwrap_or_default();
    let text = |name: &str| results[name].as_str().unwrap_or_default().to_string();
    let seconds = |seconds: f64| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let milliseconds = |name: &str| seconds(number(name) / 1e3);
    let megabytes = |name: &str| bytes((number(name) * 1e6) as u64);
    let mut table = Table::pairs();
    table.pair(
        "step",
        format!(
            "{} ({} to {})",
            milliseconds("step_ms_median"),
            milliseconds("step_ms_min"),
            milliseconds("step_ms_max")
        ),
    );
    let rate = exact(number("tokens_per_s").round() as u64);
    table.pair("throughput", format!("{rate} tokens/s"));
    table.pair(
        "model",
        format!(
            "{} TFLOP/s, {:.1}% of the matmul peak of {} TFLOP/s",
            significant(number("model_tflops")),
            100.0 * number("fraction_of_ceiling"),
            significant(number("ceiling_tflops"))
        ),
    );
    table.pair("precision", text("precision"));
    let kernels = results["kernels"].as_array().into_iter().flatten();
    for kernel in kernels.filter_map(Value::as_str) {
        table.pair("kernel", kernel);
    }
    let checkpointing = text("gradient_checkpointing");
    if checkpointing != "off" {
        table.pair("recomputed", checkpointing);
    }
    table.pair(
        "processor",
        format!("{} a step", milliseconds("cpu_ms_median")),
    );
    table.pair(
        "host",
        format!("{} to start a step", milliseconds("trace_ms")),
    );
    table.pair(
        "start",
        format!(
            "{} to the first step, {} to its end",
            seconds(number("startup_s")),
            seconds(number("first_step_s"))
        ),
    );
    table.pair(
        "graphs",
        format!(
            "{} compiled in {}, {} loaded in {}",
            number("compiled_graphs"),
            seconds(number("compile_s")),
            number("loaded_graphs"),
            seconds(number("load_s"))
        ),
    );
    let device = match number("peak_device_mb") {
        0.0 => String::new(),
        _ => format!(", {} on the device", megabytes("peak_device_mb")),
    };
    table.pair(
        "memory",
        format!("{} of the process{device}", megabytes("peak_rss_mb")),
    );
    table.pair(
        "loss",
        format!(
            "{:.4} at first, {:.4} at last",
            number("loss_first"),
            number("loss_last")
        ),
    );
    let exchanged = results["exchanged_per_step"]
        .as_array()
        .into_iter()
        .flatten();
    for Exchange {
        kind,
        axis,
        bytes: size,
    } in exchanged.filter_map(Exchange::from_json)
    {
        table.pair(
            "exchanged",
            format!("{} in {kind} over {axis}", bytes(size)),
        );
    }
    table.render()
}

/// The results of generating, for a person.
fn table_of_generation(results: &Value) -> String {
    let number = |name: &str| results[name].as_f64();
    let milliseconds = |name: &str| {
        let seconds = number(name).unwrap_or_default() / 1e3;
        duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    };
    let rate = |name: &str| exact(number(name).unwrap_or_default().round() as u64);
    let mut table = Table::pairs();
    table.pair(
        "prompt",
        format!(
            "{}, {} tokens/s",
            milliseconds("prefill_ms"),
            rate("prefill_tokens_per_s")
        ),
    );
    table.pair(
        "token",
        format!(
            "{} ({} to {})",
            milliseconds("token_ms_median"),
            milliseconds("token_ms_min"),
            milliseconds("token_ms_max")
        ),
    );
    table.pair("throughput", format!("{} tokens/s", rate("tokens_per_s")));
    let read = [
        "read_mb",
        "read_gb_per_s",
        "fraction_of_memory",
        "memory_gb_per_s",
    ]
    .map(number);
    if let [Some(megabytes), Some(read), Some(fraction), Some(memory)] = read {
        table.pair(
            "read",
            format!(
                "{} a token, {} GB/s, {:.0}% of the {} GB/s that the threads read from memory",
                bytes((megabytes * 1e6) as u64),
                significant(read),
                100.0 * fraction,
                significant(memory)
            ),
        );
    }
    table.pair(
        "precision",
        results["precision"].as_str().unwrap_or_default(),
    );
    let memory = (number("peak_rss_mb").unwrap_or_default() * 1e6) as u64;
    table.pair("memory", format!("{} of the process", bytes(memory)));
    table.render()
}

/// Three digits, wherever they begin.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_readable() {
        let results = json!({
            "precision": "f32", "gradient_checkpointing": "off", "step_ms_median": 38.215_421_487_603_3,
            "step_ms_min": 37.9, "step_ms_max": 1_240.123_456_7, "cpu_ms_median": 75.93, "tokens_per_s": 13_397.728,
            "model_tflops": 0.123_456_789_012_345, "ceiling_tflops": 1.234_567_890_123_45, "fraction_of_ceiling": 0.1,
            "compile_s": 0.81, "startup_s": 0.4, "first_step_s": 1.2, "peak_device_mb": 0.0, "peak_rss_mb": 512.0,
            "trace_ms": 0.052, "loss_first": 10.824_905_395_507_812, "loss_last": 10.8, "compiled_graphs": 1,
            "loaded_graphs": 2, "load_s": 0.1,
            "exchanged_per_step": [{"kind": "all-reduce", "axis": "data", "bytes": 3 << 20}],
        });
        let text = table(&results);
        for line in [
            "step        38.2 ms (37.9 ms to 1.2 s)",
            "throughput  13,398 tokens/s",
            "model       0.123 TFLOP/s, 10.0% of the matmul peak of 1.23 TFLOP/s",
            "exchanged   3.0 MiB in all-reduce over data",
            "loss        10.8249 at first, 10.8000 at last",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let digits = |word: &str| word.chars().filter(char::is_ascii_digit).count();
        assert!(
            text.split_whitespace().all(|word| digits(word) <= 6),
            "{text}"
        );
        assert!(!text.contains('_'), "{text}");
    }
}
