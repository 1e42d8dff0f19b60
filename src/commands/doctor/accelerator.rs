//! `xtrain doctor --device neuron` and `--device cuda`: from the driver to a computed sum, in the order in which a run meets them. What
//! is outside of the plugin (device files, drivers, compilers) is told as a note: a stand-in does without, and the plugin's own
//! errors decide.

use super::{Check, Error, compile_and_run, failed};
use crate::cache::CacheSettings;
use crate::parallel::Mesh;
use crate::runtime::Plugin;
use crate::runtime::discover::CUDA;
use crate::trainer::session::Session;
use crate::trainer::{self, device};
use std::path::{Path, PathBuf};

/// The order of AWS's stack: driver, devices, libraries, compiler, plugin, device.
pub(super) fn check_neuron() -> Vec<Check> {
    let libraries = ["libnrt.so.1", "libnccom.so.2"].map(|name| Path::new("/opt/aws/neuron/lib").join(name));
    let mut checks = vec![
        note(
            "driver",
            std::fs::read_to_string("/sys/module/neuron/version").map(|v| v.trim().to_string()).ok(),
            "the neuron kernel module is not loaded",
        ),
        note(
            "device files",
            device_files("neuron"),
            "there is no /dev/neuron0: this is no trn1 or trn2 instance, or the driver is missing",
        ),
    ];
    for (name, path) in [("runtime library", &libraries[0]), ("collectives library", &libraries[1])] {
        checks.push(note(
            name,
            exists(path),
            "is not in /opt/aws/neuron/lib: install aws-neuronx-runtime-lib and aws-neuronx-collectives",
        ));
    }
    checks.push(note(
        "neuronx-cc",
        on_path("neuronx-cc"),
        "is not on PATH: libneuronxla 3 runs it to compile; install neuronx-cc and put its bin folder first",
    ));
    let found = device::neuron_plugin().map_err(failed("looking for the plugin"));
    finish(checks, found, |cache| device::open_neuron(Mesh::single(), cache))
}

/// Driver, card, compiler, plugin, device.
pub(super) fn check_cuda() -> Vec<Check> {
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let mut checks = vec![
        note("driver", driver.and_then(|text| text.lines().next().map(str::to_string)), "the nvidia kernel module is not loaded"),
        note("device files", device_files("nvidia"), "there is no /dev/nvidia0: no GPU is visible here"),
    ];
    checks.push(note(
        "ptxas",
        on_path("ptxas"),
        "is not on PATH; the plugin also finds the one of the nvidia-cuda-nvcc wheel beside it",
    ));
    let found = CUDA.find().map_err(trainer::Error::from).map_err(failed("looking for the plugin"));
    finish(checks, found, |cache| device::open_cuda(Mesh::single(), cache))
}

/// The checks that build on each other: the first failure ends the list.
fn finish(
    mut checks: Vec<Check>,
    path: Result<PathBuf, Error>,
    open: impl Fn(CacheSettings) -> trainer::Result<Session>,
) -> Vec<Check> {
    let mut check = |name, found: Result<String, Error>| {
        let found = found.map_err(|error| error.one_line());
        let is_ok = found.is_ok();
        checks.push(Check { name, found, is_note: false });
        is_ok
    };
    let path = match path {
        Ok(path) => path,
        Err(error) => {
            check("plugin", Err(error));
            return checks;
        }
    };
    check("plugin", Ok(path.display().to_string()));
    // Opening the device sets what the plugin reads while it is loaded, so that comes first.
    let mut session = match open(CacheSettings::in_memory()).map_err(failed("opening the device")) {
        Ok(session) => session,
        Err(error) => {
            check("device", Err(error));
            return checks;
        }
    };
    let version = Plugin::load(&path).map(|p| format!("PJRT C API {}.{}", p.api_version().0, p.api_version().1));
    check("plugin version", version.map_err(failed("asking the plugin")));
    let client = session.client();
    let kinds: Vec<&str> = client.devices().iter().map(|device| device.kind()).collect();
    let found =
        format!("{} of {}, platform {} {}", kinds.len(), kinds.join(", "), client.platform_name(), client.platform_version());
    check("device", Ok(found));
    check("compile and run", compile_and_run(&mut session));
    checks
}

fn note(name: &'static str, found: Option<String>, otherwise: &str) -> Check {
    Check { name, found: Ok(found.unwrap_or_else(|| otherwise.to_string())), is_note: true }
}

fn exists(path: &Path) -> Option<String> {
    path.exists().then(|| path.display().to_string())
}

fn on_path(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find_map(|file| exists(&file))
}

/// The device nodes `/dev/NAME0`, `/dev/NAME1`, ...
fn device_files(name: &str) -> Option<String> {
    let count = (0..).take_while(|i| Path::new(&format!("/dev/{name}{i}")).exists()).count();
    (count > 0).then(|| format!("/dev/{name}0 and {} more", count - 1))
}
