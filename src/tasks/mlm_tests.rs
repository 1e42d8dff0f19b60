//! Rows, lines and masking, beyond what the golden case shows.

use super::*;
use crate::Split;
use crate::bad_inputs::letters;
use crate::test_support::{collator, examples};
use std::fs;
use std::path::Path;
use xtrain_data::loader::{LoadSpec, Loader};
use xtrain_data::sampler::{BatchPlan, Order, Position};
use xtrain_data::{Batch, Rows};

fn settings(dir: &Path, text: &str) -> MlmDataSettings {
    let path = dir.join("t.txt");
    fs::write(&path, text).unwrap();
    MlmDataSettings {
        source: SourceSettings {
            train_files: vec![path],
            cache_dir: dir.join("cache"),
            seed: 7,
            ..SourceSettings::default()
        },
        max_seq_length: None,
        line_by_line: false,
        mlm_probability: 0.15,
        whole_word_mask: false,
        padding: PaddingSettings::default(),
    }
}

#[test]
fn lines_are_joined_with_their_special_tokens_or_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let mut settings = settings(dir.path(), "ab\n\n \nc d e f g\n");
    let ids = |examples: &Rows| {
        (0..examples.len())
            .map(|i| examples.row(i).unwrap().ids.to_vec())
            .collect::<Vec<Vec<u32>>>()
    };
    // [CLS] a ##b [SEP], twice [CLS] [SEP] for the blank lines, [CLS] c d e f g [SEP].
    let joined = examples(&settings, Split::Train, &tokenizer, None, 5).unwrap();
    assert_eq!(
        ids(&joined),
        [[2, 5, 8, 3, 2], [3, 2, 3, 2, 9], [11, 13, 15, 17, 3]]
    );
    settings.line_by_line = true;
    let lines = examples(&settings, Split::Train, &tokenizer, None, 5).unwrap();
    assert_eq!(ids(&lines), [vec![2, 5, 8, 3], vec![2, 9, 11, 13, 3]]);
    let collator = collator(&settings, &tokenizer, None, 5, lines).unwrap();
    let batch = collator.batch(&[0, 1], 2, Position::default()).unwrap();
    assert_eq!(
        batch.attention_mask.unwrap().row(0).to_vec(),
        [true, true, true, true, false]
    );
    assert_eq!(batch.labels.tokens().unwrap()[[0, 4]], -100);
    fs::write(&settings.source.train_files[0], "\n \n").unwrap();
    assert!(
        examples(&settings, Split::Train, &tokenizer, None, 5)
            .unwrap_err()
            .to_string()
            .contains("every line is blank")
    );
    settings.line_by_line = false;
    let error = examples(&settings, Split::Train, &tokenizer, None, 50)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("one block of 50") && error.contains("--max_seq_length 4"),
        "{error}"
    );
}

#[test]
fn whole_words_are_masked_whole() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let mut settings = settings(dir.path(), &"abc de f ghij\n".repeat(300));
    (settings.line_by_line, settings.whole_word_mask) = (true, true);
    let examples = examples(&settings, Split::Train, &tokenizer, None, 32).unwrap();
    let collator = collator(&settings, &tokenizer, None, 32, examples).unwrap();
    let rows: Vec<u32> = (0..300).collect();
    let (mut words, mut chosen) = (0u32, 0u32);
    for epoch in 0..20 {
        let batch = collator
            .batch(&rows, 300, Position { epoch, batch: 0 })
            .unwrap();
        for labels in batch.labels.tokens().unwrap().outer_iter() {
            // Columns of the words of [CLS] a ##b ##c d ##e f g ##h ##i ##j [SEP].
            for word in [1..4, 4..6, 6..7, 7..11] {
                let count = word
                    .clone()
                    .filter(|column| labels[*column] != -100)
                    .count();
                assert!(count == 0 || count == word.len());
                words += 1;
                chosen += u32::from(count > 0);
            }
            assert!(labels[0] == -100 && labels[11] == -100);
        }
    }
    let (expected, sigma) = (
        0.15 * f64::from(words),
        (0.15 * 0.85 * f64::from(words)).sqrt(),
    );
    assert!(
        (f64::from(chosen) - expected).abs() < 4.0 * sigma,
        "{chosen} of {words}"
    );
}

#[test]
fn masks_depend_on_epoch_and_row_alone() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let settings = settings(dir.path(), &"abcdefgh ijklmnop\n".repeat(100));
    let examples = examples(&settings, Split::Train, &tokenizer, None, 16).unwrap();
    let plan = |batch_size| {
        BatchPlan::new(
            examples.len(),
            batch_size,
            false,
            Order::Shuffled { seed: 3 },
        )
        .unwrap()
    };
    let all = |batch_size: usize, start: Position, workers: usize| -> Vec<Batch> {
        let collator = collator(&settings, &tokenizer, None, 16, examples.clone()).unwrap();
        let spec = LoadSpec {
            set: collator,
            plan: plan(batch_size),
            start,
            end_epoch: 2,
        };
        Loader::new(spec, workers, Ok::<_, Error>)
            .unwrap()
            .map(|item| item.unwrap())
            .collect()
    };
    let whole = all(4, Position::default(), 0);
    for workers in [1, 3] {
        assert_eq!(all(4, Position::default(), workers), whole);
    }
    let middle = Position { epoch: 1, batch: 5 };
    assert_eq!(all(4, middle, 2), whole[whole.len() / 2 + 5..]);
    // The size of the batch does not change a row's masks either.
    let flat = |batches: &[Batch]| -> Vec<i32> {
        batches
            .iter()
            .flat_map(|b| {
                b.input_ids
                    .rows()
                    .into_iter()
                    .take(b.examples)
                    .flat_map(|r| r.to_vec())
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    assert_eq!(flat(&all(7, Position::default(), 0)), flat(&whole));
}

#[test]
fn lengths_follow_run_mlm_and_run_glue() {
    let size = |requested, limit, positions| {
        Length::of_rows(requested, 1024, limit, positions).map(|length| length.size)
    };
    assert_eq!(size(None, Some(512), 512).unwrap(), 512);
    assert_eq!(size(None, None, 2048).unwrap(), 1024);
    assert_eq!(size(None, Some(512), 128).unwrap(), 128);
    assert_eq!(size(Some(64), Some(512), 512).unwrap(), 64);
    assert_eq!(size(Some(512), Some(256), 512).unwrap(), 256);
    assert_eq!(size(Some(512), Some(256), 256).unwrap(), 256);
    let of_cls = |positions| Length::of_rows(None, 128, Some(512), positions).unwrap();
    assert_eq!((of_cls(512).size, of_cls(64).size), (128, 64));
    assert!(
        of_cls(64)
            .note
            .unwrap()
            .contains("using 64 of the model's 64")
    );
    assert!(size(Some(0), None, 512).is_err());
    assert!(
        size(Some(1024), None, 512)
            .unwrap_err()
            .to_string()
            .contains("--max_seq_length 1024 is more than the model's 512")
    );
}
