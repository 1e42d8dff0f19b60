//! The pipeline against run_clm's golden rows, its cache, and the message when there is not enough
//! text.

use super::*;
use crate::Split;
use crate::test_support::packed;
use std::fs;
use std::path::{Path, PathBuf};
use xtrain_data::Rows;
use xtrain_data::rows::Origin;
use xtrain_data::tokenizer::train_byte_bpe;

fn settings(dir: &Path, train: &[&Path]) -> ClmDataSettings {
    ClmDataSettings {
        source: SourceSettings {
            train_files: train.iter().map(|p| p.to_path_buf()).collect(),
            validation_split_percentage: 5.0,
            preprocessing_num_workers: Some(2),
            cache_dir: dir.join("cache"),
            ..SourceSettings::default()
        },
        block_size: None,
        stride: None,
    }
}

/// A tokenizer with one token per byte.
fn bytes_tokenizer() -> Tokenizer {
    train_byte_bpe(&[""], 257).unwrap()
}

fn rows(dataset: &Rows) -> Vec<Vec<u32>> {
    (0..dataset.len())
        .map(|i| dataset.row(i).unwrap().ids.to_vec())
        .collect()
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn groups_of_1000_lines_lose_their_own_remainder() {
    let dir = tempfile::tempdir().unwrap();
    // 2500 lines of 2 bytes in two files: groups of 2000, 2000 and 1000 ids go across the files'
    // border.
    let a = write(dir.path(), "a.txt", &"a\n".repeat(1300));
    let b = write(dir.path(), "b.txt", &"b\n".repeat(1200));
    let mut settings = settings(dir.path(), &[&a, &b]);
    settings.source.validation_split_percentage = 0.0;
    let tokenizer = bytes_tokenizer();
    let data = packed(&settings, Split::Train, &tokenizer, 300).unwrap();
    assert_eq!(
        (data.len(), data.totals()),
        (
            6 + 6 + 3,
            Totals {
                lines: 2500,
                tokens: 5000
            }
        )
    );
    let text: String = data
        .row(7)
        .unwrap()
        .ids
        .iter()
        .map(|id| tokenizer.decode(&[*id], false).unwrap())
        .collect();
    assert_eq!(text, "a\n".repeat(150)); // lines 1150 to 1299 of the second group
    assert_eq!(
        tokenizer.decode(&data.row(8).unwrap().ids, false).unwrap(),
        "b\n".repeat(150)
    );
    // The number of threads is not part of the result.
    for threads in [1, 3] {
        settings.source.preprocessing_num_workers = Some(threads);
        settings.source.overwrite_cache = true;
        assert_eq!(
            rows(&packed(&settings, Split::Train, &tokenizer, 300).unwrap()),
            rows(&data)
        );
    }
}

#[test]
fn the_first_lines_validate_when_there_is_no_validation_file() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..30).map(|i| format!("{i:03}\n")).collect();
    let train = write(dir.path(), "t.txt", &text);
    let mut settings = settings(dir.path(), &[&train]);
    let tokenizer = bytes_tokenizer();
    // 5% of 30 is 1.5: rounded to 2, as Python does.
    assert_eq!(
        packed(&settings, Split::Validation, &tokenizer, 4)
            .unwrap()
            .len(),
        2
    );
    let data = packed(&settings, Split::Train, &tokenizer, 4).unwrap();
    assert_eq!(data.len(), 28);
    assert_eq!(
        tokenizer.decode(&data.row(0).unwrap().ids, false).unwrap(),
        "002\n"
    );
    settings.source.max_train_samples = Some(5);
    settings.source.max_eval_samples = Some(1);
    assert_eq!(
        packed(&settings, Split::Train, &tokenizer, 4)
            .unwrap()
            .len(),
        5
    );
    assert_eq!(
        packed(&settings, Split::Validation, &tokenizer, 4)
            .unwrap()
            .len(),
        1
    );
    settings.source.validation_files = vec![train.clone()];
    settings.source.max_train_samples = None;
    assert_eq!(
        packed(&settings, Split::Train, &tokenizer, 4)
            .unwrap()
            .len(),
        30
    );
}

