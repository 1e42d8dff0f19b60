//! The architecture as a test: imports point downwards only, and the folders show the layers.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the library from the top down, as `src/lib.rs` lists them.
fn layers() -> Vec<String> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    lib.lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(str::to_string)
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(rust_files(&path)),
            false if path.extension().is_some_and(|e| e == "rs") => files.push(path),
            false => {}
        }
    }
    files
}

#[test]
fn imports_point_downwards() {
    let layers = layers();
    assert!(layers.len() >= 8, "src/lib.rs lists the layers: {layers:?}");
    let mut seen = 0;
    for (level, layer) in layers.iter().enumerate() {
        for file in rust_files(&root().join("src").join(layer)) {
            let text = fs::read_to_string(&file).unwrap();
            for (number, line) in text.lines().enumerate() {
                for rest in line.split("crate::").skip(1) {
                    let name: String = rest
                        .chars()
                        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                        .collect();
                    let Some(target) = layers.iter().position(|l| *l == name) else {
                        continue;
                    };
                    seen += 1;
                    let place = format!("{}:{}", file.display(), number + 1);
                    assert!(
                        target >= level,
                        "{place}: {layer} must not use {name}, which stands above it"
                    );
                }
            }
        }
    }
    assert!(
        seen > 20,
        "the test has found almost no import: it looks in the wrong place"
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

#[test]
fn only_the_native_library_links_xla() {
    for manifest in ["Cargo.toml", "xla_graphs/Cargo.toml", "models/Cargo.toml"] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        assert!(
            !text
                .lines()
                .any(|line| line.starts_with("xla =") || line.starts_with("xtrain-xla")),
            "{manifest}"
        );
    }
}

/// The README's tour of one step names files that exist.
#[test]
fn the_tour_names_real_files() {
    for doc in ["README.md", "docs/tour.md"] {
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
