//! Words with labels: pieces, columns, entities, and what is wrong with a file.

use super::entities::entities;
use super::*;
use crate::bad_inputs::letters;
use crate::test_support::{context, examples, labels};
use crate::{Split, set, test_samples};
use std::fs;
use std::path::PathBuf;
use xtrain_data::{Position, Tokenizer};

fn settings(dir: &Path, files: &[PathBuf]) -> TokenClsDataSettings {
    TokenClsDataSettings {
        source: SourceSettings {
            train_files: files.to_vec(),
            cache_dir: dir.join("cache"),
            ..SourceSettings::default()
        },
        label_column: None,
        max_seq_length: None,
        padding: PaddingSettings::default(),
        labels: None,
        label_all_tokens: false,
        entity_level_metrics: false,
    }
}

fn file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

const COLUMNS: &str = "-DOCSTART- -X- -X- O\n\nabc N B-NP B-PER\nd V B-VP O\n\ne N B-NP I-PER\n";
const OBJECTS: &str = "{\"tokens\": [\"abc\", \"d\"], \"ner_tags\": [\"B-PER\", \"O\"]}\n\
                       {\"tokens\": [\"e\"], \"ner_tags\": [\"I-PER\"]}\n";

/// Labels of the tokens of a batch of both sentences.
fn batch(task: &TokenClsDataSettings, tokenizer: &Tokenizer) -> (Vec<Vec<i32>>, Vec<Vec<i32>>) {
    let map = labels(task).unwrap();
    let context = context(task, tokenizer, 6, Some(&map));
    let batch = set(task, &context, Split::Train)
        .unwrap()
        .batch(&[0, 1], 3, Position::default())
        .unwrap();
    let rows = |array: &ndarray::Array2<i32>| array.outer_iter().map(|row| row.to_vec()).collect();
    assert_eq!((batch.examples, batch.tokens), (2, 9));
    (rows(&batch.input_ids), rows(batch.labels.tokens().unwrap()))
}

#[test]
fn the_first_piece_of_each_word_is_labelled_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    for (name, text) in [
        ("t.conll", COLUMNS),
        ("t.txt", COLUMNS),
        ("t.jsonl", OBJECTS),
    ] {
        let mut task = settings(dir.path(), &[file(dir.path(), name, text)]);
        assert_eq!(labels(&task).unwrap().names(), ["B-PER", "I-PER", "O"]);
        // [CLS] a ##b ##c d [SEP], and [CLS] e [SEP].
        let (ids, first) = batch(&task, &tokenizer);
        assert_eq!(ids[0], [2, 5, 8, 10, 11, 3], "{name}");
        assert_eq!(first[0], [-100, 0, -100, -100, 2, -100], "{name}");
        assert_eq!(first[1][..3], [-100, 1, -100], "{name}");
        assert_eq!(first[2], [-100; 6], "the row that fills the batch");
        task.label_all_tokens = true;
        let (_, all) = batch(&task, &tokenizer);
        assert_eq!(all[0], [-100, 0, 1, 1, 2, -100], "{name}");
    }
}

#[test]
fn rows_and_scores_equal_run_ner() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let further = std::env::var_os("XTRAIN_GOLDEN_DIR")
        .map_or_else(|| root.join("../shared/golden"), PathBuf::from);
    for dir in [root.join("tests/data/golden"), further] {
        let golden = dir.join("newer/ner_pipeline");
        if golden.exists() {
            equals_run_ner(&dir, &golden);
        }
    }
}

