//! What several test modules need: test data, the program under test, how numbers are compared.

use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xtrain::checkpoint::hf;
use xtrain_models::{
    Class, Config, HeadKind, MaskedToken, NextToken, Objective, Regression, TokenLabel,
};
use xtrain_test_groups::Group;

/// The repository's own test data: texts, tables, tokenizers and golden cases. `README.md` there
/// says what each file is.
pub fn data_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A file of the repository's test data, as text.
pub fn data_text(name: &str) -> String {
    let path = data_dir().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Copies the definition of one of the golden tokenizers, `byte_bpe` or `wordpiece`.
pub fn copy_tokenizer(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let file = data_dir().join("golden/tokenizers").join(name);
    std::fs::copy(file.join("tokenizer.json"), to.join("tokenizer.json")).unwrap();
}

/// A directory outside the repository: what the variable says, or the default beside the checkout
/// if that exists.
fn outside(variable: &str, default: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        assert!(
            path.is_dir(),
            "{variable}: {} is no directory",
            path.display()
        );
        return Some(path);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(default);
    path.is_dir().then_some(path)
}

/// Published corpora, tokenizers and ids, for tests that use them in addition to their own data.
pub fn further_data() -> Option<PathBuf> {
    outside("XTRAIN_DATA_DIR", "../shared/data")
}

/// [`further_data`] for tests of nothing else. `None`, recorded as skipped, without it.
pub fn shared_data() -> Option<PathBuf> {
    let found = further_data();
    if found.is_none() {
        Group::Shared.skip("there is no ../shared/data; XTRAIN_DATA_DIR names another place");
    }
    found
}

/// Where golden cases are: the repository's own, then further ones beside the checkout.
pub fn golden_dirs() -> Vec<PathBuf> {
    let further = outside("XTRAIN_GOLDEN_DIR", "../shared/golden");
    assert!(
        further.is_some() || !Group::Shared.is_required(),
        "XTRAIN_REQUIRE asks for the group shared, but there is no ../shared/golden"
    );
    let own = data_dir().join("golden");
    std::iter::once(own).chain(further).collect()
}

/// All golden model cases whose family is built, with their names.
pub fn golden_cases() -> Vec<(String, PathBuf)> {
    golden_dirs()
        .iter()
        .flat_map(|dir| golden_cases_in(dir))
        .collect()
}

/// The first golden model case of each pair of family and class, for tests that are not about
/// numbers of transformers.
pub fn golden_classes() -> Vec<(String, PathBuf)> {
    let mut seen = std::collections::BTreeSet::new();
    let mut cases = golden_cases();
    cases.retain(|(_, dir)| {
        let config = hf::read_object(&dir.join("config.json")).unwrap();
        seen.insert(config["architectures"].to_string())
    });
    cases
}

/// The golden model cases of one golden directory whose family is built: its own, then those of its
/// folder `newer`. Prints each other case with its family.
pub fn golden_cases_in(golden: &Path) -> Vec<(String, PathBuf)> {
    let mut cases = Vec::new();
    let of = if golden.starts_with(data_dir()) {
        ""
    } else {
        "shared/"
    };
    for (prefix, folder) in [("", golden.to_path_buf()), ("newer/", golden.join("newer"))] {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        dirs.retain(|dir| dir.join("reference.safetensors").exists());
        dirs.sort();
        for dir in dirs {
            let name = format!("{of}{prefix}{}", dir.file_name().unwrap().to_string_lossy());
            let config = hf::read_object(&dir.join("config.json")).unwrap();
            let model_type = config["model_type"].as_str().unwrap();
            if xtrain_models::MODEL_TYPES.contains(&model_type) {
                cases.push((name, dir));
            } else {
                println!("golden case {name} did not run: family {model_type} is not supported");
            }
        }
    }
    assert!(
        !cases.is_empty(),
        "{}: no golden case can run",
        golden.display()
    );
    cases
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
        // Each step is recorded again and compared with the first of its kind.
        .env("XTRAIN_RECORD_AGAIN", "1")
        .env("XLA_FLAGS", LESS_OPTIMIZED)
        .stdin(std::process::Stdio::null());
    Command(command)
}

/// XLA makes the same graph into slower code in less than half of the time. Most tests compile for
/// longer than they train, and compare one run of xtrain with another. What is compared with
/// transformers, PyTorch, TRL and PEFT, kernels and pages of the documentation have the code that
/// users have: see [`as_users`].
const LESS_OPTIMIZED: &str =
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false";

/// The program with the code that users have.
pub fn as_users() -> Command {
    let mut command = xtrain();
    command.0.env_remove("XLA_FLAGS");
    command
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
        // SAFETY: between fork and exec only system calls are made; the limit passes on to the
        // program.
        unsafe {
            self.0.pre_exec(move || {
                if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            })
        };
        self
    }

    /// A program that runs longer is killed, so that one that waits for ever fails its test.
    pub fn limit_time(&mut self, seconds: u32) -> &mut Self {
        use std::os::unix::process::CommandExt;
        // SAFETY: between fork and exec one system call is made; the alarm passes on to the program.
        unsafe {
            self.0.pre_exec(move || {
                libc::alarm(seconds);
                Ok(())
            })
        };
        self
    }

    /// The program obeys the permissions of files, even when root runs the tests.
    pub fn without_overriding_permissions(&mut self) -> &mut Self {
        use std::os::unix::process::CommandExt;
        const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
        // SAFETY: between fork and exec one system call is made. It fails for anyone but root, who
        // obeys permissions already.
        unsafe {
            self.0.pre_exec(|| {
                libc::prctl(libc::PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0);
                Ok(())
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

/// Makes a pipe with a name.
pub fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the string ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Every file below a directory with its content, but its `cache` and what tells of time.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, files)
            } else {
                drop(files.insert(path.clone(), std::fs::read(&path).unwrap()))
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(root, &mut files);
    let cache = root.join("cache");
    files.retain(|path, _| !path.starts_with(&cache) && !path.ends_with("telemetry.jsonl"));
    files
}

/// The values of a JSON-lines file.
pub fn json_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A small model of a family: 2 layers, width 16, 4 heads (2 of keys and values where these may be
/// fewer), 40 tokens with one for padding, 16 positions and the two that RoBERTa keeps for it; with
/// windows of 4 and dropout everywhere, under the names that the family's configuration has.
pub fn small_config(model_type: &str) -> Config {
    let mut config = xtrain_models::default_config(model_type).unwrap();
    let small = json!({
        "n_layer": 2, "n_layers": 2, "num_layers": 2, "num_hidden_layers": 2,
        "n_head": 4, "n_heads": 4, "num_heads": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "n_embd": 16, "dim": 16, "hidden_size": 16, "embedding_size": 8, "rotary_dim": 4, "rotary_pct": 0.5,
        "hidden_dim": 32, "intermediate_size": 32,
        "n_positions": 18, "max_position_embeddings": 18, "vocab_size": 40,
        "window_size": 4, "sliding_window": 4, "local_attention": 4,
        "attention_types": [[["global", "local"], 1]],
        "attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "resid_dropout": 0.1, "embed_dropout": 0.1, "dropout": 0.1,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1,
    });
    for (key, value) in small.as_object().unwrap() {
        if config.get(key).is_some() {
            config.set(key, value.clone());
        }
    }
    config.set("pad_token_id", 1);
    config
}

/// What a model with this head is trained for, its labels smoothed by this share.
pub fn objective_of(head: HeadKind, smoothing: f64) -> Arc<dyn Objective> {
    match head {
        HeadKind::CausalLm => Arc::new(NextToken {
            smoothing,
            ..NextToken::default()
        }),
        HeadKind::MaskedLm => Arc::new(MaskedToken {
            smoothing,
            share: None,
        }),
        HeadKind::REGRESSION => Arc::new(Regression),
        HeadKind::SequenceClassification { .. } => Arc::new(Class { smoothing }),
        HeadKind::TokenClassification { .. } => Arc::new(TokenLabel { smoothing }),
    }
}
