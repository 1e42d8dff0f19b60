//! Opening the devices of a run, and the directory for what it writes.

use super::error::{Error, failed};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Once};
use xtrain_cache::CacheSettings;
use xtrain_checkpoint::lock::{Lock, RUN_LOCK, Refused};
use xtrain_config::{Device, DevicePlan, RunPlan};
use xtrain_distributed::ProcessGroup;
use xtrain_parallel::Mesh;
use xtrain_report::errln;
use xtrain_trainer::device::{DeviceSettings, NeuronEnvironment};
use xtrain_trainer::session::Session;
use xtrain_trainer::{cuda, device};

/// Opens one device per replica, with the cache of compiled graphs, whose directory is printed once
/// per process.
///
/// # Errors
/// If the library or plugin does not open, there are too few devices, or another process of the run
/// does not join.
pub fn open_device(
    device: &DevicePlan,
    mesh: Mesh,
    cache: &CacheSettings,
) -> Result<Session, Error> {
    static PRINTED: Once = Once::new();
    if let Some(dir) = &cache.dir {
        PRINTED.call_once(|| errln!("compiled-graph cache: {}", dir.display()));
    }
    let settings = &device.settings;
    match device.kind {
        Device::Cpu => {
            settings.set_cpu_threads();
            let group = join(settings)?;
            settings
                .cpu_target(cache)
                .and_then(|target| {
                    device::open_cpu_among(group.as_ref(), mesh, cache.clone(), target)
                })
                .map_err(failed("opening the CPU device"))
        }
        Device::Cuda => {
            join(settings)?;
            cuda::open_cuda(settings, mesh, cache.clone())
                .map_err(failed("opening the CUDA device"))
        }
        Device::Neuron => {
            let environment = NeuronEnvironment::set(settings, mesh)
                .map_err(failed("opening the Neuron device"))?;
            join(settings)?;
            device::open_neuron(settings, environment, mesh, cache.clone())
                .map_err(failed("opening the Neuron device"))
        }
    }
}

/// The matmul kernels of a run on the CPU with what they reach, for bf16 first; none on other devices, with
/// `--cpu_kernels xla`, and where the library cannot be asked, which opening the device says.
pub fn cpu_kernels(device: &DevicePlan, cache: &CacheSettings) -> Vec<String> {
    let kernels = match device.kind {
        Device::Cpu => device.settings.cpu_kernels(cache).unwrap_or_default(),
        _ => Vec::new(),
    };
    kernels.iter().map(ToString::to_string).collect()
}

/// Joins the other processes of the run, if there are any.
fn join(settings: &DeviceSettings) -> Result<Option<Arc<ProcessGroup>>, Error> {
    let group = settings
        .group()
        .map_err(failed("joining the other processes of the run"))?;
    if !ProcessGroup::this_writes() {
        silence_standard_output();
    }
    Ok(group)
}

/// Results are rank 0's to print; the other processes of a run have the same ones.
fn silence_standard_output() {
    if let Ok(nowhere) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        // SAFETY: both are open descriptors.
        unsafe { libc::dup2(nowhere.as_raw_fd(), libc::STDOUT_FILENO) };
    }
}

/// Makes the output directory, and locks it for a training run.
///
/// # Errors
/// If it cannot be written to, or another run writes to it.
pub fn lock_output_dir(plan: &RunPlan) -> Result<Lock, Error> {
    let dir = &plan.train.output_dir;
    create_output_dir(dir)?;
    let path = dir.join(RUN_LOCK);
    let taken = Lock::take(&path, *plan.train.flags.take_over_output_dir).map_err(|error| {
        Error::because(
            format!("--output_dir: cannot write {}", path.display()),
            error,
        )
    })?;
    let dir = dir.display();
    taken.map_err(|refused| match refused {
        Refused::Busy(who) => Error::usage(
            format!("--output_dir: {who} is writing to {dir}"),
            "wait until it has ended, or name another directory",
        ),
        Refused::Left(holder) => Error::usage(
            format!("--output_dir: {dir} is locked by {holder}, which may still be running"),
            "if that run has ended, add --take_over_output_dir",
        ),
    })
}

/// Makes the output directory and those above it.
///
/// # Errors
/// If it cannot be made.
pub fn create_output_dir(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir)
        .map_err(|error| {
            Error::because(
                format!("--output_dir: cannot create {}", dir.display()),
                error,
            )
        })
        .map_err(|error| error.with_hint("name a directory that you may write to"))
}
