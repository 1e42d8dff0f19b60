//! `xtrain doctor --device cuda`: from the driver to a computed sum, in the order in which a run
//! meets them. What decides is what the plugin says; what lies outside of it is a note that
//! explains the plugin's words.

use super::accelerator::{Report, device_files, note};
use super::check::{Check, compile_only};
use crate::cache::CacheSettings;
use crate::engine::failed;
use crate::parallel::Mesh;
use crate::runtime::discover::{CUDA, package_version};
use crate::runtime::{Library, Plugin, cuda_tools, nvidia_libraries};
use crate::trainer::cuda;
use crate::trainer::device::DeviceSettings;
use crate::trainer::gpu::Gpu;
use std::path::Path;

/// Packages that the plugin may come from, by the folder that it lies in.
const PACKAGES: [(&str, &str); 2] = [
    ("xla_cuda13", "jax_cuda13_pjrt"),
    ("xla_cuda12", "jax_cuda12_pjrt"),
];

/// The oldest drivers that run a CUDA of these major versions (NVIDIA, "CUDA Compatibility").
const DRIVERS: [(i64, u32); 2] = [(13, 580), (12, 525)];

pub(super) fn check(settings: &DeviceSettings, cache: &CacheSettings) -> Vec<Check> {
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.as_deref().and_then(driver_version);
    let mut report = Report::new(vec![
        note(
            "driver",
            driver.clone(),
            "the nvidia kernel module is not loaded: this machine has no GPU, or no driver for it",
        ),
        note(
            "device files",
            device_files("nvidia"),
            "there is no /dev/nvidia0: no GPU is visible here (in a container: start it with GPUs)",
        ),
    ]);
    let path = match CUDA
        .find(settings.plugin.as_deref())
        .map_err(failed("looking for the plugin"))
    {
        Ok(path) => path,
        Err(error) => return report.fail("plugin", error),
    };
    report.check("plugin", Ok(path.display().to_string()));
    report.push(libraries(&path));
    let plugin = match Plugin::load(&path).map_err(failed("opening the plugin")) {
        Ok(plugin) => plugin,
        Err(error) => return report.fail("plugin version", error),
    };
    report.check("plugin version", Ok(version(&plugin)));
    let Some(version) = cuda_tools::cuda_version(&plugin) else {
        report.push(note(
            "compiler tools",
            None,
            "not looked for: this plugin is not jax's for CUDA",
        ));
        return report.device(cache, |cache| {
            cuda::open_cuda(settings, Mesh::single(), cache)
        });
    };
    report.push(driver_fits(driver.as_deref(), version / 1000));
    let tools = cuda_tools::find(&plugin)
        .map(|folder| tools_text(&folder))
        .map_err(failed("looking for ptxas and libdevice"));
    if !report.check("compiler tools", tools) {
        return report.done();
    }
    // There is nothing to describe it to where nothing can be lowered.
    if Library::open().is_ok() {
        let described = cuda::describe(Gpu::H200, settings, CacheSettings::in_memory());
        let compiled = described.and_then(|mut cache| compile_only(&mut cache));
        if !report.check("compile for an h200", compiled.map_err(failed("compiling"))) {
            return report.done();
        }
    }
    report.device(cache, |cache| {
        cuda::open_cuda(settings, Mesh::single(), cache)
    })
}

/// `580.65.06` out of the kernel module's line.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    line.split_whitespace().find(is_version).map(str::to_string)
}

fn driver_fits(driver: Option<&str>, major: i64) -> Check {
    let needed = DRIVERS
        .iter()
        .find(|(cuda, _)| *cuda == major)
        .map_or(0, |(_, driver)| *driver);
    let found = driver.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    let text = match found {
        Some(found) if found < needed => {
            format!(
                "TOO OLD: the plugin's CUDA {major} needs {needed} or newer; update it, or install a plugin of an older CUDA"
            )
        }
        Some(_) => format!("new enough: the plugin's CUDA {major} needs {needed}"),
        None => format!("the plugin's CUDA {major} will need {needed} or newer"),
    };
    note("driver's age", Some(text), "")
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
fn libraries(plugin: &Path) -> Check {
    let found = nvidia_libraries::preload(plugin);
    let bad: Vec<String> = found
        .iter()
        .filter_map(|l| Some(format!("{}: {}", l.path.display(), l.problem.as_ref()?)))
        .collect();
    let text = match (found.len(), bad.len()) {
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
    };
    note("NVIDIA libraries", Some(text), "")
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
        let found = |driver, major| driver_fits(driver, major).found.unwrap();
        assert!(
            found(Some("570.86.15"), 13).starts_with("TOO OLD")
                && found(Some("570.86.15"), 12).starts_with("new enough")
        );
        assert!(found(None, 13).contains("580"));
    }
}
