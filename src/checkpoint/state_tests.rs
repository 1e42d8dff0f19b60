//! Checkpoints that come back exactly, and what is left after a kill, a full disk and damage.

use super::*;
use serde_json::json;
use std::process::Command;
use xtrain_graphs::{DType, Shape};

/// Content of a checkpoint of about `kilobytes`, all of it derived from `step`.
struct Content {
    config: Map<String, Value>,
    tensors: Vec<(String, Vec<u8>)>,
    files: Vec<(String, Vec<u8>)>,
    trainer_state: TrainerState,
    state: TrainingState,
}

impl Content {
    fn new(step: u64, kilobytes: usize) -> Content {
        let tensors = ["h.0.weight", "wte.weight"]
            .map(|name| (name.to_string(), vec![step as u8; kilobytes * 512]))
            .to_vec();
        Content {
            config: json!({"model_type": "gpt2", "n_layer": 1})
                .as_object()
                .unwrap()
                .clone(),
            tensors,
            files: vec![("tokenizer.json".to_string(), b"{}".to_vec())],
            trainer_state: TrainerState {
                global_step: step,
                epoch: 0.1 + 0.2,
                ..TrainerState::default()
            },
            state: TrainingState {
                global_step: step,
                epoch: 3,
                batch_in_epoch: 17,
                seed: u64::MAX,
                accumulators: [("loss".to_string(), 0.1 + 0.7)].into(),
                ..TrainingState::default()
            },
        }
    }

    fn save(&self, output_dir: &Path) -> Result<PathBuf> {
        let tensor = |name: String, bytes: &'static [u8]| {
            TensorRef::new(name, Shape::new(DType::F32, [bytes.len() / 4]), bytes)
        };
        // Leaked so that the borrowed views below need no lifetimes of their own; a test process is
        // short.
        let bytes: Vec<(&String, &'static [u8])> = self
            .tensors
            .iter()
            .map(|(n, b)| (n, &*b.clone().leak()))
            .collect();
        let weights: Vec<_> = bytes
            .iter()
            .map(|(name, bytes)| tensor(name.to_string(), bytes))
            .collect();
        let moments: Vec<_> = bytes
            .iter()
            .map(|(name, bytes)| tensor(format!("exp_avg.{name}"), bytes))
            .collect();
        let model = Pretrained {
            form: hf::Form::Model,
            config: &self.config,
            weights: &weights,
            files: &self.files,
            max_shard_size: 5_000_000_000,
        };
        let (trainer_state, state) = (&self.trainer_state, &self.state);
        save_checkpoint(
            output_dir,
            &CheckpointParts {
                model,
                optimizer: Some(&moments),
                peer_writers: None,
                trainer_state,
                state,
                pace: &Pace::full(),
            },
        )
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let content = Content::new(200, 4);
    let path = content.save(dir.path()).unwrap();
    assert_eq!(path, dir.path().join("checkpoint-200"));
    let loaded = load_checkpoint(&path).unwrap();
    assert_eq!(
        (loaded.state, loaded.trainer_state, loaded.config),
        (content.state, content.trainer_state, content.config)
    );
    assert_eq!(
        loaded.weights.get("wte.weight").unwrap().bytes,
        content.tensors[1].1
    );
    assert_eq!(
        loaded
            .optimizer
            .as_ref()
            .unwrap()
            .get("exp_avg.h.0.weight")
            .unwrap()
            .bytes,
        content.tensors[0].1
    );
    let names = [
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
        "trainer_state.json",
        "training_state.json",
    ];
    assert_eq!(entries(&path), names);
}

#[test]
fn the_same_state_gives_the_same_bytes() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [one, two].map(|dir| (Content::new(5, 4).save(dir.path()).unwrap(), dir));
    for name in entries(&paths[0].0) {
        assert_eq!(
            fs::read(paths[0].0.join(&name)).unwrap(),
            fs::read(paths[1].0.join(&name)).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn the_newest_complete_checkpoint_is_found() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        list_checkpoints(&dir.path().join("none"))
            .unwrap()
            .is_empty()
    );
    for step in [900, 1000, 30] {
        Content::new(step, 1).save(dir.path()).unwrap();
    }
    fs::create_dir(dir.path().join("checkpoint-2000")).unwrap();
    fs::create_dir(dir.path().join("checkpoint-x")).unwrap();
    fs::create_dir(dir.path().join(".tmp-new-checkpoint-3000.1.1")).unwrap();
    assert_eq!(
        list_checkpoints(dir.path()).unwrap().pop(),
        Some((1000, dir.path().join("checkpoint-1000")))
    );
    let error = load_checkpoint(&dir.path().join("checkpoint-2000"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("checkpoint-2000") && error.contains("--model_name_or_path"),
        "{error}"
    );
    assert!(
        load_checkpoint(&dir.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("none")
    );
}

#[test]
fn damage_anywhere_is_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = Content::new(1, 1).save(dir.path()).unwrap();
    for name in entries(&path) {
        let file = path.join(&name);
        let whole = fs::read(&file).unwrap();
        // Cut at several places, emptied, flipped in several places, removed.
        let cuts = [0, 1, whole.len() / 2, whole.len() - 1].map(|n| whole[..n].to_vec());
        let flips = (0..whole.len())
            .step_by(whole.len().div_ceil(23))
            .map(|at| {
                let mut copy = whole.clone();
                copy[at] ^= 1;
                copy
            });
        for (i, bad) in cuts.into_iter().chain(flips).enumerate() {
            fs::write(&file, &bad).unwrap();
            match load_checkpoint(&path) {
                Err(error @ (Error::Damaged { .. } | Error::Version { .. })) => {
                    assert!(error.to_string().contains(&name), "{error}")
                }
                Err(other) => panic!("{name} damage {i}: {other}"),
                // Only white space between JSON tokens, or a newline at the end of the state file
                // itself, may change unseen.
                Ok(loaded) => {
                    assert!(
                        name == TRAINING_STATE_FILE && loaded.state == Content::new(1, 1).state,
                        "{name} damage {i}"
                    )
                }
            }
        }
        fs::remove_file(&file).unwrap();
        assert!(load_checkpoint(&path).unwrap_err().to_string().contains(
            if name == TRAINING_STATE_FILE {
                "checkpoint-1"
            } else {
                &name
            }
        ));
        fs::write(&file, &whole).unwrap();
    }
    load_checkpoint(&path).unwrap();
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = Content::new(1, 1).save(dir.path()).unwrap();
    let file = path.join(TRAINING_STATE_FILE);
    let text = fs::read_to_string(&file)
        .unwrap()
        .replace("\"format_version\": 1", "\"format_version\": 2");
    fs::write(&file, text).unwrap();
    assert!(matches!(
        load_checkpoint(&path).unwrap_err(),
        Error::Version { found: 2, .. }
    ));
}

#[test]
fn a_state_that_is_not_finite_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut content = Content::new(1, 1);
    content.state.accumulators.insert("loss".into(), f64::NAN);
    assert!(
        content
            .save(dir.path())
            .unwrap_err()
            .to_string()
            .contains("loss is NaN")
    );
    assert!(entries(dir.path()).is_empty());
}

/// Runs one of the tests below again in a process of its own, where it plays the part that
/// `XTRAIN_TEST_PART` names.
fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let (_, module) = module_path!().split_once("::").unwrap();
    command
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env("XTRAIN_TEST_PART", dir);
    command
}

