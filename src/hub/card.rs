//! The YAML at the head of a data set's card: `configs`, which says of each configuration which files
//! are which split.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::error::{Error, Result};
use super::paths::{Name, Named, configurations as by_paths, format_of};
use crate::checkpoint::files;

/// Files that may be compared with a card's patterns, each with each.
const MOST_COMPARED: usize = 4 << 20;

/// Bytes of a pattern, at most.
const LONGEST: usize = 1024;

/// Files by configuration and split, as a card says; `None` where it has no `configs`.
pub(super) fn configurations(
    path: &Path,
    files: &[String],
) -> Result<Option<BTreeMap<String, Named>>> {
    let text = files::open(path).and_then(|file| files::read_all(file, files::SETTINGS));
    let text = text.map_err(Error::io("read", path))?;
    let text = String::from_utf8_lossy(&text);
    let bad = |reason: String| Error::BadCard {
        path: path.to_path_buf(),
        reason,
    };
    let Some(head) = head(&text) else {
        return Ok(None);
    };
    // A card without configurations may be as wrong as it likes.
    if !head.lines().any(|line| line.starts_with("configs:")) {
        return Ok(None);
    }
    let card: Value = serde_saphyr::from_str(head).map_err(|error| {
        let text = error.to_string();
        bad(text.lines().next().unwrap_or("no YAML").to_string())
    })?;
    let Some(list) = card["configs"].as_array() else {
        return Ok(None);
    };
    let mut found = BTreeMap::new();
    let mut compared = 0;
    for entry in list {
        let name = entry["config_name"].as_str().unwrap_or("default");
        let named = files_of(entry, files, &mut compared).map_err(bad)?;
        // The one that is meant where none is named.
        if entry["default"] == true && name != "default" {
            found.insert("default".to_string(), named.clone());
        }
        found.insert(name.to_string(), named);
    }
    Ok((!found.is_empty()).then_some(found))
}

/// What stands between the first two lines of three dashes.
fn head(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('\u{feff}');
    let rest = text.strip_prefix("---")?.trim_start_matches([' ', '\r']);
    let rest = rest.strip_prefix('\n')?;
    let end = rest.find("\n---")?;
    Some(&rest[..=end])
}

/// A configuration's files by split. Without `data_files` those of its `data_dir`, by their paths.
/// `compared` counts the files that patterns were compared with.
fn files_of(
    entry: &Value,
    files: &[String],
    compared: &mut usize,
) -> std::result::Result<Named, String> {
    let mut count = |files: &[String]| {
        *compared += files.len();
        if *compared > MOST_COMPARED {
            return Err("it has too many patterns for the number of files".to_string());
        }
        Ok(())
    };
    let folder = entry["data_dir"].as_str().unwrap_or_default();
    let folder = folder.trim_start_matches("./").trim_end_matches('/');
    let inside = |path: &str| match folder {
        "" => path.trim_start_matches("./").to_string(),
        folder => format!("{folder}/{}", path.trim_start_matches("./")),
    };
    let patterns = |value: &Value| -> Option<Vec<String>> {
        match value {
            Value::String(pattern) => Some(vec![inside(pattern)]),
            Value::Array(list) => list
                .iter()
                .map(|pattern| pattern.as_str().map(inside))
                .collect(),
            _ => None,
        }
    };
    let told: Vec<(String, Option<Vec<String>>)> = match &entry["data_files"] {
        Value::Null => {
            count(files)?;
            let below =
                |file: &&String| folder.is_empty() || file.starts_with(&format!("{folder}/"));
            let below: Vec<String> = files.iter().filter(below).cloned().collect();
            let mut named = Named::new();
            for (_, splits) in by_paths(&below) {
                for (name, files) in splits {
                    named.entry(name).or_default().extend(files);
                }
            }
            return Ok(named);
        }
        Value::Array(list) if list.iter().any(Value::is_object) => list
            .iter()
            .map(|it| {
                let split = it["split"].as_str().unwrap_or("train");
                (split.to_string(), patterns(&it["path"]))
            })
            .collect(),
        Value::Object(splits) => splits
            .iter()
            .map(|(split, value)| (split.clone(), patterns(value)))
            .collect(),
        one => vec![("train".to_string(), patterns(one))],
    };
    let mut named = Named::new();
    for (split, patterns) in told {
        let patterns =
            patterns.ok_or_else(|| format!("the files of split {split:?} are no paths"))?;
        let name = Name {
            text: split,
            is_exact: true,
        };
        let into = named.entry(name).or_default();
        for pattern in patterns {
            count(files)?;
            if pattern.len() > LONGEST {
                return Err(format!("a pattern has more than {LONGEST} bytes"));
            }
            let matching = |file: &&String| format_of(file).is_some() && matches(&pattern, file);
            into.extend(files.iter().filter(matching).cloned());
        }
        into.sort();
        into.dedup();
    }
    named.retain(|_, files| !files.is_empty());
    Ok(named)
}

