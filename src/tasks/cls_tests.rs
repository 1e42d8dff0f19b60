//! Splits, lengths, pairs and what is kept on disk.

use super::*;
use crate::bad_inputs::{Column, letters, load, parquet, settings};
use crate::test_support::{collator, context, examples, has_labels, labels};
use crate::{RunLabels, Split};
use std::fs;
use std::path::PathBuf;
use xtrain_data::rows::Origin;
use xtrain_data::{Position, Rows};

fn rows(dir: &Path, name: &str, count: usize) -> PathBuf {
    let path = dir.join(name);
    let letter = |i: usize| char::from(b'a' + (i % 26) as u8);
    let rows: String = (0..count)
        .map(|i| {
            format!(
                "{}{},{}\n",
                letter(i / 26),
                letter(i),
                if i % 3 == 0 { "x" } else { "y" }
            )
        })
        .collect();
    fs::write(&path, format!("text,label\n{rows}")).unwrap();
    path
}

fn ids(examples: &Rows) -> Vec<Vec<u32>> {
    (0..examples.len())
        .map(|i| examples.row(i).unwrap().ids.to_vec())
        .collect()
}

#[test]
fn a_seeded_share_of_the_training_rows_validates_without_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let mut settings = settings(dir.path(), &[rows(dir.path(), "t.csv", 200)]);
    settings.source.validation_split_percentage = 10.0;
    let labels = labels(&settings).unwrap();
    let split = |settings: &ClsDataSettings, split| {
        ids(&examples(settings, split, &tokenizer, Some(&labels), 16).unwrap())
    };
    let (train, validation) = (
        split(&settings, Split::Train),
        split(&settings, Split::Validation),
    );
    assert_eq!((train.len(), validation.len()), (180, 20));
    let mut all = [train, validation.clone()].concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 200, "each row is in one of the two");
    // Not simply the first rows, and another choice with another seed.
    let whole = {
        let mut s = settings.clone();
        s.source.validation_split_percentage = 0.0;
        split(&s, Split::Train)
    };
    assert_ne!(validation, whole[..20]);
    settings.source.seed += 1;
    assert_ne!(split(&settings, Split::Validation), validation);
    settings.source.max_eval_samples = Some(7);
    settings.source.max_train_samples = Some(9);
    assert_eq!(
        (
            split(&settings, Split::Validation).len(),
            split(&settings, Split::Train).len()
        ),
        (7, 9)
    );
}