#[test]
fn tokenized_files_are_reused_until_anything_changes_or_breaks() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "t.txt", &"hello world\n".repeat(50));
    let mut settings = settings(dir.path(), &[&path]);
    settings.source.validation_split_percentage = 0.0;
    let tokenizer = bytes_tokenizer();
    let made = |settings: &ClmDataSettings, block: usize| {
        packed(settings, Split::Train, &tokenizer, block).unwrap()
    };
    let first = made(&settings, 16);
    assert_eq!(first.origin(), &Origin::Tokenized);
    let file = fs::read_dir(&settings.source.cache_dir)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let again = made(&settings, 16);
    assert_eq!(
        (again.origin(), again.fingerprint(), rows(&again)),
        (&Origin::Cached, first.fingerprint(), rows(&first))
    );
    assert_eq!(made(&settings, 32).origin(), &Origin::Tokenized);
    let other = train_byte_bpe(&["hello hello"], 260).unwrap();
    assert_eq!(
        packed(&settings, Split::Train, &other, 16)
            .unwrap()
            .origin(),
        &Origin::Tokenized
    );
    // Content counts, not name or time.
    let copy = write(dir.path(), "copy.txt", &"hello world\n".repeat(50));
    settings.source.train_files = vec![copy];
    assert_eq!(made(&settings, 16).origin(), &Origin::Cached);

    let (good, want) = (fs::read(&file).unwrap(), rows(&first));
    drop((first, again)); // They map the file that is about to be damaged in place.
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for bad in [
        good[..50].to_vec(),
        good[..good.len() - 1].to_vec(),
        flipped(9),
        flipped(20),
        flipped(300),
        Vec::new(),
    ] {
        fs::write(&file, bad).unwrap();
        let remade = made(&settings, 16);
        assert!(matches!(remade.origin(), Origin::Remade(_)));
        assert_eq!(rows(&remade), want);
        drop(remade);
        assert_eq!(fs::read(&file).unwrap(), good);
    }
}

#[test]
fn too_little_text_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "short.txt", "just a few words\n");
    let mut settings = settings(dir.path(), &[&path]);
    let tokenizer = bytes_tokenizer();
    let error = packed(&settings, Split::Train, &tokenizer, 64)
        .unwrap_err()
        .to_string();
    for part in [
        "short.txt",
        "17 tokens in 1 lines",
        "one block of 64",
        "--block_size 17",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let error = packed(&settings, Split::Validation, &tokenizer, 64)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the first 5%")
            && error.contains("--validation_file")
            && !error.contains("--block_size 0"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&settings.source.cache_dir).unwrap().count(), 0);
    settings.source.train_files.clear();
    assert!(
        packed(&settings, Split::Train, &tokenizer, 64)
            .unwrap_err()
            .to_string()
            .contains("--train_file")
    );
}

#[test]
fn bad_text_is_told_by_file_and_line_even_in_lines_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = bytes_tokenizer();
    let path = dir.path().join("bad.txt");
    fs::write(&path, [b"ok\n".repeat(40), b"\xff\n".to_vec()].concat()).unwrap();
    let error = packed(&settings(dir.path(), &[&path]), Split::Train, &tokenizer, 8)
        .unwrap_err()
        .to_string();
    assert!(error.contains("bad.txt:41: invalid UTF-8"), "{error}");
    let empty = write(dir.path(), "empty.txt", "");
    assert!(
        packed(
            &settings(dir.path(), &[&empty]),
            Split::Train,
            &tokenizer,
            8
        )
        .unwrap_err()
        .to_string()
        .contains("empty")
    );
    let none = dir.path().join("none.txt");
    assert!(
        packed(&settings(dir.path(), &[&none]), Split::Train, &tokenizer, 8)
            .unwrap_err()
            .to_string()
            .contains("none.txt")
    );
}

