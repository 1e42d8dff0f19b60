//! Data sets by name: their parquet, CSV or JSON files, grouped by configuration and split as the
//! card's `configs` say, else from their paths.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::card;
use super::checks::listed;
use super::error::{Error, Result};
use super::fetch::{Hub, Kind, Snapshot};
use super::paths::{Name, Named, Split, configurations, split_named};

/// The branch with the Hub's own conversion.
const CONVERTED: &str = "refs/convert/parquet";

/// A data set's card.
const CARD: &str = "README.md";

/// A data set's files on this machine, each split's in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetFiles {
    pub train: Vec<PathBuf>,
    pub validation: Vec<PathBuf>,
    /// MNLI's second set to validate on.
    pub validation_mismatched: Vec<PathBuf>,
    pub test: Vec<PathBuf>,
    /// MNLI's second set to test on.
    pub test_mismatched: Vec<PathBuf>,
}

/// Paths of a configuration, by split and, of MNLI, its half: false is the matched one.
type Splits = BTreeMap<(Split, bool), Vec<String>>;

impl Hub {
    /// The files of a data set, all of them or those of the test split. Its card's `configs` decide
    /// which they are; without them its files' names. Without a revision, its own files are taken if
    /// they can be read, else the Hub's conversion.
    pub fn dataset(
        &self,
        name: &str,
        config: Option<&str>,
        revision: Option<&str>,
        only_test: bool,
    ) -> Result<DatasetFiles> {
        let own = self.snapshot(Kind::Dataset, name, revision);
        if let Ok(snapshot) = &own {
            let told = if snapshot.has(CARD) {
                card::configurations(&snapshot.fetch(CARD)?, snapshot.files())?
            } else {
                None
            };
            let found = told.unwrap_or_else(|| configurations(snapshot.files()));
            if let Some(named) = choose(name, &found, config)? {
                return fetch(snapshot, splits(name, named)?, only_test);
            }
        }
        if revision.is_none()
            && let Ok(converted) = self.snapshot(Kind::Dataset, name, Some(CONVERTED))
            && let Some(named) = choose(name, &configurations(converted.files()), config)?
        {
            return fetch(&converted, splits(name, named)?, only_test);
        }
        own.and_then(|_| {
            Err(Error::NoData {
                name: name.to_string(),
            })
        })
    }
}

/// The splits of a configuration; names of which several could be one are listed, not merged.
fn splits(set: &str, named: Named) -> Result<Splits> {
    let mut found = Splits::new();
    for (split, usual) in [
        (Split::Train, "train"),
        (Split::Validation, "validation"),
        (Split::Test, "test"),
    ] {
        let mut able: Vec<(&Name, &Vec<String>)> = named
            .iter()
            .filter(|(name, _)| split_named(&name.text) == Some(split))
            .collect();
        let is_usual = |name: &Name| name.is_exact && name.text == usual;
        if able.iter().any(|(name, _)| is_usual(name)) && able.iter().all(|(name, _)| name.is_exact)
        {
            able.retain(|(name, _)| is_usual(name));
        }
        // MNLI's: run_glue evaluates the matched one first.
        let matched = |name: &Name| name.text == format!("{usual}_matched");
        let others = |name: &Name| name.text == format!("{usual}_mismatched");
        if able.len() == 2 && able.iter().all(|(name, _)| matched(name) || others(name)) {
            let second = able.iter().find(|(name, _)| others(name));
            let files = second.map(|(_, files)| files.to_vec()).unwrap_or_default();
            found.insert((split, true), files);
            able.retain(|(name, _)| matched(name));
        }
        match able.as_slice() {
            [] => {}
            [(_, files)] => drop(found.insert((split, false), files.to_vec())),
            several => {
                let names = several.iter().map(|(name, _)| name.text.as_str());
                return Err(Error::WhichSplit {
                    name: set.to_string(),
                    split: usual,
                    found: listed(names),
                });
            }
        }
    }
    Ok(found)
}

fn fetch(snapshot: &Snapshot<'_>, mut splits: Splits, only_test: bool) -> Result<DatasetFiles> {
    splits.retain(|(split, _), _| *split == Split::Test || !only_test);
    let files = |split: Split, half: bool| {
        let paths = splits
            .get(&(split, half))
            .map(Vec::as_slice)
            .unwrap_or_default();
        paths
            .iter()
            .map(|path| snapshot.fetch(path))
            .collect::<Result<Vec<_>>>()
    };
    Ok(DatasetFiles {
        train: files(Split::Train, false)?,
        validation: files(Split::Validation, false)?,
        validation_mismatched: files(Split::Validation, true)?,
        test: files(Split::Test, false)?,
        test_mismatched: files(Split::Test, true)?,
    })
}

/// The wanted configuration, or the only or default one; `None` where there is no data at all.
fn choose(
    name: &str,
    configurations: &BTreeMap<String, Named>,
    wanted: Option<&str>,
) -> Result<Option<Named>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[&str]) -> Vec<(String, Vec<(Split, usize)>)> {
        let files: Vec<String> = files.iter().map(|file| file.to_string()).collect();
        let count = |named: Named| {
            splits("set", named)
                .unwrap()
                .into_iter()
                .map(|((split, _), files)| (split, files.len()))
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
    fn names_that_could_be_one_split_are_listed() {
        let of = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|file| file.to_string()).collect();
            let (_, named) = configurations(&files).pop_first().unwrap();
            splits("org/set", named)
        };
        let two = [
            "data/train_sft-00000-of-00001.parquet",
            "data/train_gen-00000-of-00001.parquet",
        ];
        let error = of(&two).unwrap_err().to_string();
        assert!(error.contains("train_gen, train_sft"), "{error}");
        assert!(of(&["train.csv", "train_extra.csv"]).is_err());
        assert_eq!(
            of(&["train-1.csv", "train-2.csv"]).unwrap()[&(Split::Train, false)].len(),
            2
        );
        assert_eq!(of(&[two[0]]).unwrap()[&(Split::Train, false)].len(), 1);
        // `datasets` calls these so; the others are splits of their own.
        let with_usual = of(&["data/train-00000-of-00001.parquet", two[1]]).unwrap();
        assert_eq!(
            with_usual[&(Split::Train, false)],
            ["data/train-00000-of-00001.parquet"]
        );
        let mnli = of(&[
            "mnli/validation_matched-00000-of-00001.parquet",
            "mnli/validation_mismatched-00000-of-00001.parquet",
        ]);
        let mnli = mnli.unwrap();
        let half = |second| mnli[&(Split::Validation, second)][0].contains("mismatched");
        assert_eq!((half(false), half(true)), (false, true));
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
            splits("set", choose("set", &found, Some("b")).unwrap().unwrap()).unwrap()
                [&(Split::Train, false)],
            ["b/train/0.parquet"]
        );
        assert_eq!(choose("set", &BTreeMap::new(), None).unwrap(), None);
    }
}
