//! Streams of each task: the rows of a prepared set, and positions that resume bit for bit.

#[path = "../../tests/streaming/test_server.rs"]
#[allow(dead_code, reason = "the integration tests use all of it")]
mod test_server;

use super::bad_inputs::letters;
use super::test_support::{context, examples, packed};
use super::*;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use test_server::{Fault, TestStore};
use xtrain_data::Row;
use xtrain_data::settings::{OnBadRow, PaddingSettings, TableSettings};
use xtrain_data::stream::{BUFFER_FILE, Stream, StreamPosition};
use xtrain_data::tokenizer::train_byte_bpe;

const LENGTH: usize = 8;

/// Lines of different lengths, with what needs quotes and escapes in tables, and all three kinds of
/// line break in text.
fn lines(count: usize) -> Vec<String> {
    let words = [
        "alpha",
        "be \"ta\"",
        "gam,ma",
        "d\u{e9}lta",
        "back\\slash",
        "zeta eta theta",
    ];
    (0..count)
        .map(|i| {
            (0..1 + i % 7)
                .map(|j| words[(i * 5 + j) % words.len()])
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

fn tokenizer() -> Tokenizer {
    train_byte_bpe(&lines(200), 300).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The same lines in every format that can be written here, by name.
fn formats(lines: &[String]) -> Vec<(&'static str, Vec<u8>)> {
    let breaks = ["\n", "\r\n", "\r"];
    let text: String = lines
        .iter()
        .enumerate()
        .map(|(i, line)| format!("{line}{}", breaks[i % 3]))
        .collect();
    let csv = |quote: fn(&str) -> String| {
        let rows = lines
            .iter()
            .enumerate()
            .map(|(i, line)| format!("{i},{}{}", quote(line), breaks[i % 3]));
        "id,text\n".to_string() + &rows.collect::<String>()
    };
    let csv = csv(|line| format!("\"{}\"", line.replace('"', "\"\"")));
    let object = |line: &String| serde_json::json!({"text": line}).to_string();
    let objects = lines.iter().map(object).collect::<Vec<_>>();
    vec![
        ("x.txt", text.clone().into_bytes()),
        ("x.txt.gz", gzip(text.as_bytes())),
        ("x.csv", csv.clone().into_bytes()),
        ("y.csv.gz", gzip(csv.as_bytes())),
        ("x.jsonl", objects.join("\n").into_bytes()),
        ("x.json", format!("[{}]", objects.join(",\n")).into_bytes()),
    ]
}

fn source(files: Vec<PathBuf>, dir: &Path) -> SourceSettings {
    SourceSettings {
        train_files: files,
        cache_dir: dir.join("cache"),
        preprocessing_num_workers: Some(2),
        seed: 3,
        ..Default::default()
    }
}

fn clm_task(files: Vec<PathBuf>, dir: &Path) -> ClmDataSettings {
    ClmDataSettings {
        source: source(files, dir),
        block_size: None,
        stride: None,
    }
}

fn clm_rows(task: &ClmDataSettings, length: usize, buffer: usize) -> StreamSpec {
    stream(task, &context(task, &tokenizer(), length, None), buffer).unwrap()
}

fn clm(files: Vec<PathBuf>, dir: &Path, buffer: usize) -> StreamSpec {
    clm_rows(&clm_task(files, dir), LENGTH, buffer)
}

fn take(stream: &mut Stream, rows: usize) -> Vec<Row> {
    (0..rows).map(|_| stream.next_row().unwrap()).collect()
}

/// A position as a resumed run gets it.
fn through_a_checkpoint(stream: &Stream) -> StreamPosition {
    let dir = tempfile::tempdir().unwrap();
    let saved = stream.position().save();
    std::fs::write(dir.path().join(BUFFER_FILE), saved.buffer).unwrap();
    let text = serde_json::to_string(&saved.state).unwrap();
    StreamPosition::load(dir.path(), Some(&serde_json::from_str(&text).unwrap())).unwrap()
}

/// Ids of all rows, sorted: what a pass holds, whatever its order.
fn content(rows: &[Row]) -> Vec<Vec<u32>> {
    let mut ids: Vec<Vec<u32>> = rows.iter().map(|row| row.ids.to_vec()).collect();
    ids.sort();
    ids
}

#[test]
fn a_stream_has_the_rows_of_a_prepared_set_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    // More than two groups, the last one not full.
    for (name, bytes) in formats(&lines(2300)) {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let task = clm_task(vec![path], dir.path());
        let spec = clm_rows(&task, LENGTH, 0);
        let set = packed(&task, Split::Train, &spec.tokenizer, LENGTH).unwrap();
        let wanted: Vec<Vec<u32>> = (0..set.len())
            .map(|row| set.row(row).unwrap().ids.to_vec())
            .collect();
        let found = take(
            &mut Stream::new(Arc::new(spec), None).unwrap(),
            2 * wanted.len(),
        );
        let ids = |rows: &[Row]| rows.iter().map(|row| row.ids.to_vec()).collect::<Vec<_>>();
        assert!(
            ids(&found[..wanted.len()]) == wanted,
            "{name}: the first pass"
        );
        assert!(
            ids(&found[wanted.len()..]) == wanted,
            "{name}: the second pass"
        );
    }
}

#[test]
fn a_stopped_stream_goes_on_with_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let written: Vec<PathBuf> = formats(&lines(1200))
        .into_iter()
        .map(|(name, bytes)| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    // Each format alone, and all of them as one set of several files.
    let mut sets: Vec<Vec<PathBuf>> = written.iter().map(|path| vec![path.clone()]).collect();
    sets.push(written);
    for files in sets {
        for (buffer, most) in [(0, None), (50, None), (50, Some(333)), (5000, None)] {
            let mut task = clm_task(files.clone(), dir.path());
            task.source.max_train_samples = most;
            let spec = Arc::new(clm_rows(&task, LENGTH, buffer));
            let mut whole = Stream::new(spec.clone(), None).unwrap();
            // Past the end of at least one pass of the single files.
            let all = take(&mut whole, 1500);
            let mut stopped = Stream::new(spec.clone(), None).unwrap();
            let mut done = 0;
            for stop in [1, 60, 333, 334, 700, 1100, 1400] {
                assert!(
                    take(&mut stopped, stop - done) == all[done..stop],
                    "{files:?}, buffer {buffer}, to {stop}"
                );
                done = stop;
                stopped = Stream::new(spec.clone(), Some(through_a_checkpoint(&stopped))).unwrap();
            }
            assert!(
                take(&mut stopped, 100) == all[1400..],
                "{files:?}, buffer {buffer}"
            );
        }
    }
}

#[test]
fn each_pass_gives_each_row_once_in_an_order_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.txt");
    std::fs::write(&path, lines(1500).join("\n")).unwrap();
    let task = clm_task(vec![path.clone()], dir.path());
    let plain = clm_rows(&task, LENGTH, 0);
    let rows = packed(&task, Split::Train, &plain.tokenizer, LENGTH)
        .unwrap()
        .len();
    let in_order = take(&mut Stream::new(Arc::new(plain), None).unwrap(), rows);
    for buffer in [1, 100, 10_000] {
        let mut stream =
            Stream::new(Arc::new(clm(vec![path.clone()], dir.path(), buffer)), None).unwrap();
        let (first, second) = (take(&mut stream, rows), take(&mut stream, rows));
        assert_eq!(content(&first), content(&in_order), "buffer {buffer}");
        assert_eq!(content(&second), content(&in_order), "buffer {buffer}");
        // A buffer of one has nothing to choose from.
        assert_eq!(first == in_order, buffer == 1);
        assert_eq!(first == second, buffer == 1);
    }
}

#[test]
fn masked_rows_and_samples_are_those_of_a_prepared_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.csv");
    let rows = lines(700).into_iter().enumerate().map(|(i, line)| {
        let (line, pair) = (
            line.replace('"', "\"\""),
            lines(7)[i % 7].replace('"', "\"\""),
        );
        // Row 400 has a label that is not among them.
        format!(
            "\"{line}\",\"{pair}\",{}\n",
            if i == 400 {
                "maybe"
            } else {
                ["no", "yes"][i % 2]
            }
        )
    });
    std::fs::write(
        &path,
        "sentence1,sentence2,label\n".to_string() + &rows.collect::<String>(),
    )
    .unwrap();
    let mut source = source(vec![path], dir.path());
    source.table = TableSettings {
        on_bad_row: OnBadRow::Skip,
        ..Default::default()
    };
    let labels = LabelMap::new(vec!["no".into(), "yes".into()]).unwrap();
    let data = ClsDataSettings {
        source: source.clone(),
        text_pair_column: None,
        label_column: None,
        max_seq_length: Some(12),
        padding: PaddingSettings::default(),
        labels: Some(labels.clone()),
        finds_regression: true,
        glue: None,
    };
    let tokenizer = letters(dir.path());
    let set = examples(&data, Split::Train, &tokenizer, Some(&labels), 12).unwrap();
    let spec = stream(&data, &context(&data, &tokenizer, 12, Some(&labels)), 0).unwrap();
    assert!(spec.check().unwrap(), "the rows are pairs");
    let mut stream = Stream::new(Arc::new(spec), None).unwrap();
    for (i, row) in take(&mut stream, set.len()).iter().enumerate() {
        let example = set.row(i).unwrap();
        let ids: Vec<u32> = example.ids.to_vec();
        assert_eq!(
            (&row.ids[..], &row.flags[..], row.label),
            (&ids[..], &example.flags[..], example.label)
        );
    }
    assert_eq!(set.len(), 699);
    take(&mut stream, 1);
    assert_eq!(stream.position().skipped(), 1);

    source.table.text_column = Some("sentence1".into());
    for line_by_line in [false, true] {
        let data = MlmDataSettings {
            source: source.clone(),
            max_seq_length: None,
            line_by_line,
            mlm_probability: 0.5,
            whole_word_mask: false,
            padding: PaddingSettings::default(),
        };
        let set = examples(&data, Split::Train, &tokenizer, None, 12).unwrap();
        let spec = super::stream(&data, &context(&data, &tokenizer, 12, None), 0).unwrap();
        for (i, row) in take(&mut Stream::new(Arc::new(spec), None).unwrap(), set.len())
            .iter()
            .enumerate()
        {
            let ids: Vec<u32> = set.row(i).unwrap().ids.to_vec();
            assert_eq!(
                (&row.ids[..], &row.flags[..]),
                (&ids[..], &set.row(i).unwrap().flags[..])
            );
        }
    }
}

#[test]
fn a_file_that_is_another_one_now_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.txt");
    std::fs::write(&path, lines(1500).join("\n")).unwrap();
    let spec = Arc::new(clm(vec![path.clone()], dir.path(), 10));
    let mut stream = Stream::new(spec.clone(), None).unwrap();
    take(&mut stream, 20);
    let position = through_a_checkpoint(&stream);
    let mut text = std::fs::read(&path).unwrap();
    text[3] ^= 1;
    std::fs::write(&path, text).unwrap();
    let error = Stream::new(spec, Some(position)).err().unwrap().to_string();
    assert!(
        error.contains("x.txt is not the file that the checkpoint was saved with"),
        "{error}"
    );
}

