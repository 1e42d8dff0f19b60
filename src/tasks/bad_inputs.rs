//! Bad input, case by case: what was wrong, where, and what to do must be in the message; and what
//! looks bad but is not.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use tempfile::TempDir;

use super::bad_tables::TABLES;
use super::test_support::{collator, examples, has_labels, labels, lines};
use super::{ClsDataSettings, MlmDataSettings, Split};
use xtrain_data::settings::{OnBadRow, PaddingSettings, Quoting, SourceSettings, TableSettings};
use xtrain_data::tokenizer::train_byte_bpe;
use xtrain_data::{Label, LabelMap, Result, Rows, Tokenizer};

/// A BERT-like tokenizer with one token for each letter.
pub(super) fn letters(dir: &Path) -> Tokenizer {
    let mut vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n".to_string();
    for letter in 'a'..='z' {
        vocab += &format!("{letter}\n##{letter}\n");
    }
    let dir = dir.join("letters");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("vocab.txt"), vocab).unwrap();
    Tokenizer::load(&dir).unwrap()
}

pub(super) fn settings(dir: &Path, files: &[PathBuf]) -> ClsDataSettings {
    ClsDataSettings {
        source: SourceSettings {
            train_files: files.to_vec(),
            cache_dir: dir.join("cache"),
            seed: 1,
            ..SourceSettings::default()
        },
        text_pair_column: None,
        label_column: None,
        max_seq_length: Some(16),
        padding: PaddingSettings::default(),
        labels: None,
        finds_regression: true,
        glue: None,
    }
}