#[test]
fn sets_are_kept_on_disk_until_something_that_matters_changes() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let mut settings = settings(dir.path(), &[rows(dir.path(), "t.csv", 30)]);
    let origin =
        |settings: &ClsDataSettings| load(settings, &tokenizer).unwrap().1.origin().clone();
    assert_eq!(origin(&settings), Origin::Tokenized);
    assert_eq!(origin(&settings), Origin::Cached);
    settings.padding.pad_to_max_length = true;
    settings.source.preprocessing_num_workers = Some(3);
    assert_eq!(
        origin(&settings),
        Origin::Cached,
        "neither padding nor threads decide the ids"
    );
    settings.max_seq_length = Some(3 + 2);
    assert_eq!(origin(&settings), Origin::Tokenized);
    settings.labels = LabelMap::new(vec!["y".into(), "x".into()]).ok();
    assert_eq!(origin(&settings), Origin::Tokenized);
    let file = fs::read_dir(dir.path().join("cache"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let origins: Vec<Origin> = [5, 16]
        .into_iter()
        .map(|length| {
            settings.max_seq_length = Some(length);
            origin(&settings)
        })
        .collect();
    assert!(
        origins
            .iter()
            .filter(|origin| matches!(origin, Origin::Remade(_)))
            .count()
            <= 1
    );
    settings.source.overwrite_cache = true;
    assert_eq!(origin(&settings), Origin::Tokenized);
}

#[test]
fn pairs_are_cut_longest_first_and_carry_their_segments() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let path = dir.path().join("p.csv");
    fs::write(
        &path,
        "premise,hypothesis,label\na b c d e f,x y,0\na,b,1\n",
    )
    .unwrap();
    let mut settings = settings(dir.path(), &[path]);
    settings.max_seq_length = Some(9);
    settings.padding.pad_to_bucket = vec![6];
    let (labels, examples) = load(&settings, &tokenizer).unwrap();
    assert_eq!(labels.names(), ["0", "1"]);
    let collator = collator(&settings, &tokenizer, Some(&labels), 9, examples).unwrap();
    assert_eq!(collator.lengths(), [6, 9]);
    let batch = collator.batch(&[0, 1], 2, Position::default()).unwrap();
    let [a, b, c, d] = [5, 7, 9, 11];
    let [x, y] = [5 + 2 * 23, 5 + 2 * 24];
    assert_eq!(
        batch.input_ids,
        ndarray::arr2(&[[2, a, b, c, d, 3, x, y, 3], [2, a, 3, b, 3, 0, 0, 0, 0]])
    );
    assert_eq!(
        batch.token_type_ids,
        Some(ndarray::arr2(&[
            [0, 0, 0, 0, 0, 0, 1, 1, 1],
            [0, 0, 0, 1, 1, 0, 0, 0, 0]
        ]))
    );
    assert_eq!(batch.labels, HostLabels::Classes(ndarray::arr1(&[0, 1])));
    assert_eq!(
        collator
            .batch(&[1], 1, Position::default())
            .unwrap()
            .input_ids
            .ncols(),
        6
    );
    // Named alone, a text column is a single text.
    settings.source.table.text_column = Some("hypothesis".into());
    let (_, examples) = load(&settings, &tokenizer).unwrap();
    assert_eq!(
        ids(&examples),
        [vec![2, x as u32, y as u32, 3], vec![2, b as u32, 3]]
    );
    assert!(
        !super::super::test_support::collator(&settings, &tokenizer, Some(&labels), 9, examples)
            .unwrap()
            .has_token_type_ids()
    );
}

#[test]
fn fractions_are_numbers_to_be_estimated() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let csv = dir.path().join("t.csv");
    fs::write(&csv, "text,label\na,0.5\nb, -3\nc,1e2\n").unwrap();
    let lines = dir.path().join("t.jsonl");
    fs::write(
        &lines,
        "{\"text\": \"d\", \"label\": 2.25}\n{\"text\": \"e\", \"label\": 4}\n",
    )
    .unwrap();
    let columns = [
        ("text", Column::Text(vec!["f", "g"])),
        ("label", Column::Fractions(vec![0.125, 7.0])),
    ];
    let table = dir.path().join("t.parquet");
    fs::write(&table, parquet(&columns, None)).unwrap();
    let mut settings = settings(dir.path(), &[csv.clone(), lines, table]);
    let (labels, examples) = load(&settings, &tokenizer).unwrap();
    assert!(labels.are_numbers());
    let collator = collator(&settings, &tokenizer, Some(&labels), 16, examples).unwrap();
    let batch = collator
        .batch(&[0, 1, 2, 3, 4, 5, 6], 8, Position::default())
        .unwrap();
    let wanted = [0.5, -3.0, 100.0, 2.25, 4.0, 0.125, 7.0, IGNORED_NUMBER];
    assert_eq!(
        (batch.labels, batch.targets),
        (HostLabels::Numbers(ndarray::arr1(&wanted)), 7)
    );

    // More different ones than there can be classes.
    let many: String = (0..10_100)
        .map(|i| format!("a,{}\n", f64::from(i) / 8.0))
        .collect();
    fs::write(&csv, format!("text,label\n{many}")).unwrap();
    assert!(settings.of_data().unwrap().are_numbers());

    // Whole numbers are classes, unless they are said to be numbers.
    settings.source.train_files.truncate(1);
    fs::write(&csv, "text,label\na,1\nb,2\n").unwrap();
    assert_eq!(settings.of_data().unwrap().names(), ["1", "2"]);
    settings.labels = Some(LabelMap::numbers());
    let (labels, examples) = load(&settings, &tokenizer).unwrap();
    assert_eq!(
        (labels.are_numbers(), examples.row(1).unwrap().label),
        (true, Label::number(2.0))
    );

    fs::write(&csv, "text,label\na,1\nb,two\n").unwrap();
    let message = |settings: &ClsDataSettings| load(settings, &tokenizer).unwrap_err().to_string();
    assert!(
        message(&settings).contains("t.csv:3: label \"two\" is not a finite number"),
        "{}",
        message(&settings)
    );
    fs::write(&csv, "text,label\na,1\nb,1e39\n").unwrap();
    assert!(
        message(&settings).contains("\"1e39\" is not a finite number"),
        "{}",
        message(&settings)
    );
    (settings.labels, settings.finds_regression) = (None, false);
    fs::write(&csv, "text,label\na,0.5\nb,0.25\n").unwrap();
    assert!(
        message(&settings).contains("they are fractions, no classes"),
        "{}",
        message(&settings)
    );
}

