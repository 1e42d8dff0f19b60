//! What is read, and how rows become batches.

use super::verdict::{Verdict, refuse, refuse_if};
use crate::choices::{GlueTask, SaveStrategy, Strategy};
use crate::command::sets::{CLS, PREDICT};
use crate::derived::local_files;
use crate::error::UsageError;
use crate::flags::Flags;
use crate::nearest::nearest;
use std::io::Read;
use std::path::{Path, PathBuf};
use xtrain_checkpoint::files;
use xtrain_data::remote;

fn has_train_file(flags: &Flags) -> bool {
    flags.train_file.is_given() || flags.dataset_name.is_given()
}

pub fn something_to_train_on(flags: &Flags) -> Verdict {
    let or_task = if CLS.contains(flags.command) {
        ", or --task_name for one of GLUE's"
    } else {
        ""
    };
    refuse_if(
        flags.trains() && !has_train_file(flags),
        "there is nothing to train on",
        &format!(
            "add --train_file FILE (text, CSV, TSV, JSON lines or parquet; several may follow){or_task}"
        ),
    )
}

pub fn something_to_evaluate_on(flags: &Flags) -> Verdict {
    if !flags.evaluates() || flags.validation_file.is_given() {
        return Ok(());
    }
    if !has_train_file(flags) {
        return refuse(
            "there is nothing to evaluate on",
            "add --validation_file FILE, or --train_file FILE to use a share of it",
        );
    }
    refuse_if(
        *flags.validation_split_percentage == 0.0,
        "there is nothing to evaluate on: --validation_split_percentage is 0 and there is no --validation_file",
        "add --validation_file FILE or raise --validation_split_percentage",
    )
}

pub fn something_to_label(flags: &Flags) -> Verdict {
    if flags.test_file.is_given() || flags.dataset_name.is_given() {
        return Ok(());
    }
    if PREDICT.contains(flags.command) {
        return refuse(
            "there is nothing to label",
            "add --test_file FILE, or --dataset_name NAME for its test split",
        );
    }
    refuse_if(
        *flags.do_predict,
        "--do_predict labels the rows of a file, but none is named",
        "add --test_file FILE",
    )
}

/// Only mnli has a second set to evaluate on and to label, beside a first one.
pub fn only_mnli_has_two_halves(flags: &Flags) -> Verdict {
    let halves = [
        (&flags.validation_mismatched_file, &flags.validation_file),
        (&flags.test_mismatched_file, &flags.test_file),
    ];
    let mut mistakes = Vec::new();
    for (second, first) in halves.into_iter().filter(|(second, _)| second.is_given()) {
        if *flags.task_name != Some(GlueTask::Mnli) {
            mistakes.push(UsageError::illegal(
                format!("--{} is mnli's, which has two sets", second.name()),
                "leave it out, or add --task_name mnli",
            ));
        } else if !first.is_given() {
            mistakes.push(UsageError::illegal(
                format!("--{} comes after --{}", second.name(), first.name()),
                format!("add --{} with the matched set", first.name()),
            ));
        }
    }
    UsageError::all(mistakes)
}

/// Every file that was named is there.
pub fn files_are_there(flags: &Flags) -> Verdict {
    let mut mistakes = Vec::new();
    for files in [
        &flags.train_file,
        &flags.validation_file,
        &flags.validation_mismatched_file,
        &flags.test_file,
        &flags.test_mismatched_file,
    ] {
        let name = files.name();
        for path in local_files(files) {
            if remote::is_url(&path) {
                if let Err(error) = remote::check(&path) {
                    mistakes.push(UsageError::illegal(
                        format!("--{name}: {error}"),
                        "download the file, or give another address",
                    ));
                }
                continue;
            }
            if let Some(what) = no_data(&path) {
                mistakes.push(UsageError::illegal(
                    format!("--{name}: {} is {what}, not data", path.display()),
                    "give text, CSV, TSV, JSON lines or parquet; a model's directory goes to --model_name_or_path",
                ));
            } else if !path.is_file() {
                let what = if path.is_dir() {
                    "is a directory"
                } else if path.exists() {
                    "is not a regular file"
                } else {
                    "does not exist"
                };
                mistakes.push(UsageError::illegal(
                    format!("--{name}: {} {what}", path.display()),
                    match neighbour(&path) {
                        Some(near) => format!("did you mean {}?", near.display()),
                        None => "give a file; paths are relative to the working directory".into(),
                    },
                ));
            }
        }
    }
    UsageError::all(mistakes)
}