/// Labels and training examples, as a command prepares them.
pub(super) fn load(settings: &ClsDataSettings, tokenizer: &Tokenizer) -> Result<(LabelMap, Rows)> {
    let labels = labels(settings)?;
    let length = settings.max_seq_length.unwrap();
    let examples = examples(settings, Split::Train, tokenizer, Some(&labels), length)?;
    Ok((labels, examples))
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Columns of a parquet file: text, numbers, fractions or raw bytes.
pub(super) enum Column {
    Text(Vec<&'static str>),
    Whole(Vec<i64>),
    Fractions(Vec<f64>),
    Bytes(Vec<&'static [u8]>),
}

pub(super) fn parquet(columns: &[(&str, Column)], features: Option<&str>) -> Vec<u8> {
    let field = |(name, column): &(&str, Column)| {
        let (physical, logical) = match column {
            Column::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Column::Bytes(_) => (Physical::BYTE_ARRAY, None),
            Column::Whole(_) => (Physical::INT64, None),
            Column::Fractions(_) => (Physical::DOUBLE, None),
        };
        let builder =
            Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
        Arc::new(builder.with_logical_type(logical).build().unwrap())
    };
    let schema = Type::group_type_builder("schema")
        .with_fields(columns.iter().map(field).collect())
        .build()
        .unwrap();
    let pairs =
        features.map(|value| vec![KeyValue::new("huggingface".to_string(), value.to_string())]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_key_value_metadata(pairs)
        .build();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, column) in columns {
        let mut out = group.next_column().unwrap().unwrap();
        let bytes = |values: &[&'static [u8]]| {
            values
                .iter()
                .map(|value| ByteArray::from(value.to_vec()))
                .collect::<Vec<_>>()
        };
        match column {
            Column::Text(values) => {
                let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
                out.typed::<ByteArrayType>()
                    .write_batch(&bytes(&values), None, None)
                    .unwrap();
            }
            Column::Bytes(values) => {
                out.typed::<ByteArrayType>()
                    .write_batch(&bytes(values), None, None)
                    .unwrap();
            }
            Column::Whole(values) => {
                out.typed::<Int64Type>()
                    .write_batch(values, None, None)
                    .unwrap();
            }
            Column::Fractions(values) => {
                out.typed::<DoubleType>()
                    .write_batch(values, None, None)
                    .unwrap();
            }
        }
        out.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

struct Bench {
    dir: TempDir,
    tokenizer: Tokenizer,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = letters(dir.path());
        Bench { dir, tokenizer }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn load(
        &self,
        name: &str,
        bytes: &[u8],
        change: impl FnOnce(&mut ClsDataSettings),
    ) -> Result<(LabelMap, Rows)> {
        let mut settings = settings(self.dir.path(), &[self.file(name, bytes)]);
        change(&mut settings);
        load(&settings, &self.tokenizer)
    }

    fn texts(&self, name: &str, bytes: &[u8]) -> Result<Vec<String>> {
        self.lines(vec![self.file(name, bytes)], TableSettings::default())
    }

    fn lines(&self, files: Vec<PathBuf>, table: TableSettings) -> Result<Vec<String>> {
        let task = MlmDataSettings {
            source: SourceSettings {
                table,
                ..SourceSettings::default()
            },
            max_seq_length: None,
            line_by_line: true,
            mlm_probability: 0.15,
            whole_word_mask: false,
            padding: PaddingSettings::default(),
        };
        lines(&task, &self.tokenizer, &files)
    }
}

fn as_it_is(_: &mut ClsDataSettings) {}

#[test]
fn what_is_wrong_in_a_table_is_told_with_its_place() {
    let bench = Bench::new();
    let cut = |bytes: Vec<u8>, keep: usize| bytes[..keep].to_vec();
    let good = || {
        parquet(
            &[
                ("text", Column::Text(vec!["a", "b"])),
                ("label", Column::Whole(vec![0, 1])),
            ],
            None,
        )
    };
    let long = format!("text,label\n\"{}", "a,b\n".repeat(20_000_000));
    let blanks = gzip(&vec![b' '; 300 << 20]);
    // name, content, parts of the message
    let made: [(&str, Vec<u8>, &[&str]); 8] = [
        (
            "cut.csv.gz",
            cut(gzip(b"text,label\na,x\n"), 25),
            &["cut.csv.gz:", "gzip data end too early"],
        ),
        (
            "huge.csv",
            long.into_bytes(),
            &[
                "huge.csv:2: a line or field of more than 64 MB",
                "open quote",
            ],
        ),
        ("bomb.csv.gz", blanks.clone(), &["bomb.csv.gz:1:", "MB"]),
        (
            "cut.parquet",
            cut(good(), 100),
            &["cut.parquet", "damaged, cut short or no parquet file"],
        ),
        (
            "binary.parquet",
            parquet(
                &[
                    ("text", Column::Bytes(vec![b"\xff"])),
                    ("label", Column::Whole(vec![0])),
                ],
                None,
            ),
            &["binary.parquet", "column \"text\" holds binary data"],
        ),
        (
            "numbers.parquet",
            parquet(
                &[
                    ("text", Column::Whole(vec![7])),
                    ("label", Column::Whole(vec![0])),
                ],
                None,
            ),
            &["numbers.parquet: row 0 of row group 0: column \"text\" is 7, not text"],
        ),
        (
            "columns.parquet",
            parquet(
                &[
                    ("body", Column::Text(vec!["a"])),
                    ("title", Column::Text(vec!["b"])),
                    ("label", Column::Whole(vec![0])),
                ],
                None,
            ),
            &[
                "columns.parquet has no column text",
                "it has body, title, label",
            ],
        ),
        (
            "nan.parquet",
            parquet(
                &[
                    ("text", Column::Text(vec!["a", "b"])),
                    ("label", Column::Fractions(vec![1.0, f64::NAN])),
                ],
                None,
            ),
            &["nan.parquet: row 1 of row group 0: column \"label\": the label is NaN"],
        ),
    ];
    let given = TABLES
        .iter()
        .map(|(name, text, parts)| (*name, text.to_vec(), *parts));
    for (name, bytes, parts) in given.chain(made) {
        let Err(error) = bench.load(name, &bytes, as_it_is) else {
            panic!("{name} is taken as good")
        };
        let error = error.to_string();
        for part in parts {
            assert!(error.contains(part), "{name}: {part:?} is not in {error:?}");
        }
    }
    let none = settings(bench.dir.path(), &[bench.dir.path().join("none.csv")]);
    assert!(
        load(&none, &bench.tokenizer)
            .unwrap_err()
            .to_string()
            .contains("none.csv: No such file")
    );
    // Nothing half-made is left behind.
    assert_eq!(
        fs::read_dir(bench.dir.path().join("cache")).map_or(0, Iterator::count),
        0
    );
}

#[test]
fn damage_within_a_parquet_file_is_told() {
    let bench = Bench::new();
    let texts = vec!["some text to train on"; 2000];
    let good = parquet(
        &[
            ("text", Column::Text(texts)),
            ("label", Column::Whole((0..2000).map(|i| i % 2).collect())),
        ],
        None,
    );
    assert_eq!(
        bench.load("good.parquet", &good, as_it_is).unwrap().1.len(),
        2000
    );
    let mut reported = 0;
    for at in (4..good.len() - 8).step_by(7) {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        // A flipped byte may hit statistics that nobody reads; wherever it is noticed, it must be
        // an error that names the file.
        if let Err(error) = bench.load("bad.parquet", &bad, as_it_is) {
            assert!(
                error.to_string().contains("bad.parquet") || error.to_string().contains("label"),
                "{error}"
            );
            reported += 1;
        }
    }
    assert!(reported > 10, "{reported}");
}

#[test]
fn settings_that_do_not_fit_the_table_are_told() {
    let bench = Bench::new();
    let table = b"text,other,label\na,b,x\nc,d,y\n";
    let error = |change: fn(&mut ClsDataSettings)| {
        bench.load("t.csv", table, change).unwrap_err().to_string()
    };
    type Case = (fn(&mut ClsDataSettings), &'static [&'static str]);
    let cases: [Case; 8] = [
        (
            |s| s.source.table.text_column = Some("txt".into()),
            &[
                "no column \"txt\"",
                "text, other, label",
                "--text_column_name",
            ],
        ),
        (
            |s| s.text_pair_column = Some("pair".into()),
            &["no column \"pair\"", "--text_pair_column_name"],
        ),
        (
            |s| s.label_column = Some("class".into()),
            &["no column \"class\"", "--label_column_name"],
        ),
        (
            |s| s.labels = LabelMap::new(vec!["x".into(), "z".into()]).ok(),
            &["t.csv:3: label \"y\" is not among the labels: x, z"],
        ),
        (
            |s| s.max_seq_length = Some(2),
            &["--max_seq_length 2 leaves no room", "2 special tokens"],
        ),
        (
            |s| {
                s.text_pair_column = Some("other".into());
                s.max_seq_length = Some(3);
            },
            &["--max_seq_length 3 leaves no room", "3 special tokens"],
        ),
        (
            |s| s.source.train_files.clear(),
            &["no train file", "--train_file"],
        ),
        (|s| s.source.table.quoting = Some(Quoting::None), &[]),
    ];
    for (change, parts) in &cases[..7] {
        let error = error(*change);
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{parts:?} in {error}"
        );
    }
    assert!(bench.load("t.csv", table, cases[7].0).is_ok());
    let many: String = "text,label\n".to_string()
        + &(0..10_001)
            .map(|i| format!("a,id{i}\n"))
            .collect::<String>();
    let error = bench
        .load("ids.csv", many.as_bytes(), as_it_is)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("more than 10000 different values") && error.contains("--label_column_name"),
        "{error}"
    );
}

#[test]
fn tokenizers_that_do_not_fit_are_told() {
    let bench = Bench::new();
    let (labels, examples) = bench
        .load("t.csv", b"text,label\na,x\nbb,y\n", as_it_is)
        .unwrap();
    let plain = train_byte_bpe(&[""], 257).unwrap();
    let cls = settings(bench.dir.path(), &[]);
    let error = collator(&cls, &plain, Some(&labels), 16, examples.clone())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no pad token") && error.contains("tokenizer_config.json"),
        "{error}"
    );
    assert!(
        collator(
            &cls,
            &plain.with_pad_token("<|endoftext|>").unwrap(),
            Some(&labels),
            16,
            examples.clone()
        )
        .is_ok()
    );
    assert!(
        plain
            .with_pad_token("<nix>")
            .unwrap_err()
            .to_string()
            .contains("no token \"<nix>\"")
    );
    let mut mlm = MlmDataSettings {
        source: SourceSettings::default(),
        max_seq_length: None,
        line_by_line: true,
        mlm_probability: 0.15,
        whole_word_mask: false,
        padding: PaddingSettings::default(),
    };
    let error = collator(&mlm, &plain, None, 16, examples.clone())
        .unwrap_err()
        .to_string();
    assert!(error.contains("no mask token"), "{error}");
    mlm.mlm_probability = f64::NAN;
    let error = collator(&mlm, &bench.tokenizer, None, 16, examples)
        .unwrap_err()
        .to_string();
    assert!(error.contains("--mlm_probability NaN"), "{error}");
    assert!(
        bench
            .tokenizer
            .check_vocab(20)
            .unwrap_err()
            .to_string()
            .contains("the model's vocabulary has 20")
    );
}

#[test]
fn bad_rows_are_left_out_and_counted_where_that_was_asked_for() {
    let bench = Bench::new();
    let table = b"text,label\na,x\n,x\nb\n\xff,x\n\"c\" d,x\ne,nan\nf,y\n";
    let (labels, examples) = bench
        .load("t.csv", table, |s| {
            s.source.table.on_bad_row = OnBadRow::Skip
        })
        .unwrap();
    assert_eq!(
        (labels.names(), examples.len(), examples.skipped()),
        (&["x".to_string(), "y".to_string()][..], 2, 5)
    );
    let lines = b"{\"text\": \"a\", \"label\": 1}\n{\n{\"text\": 1, \"label\": 1}\n{\"text\": \"b\", \"label\": 0}\n";
    let (_, examples) = bench
        .load("t.jsonl", lines, |s| {
            s.source.table.on_bad_row = OnBadRow::Skip
        })
        .unwrap();
    assert_eq!((examples.len(), examples.skipped()), (2, 2));
    // Whole files cannot be skipped.
    let error = bench
        .load("u.csv", b"text,label\na,x\n\"b,y\n", |s| {
            s.source.table.on_bad_row = OnBadRow::Skip
        })
        .unwrap_err();
    assert!(error.to_string().contains("u.csv:3: the quote"));
    let settings = TableSettings {
        on_bad_row: OnBadRow::Skip,
        ..TableSettings::default()
    };
    let path = bench.file("lines.txt", b"one\n\xff\nthree");
    assert_eq!(bench.lines(vec![path], settings).unwrap(), ["one", "three"]);
}

#[test]
fn what_only_looks_bad_is_read() {
    let bench = Bench::new();
    let good: Vec<(&str, Vec<u8>)> = vec![
        ("mixed.csv", b"text,label\r\na,x\rb,y\n\r\n\nc,x".to_vec()),
        ("bom.csv", "\u{feff}text,label\na,x\nb,y\nc,x\n".into()),
        ("all.csv", b"\"text\",\"label\"\n\"a\",\"x\"\n\"b\",\"y\"\n\"c\",\"x\"\n".to_vec()),
        ("bom.jsonl", "\u{feff}{\"text\": \"a\", \"label\": \"x\"}\r\n\r\n{\"text\": \"b\", \"label\": \"y\"}\n{\"label\": \"x\", \"text\": \"c\"}".into()),
        ("array.json", b" [ {\"text\": \"a\", \"label\": \"x\"},\n{\"text\": \"b\", \"label\": \"y\"} , {\"text\": \"c\", \"label\": \"x\"}]\n".to_vec()),
        ("plain.csv.gz", gzip(b"text,label\na,x\nb,y\nc,x\n")),
        ("quotes.tsv", b"sentence\tlabel\na\tx\nb\ty\nc\tx\n".to_vec()),
        (
            "t.parquet",
            parquet(&[("text", Column::Text(vec!["a", "b", "c"])), ("label", Column::Text(vec!["x", "y", "x"]))], None),
        ),
    ];
    for (name, bytes) in good {
        let (labels, examples) = bench.load(name, &bytes, as_it_is).unwrap();
        assert_eq!(labels.names(), ["x", "y"], "{name}");
        let found: Vec<_> = (0..examples.len())
            .map(|i| examples.row(i).unwrap())
            .map(|e| (e.ids[1], e.label.unwrap().as_class()))
            .collect();
        assert_eq!(found, [(5, 0), (7, 1), (9, 0)], "{name}");
    }
}

#[test]
fn quoting_variants_give_the_text_that_was_meant() {
    let bench = Bench::new();
    let read = |bytes: &[u8], quoting: Option<Quoting>| -> Vec<String> {
        let path = bench.file("q.csv", bytes);
        let table = TableSettings {
            quoting,
            ..TableSettings::default()
        };
        bench.lines(vec![path], table).unwrap()
    };
    let standard = b"text,n\n\"a, \"\"b\"\"\r\nc\",1\nd\"e,3\n";
    assert_eq!(read(standard, None), ["a, \"b\"\r\nc", "d\"e"]);
    let backslash = b"\"text\",\"n\"\n\"say \\\"a\\\", \\\\ and \"\"b\"\"\",\"1\"\nx\\,y,2\n";
    assert_eq!(
        read(backslash, Some(Quoting::Backslash)),
        ["say \"a\", \\ and \"b\"", "x,y"]
    );
    assert_eq!(
        read(b"text,n\n\"a\",1\n\"b,2\n", Some(Quoting::None)),
        ["\"a\"", "\"b"]
    );
    assert_eq!(read(b"text,n\n\"C:\\\",1\n", None), ["C:\\"]);
    let path = bench.file("q.tsv", b"text\tn\n\"a\t1\n");
    let plain = TableSettings {
        quoting: Some(Quoting::None),
        ..TableSettings::default()
    };
    assert_eq!(bench.lines(vec![path], plain).unwrap(), ["\"a"]);
    assert_eq!(
        bench.texts("one.csv", b"anything\n\"a\"\nb\n").unwrap(),
        ["a", "b"]
    );
}

/// run_glue goes by the column's type, not by its values.
#[test]
fn labels_of_floating_point_are_numbers() {
    let bench = Bench::new();
    let whole = Column::Fractions(vec![1.0, 0.0]);
    let files: [(&str, Vec<u8>); 3] = [
        ("floats.csv", b"text,label\na,1.0\nb,0\n".to_vec()),
        (
            "floats.jsonl",
            b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 0.0}\n".to_vec(),
        ),
        (
            "floats.parquet",
            parquet(
                &[("text", Column::Text(vec!["a", "b"])), ("label", whole)],
                None,
            ),
        ),
    ];
    for (name, bytes) in files {
        let (labels, rows) = bench.load(name, &bytes, as_it_is).unwrap();
        assert!(labels.are_numbers(), "{name}");
        let first = rows.row(0).unwrap().label.unwrap();
        assert_eq!(first.as_number(), 1.0, "{name}");
        let classes = |settings: &mut ClsDataSettings| settings.finds_regression = false;
        let (labels, _) = bench.load(name, &bytes, classes).unwrap();
        assert_eq!(labels.names(), ["0", "1"], "{name}");
    }
    let truths = b"text,label\na,True\nb,false\n";
    let (labels, _) = bench.load("truths.csv", truths, as_it_is).unwrap();
    assert_eq!(labels.names(), ["False", "True"]);
    let texts = b"{\"text\": \"a\", \"label\": \"0.5\"}\n";
    let (labels, _) = bench.load("texts.jsonl", texts, as_it_is).unwrap();
    assert_eq!(labels.names(), ["0.5"]);
}