/// Whether a path is of a pattern: `*` and `?` stay within a directory, `**` does not.
fn matches(pattern: &str, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_of = |step: &&str, part: &&str| {
        let letters: Vec<char> = part.chars().collect();
        let is_one = |wanted: &char, letter: &char| *wanted == '?' || wanted == letter;
        fits(step.chars(), &letters, |wanted| *wanted == '*', is_one)
    };
    fits(pattern.split('/'), &parts, |step| *step == "**", is_of)
}

/// Whether the steps are of all items, one each; one that is `open` is of any number.
fn fits<S, T>(
    steps: impl Iterator<Item = S>,
    items: &[T],
    open: impl Fn(&S) -> bool,
    is_of: impl Fn(&S, &T) -> bool,
) -> bool {
    // How many items the steps so far can be of.
    let mut reached = BTreeSet::from([0]);
    for step in steps {
        reached = if open(&step) {
            let least = reached.first().copied().unwrap_or(items.len() + 1);
            (least..=items.len()).collect()
        } else {
            let next = reached.iter().filter(|at| {
                let item = items.get(**at);
                item.is_some_and(|item| is_of(&step, item))
            });
            next.map(|at| at + 1).collect()
        };
    }
    reached.contains(&items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_paths() {
        for (pattern, path, is_of) in [
            (
                "data/train_sft-*",
                "data/train_sft-00000-of-00001.parquet",
                true,
            ),
            (
                "data/train-*",
                "data/train_sft-00000-of-00001.parquet",
                false,
            ),
            ("other/*.parquet", "other/x.parquet", true),
            ("other/*.parquet", "other/a/x.parquet", false),
            ("**/*.csv", "a/b/c.csv", true),
            ("**/*.csv", "c.csv", true),
            ("a/**", "a/b/c.csv", true),
            ("?.csv", "c.csv", true),
            ("c.csv", "c.csv", true),
            ("c.csv", "cc.csv", false),
        ] {
            assert_eq!(matches(pattern, path), is_of, "{pattern} {path}");
        }
    }

    #[test]
    fn a_card_says_which_files_are_which_split() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("README.md");
        let files: Vec<String> = [
            "data/train_sft-0.parquet",
            "data/test_sft-0.parquet",
            "data/train_gen-0.parquet",
            "other/x.parquet",
            "README.md",
        ]
        .map(str::to_string)
        .to_vec();
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            configurations(&path, &files)
        };
        let card = "---\nlicense: mit\nconfigs:\n- config_name: chat\n  default: true\n  data_files:\n  - split: train\n    path: data/train_sft-*\n  - split: test\n    path:\n    - \"data/test_sft-*\"\n- config_name: other\n  data_files: other/*.parquet\n---\n# chat\n";
        let found = read(card).unwrap().unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["chat", "default", "other"]
        );
        let split = |config: &str, split: &str| {
            let name = Name {
                text: split.to_string(),
                is_exact: true,
            };
            found[config][&name].clone()
        };
        assert_eq!(split("default", "train"), ["data/train_sft-0.parquet"]);
        assert_eq!(split("chat", "test"), ["data/test_sft-0.parquet"]);
        assert_eq!(split("other", "train"), ["other/x.parquet"]);
        assert!(read("# no head\n").unwrap().is_none());
        assert!(read("---\nlicense: [\n---\n").unwrap().is_none());
        let error = read("---\nconfigs: [\n---\n").unwrap_err().to_string();
        assert!(error.contains("README.md"), "{error}");
        let long = format!("---\nconfigs:\n- data_files: {}\n---\n", "x".repeat(2000));
        let error = read(&long).unwrap_err().to_string();
        assert!(error.contains("1024 bytes"), "{error}");
    }
}
