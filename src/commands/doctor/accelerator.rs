//! `xtrain doctor --device neuron`: from the driver to a computed sum, in the order in which a run meets them. What
//! is outside of the plugin (device files, drivers, compilers) is told as a note: a stand-in does without, and the plugin's own
//! errors decide.

use super::{Check, Error, compile_and_run, failed};
use crate::cache::CacheSettings;
use crate::parallel::Mesh;
use crate::report::units::bytes;
use crate::runtime::Client;
use crate::trainer::device::DeviceSettings;
use crate::trainer::session::Session;
use crate::trainer::{self, device};
use std::path::Path;

/// The order of AWS's stack: driver, devices, libraries, compiler, plugin, device.
pub(super) fn check_neuron(settings: &DeviceSettings) -> Vec<Check> {
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
    let mut report = Report::new(checks);
    let path = match device::neuron_plugin(settings.plugin.as_deref()).map_err(failed("looking for the plugin")) {
        Ok(path) => path,
        Err(error) => return report.fail("plugin", error),
    };
    report.check("plugin", Ok(path.display().to_string()));
    // Opening the device sets what the plugin reads while it is loaded, so that the plugin is not asked for its version before.
    report.device(|cache| device::open_neuron(settings, Mesh::single(), cache))
}

/// Checks that build on each other: the first failure ends the list.
pub(super) struct Report {
    checks: Vec<Check>,
}

impl Report {
    pub fn new(notes: Vec<Check>) -> Self {
        Report { checks: notes }
    }

    pub fn push(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Whether it went well.
    pub fn check(&mut self, name: &'static str, found: Result<String, Error>) -> bool {
        let found = found.map_err(|error| error.one_line());
        let is_ok = found.is_ok();
        self.checks.push(Check { name, found, is_note: false });
        is_ok
    }

    pub fn done(self) -> Vec<Check> {
        self.checks
    }

    pub fn fail(mut self, name: &'static str, error: Error) -> Vec<Check> {
        self.check(name, Err(error));
        self.checks
    }

    /// The last ones: the device opens, and computes.
    pub fn device(mut self, open: impl Fn(CacheSettings) -> trainer::Result<Session>) -> Vec<Check> {
        let mut session = match open(CacheSettings::in_memory()).map_err(failed("opening the device")) {
            Ok(session) => session,
            Err(error) => return self.fail("device", error),
        };
        self.check("device", Ok(describe(session.client())));
        self.check("compile and run", compile_and_run(&mut session));
        self.checks
    }
}

/// How many devices of which kind, with what the vendor tells of them.
fn describe(client: &Client) -> String {
    let kinds: Vec<&str> = client.devices().iter().map(|device| device.kind()).collect();
    let (major, minor) = client.plugin().api_version();
    let platform = format!("platform {} {}, PJRT C API {major}.{minor}", client.platform_name(), client.platform_version());
    let mut text = format!("{} of {}, {platform}", kinds.len(), kinds.join(", "));
    if let Some(device) = client.addressable_devices().next() {
        if let Some(capability) = device.attribute("compute_capability") {
            text.push_str(&format!(", compute capability {capability}"));
        }
        if let Some(limit) = device.memory().and_then(|memory| memory.bytes_limit) {
            text.push_str(&format!(", {} for a run", bytes(limit.max(0) as u64)));
        }
    }
    text
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
pub(super) fn device_files(name: &str) -> Option<String> {
    let count = (0..).take_while(|i| Path::new(&format!("/dev/{name}{i}")).exists()).count();
    (count > 0).then(|| format!("/dev/{name}0 and {} more", count - 1))
}
