//! `--cache_remote`: a cache that others fill. Entries come from there once, and whatever is wrong
//! with it costs a compile and a line.

use super::{Bench, Place, entry_of, files, warnings};
use crate::streaming::test_server::{Fault, TestStore};
use crate::support::Command;
use std::fs;
use xtrain::cache::EntryStore;

/// A run with the cache of `place` that also looks in the one of `other`.
#[track_caller]
fn run(place: &Place, other: &Place) -> Bench {
    let mut command = place.bench();
    Bench::of(&command.arg("--cache_remote").arg(other.path("cache")).run())
}

#[test]
fn what_others_compiled_is_copied_and_not_compiled() {
    let (others, place) = (Place::new(), Place::new());
    let compiled = Bench::run(&others);
    let before = files(others.store().dir());
    let first = run(&place, &others);
    assert_eq!((first.loaded, first.compiled), (1, 0), "{}", first.stderr);
    assert_eq!(first.loss, compiled.loss);
    assert!(warnings(&first.stderr).is_empty(), "{}", first.stderr);
    assert_eq!(
        files(others.store().dir()),
        before,
        "the other cache is only read"
    );
    let copy = place.store().path(&entry_of(&place, "train"));
    let original = others.store().path(&entry_of(&others, "train"));
    assert_eq!(fs::read(copy).unwrap(), fs::read(original).unwrap());
    let tool = place.command("cache verify").run();
    tool.succeeded();
    assert!(tool.stdout.contains("2 good, 0 damaged"), "{}", tool.stdout);
    // From now on the copy is enough, by any name of the other cache.
    fs::remove_dir_all(others.store().dir()).unwrap();
    let second = run(&place, &others);
    assert_eq!((second.loaded, second.compiled), (1, 0));
    let notes = second.stderr.matches("note: --cache_remote: ").count();
    assert_eq!(notes, 1, "{}", second.stderr);
}

#[test]
fn a_damaged_entry_of_others_is_compiled_with_a_warning() {
    let (others, place) = (Place::new(), Place::new());
    let compiled = Bench::run(&others);
    let path = others.store().path(&entry_of(&others, "train"));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let run = run(&place, &others);
    assert_eq!((run.loaded, run.compiled), (0, 1), "{}", run.stderr);
    assert_eq!(run.loss, compiled.loss);
    let warnings = warnings(&run.stderr);
    assert_eq!(warnings.len(), 1, "{}", run.stderr);
    assert!(
        warnings[0].contains(path.to_str().unwrap()),
        "{}",
        warnings[0]
    );
    assert_eq!(
        fs::read(&path).unwrap(),
        bytes,
        "the other cache is only read"
    );
}

#[test]
fn a_store_that_is_not_a_directory_is_refused_before_anything_starts() {
    let place = Place::new();
    let refused = place
        .bench()
        .args(["--cache_remote", "abfs://bucket/graphs"])
        .run();
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("--cache_remote") && refused.stderr.contains("abfs://"),
        "{}",
        refused.stderr
    );
}

const KEY: &str = "a key of the tests";

/// A command that shares graphs with a bucket on the loopback interface.
fn with_bucket<'c>(command: &'c mut Command, store: &TestStore) -> &'c mut Command {
    command
        .args(["--cache_remote", "s3://fleet/xtrain"])
        .env("AWS_ENDPOINT", &store.url)
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "key")
        .env("AWS_REGION", "eu-west-1")
}

/// A run of the tiny model with an empty cache of its own and the bucket.
fn shared(store: &TestStore, key: Option<&str>, more: &[&str]) -> Bench {
    let place = Place::new();
    let mut command = place.bench();
    with_bucket(&mut command, store).args(more);
    if let Some(key) = key {
        command.env("XTRAIN_CACHE_KEY", key);
    }
    Bench::of(&command.run())
}

/// The entries in the bucket, which has nothing else.
#[track_caller]
fn entries(store: &TestStore, ending: &str) -> Vec<String> {
    let names = store.names();
    let is_entry = |name: &String| {
        name.starts_with("/fleet/xtrain/graphs/")
            && name.ends_with(ending)
            && name.len() == 21 + 32 + ending.len()
    };
    assert!(!names.is_empty() && names.iter().all(is_entry), "{names:?}");
    names
}

/// What one host compiles, the others load; a host that only reads writes nothing.
#[test]
fn a_bucket_is_read_and_written_if_asked() {
    let store = TestStore::start();
    let reading = shared(&store, None, &[]);
    assert_eq!(
        (reading.loaded, reading.compiled),
        (0, 1),
        "{}",
        reading.stderr
    );
    assert!(store.names().is_empty());
    let writing = shared(&store, None, &["--cache_remote_write"]);
    assert_eq!(
        (writing.loaded, writing.compiled),
        (0, 1),
        "{}",
        writing.stderr
    );
    let stored = entries(&store, ".graph");
    let run = shared(&store, None, &["--cache_remote_write"]);
    assert_eq!((run.loaded, run.compiled), (1, 0), "{}", run.stderr);
    assert_eq!(run.loss, writing.loss);
    assert!(warnings(&run.stderr).is_empty(), "{}", run.stderr);
    assert_eq!(entries(&store, ".graph"), stored);
}

/// Hosts that start together, each with an empty cache of its own.
#[test]
fn hosts_that_start_together_compile_a_graph_once() {
    let store = TestStore::start();
    let runs: Vec<Bench> = std::thread::scope(|scope| {
        let host = || shared(&store, Some(KEY), &["--cache_remote_write"]);
        let hosts: Vec<_> = (0..3).map(|_| scope.spawn(host)).collect();
        hosts.into_iter().map(|host| host.join().unwrap()).collect()
    });
    let compiled: u64 = runs.iter().map(|run| run.compiled).sum();
    let loaded: u64 = runs.iter().map(|run| run.loaded).sum();
    assert_eq!((compiled, loaded), (1, 2));
    assert!(runs.iter().all(|run| run.loss == runs[0].loss));
    entries(&store, ".signed");
}

