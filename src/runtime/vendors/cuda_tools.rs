//! What XLA:GPU needs besides its plugin to compile: NVIDIA's assembler (`ptxas`, which it runs)
//! and its mathematical functions (`libdevice.10.bc`, which it links in). Both come in wheels
//! beside the plugin or with a CUDA toolkit. Neither needs a GPU.

use crate::error::{Error, Result};
use crate::{OptionValue, Plugin};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PTXAS: &str = "bin/ptxas";
const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";

/// The compile option that names the folder of both.
pub const DATA_DIR_OPTION: &str = "xla_gpu_cuda_data_dir";

/// The folder that holds both for a plugin: beside it, then where `CUDA_HOME` and `CUDA_PATH`
/// point, then that of the `ptxas` on `PATH`, then the toolkit's usual place. The error lists every
/// place with what it lacks.
pub fn find(plugin: &Plugin) -> Result<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|folder| folder.join("ptxas").is_file());
    let on_path = on_path.filter_map(|folder| folder.parent().map(Path::to_path_buf));
    let major = cuda_major(plugin);
    let mut places = beside(plugin.path(), major);
    places.extend(["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable));
    places.extend(on_path);
    places.push("/usr/local/cuda".into());
    search(&places, major)
}

/// CUDA's major version that the plugin was built for, by its own word.
pub fn cuda_major(plugin: &Plugin) -> i64 {
    match cuda_version(plugin) {
        Some(version) => version / 1000,
        None => 13,
    }
}

/// CUDA's version that the plugin was built for, as `13000` for 13.0; `None` from a plugin that
/// does not tell.
pub fn cuda_version(plugin: &Plugin) -> Option<i64> {
    plugin
        .attributes()
        .iter()
        .find_map(|(name, value)| match value {
            OptionValue::Int(version) if name == "cuda_version" => Some(*version),
            _ => None,
        })
}

/// Where the wheels of one environment put NVIDIA's files: `nvidia/` beside `jax_plugins/`.
pub fn nvidia_folder(plugin: &Path) -> Option<PathBuf> {
    Some(plugin.parent()?.parent()?.parent()?.join("nvidia"))
}

fn beside(plugin: &Path, major: i64) -> Vec<PathBuf> {
    let Some(nvidia) = nvidia_folder(plugin) else {
        return Vec::new();
    };
    // From CUDA 13 on all parts share a folder.
    vec![if major < 13 {
        nvidia.join("cuda_nvcc")
    } else {
        nvidia.join(format!("cu{major}"))
    }]
}

fn search(places: &[PathBuf], major: i64) -> Result<PathBuf> {
    if let Some(found) = places.iter().find(|place| lacks(place).is_empty()) {
        return Ok(found.clone());
    }
    let tried = places
        .iter()
        .map(|place| format!("\n  {}: {}", place.display(), lacks(place).join(", ")))
        .collect();
    Err(Error::CudaTools {
        tried,
        install: install(major),
        major,
    })
}

/// What a folder lacks of the two.
fn lacks(folder: &Path) -> Vec<String> {
    let ptxas = folder.join(PTXAS);
    let mut lacks = Vec::new();
    match ptxas.metadata() {
        Err(_) => lacks.push(format!("no {PTXAS}")),
        // As unpacking a wheel without pip leaves it.
        Ok(data) if data.permissions().mode() & 0o111 == 0 => {
            lacks.push(format!("{PTXAS} is not executable (chmod +x)"))
        }
        Ok(_) => {}
    }
    if !folder.join(LIBDEVICE).is_file() {
        lacks.push(format!("no {LIBDEVICE}"));
    }
    lacks
}

fn install(major: i64) -> String {
    match major {
        ..13 => format!("install nvidia-cuda-nvcc-cu{major} beside the plugin (pip)"),
        _ => format!("install nvidia-cuda-nvcc and nvidia-nvvm {major}.* beside the plugin (pip)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_missing_part_is_named_and_the_first_whole_folder_wins() {
        let root = tempfile::tempdir().unwrap();
        let (a, b) = (root.path().join("a"), root.path().join("b"));
        let places = [a.clone(), b.clone()];
        let refusal = || search(&places, 13).unwrap_err().to_string();
        for part in [
            "a: no bin/ptxas, no nvvm/libdevice/libdevice.10.bc",
            "b: no bin/ptxas",
            "nvidia-nvvm 13.*",
            "CUDA_HOME",
        ] {
            assert!(
                refusal().contains(part),
                "`{part}` is missing in: {}",
                refusal()
            );
        }
        fs::create_dir_all(a.join("bin")).unwrap();
        fs::write(a.join(PTXAS), "").unwrap();
        assert!(
            refusal().contains("a: bin/ptxas is not executable (chmod +x), no nvvm"),
            "{}",
            refusal()
        );
        for folder in &places {
            fs::create_dir_all(folder.join("bin")).unwrap();
            fs::create_dir_all(folder.join(LIBDEVICE).parent().unwrap()).unwrap();
            fs::write(folder.join(LIBDEVICE), "").unwrap();
            fs::write(folder.join(PTXAS), "").unwrap();
        }
        fs::set_permissions(b.join(PTXAS), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(search(&places, 13).unwrap(), b);
        fs::set_permissions(a.join(PTXAS), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(search(&places, 13).unwrap(), a);
    }

    #[test]
    fn the_wheels_of_both_generations_are_known() {
        let plugin = Path::new("/venv/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        assert_eq!(
            beside(plugin, 13),
            [PathBuf::from("/venv/site-packages/nvidia/cu13")]
        );
        assert_eq!(
            beside(plugin, 12),
            [PathBuf::from("/venv/site-packages/nvidia/cuda_nvcc")]
        );
        assert!(install(12).contains("nvidia-cuda-nvcc-cu12"));
    }
}