fn equals_run_ner(dir: &Path, golden: &Path) {
    let meta = fs::read(golden.join("meta.json")).unwrap();
    let meta: Value = serde_json::from_slice(&meta).unwrap();
    let tokenizer = Tokenizer::load(&dir.join("tokenizers/wordpiece")).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let mut task = settings(cache.path(), &[golden.join("train.jsonl")]);
    let names = meta["labels"].as_array().unwrap().iter();
    let names: Vec<String> = names.map(|name| name.as_str().unwrap().into()).collect();
    task.labels = Some(LabelMap::new(names.clone()).unwrap());
    task.padding.pad_to_max_length = true;
    let length = meta["max_seq_length"].as_u64().unwrap() as usize;
    let context = context(&task, &tokenizer, length, task.labels.as_ref());
    let set = set(&task, &context, Split::Train).unwrap();
    let rows: Vec<u32> = (0..set.len() as u32).collect();
    let batch = set.batch(&rows, rows.len(), Position::default()).unwrap();
    let wanted = xtrain_checkpoint::Weights::open(&golden.join("rows.safetensors")).unwrap();
    let numbers = |name: &str| -> Vec<i32> {
        let tensor = wanted.get(name).unwrap();
        let words = tensor.bytes.chunks_exact(8);
        words
            .map(|word| i64::from_le_bytes(word.try_into().unwrap()) as i32)
            .collect()
    };
    let flat = |array: &ndarray::Array2<i32>| array.iter().copied().collect::<Vec<_>>();
    assert_eq!(flat(&batch.input_ids), numbers("input_ids"));
    assert_eq!(flat(batch.labels.tokens().unwrap()), numbers("labels"));
    let mask = batch.attention_mask.unwrap().mapv(i32::from);
    assert_eq!(flat(&mask), numbers("attention_mask"));

    let mut scores = Entities::new(&names, false);
    let id = |name: &Value| names.iter().position(|known| name == known).unwrap();
    let ids = |row: &Value| row.as_array().unwrap().iter().map(id).collect::<Vec<_>>();
    let (truth, predicted) = (&meta["truth"], &meta["predicted"]);
    for (truth, predicted) in truth
        .as_array()
        .unwrap()
        .iter()
        .zip(predicted.as_array().unwrap())
    {
        scores.add_sentence(&ids(truth), &ids(predicted));
    }
    for (name, value) in scores.values(0.0) {
        let wanted = meta["seqeval"][&name].as_f64().unwrap();
        assert!(
            (value - wanted).abs() < 1e-12,
            "{name}: {value}, not {wanted}"
        );
    }
}

#[test]
fn scores_by_kind_of_entity_equal_seqevals() {
    let cases = include_str!("../../tests/data/golden/newer/ner_entities.json");
    let cases: Vec<Value> = serde_json::from_str(cases).unwrap();
    assert!(cases.len() >= 18);
    for case in &cases {
        let strings = |value: &Value| -> Vec<String> {
            let elements = value.as_array().unwrap().iter();
            elements.map(|text| text.as_str().unwrap().into()).collect()
        };
        let names = strings(&case["labels"]);
        let ids = |row: &Value| -> Vec<usize> {
            let id = |label: String| names.iter().position(|name| *name == label).unwrap();
            strings(row).into_iter().map(id).collect()
        };
        let mut scores = Entities::new(&names, true);
        let known = scores.names();
        let truth = case["truth"].as_array().unwrap().iter();
        for (truth, predicted) in truth.zip(case["predicted"].as_array().unwrap()) {
            scores.add_sentence(&ids(truth), &ids(predicted));
        }
        let values = scores.values(0.0);
        let wanted = case["seqeval"].as_object().unwrap();
        let (scheme, count) = (&case["scheme"], wanted.len());
        assert_eq!(values.len(), count, "{scheme}: {values:?}, not {wanted:?}");
        for (name, value) in values {
            assert!(known.contains(&name), "{name} is not in {known:?}");
            let wanted = wanted[&name].as_f64().unwrap();
            let error = (value - wanted).abs();
            assert!(error < 1e-12, "{scheme} {name}: {value}, not {wanted}");
        }
    }
}

