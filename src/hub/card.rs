//! The YAML at the head of a data set's card: `configs`, which says of each configuration which files
//! are which split, and `dataset_info`, which notes their columns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::error::{Error, Result};
use super::paths::{Name, Named, configurations as by_paths, format_of, says_split};
use xtrain_checkpoint::files;
use xtrain_data::features::{Features, features_of};

/// Files that may be compared with a card's patterns, each with each.
const MOST_COMPARED: usize = 4 << 20;

/// Bytes of a pattern, at most.
const LONGEST: usize = 1024;

/// What a configuration may say that does not change how its files are read.
const SAID: [&str; 9] = [
    "config_name",
    "data_files",
    "data_dir",
    "default",
    "features",
    "version",
    "description",
    "drop_labels",
    "drop_metadata",
];

/// What a card says.
#[derive(Default)]
pub(super) struct Card {
    /// Files by configuration and split; `None` without `configs`.
    pub configurations: Option<BTreeMap<String, Named>>,
    /// What is noted of columns, by configuration.
    pub features: BTreeMap<String, Features>,
}

/// Reads a set's card. `is_whole`: all of the set's files are known, so that a pattern that is of none is
/// wrong.
pub(super) fn read(path: &Path, files: &[String], is_whole: bool) -> Result<Card> {
    let text = files::open(path).and_then(|file| files::read_all(file, files::SETTINGS));
    let text = text.map_err(Error::io("read", path))?;
    let text = String::from_utf8_lossy(&text);
    let bad = |reason: String| Error::BadCard {
        path: path.to_path_buf(),
        reason,
    };
    let Some(head) = head(&text) else {
        return Ok(Card::default());
    };
    // A card without either may be as wrong as it likes.
    let has = |key: &str| head.lines().any(|line| line.starts_with(key));
    if !has("configs:") && !has("dataset_info:") {
        return Ok(Card::default());
    }
    let card: Value = serde_saphyr::from_str(head).map_err(|error| {
        let text = error.to_string();
        bad(text.lines().next().unwrap_or("no YAML").to_string())
    })?;
    let infos = match &card["dataset_info"] {
        Value::Array(infos) => infos.iter().collect(),
        Value::Null => Vec::new(),
        info => vec![info],
    };
    let noted = |info: &Value| {
        let name = info["config_name"].as_str().unwrap_or("default");
        (name.to_string(), features_of(&info["features"]))
    };
    let mut features: BTreeMap<String, Features> = infos.into_iter().map(noted).collect();
    let Some(list) = card["configs"].as_array() else {
        return Ok(Card {
            configurations: None,
            features,
        });
    };
    let mut found = BTreeMap::new();
    let (mut compared, mut default) = (0, None);
    for entry in list {
        let name = entry["config_name"].as_str().unwrap_or("default");
        let said = entry.as_object();
        if let Some(key) = said.and_then(|keys| keys.keys().find(|key| !SAID.contains(&&key[..]))) {
            return Err(bad(format!(
                "configuration {name} sets {key:?}, by which datasets reads its files and xtrain does not"
            )));
        }
        let named = files_of(entry, files, is_whole, &mut compared).map_err(bad)?;
        if !entry["features"].is_null() {
            features.insert(name.to_string(), features_of(&entry["features"]));
        }
        // The one that is meant where none is named.
        let is_default = entry["default"] == true || name == "default";
        if is_default && let Some(other) = default.replace(name.to_string()) {
            return Err(bad(format!(
                "both {other} and {name} are the default configuration"
            )));
        }
        found.insert(name.to_string(), named);
    }
    if let Some(name) = default
        && let Some(named) = found.get(&name).cloned()
    {
        if let Some(noted) = features.get(&name).cloned() {
            features.insert("default".to_string(), noted);
        }
        found.insert("default".to_string(), named);
    }
    Ok(Card {
        configurations: (!found.is_empty()).then_some(found),
        features,
    })
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
    is_whole: bool,
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
    let Some(told) = patterns(&entry["data_files"]) else {
        count(files)?;
        let prefix = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        // Folders within it are no configurations: the card says what is one.
        let below: Vec<String> = files
            .iter()
            .filter_map(|file| file.strip_prefix(&prefix).map(str::to_string))
            .collect();
        let mut named = Named::new();
        for (name, files) in by_paths(&below).into_values().flatten() {
            let files = files.into_iter().map(|file| format!("{prefix}{file}"));
            // Of a folder that the card names, all files train where none says its split.
            let says = files.clone().any(|file| says_split(&file[prefix.len()..]));
            let name = match folder {
                "" => name,
                _ if says => name,
                _ => Name::exact("train"),
            };
            named.entry(name).or_default().extend(files);
        }
        return Ok(named);
    };
    let mut named = Named::new();
    for (split, patterns) in told {
        let patterns =
            patterns.ok_or_else(|| format!("the files of split {split:?} are no paths"))?;
        let mut into: Vec<String> = Vec::new();
        for pattern in patterns.iter().map(|pattern| inside(pattern)) {
            count(files)?;
            if pattern.len() > LONGEST {
                return Err(format!("a pattern has more than {LONGEST} bytes"));
            }
            let matching = |file: &&String| format_of(file).is_some() && matches(&pattern, file);
            let before = into.len();
            into.extend(files.iter().filter(matching).cloned());
            into[before..].sort();
            if into.len() == before && is_whole {
                return Err(format!("no file of split {split:?} matches {pattern:?}"));
            }
        }
        let files: BTreeSet<&String> = into.iter().collect();
        if files.len() < into.len() {
            return Err(format!(
                "several patterns of split {split:?} are of the same file"
            ));
        }
        if into.is_empty() {
            continue;
        }
        if named.insert(Name::exact(&split), into).is_some() {
            return Err(format!("split {split:?} is there twice"));
        }
    }
    Ok(named)
}