#[test]
fn a_test_set_needs_no_labels_but_wrong_ones_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let mut settings = settings(dir.path(), &[rows(dir.path(), "t.csv", 10)]);
    let labels = labels(&settings).unwrap();
    let mut test = |content: &str| {
        let path = dir.path().join("test.tsv");
        fs::write(&path, content).unwrap();
        settings.source.test_files = vec![path];
        examples(&settings, Split::Test, &tokenizer, Some(&labels), 16)
    };
    assert!(!has_labels(&test("index\tsentence\n0\ta\n1\tb\n").unwrap()));
    assert!(has_labels(&test("sentence\tlabel\na\tx\nb\ty\n").unwrap()));
    assert!(!has_labels(&test("sentence\tlabel\na\t-1\nb\t\n").unwrap()));
    assert!(
        test("sentence\tlabel\na\tz\n")
            .unwrap_err()
            .to_string()
            .contains("test.tsv:2: label \"z\"")
    );
}

#[test]
fn a_line_has_the_likeliest_label_and_a_score_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let settings = settings(dir.path(), &[rows(dir.path(), "t.csv", 2)]);
    let labels = LabelMap::new(vec!["no".to_string(), "yes, really".to_string()]).unwrap();
    let numbers = LabelMap::numbers();
    let sample = |index: u64, texts: &[&str]| Sample {
        index,
        texts: texts.iter().map(|text| text.to_string()).collect(),
        labels: vec![None],
        ..Sample::default()
    };
    let samples = [sample(0, &["a \"b\", c"]), sample(4, &["d", "e"])];
    let table = |labels: &LabelMap, outputs: &[Vec<f32>], include_text: bool| {
        settings.predictions(&Predicted {
            context: &context(&settings, &tokenizer, 16, Some(labels)),
            samples: &samples,
            outputs,
            include_text,
        })
    };
    let logits = [vec![0.0, 0.0], vec![-1.0, 1.0]];
    assert_eq!(
        table(&labels, &logits, true),
        "index,text,text_pair,prediction,score_no,\"score_yes, really\"\n0,\"a \"\"b\"\", c\",,no,0.500000,0.500000\n\
         4,d,e,\"yes, really\",0.119203,0.880797\n"
    );
    assert_eq!(
        table(&numbers, &[vec![0.25], vec![-3.5]], false),
        "index,prediction\n0,0.25\n4,-3.5\n"
    );
    assert!(table(&labels, &logits, false).ends_with("4,\"yes, really\",0.119203,0.880797\n"));
}

