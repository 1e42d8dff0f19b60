//! NVIDIA's libraries for a live GPU, opened before the plugin asks for them.
//!
//! jax's plugin finds the libraries of the wheels beside it by its own search path, but only in
//! pip's layout and only those that it opens itself: cuDNN, for one, opens its parts by name alone.
//! A library that is already open is found by its name, so the wheels' are opened here by their
//! paths, as JAX does. What is not in a wheel is left to the system's own search.

use super::cuda_tools::nvidia_folder;
use super::discover::{entries, name};
use std::path::{Path, PathBuf};

/// The libraries in the order in which they lean on each other, by the start of their file names;
/// versions differ by CUDA's.
const LIBRARIES: [&str; 13] = [
    "libcudart.so",
    "libnvJitLink.so",
    "libnvrtc.so",
    "libcublasLt.so",
    "libcublas.so",
    "libcupti.so",
    "libcusparse.so",
    "libcusolver.so",
    "libcufft.so",
    "libnccl.so",
    "libnvshmem_host.so",
    "libcudnn_graph.so",
    "libcudnn.so",
];

/// A library of a wheel, and whether it could be opened.
pub struct Preloaded {
    pub path: PathBuf,
    /// The loader's words.
    pub problem: Option<String>,
}

/// Opens the libraries of the wheels beside a plugin, for good. Call it before the plugin is opened.
pub fn preload(plugin: &Path) -> Vec<Preloaded> {
    let found = nvidia_folder(plugin)
        .map(|nvidia| in_wheels(&nvidia))
        .unwrap_or_default();
    found
        .into_iter()
        .map(|path| Preloaded {
            problem: open(&path).err(),
            path,
        })
        .collect()
}

fn open(path: &Path) -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the initializers of NVIDIA's libraries run here, as they would a moment later when
    // the plugin opens them; the folder is that of the user's plugin.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    // It stays open until the process ends.
    opened
        .map(std::mem::forget)
        .map_err(|e| crate::pjrt::reason(&e))
}

/// `nvidia/PACKAGE/lib/NAME.so.VERSION`, in the order of [`LIBRARIES`].
fn in_wheels(nvidia: &Path) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = entries(nvidia)
        .iter()
        .flat_map(|package| entries(&package.join("lib")))
        .collect();
    let named = |start: &str| {
        files
            .iter()
            .filter(|file| name(file).starts_with(start))
            .cloned()
            .collect::<Vec<_>>()
    };
    LIBRARIES.iter().flat_map(|start| named(start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_wheels_libraries_are_found_in_the_order_of_use() {
        let root = tempfile::tempdir().unwrap();
        let site = root.path();
        for file in [
            "cudnn/lib/libcudnn.so.9",
            "cu13/lib/libcudart.so.13",
            "cu13/lib/libcublas.so.13",
            "cu13/lib/libcublasLt.so.13",
        ] {
            let path = site.join("nvidia").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "no library").unwrap();
        }
        fs::write(site.join("nvidia/cu13/lib/libother.so"), "").unwrap();
        let plugin = site.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        let found = preload(&plugin);
        let names: Vec<String> = found.iter().map(|library| name(&library.path)).collect();
        assert_eq!(
            names,
            [
                "libcudart.so.13",
                "libcublasLt.so.13",
                "libcublas.so.13",
                "libcudnn.so.9"
            ]
        );
        assert!(
            found.iter().all(|library| library.problem.is_some()),
            "an empty file is no library"
        );
        assert!(preload(Path::new("/plugin.so")).is_empty());
    }
}
