//! Where a run writes, and what it resumes from: nothing of an earlier run is written over by
//! accident.

use super::data::neighbour;
use super::verdict::{Verdict, refuse};
use crate::command::sets::{QUICKSTART, TOP};
use crate::config_file::DATA_SETTINGS_FILE;
use crate::derived::local_files;
use crate::error::UsageError;
use crate::flags::Flags;
use crate::from_hub;
use crate::sources::{CACHE_VARIABLE, LOGGING_VARIABLE};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};
use xtrain_cache::KEY_VARIABLE;
use xtrain_checkpoint::hf::{CONFIG_FILE, GENERATION_CONFIG_FILE, TRAINER_STATE_FILE};
use xtrain_checkpoint::lock::RUN_LOCK;
use xtrain_checkpoint::weights::{MODEL_FILES, WEIGHTS_FILE, WEIGHTS_INDEX_FILE};
use xtrain_data::remote;
use xtrain_data::tokenizer::TOKENIZER_FILES;
use xtrain_distributed::RankInfo;
use xtrain_hub as hub;
use xtrain_objects::SCHEMES;
use xtrain_report::records::LOG_FILE;
use xtrain_report::runs::checkpoints::{checkpoint_step, newest_checkpoint};
use xtrain_report::trackers::TENSORBOARD;
use xtrain_trainer::settings::Resume;

const ANOTHER: &str =
    "name another --output_dir, or add --overwrite_output_dir to replace its files";

pub fn output_dir_is_no_file(flags: &Flags) -> Verdict {
    match &*flags.output_dir {
        Some(path) if path.is_file() => refuse(
            format!("--output_dir: {} is a file", path.display()),
            "name a directory",
        ),
        _ => Ok(()),
    }
}

/// The directories that variables name where no flag does are paths as a flag's is.
pub fn directories_of_the_environment_are_here(flags: &Flags) -> Verdict {
    for (variable, is_read) in [
        (CACHE_VARIABLE, !flags.cache_dir.is_given()),
        (
            LOGGING_VARIABLE,
            flags.report_to.contains(&&TENSORBOARD) && !flags.logging_dir.is_given(),
        ),
        ("HF_HUB_CACHE", from_hub::is_asked(flags)),
        ("HF_HOME", from_hub::is_asked(flags)),
    ] {
        let Some(value) = std::env::var_os(variable).filter(|_| is_read) else {
            continue;
        };
        if let Some(scheme) = remote::scheme(Path::new(&value)) {
            let shown = value.to_string_lossy();
            return refuse(
                format!(
                    "${variable}: {shown} is not on this machine, and {scheme}:// is not supported here"
                ),
                "set it to a path on this machine",
            );
        }
    }
    Ok(())
}

/// A shared store is a directory of this machine or a folder of objects. What comes without TLS could be
/// anybody's native code.
pub fn remote_cache_is_a_place(flags: &Flags) -> Verdict {
    let Some(place) = &*flags.cache_remote else {
        return Ok(());
    };
    let shown = place.display();
    match remote::scheme(place) {
        None => Ok(()),
        Some("http")
            if !flags.cache_remote_key.is_given() && std::env::var_os(KEY_VARIABLE).is_none() =>
        {
            refuse(
                format!("--cache_remote: {shown} comes without TLS, and entries are native code"),
                "use https://, or sign the entries: --cache_remote_key FILE",
            )
        }
        Some(scheme)
            if SCHEMES.contains(&scheme)
                && place.starts_with(format!("{scheme}:"))
                && shown.to_string().contains("://") =>
        {
            Ok(())
        }
        Some(scheme) => refuse(
            format!(
                "--cache_remote: {shown} is not on this machine, and {scheme}:// is not supported here"
            ),
            "give a directory, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or https://HOST/PATH",
        ),
    }
}

pub fn output_file_is_no_directory(flags: &Flags) -> Verdict {
    match &*flags.output_file {
        Some(path) if path.is_dir() => refuse(
            format!("--output_file: {} is a directory", path.display()),
            "name the CSV file to write",
        ),
        _ => Ok(()),
    }
}