/// Nothing that such a store holds or does is loaded or stops a run.
#[test]
fn a_store_that_is_hostile_or_down_costs_a_compile_and_a_line() {
    let store = TestStore::start();
    let good = shared(&store, Some(KEY), &["--cache_remote_write"]);
    let signed: Vec<(String, Vec<u8>)> = entries(&store, ".signed")
        .into_iter()
        .map(|name| (name.clone(), store.bytes(&name)))
        .collect();
    // Puts what `change` makes of each entry in its place.
    let replace = |change: fn(&[u8]) -> Vec<u8>| {
        signed
            .iter()
            .for_each(|(name, bytes)| store.put(name, change(bytes)));
    };
    let refused = |what: &str, key: &str, most: usize, line: &str| {
        let run = shared(&store, Some(key), &[]);
        assert_eq!((run.loaded, run.compiled), (0, 1), "{what}: {}", run.stderr);
        assert_eq!(run.loss, good.loss, "{what}");
        let warnings = warnings(&run.stderr);
        assert!(
            (1..=most).contains(&warnings.len()),
            "{what}: {}",
            run.stderr
        );
        assert!(
            warnings.iter().all(|warning| warning.contains(line)),
            "{what}: {}",
            run.stderr
        );
    };
    let (each, wrong) = (signed.len(), "its signature is not of this key");
    refused("another key", "the key of somebody else", each, wrong);
    replace(|bytes| [&bytes[..bytes.len() - 1], &[bytes[bytes.len() - 1] ^ 1]].concat());
    refused("damaged", KEY, each, wrong);
    // What a host without a key would take.
    replace(|bytes| bytes["xtrain signed entry ".len() + 64 + 1..].to_vec());
    refused("unsigned", KEY, each, wrong);
    replace(|bytes| bytes.to_vec());
    for (what, status) in [
        ("forbidden", "403 Forbidden"),
        ("overloaded", "503 Slow Down"),
    ] {
        for (name, _) in &signed {
            store.fault(name, Fault::Status(status, 1000));
        }
        refused(what, KEY, 1, "is not used any more in this run");
    }
    let gone = TestStore::start();
    let place = Place::new();
    let mut command = place.bench();
    with_bucket(&mut command, &gone).env("XTRAIN_CACHE_KEY", KEY);
    drop(gone);
    let run = Bench::of(&command.run());
    assert_eq!((run.loaded, run.compiled), (0, 1), "{}", run.stderr);
    assert_eq!(warnings(&run.stderr).len(), 1, "{}", run.stderr);
}

/// An entry of another graph under this one's name, as whoever can write without a key could put.
#[test]
fn an_entry_under_a_wrong_name_is_not_loaded() {
    let store = TestStore::start();
    let good = shared(&store, None, &["--cache_remote_write"]);
    let first = entries(&store, ".graph");
    let bytes: Vec<Vec<u8>> = first.iter().map(|name| store.bytes(name)).collect();
    assert!(first.len() > 1, "{first:?}");
    for (name, bytes) in first.iter().zip(bytes.iter().skip(1).chain(&bytes[..1])) {
        store.put(name, bytes.clone());
    }
    let run = shared(&store, None, &[]);
    assert_eq!((run.loaded, run.compiled), (0, 1), "{}", run.stderr);
    assert_eq!(run.loss, good.loss);
    let warnings = warnings(&run.stderr);
    let named = warnings
        .iter()
        .filter(|warning| warning.contains("another key"));
    assert_eq!(named.count(), first.len(), "{}", run.stderr);
}

/// `cache push`, `pull` and `ls` with a bucket; names that are no entry's are passed over.
#[test]
fn graphs_are_pushed_listed_and_pulled() {
    let (store, place) = (TestStore::start(), Place::new());
    Bench::run(&place);
    let count = place.entries().len();
    let tool = |place: &Place, words: &str| {
        let mut command = place.command(words);
        let run = with_bucket(&mut command, &store)
            .env("XTRAIN_CACHE_KEY", KEY)
            .run();
        run.succeeded();
        run.stdout
    };
    let pushed = tool(&place, "cache push");
    assert!(
        pushed.contains(&format!(
            "stored {count} graphs in s3://fleet/xtrain; 0 were there"
        )),
        "{pushed}"
    );
    assert!(tool(&place, "cache push").contains(&format!(
        "stored 0 graphs in s3://fleet/xtrain; {count} were there"
    )));
    store.put("/fleet/xtrain/graphs/..%2F..%2Fetc.signed", b"x".to_vec());
    let listed: serde_json::Value = serde_json::from_str(&tool(&place, "cache ls --json")).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), count, "{listed}");
    let other = Place::new();
    assert!(
        tool(&other, "cache pull").contains(&format!("took {count} graphs from s3://fleet/xtrain"))
    );
    let graphs = |place: &Place| -> Vec<String> {
        let names = files(place.store().dir()).into_iter();
        names.filter(|name| name.ends_with(".graph")).collect()
    };
    assert_eq!(graphs(&other), graphs(&place));
    for name in graphs(&place) {
        let [one, copy] =
            [&place, &other].map(|place| fs::read(place.store().dir().join(&name)).unwrap());
        assert!(one == copy, "{name}");
    }
    other.command("cache verify").run().succeeded();
}
