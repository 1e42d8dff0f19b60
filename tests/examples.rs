//! Classification, masked LM and tables against references from outside: golden cases (made by
//! transformers and datasets), the repository's and further ones, and published sets and ids.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtrain::checkpoint::Weights;
use xtrain::data::loader::{LoadSpec, Loader};
use xtrain::data::rows::flag;
use xtrain::data::sequences::SequenceEncoder;
use xtrain::data::settings::{PaddingSettings, SourceSettings};
use xtrain::data::{BatchPlan, HostLabels, Label, LabelMap, Order, Position, Rows, Set, Tokenizer};
use xtrain::tasks::{
    ClsDataSettings, Context, Labelled, MlmDataSettings, RunLabels, Split, Task, set,
};

use crate::support::{data_dir, further_data, golden_dirs, shared_data};

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn numbers(weights: &Weights, name: &str) -> Vec<i64> {
    let tensor = weights.get(name).unwrap();
    match tensor.shape.dtype.size() {
        4 => tensor
            .bytes
            .chunks_exact(4)
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()).into())
            .collect(),
        _ => tensor
            .bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .collect(),
    }
}

fn source(files: &[PathBuf], cache: &Path) -> SourceSettings {
    SourceSettings {
        train_files: files.to_vec(),
        cache_dir: cache.to_path_buf(),
        seed: 42,
        ..SourceSettings::default()
    }
}

fn cls_settings(files: &[PathBuf], cache: &Path, max_seq_length: usize) -> ClsDataSettings {
    ClsDataSettings {
        source: source(files, cache),
        text_pair_column: None,
        label_column: None,
        max_seq_length: Some(max_seq_length),
        padding: PaddingSettings {
            pad_to_max_length: true,
            pad_to_bucket: Vec::new(),
        },
        labels: None,
        finds_regression: true,
        glue: None,
    }
}

fn mlm_settings(files: &[PathBuf], cache: &Path) -> MlmDataSettings {
    MlmDataSettings {
        source: source(files, cache),
        max_seq_length: None,
        line_by_line: false,
        mlm_probability: 0.15,
        whole_word_mask: false,
        padding: PaddingSettings::default(),
    }
}

/// The set to train on.
fn train_set(
    task: &dyn Task,
    tokenizer: &Tokenizer,
    labels: Option<&LabelMap>,
    length: usize,
) -> Set {
    let context = Context {
        tokenizer: tokenizer.clone(),
        length,
        vocabulary: 1 << 16,
        labels: labels.map(|map| RunLabels {
            map: map.clone(),
            given: false,
        }),
        quiet: true,
        spaces_words: false,
    };
    set(task, &context, Split::Train).unwrap()
}

fn examples(set: &Set) -> Rows {
    assert!(!set.rows.is_packed());
    set.rows.clone()
}

const START: Position = Position { epoch: 0, batch: 0 };

#[test]
fn pairs_equal_run_glue() {
    for golden in golden_dirs() {
        pairs_equal_run_glue_in(&golden);
    }
}

fn pairs_equal_run_glue_in(golden: &Path) {
    let dir = golden.join("glue_pipeline");
    let meta = json(&dir.join("meta.json"));
    let cache = tempfile::tempdir().unwrap();
    let max_length = meta["max_seq_length"].as_u64().unwrap() as usize;
    let settings = cls_settings(&[dir.join("train.csv")], cache.path(), max_length);
    let tokenizer = Tokenizer::load(
        &golden.join(
            meta["tokenizer"]
                .as_str()
                .unwrap_or("tokenizers/wordpiece/tokenizer.json"),
        ),
    )
    .unwrap();
    let labels = settings.of_data().unwrap();
    assert_eq!(
        serde_json::to_value(labels.names()).unwrap(),
        meta["label_names"]
    );
    let set = train_set(&settings, &tokenizer, Some(&labels), max_length);
    let examples = examples(&set);
    assert_eq!(examples.len() as u64, meta["examples"].as_u64().unwrap());
    let rows: Vec<u32> = (0..examples.len() as u32).collect();
    let batch = set.batch(&rows, rows.len(), START).unwrap();
    let wanted = Weights::open(&dir.join("rows.safetensors")).unwrap();
    let ints =
        |array: &ndarray::Array2<i32>| array.iter().map(|n| i64::from(*n)).collect::<Vec<_>>();
    assert_eq!(ints(&batch.input_ids), numbers(&wanted, "input_ids"));
    assert_eq!(
        ints(&batch.token_type_ids.unwrap()),
        numbers(&wanted, "token_type_ids")
    );
    assert_eq!(
        ints(&batch.attention_mask.unwrap().mapv(i32::from)),
        numbers(&wanted, "attention_mask")
    );
    let HostLabels::Classes(classes) = batch.labels else {
        panic!("classes are expected")
    };
    assert_eq!(
        classes.iter().map(|n| i64::from(*n)).collect::<Vec<_>>(),
        numbers(&wanted, "labels")
    );
}

