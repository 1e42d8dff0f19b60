//! Token classification as a user runs it: sentences in CoNLL columns and JSON lines, a small model
//! from random weights, its scores, predictions and resumed runs.

use crate::support::Run;
use crate::tasks::{BERT, Bench, numbers};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;

const TRAIN: &str = "--tokenizer_name wordpiece --train_file train.conll --validation_file valid.conll \
                     --max_seq_length 48 --per_device_train_batch_size 16 --learning_rate 3e-3 --disable_tqdm";

/// A sentence's words with their labels.
type Sentence = Vec<(String, String)>;

/// Sentences `from..to` of an endless text about the same few people, places and organizations.
fn sentences(range: std::ops::Range<usize>) -> Vec<Sentence> {
    let entities = [
        ("PER", ["Mary", "Anna Smith", "Peter Brown"]),
        ("LOC", ["London", "New York", "Berlin"]),
        ("ORG", ["the Red Cross", "Acme Works", "Royal Society"]),
    ];
    let forms = [
        "PER lives in LOC .",
        "PER works for ORG in LOC .",
        "Yesterday ORG opened a house in LOC .",
        "The river is long and cold .",
    ];
    let sentence = |i: usize| {
        let mut words = Vec::new();
        for (at, word) in forms[i % forms.len()].split(' ').enumerate() {
            match entities.iter().find(|(kind, _)| *kind == word) {
                None => words.push((word.to_string(), "O".to_string())),
                Some((kind, names)) => {
                    let name = names[(i / forms.len() + at) % names.len()];
                    for (piece, word) in name.split(' ').enumerate() {
                        let begin = if piece == 0 { "B" } else { "I" };
                        words.push((word.to_string(), format!("{begin}-{kind}")));
                    }
                }
            }
        }
        words
    };
    range.map(sentence).collect()
}