pub fn output_file_is_no_input(flags: &Flags) -> Verdict {
    let real = |path: &PathBuf| path.canonicalize().ok();
    let Some(output) = flags.output_file.as_ref().and_then(real) else {
        return Ok(());
    };
    let tests = local_files(&flags.test_file);
    match tests
        .iter()
        .find(|file| real(file).as_ref() == Some(&output))
    {
        Some(file) => refuse(
            format!(
                "--output_file would replace the test file {}",
                file.display()
            ),
            "name another file",
        ),
        None => Ok(()),
    }
}

pub fn pushed_name_is_one_of_the_hub(flags: &Flags) -> Verdict {
    let name = flags.pushed_name().filter(|_| *flags.push_to_hub);
    match name {
        Some(name) if !hub::is_new_name(&name) => {
            let source = if flags.hub_model_id.is_given() {
                "--hub_model_id"
            } else {
                "--push_to_hub: the name of output_dir"
            };
            refuse(
                format!("{source}: no repository can have the name {name:?}"),
                "give NAME or ORGANIZATION/NAME as --hub_model_id: letters, digits, -, _ and ., without -- and .., at most 96 each",
            )
        }
        None if *flags.push_to_hub && flags.output_dir.is_given() => refuse(
            "--push_to_hub: output_dir has no name that a repository could have",
            "add --hub_model_id NAME",
        ),
        _ => Ok(()),
    }
}

/// Of a report and of `top`.
pub fn runs_exist(flags: &Flags) -> Verdict {
    let named = flags.runs.iter().chain(&*flags.watched).map(Path::new);
    let named = named.chain(flags.watched_dir.as_deref());
    let refusals = named.filter(|run| !run.exists()).map(|run| {
        UsageError::illegal(
            format!(
                "{}: {} does not exist",
                flags.command.words(),
                run.display()
            ),
            match neighbour(run) {
                Some(near) => format!("did you mean {}?", near.display()),
                None if TOP.contains(flags.command) => "name the output directory of a run".into(),
                None => "name an output directory, a trainer_state.json or a log".into(),
            },
        )
    });
    UsageError::all(refusals.collect())
}

pub fn losses_are_those_of_two_runs(flags: &Flags) -> Verdict {
    let runs = flags.reported();
    if !*flags.compare_losses || runs.len() == 2 {
        return Ok(());
    }
    let shown = match &runs[..] {
        [first, second, ..] => format!("{} {}", first.display(), second.display()),
        _ => "A B".into(),
    };
    refuse(
        format!("--compare_losses compares two runs, not {}", runs.len()),
        format!("name two: `xtrain report {shown} --compare_losses`"),
    )
}

pub fn loss_bounds_need_a_comparison(flags: &Flags) -> Verdict {
    let given = [
        flags.align.given_name(),
        flags.window.given_name(),
        flags.largest.given_name(),
        flags.mean.given_name(),
        flags.smoothed.given_name(),
        flags.json.given_name(),
    ];
    match given.into_iter().flatten().next() {
        Some(name) if !*flags.compare_losses => refuse(
            format!("--{name} belongs to --compare_losses"),
            "add --compare_losses, or leave it out; `--format json` writes a report as JSON",
        ),
        _ => Ok(()),
    }
}

pub fn resume_needs_a_checkpoint(flags: &Flags) -> Verdict {
    let (path, problem, fix) = match &*flags.resume_from_checkpoint {
        _ if !flags.trains() => return Ok(()),
        Resume::No | Resume::IfAny => return Ok(()),
        // The bucket is asked when the rules hold.
        Resume::Latest if flags.bucket.is_some() => return Ok(()),
        Resume::Latest => {
            let output = flags.output_dir.as_deref().unwrap_or(Path::new(""));
            if newest_checkpoint(output, |_| true).is_some() {
                return Ok(());
            }
            let fix = "leave the flag out to start from the beginning, or name a checkpoint-N directory after it";
            (output, "holds no checkpoint", fix.to_string())
        }
        Resume::From(path) if !path.is_dir() => {
            let fix = "give a checkpoint-N directory of an earlier run";
            (path.as_path(), "is not a directory", fix.to_string())
        }
        Resume::From(path) if !path.join("training_state.json").is_file() => {
            let fix = match newest_checkpoint(path, |_| true) {
                Some(newest) => format!("its newest checkpoint is {}", newest.display()),
                None => "to start anew from its weights, give it as --model_name_or_path".into(),
            };
            (path.as_path(), "holds no training state", fix)
        }
        Resume::From(_) => return Ok(()),
    };
    refuse(
        format!("--resume_from_checkpoint: {} {problem}", path.display()),
        fix,
    )
}

