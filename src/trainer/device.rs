//! Opening a device for training: which library or plugin serves it, which options its client and compiler get.

use super::error::Result;
use super::session::Session;
use crate::cache::{CacheSettings, GraphCache};
use crate::runtime::{Client, CompileOptions, Library, OptionValue};
use xtrain_graphs::Target;

/// Opens the CPU with `device_count` devices of one process.
pub fn open_cpu(device_count: usize, cache: CacheSettings) -> Result<Session> {
    let library = Library::open()?;
    let plugin = library.cpu_plugin()?;
    let options = [
        ("cpu_device_count".to_string(), OptionValue::Int(device_count as i64)),
        // A step takes its temporaries when it is handed over, so with two in flight they would exist twice. Recording the next
        // step still overlaps with this one; only handing it over waits.
        ("max_inflight_computations".to_string(), OptionValue::Int(1)),
    ];
    let client = Client::create(&plugin, &options)?;
    let cache = GraphCache::new(library, client.clone(), Target::Cpu, cpu_compile_options(), cache)?;
    Ok(Session::new(client, cache))
}

/// What XLA's CPU compiler is told for every graph.
fn cpu_compile_options() -> CompileOptions {
    CompileOptions::default()
}
