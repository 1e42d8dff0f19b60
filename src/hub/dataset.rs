//! Data sets by name, of the Hub or in a directory: their files, grouped by configuration and split as
//! the card's `configs` say, else from their paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::card::{self, Card};
use super::checks::listed;
use super::error::{Error, Result};
use super::fetch::{Hub, Kind, Snapshot, list};
use super::paths::{Name, Named, Split, configurations, format_of};
use xtrain_checkpoint::files;
use xtrain_data::features::{Features, features_of};

/// The branch with the Hub's own conversion.
const CONVERTED: &str = "refs/convert/parquet";

/// A data set's card.
const CARD: &str = "README.md";

/// What earlier versions of `datasets` wrote beside a card.
const INFOS: &str = "dataset_infos.json";

/// A data set's files on this machine, each split's in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetFiles {
    /// Of the training split.
    pub train: Vec<PathBuf>,
    /// Of the validation split.
    pub validation: Vec<PathBuf>,
    /// MNLI's second set to validate on.
    pub validation_mismatched: Vec<PathBuf>,
    /// Of the test split.
    pub test: Vec<PathBuf>,
    /// MNLI's second set to test on.
    pub test_mismatched: Vec<PathBuf>,
    /// What its card notes of the columns.
    pub features: Features,
}

/// Paths of a configuration, by split and, of MNLI, its half: false is the matched one.
type Splits = BTreeMap<(Split, bool), Vec<String>>;

/// Where a set's files are.
trait Place {
    /// Paths of all files.
    fn files(&self) -> &[String];

    /// Whether there are no other files.
    fn is_whole(&self) -> bool;

    /// A file's path on this machine.
    fn fetch(&self, file: &str) -> Result<PathBuf>;

    fn has(&self, file: &str) -> bool {
        self.files().iter().any(|found| found == file)
    }
}

impl Place for Snapshot<'_> {
    fn files(&self) -> &[String] {
        Snapshot::files(self)
    }

    fn is_whole(&self) -> bool {
        self.is_online()
    }

    fn fetch(&self, file: &str) -> Result<PathBuf> {
        Snapshot::fetch(self, file)
    }
}

/// A directory of this machine.
struct Folder {
    dir: PathBuf,
    files: Vec<String>,
}

impl Place for Folder {
    fn files(&self) -> &[String] {
        &self.files
    }

    fn is_whole(&self) -> bool {
        true
    }

    fn fetch(&self, file: &str) -> Result<PathBuf> {
        Ok(self.dir.join(file))
    }
}

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
        if let Ok(snapshot) = &own
            && let Some(found) = of_place(snapshot, name, config, only_test)?
        {
            return Ok(found);
        }
        if revision.is_none()
            && let Ok(converted) = self.snapshot(Kind::Dataset, name, Some(CONVERTED))
            && let Some(named) = choose(name, &configurations(converted.files()), config)?
        {
            let (_, named) = named;
            return fetch(&converted, splits(name, named)?, only_test);
        }
        own.and_then(|_| {
            Err(Error::NoData {
                name: name.to_string(),
            })
        })
    }
}

/// The files of a data set in a directory, as [`Hub::dataset`] takes them.
///
/// # Errors
/// The directory or its card cannot be read, or does not tell which files are which split.
pub fn dataset_in(dir: &Path, config: Option<&str>, only_test: bool) -> Result<DatasetFiles> {
    let mut files = Vec::new();
    list(dir, "", &mut files).map_err(Error::io("list", dir))?;
    let folder = Folder {
        dir: dir.to_path_buf(),
        files,
    };
    let name = dir.display().to_string();
    // What `save_to_disk` writes, or the cache of `datasets`.
    let is_arrow = |file: &String| file.ends_with(".arrow");
    if folder.files.iter().any(is_arrow)
        && folder.files.iter().all(|file| format_of(file).is_none())
    {
        return Err(Error::ArrowFiles { dir: dir.into() });
    }
    of_place(&folder, &name, config, only_test)?.ok_or(Error::NoData { name })
}

