//! Data files of all formats and forms, and the rows that `datasets` reads from them
//! (`tests/data/make_data_files.py`): the same rows, or a refusal by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use serde_json::{Map, Value, json};
use xtrain::data::formats::cell::Cell;
use xtrain::data::formats::table::{Format, Table};
use xtrain::data::formats::text::Lines;
use xtrain::data::settings::TableSettings;
use xtrain::hub::dataset_in;

use crate::support::data_dir;
use crate::tasks::{BERT, Bench};

/// What is refused that `datasets` reads, and with which words.
const REFUSED: &[(&str, &str)] = &[
    (
        "data.csv text after quotes",
        "text follows the closing quote",
    ),
    (
        "data.csv blank after quotes",
        "text follows the closing quote",
    ),
    ("data.csv long rows", "3 fields where the header has 2"),
    (
        "data.csv separator at the end",
        "3 fields where the header has 2",
    ),
    ("data.tsv quoted", "--quoting none or --quoting standard"),
    (
        "data.tsv quoted separator",
        "--quoting none or --quoting standard",
    ),
    ("data.jsonl inner key twice", "\"a\" occurs twice"),
    ("data.json array with null", "a JSON object is expected"),
    ("data.csv.xz", "xz"),
    ("data.csv.bz2", "bzip2"),
    ("data.txt.xz", "xz"),
    ("data.csv.zip", "zip"),
    ("data.arrow", "Arrow"),
    ("data.parquet binary", "binary data"),
    ("two that could be train", "train, train_extra"),
    ("two formats of one split", "train.csv, train.jsonl"),
    ("two files without a split", "a.csv, b.csv"),
    ("training and capitals", "Test.csv"),
    ("part of a word", "latest.csv, trainer.csv"),
    ("configs: semicolons", "sets \"sep\""),
];

/// What is read that `datasets` cannot read, and why that is right.
const READ: &[(&str, &str)] = &[
    ("data.parquet no rows", "no rows, as tasks say"),
    ("data.jsonl no keys", "no columns, as tasks say"),
    (
        "configs: data_dir and files",
        "the Hub's reader puts data_dir before the files, too",
    ),
];

fn cell(cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) => text.as_str().into(),
        Cell::Number(number) => match &number[..] {
            "true" => true.into(),
            "false" => false.into(),
            "NaN" | "inf" | "-inf" => json!({"float": number.to_lowercase()}),
            number => serde_json::from_str(number).unwrap_or_else(|_| number.into()),
        },
        Cell::Time(time) => json!({ "time": time }),
        Cell::Class { number, .. } => (*number).into(),
        Cell::Missing => Value::Null,
        Cell::List(cells) => cells.iter().map(self::cell).collect(),
        Cell::Fields(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), cell_value(value)));
            Value::Object(fields.collect::<Map<String, Value>>())
        }
    }
}

fn cell_value(value: &Cell) -> Value {
    cell(value)
}

/// Whether a value is the expected one: numbers by value, times whatever their form, classes that are not
/// known as null.
fn equal(found: &Value, wanted: &Value, is_class: bool) -> bool {
    match (found, wanted) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            a == b || (a - b).abs() <= 1e-7 * a.abs().max(b.abs())
        }
        (Value::Null, Value::Number(number)) => is_class && number.as_i64() == Some(-1),
        (Value::Array(a), Value::Array(b)) => {
            let mut pairs = a.iter().zip(b);
            a.len() == b.len() && pairs.all(|(a, b)| equal(a, b, is_class))
        }
        (Value::Object(a), Value::Object(_)) if a.contains_key("time") => {
            wanted.get("time").is_some()
        }
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            names.iter().all(|name| {
                let of =
                    |object: &Map<String, Value>| object.get(*name).cloned().unwrap_or(Value::Null);
                equal(&of(a), &of(b), is_class)
            })
        }
        (a, b) => a == b,
    }
}

/// The columns, their class names and rows of files, as a task sees them.
type Rows = (Vec<(String, Vec<String>)>, Vec<Vec<Value>>);

fn read(files: &[PathBuf], settings: &TableSettings) -> Result<Rows, String> {
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for path in files {
        if Format::of(path) == Format::Text {
            columns = vec![("text".to_string(), Vec::new())];
            for line in Lines::open(path).map_err(|error| error.to_string())? {
                let line = line.map_err(|error| error.to_string())?;
                rows.push(vec![line.trim_end_matches('\n').into()]);
            }
            continue;
        }
        let table = Table::open(path, settings, Arc::default());
        let mut table = table.map_err(|error| error.to_string())?;
        let all = 0..table.columns().len();
        let names = |column: usize| table.class_names(column).unwrap_or_default().to_vec();
        columns = all
            .clone()
            .map(|i| (table.columns()[i].clone(), names(i)))
            .collect();
        table
            .choose(all.collect())
            .map_err(|error| error.to_string())?;
        for row in table {
            let row = row.map_err(|error| error.to_string())?;
            rows.push(row.cells.iter().map(cell).collect());
        }
    }
    if rows.is_empty() {
        return Err("no rows".to_string());
    }
    Ok((columns, rows))
}

