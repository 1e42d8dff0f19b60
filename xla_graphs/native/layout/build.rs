//! Checks that bin/bootstrap has run. A crate of its own, with no dependencies, so that it is among
//! the first things that cargo runs: without it the first failure would be one deep inside bindgen.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["XLA_EXTENSION_DIR", "LIBCLANG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let Some(dir) = env::var_os("XLA_EXTENSION_DIR").map(PathBuf::from) else {
        fail(
            "XLA_EXTENSION_DIR is not set: .cargo/config.toml sets it when cargo runs inside the checkout",
        );
    };
    for part in ["include/xla", "lib/libxla_extension.so"] {
        // A part that is missing makes cargo run this again each time, which is what is wanted
        // then.
        println!("cargo:rerun-if-changed={}", dir.join(part).display());
        if !dir.join(part).exists() {
            fail(&format!(
                "there is no XLA library: {} is missing",
                dir.join(part).display()
            ));
        }
    }
    if let Some(libclang) = env::var_os("LIBCLANG_PATH").filter(|path| !Path::new(path).exists()) {
        fail(&format!(
            "there is no libclang: {} is missing",
            Path::new(&libclang).display()
        ));
    }
    // Canonical, so that what is linked against it does not depend on the link in the checkout.
    let real =
        fs::canonicalize(&dir).unwrap_or_else(|error| fail(&format!("{}: {error}", dir.display())));
    println!("cargo:rustc-env=XTRAIN_XLA_DIR={}", real.display());
    println!("cargo:rustc-env=XTRAIN_XLA_VERSION={}", version(&real));
}

/// What identifies the build of XLA: the pinned wheel, or the size of a library of the user's own.
fn version(dir: &Path) -> String {
    let pinned = dir.join("VERSION");
    if pinned.exists() {
        println!("cargo:rerun-if-changed={}", pinned.display());
    }
    match fs::read_to_string(pinned) {
        Ok(text) => text.trim().to_string(),
        Err(_) => {
            let size =
                fs::metadata(dir.join("lib/libxla_extension.so")).map_or(0, |data| data.len());
            format!("custom libxla_extension.so of {size} bytes")
        }
    }
}

fn fail(problem: &str) -> ! {
    eprintln!(
        "{problem}\n\n    Run bin/bootstrap: it fetches what is missing and builds. (It says what it needs.)\n"
    );
    process::exit(1)
}
