//! GLUE's nine tasks: every number of an evaluation and every prediction is run_glue's, as
//! `tests/data/make_glue.py` recorded them.

use crate::hub::test_server::TestHub;
use crate::hub::{COMMIT, with_hub};
use crate::support::{Run, data_dir, xtrain};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A case with its model in a directory of its own.
struct Case {
    dir: TempDir,
    recorded: Value,
}

impl Case {
    fn all() -> Vec<Case> {
        let cases = fs::read(folder().join("cases.json")).unwrap();
        let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
        cases.into_iter().map(Case::open).collect()
    }

    fn open(recorded: Value) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let weights = recorded["weights"].as_str().unwrap();
        let model = dir.path().join("model");
        fs::create_dir(&model).unwrap();
        for file in ["vocab.txt", "tokenizer_config.json"] {
            fs::copy(folder().join(file), model.join(file)).unwrap();
        }
        let from = folder().join(weights);
        fs::copy(
            from.join("model.safetensors"),
            model.join("model.safetensors"),
        )
        .unwrap();
        let config = fs::read(from.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        if let Some(labels) = recorded["labels"].as_array() {
            let ids = labels.iter().enumerate();
            config["id2label"] = ids
                .map(|(id, label)| (id.to_string(), label.clone()))
                .collect();
            config["label2id"] = json!({});
        }
        fs::write(model.join("config.json"), config.to_string()).unwrap();
        Case { dir, recorded }
    }

    fn named(name: &str) -> Case {
        let mut all = Case::all();
        all.retain(|case| case.text("name") == name);
        all.remove(0)
    }

    fn text(&self, key: &str) -> &str {
        self.recorded[key].as_str().unwrap()
    }

    /// The path of a set, such as `validation_matched`.
    fn set(&self, name: &str) -> PathBuf {
        let file = format!("{name}.{}", self.text("ending"));
        folder().join(self.text("folder")).join(file)
    }

    /// The halves of mnli, which has two sets of each kind.
    fn halves(&self) -> &'static [&'static str] {
        match self.text("task") {
            "mnli" => &["_matched", "_mismatched"],
            _ => &[""],
        }
    }

    fn run(&self, command: &str, files: &[(&str, &str)]) -> Run {
        let mut run = xtrain();
        run.dir(self.dir.path()).args(command.split_whitespace());
        run.args(["--model_name_or_path", "model", "--max_seq_length", "32"]);
        run.args(["--per_device_eval_batch_size", "8", "--disable_tqdm"]);
        run.args(["--task_name", self.text("task")]);
        for (flag, set) in files {
            run.arg(flag).arg(self.set(set));
        }
        run.run()
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    /// Every number of run_glue's is there.
    fn compare(&self, found: &Value) {
        for (key, wanted) in self.recorded["evaluated"].as_object().unwrap() {
            let found = &found[key];
            let context = format!("{}: {key}: {found}, not {wanted}", self.text("name"));
            if wanted == "NaN" {
                assert!(found.is_null(), "{context}");
                continue;
            }
            let (found, wanted) = (found.as_f64(), wanted.as_f64().unwrap());
            let found = found.unwrap_or_else(|| panic!("{context}"));
            // scipy correlates run_glue's numbers in 32 bits.
            let most = match key.as_str() {
                "eval_loss" | "eval_loss_mm" => 1e-5 * wanted.abs().max(1.0),
                "eval_pearson" | "eval_combined_score" => 1e-6,
                _ => 1e-12,
            };
            assert!((found - wanted).abs() <= most, "{context}");
        }
    }

    fn predicted(&self, half: &str) -> Vec<&str> {
        let lines = &self.recorded["predicted"][format!("test{half}")];
        let lines = lines.as_array().unwrap().iter();
        lines.map(|line| line.as_str().unwrap()).collect()
    }
}

fn folder() -> PathBuf {
    data_dir().join("golden/glue")
}

/// The second column of predictions.
fn second_column(text: &str, separator: char) -> Vec<String> {
    let cells = text.lines().skip(1).map(|line| {
        let cell = line.split(separator).nth(1).unwrap();
        cell.to_string()
    });
    cells.collect()
}

