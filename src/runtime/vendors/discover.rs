//! Where the vendors' PJRT plugins are: AWS's for Neuron, jax's for CUDA. Both come in Python
//! wheels, of which only the shared library is used; no Python runs.
//!
//! A flag or a variable that names the file wins and must be right. Else the virtual environment
//! that is active, then the vendor's own environments, then the system's Python. Every place that
//! was looked at is in the error.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// How one vendor ships its plugin.
pub struct Vendor {
    /// The device's name on the command line.
    pub device: &'static str,
    /// The variable that names the file.
    pub variable: &'static str,
    /// Below a `site-packages` folder, the preferred one first.
    files: &'static [&'static str],
    /// Folders of virtual environments by the start of their names: (parent, start).
    environments: &'static [(&'static str, &'static str)],
    /// What to install.
    install: &'static str,
}

/// AWS's plugin (`libneuronxla`), by the name that torch_xla gave the variable.
pub const NEURON: Vendor = Vendor {
    device: "neuron",
    variable: "NEURON_LIBRARY_PATH",
    files: &["libneuronxla/libneuronpjrt.so"],
    environments: &[("/opt", "aws_neuronx_venv_")],
    install: "install libneuronxla 3.0 or newer from AWS's package index, or name libneuronpjrt.so by --plugin or NEURON_LIBRARY_PATH",
};

/// jax's plugin for XLA:GPU.
pub const CUDA: Vendor = Vendor {
    device: "cuda",
    variable: "XTRAIN_CUDA_PLUGIN",
    files: &[
        "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    ],
    environments: &[],
    install: "install jax-cuda13-plugin (pip, with its NVIDIA libraries: jax[cuda13]), or name xla_cuda_plugin.so by --plugin or \
              XTRAIN_CUDA_PLUGIN",
};

impl Vendor {
    /// The plugin's file: the one that was named, by `named` or else by the variable, or the first
    /// that is found.
    pub fn find(&self, named: Option<&Path>) -> Result<PathBuf> {
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        self.search(
            named.map(Path::to_path_buf).or_else(|| set(self.variable)),
            set("VIRTUAL_ENV"),
            Path::new("/"),
        )
    }

    fn search(
        &self,
        chosen: Option<PathBuf>,
        environment: Option<PathBuf>,
        root: &Path,
    ) -> Result<PathBuf> {
        let places = match chosen {
            Some(path) => vec![path],
            None => self.places(environment, root),
        };
        let found = places.iter().find(|path| path.is_file()).cloned();
        found.ok_or(Error::PluginNotFound {
            device: self.device,
            variable: self.variable,
            install: self.install,
            tried: places,
        })
    }

    fn places(&self, environment: Option<PathBuf>, root: &Path) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = environment.into_iter().collect();
        for (parent, start) in self.environments {
            let below = root.join(parent.trim_start_matches('/'));
            prefixes.extend(
                folders(&below)
                    .into_iter()
                    .filter(|path| name(path).starts_with(start)),
            );
        }
        let mut sites: Vec<PathBuf> = prefixes
            .iter()
            .flat_map(|prefix| site_packages(&prefix.join("lib")))
            .collect();
        for lib in ["usr/local/lib", "usr/lib"] {
            sites.extend(site_packages(&root.join(lib)));
        }
        sites
            .iter()
            .flat_map(|site| self.files.iter().map(|file| site.join(file)))
            .collect()
    }
}

/// `python3*/site-packages` and Debian's `python3*/dist-packages` in a lib folder; where there is
/// no Python, the usual place, so that an error can name it.
fn site_packages(lib: &Path) -> Vec<PathBuf> {
    let mut pythons: Vec<PathBuf> = folders(lib)
        .into_iter()
        .filter(|path| name(path).starts_with("python3"))
        .collect();
    if pythons.is_empty() {
        pythons.push(lib.join("python3"));
    }
    pythons
        .iter()
        .flat_map(|python| [python.join("site-packages"), python.join("dist-packages")])
        .collect()
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut folders = entries(path);
    folders.retain(|path| path.is_dir());
    folders
}

/// What a folder holds, sorted; nothing where there is none.
pub(super) fn entries(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// The last part of a path.
pub(super) fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The version of the package that a plugin belongs to, by the `dist-info` folder that pip leaves
/// beside it (`package-3.0.1.dist-info`).
pub fn package_version(plugin: &Path, package: &str) -> Option<String> {
    let start = format!("{package}-");
    let site = plugin.parent()?.parent()?;
    let version = |path: PathBuf| {
        name(&path)
            .strip_prefix(&start)?
            .strip_suffix(".dist-info")
            .map(str::to_string)
    };
    folders(site).into_iter().find_map(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn the_nearest_environment_wins_and_a_chosen_file_must_exist() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let system = at("usr/lib/python3.10/dist-packages/libneuronxla/libneuronpjrt.so");
        let ami = at(
            "opt/aws_neuronx_venv_jax/lib/python3.10/site-packages/libneuronxla/libneuronpjrt.so",
        );
        let active = at("venv/lib/python3.12/site-packages/libneuronxla/libneuronpjrt.so");
        let search = |chosen, environment| NEURON.search(chosen, environment, root.path());
        let error = search(None, None).unwrap_err().to_string();
        assert!(
            error.contains("usr/lib/python3/site-packages/libneuronxla")
                && error.contains("NEURON_LIBRARY_PATH"),
            "{error}"
        );
        for (file, environment) in [(&system, None), (&ami, None), (&active, Some(at("venv")))] {
            touch(file);
            assert_eq!(&search(None, environment).unwrap(), file);
        }
        assert_eq!(
            search(Some(system.clone()), Some(at("venv"))).unwrap(),
            system
        );
        let error = search(Some(at("nowhere.so")), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("nowhere.so") && !error.contains("aws_neuronx"),
            "{error}"
        );
    }

    #[test]
    fn the_version_is_that_of_the_package_beside() {
        let root = tempfile::tempdir().unwrap();
        let plugin = root
            .path()
            .join("site-packages/libneuronxla/libneuronpjrt.so");
        touch(&plugin);
        assert_eq!(package_version(&plugin, "libneuronxla"), None);
        touch(
            &root
                .path()
                .join("site-packages/libneuronxla-2.2.16408.dist-info/METADATA"),
        );
        assert_eq!(
            package_version(&plugin, "libneuronxla").as_deref(),
            Some("2.2.16408")
        );
    }
}