fn conll(sentences: &[Sentence]) -> String {
    let mut text = String::from("-DOCSTART- -X- O\n\n");
    for sentence in sentences {
        for (word, label) in sentence {
            writeln!(text, "{word} NN {label}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn json_lines(sentences: &[Sentence]) -> String {
    let line = |sentence: &Sentence| {
        let (words, labels): (Vec<_>, Vec<_>) = sentence.iter().cloned().unzip();
        format!("{}\n", json!({"tokens": words, "ner_tags": labels}))
    };
    sentences.iter().map(line).collect()
}

/// A folder with a training set of 320 sentences and one of 60 in both forms.
fn corpus() -> Bench {
    let bench = Bench::new();
    let valid = sentences(320..380);
    for (name, text) in [
        ("train.conll", conll(&sentences(0..320))),
        ("valid.conll", conll(&valid)),
        ("valid.jsonl", json_lines(&valid)),
    ] {
        fs::write(bench.path(name), text).unwrap();
    }
    bench
}

fn result(run: &Run) -> Value {
    run.succeeded();
    serde_json::from_str(run.stdout.trim()).unwrap()
}

#[test]
fn words_are_labelled_scored_and_written_as_they_came() {
    let bench = corpus();
    bench
        .run(&format!(
            "train token-cls {BERT} {TRAIN} --num_train_epochs 4 --eval_strategy epoch --save_strategy epoch \
             --load_best_model_at_end --metric_for_best_model f1 --output_dir out"
        ))
        .succeeded();
    let config = bench.json("out/config.json");
    assert_eq!(config["architectures"][0], "BertForTokenClassification");
    assert_eq!(config["label2id"]["O"], 6, "sorted: {config}");
    let scores = bench.json("out/all_results.json");
    assert!(scores["eval_f1"].as_f64().unwrap() > 0.9, "{scores}");

    // The directory knows its labels; both forms of the set say the same.
    for file in ["valid.conll", "valid.jsonl"] {
        let again = result(&bench.run(&format!(
            "eval token-cls --json --disable_tqdm --model_name_or_path out --validation_file {file} --max_seq_length 48 \
             --per_device_eval_batch_size 7"
        )));
        for key in ["eval_precision", "eval_recall", "eval_f1", "eval_accuracy"] {
            assert_eq!(again[key], scores[key], "{file}: {key}");
        }
    }

    // By kind of entity, under run_ner's names: the scores of all kinds have another name then.
    let by_kind = result(&bench.run(
        "eval token-cls --json --disable_tqdm --model_name_or_path out --validation_file valid.conll --max_seq_length 48 \
         --return_entity_level_metrics",
    ));
    for key in ["precision", "recall", "f1", "accuracy"] {
        assert_eq!(
            by_kind[format!("eval_overall_{key}")],
            scores[format!("eval_{key}")]
        );
        assert_eq!(by_kind[format!("eval_{key}")], Value::Null);
    }
    for kind in ["PER", "LOC", "ORG"] {
        let begins = format!("B-{kind}");
        let sentences = sentences(320..380);
        let labels = sentences.iter().flatten().map(|(_, label)| label);
        let count = labels.filter(|label| **label == begins).count();
        assert_eq!(by_kind[format!("eval_{kind}_number")], json!(count));
        let of = |score: &str| by_kind[format!("eval_{kind}_{score}")].as_f64().unwrap();
        let (precision, recall) = (of("precision"), of("recall"));
        let f1 = 2.0 * precision * recall / (precision + recall);
        assert!((of("f1") - f1).abs() < 1e-12, "{by_kind}");
    }

    // Predictions: every word of every sentence, in the form of the file that asked for them.
    let predict = |file: &str| {
        let run = bench.run(&format!(
            "predict token-cls --disable_tqdm --model_name_or_path out --test_file {file} --max_seq_length 48"
        ));
        run.succeeded();
        run.stdout
    };
    let truth = sentences(320..380);
    let lines = predict("valid.jsonl");
    let rows: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), truth.len());
    let (mut right, mut words) = (0, 0);
    for (row, sentence) in rows.iter().zip(&truth) {
        for (i, (word, label)) in sentence.iter().enumerate() {
            assert_eq!(row["tokens"][i], word.as_str());
            words += 1;
            right += usize::from(row["ner_tags"][i] == label.as_str());
        }
    }
    assert_eq!(
        right as f64 / words as f64,
        scores["eval_accuracy"].as_f64().unwrap()
    );
    let columns = predict("valid.conll");
    let labels: Vec<&str> = columns
        .lines()
        .filter_map(|line| Some(line.rsplit_once(' ')?.1))
        .collect();
    let of_rows: Vec<&str> = rows
        .iter()
        .flat_map(|row| row["ner_tags"].as_array().unwrap())
        .map(|label| label.as_str().unwrap())
        .collect();
    assert_eq!(labels, of_rows);
}

#[test]
fn a_resumed_run_and_two_devices_give_the_same_numbers() {
    let bench = corpus();
    let run = |devices: &str, dir: &str| {
        bench
            .run(&format!(
                "train token-cls {BERT} {TRAIN} {devices} --max_steps 20 --logging_steps 5 --save_steps 10 \
                 --output_dir {dir}"
            ))
            .succeeded();
        numbers(&bench.records(dir), "loss")
    };
    let losses = run("", "one");
    assert!(losses.len() == 4 && losses[3] < losses[0], "{losses:?}");
    let weights = bench.bytes("one/model.safetensors");
    assert_eq!(
        run("--resume_from_checkpoint one/checkpoint-10", "one"),
        losses
    );
    assert!(bench.bytes("one/model.safetensors") == weights);
    let two = run("--data_parallel 2 --per_device_train_batch_size 8", "two");
    for (one, two) in losses.iter().zip(&two) {
        assert!((one - two).abs() < 1e-4, "{losses:?} {two:?}");
    }
}

#[test]
fn sentences_that_cannot_be_used_are_named() {
    let bench = corpus();
    // A column that is not there is a mistake of the command line's.
    let cases: [(&str, &str, i32, &[&str]); 4] = [
        (
            "short.jsonl",
            "{\"tokens\":[\"a\",\"b\"],\"ner_tags\":[\"O\"]}\n",
            1,
            &["short.jsonl:1", "2 words", "1 label", "--on_bad_row skip"],
        ),
        (
            "other.jsonl",
            "{\"tokens\":[\"a\"],\"ner_tags\":[\"B-XYZ\"]}\n",
            1,
            &["other.jsonl:1", "B-XYZ", "I-PER"],
        ),
        ("empty.conll", "", 1, &["empty.conll is empty"]),
        (
            "texts.jsonl",
            "{\"text\":\"a b\",\"label\":\"O\"}\n",
            2,
            &["texts.jsonl", "tokens"],
        ),
    ];
    bench
        .run(&format!(
            "train token-cls {BERT} {TRAIN} --max_steps 1 --output_dir out"
        ))
        .succeeded();
    for (name, text, code, words) in cases {
        fs::write(bench.path(name), text).unwrap();
        let run = bench.run(&format!(
            "eval token-cls --model_name_or_path out --validation_file {name} --max_seq_length 48"
        ));
        assert_eq!(run.code, Some(code), "{name}: {}", run.stderr);
        for word in words {
            assert!(run.stderr.contains(word), "{name}: {word}: {}", run.stderr);
        }
    }
}
