//! Builds the C++ half (cpp/plugin.cc) and checks the descriptors of XLA's protobufs.
//!
//! The wheel has headers but no `.proto` files; the compiled library carries their descriptors. A
//! small C++ program asks it for them; `../proto` has a copy, from which prost generates the Rust
//! types without XLA.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use sha2::{Digest, Sha256};
use xtrain_xla_layout::{XLA_DIR, XLA_VERSION};

fn main() {
    // Only these: a change in Rust code must not cost a minute of C++.
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed={DESCRIPTORS}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let lib = Path::new(XLA_DIR).join("lib");

    let libraries = thread::scope(|scope| {
        scope.spawn(|| check_descriptors(&out, &lib));
        scope.spawn(|| build_gloo_engine(&out));
        let kernels = scope.spawn(build_kernels);
        scope.spawn(|| {
            quiet_compiler()
                .file("cpp/profile.cc")
                .compile("xtrain_profile")
        });
        compiler().file("cpp/plugin.cc").compile("xtrain_cpp");
        let mut libraries = kernels.join().expect("the kernels compile");
        libraries.push("xtrain_profile".into());
        libraries
    });
    // One order, whichever is ready first: the bytes of what is linked depend on it.
    for name in libraries {
        println!("cargo:rustc-link-lib=static={name}");
    }

    let kernels = digest_of_kernels();
    println!("cargo:rustc-env=XTRAIN_XLA_VERSION={XLA_VERSION}, kernels {kernels}");
    // For the tests, which compile C++ of their own.
    println!("cargo:rustc-env=XTRAIN_XLA_DIR={XLA_DIR}");
    println!(
        "cargo:rustc-env=XTRAIN_CXX={}",
        compiler().get_compiler().path().display()
    );
    link(&lib);
}

/// Kernels of our own, each for processors that have what it needs: a unit with its flags. Nothing
/// of them is executed before the processor is asked (`find.cc`). Others than x86-64 have none. Gives
/// back the libraries' names.
fn build_kernels() -> Vec<String> {
    const AVX512: [&str; 5] = [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
    ];
    let pairs = [&AVX512[..], &["-mavx512bf16"]].concat();
    let amx = [&pairs[..], &["-mamx-tile", "-mamx-bf16"]].concat();
    // Loops of single operations: nothing is contracted, so that all give the same bits.
    let pass = [
        "-O3",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
    ];
    let pass_avx2 = [&pass[..], &["-mavx2"]].concat();
    let pass_avx512 = [&pass[..], &AVX512].concat();
    let mut units = vec![
        ("find", &[][..]),
        ("cost_model", &[]),
        ("wait", &[]),
        ("measure", &[]),
        ("calls", &[]),
        ("loops_baseline", &pass),
    ];
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        units.extend([
            ("avx2", &["-mavx2", "-mfma"][..]),
            ("avx512_f32", &AVX512),
            ("avx512_bf16", &pairs),
            ("amx_bf16", &amx),
            ("amx_f32", &amx),
            ("loops_avx2", &pass_avx2),
            ("loops_avx512", &pass_avx512),
        ]);
    }
    let compiled = units.into_iter().map(|(file, flags)| {
        let mut build = quiet_compiler();
        for flag in flags {
            build.flag(flag);
        }
        let name = format!("xtrain_kernel_{file}");
        build.file(format!("cpp/kernels/{file}.cc")).compile(&name);
        name
    });
    compiled.collect()
}

/// Of the kernels' sources and flags: equal digests compute equal bits. It is a part of the library's
/// version, and so of the keys of compiled graphs: there is no version number to forget to raise.
fn digest_of_kernels() -> String {
    let entries = fs::read_dir("cpp/kernels").expect("cpp/kernels lists");
    let files = entries.map(|entry| entry.expect("cpp/kernels lists").path());
    let mut files: Vec<PathBuf> = files.chain([PathBuf::from("build.rs")]).collect();
    // Directories list in any order.
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        let bytes = fs::read(&file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        digest.update(Sha256::digest(file.to_string_lossy().as_bytes()));
        digest.update(Sha256::digest(bytes));
    }
    let digest = digest.finalize();
    digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The flags with which every file that includes XLA's headers must be compiled.
fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .pic(true)
        .warnings(false)
        .opt_level(2)
        .debug(false)
        .std("c++17")
        .include(Path::new(XLA_DIR).join("include"));
    // Without NDEBUG some of XLA's structs have other sizes than in the library, which was built
    // with it.
    build
        .define("NDEBUG", None)
        .define("LLVM_ON_UNIX", "1")
        .define("LLVM_VERSION_STRING", "");
    build
        .flag("-fvisibility=hidden")
        .flag("-Wno-deprecated-declarations");
    build
}