/// What torch's loss passes over is no class, and no row of a classifier is without one.
#[test]
fn the_label_of_what_has_none_is_refused_but_for_predictions() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = letters(dir.path());
    let path = dir.path().join("t.csv");
    fs::write(&path, "text,label\na,0\nb,-100\nc,1\n").unwrap();
    let mut task = settings(dir.path(), std::slice::from_ref(&path));
    let message = labels(&task).unwrap_err().to_string();
    assert!(
        message.contains("t.csv:3") && message.contains("label -100") && message.contains("skip"),
        "{message}"
    );
    // Of labels that others named too.
    task.labels = Some(LabelMap::new(vec!["0".into(), "1".into()]).unwrap());
    let named = labels(&task).unwrap();
    let message = examples(&task, Split::Train, &tokenizer, Some(&named), 8);
    let message = message.unwrap_err().to_string();
    assert!(message.contains("t.csv:3: label -100"), "{message}");
    task.labels = None;
    task.source.table.on_bad_row = xtrain_data::settings::OnBadRow::Skip;
    let left = labels(&task).unwrap();
    assert_eq!(left.names(), ["0", "1"]);
    let found = examples(&task, Split::Train, &tokenizer, Some(&left), 8).unwrap();
    assert_eq!((found.len(), found.skipped()), (2, 1));
    task.source.table.on_bad_row = Default::default();
    task.source.test_files = vec![path.clone()];
    assert_eq!(
        examples(&task, Split::Test, &tokenizer, Some(&left), 8)
            .unwrap()
            .len(),
        3
    );
    // A number that is to be estimated may be any.
    fs::write(&path, "text,label\na,0.5\nb,-100\nc,1\n").unwrap();
    assert!(labels(&task).unwrap().are_numbers());
}

/// `evaluate.load("glue", "mrpc")`: scikit-learn's f1_score of two classes; the mean of both as run_glue
/// adds it.
#[test]
fn glue_has_metrics_of_its_own() {
    let labels = LabelMap::new(vec!["no".into(), "yes".into()]).unwrap();
    let values = |metrics: Option<&'static [&'static str]>| {
        let glue = metrics.map(|metrics| Glue {
            name: "mrpc",
            metrics,
            classes: &["not_equivalent", "equivalent"],
        });
        let mut classes = Classes::new(&labels, glue);
        let truth = HostLabels::Classes(ndarray::array![1, 1, 0, 1]);
        classes.add(&[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0], &truth, 4);
        move |name: &str| {
            let found = classes.values(0.0);
            let found = found.into_iter().find(|(found, _)| found == name);
            found.map(|(_, value)| value)
        }
    };
    let mrpc = values(Some(&["accuracy", "f1"]));
    let close = |found: Option<f64>, wanted: f64| assert!((found.unwrap() - wanted).abs() < 1e-12);
    close(mrpc("accuracy"), 0.5);
    close(mrpc("f1"), 2.0 / 3.0);
    close(mrpc("combined_score"), (0.5 + 2.0 / 3.0) / 2.0);
    let plain = values(None);
    close(plain("f1"), 1.0 / 3.0);
    assert_eq!(plain("combined_score"), None);
    assert_eq!(values(Some(&["accuracy"]))("combined_score"), None);
}

/// GLUE's qqp has empty questions, which run_glue trains on.
#[test]
fn empty_texts_are_rows_where_the_tokenizer_surrounds_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(
        &path,
        "{\"question1\": \"a\", \"question2\": \"\", \"label\": \"x\"}\n",
    )
    .unwrap();
    let settings = settings(dir.path(), std::slice::from_ref(&path));
    let read = |path: &Path, surrounds: bool| {
        let labels = LabelUse {
            glue: None,
            labels: RunLabels {
                map: LabelMap::new(vec!["x".into(), "y".into()]).unwrap(),
                given: false,
            },
            needed: true,
        };
        let table = columns::open(path, &settings, labels, surrounds, Arc::default());
        table.unwrap().next().unwrap()
    };
    for surrounds in [true, false] {
        assert_eq!(read(&path, surrounds).unwrap().texts, ["a", ""]);
    }
    fs::write(&path, "{\"text\": \"\", \"label\": \"x\"}\n").unwrap();
    assert_eq!(read(&path, true).unwrap().texts, [""]);
    let error = read(&path, false).unwrap_err().to_string();
    assert!(error.contains("no tokens around it"), "{error}");
    // pandas reads an empty field as none.
    let path = dir.path().join("x.csv");
    fs::write(&path, "text,label\n\"\",x\n").unwrap();
    let error = read(&path, true).unwrap_err().to_string();
    assert!(error.contains("is missing: empty"), "{error}");
}
