//! What several test modules need: where shared data lies, how a skip is told, how numbers are
//! compared.

use std::path::{Path, PathBuf};
use xtrain::checkpoint::hf;

/// A directory outside the repository that holds reference data. `None`, with a line that says so,
/// if it is not there.
pub fn shared_dir(variable: &str, default: &str) -> Option<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join(default),
    };
    if path.is_dir() {
        return Some(path);
    }
    eprintln!(
        "SKIPPED: {} is not a directory; set {variable} to run this test",
        path.display()
    );
    None
}

pub fn golden_dir() -> Option<PathBuf> {
    shared_dir("XTRAIN_GOLDEN_DIR", "../shared/golden")
}

/// The golden model cases whose family is built, with their names: those of the golden directory,
/// then those of its folder `newer`. Reports each other case as skipped, with its family.
pub fn golden_cases() -> Vec<(String, PathBuf)> {
    let Some(golden) = golden_dir() else {
        return Vec::new();
    };
    let mut cases = Vec::new();
    for (prefix, folder) in [("", golden.clone()), ("newer/", golden.join("newer"))] {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        dirs.retain(|dir| dir.join("reference.safetensors").exists());
        dirs.sort();
        for dir in dirs {
            let name = format!("{prefix}{}", dir.file_name().unwrap().to_string_lossy());
            let config = hf::read_object(&dir.join("config.json")).unwrap();
            let model_type = config["model_type"].as_str().unwrap();
            if xtrain_models::MODEL_TYPES.contains(&model_type) {
                cases.push((name, dir));
            } else {
                eprintln!("SKIPPED: golden case {name}: family {model_type} is not built");
            }
        }
    }
    assert!(!cases.is_empty(), "no golden case can run");
    cases
}

pub fn data_dir() -> Option<PathBuf> {
    shared_dir("XTRAIN_DATA_DIR", "../shared/data")
}

/// The largest absolute difference, NaN if any value is NaN.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// The program under test, to be run as a user would.
pub struct Command(std::process::Command);

/// What a run left behind.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn xtrain() -> Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xtrain"));
    // Tests that say nothing of a cache share one, never the user's. It may outlive them: what is
    // in it is found by what it is.
    command
        .env(
            "XTRAIN_CACHE_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"),
        )
        .stdin(std::process::Stdio::null());
    Command(command)
}

impl Command {
    pub fn arg(&mut self, arg: impl AsRef<std::ffi::OsStr>) -> &mut Self {
        self.0.arg(arg);
        self
    }

    pub fn args<A: AsRef<std::ffi::OsStr>>(
        &mut self,
        args: impl IntoIterator<Item = A>,
    ) -> &mut Self {
        self.0.args(args);
        self
    }

    pub fn env(&mut self, key: &str, value: impl AsRef<std::ffi::OsStr>) -> &mut Self {
        self.0.env(key, value);
        self
    }

    /// The process itself, to be started in other ways than [`Command::run`] does.
    pub fn process(&mut self) -> std::process::Command {
        std::mem::replace(&mut self.0, std::process::Command::new("true"))
    }

    pub fn run(&mut self) -> Run {
        let output = self.0.output().unwrap();
        Run {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into(),
            stderr: String::from_utf8_lossy(&output.stderr).into(),
        }
    }

    /// The program runs in this directory.
    pub fn dir(&mut self, dir: &Path) -> &mut Self {
        self.0.current_dir(dir);
        self
    }

    /// No file of the program's can grow beyond `bytes`: writes fail as on a full disk, with
    /// another error number.
    pub fn limit_files(&mut self, bytes: u64) -> &mut Self {
        use std::os::unix::process::CommandExt;
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        // SAFETY: between fork and exec only system calls are made; the limit and the ignored
        // signal pass on to the program.
        unsafe {
            self.0.pre_exec(move || {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            })
        };
        self
    }

    /// Starts the program without waiting for it; what it prints is dropped.
    pub fn start(&mut self) -> std::process::Child {
        self.0
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    /// [`Command::run_and_send`] with SIGTERM.
    pub fn run_and_signal(&mut self, sign: &str, delay: std::time::Duration) -> Run {
        self.run_and_send(sign, delay, libc::SIGTERM)
    }

    /// Starts the program, waits for a line that contains `sign` and a little longer, sends a
    /// signal and waits for the end.
    pub fn run_and_send(&mut self, sign: &str, delay: std::time::Duration, signal: i32) -> Run {
        let mut signalled = false;
        let run = self.run_watching(|line, pid| {
            if line.contains(sign) && !signalled {
                signalled = true;
                std::thread::sleep(delay);
                // SAFETY: the child has not been waited for, so its number is still its own.
                unsafe { libc::kill(pid as i32, signal) };
            }
        });
        assert!(signalled, "no line with {sign:?} in:\n{}", run.stdout);
        run
    }

    /// Runs the program, calling `each_line` with each line of its standard output and its process
    /// number.
    pub fn run_watching(&mut self, mut each_line: impl FnMut(&str, u32)) -> Run {
        use std::io::{BufRead, Read};
        let mut child = self
            .0
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut stdout = String::new();
        for line in std::io::BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            each_line(&line, child.id());
            stdout.push_str(&line);
            stdout.push('\n');
        }
        let code = child.wait().unwrap().code();
        Run {
            code,
            stdout,
            stderr: errors.join().unwrap(),
        }
    }
}

impl Run {
    /// Panics with everything that was printed unless the run succeeded.
    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(
            self.code,
            Some(0),
            "stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
    }
}

/// The values of a JSON-lines file.
pub fn json_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
