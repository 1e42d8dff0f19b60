//! The architecture as a test, beside what Cargo holds: the crates in the order in which `src/lib.rs`
//! lists them, files that import in one direction, and what a layer must not know.

mod imports;

use imports::Crate;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates of the folders of `src` from the top down, as `src/lib.rs` lists them.
fn layers() -> Vec<String> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    lib.lines()
        .filter_map(|line| line.strip_prefix("pub use xtrain_")?.split_once(" as "))
        .map(|(room, _)| room.to_string())
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    files_of(dir, "rs")
}

/// The files below a folder whose names end so, without what was built there.
fn files_of(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            files.extend(files_of(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            files.push(path);
        }
    }
    files
}

/// A crate uses only what its manifest names (an import of another does not compile), and manifests
/// name only what `src/lib.rs` lists below: not for tests either. What stands below all of them uses
/// none of them.
#[test]
fn crates_depend_on_those_below() {
    let layers = layers();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let level = |name: &str| {
        let room = name.strip_prefix("xtrain-")?;
        layers.iter().position(|layer| layer == room)
    };
    let mut seen = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let from = level(name);
        seen.extend(from.map(|_| name.to_string()));
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            let is_below = match (from, level(used)) {
                (_, None) => used != "xtrain",
                (Some(from), Some(to)) => to > from,
                (None, Some(_)) => name == "xtrain",
            };
            assert!(
                is_below,
                "{name} must not use {used}, which stands above it"
            );
        }
    }
    let folders = fs::read_dir(root().join("src")).unwrap();
    let rooms = folders.filter(|folder| folder.as_ref().unwrap().path().is_dir());
    assert_eq!(seen.len(), layers.len(), "{seen:?}");
    assert_eq!(
        rooms.count(),
        layers.len() + 1,
        "jinja is the one below them"
    );
}

/// The rule: a file may import another file of its crate only if that one does not, through any
/// number of others, import it. What counts is the file that defines an item, not the path that it
/// is reached by. A module file that declares its children and re-exports what they have does not
/// import them; one whose own code names them, or that re-exports what is not its child's, does.
/// Tests do not count.
#[test]
fn files_of_a_crate_import_in_one_direction() {
    let rooms = layers().into_iter().map(|room| format!("src/{room}"));
    let below = ["src/jinja/src", "models/src", "xla_graphs/src"].map(String::from);
    let mut seen = 0;
    for src in rooms.chain(below) {
        let sources = Crate::read(&src);
        let circles = sources.circles();
        assert!(
            circles.is_empty(),
            "files that import each other: {circles:#?}"
        );
        seen += sources.imports().values().map(BTreeSet::len).sum::<usize>();
    }
    assert!(
        seen > 500,
        "the test has found {seen} imports: it looks in the wrong place"
    );
}

/// The reader of imports finds what the tests above are about.
#[test]
fn imports_are_found_in_every_form() {
    let uses = "use crate::{a, b::{c, d as e}};\npub use self::child::Item;\nuse super::{super::up, side::*};";
    let found: Vec<String> = imports::paths(uses, &["crate", "room", "file"]);
    assert_eq!(
        found,
        [
            "crate::a",
            "crate::b::c",
            "crate::b::d",
            "crate::room::file::child::Item",
            "crate::up",
            "crate::room::side"
        ]
    );
    let code = "fn f() -> super::Error { child::g(crate::x::Y::z) } // crate::not";
    let found: Vec<String> = imports::paths(code, &["crate", "room", "file"]);
    assert_eq!(
        found,
        [
            "crate::room::Error",
            "crate::room::file::child::g",
            "crate::x::Y::z"
        ]
    );
}

/// The graph layer opens no file, client or thread; models know no device.
#[test]
fn lower_crates_stay_pure() {
    let banned = [
        (
            "xla_graphs/src",
            ["std::fs", "std::thread", "std::net", "std::process"].as_slice(),
        ),
        (
            "models/src",
            ["std::fs", "std::thread", "std::net", "Target"].as_slice(),
        ),
    ];
    for (dir, words) in banned {
        for file in rust_files(&root().join(dir)) {
            let text = fs::read_to_string(&file).unwrap();
            for word in words {
                assert!(!text.contains(word), "{} uses {word}", file.display());
            }
        }
    }
}

/// Families multiply by their matrices in one place: what an adapter or another form of a matrix
/// changes is that file.
#[test]
fn families_multiply_by_matrices_in_one_file() {
    let src = root().join("models/src");
    let multiplies = |file: &PathBuf| fs::read_to_string(file).unwrap().contains(".matmul");
    let found: Vec<PathBuf> = rust_files(&src).into_iter().filter(multiplies).collect();
    assert_eq!(found, [src.join("linear.rs")]);
}

