//! Opening a device for training: which library or plugin serves it, which options its client and compiler get.

use super::error::Result;
use super::session::Session;
use crate::cache::{CacheSettings, GraphCache};
use crate::runtime::discover::{NEURON, Vendor, package_version};
use crate::runtime::{Client, CompileOptions, Library, OptionValue, OverrideValue, Plugin, set_default_environment};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xtrain_graphs::{NeuronChip, Target};

/// How a device is opened, whichever it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSettings {
    /// The vendor's plugin; `None`: it is looked for.
    pub plugin: Option<PathBuf>,
    /// Of a GPU's memory, what is taken at the start; `None`: `gpu::MEMORY_SHARE`.
    pub memory_fraction: Option<f64>,
    /// The GPUs that are used, by CUDA's numbers. Empty: the first.
    pub visible_devices: Vec<i64>,
    /// Attention is written out even where the device has it as one call.
    pub plain_attention: bool,
    /// Options of XLA's compiler.
    pub xla_options: BTreeMap<String, OverrideValue>,
}

impl DeviceSettings {
    pub(super) fn compile_options(&self) -> CompileOptions {
        CompileOptions { overrides: self.xla_options.clone(), ..Default::default() }
    }
}

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

/// Opens AWS's accelerator through its plugin. One core, since a run has one device.
pub fn open_neuron(settings: &DeviceSettings, cache: CacheSettings) -> Result<Session> {
    let path = neuron_plugin(settings.plugin.as_deref())?;
    check_cores("NEURON_RT_NUM_CORES")?;
    if std::env::var_os("NEURON_RT_VISIBLE_CORES").is_none() {
        // Cores belong to one process at a time: what is not used is left to others.
        set_default_environment("NEURON_RT_NUM_CORES", "1");
    }
    let client = open_plugin(&NEURON, &path, |_| Vec::new())?;
    // platform_version: 2.0 on trn1, 3.0 on trn2.
    let is_trn2 = client.platform_name() == NEURON.device && client.platform_version().starts_with('3');
    let target = Target::Neuron(if is_trn2 { NeuronChip::Trn2 } else { NeuronChip::Trn1 });
    session(client, target, CompileOptions::default(), cache)
}

/// AWS's plugin, of a version that needs no Python.
pub fn neuron_plugin(told: Option<&Path>) -> Result<PathBuf> {
    let path = NEURON.find(told)?;
    match package_version(&path, "libneuronxla") {
        Some(found) if found.starts_with("2.") || found.starts_with("1.") || found.starts_with("0.") => {
            Err(crate::runtime::Error::NeuronVersion { path, found }.into())
        }
        _ => Ok(path),
    }
}

/// Refuses numbers of cores that Neuron's runtime has no communicators for, before the cores are taken.
fn check_cores(variable: &'static str) -> Result<()> {
    let Ok(value) = std::env::var(variable) else { return Ok(()) };
    let reason = match value.parse::<u32>() {
        Ok(0 | 1 | 2 | 8 | 16) => return Ok(()),
        Ok(n) if n % 32 == 0 => return Ok(()),
        Ok(_) => "Neuron's runtime knows groups of 1, 2, 8, 16 and multiples of 32 cores (0: all); set one of these",
        Err(_) => "is not a number of cores",
    };
    Err(crate::runtime::Error::Environment { variable, value, reason }.into())
}

/// Opens a vendor's plugin and the devices that it finds.
pub(super) fn open_plugin(
    vendor: &Vendor,
    path: &Path,
    options: impl Fn(&Plugin) -> Vec<(String, OptionValue)>,
) -> Result<Client> {
    let plugin = Plugin::load(path)?;
    let client = Client::create(&plugin, &options(&plugin))?;
    if client.platform_name() != vendor.device {
        eprintln!(
            "note: {} drives `{}`, not {}; the graphs are lowered for {} and run there, as a rehearsal",
            path.display(),
            client.platform_name(),
            vendor.device,
            vendor.device
        );
    }
    Ok(client)
}

/// XLA's own library lowers; the plugin compiles. The library comes last, because the plugin reads more of the environment.
pub(super) fn session(client: Client, target: Target, options: CompileOptions, cache: CacheSettings) -> Result<Session> {
    let cache = GraphCache::new(Library::open()?, client.clone(), target, options, cache)?;
    Ok(Session::new(client, cache))
}
