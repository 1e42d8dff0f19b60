//! Data sets by name: their parquet, CSV or JSON files, grouped by configuration and split from
//! their paths.
//!
//! Two layouts occur. A repository's own files: `CONFIG/train-00000-of-00003.parquet`,
//! `data/train.jsonl`, `train.csv`. And what the Hub converts every public set to, on the branch
//! `refs/convert/parquet`: `CONFIG/train/0000.parquet`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::checks::listed;
use super::error::{Error, Result};
use super::fetch::{Hub, Kind, Snapshot};

/// The branch with the Hub's own conversion.
const CONVERTED: &str = "refs/convert/parquet";

/// A data set's files on this machine, each split's in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetFiles {
    pub train: Vec<PathBuf>,
    pub validation: Vec<PathBuf>,
    pub test: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Split {
    Train,
    Validation,
    Test,
}

/// Paths of a configuration, by split.
type Splits = BTreeMap<Split, Vec<String>>;

impl Hub {
    /// The files of a data set, all of them or those of the test split. Without a revision, its own
    /// files are taken if they can be read, else the Hub's conversion.
    pub fn dataset(
        &self,
        name: &str,
        config: Option<&str>,
        revision: Option<&str>,
        only_test: bool,
    ) -> Result<DatasetFiles> {
        let own = self.snapshot(Kind::Dataset, name, revision);
        if let Ok(snapshot) = &own
            && let Some(splits) = choose(name, &configurations(snapshot.files()), config)?
        {
            return fetch(snapshot, splits, only_test);
        }
        if revision.is_none()
            && let Ok(converted) = self.snapshot(Kind::Dataset, name, Some(CONVERTED))
            && let Some(splits) = choose(name, &configurations(converted.files()), config)?
        {
            return fetch(&converted, splits, only_test);
        }
        own.and_then(|_| {
            Err(Error::NoData {
                name: name.to_string(),
            })
        })
    }
}

fn fetch(snapshot: &Snapshot<'_>, mut splits: Splits, only_test: bool) -> Result<DatasetFiles> {
    splits.retain(|split, _| *split == Split::Test || !only_test);
    let files = |split: Split| {
        let paths = splits.get(&split).map(Vec::as_slice).unwrap_or_default();
        paths
            .iter()
            .map(|path| snapshot.fetch(path))
            .collect::<Result<Vec<_>>>()
    };
    Ok(DatasetFiles {
        train: files(Split::Train)?,
        validation: files(Split::Validation)?,
        test: files(Split::Test)?,
    })
}

/// The wanted configuration, or the only or default one; `None` where there is no data at all.
fn choose(
    name: &str,
    configurations: &BTreeMap<String, Splits>,
    wanted: Option<&str>,
) -> Result<Option<Splits>> {
    let found = || listed(configurations.keys().map(String::as_str));
    let name = || name.to_string();
    match (wanted, configurations.len()) {
        (_, 0) => Ok(None),
        (Some(wanted), _) => match configurations.get(wanted) {
            Some(splits) => Ok(Some(splits.clone())),
            None => Err(Error::NoConfig {
                name: name(),
                wanted: wanted.to_string(),
                found: found(),
            }),
        },
        (None, 1) => Ok(configurations.values().next().cloned()),
        (None, _) => match configurations.get("default") {
            Some(splits) => Ok(Some(splits.clone())),
            None => Err(Error::WhichConfig {
                name: name(),
                found: found(),
            }),
        },
    }
}

/// Data files by configuration and split. A directory is a configuration unless it is `data` or
/// named like a split; files at the top belong to `default`. Where there is parquet, other formats
/// of the same set are left out.
fn configurations(files: &[String]) -> BTreeMap<String, Splits> {
    let mut found: BTreeMap<String, Splits> = BTreeMap::new();
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
    for splits in found.values_mut() {
        splits.values_mut().for_each(|files| files.sort());
    }
    found
}

fn format_of(file: &str) -> Option<&'static str> {
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

/// The split that a path is of: a part of its name, or a directory.
fn split_of(file: &str) -> Option<Split> {
    let mut parts = file.rsplit('/');
    let name = parts.next()?;
    let stem = name.split('.').next().unwrap_or(name);
    split_named(stem).or_else(|| parts.find_map(split_named))
}

/// `train`, `train-00000-of-00003`, `partial-train`, `dev`, `valid`, ...
fn split_named(name: &str) -> Option<Split> {
    name.to_lowercase()
        .split(['-', '_'])
        .find_map(|word| match word {
            "train" | "training" => Some(Split::Train),
            "validation" | "valid" | "val" | "dev" => Some(Split::Validation),
            "test" | "testing" => Some(Split::Test),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Vec<(String, Vec<(Split, usize)>)> {
        let files: Vec<String> = files.iter().map(|file| file.to_string()).collect();
        let count = |splits: Splits| {
            splits
                .into_iter()
                .map(|(split, files)| (split, files.len()))
                .collect()
        };
        configurations(&files)
            .into_iter()
            .map(|(config, splits)| (config, count(splits)))
            .collect()
    }

    #[test]
    fn paths_tell_configuration_and_split() {
        use Split::*;
        let default = |splits: &[(Split, usize)]| vec![("default".to_string(), splits.to_vec())];
        assert_eq!(
            of(&["README.md", "train.csv", "dev.csv", "test.csv"]),
            default(&[(Train, 1), (Validation, 1), (Test, 1)])
        );
        assert_eq!(
            of(&[
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet"
            ]),
            default(&[(Train, 2)])
        );
        assert_eq!(
            of(&["data/train.jsonl.gz", "dataset_infos.json", "train.py"]),
            default(&[(Train, 1)])
        );
        assert_eq!(
            of(&[
                "sst2/train/0000.parquet",
                "sst2/validation/0000.parquet",
                "cola/partial-train/0000.parquet"
            ]),
            [
                ("cola".to_string(), vec![(Train, 1)]),
                ("sst2".to_string(), vec![(Train, 1), (Validation, 1)])
            ]
        );
        assert_eq!(
            of(&["wikitext-2-raw-v1/test-00000-of-00001.parquet", "train.csv"]).len(),
            1
        );
        assert!(of(&["README.md", "notes.json"]).is_empty());
    }

    #[test]
    fn a_configuration_must_be_named_where_there_are_several() {
        let files = [
            "a/train/0.parquet".to_string(),
            "b/train/0.parquet".to_string(),
        ];
        let found = configurations(&files);
        let error = |wanted| choose("set", &found, wanted).unwrap_err().to_string();
        assert!(error(None).contains("--dataset_config_name: a, b"));
        assert!(
            error(Some("c")).contains("no configuration \"c\"")
                && error(Some("c")).contains("a, b")
        );
        assert_eq!(
            choose("set", &found, Some("b")).unwrap().unwrap()[&Split::Train],
            ["b/train/0.parquet"]
        );
        assert_eq!(choose("set", &BTreeMap::new(), None).unwrap(), None);
    }
}
