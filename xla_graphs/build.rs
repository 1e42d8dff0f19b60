//! Digests the code that lowers graphs, for the key of the compiled-graph cache: there is no
//! version number to forget to raise.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// This crate, the emitter, and the version of xla-rs that the emitter calls. The CPU's kernels are in the
/// version of the library that has them (`native/build.rs`).
const SOURCES: [&str; 3] = ["src", "native/src/emit", "native/Cargo.toml"];

fn main() {
    let mut digest = Sha256::new();
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        let mut files = Vec::new();
        collect(Path::new(source), &mut files);
        // Directories list in any order.
        files.sort();
        for file in files {
            let bytes = fs::read(&file)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
            digest.update(Sha256::digest(file.to_string_lossy().as_bytes()));
            digest.update(Sha256::digest(bytes));
        }
    }
    let digest: String = digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("cargo:rustc-env=XTRAIN_LOWERING={digest}");
}

fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_file() {
        return into.push(path.to_path_buf());
    }
    let entries = fs::read_dir(path)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", path.display()));
    for entry in entries {
        collect(&entry.expect("a directory that lists").path(), into);
    }
}
