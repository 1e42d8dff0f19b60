//! The example programs, built and run as a user would: the library's front door, and a training
//! loop of one's own.

use std::path::Path;
use std::process::Command;
use xtrain::data::tokenizer::train_byte_bpe;

/// What an example prints.
fn run(example: &str, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    // What bin/test and cargo set for the harness would have cargo build dependencies anew, whose
    // build scripts look at it.
    let set_for_tests = |name: &str| {
        name == "RUSTC_BOOTSTRAP"
            || ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(set_for_tests) {
            command.env_remove(name);
        }
    }
    command.args(["run", "--quiet", "--example", example]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The number that follows `word` in each line that has it.
fn numbers(text: &str, word: &str) -> Vec<f64> {
    let after = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|w| *w != word).skip(1);
        words.next()?.trim_end_matches(',').parse().ok()
    };
    text.lines().filter_map(after).collect()
}

#[test]
fn an_own_loop_learns_on_two_replicas() {
    let printed = run("own_loop", &[]);
    let losses = numbers(&printed, "loss");
    assert_eq!(losses.len(), 9, "{printed}");
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(first > 0.05 && last < 0.02 * first, "{printed}");
    assert!(printed.contains("compiled 1"), "{printed}");
}

/// A text, a tokenizer and a small model in `dir`, with the words of a run on them: the model, the
/// text, an output directory and flags.
fn saved_model(dir: &Path) -> Vec<String> {
    let path = |name: &str| dir.join(name).display().to_string();
    let text = &xtrain::commands::corpus::TEXT[..60_000];
    std::fs::write(path("text.txt"), text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    train_byte_bpe(&lines, 500)
        .unwrap()
        .save(&dir.join("tokenizer"))
        .unwrap();
    let (text, cache) = (path("text.txt"), path("tokenized"));
    let saved = crate::support::xtrain()
        .args(["train", "clm", "--disable_tqdm", "--model_type", "gpt2"])
        .args([
            "--config_overrides",
            "n_layer=2,n_head=2,n_embd=32,n_positions=32",
        ])
        .args([
            "--tokenizer_name",
            &path("tokenizer"),
            "--train_file",
            &text,
        ])
        .args([
            "--block_size",
            "32",
            "--max_steps",
            "1",
            "--cache_dir",
            &cache,
        ])
        .args(["--output_dir", &path("saved")])
        .run();
    assert_eq!(saved.code, Some(0), "{}", saved.stderr);
    let flags =
        "--learning_rate 3e-3 --block_size 32 --compile_cache false --disable_tqdm --cache_dir";
    let words = [path("saved"), text, path("tuned")].into_iter();
    words
        .chain(flags.split_whitespace().map(str::to_string))
        .chain([cache])
        .collect()
}

#[test]
fn a_saved_model_is_fine_tuned_and_evaluated_on_two_devices() {
    let dir = tempfile::tempdir().unwrap();
    let mut words = saved_model(dir.path());
    words.extend(["--data_parallel", "2"].map(str::to_string));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let printed = run("finetune", &words);
    let last = printed.lines().last().unwrap();
    let words: Vec<&str> = last.split_whitespace().collect();
    let (before, after): (f64, f64) = (words[2].parse().unwrap(), words[4].parse().unwrap());
    assert!(after < before - 0.5, "{last}");
    assert!(dir.path().join("tuned/model.safetensors").exists());
}

/// Its loss is what is trained and evaluated, and what it measures is in the records of both, also of
/// accumulated microbatches of two replicas.
#[test]
fn an_own_objective_is_trained_evaluated_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut words = saved_model(dir.path());
    let flags =
        "--data_parallel 2 --gradient_accumulation_steps 2 --logging_steps 1 --max_steps 40";
    words.extend(flags.split_whitespace().map(str::to_string));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let printed = run("own_objective", &words);
    let (focal, plain) = (
        numbers(&printed, "focal"),
        numbers(&printed, "cross_entropy"),
    );
    assert!(focal.len() == 2 && plain.len() == 2, "{printed}");
    for (focal, plain) in focal.iter().zip(&plain) {
        assert!(0.0 < *focal && focal < plain, "{printed}");
    }
    assert!(
        focal[1] < focal[0] - 0.5 && plain[1] < plain[0] - 0.5,
        "{printed}"
    );
    let records = crate::support::json_lines(&dir.path().join("tuned/log.jsonl"));
    let measured: Vec<[f64; 2]> = records
        .iter()
        .filter_map(|r| Some([r["loss"].as_f64()?, r["cross_entropy"].as_f64()?]))
        .collect();
    assert_eq!(measured.len(), 40, "{records:?}");
    assert!(measured.iter().all(|[loss, plain]| loss < plain));
    assert!((measured[0][1] - plain[0]).abs() < 0.5, "{measured:?}");
}
