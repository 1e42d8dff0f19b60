//! A tokenizer is all of its directory: over a grid of classes, vocabularies and settings the ids are
//! those of transformers, as `tests/data/make_tokenizer_classes.py` recorded them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use xtrain::data::Tokenizer;
use xtrain::data::rows::flag;
use xtrain::data::sequences::SequenceEncoder;

use crate::support::data_dir;

/// FNV-1a of a value's compact JSON, as the script takes it.
fn digest(value: &Value) -> String {
    let hash = value
        .to_string()
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
    format!("{hash:016x}")
}

/// Writes a directory: the files of a base, with what a setting, a class and a model type change.
fn write(dir: &Path, cases: &Value, of: &[&str; 3]) {
    let [base, class, setting] = *of;
    let base = &cases["bases"][base];
    for file in base[1].as_array().unwrap() {
        let file = file.as_str().unwrap();
        let from = data_dir().join(base[0].as_str().unwrap()).join(file);
        fs::copy(from, dir.join(file)).unwrap();
    }
    let (class, model_type) = class.split_once('/').unwrap_or((class, ""));
    let named = [
        ("tokenizer_config.json", "tokenizer_class", class),
        ("config.json", "model_type", model_type),
    ];
    let settings = cases["settings"][setting].as_object().unwrap().clone();
    let told = named
        .into_iter()
        .filter(|(_, _, name)| !name.is_empty())
        .map(|(file, key, name)| (file.to_string(), json!({key: name})));
    for (file, change) in settings.into_iter().chain(told) {
        let path = dir.join(&file);
        let mut object: Value = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
            Err(_) => json!({}),
        };
        for (key, value) in change.as_object().unwrap() {
            object[key] = value.clone();
        }
        fs::write(&path, object.to_string()).unwrap();
    }
}

/// What the script recorded, of a tokenizer here.
fn found(tokenizer: &Tokenizer, cases: &Value) -> Value {
    let texts: Vec<&str> = cases["texts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    let single: Vec<Value> = texts
        .iter()
        .map(|text| {
            let with = tokenizer.encode_with_special_tokens(text).unwrap();
            json!([with, tokenizer.encode(text).unwrap()])
        })
        .collect();
    let encoder = SequenceEncoder::new(tokenizer, None).unwrap();
    let pairs: Vec<Value> = cases["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            let at = |i: usize| texts[pair[i].as_u64().unwrap() as usize];
            let found = encoder.encode(at(0), Some(at(1))).unwrap();
            let segments = found
                .flags
                .iter()
                .map(|flags| u8::from(flags & flag::SECOND != 0));
            json!([found.ids, segments.collect::<Vec<_>>()])
        })
        .collect();
    if std::env::var_os("SHOW").is_some() {
        for (text, ids) in texts.iter().zip(&single) {
            println!("{} {ids}", json!(text));
        }
        println!("{}", json!(pairs));
    }
    json!({
        "single": digest(&single.into()),
        "pairs": digest(&pairs.into()),
        "len": tokenizer.vocab_size(),
        "left": [tokenizer.pads_left(), tokenizer.truncates_left],
        "max": tokenizer.model_max_length(),
        "segments": tokenizer.has_segments(),
        "ids": [tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id(), tokenizer.mask_id()],
    })
}

#[test]
fn ids_are_those_of_transformers_whatever_the_files_say() {
    let text = fs::read(data_dir().join("golden/tokenizer_classes/cases.json")).unwrap();
    let cases: Value = serde_json::from_slice(&text).unwrap();
    let (mut equal, mut refused, mut wrong) = (0, 0, Vec::new());
    let only = std::env::var("ONLY")
        .ok()
        .and_then(|number| number.parse::<usize>().ok());
    for (number, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
        // What transformers cannot read either has no ids to compare.
        if case.get("fails").is_some() || only.is_some_and(|only| only != number) {
            continue;
        }
        let of = [0, 1, 2].map(|i| case["of"][i].as_str().unwrap());
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &cases, &of);
        let tokenizer = match Tokenizer::load(dir.path()) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                refused += 1;
                wrong.push(format!("{number}: {of:?}: {error}"));
                continue;
            }
        };
        let mut ours = found(&tokenizer, &cases);
        // Where transformers knows no such token, one of a usual name may serve.
        for i in 0..4 {
            if case["ids"][i].is_null() {
                ours["ids"][i] = Value::Null;
            }
        }
        if of[1].is_empty() {
            ours["segments"] = case["segments"].clone();
        }
        let differ: Vec<String> = ours
            .as_object()
            .unwrap()
            .iter()
            .filter(|(key, value)| case[*key] != **value)
            .map(|(key, value)| format!("{key} {value} for {}", case[key]))
            .collect();
        if differ.is_empty() {
            equal += 1;
        } else {
            wrong.push(format!("{number}: {of:?}: {}", differ.join(", ")));
        }
        // What is saved is read as the same again.
        let saved = tempfile::tempdir().unwrap();
        tokenizer.save(saved.path()).unwrap();
        if dir.path().join("config.json").exists() {
            fs::copy(
                dir.path().join("config.json"),
                saved.path().join("config.json"),
            )
            .unwrap();
        }
        let again = Tokenizer::load(saved.path()).unwrap();
        let (mut before, mut after) = (found(&tokenizer, &cases), found(&again, &cases));
        for value in [&mut before, &mut after] {
            value["ids"] = Value::Null;
        }
        if before != after {
            wrong.push(format!("{number}: {of:?}: saved {after} for {before}"));
        }
    }
    println!("{equal} equal, {refused} refused");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(equal >= 900 || only.is_some(), "{equal}");
}