/// Patterns of files by split, each `None` where they are none.
type Patterns = Vec<(String, Option<Vec<String>>)>;

/// What `data_files` says: a pattern or a list of them, which train, or patterns by split.
fn patterns(value: &Value) -> Option<Patterns> {
    let paths = |value: &Value| -> Option<Vec<String>> {
        match value {
            Value::String(pattern) => Some(vec![pattern.clone()]),
            Value::Array(list) => list
                .iter()
                .map(|pattern| pattern.as_str().map(str::to_string))
                .collect(),
            _ => None,
        }
    };
    Some(match value {
        Value::Null => return None,
        Value::Array(list) if list.iter().any(Value::is_object) => list
            .iter()
            .map(|it| {
                let split = it["split"].as_str().unwrap_or("train");
                (split.to_string(), paths(&it["path"]))
            })
            .collect(),
        Value::Object(splits) => splits
            .iter()
            .map(|(split, value)| (split.clone(), paths(value)))
            .collect(),
        one => vec![("train".to_string(), paths(one))],
    })
}

/// Whether a path is of a pattern: `*`, `?` and `[...]` stay within a directory, `**` does not. What
/// begins with a dot is only of what says so.
fn matches(pattern: &str, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_of = |step: &&str, part: &&str| {
        let letters: Vec<char> = part.chars().collect();
        let is_one = |wanted: &Wanted, letter: &char| match wanted {
            Wanted::Any | Wanted::Many => true,
            Wanted::One(one) => one == letter,
            Wanted::Of(ranges, isnt) => {
                ranges
                    .iter()
                    .any(|(from, to)| (from..=to).contains(&letter))
                    != *isnt
            }
        };
        let is_many = |wanted: &Wanted| *wanted == Wanted::Many;
        fits(wanted(step).into_iter(), &letters, is_many, is_one)
    };
    let hidden = |path: &str| path.split('/').filter(|part| part.starts_with('.')).count();
    hidden(path) == hidden(pattern) && fits(pattern.split('/'), &parts, |step| *step == "**", is_of)
}

/// What a letter of a pattern is of.
#[derive(PartialEq)]
enum Wanted {
    Any,
    Many,
    One(char),
    /// Letters from one to another; true: any but these.
    Of(Vec<(char, char)>, bool),
}

fn wanted(step: &str) -> Vec<Wanted> {
    let letters: Vec<char> = step.chars().collect();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < letters.len() {
        let end = || {
            // A bracket that comes first is one of the letters.
            let from = at + 2 + usize::from(matches!(letters.get(at + 1), Some('!' | '^')));
            let found = letters
                .get(from..)?
                .iter()
                .position(|letter| *letter == ']')?;
            Some(from + found)
        };
        match (letters[at], end()) {
            ('*', _) => out.push(Wanted::Many),
            ('?', _) => out.push(Wanted::Any),
            ('[', Some(end)) => {
                let isnt = matches!(letters[at + 1], '!' | '^');
                let mut inside = &letters[at + 1 + usize::from(isnt)..end];
                let mut ranges = Vec::new();
                while let [first, rest @ ..] = inside {
                    inside = match rest {
                        ['-', last, rest @ ..] => {
                            ranges.push((*first, *last));
                            rest
                        }
                        rest => {
                            ranges.push((*first, *first));
                            rest
                        }
                    };
                }
                out.push(Wanted::Of(ranges, isnt));
                at = end;
            }
            (letter, _) => out.push(Wanted::One(letter)),
        }
        at += 1;
    }
    out
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
            ("[a-c].csv", "b.csv", true),
            ("[a-c].csv", "d.csv", false),
            ("[!a-c]*.csv", "dx.csv", true),
            ("[]x].csv", "].csv", true),
            ("x-[0-9][0-9].csv", "x-07.csv", true),
            ("[x.csv", "[x.csv", true),
            ("*", ".x.csv", false),
            (".*", ".x.csv", true),
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
            super::read(&path, &files, true).map(|card| card.configurations)
        };
        let card = "---\nlicense: mit\nconfigs:\n- config_name: chat\n  default: true\n  data_files:\n  - split: train\n    path: data/train_sft-*\n  - split: test\n    path:\n    - \"data/test_sft-*\"\n- config_name: other\n  data_files: other/*.parquet\n---\n# chat\n";
        let found = read(card).unwrap().unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["chat", "default", "other"]
        );
        let split = |config: &str, split: &str| found[config][&Name::exact(split)].clone();
        assert_eq!(split("default", "train"), ["data/train_sft-0.parquet"]);
        assert_eq!(split("chat", "test"), ["data/test_sft-0.parquet"]);
        assert_eq!(split("other", "train"), ["other/x.parquet"]);
        for (card, words) in [
            (
                "- data_files: y.csv\n",
                "no file of split \"train\" matches",
            ),
            ("- data_files: other/*\n  sep: ';'\n", "sets \"sep\""),
            (
                "- data_files:\n  - other/*\n  - other/x.parquet\n",
                "of the same file",
            ),
            (
                "- data_files: other/*\n- config_name: b\n  default: true\n  data_files: other/*\n",
                "both default and b",
            ),
        ] {
            let error = read(&format!("---\nconfigs:\n{card}---\n")).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(read("# no head\n").unwrap().is_none());
        assert!(read("---\nlicense: [\n---\n").unwrap().is_none());
        let error = read("---\nconfigs: [\n---\n").unwrap_err().to_string();
        assert!(error.contains("README.md"), "{error}");
        let long = format!("---\nconfigs:\n- data_files: {}\n---\n", "x".repeat(2000));
        let error = read(&long).unwrap_err().to_string();
        assert!(error.contains("1024 bytes"), "{error}");
    }
}
