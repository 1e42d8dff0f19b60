//! `xtrain doctor --device cuda`: from the driver to a computed sum, in the order in which a run
//! meets them. What decides is what the plugin says; what lies outside of it is a note that
//! explains the plugin's words.

use super::accelerator::device_files;
use super::check::{Failed, Report, compile_only};
use std::path::Path;
use xtrain_cache::CacheSettings;
use xtrain_engine::failed;
use xtrain_parallel::Mesh;
use xtrain_runtime::discover::{CUDA, package_version};
use xtrain_runtime::{Library, Plugin, cuda_tools, nvidia_libraries};
use xtrain_trainer::cuda;
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::gpu::Gpu;

/// Packages that the plugin may come from, by the folder that it lies in.
const PACKAGES: [(&str, &str); 2] = [
    ("xla_cuda13", "jax_cuda13_pjrt"),
    ("xla_cuda12", "jax_cuda12_pjrt"),
];

/// The oldest drivers that run a CUDA of these major versions (NVIDIA, "CUDA Compatibility").
const DRIVERS: [(i64, u32); 2] = [(13, 580), (12, 525)];

pub(super) fn check(
    report: &mut Report,
    settings: &DeviceSettings,
    cache: &CacheSettings,
) -> Result<(), Failed> {
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.as_deref().and_then(driver_version);
    report.note_or(
        "driver",
        driver.clone(),
        "the nvidia kernel module is not loaded: this machine has no GPU, or no driver for it",
    );
    report.note_or(
        "device files",
        device_files("nvidia"),
        "there is no /dev/nvidia0: no GPU is visible here (in a container: start it with GPUs)",
    );
    let path = CUDA.find(settings.plugin.as_deref());
    let path = report.need("plugin", path.map_err(failed("looking for the plugin")))?;
    report.line("plugin", Ok(path.display().to_string()));
    report.note("NVIDIA libraries", libraries(&path));
    let plugin = Plugin::load(&path).map_err(failed("opening the plugin"));
    let plugin = report.need("plugin version", plugin)?;
    report.line("plugin version", Ok(version(&plugin)));
    let open = |cache| cuda::open_cuda(settings, Mesh::single(), cache);
    let Some(version) = cuda_tools::cuda_version(&plugin) else {
        let found = "not looked for: this plugin is not jax's for CUDA";
        report.note("compiler tools", found);
        return report.accelerator(cache, open);
    };
    let age = driver_fits(driver.as_deref(), version / 1000);
    report.note("driver's age", age);
    let tools = cuda_tools::find(&plugin)
        .map(|folder| tools_text(&folder))
        .map_err(failed("looking for ptxas and libdevice"));
    report.check("compiler tools", tools)?;
    // There is nothing to describe it to where nothing can be lowered.
    if Library::open().is_ok() {
        let described = cuda::describe(Gpu::H200, settings, CacheSettings::in_memory());
        let compiled = described.and_then(|mut cache| compile_only(&mut cache));
        report.check("compile for an h200", compiled.map_err(failed("compiling")))?;
    }
    report.accelerator(cache, open)
}

/// `580.65.06` out of the kernel module's line.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    line.split_whitespace().find(is_version).map(str::to_string)
}

fn driver_fits(driver: Option<&str>, major: i64) -> String {
    let needed = DRIVERS.iter().find(|(cuda, _)| *cuda == major);
    let needed = needed.map_or(0, |(_, driver)| *driver);
    let found = driver.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match found {
        Some(found) if found < needed => {
            format!(
                "TOO OLD: the plugin's CUDA {major} needs {needed} or newer; update it, or install a plugin of an older CUDA"
            )
        }
        Some(_) => format!("new enough: the plugin's CUDA {major} needs {needed}"),
        None => format!("the plugin's CUDA {major} will need {needed} or newer"),
    }
}

fn version(plugin: &Plugin) -> String {
    let (major, minor) = plugin.api_version();
    let packages = PACKAGES.iter().filter(|(folder, _)| {
        plugin
            .path()
            .components()
            .any(|part| part.as_os_str() == *folder)
    });
    let package = packages
        .filter_map(|(_, package)| {
            Some(format!(
                "{package} {}, ",
                package_version(plugin.path().parent()?, package)?
            ))
        })
        .next();
    let cuda = cuda_tools::cuda_version(plugin).map_or(String::new(), |v| {
        format!("CUDA {}.{}, ", v / 1000, v % 1000 / 10)
    });
    format!(
        "{}{cuda}PJRT C API {major}.{minor}",
        package.unwrap_or_default()
    )
}

/// NVIDIA's libraries in the wheels beside the plugin. A compile check needs none of them; a run
/// needs all.
fn libraries(plugin: &Path) -> String {
    let found = nvidia_libraries::preload(plugin);
    let bad: Vec<String> = found
        .iter()
        .filter_map(|l| Some(format!("{}: {}", l.path.display(), l.problem.as_ref()?)))
        .collect();
    match (found.len(), bad.len()) {
        (0, _) => {
            "none in wheels beside the plugin; a run needs the system's, or pip's jax[cuda13]"
                .to_string()
        }
        (all, 0) => format!("{all} in wheels beside the plugin, all open"),
        (all, _) => format!(
            "{} of {all} in wheels beside the plugin do not open: {}",
            bad.len(),
            bad.join("; ")
        ),
    }
}

fn tools_text(folder: &Path) -> String {
    let output = std::process::Command::new(folder.join("bin/ptxas"))
        .arg("--version")
        .output();
    let output = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let release = output
        .lines()
        .find_map(|line| line.split_once("release "))
        .map_or("of an unknown version", |(_, rest)| rest.trim());
    format!("ptxas {release} and libdevice in {}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_version_and_age_are_read() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:19:41 UTC 2025\nGCC version: 12\n";
        assert_eq!(driver_version(text).as_deref(), Some("580.65.06"));
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n";
        assert_eq!(driver_version(open).as_deref(), Some("570.86.15"));
        let found = driver_fits;
        assert!(
            found(Some("570.86.15"), 13).starts_with("TOO OLD")
                && found(Some("570.86.15"), 12).starts_with("new enough")
        );
        assert!(found(None, 13).contains("580"));
    }
}
