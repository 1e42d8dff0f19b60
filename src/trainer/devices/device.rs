//! Opening a device for training: which library or plugin serves it, which options its client and
//! compiler get.

use super::distributed_options;
use crate::error::{Error, Result};
use crate::session::Session;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtrain_cache::{CPU_THREADS, CacheSettings, GraphCache, Machine};
use xtrain_distributed::{ProcessGroup, RankInfo};
use xtrain_graphs::op::KernelAttention;
use xtrain_graphs::{CpuKernels, CudaTarget, NeuronChip, Target};
use xtrain_parallel::Mesh;
use xtrain_report::errln;
use xtrain_runtime::discover::{NEURON, Vendor, package_version};
use xtrain_runtime::neuron::environment::{Cores, Environment};
use xtrain_runtime::neuron::host::{CompilerFile, Host};
use xtrain_runtime::neuron::releases::wrong_collectives;
use xtrain_runtime::neuron::{Compiler, NeuronSettings};
use xtrain_runtime::{
    Client, CompileOptions, KernelSpeed, Library, OptionValue, OverrideValue, Plugin, of_target,
    set_environment,
};

/// How a device is opened, whichever it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSettings {
    /// The vendor's plugin; `None`: it is looked for.
    pub plugin: Option<PathBuf>,
    /// Of a GPU's memory, what is taken at the start; `None`: `gpu::memory_share`.
    pub memory_fraction: Option<f64>,
    /// The GPUs that are used, by CUDA's numbers. Empty: the first.
    pub visible_devices: Vec<i64>,
    /// Attention is written out even where the device has it as one call.
    pub plain_attention: bool,
    /// Attention with dropout may be such a call too, with masks that the device draws and no run
    /// can repeat.
    pub fused_attention_dropout: bool,
    /// Products of f32 may round their operands to TF32.
    pub tf32: bool,
    /// The CPU's matmuls are all XLA's, even where there is a faster kernel.
    pub xla_matmuls: bool,
    /// Threads on which the CPU computes; `None`: [`Machine::physical_cores`].
    pub cpu_threads: Option<usize>,
    /// Options of AWS's compiler.
    pub neuron: NeuronSettings,
    /// Options of XLA's compiler.
    pub xla_options: BTreeMap<String, OverrideValue>,
    /// Which process of the job this is, where there are several.
    pub member: Option<Box<RankInfo>>,
}

impl DeviceSettings {
    /// A card as graphs are lowered for it.
    pub fn cuda_target(&self, capability: u16) -> Target {
        Target::Cuda(CudaTarget {
            capability,
            fused_attention: !self.plain_attention,
            fused_dropout: self.fused_attention_dropout,
            tf32: self.tf32,
        })
    }

    /// The CPU as graphs are lowered for it, with the kernels that are the fastest here as `cache` has
    /// them or as measured now.
    ///
    /// # Errors
    /// If the XLA library, which has the kernels, cannot be opened, or the environment names kernels
    /// that are missing.
    pub fn cpu_target(&self, cache: &CacheSettings) -> Result<Target> {
        if self.xla_matmuls {
            return Ok(Target::CPU);
        }
        Ok(match cpu_target(cache, self.threads())? {
            Target::Cpu(kernels) if self.plain_attention => Target::Cpu(CpuKernels {
                calls: kernels.calls.without::<KernelAttention>(),
                ..kernels
            }),
            other => other,
        })
    }

    /// What the matmul kernels of that target reach, for bf16 first; none on other devices.
    ///
    /// # Errors
    /// As [`DeviceSettings::cpu_target`].
    pub fn cpu_kernels(&self, cache: &CacheSettings) -> Result<Vec<KernelSpeed>> {
        Ok(match self.cpu_target(cache)? {
            Target::Cpu(kernels) => of_target(kernels, &cache.kernel_speeds()?),
            _ => Vec::new(),
        })
    }

    /// Sets how many threads CPU clients have that are made from now on. XLA reads that from the
    /// environment; a user's own NPROC stays, unless a flag says otherwise.
    pub fn set_cpu_threads(&self) {
        if self.cpu_threads.is_none() && std::env::var_os(CPU_THREADS).is_some() {
            return;
        }
        set_environment(CPU_THREADS, Some(&self.threads().to_string()));
    }

    /// Threads on which the CPU computes.
    fn threads(&self) -> usize {
        match self.cpu_threads {
            Some(threads) => threads,
            None if std::env::var_os(CPU_THREADS).is_some() => Machine::this().threads,
            None => Machine::physical_cores(),
        }
    }

    /// The processes that share the run, joined at the first call; `None` where this is the only
    /// one.
    ///
    /// # Errors
    /// If one of them does not join in time.
    pub fn group(&self) -> Result<Option<Arc<ProcessGroup>>> {
        Ok(self.member.as_deref().map(ProcessGroup::join).transpose()?)
    }

    pub(super) fn compile_options(&self, mesh: Mesh) -> CompileOptions {
        CompileOptions {
            overrides: self.xla_options.clone(),
            ..CompileOptions::replicated(mesh.replicas())
        }
    }
}

