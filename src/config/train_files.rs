//! What `--train_file` may name besides files: a folder with the files of a data set, files with
//! weights, `a.jsonl:0.7 b.jsonl:0.3`, which are mixed, and, as the other sets too, wildcards. A file that
//! is there under the whole of such a name is that file.

use super::command::sets::{PREFERENCES, SFT};
use super::error::UsageError;
use super::flags::Flags;
use std::path::{Path, PathBuf};
use xtrain_data::{Error as DataError, remote};
use xtrain_hub::{self as hub, DatasetFiles};

/// Puts the files of a folder, and files without their weights, in the place of what was named.
pub fn apply(flags: &mut Flags) {
    // A model's directory is none of data.
    if let [one] = &flags.train_file[..]
        && one.is_dir()
        && !one.join("config.json").is_file()
    {
        let dir = one.clone();
        folder(flags, &dir);
    } else {
        weights(flags);
        wildcards(flags);
    }
}

/// Puts the files that a wildcard stands for in its place, in the order of their names: here and in a
/// bucket, as datasets' `data_files` has it.
fn wildcards(flags: &mut Flags) {
    let Flags {
        train_file,
        validation_file,
        test_file,
        notes,
        mistakes,
        ..
    } = flags;
    for files in [train_file, validation_file, test_file] {
        if !files.iter().any(|path| stands_for_others(path)) {
            continue;
        }
        let mut found = Vec::new();
        for path in files.iter() {
            if !stands_for_others(path) {
                found.push(path.clone());
                continue;
            }
            let listed = if remote::is_url(path) {
                remote::listed(path)
            } else {
                here(path)
            };
            match listed {
                Ok(listed) => {
                    notes.push(format!("{}: {} files", path.display(), listed.len()));
                    found.extend(listed);
                }
                Err(error) => mistakes.push(UsageError::illegal(
                    format!("--{}: {error}", files.name()),
                    "name the files themselves",
                )),
            }
        }
        files.set(found);
    }
    if !flags.weights.is_empty() && flags.weights.len() != flags.train_file.len() {
        flags.mistakes.push(UsageError::illegal(
            "--train_file: a wildcard stands for several files, and has one weight",
            "give each file its share of the examples, as a.jsonl:0.7 b.jsonl:0.3",
        ));
    }
}

/// Whether a name is no file's but has a wildcard, or is a folder of a bucket.
fn stands_for_others(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    if remote::is_url(path) {
        return text.contains('*') || text.ends_with('/');
    }
    text.contains(['*', '?', '[']) && !path.exists()
}

/// The files of this machine that a pattern matches; none that is hidden.
fn here(pattern: &Path) -> Result<Vec<PathBuf>, DataError> {
    let bad = |reason: String| DataError::BadPattern {
        pattern: pattern.to_path_buf(),
        reason,
    };
    let options = glob::MatchOptions {
        require_literal_separator: true,
        require_literal_leading_dot: true,
        ..Default::default()
    };
    let text = pattern.to_str().unwrap_or_default();
    let paths = glob::glob_with(text, options).map_err(|error| bad(error.msg.into()))?;
    let paths: Result<Vec<PathBuf>, _> = paths.collect();
    let mut paths = paths.map_err(|error| bad(error.to_string()))?;
    paths.retain(|path| path.is_file());
    if paths.is_empty() {
        return Err(bad("there is no such file".into()));
    }
    Ok(paths)
}

/// The files of a folder by the words that `datasets` and mlx_lm go by. What is not given and the folder
/// has is evaluated on: its validation split, else for TRL's tasks its test split, as TRL has it.
fn folder(flags: &mut Flags, dir: &Path) {
    let found = match hub::dataset_in(dir, None, false) {
        Ok(found) if !found.train.is_empty() => found,
        // Without data it is a directory as any other, which is refused as such.
        Ok(_) | Err(hub::Error::NoData { .. }) => return,
        Err(error) => {
            return flags.mistakes.push(UsageError::illegal(
                format!("--train_file: {error}"),
                "name the files themselves with --train_file and --validation_file",
            ));
        }
    };
    let DatasetFiles {
        train,
        validation,
        test,
        features,
        ..
    } = found;
    let is_trls = SFT.contains(flags.command) || PREFERENCES.contains(flags.command);
    let held_out = if validation.is_empty() && is_trls {
        test
    } else {
        validation
    };
    let mut note = format!("{}: {} to train on", dir.display(), names(&train));
    if !flags.validation_file.is_given() && !held_out.is_empty() {
        note.push_str(&format!(", {} to evaluate on", names(&held_out)));
        if !flags.evaluates() {
            note.push_str(" (with --do_eval or --eval_strategy)");
        }
        flags.validation_file.set(held_out);
    }
    flags.notes.push(note);
    flags.train_file.set(train);
    flags.features = features;
    flags.is_folder = true;
}