#[test]
fn rows_equal_run_mlm_and_masking_keeps_its_shares() {
    for golden in golden_dirs() {
        rows_equal_run_mlm_and_masking_keeps_its_shares_in(&golden);
    }
}

fn rows_equal_run_mlm_and_masking_keeps_its_shares_in(golden: &Path) {
    let dir = golden.join("mlm_pipeline");
    let meta = json(&dir.join("meta.json"));
    let cache = tempfile::tempdir().unwrap();
    let length = meta["max_seq_length"].as_u64().unwrap() as usize;
    let settings = mlm_settings(
        &[golden.join(meta["corpus"].as_str().unwrap())],
        cache.path(),
    );
    let tokenizer = Tokenizer::load(&golden.join(meta["tokenizer"].as_str().unwrap())).unwrap();
    let set = train_set(&settings, &tokenizer, None, length);
    let examples = examples(&set);
    let wanted = Weights::open(&dir.join("rows.safetensors")).unwrap();
    let (mut ids, mut special) = (Vec::new(), Vec::new());
    for index in 0..examples.len() {
        let example = examples.row(index).unwrap();
        ids.extend(example.ids.iter().map(|id| i64::from(*id)));
        special.extend(
            example
                .flags
                .iter()
                .map(|flags| i64::from(flags & flag::SPECIAL != 0)),
        );
    }
    assert!(
        ids == numbers(&wanted, "input_ids") && special == numbers(&wanted, "special_tokens_mask")
    );

    let mask_id = i64::from(tokenizer.mask_id().unwrap());
    let probability = meta["mlm_probability"].as_f64().unwrap();
    let settings = MlmDataSettings {
        mlm_probability: probability,
        ..settings
    };
    let collator = train_set(&settings, &tokenizer, None, length);
    let rows: Vec<u32> = (0..examples.len() as u32).collect();
    let epochs = meta["collator_epochs"].as_u64().unwrap();
    let (mut selected, mut masked, mut kept, mut random) = (0u64, 0u64, 0u64, 0u64);
    let mut first = None;
    for epoch in 0..epochs {
        let batch = collator
            .batch(&rows, rows.len(), Position { epoch, batch: 0 })
            .unwrap();
        let labels = batch.labels.tokens().unwrap();
        for (((id, label), original), special) in
            batch.input_ids.iter().zip(labels).zip(&ids).zip(&special)
        {
            if *label == -100 {
                assert_eq!(i64::from(*id), *original);
                continue;
            }
            assert_eq!((i64::from(*label), *special), (*original, 0));
            selected += 1;
            match i64::from(*id) {
                id if id == mask_id => masked += 1,
                id if id == *original => kept += 1,
                _ => random += 1,
            }
        }
        assert_eq!(
            batch,
            collator
                .batch(&rows, rows.len(), Position { epoch, batch: 0 })
                .unwrap()
        );
        assert_ne!(
            first.replace(batch.input_ids.clone()),
            Some(batch.input_ids)
        );
    }
    let maskable = epochs * special.iter().filter(|special| **special == 0).count() as u64;
    assert_eq!(
        maskable,
        meta["collator_totals"]["maskable"].as_u64().unwrap()
    );
    let close = |found: u64, of: u64, share: f64| {
        let sigma = (share * (1.0 - share) * of as f64).sqrt();
        assert!(
            (found as f64 - share * of as f64).abs() <= 4.0 * sigma,
            "{found} of {of}, {share} expected"
        );
    };
    close(selected, maskable, probability);
    close(masked, selected, 0.8);
    close(kept, selected, 0.1);
    close(random, selected, 0.1);
}

/// Everything in the tokenizer cases that a sequence encoder decides: special tokens, types, masks,
/// truncation of pairs.
#[test]
fn sequences_equal_transformers() {
    for golden in golden_dirs() {
        sequences_equal_transformers_in(&golden);
    }
}