/// What resolves flags names every choice: an arm for the rest would turn a new choice, or a
/// forgotten one, into another.
#[test]
fn no_choice_is_resolved_by_an_arm_for_the_rest() {
    // These read text, and refuse what is left over.
    let readers = [
        "command_line.rs",
        "config_file.rs",
        "error.rs",
        "file_format.rs",
        "foreign.rs",
        "forms.rs",
        "help.rs",
        "instead.rs",
        "kind.rs",
        "lookup.rs",
        "nearest.rs",
        "unexpected.rs",
    ];
    let config = root().join("src/config");
    let resolving = rust_files(&config).into_iter().filter(|file| {
        let is_reader = readers.iter().any(|reader| file.ends_with(reader));
        let is_test = file.to_string_lossy().ends_with("tests.rs");
        file.parent() == Some(&*config) && !is_reader && !is_test
    });
    let resolving: Vec<PathBuf> = resolving.collect();
    assert!(resolving.len() > 10, "{resolving:?}");
    for file in resolving {
        let text = fs::read_to_string(&file).unwrap();
        for pattern in imports::patterns(&imports::tested_code(&text)) {
            assert!(
                !pattern.split('|').any(takes_the_rest),
                "{}: `{pattern} =>`: name what the arm is for",
                file.display()
            );
        }
    }
}

/// Whether a pattern matches whatever the arms before it did not, without a name for it. (One with
/// a name that its arm does not use is the compiler's to refuse.)
fn takes_the_rest(pattern: &str) -> bool {
    let is_ignored = |word: &str| word.is_empty() || word.starts_with('_');
    let mut words = pattern.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    pattern.contains('_') && !pattern.contains('$') && words.all(is_ignored)
}

#[test]
fn arms_for_the_rest_are_found_in_every_form() {
    let code = "match x { A => 1, B { c } if c > 2 => 2, Some(d) => { 3 } (true, e) => 4, _ => 5 }
        match y { \"a\" | \"b\" => 1, 2..=3 => 2, _ if f > 4 => 5, (_, ..) => 6, C | _ => 7, h => h }";
    let code = imports::tested_code(code);
    let patterns = imports::patterns(&code).into_iter();
    let found: Vec<&str> = patterns
        .filter(|pattern| pattern.split('|').any(takes_the_rest))
        .collect();
    assert_eq!(found, ["_", "(_, ..)", "C | _"]);
}

#[test]
fn only_the_native_library_links_xla() {
    let rooms = layers()
        .into_iter()
        .map(|room| format!("src/{room}/Cargo.toml"));
    let others = ["Cargo.toml", "xla_graphs/Cargo.toml", "models/Cargo.toml"].map(String::from);
    for manifest in rooms.chain(others) {
        let text = fs::read_to_string(root().join(&manifest)).unwrap();
        assert!(
            !text
                .lines()
                .any(|line| line.starts_with("xla =") || line.starts_with("xtrain-xla")),
            "{manifest}"
        );
    }
}

/// No file is longer than a reader can keep in mind. Functions are Clippy's to count (clippy.toml).
#[test]
fn no_file_is_long() {
    const LONGEST: usize = 700;
    // Generated; and loops that the compiler has to see as one.
    let others = [
        "src/runtime/pjrt/bindings.rs",
        "xla_graphs/native/cpp/kernels/attention_loops.h",
        "xla_graphs/native/tests/kernels/harness.cc",
        "xla_graphs/native/tests/numerics/kernels.rs",
    ]
    .map(|name| root().join(name));
    let mut files = Vec::new();
    for dir in [
        "bin",
        "examples",
        "fuzz",
        "models",
        "src",
        "tests",
        "xla_graphs",
    ] {
        for ending in ["rs", "cc", "h"] {
            files.extend(files_of(&root().join(dir), ending));
        }
    }
    assert!(files.len() > 500, "{} files: wrong place", files.len());
    for file in files.iter().filter(|file| !others.contains(file)) {
        let lines = fs::read_to_string(file).unwrap().lines().count();
        let name = file.display();
        assert!(
            lines <= LONGEST,
            "{name} has {lines} lines, more than {LONGEST}: divide it by subject"
        );
    }
}

/// The tour of one step and the architecture name files that exist.
#[test]
fn the_tour_names_real_files() {
    for doc in ["README.md", "docs/tour.md", "docs/architecture.md"] {
        let text = fs::read_to_string(root().join(doc)).unwrap();
        let mut found = 0;
        for word in text
            .split(['`', ' ', '(', ')', '\n', '[', ']', ','])
            .filter(|w| w.ends_with(".rs") || w.ends_with(".cc"))
        {
            assert!(
                root().join(word).exists(),
                "{doc} names {word}, which does not exist"
            );
            found += 1;
        }
        assert!(found >= 6, "{doc} has lost its tour");
    }
}

/// Pages that name tests as proofs name tests that there are.
#[test]
fn pages_name_real_tests() {
    let page = fs::read_to_string(root().join("docs/adapters.md")).unwrap();
    let mut found = 0;
    for (module, test) in page.split('`').filter_map(|word| word.split_once("::")) {
        let file = root().join("tests").join(format!("{module}.rs"));
        let text = fs::read_to_string(&file).unwrap_or_default();
        // Behind an attribute: `#[test]`, or `#[ignore]` after it.
        let is_there = text.contains(&format!("]\nfn {test}()"));
        assert!(is_there, "there is no test {module}::{test}");
        found += 1;
    }
    assert!(found >= 10, "the page names {found} tests");
}
