//! What the paths of a data set's files say: configuration, split and format.
//!
//! Two layouts occur. A repository's own files: `CONFIG/train-00000-of-00003.parquet`,
//! `data/train.jsonl`, `train.csv`. And what the Hub converts every public set to, on the branch
//! `refs/convert/parquet`: `CONFIG/train/0000.parquet`.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Split {
    Train,
    Validation,
    Test,
}

/// Paths of a configuration, by what their split is called.
pub(super) type Named = BTreeMap<Name, Vec<String>>;

/// What a path or a card calls a split.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub text: String,
    /// Said by the card, a directory or a name such as `train-00000-of-00002`: `datasets` calls the
    /// split so, too. Of other names only a part tells the split.
    pub is_exact: bool,
}

/// Data files by configuration and split. A directory is a configuration unless it is `data` or
/// named like a split; files at the top belong to `default`. Where there is parquet, other formats
/// of the same set are left out.
pub(super) fn configurations(files: &[String]) -> BTreeMap<String, Named> {
    let mut found: BTreeMap<String, Named> = BTreeMap::new();
    let parquet = files
        .iter()
        .any(|file| file.ends_with(".parquet") && split_of(file).is_some());
    for file in files {
        let Some((format, split)) = format_of(file).zip(split_of(file)) else {
            continue;
        };
        if parquet && format != "parquet" {
            continue;
        }
        let directories: Vec<&str> = file.split('/').rev().skip(1).collect();
        let config = directories
            .into_iter()
            .rev()
            .find(|part| *part != "data" && split_named(part).is_none());
        found
            .entry(config.unwrap_or("default").to_string())
            .or_default()
            .entry(split)
            .or_default()
            .push(file.clone());
    }
    for named in found.values_mut() {
        named.values_mut().for_each(|files| files.sort());
    }
    found
}

pub(super) fn format_of(file: &str) -> Option<&'static str> {
    let name = file.strip_suffix(".gz").unwrap_or(file);
    let formats = ["parquet", "csv", "tsv", "jsonl", "json"];
    let format = formats.into_iter().find(|format| {
        name.strip_suffix(format)
            .is_some_and(|rest| rest.ends_with('.'))
    })?;
    // Loaders' own notes are JSON too.
    let notes = [
        "dataset_infos.json",
        "dataset_info.json",
        "config.json",
        "state.json",
    ];
    (!notes.contains(&file.rsplit('/').next().unwrap_or(file))).then_some(format)
}

/// What a path calls its split: a part of its name, or a directory.
fn split_of(file: &str) -> Option<Name> {
    let mut parts = file.rsplit('/');
    let name = parts.next()?;
    let stem = name.split('.').next().unwrap_or(name);
    let exact = |text: &str| Name {
        text: text.to_string(),
        is_exact: true,
    };
    if split_named(stem).is_none() {
        return parts.find(|part| split_named(part).is_some()).map(exact);
    }
    if let Some(split) = shard_of(stem) {
        return Some(exact(split));
    }
    // Numbers tell parts of one split apart, words tell splits.
    let words = stem
        .split(['-', '_'])
        .map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit()));
    let words: Vec<&str> = words
        .filter(|word| !word.is_empty() && *word != "of")
        .collect();
    Some(Name {
        text: words.join("_"),
        is_exact: false,
    })
}

/// `train_sft` of `train_sft-00000-of-00002`.
fn shard_of(stem: &str) -> Option<&str> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    // A digest of the content may follow.
    let count = count.split('-').next().unwrap_or(count);
    (is_number(count) && is_number(number)).then_some(split)
}

/// `train`, `train-00000-of-00003`, `partial-train`, `dev`, `valid`, ...
pub(super) fn split_named(name: &str) -> Option<Split> {
    name.to_lowercase()
        .split(['-', '_'])
        .find_map(|word| match word {
            "train" | "training" => Some(Split::Train),
            "validation" | "valid" | "val" | "dev" => Some(Split::Validation),
            "test" | "testing" => Some(Split::Test),
            _ => None,
        })
}
