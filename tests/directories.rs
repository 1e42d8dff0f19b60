//! Models in the forms in which their directories are met: each has the loss that transformers gives,
//! as `tests/data/make_directories.py` recorded it, and is read again as it was saved; or it is
//! refused by name.

use crate::support::{Run, as_users, data_dir};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    data_dir().join("golden/directories")
}

fn cases() -> Vec<Value> {
    serde_json::from_slice(&fs::read(folder().join("cases.json")).unwrap()).unwrap()
}

/// Runs a command of a case's task on a model.
fn run(case: &Value, verb: &str, model: &Path, out: &Path) -> Run {
    let task = case["task"].as_str().unwrap();
    let mut run = as_users();
    run.dir(&folder())
        .args([verb, task, "--model_name_or_path"]);
    run.arg(model).arg("--output_dir").arg(out);
    let (tokenizer, length, file) = match task {
        "clm" => ("decoder", "--block_size", "text.txt"),
        _ => ("encoder", "--max_seq_length", "rows.jsonl"),
    };
    let tokens = case["length"].to_string();
    let tokens = if task == "clm" { &tokens } else { "16" };
    run.args(["--tokenizer_name", tokenizer, length, tokens]);
    run.args(["--validation_file", file, "--disable_tqdm"]);
    if task == "clm" {
        run.args(["--max_eval_samples", &case["rows"].to_string()]);
    }
    if verb == "train" {
        run.args(["--train_file", file, "--do_train", "--do_eval"]);
        run.args(
            "--learning_rate 0 --max_steps 1 --per_device_train_batch_size 2 --save_strategy no"
                .split(' '),
        );
    }
    run.run()
}