/// The same, which leaves it to `main` to tell cargo of the library.
fn quiet_compiler() -> cc::Build {
    let mut build = compiler();
    build.cargo_metadata(false);
    build
}

fn link(lib: &Path) {
    println!("cargo:rustc-link-search=native={}", lib.display());
    // Where the XLA libraries are found at run time: in xla_extension/ beside the library or above
    // the target directory, so that a tree can be moved; else where they are now.
    for place in [
        "$ORIGIN/xla_extension/lib",
        "$ORIGIN/../../xla_extension/lib",
        &lib.display().to_string(),
    ] {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{place}");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath-link,{}", lib.display());
}

/// Where bin/bootstrap writes down that it found Gloo: `system`, or the directory with include/ and
/// lib/.
const GLOO_FOUND: &str = "../../.cargo/gloo";

/// Builds the part that carries collectives between processes, if Gloo is there. It is a library of
/// its own, so that the main one opens on machines without Gloo; the plugin looks for it beside
/// itself.
fn build_gloo_engine(out: &Path) {
    // A path that does not exist would count as changed at each build.
    if Path::new(GLOO_FOUND).exists() {
        println!("cargo:rerun-if-changed={GLOO_FOUND}");
    }
    // out is target/PROFILE/build/PACKAGE-HASH/out.
    let library = out
        .ancestors()
        .nth(3)
        .expect("cargo's directories are nested")
        .join("libxtrain_gloo.so");
    let found = fs::read_to_string(GLOO_FOUND).unwrap_or_default();
    let place = match found.trim() {
        "" | "none" => {
            let _ = fs::remove_file(&library);
            return;
        }
        "system" => None,
        place => Some(PathBuf::from(place)),
    };
    let mut compile = cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .opt_level(3)
        .debug(false)
        .std("c++17")
        .flag("-fvisibility=hidden")
        .get_compiler()
        .to_command();
    let unfinished = out.join("libxtrain_gloo.so");
    compile
        .args(["-shared", "cpp/gloo/engine.cc", "-o"])
        .arg(&unfinished);
    if let Some(place) = place {
        let lib = place.join("lib");
        compile
            .arg("-I")
            .arg(place.join("include"))
            .arg("-L")
            .arg(&lib);
        // The old kind of path, which also serves the libraries that Gloo itself needs.
        compile
            .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", lib.display()))
            .arg("-Wl,--allow-shlib-undefined");
    }
    run(compile.arg("-lgloo"));
    // Renamed into place: a program that runs may have the old one open.
    let aside = library.with_extension("so.new");
    fs::copy(&unfinished, &aside)
        .and_then(|_| fs::rename(&aside, &library))
        .expect("the target directory is writable");
}

/// The descriptors that `../proto` generates from.
const DESCRIPTORS: &str = "../proto/xla.fds";

/// Compares the library's descriptors with those that the Rust types are generated from.
fn check_descriptors(out: &Path, lib: &Path) {
    let program = out.join("descriptors");
    let mut compile = compiler().opt_level(0).get_compiler().to_command();
    compile.arg("cpp/descriptors.cc").arg("-o").arg(&program);
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"] {
        compile.arg(lib.join(library));
    }
    compile
        .arg(format!("-Wl,-rpath,{}", lib.display()))
        .arg("-Wl,--allow-shlib-undefined");
    run(&mut compile);
    let found = out.join("xla.fds");
    run(Command::new(&program).arg(&found));
    let read = |path: &Path| fs::read(path).unwrap_or_default();
    if read(&found) != read(Path::new(DESCRIPTORS)) {
        println!(
            "cargo:warning=XLA's protobufs are not those of xla_graphs/proto/xla.fds: copy {} there",
            found.display()
        );
    }
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