#[test]
fn every_number_is_that_of_run_glue() {
    for case in Case::all() {
        let sets: Vec<String> = case
            .halves()
            .iter()
            .map(|half| format!("validation{half}"))
            .collect();
        let flags = ["--validation_file", "--validation_mismatched_file"];
        let files: Vec<(&str, &str)> = flags
            .into_iter()
            .zip(sets.iter().map(String::as_str))
            .collect();
        let run = case.run("eval cls --output_dir out", &files);
        run.succeeded();
        let found: Value = serde_json::from_str(&case.output("out/eval_results.json")).unwrap();
        case.compare(&found);
        let others = case.recorded["labels"] == json!(["no", "yes"])
            || case.recorded["labels"] == json!([0, 1]);
        assert_eq!(
            run.stderr.contains("go by their numbers"),
            others,
            "{}",
            run.stderr
        );
        if case.recorded["evaluated"]["eval_pearson"] == "NaN" {
            assert!(run.stdout.contains("'eval_pearson': nan"), "{}", run.stdout);
        }
    }
}

#[test]
fn mnli_is_evaluated_and_predicted_in_two_halves() {
    let case = Case::named("mnli");
    // Their names make them two sets; a rate of zero trains nothing.
    let mut run = xtrain();
    run.dir(case.dir.path()).args(
        "train cls --model_name_or_path model --task_name mnli --do_train --do_eval --do_predict --max_steps 1 --learning_rate 0 --max_seq_length 32 \
         --per_device_eval_batch_size 8 --disable_tqdm --save_strategy no --output_dir out"
            .split_whitespace(),
    );
    run.arg("--train_file").arg(case.set("validation_matched"));
    run.arg("--validation_file")
        .arg(case.set("validation_matched"));
    run.arg(case.set("validation_mismatched"));
    run.arg("--test_file").arg(case.set("test_matched"));
    run.arg(case.set("test_mismatched"));
    let run = run.run();
    run.succeeded();
    let found: Value = serde_json::from_str(&case.output("out/eval_results.json")).unwrap();
    case.compare(&found);
    assert_eq!(found["epoch_mm"], found["epoch"]);
    let all: Value = serde_json::from_str(&case.output("out/all_results.json")).unwrap();
    assert_eq!(all["train_samples"], found["eval_samples"]);
    for (half, file, table) in [
        ("_matched", "predict_results_mnli.txt", "predictions.csv"),
        (
            "_mismatched",
            "predict_results_mnli-mm.txt",
            "predictions_mm.csv",
        ),
    ] {
        let text = case.output(&format!("out/{file}"));
        assert!(text.starts_with("index\tprediction\n0\t"), "{text}");
        assert_eq!(second_column(&text, '\t'), case.predicted(half), "{file}");
        // The table has the model's own spelling.
        let labels = second_column(&case.output(&format!("out/{table}")), ',');
        let lower: Vec<String> = labels.iter().map(|label| label.to_lowercase()).collect();
        assert_eq!(lower, case.predicted(half), "{table}");
        assert_ne!(labels, lower);
    }
}

/// As with run_glue, `--do_predict` alone trains nothing.
#[test]
fn predictions_alone_train_nothing() {
    for name in ["stsb", "cola", "qqp, other names", "rte, numbers for names"] {
        let case = Case::named(name);
        let command = "train cls --do_predict --output_dir out";
        let run = case.run(command, &[("--test_file", "test")]);
        run.succeeded();
        let note = "note: --do_predict without --do_train only labels";
        assert!(run.stderr.contains(note), "{}", run.stderr);
        let file = format!("out/predict_results_{}.txt", case.text("task"));
        assert_eq!(second_column(&case.output(&file), '\t'), case.predicted(""));
        assert!(!Path::new(&case.dir.path().join("out/model.safetensors")).exists());
    }
    let case = Case::named("sst2");
    let random = "train cls --do_predict --model_type bert --tokenizer_name model --output_dir out";
    let mut run = xtrain();
    run.dir(case.dir.path()).args(random.split_whitespace());
    run.arg("--test_file").arg(case.set("test"));
    let run = run.run();
    assert!(
        run.stderr
            .contains("only labels, and a model of --model_type has random weights"),
        "{}",
        run.stderr
    );
}

