//! What the paths of a data set's files say: configuration, split and format, by the patterns that
//! `datasets` goes by where no card says it. `datasets` merges all files that could be one split; here
//! they stay apart, so that one can be named.
//!
//! Two layouts occur. A repository's own files: `CONFIG/train-00000-of-00003.parquet`,
//! `data/train.jsonl`, `train.csv`, `train/part.csv`. And what the Hub converts every public set to, on
//! the branch `refs/convert/parquet`: `CONFIG/train/0000.parquet`.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Which one it can be; `None` of a card's other splits.
    pub split: Option<Split>,
    pub text: String,
    /// Said by the card or a name such as `train-00000-of-00002`: `datasets` calls the split so, too.
    /// Of other names only a part tells the split.
    pub is_exact: bool,
}

impl Name {
    /// A name that is a split's own.
    pub fn exact(text: &str) -> Name {
        Name {
            split: split_named(text),
            text: text.to_string(),
            is_exact: true,
        }
    }
}

/// Where a path may say its split.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Folder,
    File,
    /// Nowhere: a set of one file, or of one file's shards.
    Nowhere,
}

/// Data files by configuration and split. A directory above a split's is a configuration unless it is
/// `data`; files at the top belong to `default`. Where there is parquet, other formats of the same
/// set are left out. Names in folders go before those of files, as in `datasets`.
pub(super) fn configurations(files: &[String]) -> BTreeMap<String, Named> {
    // What a script reads is not known.
    let has_script = files
        .iter()
        .any(|file| file.ends_with(".py") && !file.contains('/'));
    let visible: Vec<&String> = files
        .iter()
        .filter(|file| format_of(file).is_some() && !is_hidden(file))
        .collect();
    let says = |place: Where| visible.iter().any(|file| !names(file, place).is_empty());
    let place = [Where::Folder, Where::File]
        .into_iter()
        .find(|place| says(*place))
        .unwrap_or(Where::Nowhere);
    if place == Where::Nowhere && has_script {
        return BTreeMap::new();
    }
    let has = |format: &str| {
        let is_one = |file: &&&String| format_of(file) == Some(format);
        visible
            .iter()
            .filter(is_one)
            .any(|file| !names(file, place).is_empty())
    };
    let (parquet, tables) = (
        has("parquet"),
        visible.iter().any(|file| format_of(file) != Some("txt")),
    );
    let mut found: BTreeMap<String, Named> = BTreeMap::new();
    for file in visible {
        let format = format_of(file);
        if parquet && format != Some("parquet")
            || place == Where::Nowhere && tables && format == Some("txt")
        {
            continue;
        }
        for (name, config) in names(file, place) {
            let named = found.entry(config).or_default();
            named.entry(name).or_default().push(file.clone());
        }
    }
    found
        .into_iter()
        .map(|(config, named)| (config, apart(named)))
        .collect()
}

/// Files of one name that are no parts of one another, each under its own path.
fn apart(named: Named) -> Named {
    let mut out = Named::new();
    for (name, mut files) in named {
        files.sort();
        let without_numbers = |file: &String| file.replace(|c: char| c.is_ascii_digit(), "");
        let kinds: BTreeSet<String> = files.iter().map(without_numbers).collect();
        let is_numbered = |file: &String| file.contains(|c: char| c.is_ascii_digit());
        let are_parts = kinds.len() == 1 && files.iter().all(is_numbered);
        // A folder holds parts.
        if name.is_exact || files.len() < 2 || are_parts || name.text.ends_with('/') {
            out.insert(name, files);
            continue;
        }
        for file in files {
            let name = Name {
                text: file.clone(),
                ..name.clone()
            };
            out.insert(name, vec![file]);
        }
    }
    out
}

/// Formats by the ends of names.
const FORMATS: [&str; 7] = ["parquet", "csv", "tsv", "jsonl", "ndjson", "json", "txt"];

/// Notes about a set, which are no data.
const NOTES: [&str; 5] = [
    "dataset_infos.json",
    "dataset_info.json",
    "dataset_dict.json",
    "config.json",
    "state.json",
];

pub(super) fn format_of(file: &str) -> Option<&'static str> {
    let name = file.strip_suffix(".gz").unwrap_or(file);
    let format = FORMATS.into_iter().find(|format| {
        name.strip_suffix(format)
            .is_some_and(|rest| rest.ends_with('.'))
    })?;
    (!NOTES.contains(&file.rsplit('/').next().unwrap_or(file))).then_some(format)
}

/// Whether a file or a folder above it begins with a dot, or a folder with two underscores.
fn is_hidden(file: &str) -> bool {
    let mut parts = file.rsplit('/');
    let name = parts.next().unwrap_or(file);
    name.starts_with('.') || parts.any(|part| part.starts_with('.') || part.starts_with("__"))
}

/// What a path calls its split in this place, with its configuration: nothing, or one name; of
/// folders of two splits both, as in `datasets`.
fn names(file: &str, place: Where) -> Vec<(Name, String)> {
    let (folders, name) = match file.rsplit_once('/') {
        Some((folders, name)) => (folders.split('/').collect(), name),
        None => (Vec::new(), file),
    };
    let config = |folders: &[&str]| {
        let config = folders.iter().find(|folder| **folder != "data");
        config.copied().unwrap_or("default").to_string()
    };
    let stem = name.split('.').next().unwrap_or(name);
    match place {
        Where::Folder => {
            let name = |i: usize| Name {
                split: split_named(folders[i]),
                // Which is no file.
                text: folders[..=i].join("/") + "/",
                is_exact: false,
            };
            let splits = (0..folders.len()).filter(|i| split_named(folders[*i]).is_some());
            splits.map(|i| (name(i), config(&folders[..i]))).collect()
        }
        Where::File => {
            let name = match (shard_of(stem), split_named(name)) {
                (Some(split), Some(_)) => Name::exact(split),
                (_, Some(split)) => Name {
                    split: Some(split),
                    // Numbers tell parts of one split apart, words tell splits.
                    text: words(stem_of(name)).collect::<Vec<_>>().join("_"),
                    is_exact: false,
                },
                (_, None) => return Vec::new(),
            };
            vec![(name, config(&folders))]
        }
        Where::Nowhere => {
            let shards = shard_of(stem);
            let name = Name {
                split: Some(Split::Train),
                text: shards.unwrap_or(name).to_string(),
                is_exact: shards.is_some(),
            };
            vec![(name, config(&folders))]
        }
    }
}

/// Whether a path says its split in any place.
pub(super) fn says_split(file: &str) -> bool {
    [Where::Folder, Where::File]
        .into_iter()
        .any(|place| !names(file, place).is_empty())
}

/// A name without the end that says its format.
fn stem_of(name: &str) -> &str {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
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

/// The words of a name, which is separated as `datasets` does it.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let is_separator = |c: char| matches!(c, '-' | '.' | '_' | ' ') || c.is_ascii_digit();
    let words = name.split(is_separator);
    words.filter(|word| !word.is_empty() && *word != "of")
}

/// `train`, `train-00000-of-00003`, `partial-train`, `dev`, `valid`, ...: the words that `datasets`
/// knows, in small letters.
pub(super) fn split_named(name: &str) -> Option<Split> {
    words(name).find_map(|word| match word {
        "train" | "training" => Some(Split::Train),
        "validation" | "valid" | "val" | "dev" => Some(Split::Validation),
        "test" | "testing" | "eval" | "evaluation" => Some(Split::Test),
        _ => None,
    })
}
