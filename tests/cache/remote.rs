//! `--cache_remote`: a cache that others fill. Entries come from there once, and whatever is wrong
//! with it costs a compile and a line.

use super::{Bench, Place, entry_of, files, warnings};
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
        .args(["--cache_remote", "s3://bucket/graphs"])
        .run();
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("--cache_remote") && refused.stderr.contains("s3://"),
        "{}",
        refused.stderr
    );
}
