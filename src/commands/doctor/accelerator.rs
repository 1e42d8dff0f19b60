//! `xtrain doctor --device cuda`: from the driver to a computed sum, in the order in which a run meets them. What is outside of the
//! plugin (device files, drivers, compilers) is told as a note: a stand-in does without, and the plugin's own errors decide.

use super::{Check, Error, compile_and_run, failed};
use crate::cache::CacheSettings;
use crate::runtime::Plugin;
use crate::runtime::discover::CUDA;
use crate::trainer::session::Session;
use crate::trainer::{self, device};
use std::path::{Path, PathBuf};

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
    finish(checks, found, device::open_cuda)
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

pub(super) fn note(name: &'static str, found: Option<String>, otherwise: &str) -> Check {
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
