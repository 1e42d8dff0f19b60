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
    let options = [("cpu_device_count".to_string(), OptionValue::Int(device_count as i64))];
    let client = Client::create(&plugin, &options)?;
    let cache = GraphCache::new(library, client.clone(), Target::Cpu, cpu_compile_options(), cache)?;
    Ok(Session::new(client, cache))
}

/// What XLA's CPU compiler is told for every graph.
fn cpu_compile_options() -> CompileOptions {
    CompileOptions::default()
}