/// The names of files, without where they are.
fn names(files: &[PathBuf]) -> String {
    let names = files.iter().filter_map(|file| file.file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    names.join(", ")
}

/// A file and its weight, as far as the text has one.
fn weighted(path: &Path) -> (PathBuf, Option<&str>) {
    let whole = (path.to_path_buf(), None);
    let text = path.to_str().filter(|_| !path.exists());
    let Some((file, weight)) = text.and_then(|text| text.rsplit_once(':')) else {
        return whole;
    };
    // An address with a port is no file with a weight.
    let in_host = file.split_once("://").map(|(_, rest)| !rest.contains('/'));
    let is_host = remote::is_url(path) && in_host != Some(false);
    if weight.parse::<f64>().is_err() || is_host || file.is_empty() {
        return whole;
    }
    (PathBuf::from(file), Some(weight))
}

fn weights(flags: &mut Flags) {
    let named = flags.train_file.clone();
    let parts: Vec<_> = named.iter().map(|path| weighted(path)).collect();
    if parts.iter().all(|(_, weight)| weight.is_none()) {
        return;
    }
    let mut found = Vec::new();
    for (file, weight) in &parts {
        let number = weight.and_then(|weight| weight.parse::<f64>().ok());
        let problem = match (weight, number) {
            (Some(_), Some(number)) if number.is_finite() && number > 0.0 => {
                found.push(number);
                continue;
            }
            (None, _) if file.is_dir() => "is a directory, and other files have weights".into(),
            (None, _) => "has no weight, and other files have one".into(),
            (Some(weight), _) => format!("has the weight {weight}, which is not more than 0"),
        };
        flags.mistakes.push(UsageError::illegal(
            format!("--train_file: {} {problem}", file.display()),
            "give each file its share of the examples, as a.jsonl:0.7 b.jsonl:0.3",
        ));
    }
    flags
        .train_file
        .set(parts.into_iter().map(|(file, _)| file).collect());
    // One file with a weight is no mixture.
    if found.len() == named.len() && found.len() > 1 {
        flags.weights = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandName, TaskName};

    fn applied(files: &[PathBuf]) -> Flags {
        let mut flags = Flags::new(CommandName::Train(TaskName::Sft));
        flags.train_file.set(files.to_vec());
        apply(&mut flags);
        flags
    }

    #[test]
    fn files_with_weights_are_a_mixture() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a.jsonl", "b.jsonl", "c.jsonl:0.5"] {
            std::fs::write(path(name), "x").unwrap();
        }
        let flags = applied(&[path("a.jsonl:0.7"), path("b.jsonl:3e-1")]);
        assert_eq!(*flags.train_file, [path("a.jsonl"), path("b.jsonl")]);
        assert_eq!(flags.weights, [0.7, 0.3]);
        // A name that holds a colon is a name.
        let flags = applied(&[path("c.jsonl:0.5")]);
        assert_eq!(*flags.train_file, [path("c.jsonl:0.5")]);
        assert!(flags.weights.is_empty() && flags.mistakes.is_empty());
        let flags = applied(&[path("c.jsonl:0.5:2"), path("a.jsonl:1")]);
        assert_eq!(*flags.train_file, [path("c.jsonl:0.5"), path("a.jsonl")]);
        assert_eq!(flags.weights, [2.0, 1.0]);
        let url = PathBuf::from("https://host:8080");
        assert_eq!(weighted(&url).1, None);
        let url = PathBuf::from("s3://bucket/a.jsonl:0.5");
        assert_eq!(
            weighted(&url),
            (PathBuf::from("s3://bucket/a.jsonl"), Some("0.5"))
        );
        for (files, part) in [
            ([path("a.jsonl:0.7"), path("b.jsonl")], "has no weight"),
            ([path("a.jsonl:0"), path("b.jsonl:1")], "not more than 0"),
            ([path("a.jsonl:1"), path("b.jsonl:nan")], "weight nan"),
        ] {
            let flags = applied(&files);
            let mistakes: Vec<String> = flags.mistakes.iter().map(|it| it.to_string()).collect();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].contains(part), "{mistakes:?}");
        }
    }

    #[test]
    fn a_folder_has_its_files_by_their_names() {
        for (files, trains, evaluates) in [
            (
                &["train.jsonl", "valid.jsonl", "test.jsonl"][..],
                "train.jsonl",
                Some("valid.jsonl"),
            ),
            (
                &["train.parquet", "eval.parquet"],
                "train.parquet",
                Some("eval.parquet"),
            ),
            (&["train.csv"], "train.csv", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for name in files {
                std::fs::write(dir.path().join(name), "x").unwrap();
            }
            let flags = applied(&[dir.path().into()]);
            assert_eq!(*flags.train_file, [dir.path().join(trains)]);
            let expected: Vec<PathBuf> = evaluates.iter().map(|it| dir.path().join(it)).collect();
            assert_eq!(*flags.validation_file, expected);
            assert!(
                flags.is_folder && flags.notes.len() == 1,
                "{:?}",
                flags.notes
            );
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(!applied(&[empty.path().into()]).is_folder);
        let two = tempfile::tempdir().unwrap();
        for name in ["train.csv", "train_more.csv"] {
            std::fs::write(two.path().join(name), "x").unwrap();
        }
        assert_eq!(applied(&[two.path().into()]).mistakes.len(), 1);
    }

    #[test]
    fn wildcards_stand_for_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "part-2.jsonl",
            "part-1.jsonl",
            ".part-0.jsonl",
            "other.txt",
            "deep",
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("part-3.jsonl")).unwrap();
        let found = here(&dir.path().join("part-*.jsonl")).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["part-1.jsonl", "part-2.jsonl"]);
        let error = here(&dir.path().join("none-*.jsonl"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("there is no such file"), "{error}");
        // A file of that very name is meant.
        std::fs::write(dir.path().join("a[1].txt"), "").unwrap();
        assert!(!stands_for_others(&dir.path().join("a[1].txt")));
        assert!(stands_for_others(Path::new("s3://bucket/part-*.jsonl")));
        assert!(stands_for_others(Path::new("s3://bucket/dir/")));
        assert!(!stands_for_others(Path::new("s3://bucket/a?.jsonl")));
    }
}
