//! What people install: the wheel and the archive of `bin/dist`, packed from the program that these tests
//! were built with.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `bin/dist` on the built program; the files that it made.
#[track_caller]
fn pack(out: &Path, more: &[&str]) -> Vec<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_xtrain")).parent().unwrap();
    let output = Command::new(root().join("bin/dist"))
        .arg("--out")
        .arg(out)
        .arg("--built")
        .arg(built)
        .args(more)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("the newest symbols that the program needs: "),
        "{stderr}"
    );
    let mut files: Vec<PathBuf> = fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn wheel_of(files: &[PathBuf]) -> &PathBuf {
    let is_wheel = |path: &&PathBuf| path.extension().is_some_and(|ext| ext == "whl");
    files.iter().find(is_wheel).unwrap()
}

/// Python's answer, where Python is needed to read what it is for.
#[track_caller]
fn python(program: &str, arguments: &[&Path]) -> String {
    let output = Command::new("python3")
        .args(["-c", program])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The same program gives the same bytes; the wheel has what it must, names XLA and no path of this
/// machine, and its program runs from where it is unpacked.
#[test]
fn the_wheel_is_reproducible_and_runs_where_it_is_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let first = pack(&dir.path().join("a"), &["--no-archive"]);
    let second = pack(&dir.path().join("b"), &["--no-archive"]);
    for (one, other) in first.iter().zip(&second) {
        assert!(
            fs::read(one).unwrap() == fs::read(other).unwrap(),
            "{} differs",
            one.display()
        );
    }
    let wheel = wheel_of(&first);
    let name = wheel.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("xtrain-") && name.contains("-py3-none-manylinux_2_"),
        "{name}"
    );
    let sums = fs::read_to_string(dir.path().join("a/SHA256SUMS")).unwrap();
    let digest = Sha256::digest(fs::read(wheel).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(sums.contains(&format!("{digest}  {name}")), "{sums}");
    // The folder is the context of a container's build.
    for name in ["cpu", "cuda", "neuron"] {
        assert!(sums.contains(&format!("  {name}.Dockerfile\n")), "{sums}");
    }
    assert!(sums.contains("  install-xtrain\n"), "{sums}");

    let place = dir.path().join("site");
    let names = python(
        "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1]) as z:\n    z.extractall(sys.argv[2])\n    print('\\n'.join(z.namelist()))",
        &[wheel, &place],
    );
    let version = env!("CARGO_PKG_VERSION");
    for part in [
        "xtrain/__init__.py".to_string(),
        "xtrain/xtrain".into(),
        "xtrain/libxtrain_xla.so".into(),
        format!("xtrain-{version}.dist-info/licenses/THIRD_PARTY_LICENSES.txt"),
        format!("xtrain-{version}.dist-info/licenses/sbom.cdx.json"),
        format!("xtrain-{version}.data/data/share/man/man1/xtrain-train-clm.1"),
        format!("xtrain-{version}.data/data/share/bash-completion/completions/xtrain"),
    ] {
        assert!(
            names.lines().any(|name| name == part),
            "{part} is missing in\n{names}"
        );
    }
    let metadata =
        fs::read_to_string(place.join(format!("xtrain-{version}.dist-info/METADATA"))).unwrap();
    let bootstrap = fs::read_to_string(root().join("bin/bootstrap")).unwrap();
    let pin = |name: &str| {
        let after = bootstrap.split(&format!("{name}=")).nth(1).unwrap();
        after.split_whitespace().next().unwrap().to_string()
    };
    let wanted = format!(
        "Requires-Dist: {}=={}",
        pin("WHEEL_NAME"),
        pin("WHEEL_VERSION")
    );
    assert!(metadata.contains(&wanted), "{metadata}");
    let library = fs::read(place.join("xtrain/libxtrain_xla.so")).unwrap();
    let has = |text: &str| {
        library
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(has("$ORIGIN/xla:$ORIGIN/../tensorflow\0"));
    let layout = fs::canonicalize(root().join("xla_extension")).unwrap();
    assert!(
        !has(&format!("{}/lib\0", layout.display())),
        "the run path names this machine"
    );

    // XLA beside the package, as pip installs it; the launcher of the wheel, without anything of ours.
    let beside = place.join("tensorflow");
    fs::create_dir(&beside).unwrap();
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"] {
        std::os::unix::fs::symlink(layout.join("lib").join(library), beside.join(library)).unwrap();
    }
    let program = place.join("xtrain/xtrain");
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let doctor = Command::new("python3")
        .args(["-m", "xtrain", "doctor"])
        .current_dir(&place)
        .env("PYTHONPATH", &place)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&doctor.stdout);
    assert!(
        doctor.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&doctor.stderr)
    );
    assert!(
        stdout.contains(place.join("xtrain/libxtrain_xla.so").to_str().unwrap()),
        "{stdout}"
    );
}

/// What a stranger does: an empty environment, the wheel and its dependency from the package index, a
/// run; and the archive, unpacked elsewhere, without Python.
#[test]
#[ignore = "slow: downloads the XLA wheel with all that it needs, and packs 850 MB"]
fn strangers_install_and_train() {
    let dir = tempfile::tempdir().unwrap();
    let files = pack(&dir.path().join("dist"), &[]);
    let wheel = wheel_of(&files);
    assert!(fs::metadata(wheel).unwrap().len() < 40 << 20);
    let shell = |line: &str| {
        let output = Command::new("bash")
            .args(["-euc", line])
            .current_dir(dir.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", dir.path())
            .env("WHEEL", wheel)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{text}");
        text
    };
    shell("! command -v cargo && python3 -m venv venv && venv/bin/pip install -q \"$WHEEL\"");
    assert!(shell("venv/bin/xtrain doctor").contains("ok    compile and run"));
    assert!(shell("venv/bin/xtrain quickstart --max_steps 20").contains("a sample, continuing"));
    assert!(
        shell("test -s venv/share/man/man1/xtrain.1 && venv/bin/xtrain completions bash")
            .contains("xtrain")
    );
    shell(
        "mkdir moved && tar -xzf dist/xtrain-*-linux-x86_64.tar.gz -C moved && mv moved/xtrain-* moved/here",
    );
    let doctor = shell("moved/here/bin/xtrain doctor");
    assert!(
        doctor.contains("moved/here/lib/libxtrain_xla.so"),
        "{doctor}"
    );
    shell("moved/here/bin/xtrain quickstart --max_steps 20 --output_dir archive");
}