#[test]
fn positions_that_are_damaged_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = |state: Option<&Value>| {
        StreamPosition::load(dir.path(), state)
            .unwrap_err()
            .to_string()
    };
    assert!(error(None).contains("did not stream"));
    assert!(error(Some(&serde_json::json!({"cursor": 1}))).contains("cannot be used"));
    let path = dir.path().join("x.txt");
    std::fs::write(&path, lines(1500).join("\n")).unwrap();
    let mut stream = Stream::new(Arc::new(clm(vec![path], dir.path(), 10)), None).unwrap();
    take(&mut stream, 1);
    let saved = stream.position().save();
    assert!(
        error(Some(&saved.state)).contains(BUFFER_FILE),
        "no buffer beside it"
    );
}

#[test]
fn a_set_without_a_whole_row_is_an_error_not_an_endless_search() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.txt");
    std::fs::write(&path, "short\n").unwrap();
    let spec = clm_rows(&clm_task(vec![path], dir.path()), 500, 10);
    let error = Stream::new(Arc::new(spec), None)
        .unwrap()
        .next_row()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("x.txt") && error.contains("no rows"),
        "{error}"
    );
}

#[test]
fn objects_are_read_in_pieces_and_transfers_that_break_off_are_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::start();
    for (name, bytes) in formats(&lines(1200)) {
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        let url = |path: &str| PathBuf::from(format!("{}/{path}", store.url));
        store.put(&format!("/data/{name}"), bytes);
        store.fault(&format!("/data/{name}"), Fault::BreaksOff(2));
        let here = Arc::new(clm(vec![path], dir.path(), 20));
        let there = Arc::new(clm(vec![url(&format!("data/{name}"))], dir.path(), 20));
        let wanted = take(&mut Stream::new(here, None).unwrap(), 900);
        let mut stream = Stream::new(there.clone(), None).unwrap();
        assert!(take(&mut stream, 500) == wanted[..500], "{name}");
        let mut stream = Stream::new(there, Some(through_a_checkpoint(&stream))).unwrap();
        assert!(take(&mut stream, 400) == wanted[500..], "{name}, resumed");
    }
}

/// A set of 96 MB, of which a stream that gives 100 rows has read two pieces of 4 MB at most.
#[test]
fn no_more_is_read_than_is_ahead_of_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let store = TestStore::start();
    let chunk = lines(1000).join("\n") + "\n";
    store.put(
        "/big.txt",
        chunk.repeat((96 << 20) / chunk.len()).into_bytes(),
    );
    let spec = Arc::new(clm(
        vec![format!("{}/big.txt", store.url).into()],
        dir.path(),
        100,
    ));
    let mut stream = Stream::new(spec.clone(), None).unwrap();
    take(&mut stream, 100);
    assert!(store.sent() <= 8 << 20, "{} bytes", store.sent());
    // What a resumed run reads again is the group it was in, not all that came before.
    take(&mut stream, 30_000);
    let (position, before) = (through_a_checkpoint(&stream), store.sent());
    take(&mut Stream::new(spec, Some(position)).unwrap(), 1);
    assert!(
        store.sent() - before <= 12 << 20,
        "{} bytes",
        store.sent() - before
    );
}