fn sequences_equal_transformers_in(golden: &Path) {
    let mut pairs = 0;
    for entry in fs::read_dir(golden.join("tokenizers")).unwrap() {
        let dir = entry.unwrap().path();
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let cases = json(&dir.join("cases.json"));
        let list = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap() as u32)
                .collect::<Vec<_>>()
        };
        let encoder = SequenceEncoder::new(&tokenizer, None).unwrap();
        for case in cases["single"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let found = encoder.encode(text, None).unwrap();
            assert_eq!(found.ids, list(&case["ids"]), "{text:?}");
            let of = |bit: u8| {
                found
                    .flags
                    .iter()
                    .map(|flags| u32::from(flags & bit != 0))
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                of(flag::SPECIAL),
                list(&case["special_tokens_mask"]),
                "{text:?}"
            );
            assert_eq!(of(flag::SECOND), list(&case["type_ids"]), "{text:?}");
            assert_eq!(
                tokenizer.encode(text).unwrap(),
                list(&case["ids_without_specials"]),
                "{text:?}"
            );
            assert_eq!(
                tokenizer.decode(&found.ids, true).unwrap(),
                case["decoded"].as_str().unwrap(),
                "{text:?}"
            );
        }
        let Some(max_length) = cases["pair_max_length"].as_u64() else {
            continue;
        };
        let encoder = SequenceEncoder::new(&tokenizer, Some(max_length as usize)).unwrap();
        for case in cases["pairs"].as_array().into_iter().flatten() {
            let found = encoder
                .encode(case["text_a"].as_str().unwrap(), case["text_b"].as_str())
                .unwrap();
            let mut ids = found.ids.clone();
            ids.resize(max_length as usize, tokenizer.pad_id().unwrap());
            assert_eq!(ids, list(&case["ids"]), "{case}");
            let mut types: Vec<u32> = found
                .flags
                .iter()
                .map(|flags| u32::from(flags & flag::SECOND != 0))
                .collect();
            types.resize(max_length as usize, 0);
            assert_eq!(types, list(&case["type_ids"]), "{case}");
            pairs += 1;
        }
    }
    assert!(pairs > 0);
}

/// The repository's tables are read whole: each has the rows and labels that `make_text.py` counted.
#[test]
fn tables_have_their_rows_and_labels() {
    let data = data_dir();
    let cache = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::load(&data.join("bert-cased")).unwrap();
    let counted = json(&data.join("counts.json"));
    for (name, known) in counted["labels"].as_object().unwrap() {
        let mut settings = cls_settings(&[data.join(name)], cache.path(), 64);
        if name.starts_with("posts") {
            settings.source.table.text_column = Some("text".to_string());
            settings.label_column = Some("sentiment".to_string());
        }
        let labels = settings.of_data().unwrap();
        let set = train_set(&settings, &tokenizer, Some(&labels), 64);
        let examples = examples(&set);
        assert_eq!(labels.len(), known.as_object().unwrap().len(), "{name}");
        for (class, label) in labels.names().iter().enumerate() {
            let count = (0..examples.len())
                .filter(|i| examples.row(*i).unwrap().label == Some(Label::class(class as u32)))
                .count();
            assert_eq!(known[label], count, "{name}: {label}");
        }
    }
    for (name, rows) in counted["rows"].as_object().unwrap() {
        let mut settings = mlm_settings(&[data.join(name)], cache.path());
        if name.ends_with(".jsonl") {
            settings.source.table.text_column = Some("question".to_string());
        }
        let lines = train_set(&settings, &tokenizer, None, 128)
            .rows
            .totals()
            .lines;
        assert_eq!(*rows, lines, "{name}");
    }
}

