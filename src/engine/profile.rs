//! Where a step's time goes, in the model's terms: what XLA's profiler saw of each HLO instruction,
//! summed by the part of the model that recorded it and by kind of operation.

use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use xtrain_report::table::Table;
use xtrain_runtime::ProfileEvent;
use xtrain_runtime::hlo::{self, Instruction};

/// Time of one kind of operation in one part of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The scope that recorded it, layers together: `transformer.h.*.mlp`.
    pub scope: String,
    /// An HLO opcode, the call of a kernel, or what a fusion computes last.
    pub kind: String,
    /// From the beginning of each operation to its end, on however many threads; those of operations
    /// side by side add up.
    pub time: Duration,
}

/// The parts of the profile of `modules` (optimized HLO), the longest first; events of nothing in
/// them are left out.
///
/// # Errors
/// If a module cannot be read.
pub fn parts(events: &[ProfileEvent], modules: &[Vec<u8>]) -> xtrain_runtime::Result<Vec<Part>> {
    let mut known: HashMap<String, (String, String)> = HashMap::new();
    for module in modules {
        let module = hlo::read(module)?;
        let Some(entry) = hlo::entry(&module) else {
            continue;
        };
        for instruction in &entry.instructions {
            known.insert(instruction.name.clone(), described(instruction));
        }
    }
    let mut sums: BTreeMap<(String, String), Duration> = BTreeMap::new();
    for event in events {
        if let Some(part) = known.get(&event.name) {
            *sums.entry(part.clone()).or_default() += event.time;
        }
    }
    let part = |((scope, kind), time)| Part { scope, kind, time };
    let mut parts: Vec<Part> = sums.into_iter().map(part).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.time));
    Ok(parts)
}

/// The scope and the kind of an instruction.
fn described(instruction: &Instruction) -> (String, String) {
    let path = instruction
        .metadata
        .as_ref()
        .map_or("", |metadata| &metadata.op_name);
    let (scope, operation) = path.rsplit_once('/').unwrap_or(("", path));
    let is_layer = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let words = scope.split(['/', '.']);
    let words: Vec<&str> = words
        .map(|word| if is_layer(word) { "*" } else { word })
        .collect();
    let scope = match words.join(".") {
        scope if scope.is_empty() => "(none)".to_string(),
        scope => scope,
    };
    let kind = match instruction.opcode.as_str() {
        "custom-call" => instruction.custom_call_target.clone(),
        "fusion" | "call" if !operation.is_empty() => format!("fusion: {operation}"),
        opcode => opcode.to_string(),
    };
    (scope, kind)
}

/// As `xtrain bench --json` prints it: milliseconds of one of `steps` steps.
pub fn json(parts: &[Part], steps: u32) -> Value {
    let part = |part: &Part| {
        json!({
            "scope": part.scope,
            "kind": part.kind,
            "ms": part.time.as_secs_f64() * 1e3 / f64::from(steps),
        })
    };
    parts.iter().map(part).collect()
}

/// For people: sums by kind, then the parts that take most.
pub fn table(profile: &Value) -> String {
    const MOST: usize = 40;
    let rows: Vec<(f64, &str, &str)> = (profile.as_array().into_iter().flatten())
        .filter_map(|part| {
            Some((
                part["ms"].as_f64()?,
                part["kind"].as_str()?,
                part["scope"].as_str()?,
            ))
        })
        .collect();
    let total: f64 = rows.iter().map(|(ms, ..)| ms).sum();
    let share = |ms: f64| format!("{:.1} %", 100.0 * ms / total);
    let mut by_kind: BTreeMap<&str, f64> = BTreeMap::new();
    rows.iter()
        .for_each(|(ms, kind, _)| *by_kind.entry(kind).or_default() += ms);
    let mut by_kind: Vec<(&str, f64)> = by_kind.into_iter().collect();
    by_kind.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut table = Table::new("rrll");
    table.heading(format!("{total:.1} ms of operations a step, by kind"));
    for (kind, ms) in by_kind.into_iter().take(MOST) {
        table.row([format!("{ms:.2} ms"), share(ms), kind.to_string()]);
    }
    table.heading("by part of the model");
    for (ms, kind, scope) in rows.into_iter().take(MOST) {
        table.row([
            format!("{ms:.2} ms"),
            share(ms),
            kind.to_string(),
            scope.to_string(),
        ]);
    }
    table.render()
}