fn of_place(
    place: &dyn Place,
    name: &str,
    config: Option<&str>,
    only_test: bool,
) -> Result<Option<DatasetFiles>> {
    let card = if place.has(CARD) {
        card::read(&place.fetch(CARD)?, place.files(), place.is_whole())?
    } else {
        Card::default()
    };
    let found = card.configurations;
    let found = found.unwrap_or_else(|| configurations(place.files()));
    let Some((chosen, named)) = choose(name, &found, config)? else {
        return Ok(None);
    };
    let mut files = fetch(place, splits(name, named)?, only_test)?;
    let mut features = card.features;
    if place.has(INFOS) {
        for (config, noted) in infos(&place.fetch(INFOS)?)? {
            features.entry(config).or_insert(noted);
        }
    }
    let only = if features.len() == 1 && found.len() == 1 {
        features.values().next()
    } else {
        None
    };
    files.features = features.get(&chosen).or(only).cloned().unwrap_or_default();
    Ok(Some(files))
}

/// The features of dataset_infos.json by configuration; of a single one as the default's.
fn infos(path: &Path) -> Result<BTreeMap<String, Features>> {
    let text = files::open(path).and_then(|file| files::read_all(file, files::SETTINGS));
    let text = text.map_err(Error::io("read", path))?;
    let infos: Value = serde_json::from_slice(&text).map_err(|error| Error::BadCard {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })?;
    let infos = infos.as_object().into_iter().flatten();
    let infos = infos.map(|(config, info)| (config.clone(), features_of(&info["features"])));
    let mut infos: BTreeMap<String, Features> = infos.collect();
    if infos.len() == 1
        && let Some((_, only)) = infos.pop_first()
    {
        infos.insert("default".to_string(), only);
    }
    Ok(infos)
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
            .filter(|(name, _)| name.split == Some(split))
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
            [(_, files)] => {
                let formats: BTreeSet<_> = files.iter().map(|file| format_of(file)).collect();
                if formats.len() > 1 {
                    return Err(Error::WhichSplit {
                        name: set.to_string(),
                        split: usual,
                        found: listed(files.iter().map(String::as_str)),
                    });
                }
                found.insert((split, false), files.to_vec());
            }
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

fn fetch(place: &dyn Place, mut splits: Splits, only_test: bool) -> Result<DatasetFiles> {
    splits.retain(|(split, _), _| *split == Split::Test || !only_test);
    let files = |split: Split, half: bool| {
        let paths = splits
            .get(&(split, half))
            .map(Vec::as_slice)
            .unwrap_or_default();
        paths
            .iter()
            .map(|path| place.fetch(path))
            .collect::<Result<Vec<_>>>()
    };
    Ok(DatasetFiles {
        train: files(Split::Train, false)?,
        validation: files(Split::Validation, false)?,
        validation_mismatched: files(Split::Validation, true)?,
        test: files(Split::Test, false)?,
        test_mismatched: files(Split::Test, true)?,
        features: Features::new(),
    })
}

/// The wanted configuration, or the only or default one, with its name; `None` where there is no data
/// at all.
fn choose(
    name: &str,
    configurations: &BTreeMap<String, Named>,
    wanted: Option<&str>,
) -> Result<Option<(String, Named)>> {
    let found = || listed(configurations.keys().map(String::as_str));
    let name = || name.to_string();
    match (wanted, configurations.len()) {
        (_, 0) => Ok(None),
        (Some(wanted), _) => match configurations.get(wanted) {
            Some(splits) => Ok(Some((wanted.to_string(), splits.clone()))),
            None => Err(Error::NoConfig {
                name: name(),
                wanted: wanted.to_string(),
                found: found(),
            }),
        },
        (None, 1) => {
            let only = configurations.iter().next();
            Ok(only.map(|(name, splits)| (name.clone(), splits.clone())))
        }
        (None, _) => match configurations.get("default") {
            Some(splits) => Ok(Some(("default".to_string(), splits.clone()))),
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
        assert!(of(&["README.md", "notes.json", "load.py"]).is_empty());
        // A set of one file, and the words and folders that `datasets` looks at.
        assert_eq!(of(&["README.md", "posts.json"]), default(&[(Train, 1)]));
        assert_eq!(
            of(&["train/valid.csv", "train/more.csv", "eval/x.csv", "dev.csv"]),
            default(&[(Train, 2), (Test, 1)])
        );
        assert_eq!(of(&["my.train1.csv", ".train.csv"]), default(&[(Train, 1)]));
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
        assert!(of(&["train.csv", "train.jsonl"]).is_err());
        let error = of(&["a.csv", "b.csv"]).unwrap_err().to_string();
        assert!(error.contains("a.csv, b.csv"), "{error}");
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
            splits("set", choose("set", &found, Some("b")).unwrap().unwrap().1).unwrap()
                [&(Split::Train, false)],
            ["b/train/0.parquet"]
        );
        assert_eq!(choose("set", &BTreeMap::new(), None).unwrap(), None);
    }
}