#[test]
fn block_sizes_follow_run_clm() {
    let size =
        |requested, limit, positions| block_size(requested, limit, positions).map(|b| b.size);
    assert_eq!(size(None, None, 1024).unwrap(), 1024);
    assert_eq!(size(None, None, 2048).unwrap(), 1024);
    assert_eq!(size(None, None, 512).unwrap(), 512);
    assert_eq!(size(None, Some(256), 512).unwrap(), 256);
    assert_eq!(size(None, Some(2048), 512).unwrap(), 512);
    assert_eq!(size(Some(128), None, 512).unwrap(), 128);
    assert_eq!(size(Some(512), Some(256), 1024).unwrap(), 256);
    assert!(
        block_size(Some(512), Some(256), 1024)
            .unwrap()
            .note
            .unwrap()
            .contains("256")
    );
    assert!(
        size(Some(1024), None, 512)
            .unwrap_err()
            .to_string()
            .contains("512 positions")
    );
    assert!(size(Some(1), None, 512).is_err() && size(Some(0), None, 512).is_err());
}

#[test]
fn a_column_of_a_table_gives_the_same_rows_as_lines() {
    use crate::bad_inputs::{Column, gzip, parquet};
    let dir = tempfile::tempdir().unwrap();
    let lines = ["one, two\n", "three \"four\"\n", "\n", "five\n"];
    let quoted = |line: &str| format!("\"{}\"", line.replace('"', "\"\""));
    let csv = "id,text\n".to_string()
        + &lines
            .iter()
            .map(|line| format!("7,{}\n", quoted(line)))
            .collect::<String>();
    let json: String = lines
        .iter()
        .map(|line| serde_json::json!({"text": line}).to_string() + "\n")
        .collect();
    let files = [
        ("t.txt", lines.concat().into_bytes()),
        ("t.csv", csv.clone().into_bytes()),
        (
            "t.tsv.gz",
            gzip(
                csv.replace(',', "\t")
                    .replace("one\t two", "one, two")
                    .as_bytes(),
            ),
        ),
        ("t.jsonl", json.into_bytes()),
        (
            "t.parquet",
            parquet(&[("text", Column::Text(lines.to_vec()))], None),
        ),
    ];
    let tokenizer = bytes_tokenizer();
    let mut wanted = None;
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let mut settings = settings(dir.path(), &[&path]);
        settings.source.table.quoting = Some(xtrain_data::settings::Quoting::Standard);
        settings.source.validation_split_percentage = 0.0;
        let found = rows(&packed(&settings, Split::Train, &tokenizer, 4).unwrap());
        assert_eq!(*wanted.get_or_insert(found.clone()), found, "{name}");
        // The first lines validate, whatever the format.
        settings.source.validation_split_percentage = 25.0;
        assert_eq!(
            rows(&packed(&settings, Split::Validation, &tokenizer, 4).unwrap()),
            found[..2],
            "{name}"
        );
    }
}

#[test]
fn windows_count_each_token_once() {
    let recipe = Windows {
        blocks: Blocks {
            source: SourceSettings::default(),
            tokenizer: bytes_tokenizer(),
            block_size: 4,
            vocabulary: 1000,
        },
        stride: 2,
    };
    let sample = |text: &str| Sample {
        texts: vec![text.to_string()],
        ..Sample::default()
    };
    let group = recipe
        .encode(&[sample("abcde\n"), sample("fghij")])
        .unwrap();
    let ids = bytes_tokenizer().encode("abcde\nfghij").unwrap();
    let begins = |row: &Row| ids.windows(2).position(|pair| row.ids[..2] == *pair);
    let windows: Vec<_> = group
        .rows
        .iter()
        .map(|row| {
            (
                begins(row),
                row.flags.iter().map(|flag| flag / flag::COUNTED).collect(),
            )
        })
        .collect();
    assert_eq!(
        windows,
        [
            (Some(0), vec![0, 1, 1, 1]),
            (Some(2), vec![0, 0, 1, 1]),
            (Some(4), vec![0, 0, 1, 1]),
            (Some(6), vec![0, 0, 1, 1]),
            // The text ends with its third token.
            (Some(8), vec![0, 0, 1, 0]),
        ]
    );
    let settings = ClmDataSettings {
        block_size: Some(4),
        stride: Some(5),
        ..settings(Path::new(""), &[])
    };
    let error = settings.length(None, 8).unwrap_err().to_string();
    assert!(
        error.contains("--stride 5") && error.contains("--block_size 4"),
        "{error}"
    );
}