/// The CPU of this many threads with the fastest kernels for it.
fn cpu_target(cache: &CacheSettings, threads: usize) -> Result<Target> {
    Ok(
        match Library::open()?.cpu_target(&cache.kernel_speeds()?)? {
            Target::Cpu(kernels) => Target::Cpu(CpuKernels {
                threads: u16::try_from(threads).unwrap_or(u16::MAX),
                ..kernels
            }),
            other => other,
        },
    )
}

/// Opens the CPU as the mesh's devices, which share its cores.
///
/// # Errors
/// If XLA's library cannot be opened, or the client not be made.
pub fn open_cpu(mesh: Mesh, cache: CacheSettings) -> Result<Session> {
    let target = cpu_target(&cache, Machine::this().threads)?;
    open_cpu_among(None, mesh, cache, target)
}

/// The same as one of several processes, each of which has its part of the mesh's devices, with the
/// target that graphs are lowered for ([`DeviceSettings::cpu_target`]).
///
/// # Errors
/// As [`open_cpu`].
pub fn open_cpu_among(
    group: Option<&Arc<ProcessGroup>>,
    mesh: Mesh,
    cache: CacheSettings,
    target: Target,
) -> Result<Session> {
    let plugin = Library::open()?.cpu_plugin()?;
    let client = Client::create_among(
        &plugin,
        &cpu_client_options(group, mesh),
        group.map(distributed_options::store),
    )?;
    let options =
        distributed_options::assigned(CompileOptions::replicated(mesh.replicas()), &client, mesh);
    let cache = GraphCache::new(client.clone(), target, options, cache)?;
    Ok(cpu_session(client, cache, mesh))
}

/// A step takes its temporaries when it is handed over, so with two in flight they would exist
/// twice. Recording the next step still overlaps with this one; only handing it over waits. One
/// device does that itself (`max_inflight_computations`); several would wait in the threads that
/// the step before still needs, for ever.
fn cpu_session(client: Client, cache: GraphCache, mesh: Mesh) -> Session {
    let session = Session::new(client, cache, mesh);
    if mesh.devices() > 1 {
        session.one_step_at_a_time()
    } else {
        session
    }
}

fn cpu_client_options(group: Option<&Arc<ProcessGroup>>, mesh: Mesh) -> Vec<(String, OptionValue)> {
    let local = distributed_options::local_devices(group, mesh);
    let mut options = vec![(
        "cpu_device_count".to_string(),
        OptionValue::Int(local as i64),
    )];
    if mesh.devices() == 1 {
        options.push(("max_inflight_computations".to_string(), OptionValue::Int(1)));
    }
    options.extend(
        group
            .into_iter()
            .flat_map(|group| distributed_options::cpu_options(group)),
    );
    options
}

/// What Neuron's plugin, runtime and compiler read from the process's environment.
pub struct NeuronEnvironment {
    plugin: PathBuf,
    compiler_file: Option<CompilerFile>,
    compiler: Compiler,
}

impl NeuronEnvironment {
    /// Sets the environment for a core for each of this process's replicas.
    ///
    /// # Errors
    /// There is no plugin, or the user's variables contradict the settings.
    pub fn set(settings: &DeviceSettings, mesh: Mesh) -> Result<NeuronEnvironment> {
        let world = settings.member.as_ref().map_or(1, |rank| rank.world);
        let cores = (mesh.devices() / world) as u32;
        Self::set_for_cores(settings, cores, cores)
    }

    /// As [`NeuronEnvironment::set`], with `cores` for this process, at least `needed` of them,
    /// unless the environment says how many.
    ///
    /// # Errors
    /// As [`NeuronEnvironment::set`].
    pub fn set_for_cores(
        settings: &DeviceSettings,
        cores: u32,
        needed: u32,
    ) -> Result<NeuronEnvironment> {
        let plugin = neuron_plugin(settings.plugin.as_deref())?;
        if let Some(rank) = &settings.member {
            let unset = distributed_options::neuron_variables(rank, cores)
                .into_iter()
                .filter(|(name, _)| std::env::var_os(name).is_none());
            unset.for_each(|(name, value)| set_environment(name, Some(&value)));
        }
        let host = Host::this();
        let variable = |name: &str| std::env::var(name).ok();
        let compiler_file = host.compiler(Some(&plugin), variable("PATH").as_deref());
        let folder = compiler_file.as_ref().and_then(CompilerFile::folder);
        let wanted = Cores {
            needed,
            wanted: cores,
        };
        let environment = Environment::new(&settings.neuron, wanted, &host, variable)?
            .with_compiler(folder, variable("PATH"));
        environment
            .notes
            .iter()
            .for_each(|note| errln!("note: {note}"));
        environment
            .set
            .iter()
            .for_each(|(name, value)| set_environment(name, Some(value)));
        let removed = environment.remove.iter();
        removed.for_each(|name| set_environment(name, None));
        Ok(NeuronEnvironment {
            plugin,
            compiler_file,
            compiler: environment.compiler,
        })
    }