/// What a file is that holds a model or Python's objects, by its first bytes.
fn no_data(path: &Path) -> Option<&'static str> {
    let mut start = [0; 9];
    let mut file = files::open(path).ok()?;
    file.read_exact(&mut start).ok()?;
    // The length of a safetensors header, and its first byte.
    let header = u64::from_le_bytes(*start.first_chunk()?);
    let is_zip = path.extension().is_some_and(|ending| ending == "zip");
    match &start {
        [b'P', b'K', 3, 4, ..] if is_zip => Some("a zip archive"),
        [b'P', b'K', 3, 4, ..] => Some("a file of torch.save or another archive"),
        [0x80, 2..=5, ..] => Some("a pickle of Python"),
        [b'G', b'G', b'U', b'F', ..] => Some("a model in GGUF"),
        [.., b'{'] if header <= 100_000_000 && start[5..8] == [0, 0, 0] => {
            Some("a safetensors file of weights")
        }
        _ => None,
    }
}

/// The file or directory beside a missing one whose name is nearest to its.
pub fn neighbour(path: &Path) -> Option<PathBuf> {
    if path.exists() {
        return None;
    }
    let name = path.file_name()?.to_str()?;
    let parent = path.parent()?;
    let listed = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let entries = std::fs::read_dir(listed).ok()?.flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let near = nearest(name, names.iter().map(String::as_str))?;
    Some(parent.join(near))
}

pub fn streaming_has_no_epochs(flags: &Flags) -> Verdict {
    for (name, by_epoch) in [
        ("eval_strategy", *flags.eval_strategy == Strategy::Epoch),
        ("save_strategy", *flags.save_strategy == SaveStrategy::Epoch),
        (
            "logging_strategy",
            *flags.logging_strategy == Strategy::Epoch,
        ),
    ] {
        if *flags.streaming && by_epoch {
            return refuse(
                format!("--{name} epoch: a stream has no epochs that are known ahead"),
                format!("use --{name} steps"),
            );
        }
    }
    Ok(())
}

pub fn one_way_to_pad(flags: &Flags) -> Verdict {
    let pads_to_max =
        [&flags.pad_to_max_length, &flags.cls_pad_to_max_length].map(|pad| pad.is_given() && **pad);
    refuse_if(
        flags.pad_to_bucket.is_given() && pads_to_max.contains(&true),
        "--pad_to_max_length and --pad_to_bucket are two ways to pad",
        "leave one of them out",
    )
}

pub fn buckets_are_within_the_length(flags: &Flags) -> Verdict {
    let longest = *flags.max_seq_length;
    let bucket = flags.pad_to_bucket.iter().flatten().copied().max();
    match (longest, bucket) {
        (Some(longest), Some(bucket)) if bucket > longest => refuse(
            format!(
                "--pad_to_bucket {bucket} is longer than any example: --max_seq_length is {longest}"
            ),
            format!("raise --max_seq_length, or leave {bucket} out"),
        ),
        _ => Ok(()),
    }
}

/// Whether the sets to evaluate on are packed.
fn packs_evaluations(flags: &Flags) -> bool {
    flags.eval_packing.unwrap_or(*flags.packing)
}

pub fn packed_rows_are_full(flags: &Flags) -> Verdict {
    refuse_if(
        flags.pad_to_bucket.is_given() && *flags.packing && packs_evaluations(flags),
        "--pad_to_bucket has nothing to pad: --packing fills rows of max_seq_length tokens",
        "leave one of them out",
    )
}

/// Rows that are packed before they are counted are not the examples that were asked for.
pub fn packing_takes_whole_sets(flags: &Flags) -> Verdict {
    let limits = [
        (flags.max_train_samples.given_name(), *flags.packing),
        (
            flags.max_eval_samples.given_name(),
            packs_evaluations(flags),
        ),
    ];
    let limit = limits
        .into_iter()
        .find_map(|(name, packs)| name.filter(|_| packs));
    match limit {
        Some(name) => refuse(
            format!(
                "--{name} counts examples, and packed rows hold several: packing does not support it yet"
            ),
            "shorten the file instead, or leave --packing out",
        ),
        None => Ok(()),
    }
}

pub fn padding_needs_lines(flags: &Flags) -> Verdict {
    let pads = [
        flags.pad_to_bucket.given_name(),
        flags.pad_to_max_length.name_if_true(),
    ];
    match pads.into_iter().flatten().next() {
        Some(name) if !*flags.line_by_line => refuse(
            format!("--{name} has nothing to pad: lines are joined and cut into full examples"),
            format!("add --line_by_line, or leave --{name} out"),
        ),
        _ => Ok(()),
    }
}