#[test]
fn entities_are_conllevals() {
    let found = |labels: &str| {
        let mut found: Vec<_> = entities(labels.split(' ')).into_iter().collect();
        found.sort_by_key(|(_, start, _)| *start);
        found
            .into_iter()
            .map(|(kind, start, end)| format!("{kind} {start}-{end}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    // IOB2, IOB1, a change of type within, and IOBES.
    assert_eq!(
        found("B-PER I-PER O B-PER B-PER"),
        "PER 0-1, PER 3-3, PER 4-4"
    );
    assert_eq!(found("I-PER I-PER O I-LOC"), "PER 0-1, LOC 3-3");
    assert_eq!(found("B-PER I-LOC I-LOC"), "PER 0-0, LOC 1-2");
    assert_eq!(
        found("B-PER I-PER E-PER S-LOC I-LOC"),
        "PER 0-2, LOC 3-3, LOC 4-4"
    );
    assert_eq!(found("O O"), "");
    let none = Entities::default();
    assert!(none.values(0.0).iter().all(|(_, value)| *value == 0.0));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let known = LabelMap::new(vec!["O".into(), "B-PER".into()]).unwrap();
    let good = "{\"tokens\": [\"a\"], \"ner_tags\": [\"O\"]}\n";
    let object = |text: &str| format!("{good}{text}\n");
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("empty.conll", String::new(), &["empty.conll is empty"]),
        (
            "uneven.jsonl",
            object("{\"tokens\": [\"a\", \"b\"], \"ner_tags\": [\"O\"]}"),
            &["uneven.jsonl:2: 2 words, but 1 labels", "--on_bad_row skip"],
        ),
        (
            "unknown.jsonl",
            object("{\"tokens\": [\"a\"], \"ner_tags\": [\"B-ORG\"]}"),
            &["unknown.jsonl:2: label \"B-ORG\" is not among the labels: O, B-PER"],
        ),
        (
            "text.jsonl",
            object("{\"tokens\": \"a b\", \"ner_tags\": [\"O\"]}"),
            &["text.jsonl:2: column \"tokens\" is no list of words"],
        ),
        (
            "other.jsonl",
            "{\"sentence\": [\"a\"], \"tags\": [\"O\"]}\n".to_string(),
            &["no column tokens or words", "--text_column_name"],
        ),
        (
            "untagged.jsonl",
            "{\"tokens\": [\"a\"]}\n".to_string(),
            &["no column ner_tags or labels", "--label_column_name"],
        ),
        (
            "lone.conll",
            "a O\n\nb B-PER\nc\n".to_string(),
            &["lone.conll:3: word 2 of the sentence, \"c\", stands alone"],
        ),
    ];
    for (name, text, parts) in cases {
        let mut task = settings(dir.path(), &[file(dir.path(), name, &text)]);
        task.labels = Some(known.clone());
        let error = examples(&task, Split::Train, &tokenizer, Some(&known), 16)
            .unwrap_err()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
    let path = file(
        dir.path(),
        "skip.jsonl",
        &object("{\"tokens\": [], \"ner_tags\": []}"),
    );
    let mut task = settings(dir.path(), &[path]);
    task.source.table.on_bad_row = OnBadRow::Skip;
    let kept = examples(&task, Split::Train, &tokenizer, Some(&known), 16).unwrap();
    assert_eq!((kept.len(), kept.skipped()), (1, 1));
}

#[test]
fn predictions_are_written_as_the_input_was() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let known = LabelMap::new(vec!["O".into(), "B-PER".into()]).unwrap();
    let inputs = [
        ("t.conll", "abc\nd\n\nef\n"),
        (
            "t.jsonl",
            "{\"tokens\": [\"abc\", \"d\"]}\n{\"tokens\": [\"ef\"]}\n",
        ),
    ];
    let wanted = [
        "abc B-PER\nd _\n\nef O\n\n",
        "{\"tokens\":[\"abc\",\"d\"],\"ner_tags\":[\"B-PER\",null]}\n{\"tokens\":[\"ef\"],\"ner_tags\":[\"O\"]}\n",
    ];
    for ((name, text), wanted) in inputs.into_iter().zip(wanted) {
        let mut task = settings(dir.path(), &[]);
        task.labels = Some(known.clone());
        task.source.test_files = vec![file(dir.path(), name, text)];
        // [CLS] a ##b ##c [SEP]: the second word does not fit.
        let context = context(&task, &tokenizer, 5, Some(&known));
        let samples = test_samples(&task, &context, Split::Test).unwrap();
        let found = task.predictions(&Predicted {
            context: &context,
            samples: &samples,
            outputs: &[vec![0.0, 1.0, 0.0, 0.0, 0.0], vec![1.0, 0.0, 1.0, 1.0, 0.0]],
            include_text: false,
        });
        let parsed = |text: &str| -> Vec<Value> {
            text.lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect()
        };
        if name.ends_with("jsonl") {
            assert_eq!(parsed(&found), parsed(wanted));
        } else {
            assert_eq!(found, wanted);
        }
        assert_eq!(
            task.prediction_file(),
            format!("predictions.{}", &name[2..])
        );
    }
}

#[test]
fn words_that_say_that_they_have_no_label_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let numbers = "{\"tokens\": [\"abc\", \"d\"], \"ner_tags\": [1, -100]}\n{\"tokens\": [\"e\"], \"ner_tags\": [0]}\n";
    let columns = "abc 1\nd -100\n\ne 0\n";
    for (name, text) in [("t.jsonl", numbers), ("t.conll", columns)] {
        let task = settings(dir.path(), &[file(dir.path(), name, text)]);
        assert_eq!(labels(&task).unwrap().names(), ["0", "1"], "{name}");
        let (_, found) = batch(&task, &tokenizer);
        assert_eq!(found[0], [-100, 1, -100, -100, -100, -100], "{name}");
        assert_eq!(found[1][..3], [-100, 0, -100], "{name}");
    }
}