    /// The compiler's version, for the key of compiled graphs.
    fn compiler_version(&self) -> String {
        match &self.compiler_file {
            Some(file) => file
                .version
                .clone()
                .map_or_else(|| file.run_version(), Ok)
                .unwrap_or_else(|problem| {
                    errln!("warning: {problem}; stored graphs load, new ones will not compile");
                    "unknown".into()
                }),
            None => "none".into(),
        }
    }
}

/// Opens AWS's accelerator through its plugin, a core for each replica.
///
/// # Errors
/// The plugin does not open, has too few cores, or drives another chip than the settings name.
pub fn open_neuron(
    settings: &DeviceSettings,
    environment: NeuronEnvironment,
    mesh: Mesh,
    cache: CacheSettings,
) -> Result<Session> {
    let group = settings.group()?;
    let path = &environment.plugin;
    let chip = environment.compiler.chip;
    let version = package_version(path, "libneuronxla");
    let wrong = version.as_deref().and_then(wrong_collectives);
    if let Some(wrong) = wrong.filter(|_| mesh.devices() > 1) {
        errln!("warning: {wrong}");
    }
    let options = CompileOptions {
        surroundings: [
            ("neuronx-cc", environment.compiler_version()),
            ("NEURON_CC_FLAGS", environment.compiler.flags()),
            ("libneuronxla", version.unwrap_or_else(|| "unknown".into())),
        ]
        .into(),
        ..CompileOptions::replicated(mesh.replicas())
    };
    let client = open_plugin(&NEURON, path, mesh, group.as_ref(), |_| Vec::new())?;
    // 2.0 on trn1, 2.1 on inf2, 3.0 on trn2; trn3's is not documented, so the core's generation.
    let of_device = match client.platform_version().chars().next() {
        Some('3') => NeuronChip::Trn2,
        Some('4') => NeuronChip::Trn3,
        _ => NeuronChip::Trn1,
    };
    if client.platform_name() == NEURON.device && of_device != chip {
        return Err(xtrain_runtime::Error::Contradiction {
            variable: "--target",
            value: chip.to_string(),
            problem: format!(
                "is not this device, which is a {of_device} (platform version {})",
                client.platform_version()
            ),
            fix: "leave --target out of the command and of NEURON_CC_FLAGS".into(),
        }
        .into());
    }
    session(client, Target::Neuron(chip), options, mesh, cache)
}

/// AWS's plugin, of a version that needs no Python.
///
/// # Errors
/// If none is found, or it is older.
pub fn neuron_plugin(told: Option<&Path>) -> Result<PathBuf> {
    let path = NEURON.find(told)?;
    match package_version(&path, "libneuronxla") {
        Some(found)
            if found.starts_with("2.") || found.starts_with("1.") || found.starts_with("0.") =>
        {
            Err(xtrain_runtime::Error::NeuronVersion { path, found }.into())
        }
        _ => Ok(path),
    }
}

/// Opens a vendor's plugin and the devices that it finds.
pub(super) fn open_plugin(
    vendor: &Vendor,
    path: &Path,
    mesh: Mesh,
    group: Option<&Arc<ProcessGroup>>,
    options: impl Fn(&Plugin) -> Vec<(String, OptionValue)>,
) -> Result<Client> {
    let plugin = Plugin::load(path)?;
    let local = distributed_options::local_devices(group, mesh);
    let mut client = Client::create_among(
        &plugin,
        &options(&plugin),
        group.map(distributed_options::store),
    )?;
    if client.platform_name() == "cpu" && mesh.devices() > 1 {
        // Stands in for the vendor's; as many devices as are wanted cost it nothing.
        client = Client::create_among(
            &plugin,
            &cpu_client_options(group, mesh),
            group.map(distributed_options::store),
        )?;
    }
    let devices = client.addressable_devices().len();
    if devices < local {
        return Err(Error::TooFewDevices {
            wanted: local,
            found: devices,
            device: vendor.device,
        });
    }
    if client.platform_name() != vendor.device {
        errln!(
            "note: {} drives `{}`, not {}; the graphs are lowered for {} and run there, as a rehearsal",
            path.display(),
            client.platform_name(),
            vendor.device,
            vendor.device
        );
    }
    Ok(client)
}

/// XLA's own library lowers; the plugin compiles. The library is opened when the first graph has to
/// be lowered, so after the plugin, which reads more of the environment, and not at all where the
/// cache has every graph.
pub(super) fn session(
    client: Client,
    target: Target,
    options: CompileOptions,
    mesh: Mesh,
    cache: CacheSettings,
) -> Result<Session> {
    let options = distributed_options::assigned(options, &client, mesh);
    let cache = GraphCache::new(client.clone(), target, options, cache)?;
    Ok(match client.platform_name() {
        "cpu" => cpu_session(client, cache, mesh),
        _ => Session::new(client, cache, mesh),
    })
}