#[test]
fn a_full_disk_leaves_the_previous_checkpoint_and_no_litter() {
    if let Some(dir) = std::env::var_os("XTRAIN_TEST_PART") {
        // SAFETY: plain libc calls in a process that runs this one test. Writes past the limit then
        // fail instead of killing.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit {
                rlim_cur: 64 * 1024,
                rlim_max: 64 * 1024,
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        for step in [10, 20] {
            let error = Content::new(step, 256).save(Path::new(&dir)).unwrap_err();
            assert!(error.is_disk_full(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("checkpoint-{step}/model.safetensors"))
                    && text.contains("free some space"),
                "{text}"
            );
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = Content::new(10, 256).save(dir.path()).unwrap();
    let before = fs::read(path.join(TRAINING_STATE_FILE)).unwrap();
    let output = child(
        "a_full_disk_leaves_the_previous_checkpoint_and_no_litter",
        dir.path(),
    )
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    assert_eq!(entries(dir.path()), ["checkpoint-10"]);
    assert_eq!(fs::read(path.join(TRAINING_STATE_FILE)).unwrap(), before);
    load_checkpoint(&path).unwrap();
}

#[test]
fn a_kill_at_any_moment_leaves_a_loadable_checkpoint() {
    if let Some(dir) = std::env::var_os("XTRAIN_TEST_PART") {
        // Overwrites the same steps again and again, the hardest case, until killed.
        for round in 0.. {
            Content::new(10 + round % 2, 512)
                .save(Path::new(&dir))
                .unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    Content::new(10, 512).save(dir.path()).unwrap();
    for round in 0..12 {
        let mut child = child(
            "a_kill_at_any_moment_leaves_a_loadable_checkpoint",
            dir.path(),
        )
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20 + 7 * round));
        assert!(child.try_wait().unwrap().is_none(), "it has run no test");
        child.kill().unwrap();
        child.wait().unwrap();
        clean_output_dir(dir.path()).unwrap();
        let names = entries(dir.path());
        assert!(
            names.iter().all(|name| name.starts_with("checkpoint-")),
            "{names:?}"
        );
        for (_, path) in list_checkpoints(dir.path()).unwrap() {
            load_checkpoint(&path).unwrap();
        }
        assert!(dir.path().join("checkpoint-10").exists());
    }
}

/// A process beside this one, which has a part of the optimizer's state, or fails to write it.
struct Beside<'a> {
    tensors: Vec<TensorRef<'a>>,
    dir: std::cell::RefCell<PathBuf>,
    fails: bool,
}

impl PeerWriters for Beside<'_> {
    fn count(&self) -> usize {
        2
    }

    fn begin(&self, dir: &Path) -> Result<()> {
        *self.dir.borrow_mut() = dir.to_path_buf();
        Ok(())
    }

    fn finish(&self) -> Result<Vec<optimizer::PartFile>> {
        if self.fails {
            return Err(Error::Part {
                rank: 1,
                error: "disk full".into(),
                is_lasting: true,
            });
        }
        Ok(vec![optimizer::write_part(
            &self.dir.borrow(),
            1,
            2,
            &self.tensors,
            &Pace::full(),
        )?])
    }
}