/// The splits of a case as xtrain reads them.
fn splits(case: &Value, dir: &Path) -> Result<BTreeMap<String, Rows>, String> {
    let mut paths = Vec::new();
    for (name, content) in case["files"].as_object().unwrap() {
        let bytes = match content {
            Value::String(text) => text.as_bytes().to_vec(),
            content => {
                let text = content["base64"].as_str().unwrap();
                base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .unwrap()
            }
        };
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        paths.push(path);
    }
    let mut settings = TableSettings::default();
    let files = if case["directory"] == true {
        let found = dataset_in(dir, case["config"].as_str(), false);
        let found = found.map_err(|error| error.to_string())?;
        settings.features = found.features;
        vec![
            ("train", found.train),
            ("validation", found.validation),
            ("test", found.test),
        ]
    } else {
        vec![("train", paths)]
    };
    let files = files.into_iter().filter(|(_, files)| !files.is_empty());
    files
        .map(|(split, files)| Ok((split.to_string(), read(&files, &settings)?)))
        .collect()
}

/// Why the rows are not the expected ones.
fn difference(found: &BTreeMap<String, Rows>, wanted: &Value) -> Option<String> {
    let split_of = |name: &str| {
        ["train", "validation", "test"]
            .into_iter()
            .find(|split| name.starts_with(split))
    };
    let wanted = wanted.as_object().unwrap();
    let usual: Vec<&String> = wanted
        .keys()
        .filter(|name| split_of(name).is_some())
        .collect();
    if found.len() != usual.len() {
        return Some(format!("splits {:?}, not {usual:?}", found.keys()));
    }
    for name in usual {
        let Some((columns, rows)) = found.get(split_of(name).unwrap()) else {
            return Some(format!("no split {name}"));
        };
        let wanted = &wanted[name];
        let all = wanted["rows"].as_array().unwrap();
        if all.len() != rows.len() {
            return Some(format!("{name}: {} rows, not {}", rows.len(), all.len()));
        }
        for (place, (column, kind)) in wanted["columns"].as_object().unwrap().iter().enumerate() {
            let Some(own) = columns.iter().position(|(known, _)| known == column) else {
                return Some(format!("{name}: no column {column:?}"));
            };
            let names: Vec<&str> = kind["names"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            if columns[own].1 != names {
                return Some(format!(
                    "{name}: classes of {column:?} are {:?}, not {names:?}",
                    columns[own].1
                ));
            }
            for (i, (row, wanted)) in rows.iter().zip(all).enumerate() {
                if !equal(&row[own], &wanted[place], !names.is_empty()) {
                    return Some(format!(
                        "{name}: row {i}, {column:?}: {}, not {}",
                        row[own], wanted[place]
                    ));
                }
            }
        }
    }
    None
}

#[test]
fn rows_are_those_of_datasets_or_refused_by_name() {
    let text = fs::read(data_dir().join("data_files.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let (mut equal, mut refused, mut failed, mut wrong) = (0, 0, 0, Vec::new());
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let found = splits(case, dir.path());
        let known = |list: &[(&str, &str)]| {
            list.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, words)| words.to_string())
        };
        match (found, case.get("splits")) {
            (Ok(found), Some(wanted)) => match difference(&found, wanted) {
                None => equal += 1,
                Some(difference) => wrong.push(format!("{name}: {difference}")),
            },
            (Err(reason), Some(_)) => match known(REFUSED) {
                Some(words) if reason.contains(&words) => refused += 1,
                _ => wrong.push(format!("{name}: refused: {reason}")),
            },
            (Err(_), None) => failed += 1,
            (Ok(_), None) if known(READ).is_some() => equal += 1,
            (Ok(_), None) => wrong.push(format!(
                "{name}: read, though datasets fails: {}",
                case["error"]
            )),
        }
    }
    let counts = format!(
        "{} cases: {equal} equal, {refused} refused by name, {failed} errors in both",
        cases.len()
    );
    println!("{counts}");
    assert!(wrong.is_empty(), "{counts}\n{}", wrong.join("\n"));
    assert!(cases.len() >= 290);
}

/// `--dataset_name` of a directory: the card's class names are the model's, and labels of other splits
/// are their numbers.
#[test]
fn a_directory_with_a_card_is_a_data_set() {
    let bench = Bench::new();
    let write = |name: &str, text: &str| {
        let path = bench.path("set").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let card = "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': zero\n          '1': another\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: parts/*.csv\n  - split: validation\n    path: dev.csv\n---\n";
    write("README.md", card);
    write("parts/a.csv", "text,label\none,1\nNone other,0\n");
    write("parts/b.csv", "text,label\n\"a, b\",1\n");
    write("dev.csv", "text,label\nx,0\n");
    let line = "train cls --tokenizer_name wordpiece --dataset_name set --max_seq_length 16 --max_steps 1 --save_strategy no \
                --per_device_train_batch_size 3 --do_train --do_eval --disable_tqdm --output_dir out";
    bench.run(&format!("{line} {BERT}")).succeeded();
    let config = bench.json("out/config.json");
    assert_eq!(config["id2label"], json!({"0": "zero", "1": "another"}));
    assert!(bench.json("out/all_results.json")["eval_loss"].is_number());
    fs::remove_file(bench.path("set/README.md")).unwrap();
    for name in ["train.csv", "train_more.csv"] {
        write(name, "text,label\nx,0\n");
    }
    let run = bench.run(&format!("{line} {BERT} --overwrite_output_dir"));
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stderr.contains("train, train_more"), "{}", run.stderr);
}