pub fn earlier_runs_are_kept(flags: &Flags) -> Verdict {
    // Quickstart replaces its own directory.
    let Some(output) = &*flags.output_dir else {
        return Ok(());
    };
    if *flags.overwrite_output_dir {
        return Ok(());
    }
    if QUICKSTART.contains(flags.command) {
        return empty_output(output, ANOTHER);
    }
    match &*flags.resume_from_checkpoint {
        _ if !flags.trains() => Ok(()),
        Resume::Latest => Ok(()),
        // What a run that saved no checkpoint left is no loss; a model is.
        Resume::IfAny => {
            let has_model = MODEL_FILES.iter().any(|name| output.join(name).exists());
            if has_model && newest_checkpoint(output, |_| true).is_none() {
                empty_output(output, ANOTHER)
            } else {
                Ok(())
            }
        }
        // Another rule says what is wrong with it.
        Resume::From(path) if !path.join("training_state.json").is_file() => Ok(()),
        Resume::From(path) => {
            // Resuming in the checkpoint's own directory is the point; in another one there may be
            // another run's work.
            if has_checkpoint(output, path) {
                return Ok(());
            }
            empty_output(
                output,
                "to resume from another directory's checkpoint, name an empty --output_dir, or add --overwrite_output_dir to replace its files",
            )
        }
        Resume::No if newest_checkpoint(output, |_| true).is_some() => empty_output(
            output,
            "add --resume_from_checkpoint to resume from its newest checkpoint, --overwrite_output_dir to replace its files, or name another directory",
        ),
        Resume::No => empty_output(output, ANOTHER),
    }
}

/// Whether a checkpoint is one of the directory's.
pub(crate) fn has_checkpoint(output: &Path, checkpoint: &Path) -> bool {
    let own = checkpoint.canonicalize().ok();
    let own = own.as_deref().and_then(Path::parent);
    own.is_some() && own == output.canonicalize().ok().as_deref()
}

fn empty_output(output: &Path, fix: &str) -> Verdict {
    // Of several processes, the first one's first start decides; the others find what that has
    // made.
    if !RankInfo::this_begins_job() {
        return Ok(());
    }
    // A directory that is missing or cannot be listed is met again with a clear message
    // when it is made.
    // A lock alone is nobody's work.
    let is_empty = std::fs::read_dir(output).map_or(true, |entries| {
        entries.flatten().all(|entry| entry.file_name() == RUN_LOCK)
    });
    if is_empty {
        Ok(())
    } else {
        refuse(
            format!("--output_dir: {} is not empty", output.display()),
            fix,
        )
    }
}

/// Files that a run writes when it has ended.
const WRITTEN: [&str; 10] = [
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE,
    TRAINER_STATE_FILE,
    LOG_FILE,
    DATA_SETTINGS_FILE,
    "train_results.json",
    "eval_results.json",
    "all_results.json",
];

/// Whatever has a name that this run will need, it can take the place of.
pub fn nothing_is_in_the_way(flags: &Flags) -> Verdict {
    let output = flags.output_dir.as_deref().filter(|_| flags.trains());
    let entries = output.and_then(|output| std::fs::read_dir(output).ok());
    let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    for entry in entries.into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let (is_checkpoint, is_dir) = (checkpoint_step(&path).is_some(), path.is_dir());
        let is_file = WRITTEN.contains(&&*name) || TOKENIZER_FILES.contains(&&*name);
        let problem = match access(&path, all) {
            _ if is_checkpoint && !is_dir => "is no directory, and a checkpoint may need its name",
            Err(_) if is_checkpoint => "may not be written to, and this run may have to replace it",
            _ if is_file && is_dir => "is a directory, and this run writes a file of that name",
            _ => continue,
        };
        return refuse(
            format!("--output_dir: {} {problem}", path.display()),
            "move it away, or name another --output_dir",
        );
    }
    Ok(())
}
