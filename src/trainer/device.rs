//! Opening a device for training: which library or plugin serves it, which options its client and compiler get.

use super::error::Result;
use super::session::Session;
use crate::cache::{CacheSettings, GraphCache};
use crate::runtime::discover::{CUDA, NEURON, Vendor, package_version};
use crate::runtime::neuron::NeuronSettings;
use crate::runtime::neuron::environment::Environment;
use crate::runtime::neuron::host::{CompilerFile, Host};
use crate::runtime::{Client, CompileOptions, Library, OptionValue, Plugin, set_environment};
use std::path::{Path, PathBuf};
use xtrain_graphs::{NeuronChip, Target};

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

/// Opens AWS's accelerator through its plugin, one core of it. Everything that plugin, runtime and compiler read is in the
/// environment before the plugin is opened.
pub fn open_neuron(settings: &NeuronSettings, cache: CacheSettings) -> Result<Session> {
    open_neuron_cores(settings, 1, cache)
}

/// As [`open_neuron`], with so many cores for this process unless the environment says how many.
pub fn open_neuron_cores(settings: &NeuronSettings, cores: u32, cache: CacheSettings) -> Result<Session> {
    let path = neuron_plugin()?;
    let host = Host::this();
    let variable = |name: &str| std::env::var(name).ok();
    let found = host.compiler(Some(&path), variable("PATH").as_deref());
    let folder = found.as_ref().and_then(CompilerFile::folder);
    let environment = Environment::new(settings, cores, &host, variable)?.with_compiler(folder, variable("PATH"));
    environment.notes.iter().for_each(|note| eprintln!("note: {note}"));
    environment.set.iter().for_each(|(name, value)| set_environment(name, Some(value)));
    environment.remove.iter().for_each(|name| set_environment(name, None));
    let chip = environment.compiler.chip;
    let version = match &found {
        Some(file) => file.version.clone().map_or_else(|| file.run_version(), Ok).unwrap_or_else(|problem| {
            eprintln!("warning: {problem}; stored graphs load, new ones will not compile");
            "unknown".into()
        }),
        None => "none".into(),
    };
    let options = CompileOptions {
        surroundings: [
            ("neuronx-cc", version),
            ("NEURON_CC_FLAGS", environment.compiler.flags()),
            ("libneuronxla", package_version(&path, "libneuronxla").unwrap_or_else(|| "unknown".into())),
        ]
        .into(),
        ..CompileOptions::default()
    };
    let session = open_plugin(&NEURON, &path, options, Target::Neuron(chip), cache)?;
    let client = session.client();
    // 2.0 on trn1, 2.1 on inf2, 3.0 on trn2.
    let of_device = if client.platform_version().starts_with('3') { NeuronChip::Trn2 } else { NeuronChip::Trn1 };
    if client.platform_name() == NEURON.device && of_device != chip {
        return Err(crate::runtime::Error::Contradiction {
            variable: "--target",
            value: chip.to_string(),
            problem: format!("is not this device, which is a {of_device} (platform version {})", client.platform_version()),
            fix: "leave --target out of the command and of NEURON_CC_FLAGS".into(),
        }
        .into());
    }
    Ok(session)
}

/// Opens an NVIDIA card through jax's plugin.
pub fn open_cuda(cache: CacheSettings) -> Result<Session> {
    let path = CUDA.find()?;
    // Nothing in the lowering depends on a card's abilities yet but whether it has bf16 products, which begin at 8.0.
    open_plugin(&CUDA, &path, CompileOptions::default(), Target::Cuda { capability: 80 }, cache)
}

/// AWS's plugin, of a version that needs no Python.
pub fn neuron_plugin() -> Result<PathBuf> {
    let path = NEURON.find()?;
    match package_version(&path, "libneuronxla") {
        Some(found) if found.starts_with("2.") || found.starts_with("1.") || found.starts_with("0.") => {
            Err(crate::runtime::Error::NeuronVersion { path, found }.into())
        }
        _ => Ok(path),
    }
}

fn open_plugin(vendor: &Vendor, path: &Path, options: CompileOptions, target: Target, cache: CacheSettings) -> Result<Session> {
    // XLA's own library lowers; the plugin compiles. It comes first, because it reads more of the environment.
    let plugin = Plugin::load(path)?;
    let client = Client::create(&plugin, &[])?;
    if client.platform_name() != vendor.device {
        eprintln!(
            "note: {} drives `{}`, not {}; the graphs are lowered for {} and run there, as a rehearsal",
            path.display(),
            client.platform_name(),
            vendor.device,
            vendor.device
        );
    }
    let cache = GraphCache::new(Library::open()?, client.clone(), target, options, cache)?;
    Ok(Session::new(client, cache))
}
