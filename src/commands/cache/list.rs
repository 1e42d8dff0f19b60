//! `cache ls` and `cache stats`: reads headers only.

use super::entries::{all, short};
use crate::Error;
use serde_json::{Value, json};
use std::time::Duration;
use xtrain_cache::{Content, DEVICE, Listed, Store, age};
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, count, duration};
use xtrain_report::{out, outln};

pub fn list(store: &Store, as_json: bool) -> Result<(), Error> {
    let entries = all(store)?;
    if as_json {
        outln!("{}", Value::Array(entries.iter().map(describe).collect()));
        return Ok(());
    }
    let mut table = Table::new("lllllrrrr");
    table.row([
        "id",
        "device",
        "graph",
        "model",
        "shapes",
        "size",
        "compiled in",
        "age",
        "uses",
    ]);
    for entry in &entries {
        let id = short(&entry.id).to_string();
        let (size, uses) = (bytes(entry.file_bytes), entry.uses.to_string());
        match &entry.header {
            Ok(header) => table.row([
                id,
                header.key.value(DEVICE).unwrap_or_default().to_string(),
                header.phase.clone(),
                model(&header.origin.model_type, header.origin.parameters),
                header.feeds.first().cloned().unwrap_or_default(),
                size,
                if header.compile_seconds > 0.0 {
                    format!("{:.1} s", header.compile_seconds)
                } else {
                    "-".into()
                },
                duration(age(header.created)),
                uses,
            ]),
            Err(damage) => table.row([id, format!("unusable: {damage}")]),
        };
    }
    out!("{}", table.render());
    if entries.is_empty() {
        outln!("nothing is stored in {} yet", store.dir().display());
    }
    Ok(())
}

pub fn model(model_type: &str, parameters: u64) -> String {
    match model_type {
        "" => "-".into(),
        _ => format!("{model_type} {}", count(parameters as f64)),
    }
}

/// An entry as JSON: what `show` prints, and `ls` for all of them.
pub fn describe(entry: &Listed) -> Value {
    match &entry.header {
        Err(damage) => {
            json!({"id": entry.id, "bytes": entry.file_bytes, "unusable": damage.to_string()})
        }
        Ok(header) => {
            let mut value = serde_json::to_value(header).expect("a header holds plain data");
            let own = json!({"id": entry.id, "bytes": entry.file_bytes, "uses": entry.uses, "last_used": entry.last_used});
            if let (Value::Object(value), Value::Object(own)) = (&mut value, own) {
                value.extend(own);
            }
            value
        }
    }
}

pub fn stats(store: &Store, as_json: bool) -> Result<(), Error> {
    let entries = all(store)?;
    let good: Vec<_> = entries
        .iter()
        .filter_map(|entry| Some((entry, entry.header.as_ref().ok()?)))
        .collect();
    let total: u64 = entries.iter().map(|entry| entry.file_bytes).sum();
    let uses: u64 = entries.iter().map(|entry| entry.uses).sum();
    let loadable = good
        .iter()
        .filter(|(_, header)| header.part(Content::Executable).is_some())
        .count();
    let compiling: f64 = good.iter().map(|(_, header)| header.compile_seconds).sum();
    let spared: f64 = good
        .iter()
        .map(|(entry, header)| header.compile_seconds * entry.uses as f64)
        .sum();
    if as_json {
        let value = json!({
            "directory": store.dir(), "entries": entries.len(), "unusable": entries.len() - good.len(),
            "with_executable": loadable, "bytes": total, "uses": uses, "compile_seconds": compiling,
            "compile_seconds_not_repeated": spared,
        });
        outln!("{value}");
        return Ok(());
    }
    let mut table = Table::pairs();
    let seconds = |s: f64| duration(Duration::try_from_secs_f64(s).unwrap_or_default());
    table.pair("directory", store.dir().display());
    table.pair(
        "stored graphs",
        format!("{} ({loadable} with an executable)", entries.len()),
    );
    table.pair("unusable", entries.len() - good.len());
    table.pair("size", bytes(total));
    table.pair("loaded", format!("{uses} times"));
    table.pair("compiling took", seconds(compiling));
    table.pair("compiling not repeated", seconds(spared));
    out!("{}", table.render());
    Ok(())
}
