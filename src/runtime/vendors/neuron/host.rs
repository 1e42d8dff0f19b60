//! What a Neuron host has, from the files that show it: chips, driver, libraries, packages. Nothing
//! here needs root or a device.

use crate::discover::package_version;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtrain_graphs::NeuronChip;

/// A machine below a root directory, which tests make up.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// neuronx-cc as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerFile {
    pub path: PathBuf,
    /// By the package that it belongs to.
    pub version: Option<String>,
}

impl Host {
    pub fn this() -> Host {
        Host::at("/")
    }

    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    }

    /// `trn1.32xlarge`; `None` outside of EC2.
    pub fn instance_type(&self) -> Option<String> {
        let vendor = self.read("sys/devices/virtual/dmi/id/sys_vendor")?;
        self.read("sys/devices/virtual/dmi/id/product_name")
            .filter(|_| vendor == "Amazon EC2")
    }

    /// The generation of this instance's chips.
    pub fn chip(&self) -> Option<NeuronChip> {
        let instance = self.instance_type()?;
        match instance.split('.').next()? {
            "trn1" | "trn1n" | "inf2" => Some(NeuronChip::Trn1),
            family if family.starts_with("trn2") => Some(NeuronChip::Trn2),
            family if family.starts_with("trn3") => Some(NeuronChip::Trn3),
            _ => None,
        }
    }

    /// The version of the kernel module.
    pub fn driver_version(&self) -> Option<String> {
        self.read("sys/module/neuron/version")
    }

    /// Chips, by their device files.
    pub fn device_files(&self) -> usize {
        (0..)
            .take_while(|i| self.root.join(format!("dev/neuron{i}")).exists())
            .count()
    }

    /// Where AWS's packages put a library, if it is there.
    pub fn library(&self, name: &str) -> Option<PathBuf> {
        let path = self.root.join("opt/aws/neuron/lib").join(name);
        path.exists().then_some(path)
    }

    /// neuronx-cc: on the PATH or, since nobody has activated the plugin's environment then, beside
    /// the plugin.
    pub fn compiler(&self, plugin: Option<&Path>, path: Option<&str>) -> Option<CompilerFile> {
        let on_path = path.map(std::env::split_paths).into_iter().flatten();
        // prefix/lib/python3.x/site-packages/libneuronxla/libneuronpjrt.so
        let beside = plugin.and_then(|plugin| Some(plugin.ancestors().nth(5)?.join("bin")));
        let found = on_path
            .chain(beside)
            .map(|folder| folder.join("neuronx-cc"))
            .find(|file| file.is_file())?;
        let version = plugin.and_then(|plugin| package_version(plugin, "neuronx_cc"));
        Some(CompilerFile {
            path: found,
            version,
        })
    }
}

impl CompilerFile {
    /// The folder that has to be on the PATH.
    pub fn folder(&self) -> Option<&Path> {
        self.path.parent()
    }

    /// Runs `neuronx-cc --version`, which also shows whether its Python can import it. The error is
    /// what it printed.
    pub fn run_version(&self) -> Result<String, String> {
        self.run(&["--version"]).map(|text| {
            let line = text
                .lines()
                .find(|line| line.contains("ersion"))
                .or(text.lines().next());
            line.unwrap_or_default().trim().to_string()
        })
    }

    /// The operations that this compiler says it takes.
    pub fn list_operators(&self) -> Result<String, String> {
        self.run(&["list-operators", "--framework", "XLA"])
    }

    fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.path)
            .args(args)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        if output.status.success() {
            // Some versions print to standard error.
            Ok(Some(text(&output.stdout))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| text(&output.stderr)))
        } else {
            let last = text(&output.stderr)
                .lines()
                .last()
                .unwrap_or("it printed nothing")
                .to_string();
            Err(format!(
                "{} {}: {}: {last}",
                self.path.display(),
                args.join(" "),
                output.status
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn an_instance_is_known_by_its_files() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::at(root.path());
        assert_eq!(
            (host.chip(), host.driver_version(), host.device_files()),
            (None, None, 0)
        );
        let dmi = root.path().join("sys/devices/virtual/dmi/id");
        write(&dmi.join("product_name"), "trn2.48xlarge\n");
        write(&dmi.join("sys_vendor"), "Another\n");
        assert_eq!(host.chip(), None, "the name alone says nothing");
        write(&dmi.join("sys_vendor"), "Amazon EC2\n");
        write(&root.path().join("sys/module/neuron/version"), "2.30.2\n");
        for i in 0..16 {
            write(&root.path().join(format!("dev/neuron{i}")), "");
        }
        assert_eq!(host.chip(), Some(NeuronChip::Trn2));
        write(&dmi.join("product_name"), "trn3.48xlarge\n");
        assert_eq!(host.chip(), Some(NeuronChip::Trn3));
        assert_eq!(
            (host.driver_version().as_deref(), host.device_files()),
            (Some("2.30.2"), 16)
        );
        write(&dmi.join("product_name"), "trn1.2xlarge");
        assert_eq!(host.chip(), Some(NeuronChip::Trn1));
        assert_eq!(host.library("libnrt.so.1"), None);
        write(&root.path().join("opt/aws/neuron/lib/libnrt.so.1"), "");
        assert!(host.library("libnrt.so.1").is_some());
    }

    #[test]
    fn the_compiler_beside_the_plugin_is_found_and_asked() {
        let root = tempfile::tempdir().unwrap();
        let site = root.path().join("venv/lib/python3.12/site-packages");
        let plugin = site.join("libneuronxla/libneuronpjrt.so");
        write(&plugin, "");
        let host = Host::at(root.path());
        assert_eq!(host.compiler(Some(&plugin), Some("/nowhere")), None);
        let program = root.path().join("venv/bin/neuronx-cc");
        write(
            &program,
            "#!/bin/sh\necho 'NeuronX Compiler version 2.27.5334.0+abc'\n",
        );
        write(&site.join("neuronx_cc-2.27.5334.0.dist-info/METADATA"), "");
        let found = host.compiler(Some(&plugin), Some("/nowhere")).unwrap();
        assert_eq!(
            found,
            CompilerFile {
                path: program.clone(),
                version: Some("2.27.5334.0".into())
            }
        );
        assert_eq!(
            found.run_version().unwrap(),
            "NeuronX Compiler version 2.27.5334.0+abc"
        );
        write(
            &program,
            "#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'neuronxcc'\" >&2\nexit 1\n",
        );
        let message = found.run_version().unwrap_err();
        assert!(
            message.contains("ModuleNotFoundError") && message.contains("bin/neuronx-cc --version"),
            "{message}"
        );
    }
}