/// Trains with a rate of zero, evaluates, saves, and evaluates what was saved.
fn compare(cases: impl Iterator<Item = Value>) {
    let mut failed = Vec::new();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (saved, out) = (dir.path().join("saved"), dir.path().join("out"));
        let model = folder().join(name);
        let trained = run(&case, "train", &model, &saved);
        let again = run(&case, "eval", &saved, &out);
        let loss = |dir: &Path| {
            let text = fs::read(dir.join("eval_results.json")).ok()?;
            serde_json::from_slice::<Value>(&text).unwrap()["eval_loss"].as_f64()
        };
        let (first, second) = (loss(&saved), loss(&out));
        let wanted = case["loss"].as_f64().unwrap();
        // The loss that the evaluation sums is one of 32 bits.
        let close = first.is_some_and(|loss| (loss - wanted).abs() <= 1e-5);
        if !close || second != first {
            failed.push(format!(
                "{name}: {first:?} and {second:?}, not {wanted}\n{}{}",
                trained.stderr, again.stderr
            ));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn comparable() -> impl Iterator<Item = Value> {
    cases().into_iter().filter(|case| case["loss"].is_number())
}

#[test]
fn relatives_of_llama_have_the_loss_of_transformers() {
    let counted = comparable().filter(|case| case["task"] == "clm");
    compare(
        counted
            .enumerate()
            .filter(|(i, _)| i % 2 == 0)
            .map(|(_, case)| case),
    );
}

#[test]
fn further_decoders_have_the_loss_of_transformers() {
    let counted = comparable().filter(|case| case["task"] == "clm");
    compare(
        counted
            .enumerate()
            .filter(|(i, _)| i % 2 == 1)
            .map(|(_, case)| case),
    );
}

#[test]
fn encoders_have_the_loss_of_transformers() {
    compare(comparable().filter(|case| case["task"] == "cls"));
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let refused: Vec<Value> = cases()
        .into_iter()
        .filter(|case| case["refused"].is_string())
        .collect();
    assert!(refused.len() > 5);
    for case in refused {
        let dir = tempfile::tempdir().unwrap();
        let name = case["name"].as_str().unwrap();
        let run = run(&case, "eval", &folder().join(name), &dir.path().join("out"));
        let words = case["refused"].as_str().unwrap();
        assert!(
            run.code != Some(0) && run.stderr.contains(words),
            "{name}: {}",
            run.stderr
        );
        assert!(run.stderr.lines().count() <= 5, "{name}: {}", run.stderr);
    }
}

/// A copy of a case's directory with its tokenizer, to change it.
fn copied(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    for from in [folder().join("decoder"), folder().join(name)] {
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
    }
    dir
}

fn words(dir: &Path, line: &str) -> Run {
    let mut run = as_users();
    run.dir(dir).args(line.split_whitespace());
    run.args(["--disable_tqdm", "--block_size", "12"]);
    run.arg("--train_file").arg(folder().join("text.txt"));
    run.run()
}

/// As transformers does, which puts an adapter on the model that it names.
#[test]
fn an_adapter_stands_for_its_model() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("adapter")).unwrap();
    let evaluate = |config: &str| {
        fs::write(dir.path().join("adapter/adapter_config.json"), config).unwrap();
        let run = words(dir.path(), "eval clm --model_name_or_path adapter");
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        run.stderr
    };
    let stderr = evaluate(r#"{"base_model_name_or_path": "./base", "peft_type": "LORA"}"#);
    let message = "adapter/adapter_config.json is of the model ./base, which is no directory here";
    assert!(stderr.contains(message), "{stderr}");
    let stderr = evaluate(r#"{"peft_type": "LORA"}"#);
    assert!(
        stderr.contains("does not say which model it is of"),
        "{stderr}"
    );
}

#[test]
fn what_others_read_beside_a_model_is_kept() {
    let dir = copied("phi3-4k");
    let model = dir.path().join("model");
    fs::create_dir(model.join("additional_chat_templates")).unwrap();
    let files = [
        ("configuration_phi3.py", "class Phi3Config: pass\n"),
        ("preprocessor_config.json", "{\"size\": 3}\n"),
        ("generation_config.json", "{\"temperature\": 0.5}\n"),
        ("additional_chat_templates/tools.jinja", "{{ messages }}"),
    ];
    for (name, text) in files {
        fs::write(model.join(name), text).unwrap();
    }
    fs::write(model.join("large.py"), vec![b' '; (1 << 20) + 1]).unwrap();
    let line = "train clm --model_name_or_path model --do_train --max_steps 1 --save_steps 1 --output_dir out";
    let run = words(dir.path(), line);
    run.succeeded();
    assert!(
        run.stderr
            .contains("large.py does not go along with the saved model"),
        "{}",
        run.stderr
    );
    for saved in ["out", "out/checkpoint-1"] {
        for (name, text) in files {
            let found = fs::read_to_string(dir.path().join(saved).join(name));
            assert_eq!(found.ok().as_deref(), Some(text), "{saved}/{name}");
        }
    }
    let config: Value =
        serde_json::from_slice(&fs::read(dir.path().join("out/config.json")).unwrap()).unwrap();
    assert!(config["auto_map"].is_object(), "{config}");
}

/// A text that could grow over the length at which `longrope` changes would need other keys than
/// those that were kept.
#[test]
fn texts_that_pass_the_length_of_pretraining_are_not_generated() {
    let dir = copied("phi3-long-long");
    let generate = |tokens: &str| {
        let mut run = as_users();
        run.dir(dir.path()).args(
            "generate --model_name_or_path model --do_sample false --max_new_tokens".split(' '),
        );
        run.args([tokens, "--prompt", "w1 w2 w3"]);
        run.run()
    };
    let run = generate("8");
    assert!(
        run.code == Some(1) && run.stderr.contains("original_max_position_embeddings"),
        "{}",
        run.stderr
    );
    let path = dir.path().join("model/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["original_max_position_embeddings"] = 32.into();
    fs::write(&path, config.to_string()).unwrap();
    generate("8").succeeded();
}

#[test]
fn xla_obeys_the_flags_that_it_knows() {
    let run = |flags: &str| {
        let mut run = as_users();
        run.dir(&folder()).env("XLA_FLAGS", flags);
        run.args("eval clm --model_name_or_path gpt2-first --tokenizer_name decoder --validation_file text.txt --block_size 12".split(' '));
        let run = run.run();
        run.succeeded();
        let note = run.stderr.lines().find(|line| line.contains("XLA_FLAGS"));
        note.map(|note| note.split('`').nth(1).unwrap_or_default().to_string())
    };
    assert_eq!(
        run("--xla_cpu_enable_fast_min_max=true --xla_force_host_platform_device_count=8"),
        None
    );
    let mixed = "--xla_tpu_x=1 --xla_cpu_enable_fast_min_max=true hello";
    assert_eq!(run(mixed).as_deref(), Some("--xla_tpu_x=1 hello"));
    let bad = "--xla_cpu_enable_fast_min_max=perhaps --xla_cpu_enable_fast_math=false";
    assert_eq!(
        run(bad).as_deref(),
        Some("--xla_cpu_enable_fast_min_max=perhaps")
    );
}

/// Times that telemetry would hold are not shown where it could not be written.
#[test]
fn a_summary_without_telemetry_has_no_empty_lines() {
    let dir = copied("gpt2-first");
    fs::create_dir_all(dir.path().join("out/telemetry.jsonl")).unwrap();
    let line = "train clm --model_name_or_path model --do_train --max_steps 1 --save_strategy no --overwrite_output_dir --output_dir out";
    let run = words(dir.path(), line);
    run.succeeded();
    assert!(
        run.stderr.contains("telemetry.jsonl is not written"),
        "{}",
        run.stderr
    );
    let ends = run
        .stderr
        .lines()
        .find(|line| line.trim_end().ends_with(':'));
    assert_eq!(ends, None, "{}", run.stderr);
    assert!(!run.stderr.contains("0 compiled in"), "{}", run.stderr);
}
