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

/// The one entry in the bucket.
fn entry(store: &TestStore, ending: &str) -> String {
    let names = store.names();
    let mut entries = names.iter().filter(|name| name.ends_with(ending));
    let found = entries
        .next()
        .unwrap_or_else(|| panic!("{names:?}"))
        .clone();
    assert!(found.starts_with("/fleet/xtrain/graphs/"), "{found}");
    found
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
    entry(&store, ".graph");
    assert_eq!(
        store.names().len(),
        1,
        "claims are removed: {:?}",
        store.names()
    );
    for more in [&[][..], &["--cache_remote_write"]] {
        let run = shared(&store, None, more);
        assert_eq!((run.loaded, run.compiled), (1, 0), "{}", run.stderr);
        assert_eq!(run.loss, writing.loss);
        assert!(warnings(&run.stderr).is_empty(), "{}", run.stderr);
    }
}

/// Hosts that start together, each with an empty cache of its own.
#[test]
fn hosts_that_start_together_compile_a_graph_once() {
    let store = TestStore::start();
    let runs: Vec<Bench> = std::thread::scope(|scope| {
        let host = || shared(&store, Some(KEY), &["--cache_remote_write"]);
        let hosts: Vec<_> = (0..4).map(|_| scope.spawn(host)).collect();
        hosts.into_iter().map(|host| host.join().unwrap()).collect()
    });
    let compiled: u64 = runs.iter().map(|run| run.compiled).sum();
    let loaded: u64 = runs.iter().map(|run| run.loaded).sum();
    assert_eq!((compiled, loaded), (1, 3));
    assert!(runs.iter().all(|run| run.loss == runs[0].loss));
    entry(&store, ".signed");
    assert_eq!(store.names().len(), 1, "{:?}", store.names());
}

/// Nothing that such a store holds or does is loaded or stops a run; each costs a line.
#[test]
fn a_store_that_is_hostile_or_down_costs_a_compile_and_a_line() {
    let store = TestStore::start();
    let good = shared(&store, Some(KEY), &["--cache_remote_write"]);
    let signed = entry(&store, ".signed");
    let whole = store.bytes(&signed);
    let refused = |what: &str, key: &str, line: &str| {
        let run = shared(&store, Some(key), &[]);
        assert_eq!((run.loaded, run.compiled), (0, 1), "{what}: {}", run.stderr);
        assert_eq!(run.loss, good.loss, "{what}");
        let warnings = warnings(&run.stderr);
        assert_eq!(warnings.len(), 1, "{what}: {}", run.stderr);
        assert!(warnings[0].contains(line), "{what}: {}", warnings[0]);
    };
    refused(
        "another key",
        "the key of somebody else",
        "its signature is not of this key",
    );
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    store.put(&signed, damaged);
    refused("damaged", KEY, "its signature is not of this key");
    store.put(&signed, whole[85..].to_vec());
    refused("unsigned", KEY, "its signature is not of this key");
    store.put(&signed, b"no entry at all".to_vec());
    refused("junk", KEY, "its signature is not of this key");
    store.put(&signed, whole.clone());
    store.fault(&signed, Fault::Status("403 Forbidden", 100));
    refused("forbidden", KEY, "is not used any more in this run");
    store.fault(&signed, Fault::Status("503 Slow Down", 1000));
    refused("overloaded", KEY, "is not used any more in this run");
    drop(store);
    let place = Place::new();
    let gone = TestStore::start();
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
    let name = entry(&store, ".graph");
    let other = shared(&store, None, &["--cache_remote_write", "--seq", "16"]);
    assert_eq!(other.compiled, 1);
    let names = store.names();
    let second = names.iter().find(|found| **found != name).unwrap();
    store.put(&name, store.bytes(second));
    let run = shared(&store, None, &[]);
    assert_eq!((run.loaded, run.compiled), (0, 1), "{}", run.stderr);
    assert_eq!(run.loss, good.loss);
    let warnings = warnings(&run.stderr);
    assert!(
        warnings.len() == 1 && warnings[0].contains("another key"),
        "{}",
        run.stderr
    );
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
    let hostile = "/fleet/xtrain/graphs/..%2F..%2Fetc.signed";
    store.put(hostile, b"x".to_vec());
    let listed: serde_json::Value = serde_json::from_str(&tool(&place, "cache ls --json")).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), count, "{listed}");
    let other = Place::new();
    assert!(
        tool(&other, "cache pull").contains(&format!("took {count} graphs from s3://fleet/xtrain"))
    );
    assert_eq!(
        files(other.store().dir()).len(),
        files(place.store().dir()).len()
    );
    let id = &place.entries()[0].id;
    assert_eq!(
        fs::read(other.store().path(id)).unwrap(),
        fs::read(place.store().path(id)).unwrap()
    );
    other.command("cache verify").run().succeeded();
}