/// A new classifier has GLUE's classes in GLUE's order, whichever way a table names them: the second
/// class is the one that F1 is of.
#[test]
fn classes_have_the_order_of_the_task() {
    let dir = tempfile::tempdir().unwrap();
    for (file, labels) in [
        ("names.csv", ["equivalent", "not_equivalent"]),
        ("numbers.csv", ["1", "0"]),
    ] {
        let rows = labels
            .map(|label| format!("a dog,a cat,{label}\n"))
            .concat();
        fs::write(
            dir.path().join(file),
            format!("sentence1,sentence2,label\n{rows}"),
        )
        .unwrap();
        let mut run = xtrain();
        run.dir(dir.path()).args(
            "train cls --task_name mrpc --model_type bert --config_overrides hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=64 \
             --max_steps 1 --max_seq_length 16 --save_strategy no --disable_tqdm --overwrite_output_dir --output_dir out"
                .split_whitespace(),
        );
        run.arg("--train_file")
            .arg(file)
            .arg("--tokenizer_name")
            .arg(folder());
        run.run().succeeded();
        let config: Value =
            serde_json::from_slice(&fs::read(dir.path().join("out/config.json")).unwrap()).unwrap();
        assert_eq!(
            config["id2label"],
            json!({"0": "not_equivalent", "1": "equivalent"}),
            "{file}"
        );
    }
}

#[test]
fn halves_are_mnlis_alone() {
    let case = Case::named("qqp");
    let run = case.run(
        "eval cls",
        &[
            ("--validation_file", "validation"),
            ("--validation_mismatched_file", "validation"),
        ],
    );
    assert!(
        run.stderr
            .contains("--validation_mismatched_file is mnli's, which has two sets"),
        "{}",
        run.stderr
    );
    let case = Case::named("mnli");
    let run = case.run(
        "eval cls",
        &[("--validation_mismatched_file", "validation_mismatched")],
    );
    assert!(
        run.stderr
            .contains("add --validation_file with the matched set"),
        "{}",
        run.stderr
    );
}

/// `--task_name mnli` alone evaluates on both halves of GLUE's data set.
#[test]
fn mnli_of_the_hub_has_both_halves() {
    let case = Case::named("mnli");
    let hub = TestHub::start();
    let files: Vec<(String, Vec<u8>)> = ["validation_matched", "validation_mismatched"]
        .map(|set| {
            let name = format!("mnli/{set}-00000-of-00001.parquet");
            (name, fs::read(case.set(set)).unwrap())
        })
        .to_vec();
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    hub.add("datasets/nyu-mll/glue", "main", COMMIT, &files);
    let home = tempfile::tempdir().unwrap();
    let eval = |task: &[&str], out: &str| {
        let mut run = with_hub(&hub, home.path());
        run.dir(case.dir.path()).args(["eval", "cls"]);
        run.args(["--model_name_or_path", "model", "--max_seq_length", "32"]);
        run.args(["--disable_tqdm", "--output_dir", out]).args(task);
        let run = run.run();
        run.succeeded();
        run
    };
    eval(&["--task_name", "mnli"], "out");
    case.compare(&serde_json::from_str(&case.output("out/eval_results.json")).unwrap());
    // A data set of this name without the task is one set, and a note says which.
    let set = [
        "--dataset_name",
        "nyu-mll/glue",
        "--text_column_name",
        "premise",
    ];
    let run = eval(
        &[&set[..], &["--text_pair_column_name", "hypothesis"]].concat(),
        "one",
    );
    assert!(
        run.stderr.contains("the matched set is used"),
        "{}",
        run.stderr
    );
    assert!(!case.output("one/eval_results.json").contains("_mm"));
}