#[test]
fn classes_that_a_parquet_file_names_keep_their_order() {
    let bench = Bench::new();
    let features =
        r#"{"info": {"features": {"label": {"names": ["pos", "neg"], "_type": "ClassLabel"}}}}"#;
    let bytes = parquet(
        &[
            ("text", Column::Text(vec!["a", "b"])),
            ("label", Column::Whole(vec![1, 0])),
        ],
        Some(features),
    );
    let (labels, examples) = bench.load("t.parquet", &bytes, as_it_is).unwrap();
    assert_eq!(
        (labels.names(), examples.row(0).unwrap().label),
        (
            &["pos".to_string(), "neg".to_string()][..],
            Some(Label::class(1))
        )
    );
    // Files of the same set that have the numbers alone go with it, whichever comes first.
    let more = bench.file("more.csv", b"text,label\nc,0\nd,1\n");
    let mut mixed = settings(
        bench.dir.path(),
        &[bench.dir.path().join("t.parquet"), more],
    );
    for (names, wanted) in [(["pos", "neg"], [1, 0, 0, 1]), (["0", "1"], [0, 1, 1, 0])] {
        let (labels, examples) = load(&mixed, &bench.tokenizer).unwrap();
        assert_eq!(labels.names(), names);
        assert_eq!(
            (0..4)
                .map(|i| examples.row(i).unwrap().label.unwrap().as_class())
                .collect::<Vec<_>>(),
            wanted
        );
        mixed.labels = LabelMap::new(vec!["0".into(), "1".into()]).ok();
        mixed.source.train_files.reverse();
    }
    // -1 is how such a file says that a row has no label.
    let bytes = parquet(
        &[
            ("text", Column::Text(vec!["a"])),
            ("label", Column::Whole(vec![-1])),
        ],
        Some(features),
    );
    let error = bench
        .load("u.parquet", &bytes, as_it_is)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("row 0 of row group 0: column \"label\": the label is missing"),
        "{error}"
    );
    let mut settings = settings(bench.dir.path(), &[]);
    settings.source.test_files = vec![bench.dir.path().join("u.parquet")];
    let examples =
        super::test_support::examples(&settings, Split::Test, &bench.tokenizer, Some(&labels), 16)
            .unwrap();
    assert_eq!((examples.len(), has_labels(&examples)), (1, false));
}