#[test]
fn parts_of_several_processes_are_one_checkpoint_or_none() {
    let out = tempfile::tempdir().unwrap();
    let values: Vec<[u8; 8]> = (0..3u8).map(|n| [n; 8]).collect();
    let tensor = |name: &'static str, n: usize| {
        TensorRef::new(name, Shape::new(DType::F32, [2]), &values[n])
    };
    let (own, rest) = (
        [tensor("exp_avg.a", 0)],
        vec![tensor("exp_avg.b", 1), tensor("exp_avg_sq.a", 2)],
    );
    let config = Map::new();
    let weights = [tensor("a", 0)];
    let model = Pretrained {
        form: hf::Form::Model,
        config: &config,
        weights: &weights,
        files: &[],
        max_shard_size: 1 << 30,
    };
    let save = |step, fails| {
        let beside = Beside {
            tensors: rest.clone(),
            dir: Default::default(),
            fails,
        };
        let (state, trainer_state) = (
            TrainingState {
                global_step: step,
                ..Default::default()
            },
            TrainerState::default(),
        );
        let parts = CheckpointParts {
            model: model.clone(),
            optimizer: Some(&own),
            peer_writers: Some(&beside),
            trainer_state: &trainer_state,
            state: &state,
            pace: &Pace::full(),
        };
        save_checkpoint(out.path(), &parts)
    };
    let dir = save(1, false).unwrap();
    let read = load_checkpoint(&dir).unwrap().optimizer.unwrap();
    let names: Vec<&str> = read.iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["exp_avg.a", "exp_avg.b", "exp_avg_sq.a"]);
    assert!(!dir.join(optimizer::OPTIMIZER_FILE).exists());

    // A part that was not written leaves no checkpoint, nor anything else.
    let error = save(2, true).unwrap_err().to_string();
    assert_eq!(
        error,
        "rank 1 could not write its part of the checkpoint: disk full"
    );
    assert_eq!(list_checkpoints(out.path()).unwrap(), [(1, dir.clone())]);
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1);

    // One that is lost later is missed.
    fs::remove_file(dir.join("optimizer-00002-of-00002.safetensors")).unwrap();
    let error = load_checkpoint(&dir).unwrap_err().to_string();
    assert!(
        error.contains("optimizer-00002-of-00002.safetensors is damaged"),
        "{error}"
    );
}

#[test]
fn checkpoints_are_found_among_the_names_of_files() {
    let names = [
        "checkpoint-10/config.json",
        "checkpoint-9/sub/a",
        "checkpoint-9/training_state.json",
        "checkpoint-8",
        "checkpoint-best/config.json",
        "model.safetensors",
        "sub/checkpoint-7/config.json",
    ];
    let found = checkpoint_files(names.into_iter());
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [9, 10]);
    assert_eq!(found[&9], ["checkpoint-9/sub/a", &state_name(9)]);
}
