//! Runs the C++ conformance programs of `tests/native/` against the plugin in `libxtrain_xla.so`,
//! as any PJRT client would open it. Each program is compiled once and kept beside the build: XLA's
//! headers take a minute.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const XLA_DIR: &str = env!("XTRAIN_XLA_DIR");

/// The shared library that cargo built for this test: beside the test's own binary.
fn library() -> PathBuf {
    let deps = std::env::current_exe().expect("a running test has a path");
    let path = deps.with_file_name("libxtrain_xla.so");
    assert!(
        path.exists(),
        "{} is missing: cargo builds it with this test",
        path.display()
    );
    path
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/native")
        .join(name)
}

/// Compiles a program, unless one made from the same text with the same compiler and library is
/// there.
fn compile(name: &str, with_xla: bool) -> PathBuf {
    let (source, lib) = (source(name), Path::new(XLA_DIR).join("lib"));
    let text = fs::read(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let mut hash = DefaultHasher::new();
    (
        text,
        env!("XTRAIN_CXX"),
        XLA_DIR,
        env!("XTRAIN_XLA_VERSION"),
    )
        .hash(&mut hash);
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{:016x}", hash.finish()));
    if program.exists() {
        return program;
    }
    eprintln!(
        "compiling {name}{}",
        if with_xla { " (about a minute)" } else { "" }
    );
    let unfinished = program.with_extension("new");
    let mut command = Command::new(env!("XTRAIN_CXX"));
    // The same flags as for the plugin, where they matter: without NDEBUG the library's structs
    // have other sizes.
    command.args([
        "-std=c++17",
        "-O0",
        "-w",
        "-DNDEBUG",
        "-DLLVM_ON_UNIX=1",
        "-DLLVM_VERSION_STRING=",
    ]);
    command
        .arg("-I")
        .arg(Path::new(XLA_DIR).join("include"))
        .arg(&source)
        .arg("-o")
        .arg(&unfinished);
    if with_xla {
        command.args(
            ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"].map(|file| lib.join(file)),
        );
        command.arg(format!("-Wl,-rpath,{}", lib.display()));
    }
    let output = command
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("the compiler that built the plugin runs");
    assert!(
        output.status.success(),
        "{name} does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&unfinished, &program).expect("the compiler wrote it");
    program
}

fn run(program: &Path, argument: impl AsRef<OsStr>) {
    let output = Command::new(program)
        .arg(argument)
        // The library logs when it is loaded, and at every bad call, unless set otherwise before.
        .env("TF_ENABLE_ONEDNN_OPTS", "0")
        .env("TF_CPP_MIN_LOG_LEVEL", "3")
        .output()
        .expect("a program that was just compiled runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{out}");
    assert!(
        output.status.success() && out.ends_with("ALL PASS\n"),
        "{}: {}\n{out}\n{err}",
        program.display(),
        output.status
    );
}

#[test]
fn xla_client_drives_the_plugin() {
    run(&compile("capi_client.cc", true), library());
}

#[test]
fn bad_calls_end_in_errors() {
    run(&compile("bad_calls.cc", false), library());
}