/// Every real table is read whole, with the numbers that its documentation gives.
#[test]
fn real_tables_have_their_known_rows_and_labels() {
    let Some(data) = shared_data() else { return };
    let cache = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::load(&data.join("bert-base-cased")).unwrap();
    // File, its text and label columns where they are not the usual ones, its labels with their
    // numbers.
    type Known = (
        &'static str,
        Option<(&'static str, &'static str)>,
        &'static [(&'static str, usize)],
    );
    let tables: [Known; 5] = [
        ("sst2/dev.tsv", None, &[("0", 428), ("1", 444)]),
        ("sst2/train.tsv", None, &[("0", 29_780), ("1", 37_569)]),
        (
            "hf-parquet/sst2/validation-00000-of-00001.parquet",
            None,
            &[("negative", 428), ("positive", 444)],
        ),
        (
            "tweet-sentiment/train.csv",
            Some(("text", "sentiment")),
            &[
                ("negative", 7_781),
                ("neutral", 11_117),
                ("positive", 8_582),
            ],
        ),
        (
            "tweet-sentiment/test.csv",
            Some(("text", "sentiment")),
            &[("negative", 1_001), ("neutral", 1_430), ("positive", 1_103)],
        ),
    ];
    for (name, columns, known) in tables {
        let mut settings = cls_settings(&[data.join(name)], cache.path(), 64);
        if let Some((text, label)) = columns {
            settings.source.table.text_column = Some(text.to_string());
            settings.label_column = Some(label.to_string());
        }
        let labels = settings.of_data().unwrap();
        assert_eq!(
            labels.names(),
            known.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            "{name}"
        );
        let set = train_set(&settings, &tokenizer, Some(&labels), 64);
        let examples = examples(&set);
        let label = |class: usize| Some(Label::class(class as u32));
        let count = |class: usize| {
            (0..examples.len())
                .filter(|i| examples.row(*i).unwrap().label == label(class))
                .count()
        };
        let counts: Vec<usize> = (0..labels.len()).map(count).collect();
        assert_eq!(
            counts,
            known.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
            "{name}"
        );
    }
    // Language models take their text from the same formats.
    let mut settings = mlm_settings(
        &[data.join("c4-mini/validation-00000-of-00001.parquet")],
        cache.path(),
    );
    assert_eq!(
        train_set(&settings, &tokenizer, None, 128)
            .rows
            .totals()
            .lines,
        40
    );
    settings.source.train_files =
        vec![data.join("hf-parquet/wikitext-2-raw-v1/test-00000-of-00001.parquet")];
    let parquet = train_set(&settings, &tokenizer, None, 128);
    settings.source.train_files = vec![data.join("gsm8k/test.jsonl")];
    settings.source.table.text_column = Some("question".to_string());
    assert_eq!(
        train_set(&settings, &tokenizer, None, 128)
            .rows
            .totals()
            .lines,
        1_319
    );
    assert_eq!(parquet.rows.totals().lines, 4_358);
}

/// The same tokens whatever the number of workers; how many samples a second is printed for
/// docs/log/performance.md.
#[test]
fn workers_only_change_the_speed() {
    let of = |data: PathBuf, files: [&str; 3]| files.map(|file| data.join(file));
    let own = of(data_dir(), ["bert-cased", "reviews/train.tsv", "play.txt"]);
    let further = further_data().map(|data| {
        of(
            data,
            ["bert-base-cased", "sst2/train.tsv", "wikitext-2/valid.txt"],
        )
    });
    for [tokenizer, table, text] in std::iter::once(own).chain(further) {
        println!("{}, {}", table.display(), text.display());
        workers_only_change_the_speed_of(&tokenizer, &table, &text);
    }
}

fn workers_only_change_the_speed_of(tokenizer: &Path, table: &Path, text: &Path) {
    let cache = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::load(tokenizer).unwrap();
    let mut cls_settings = cls_settings(&[table.to_path_buf()], cache.path(), 128);
    cls_settings.padding = PaddingSettings::default();
    let labels = cls_settings.of_data().unwrap();
    let mlm_settings = mlm_settings(&[text.to_path_buf()], cache.path());
    let sets = [
        (
            "cls, 32 sentences",
            train_set(&cls_settings, &tokenizer, Some(&labels), 128),
            32,
            1,
        ),
        (
            "mlm, 32 x 128",
            train_set(&mlm_settings, &tokenizer, None, 128),
            32,
            10,
        ),
    ];
    for (name, collator, batch_size, epochs) in sets {
        let plan = BatchPlan::new(
            collator.len(),
            batch_size,
            false,
            Order::Shuffled { seed: 1 },
        )
        .unwrap();
        let mut first = None;
        for workers in [0, 1, 2, 4] {
            let spec = LoadSpec {
                set: collator.clone(),
                plan,
                start: START,
                end_epoch: epochs,
            };
            let started = std::time::Instant::now();
            let (mut samples, mut tokens, mut targets) = (0, 0, 0);
            for batch in Loader::new(spec, workers, Ok::<_, xtrain::data::Error>).unwrap() {
                let batch = batch.unwrap();
                (samples, tokens, targets) = (
                    samples + batch.examples,
                    tokens + batch.tokens,
                    targets + batch.targets,
                );
            }
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "{name}, {workers} workers: {:.0} samples/s",
                samples as f64 / seconds
            );
            assert_eq!(
                *first.get_or_insert((samples, tokens, targets)),
                (samples, tokens, targets),
                "{workers} workers"
            );
        }
    }
}

pub(crate) fn list(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}
